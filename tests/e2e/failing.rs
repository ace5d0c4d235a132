//! Items that fail, and an operator's response.

use std::fs;

use anyhow::{Context as _, Result};
use muster_proto::resource::Machine;
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    processes, wait_for,
};
use nix::sys::signal::{Signal, kill};

/// Minimum backoff before the second attempt.
const BACKOFF_MS_MIN: u64 = 1000;

fn standing(machine: &Machine, item: &str) -> String {
    let found = machine.status.items.iter().find(|plan| plan.name == item);
    found.map_or_else(String::new, |plan| plan.standing.clone())
}

#[test]
fn retried_failed_then_retry_and_skip() -> Result<()> {
    let mut fleet = Fleet::start("failing", &[])?;
    let effects = fleet.effects_log();
    let mended = fleet.path("mended");
    let flaky = bash("flaky", "deploy", &effects, &format!("test -e {mended} || exit 7"), &["retries: 1"]);
    let hopeless = bash("hopeless", "deploy", &effects, "echo out of luck\nexit 9", &["retries: 0"]);
    let items = [flaky, hopeless, bash("last", "deploy", &effects, ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    fleet.add_machines(1, 0)?;

    fleet.ctl(&["watch", "e2e"])?.exits(4)?.says(&[
        "needs a person",
        "flaky failed",
        "musterctl retry control-1 flaky, or musterctl skip control-1 flaky",
    ])?;
    let machine = fleet.wait_machine("control-1", "failed", |machine| machine.status.failed)?;
    let flaky = machine.status.state_item_statuses.get("flaky").context("flaky")?;
    assert_eq!((flaky.attempt, flaky.exit_code, standing(&machine, "flaky").as_str()), (2, Some(7), "failed"));
    let starts: Vec<u64> = fleet.effects()?.iter().filter(|e| e.is_start).map(|e| e.at_ms).collect();
    assert!(starts.len() == 2 && starts[1] - starts[0] >= BACKOFF_MS_MIN, "backoff: {starts:?}");
    fleet.ctl(&["describe", "machine", "control-1"])?.exits(0)?.says(&["Failed", "flaky", "retry"])?;

    fs::write(&mended, "")?;
    fleet.ctl(&["accept", "control-1", "flaky"])?.exits(4)?;
    fleet.ctl(&["retry", "control-1", "nothing-of-that-name"])?.exits(2)?;
    fleet.ctl(&["retry", "control-1", "flaky"])?.exits(0)?;
    let failed = |machine: &Machine| machine.status.failed && standing(machine, "hopeless") == "failed";
    let machine = fleet.wait_machine("control-1", "the next item failed", failed)?;
    assert_eq!(standing(&machine, "flaky"), "done");
    fleet.ctl(&["logs", "control-1", "hopeless"])?.exits(0)?.says(&["out of luck"])?;

    fleet.ctl(&["skip", "control-1", "hopeless"])?.exits(0)?;
    fleet.wait_ready(1)?;
    assert_eq!(standing(&fleet.machines()?["control-1"], "hopeless"), "skipped");
    fleet.ctl(&["retry", "control-1"])?.exits(4)?;
    fleet.ctl(&["skip", "no-such-machine", "x"])?.exits(2)?.says(&["no-such-machine"])?;
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&["retry", "skip", "machine/control-1"])?;
    fleet.done()
}

#[test]
fn an_interrupted_item_waits_for_a_person() -> Result<()> {
    let mut fleet = Fleet::start("interrupted", &[])?;
    let effects = fleet.effects_log();
    let work = bash("work", "deploy", &effects, "sleep 60", &["onInterrupt: hold"]);
    fleet.apply(&cluster(1, 0, &[work, bash("after", "deploy", &effects, ":", &[])], &[], &[]))?;
    fleet.add_machines(1, 0)?;
    wait_for("the item", TIME_LIMIT, || Ok((!fleet.effects()?.is_empty()).then_some(())))?;
    let mut hosts = processes::of_dir(fleet.dir())?;
    hosts.retain(|pid| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains("exec-item\0")
    });
    let [host] = hosts[..] else { anyhow::bail!("one exec-item: {hosts:?}") };
    kill(host, Signal::SIGKILL)?;
    let machine = fleet.wait_machine("control-1", "indeterminate", |machine| machine.status.indeterminate)?;
    assert_eq!(standing(&machine, "work"), "held");
    fleet.ctl(&["watch", "e2e"])?.exits(4)?.says(&["work held", "musterctl accept control-1 work"])?;
    fleet.ctl(&["accept", "control-1", "work"])?.exits(0)?;
    fleet.wait_ready(1)?;
    assert_eq!(standing(&fleet.machines()?["control-1"], "work"), "accepted");
    let starts = fleet.effects()?.iter().filter(|effect| effect.item == "work" && effect.is_start).count();
    assert_eq!(starts, 1, "it was not run again");
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&["accept"])?;
    fleet.done()
}

#[test]
fn the_failure_budget_stops_the_others() -> Result<()> {
    let mut fleet = Fleet::start("budget", &[])?;
    let effects = fleet.effects_log();
    let fine = bash("work", "deploy", &effects, ":", &[]);
    let fails = bash("work", "deploy", &effects, "exit 3", &["retries: 0"]);
    let more = ["maxFailures: {control: 1, worker: 1}", "maxWorkerDeployCount: 1"];
    fleet.apply(&cluster(1, 3, &[fine], &[fails], &more))?;
    fleet.add_machines(1, 3)?;
    fleet.ctl(&["watch", "e2e"])?.exits(4)?.says(&["FailureBudget", "needs a person"])?;
    let starts = fleet.effects()?.iter().filter(|e| e.is_start && e.machine.starts_with("worker-")).count();
    assert_eq!(starts, 1, "one worker failed, the others did not begin");
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["FailureBudget"])?;
    fleet.done()
}
