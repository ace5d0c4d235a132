//! Known controllers, present or absent, without a lock where one is needed.

use muster_proto::model::{LockState, MachineName, MachineType, Scope};

use super::{NODE_LOCKS_MS, deployed, release, update};
use crate::{
    core::{
        LockCommand, LockRelease, Refusal, Reply, Request,
        tests::fleet::{Fleet, apply, cluster, machine},
        update::Options,
    },
    documents,
    plan::blocked,
};

/// Longer than any controller needs to create its lock.
const SETTLE_MS: u64 = 10_000;

/// An update in which `control-1` waits. `nova` is known by its lock on `worker-1`, and has none on `control-1`.
fn started() -> Fleet {
    let mut fleet = deployed(3, 1);
    fleet.say(
        "nova",
        LockCommand::Register { cluster: cluster(), machines: vec![machine("worker-1")], of_cluster: true },
    );
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("nova", None, LockState::Inactive);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet
}

/// Why it has no permit. None: it has one.
fn why(fleet: &Fleet) -> Option<String> {
    if fleet.permit("control-1").is_some() { None } else { fleet.why("control-1") }
}

fn unwatch(fleet: &mut Fleet, stream: u64) {
    fleet.say("nova", LockCommand::Unwatch { cluster: cluster(), stream });
}

#[test]
fn no_lock_is_no_answer_of_a_controller_that_is_not_there() {
    let mut fleet = started();
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!(why(&fleet).as_deref(), Some("ControllerSilent"), "the time of the request alone makes no answer");
    fleet.watch("nova", 7);
    fleet.pass(SETTLE_MS - 1, &[]);
    assert_eq!(why(&fleet).as_deref(), Some("LocksSettling"), "it saw the request a moment ago");
    assert_eq!(fleet.core.wake_at(fleet.now()), Some(fleet.now().mono_ms + 1));
    unwatch(&mut fleet, 7);
    assert_eq!(why(&fleet).as_deref(), Some("ControllerSilent"));
    fleet.watch("nova", 8);
    fleet.pass(SETTLE_MS - 1, &[]);
    fleet.watch("nova", 9);
    unwatch(&mut fleet, 8);
    fleet.pass(1, &[]);
    assert_eq!(why(&fleet).as_deref(), Some("LocksSettling"), "who took over knows nothing of what the first saw");
    fleet.pass(SETTLE_MS - 1, &[]);
    assert_eq!(why(&fleet), None);
}

#[test]
fn a_restart_forgets_who_is_there() {
    let mut fleet = started();
    fleet.watch("nova", 7);
    fleet.restart();
    fleet.all_report();
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!(why(&fleet).as_deref(), Some("ControllerSilent"));
    fleet.watch("nova", 1);
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!(why(&fleet), None);
}

#[test]
fn the_cluster_waits_for_one_that_is_not_there() {
    let mut fleet = deployed(3, 1);
    fleet.say(
        "nova",
        LockCommand::Register { cluster: cluster(), machines: vec![machine("worker-1")], of_cluster: false },
    );
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!((fleet.requests().len(), fleet.why("control-1").as_deref()), (0, Some("ControllerSilent")));
    fleet.watch("nova", 7);
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!(fleet.requests(), ["control-1"]);
}

#[test]
fn the_wait_has_the_deadline_of_locks() {
    let mut fleet = started();
    fleet.pass(NODE_LOCKS_MS - 1, &[]);
    assert_eq!(why(&fleet).as_deref(), Some("ControllerSilent"));
    fleet.pass(1, &[]);
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Deferred"));
    assert!(fleet.slot("control-1").is_none());
}

fn take_away(fleet: &mut Fleet, machine: Option<MachineName>) -> Result<String, &'static str> {
    let what = LockRelease { cluster: cluster(), controller: "nova".to_owned(), machine };
    match fleet.ask(Request::ReleaseLocks(what)) {
        Ok(Reply::Done(lines)) => Ok(lines.concat()),
        Err(Refusal::State { reason, .. }) => Err(reason),
        Err(Refusal::NotFound { kind, .. }) => Err(kind),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_controller_without_locks_is_not_known_any_more() {
    let mut fleet = started();
    fleet.pass(SETTLE_MS, &[]);
    fleet.watch("nova", 7);
    assert_eq!(take_away(&mut fleet, None), Err("ControllerConnected"), "it would make them again");
    unwatch(&mut fleet, 7);
    assert_eq!(take_away(&mut fleet, Some(machine("control-1"))), Err("NotRegistered"));
    let line = take_away(&mut fleet, Some(machine("worker-1"))).expect("taken away");
    assert!(line.contains("1 lock of nova removed; it holds 1 more"), "{line}");
    assert_eq!(why(&fleet).as_deref(), Some("ControllerSilent"));
    let line = take_away(&mut fleet, None).expect("taken away");
    assert!(line.contains("nothing waits for it any more"), "{line}");
    assert_eq!(why(&fleet), None);
    assert_eq!(take_away(&mut fleet, None), Err("lock of"));
    let audit = fleet.core.facts().audit_lines().pop().expect("a line");
    assert_eq!((audit.actor.as_str(), audit.action.as_str()), ("operator/anna", "release-locks"));
}

#[test]
fn one_that_the_manifest_has_is_waited_for_without_locks() {
    let mut fleet = started();
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.workload_controllers = vec!["nova".to_owned()];
    fleet.ask(apply(spec, &[])).expect("applies");
    let line = take_away(&mut fleet, None).expect("taken away");
    assert!(line.contains("before a manifest without it is applied"), "{line}");
    assert!(!line.contains("abort"), "the update under way has none: {line}");
    let rollout = fleet.rollout();
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!(why(&fleet), None);
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    let not_yet = fleet.ask(update()).expect_err("control-1 has begun").to_string();
    assert!(not_yet.contains("it is being aborted") && !not_yet.contains("musterctl abort"), "{not_yet}");
    fleet.finish("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    fleet.lock("ceph", None, LockState::Active);
    fleet.ask(update()).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_some_and(|rollout| rollout.update.is_some()));
    assert!(fleet.requests().is_empty(), "ControllerMissing: {:?}", fleet.why("control-2"));
}

/// The cluster's locks were due long ago, and are inactive. A controller that leaves for a moment gets its full time.
#[test]
fn a_controller_that_goes_for_a_moment_pauses_nothing() {
    let mut fleet = deployed(3, 1);
    fleet.say(
        "nova",
        LockCommand::Register { cluster: cluster(), machines: vec![machine("worker-1")], of_cluster: false },
    );
    fleet.watch("nova", 7);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    // The cluster's request, and then the machine's.
    (0..2).for_each(|_| fleet.pass(SETTLE_MS, &[]));
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.pass(SETTLE_MS, &[]);
    fleet.begin("control-1");
    (0..540).for_each(|_| fleet.pass(20_000, &[]));
    unwatch(&mut fleet, 7);
    fleet.pass(1_000, &[]);
    assert_ne!(fleet.why("control-2").as_deref(), Some("Paused"), "three hours after the locks were inactive");
    (0..360).for_each(|_| fleet.pass(20_000, &[]));
    assert_eq!(fleet.why("control-2").as_deref(), Some("Paused"), "two hours after it went");
}

#[test]
fn a_controller_that_comes_and_goes_has_no_time_anew() {
    let mut fleet = deployed(3, 1);
    fleet.say(
        "nova",
        LockCommand::Register { cluster: cluster(), machines: vec![machine("worker-1")], of_cluster: false },
    );
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    for stream in 1..=2 * 3_600_000 / (SETTLE_MS / 2) {
        assert_ne!(fleet.why("control-1").as_deref(), Some("Paused"), "{stream}");
        fleet.watch("nova", stream);
        fleet.pass(SETTLE_MS / 2, &[]);
        unwatch(&mut fleet, stream);
    }
    fleet.pass(1_000, &[]);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Paused"), "two hours of that");
}

/// The same after a restart of the coordinator: controllers must connect first.
#[test]
fn a_restart_gives_controllers_their_time_anew() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    fleet.lock("ceph", None, LockState::Active);
    fleet.restart_after(3 * 3_600_000);
    fleet.all_report();
    fleet.pass(1_000, &[]);
    assert_ne!(fleet.why("control-2").as_deref(), Some("Paused"));
}

/// What the machine waits for, and what ends the wait.
fn waits(fleet: &Fleet, name: &str) -> (String, String) {
    let blocked = fleet.look(name, blocked::of_machine).expect("it waits");
    (blocked.message, blocked.clears_when)
}

#[test]
fn who_holds_a_lock_and_is_not_there_is_named() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream: 1 });
    let gone = |state: &str| {
        let sets = format!("it connects and sets its lock {state}; or, if it is gone for good, ");
        sets + "`musterctl locks release ceph --cluster edge-7`"
    };
    let open = "Error: following NodeWorkloadLocks are still active - ceph: active";
    assert_eq!(waits(&fleet, "control-1"), (format!("{open} (not connected)"), gone("inactive")));
    fleet.watch("ceph", 7);
    assert_eq!(waits(&fleet, "control-1"), (open.to_owned(), "ceph sets its lock inactive".to_owned()));
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    let returning = "the request is gone; workloads are not back yet - ceph";
    assert_eq!(waits(&fleet, "control-1"), (returning.to_owned(), "ceph sets its lock active".to_owned()));
    fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream: 7 });
    assert_eq!(waits(&fleet, "control-1"), (format!("{returning} (not connected)"), gone("active")));
}

/// The current operation is independent of these locks.
#[test]
fn nothing_is_to_be_aborted_for_locks_that_never_came_back() {
    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.workload_controllers = vec!["ceph".to_owned()];
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    (0..100).for_each(|_| fleet.pass(20_000, &[]));
    assert_eq!(fleet.requests(), ["control-2"], "it had its time");
    fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream: 1 });
    let gone = "it connects and sets its lock active; or, if it is gone for good, `musterctl locks release ceph \
                --cluster edge-7`";
    assert_eq!(waits(&fleet, "control-1").1, gone);
    assert!(waits(&fleet, "control-2").1.contains("`musterctl abort "), "{:?}", waits(&fleet, "control-2"));
}

#[test]
fn a_plan_names_controllers_that_are_not_there() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let warnings = |fleet: &Fleet| {
        let options = Options::of(Scope::Drain);
        let plan = documents::plan(fleet.core.facts(), &cluster(), &options, fleet.core.limits(), fleet.now());
        plan.expect("a plan").update.expect("something to do").warnings
    };
    assert_eq!(warnings(&fleet), Vec::<String>::new());
    fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream: 1 });
    assert_eq!(warnings(&fleet), ["application controller ceph is not connected: it sees no request"]);
}

/// Seed 5395689252699: a restored store is older than its controller's locks, and the controller has connected.
#[test]
fn connected_controller_without_locks_has_its_time() {
    let mut fleet = Fleet::of(3, 1).reported().prepared();
    fleet.finish_all(MachineType::Control);
    fleet.finish_all(MachineType::Worker);
    fleet.watch("nova", 1);
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("begins");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-1"));
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!(fleet.requests(), ["worker-1"], "it made no lock of the cluster");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"));
    fleet.pass(SETTLE_MS, &[]);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"), "nor of the machine");
}
