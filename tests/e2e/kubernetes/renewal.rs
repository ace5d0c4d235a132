//! Pods of an OnDelete DaemonSet are renewed at the end of an update, one node of the cluster at a time.

use std::{collections::BTreeSet, path::Path, process::Child, sync::Arc};

use muster_tests::fleet::manifest::hook;

use super::{
    handshake::{CLUSTER_REQUESTS, REQUESTS, rights_with_maintenance},
    workers::{UPDATE_MAX, ends},
    *,
};

const NAMESPACE: &str = "tf";
const VROUTER: &str = "vrouter";
const DAEMON_SETS: &str = "daemonsets.apps";
/// These continue the section `kubernetes`.
const ON_DELETE: &str = "  onDelete: [{namespace: tf, matchLabels: {app: vrouter}}]";
const MAINTENANCE: &str = "  maintenance: {}";
/// An annotation of a machine that its node bears while its maintenance is requested.
const MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";
/// Changes of a vRouter in its renewal at which the coordinator is killed: it terminates, and it is Ready again.
const CHANGES_MIN: usize = 2;

/// The deployed fleet, with a vRouter on every node.
fn deployed_with_vrouters(name: &str) -> Result<(Fleet, Arc<Kubernetes>)> {
    let kubernetes = start_nodes(Config::default(), &MACHINES)?;
    kubernetes.revoke_token(TOKEN);
    kubernetes.add_token(TOKEN, USER, rights_with_maintenance()?);
    kubernetes.namespace(NAMESPACE)?;
    kubernetes.daemonset(NAMESPACE, VROUTER)?;
    wait_for("the vRouters", TIME_LIMIT, || Ok((vrouters_ready(&kubernetes) == MACHINES.len()).then_some(())))?;
    let mut fleet = Fleet::start(name, &[])?;
    let first = manifest(&fleet, 1, &[ON_DELETE]);
    deploy(&mut fleet, &kubernetes, &kubernetes.kubeconfig(TOKEN)?, &MACHINES, &first)?;
    fleet.set_time_limit(UPDATE_MAX);
    Ok((fleet, Arc::new(kubernetes)))
}

fn vrouters(kubernetes: &Kubernetes) -> Vec<Arc<Value>> {
    let mut pods = kubernetes.objects("pods");
    pods.retain(|pod| pod["metadata"]["namespace"] == NAMESPACE);
    pods
}

fn is_terminating(pod: &Value) -> bool {
    pod["metadata"].get("deletionTimestamp").is_some()
}

fn is_ready(pod: &Value) -> bool {
    let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    pod["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(ready))
}

/// Number of vRouters that are Ready and stay.
fn vrouters_ready(kubernetes: &Kubernetes) -> usize {
    vrouters(kubernetes).iter().filter(|pod| is_ready(pod) && !is_terminating(pod)).count()
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].to_string()
}

fn uids(kubernetes: &Kubernetes) -> BTreeSet<String> {
    vrouters(kubernetes).iter().map(|pod| uid(pod)).collect()
}

/// An operator's new image.
fn change_template(kubernetes: &Kubernetes) -> Result<()> {
    kubernetes.modify(DAEMON_SETS, NAMESPACE, VROUTER, |object| {
        object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("fake/vrouter:2");
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
        object["metadata"]["generation"] = json!(generation + 1);
    })
}

/// Starts an update beside the test whose hook after changes the template, and returns when it did. `kubernetes`:
/// further lines of that section.
fn at_renewal(fleet: &Fleet, cluster: &Kubernetes, kubernetes: &[&str]) -> Result<Child> {
    let (begun, changed) = (fleet.path("hook-begun"), fleet.path("template-changed"));
    let waits = format!("touch {begun}\n          until [ -e {changed} ]; do sleep 0.1; done\n          effect end");
    let hook = hook("applications", "control-1", &fleet.effects_log()).replace("effect end", &waits);
    let hooks = format!("updateHooks:\n    after:{hook}");
    fleet.apply(&manifest(fleet, 2, &[kubernetes, &[ON_DELETE, &hooks]].concat()))?;
    let update = workers::start_update(fleet)?;
    wait_for("the hook after", UPDATE_MAX, || Ok(Path::new(&begun).exists().then_some(())))?;
    cluster.clear_requests();
    cluster.reset_lowest_ready();
    change_template(cluster)?;
    fs::write(&changed, "")?;
    Ok(update)
}

/// Evictions that the API server carried out, by the UID that each demanded. None is demanded without one.
fn evicted(kubernetes: &Kubernetes) -> Result<Vec<String>> {
    let evictions = evidence::evictions(kubernetes);
    let unguarded = evictions.iter().find(|request| !request.body["deleteOptions"]["preconditions"]["uid"].is_string());
    ensure!(unguarded.is_none(), "{unguarded:?}");
    let done = evictions.iter().filter(|request| request.status.is_some_and(|status| status < 300));
    Ok(done.map(|request| request.body["deleteOptions"]["preconditions"]["uid"].to_string()).collect())
}

/// At least so many vRouters were Ready all the while, since the template changed.
fn were_ready(kubernetes: &Kubernetes, least: usize) -> Result<()> {
    let replicas = kubernetes.ready_replicas();
    let replicas = replicas.iter().find(|replicas| replicas.workload.name == VROUTER).context("the vRouters")?;
    ensure!(replicas.lowest >= least, "{replicas:?}");
    Ok(())
}

/// Each pod was renewed by one eviction with its UID, and never more than one of them was away.
fn are_renewed(kubernetes: &Kubernetes, before: &BTreeSet<String>) -> Result<()> {
    were_ready(kubernetes, MACHINES.len() - 1)?;
    let after = uids(kubernetes);
    ensure!(after.len() == MACHINES.len() && after.is_disjoint(before), "{before:?} {after:?}");
    let set = kubernetes.object(DAEMON_SETS, NAMESPACE, VROUTER).context("the DaemonSet")?;
    ensure!(set["status"]["updatedNumberScheduled"] == MACHINES.len(), "{set}");
    ensure!(set["status"]["currentNumberScheduled"] == MACHINES.len(), "{set}");
    let evicted = evicted(kubernetes)?;
    ensure!(evicted.len() == MACHINES.len() && evicted.iter().all(|uid| before.contains(uid)), "{evicted:?}");
    Ok(())
}

/// The template changes in the update's hook after.
#[test]
fn vrouters_are_renewed_one_by_one() -> Result<()> {
    let (fleet, kubernetes) = deployed_with_vrouters("renewal")?;
    let before = uids(&kubernetes);
    let update = at_renewal(&fleet, &kubernetes, &[])?;
    ends(&fleet, update, 0)?;
    are_renewed(&kubernetes, &before)?;
    let others = changes(&kubernetes).into_iter().find(|request| request.subresource != "eviction");
    ensure!(others.is_none(), "nothing else is changed: {others:?}");
    fleet.done()
}

/// The coordinator is killed after every change of a vRouter: when it terminates, when the next one is there, and when
/// that is Ready.
#[test]
fn kills_renew_nothing_twice() -> Result<()> {
    let (mut fleet, kubernetes) = deployed_with_vrouters("renewal-kills")?;
    let before = uids(&kubernetes);
    let seen = || -> BTreeSet<(String, bool, bool)> {
        vrouters(&kubernetes).iter().map(|pod| (uid(pod), is_terminating(pod), is_ready(pod))).collect()
    };
    let mut update = at_renewal(&fleet, &kubernetes, &[MAINTENANCE])?;
    let mut kills = 0;
    while !(uids(&kubernetes).is_disjoint(&before) && vrouters_ready(&kubernetes) == MACHINES.len()) {
        let last = seen();
        wait_for("a change of a vRouter", UPDATE_MAX, || Ok((seen() != last).then_some(())))?;
        fleet.kill_coordinator()?;
        kills += 1;
        fleet.start_coordinator()?;
    }
    ensure!(kills >= CHANGES_MIN * MACHINES.len(), "{kills} kills: it was not killed at every kind of point");
    update.kill()?;
    update.wait()?;
    fleet.wait_rollout()?;
    are_renewed(&kubernetes, &before)?;
    let cordon = changes(&kubernetes).into_iter().find(|request| request.body["spec"]["unschedulable"] == true);
    ensure!(cordon.is_none(), "no node is cordoned for it: {cordon:?}");
    nothing_is_requested(&kubernetes)?;
    fleet.done()
}

/// No request of Muster's is there.
fn nothing_is_requested(kubernetes: &Kubernetes) -> Result<()> {
    wait_for("the end of the requests", TIME_LIMIT, || {
        let left = |kind| !kubernetes.objects(kind).is_empty();
        Ok((!left(REQUESTS) && !left(CLUSTER_REQUESTS)).then_some(()))
    })
}

/// Annotations of all nodes.
fn annotations(kubernetes: &Kubernetes) -> BTreeMap<String, Value> {
    let nodes = kubernetes.objects("nodes");
    nodes.iter().map(|node| (node["metadata"]["name"].to_string(), node["metadata"]["annotations"].clone())).collect()
}

/// The update is aborted while an evicted vRouter terminates. Its node's turn comes to its end; the others keep their
/// pods, which is said, and the next update renews them.
#[test]
fn abort_in_renewal_leaves_others() -> Result<()> {
    let (fleet, kubernetes) = deployed_with_vrouters("renewal-abort")?;
    for machine in MACHINES {
        fleet.ctl(&["annotate", "machine", machine, &format!("{MODE}=skip")])?.exits(0)?;
    }
    let (before, annotated_before) = (uids(&kubernetes), annotations(&kubernetes));
    let stuck = |stuck: bool| {
        let pods = vrouters(&kubernetes);
        let mut names =
            pods.iter().filter(|pod| before.contains(&uid(pod))).map(|pod| pod["metadata"]["name"].as_str());
        names.try_for_each(|name| kubernetes.set_stuck(NAMESPACE, name.context("its name")?, stuck))
    };
    stuck(true)?;
    let update = at_renewal(&fleet, &kubernetes, &[MAINTENANCE])?;
    let node = wait_for("an eviction", UPDATE_MAX, || {
        let pods = vrouters(&kubernetes);
        let evicted = pods.iter().find(|pod| is_terminating(pod));
        Ok(evicted.and_then(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)))
    })?;
    let requests = kubernetes.objects(REQUESTS);
    ensure!(requests.len() == 1 && requests[0]["spec"]["nodeName"] == node.as_str(), "{requests:?}");
    let annotated = annotations(&kubernetes);
    ensure!(annotated[&json!(node).to_string()][MODE] == "skip", "{node}: {annotated:?}");
    let left = "leaves DaemonSets that are not up to date: tf/vrouter (0 of 6 pods)";
    fleet.ctl(&["abort", "e2e", "--yes"])?.exits(0)?.says(&[left])?;
    ensure!(!kubernetes.objects(REQUESTS).is_empty(), "what was evicted comes to its end");
    stuck(false)?;
    ends(&fleet, update, 4)?;
    nothing_is_requested(&kubernetes)?;
    let given_back = annotations(&kubernetes);
    ensure!(given_back == annotated_before, "{annotated_before:?} {given_back:?}");
    is_given_back(&kubernetes)?;
    were_ready(&kubernetes, MACHINES.len() - 1)?;
    ensure!(evicted(&kubernetes)?.len() == 1 && uids(&kubernetes).intersection(&before).count() == MACHINES.len() - 1);
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&[left])?;
    fleet.apply(&manifest(&fleet, 3, &[MAINTENANCE, ON_DELETE]))?;
    fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    are_renewed(&kubernetes, &before)?;
    nothing_is_requested(&kubernetes)?;
    ensure!(annotations(&kubernetes) == annotated_before);
    fleet.done()
}

/// A budget over the DaemonSet can never allow an eviction, which is said before the start. The machines' own update is
/// done, and nothing is evicted.
#[test]
fn budget_over_vrouters_is_named_before() -> Result<()> {
    let (fleet, kubernetes) = deployed_with_vrouters("renewal-budget")?;
    kubernetes.budget(NAMESPACE, VROUTER, Allowance::MaxUnavailable(1))?;
    fleet.apply(&manifest(&fleet, 2, &[ON_DELETE]))?;
    let words = ["tf/vrouter", "DaemonSet"];
    wait_for("the budget's condition", TIME_LIMIT, || {
        Ok(fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&words).is_ok().then_some(()))
    })?;
    fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    ensure!(evidence::evictions(&kubernetes).is_empty());
    fleet.done()
}
