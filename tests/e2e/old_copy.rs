//! An old copy of the coordinator's store is restored in the middle of a deployment.

use muster_proto::model::Reason;
use std::{fs, path::Path};

use anyhow::{Context, Result};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    effects::{Promise, examine},
    manifest::{bash, cluster},
    wait_for,
};

#[test]
fn a_copy_of_the_stopped_store() -> Result<()> {
    restored(|fleet| {
        fleet.stop_coordinator()?;
        fs::copy(fleet.store(), fleet.path("old"))?;
        fs::copy(fleet.store().with_extension("mark"), fleet.path("old.mark"))?;
        fleet.start_coordinator()
    })
}

#[test]
fn a_backup_of_the_running_store() -> Result<()> {
    restored(|fleet| {
        fleet.coordinator_command(&["backup", "--state-dir", "coordinator", "old"])?.ok()?;
        Ok(())
    })
}

/// A machine's ledger is restored to its state before any item. No item is repeated, the reason is shown, and the
/// advised command resolves it.
#[test]
fn a_copy_of_a_ledger() -> Result<()> {
    let mut fleet = Fleet::start("old-ledger", &[])?;
    let effects = fleet.effects_log();
    let items = ["one", "two"].map(|name| bash(name, "deploy", &effects, ":", &[]));
    fleet.apply(&cluster(2, 0, &items, &[], &[]))?;
    // The deployment waits for the second machine.
    let machine = fleet.add_machines(1, 0)?.remove(0);
    fleet.wait_machine(&machine, "connected", |machine| machine.status.connected)?;
    let ledger = fleet.agent_dir(&machine).join("ledger.log");
    fs::copy(&ledger, fleet.path("old"))?;
    let token = fleet.token("control", &[])?;
    fleet.enroll("control-2", &token, &[])?.ok()?;
    fleet.start_agent("control-2")?;
    fleet.wait_ready(2)?;

    fleet.kill_agent(&machine)?;
    fs::copy(fleet.path("old"), &ledger)?;
    fleet.start_agent(&machine)?;
    let behind = |machine: &muster_proto::resource::Machine| {
        machine.status.blocked.as_ref().is_some_and(|since| since.blocked.reason == Reason::LedgerBehind)
    };
    fleet.wait_machine(&machine, "LedgerBehind", behind)?;
    fleet.ctl(&["describe", "machine", &machine])?.exits(0)?.says(&["LedgerBehind", "ledger reset --keep-identity"])?;
    fleet.kill_agent(&machine)?;
    fleet.agent_command(&machine, &["ledger", "reset", "--keep-identity"])?.ok()?;
    fleet.start_agent(&machine)?;
    fleet.wait_machine(&machine, "its new ledger", |machine| machine.status.connected && !behind(machine))?;
    fleet.wait_ready(2)?;
    assert_eq!(fleet.effects()?.len(), 8, "each of two items began and ended once on each of two machines");
    fleet.done()
}

/// The same while the coordinator is down: only the directories in attempts/ prove that items have run since.
#[test]
fn ledger_put_back_under_newer_attempts() -> Result<()> {
    let mut fleet = Fleet::start("ledger-attempts", &[])?;
    let (effects, gate) = (fleet.effects_log(), fleet.path("gate"));
    let wait = format!("until [ -e {gate} ]; do sleep 0.05; done");
    let items = [("one", ":"), ("two", &*wait), ("three", ":"), ("four", ":")];
    let items = items.map(|(name, body)| bash(name, "deploy", &effects, body, &[]));
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    let machine = fleet.add_machines(1, 0)?.remove(0);
    wait_for("the second item", TIME_LIMIT, || Ok((fleet.effects()?.len() >= 3).then_some(())))?;
    let ledger = fleet.agent_dir(&machine).join("ledger.log");
    fs::copy(&ledger, fleet.path("old"))?;
    fs::write(gate, "")?;
    fleet.wait_ready(1)?;
    fleet.stop_coordinator()?;

    fleet.kill_agent(&machine)?;
    fs::copy(fleet.path("old"), &ledger)?;
    let before = fs::read_dir(fleet.agent_dir(&machine).join("attempts"))?.count();
    fleet.start_agent(&machine)?;
    let behind = wait_for("LedgerBehind", TIME_LIMIT, || {
        let status = fleet.agent_status(&machine)?;
        Ok(status.out.contains("LedgerBehind").then_some(status))
    })?;
    behind.says(&["attempts/", "muster-agent ledger reset --keep-identity"])?;
    let attempts = fs::read_dir(fleet.agent_dir(&machine).join("attempts"))?.count();
    assert_eq!(attempts, before, "nothing is swept");
    fleet.kill_agent(&machine)?;
    fleet.agent_command(&machine, &["ledger", "reset", "--keep-identity"])?.ok()?;
    fleet.start_agent(&machine)?;
    fleet.start_coordinator()?;
    fleet.wait_ready(1)?;
    fleet.wait_machine(&machine, "no reason to wait", |machine| machine.status.blocked.is_none())?;
    assert_eq!(fleet.effects()?.len(), 8, "each of four items began and ended once");
    fleet.done()
}

/// `copy` creates the file `old`. One control machine, then two workers, one at a time. The copy is made while the
/// control machine runs its items, and restored when the first worker has completed its list.
fn restored(copy: impl FnOnce(&mut Fleet) -> Result<()>) -> Result<()> {
    let mut fleet = Fleet::start("old-copy", &["--lost-after", "2s", "--heartbeat", "500ms"])?;
    let effects = fleet.effects_log();
    let items = ["one", "two"].map(|name| bash(name, "deploy", &effects, "sleep 1", &[]));
    fleet.apply(&cluster(1, 2, &items, &items, &["maxWorkerDeployCount: 1"]))?;
    let machines = fleet.add_machines(1, 2)?;
    let lines = |fleet: &Fleet, count: usize| Ok((fleet.effects()?.len() >= count).then_some(()));
    wait_for("the control machine's first item", TIME_LIMIT, || lines(&fleet, 1))?;
    copy(&mut fleet)?;
    let token = fleet.token("worker", &["--uses", "1"])?;
    fleet.enroll("stranger", &token, &[])?.ok()?;
    wait_for("the first worker's first item", TIME_LIMIT, || lines(&fleet, 5))?;
    fleet.stop_coordinator()?;
    wait_for("the first worker's last item", TIME_LIMIT, || lines(&fleet, 8))?;
    fs::copy(fleet.path("old"), fleet.store())?;
    // A snapshot of the whole disk includes the mark: only the machines can prove that it is old.
    if !Path::new(&fleet.path("old.mark")).exists() {
        let refused = fleet.start_coordinator().err().context("an older copy starts")?.to_string();
        assert!(refused.contains("was acknowledged") && refused.contains("muster-coordinator recover"), "{refused}");
        return go_on(fleet, machines);
    }
    fs::copy(fleet.path("old.mark"), fleet.store().with_extension("mark"))?;
    fleet.start_coordinator()?;
    let blocked = |machine: &muster_proto::resource::Machine| {
        machine.status.blocked.as_ref().is_some_and(|since| since.blocked.reason == Reason::StoreOlderThanFleet)
    };
    for machine in &machines {
        fleet.wait_machine(machine, "StoreOlderThanFleet", blocked)?;
    }
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["StoreOlderThanFleet", "muster-coordinator recover"])?;
    fleet.ctl(&["watch", "e2e"])?.exits(4)?.says(&["StoreOlderThanFleet"])?;
    // Longer than the time until a machine counts as Lost: all are connected and nothing may begin.
    let since = std::time::Instant::now();
    wait_for("three seconds", TIME_LIMIT, || Ok((since.elapsed().as_secs() >= 3).then_some(())))?;
    fleet.wait_machine("worker-2", "still blocked", blocked)?;
    assert_eq!(fleet.effects()?.len(), 8, "nothing runs");
    fleet.stop_coordinator()?;
    go_on(fleet, machines)
}

/// Runs `recover`, and completes the deployment.
fn go_on(mut fleet: Fleet, mut machines: Vec<String>) -> Result<()> {
    fleet.coordinator_command(&["recover", "--state-dir", "coordinator"])?.ok()?;
    fleet.start_coordinator()?;
    fleet.wait_ready(machines.len())?;
    // The machine that enrolled after the copy connects; the others proceed.
    fleet.start_agent("stranger")?;
    wait_for("the stranger is sent away", TIME_LIMIT, || {
        Ok(fleet.log("stranger").contains("UnknownMachine").then_some(()))
    })?;
    let token = fleet.token("worker", &["--uses", "1"])?;
    fleet.enroll("worker-3", &token, &[])?.ok()?;
    fleet.start_agent("worker-3")?;
    machines.push("worker-3".to_owned());
    fleet.wait_ready(machines.len())?;
    let promise = Promise {
        machines: &machines,
        control_items: &["one", "two"],
        worker_items: &["one", "two"],
        reconfigure_items: &[],
        workers_max: 1,
    };
    assert_eq!(examine(&fleet.effects()?, &promise).violations, Vec::<String>::new());
    fleet.done()
}
