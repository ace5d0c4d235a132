//! The Swarm drain: what is asked of whom, what is withheld until no task is left, and what a node gets back.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    convert::Hello,
    model::{
        DeadlineOutcome, Generation, LcmType, MachineId, RemovalPolicy, SwarmAvailability, SwarmFailure,
        SwarmFailureCode, SwarmId, SwarmInfo, SwarmLocalState, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply,
        SwarmService, SwarmTask,
    },
};

use super::*;
use crate::{
    core::SwarmQuestion,
    facts::{DrainRow, DrainTarget},
    plan::{blocked, update::drain},
};

/// The made-up swarm of a made-up fleet.
pub(super) struct Swarm {
    /// Nodes: the machine, the node's id, its availability, its tasks by service.
    nodes: Vec<(String, SwarmAvailability, Vec<&'static str>)>,
    /// Agents that do not answer.
    silent: Vec<String>,
    /// Machines that have left the swarm and joined it anew.
    rejoined: Vec<&'static str>,
    /// Machines whose managers have lost them.
    down: Vec<&'static str>,
    /// Services that run fewer tasks than they want.
    degraded: Vec<&'static str>,
    /// What was asked, in words.
    log: Vec<String>,
}

fn node_id(name: &str) -> SwarmId {
    SwarmId::new(format!("id{}", name.replace('-', ""))).expect("letters and digits")
}

impl Swarm {
    pub(super) fn of(fleet: &Fleet) -> Self {
        let nodes = fleet.agents.keys().map(|name| (name.clone(), SwarmAvailability::Active, vec!["web", "web", "db"]));
        Self {
            nodes: nodes.collect(),
            silent: Vec::new(),
            rejoined: Vec::new(),
            down: Vec::new(),
            degraded: Vec::new(),
            log: Vec::new(),
        }
    }

    pub(super) fn node(&mut self, name: &str) -> &mut (String, SwarmAvailability, Vec<&'static str>) {
        self.nodes.iter_mut().find(|(known, ..)| known == name).expect("a node")
    }

    fn id_of(&self, name: &str) -> SwarmId {
        if self.rejoined.contains(&name) { node_id(&format!("{name}-again")) } else { node_id(name) }
    }

    pub(super) fn availability(&mut self, name: &str) -> SwarmAvailability {
        self.node(name).1
    }

    fn answer(&mut self, agent: &str, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        if self.silent.iter().any(|name| name == agent) {
            self.log.push(format!("{agent} is silent"));
            return Err(SwarmFailure { code: SwarmFailureCode::Timeout, message: "no answer".to_owned() });
        }
        let found = |id: &SwarmId| self.nodes.iter().position(|(name, ..)| self.id_of(name) == *id).expect("a node");
        match op {
            SwarmOp::Info => {
                self.log.push(format!("{agent}: info"));
                let node = self.nodes.iter().any(|(name, ..)| name == agent).then(|| self.id_of(agent));
                let state = if node.is_some() { SwarmLocalState::Active } else { SwarmLocalState::Inactive };
                let (hostname, error) = (agent.to_owned(), String::new());
                Ok(SwarmReply::Info(SwarmInfo { state, node, manager: false, hostname, error }))
            }
            SwarmOp::Nodes => {
                self.log.push(format!("{agent}: nodes"));
                let shown = self.nodes.iter().map(|(name, availability, _)| SwarmNode {
                    id: self.id_of(name),
                    hostname: name.clone(),
                    state: if self.down.contains(&name.as_str()) {
                        SwarmNodeState::Down
                    } else {
                        SwarmNodeState::Ready
                    },
                    availability: *availability,
                    manager: None,
                });
                Ok(SwarmReply::Nodes(shown.collect()))
            }
            SwarmOp::Tasks { node } => {
                let (name, _, tasks) = &self.nodes[found(node)];
                self.log.push(format!("{agent}: tasks of {name}"));
                let task = |service: &&str| SwarmTask {
                    id: node_id(service),
                    service: (*service).to_owned(),
                    state: "running".to_owned(),
                };
                Ok(SwarmReply::Tasks(tasks.iter().map(task).collect()))
            }
            SwarmOp::Services { node } => {
                let (name, _, tasks) = &self.nodes[found(node)];
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
                self.nodes[at].1 = *availability;
                self.log.push(format!("{agent}: {} is {availability}", self.nodes[at].0));
                Ok(SwarmReply::Done)
            }
            SwarmOp::Tokens | SwarmOp::Demote { .. } | SwarmOp::Remove { .. } | SwarmOp::Leave { .. } => {
                panic!("nobody asks for {op:?}")
            }
        }
    }
}

fn stuck(fleet: &Fleet, name: &str) -> Option<Stage> {
    Some(fleet.part(name)?.stuck.as_ref()?.stage)
}

impl Fleet {
    fn name_of(&self, id: MachineId) -> String {
        let (name, _) = self.agents.iter().find(|(_, agent)| agent.id == id).expect("an agent");
        name.clone()
    }

    /// One question is answered. False: there is none.
    fn answer_one(&mut self, swarm: &mut Swarm) -> bool {
        self.answer_first(swarm, |_| true)
    }

    /// The first question of some is answered. False: there is none.
    fn answer_first(&mut self, swarm: &mut Swarm, which: impl Fn(&SwarmQuestion) -> bool) -> bool {
        let Some(first) = self.questions.iter().position(which) else { return false };
        let question = self.questions.remove(first);
        let result = swarm.answer(&self.name_of(question.agent), &question.op);
        self.step(Input::SwarmAnswered { about: question.about, number: question.number, result }).expect("taken");
        true
    }

    /// Questions are answered until there is none.
    pub(super) fn talk(&mut self, swarm: &mut Swarm) {
        for _ in 0..100 {
            if !self.answer_one(swarm) {
                return;
            }
        }
        panic!("asks without end: {:?}", swarm.log);
    }

    /// Time passes in small steps, and questions are answered.
    pub(super) fn wait_for(&mut self, swarm: &mut Swarm, ms: u64) {
        for _ in 0..ms.div_ceil(20_000) {
            self.pass(20_000, &[]);
            self.talk(swarm);
        }
    }

    fn drain(&self, name: &str) -> Option<&DrainRow> {
        self.part(name)?.drain.as_ref()
    }

    fn drain_stages(&self, name: &str) -> Vec<(Stage, bool)> {
        let stages = [Stage::SwarmDrained, Stage::SwarmUncordoned];
        let row = self.row(name);
        stages.iter().filter_map(|stage| Some((*stage, row.stages.get(stage)?.succeeded))).collect()
    }
}

/// The control machines of a Swarm cluster are at the new release; `worker-1` has its turn, and `ceph` lets it go.
fn at_worker_1() -> (Fleet, Swarm) {
    at_worker_1_with(&[])
}

/// The same, and the new release has these items besides for workers.
fn at_worker_1_with(more: &[&str]) -> (Fleet, Swarm) {
    at_first_worker(more, 1, DeadlineOutcome::Defer)
}

fn at_first_worker(more: &[&str], width: u32, outcome: DeadlineOutcome) -> (Fleet, Swarm) {
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

/// Its items are done, the node is given back, the workloads too.
fn complete(fleet: &mut Fleet, swarm: &mut Swarm, name: &str) {
    fleet.finish(name);
    let asks = !fleet.questions.is_empty();
    assert_eq!(fleet.requests().contains(&name), asks, "not before its node is given back: {:?}", swarm.log);
    fleet.talk(swarm);
    fleet.lock("ceph", Some(name), LockState::Active);
    assert_eq!((fleet.part(name), fleet.slot(name)), (None, None), "{:?}", swarm.log);
}

#[test]
fn a_worker_is_disturbed_when_no_task_is_left_and_gets_its_availability_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.talk(&mut swarm);
    assert_eq!(
        swarm.log,
        [
            "worker-1: info",
            "control-1: nodes",
            "control-1: services of worker-1",
            "control-1: worker-1 is drain",
            "control-1: nodes",
            "control-1: tasks of worker-1"
        ]
    );
    assert_eq!((fleet.permit("worker-1"), fleet.why("worker-1")), (None, Some("SwarmDraining".to_owned())));
    for left in [vec!["web", "db"], vec!["db"]] {
        swarm.node("worker-1").2 = left;
        fleet.pass(2_000, &[]);
        fleet.talk(&mut swarm);
        assert_eq!(fleet.permit("worker-1"), None, "slot free, locks inactive, item ready, and a task is left");
    }
    swarm.node("worker-1").2.clear();
    fleet.pass(1_000, &[]);
    assert!(fleet.questions.is_empty(), "it is looked at every two seconds");
    fleet.pass(1_000, &[]);
    fleet.talk(&mut swarm);
    assert!(fleet.permit("worker-1").is_some(), "{:?} {:?}", fleet.why("worker-1"), swarm.log);
    assert_eq!(fleet.drain_stages("worker-1"), [(Stage::SwarmDrained, true)]);
    complete(&mut fleet, &mut swarm, "worker-1");
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
    assert_eq!(fleet.drain_stages("worker-1"), [(Stage::SwarmDrained, true), (Stage::SwarmUncordoned, true)]);
    assert_eq!(fleet.requests(), ["worker-2"], "its slot goes to the next");
}

#[test]
fn one_that_is_removed_at_work_waits_for_its_item_and_for_no_look_at_the_swarm() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").2.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    let remove = Request::Remove {
        machine: machine("worker-1"),
        policy: RemovalPolicy::Graceful,
        accept_control_plane_downtime: false,
    };
    fleet.ask(remove).expect("begins");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ItemRunning"));
    fleet.heartbeats(drain::FRESH_MS, &[]);
    assert!(fleet.questions.is_empty(), "{:?}", fleet.questions);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ItemRunning"), "time alone changes nothing");
}

#[test]
fn what_an_operator_set_stays() {
    for (before, during) in [
        (SwarmAvailability::Drain, None),
        (SwarmAvailability::Pause, None),
        (SwarmAvailability::Active, Some(SwarmAvailability::Pause)),
        (SwarmAvailability::Drain, Some(SwarmAvailability::Active)),
    ] {
        let (mut fleet, mut swarm) = at_worker_1();
        swarm.node("worker-1").1 = before;
        fleet.talk(&mut swarm);
        assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain);
        if let Some(during) = during {
            swarm.node("worker-1").1 = during;
            fleet.pass(10_000, &[]);
            fleet.talk(&mut swarm);
            assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain, "it is drained all the same");
        }
        swarm.node("worker-1").2.clear();
        fleet.pass(2_000, &[]);
        fleet.talk(&mut swarm);
        assert!(fleet.permit("worker-1").is_some(), "{:?}", swarm.log);
        complete(&mut fleet, &mut swarm, "worker-1");
        assert_eq!(swarm.availability("worker-1"), during.unwrap_or(before), "{before} {during:?} {:?}", swarm.log);
    }
}

#[test]
fn another_manager_is_asked_and_without_any_it_says_so() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.silent = vec!["control-1".to_owned()];
    swarm.node("worker-1").2.clear();
    fleet.talk(&mut swarm);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", swarm.log);
    assert!(swarm.log.contains(&"control-2: worker-1 is drain".to_owned()));
    fleet.finish("worker-1");
    swarm.silent = ["control-1", "control-2"].map(str::to_owned).to_vec();
    fleet.disconnect("control-3");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmNoManager"));
    assert_eq!(fleet.requests(), ["worker-1"], "a slot has no time limit");
    fleet.connect("control-3");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.requests(), Vec::<&str>::new(), "{:?}", swarm.log);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
}

#[test]
fn one_put_aside_says_what_kept_it() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.silent = ["control-1", "control-2", "control-3"].map(str::to_owned).to_vec();
    fleet.talk(&mut swarm);
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS);
    let aside = fleet.part("worker-1").and_then(|part| part.set_aside.clone()).expect("put aside");
    let cause = "Error: no manager of the swarm can be asked - control-1: Timeout: no answer; ";
    assert!(aside.message.starts_with(cause), "{}", aside.message);
}

#[test]
fn one_whose_tasks_stay_is_put_aside_and_given_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.talk(&mut swarm);
    fleet.pass(NODE_LOCKS_MS - 60_000, &[]);
    fleet.talk(&mut swarm);
    swarm.node("worker-1").2.pop();
    fleet.pass(2_000, &[]);
    fleet.talk(&mut swarm);
    fleet.pass(NODE_LOCKS_MS - 1_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmDraining"), "a task has gone: its time starts anew");
    fleet.pass(1_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!(fleet.requests(), Vec::<&str>::new(), "{:?}", swarm.log);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
    let aside = fleet.part("worker-1").and_then(|part| part.set_aside.clone()).expect("put aside");
    assert_eq!(aside.message, "Error: waiting for swarm node worker-1 to be drained first - web: 2 tasks");
    assert_eq!(fleet.drain_stages("worker-1"), [(Stage::SwarmDrained, false), (Stage::SwarmUncordoned, true)]);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(fleet.requests(), ["worker-2"], "the next has its turn");
}

/// Its agent died between writing the start down and starting: recorded as running, and it asks for another permit.
#[test]
fn one_whose_permit_ran_out_before_it_began_is_looked_at_again() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").2.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    fleet.pass(60_000, &[]);
    fleet.step(Input::PermitWanted { id: fleet.agents["worker-1"].id, permit: 1 }).expect("known");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.permit("worker-1").map(|permit| permit.number), Some(2), "{:?}", fleet.why("worker-1"));
}

#[test]
fn tasks_that_come_back_between_two_permits_pause_the_update() {
    let (mut fleet, mut swarm) = at_worker_1_with(&["restart"]);
    swarm.node("worker-1").2.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    swarm.node("worker-1").2.push("web");
    fleet.pass(2 * NODE_LOCKS_MS, &[]);
    fleet.event("worker-1", "install", ItemState::Succeeded);
    fleet.accept("worker-1");
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS - 20_000);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wish()), (Some("SwarmDraining"), Wish::Go));
    assert!(!fleet.wants_a_person(), "its time runs from when the first item was done");
    fleet.wait_for(&mut swarm, 20_000);
    assert!(matches!(fleet.wish(), Wish::Pause { .. }) && fleet.wants_a_person());
    assert_eq!(fleet.slots(), ["worker-1"], "what was disturbed is not given back");
    swarm.node("worker-1").2.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert!(fleet.permit("worker-1").is_some(), "what was begun may end, paused or not");
}

#[test]
fn a_node_that_nobody_can_give_back_wants_a_person() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.node("worker-1").2.clear();
    fleet.talk(&mut swarm);
    fleet.finish("worker-1");
    swarm.silent = ["control-1", "control-2", "control-3"].map(str::to_owned).to_vec();
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS - 20_000);
    assert!(!fleet.wants_a_person());
    fleet.wait_for(&mut swarm, 40_000);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.wants_a_person()), (Some("SwarmNoManager"), true));
    assert_eq!(stuck(&fleet, "worker-1"), Some(Stage::SwarmUncordoned));
    assert_eq!(fleet.requests(), ["worker-1"], "a slot has no time limit");
    swarm.silent.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!((fleet.requests(), swarm.availability("worker-1")), (Vec::new(), SwarmAvailability::Active));
    assert_eq!(stuck(&fleet, "worker-1"), None, "it is done");
}

#[test]
fn an_abort_gives_the_node_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    fleet.talk(&mut swarm);
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    assert_eq!(fleet.requests(), ["worker-1"], "not before its node is given back");
    fleet.talk(&mut swarm);
    assert_eq!((fleet.requests(), swarm.availability("worker-1")), (Vec::new(), SwarmAvailability::Active));
}

#[test]
fn a_change_that_nobody_confirmed_is_waited_for_before_the_node_is_given_back() {
    let (mut fleet, mut swarm) = at_worker_1();
    while !fleet.questions.iter().any(|question| matches!(question.op, SwarmOp::SetAvailability { .. })) {
        assert!(fleet.answer_one(&mut swarm));
    }
    swarm.silent = vec!["control-1".to_owned()];
    fleet.talk(&mut swarm);
    swarm.silent.clear();
    swarm.node("worker-1").1 = SwarmAvailability::Active;
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("SwarmUncordoning"));
    // The manager that did not answer does at last what it was asked to.
    swarm.node("worker-1").1 = SwarmAvailability::Drain;
    fleet.pass(65_000, &[]);
    fleet.talk(&mut swarm);
    assert_eq!((fleet.requests(), swarm.availability("worker-1")), (Vec::new(), SwarmAvailability::Active));
}

#[test]
fn what_is_in_no_swarm_has_nothing_to_drain() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.nodes.retain(|(name, ..)| name != "worker-1");
    fleet.talk(&mut swarm);
    assert_eq!(swarm.log, ["worker-1: info"]);
    assert_eq!(fleet.drain("worker-1").map(|drain| &drain.target), Some(&DrainTarget::Absent));
    assert!(fleet.permit("worker-1").is_some());
    fleet.finish("worker-1");
    assert_eq!(fleet.requests(), Vec::<&str>::new());
}

#[test]
fn a_restart_anywhere_loses_nothing() {
    for answers in 0..8 {
        let (mut fleet, mut swarm) = at_worker_1();
        swarm.node("worker-1").1 = SwarmAvailability::Pause;
        swarm.node("worker-1").2.clear();
        let mut answered = 0;
        let mut restarted = false;
        for _ in 0..100 {
            if answered == answers && !restarted {
                restarted = true;
                fleet.restart();
                fleet.all_report();
            }
            if fleet.permit("worker-1").is_some() && fleet.due("worker-1").is_some() {
                assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain);
                fleet.finish("worker-1");
            }
            if fleet.answer_one(&mut swarm) {
                answered += 1;
            } else {
                fleet.pass(5_000, &[]);
            }
        }
        assert!(restarted, "answered {answered}");
        fleet.lock("ceph", Some("worker-1"), LockState::Active);
        assert_eq!(fleet.part("worker-1"), None, "{answers} answers: {:?} {:?}", fleet.why("worker-1"), swarm.log);
        assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Pause, "{answers} answers: {:?}", swarm.log);
    }
}

/// A copy of the store from the middle of a drain is put in place: the fleet has long been done with that node.
#[test]
fn a_store_older_than_the_fleet_changes_no_node() {
    for aborted in [false, true] {
        let (mut fleet, mut swarm) = at_worker_1_with(&["restart"]);
        if aborted {
            fleet.talk(&mut swarm);
            let rollout = fleet.rollout();
            fleet.ask(Request::Abort { rollout }).expect("aborts");
        } else {
            swarm.node("worker-1").2.clear();
            fleet.talk(&mut swarm);
            fleet.begin("worker-1");
            fleet.event("worker-1", "install", ItemState::Succeeded);
        }
        let store = fleet.store.clone();
        fleet.restart_from(store);
        let newer = Hello { generation: Generation(99), ..fleet.greeting("control-1") };
        fleet.hello("control-1", newer).expect("greeted");
        for name in ["control-2", "control-3", "worker-1", "worker-2"] {
            fleet.connect(name);
        }
        fleet.accept("worker-1");
        for _ in 0..10 {
            fleet.pass(20_000, &[]);
            assert!(fleet.questions.is_empty(), "{:?}", fleet.questions);
        }
        assert_eq!(fleet.why("worker-1").as_deref(), Some("StoreOlderThanFleet"));
    }
}

#[test]
fn one_that_joined_anew_is_drained_anew() {
    let (mut fleet, mut swarm) = at_worker_1_with(&["restart"]);
    swarm.node("worker-1").2.clear();
    fleet.talk(&mut swarm);
    fleet.begin("worker-1");
    *swarm.node("worker-1") = ("worker-1".to_owned(), SwarmAvailability::Active, vec!["web"]);
    swarm.rejoined.push("worker-1");
    fleet.pass(20_000, &[]);
    fleet.event("worker-1", "install", ItemState::Succeeded);
    fleet.accept("worker-1");
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!((fleet.why("worker-1").as_deref(), fleet.permit("worker-1")), (Some("SwarmDraining"), None));
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain, "{:?}", swarm.log);
    swarm.node("worker-1").2.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert!(fleet.permit("worker-1").is_some(), "{:?} {:?}", fleet.why("worker-1"), swarm.log);
    complete(&mut fleet, &mut swarm, "worker-1");
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active);
}

#[test]
fn tasks_of_a_node_that_is_down_count_and_it_says_so() {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.down.push("worker-1");
    fleet.talk(&mut swarm);
    let blocked = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    let why = "Error: the managers see swarm node worker-1 down, and count its tasks until it is back - ";
    assert_eq!(blocked.message, format!("{why}db: 1 task, web: 2 tasks"));
}

/// An agent answers a few calls at a time: more of them would be refused, and their machines would wait for nothing.
#[test]
fn no_agent_is_asked_more_than_it_answers() {
    let mut fleet = deployed(3, 10);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.lcm_type = LcmType::Swarm;
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 10);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(control);
    }
    let workers: Vec<String> = fleet.requests().iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(workers.len(), 10);
    let mut swarm = Swarm::of(&fleet);
    for worker in &workers {
        swarm.node(worker).2.clear();
        fleet.lock("ceph", Some(worker), LockState::Inactive);
    }
    let mut most = 0;
    loop {
        let mut open: BTreeMap<MachineId, usize> = BTreeMap::new();
        fleet.questions.iter().for_each(|question| *open.entry(question.agent).or_default() += 1);
        most = most.max(open.into_values().max().unwrap_or_default());
        if !fleet.answer_one(&mut swarm) {
            break;
        }
    }
    assert_eq!(most, 6);
    assert!(workers.iter().all(|worker| fleet.permit(worker).is_some()), "{:?}", swarm.log);
}

/// At `worker-1`, and its node runs a task of a service that lacks one.
fn at_a_degraded_service() -> (Fleet, Swarm) {
    let (mut fleet, mut swarm) = at_worker_1();
    swarm.degraded = vec!["web"];
    fleet.talk(&mut swarm);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ServiceDegraded"), "{:?}", swarm.log);
    (fleet, swarm)
}

#[test]
fn a_drain_waits_until_the_services_there_run_all_their_tasks() {
    let (mut fleet, mut swarm) = at_a_degraded_service();
    fleet.wait_for(&mut swarm, 60_000);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Active, "{:?}", swarm.log);
    // What lacks a task elsewhere is nobody's concern here.
    swarm.degraded = vec!["elsewhere"];
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!(swarm.availability("worker-1"), SwarmAvailability::Drain, "{:?}", swarm.log);
}

#[test]
fn one_whose_services_stay_degraded_is_put_aside_and_nothing_was_drained() {
    let (mut fleet, mut swarm) = at_a_degraded_service();
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS);
    let aside = fleet.part("worker-1").and_then(|part| part.set_aside.clone()).expect("put aside");
    assert_eq!(aside.message, "Error: waiting for services to run all their tasks first - web: 2 of 3");
    assert!(!swarm.log.iter().any(|line| line.contains("drain")), "{:?}", swarm.log);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(stuck(&fleet, "worker-1"), Some(Stage::SwarmDrained));
    assert_eq!(fleet.requests(), ["worker-2"], "the next has its turn");
}

#[test]
fn an_update_that_paused_at_a_drain_says_what_it_waited_for() {
    let (mut fleet, mut swarm) = at_first_worker(&[], 1, DeadlineOutcome::Pause);
    swarm.degraded = vec!["web"];
    fleet.talk(&mut swarm);
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS);
    let why = fleet.look("worker-1", blocked::of_machine).expect("it waits");
    let cause = "it waited for this: Error: waiting for services to run all their tasks first - web: 2 of 3";
    assert!(why.reason == "Paused" && why.message.contains(cause), "{why:?}");
    assert_eq!(stuck(&fleet, "worker-1"), Some(Stage::SwarmDrained));
    let rollout = fleet.rollout();
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    assert_eq!(stuck(&fleet, "worker-1"), None, "it has its time anew");
}

/// Two workers at once, and both have locks that are inactive.
fn at_both_workers(outcome: DeadlineOutcome) -> (Fleet, Swarm) {
    let (mut fleet, mut swarm) = at_first_worker(&[], 2, outcome);
    swarm
        .nodes
        .iter_mut()
        .for_each(|(name, _, tasks)| *tasks = if name == "worker-1" { vec!["web"] } else { vec!["web", "db"] });
    fleet.lock("ceph", Some("worker-2"), LockState::Inactive);
    assert_eq!(fleet.requests(), ["worker-1", "worker-2"]);
    (fleet, swarm)
}

#[test]
fn of_two_that_share_a_service_the_second_is_drained_when_the_first_has_lost_its_tasks() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    fleet.talk(&mut swarm);
    let drained = |swarm: &mut Swarm| ["worker-1", "worker-2"].map(|name| swarm.availability(name));
    let (active, drain) = (SwarmAvailability::Active, SwarmAvailability::Drain);
    assert_eq!(drained(&mut swarm), [drain, active], "both were counted before either was ordered: {:?}", swarm.log);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("ServiceDegraded"));
    fleet.wait_for(&mut swarm, 60_000);
    assert_eq!(drained(&mut swarm), [drain, active], "its tasks have not left: {:?}", swarm.log);
    // They have left, and do not run elsewhere yet.
    swarm.node("worker-1").2.clear();
    swarm.degraded = vec!["web"];
    fleet.wait_for(&mut swarm, 60_000);
    assert!(fleet.permit("worker-1").is_some(), "the first goes on");
    assert_eq!(drained(&mut swarm), [drain, active], "{:?}", swarm.log);
    swarm.degraded.clear();
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!(drained(&mut swarm), [drain, drain], "{:?}", swarm.log);
}

#[test]
fn two_that_share_no_service_are_drained_at_once() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    swarm.node("worker-2").2 = vec!["db"];
    fleet.talk(&mut swarm);
    assert_eq!(
        (swarm.availability("worker-1"), swarm.availability("worker-2")),
        (SwarmAvailability::Drain, SwarmAvailability::Drain)
    );
}

/// The swarm may be slow to notice: what its managers count right after a drain was confirmed says nothing.
#[test]
fn what_was_drained_and_not_looked_at_since_counts_as_losing_its_tasks() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
    while swarm.availability("worker-1") == SwarmAvailability::Active {
        assert!(fleet.answer_one(&mut swarm));
    }
    for _ in 0..4 {
        // It takes a while until worker-1 is looked at; the services of worker-2 are whole, as far as is counted.
        while fleet.answer_first(&mut swarm, |question| question.about.as_str() == "worker-2") {}
        fleet.pass(2_000, &[]);
    }
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Active, "{:?}", swarm.log);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("ServiceDegraded"));
    swarm.node("worker-1").2.clear();
    fleet.wait_for(&mut swarm, 40_000);
    assert_eq!(swarm.availability("worker-2"), SwarmAvailability::Drain, "{:?}", swarm.log);
}

/// What worker-1 runs finds no room before it is back, and that takes long: worker-2 is healthy, and does not count as
/// failed.
#[test]
fn the_time_of_a_drain_does_not_run_while_it_waits_for_another() {
    let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Fail);
    fleet.talk(&mut swarm);
    swarm.node("worker-1").2.clear();
    swarm.degraded = vec!["web"];
    fleet.wait_for(&mut swarm, 20_000);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", swarm.log);
    fleet.begin("worker-1");
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS + 60_000);
    let set_aside = |fleet: &Fleet| fleet.part("worker-2").and_then(|part| Some(part.set_aside.as_ref()?.failed));
    assert_eq!((fleet.why("worker-2").as_deref(), set_aside(&fleet)), (Some("ServiceDegraded"), None));
    assert!(!fleet.wants_a_person());
    fleet.event("worker-1", "install", ItemState::Succeeded);
    complete(&mut fleet, &mut swarm, "worker-1");
    fleet.wait_for(&mut swarm, NODE_LOCKS_MS - 20_000);
    assert_eq!(set_aside(&fleet), None, "its time runs from when nobody else keeps it");
    fleet.wait_for(&mut swarm, 20_000);
    assert_eq!(set_aside(&fleet), Some(true), "{:?}", fleet.why("worker-2"));
}

/// An order that nobody confirmed may be carried out later: until then nothing that shares a service is drained. The
/// next coordinator does not know what its predecessor ordered at the last moment.
#[test]
fn what_may_yet_be_drained_counts_as_drained() {
    for restarts in [false, true] {
        let (mut fleet, mut swarm) = at_both_workers(DeadlineOutcome::Defer);
        while !fleet.questions.iter().any(|question| matches!(question.op, SwarmOp::SetAvailability { .. })) {
            assert!(fleet.answer_one(&mut swarm));
        }
        // The order to drain worker-1 is on its way.
        let is_order = |question: &SwarmQuestion| matches!(question.op, SwarmOp::SetAvailability { .. });
        let order = fleet.questions.iter().position(is_order).map(|at| fleet.questions.remove(at)).expect("an order");
        if restarts {
            fleet.pass(1, &[]);
            fleet.restart();
            fleet.all_report();
        }
        let drained = |swarm: &mut Swarm| {
            let names = ["worker-1", "worker-2"].into_iter();
            names.filter(|name| swarm.availability(name) == SwarmAvailability::Drain).collect::<Vec<_>>()
        };
        for _ in 0..12 {
            fleet.pass(5_000, &[]);
            fleet.talk(&mut swarm);
        }
        assert_eq!(drained(&mut swarm), Vec::<&str>::new(), "restarts: {restarts} {:?}", swarm.log);
        let silence = SwarmFailure { code: SwarmFailureCode::Timeout, message: "no answer".to_owned() };
        let SwarmQuestion { about, number, .. } = order;
        fleet.step(Input::SwarmAnswered { about, number, result: Err(silence) }).expect("taken");
        for _ in 0..4 {
            fleet.pass(5_000, &[]);
            fleet.talk(&mut swarm);
        }
        assert_eq!(drained(&mut swarm), ["worker-1"], "{:?}", swarm.log);
    }
}
