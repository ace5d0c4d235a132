//! A store copy restored with `recover`: its facts about updates do not count.

use muster_proto::model::{ClusterName, LedgerId, Reason, RemovalPolicy, Seq};
use uuid::Uuid;

use super::{super::reason, *};
use crate::plan::{blocked, recovery, snapshot::ClusterSnapshot};

const SERVES_AGAIN: &str = "worker-1";

fn serves_again() -> Request {
    leave(SERVES_AGAIN)
}

fn lock_of(fleet: &Fleet, node: Option<&str>) -> LockState {
    let (mut locks, node) = (fleet.core.facts().locks.values(), node.map(machine));
    locks.find(|lock| lock.key.node == node).expect("its lock").state
}

fn leave(name: &str) -> Request {
    Request::LeaveMaintenance { machine: machine(name) }
}

/// The control machines are updated, and an item of `worker-1` runs with a permit.
fn at_work_in_the_update() -> Fleet {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    ["control-1", "control-2", "control-3"].iter().for_each(|control| fleet.upgrade(control));
    fleet.lock("ceph", Some(SERVES_AGAIN), LockState::Inactive);
    fleet.begin(SERVES_AGAIN);
    fleet
}

/// A copy from before an update is restored in the middle of it: the control machines are complete, and `worker-1` has
/// a permit. `worker-2` is still waiting.
fn before_the_update() -> Fleet {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let copy = fleet.store.clone();
    let mut fleet = fleet.started();
    ["control-1", "control-2", "control-3"].iter().for_each(|control| fleet.upgrade(control));
    fleet.lock("ceph", Some(SERVES_AGAIN), LockState::Inactive);
    assert!(fleet.permit(SERVES_AGAIN).is_some());
    fleet.recover_from(copy);
    fleet.all_report();
    fleet.pass(90_000, &[]);
    fleet
}

/// Its controller has released it, and may have taken it back since.
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
    assert_eq!(lock_of(&fleet, Some("control-1")), LockState::Active, "it says so again if it is so");
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

/// It may have returned to service since the copy was made: no controller announces its return.
#[test]
fn a_machine_that_is_out_of_service_leaves_for_good_only_when_its_controllers_let_it_go_again() {
    let mut fleet = on_its_way_into_maintenance();
    fleet.lock("ceph", Some(SERVES_AGAIN), LockState::Inactive);
    fleet.accept(SERVES_AGAIN);
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    let why = fleet.look(SERVES_AGAIN, blocked::of_machine).expect("it is out of service");
    assert!(why.reason == Reason::InMaintenance && why.message.contains("its workloads may be back"), "{why:?}");
    assert_eq!((lock_of(&fleet, Some(SERVES_AGAIN)), lock_of(&fleet, None)), (LockState::Active, LockState::Active));
    let policy = RemovalPolicy::Graceful;
    let remove = Request::Remove { machine: machine(SERVES_AGAIN), policy, accept_control_plane_downtime: false };
    fleet.ask(remove).expect("begins");
    assert_eq!(fleet.why(SERVES_AGAIN).as_deref(), Some("LocksActive"));
    fleet.lock("ceph", Some(SERVES_AGAIN), LockState::Inactive);
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.watch("ceph", 9);
    fleet.is_heard_of(SERVES_AGAIN);
    assert!(!fleet.core.facts().machines.contains_key(SERVES_AGAIN), "{:?}", fleet.why(SERVES_AGAIN));
}

/// Seed 45849: the copy issued a list under a taken number. After `recover` such lists end.
#[test]
fn refusal_of_copys_list_ends_with_recovery() {
    let mut fleet = deployed(3, 2);
    let generation = fleet.row(SERVES_AGAIN).assigned.generation;
    fleet.answer(SERVES_AGAIN, generation, Some("GenerationReused: it was accepted with other content"));
    assert!(fleet.row(SERVES_AGAIN).assigned.refused.is_some());
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    assert_eq!((&fleet.row(SERVES_AGAIN).assigned.refused, fleet.why(SERVES_AGAIN)), (&None, None));
}

/// It has returned and was updated since the copy was made. Its operator states that it is in service, and the copy's
/// locks are obsolete.
#[test]
fn one_that_was_out_of_service_and_was_given_more_since_is_in_doubt() {
    let mut fleet = on_its_way_into_maintenance();
    fleet.lock("ceph", Some(SERVES_AGAIN), LockState::Inactive);
    fleet.accept(SERVES_AGAIN);
    let copy = fleet.store.clone();
    fleet.ask(serves_again()).expect("comes back");
    fleet.lock("ceph", Some(SERVES_AGAIN), LockState::Active);
    fleet.lock("ceph", None, LockState::Active);
    release(&mut fleet, &["images"], 1);
    fleet.ask(update()).expect("starts");
    fleet.recover_from(copy);
    fleet.all_report();
    assert_eq!(fleet.why(SERVES_AGAIN).as_deref(), Some("RecoveredInDoubt"));
    fleet.pass(90_000, &[]);
    for name in ["control-1", "control-2", "control-3", "worker-1", "worker-2"] {
        fleet.ask(leave(name)).expect("an operator has looked");
    }
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    ["control-1", "control-2", "control-3"].iter().for_each(|control| fleet.upgrade(control));
    assert_eq!(fleet.requests(), [SERVES_AGAIN], "{:?}", fleet.why(SERVES_AGAIN));
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

/// Its list is the update's, with a due item in it that the copy does not want.
#[test]
fn a_machine_that_was_settled_takes_no_slot_when_it_greets_again() {
    let mut fleet = before_the_update();
    fleet.ask(serves_again()).expect("an operator has looked");
    assert_eq!(fleet.due(SERVES_AGAIN).as_deref(), Some("install"));
    fleet.connect(SERVES_AGAIN);
    assert_eq!((fleet.slot(SERVES_AGAIN), fleet.row(SERVES_AGAIN).needs_review), (None, false));
    for name in ["control-1", "control-2", "control-3"] {
        fleet.ask(leave(name)).expect("an operator has looked");
    }
    assert!(!fleet.core.facts().meta.recovering && fleet.slots().is_empty(), "{:?}", fleet.slots());
    assert_eq!(fleet.why("control-1").as_deref(), Some("NotUpToDate"), "it was updated, and the copy is older");
}

#[test]
fn a_machine_of_which_nobody_knows_what_runs_there_is_not_in_service() {
    let mut fleet = before_the_update();
    fleet.disconnect(SERVES_AGAIN);
    assert_eq!(reason(fleet.ask(serves_again())), "Disconnected");
    fleet.connect(SERVES_AGAIN);
    assert_eq!(reason(fleet.ask(serves_again())), "ItemRunning", "it may be between two tries");
    let id = fleet.agents[SERVES_AGAIN].id;
    fleet.agent_blocked(id, Some((Reason::DiskFull, "less than 16 MiB".to_owned())));
    fleet.pass(90_000, &[]);
    assert_eq!(reason(fleet.ask(serves_again())), "ItemRunning", "it begins when there is room again");
    fleet.agent_blocked(id, None);
    fleet.ask(serves_again()).expect("an operator has looked");
}

/// Its agent stopped before it began: it waits for another permit, which a recovering store never gives.
#[test]
fn what_is_recorded_as_running_and_never_began_holds_up_nobody() {
    let mut fleet = before_the_update();
    fleet.begin(SERVES_AGAIN);
    fleet.connect(SERVES_AGAIN);
    fleet.pass(90_000, &[]);
    assert_eq!(reason(fleet.ask(serves_again())), "ItemRunning");
    let id = fleet.agents[SERVES_AGAIN].id;
    fleet.step(Input::PermitWanted { id, permit: 1 }).expect("known");
    fleet.ask(serves_again()).expect("an operator has looked");
}

#[test]
fn item_that_never_began_leaves_recovery_to_a_person() {
    let permit_is_over: fn(&mut Fleet) = |fleet| {
        let id = fleet.agents[SERVES_AGAIN].id;
        fleet.step(Input::PermitWanted { id, permit: 1 }).expect("known");
    };
    let waits_for_inputs: fn(&mut Fleet) = |fleet| {
        let id = fleet.agents[SERVES_AGAIN].id;
        fleet.agent_blocked(id, Some((Reason::WaitingForSecret, "none while the store is recovered".to_owned())));
    };
    for never_begins in [permit_is_over, waits_for_inputs] {
        let mut fleet = at_work_in_the_update();
        fleet.recover_from(fleet.store.clone());
        fleet.all_report();
        assert!(!fleet.wants_a_person(), "it runs");
        never_begins(&mut fleet);
        assert!(fleet.wants_a_person(), "neither permits nor inputs are given");
    }
}

/// A plan frozen now could differ from the machines' real state.
#[test]
fn nothing_is_started_while_a_store_is_recovered() {
    let mut fleet = before_the_update();
    let (machines, accept_control_plane_downtime) = (Default::default(), false);
    let enter = Request::EnterMaintenance { machine: machine(SERVES_AGAIN), accept_control_plane_downtime };
    for begins in [update(), Request::Reboot { cluster: cluster(), machines, accept_control_plane_downtime }, enter] {
        assert_eq!(reason(fleet.ask(begins)), "RecoveryOpen");
    }
}

#[test]
fn a_machine_that_is_revoked_is_not_declared_in_service() {
    let mut fleet = before_the_update();
    fleet.ask(Request::RevokeMachine { machine: machine(SERVES_AGAIN), machine_is_off: false }).expect("revoked");
    assert_eq!(reason(fleet.ask(serves_again())), "Revoked");
}

/// Only the old ledger knows what ran.
#[test]
fn a_ledger_that_was_begun_anew_leaves_nothing_running_and_its_machine_in_doubt() {
    let mut fleet = at_work_in_the_update();
    for name in [SERVES_AGAIN, "control-1"] {
        let agent = fleet.agents.get_mut(name).expect("an agent");
        agent.ledger = LedgerId(Uuid::from_u128(77));
        (agent.acked, agent.seq) = (Seq(0), Seq(0));
        agent.statuses.retain(|_, status| status.state != ItemState::Running);
    }
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    let state = |fleet: &Fleet| fleet.row(SERVES_AGAIN).statuses[&item_name("install")].state.clone();
    assert_eq!(state(&fleet), ItemState::Indeterminate);
    let needs_review = |name: &str| fleet.row(name).needs_review;
    assert!(needs_review("control-1") && !needs_review("control-2"), "it was Ready in that update");
}

/// A deployment with `worker-1`, which was Ready, in need of review.
fn deploying_and_in_doubt() -> Fleet {
    let mut fleet = Fleet::of(1, 2).reported().prepared();
    fleet.finish_all(Control);
    fleet.finish("worker-1");
    fleet.agents.get_mut("worker-1").expect("an agent").ledger = LedgerId(Uuid::from_u128(77));
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    fleet
}

/// Not every operator may read the names of other clusters.
#[test]
fn who_waits_for_machines_in_doubt_names_those_of_its_own_cluster() {
    let mut fleet = deploying_and_in_doubt();
    let why = fleet.look("worker-2", blocked::of_machine).expect("it waits");
    assert!(why.reason == Reason::RecoveryOpen && why.message.contains("worker-1"), "{why:?}");
    let mut quiet = deployed(3, 1);
    quiet.recover_from(quiet.store.clone());
    let of_cluster =
        |fleet: &Fleet| fleet.look("worker-1", |snapshot, _| blocked::of_cluster(snapshot)).map(|why| why.reason);
    assert_eq!(of_cluster(&quiet), Some(Reason::Gathering), "nothing is under way, and nothing may begin");
    quiet.all_report();
    assert_eq!(of_cluster(&quiet), None);
    let other = ClusterName::new("edge-8").expect("a label");
    let clusters = [(other.clone(), (spec(1, 0), Default::default()))].into();
    fleet.ask(Request::Apply { clusters, machines: Default::default(), dry_run: false }).expect("applies");
    let snapshot =
        ClusterSnapshot::of(fleet.core.facts(), &other, fleet.core.limits(), fleet.now()).expect("a cluster");
    let why = recovery::settled(&snapshot).expect_err("worker-1 is in doubt");
    assert!(why.message.contains("machines of other clusters") && !why.message.contains("worker-1"), "{why:?}");
}

/// Its agent cannot settle the review until it has an intact ledger.
#[test]
fn machine_in_doubt_whose_ledger_is_behind_gets_new_ledger_first() {
    let mut fleet = deploying_and_in_doubt();
    let id = fleet.agents["worker-1"].id;
    fleet.pass(90_000, &[]);
    fleet.agent_blocked(id, Some((Reason::LedgerBehind, "attempts/ is newer".to_owned())));
    let why = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    assert!(why.reason == Reason::LedgerBehind && why.clears_when.contains("ledger reset --keep-identity"), "{why:?}");
    let refused = fleet.ask(serves_again()).expect_err("nobody knows what runs there");
    assert!(refused.to_string().contains("ledger reset --keep-identity"), "{refused}");
    fleet.agent_blocked(id, None);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("RecoveredInDoubt"));
    fleet.pass(90_000, &[]);
    fleet.ask(serves_again()).expect("in service");
    assert!(!fleet.row("worker-1").needs_review);
}

#[test]
fn removal_of_doubted_machine_hides_no_behind_ledger() {
    let mut fleet = before_the_update();
    let policy = RemovalPolicy::Graceful;
    let remove = Request::Remove { machine: machine(SERVES_AGAIN), policy, accept_control_plane_downtime: false };
    fleet.ask(remove).expect("it is removed");
    assert_eq!(fleet.why(SERVES_AGAIN).as_deref(), Some("RecoveredInDoubt"));
    let id = fleet.agents[SERVES_AGAIN].id;
    fleet.agent_blocked(id, Some((Reason::LedgerBehind, "attempts/ is newer".to_owned())));
    assert_eq!(fleet.why(SERVES_AGAIN).as_deref(), Some("LedgerBehind"));
}

#[test]
fn a_machine_in_doubt_that_is_lost_says_both() {
    let mut fleet = deploying_and_in_doubt();
    fleet.disconnect("worker-1");
    fleet.pass(60_000, &[]);
    let why = fleet.look("worker-1", blocked::of_machine).expect("it is lost");
    assert!(why.reason == Reason::Lost && why.clears_when.contains("maintenance leave worker-1"), "{why:?}");
}
