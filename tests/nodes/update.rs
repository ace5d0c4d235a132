//! A running cluster gets a new release. Machines reboot one after the other, each when its controller has released it,
//! which takes a while. The coordinator is killed, and an operator aborts twice. It continues where [`crate::drain`]
//! ended.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::{manifest::named_cluster, pause},
    nodes::{Nodes, node::Node},
};
use serde_json::Value;

use crate::{
    drain::{CLUSTER, Service, availabilities, availability, machine},
    site::item,
    swarm::join,
};

/// The controller's log of its actions, on the operator's machine.
const MOVES: &str = "/var/tmp/moves.log";
/// All kills happen while control machines are updated: after a kill at a worker, pending swarm calls are awaited for a
/// minute.
const KILLS: usize = 20;
/// Minimum lifetime of a restarted coordinator, so that agents and the controller reconnect.
const LIFE_MIN: Duration = Duration::from_millis(1500);
/// Poll interval for the next kill, as the two cores have other work too.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Additional items of control machines, to create more events.
const PROBES: usize = 3;
/// Releasing a machine takes three times as long, and so does locking it again.
const MOVE_MS: &str = "700";
/// One machine after the other; while a control machine is down, two managers remain.
const MORE: [&str; 3] = ["maxWorkerUpgradeCount: 1", "workloadControllers: [toy]", "nodesRebootRequired: true"];

/// A manifest of this release; every machine has an item to run in it, and reboots.
fn manifest(release: &str) -> String {
    let install =
        item("install", "deploy", "sleep 1", &[]).replace("version: \"1\"", &format!("version: \"{release}\""));
    let probes = (1..=PROBES).map(|n| item(&format!("probe-{n}"), "deploy", "sleep 1", &[]));
    let of_control: Vec<String> = [join()].into_iter().chain(probes).chain([install.clone()]).collect();
    named_cluster(CLUSTER, (3, 3), &of_control, &[join(), install], &MORE)
        .replace("release: \"1.0\"", &format!("release: \"{release}\""))
}

/// The controller's actions so far: machine and action.
fn moves(fleet: &Nodes) -> Result<Vec<(String, String)>> {
    let said = fleet.look(&format!("cat {MOVES} 2>/dev/null || true"))?;
    let words = said.lines().map(|line| {
        let [_, machine, word] = line.split(' ').collect::<Vec<_>>()[..] else { anyhow::bail!("a move: {line}") };
        Ok((machine.to_owned(), word.to_owned()))
    });
    words.collect()
}

/// How a machine's instances are migrated.
const MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";

/// Checks that no request is left, every lock is active, and every node of the swarm is as its operator left it.
fn all_is_given_back(fleet: &Nodes) -> Result<()> {
    let manager = fleet.node("control-1")?;
    let requests = fleet.ctl(&["get", "requests", "-o", "json"])?.ok()?;
    let requests: Value = serde_json::from_str(&requests)?;
    ensure!(requests["items"].as_array().is_some_and(Vec::is_empty), "requests are left: {requests}");
    for node in fleet.all() {
        let expected = if node.name == "worker-3" { "pause" } else { "active" };
        let found = availability(manager, node)?;
        ensure!(found == expected, "{} is {found}, and was {expected}", node.name);
    }
    manager.wait_until("every lock is active", || locks_are_active(fleet))
}

/// Are all machines' locks and the cluster's own lock active?
fn locks_are_active(fleet: &Nodes) -> Result<bool> {
    let locks = fleet.ctl(&["get", "locks", "-o", "json"])?.ok()?;
    let locks: Value = serde_json::from_str(&locks)?;
    let locks = locks["items"].as_array().context("no items")?;
    Ok(locks.len() == fleet.all().count() + 1 && locks.iter().all(|lock| lock["status"]["state"] == "active"))
}

/// Events of the update at the control machines so far: every action of their controller, every stage that has begun or
/// ended, every state of an item.
fn points(fleet: &Nodes) -> Result<BTreeSet<String>> {
    let said = moves(fleet)?.into_iter().filter(|(whose, _)| whose.contains("-control-"));
    let mut points: BTreeSet<String> =
        said.enumerate().map(|(count, (whose, word))| format!("{count}: {whose} {word}")).collect();
    let machines: Value = serde_json::from_str(&fleet.ctl(&["get", "machines", "-o", "json"])?.ok()?)?;
    for machine in machines["items"].as_array().context("no items")? {
        let name = machine["metadata"]["name"].as_str().context("a name")?;
        let status = &machine["status"];
        let stages = status["stages"].as_array().context("stages")?.iter();
        let items = status["stateItemStatuses"].as_object().context("items")?.iter();
        if name.contains("-control-") {
            points.extend(stages.map(|stage| format!("{name} {stage}")));
            points.extend(items.map(|(item, status)| {
                format!("{name} {item} {} {} {}", status["startedAt"], status["attempt"], status["state"])
            }));
        }
    }
    Ok(points)
}

/// Kills the coordinator when a new event is recorded at a control machine since the last kill, and starts it again.
/// Returns the number of kills.
fn kill_now_and_then(fleet: &Nodes, ended: &AtomicBool) -> Result<usize> {
    let (mut kills, mut seen, mut born) = (0, points(fleet)?, Instant::now());
    while kills < KILLS && !ended.load(Ordering::Relaxed) {
        pause(LOOK_EVERY);
        // The coordinator may be starting.
        let Ok(now) = points(fleet) else { continue };
        if now.is_subset(&seen) || born.elapsed() < LIFE_MIN {
            continue;
        }
        fleet.kill_coordinator()?;
        fleet.restart_coordinator()?;
        kills += 1;
        (seen, born) = (now, Instant::now());
    }
    Ok(kills)
}

/// Checks that each machine was released before it went down, and locked again after; `before`: reboots, by node.
fn went_in_order(fleet: &Nodes, before: &BTreeMap<String, u32>) -> Result<()> {
    let moves = moves(fleet)?;
    for node in fleet.all() {
        let name = machine(node);
        let words: Vec<&str> =
            moves.iter().filter(|(whose, _)| *whose == name).map(|(_, word)| word.as_str()).collect();
        let expected = ["request-seen", "workloads-moved", "lock-inactive", "request-gone", "lock-active"];
        ensure!(words.ends_with(&expected), "{name}: {words:?}");
        let reboots = node.reboots()? - before.get(&node.name).context("its reboots")?;
        ensure!(reboots == 1, "{name}: {reboots} reboots");
        node.booted()?;
        let story = node.story()?;
        ensure!(
            story.ends_with(" install/1 install/1.") && story.matches("install/1.").count() == 3,
            "{name}: {story}"
        );
    }
    Ok(())
}

/// An update during which the coordinator is killed. When a worker is drained, the operator aborts, and everything is
/// returned, including that worker. The next update brings the others to the release.
fn abort_at_a_worker(fleet: &Nodes) -> Result<usize> {
    let ended = AtomicBool::new(false);
    let manager = fleet.node("control-1")?;
    let workers = || fleet.all().filter(|node| node.name.starts_with("worker"));
    let kills = thread::scope(|scope| {
        let killing = scope.spawn(|| kill_now_and_then(fleet, &ended));
        let drained = manager.wait_until("a worker is drained", || {
            Ok(availabilities(manager, workers())?.contains(&"drain".to_owned()))
        });
        ended.store(true, Ordering::Relaxed);
        let kills = killing.join().ok().context("the kills are lost")?;
        drained?;
        kills
    })?;
    abort(fleet)?;
    Ok(kills)
}

/// Aborts the open update, and checks that everything is returned.
fn abort(fleet: &Nodes) -> Result<()> {
    let rollout = fleet.update_of(CLUSTER)?.context("an update")?.metadata.name;
    fleet.ctl(&["abort", &rollout])?.exits(0)?;
    fleet.wait_update(CLUSTER, "Aborted", |update| update.status.state == "Aborted")?;
    all_is_given_back(fleet)
}

pub(crate) fn machines_reboot_as_their_locks_allow(fleet: &Nodes) -> Result<()> {
    let service = Service::create(fleet)?;
    let machines: Vec<String> = fleet.all().map(machine).collect();
    fleet.start_controller(CLUSTER, &machines, MOVES, &["--move-ms", MOVE_MS])?;
    let before: BTreeMap<String, u32> =
        fleet.all().map(|node| Ok((node.name.clone(), node.reboots()?))).collect::<Result<_>>()?;
    fleet.apply(&manifest("2.0"))?;
    let update = || fleet.ctl(&["update", CLUSTER, "--scope", "os", "--yes", "--detach"])?.exits(0);

    // The operator aborts while the first machine's workloads move away.
    fleet.node("control-1")?.wait_until("the controller guards them", || locks_are_active(fleet))?;
    update()?;
    fleet.node("control-1")?.wait_until("the first machine is asked for", || Ok(!moves(fleet)?.is_empty()))?;
    abort(fleet)?;

    update()?;
    let ended = AtomicBool::new(false);
    let (sampled, kills) = thread::scope(|scope| {
        let sampling = scope.spawn(|| service.sample(&ended));
        let updated = abort_at_a_worker(fleet).and_then(|kills| {
            update()?;
            fleet.wait_update(CLUSTER, "Ready", |update| update.status.state == "Ready")?;
            Ok(kills)
        });
        ended.store(true, Ordering::Relaxed);
        let sampled = sampling.join().ok().context("the samples are lost")?;
        anyhow::Ok((sampled, updated?))
    })?;
    ensure!(kills == KILLS, "the coordinator was killed only {kills} times");
    service.held(&sampled)?;
    went_in_order(fleet, &before)?;
    all_is_given_back(fleet)?;
    service.remove()
}

/// Instances of a machine are migrated by hand: its controller keeps its lock, and nothing on it is disturbed until the
/// operator confirms the migration.
fn waits_for_a_hand(fleet: &Nodes, kept: &Node, other: &Node) -> Result<()> {
    let manager = fleet.node("control-1")?;
    let name = machine(kept);
    let status_of = |name: &str| -> Result<Value> {
        let all: Value = serde_json::from_str(&fleet.ctl(&["get", "machines", "-o", "json"])?.ok()?)?;
        let mut all = all["items"].as_array().context("no items")?.iter();
        Ok(all.find(|machine| machine["metadata"]["name"] == name).context("no such machine")?["status"].clone())
    };
    let (boot_id, others, drained) = (kept.boot_id()?, other.boot_id()?, Cell::new(false));
    manager.wait_until("the other worker is through", || {
        drained.set(drained.get() || availability(manager, kept)? != "active");
        let waits = status_of(&name)?["blocked"]["reason"] == "LocksActive";
        let through = status_of(&machine(other))?["state"] == "Ready" && other.boot_id()? != others;
        Ok(waits && through)
    })?;
    let blocked = &status_of(&name)?["blocked"];
    ensure!(
        blocked["message"]
            == "Error: following NodeWorkloadLocks are still active - toy: ToyWorkloadsStay: somebody moves \
                them by hand",
        "{name}: {blocked}"
    );
    let command = format!("musterctl annotate machine {name} {MODE}=skip");
    let clears_when = format!("its instances are moved by hand, then `{command}`");
    ensure!(blocked["clearsWhen"] == *clears_when, "{name}: {blocked}");
    ensure!(kept.boot_id()? == boot_id && !drained.get(), "{name} was disturbed");
    fleet.ctl(&command.split(' ').skip(1).collect::<Vec<_>>())?.exits(0).map(drop)
}

/// Two workers reboot on an operator's request, one after the other, the second after its operator has migrated its
/// instances by hand. No other machine reboots, and no item reruns. It continues where the update ended, with the same
/// controller.
pub(crate) fn two_workers_reboot_on_demand(fleet: &Nodes) -> Result<()> {
    let names: Vec<String> =
        ["worker-1", "worker-2"].map(|name| Ok(machine(fleet.node(name)?))).into_iter().collect::<Result<_>>()?;
    let stands = |node: &Node| Ok((node.name.clone(), (node.boot_id()?, node.reboots()?, node.story()?)));
    let before: BTreeMap<_, _> = fleet.all().map(stands).collect::<Result<_>>()?;
    let moved = moves(fleet)?.len();
    let [first, second] = names.as_slice() else { anyhow::bail!("two machines") };
    fleet.ctl(&["annotate", "machine", second, &format!("{MODE}=manual")])?.exits(0)?;
    fleet.ctl(&["reboot", CLUSTER, "--machine", first, "--machine", second, "--yes", "--detach"])?.exits(0)?;
    let manager = fleet.node("control-1")?;
    waits_for_a_hand(fleet, fleet.node("worker-2")?, fleet.node("worker-1")?)?;
    manager.wait_until("the reboot has ended", || {
        let rollouts: Value = serde_json::from_str(&fleet.ctl(&["get", "rollouts", "-o", "json"])?.ok()?)?;
        let rollouts = rollouts["items"].as_array().context("no items")?;
        let of_this = |name: &str| name.starts_with(CLUSTER) && name.contains("-reboot-");
        let reboot = rollouts.iter().find(|rollout| rollout["metadata"]["name"].as_str().is_some_and(of_this));
        Ok(reboot.context("no rollout that reboots")?["status"]["state"] == "Ready")
    })?;
    for node in fleet.all() {
        let (boot_id, reboots, story) = before.get(&node.name).context("how it stood")?;
        let expected = u32::from(names.contains(&machine(node)));
        let found = node.reboots()? - reboots;
        ensure!(found == expected, "{}: {found} reboots, expected {expected}", node.name);
        ensure!((node.boot_id()? != *boot_id) == (expected == 1), "{}: its boot id was {boot_id}", node.name);
        ensure!(node.story()? == *story, "{}: {} after {story}", node.name, node.story()?);
    }
    let said = moves(fleet)?.split_off(moved);
    let out: Vec<(&str, &str)> = said.iter().map(|(whose, word)| (whose.as_str(), word.as_str())).collect();
    let out: Vec<_> = out.into_iter().filter(|(_, word)| ["lock-inactive", "request-gone"].contains(word)).collect();
    let one_by_one = names.iter().flat_map(|name| [(name.as_str(), "lock-inactive"), (name.as_str(), "request-gone")]);
    ensure!(out == one_by_one.collect::<Vec<_>>(), "not one after the other: {said:?}");
    all_is_given_back(fleet)
}
