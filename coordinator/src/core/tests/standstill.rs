//! Updates that stand still: each wait has a deadline, or says that it wants a person.

use muster_proto::model::{ItemState, LockState};

use super::{fleet::*, updates::*};
use crate::{
    core::{Input, Request},
    documents,
    facts::Wish,
};

const CLUSTER_LOCKS_MS: u64 = 2 * 3600 * 1000;

impl Fleet {
    /// Would `musterctl update` end now with status 4?
    fn wants_a_person(&self) -> bool {
        let rollouts = documents::rollouts(self.core.facts(), |_| true, self.core.limits(), self.now());
        let updates = rollouts.iter().filter_map(|rollout| rollout.status.update.as_ref());
        updates.filter(|update| update.needs_operator).count() > 0
    }

    /// Time passes in small steps, for whoever is not heard of for long is Lost.
    fn wait(&mut self, ms: u64) {
        (0..ms.div_ceil(20_000)).for_each(|_| self.pass(20_000, &[]));
    }

    fn wish(&self) -> Wish {
        let rollout = self.core.facts().open_rollout(&cluster()).expect("an update under way");
        rollout.update.as_ref().expect("an update").wish
    }
}

#[test]
fn a_control_machine_that_died_after_its_turn() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    fleet.disconnect("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!((fleet.part("control-1"), fleet.why("control-2").as_deref()), (None, Some("Quorum")));
    assert!(!fleet.wants_a_person(), "it may be back in a moment");
    fleet.wait(60_000);
    assert!(fleet.wants_a_person());
    fleet.connect("control-1");
    assert_eq!((fleet.requests(), fleet.wants_a_person()), (vec!["control-2"], false));
}

#[test]
fn a_lock_of_the_cluster_that_does_not_come_back() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.ask(update()).expect("starts");
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.finish(name);
    }
    assert_eq!((fleet.why("control-1").as_deref(), fleet.wants_a_person()), (Some("LockNotYetActive"), false));
    fleet.wait(CLUSTER_LOCKS_MS);
    assert!(matches!(fleet.wish(), Wish::Pause { .. }) && fleet.wants_a_person());
}

#[test]
fn a_lock_of_a_machine_that_does_not_come_back() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let mut fleet = fleet.started();
    assert_eq!((fleet.why("control-1").as_deref(), fleet.wants_a_person()), (Some("LockNotYetActive"), false));
    fleet.wait(NODE_LOCKS_MS);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Deferred"));
    for name in ["control-2", "control-3"] {
        fleet.upgrade(name);
    }
    assert!(fleet.wants_a_person(), "nobody but control-1 is left before the worker's turn");
}

#[test]
fn locks_taken_back_between_two_permits() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install", "join"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Failed);
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    assert_eq!((fleet.why("control-1").as_deref(), fleet.wants_a_person()), (Some("LockFailed"), false));
    fleet.wait(NODE_LOCKS_MS);
    assert!(matches!(fleet.wish(), Wish::Pause { .. }) && fleet.wants_a_person());
    assert_eq!(fleet.slots(), ["control-1"], "what was disturbed is not given back");
}

#[test]
fn a_lock_of_the_cluster_taken_back() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", None, LockState::Active);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!((fleet.why("control-1").as_deref(), fleet.wants_a_person()), (Some("LocksActive"), false));
    fleet.wait(CLUSTER_LOCKS_MS);
    assert!(matches!(fleet.wish(), Wish::Pause { .. }) && fleet.wants_a_person());
}

#[test]
fn a_machine_that_was_disturbed_keeps_its_slot_until_its_agent_has_the_last_list() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    for name in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(name);
    }
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.finish("worker-1");
    fleet.disconnect("worker-1");
    let mut facts = fleet.greeting("control-1").facts;
    facts.internal_ip = Some("10.9.9.9".to_owned());
    let id = fleet.agents["control-1"].id;
    fleet.step(Input::HostChanged { id, facts: Box::new(facts) }).expect("known");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(fleet.slots(), ["worker-1"], "its list has changed, and its agent does not know");
    fleet.connect("worker-1");
    fleet.accept("worker-1");
    assert_eq!((fleet.part("worker-1"), fleet.slots()), (None, vec!["worker-2"]));
}

#[test]
fn a_store_older_than_the_fleet_decides_nothing() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    let mut hello = fleet.greeting("worker-1");
    hello.epoch = muster_proto::model::Epoch(9);
    fleet.hello("worker-1", hello).expect("greeted");
    fleet.wait(NODE_LOCKS_MS + 60_000);
    assert_eq!(fleet.requests(), ["control-1"], "by the newer store it may be at work");
    assert!(fleet.wants_a_person());
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("recorded");
    assert_eq!(fleet.requests(), ["control-1"]);
}
