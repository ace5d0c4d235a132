//! Machines that are removed leave Kubernetes: their controllers hear of it, their nodes are deleted and gone, and only
//! then are they forgotten. The controller acts as Rockoon was recorded to.

use std::time::Duration;

use muster_kubernetes_stand_in::rockoon::RockoonConfig;

use super::{
    handshake::{LOCKS, OpenStack, quick},
    workers::*,
    *,
};

const LEAVES: &str = "worker-1";
/// A finalizer of somebody else on its node.
const HOLDS: &str = "example.com/holds";
/// The lock of a controller that lets the machine go only for good.
const STUBBORN: &str = "stubborn-worker-1";
/// Kills below which a run proves too little: three requests, the cordon, the node, and the ends of the requests.
const KILLS_MIN: usize = 5;
const MAINTENANCE: &[&str] = &["controllers: [{name: openstack}]"];

/// Rockoon, whose locks outlive their nodes for a few seconds, as those of the real one do.
fn rockoon() -> RockoonConfig {
    RockoonConfig { retry: Duration::from_secs(6), ..quick() }
}

impl OpenStack {
    /// A deployed fleet with all locks, and a stubborn one for the machine that is to leave.
    fn with_stubborn_lock(name: &str, size: (usize, usize)) -> Result<Self> {
        let cloud = Self::deployed(name, size, rockoon())?;
        cloud.wait_locks()?;
        cloud.kubernetes.put(
            LOCKS,
            "",
            json!({
                "apiVersion": "lcm.mirantis.com/v1alpha1",
                "kind": "NodeWorkloadLock",
                "metadata": {"name": STUBBORN},
                "spec": {"controllerName": "stubborn", "nodeName": LEAVES, "nodeDeletionRequestSupported": true},
                "status": {"state": "active"},
            }),
        )?;
        Ok(cloud)
    }

    fn set_stubborn(&self, state: &str) -> Result<()> {
        self.kubernetes.modify(LOCKS, "", STUBBORN, |lock| lock["status"]["state"] = json!(state))
    }

    fn remove(&self) -> Result<()> {
        self.fleet.ctl(&["remove", LEAVES, "--yes", "--detach"])?.exits(0)?;
        Ok(())
    }

    /// Waits until the story of the machine that leaves has come to this.
    fn wait_story(&self, point: &str) -> Result<()> {
        wait_for(point, UPDATE_MAX, || Ok(self.story(LEAVES).contains(&point).then_some(())))
    }

    fn is_left(&self) -> bool {
        self.fleet.machines().map_or(true, |machines| machines.contains_key(LEAVES))
    }

    fn wait_gone(&self) -> Result<()> {
        wait_for("the end of its row", UPDATE_MAX, || Ok((!self.is_left()).then_some(())))
    }

    /// These parts of the story of the machine that left came in this order.
    fn came_in_order(&self, parts: &[&str]) -> Result<()> {
        let story = self.story(LEAVES);
        let mut rest = story.iter();
        ensure!(parts.iter().all(|part| rest.any(|told| told == part)), "{parts:?}: {story:?}");
        Ok(())
    }
}

/// One machine keeps an update: its controller lets it go only for good. It is removed, and the rest completes.
#[test]
fn machine_that_blocks_an_update_is_removed() -> Result<()> {
    let cloud = OpenStack::with_stubborn_lock("removal", (1, 3))?;
    let (fleet, kubernetes) = (&cloud.fleet, &cloud.kubernetes);
    kubernetes.modify("nodes", "", LEAVES, |node| {
        let mut finalizers = node["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.push(json!(HOLDS));
        node["metadata"]["finalizers"] = json!(finalizers);
    })?;
    cloud.apply(2, MAINTENANCE)?;
    let update = cloud.start_update()?;
    for others in ["control-1", "worker-2", "worker-3"] {
        is_at(fleet, others, "2.0")?;
    }
    waits_for(fleet, LEAVES, Reason::LocksActive, &["stubborn"])?;
    cloud.remove()?;
    cloud.set_stubborn("inactive")?;
    cloud.wait_story("end requested")?;
    ensure!(!cloud.story(LEAVES).contains(&"cordoned"), "{:?}", cloud.story(LEAVES));
    wait_for("the request in musterctl", TIME_LIMIT, || {
        Ok(fleet.ctl(&["get", "requests"])?.exits(0)?.says(&["NodeDeletionRequest"]).ok())
    })?;
    waits_for(fleet, LEAVES, Reason::LeavingKubernetes, &[HOLDS])?;
    fleet.ctl(&["describe", "machine", LEAVES])?.exits(0)?.says(&["kubectl patch node worker-1"])?;
    fleet.ctl(&["remove", LEAVES, "--abort"])?.says(&["TooLate"])?;
    kubernetes.remove("nodes", "", LEAVES)?;
    cloud.wait_gone()?;
    ends(fleet, update, 0)?;
    fleet.wait_ready(3)?;
    cloud.came_in_order(&["requested", "end requested", "cordoned", "deleted", "withdrawn"])?;
    cloud.came_in_order(&["deleted", "end withdrawn"])?;
    let deleted =
        changes(kubernetes).into_iter().filter(|change| change.verb == "delete" && change.resource == "nodes");
    let deleted: Vec<LoggedRequest> = deleted.collect();
    let guarded = |request: &LoggedRequest| request.name == LEAVES && request.body["preconditions"]["uid"].is_string();
    ensure!(!deleted.is_empty() && deleted.iter().all(guarded), "{deleted:?}");
    kubernetes.remove(LOCKS, "", STUBBORN)?;
    cloud.all_is_given_back()?;
    budgets_held(kubernetes)?;
    cloud.fleet.done()
}

/// The coordinator is killed after each of its changes in the cluster.
#[test]
fn kills_lose_no_removal() -> Result<()> {
    let mut cloud = OpenStack::deployed("removal-kills", (1, 2), rockoon())?;
    cloud.wait_locks()?;
    cloud.remove()?;
    let mut kills = 0;
    loop {
        let before = changes(&cloud.kubernetes).len();
        let ended = wait_for("a change, or the end of the removal", UPDATE_MAX, || {
            let left = cloud.is_left();
            Ok((!left || changes(&cloud.kubernetes).len() > before).then_some(!left))
        })?;
        if ended {
            break;
        }
        cloud.fleet.kill_coordinator()?;
        kills += 1;
        cloud.fleet.start_coordinator()?;
    }
    ensure!(kills >= KILLS_MIN, "{kills} kills: it was not killed at every kind of point");
    ensure!(cloud.kubernetes.object("nodes", "", LEAVES).is_none(), "its node is left");
    ensure!(cloud.kubernetes.objects("nodes").len() == 2, "another node is gone");
    cloud.came_in_order(&["requested", "cordoned", "deleted"])?;
    cloud.all_is_given_back()?;
    cloud.fleet.wait_ready(2)?;
    budgets_held(&cloud.kubernetes)?;
    cloud.fleet.done()
}

/// Before it departs, the removal is taken back: after its requests, and in the middle of its drain.
#[test]
fn abort_takes_the_removal_back() -> Result<()> {
    for point in ["end requested", "cordoned"] {
        let cloud = OpenStack::with_stubborn_lock(&format!("removal-{}", point.replace(' ', "-")), (1, 2))?;
        let (fleet, kubernetes) = (&cloud.fleet, &cloud.kubernetes);
        label(kubernetes, &[LEAVES], "held")?;
        let held = PodTraits { node_selector: only_on("held"), ..PodTraits::default() };
        kubernetes.deployment_with("shop", "held", 1, &held)?;
        let pod = wait_for("a pod that is held", TIME_LIMIT, || {
            Ok(evidence::leaving(kubernetes, LEAVES)
                .first()
                .and_then(|pod| pod.split_once('/'))
                .map(|(_, name)| name.to_owned()))
        })?;
        kubernetes.set_stuck("shop", &pod, true)?;
        cloud.remove()?;
        cloud.wait_story("requested")?;
        cloud.set_stubborn("inactive")?;
        cloud.wait_story(point)?;
        fleet.ctl(&["remove", LEAVES, "--abort"])?.exits(0)?;
        cloud.wait_story("end withdrawn")?;
        cloud.set_stubborn("active")?;
        kubernetes.set_stuck("shop", &pod, false)?;
        wait_for("the node given back", TIME_LIMIT, || Ok(is_given_back(kubernetes).is_ok().then_some(())))?;
        cloud.all_is_given_back().with_context(|| format!("{point}: {:?}", cloud.story(LEAVES)))?;
        fleet.wait_ready(3)?;
        fleet.wait_machine(LEAVES, "no removal", |machine| machine.status.blocked.is_none())?;
        ensure!(!cloud.story(LEAVES).contains(&"deleted"), "{:?}", cloud.story(LEAVES));
        cloud.fleet.done()?;
    }
    Ok(())
}
