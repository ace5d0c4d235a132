//! One machine out of service: preconditions, effects, and what it gets back.

use muster_proto::model::{HostFacts, LcmType, Reason, SwarmAvailability};

use super::{super::reason, drains::Swarm, *};
use crate::documents;

fn enter(name: &str) -> Request {
    Request::EnterMaintenance { machine: machine(name), accept_control_plane_downtime: false }
}

fn leave(name: &str) -> Request {
    Request::LeaveMaintenance { machine: machine(name) }
}

impl Fleet {
    /// All controllers release this machine, and it is out of service.
    fn out(&mut self, name: &str) {
        self.ask(enter(name)).expect("begins");
        self.lock("ceph", None, LockState::Inactive);
        self.lock("ceph", Some(name), LockState::Inactive);
        assert_eq!(self.why(name).as_deref(), Some("InMaintenance"));
    }

    /// `ceph` brings the machine's workloads back, and the maintenance ends.
    fn back(&mut self, name: &str) {
        assert_eq!(self.why(name).as_deref(), Some("LocksReturning"));
        self.lock("ceph", Some(name), LockState::Active);
        assert_eq!((self.part(name), self.slot(name), self.why(name)), (None, None, None));
    }

    fn is_open(&self) -> bool {
        self.core.facts().open_rollout(&cluster()).is_some()
    }

    /// The state of the newest rollout as text.
    fn rollout_state(&self) -> String {
        let rollouts = documents::rollouts(self.core.facts(), |_| true, self.core.limits(), self.now());
        rollouts.last().expect("one").status.state.clone()
    }

    fn since_ms(&self, name: &str) -> Option<u64> {
        self.part(name)?.maintenance?.since_ms
    }
}

/// A cluster of the next release; `width` workers may be down at once.
fn deployed_with_width(control: u32, worker: u32, width: u32) -> Fleet {
    let mut fleet = deployed(control, worker);
    pace(&mut fleet, width);
    fleet
}

#[test]
fn who_is_lost_is_what_the_coordinator_was_told() {
    let mut fleet = deployed(3, 2);
    fleet.core.limits.lost_after_ms = 300_000;
    fleet.pass(60_000, &["worker-1"]);
    fleet.ask(enter("worker-1")).expect("it is silent, and not lost yet");
}

#[test]
fn a_machine_goes_out_of_service_when_its_locks_say_so_and_comes_back() {
    let mut fleet = deployed(3, 2);
    let generation = fleet.row("worker-1").assigned.generation;
    fleet.ask(enter("worker-1")).expect("begins");
    assert_eq!((fleet.requests().len(), fleet.why("worker-1").as_deref()), (0, Some("LocksActive")));
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests(), fleet.why("worker-1").as_deref()), (vec!["worker-1"], Some("LocksActive")));
    assert_eq!((fleet.since_ms("worker-1"), fleet.rollout_state().as_str()), (None, "InProgress"));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert_eq!(
        (fleet.why("worker-1").as_deref(), fleet.rollout_state().as_str()),
        (Some("InMaintenance"), "InMaintenance")
    );
    assert_eq!((fleet.state("worker-1"), fleet.wants_a_person()), ("Ready", false));
    assert_eq!(fleet.since_ms("worker-1"), Some(fleet.now().wall_ms));
    fleet.pass(NODE_LOCKS_MS * 9, &[]);
    assert_eq!(fleet.requests(), ["worker-1"], "nothing but its operator ends it");
    assert_eq!(fleet.row("worker-1").assigned.generation, generation, "it is told nothing new");
    fleet.ask(leave("worker-1")).expect("comes back");
    assert!(fleet.requests().is_empty());
    fleet.ask(leave("worker-1")).expect("said twice, done once");
    fleet.back("worker-1");
    assert!(!fleet.is_open());
    let rollouts = documents::rollouts(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    let stages = rollouts.last().and_then(|newest| newest.status.update.as_ref()).expect("as an update").stages.iter();
    let stages: Vec<&str> = stages.map(|stage| stage.name.as_str()).collect();
    assert!(stages.contains(&"Worker nodes done") && !stages.iter().any(|n| n.contains("upgraded")), "{stages:?}");
    let said = fleet.core.facts().audit_lines().into_iter().map(|line| line.action.as_str());
    assert_eq!(said.filter(|action| action.starts_with("maintenance")).count(), 2);
    assert_eq!(reason(fleet.ask(leave("worker-1"))), "NothingToDo");
}

#[test]
fn a_worker_is_drained_and_gets_its_availability_back() {
    for was in [SwarmAvailability::Active, SwarmAvailability::Pause, SwarmAvailability::Drain] {
        let mut fleet = deployed(3, 2);
        let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
        spec.lcm_type = LcmType::Swarm;
        fleet.ask(apply(spec, &[])).expect("applies");
        let mut swarm = Swarm::of(&fleet);
        swarm.node("worker-1").availability = was;
        fleet.ask(enter("worker-1")).expect("begins");
        fleet.lock("ceph", None, LockState::Inactive);
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.talk(&mut swarm);
        assert_eq!((fleet.why("worker-1").as_deref(), fleet.since_ms("worker-1")), (Some("SwarmDraining"), None));
        swarm.node("worker-1").tasks.clear();
        fleet.wait_for(&mut swarm, 2_000);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
        assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain);
        fleet.wait_for(&mut swarm, 60_000);
        fleet.ask(leave("worker-1")).expect("comes back");
        fleet.talk(&mut swarm);
        assert_eq!(swarm.availability("worker-1"), was);
        fleet.back("worker-1");
    }
}

#[test]
fn what_its_operator_made_of_its_node_a_moment_before_is_what_it_gets_back() {
    let mut fleet = deployed(3, 2);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.lcm_type = LcmType::Swarm;
    fleet.ask(apply(spec, &[])).expect("applies");
    let mut swarm = Swarm::of(&fleet);
    swarm.node("worker-1").tasks.clear();
    for was in [SwarmAvailability::Active, SwarmAvailability::Pause] {
        swarm.node("worker-1").availability = was;
        fleet.ask(enter("worker-1")).expect("begins");
        fleet.lock("ceph", None, LockState::Inactive);
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.talk(&mut swarm);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
        fleet.ask(leave("worker-1")).expect("comes back");
        fleet.talk(&mut swarm);
        assert_eq!(swarm.availability("worker-1"), was);
        fleet.back("worker-1");
        fleet.lock("ceph", None, LockState::Active);
    }
}

#[test]
fn of_rollouts_that_have_ended_the_newest_are_kept_and_those_that_machines_had_their_last_turn_in() {
    let mut fleet = deployed(3, 1);
    for _ in 0..105 {
        fleet.out("worker-1");
        fleet.ask(leave("worker-1")).expect("comes back");
        fleet.back("worker-1");
        fleet.lock("ceph", None, LockState::Active);
        fleet.pass(1_000, &[]);
    }
    let rollouts = &fleet.core.facts().rollouts;
    let kept = |number: u32| rollouts.contains_key(&format!("{}-maintenance-{number}", cluster()));
    assert_eq!((rollouts.len(), kept(6), kept(7), kept(106)), (101, false, true, true));
    assert!(rollouts.keys().any(|name| name.contains("deploy")), "that of the control machines");
    fleet.restart();
    assert_eq!(fleet.core.facts().rollouts.len(), 101, "the store has forgotten them too");
}

#[test]
fn what_a_machine_in_maintenance_does_is_nobodys_worry() {
    let mut fleet = deployed(3, 2);
    fleet.out("worker-1");
    let since_ms = fleet.since_ms("worker-1");
    fleet.disconnect("worker-1");
    fleet.pass(40_000, &[]);
    fleet.pass(40_000, &[]);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wants_a_person()), (Some("InMaintenance"), false));
    let machines = documents::machines(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    let told = machines.iter().find(|told| told.metadata.name == "worker-1").expect("one");
    assert!(!told.status.lost && told.status.maintenance.is_some_and(|known| known.since.is_some()), "{told:?}");
    fleet.restart();
    for name in ["control-1", "control-2", "control-3", "worker-2"] {
        fleet.connect(name);
    }
    fleet.pass(40_000, &[]);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.since_ms("worker-1")), (Some("InMaintenance"), since_ms));
    fleet.connect("worker-1");
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.due("worker-1")), (Some("InMaintenance"), None));
}

#[test]
fn a_machine_that_is_away_is_given_back_when_it_is_there() {
    let mut fleet = deployed(3, 1);
    fleet.out("worker-1");
    let since_ms = fleet.since_ms("worker-1");
    fleet.disconnect("worker-1");
    fleet.pass(10_000, &[]);
    fleet.ask(leave("worker-1")).expect("wanted back");
    assert_eq!(fleet.since_ms("worker-1"), since_ms, "it did not go out of service once more");
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wants_a_person()), (Some("Disconnected"), false));
    fleet.pass(40_000, &[]);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wants_a_person()), (Some("Lost"), true));
    assert_eq!(fleet.requests(), ["worker-1"], "its workloads must not come back to a machine that is not there");
    fleet.connect("worker-1");
    assert!(fleet.requests().is_empty());
    fleet.back("worker-1");
}

#[test]
fn one_that_is_on_its_way_gives_back_what_it_holds() {
    let mut fleet = deployed(3, 1);
    fleet.ask(enter("worker-1")).expect("begins");
    fleet.ask(leave("worker-1")).expect("not wanted any more");
    assert!(!fleet.is_open(), "nothing was held");
    fleet.lock("ceph", None, LockState::Active);
    fleet.ask(enter("worker-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.disconnect("worker-1");
    fleet.ask(leave("worker-1")).expect("not wanted any more");
    assert!(fleet.requests().is_empty(), "nothing was done to it");
    fleet.back_at_rest("worker-1");
}

impl Fleet {
    fn back_at_rest(&mut self, name: &str) {
        self.lock("ceph", Some(name), LockState::Active);
        assert_eq!((self.part(name), self.is_open()), (None, false));
    }
}

#[test]
fn one_that_is_refused_is_put_aside_and_asked_for_again() {
    let mut fleet = deployed(3, 1);
    fleet.ask(enter("worker-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wants_a_person()), (Some("Deferred"), true));
    assert!(fleet.requests().is_empty() && fleet.slots().is_empty());
    fleet.ask(Request::Retry { machine: machine("worker-1"), item: None }).expect("asks again");
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
    fleet.ask(leave("worker-1")).expect("comes back");
    fleet.back("worker-1");
}

#[test]
fn it_is_refused_where_it_could_not_go_well() {
    let mut fleet = deployed(3, 3);
    assert_eq!(reason(fleet.ask(enter("worker-9"))), "NotFound");
    assert_eq!(reason(fleet.ask(leave("worker-1"))), "NothingToDo");
    fleet.disconnect("worker-2");
    assert_eq!(reason(fleet.ask(enter("worker-2"))), "NotReady");
    fleet.connect("worker-2");
    fleet.out("worker-1");
    assert_eq!(reason(fleet.ask(enter("worker-1"))), "InMaintenance");
    assert_eq!(reason(fleet.ask(enter("worker-2"))), "NoRoom", "one worker at once");
    release(&mut fleet, &["install"], 1);
    for other in
        [update(), Request::Reboot { cluster: cluster(), machines: [].into(), accept_control_plane_downtime: false }]
    {
        assert_eq!(reason(fleet.ask(other)), "RolloutOpen");
    }
    fleet.ask(leave("worker-1")).expect("comes back");
    assert_eq!(reason(fleet.ask(enter("worker-1"))), "InMaintenance", "it is on its way back");
    fleet.back("worker-1");
    let mut fleet = fleet.started();
    assert_eq!(reason(fleet.ask(enter("worker-1"))), "RolloutOpen");
    for control in [1, 2] {
        let mut fleet = deployed(control, 1);
        assert_eq!(reason(fleet.ask(enter("control-1"))), "Quorum");
        let accept_control_plane_downtime = true;
        let accepted = Request::EnterMaintenance { machine: machine("control-1"), accept_control_plane_downtime };
        fleet.ask(accepted).expect("somebody has accepted that");
    }
}

/// Other machines may join the rollout while one is out of service.
#[test]
fn what_was_accepted_for_one_is_not_for_the_next() {
    let mut fleet = deployed(2, 1);
    fleet.out("worker-1");
    let accepted = Request::EnterMaintenance { machine: machine("control-1"), accept_control_plane_downtime: true };
    fleet.ask(accepted).expect("somebody has accepted that");
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.why("control-1").as_deref(), Some("InMaintenance"));
    fleet.ask(leave("control-1")).expect("comes back");
    fleet.back("control-1");
    assert!(fleet.is_open(), "the worker is out yet");
    assert_eq!(reason(fleet.ask(enter("control-2"))), "Quorum");
    assert_eq!(reason(fleet.ask(enter("control-1"))), "Quorum");
}

#[test]
fn several_are_out_as_far_as_an_update_would_let_them() {
    let mut fleet = deployed_with_width(3, 3, 2);
    fleet.out("worker-2");
    let rollout = fleet.rollout();
    fleet.ask(enter("worker-1")).expect("two at once");
    assert_eq!(fleet.rollout_state(), "InProgress");
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert_eq!((fleet.rollout_state().as_str(), fleet.rollout()), ("InMaintenance", rollout.clone()));
    assert_eq!(reason(fleet.ask(enter("worker-3"))), "NoRoom");
    fleet.ask(enter("control-1")).expect("a control machine has a slot of its own");
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.why("control-1").as_deref(), Some("InMaintenance"));
    assert_eq!(reason(fleet.ask(enter("control-2"))), "NoRoom", "a control machine in maintenance is away");
    fleet.ask(leave("worker-1")).expect("comes back");
    fleet.back("worker-1");
    assert_eq!(reason(fleet.ask(enter("worker-1"))), "NoRoom", "no worker goes while a control machine is away");
    fleet.ask(Request::Abort { rollout }).expect("all come back");
    fleet.back("worker-2");
    fleet.back("control-1");
    assert!(!fleet.is_open());
}

#[test]
fn a_control_machine_goes_only_while_every_other_is_there() {
    let mut fleet = deployed(3, 1);
    fleet.disconnect("control-3");
    fleet.ask(enter("control-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests().len(), fleet.why("control-1").as_deref()), (0, Some("Quorum")));
    fleet.connect("control-3");
    assert_eq!(fleet.requests(), ["control-1"]);
    fleet.disconnect("control-2");
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!((fleet.since_ms("control-1"), fleet.why("control-1").as_deref()), (None, Some("Quorum")));
    fleet.connect("control-2");
    assert_eq!(fleet.why("control-1").as_deref(), Some("InMaintenance"));
}

#[test]
fn who_is_on_its_way_out_and_has_no_majority_behind_it_is_told_the_way_back() {
    let mut fleet = deployed(3, 1);
    fleet.ask(enter("control-1")).expect("begins");
    fleet.ask(Request::RevokeMachine { machine: machine("control-2"), machine_is_off: true }).expect("revoked");
    fleet.lock("ceph", None, LockState::Inactive);
    let why = fleet.look("control-1", blocked::of_machine).expect("it waits");
    assert!(
        why.reason == Reason::Quorum && why.clears_when.contains("`musterctl maintenance leave control-1`"),
        "{why:?}"
    );
    fleet.ask(leave("control-1")).expect("gives up");
    assert!(!fleet.is_open());
}

#[test]
fn no_item_runs_on_a_machine_in_maintenance() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["images"], 1);
    fleet.ask(update()).expect("starts");
    fleet.accept("worker-1");
    fleet.event("worker-1", "images", ItemState::Running);
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.ask(enter("worker-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.accept("worker-1");
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.since_ms("worker-1")), (Some("ItemRunning"), None));
    let agent = &fleet.agents["worker-1"];
    let mut status = agent.statuses[&item_name("images")].clone();
    status.state = ItemState::Succeeded;
    let seq = agent.seq.next();
    fleet.agents.get_mut("worker-1").expect("one").seq = seq;
    fleet.event_at("worker-1", seq, status).expect("recorded");
    fleet.accept("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
    let list = fleet.agents["worker-1"].assignment.as_ref().expect("a list");
    assert!(list.items.is_empty(), "what its old version wants again waits: {list:?}");
}

#[test]
fn a_lock_taken_back_is_told_and_ends_nothing() {
    let mut fleet = deployed(3, 1);
    fleet.out("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    let machines = documents::machines(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    let told =
        machines.iter().find(|told| told.metadata.name == "worker-1").and_then(|told| told.status.blocked.clone());
    let told = told.expect("a reason").blocked;
    assert!(told.reason == Reason::InMaintenance && told.message.contains("ceph: active"), "{told:?}");
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert_eq!(fleet.requests(), ["worker-1"]);
}

#[test]
fn a_recovered_store_knows_who_is_out_of_service() {
    let mut fleet = deployed(3, 2);
    fleet.out("worker-1");
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    fleet.accept("worker-1");
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.slots()), (Some("InMaintenance"), vec!["worker-1"]));
    // The copy's state of its lock does not count.
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.ask(leave("worker-1")).expect("comes back");
    fleet.back("worker-1");
}

#[test]
fn one_that_is_replaced_meanwhile_holds_nobody_up() {
    let mut fleet = deployed(3, 2);
    fleet.out("worker-1");
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: false }).expect("replaced");
    assert!(!fleet.is_open() && fleet.slots().is_empty());
}

#[test]
fn machines_that_come_meanwhile_wait_and_say_for_whom() {
    let mut fleet = deployed(3, 1);
    fleet.out("worker-1");
    fleet.enroll("worker-7", Worker).expect("enrols");
    fleet.connect("worker-7");
    assert_eq!(fleet.why("worker-7").as_deref(), Some("MaintenanceInProgress"));
    fleet.ask(leave("worker-1")).expect("comes back");
    fleet.back("worker-1");
    assert_ne!(fleet.why("worker-7").as_deref(), Some("MaintenanceInProgress"));
}

/// A deadline ends an update but never maintenance: only the operator knows when a machine may return.
#[test]
fn locks_of_the_cluster_that_fail_an_update_only_pause_maintenance() {
    let mut fleet = deployed_with_width(3, 2, 2);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_deadlines.cluster_locks.outcome = DeadlineOutcome::Fail;
    fleet.ask(apply(spec, &[])).expect("applies");
    fleet.ask(enter("worker-1")).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert!(fleet.since_ms("worker-1").is_some());
    fleet.lock("ceph", None, LockState::Active);
    (0..720).for_each(|_| fleet.pass(20_000, &[]));
    fleet.ask(enter("worker-2")).expect("begins");
    (0..720).for_each(|_| fleet.pass(20_000, &[]));
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
    assert!(fleet.part("worker-1").is_some_and(|part| part.maintenance.is_some_and(|row| !row.leaving)));
    assert_eq!(fleet.why("worker-2").as_deref(), Some("Paused"));
}

/// Seed 121882397569245: its list was lost with its stream. Meanwhile it returned to service and kept its former list.
#[test]
fn list_lost_with_stream_is_sent_when_it_may_change() {
    let mut fleet = Fleet::of(1, 1).reported().prepared();
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    fleet.ask(enter("worker-1")).expect("begins");
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
    let had = fleet.agents["worker-1"].assignment.clone();
    let control = fleet.agents["control-1"].id;
    let moved = HostFacts { internal_ip: Some("10.0.9.9".to_owned()), ..fleet.greeting("control-1").facts };
    fleet.report_host(control, moved);
    let lost = fleet.row("worker-1").assigned.generation;
    assert!(had.as_ref().is_some_and(|had| had.generation < lost), "the address changes its list");
    fleet.ask(leave("worker-1")).expect("is wanted back");
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None));
    fleet.agents.get_mut("worker-1").expect("known").assignment = had;
    fleet.disconnect("worker-1");
    fleet.connect("worker-1");
    let known = |fleet: &Fleet| fleet.agents["worker-1"].assignment.as_ref().map(|list| list.generation);
    assert!(known(&fleet) < Some(lost), "at rest it keeps what it has");
    fleet.ask(enter("worker-1")).expect("begins");
    assert_eq!(known(&fleet), Some(fleet.row("worker-1").assigned.generation), "now it is sent the newest");
    fleet.accept("worker-1");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
}
