//! Faults in the middle of an update.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Child,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use muster_tests::fleet::wait_for;

use super::place::{Place, deployed, failing_release, second_release};

/// Minimum number of coordinator kills in one update.
const KILLS_MIN: usize = 20;
/// Minimum lifetime of a coordinator: agents whose sessions last less than 5 s reconnect ever less often.
const LIFE_MIN: Duration = Duration::from_secs(6);
/// A query to the coordinator takes a process; a file is read directly.
const LOOKS_PER_QUESTION: u32 = 100;
/// For an update with so many interruptions, on a busy computer.
const UPDATE_MAX: Duration = Duration::from_secs(600);

/// A controller, killed on drop.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it ended by itself
        let _ = self.0.wait();
    }
}

fn controller(place: &Place, workers: usize) -> Result<Controller> {
    let workers = (1..=workers).map(|n| format!("worker-{n}"));
    let machines: Vec<String> = (1..=3).map(|n| format!("control-{n}")).chain(workers).collect();
    Ok(Controller(place.controller(&machines.join(","), &[])?))
}

/// A machine that failed after the drain keeps its slot, and reports it; with two of them no other begins. Each
/// continues on a retry, and then the rest does.
#[test]
fn failed_machines_keep_their_slots_until_they_are_mended() -> Result<()> {
    let place = deployed("4")?;
    let _controller = controller(&place, 4)?;
    let fail = |machine: &str| place.dir().join(format!("fail-{machine}"));
    for machine in ["worker-1", "worker-2"] {
        fs::write(fail(machine), "")?;
    }
    failing_release(&place, 2)?;
    let ran = place.ctl(&["update", "demo", "--yes"])?.exits(4)?;
    ran.says(&["FailureBudget", "worker-1: Failed", "musterctl retry worker-1", "musterctl retry worker-2"])?;
    place.ctl(&["watch", "demo"])?.exits(4)?.says(&["FailureBudget"])?;
    let held = || -> Result<()> {
        let stories = place.stories()?;
        for machine in ["worker-1", "worker-2"] {
            let story = stories.get(machine).context("a story")?;
            ensure!(story == &["request-seen", "workloads-moved", "lock-inactive", "items"], "{machine}: {story:?}");
        }
        ensure!(!stories.contains_key("worker-3") && !stories.contains_key("worker-4"), "another began: {stories:?}");
        Ok(())
    };
    held()?;
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["worker-1", "worker-2"])?;

    for machine in ["worker-1", "worker-2"] {
        fs::remove_file(fail(machine))?;
    }
    place.ctl(&["retry", "worker-1"])?.exits(0)?;
    place.ctl(&["watch", "demo"])?.exits(4)?.says(&["worker-2: Failed"])?;
    let stories = place.stories()?;
    for machine in ["worker-1", "worker-3", "worker-4"] {
        assert!(stories[machine].ends_with(&["lock-active".to_owned()]), "{machine}: {:?}", stories[machine]);
    }
    assert!(stories["worker-2"].ends_with(&["items".to_owned()]), "{:?}", stories["worker-2"]);
    place.ctl(&["retry", "worker-2"])?.exits(0)?;
    place.ctl(&["watch", "demo"])?.exits(0)?;
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["No requests"])?;
    Ok(())
}

/// Latest actions of a machine's controller and items, and whether they were allowed.
#[derive(Default)]
struct Order {
    /// The controller has released it, and has not reported the end of the request since.
    let_go: bool,
    /// Items of the release that began.
    began: BTreeMap<String, usize>,
}

/// No item begins without the controller's consent, and each runs once.
fn holds(lines: &[String], machines: usize) -> Result<()> {
    let mut orders: BTreeMap<&str, Order> = BTreeMap::new();
    for line in lines {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [machine, "lock-inactive"] => orders.entry(machine).or_default().let_go = true,
            [machine, "request-gone"] => orders.entry(machine).or_default().let_go = false,
            [machine, item, "start", _, _, "2"] => {
                let order = orders.entry(machine).or_default();
                ensure!(order.let_go, "{machine}: {item} began though the controller had not let it go");
                *order.began.entry(item.to_owned()).or_default() += 1;
            }
            _ => {}
        }
    }
    ensure!(orders.len() == machines, "{} machines were updated", orders.len());
    for (machine, order) in orders {
        ensure!(order.began.len() == 2 && order.began.values().all(|n| *n == 1), "{machine}: {:?}", order.began);
    }
    Ok(())
}

/// Kills the coordinator at events new to a machine in this update: a new action of its controller, or the start or end
/// of an item.
#[test]
fn the_coordinator_is_killed_at_twenty_points_of_an_update() -> Result<()> {
    let place = deployed("9")?;
    let _controller = controller(&place, 9)?;
    // Two items of a machine last as long as two lives of the coordinator.
    second_release(&place, 1, ("120s", "6"))?;
    let before = place.lines()?.len();
    place.ctl(&["update", "demo", "--yes", "--detach"])?.exits(0)?;
    let (mut points, mut kills, mut looks, mut born) = (BTreeSet::new(), 0, 0_u32, Instant::now());
    wait_for("the end of the update", UPDATE_MAX, || {
        let lines = place.lines()?;
        let seen = points.len();
        points.extend(lines[before..].iter().cloned());
        if points.len() > seen && born.elapsed() > LIFE_MIN {
            place.kill_coordinator()?;
            kills += 1;
            born = Instant::now();
        }
        looks += 1;
        if !looks.is_multiple_of(LOOKS_PER_QUESTION) {
            return Ok(None);
        }
        let Ok(rollouts) = place.ctl(&["get", "rollouts", "-o", "json"])?.ok() else { return Ok(None) };
        let rollouts: serde_json::Value = serde_json::from_str(&rollouts)?;
        let all = rollouts["items"].as_array().context("no items")?;
        let ended = |kind: &str| {
            all.iter().any(|rollout| rollout["spec"]["kind"] == kind && rollout["status"]["state"] == "Ready")
        };
        Ok(ended("update").then_some(()))
    })?;
    ensure!(kills >= KILLS_MIN, "killed only {kills} times, of {} points", points.len());
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["No requests"])?;
    // A controller that missed the end of a request while the coordinator was down locks its machine again later.
    wait_for("the end of all leave", UPDATE_MAX, || {
        let locks: serde_json::Value = serde_json::from_str(&place.ctl(&["get", "locks", "-o", "json"])?.ok()?)?;
        let locks = locks["items"].as_array().context("no items")?;
        Ok(locks.iter().all(|lock| lock["status"]["state"] == "active").then_some(()))
    })?;
    holds(&place.lines()?[before..], 12)
}
