//! Whoever has got hold of one machine lets it claim numbers that no coordinator gave it. It is blocked, and the others
//! go on.

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
    Fleet,
    manifest::{bash, cluster, named_cluster},
};

/// Longest that an operator waits for an answer while the machine lies.
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
            blocked.is_some_and(|blocked| blocked.reason == "UnprovenLedger" && blocked.message.contains(says))
        })?;
        // A cluster that comes now is deployed.
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
