//! Machines that are removed: what is waited for by each policy, what is asked of the swarm in which order, and what is
//! left.

use muster_proto::model::{
    LcmType, MachineId, RemovalPolicy, SwarmAvailability, SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo,
    SwarmLocalState, SwarmManager, SwarmMember, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply,
};

use super::{super::reason, *};
use crate::documents;

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

    /// Made-up agents that are in the record no more say nothing.
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
    let said: Vec<&str> = facts.audit.values().map(|line| line.action.as_str()).collect();
    assert_eq!(&said[said.len() - 2..], ["remove", "removed"], "what was done stays on record");
    fleet.lock("ceph", None, LockState::Active);
    fleet.enroll("worker-1", Worker).expect("the name is free");
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
fn one_that_a_recovered_store_waits_for_says_what_helps() {
    let mut fleet = deployed(3, 2);
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.recover_from(fleet.store.clone());
    for name in ["control-1", "control-2", "control-3", "worker-2"] {
        fleet.connect(name);
    }
    fleet.pass(3_600_000, &[]);
    assert!(fleet.core.facts().meta.recovering, "worker-1 has not said what it knows");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("RemovalNeedsAgent"));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("loosened");
    assert!(fleet.is_gone("worker-1") && !fleet.core.facts().meta.recovering);
}

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
    assert!(!fleet.is_at_rest(), "the others are reconfigured");
    fleet.finish("control-2");
    fleet.finish("control-3");
    assert!(fleet.is_at_rest());
    assert_eq!(reason(fleet.ask(remove("control-2"))), "Quorum");
    fleet.ask(remove_by("control-2", RemovalPolicy::Forced)).expect("begins");
    assert_eq!(reason(fleet.ask(remove_by("control-3", RemovalPolicy::Forced))), "LastControl");
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
fn workers_wait_for_a_control_machine_until_it_is_gone() {
    let mut fleet = Fleet::of(2, 1).reported().prepared();
    fleet.finish("control-1");
    assert_eq!(fleet.slots(), ["control-2"]);
    fleet.ask(remove("control-2")).expect("begins");
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true }).expect("replaced");
    assert!(fleet.is_at_rest(), "nobody is left whom the rollout waits for");
    fleet.enroll("worker-1", Worker).expect("enrols");
    fleet.connect("worker-1");
    let mut fleet = fleet.prepared();
    assert_eq!((fleet.slots(), fleet.why("worker-1").as_deref()), (vec!["control-2"], Some("WaitingForControl")));
    fleet.accept("control-2");
    assert!(fleet.is_gone("control-2"));
    assert_eq!(fleet.slots(), ["worker-1"]);
}

#[test]
fn one_that_prepares_no_more_is_not_late_with_it() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["images", "install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.ask(remove("worker-1")).expect("begins");
    (0..4 * 180).for_each(|_| fleet.pass(20_000, &[]));
    let aside = |name| fleet.part(name).is_some_and(|part| part.set_aside.is_some());
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
    assert!(told.reason == "Paused" && told.message.contains(cause), "{told:?}");
    fleet.ask(Request::Abort { rollout }).expect("the way out");
    assert!(fleet.row("control-2").removal.is_none(), "it stays");
}

#[test]
fn what_the_manifest_still_says_is_told() {
    let mut fleet = deployed(3, 2);
    let said = super::super::done(fleet.ask(remove("worker-1")));
    assert!(said.contains("spec.machines of edge-7 says 2 worker machines, and 1 will be left"), "{said}");
}

/// A made-up swarm: its managers, its nodes, who is up, and what was asked of it.
struct Swarm {
    nodes: Vec<(String, bool, SwarmNodeState)>,
    left: Vec<String>,
    log: Vec<String>,
}

fn node_id(name: &str) -> SwarmId {
    SwarmId::new(format!("id{}", name.replace('-', ""))).expect("letters and digits")
}

impl Swarm {
    fn of(fleet: &Fleet) -> Self {
        let nodes = fleet.agents.keys().map(|name| (name.clone(), name.starts_with('c'), SwarmNodeState::Ready));
        Self { nodes: nodes.collect(), left: Vec::new(), log: Vec::new() }
    }

    fn answer(&mut self, agent: &str, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        let at = |id: &SwarmId| self.nodes.iter().position(|(name, ..)| node_id(name) == *id).expect("a node");
        match op {
            SwarmOp::Info => {
                let node = (!self.left.iter().any(|name| name == agent)).then(|| node_id(agent));
                let state = if node.is_some() { SwarmLocalState::Active } else { SwarmLocalState::Inactive };
                let (hostname, error) = (agent.to_owned(), String::new());
                return Ok(SwarmReply::Info(SwarmInfo { state, node, manager: false, hostname, error }));
            }
            SwarmOp::Nodes => {
                let shown = self.nodes.iter().map(|(name, manager, state)| SwarmNode {
                    id: node_id(name),
                    hostname: name.clone(),
                    state: *state,
                    availability: SwarmAvailability::Drain,
                    manager: manager.then(|| SwarmManager {
                        leader: false,
                        reachable: *state == SwarmNodeState::Ready,
                        address: String::new(),
                    }),
                });
                return Ok(SwarmReply::Nodes(shown.collect()));
            }
            SwarmOp::Tasks { .. } => return Ok(SwarmReply::Tasks(Vec::new())),
            SwarmOp::Services { .. } => return Ok(SwarmReply::Services(Vec::new())),
            SwarmOp::Demote { node } => {
                let at = at(node);
                self.nodes[at].1 = false;
                self.log.push(format!("demote {}", self.nodes[at].0));
            }
            SwarmOp::Leave { node } => {
                let at = at(node);
                assert!(!self.nodes[at].1 && self.nodes[at].0 == agent, "{op:?}");
                self.nodes[at].2 = SwarmNodeState::Down;
                self.left.push(agent.to_owned());
                self.log.push(format!("{agent} leaves"));
            }
            SwarmOp::Remove { node, force, .. } => {
                let (name, manager, state) = self.nodes.remove(at(node));
                assert!(!manager && (*force || state == SwarmNodeState::Down), "{op:?}");
                self.log.push(format!("remove {name}{}", if *force { " by force" } else { "" }));
            }
            SwarmOp::SetAvailability { .. } | SwarmOp::Tokens => {
                let message = "nobody asks for it".to_owned();
                return Err(SwarmFailure { code: SwarmFailureCode::Engine, message });
            }
        }
        Ok(SwarmReply::Done)
    }
}

impl Fleet {
    /// Everybody is in the swarm.
    fn in_swarm(mut self) -> (Self, Swarm) {
        let mut spec = (**self.core.facts().spec(&cluster()).expect("applied")).clone();
        spec.lcm_type = LcmType::Swarm;
        self.ask(apply(spec, &[])).expect("applies");
        let swarm = Swarm::of(&self);
        (self, swarm)
    }

    fn goes_on(&mut self, swarm: &mut Swarm) {
        for _ in 0..100 {
            if self.questions.is_empty() {
                return;
            }
            let question = self.questions.remove(0);
            let (agent, _) = self.agents.iter().find(|(_, agent)| agent.id == question.agent).expect("an agent");
            let result = swarm.answer(&agent.clone(), &question.op);
            self.step(Input::SwarmAnswered { about: question.about, number: question.number, result }).expect("taken");
        }
        panic!("asks without end: {:?}", swarm.log);
    }
}

#[test]
fn a_manager_is_demoted_leaves_and_is_forgotten() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    fleet.ask(remove("control-2")).expect("begins");
    fleet.lets_go("control-2");
    assert_eq!(fleet.why("control-2").as_deref(), Some("LeavingSwarm"));
    assert_eq!(reason(fleet.ask(keep("control-2"))), "TooLate");
    let states = documents::cluster_states(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    assert_eq!((states[0].metadata.name.as_str(), states[0].spec.kind.as_str()), ("sr-control-2", "swarm-remove"));
    fleet.goes_on(&mut swarm);
    assert_eq!(swarm.log, ["demote control-2", "control-2 leaves", "remove control-2"]);
    assert!(fleet.is_gone("control-2"));
}

#[test]
fn a_manager_is_not_demoted_without_a_majority_of_the_others() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    swarm.nodes.iter_mut().filter(|(name, ..)| name == "control-3").for_each(|node| node.2 = SwarmNodeState::Down);
    fleet.ask(remove_by("control-2", RemovalPolicy::Unsafe)).expect("begins");
    fleet.goes_on(&mut swarm);
    assert!(swarm.log.is_empty(), "{:?}", swarm.log);
    assert_eq!(fleet.why("control-2").as_deref(), Some("Quorum"));
    swarm.nodes.iter_mut().for_each(|node| node.2 = SwarmNodeState::Ready);
    fleet.pass(12_000, &[]);
    fleet.goes_on(&mut swarm);
    assert!(fleet.is_gone("control-2"), "{:?}", swarm.log);
}

#[test]
fn control_machines_leave_one_after_another() {
    let (mut fleet, mut swarm) = deployed(5, 0).in_swarm();
    fleet.ask(remove_by("control-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.ask(remove_by("control-2", RemovalPolicy::Unsafe)).expect("begins");
    assert_eq!(fleet.why("control-2").as_deref(), Some("WaitingForTurn"));
    fleet.goes_on(&mut swarm);
    assert!(fleet.is_gone("control-1"));
}

#[test]
fn what_a_dead_machine_left_is_removed_by_force() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    let member = SwarmMember { swarm_id: node_id("swarm"), node_id: node_id("worker-1"), manager: false };
    let mut store = fleet.store.clone();
    let mut row = fleet.row("worker-1").clone();
    row.swarm = Some(member);
    let value = serde_json::to_vec(&row).expect("plain data");
    crate::store::Store::commit(
        &mut store,
        &[crate::store::Change::Put { table: crate::store::Table::Machines, key: "worker-1".to_owned(), value }],
    )
    .expect("kept in memory");
    fleet.restart_from(store);
    for name in ["control-1", "control-2", "control-3"] {
        fleet.connect(name);
    }
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("begins");
    assert_eq!(reason(fleet.ask(keep("worker-1"))), "TooLate");
    fleet.goes_on(&mut swarm);
    assert_eq!(swarm.log, ["remove worker-1 by force"]);
    assert!(fleet.is_gone("worker-1"));
}

#[test]
fn a_departure_that_takes_too_long_wants_a_person() {
    let (mut fleet, swarm) = deployed(3, 1).in_swarm();
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.lets_go("worker-1");
    let mut swarm = swarm;
    swarm.nodes.clear();
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("loosened");
    fleet.questions.clear();
    let after_ms = fleet.core.facts().spec(&cluster()).expect("applied").update_deadlines.swarm_drain.after_ms;
    assert_eq!(fleet.phase("worker-1").as_deref(), Some("started"));
    fleet.pass(after_ms, &[]);
    assert_eq!(fleet.phase("worker-1").as_deref(), Some("failed"));
}
