//! Updates of machines under a Kubernetes cluster: real processes, and a stand-in for the API server that answers as
//! recorded ones do. Every agent has a hostname and a boot id of its own.

mod addons;
mod addresses;
mod admin_conf;
mod etcd;
mod evidence;
mod faults;
mod forcing;
mod full_node;
mod giving_back;
mod guard;
mod handshake;
mod identity;
mod one_another;
mod operators;
mod removal;
mod renewal;
mod storage;
mod undrainable;
mod width;
mod workers;
mod workloads;

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, ensure};
use muster_kubernetes_stand_in::{Allowance, Config, Kind, Kubernetes, LoggedRequest, PodTraits, Rule};
use muster_proto::{model::Reason, resource::Machine};
use muster_tests::{
    fleet::{
        Fleet, TIME_LIMIT,
        manifest::{bash, cluster},
        wait_for,
    },
    kubernetes::{self, SCALE_DOWN_DISABLED},
};
use serde_json::{Value, json};

/// Token of the account that packaging/kubernetes/rbac.yaml makes.
const TOKEN: &str = "coordinators-token";
const USER: &str = "system:serviceaccount:muster:coordinator";
/// Kills below which a run proves too little: two patches for each of five nodes, and evictions.
const KILLS_MIN: usize = 12;
const MACHINES: [&str; 6] = ["control-1", "control-2", "control-3", "worker-1", "worker-2", "worker-3"];

/// The rights of packaging/kubernetes/rbac.yaml.
fn rights() -> Result<Vec<Rule>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/rbac.yaml");
    Rule::of_cluster_roles(&fs::read_to_string(path)?)
}

fn boot_id(machine: usize) -> String {
    format!("00000000-0000-4000-8000-{machine:012}")
}

/// The address of a machine's node.
fn address(machine: usize) -> String {
    format!("10.0.0.{}", machine + 10)
}

/// A cluster on the machines, without workloads.
fn start_nodes(config: Config, machines: &[&str]) -> Result<Kubernetes> {
    let kubernetes = Kubernetes::start(config)?;
    kubernetes.add_token(TOKEN, USER, rights()?);
    for (number, machine) in machines.iter().enumerate() {
        kubernetes.add_node(machine, &address(number), &boot_id(number))?;
    }
    kubernetes.namespace("shop")?;
    Ok(kubernetes)
}

/// A cluster on the machines: a Deployment and a StatefulSet under budgets, a DaemonSet, and a static pod.
fn start_kubernetes(config: Config, machines: &[&str]) -> Result<Kubernetes> {
    let kubernetes = start_nodes(config, machines)?;
    kubernetes.deployment("shop", "web", 4)?;
    kubernetes.budget("shop", "web", Allowance::MaxUnavailable(1))?;
    kubernetes.statefulset("shop", "db", 3)?;
    kubernetes.budget("shop", "db", Allowance::MinAvailable(2))?;
    kubernetes.daemonset("shop", "agent")?;
    kubernetes.mirror_pod("kube-system", "apiserver", "control-1")?;
    all_ready(&kubernetes)?;
    Ok(kubernetes)
}

/// Waits until every workload has all its replicas, and the budgets count them.
fn all_ready(kubernetes: &Kubernetes) -> Result<()> {
    wait_for("ready workloads", TIME_LIMIT, || {
        let ready = kubernetes.ready_replicas().iter().all(|replicas| replicas.ready == replicas.wanted);
        let counted = |budget: &Value| budget["status"]["currentHealthy"] == budget["status"]["expectedPods"];
        let budgets = kubernetes.objects("poddisruptionbudgets.policy");
        Ok((ready && budgets.iter().all(|budget| counted(budget))).then_some(()))
    })
}

/// A Deployment of one pod whose budget never lets it go: the machine that has it, and the pod.
fn pod_that_stays(kubernetes: &Kubernetes) -> Result<(&'static str, String)> {
    kubernetes.deployment("shop", "alone", 1)?;
    kubernetes.budget("shop", "alone", Allowance::MinAvailable(1))?;
    wait_for("the budget's numbers", TIME_LIMIT, || {
        let budget = kubernetes.object("poddisruptionbudgets.policy", "shop", "alone").context("the budget")?;
        Ok((budget["status"]["currentHealthy"] == 1).then_some(()))
    })?;
    let found = MACHINES.iter().find_map(|machine| {
        let pods = kubernetes.pods_on(machine);
        pods.into_iter().find(|pod| pod.contains("alone")).map(|pod| (*machine, pod))
    });
    found.context("the pod's node")
}

/// The manifest of a release.
fn manifest(fleet: &Fleet, release: u32, more: &[&str]) -> String {
    let item = bash("install", "deploy", &fleet.effects_log(), "sleep 0.1", &[]);
    let item = item.replace("version: \"1\"", &format!("version: \"{release}\""));
    let items = [item];
    let spec = ["maxWorkerUpgradeCount: 2", "kubernetes:", "  kubeconfig: ${secret.kubeconfig}"];
    let whole = cluster(3, 3, &items, &items, &[&spec[..], more].concat());
    whole.replace("release: \"1.0\"", &format!("release: \"{release}.0\""))
}

/// The deployed fleet, and the cluster on it.
fn deployed(name: &str) -> Result<(Fleet, Kubernetes)> {
    let kubernetes = start_kubernetes(Config::default(), &MACHINES)?;
    let mut fleet = Fleet::start(name, &[])?;
    let kubeconfig = kubernetes.kubeconfig(TOKEN)?;
    let manifest = manifest(&fleet, 1, &[]);
    deploy(&mut fleet, &kubernetes, &kubeconfig, &MACHINES, &manifest)?;
    Ok((fleet, kubernetes))
}

/// Deploys these machines, whose names begin with their type.
fn deploy(
    fleet: &mut Fleet,
    kubernetes: &Kubernetes,
    kubeconfig: &str,
    machines: &[&str],
    manifest: &str,
) -> Result<()> {
    fleet.write_secret("kubeconfig", kubeconfig)?;
    fleet.ctl(&["secret", "create", "kubeconfig", "--cluster", "e2e", "--from-file", "kubeconfig"])?.exits(0)?;
    deploy_machines(fleet, kubernetes, machines, manifest)
}

/// The same where the manifest names no secret.
fn deploy_machines(fleet: &mut Fleet, kubernetes: &Kubernetes, machines: &[&str], manifest: &str) -> Result<()> {
    fleet.apply(manifest)?;
    for machine_type in ["control", "worker"] {
        let of_type = || machines.iter().filter(|machine| machine.starts_with(machine_type));
        let token = fleet.token(machine_type, &["--uses", &of_type().count().to_string()])?;
        for machine in of_type() {
            fleet.enroll(machine, &token, &[])?.ok()?;
        }
    }
    for (number, machine) in machines.iter().enumerate() {
        fleet.start_agent_as_host(machine, &boot_id(number))?;
    }
    fleet.wait_ready(machines.len())?;
    kubernetes.clear_requests();
    kubernetes.reset_lowest_ready();
    Ok(())
}

/// Muster's requests that change something, Events aside.
fn changes(kubernetes: &Kubernetes) -> Vec<LoggedRequest> {
    let changes = |request: &LoggedRequest| {
        !matches!(request.verb.as_str(), "get" | "list" | "watch") && request.resource != "events"
    };
    kubernetes.requests().into_iter().filter(|request| request.user == USER && changes(request)).collect()
}

/// Each node is as before: schedulable, without an annotation of a drain.
fn is_given_back(kubernetes: &Kubernetes) -> Result<()> {
    kubernetes.objects("nodes").iter().try_for_each(|node| kubernetes::is_given_back(node, false))
}

/// The workloads kept what their budgets promise, pods left by eviction alone, and no right was missing.
fn budgets_held(kubernetes: &Kubernetes) -> Result<()> {
    kept_ready(kubernetes, &[])?;
    let refused = kubernetes.requests().into_iter().find(|request| request.user == USER && request.status == Some(403));
    ensure!(refused.is_none(), "{refused:?}");
    Ok(())
}

/// The workloads kept what their budgets promise: web, db, and `more`. Pods left by eviction alone.
fn kept_ready(kubernetes: &Kubernetes, more: &[(&str, usize)]) -> Result<()> {
    let least: BTreeMap<&str, usize> = [("web", 3), ("db", 2)].iter().chain(more).copied().collect();
    for replicas in kubernetes.ready_replicas() {
        let least = least.get(replicas.workload.name.as_str()).copied().unwrap_or(0);
        ensure!(replicas.lowest >= least, "{replicas:?}: its budget promises {least}");
    }
    let of_pod = |request: &LoggedRequest| request.verb == "delete" && request.resource == "pods";
    let deletes = kubernetes.requests().into_iter().find(|request| request.user == USER && of_pod(request));
    ensure!(deletes.is_none(), "{deletes:?}");
    Ok(())
}

#[test]
fn update_honours_budgets() -> Result<()> {
    let (fleet, kubernetes) = deployed("kubernetes")?;
    let mut controller = guard::start(&fleet)?;
    fleet.apply(&manifest(&fleet, 2, &["workloadControllers: [toy]"]))?;
    fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    fleet.wait_ready(6)?;
    guard::cordons_lie_within_consent(&fleet, &kubernetes)?;
    controller.kill()?;
    controller.wait()?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    let changes = changes(&kubernetes);
    for machine in MACHINES {
        let patches = changes.iter().filter(|request| request.resource == "nodes" && request.name == machine);
        let patches: Vec<bool> = patches.map(|request| request.body["spec"]["unschedulable"] == true).collect();
        ensure!(patches == [true, false], "{machine} is cordoned and uncordoned once: {patches:?}");
    }
    let evictions = changes.iter().filter(|request| request.subresource == "eviction").collect::<Vec<_>>();
    ensure!(!evictions.is_empty(), "pods were on the machines");
    for eviction in evictions {
        let guarded = eviction.body["deleteOptions"]["preconditions"]["uid"].is_string();
        ensure!(
            guarded && !eviction.name.starts_with("agent") && !eviction.name.starts_with("apiserver"),
            "{eviction:?}"
        );
    }
    let check = |code: i32, words: &[&str]| fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(code)?.says(words);
    check(0, &["it belongs to the cluster that was there first"])?;
    kubernetes.modify("namespaces", "", "kube-system", |object| object["metadata"]["uid"] = json!("another"))?;
    check(4, &["it belongs to another cluster: kube-system has UID another", "1 problem stands in the way"])?;
    fleet.done()
}

/// A check changes nothing and uses only the shipped rights; it says what stands in the way, and what does not.
#[test]
fn check_finds_what_stands_in_the_way() -> Result<()> {
    let (fleet, kubernetes) = deployed("check")?;
    let check = |code: i32, words: &[&str]| fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(code)?.says(words);
    let clean = ["version v1.36.2", "the first update pins it", "all 18", "all 3 are ready", "6 of 6 machines"];
    // Nothing is pinned by a check: the second one says the same.
    for _ in 0..2 {
        check(0, &clean)?.says(&["Nothing stands in the way"])?;
    }
    pod_that_stays(&kubernetes)?;
    kubernetes.daemonset("kube-system", "kured")?;
    wait_for("kured's pods", TIME_LIMIT, || {
        let kured = kubernetes.object("daemonsets.apps", "kube-system", "kured").context("the DaemonSet")?;
        Ok((kured["status"]["desiredNumberScheduled"] == MACHINES.len()).then_some(()))
    })?;
    kubernetes.deployment("kube-system", "cluster-autoscaler", 0)?;
    kubernetes.put("cronjobs.batch", "kube-system", json!({"metadata": {"name": "descheduler"}, "spec": {}}))?;
    // Its pod is on a machine's node now.
    kubernetes.modify("nodes", "", "worker-2", |node| node["spec"]["unschedulable"] = Value::Bool(true))?;
    kubernetes.add_node("spare", "10.0.0.99", "another boot")?;
    check(
        4,
        &[
            "disruption budget shop/alone needs 1 healthy pods of 1",
            "kured (daemonset kube-system/kured) drains and reboots",
            "cluster-autoscaler (deployment kube-system/cluster-autoscaler) is stopped",
            "descheduler (cronjob kube-system/descheduler) evicts pods too",
            "node worker-2 was cordoned by an operator",
            "node spare is no machine of this cluster",
            "2 problems stand in the way",
        ],
    )?;
    ensure!(changes(&kubernetes).iter().all(|request| request.resource.ends_with("selfsubjectaccessreviews")));
    budgets_held(&kubernetes)?;
    fleet.done()
}

/// A right that is missing is named. What it would have shown is a problem too, and the rest is checked.
#[test]
fn check_names_missing_right() -> Result<()> {
    let (fleet, kubernetes) = deployed("check-rights")?;
    let mut fewer = rights()?;
    for rule in &mut fewer {
        rule.resources.retain(|resource| resource != "daemonsets" && resource != "pods/eviction");
    }
    kubernetes.revoke_token(TOKEN);
    let check = |code: i32, words: &[&str]| fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(code)?.says(words);
    check(4, &["does not accept the credentials (401)", "1 problem stands in the way"])?;
    kubernetes.add_token(TOKEN, USER, fewer);
    check(
        4,
        &[
            "missing: create pods/eviction",
            "missing: list daemonsets.apps",
            "musterctl kubernetes rbac | kubectl apply -f -",
            "cannot look for programs by daemonset",
            "6 of 6 machines",
            "3 problems stand in the way",
        ],
    )?;
    let shipped = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/rbac.yaml"))?;
    ensure!(fleet.ctl(&["kubernetes", "rbac"])?.ok()? == shipped);
    fleet.done()
}

/// Objects of the kinds by which other programs are told to disturb nodes are found where the cluster serves them.
#[test]
fn check_finds_orders_to_other_programs() -> Result<()> {
    let (fleet, kubernetes) = deployed("check-orders")?;
    kubernetes.serve_kind(Kind::custom("autopilot.k0sproject.io", "v1beta2", "plans", "Plan").with_status());
    let checks = Kind::custom("cluster.x-k8s.io", "v1beta2", "machinehealthchecks", "MachineHealthCheck");
    kubernetes.serve_kind(checks.in_namespaces());
    let plan = json!({"metadata": {"name": "autopilot"}, "status": {"state": "SchedulableWait"}});
    kubernetes.put("plans.autopilot.k0sproject.io", "", plan)?;
    let check = json!({"metadata": {"name": "workers"}, "spec": {"clusterName": "edge"}});
    kubernetes.put("machinehealthchecks.cluster.x-k8s.io", "shop", check)?;
    kubernetes.modify("nodes", "", "worker-1", |node| {
        node["metadata"]["annotations"] = json!({"cluster.x-k8s.io/cluster-name": "edge"});
    })?;
    fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(4)?.says(&[
        "plan autopilot of k0s autopilot is under way",
        "MachineHealthCheck shop/workers replaces machines",
        "2 problems stand in the way",
    ])?;
    budgets_held(&kubernetes)?;
    fleet.done()
}

#[test]
fn undrainable_machine_is_named_and_deferred() -> Result<()> {
    let (fleet, kubernetes) = deployed("undrainable")?;
    let (node, _) = pod_that_stays(&kubernetes)?;
    fleet.apply(&manifest(&fleet, 2, &[]))?;
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&[node, "cannot be drained", "shop/alone"])?;
    let ran = fleet.ctl(&["update", "e2e", "--yes"])?.exits(4)?;
    ran.says(&["KubernetesUndrainable", node, "shop/alone"])?;
    let patched = |request: &LoggedRequest| request.resource == "nodes" && request.name == node;
    ensure!(!changes(&kubernetes).iter().any(patched), "{node} was never cordoned");
    is_given_back(&kubernetes)?;
    kubernetes.remove("poddisruptionbudgets.policy", "shop", "alone")?;
    fleet.ctl(&["retry", node])?.exits(0)?;
    fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    fleet.wait_ready(6)?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    fleet.done()
}

/// The coordinator is killed after every change that it makes in the cluster, and the API server is killed as well.
#[test]
fn kills_leave_no_node_cordoned() -> Result<()> {
    let (mut fleet, kubernetes) = deployed("kills")?;
    let kept = "worker-2";
    kubernetes.modify("nodes", "", kept, |node| node["spec"]["unschedulable"] = Value::Bool(true))?;
    kubernetes.modify("nodes", "", "worker-1", |node| {
        node["metadata"]["annotations"] = json!({SCALE_DOWN_DISABLED: "false"});
    })?;
    fleet.apply(&manifest(&fleet, 2, &[]))?;
    let mut update = fleet.start_ctl(&["--config", "operator.toml", "update", "e2e", "--yes"], "update")?;
    let mut kills = 0;
    loop {
        let before = changes(&kubernetes).len();
        if fleet.changed_or_at("2.0", || changes(&kubernetes).len() > before)? {
            break;
        }
        fleet.kill_coordinator()?;
        kills += 1;
        if kills % 8 == 5 {
            kubernetes.stop(true)?;
            kubernetes.start_again()?;
        }
        fleet.start_coordinator()?;
    }
    ensure!(kills >= KILLS_MIN, "{kills} kills: it was not killed at every kind of point");
    update.kill()?;
    update.wait()?;
    fleet.wait_rollout()?;
    giving_back::are_given_back_but(&kubernetes, kept)?;
    for node in kubernetes.objects("nodes") {
        let (name, value) = (&node["metadata"]["name"], &node["metadata"]["annotations"][SCALE_DOWN_DISABLED]);
        let before = if *name == "worker-1" { json!("false") } else { Value::Null };
        ensure!(*value == before, "{name}: {value}");
    }
    let patches = changes(&kubernetes);
    let cordons = patches.iter().filter(|request| request.body["spec"]["unschedulable"] == true);
    ensure!(cordons.clone().count() > 0);
    for cordon in cordons {
        ensure!(cordon.body["metadata"]["annotations"][SCALE_DOWN_DISABLED] == "true", "{cordon:?}");
    }
    budgets_held(&kubernetes)?;
    fleet.done()
}
