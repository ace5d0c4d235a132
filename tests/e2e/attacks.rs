//! One token or one operator cannot harm others. Attackers use the wire protocol directly, as fast as they can.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use muster_proto::{resource::Audit, wire::AnnotateRequest};
use muster_tests::fleet::{
    CLUSTER, Fleet, alone,
    manifest::{bash, cluster, named_cluster},
    programs::complain,
};
use tonic::{Code, Status};

/// Enrolments or calls of one attack.
const ATTACK: usize = 2_000;
/// Connections of an attacker.
const CONNECTIONS: usize = 4;

/// Longest acceptable time of `musterctl get` during an attack.
fn get_max() -> Duration {
    // Other tests keep the two cores busy.
    if alone() { Duration::from_secs(1) } else { Duration::from_secs(5) }
}

/// Queries machines as long as the attack lasts. Returns the longest time of a query.
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

/// An attacker with a leaked token enrols thousands of machines. Others keep working, and one command cleans up.
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
    let bounded = |status: &&Status| ["ClusterFull", "TooFast"].iter().any(|why| status.message().contains(why));
    assert!(refused.iter().all(bounded), "{:?}", refused.first());

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

/// Credentials of an operator limited to the fleet's own cluster. Returns the name of their file.
fn limited(fleet: &Fleet, name: &str) -> Result<String> {
    let file = format!("{name}.toml");
    let place = ["credentials", "--state-dir", "coordinator", "--key-file", "coordinator.key"];
    let who = ["--role", "operator", "--name", name, "--cluster", CLUSTER, "--out", &file];
    fleet.coordinator_command(&[&place[..], &who].concat())?.ok()?;
    Ok(file)
}

fn audit(fleet: &Fleet) -> Result<Vec<Audit>> {
    let list: serde_json::Value = serde_json::from_str(&fleet.ctl(&["get", "audit", "-o", "json"])?.ok()?)?;
    Ok(serde_json::from_value(list["items"].clone())?)
}

/// An operator of one cluster tries to overwrite the audit of all with two thousand notes in a row.
#[test]
fn audit_flood_erases_nothing() -> Result<()> {
    let mut fleet = Fleet::start("flood", &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    fleet.apply(&named_cluster("other", (1, 0), &items, &[], &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.wait_ready(1)?;
    fleet.ctl(&["annotate", "cluster", "other", "rack=7"])?.exits(0)?;
    let eve = limited(&fleet, "eve")?;
    let before = audit(&fleet)?;
    let journalled = |fleet: &Fleet| fleet.log("coordinator").matches("audit: ").count();
    let logged_before = journalled(&fleet);

    let note = |n: usize| AnnotateRequest {
        kind: "cluster".to_owned(),
        name: CLUSTER.to_owned(),
        // Repeats the same note, and occasionally sends another.
        set: [(format!("note-{}", n / 10 % 7), n.to_string())].into(),
        remove: Vec::new(),
    };
    let of_each = ATTACK / CONNECTIONS;
    let answers: Vec<Result<(), Status>> = attack(&fleet, |_| {
        let operator = fleet.raw_operator(&eve)?;
        Ok((0..of_each).map(|n| operator.call(async |mut fleet| fleet.annotate(note(n)).await).map(drop)).collect())
    })?;
    let taken = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((1_000..ATTACK).contains(&taken), "{taken} of {ATTACK}");
    let refused: Vec<&Status> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    for status in &refused {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains("TooFast: operator/eve") && status.message().contains("come again in"));
    }
    let late = fleet.ctl_as(&eve, &["annotate", "cluster", CLUSTER, "a=b"])?;
    assert!(late.code == Some(0) || late.err.contains("come again in 1 s"), "{late:?}");
    fleet.ctl(&["annotate", "cluster", "other", "row=8"])?.exits(0)?;

    // Each note is in the log before its answer, and all lines of others remain.
    let logged = journalled(&fleet) - logged_before;
    assert!(logged >= taken && logged <= taken + 2, "{logged} lines in the log, {taken} were taken");
    let after = audit(&fleet)?;
    let is_there = |line: &Audit| after.iter().any(|known| known.status.hash == line.status.hash);
    assert!(before.iter().all(is_there), "{} lines before, {} after", before.len(), after.len());
    let eves = || after.iter().filter(|line| line.spec.actor == "operator/eve");
    let times: usize = eves().map(|line| line.spec.times as usize).sum();
    assert!(times >= taken && eves().count() < taken, "{} lines, {times} times", eves().count());
    complain(&format!("{taken} of {ATTACK} notes were taken, in {} audit lines", eves().count()));

    fleet.ctl(&["get", "audit", "--cluster", "other"])?.exits(0)?.says(&["annotate", "rack set"])?;
    let whole = fleet.ctl(&["audit", "verify"])?.exits(0)?.says(&["e2e: lines 1 to ", "other: lines 1 to 3, whole"])?;
    fleet.kill_coordinator()?;
    fleet.start_coordinator()?;
    assert_eq!(fleet.ctl(&["audit", "verify"])?.ok()?, whole.out, "kept through a crash");
    assert!(!fleet.log("coordinator").contains("has a gap"), "{}", fleet.log("coordinator"));
    fleet.done()
}

/// Permission to apply a manifest covers the secrets that it may name: an operator of one cluster cannot name
/// another's.
#[test]
fn shared_secret_stays_with_its_clusters() -> Result<()> {
    let mut fleet = Fleet::start("shared", &[])?;
    let steal = format!("cat \"$MUSTER_SECRET_REGISTRY_FILE\" >{}", fleet.path("stolen"));
    let item = bash("work", "deploy", &fleet.effects_log(), &steal, &[]);
    let item = item.replace("          effects:", "          password: '${secret.registry}'\n          effects:");
    fleet.apply(&cluster(1, 0, &[bash("work", "deploy", &fleet.effects_log(), ":", &[])], &[], &[]))?;
    std::fs::write(fleet.path("password"), "hunter2-of-others")?;
    let create = ["secret", "create", "registry", "--clusters", "other", "--from-file", "password"];
    fleet.ctl(&create)?.exits(0)?.says(&["secret registry created; it is for other"])?;
    let eve = limited(&fleet, "eve")?;
    std::fs::write(fleet.path("steal.yaml"), cluster(1, 0, &[item], &[], &[]))?;
    let refused = fleet.ctl_as(&eve, &["apply", "-f", "steal.yaml"])?.exits(2)?;
    refused.says(&["unknown secret 'registry'", "musterctl secret share registry --clusters e2e"])?;
    fleet.ctl_as(&eve, &["secret", "share", "registry", "--clusters", CLUSTER])?.exits(3)?;
    let seen = fleet.ctl_as(&eve, &["get", "secrets", "-o", "name"])?.ok()?;
    assert!(!seen.contains("registry"), "{seen}");
    fleet.add_machines(1, 0)?;
    fleet.wait_ready(1)?;
    assert!(!std::path::Path::new(&fleet.path("stolen")).exists());

    fleet.ctl(&["secret", "share", "registry", "--clusters", CLUSTER])?.exits(0)?.says(&["is for e2e, other"])?;
    fleet.ctl_as(&eve, &["apply", "-f", "steal.yaml"])?.exits(0)?;
    let update = ["update", CLUSTER, "--yes", "--accept-control-plane-downtime"];
    fleet.ctl_as(&eve, &update)?.exits(0)?;
    assert_eq!(std::fs::read_to_string(fleet.path("stolen"))?, "hunter2-of-others", "now it may");
    fleet
        .ctl(&["secret", "unshare", "registry", "--clusters", CLUSTER])?
        .exits(4)?
        .says(&["SecretInUse", "e2e/work"])?;
    let seen = fleet.ctl_as(&eve, &["get", "secrets"])?.exits(0)?.says(&["registry", "e2e"])?;
    assert!(!seen.out.contains("other"), "{seen:?}");
    fleet.done()
}
