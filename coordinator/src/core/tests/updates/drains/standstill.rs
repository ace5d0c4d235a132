//! Drains that never finish: the messages, and what continues.

use muster_proto::model::{Reason, RunnerKind, Scope, StateItem};

use super::*;
use crate::core::update::Options;

#[test]
fn one_put_aside_says_what_kept_it() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.silent = ["control-1", "control-2", "control-3"].map(str::to_owned).to_vec();
    fleet.talk(&mut swarm);
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS);
    let aside = fleet.part("worker-1").and_then(|part| part.deferral.clone()).expect("put aside");
    let cause = "Error: no manager of the swarm can be asked - control-1: Timeout: no answer; ";
    assert!(aside.message.starts_with(cause), "{}", aside.message);
}

/// Its managers may all have been replaced, and their successors are deployed only after the update.
#[test]
fn a_manager_that_waits_for_the_update_is_named() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-1", Control).expect("enrols");
    fleet.connect("control-1");
    swarm.silent = ["control-1", "control-2", "control-3"].map(str::to_owned).to_vec();
    fleet.talk(&mut swarm);
    let why = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    let way_out = format!("or `musterctl abort {}`: control-1 is deployed then", fleet.rollout());
    assert!(why.reason == Reason::SwarmNoManager && why.clears_when.ends_with(&way_out), "{why:?}");
}

#[test]
fn one_whose_tasks_stay_is_put_aside_and_given_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.talk(&mut swarm);
    fleet.pass(NODE_LOCKS_MS - 60_000, &[]);
    fleet.talk(&mut swarm);
    swarm.node("worker-1").tasks.pop();
    fleet.pass(2_000, &[]);
    fleet.talk(&mut swarm);
    fleet.pass(NODE_LOCKS_MS - 1_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmDraining"), "a task has gone: its time starts anew");
    fleet.pass(1_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!(fleet.requests(), Vec::<&str>::new(), "{:?}", swarm.log);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
    let aside = fleet.part("worker-1").and_then(|part| part.deferral.clone()).expect("put aside");
    assert_eq!(aside.message, "Error: waiting for swarm node worker-1 to be drained first - web: 2 tasks");
    assert_eq!(fleet.drain_stages("worker-1"), [(Stage::SwarmDrained, false), (Stage::SwarmUncordoned, true)]);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(fleet.requests(), ["worker-2"], "the next has its turn");
}

/// With one slot nothing else moves: a possible swarm drain is no reason to wait.
#[test]
fn failed_worker_wants_person_at_once() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    fleet.fail("worker-1");
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wants_a_person()), (Some("Failed"), true));
    swarm.node("worker-1").tasks.push("web");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert!(fleet.wants_a_person(), "no deadline of its controllers runs for it");
    fleet.wait_for(&mut swarm, 3 * NODE_LOCKS_MS);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.desired()), (Some("Failed"), DesiredState::Go));
    fleet.ask(Request::Skip { machine: machine("worker-1"), item: None }).expect("skips");
    complete(&mut fleet, &mut swarm, "worker-1");
    assert_eq!((fleet.requests(), fleet.desired()), (vec!["worker-2"], DesiredState::Go), "nobody has to resume it");
}

#[test]
fn tasks_that_come_back_between_two_permits_pause_the_update() {
    let (mut fleet, mut swarm) = at_worker_1_with(&["restart"]);
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    swarm.node("worker-1").tasks.push("web");
    fleet.pass(2 * NODE_LOCKS_MS, &[]);
    fleet.event("worker-1", "install", ItemState::Succeeded);
    fleet.accept("worker-1");
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS - 20_000);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.desired()), (Some("SwarmDraining"), DesiredState::Go));
    assert!(!fleet.wants_a_person(), "its time runs from when the first item was done");
    fleet.wait_for(&mut swarm, 20_000);
    assert!(matches!(fleet.desired(), DesiredState::Pause { .. }) && fleet.wants_a_person());
    let audited = fleet.core.facts().audit_lines().pop().expect("the pause is audited");
    assert_eq!((audited.actor.as_str(), audited.action.as_str()), ("muster", "pause"));
    let why = "paused, for \"Deploy phase done\" of worker-1 (Error: waiting for swarm node worker-1 to be drained \
               first - web: 1 task) took longer than updateDeadlines allows: nothing new starts; machines that are \
               being disturbed come to their end";
    assert_eq!(audited.message, format!("rollout {}: {why}", fleet.rollout()));
    assert_eq!(fleet.slots(), ["worker-1"], "what was disturbed is not given back");
    swarm.node("worker-1").tasks.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert!(fleet.permit("worker-1").is_some(), "what was begun may end, paused or not");
}

#[test]
fn a_node_that_nobody_can_give_back_wants_a_person() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    fleet.finish("worker-1");
    swarm.silent = ["control-1", "control-2", "control-3"].map(str::to_owned).to_vec();
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS - 20_000);
    assert!(!fleet.wants_a_person());
    fleet.wait_for(&mut swarm, 40_000);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wants_a_person()), (Some("SwarmNoManager"), true));
    assert_eq!(fleet.stuck("worker-1"), Some(Stage::SwarmUncordoned));
    assert_eq!(fleet.requests(), ["worker-1"], "a slot has no time limit");
    swarm.silent.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!((fleet.requests(), swarm.availability("worker-1")), (Vec::new(), SwarmAvailability::Active));
    assert_eq!(fleet.stuck("worker-1"), None, "it is done");
}

#[test]
fn tasks_of_a_node_that_is_down_count_and_it_says_so() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.down.push("worker-1");
    fleet.talk(&mut swarm);
    let blocked = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    let why = "Error: the managers see swarm node worker-1 down, and count its tasks until it is back - ";
    assert_eq!(blocked.message, format!("{why}db: 1 task, web: 2 tasks"));
}

/// There is no machine to copy the swarm from first.
fn without_backups() -> Request {
    Request::Update { cluster: cluster(), options: Options { skip_backup: true, ..Options::of(Scope::Drain) } }
}

/// A worker behind one control machine, both in its swarm, and an update that brings this item of the worker to another
/// version. All have prepared; the cluster's own lock is still active.
fn behind_one_control(changed: &str) -> Fleet {
    let mut spec = spec(1, 1);
    for items in spec.machine_types.values_mut() {
        items.push(StateItem { runner: RunnerKind::SwarmJoin, ..item("swarm", Phase::Deploy) });
    }
    let mut fleet = guarded(Fleet::with(spec.clone()));
    let of_workers = spec.machine_types.get_mut(&Worker).expect("workers have items");
    let of_workers = of_workers.iter_mut().filter(|item| item.name.as_str() == changed);
    of_workers.for_each(|item| item.version.push_str(".1"));
    fleet.ask(apply(spec, &[])).expect("applies");
    fleet.ask(without_backups()).expect("starts");
    fleet.finish("worker-1");
    fleet
}

fn replace_control(fleet: &mut Fleet) {
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: true }).expect("replaced");
}

fn enroll_control(fleet: &mut Fleet) {
    fleet.enroll("control-1", Control).expect("enrols");
    fleet.connect("control-1");
}

/// The new control machine is deployed after the update: until then nothing else admits the worker.
#[test]
fn a_worker_whose_swarm_only_a_deployment_makes_does_not_begin() {
    let mut fleet = behind_one_control("swarm");
    replace_control(&mut fleet);
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ControlNotDeployed"), "nobody has come in its place yet");
    enroll_control(&mut fleet);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.slots()), (Some("ControlNotDeployed"), Vec::new()));
    assert!(fleet.wants_a_person());
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
    assert!(fleet.says("worker-1").contains("control-1 is not deployed"), "a pause hides nothing");
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.lock("ceph", None, LockState::Active);
    fleet.finish("control-1");
    assert_eq!(fleet.state("control-1"), "Ready");
    fleet.ask(without_backups()).expect("starts again");
    fleet.finish("worker-1");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["worker-1"]);
}

#[test]
fn a_worker_that_has_its_slot_is_not_disturbed_for_a_swarm_that_is_not_there() {
    let mut fleet = behind_one_control("swarm");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["worker-1"]);
    replace_control(&mut fleet);
    enroll_control(&mut fleet);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.drain("worker-1")), (Some("ControlNotDeployed"), None));
    assert!(fleet.permit("worker-1").is_none() && fleet.wants_a_person());
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
    assert!(fleet.says("worker-1").contains("control-1 is not deployed"), "a pause hides nothing");
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "and it is given back");
}

#[test]
fn a_worker_that_is_in_the_swarm_goes_on_without_its_control_machine() {
    let mut fleet = behind_one_control("install");
    replace_control(&mut fleet);
    enroll_control(&mut fleet);
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["worker-1"]);
}
