//! Services that lack tasks: what waits for them, and for how long.

use muster_proto::model::{Reason, SwarmFailure, SwarmFailureCode, SwarmOp};

use super::*;
use crate::plan::drain::swarm::SETTLE_MS;

/// At `worker-1`, with a task on its node of a service that lacks one.
fn at_a_degraded_service() -> (Fleet, Swarm) {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.degraded = vec!["web"];
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ServiceDegraded"), "{:?}", swarm.log);
    (fleet, swarm)
}

#[test]
fn a_drain_waits_until_the_services_there_run_all_their_tasks() {
    let (mut fleet, mut swarm) = at_a_degraded_service();
    fleet.wait_for(&mut swarm, 60_000);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active, "{:?}", swarm.log);
    // A task missing elsewhere does not matter here.
    swarm.degraded = vec!["elsewhere"];
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain, "{:?}", swarm.log);
}

#[test]
fn one_whose_services_stay_degraded_is_put_aside_and_nothing_was_drained() {
    let (mut fleet, mut swarm) = at_a_degraded_service();
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS);
    let aside = fleet.part("worker-1").and_then(|part| part.deferral.clone()).expect("put aside");
    assert_eq!(aside.message, "Error: waiting for services to run all their tasks first - web: 2 of 3");
    assert!(!swarm.log.iter().any(|line| line.contains("drain")), "{:?}", swarm.log);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(fleet.stuck("worker-1"), Some(Stage::SwarmDrained));
    assert_eq!(fleet.requests(), ["worker-2"], "the next has its turn");
}

#[test]
fn an_update_that_paused_at_a_drain_says_what_it_waited_for() {
    let (mut fleet, mut swarm) = at_first_worker(&[], 1, DeadlineOutcome::Pause);
    swarm.degraded = vec!["web"];
    fleet.talk(&mut swarm);
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS);
    let why = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    let cause = "it waited for this: Error: waiting for services to run all their tasks first - web: 2 of 3";
    assert!(why.reason == Reason::Paused && why.message.contains(cause), "{why:?}");
    assert_eq!(fleet.stuck("worker-1"), Some(Stage::SwarmDrained));
    let rollout = fleet.rollout();
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    assert_eq!(fleet.stuck("worker-1"), None, "it has its time anew");
}

/// They have identified the node, and leave before they count.
#[test]
fn where_no_manager_is_left_to_count_the_wait_says_so() {
    let (mut fleet, mut swarm) = at_worker_1();
    while !fleet.questions.iter().any(|question| matches!(question.op, SwarmOp::Services { .. })) {
        assert!(fleet.answer_one(&mut swarm), "{:?}", swarm.log);
    }
    ["control-1", "control-2", "control-3"].iter().for_each(|name| fleet.disconnect(name));
    let why = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    let cause = "Error: no manager of the swarm can be asked - control-1 is not connected; ";
    assert!(why.reason == Reason::SwarmNoManager && why.message.starts_with(cause), "{why:?}");
}

/// Two workers at once, both with inactive locks.
fn at_both_workers(outcome: DeadlineOutcome) -> (Fleet, Swarm) {
    let (mut fleet, mut swarm) = at_first_worker(&[], 2, outcome);
    swarm.nodes.iter_mut().for_each(|node| node.tasks = vec!["web", "db"]);
    swarm.node("worker-1").tasks = vec!["web"];
    fleet.lock("ceph", Some("worker-2"), LockState::Inactive);
    assert_eq!(fleet.requests(), ["worker-1", "worker-2"]);
    (fleet, swarm)
}

#[test]
fn of_two_that_share_a_service_the_second_is_drained_when_the_first_has_lost_its_tasks() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    fleet.talk(&mut swarm);
    let drained = |swarm: &mut Swarm| ["worker-1", "worker-2"].map(|name| swarm.availability(name));
    let (active, drain) = (SwarmAvailability::Active, SwarmAvailability::Drain);
    assert_eq!(drained(&mut swarm), [drain, active], "both were counted before either was ordered: {:?}", swarm.log);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("ServiceDegraded"));
    fleet.wait_for(&mut swarm, 60_000);
    assert_eq!(drained(&mut swarm), [drain, active], "its tasks have not left: {:?}", swarm.log);
    // The tasks have left, and do not run elsewhere yet.
    swarm.node("worker-1").tasks.clear();
    swarm.degraded = vec!["web"];
    fleet.wait_for(&mut swarm, 60_000);
    assert!(fleet.permit("worker-1").is_some(), "the first goes on");
    assert_eq!(drained(&mut swarm), [drain, active], "{:?}", swarm.log);
    swarm.degraded.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!(drained(&mut swarm), [drain, drain], "{:?}", swarm.log);
}

/// Its lost tasks count as missing only once the swarm notices, and its tasks are no longer checked.
#[test]
fn one_that_is_replaced_in_its_drain_takes_its_tasks_with_it_all_the_same() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    fleet.talk(&mut swarm);
    let request = Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true };
    fleet.ask(request).expect("replaced");
    fleet.wait_without(&["worker-1"], &mut swarm, SETTLE_MS - 5_000);
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Active, "{:?}", swarm.log);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("ServiceDegraded"));
    fleet.wait_without(&["worker-1"], &mut swarm, 20_000);
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Drain, "{:?}", swarm.log);
}

/// Seed 142339605216434: its reason changes before the answer comes.
#[test]
fn open_question_hides_no_deadline() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    fleet.talk(&mut swarm);
    let request = Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true };
    fleet.ask(request).expect("replaced");
    let settled_at = fleet.now().mono_ms + SETTLE_MS;
    fleet.wait_without(&["worker-1"], &mut swarm, SETTLE_MS - 5_000);
    while fleet.questions.is_empty() {
        fleet.pass(500, &["worker-1"]);
    }
    assert!(fleet.now().mono_ms < settled_at && fleet.why("worker-2").as_deref() == Some("ServiceDegraded"));
    assert!(fleet.core.decide_by_mono_ms() <= settled_at, "decided in time");
}

/// Seed 25221: the next coordinator has not seen its drain.
#[test]
fn replaced_in_drain_is_remembered_by_next_coordinator() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    let is_order = |question: &SwarmQuestion| matches!(question.op, SwarmOp::SetAvailability { .. });
    while !fleet.questions.iter().any(is_order) {
        assert!(fleet.answer_one(&mut swarm));
    }
    let request = Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true };
    fleet.ask(request).expect("replaced");
    fleet.enroll("worker-1", Worker).expect("its successor");
    fleet.restart_after(1_000);
    ["control-1", "control-2", "control-3", "worker-2"].iter().for_each(|name| fleet.connect(name));
    fleet.wait_without(&["worker-1"], &mut swarm, SETTLE_MS - 5_000);
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Active, "{:?}", swarm.log);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("ServiceDegraded"));
    fleet.wait_without(&["worker-1"], &mut swarm, 20_000);
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Drain, "{:?}", swarm.log);
}

/// Seed 40955: its tasks are no longer checked, and they still leave.
#[test]
fn drain_whose_lock_returned_takes_its_tasks() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    while swarm.availability("worker-1") == SwarmAvailability::Active {
        assert!(fleet.answer_one(&mut swarm));
    }
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    for _ in 0..4 {
        fleet.pass(2_000, &[]);
        while fleet.answer_first(&mut swarm, |question| question.about.as_str() == "worker-2") {}
    }
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Active, "{:?}", swarm.log);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("ServiceDegraded"));
    fleet.wait_for(&mut swarm, SETTLE_MS);
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Drain, "a manager counts them: {:?}", swarm.log);
}

#[test]
fn two_that_share_no_service_are_drained_at_once() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    swarm.node("worker-2").tasks = vec!["db"];
    fleet.talk(&mut swarm);
    assert_eq!(
        (swarm.availability("worker-1"), swarm.availability("worker-2")),
        (SwarmAvailability::Drain, SwarmAvailability::Drain)
    );
}

/// The swarm may be slow: its managers' counts right after a confirmed drain prove nothing.
#[test]
fn what_was_drained_and_not_looked_at_since_counts_as_losing_its_tasks() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    while swarm.availability("worker-1") == SwarmAvailability::Active {
        assert!(fleet.answer_one(&mut swarm));
    }
    for _ in 0..4 {
        // It takes a while until worker-1 is checked. By the current counts, the services of worker-2 are complete.
        while fleet.answer_first(&mut swarm, |question| question.about.as_str() == "worker-2") {}
        fleet.pass(2_000, &[]);
    }
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Active, "{:?}", swarm.log);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("ServiceDegraded"));
    swarm.node("worker-1").tasks.clear();
    fleet.wait_for(&mut swarm, 40_000);
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Drain, "{:?}", swarm.log);
}

/// worker-1's tasks find no room before it is back, which takes long. worker-2 is healthy, and does not count as
/// failed.
#[test]
fn the_time_of_a_drain_does_not_run_while_it_waits_for_another() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Fail);
    fleet.talk(&mut swarm);
    swarm.node("worker-1").tasks.clear();
    swarm.degraded = vec!["web"];
    fleet.wait_for(&mut swarm, 20_000);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", swarm.log);
    fleet.begin("worker-1");
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS + 60_000);
    let deferral = |fleet: &Fleet| fleet.part("worker-2").and_then(|part| Some(part.deferral.as_ref()?.failed()));
    assert_eq!((fleet.why("worker-2").as_deref(), deferral(&fleet)), (Some("ServiceDegraded"), None));
    assert!(!fleet.wants_a_person());
    fleet.event("worker-1", "install", ItemState::Succeeded);
    complete(&mut fleet, &mut swarm, "worker-1");
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS - 20_000);
    assert_eq!(deferral(&fleet), None, "its time runs from when nobody else keeps it");
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!(deferral(&fleet), Some(true), "{:?}", fleet.why("worker-2"));
}

/// An unconfirmed order may be carried out later: until then no node that shares a service is drained. The next
/// coordinator does not know the last orders of its predecessor.
#[test]
fn what_may_yet_be_drained_counts_as_drained() {
    for restarts in [false, true] {
        let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
        while !fleet.questions.iter().any(|question| matches!(question.op, SwarmOp::SetAvailability { .. })) {
            assert!(fleet.answer_one(&mut swarm));
        }
        // The order to drain worker-1 is in flight.
        let is_order = |question: &SwarmQuestion| matches!(question.op, SwarmOp::SetAvailability { .. });
        let order = fleet.questions.iter().position(is_order).map(|at| fleet.questions.remove(at)).expect("an order");
        if restarts {
            fleet.pass(1, &[]);
            fleet.restart();
            fleet.all_report();
        }
        let drained = |swarm: &mut Swarm| {
            let names = ["worker-1", "worker-2"].into_iter();
            names.filter(|name| swarm.availability(name) == SwarmAvailability::Drain).collect::<Vec<_>>()
        };
        for _ in 0..12 {
            fleet.pass(5_000, &[]);
            fleet.talk(&mut swarm);
        }
        assert_eq!(drained(&mut swarm), Vec::<&str>::new(), "restarts: {restarts} {:?}", swarm.log);
        let silence = SwarmFailure { code: SwarmFailureCode::Timeout, message: "no answer".to_owned() };
        let SwarmQuestion { about, number, .. } = order;
        fleet.step(Input::SwarmAnswered { about, number, result: Err(silence) }).expect("taken");
        for _ in 0..4 {
            fleet.pass(5_000, &[]);
            fleet.talk(&mut swarm);
        }
        assert_eq!(drained(&mut swarm), ["worker-1"], "{:?}", swarm.log);
    }
}
