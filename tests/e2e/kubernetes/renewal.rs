//! Pods of an OnDelete DaemonSet are renewed at the end of an update, one node of the cluster at a time.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use muster_tests::fleet::manifest::hook;

use super::*;

const NAMESPACE: &str = "tf";
const VROUTER: &str = "vrouter";
const DAEMON_SETS: &str = "daemonsets.apps";
/// Continues the section `kubernetes`.
const ON_DELETE: &str = "  onDelete: [{namespace: tf, matchLabels: {app: vrouter}}]";

/// The deployed fleet, with a vRouter on every node.
fn deployed_with_vrouters(name: &str) -> Result<(Fleet, Arc<Kubernetes>)> {
    let kubernetes = start_nodes(Config::default(), &MACHINES)?;
    kubernetes.namespace(NAMESPACE)?;
    kubernetes.daemonset(NAMESPACE, VROUTER)?;
    wait_for("the vRouters", TIME_LIMIT, || Ok((vrouters_ready(&kubernetes) == MACHINES.len()).then_some(())))?;
    let mut fleet = Fleet::start(name, &[])?;
    let first = manifest(&fleet, 1, &[ON_DELETE]);
    deploy(&mut fleet, &kubernetes, &kubernetes.kubeconfig(TOKEN)?, &MACHINES, &first)?;
    Ok((fleet, Arc::new(kubernetes)))
}

fn vrouters(kubernetes: &Kubernetes) -> Vec<Arc<Value>> {
    let mut pods = kubernetes.objects("pods");
    pods.retain(|pod| pod["metadata"]["namespace"] == NAMESPACE);
    pods
}

/// Number of vRouters that are Ready and stay.
fn vrouters_ready(kubernetes: &Kubernetes) -> usize {
    let is_ready = |pod: &&Arc<Value>| {
        let conditions = pod["status"]["conditions"].as_array();
        let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        pod["metadata"].get("deletionTimestamp").is_none() && conditions.is_some_and(|all| all.iter().any(ready))
    };
    vrouters(kubernetes).iter().filter(is_ready).count()
}

fn uids(kubernetes: &Kubernetes) -> BTreeSet<String> {
    vrouters(kubernetes).iter().map(|pod| pod["metadata"]["uid"].to_string()).collect()
}

/// An operator's new image.
fn change_template(kubernetes: &Kubernetes) -> Result<()> {
    kubernetes.modify(DAEMON_SETS, NAMESPACE, VROUTER, |object| {
        object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("fake/vrouter:2");
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
        object["metadata"]["generation"] = json!(generation + 1);
    })
}

/// The template changes in the update's hook after. Each pod is renewed by an eviction with its UID, and never is more
/// than one of them away.
#[test]
fn vrouters_are_renewed_one_by_one() -> Result<()> {
    let (fleet, kubernetes) = deployed_with_vrouters("renewal")?;
    let before = uids(&kubernetes);
    let (begun, changed) = (fleet.path("hook-begun"), fleet.path("template-changed"));
    let waits = format!("touch {begun}\n          until [ -e {changed} ]; do sleep 0.1; done\n          effect end");
    let hook = hook("applications", "control-1", &fleet.effects_log()).replace("effect end", &waits);
    let hooks = format!("updateHooks:\n    after:{hook}");
    fleet.apply(&manifest(&fleet, 2, &[ON_DELETE, &hooks]))?;
    let observer = evidence::Observer::start(&kubernetes);
    let mut update = fleet.start_ctl(&["--config", "operator.toml", "update", "e2e", "--yes"], "update")?;
    wait_for("the hook after", workers::UPDATE_MAX, || Ok(Path::new(&begun).exists().then_some(())))?;
    kubernetes.clear_requests();
    change_template(&kubernetes)?;
    fs::write(&changed, "")?;
    let mut fewest = MACHINES.len();
    let status = wait_for("the end of the update", workers::UPDATE_MAX, || {
        fewest = fewest.min(vrouters_ready(&kubernetes));
        Ok(update.try_wait()?)
    })?;
    ensure!(status.success(), "{status}\n{}", fleet.log("update"));
    observer.end()?;
    ensure!(fewest >= MACHINES.len() - 1, "only {fewest} were Ready at a moment");
    let after = uids(&kubernetes);
    ensure!(after.len() == MACHINES.len() && after.is_disjoint(&before), "{before:?} {after:?}");
    let set = kubernetes.object(DAEMON_SETS, NAMESPACE, VROUTER).context("the DaemonSet")?;
    ensure!(set["status"]["updatedNumberScheduled"] == MACHINES.len(), "{set}");
    ensure!(set["status"]["currentNumberScheduled"] == MACHINES.len(), "{set}");
    let evicted = evidence::evictions(&kubernetes);
    let guarded = |request: &LoggedRequest| {
        let uid = request.body["deleteOptions"]["preconditions"]["uid"].to_string();
        request.name.starts_with(VROUTER) && before.contains(&uid)
    };
    ensure!(evicted.len() == MACHINES.len() && evicted.iter().all(guarded), "{evicted:?}");
    let others = changes(&kubernetes).into_iter().find(|request| request.subresource != "eviction");
    ensure!(others.is_none(), "no node is cordoned for it: {others:?}");
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
