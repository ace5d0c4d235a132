//! Nodes are given back exactly, wherever an update ends.

use std::time::Duration;

use super::*;

/// Aborts at fewer points than this prove too little.
const ABORTS_MIN: usize = 6;
/// Time from a start of the coordinator until it lists the nodes: a change of its predecessor may be under way.
const LISTS_AFTER: Duration = Duration::from_secs(75);

/// The update is aborted after its first change in the cluster, the next one after its second, and so on.
#[test]
fn abort_at_every_stage_gives_back() -> Result<()> {
    let (fleet, kubernetes) = deployed("aborts")?;
    let kept = "worker-2";
    kubernetes.modify("nodes", "", kept, |node| node["spec"]["unschedulable"] = Value::Bool(true))?;
    fleet.apply(&manifest(&fleet, 2, &[]))?;
    let mut aborts = 0;
    for after in 1.. {
        kubernetes.clear_requests();
        fleet.ctl(&["update", "e2e", "--yes", "--detach"])?.exits(0)?;
        if fleet.changed_or_at("2.0", || changes(&kubernetes).len() >= after)? {
            break;
        }
        fleet.ctl(&["abort", "e2e", "--yes"])?.exits(0)?;
        aborts += 1;
        fleet.ctl(&["watch", "e2e"])?;
        are_given_back_but(&kubernetes, kept)?;
        budgets_held(&kubernetes)?;
        if fleet.are_at("2.0") {
            break;
        }
    }
    ensure!(aborts >= ABORTS_MIN, "{aborts} aborts: not at every stage");
    fleet.done()
}

/// A backup from the middle of a drain is restored after the update: the nodes that it believes drained are not, and
/// the one that was drained since is given back by an operator's word.
#[test]
fn recovered_coordinator_gives_back() -> Result<()> {
    let (mut fleet, kubernetes) = deployed("recovered")?;
    fleet.coordinator_command(&["backup", "--state-dir", "coordinator", "old"])?.ok()?;
    fleet.apply(&manifest(&fleet, 2, &[]))?;
    let mut update = fleet.start_ctl(&["--config", "operator.toml", "update", "e2e", "--yes"], "update")?;
    let cordoned = wait_for("a cordoned node", TIME_LIMIT, || {
        let mut nodes = kubernetes.objects("nodes").into_iter();
        let node = nodes.find(|node| node["spec"]["unschedulable"].as_bool() == Some(true));
        Ok(node.and_then(|node| node["metadata"]["name"].as_str().map(str::to_owned)))
    })?;
    fleet.kill_coordinator()?;
    update.kill()?;
    update.wait()?;
    fs::copy(fleet.path("old"), fleet.store())?;
    fleet.coordinator_command(&["recover", "--state-dir", "coordinator"])?.ok()?;
    fleet.start_coordinator()?;
    let not_restored = |machine: &Machine| {
        let since = machine.status.blocked.as_ref();
        since.is_some_and(|since| since.blocked.reason == Reason::KubernetesNodeNotRestored)
    };
    fleet.set_time_limit(LISTS_AFTER + TIME_LIMIT);
    fleet.wait_machine(&cordoned, "KubernetesNodeNotRestored", not_restored)?;
    let described = fleet.ctl(&["describe", "machine", &cordoned])?.exits(0)?;
    described.says(&["muster/drained-for", &format!("musterctl maintenance leave {cordoned}")])?;
    fleet.ctl(&["maintenance", "leave", &cordoned])?.exits(0)?.says(&["is given back"])?;
    wait_for("the node given back", TIME_LIMIT, || Ok(is_given_back(&kubernetes).is_ok().then_some(())))?;
    fleet.wait_machine(&cordoned, "no reason", |machine| machine.status.blocked.is_none())?;
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&["bears no cordon of an earlier drain any more"])?;
    fleet.done()
}

/// Each node is as before: the one that its operator cordoned is cordoned, and none bears an annotation of a drain.
pub(super) fn are_given_back_but(kubernetes: &Kubernetes, kept: &str) -> Result<()> {
    let nodes = kubernetes.objects("nodes");
    nodes.iter().try_for_each(|node| kubernetes::is_given_back(node, node["metadata"]["name"] == kept))
}
