//! Update groups, told as stories.

use muster_proto::model::{
    LockState,
    MachineType::{Control, Worker},
    UpdateGroup, UpdateGroupName,
};

use super::{fleet::*, updates::*};
use crate::core::{Refusal, Request};

fn group(name: &str, index: u32, concurrent_updates: u32) -> UpdateGroup {
    let name = UpdateGroupName::new(name).expect("a name");
    UpdateGroup { name, index, concurrent_updates, reboot_if_update_requires: false }
}

/// A deployed cluster with these groups and these workers in them, and another version of `install` for all machines.
fn grouped(width: u32, groups: &[UpdateGroup], members: &[(&str, &str)]) -> Fleet {
    let mut fleet = deployed(3, 5);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_groups = groups.to_vec();
    let member = |name: &str| {
        let update_group = Some(UpdateGroupName::new(name).expect("a name"));
        muster_proto::model::MachineSpec { update_group, ..machine_spec(Worker) }
    };
    let members: Vec<_> = members.iter().map(|(machine, group)| (*machine, member(group))).collect();
    fleet.ask(apply(spec, &members)).expect("applies");
    release(&mut fleet, &["install"], width);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    fleet
}

#[test]
fn groups_go_in_the_order_of_their_indexes() {
    let groups = [group("canary", 0, 1), group("storage", 7, 2), group("spare", 7, 1)];
    let members = [("worker-5", "canary"), ("worker-1", "storage"), ("worker-2", "storage"), ("worker-3", "spare")];
    let mut fleet = grouped(5, &groups, &members);
    assert_eq!(fleet.requests(), ["worker-5"], "the canary goes alone");
    assert_eq!(fleet.why("worker-4").as_deref(), Some("WaitingForGroup"));
    fleet.upgrade("worker-5");
    assert_eq!(fleet.requests(), ["worker-4"], "in no group: the default one, whose index is 1");
    fleet.upgrade("worker-4");
    assert_eq!(fleet.requests(), ["worker-1", "worker-2", "worker-3"], "equal indexes go together");
}

#[test]
fn a_group_has_a_ceiling_of_its_own() {
    let groups = [group("default", 1, 3), group("slow", 1, 1)];
    let members = [("worker-1", "slow"), ("worker-2", "slow"), ("worker-3", "slow")];
    let mut fleet = grouped(5, &groups, &members);
    assert_eq!(fleet.requests(), ["worker-1", "worker-4", "worker-5"], "one of the slow, both of the others");
    assert_eq!(fleet.why("worker-2").as_deref(), Some("WaitingForTurn"));
    fleet.upgrade("worker-4");
    assert_eq!(fleet.requests(), ["worker-1", "worker-5"], "a slot of another group is no slot of theirs");
    fleet.upgrade("worker-1");
    assert_eq!(fleet.requests(), ["worker-2", "worker-5"]);
}

#[test]
fn who_is_put_aside_holds_up_no_later_group_and_who_failed_does() {
    let members = [("worker-1", "canary"), ("worker-2", "canary")];
    let mut fleet = grouped(5, &[group("canary", 0, 2)], &members);
    // In small steps, because a machine without messages for long is Lost.
    (0..NODE_LOCKS_MS / 20_000).for_each(|_| fleet.pass(20_000, &[]));
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Deferred"));
    assert_eq!(fleet.requests(), ["worker-3", "worker-4", "worker-5"], "the controller let none of the canaries go");

    let mut fleet = grouped(5, &[group("canary", 0, 2)], &members);
    fleet.upgrade("worker-2");
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.fail("worker-1");
    assert_eq!(fleet.requests(), ["worker-1"], "a canary that failed is what canaries are for");
    assert_eq!(fleet.why("worker-3").as_deref(), Some("WaitingForGroup"));
    fleet.ask(Request::Skip { machine: machine("worker-1"), item: None }).expect("does without it");
    fleet.accept("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(fleet.requests(), ["worker-3", "worker-4", "worker-5"]);
}

#[test]
fn a_group_stays_as_long_as_a_machine_is_in_it() {
    let mut fleet = grouped(5, &[group("canary", 0, 1)], &[("worker-1", "canary")]);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_groups.clear();
    let refused = fleet.ask(apply(spec.clone(), &[])).expect_err("worker-1 is in it");
    assert!(matches!(refused, Refusal::State { reason: "GroupWithoutCluster", .. }), "{refused:?}");
    fleet.ask(apply(spec, &[("worker-1", machine_spec(Worker))])).expect("both at once");
    assert_eq!(fleet.requests(), ["worker-1"], "the update under way goes on as it was frozen");
    assert_eq!(fleet.why("worker-2").as_deref(), Some("WaitingForGroup"));
    assert!(fleet.row("control-1").update.is_none() && fleet.row("control-1").spec.machine_type == Control);
}
