//! Failed locks, and machines that wait too long for theirs.

use super::*;

/// All control machines are complete; `width` workers may be away at once.
fn at_the_workers(workers: u32, width: u32) -> Fleet {
    let mut fleet = deployed(3, workers);
    release(&mut fleet, &["install"], width);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    fleet
}

/// A controller that fails to return its workloads is awaited like one about to return them, and its message is shown.
#[test]
fn a_lock_that_fails_after_the_request_is_not_back() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Failed);
    assert_eq!((fleet.why("control-1").as_deref(), fleet.slots()), (Some("LockFailed"), vec!["control-1"]));
    assert_eq!(fleet.requests(), Vec::<&str>::new(), "nobody else is disturbed");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!((fleet.part("control-1"), fleet.requests()), (None, vec!["control-2"]));

    fleet.lock("ceph", Some("control-2"), LockState::Inactive);
    fleet.finish("control-2");
    fleet.lock("ceph", Some("control-2"), LockState::Failed);
    fleet.pass(LOCKS_RETURNED_MS, &[]);
    assert_eq!((fleet.part("control-2"), fleet.requests()), (None, vec!["control-3"]), "it had its time");
    assert_eq!(fleet.why("control-2").as_deref(), Some("LockFailed"), "and it stays to be seen");
    fleet.lock("ceph", Some("control-2"), LockState::Active);
    assert_eq!(fleet.why("control-2"), None);
}

/// A controller that never released the machine has nothing to return.
#[test]
fn a_lock_that_refused_does_not_keep_the_slot() {
    let mut fleet = at_the_workers(2, 1);
    fleet.lock("ceph", Some("worker-1"), LockState::Failed);
    fleet.pass(NODE_LOCKS_MS - 1, &[]);
    assert_eq!(fleet.requests(), ["worker-1"], "it has its time");
    fleet.pass(1, &[]);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Deferred"));
    assert_eq!(fleet.requests(), ["worker-2"], "its slot is free at once");
}

/// The progress of others is no reason to wait for a refused machine.
#[test]
fn a_refused_machine_gets_no_time_from_others() {
    for (state, has_its_time) in [(LockState::Active, true), (LockState::Failed, false)] {
        let mut fleet = at_the_workers(4, 2);
        fleet.lock("ceph", Some("worker-1"), state);
        fleet.pass(NODE_LOCKS_MS - 1, &[]);
        fleet.upgrade("worker-2");
        fleet.pass(1, &[]);
        let waits = fleet.requests().contains(&"worker-1");
        assert_eq!(waits, has_its_time, "{state:?}: {:?}", fleet.requests());
    }
}

/// A machine that all others overtake must not use up the width of the update.
#[test]
fn a_machine_that_all_others_overtake_is_put_aside() {
    let mut fleet = at_the_workers(8, 2);
    for n in 2..=4 {
        fleet.pass(NODE_LOCKS_MS - 1, &[]);
        assert!(fleet.requests().contains(&"worker-1"), "{n}: it has its time");
        fleet.upgrade(&format!("worker-{n}"));
    }
    assert!(fleet.requests().contains(&"worker-1"), "three are fewer than twice the width");
    fleet.upgrade("worker-5");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Deferred"));
    assert_eq!(fleet.requests(), ["worker-6", "worker-7"], "as many as may be away");
    for n in 6..=8 {
        fleet.upgrade(&format!("worker-{n}"));
    }
    assert_eq!(fleet.requests(), ["worker-1"], "it is tried again at the end");
}

/// The time of a pause does not count: what an operator should review is not finished in the middle of it.
#[test]
fn locks_that_are_late_in_a_pause_are_told_after_it() {
    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_deadlines.locks_returned.outcome = DeadlineOutcome::Pause;
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
    fleet.pass(2 * LOCKS_RETURNED_MS, &[]);
    assert!(fleet.part("control-1").is_some(), "it waits");
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    assert_eq!(fleet.requests(), Vec::<&str>::new(), "it has its time anew");
    fleet.pass(LOCKS_RETURNED_MS, &[]);
    assert_eq!(fleet.stuck("control-1"), Some(Stage::RequestRemoved));
}
