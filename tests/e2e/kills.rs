//! Fifty kills of each side in the middle of deployments. The time is not random: the test stops the side that must not
//! continue (SIGSTOP), reads the point from the files, and only then kills it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use muster_agent::core::Slot;
use muster_proto::model::{ItemState, ItemStatus, Seq};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    effects::{Promise, examine},
    manifest::{bash, cluster},
    pause,
    programs::complain,
    wait_for,
};
use nix::sys::signal::Signal;

/// Kills of each side.
const KILLS: u32 = 50;
/// Kills among those at each of the five points, if the point is caught in time.
const KILLS_AT_POINT: u32 = 10;
/// A point shorter than a millisecond is rarely caught on a machine without other load. After this time the remaining
/// kills are made at the other points.
const EVERY_POINT_FOR: Duration = Duration::from_secs(45);
/// Kills of one fleet's coordinator: each makes the agents wait longer before they reconnect.
const COORDINATOR_KILLS_PER_FLEET: u32 = 5;
/// Deployments that run in parallel.
const FLEETS: usize = 3;
const ITEMS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const ITEM_SECONDS: &str = "0.15";
/// Timeout of catching one point.
const CATCH_MAX: Duration = Duration::from_secs(5);

/// Progress of an item, by its durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    /// The ledger records the start; no exec-item has claimed it.
    Start,
    /// Claimed; it runs.
    Spawn,
    /// Its outcome is in the attempt's directory only.
    Finish,
    /// The outcome is in the ledger; the coordinator has yet to record it.
    Report,
    /// The coordinator has recorded it; the ledger lacks the acknowledgement.
    Ack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Agent,
    Coordinator,
}

const POINTS: [Point; 5] = [Point::Start, Point::Spawn, Point::Finish, Point::Report, Point::Ack];

/// Kills so far, and the start time.
struct Table(Mutex<BTreeMap<(Side, Point), u32>>, Instant);

impl Table {
    /// The kill made least often, if one is still to be made.
    fn wanted(&self, coordinator_too: bool) -> Option<(Side, Point)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sides: &[Side] = if coordinator_too { &[Side::Coordinator, Side::Agent] } else { &[Side::Agent] };
        let count = |kill: &(Side, Point)| counts.get(kill).copied().unwrap_or(0);
        let of_side = |side: Side| POINTS.map(|point| count(&(side, point))).iter().sum::<u32>();
        let all = sides.iter().filter(|side| of_side(**side) < KILLS);
        let all = all.flat_map(|side| POINTS.map(|point| (*side, point)));
        match self.1.elapsed() < EVERY_POINT_FOR {
            true => all.filter(|kill| count(kill) < KILLS_AT_POINT).min_by_key(count),
            // Points caught often are caught again.
            false => all.max_by_key(count),
        }
    }

    fn add(&self, kill: (Side, Point)) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kill).or_default() += 1;
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:12}", "killed at")?;
        POINTS.iter().try_for_each(|point| write!(f, "{:>8}", format!("{point:?}")))?;
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for side in [Side::Agent, Side::Coordinator] {
            write!(f, "\n{:12}", format!("{side:?}"))?;
            for point in POINTS {
                write!(f, "{:>8}", counts.get(&(side, point)).copied().unwrap_or(0))?;
            }
        }
        Ok(())
    }
}

#[test]
fn fifty_kills_of_each_side() -> Result<()> {
    let table = Table(Mutex::default(), Instant::now());
    thread::scope(|scope| {
        let fleets: Vec<_> = (0..FLEETS).map(|_| scope.spawn(|| deployments(&table))).collect();
        fleets.into_iter().try_for_each(|fleet| fleet.join().map_err(|_| anyhow!("a deployment panicked"))?)
    })?;
    complain(&format!("{table}"));
    assert_eq!(table.wanted(true), None, "\n{table}");
    Ok(())
}

/// Deployments one after another, until all kills are made.
fn deployments(table: &Table) -> Result<()> {
    while table.wanted(true).is_some() {
        let mut fleet = Fleet::start("kills", &["--lost-after", "2s", "--heartbeat", "500ms"])?;
        fleet.set_time_limit(3 * TIME_LIMIT);
        let effects = fleet.effects_log();
        let items = ITEMS.map(|name| bash(name, "deploy", &effects, &format!("sleep {ITEM_SECONDS}"), &[]));
        fleet.apply(&cluster(1, 2, &items, &items, &[]))?;
        let machines = fleet.add_machines(1, 2)?;
        kills(&mut fleet, &machines, table)?;
        fleet.wait_ready(machines.len())?;
        let promise = Promise {
            machines: &machines,
            control_items: &ITEMS,
            worker_items: &ITEMS,
            reconfigure_items: &[],
            workers_max: 2,
        };
        assert_eq!(examine(&fleet.effects()?, &promise).violations, Vec::<String>::new(), "{}", fleet.dir().display());
        for (name, machine) in fleet.machines()? {
            let retried = machine.status.state_item_statuses.values().filter(|item| item.attempt > 1).count();
            assert_eq!(retried, 0, "{name}");
        }
        fleet.done()?;
    }
    Ok(())
}

/// Kills until the deployment is over, or all kills are made.
fn kills(fleet: &mut Fleet, machines: &[String], table: &Table) -> Result<()> {
    let all = machines.len() * ITEMS.len() * 2;
    let mut of_coordinator = 0;
    let mut misses = 0;
    while misses < 3 && fleet.effects()?.len() < all {
        let Some((side, point)) = table.wanted(of_coordinator < COORDINATOR_KILLS_PER_FLEET) else { break };
        let Some(machine) = catch(fleet, machines, point)? else {
            misses += 1;
            continue;
        };
        match side {
            Side::Agent => {
                fleet.kill_agent(&machine)?;
                fleet.signal_coordinator(Signal::SIGCONT)?;
                fleet.start_agent(&machine)?;
            }
            Side::Coordinator => {
                fleet.kill_coordinator()?;
                fleet.signal_agent(&machine, Signal::SIGCONT)?;
                fleet.start_coordinator()?;
                of_coordinator += 1;
            }
        }
        table.add((side, point));
    }
    Ok(())
}

/// Waits until a machine's item is at this point, and stops its agent there. None: it timed out, and no agent is
/// stopped.
fn catch(fleet: &Fleet, machines: &[String], point: Point) -> Result<Option<String>> {
    if point == Point::Report {
        return catch_report(fleet, machines);
    }
    let deadline = Instant::now() + CATCH_MAX;
    while Instant::now() < deadline {
        for machine in machines {
            if !near(fleet, machine, point)? {
                continue;
            }
            fleet.signal_agent(machine, Signal::SIGSTOP)?;
            if point == Point::Finish {
                // The stopped agent cannot record the outcome, even if it comes later.
                let came = || Ok((at(fleet, machine)? != Some(Point::Spawn)).then_some(()));
                wait_for("an outcome", TIME_LIMIT, came)?;
            }
            if point == Point::Ack && unacked(fleet, machine)?.is_some() || at(fleet, machine)? == Some(point) {
                return Ok(Some(machine.clone()));
            }
            fleet.signal_agent(machine, Signal::SIGCONT)?;
        }
        pause(Duration::from_micros(200));
    }
    Ok(None)
}

/// Is this agent close enough to the point to stop it and check?
fn near(fleet: &Fleet, machine: &str, point: Point) -> Result<bool> {
    if point == Point::Ack {
        let Some((_, event)) = unacked(fleet, machine)? else { return Ok(false) };
        let machines = fleet.machines()?;
        let known = machines.get(machine).and_then(|m| m.status.state_item_statuses.get(event.name.as_str()));
        return Ok(known.is_some_and(|known| known.state == "Succeeded"));
    }
    let now = at(fleet, machine)?;
    Ok(now == Some(point) || point == Point::Finish && now == Some(Point::Spawn))
}

/// Progress of the running item; None if no item runs.
fn at(fleet: &Fleet, machine: &str) -> Result<Option<Point>> {
    let Some(ledger) = fleet.ledger(machine)? else { return Ok(None) };
    let Some(slot) = ledger.slots.values().find(|slot| slot.is_running()) else { return Ok(None) };
    let dir = fleet.agent_dir(machine).join("attempts").join(Slot::key_of(&slot.status).to_string());
    Ok(Some(match (dir.join("claim").exists(), dir.join("exit").exists()) {
        (false, _) => Point::Start,
        (true, false) => Point::Spawn,
        (true, true) => Point::Finish,
    }))
}

/// The newest outcome in the ledger without an acknowledgement.
fn unacked(fleet: &Fleet, machine: &str) -> Result<Option<(Seq, ItemStatus)>> {
    let Some(ledger) = fleet.ledger(machine)? else { return Ok(None) };
    let newest = ledger.outbox.iter().rev().find(|(_, event)| event.state == ItemState::Succeeded);
    Ok(newest.map(|(seq, event)| (*seq, ItemStatus::clone(event))))
}

/// Stops the coordinator, and waits for an outcome that it cannot have received. It stays stopped.
fn catch_report(fleet: &Fleet, machines: &[String]) -> Result<Option<String>> {
    fleet.signal_coordinator(Signal::SIGSTOP)?;
    let mut known: BTreeMap<&str, Seq> = BTreeMap::new();
    for machine in machines {
        known.insert(machine, fleet.ledger(machine)?.map_or(Seq(0), |ledger| ledger.last_seq));
    }
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        for machine in machines {
            let before = known.get(machine.as_str()).context("a machine")?;
            if unacked(fleet, machine)?.is_some_and(|(seq, _)| seq > *before) {
                fleet.signal_agent(machine, Signal::SIGSTOP)?;
                return Ok(Some(machine.clone()));
            }
        }
        pause(Duration::from_micros(500));
    }
    fleet.signal_coordinator(Signal::SIGCONT)?;
    Ok(None)
}
