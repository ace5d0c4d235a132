//! Departure from the swarm: the questions, their targets and their order.

use muster_proto::{
    convert::Hello,
    model::{
        Generation, Reason, SwarmFailure, SwarmFailureCode, SwarmInfo, SwarmLocalState, SwarmManager, SwarmNode,
        SwarmNodeState, SwarmOp, SwarmReply,
    },
};

use super::{drains::node_id, *};

/// A simulated swarm: its managers, its nodes and their states, and the log of questions.
struct Swarm {
    nodes: Vec<(String, bool, SwarmNodeState)>,
    left: Vec<String>,
    /// A machine that claims to be the node of another.
    lies: Option<(&'static str, &'static str)>,
    /// Its managers have lost their majority.
    leaderless: bool,
    /// Machines whose engines are no managers.
    not_managers: Vec<&'static str>,
    log: Vec<String>,
}

impl Swarm {
    fn of(fleet: &Fleet) -> Self {
        let nodes = fleet.agents.keys().map(|name| (name.clone(), name.starts_with('c'), SwarmNodeState::Ready));
        Self {
            nodes: nodes.collect(),
            left: Vec::new(),
            lies: None,
            leaderless: false,
            not_managers: Vec::new(),
            log: Vec::new(),
        }
    }

    fn answer(&mut self, agent: &str, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        let at = |id: &SwarmId| self.nodes.iter().position(|(name, ..)| node_id(name) == *id).expect("a node");
        match op {
            SwarmOp::Info => {
                let claimed = self.lies.filter(|(who, _)| *who == agent).map_or(agent, |(_, whose)| whose);
                let node = (!self.left.iter().any(|name| name == agent)).then(|| node_id(claimed));
                let state = if node.is_some() { SwarmLocalState::Active } else { SwarmLocalState::Inactive };
                let (hostname, error) = (agent.to_owned(), String::new());
                return Ok(SwarmReply::Info(SwarmInfo { state, node, manager: false, hostname, error }));
            }
            _ if self.not_managers.contains(&agent) => {
                let message = "This node is not a swarm manager.".to_owned();
                return Err(SwarmFailure { code: SwarmFailureCode::NotManager, message });
            }
            _ if self.leaderless => {
                let message = "The swarm does not have a leader".to_owned();
                return Err(SwarmFailure { code: SwarmFailureCode::NoQuorum, message });
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
            SwarmOp::SetAvailability { .. } | SwarmOp::Labels { .. } | SwarmOp::AddLabels { .. } | SwarmOp::Tokens => {
                let message = "nobody asks for it".to_owned();
                return Err(SwarmFailure { code: SwarmFailureCode::Engine, message });
            }
        }
        Ok(SwarmReply::Done)
    }
}

impl Fleet {
    /// All machines are in the swarm.
    fn in_swarm(mut self) -> (Self, Swarm) {
        self.join_all();
        let swarm = Swarm::of(&self);
        (self, swarm)
    }

    fn answers_one(&mut self, swarm: &mut Swarm) {
        let question = self.questions.remove(0);
        let (agent, _) = self.agents.iter().find(|(_, agent)| agent.id == question.agent).expect("an agent");
        let result = swarm.answer(&agent.clone(), &question.op);
        self.step(Input::SwarmAnswered { about: question.about, number: question.number, result }).expect("taken");
    }

    fn goes_on(&mut self, swarm: &mut Swarm) {
        for _ in 0..100 {
            if self.questions.is_empty() {
                return;
            }
            self.answers_one(swarm);
        }
        panic!("asks without end: {:?}", swarm.log);
    }
}

/// The drain's last answer arrives when the machine already departs and its node is still unknown.
#[test]
fn a_late_answer_says_nothing_of_a_node_that_is_not_known_yet() {
    let (mut fleet, mut swarm) = deployed(3, 2).in_swarm();
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.lets_go("worker-1");
    while !matches!(fleet.questions[0].op, SwarmOp::Nodes) {
        fleet.answers_one(&mut swarm);
    }
    let late = fleet.questions.remove(0);
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("loosened");
    let result = swarm.answer("control-1", &late.op);
    fleet.step(Input::SwarmAnswered { about: late.about, number: late.number, result }).expect("taken");
    fleet.goes_on(&mut swarm);
    assert_eq!(swarm.log, ["worker-1 leaves", "remove worker-1"]);
    assert!(fleet.is_gone("worker-1"));
}

#[test]
fn an_engine_that_is_there_leaves_however_its_managers_see_it() {
    let (mut fleet, mut swarm) = deployed(3, 2).in_swarm();
    swarm.nodes.iter_mut().filter(|node| node.0 == "worker-1").for_each(|node| node.2 = SwarmNodeState::Down);
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.goes_on(&mut swarm);
    assert_eq!(swarm.log, ["worker-1 leaves", "remove worker-1"]);
    assert!(fleet.is_gone("worker-1"));
}

#[test]
fn a_store_older_than_the_fleet_takes_nobody_out() {
    let (mut fleet, _) = deployed(3, 2).in_swarm();
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    assert!(!fleet.questions.is_empty());
    fleet.restart_from(fleet.store.clone());
    let newer = fleet.proven("control-1", Hello { generation: Generation(99), ..fleet.greeting("control-1") });
    fleet.hello("control-1", newer).expect("greeted");
    for name in ["control-2", "control-3", "worker-1", "worker-2"] {
        fleet.connect(name);
    }
    fleet.pass(20_000, &[]);
    assert!(fleet.questions.is_empty(), "{:?}", fleet.questions);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("StoreOlderThanFleet"));
}

/// All managers are permanently gone: they cannot be removed from the swarm, and a new one creates a new swarm.
#[test]
fn dead_control_machines_are_in_nobodys_way() {
    let (mut fleet, _) = deployed(3, 1).in_swarm();
    ["control-1", "control-2", "control-3"].iter().for_each(|name| fleet.disconnect(name));
    fleet.pass(40_000, &["control-1", "control-2", "control-3"]);
    fleet.ask(remove_by("control-1", RemovalPolicy::Forced)).expect("begins");
    fleet.ask(remove_by("control-2", RemovalPolicy::Forced)).expect("begins");
    assert_eq!(fleet.why("control-1").as_deref(), Some("SwarmNoManager"));
    assert_eq!(reason(fleet.ask(remove_by("control-3", RemovalPolicy::Forced))), "LastControl");
    let replace = Request::ReplaceMachine { machine: machine("control-3"), machine_is_off: true };
    fleet.ask(replace).expect("replaced");
    assert!(fleet.is_gone("control-1") && fleet.is_gone("control-2"));
}

/// Seed 277170576804949: the engines of the others, once members, are no managers, so no machine can remove the node.
#[test]
fn forced_removal_ends_without_managers() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    swarm.not_managers = vec!["control-1"];
    swarm.leaderless = true;
    fleet.ask(remove_by("control-3", RemovalPolicy::Forced)).expect("begins");
    fleet.goes_on(&mut swarm);
    assert_eq!(fleet.why("control-3").as_deref(), Some("SwarmNoManager"), "control-2 may get its majority back");
    swarm.not_managers.push("control-2");
    fleet.disconnect("control-2");
    fleet.pass(5_000, &["control-2", "control-3"]);
    fleet.goes_on(&mut swarm);
    assert_eq!(fleet.why("control-3").as_deref(), Some("SwarmNoManager"), "control-2 has yet to answer");
    fleet.connect("control-2");
    fleet.goes_on(&mut swarm);
    fleet.pass(5_000, &["control-3"]);
    fleet.goes_on(&mut swarm);
    assert!(fleet.is_gone("control-3"), "{:?}", fleet.why("control-3"));
    assert!(swarm.log.is_empty(), "{:?}", swarm.log);
}

/// With the other policies the machine's own engine has yet to leave.
#[test]
fn unsafe_removal_waits_for_managers() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    swarm.not_managers = vec!["control-1", "control-2", "control-3"];
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.goes_on(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmNoManager"));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("loosened");
    fleet.goes_on(&mut swarm);
    fleet.pass(5_000, &["worker-1"]);
    fleet.goes_on(&mut swarm);
    assert!(fleet.is_gone("worker-1"), "{:?}", fleet.why("worker-1"));
}

#[test]
fn the_name_is_taken_until_the_machine_is_gone() {
    let (mut fleet, _) = deployed(3, 2).in_swarm();
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true }).expect("replaced");
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("begins");
    assert_eq!(reason(fleet.enroll("worker-1", Worker)), "NameTaken");
}

/// A compromised machine is removed, and names a manager as its node.
#[test]
fn nobody_else_is_taken_out_by_the_word_of_a_machine() {
    let (mut fleet, mut swarm) = deployed(3, 2).in_swarm();
    swarm.lies = Some(("worker-1", "control-1"));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.goes_on(&mut swarm);
    assert!(swarm.log.is_empty(), "{:?}", swarm.log);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("NodeNotItsOwn"));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("its own node is on record");
    fleet.goes_on(&mut swarm);
    assert_eq!(swarm.log, ["remove worker-1 by force"]);
    assert!(fleet.is_gone("worker-1"));
}

/// A manager outside the record.
#[test]
fn no_worker_is_taken_for_a_manager() {
    let (mut fleet, mut swarm) = deployed(3, 2).in_swarm();
    swarm.nodes.push(("foreign".to_owned(), true, SwarmNodeState::Ready));
    swarm.lies = Some(("worker-1", "foreign"));
    for policy in [RemovalPolicy::Unsafe, RemovalPolicy::Forced] {
        fleet.ask(remove_by("worker-1", policy)).expect("begins, or is loosened");
        fleet.goes_on(&mut swarm);
        assert!(swarm.log.is_empty(), "{:?}", swarm.log);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("NodeNotItsOwn"));
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
    while !fleet.questions.is_empty() {
        let waits = fleet.look("control-2", blocked::of_machine).expect("it waits").message;
        assert!(!waits.starts_with("Error"), "a step on its way: {waits}");
        fleet.answers_one(&mut swarm);
        if fleet.is_gone("control-2") {
            break;
        }
    }
    fleet.goes_on(&mut swarm);
    assert_eq!(swarm.log, ["demote control-2", "control-2 leaves", "remove control-2"]);
    assert!(fleet.is_gone("control-2"));
}

/// Seed 1001195: it is out of service, and the cluster as a whole can no longer spare any machine.
#[test]
fn departure_waits_for_cluster_lock() {
    let (mut fleet, _) = deployed(3, 2).in_swarm();
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("begins");
    let mut swarm = drains::Swarm::of(&fleet);
    swarm.node("worker-1").tasks.clear();
    fleet.lets_go("worker-1");
    fleet.talk(&mut swarm);
    fleet.accept("worker-1");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
    fleet.lock("ceph", None, LockState::Active);
    fleet.ask(remove("worker-1")).expect("begins");
    fleet.watch("ceph", 9);
    fleet.is_heard_of("worker-1");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"));
    assert!(!fleet.wants_a_person(), "its controller has time to let it go");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LeavingSwarm"));
}

#[test]
fn a_manager_is_not_demoted_without_a_majority_of_the_others() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    swarm.nodes.iter_mut().filter(|(name, ..)| name == "control-3").for_each(|node| node.2 = SwarmNodeState::Down);
    fleet.ask(remove_by("control-2", RemovalPolicy::Unsafe)).expect("begins");
    fleet.goes_on(&mut swarm);
    assert!(swarm.log.is_empty(), "{:?}", swarm.log);
    assert_eq!(fleet.why("control-2").as_deref(), Some("Quorum"));
    let since = fleet.row("control-2").blocked_since;
    fleet.pass(12_000, &[]);
    assert!(!fleet.questions.is_empty(), "they are counted again");
    assert_eq!(fleet.row("control-2").blocked_since, since, "for the same reason since then");
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
    fleet.bury("control-1");
    assert_eq!(fleet.rollout(), "edge-7-reconfigure-2", "the others hear of it");
    assert!(fleet.slots().is_empty(), "when their workloads are away");
    fleet.accept("control-2");
    fleet.goes_on(&mut swarm);
    assert!(fleet.is_gone("control-2"), "{:?} {:?}", fleet.why("control-2"), swarm.log);
}

#[test]
fn what_a_dead_machine_left_is_removed_by_force() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("begins");
    assert_eq!(reason(fleet.ask(keep("worker-1"))), "TooLate");
    fleet.goes_on(&mut swarm);
    assert_eq!(swarm.log, ["remove worker-1 by force"]);
    assert!(fleet.is_gone("worker-1"));
}

/// A manager's earlier answer about the node is obsolete.
#[test]
fn a_swarm_that_loses_its_majority_meanwhile_is_told() {
    let (mut fleet, mut swarm) = deployed(3, 1).in_swarm();
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("begins");
    while !matches!(fleet.questions[0].op, SwarmOp::Remove { .. }) {
        fleet.answers_one(&mut swarm);
    }
    swarm.leaderless = true;
    fleet.goes_on(&mut swarm);
    fleet.pass(12_000, &["worker-1"]);
    fleet.goes_on(&mut swarm);
    let why = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    assert!(why.reason == Reason::SwarmNoManager && why.message.contains("does not have a leader"), "{why:?}");
    swarm.leaderless = false;
    fleet.pass(12_000, &["worker-1"]);
    fleet.goes_on(&mut swarm);
    assert!(fleet.is_gone("worker-1"), "{:?}", swarm.log);
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

#[test]
fn one_that_a_recovered_store_waits_for_says_what_helps() {
    let (mut fleet, mut swarm) = deployed(3, 2).in_swarm();
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.questions.clear();
    fleet.recover_from(fleet.store.clone());
    for name in ["control-1", "control-2", "control-3", "worker-2"] {
        fleet.connect(name);
    }
    fleet.pass(3_600_000, &[]);
    assert!(fleet.core.facts().meta.recovering, "worker-1 has not said what it knows");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("RemovalNeedsAgent"));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("loosened");
    fleet.goes_on(&mut swarm);
    assert!(fleet.is_gone("worker-1") && !fleet.core.facts().meta.recovering);
}
