//! Operators who cordon and uncordon nodes in the middle of an update.

use std::time::Duration;

use muster_tests::fleet::pause;

use super::{evidence::cordons, workers::*, *};

/// Time for which an answer of the API server holds; then Muster looks at the node again.
const ANSWER_HOLDS: Duration = Duration::from_secs(11);

fn kubectl(kubernetes: &Kubernetes, node: &str, unschedulable: bool) -> Result<()> {
    kubernetes.modify("nodes", "", node, |node| node["spec"]["unschedulable"] = Value::Bool(unschedulable))
}

fn has_started(fleet: &Fleet, machine: &str, item: &str) -> Result<bool> {
    Ok(fleet.effects()?.iter().any(|effect| effect.is_start && effect.machine == machine && effect.item == item))
}

/// Waits until the first item of a worker runs.
fn waits_for_first(fleet: &Fleet, worker: &str) -> Result<()> {
    wait_for("the first item", UPDATE_MAX, || Ok(has_started(fleet, worker, "first")?.then_some(())))
}

#[test]
fn operators_cordons_are_respected() -> Result<()> {
    let (fleet, kubernetes) = small("operators")?;
    let go = fleet.path("go");
    let first = item(&fleet, "first", &format!("until [ -e {go}-$MUSTER_MACHINE ]; do sleep 0.05; done"));
    let items = [first, item(&fleet, "second", "sleep 0.4")];
    fleet.apply(&release_of(&fleet, (WORKERS, 2), &items, &[]))?;
    let mut holds = Holds::on_workers(&kubernetes)?;
    let update = start_update(&fleet)?;

    // Before the first item: its turn ends, and its node stays as the operator wants it.
    let (aside, held) = holds.next(&kubernetes)?;
    kubectl(&kubernetes, aside, false)?;
    let words = format!("an operator made Kubernetes node {aside} schedulable while it was drained");
    waits_for(&fleet, aside, Reason::KubernetesUncordoned, &[&words])?;
    held.let_go(&kubernetes)?;
    ensure!(!has_started(&fleet, aside, "first")?, "it was not drained");

    // Between two items: no further one starts, and the update pauses.
    let (paused, held) = holds.next(&kubernetes)?;
    held.let_go(&kubernetes)?;
    waits_for_first(&fleet, paused)?;
    kubectl(&kubernetes, paused, false)?;
    pause(ANSWER_HOLDS);
    fs::write(format!("{go}-{paused}"), "")?;
    ends(&fleet, update, 4)?;
    let log = fleet.log("update");
    ensure!(log.contains("Paused") && log.contains("musterctl resume"), "{log}");
    ensure!(log.contains(&format!("an operator made Kubernetes node {paused} schedulable")), "{log}");
    ensure!(!has_started(&fleet, paused, "second")?, "an undrained machine was disturbed");
    kubectl(&kubernetes, paused, true)?;
    fleet.ctl(&["resume", "e2e"])?.exits(0)?;
    is_at(&fleet, paused, "2.0")?;

    // A node that is to stay cordoned.
    let (kept, held) = holds.next(&kubernetes)?;
    held.let_go(&kubernetes)?;
    waits_for_first(&fleet, kept)?;
    kubernetes.modify("nodes", "", kept, |node| {
        node["metadata"]["annotations"][kubernetes::KEEP_CORDONED] = json!("true");
    })?;
    fs::write(format!("{go}-{kept}"), "")?;
    is_at(&fleet, kept, "2.0")?;
    let retry = format!("musterctl retry {aside}");
    fleet.ctl(&["watch", "e2e"])?.exits(4)?.says(&[&format!("{aside}: KubernetesUncordoned"), &retry])?;
    giving_back::are_given_back_but(&kubernetes, kept)?;
    let patches = cordons(&kubernetes, aside);
    ensure!(patches == [true, false], "{aside} was not cordoned against its operator: {patches:?}");

    fs::write(format!("{go}-{aside}"), "")?;
    fleet.ctl(&["retry", aside])?.exits(0)?;
    fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    fleet.wait_ready(SMALL.len())?;
    giving_back::are_given_back_but(&kubernetes, kept)?;
    budgets_held(&kubernetes)?;
    fleet.done()
}
