//! What one token or one operator can do to others: nothing. Attackers speak the wire themselves, as fast as they can.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use muster_tests::fleet::{
    Fleet, alone,
    manifest::{bash, cluster, named_cluster},
    programs::complain,
};
use tonic::Status;

/// Enrolments, or calls, of one attack.
const ATTACK: usize = 2_000;
/// Connections an attacker has.
const CONNECTIONS: usize = 4;

/// Longest time for which `musterctl get` may take beside an attack.
fn get_max() -> Duration {
    // Beside other tests two cores have other work.
    if alone() { Duration::from_secs(1) } else { Duration::from_secs(5) }
}

/// Asks for machines as long as the attack goes on: the longest time that took.
fn slowest_get(fleet: &Fleet, over: &AtomicBool) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    let mut asked = 0;
    while !over.load(Ordering::Relaxed) || asked == 0 {
        let began = Instant::now();
        fleet.ctl(&["get", "machines"])?.exits(0)?;
        slowest = slowest.max(began.elapsed());
        asked += 1;
    }
    complain(&format!("get machines beside the attack: {asked} times, at most {} ms", slowest.as_millis()));
    Ok(slowest)
}

/// Runs the attack on several connections at once, and `musterctl get` beside it.
fn attack<T: Send>(fleet: &Fleet, one: impl Fn(usize) -> Result<Vec<T>> + Sync) -> Result<Vec<T>> {
    let over = AtomicBool::new(false);
    let (answers, slowest) = thread::scope(|scope| {
        let attackers: Vec<_> = (0..CONNECTIONS)
            .map(|n| {
                scope.spawn({
                    let one = &one;
                    move || one(n)
                })
            })
            .collect();
        let asking = scope.spawn(|| slowest_get(fleet, &over));
        let answers: Vec<_> = attackers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        (answers, asking.join())
    });
    let slowest = slowest.map_err(|_| anyhow::anyhow!("the thread that asks panicked"))??;
    ensure!(slowest < get_max(), "`musterctl get` took {} ms beside the attack", slowest.as_millis());
    let mut all = Vec::new();
    for answer in answers {
        all.extend(answer.map_err(|_| anyhow::anyhow!("an attacker panicked"))??);
    }
    Ok(all)
}

/// Whoever has found a token enrols thousands of machines. Others go on, and it is cleaned up in one go.
#[test]
fn leaked_token_fills_no_coordinator() -> Result<()> {
    let mut fleet = Fleet::start("leaked", &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 1, &items, &items, &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.apply(&named_cluster("other", (1, 0), &items, &[], &[]))?;
    fleet.wait_machine("control-1", "connected", |machine| machine.status.connected)?;

    let by_default = fleet.token("worker", &[])?;
    let names = |prefix: &str, count: usize| (0..count).map(move |n| format!("{prefix}-{n}")).collect::<Vec<_>>();
    let answers = fleet.raw_stranger()?.enroll_all(&by_default, names("junk", 20))?;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2, "the one that lacks, and one to spare");

    let generous = fleet.token("worker", &["--uses", "9000"])?;
    let of_each = ATTACK / CONNECTIONS;
    let answers: Vec<Result<(), Status>> = attack(&fleet, |attacker| {
        fleet.raw_stranger()?.enroll_all(&generous, names(&format!("more-{attacker}"), of_each))
    })?;
    let let_in = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!((answers.len(), let_in), (ATTACK, 9), "two are named, ten more fit, three were there");
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(refused.iter().all(|status| status.message().contains("ClusterFull")), "{:?}", refused.first());

    let token = fleet.ctl(&["token", "create", "--cluster", "other", "--type", "control"])?.ok()?;
    fleet.write_secret("tokens/other", &token)?;
    fleet.enroll("other-1", &fleet.path("tokens/other"), &[])?.ok()?;
    fleet.start_agent("other-1")?;
    fleet.wait_machine("other-1", "Ready", |machine| machine.status.state == "Ready")?;

    let began = Instant::now();
    for token in [&by_default, &generous] {
        let text = std::fs::read_to_string(token)?;
        let id = text.split('.').next().context("an id")?;
        let revoked = fleet.ctl(&["token", "revoke", id, "--machines"])?.exits(0)?;
        revoked.says(&["enrolled with it taken back that never reported"])?;
    }
    complain(&format!("cleaned up in {} ms", began.elapsed().as_millis()));
    let left: Vec<String> = fleet.machines()?.into_keys().collect();
    assert_eq!(left, ["control-1", "other-1"]);
    fleet.add_machines(0, 1)?;
    fleet.wait_ready(3)?;
    fleet.done()
}
