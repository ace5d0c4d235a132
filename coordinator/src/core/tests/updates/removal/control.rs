//! Removing control machines: one by one, and a majority stays.

use super::*;
use muster_proto::model::Reason;

#[test]
fn a_control_machine_leaves_a_majority_and_the_others_hear_of_it() {
    let mut fleet = deployed(3, 1);
    fleet.disconnect("control-3");
    fleet.ask(remove("control-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests().len(), fleet.why("control-1").as_deref()), (0, Some("Quorum")));
    fleet.connect("control-3");
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert!(fleet.is_gone("control-1"));
    fleet.bury("control-1");
    let left = fleet.core.facts().clusters[&cluster()].control_set.clone();
    assert_eq!(left, [machine("control-2"), machine("control-3")]);
    assert_eq!(fleet.rollout(), "edge-7-reconfigure-3", "the others are reconfigured");
    fleet.lock("ceph", None, LockState::Active);
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests().len(), fleet.why("control-3").as_deref()), (0, Some("Quorum")), "two are left");
    let told = documents::clusters(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now()).remove(0).status;
    let deploy = told.phases.iter().find(|progress| progress.phase == Phase::Deploy).expect("it has deploy items");
    assert_eq!(
        (told.needs_operator, deploy.done),
        (true, deploy.total),
        "only a person helps, and nothing is deployed"
    );
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.lock("ceph", None, LockState::Active);
    assert!(fleet.is_at_rest());
    assert_eq!(reason(fleet.ask(remove("control-2"))), "Quorum");
    fleet.ask(remove_by("control-2", RemovalPolicy::Forced)).expect("begins");
    let last = fleet.ask(remove_by("control-3", RemovalPolicy::Forced));
    assert!(format!("{last:?}").contains("remove the others (worker-1), then switch control-3 off"), "{last:?}");
    assert_eq!(reason(last), "LastControl");
}

#[test]
fn workers_wait_for_a_control_machine_until_it_is_gone() {
    let mut fleet = Fleet::of(2, 1).reported().prepared();
    fleet.finish("control-1");
    assert_eq!(fleet.slots(), ["control-2"]);
    fleet.ask(remove("control-2")).expect("begins");
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true }).expect("replaced");
    assert!(!fleet.is_at_rest(), "control-2 may be at work");
    fleet.enroll("worker-1", Worker).expect("enrols");
    fleet.connect("worker-1");
    let mut fleet = fleet.prepared();
    assert_eq!((fleet.slots(), fleet.why("worker-1").as_deref()), (vec!["control-2"], Some("WaitingForControl")));
    fleet.accept("control-2");
    assert!(fleet.is_gone("control-2"));
    assert_eq!(fleet.slots(), ["worker-1"]);
}

#[test]
fn a_pause_hides_not_that_a_control_machine_is_waited_for() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.finish_controls();
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-1", Control).expect("enrols");
    fleet.connect("control-1");
    fleet.ask(remove("control-2")).expect("begins");
    assert_eq!(fleet.why("control-2").as_deref(), Some("ControlNotDeployed"));
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("paused");
    let told = fleet.look("control-2", crate::plan::blocked::of_machine).expect("a reason");
    let cause = "it waited for this: control machine control-1 was replaced and is not deployed";
    assert!(told.reason == Reason::Paused && told.message.contains(cause), "{told:?}");
    fleet.ask(Request::Abort { rollout }).expect("the way out");
    assert!(fleet.row("control-2").removal.is_none(), "it stays");
}

/// A machine that was replaced keeps its place in the recorded set until its successor is Ready.
#[test]
fn replaced_control_machine_keeps_its_vote() {
    let mut fleet = deployed(4, 1);
    fleet.ask(apply(ClusterSpec { machines: None, ..spec(4, 1) }, &[])).expect("applies");
    fleet.ask(Request::ReplaceMachine { machine: machine("control-4"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-4", Control).expect("enrols");
    assert_eq!(fleet.core.facts().clusters[&cluster()].control_set.len(), 4);
    fleet.ask(remove("control-2")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests().len(), fleet.why("control-2").as_deref()), (0, Some("ControlNotDeployed")));
}

/// Seed 91679332446837: the removed machine waits until the replaced one is deployed, and held the slot for that.
#[test]
fn removed_control_machine_leaves_its_slot_to_a_replaced_one() {
    let mut fleet = Fleet::of(3, 0).reported().prepared();
    for name in ["control-1", "control-2", "control-3"] {
        fleet.accept(name);
        while fleet.due(name).is_some_and(|item| item == "install") {
            fleet.begin(name);
            fleet.event(name, "install", ItemState::Succeeded);
            fleet.accept(name);
        }
    }
    assert_eq!(fleet.begin("control-1"), "join");
    fleet.event("control-1", "join", ItemState::Failed { exit_code: 3, retryable: true });
    fleet.ask(remove_by("control-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.accept("control-1");
    fleet.ask(Request::ReplaceMachine { machine: machine("control-2"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-2", Control).expect("enrols");
    fleet.connect("control-2");
    fleet.finish("control-2");
    fleet.finish("control-3");
    assert_eq!(fleet.slots(), ["control-2"], "{:?}", fleet.why("control-2"));
}

/// Seed 19937088098333: the set was never recorded, because the manifest wants more control machines than there are.
#[test]
fn replaced_control_machine_outside_a_set_keeps_its_vote() {
    let mut fleet = Fleet::of(5, 1).reported().prepared();
    fleet.ask(remove_by("control-5", RemovalPolicy::Unsafe)).expect("removed");
    fleet.agents.remove("control-5");
    let mut fleet = guarded(fleet);
    assert_eq!(fleet.core.facts().clusters[&cluster()].control_set.len(), 0);
    fleet.ask(Request::ReplaceMachine { machine: machine("control-4"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-4", Control).expect("enrols");
    fleet.ask(remove("control-2")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests().len(), fleet.why("control-2").as_deref()), (0, Some("ControlNotDeployed")));
}

#[test]
fn control_machines_that_are_being_removed_count_as_gone() {
    let mut fleet = deployed(3, 1);
    fleet.ask(remove("control-1")).expect("begins");
    assert_eq!(reason(fleet.ask(remove("control-2"))), "Quorum");
    let accept = |name| Request::Remove {
        machine: machine(name),
        policy: RemovalPolicy::Graceful,
        accept_control_plane_downtime: true,
    };
    fleet.ask(accept("control-2")).expect("said and done");
    assert_eq!(reason(fleet.ask(accept("control-3"))), "LastControl");
    let rollouts = &fleet.core.facts().rollouts;
    let accepted =
        |row: &crate::facts::RolloutRow| row.update.as_ref().is_some_and(|update| update.accept_control_plane_downtime);
    assert!(!rollouts.values().any(|row| accepted(row)), "accepted for one machine is not accepted for others");
}

/// Other machines may leave between its precondition check and its departure.
#[test]
fn a_control_machine_departs_when_a_majority_stays_then() {
    let mut fleet = deployed(3, 1);
    fleet.ask(remove("control-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["control-1"]);
    let revoke = Request::RevokeMachine { machine: machine("control-2"), machine_is_off: true };
    fleet.ask(revoke).expect("revoked");
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Quorum"));
    fleet
        .ask(Request::Remove {
            machine: machine("control-1"),
            policy: RemovalPolicy::Graceful,
            accept_control_plane_downtime: true,
        })
        .expect("accepted later");
    assert!(fleet.is_gone("control-1"), "{:?}", fleet.why("control-1"));
}

/// Its turn ends between two of its items, and it may wait long for its departure.
#[test]
fn nothing_more_is_permitted_on_one_that_is_out_of_service() {
    let mut spec = spec(3, 1);
    spec.machine_types.get_mut(&Control).expect("items").push(item("settle", Phase::Deploy));
    let mut fleet = guarded(Fleet::with(spec));
    release(&mut fleet, &["install", "settle"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    fleet.ask(remove("control-1")).expect("begins");
    let revoke = Request::RevokeMachine { machine: machine("control-2"), machine_is_off: false };
    fleet.ask(revoke).expect("revoked");
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    fleet.heartbeats(HEARD_MS - 20_000, &["control-2"]);
    fleet.pass(20_000, &["control-2"]);
    assert!(fleet.part("control-1").is_some_and(MachineUpdate::in_maintenance), "{:?}", fleet.why("control-1"));
    assert_eq!((fleet.permit("control-1"), fleet.why("control-1").as_deref()), (None, Some("Quorum")));
}

#[test]
fn a_control_machine_that_has_not_spoken_is_waited_for() {
    let mut fleet = deployed(3, 1);
    fleet.enroll("control-4", Control).expect("enrols");
    fleet.connect("control-4");
    fleet.restart();
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.connect(name);
    }
    fleet.pass(40_000, &[]);
    fleet.ask(remove_by("control-1", RemovalPolicy::Unsafe)).expect("begins");
    assert_eq!(fleet.why("control-1").as_deref(), Some("ControlNotHeard"), "it may be at work");
    fleet.connect("control-4");
    assert!(fleet.is_gone("control-1"), "{:?}", fleet.why("control-1"));
}
