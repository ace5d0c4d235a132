//! The update, told as stories: what is granted, what is withheld though possible, and what is given back.

mod again;
mod behind;
mod controllers;
mod drains;
mod kubernetes;
mod locks;
mod maintenance;
pub(crate) mod reconfigure;
mod recovery;
mod removal;

use muster_proto::model::{
    ClusterSpec, DeadlineOutcome, ItemState, LockState,
    MachineType::{Control, Worker},
    Permit, Phase, Scope,
};

use super::{fleet::*, reason};
use crate::{
    core::{Effect, Input, LockCommand, Refusal, Reply, Request, update::Options},
    documents,
    facts::{DesiredState, MachineUpdate, Stage},
    plan::{blocked, safety::SPREAD_MS},
};

const FAILED: ItemState = ItemState::Failed { exit_code: 3, retryable: false };
pub(crate) const NODE_LOCKS_MS: u64 = 30 * 60 * 1000;
/// updateDeadlines.locksReturned, by default.
const LOCKS_RETURNED_MS: u64 = 30 * 60 * 1000;

/// A deployed cluster guarded by `ceph`, with an applied manifest that changes `install`.
pub(crate) fn deployed(control: u32, worker: u32) -> Fleet {
    guarded(Fleet::of(control, worker))
}

/// The machines of a fleet, deployed and guarded by `ceph`.
pub(crate) fn guarded(fleet: Fleet) -> Fleet {
    let mut fleet = fleet.reported().prepared();
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    let machines = fleet.agents.keys().map(|name| machine(name)).collect();
    fleet.say("ceph", LockCommand::Register { cluster: cluster(), machines, of_cluster: true });
    fleet.watch("ceph", 1);
    fleet
}

/// Time that controllers have to change their answer when a machine is removed permanently.
pub(crate) const HEARD_MS: u64 = 35_000;

/// The next release: another version of these items.
pub(crate) fn release(fleet: &mut Fleet, items: &[&str], width: u32) {
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.release.push_str(".1");
    spec.max_worker_upgrade_count = width;
    for item in spec.machine_types.values_mut().flatten().filter(|item| items.contains(&item.name.as_str())) {
        item.version.push_str(".1");
    }
    fleet.ask(apply(spec, &[])).expect("applies");
}

/// Applies a manifest that changes only how many workers may be down at once.
pub(crate) fn pace(fleet: &mut Fleet, width: u32) {
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.max_worker_upgrade_count = width;
    fleet.ask(apply(spec, &[])).expect("applies");
}

pub(crate) fn update() -> Request {
    Request::Update { cluster: cluster(), options: Options::of(Scope::Drain) }
}

impl Fleet {
    pub(crate) fn say(&mut self, controller: &str, word: LockCommand) {
        self.step(Input::Maintenance { controller: controller.to_owned(), word }).expect("taken");
    }

    /// A controller opens a stream of requests.
    pub(crate) fn watch(&mut self, controller: &str, stream: u64) {
        self.say(controller, LockCommand::Watch { cluster: cluster(), stream });
    }

    /// The release in a machine's request, or in the cluster's own (the empty name).
    fn coming(&self, name: &str) -> String {
        let cluster = cluster();
        let mut requested = documents::requested(self.core.facts(), &cluster);
        requested.find(|it| it.machine_name() == name).map(|it| it.release.to_owned()).unwrap_or_default()
    }

    /// A controller's lock command, with the coming release from its request.
    pub(crate) fn lock(&mut self, controller: &str, node: Option<&str>, state: LockState) {
        let release = self.coming(node.unwrap_or_default());
        self.say(
            controller,
            LockCommand::Set {
                cluster: cluster(),
                machine: node.map(machine),
                state,
                message: String::new(),
                percentage: 0,
                description: String::new(),
                release,
            },
        );
    }

    pub(crate) fn part(&self, name: &str) -> Option<&MachineUpdate> {
        self.row(name).update.as_ref()
    }

    /// The stage past its deadline there.
    pub(crate) fn stuck(&self, name: &str) -> Option<Stage> {
        Some(self.part(name)?.stuck.as_ref()?.stage)
    }

    /// Machines with a maintenance request.
    pub(crate) fn requests(&self) -> Vec<&str> {
        let machines = self.core.facts().machines.values();
        let requested = machines.filter(|row| row.update.as_ref().is_some_and(|part| part.request.is_some()));
        requested.map(|row| row.name.as_str()).collect()
    }

    pub(crate) fn rollout(&self) -> String {
        self.core.facts().open_rollout(&cluster()).expect("an update under way").name.clone()
    }

    /// The permit in its last received list.
    pub(crate) fn permit(&self, name: &str) -> Option<Permit> {
        self.agents[name].assignment.as_ref()?.items.last()?.permit
    }

    /// The update starts, all machines prepare, and the cluster's own lock is inactive.
    pub(crate) fn started(mut self) -> Self {
        self.ask(update()).expect("starts");
        let names: Vec<String> = self.agents.keys().cloned().collect();
        for name in names {
            self.finish(&name);
        }
        self.lock("ceph", None, LockState::Inactive);
        self
    }

    /// `ceph` releases a machine, it does its items, and `ceph` brings its workloads back.
    pub(crate) fn upgrade(&mut self, name: &str) {
        self.lock("ceph", Some(name), LockState::Inactive);
        self.finish(name);
        assert_eq!(self.why(name).as_deref(), Some("LocksReturning"), "{name}: {:?}", self.row(name));
        self.lock("ceph", Some(name), LockState::Active);
        assert_eq!((self.part(name), self.slot(name)), (None, None), "{name} is done");
    }
}

#[test]
fn control_machines_one_by_one_then_workers_then_the_request_is_gone() {
    let mut fleet = deployed(3, 3);
    release(&mut fleet, &["images", "install"], 2);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        assert_eq!(fleet.requests(), [control]);
        fleet.upgrade(control);
    }
    assert_eq!(fleet.requests(), ["worker-1", "worker-2"], "as many as may be down together");
    fleet.upgrade("worker-2");
    assert_eq!(fleet.requests(), ["worker-1", "worker-3"], "a freed slot goes to the next at once");
    fleet.upgrade("worker-3");
    fleet.upgrade("worker-1");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    let rollout = fleet.core.facts().rollouts.values().next_back().expect("one");
    let ended = rollout.update.as_ref().expect("an update");
    assert!(ended.request.is_none() && ended.stages.values().all(|stage| stage.succeeded), "{ended:?}");
    assert!(fleet.row("worker-1").stages.values().all(|stage| stage.succeeded));
    assert_eq!(fleet.row("worker-1").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1.1"));
}

#[test]
fn nothing_is_permitted_before_every_lock_is_inactive() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    fleet.say(
        "nova",
        LockCommand::Register { cluster: cluster(), machines: vec![machine("control-1")], of_cluster: false },
    );
    fleet.watch("nova", 2);
    let mut fleet = fleet.started();
    // `nova` has no lock of the cluster itself: after the settle time that is an answer.
    fleet.pass(10_000, &[]);
    assert_eq!((fleet.requests(), fleet.slot("control-1")), (vec!["control-1"], Some(Phase::Deploy)));
    assert_eq!((fleet.permit("control-1"), fleet.why("control-1")), (None, Some("LocksActive".to_owned())));
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.permit("control-1"), None, "slot free, agent connected, item ready, and one lock active");
    fleet.lock("nova", Some("control-1"), LockState::Failed);
    assert_eq!((fleet.permit("control-1"), fleet.why("control-1")), (None, Some("LockFailed".to_owned())));
    fleet.lock("nova", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.permit("control-1"), Some(Permit { number: 1, start_within_ms: 30_000 }));
}

#[test]
fn the_cluster_lock_comes_first() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["images", "install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.finish("control-1");
    assert_eq!(fleet.state("control-1"), "Prepare", "prepare is not disruptive and goes on meanwhile");
    assert!(fleet.requests().is_empty());
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["control-1"]);
}

#[test]
fn a_lock_inactive_from_last_time_is_no_answer() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let mut fleet = fleet.started();
    assert!(fleet.requests().is_empty());
    assert_eq!(fleet.why("control-1").as_deref(), Some("LockNotYetActive"));
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!(fleet.requests(), ["control-1"]);
}

#[test]
fn no_lock_is_an_answer_after_the_settle_time_only() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let release_lock = LockCommand::Release { cluster: cluster(), machine: Some(machine("control-1")) };
    fleet.say("ceph", release_lock);
    let mut fleet = fleet.started();
    assert_eq!(fleet.why("control-1").as_deref(), Some("LocksSettling"));
    let wake = fleet.core.wake_at(fleet.now()).expect("time alone changes this");
    assert!(wake <= fleet.now().mono_ms + 10_000);
    fleet.pass(10_000, &[]);
    assert!(fleet.permit("control-1").is_some());
}

#[test]
fn what_needs_no_maintenance_gets_none() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["images"], 1);
    let fleet = fleet.started();
    let open = fleet.core.facts().open_rollout(&cluster());
    assert!(open.is_none(), "images were fetched, and that was all: {open:?} {:?}", fleet.row("control-1"));
    assert!(!fleet.row("worker-1").stages.contains_key(&Stage::NodeRequested));
    assert_eq!(fleet.state("worker-1"), "Ready");
}

#[test]
fn a_permit_that_ran_out_is_followed_by_another_if_the_locks_still_allow() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(1));
    let id = fleet.agents["control-1"].id;
    fleet.step(Input::PermitWanted { id, permit: 1 }).expect("known");
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(2));
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    fleet.step(Input::PermitWanted { id, permit: 2 }).expect("known");
    assert_eq!(fleet.permit("control-1"), None, "the lock was taken back");
    fleet.accept("control-1");
    assert_eq!(fleet.why("control-1").as_deref(), Some("LocksActive"));
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(3));
}

/// By the time its agent is back, the conditions for the permit may be long over.
#[test]
fn a_permit_that_never_arrived_is_decided_anew() {
    for locks in [LockState::Active, LockState::Inactive] {
        let mut fleet = deployed(3, 1);
        release(&mut fleet, &["install"], 1);
        let mut fleet = fleet.started();
        let before = fleet.greeting("control-1");
        fleet.lock("ceph", Some("control-1"), LockState::Inactive);
        assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(1));
        fleet.disconnect("control-1");
        fleet.lock("ceph", Some("control-1"), locks);
        fleet.hello("control-1", before).expect("greeted");
        let expected = (locks == LockState::Inactive).then_some(2);
        assert_eq!(fleet.permit("control-1").map(|permit| permit.number), expected);
        assert!(
            fleet.part("control-1").expect("in the update").disturbed(),
            "it may have arrived for all that is known"
        );
    }
}

/// Seed 103260727801177: the item was recorded as running, had no room to begin, and its next permit was lost.
#[test]
fn lost_permit_of_item_that_has_not_begun_is_not_sent() {
    for locks in [LockState::Active, LockState::Inactive] {
        let mut fleet = deployed(3, 1);
        release(&mut fleet, &["install"], 1);
        let mut fleet = fleet.started();
        fleet.lock("ceph", Some("control-1"), LockState::Inactive);
        fleet.accept("control-1");
        fleet.event("control-1", "install", ItemState::Running);
        let before = fleet.greeting("control-1");
        let id = fleet.agents["control-1"].id;
        fleet.step(Input::PermitWanted { id, permit: 1 }).expect("known");
        assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(2));
        fleet.disconnect("control-1");
        fleet.lock("ceph", Some("control-1"), locks);
        let before = fleet.proven("control-1", before);
        fleet.hello("control-1", before).expect("greeted");
        let lists = fleet.effects.iter().filter_map(|effect| match effect {
            Effect::Assign { assignment, .. } => Some(assignment.items.iter().find_map(|item| item.permit)),
            Effect::Ack { .. } | Effect::AskSwarm(_) | Effect::AskKubernetes(_) | Effect::Close { .. } => None,
        });
        let lists: Vec<_> = lists.map(|permit| permit.map(|permit| permit.number)).collect();
        assert!(!lists.contains(&Some(2)), "what allowed it may be long over: {lists:?}");
        assert_eq!(lists.last(), Some(&(locks == LockState::Inactive).then_some(3)));
    }
}

/// On an overlapping stream it may still arrive, and an arrived permit counts.
#[test]
fn a_permit_that_arrived_or_may_yet_stays() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    let before = fleet.greeting("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.hello("control-1", before).expect("greeted");
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(1), "the streams overlap");
    fleet.disconnect("control-1");
    fleet.connect("control-1");
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(1), "it has it");
}

#[test]
fn a_machine_that_failed_keeps_everything_until_a_retry_completes_it() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.fail("worker-1");
    assert_eq!((fleet.requests(), fleet.slots()), (vec!["worker-1"], vec!["worker-1"]));
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Failed"));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    assert_eq!(fleet.requests(), ["worker-1"], "an abort does not give back what was disturbed");
    assert_eq!(fleet.part("worker-2"), None, "it leaves the update");
    fleet.ask(Request::Retry { machine: machine("worker-1"), item: None }).expect("retries");
    assert_eq!(fleet.permit("worker-1").map(|permit| permit.number), Some(2), "a retry has a permit of its own");
    fleet.finish("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert_eq!(fleet.row("worker-2").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1"));
}

/// From its first permit on, its list includes the reconfigure phase.
#[test]
fn updating_machine_shows_phase_of_open_item() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install", "join"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let item = fleet.begin("control-1");
    assert_eq!((item.as_str(), fleet.state("control-1")), ("install", "Deploy"));
    fleet.event("control-1", "install", ItemState::Succeeded);
    let item = fleet.begin("control-1");
    assert_eq!((item.as_str(), fleet.state("control-1")), ("join", "Reconfigure"));
}

#[test]
fn an_abort_ends_where_a_harmless_item_has_failed() {
    let mut spec = spec(3, 1);
    for item in spec.machine_types.values_mut().flatten() {
        item.disruptive = Some(false);
    }
    let mut fleet = guarded(Fleet::with(spec));
    release(&mut fleet, &["install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.accept("control-1");
    fleet.fail("control-1");
    assert_eq!((fleet.slots(), fleet.requests().len()), (vec!["control-1"], 0), "it keeps its slot");
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout: rollout.clone() }).expect("aborts");
    assert_eq!((fleet.slots().len(), fleet.part("control-1"), fleet.part("worker-1")), (0, None, None));
    assert!(fleet.core.facts().rollouts[&rollout].finished_at_ms.is_some());
    assert_eq!(fleet.row("control-1").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1"));
}

#[test]
fn one_refused_machine_does_not_hold_up_the_others() {
    let mut fleet = deployed(3, 3);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    fleet.pass(NODE_LOCKS_MS - 1, &[]);
    assert_eq!(fleet.requests(), ["worker-1"], "it has its time");
    fleet.pass(1, &[]);
    assert_eq!(fleet.requests(), ["worker-2"]);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Deferred"));
    fleet.upgrade("worker-2");
    fleet.upgrade("worker-3");
    assert_eq!(fleet.requests(), ["worker-1"], "it is tried again at the end");
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert!(fleet.requests().is_empty() && fleet.slots().is_empty(), "nothing is held");
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert!(fleet.requests().is_empty(), "and not again, for nothing has changed");
    fleet.ask(Request::Retry { machine: machine("worker-1"), item: None }).expect("asks again");
    fleet.upgrade("worker-1");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

/// Without another attempt, the workers would wait for it, and so for an operator.
#[test]
fn a_refused_control_machine_is_tried_again_before_the_workers() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Deferred"));
    fleet.upgrade("control-2");
    assert_eq!(fleet.requests(), ["control-3"]);
    fleet.upgrade("control-3");
    assert_eq!(fleet.requests(), ["control-1"], "it is tried again");
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert!(fleet.requests().is_empty(), "nobody came to an end since");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("WaitingForControl"));
    fleet.ask(Request::Retry { machine: machine("control-1"), item: None }).expect("asks again");
    fleet.upgrade("control-1");
    assert_eq!(fleet.requests(), ["worker-1"]);
}

/// It keeps its slot until an operator fixes it, and the others continue.
#[test]
fn one_that_failed_does_not_keep_another_from_its_next_try() {
    let mut fleet = deployed(3, 3);
    release(&mut fleet, &["install"], 2);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.fail("worker-1");
    fleet.pass(NODE_LOCKS_MS, &[]);
    fleet.pass(NODE_LOCKS_MS, &[]);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("Deferred"));
    fleet.upgrade("worker-3");
    assert_eq!(fleet.requests(), ["worker-1", "worker-2"], "it is tried again");
}

#[test]
fn a_controller_that_grants_one_at_a_time_never_runs_out_of_time() {
    let mut fleet = deployed(3, 5);
    release(&mut fleet, &["install"], 50);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    // The five were requested one after another.
    let spread_ms = 4 * SPREAD_MS;
    for n in 1..=5 {
        fleet.pass(NODE_LOCKS_MS - spread_ms - 1, &[]);
        let all_wait = fleet.requests().len();
        assert_eq!(all_wait, 6 - n, "those that wait keep their turn while others come to their end");
        fleet.upgrade(&format!("worker-{n}"));
    }
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

#[test]
fn the_policy_says_what_becomes_of_a_refused_machine() {
    for (outcome, why) in [(DeadlineOutcome::Fail, "Refused"), (DeadlineOutcome::Pause, "Paused")] {
        let mut fleet = deployed(3, 1);
        let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
        spec.update_deadlines.node_locks.outcome = outcome;
        fleet.ask(apply(spec, &[])).expect("applies");
        release(&mut fleet, &["install"], 1);
        let mut fleet = fleet.started();
        fleet.pass(NODE_LOCKS_MS, &[]);
        assert_eq!(fleet.why("control-1").as_deref(), Some(why));
    }
}

#[test]
fn instances_that_are_moved_by_hand_say_how_it_goes_on() {
    const MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";
    let mut fleet = deployed(3, 1);
    let clears_when = |fleet: &Fleet| fleet.look("control-1", blocked::of_machine).expect("it waits").clears_when;
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    assert_eq!(clears_when(&fleet), "ceph sets its lock inactive");
    let set = [(MODE.to_owned(), "manual".to_owned())].into();
    let noted = Request::AnnotateMachine { machine: machine("control-1"), set, remove: Vec::new() };
    fleet.ask(noted).expect("annotated");
    fleet.say(
        "ceph",
        LockCommand::Set {
            cluster: cluster(),
            machine: Some(machine("control-1")),
            state: LockState::Active,
            message: "2 instances are left: vm-1, vm-2".to_owned(),
            percentage: 50,
            description: String::new(),
            release: String::new(),
        },
    );
    let says = fleet.says("control-1");
    assert!(says.contains("2 instances are left: vm-1, vm-2"), "{says}");
    let by_hand = format!("its instances are moved by hand, then `musterctl annotate machine control-1 {MODE}=skip`");
    assert_eq!(clears_when(&fleet), by_hand);
}

#[test]
fn a_pause_holds_what_has_not_begun_and_an_abort_gives_it_back() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!((fleet.permit("control-1"), fleet.why("control-1")), (None, Some("Paused".to_owned())));
    fleet.pass(NODE_LOCKS_MS * 9, &[]);
    assert_eq!(fleet.requests(), ["control-1"], "no deadline runs in a pause");
    assert_eq!(fleet.says("control-1"), "the update is paused: nothing new starts");
    fleet.pass(NODE_LOCKS_MS * 40, &[]);
    assert!(fleet.says("control-1").contains("paused for over a day"), "{}", fleet.says("control-1"));
    fleet.ask(Request::Abort { rollout: rollout.clone() }).expect("aborts");
    assert!(fleet.requests().is_empty());
    assert_eq!(fleet.why("control-1").as_deref(), Some("LocksReturning"));
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    let ended = &fleet.core.facts().rollouts[&rollout];
    assert!(ended.finished_at_ms.is_some() && ended.update.as_ref().is_some_and(|u| u.desired == DesiredState::Abort));
    assert_eq!((fleet.state("control-1"), fleet.why("control-1")), ("Ready", None));
    fleet.ask(Request::Resume { rollout }).expect_err("it has ended");
    fleet.ask(update()).expect("another one can start");
}

#[test]
fn a_pause_lets_what_was_disturbed_come_to_its_end() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install", "join"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
    fleet.finish("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!((fleet.part("control-1"), fleet.requests().len()), (None, 0), "both items, and nothing new");
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    assert_eq!(fleet.requests(), ["control-2"]);
}

#[test]
fn locks_that_do_not_come_back_show_at_the_last_stage() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    fleet.pass(LOCKS_RETURNED_MS, &[]);
    let removed = &fleet.row("control-1").stages[&Stage::RequestRemoved];
    assert!(removed.finished_at_ms.is_some() && !removed.succeeded, "{removed:?}");
    assert_eq!(fleet.requests(), ["control-2"], "the others go on");
}

#[test]
fn a_manifest_applied_meanwhile_changes_nothing() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    release(&mut fleet, &["install"], 50);
    fleet.upgrade("control-1");
    assert_eq!(fleet.row("control-1").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1.1"));
}

#[test]
fn what_starts_is_what_was_agreed_to() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let planned = |fleet: &Fleet| {
        let (facts, limits) = (fleet.core.facts(), fleet.core.limits());
        let plan = documents::plan(facts, &cluster(), &Options::of(Scope::Drain), limits, fleet.now()).expect("a plan");
        plan.update.expect("something to do").digest
    };
    let agreed = planned(&fleet);
    fleet.pass(60_000, &[]);
    assert_eq!(planned(&fleet), agreed, "time alone changes nothing");
    release(&mut fleet, &["images"], 1);
    let start =
        |agreed| Request::Update { cluster: cluster(), options: Options { agreed, ..Options::of(Scope::Drain) } };
    assert_eq!(reason(fleet.ask(start(agreed))), "PlanChanged");
    let agreed = planned(&fleet);
    fleet.ask(start(agreed)).expect("starts");
}

#[test]
fn the_quorum_is_kept() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    fleet.disconnect("control-3");
    fleet.ask(update()).expect("starts");
    fleet.finish("control-1");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests().len(), fleet.why("control-1")), (0, Some("Quorum".to_owned())));
    fleet.connect("control-3");
    assert_eq!(fleet.requests(), ["control-1"]);
}

#[test]
fn the_quorum_is_kept_between_the_items_of_a_turn() {
    let mut spec = spec(3, 1);
    for items in spec.machine_types.values_mut() {
        items.push(item("settle", Phase::Deploy));
    }
    let mut fleet = guarded(Fleet::with(spec));
    release(&mut fleet, &["install", "settle"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(1));
    fleet.begin("control-1");
    fleet.disconnect("control-2");
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    assert_eq!(fleet.permit("control-1"), None, "1 of 3 would be left");
    assert_eq!(fleet.why("control-1").as_deref(), Some("Quorum"));
    fleet.connect("control-2");
    assert_eq!(fleet.permit("control-1").map(|permit| permit.number), Some(2));
}

#[test]
fn it_is_refused_where_it_could_not_go_well() {
    let refused = |fleet: &mut Fleet, request: Request| match fleet.ask(request) {
        Err(Refusal::State { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&mut Fleet::of(3, 1), update()), "NotDeployed");
    let mut fleet = Fleet::of(3, 1).reported();
    let Err(Refusal::State { reason, message }) = fleet.ask(update()) else { panic!("it began") };
    let keeps = ["worker-1", "are not through", "`musterctl describe machine control-1`"];
    assert!(reason == "RolloutOpen" && keeps.iter().all(|what| message.contains(what)), "{message}");
    let mut fleet = deployed(3, 1);
    assert_eq!(refused(&mut fleet, update()), "NothingToDo");
    let mut fleet = deployed(1, 1);
    release(&mut fleet, &["install"], 1);
    assert_eq!(refused(&mut fleet, update()), "Quorum");
    let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Drain) };
    let accepted = Request::Update { cluster: cluster(), options };
    assert!(matches!(fleet.ask(accepted), Ok(Reply::Done(_))));
    assert_eq!(refused(&mut fleet, update()), "RolloutOpen");
}

#[test]
fn a_slot_with_a_permit_is_freed_only_for_a_machine_that_is_off() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let (name, off) = (machine("control-1"), true);
    fleet.ask(Request::ReplaceMachine { machine: name.clone(), machine_is_off: false }).expect_err("it may be at work");
    fleet.ask(Request::RevokeMachine { machine: name.clone(), machine_is_off: false }).expect("shut out at once");
    assert_eq!(fleet.slots(), ["control-1"]);
    fleet.ask(Request::RevokeMachine { machine: name, machine_is_off: off }).expect("freed");
    assert!(fleet.slots().is_empty());
    assert_eq!(fleet.why("control-2").as_deref(), Some("Quorum"), "one of the two that are left is no majority");
}

#[test]
fn after_a_restart_everything_goes_on_from_the_record() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3", "worker-1", "worker-2"] {
        fleet.lock("ceph", Some(control), LockState::Inactive);
        fleet.begin(control);
        fleet.restart();
        fleet.all_report();
        fleet.event(control, "install", ItemState::Succeeded);
        fleet.finish(control);
        fleet.restart();
        fleet.all_report();
        fleet.lock("ceph", Some(control), LockState::Active);
    }
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

#[test]
fn the_budget_stops_new_starts() {
    let mut fleet = deployed(3, 4);
    release(&mut fleet, &["install"], 2);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    for worker in ["worker-1", "worker-2"] {
        fleet.lock("ceph", Some(worker), LockState::Inactive);
        fleet.begin(worker);
    }
    for worker in ["worker-1", "worker-2"] {
        fleet.event(worker, "install", FAILED);
    }
    assert_eq!(fleet.slots(), ["worker-1", "worker-2"]);
    assert_eq!(fleet.why("worker-3").as_deref(), Some("FailureBudget"));
}
