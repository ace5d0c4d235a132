//! A copy of the store that was put back by `recover`: nothing of what it says of updates is believed.

use muster_proto::model::RemovalPolicy;

use super::{super::reason, *};

const SERVES_AGAIN: &str = "worker-1";

fn serves_again() -> Request {
    Request::LeaveMaintenance { machine: machine(SERVES_AGAIN) }
}

fn lock_of(fleet: &Fleet, name: &str) -> LockState {
    let mut locks = fleet.core.facts().locks.values();
    locks.find(|lock| lock.key.node.as_ref() == Some(&machine(name))).expect("its lock").state
}

/// Its controller has let it go, and may have taken it back since.
fn on_its_way_into_maintenance() -> Fleet {
    let mut fleet = deployed(3, 2);
    let enter = Request::EnterMaintenance { machine: machine(SERVES_AGAIN), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet
}

#[test]
fn what_a_controller_let_go_is_not_let_go_any_more() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert!(fleet.permit("control-1").is_some());
    fleet.recover_from(fleet.store.clone());
    assert_eq!(lock_of(&fleet, "control-1"), LockState::Active, "it says so again if it is so");
    fleet.all_report();
    assert_eq!(fleet.why("control-1").as_deref(), Some("RecoveredInDoubt"));
}

#[test]
fn who_is_out_of_service_stays_so_and_who_was_on_its_way_is_looked_at() {
    let mut fleet = on_its_way_into_maintenance();
    let on_its_way = fleet.store.clone();
    fleet.lock("ceph", Some(SERVES_AGAIN), LockState::Inactive);
    fleet.accept(SERVES_AGAIN);
    assert_eq!(fleet.why(SERVES_AGAIN).as_deref(), Some("InMaintenance"));
    let out = fleet.store.clone();
    fleet.recover_from(out);
    fleet.all_report();
    assert_eq!(
        (fleet.why(SERVES_AGAIN).as_deref(), fleet.core.facts().meta.recovering),
        (Some("InMaintenance"), false)
    );
    fleet.recover_from(on_its_way);
    fleet.all_report();
    assert_eq!(fleet.why(SERVES_AGAIN).as_deref(), Some("RecoveredInDoubt"));
}

#[test]
fn a_machine_is_not_declared_in_service_while_it_may_have_leave_to_start_something() {
    let mut fleet = on_its_way_into_maintenance();
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    assert_eq!(reason(fleet.ask(serves_again())), "ItemRunning", "a permit counts for 30 s");
    fleet.pass(30_000, &[]);
    fleet.ask(serves_again()).expect("an operator has looked");
    assert!(!fleet.core.facts().meta.recovering && fleet.part(SERVES_AGAIN).is_none());
}

#[test]
fn removals_are_asked_for_again_unless_they_cannot_be_taken_back() {
    let mut fleet = deployed(3, 2);
    let remove =
        |policy| Request::Remove { machine: machine(SERVES_AGAIN), policy, accept_control_plane_downtime: false };
    fleet.ask(remove(RemovalPolicy::Graceful)).expect("begins");
    fleet.recover_from(fleet.store.clone());
    assert_eq!(fleet.row(SERVES_AGAIN).removal, None);
    fleet.all_report();
    fleet.pass(30_000, &[]);
    fleet.ask(serves_again()).expect("an operator has looked");
    fleet.ask(remove(RemovalPolicy::Unsafe)).expect("said again");
    fleet.accept(SERVES_AGAIN);
    assert!(!fleet.core.facts().machines.contains_key(SERVES_AGAIN));
}
