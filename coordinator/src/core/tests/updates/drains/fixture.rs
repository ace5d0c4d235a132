//! A simulated swarm beside a simulated fleet.

use std::collections::BTreeSet;

use muster_proto::model::{
    LcmType, MachineId, SwarmFailure, SwarmFailureCode, SwarmInfo, SwarmLocalState, SwarmManager, SwarmMember,
    SwarmNode, SwarmNodeState, SwarmOp, SwarmReply, SwarmService, SwarmTask,
};

use super::*;
use crate::{
    facts::MachineRow,
    store::{Change, Store, Table},
};

/// A node of the simulated swarm.
pub(in super::super) struct Node {
    /// The machine's name.
    pub(super) name: String,
    pub(in super::super) availability: SwarmAvailability,
    /// Services of its tasks, one entry for each task.
    pub(in super::super) tasks: Vec<&'static str>,
}

/// The simulated swarm of a simulated fleet.
pub(in super::super) struct Swarm {
    pub(super) nodes: Vec<Node>,
    /// Agents that do not answer.
    pub(super) silent: Vec<String>,
    /// Machines that have left the swarm and joined it again.
    pub(super) rejoined: Vec<&'static str>,
    /// Machines that their managers have lost.
    pub(super) down: Vec<&'static str>,
    /// Services with fewer tasks than wanted.
    pub(super) degraded: Vec<&'static str>,
    /// A machine that claims to be the node of another.
    pub(super) lies: Option<(&'static str, &'static str)>,
    /// Log of the questions, as text.
    pub(super) log: Vec<String>,
}

pub(in super::super) fn node_id(name: &str) -> SwarmId {
    SwarmId::new(format!("id{}", name.replace('-', ""))).expect("letters and digits")
}

impl Swarm {
    pub(in super::super) fn of(fleet: &Fleet) -> Self {
        let nodes = fleet.agents.keys().map(|name| Node {
            name: name.clone(),
            availability: SwarmAvailability::Active,
            tasks: vec!["web", "web", "db"],
        });
        Self {
            nodes: nodes.collect(),
            silent: Vec::new(),
            rejoined: Vec::new(),
            down: Vec::new(),
            degraded: Vec::new(),
            lies: None,
            log: Vec::new(),
        }
    }

    pub(in super::super) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).expect("a node")
    }

    fn id_of(&self, name: &str) -> SwarmId {
        if self.rejoined.contains(&name) { node_id(&format!("{name}-again")) } else { node_id(name) }
    }

    pub(in super::super) fn availability(&mut self, name: &str) -> SwarmAvailability {
        self.node(name).availability
    }

    fn shown(&self, Node { name, availability, .. }: &Node) -> SwarmNode {
        let down = self.down.contains(&name.as_str());
        let manager = || SwarmManager { leader: false, reachable: !down, address: String::new() };
        SwarmNode {
            id: self.id_of(name),
            hostname: name.clone(),
            state: if down { SwarmNodeState::Down } else { SwarmNodeState::Ready },
            availability: *availability,
            manager: name.starts_with('c').then(manager),
        }
    }

    fn answer(&mut self, agent: &str, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        if self.silent.iter().any(|name| name == agent) {
            self.log.push(format!("{agent} is silent"));
            return Err(SwarmFailure { code: SwarmFailureCode::Timeout, message: "no answer".to_owned() });
        }
        let found = |id: &SwarmId| self.nodes.iter().position(|node| self.id_of(&node.name) == *id).expect("a node");
        match op {
            SwarmOp::Info => {
                self.log.push(format!("{agent}: info"));
                let claimed = self.lies.filter(|(who, _)| *who == agent).map_or(agent, |(_, whose)| whose);
                let node = self.nodes.iter().any(|node| node.name == agent).then(|| self.id_of(claimed));
                let state = if node.is_some() { SwarmLocalState::Active } else { SwarmLocalState::Inactive };
                let (hostname, error) = (claimed.to_owned(), String::new());
                Ok(SwarmReply::Info(SwarmInfo { state, node, manager: false, hostname, error }))
            }
            SwarmOp::Nodes => {
                self.log.push(format!("{agent}: nodes"));
                Ok(SwarmReply::Nodes(self.nodes.iter().map(|node| self.shown(node)).collect()))
            }
            SwarmOp::Tasks { node } => {
                let Node { name, tasks, .. } = &self.nodes[found(node)];
                self.log.push(format!("{agent}: tasks of {name}"));
                let task = |service: &&str| SwarmTask {
                    id: node_id(service),
                    service: (*service).to_owned(),
                    state: "running".to_owned(),
                };
                Ok(SwarmReply::Tasks(tasks.iter().map(task).collect()))
            }
            SwarmOp::Services { node } => {
                let Node { name, tasks, .. } = &self.nodes[found(node)];
                self.log.push(format!("{agent}: services of {name}"));
                let names: BTreeSet<&str> = tasks.iter().copied().collect();
                let service = |name: &str| {
                    let running = if self.degraded.contains(&name) { 2 } else { 3 };
                    SwarmService { name: name.to_owned(), wanted: 3, running }
                };
                Ok(SwarmReply::Services(names.into_iter().map(service).collect()))
            }
            SwarmOp::SetAvailability { node, availability } => {
                let at = found(node);
                self.nodes[at].availability = *availability;
                self.log.push(format!("{agent}: {} is {availability}", self.nodes[at].name));
                Ok(SwarmReply::Done)
            }
            SwarmOp::AddLabels { node, labels } => {
                let name = &self.nodes[found(node)].name;
                self.log.push(format!("{agent}: {name} gets {labels:?}"));
                Ok(SwarmReply::Done)
            }
            SwarmOp::Tokens
            | SwarmOp::Labels { .. }
            | SwarmOp::Demote { .. }
            | SwarmOp::Remove { .. }
            | SwarmOp::Leave { .. } => panic!("nobody asks for {op:?}"),
        }
    }
}

impl Fleet {
    /// All machines are in a swarm, the control machines as managers, according to their swarm-joins.
    pub(in super::super) fn join_all(&mut self) {
        let mut spec = (**self.core.facts().spec(&cluster()).expect("applied")).clone();
        spec.lcm_type = LcmType::Swarm;
        self.ask(apply(spec, &[])).expect("applies");
        let members: Vec<String> = self.agents.keys().cloned().collect();
        for name in &members {
            let (node_id, manager) = (node_id(name), name.starts_with('c'));
            let swarm = Some(SwarmMember { swarm_id: SwarmId::new("idswarm").expect("letters"), node_id, manager });
            let row = MachineRow { swarm, ..self.row(name).clone() };
            let value = serde_json::to_vec(&row).expect("plain data");
            let put = Change::Put { table: Table::Machines, key: name.clone(), value };
            self.store.commit(&[put]).expect("kept in memory");
        }
        self.restart();
        self.all_report();
    }

    fn name_of(&self, id: MachineId) -> String {
        let (name, _) = self.agents.iter().find(|(_, agent)| agent.id == id).expect("an agent");
        name.clone()
    }

    /// Answers one question. False: there is none.
    pub(super) fn answer_one(&mut self, swarm: &mut Swarm) -> bool {
        self.answer_first(swarm, |_| true)
    }

    /// Answers the first matching question. False: there is none.
    pub(super) fn answer_first(&mut self, swarm: &mut Swarm, which: impl Fn(&SwarmQuestion) -> bool) -> bool {
        let Some(first) = self.questions.iter().position(which) else { return false };
        let question = self.questions.remove(first);
        let result = swarm.answer(&self.name_of(question.agent), &question.op);
        self.step(Input::SwarmAnswered { about: question.about, number: question.number, result }).expect("taken");
        true
    }

    /// Answers questions until there is none.
    pub(in super::super) fn talk(&mut self, swarm: &mut Swarm) {
        for _ in 0..100 {
            if !self.answer_one(swarm) {
                return;
            }
        }
        panic!("asks without end: {:?}", swarm.log);
    }

    /// Time passes in small steps, and questions are answered.
    pub(in super::super) fn wait_for(&mut self, swarm: &mut Swarm, ms: u64) {
        self.wait_without(&[], swarm, ms);
    }

    /// The same, and these machines are silent.
    pub(in super::super) fn wait_without(&mut self, silent: &[&str], swarm: &mut Swarm, ms: u64) {
        for _ in 0..ms.div_ceil(20_000) {
            self.pass(20_000, silent);
            self.talk(swarm);
        }
    }

    pub(super) fn drain(&self, name: &str) -> Option<&DrainRow<SwarmTarget>> {
        self.part(name)?.drains.swarm.as_ref()
    }

    pub(super) fn drain_stages(&self, name: &str) -> Vec<(Stage, bool)> {
        let stages = [Stage::SwarmDrained, Stage::SwarmUncordoned];
        let row = self.row(name);
        stages.iter().filter_map(|stage| Some((*stage, row.stages.get(stage)?.succeeded))).collect()
    }
}

/// The control machines of a Swarm cluster are at the new release; `worker-1` has its turn, and `ceph` releases it.
pub(super) fn at_worker_1() -> (Fleet, Swarm) {
    at_worker_1_with(&[])
}

/// The same, and the new release has these additional items for workers.
pub(super) fn at_worker_1_with(more: &[&str]) -> (Fleet, Swarm) {
    at_first_worker(more, 1, DeadlineOutcome::Defer)
}

pub(super) fn at_first_worker(more: &[&str], width: u32, outcome: DeadlineOutcome) -> (Fleet, Swarm) {
    let mut fleet = deployed(3, 2);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.lcm_type = LcmType::Swarm;
    spec.update_deadlines.swarm_drain.outcome = outcome;
    let of_workers = spec.machine_types.get_mut(&Worker).expect("workers have items");
    of_workers.extend(more.iter().map(|name| item(name, Phase::Deploy)));
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], width);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
        assert_eq!((fleet.questions.len(), fleet.drain(control)), (0, None), "control machines are not drained");
    }
    assert_eq!(fleet.requests().len(), width as usize);
    let swarm = Swarm::of(&fleet);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    (fleet, swarm)
}

/// Its items are done, its node is restored, and its workloads too.
pub(super) fn complete(fleet: &mut Fleet, swarm: &mut Swarm, name: &str) {
    fleet.finish(name);
    let asks = !fleet.questions.is_empty();
    assert_eq!(fleet.requests().contains(&name), asks, "not before its node is given back: {:?}", swarm.log);
    fleet.talk(swarm);
    fleet.lock("ceph", Some(name), LockState::Active);
    assert_eq!((fleet.part(name), fleet.slot(name)), (None, None), "{:?}", swarm.log);
}
