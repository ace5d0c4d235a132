//! The Swarm drain: its questions, what waits until no task is left, and what a node gets back.

use std::collections::BTreeMap;

use muster_proto::{
    convert::Hello,
    model::{
        DeadlineOutcome, Generation, LcmType, MachineId, RemovalPolicy, SWARM_LABELS_MAX, SwarmAvailability, SwarmId,
        SwarmOp,
    },
};

mod fixture;
mod managers;
mod services;
mod standstill;

use fixture::*;
pub(super) use fixture::{Swarm, node_id};

use super::*;
use crate::{
    core::{SwarmQuestion, update::drain::asking},
    facts::{DrainRow, SwarmTarget},
    plan::{blocked, drain::swarm as drain, swarm::joining::NodeEntry},
};

#[test]
fn a_worker_is_disturbed_when_no_task_is_left_and_gets_its_availability_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.talk(&mut swarm);
    assert_eq!(
        swarm.log,
        [
            "worker-1: info",
            "control-1: nodes",
            "control-1: services of worker-1",
            "control-1: worker-1 is drain",
            "control-1: nodes",
            "control-1: tasks of worker-1"
        ]
    );
    assert_eq!((fleet.permit("worker-1"), fleet.why("worker-1")), (None, Some("SwarmDraining".to_owned())));
    for left in [vec!["web", "db"], vec!["db"]] {
        swarm.node("worker-1").tasks = left;
        fleet.pass(2_000, &[]);
        fleet.talk(&mut swarm);
        assert_eq!(fleet.permit("worker-1"), None, "slot free, locks inactive, item ready, and a task is left");
    }
    swarm.node("worker-1").tasks.clear();
    fleet.pass(1_000, &[]);
    assert!(fleet.questions.is_empty(), "it is looked at every two seconds");
    fleet.pass(1_000, &[]);
    fleet.talk(&mut swarm);
    assert!(fleet.permit("worker-1").is_some(), "{:?} {:?}", fleet.why("worker-1"), swarm.log);
    assert_eq!(fleet.drain_stages("worker-1"), [(Stage::SwarmDrained, true)]);
    complete(&mut fleet, &mut swarm, "worker-1");
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
    assert_eq!(fleet.drain_stages("worker-1"), [(Stage::SwarmDrained, true), (Stage::SwarmUncordoned, true)]);
    assert_eq!(fleet.requests(), ["worker-2"], "its slot goes to the next");
}

#[test]
fn one_that_is_removed_at_work_waits_for_its_item_and_for_no_look_at_the_swarm() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    let remove = Request::Remove {
        machine: machine("worker-1"),
        policy: RemovalPolicy::Graceful,
        accept_control_plane_downtime: false,
    };
    fleet.ask(remove).expect("begins");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ItemRunning"));
    fleet.heartbeats(drain::FRESH_MS, &[]);
    assert!(fleet.questions.is_empty(), "{:?}", fleet.questions);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ItemRunning"), "time alone changes nothing");
}

/// Its new identity has the same disk, so its engine is the node that was drained for the former one.
#[test]
fn replaced_worker_gets_its_node_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain);
    is_replaced(&mut fleet, "worker-1");
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.lock("ceph", None, LockState::Active);
    fleet.finish("worker-1");
    assert_eq!(fleet.state("worker-1"), "Ready");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmNodeNotRestored"), "the old drain may still be ordered");
    fleet.wait_for(&mut swarm, drain::SETTLE_MS + 20_000);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active, "{:?}", swarm.log);
    assert_eq!((fleet.why("worker-1"), fleet.row("worker-1").former_node.clone()), (None, None));
}

/// Its node is for its successor: until that is there, no step checks the cluster because of it.
#[test]
fn revoked_worker_has_its_swarm_asked_nothing() {
    let mut fleet = deployed(3, 1);
    fleet.join_all();
    fleet.ask(Request::RevokeMachine { machine: machine("worker-1"), machine_is_off: true }).expect("revoked");
    assert!(fleet.row("worker-1").former_node.is_some());
    assert!(asking(fleet.core.facts()).is_empty());
}

/// Its disk is new: the labels of its former node entry go to the next node, if the entry was its own.
#[test]
fn reinstalled_worker_gets_its_labels_back() {
    let mut fleet = deployed(3, 1);
    fleet.join_all();
    is_replaced(&mut fleet, "worker-1");
    let left_behind = |fleet: &mut Fleet, node: SwarmId| {
        let labels = [("disk".to_owned(), "ssd".to_owned())].into();
        let entry = NodeEntry { node, hostname: "w".to_owned(), availability: SwarmAvailability::Pause, labels };
        let id = fleet.agents["worker-1"].id;
        fleet.step(Input::NodeLeftBehind { id, entry }).expect("taken");
        fleet.core.facts().audit_lines().pop().expect("audited").message.clone()
    };
    let said = left_behind(&mut fleet, node_id("another"));
    assert!(said.ends_with("so its availability pause, its labels disk=ssd go with it"), "{said}");
    assert_eq!(fleet.row("worker-1").former_node.as_ref().map(|former| former.labels.len()), Some(0));
    let said = left_behind(&mut fleet, node_id("worker-1"));
    assert!(said.ends_with("its next node gets its availability pause, its labels disk=ssd"), "{said}");
    fleet.finish("worker-1");
    let mut swarm = Swarm::of(&fleet);
    swarm.rejoined.push("worker-1");
    fleet.talk(&mut swarm);
    let changed: Vec<&str> = swarm.log.iter().map(String::as_str).filter(|line| line.contains("worker-1 ")).collect();
    let expected = ["control-1: worker-1 gets {\"disk\": \"ssd\"}", "control-1: worker-1 is pause"];
    assert_eq!((changed, fleet.row("worker-1").former_node.clone()), (expected.to_vec(), None));
}

/// A compromised manager reports one dead entry with the maximum of labels, and other labels each time.
#[test]
fn labels_of_a_dead_entry_are_bounded() {
    let mut fleet = deployed(3, 1);
    fleet.join_all();
    is_replaced(&mut fleet, "worker-1");
    for n in 0..20 {
        let labels = (0..SWARM_LABELS_MAX).map(|label| (format!("{n}-{label}"), "x".repeat(100))).collect();
        let (node, hostname) = (node_id("worker-1"), "w".to_owned());
        let entry = NodeEntry { node, hostname, availability: SwarmAvailability::Active, labels };
        let id = fleet.agents["worker-1"].id;
        fleet.step(Input::NodeLeftBehind { id, entry }).expect("taken");
        let line = fleet.core.facts().audit_lines().pop().expect("audited").clone();
        assert_eq!(line.scope.to_string(), "edge-7+muster");
        assert!(line.message.len() < 1_500 && line.message.ends_with(" more"), "{}", line.message);
    }
    let former = fleet.row("worker-1").former_node.clone().expect("its former node");
    assert_eq!(former.labels.len(), SWARM_LABELS_MAX, "those of the first time");
}

fn is_replaced(fleet: &mut Fleet, name: &str) {
    fleet.ask(Request::ReplaceMachine { machine: machine(name), machine_is_off: true }).expect("replaced");
    fleet.enroll(name, Worker).expect("enrols");
    fleet.connect(name);
}

/// A compromised machine names a manager, or another worker, as its node.
#[test]
fn nobody_else_is_drained_by_the_word_of_a_machine() {
    for whose in ["control-1", "worker-2"] {
        let (mut fleet, mut swarm) = at_worker_1();
        fleet.join_all();
        swarm.lies = Some(("worker-1", whose));
        fleet.talk(&mut swarm);
        assert_eq!(swarm.availability(whose), SwarmAvailability::Active, "{:?}", swarm.log);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("NodeNotItsOwn"), "{:?}", swarm.log);
    }
}

#[test]
fn what_an_operator_set_stays() {
    for (before, during) in [
        (SwarmAvailability::Drain, None),
        (SwarmAvailability::Pause, None),
        (SwarmAvailability::Active, Some(SwarmAvailability::Pause)),
        (SwarmAvailability::Drain, Some(SwarmAvailability::Active)),
    ] {
        let (mut fleet, mut swarm) = at_worker_1();
        swarm.node("worker-1").availability = before;
        fleet.talk(&mut swarm);
        assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain);
        if let Some(during) = during {
            swarm.node("worker-1").availability = during;
            fleet.pass(10_000, &[]);
            fleet.talk(&mut swarm);
            assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain, "it is drained all the same");
        }
        swarm.node("worker-1").tasks.clear();
        fleet.pass(2_000, &[]);
        fleet.talk(&mut swarm);
        assert!(fleet.permit("worker-1").is_some(), "{:?}", swarm.log);
        complete(&mut fleet, &mut swarm, "worker-1");
        assert_eq!(swarm.availability("worker-1"), during.unwrap_or(before), "{before} {during:?} {:?}", swarm.log);
    }
}

#[test]
fn another_manager_is_asked_and_without_any_it_says_so() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.silent = vec!["control-1".to_owned()];
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", swarm.log);
    assert!(swarm.log.contains(&"control-2: worker-1 is drain".to_owned()));
    fleet.finish("worker-1");
    swarm.silent = ["control-1", "control-2"].map(str::to_owned).to_vec();
    fleet.disconnect("control-3");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmNoManager"));
    assert_eq!(fleet.requests(), ["worker-1"], "a slot has no time limit");
    fleet.connect("control-3");
    fleet.wait_for(&mut swarm, drain::SETTLE_MS + 5_000);
    assert_eq!(fleet.requests(), Vec::<&str>::new(), "{:?}", swarm.log);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
}

/// Its agent died between recording the start and starting: recorded as running, and it requests another permit.
#[test]
fn one_whose_permit_ran_out_before_it_began_is_looked_at_again() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    fleet.pass(60_000, &[]);
    fleet.step(Input::PermitWanted { id: fleet.agents["worker-1"].id, permit: 1 }).expect("known");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.permit("worker-1").map(|permit| permit.number), Some(2), "{:?}", fleet.why("worker-1"));
}

#[test]
fn an_abort_gives_the_node_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.talk(&mut swarm);
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    assert_eq!(fleet.requests(), ["worker-1"], "not before its node is given back");
    fleet.talk(&mut swarm);
    assert_eq!((fleet.requests(), swarm.availability("worker-1")), (Vec::new(), SwarmAvailability::Active));
}

#[test]
fn a_change_that_nobody_confirmed_is_waited_for_before_the_node_is_given_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    while !fleet.questions.iter().any(|question| matches!(question.op, SwarmOp::SetAvailability { .. })) {
        assert!(fleet.answer_one(&mut swarm));
    }
    swarm.silent = vec!["control-1".to_owned()];
    fleet.talk(&mut swarm);
    swarm.silent.clear();
    swarm.node("worker-1").availability = SwarmAvailability::Active;
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmUncordoning"));
    // The silent manager finally carries out its order.
    swarm.node("worker-1").availability = SwarmAvailability::Drain;
    fleet.pass(65_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!((fleet.requests(), swarm.availability("worker-1")), (Vec::new(), SwarmAvailability::Active));
}

/// Seed 115021347309768: it would overwrite what an operator sets after that.
#[test]
fn unconfirmed_return_is_waited_for() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.talk(&mut swarm);
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    while !fleet.questions.iter().any(|question| matches!(question.op, SwarmOp::SetAvailability { .. })) {
        assert!(fleet.answer_one(&mut swarm));
    }
    swarm.silent = vec!["control-1".to_owned()];
    fleet.talk(&mut swarm);
    swarm.silent.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active, "another manager has done it");
    assert_eq!((fleet.requests(), fleet.why("worker-1").as_deref()), (vec!["worker-1"], Some("SwarmUncordoning")));
    fleet.wait_for(&mut swarm, drain::SETTLE_MS);
    assert_eq!(fleet.requests(), Vec::<&str>::new());
}

#[test]
fn what_is_in_no_swarm_has_nothing_to_drain() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.nodes.retain(|node| node.name != "worker-1");
    fleet.talk(&mut swarm);
    assert_eq!(swarm.log, ["worker-1: info"]);
    assert_eq!(fleet.drain("worker-1").map(|drain| &drain.target), Some(&SwarmTarget::Absent));
    assert!(fleet.permit("worker-1").is_some());
    fleet.finish("worker-1");
    assert_eq!(fleet.requests(), Vec::<&str>::new());
}

#[test]
fn a_restart_anywhere_loses_nothing() {
    for answers in 0..8 {
        let (mut fleet, mut swarm) = at_worker_1();
        swarm.node("worker-1").availability = SwarmAvailability::Pause;
        swarm.node("worker-1").tasks.clear();
        let mut answered = 0;
        let mut restarted = false;
        for _ in 0..100 {
            if answered == answers && !restarted {
                restarted = true;
                fleet.restart();
                fleet.all_report();
            }
            if fleet.permit("worker-1").is_some() && fleet.due("worker-1").is_some() {
                assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain);
                fleet.finish("worker-1");
            }
            if fleet.answer_one(&mut swarm) {
                answered += 1;
            } else {
                fleet.pass(5_000, &[]);
            }
        }
        assert!(restarted, "answered {answered}");
        fleet.lock("ceph", Some("worker-1"), LockState::Active);
        assert_eq!(fleet.part("worker-1"), None, "{answers} answers: {:?} {:?}", fleet.why("worker-1"), swarm.log);
        assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Pause, "{answers} answers: {:?}", swarm.log);
    }
}

/// A store copy from the middle of a drain is restored: the fleet finished with that node long ago.
#[test]
fn a_store_older_than_the_fleet_changes_no_node() {
    for aborted in [false, true] {
        let (mut fleet, mut swarm) = at_worker_1_with(&["restart"]);
        if aborted {
            fleet.talk(&mut swarm);
            let rollout = fleet.rollout();
            fleet.ask(Request::Abort { rollout }).expect("aborts");
        } else {
            swarm.node("worker-1").tasks.clear();
            fleet.talk(&mut swarm);
            fleet.begin("worker-1");
            fleet.event("worker-1", "install", ItemState::Succeeded);
        }
        let store = fleet.store.clone();
        fleet.restart_from(store);
        let newer = Hello { generation: Generation(99), ..fleet.greeting("control-1") };
        let newer = fleet.proven("control-1", newer);
        fleet.hello("control-1", newer).expect("greeted");
        for name in ["control-2", "control-3", "worker-1", "worker-2"] {
            fleet.connect(name);
        }
        fleet.accept("worker-1");
        for _ in 0..10 {
            fleet.pass(20_000, &[]);
            assert!(fleet.questions.is_empty(), "{:?}", fleet.questions);
        }
        assert_eq!(fleet.why("worker-1").as_deref(), Some("StoreOlderThanFleet"));
    }
}

#[test]
fn one_that_joined_anew_is_drained_anew() {
    let (mut fleet, mut swarm) = at_worker_1_with(&["restart"]);
    swarm.node("worker-1").tasks.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    swarm.node("worker-1").availability = SwarmAvailability::Active;
    swarm.node("worker-1").tasks = vec!["web"];
    swarm.rejoined.push("worker-1");
    fleet.pass(20_000, &[]);
    fleet.event("worker-1", "install", ItemState::Succeeded);
    fleet.accept("worker-1");
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.permit("worker-1")), (Some("SwarmDraining"), None));
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain, "{:?}", swarm.log);
    swarm.node("worker-1").tasks.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert!(fleet.permit("worker-1").is_some(), "{:?} {:?}", fleet.why("worker-1"), swarm.log);
    complete(&mut fleet, &mut swarm, "worker-1");
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
}

/// An agent answers a few calls at a time. More would be refused, and their machines would wait in vain.
#[test]
fn no_agent_is_asked_more_than_it_answers() {
    let mut fleet = deployed(3, 10);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.lcm_type = LcmType::Swarm;
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 10);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    let workers: Vec<String> = fleet.requests().iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(workers.len(), 10);
    let mut swarm = Swarm::of(&fleet);
    for worker in &workers {
        swarm.node(worker).tasks.clear();
        fleet.lock("ceph", Some(worker), LockState::Inactive);
    }
    let mut most = 0;
    loop {
        let mut open: BTreeMap<MachineId, usize> = BTreeMap::new();
        fleet.questions.iter().for_each(|question| *open.entry(question.agent).or_default() += 1);
        most = most.max(open.into_values().max().unwrap_or_default());
        if !fleet.answer_one(&mut swarm) {
            break;
        }
    }
    assert_eq!(most, 6);
    assert!(workers.iter().all(|worker| fleet.permit(worker).is_some()), "{:?}", swarm.log);
}
