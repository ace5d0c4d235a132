//! Removing machines: what each policy waits for, the order of questions to the swarm, and what is left.

use muster_proto::{
    convert::Hello,
    model::{ItemState, MachineId, RemovalPolicy, Seq, SwarmAvailability, SwarmId},
};

mod control;
mod departing;

use super::{super::reason, *};
use crate::documents;

/// Time that controllers have to see a request.
const SETTLE_MS: u64 = 10_000;

fn remove_by(name: &str, policy: RemovalPolicy) -> Request {
    Request::Remove { machine: machine(name), policy, accept_control_plane_downtime: false }
}

fn remove(name: &str) -> Request {
    remove_by(name, RemovalPolicy::Graceful)
}

fn keep(name: &str) -> Request {
    Request::AbortRemoval { machine: machine(name) }
}

impl Fleet {
    /// Its controllers had their time to learn that it is removed permanently.
    pub(crate) fn is_heard_of(&mut self, name: &str) {
        self.heartbeats(HEARD_MS - 20_000, &[]);
        self.pass(20_000, &[name]);
    }

    fn is_gone(&self, name: &str) -> bool {
        !self.core.facts().machines.contains_key(name)
    }

    fn is_at_rest(&self) -> bool {
        self.core.facts().open_rollout(&cluster()).is_none()
    }

    fn lets_go(&mut self, name: &str) {
        self.lock("ceph", None, LockState::Inactive);
        self.lock("ceph", Some(name), LockState::Inactive);
    }

    fn finish_controls(&mut self) {
        for name in ["control-1", "control-2", "control-3"] {
            self.upgrade(name);
        }
    }

    fn phase(&self, name: &str) -> Option<String> {
        let told = documents::machines(self.core.facts(), |_| true, self.core.limits(), self.now());
        told.into_iter().find(|told| told.metadata.name == name)?.status.prepare_deletion_phase
    }

    /// Removes a simulated agent whose machine is no longer in the record.
    fn bury(&mut self, name: &str) -> MachineId {
        self.agents.remove(name).expect("an agent").id
    }
}

#[test]
fn a_worker_goes_when_its_workloads_are_away() {
    let mut fleet = deployed(3, 2);
    fleet.ask(remove("worker-1")).expect("begins");
    assert_eq!((fleet.requests().len(), fleet.phase("worker-1").as_deref()), (0, Some("started")));
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests(), fleet.why("worker-1").as_deref()), (vec!["worker-1"], Some("LocksActive")));
    assert_eq!(reason(fleet.ask(update())), "RolloutOpen");
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert!(fleet.is_gone("worker-1") && fleet.is_at_rest());
    let id = fleet.bury("worker-1");
    let facts = fleet.core.facts();
    assert!(facts.denied.contains_key(&id) && !facts.names.contains_key(&id));
    assert!(facts.locks.keys().all(|key| key.node.as_ref() != Some(&machine("worker-1"))), "its locks are gone");
    let said: Vec<&str> = facts.audit_lines().into_iter().map(|line| line.action.as_str()).collect();
    assert_eq!(&said[said.len() - 2..], ["remove", "removed"], "what was done stays on record");
    fleet.lock("ceph", None, LockState::Active);
    fleet.enroll("worker-1", Worker).expect("the name is free");
}

/// Its agent recorded the attempt, stopped before it began, and its next permit is withheld. Found by the simulator
/// (seed 7000188): the removal waited for an end that would have been rejected.
#[test]
fn one_that_is_not_believed_is_removed_by_force() {
    let mut fleet = Fleet::of(1, 1).reported();
    fleet.accept("worker-1");
    fleet.event("worker-1", "images", ItemState::Running);
    fleet.disconnect("worker-1");
    let hello = Hello { acked_seq: Seq(99), ..fleet.proven("worker-1", fleet.greeting("worker-1")) };
    fleet.hello("worker-1", hello).expect("greeted");
    fleet.ask(remove("worker-1")).expect("begins");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("UnprovenLedger"));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("removed");
    fleet.bury("worker-1");
    assert!(fleet.is_gone("worker-1"));
}

#[test]
fn what_never_began_keeps_nobody() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.begin("control-1"), "install");
    fleet.ask(remove("control-1")).expect("begins");
    assert_eq!(fleet.why("control-1").as_deref(), Some("ItemRunning"));
    let id = fleet.agents["control-1"].id;
    fleet.step(Input::PermitWanted { id, permit: 1 }).expect("known");
    fleet.accept("control-1");
    assert_eq!(fleet.why("control-1").as_deref(), Some("LocksSettling"));
    fleet.is_heard_of("control-1");
    assert!(fleet.is_gone("control-1"), "{:?}", fleet.why("control-1"));
}

#[test]
fn a_name_goes_on_counting_generations() {
    let mut fleet = deployed(3, 2);
    let generation = fleet.row("worker-1").assigned.generation;
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("begins");
    assert!(fleet.is_gone("worker-1"));
    fleet.enroll("worker-1", Worker).expect("the name is free");
    assert_eq!(fleet.row("worker-1").assigned.generation, generation, "its ledger may live on");
}

#[test]
fn it_is_kept_until_it_leaves_the_swarm() {
    let mut fleet = deployed(3, 2);
    assert_eq!(reason(fleet.ask(keep("worker-1"))), "NothingToDo");
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.ask(keep("worker-1")).expect("kept");
    assert!(fleet.requests().is_empty(), "what it held is given back");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert!(fleet.is_at_rest() && fleet.row("worker-1").removal.is_none());
    assert_eq!((fleet.state("worker-1"), fleet.why("worker-1")), ("Ready", None));
}

/// Seed 115021347323938: its agent may be lost before it has given back what it holds.
#[test]
fn aborted_removal_can_be_forced() {
    let mut fleet = deployed(3, 2);
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.lock("ceph", Some("worker-1"), LockState::Failed);
    fleet.ask(keep("worker-1")).expect("kept");
    assert_eq!(reason(fleet.ask(remove("worker-1"))), "RemovalAborting");
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("it is gone for good");
    assert!(fleet.is_gone("worker-1"), "{:?}", fleet.why("worker-1"));
}

#[test]
fn policies_are_only_loosened() {
    let mut fleet = deployed(3, 2);
    fleet.ask(remove("worker-1")).expect("begins");
    assert_eq!(reason(fleet.ask(remove("worker-1"))), "RemovalUnderWay");
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("nothing is waited for");
    assert!(fleet.is_gone("worker-1") && fleet.is_at_rest());
    fleet.ask(remove_by("worker-2", RemovalPolicy::Unsafe)).expect("begins");
    assert!(fleet.is_gone("worker-2"));
}

#[test]
fn one_that_is_away_is_removed_by_force_alone() {
    let mut fleet = deployed(3, 2);
    fleet.disconnect("worker-1");
    for policy in [RemovalPolicy::Graceful, RemovalPolicy::Unsafe] {
        assert_eq!(reason(fleet.ask(remove_by("worker-1", policy))), "RemovalNeedsAgent");
    }
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("begins");
    assert!(fleet.is_gone("worker-1"));
}

#[test]
fn one_that_goes_away_meanwhile_says_what_helps() {
    let mut fleet = deployed(3, 2);
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.disconnect("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("RemovalNeedsAgent"));
    fleet.pass(40_000, &[]);
    assert_eq!(fleet.phase("worker-1").as_deref(), Some("failed"));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("loosened");
    assert!(fleet.is_gone("worker-1") && fleet.is_at_rest());
}

#[test]
fn a_machine_that_blocks_an_update_is_removed_from_it() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.finish_controls();
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.fail("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Failed"));
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.accept("worker-1");
    fleet.is_heard_of("worker-1");
    assert!(fleet.is_gone("worker-1"), "its workloads are away already");
    fleet.bury("worker-1");
    fleet.upgrade("worker-2");
    fleet.lock("ceph", None, LockState::Active);
    assert!(fleet.is_at_rest(), "the rest completes");
}

#[test]
fn what_a_removal_was_aborted_of_is_where_it_was() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.ask(remove("worker-1")).expect("begins");
    assert_eq!(fleet.row("worker-1").update.as_ref().map(|part| part.version), Some(1), "it keeps what it has");
    fleet.ask(keep("worker-1")).expect("kept");
    assert_eq!((fleet.part("worker-1"), fleet.row("worker-1").removal.is_none()), (None, true));
}

#[test]
fn one_that_prepares_no_more_is_not_late_with_it() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["images", "install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.ask(remove("worker-1")).expect("begins");
    (0..4 * 180).for_each(|_| fleet.pass(20_000, &[]));
    let aside = |name| fleet.part(name).is_some_and(|part| part.deferral.is_some());
    assert_eq!((aside("worker-1"), aside("worker-2")), (false, true));
}

#[test]
fn an_update_that_loses_a_machine_takes_nobody_into_maintenance() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.finish_controls();
    fleet.ask(remove("worker-1")).expect("begins");
    let enter = Request::EnterMaintenance { machine: machine("control-1"), accept_control_plane_downtime: false };
    assert_eq!(reason(fleet.ask(enter)), "RolloutOpen");
}

#[test]
fn what_the_manifest_still_says_is_told() {
    let mut fleet = deployed(3, 2);
    let said = super::super::done(fleet.ask(remove("worker-1")));
    assert!(said.contains("spec.machines of edge-7 says 2 worker machines, and 1 will be left"), "{said}");
    assert!(!said.contains("waits until three are deployed"), "{said}");
    let said = super::super::done(fleet.ask(remove("control-1")));
    assert!(said.contains("2 control machines will be left: what disturbs one of them"), "{said}");
    let said = super::super::done(deployed(4, 1).ask(remove("control-1")));
    assert!(!said.contains("waits until three are deployed"), "{said}");
}

/// Its controller reactivated its lock while the machine was out of service.
#[test]
fn one_in_maintenance_whose_workloads_are_back_is_waited_for() {
    let mut fleet = deployed(3, 2);
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("begins");
    fleet.lets_go("worker-1");
    fleet.accept("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    fleet.ask(remove("worker-1")).expect("begins");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    // All of this happened in one millisecond, so the order must be independent of clocks.
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"));
    fleet.is_heard_of("worker-1");
    assert!(fleet.is_gone("worker-1"), "{:?}", fleet.why("worker-1"));
}

/// Its controllers' answer to its maintenance is no answer to its removal.
#[test]
fn one_in_maintenance_goes_when_its_controllers_know_that_it_goes_for_good() {
    let mut fleet = deployed(3, 2);
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("begins");
    fleet.lets_go("worker-1");
    fleet.accept("worker-1");
    fleet.pass(SETTLE_MS, &[]);
    fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream: 1 });
    fleet.ask(remove("worker-1")).expect("begins");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ControllerSilent"), "nobody has heard of it");
    fleet.watch("ceph", 2);
    fleet.heartbeats(HEARD_MS - 20_000, &[]);
    fleet.pass(20_000 - 1, &[]);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "it heard of it a moment ago");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "what is to stay is moved first");
    fleet.pass(1, &[]);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert!(fleet.is_gone("worker-1"), "{:?}", fleet.why("worker-1"));
}

/// Its controller never stays long enough to learn of it: only an operator can end that.
#[test]
fn one_whose_controllers_come_and_go_is_for_a_person() {
    let mut fleet = deployed(3, 2);
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("begins");
    fleet.lets_go("worker-1");
    fleet.accept("worker-1");
    fleet.ask(remove("worker-1")).expect("begins");
    let comes_and_goes = |fleet: &mut Fleet, times: u64| {
        for stream in 1..=times {
            fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream });
            fleet.watch("ceph", stream + 1);
            fleet.pass(HEARD_MS / 2, &[]);
        }
        fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream: times + 1 });
        fleet.watch("ceph", 1);
    };
    comes_and_goes(&mut fleet, 10);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"));
    assert_eq!((fleet.wants_a_person(), fleet.stuck("worker-1")), (false, None));
    comes_and_goes(&mut fleet, NODE_LOCKS_MS / HEARD_MS * 2);
    assert_eq!(fleet.stuck("worker-1"), Some(Stage::LocksInactive), "half an hour of that is no settling");
    assert!(fleet.wants_a_person() && fleet.desired() == DesiredState::Go);
    fleet.ask(keep("worker-1")).expect("kept");
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.stuck("worker-1")), (Some("InMaintenance"), None));
}

/// It has done all its items, but its agent has yet to learn that it is finished.
#[test]
fn one_that_was_disturbed_waits_for_its_controllers_to_a_deadline() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.finish_controls();
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.begin("worker-1");
    fleet.event("worker-1", "install", ItemState::Succeeded);
    fleet.say("ceph", LockCommand::Unwatch { cluster: cluster(), stream: 1 });
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.accept("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ControllerSilent"));
    (0..2 * NODE_LOCKS_MS / 20_000).for_each(|_| fleet.pass(20_000, &[]));
    assert!(matches!(fleet.desired(), DesiredState::Pause { .. }), "{:?}", fleet.stuck("worker-1"));
}

/// Its controller was about to release it, for the update.
#[test]
fn a_word_that_crosses_the_removal_is_no_answer_to_it() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.finish_controls();
    fleet.pass(SETTLE_MS, &[]);
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.pass(1, &[]);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.accept("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"));
    fleet.heartbeats(HEARD_MS - 20_000, &[]);
    fleet.pass(20_000 - 2, &[]);
    assert_eq!(fleet.core.wake_at(fleet.now()), Some(fleet.now().mono_ms + 1));
    fleet.pass(1, &["worker-1"]);
    assert!(fleet.is_gone("worker-1"), "{:?}", fleet.why("worker-1"));
}

/// It runs its former items, and its operator may yet change the decision.
#[test]
fn a_deployment_is_open_as_long_as_one_that_is_removed_is_at_work() {
    let mut fleet = Fleet::of(1, 2).reported().prepared();
    fleet.finish("control-1");
    fleet.begin("worker-1");
    fleet.finish("worker-2");
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ItemRunning"));
    assert!(!fleet.is_at_rest());
    fleet.ask(keep("worker-1")).expect("kept");
    fleet.event("worker-1", "install", ItemState::Succeeded);
    fleet.accept("worker-1");
    assert!(fleet.is_at_rest() && fleet.slots().is_empty(), "{:?}", fleet.why("worker-1"));
}

/// They may wait for the very thing that the abort brings about.
#[test]
fn an_abort_of_the_update_takes_removals_back_and_says_so() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["images", "install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.begin("worker-1");
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.ask(remove("worker-2")).expect("begins");
    let rollout = fleet.rollout();
    let said = super::super::done(fleet.ask(Request::Abort { rollout }));
    for name in ["worker-1", "worker-2"] {
        assert!(said.contains(&format!("machine {name}: stays; its removal is taken back")), "{said}");
    }
    assert!(fleet.row("worker-2").removal.is_none());
}

#[test]
fn who_was_put_aside_is_tried_again_when_what_was_in_the_way_is_gone() {
    let mut fleet = deployed(3, 3);
    release(&mut fleet, &["install"], 3);
    let mut fleet = fleet.started();
    fleet.finish_controls();
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.fail("worker-1");
    (0..2 * NODE_LOCKS_MS / 20_000).for_each(|_| fleet.pass(20_000, &[]));
    assert_eq!(fleet.requests(), ["worker-1"], "its controller grants one at a time");
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.accept("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "what ceph said was of the update");
    fleet.is_heard_of("worker-1");
    assert!(fleet.is_gone("worker-1"), "{:?}", fleet.why("worker-1"));
    fleet.bury("worker-1");
    assert_eq!(fleet.requests(), ["worker-2", "worker-3"], "{:?} {:?}", fleet.why("worker-2"), fleet.part("worker-2"));
}

#[test]
fn nothing_else_is_begun_with_what_is_removed() {
    let mut fleet = deployed(3, 2);
    fleet.ask(remove("worker-1")).expect("begins");
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    assert_eq!(reason(fleet.ask(enter)), "RemovalUnderWay");
    let reboot = Request::Reboot {
        cluster: cluster(),
        machines: [machine("worker-1")].into(),
        accept_control_plane_downtime: false,
    };
    assert_eq!(reason(fleet.ask(reboot)), "RolloutOpen");
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true }).expect_err("is removed");
}

#[test]
fn one_whose_workloads_come_back_is_through_before_it_is_removed() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    assert_eq!(fleet.why("control-1").as_deref(), Some("LocksReturning"));
    assert_eq!(reason(fleet.ask(remove("control-1"))), "RolloutOpen", "an abort may follow");
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    assert_eq!(reason(fleet.ask(remove("control-1"))), "RolloutOpen");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!(fleet.row("control-1").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1.1"));
    assert!(fleet.is_at_rest());
    fleet
        .ask(Request::Remove {
            machine: machine("control-1"),
            policy: RemovalPolicy::Graceful,
            accept_control_plane_downtime: true,
        })
        .expect("begins");
}

/// Seed 121882397573445: an item that failed there in an update does not block the removal. It is idle now.
#[test]
fn machine_that_failed_in_prepare_is_removed() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["images", "install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.fail("control-3");
    for name in ["control-1", "control-2", "worker-1", "worker-2"] {
        fleet.finish(name);
    }
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.why("control-3").as_deref(), Some("Failed"));
    let policy = RemovalPolicy::Graceful;
    let remove = Request::Remove { machine: machine("control-3"), policy, accept_control_plane_downtime: true };
    fleet.ask(remove).expect("begins");
    fleet.upgrade("control-1");
    fleet.upgrade("control-2");
    assert_eq!(fleet.requests(), ["control-3"], "{}", fleet.says("control-3"));
    fleet.accept("control-3");
    fleet.lock("ceph", Some("control-3"), LockState::Inactive);
    assert!(fleet.is_gone("control-3"), "{}", fleet.says("control-3"));
}
