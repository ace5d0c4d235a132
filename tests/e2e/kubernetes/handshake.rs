//! The maintenance handshake as custom resources, with a controller that acts as Rockoon was recorded to: a process's
//! worth of its own, which knows the cluster by its API server alone.

use std::time::Duration;

use muster_kubernetes_stand_in::rockoon::{Rockoon, RockoonConfig};

use super::{workers::*, *};

/// Kills below which a run proves too little.
const KILLS_MIN: usize = 20;
pub(super) const REQUESTS: &str = "nodemaintenancerequests.lcm.mirantis.com";
pub(super) const LOCKS: &str = "nodeworkloadlocks.lcm.mirantis.com";
pub(super) const CLUSTER_LOCKS: &str = "clusterworkloadlocks.lcm.mirantis.com";
pub(super) const CLUSTER_REQUESTS: &str = "clustermaintenancerequests.lcm.mirantis.com";
const DELETION_REQUESTS: &str = "nodedeletionrequests.lcm.mirantis.com";

/// The rights of packaging/kubernetes/rbac.yaml and rbac-maintenance.yaml.
pub(super) fn rights_with_maintenance() -> Result<Vec<Rule>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/rbac-maintenance.yaml");
    Ok([rights()?, Rule::of_cluster_roles(&fs::read_to_string(path)?)?].concat())
}

/// Rockoon with work to do, faster than the real one: it tries again after seconds, where that does after a minute.
pub(super) fn quick() -> RockoonConfig {
    RockoonConfig {
        deployment: Some("osh-dev".to_owned()),
        retry: Duration::from_secs(3),
        poll: Duration::from_millis(300),
        reconnect: Duration::from_millis(500),
        work: Duration::from_millis(500),
        restore: Duration::from_millis(500),
        health: Duration::from_millis(500),
        ..RockoonConfig::default()
    }
}

/// Names of so many machines: control machines, then workers.
fn names(controls: usize, workers: usize) -> Vec<String> {
    let controls = (1..=controls).map(|n| format!("control-{n}"));
    controls.chain((1..=workers).map(|n| format!("worker-{n}"))).collect()
}

/// The label of OpenStack's that this machine's node has.
fn role(machine: &str) -> &'static str {
    if machine.starts_with("control") { "openstack-control-plane" } else { "openstack-compute-node" }
}

/// A fleet of OpenStack: the cluster on it, and its controller.
pub(super) struct OpenStack {
    pub(super) fleet: Fleet,
    pub(super) kubernetes: Kubernetes,
    rockoon: Rockoon,
    /// Control machines, then computes.
    pub(super) machines: Vec<String>,
    workers: usize,
}

impl OpenStack {
    /// So many control machines and computes, deployed.
    pub(super) fn deployed(name: &str, (controls, computes): (usize, usize), config: RockoonConfig) -> Result<Self> {
        let machines = names(controls, computes);
        let refs: Vec<&str> = machines.iter().map(String::as_str).collect();
        let kubernetes = start_nodes(Config::default(), &refs)?;
        kubernetes.revoke_token(TOKEN);
        kubernetes.add_token(TOKEN, USER, rights_with_maintenance()?);
        for machine in &refs {
            kubernetes.label_node(machine, role(machine), Some("enabled"))?;
        }
        let mut fleet = Fleet::start(name, &[])?;
        fleet.set_time_limit(UPDATE_MAX);
        let kubeconfig = kubernetes.kubeconfig(TOKEN)?;
        let first = manifest(&fleet, (controls, computes), 1, &["controllers: [{name: openstack}]"]);
        deploy(&mut fleet, &kubernetes, &kubeconfig, &refs, &first)?;
        kubernetes.add_admin("rockoon");
        let rockoon = Rockoon::start(&kubernetes.kubeconfig("rockoon")?, config)?;
        Ok(Self { fleet, kubernetes, rockoon, machines, workers: computes })
    }

    /// Applies the manifest of a release. `maintenance`: lines of its section.
    pub(super) fn apply(&self, release: u32, maintenance: &[&str]) -> Result<()> {
        let size = (self.machines.len() - self.workers, self.workers);
        self.fleet.apply(&manifest(&self.fleet, size, release, maintenance))
    }

    /// Starts an update beside the test. Its lines are in the log `update`.
    pub(super) fn start_update(&self) -> Result<std::process::Child> {
        let words = ["--config", "operator.toml", "update", "e2e", "--yes", "--accept-control-plane-downtime"];
        self.fleet.start_ctl(&words, "update")
    }

    /// Waits until the controller has made all its locks.
    pub(super) fn wait_locks(&self) -> Result<()> {
        wait_for("the locks", TIME_LIMIT, || {
            let made = self.kubernetes.objects(LOCKS).len() == self.machines.len()
                && !self.kubernetes.objects(CLUSTER_LOCKS).is_empty();
            Ok(made.then_some(()))
        })
    }

    /// Changes in the cluster that tell the story of one node, in order.
    pub(super) fn story(&self, node: &str) -> Vec<&'static str> {
        let requests = self.kubernetes.requests();
        let mut story: Vec<&str> = requests.iter().filter_map(|request| word(request, node)).collect();
        story.dedup();
        story
    }

    /// Nothing is left of the maintenance: no request, every lock active, every node as before.
    pub(super) fn all_is_given_back(&self) -> Result<()> {
        is_given_back(&self.kubernetes)?;
        wait_for("the end of the requests", TIME_LIMIT, || {
            let left = |kind| !self.kubernetes.objects(kind).is_empty();
            Ok((![REQUESTS, CLUSTER_REQUESTS, DELETION_REQUESTS].into_iter().any(left)).then_some(()))
        })?;
        wait_for("active locks", TIME_LIMIT, || {
            let locks = self.kubernetes.objects(LOCKS);
            Ok(locks.iter().all(|lock| lock["status"]["state"] == "active").then_some(()))
        })
    }

    /// Nobody's node was touched, and no request was made about one.
    fn nothing_is_disturbed(&self) -> Result<()> {
        let patches: Vec<_> =
            changes(&self.kubernetes).into_iter().filter(|change| change.resource == "nodes").collect();
        ensure!(patches.is_empty(), "{patches:?}");
        is_given_back(&self.kubernetes)
    }
}

/// The manifest of a release for so many control machines and workers. `maintenance`: lines of its section.
fn manifest(fleet: &Fleet, (controls, workers): (usize, usize), release: u32, maintenance: &[&str]) -> String {
    let item = bash("install", "deploy", &fleet.effects_log(), "sleep 0.1", &[]);
    let items = [item.replace("version: \"1\"", &format!("version: \"{release}\""))];
    let mut spec = vec!["maxWorkerUpgradeCount: 30", "kubernetes:", "  kubeconfig: ${secret.kubeconfig}"];
    spec.push(if maintenance.is_empty() { "  maintenance: {}" } else { "  maintenance:" });
    let lines: Vec<String> = maintenance.iter().map(|line| format!("    {line}")).collect();
    spec.extend(lines.iter().map(String::as_str));
    let whole = cluster(controls, workers, &items, &items, &spec);
    whole.replace("release: \"1.0\"", &format!("release: \"{release}.0\""))
}

/// What a change in the cluster means for a node. None: nothing, or another node.
fn word(request: &LoggedRequest, node: &str) -> Option<&'static str> {
    if request.status.is_none_or(|status| status >= 300) {
        return None;
    }
    match (request.resource.as_str(), request.verb.as_str(), request.subresource.as_str()) {
        ("nodemaintenancerequests", "create", "") => (request.body["spec"]["nodeName"] == node).then_some("requested"),
        ("nodemaintenancerequests", "delete", "") => (request.name == node).then_some("withdrawn"),
        ("nodedeletionrequests", "create", "") => (request.body["spec"]["nodeName"] == node).then_some("end requested"),
        ("nodedeletionrequests", "delete", "") => (request.name == node).then_some("end withdrawn"),
        ("nodes", "delete", "") => (request.name == node && request.user == USER).then_some("deleted"),
        ("nodes", "patch", "") if request.name == node && request.user == USER => {
            Some(if request.body["spec"]["unschedulable"] == true { "cordoned" } else { "given back" })
        }
        ("nodeworkloadlocks", "patch", "status") if request.name == format!("openstack-{node}") => {
            match request.body["status"]["state"].as_str()? {
                "inactive" => Some("released"),
                "active" => Some("locked"),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The order in which everyone acts on a machine whose controller answers.
const ORDER: [&str; 6] = ["requested", "released", "cordoned", "given back", "withdrawn", "locked"];

/// The same where the lock is made after the request: it is active for a moment.
const ORDER_LATE: [&str; 7] = ["requested", "locked", "released", "cordoned", "given back", "withdrawn", "locked"];

fn updates(name: &str, size: (usize, usize), config: RockoonConfig) -> Result<()> {
    let order: &[&str] = if config.late_locks { &ORDER_LATE } else { &ORDER };
    let cloud = OpenStack::deployed(name, size, config)?;
    cloud.apply(2, &["controllers: [{name: openstack}]"])?;
    ends(&cloud.fleet, cloud.start_update()?, 0)?;
    cloud.fleet.wait_ready(cloud.machines.len())?;
    for machine in &cloud.machines {
        let story = cloud.story(machine);
        ensure!(story.ends_with(order), "{machine}: {story:?}");
    }
    cloud.all_is_given_back()?;
    budgets_held(&cloud.kubernetes)?;
    cloud.fleet.done()
}

#[test]
fn rockoon_lets_control_and_computes_go() -> Result<()> {
    updates("rockoon", (1, 4), quick())
}

/// Locks are made after the request; computes are granted one at a time.
#[test]
fn late_locks_are_waited_for() -> Result<()> {
    updates("rockoon-late", (1, 4), RockoonConfig { late_locks: true, computes_max: 1, ..quick() })
}

#[test]
fn three_controls_and_twelve_computes_are_updated() -> Result<()> {
    updates("rockoon-12", (3, 12), quick())
}

/// A controller that is dead consents to nothing, whether its locks exist or are made only after a request.
#[test]
fn dead_controller_consents_to_nothing() -> Result<()> {
    for (late_locks, reason) in [(true, Reason::ControllerSilent), (false, Reason::LocksActive)] {
        let config = RockoonConfig { late_locks, ..quick() };
        let cloud = OpenStack::deployed(&format!("rockoon-dead-{late_locks}"), (1, 2), config)?;
        if !late_locks {
            cloud.wait_locks()?;
        }
        cloud.rockoon.stop();
        cloud.kubernetes.clear_requests();
        cloud.apply(2, &["controllers: [{name: openstack}]"])?;
        let update = cloud.start_update()?;
        waits_for(&cloud.fleet, "control-1", reason, &["openstack"])?;
        cloud.nothing_is_disturbed()?;
        cloud.fleet.ctl(&["abort", "e2e", "--yes"])?.exits(0)?;
        ends(&cloud.fleet, update, 4)?;
        cloud.nothing_is_disturbed()?;
        cloud.all_is_given_back()?;
        cloud.fleet.done()?;
    }
    Ok(())
}

/// A controller was uninstalled, and left its locks behind. The way out is said, and leads out.
#[test]
fn uninstalled_controller_has_a_way_out() -> Result<()> {
    let cloud = OpenStack::deployed("rockoon-gone", (1, 2), quick())?;
    cloud.wait_locks()?;
    cloud.rockoon.stop();
    cloud.apply(2, &["controllers: [{name: openstack}]"])?;
    let update = cloud.start_update()?;
    waits_for(&cloud.fleet, "control-1", Reason::LocksActive, &["openstack"])?;
    let describe = cloud.fleet.ctl(&["describe", "machine", "control-1"])?.exits(0)?;
    describe.says(&["uninstalled", "kubectl delete clusterworkloadlock openstack-osh-dev"])?;
    cloud.fleet.ctl(&["abort", "e2e", "--yes"])?.exits(0)?;
    ends(&cloud.fleet, update, 4)?;
    for kind in [LOCKS, CLUSTER_LOCKS] {
        for lock in cloud.kubernetes.objects(kind) {
            let name = lock["metadata"]["name"].as_str().context("its name")?.to_owned();
            cloud.kubernetes.modify(kind, "", &name, |lock| lock["metadata"]["finalizers"] = json!([]))?;
            cloud.kubernetes.remove(kind, "", &name)?;
        }
    }
    // Its labels would make it known.
    for machine in &cloud.machines {
        cloud.kubernetes.label_node(machine, role(machine), None)?;
    }
    cloud.apply(2, &[])?;
    ends(&cloud.fleet, cloud.start_update()?, 0)?;
    cloud.fleet.wait_ready(3)?;
    is_given_back(&cloud.kubernetes)?;
    cloud.fleet.done()
}

/// The coordinator is killed after every change that anybody makes for the update.
#[test]
fn kills_leave_no_request_behind() -> Result<()> {
    let mut cloud = OpenStack::deployed("rockoon-kills", (1, 4), quick())?;
    cloud.apply(2, &["controllers: [{name: openstack}]"])?;
    let mut update = cloud.start_update()?;
    let mut kills = 0;
    let count = |kubernetes: &Kubernetes| {
        let changes = |request: &LoggedRequest| !matches!(request.verb.as_str(), "get" | "list" | "watch");
        kubernetes.requests().iter().filter(|request| changes(request) && request.resource != "events").count()
    };
    loop {
        let before = count(&cloud.kubernetes);
        if cloud.fleet.changed_or_at("2.0", || count(&cloud.kubernetes) > before)? {
            break;
        }
        cloud.fleet.kill_coordinator()?;
        kills += 1;
        cloud.fleet.start_coordinator()?;
    }
    ensure!(kills >= KILLS_MIN, "{kills} kills: it was not killed at every kind of point");
    update.kill()?;
    update.wait()?;
    cloud.fleet.wait_rollout()?;
    for machine in &cloud.machines {
        let story = cloud.story(machine);
        ensure!(story.ends_with(&ORDER), "{machine}: {story:?}");
    }
    cloud.all_is_given_back()?;
    budgets_held(&cloud.kubernetes)?;
    cloud.fleet.done()
}

/// At each point of a worker's turn the update is aborted: all is given back.
#[test]
fn abort_gives_all_back() -> Result<()> {
    for point in ["requested", "released", "cordoned", "given back"] {
        let name = format!("rockoon-abort-{}", point.replace(' ', "-"));
        let cloud = OpenStack::deployed(&name, (1, 2), quick())?;
        cloud.apply(2, &["controllers: [{name: openstack}]"])?;
        let update = cloud.start_update()?;
        wait_for(point, UPDATE_MAX, || {
            let at_it = |machine: &String| machine.starts_with("worker") && cloud.story(machine).contains(&point);
            Ok(cloud.machines.iter().any(at_it).then_some(()))
        })?;
        cloud.fleet.ctl(&["abort", "e2e", "--yes"])?;
        let mut update = update;
        wait_for("the end of the update", UPDATE_MAX, || Ok(update.try_wait()?))?;
        cloud.fleet.ctl(&["watch", "e2e"])?;
        cloud.all_is_given_back()?;
        budgets_held(&cloud.kubernetes)?;
        cloud.fleet.done()?;
    }
    Ok(())
}

/// A check asks for the rights of the handshake, looks at its definitions, and compares who answers with the manifest.
/// It changes nothing.
#[test]
fn check_looks_at_handshake() -> Result<()> {
    let cloud = OpenStack::deployed("rockoon-check", (1, 1), quick())?;
    let check = |code: i32, words: &[&str]| cloud.fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(code)?.says(words);
    cloud.wait_locks()?;
    let holds = "openstack (spec.kubernetes.maintenance.controllers) holds locks";
    check(0, &["all 31", "all 6 custom resource definitions are there", holds, "Nothing stands in the way"])?;
    cloud.apply(2, &["controllers: [{name: storage}]"])?;
    let silent = "storage (spec.kubernetes.maintenance.controllers) holds no lock";
    check(0, &["openstack holds locks, and is not in spec.kubernetes.maintenance.controllers", silent])?;
    let name = "nodemaintenancerequests.lcm.mirantis.com";
    cloud.kubernetes.modify("customresourcedefinitions.apiextensions.k8s.io", "", name, |definition| {
        let version = &mut definition["spec"]["versions"][0];
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] = json!({"nodeName": {}});
    })?;
    check(4, &[&format!("the custom resource definition {name} is too old: it has no spec.scope")])?;
    cloud.kubernetes.revoke_token(TOKEN);
    cloud.kubernetes.add_token(TOKEN, USER, rights()?);
    let missing = "missing: create nodemaintenancerequests.lcm.mirantis.com";
    check(4, &[missing, "musterctl kubernetes rbac --with-maintenance", "the workload locks cannot be listed"])?;
    cloud.nothing_is_disturbed()?;
    cloud.fleet.done()
}
