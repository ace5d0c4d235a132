//! The swarm's own quorum: a manager is disturbed only while the others are a majority, according to one of them.

use muster_proto::model::{CONSISTENT_COPY_ITEM, DeadlineOutcome, RunnerKind, Scope, StateItem};

use super::*;
use crate::core::update::Options;

/// Three managers with two items to do each; `control-1` has its turn, and `ceph` releases it.
fn at_control_1(options: Options) -> (Fleet, Swarm) {
    at_control_1_or(options, DeadlineOutcome::Defer)
}

/// The same, with this outcome if the swarm does not release it in time.
fn at_control_1_or(options: Options, outcome: DeadlineOutcome) -> (Fleet, Swarm) {
    let mut spec = spec(3, 1);
    spec.update_deadlines.swarm_drain.outcome = outcome;
    for items in spec.machine_types.values_mut() {
        items.push(item("settle", Phase::Deploy));
    }
    let mut fleet = guarded(Fleet::with(spec));
    fleet.join_all();
    release(&mut fleet, &["install", "settle"], 1);
    fleet.ask(Request::Update { cluster: cluster(), options }).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let swarm = Swarm::of(&fleet);
    (fleet, swarm)
}

fn why(fleet: &Fleet) -> Option<String> {
    fleet.why("control-1")
}

#[test]
fn a_manager_waits_until_the_others_are_a_majority() {
    let (mut fleet, mut swarm) = at_control_1(Options::of(Scope::Drain));
    assert_eq!(fleet.permit("control-1"), None, "nobody has counted them yet");
    swarm.down.push("control-3");
    fleet.talk(&mut swarm);
    assert_eq!(swarm.log, ["control-2: nodes"]);
    assert_eq!((fleet.permit("control-1"), why(&fleet).as_deref()), (None, Some("Quorum")));
    let blocked = fleet.look("control-1", blocked::of_machine).expect("it waits");
    let told = "Error: 1 of the 2 other managers of its swarm are reachable: without control-1 it has no majority";
    assert_eq!(blocked.message, told);
    assert!(!fleet.wants_a_person(), "its engine may be about to start");
    swarm.down.clear();
    fleet.pass(1_000, &[]);
    assert!(fleet.questions.is_empty(), "they are counted every two seconds");
    fleet.pass(1_000, &[]);
    fleet.talk(&mut swarm);
    assert!(fleet.permit("control-1").is_some(), "{:?}", why(&fleet));
}

#[test]
fn a_swarm_of_two_managers_can_spare_none() {
    let (mut fleet, mut swarm) = at_control_1(Options::of(Scope::Drain));
    swarm.nodes.retain(|node| node.name != "control-3");
    fleet.talk(&mut swarm);
    let blocked = fleet.look("control-1", blocked::of_machine).expect("it waits");
    assert_eq!(blocked.message, "Error: its swarm has only 2 managers: without control-1 it has no majority");
    let way_out = "`musterctl abort edge-7-update-2`, then start it again with --accept-control-plane-downtime";
    assert_eq!((blocked.reason.as_str(), blocked.clears_when.as_str()), ("Quorum", way_out));
}

/// Its runner would refuse, and a permit cannot be undone.
#[test]
fn before_a_consistent_copy_every_other_manager_is_reachable() {
    let mut spec = spec(5, 1);
    let join = StateItem { runner: RunnerKind::SwarmJoin, ..item("swarm", Phase::Deploy) };
    spec.machine_types.get_mut(&Control).expect("items").push(join);
    let mut fleet = guarded(Fleet::with(spec));
    fleet.join_all();
    release(&mut fleet, &["install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.finish_all(Control);
    let mut fleet = fleet.prepared();
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let mut swarm = Swarm::of(&fleet);
    swarm.down.push("control-5");
    fleet.talk(&mut swarm);
    assert_eq!((fleet.permit("control-1"), why(&fleet).as_deref()), (None, Some("Quorum")));
    let told = "Error: manager control-5 of its swarm cannot be reached, and its consistent copy needs all of them";
    assert_eq!(fleet.says("control-1"), told);
    swarm.down.clear();
    fleet.pass(2_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!(fleet.begin("control-1"), CONSISTENT_COPY_ITEM);
    // A manager that leaves meanwhile does not matter: the copy is made.
    swarm.down.push("control-5");
    fleet.pass(drain::FRESH_MS, &[]);
    fleet.event("control-1", CONSISTENT_COPY_ITEM, ItemState::Succeeded);
    fleet.accept("control-1");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(2), "{:?}", why(&fleet));
}

#[test]
fn they_are_counted_again_between_the_items_of_a_turn() {
    let (mut fleet, mut swarm) = at_control_1(Options::of(Scope::Drain));
    fleet.talk(&mut swarm);
    fleet.begin("control-1");
    fleet.pass(drain::FRESH_MS, &[]);
    assert!(fleet.questions.is_empty(), "nobody is asked while it works");
    swarm.down.push("control-2");
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    fleet.talk(&mut swarm);
    assert_eq!((fleet.permit("control-1"), why(&fleet).as_deref()), (None, Some("Quorum")));
    swarm.down.clear();
    fleet.pass(2_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(2), "{:?}", why(&fleet));
}

#[test]
fn whoever_does_without_a_majority_is_not_asked() {
    let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Drain) };
    let (fleet, _) = at_control_1(options);
    assert!(fleet.questions.is_empty() && fleet.permit("control-1").is_some(), "{:?}", why(&fleet));
}

#[test]
fn without_an_answer_it_is_put_aside_when_the_drain_would_be() {
    let (mut fleet, mut swarm) = at_control_1(Options::of(Scope::Drain));
    swarm.silent = ["control-2", "control-3"].map(str::to_owned).to_vec();
    fleet.talk(&mut swarm);
    assert_eq!(why(&fleet).as_deref(), Some("SwarmNoManager"));
    fleet.wait_for(&mut swarm, 30 * 60 * 1000);
    let aside = fleet.part("control-1").and_then(|part| part.deferral.clone()).expect("put aside");
    assert!(aside.message.starts_with("Error: no manager of the swarm can be asked"), "{}", aside.message);
    assert_eq!(fleet.stuck("control-1"), Some(Stage::SwarmDrained));
    assert_eq!(waits(&fleet), [(Stage::LocksInactive, true), (Stage::SwarmDrained, false)], "its locks were granted");
}

/// What it waited for before it was disturbed, and whether that came.
fn waits(fleet: &Fleet) -> Vec<(Stage, bool)> {
    let stages = [Stage::LocksInactive, Stage::SwarmDrained];
    let row = fleet.row("control-1");
    stages.iter().filter_map(|stage| Some((*stage, row.stages.get(stage)?.succeeded))).collect()
}

#[test]
fn what_paused_for_the_managers_goes_on_when_they_are_there() {
    let (mut fleet, mut swarm) = at_control_1_or(Options::of(Scope::Drain), DeadlineOutcome::Pause);
    swarm.down.push("control-3");
    fleet.talk(&mut swarm);
    fleet.wait_for(&mut swarm, 30 * 60 * 1000);
    assert_eq!((why(&fleet).as_deref(), fleet.stuck("control-1")), (Some("Paused"), Some(Stage::SwarmDrained)));
    swarm.down.clear();
    let rollout = fleet.rollout();
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!((fleet.begin("control-1").as_str(), fleet.stuck("control-1")), ("install", None));
    assert_eq!(waits(&fleet), [(Stage::LocksInactive, true), (Stage::SwarmDrained, true)]);
}

/// Seeds 35371 and 38675: old failures of managers to answer do not describe the present.
#[test]
fn managers_that_failed_long_ago_are_asked_again() {
    let (mut fleet, mut swarm) = at_control_1(Options::of(Scope::Drain));
    fleet.talk(&mut swarm);
    fleet.begin("control-1");
    fleet.pass(drain::FRESH_MS, &[]);
    swarm.silent = ["control-2", "control-3"].map(str::to_owned).to_vec();
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(2), "nobody can count: it goes on");
    fleet.pass(drain::FRESH_MS, &[]);
    fleet.accept("control-1");
    swarm.silent.clear();
    swarm.down.push("control-3");
    let id = fleet.agents["control-1"].id;
    fleet.step(Input::PermitWanted { id, permit: 2 }).expect("known");
    assert_eq!(fleet.permit("control-1"), None, "they are asked before the next");
    fleet.accept("control-1");
    fleet.talk(&mut swarm);
    assert_eq!((fleet.permit("control-1"), why(&fleet).as_deref()), (None, Some("Quorum")));
}

/// A manager that does not answer must not be asked repeatedly instead of others.
#[test]
fn managers_that_fail_are_asked_in_turn() {
    let mut fleet = guarded(Fleet::with(spec(5, 1)));
    fleet.join_all();
    release(&mut fleet, &["install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let mut swarm = Swarm::of(&fleet);
    swarm.silent = ["control-2", "control-3", "control-4"].map(str::to_owned).to_vec();
    // Each question goes unanswered for twelve seconds: by then the previous manager could be asked again.
    for _ in 0..4 {
        fleet.pass(12_000, &[]);
        assert!(fleet.answer_one(&mut swarm));
    }
    assert_eq!(swarm.log.last().map(String::as_str), Some("control-5: nodes"), "{:?}", swarm.log);
}

/// Its node stays in the swarm until its successor is deployed, which happens after the update.
#[test]
fn in_the_middle_of_a_turn_nobody_waits_for_a_manager_that_was_replaced() {
    let (mut fleet, mut swarm) = at_control_1(Options::of(Scope::Drain));
    fleet.talk(&mut swarm);
    fleet.begin("control-1");
    fleet.ask(Request::ReplaceMachine { machine: machine("control-2"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-2", Control).expect("enrols");
    fleet.connect("control-2");
    swarm.down.push("control-2");
    fleet.pass(drain::FRESH_MS, &[]);
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(2), "{:?}", why(&fleet));
}
