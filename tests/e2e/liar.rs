//! A compromised machine claims numbers that no coordinator gave it. It is blocked, and the others continue.

use muster_proto::model::Reason;
use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use muster_agent::{
    core::{LedgerState, Record},
    ledger::line::{self, Chain},
};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster, named_cluster},
    wait_for,
};

/// Longest time of an operator's query while the machine lies.
const ANSWER_MAX: Duration = Duration::from_secs(1);

type Lie = fn(&mut LedgerState);

#[test]
fn liar_stops_no_other_cluster() -> Result<()> {
    let mut fleet = Fleet::start("liar", &[])?;
    let effects = fleet.effects_log();
    let item = [bash("one", "deploy", &effects, ":", &[])];
    fleet.apply(&cluster(1, 0, &item, &[], &[]))?;
    let liar = fleet.add_machines(1, 0)?.remove(0);
    fleet.wait_ready(1)?;
    fleet.kill_agent(&liar)?;
    let (path, mark) = (fleet.agent_dir(&liar).join("ledger.log"), fleet.agent_dir(&liar).join("ledger.mark"));
    let (log, marked, known) = (fs::read(&path)?, fs::read(&mark)?, fleet.ledger(&liar)?.context("a ledger")?);

    let lies: [(&str, Lie); 3] = [
        ("has seen epoch 1000001", |state| state.epoch.0 += 1_000_000),
        ("has generation", |state| {
            if let Some(assignment) = &mut state.assignment {
                Arc::make_mut(assignment).generation.0 += 1_000_000;
            }
        }),
        ("acknowledged", |state| {
            state.last_seq.0 += 1_000_000;
            state.acked = state.last_seq;
        }),
    ];
    for (at, (says, lie)) in lies.into_iter().enumerate() {
        let mut state = known.clone();
        lie(&mut state);
        fs::write(&path, line::encode(Chain::default(), &[Record::Snapshot(Box::new(state))]).0)?;
        fleet.start_agent(&liar)?;
        fleet.wait_machine(&liar, says, |machine| {
            let blocked = machine.status.blocked.as_ref().map(|since| &since.blocked);
            blocked.is_some_and(|blocked| blocked.reason == Reason::UnprovenLedger && blocked.message.contains(says))
        })?;
        // A new cluster is deployed meanwhile.
        let (name, machine) = (format!("other-{at}"), format!("{at}-control"));
        fleet.apply(&named_cluster(&name, (1, 0), &item, &[], &[]))?;
        let token = fleet.ctl(&["token", "create", "--cluster", &name, "--type", "control"])?.ok()?;
        let file = format!("tokens/{name}");
        fleet.write_secret(&file, &token)?;
        fleet.enroll(&machine, &fleet.path(&file), &[])?.ok()?;
        fleet.start_agent(&machine)?;
        fleet.wait_machine(&machine, "Ready", |machine| machine.status.state == "Ready")?;
        let asked = Instant::now();
        fleet.ctl(&["get", "machines"])?.exits(0)?.says(&["UnprovenLedger"])?;
        ensure!(asked.elapsed() < ANSWER_MAX, "`get` took {:?}", asked.elapsed());
        fleet.kill_agent(&liar)?;
    }
    fleet.ctl(&["describe", "machine", &liar])?.exits(0)?.says(&["UnprovenLedger", "musterctl replace"])?;
    ensure!(fleet.log("coordinator").contains("UnprovenLedger"), "the log warns");
    fs::write(&path, log)?;
    fs::write(&mark, marked)?;
    fleet.start_agent(&liar)?;
    fleet.wait_ready(4)?;
    fleet.done()
}

/// A machine begins another ledger, and returns to the former one, whose codes are genuine: either as a lie, or because
/// its state directory was restored from a copy.
#[test]
fn former_ledger_stops_no_other_machine() -> Result<()> {
    let mut fleet = Fleet::start("former", &[])?;
    let effects = fleet.effects_log();
    let item = [bash("one", "deploy", &effects, ":", &[])];
    fleet.apply(&cluster(1, 1, &item, &item, &[]))?;
    let (liar, other) = ("worker-1".to_owned(), "control-1".to_owned());
    fleet.add_machines(1, 1)?;
    fleet.wait_ready(2)?;
    // Acknowledgements reach the disk a moment later.
    let is_acked = |fleet: &Fleet| Ok(fleet.ledger(&liar)?.is_some_and(|known| known.acked == known.last_seq));
    wait_for("acknowledgements in its ledger", TIME_LIMIT, || is_acked(&fleet).map(|acked| acked.then_some(())))?;
    fleet.kill_agent(&liar)?;
    let (path, mark) = (fleet.agent_dir(&liar).join("ledger.log"), fleet.agent_dir(&liar).join("ledger.mark"));
    let (log, marked) = (fs::read(&path)?, fs::read(&mark)?);
    fleet.agent_command(&liar, &["ledger", "reset", "--keep-identity"])?.ok()?;
    let greetings = |fleet: &Fleet| {
        let greets = |line: &&str| line.contains("connected") && line.contains(liar.as_str());
        fleet.log("coordinator").lines().filter(greets).count()
    };
    let before = greetings(&fleet);
    fleet.start_agent(&liar)?;
    wait_for("its greeting", TIME_LIMIT, || Ok((greetings(&fleet) > before).then_some(())))?;
    fleet.kill_agent(&liar)?;
    fs::write(&path, log)?;
    fs::write(&mark, marked)?;
    fleet.start_agent(&liar)?;
    let says = "has begun another ledger since";
    fleet.wait_machine(&liar, says, |machine| {
        let blocked = machine.status.blocked.as_ref().map(|since| &since.blocked);
        blocked.is_some_and(|blocked| blocked.reason == Reason::UnprovenLedger && blocked.message.contains(says))
    })?;
    fleet.ctl(&["describe", "machine", &liar])?.exits(0)?.says(&["ledger reset --keep-identity"])?;
    let status = fleet.machine(&other)?.status;
    ensure!(status.state == "Ready" && status.blocked.is_none(), "{:?}", status.blocked);
    fleet.kill_agent(&liar)?;
    fleet.agent_command(&liar, &["ledger", "reset", "--keep-identity"])?.ok()?;
    fleet.start_agent(&liar)?;
    fleet.wait_machine(&liar, "believed again", |machine| {
        machine.status.state == "Ready" && machine.status.blocked.is_none()
    })?;
    ensure!(fleet.effects()?.len() == 4, "nothing ran twice: {:?}", fleet.effects()?);
    fleet.done()
}
