//! Stalled updates: each wait has a deadline or requests an operator.

use muster_proto::{
    convert::Hello,
    model::{ItemState, LockState, MachineId, MachineType, Reason, Seq},
};

use super::{fleet::*, reason, update_reboots::reboot, updates::*};
use crate::{
    core::{Input, Request},
    documents,
    facts::DesiredState,
    plan,
};

const CLUSTER_LOCKS_MS: u64 = 2 * 3600 * 1000;

impl Fleet {
    /// Would `musterctl update` end now with status 4?
    pub(crate) fn wants_a_person(&self) -> bool {
        let rollouts = documents::rollouts(self.core.facts(), |_| true, self.core.limits(), self.now());
        let updates = rollouts.iter().filter_map(|rollout| rollout.status.update.as_ref());
        updates.filter(|update| update.needs_operator).count() > 0
    }

    /// Time passes in small steps, because a machine without messages for long is Lost.
    fn wait(&mut self, ms: u64) {
        (0..ms.div_ceil(20_000)).for_each(|_| self.pass(20_000, &[]));
    }

    pub(crate) fn desired(&self) -> DesiredState {
        let rollout = self.core.facts().open_rollout(&cluster()).expect("an update under way");
        rollout.update.as_ref().expect("an update").desired
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

/// Found by the simulator (seed 74): its work counted as in progress although its reports about it are rejected.
#[test]
fn unproven_ledger_wants_a_person() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    assert!(!fleet.wants_a_person(), "it is at work");
    fleet.disconnect("control-1");
    let hello = Hello { acked_seq: Seq(99), ..fleet.proven("control-1", fleet.greeting("control-1")) };
    fleet.hello("control-1", hello).expect("greeted");
    assert_eq!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"));
    assert!(fleet.wants_a_person());
}

/// Found by the simulator (seed 7000155).
#[test]
fn ledger_that_was_put_back_wants_a_person() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    assert!(!fleet.wants_a_person(), "it is at work");
    let id = fleet.agents["control-1"].id;
    fleet.agent_blocked(id, Some((Reason::LedgerBehind, "its ledger was put back".to_owned())));
    assert_eq!((fleet.why("control-1").as_deref(), fleet.wants_a_person()), (Some("LedgerBehind"), true));
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
    assert!(matches!(fleet.desired(), DesiredState::Pause { .. }) && fleet.wants_a_person());
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
    assert_eq!((fleet.why("control-1").as_deref(), fleet.wants_a_person()), (Some("LockNotYetActive"), false));
    fleet.wait(NODE_LOCKS_MS);
    assert!(fleet.wants_a_person(), "nobody but control-1 is left before the worker's turn, and it was asked again");
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
    assert!(matches!(fleet.desired(), DesiredState::Pause { .. }) && fleet.wants_a_person());
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
    assert!(matches!(fleet.desired(), DesiredState::Pause { .. }) && fleet.wants_a_person());
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
    fleet.report_host(id, facts);
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
    let hello = fleet.proven("worker-1", hello);
    fleet.hello("worker-1", hello).expect("greeted");
    fleet.wait(NODE_LOCKS_MS + 60_000);
    assert_eq!(fleet.requests(), ["control-1"], "by the newer store it may be at work");
    assert!(fleet.wants_a_person());
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("recorded");
    assert_eq!(fleet.requests(), ["control-1"]);
}

#[test]
fn an_update_in_which_nobody_is_left_ends() {
    let worker = || machine("worker-1");
    for before in ["asked", "not asked", "paused"] {
        let mut fleet = deployed(3, 1);
        if before != "asked" {
            fleet.lock("ceph", None, LockState::Inactive);
        }
        let accept_control_plane_downtime = false;
        let machines = [worker()].into();
        let reboot = Request::Reboot { cluster: cluster(), machines, accept_control_plane_downtime };
        fleet.ask(reboot).expect("starts");
        let rollout = fleet.rollout();
        if before == "paused" {
            fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
        }
        fleet.ask(Request::ReplaceMachine { machine: worker(), machine_is_off: true }).expect("replaced");
        let ended = &fleet.core.facts().rollouts[&rollout];
        assert!(ended.finished_at_ms.is_some(), "{before}: {ended:?}");
        fleet.enroll("worker-1", MachineType::Worker).expect("enrols");
        fleet.connect("worker-1");
        fleet.finish("worker-1");
        assert_eq!((fleet.state("worker-1"), fleet.why("worker-1")), ("Ready", None), "{before}");
    }
}

/// A control machine that got prepare items in an update, waits for their secrets, and has left the update again.
fn left_waiting() -> Fleet {
    let mut fleet = reconfigure::knows_controls(3, 1);
    release(&mut fleet, &["images"], 1);
    fleet.ask(update()).expect("starts");
    fleet.accept("control-1");
    let (id, words) = (fleet.agents["control-1"].id, "item images needs secrets".to_owned());
    let blocked = Some((Reason::WaitingForSecret, words));
    fleet.agent_blocked(id, blocked);
    assert_eq!(fleet.why("control-1").as_deref(), Some("WaitingForSecret"));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    assert_eq!((fleet.state("control-1"), fleet.why("control-1")), ("Ready", None));
    fleet
}

#[test]
fn a_wait_for_secrets_that_an_abort_left_holds_up_no_update() {
    let mut fleet = left_waiting();
    let (id, generation) = (fleet.agents["control-1"].id, fleet.row("control-1").assigned.generation);
    let item = || item_name("images");
    assert_eq!(reason(fleet.step(Input::Fetch { id, item: item(), generation })), "NotAssigned");
    fleet.ask(update()).expect("starts again");
    fleet.step(Input::Fetch { id, item: item(), generation }).expect("the same list is wanted again");
    let blocked = None;
    fleet.agent_blocked(id, blocked);
    fleet.finish("control-1");
    assert_eq!(fleet.row("control-1").update, None, "it is through");
}

#[test]
fn a_wait_for_secrets_that_an_abort_left_is_no_reason_in_a_pause() {
    let mut fleet = left_waiting();
    fleet.disconnect("control-1");
    fleet.ask(update()).expect("starts again");
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout }).expect("pauses");
    fleet.connect("control-1");
    let id = fleet.agents["control-1"].id;
    let blocked = Some((Reason::WaitingForSecret, "item images needs secrets".to_owned()));
    fleet.agent_blocked(id, blocked);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Paused"), "that is what a person can end");
}

#[test]
fn a_wait_for_secrets_that_an_abort_left_holds_up_no_reconfigure() {
    let mut fleet = left_waiting();
    let before = fleet.agents["control-1"].assignment.clone();
    fleet.add_control("control-4");
    let id = fleet.agents["control-1"].id;
    assert_ne!(fleet.agents["control-1"].assignment, before, "another list ends the wait");
    fleet.agent_blocked(id, None);
    fleet.finish("control-1");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["control-1"], "the set of control machines is another");
}

#[test]
fn a_machine_that_is_lost_says_so_whatever_it_said_last() {
    let mut fleet = Fleet::of(3, 1).reported();
    let mut facts = fleet.greeting("worker-1").facts;
    facts.internal_ip = None;
    let id = fleet.agents["worker-1"].id;
    fleet.report_host(id, facts);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("NoInternalIP"));
    fleet.disconnect("worker-1");
    fleet.pass(30_000, &[]);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Lost"));
}

#[test]
fn a_machine_revoked_while_it_may_be_at_work_wants_a_person() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    assert!(!fleet.wants_a_person());
    let revoke = |machine_is_off| Request::RevokeMachine { machine: machine("control-1"), machine_is_off };
    fleet.ask(revoke(false)).expect("shut out");
    assert_eq!((fleet.slots(), fleet.wants_a_person()), (vec!["control-1"], true), "it will never say how it ended");
    fleet.ask(revoke(true)).expect("freed");
    assert!(fleet.slots().is_empty());
}

#[test]
fn what_a_missing_controller_says_can_be_done() {
    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.workload_controllers = vec!["nova".to_owned()];
    fleet.ask(apply(spec.clone(), &[])).expect("applies");
    release(&mut fleet, &["install"], 1);
    fleet.ask(update()).expect("starts");
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.finish(name);
    }
    let rollout = fleet.rollout();
    let told = documents::rollouts(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    let told = told.last().and_then(|rollout| rollout.status.update.as_ref()).expect("an update");
    let waiting = told.waiting.first().expect("somebody waits");
    assert!(told.needs_operator && waiting.reason == Reason::ControllerMissing, "{waiting:?}");
    let way_out = format!("after `musterctl abort {rollout}` a manifest without it is applied");
    assert!(waiting.clears_when.ends_with(&way_out), "{waiting:?}");
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    spec.workload_controllers.clear();
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 1);
    assert_eq!(fleet.started().requests(), ["control-1"]);
}

/// An update in which control-1 has a permit to start its item.
fn permitted() -> Fleet {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.accept("control-1");
    assert!(fleet.permit("control-1").is_some() && !fleet.wants_a_person());
    fleet
}

#[test]
fn a_permitted_item_that_waits_for_its_secret_wants_a_person() {
    let mut fleet = permitted();
    let id = fleet.agents["control-1"].id;
    let blocked = Some((Reason::WaitingForSecret, "SecretMissing: secret db was deleted".to_owned()));
    fleet.agent_blocked(id, blocked);
    fleet.wait(60_000);
    assert!(!fleet.wants_a_person(), "it asks again by itself");
    fleet.wait(60_000);
    assert!(fleet.wants_a_person(), "somebody makes it again");
    fleet.agent_blocked(id, None);
    assert!(!fleet.wants_a_person());
}

/// In both cases all starts are blocked until an operator acts: `watch` reports that at once.
#[test]
fn update_wants_person_when_machine_is_behind_or_not_heeded() {
    let behind = || Some((Reason::LedgerBehind, "it has reported more than its ledger holds".to_owned()));
    let mut fleet = permitted();
    let id = fleet.agents["control-1"].id;
    fleet.begin("control-1");
    fleet.agent_blocked(id, behind());
    assert!(fleet.wants_a_person(), "what it says that runs it cannot report");
    fleet.agent_blocked(id, None);
    assert!(!fleet.wants_a_person());

    let mut fleet = permitted();
    let generation = fleet.row("control-1").assigned.generation;
    fleet.answer("control-1", generation, Some("HashMismatch: of another version"));
    assert_eq!(fleet.why("control-1").as_deref(), Some("AssignmentRefused"));
    assert!(fleet.wants_a_person());
}

#[test]
fn permits_that_run_out_meanwhile_make_no_wait_for_inputs_shorter() {
    let mut fleet = permitted();
    let id = fleet.agents["control-1"].id;
    let waits = || Some((Reason::WaitingForSwarm, "QuorumAtRisk: control-2 is not reachable".to_owned()));
    fleet.agent_blocked(id, waits());
    for _ in 0..4 {
        assert!(!fleet.wants_a_person());
        fleet.pass(30_000, &[]);
        let permit = fleet.permit("control-1").expect("it has leave").number;
        fleet.step(Input::PermitWanted { id, permit }).expect("known");
        fleet.agent_blocked(id, None);
        assert_ne!(fleet.permit("control-1").map(|permit| permit.number), Some(permit), "another one");
        fleet.accept("control-1");
        fleet.agent_blocked(id, waits());
    }
    assert!(fleet.wants_a_person(), "two minutes have passed");
    fleet.begin("control-1");
    fleet.agent_blocked(id, None);
    assert!(!fleet.wants_a_person());
    fleet.agent_blocked(id, waits());
    assert!(!fleet.wants_a_person(), "what comes next is waited for anew");
}

/// An agent that had no room to begin a recorded item fetches the inputs again. The machine that provides them may wait
/// for the end of this very update (seed 125652389206994).
#[test]
fn recorded_item_waiting_to_begin_is_skipped() {
    let skip = || Request::Skip { machine: machine("control-1"), item: Some(item_name("install")) };
    let waits_for_inputs = |fleet: &mut Fleet, id| {
        let message = "SwarmNotInitialised: control-2 makes the cluster's swarm".to_owned();
        fleet.agent_blocked(id, Some((Reason::WaitingForSwarm, message)));
    };
    let waits_for_permit = |fleet: &mut Fleet, id| {
        let permit = fleet.permit("control-1").expect("permitted").number;
        fleet.lock("ceph", Some("control-1"), LockState::Active);
        fleet.step(Input::PermitWanted { id, permit }).expect("known");
    };
    let waits: [fn(&mut Fleet, MachineId); 2] = [waits_for_inputs, waits_for_permit];
    for wait in waits {
        let mut fleet = permitted();
        let id = fleet.agents["control-1"].id;
        assert_eq!(fleet.begin("control-1"), "install");
        assert_eq!(reason(fleet.ask(skip())), "NothingToDo", "it runs, as far as is known");
        wait(&mut fleet, id);
        let list = fleet.agents["control-1"].assignment.clone();
        fleet.ask(skip()).expect("it has not begun");
        assert_eq!(fleet.due("control-1"), None, "its list lacks the item");
        assert_eq!(fleet.requests(), ["control-1"], "its agent has to confirm the list");
        fleet.accept("control-1");
        // The agent records that the attempt was never started.
        fleet.agents.get_mut("control-1").expect("an agent").assignment = list;
        fleet.event("control-1", "install", ItemState::Failed { exit_code: -1, retryable: true });
        fleet.agent_blocked(id, None);
        assert!(!fleet.requests().contains(&"control-1"), "{:?}", fleet.why("control-1"));
        fleet.lock("ceph", Some("control-1"), LockState::Active);
        assert_eq!((fleet.part("control-1"), fleet.slot("control-1")), (None, None), "it is done");
    }
}

#[test]
fn an_abort_that_hangs_says_on_whom() {
    let mut fleet = deployed(3, 1);
    fleet.ask(reboot(&[])).expect("starts");
    let rollout = fleet.rollout();
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.accept("control-1");
    fleet.fail("control-1");
    let waits =
        |fleet: &Fleet| fleet.look("control-1", |snapshot, _| plan::blocked::of_cluster(snapshot)).expect("waits");
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
    assert!(waits(&fleet).message.contains("the reboot is paused"), "{:?}", waits(&fleet));
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    let said = waits(&fleet);
    assert_eq!(said.message, "the reboot waits for control-1 (Failed)");
    assert!(said.clears_when.starts_with("control-1: `musterctl retry control-1`"), "{said:?}");
}
