//! Services in a simulated swarm: their tasks, and how they leave a drained node, some slowly. Also what operators set
//! with docker itself, and the queries that the coordinator makes for its drains.

use muster_coordinator::{
    core::{Input, SwarmQuestion},
    facts::MachineRow,
};
use muster_proto::model::{
    MachineId, MachineName, MachineType, SwarmAvailability, SwarmCall, SwarmFailure, SwarmFailureCode, SwarmId,
    SwarmOp, SwarmReply, SwarmTask,
};

use super::{
    Event, World,
    loads::{Load, Lost, Task},
    network::{Parcel, Said},
    swarm::{Node, Swarm, swarm_id},
};
use crate::invariants::{Violation, swarm::Listed};

/// Permille of node changes that are carried out late, after the caller's timeout.
const LATE_PERMILLE: u64 = 60;
/// The same in a run that targets such a change.
const OFTEN_LATE_PERMILLE: u64 = 500;

/// Maximum age of a count that the coordinator relies on when it orders a drain.
const COUNTED_AGO_MS: u64 = 10_500;

impl World {
    /// Answers a query for a node's tasks or services, or changes the node.
    pub(crate) fn load_answers(&mut self, swarm: usize, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        let at = self.at;
        let (SwarmOp::Tasks { node } | SwarmOp::Services { node } | SwarmOp::SetAvailability { node, .. }) = op else {
            return Ok(SwarmReply::Done);
        };
        let by_us = self.is_counted_on(node);
        let gets_back = self.gets_back(node);
        let Some(swarm) = self.swarms.get_mut(swarm) else { return Ok(SwarmReply::Done) };
        swarm.restart_tasks(at, &mut self.rng);
        let Some(known) = swarm.nodes.iter().position(|known| known.id == *node) else {
            let message = "said the engine".to_owned();
            return Err(SwarmFailure { code: SwarmFailureCode::NoSuchNode, message });
        };
        if let SwarmOp::SetAvailability { availability, .. } = op {
            swarm.set(known, *availability, (at, by_us), (&mut self.rng, self.chaos));
        }
        let Some(node) = swarm.nodes.get_mut(known) else { return Ok(SwarmReply::Done) };
        match op {
            SwarmOp::SetAvailability { availability, .. } => {
                if gets_back {
                    node.load.word = *availability;
                }
                Ok(SwarmReply::Done)
            }
            SwarmOp::Services { .. } => {
                let load = node.load.clone();
                Ok(SwarmReply::Services(swarm.services(&load, at)))
            }
            _ => {
                let running = node.load.tasks.iter().filter(|task| task.runs(at)).enumerate();
                let task = |(n, task): (usize, &Task)| SwarmTask {
                    id: swarm_id(format!("task{n}")),
                    service: task.service.to_owned(),
                    state: "running".to_owned(),
                };
                Ok(SwarmReply::Tasks(running.map(task).collect()))
            }
        }
    }

    /// Has its machine yet to get back the availability of its former node?
    fn gets_back(&self, node: &SwarmId) -> bool {
        let of_it = |row: &MachineRow| row.swarm.as_ref().is_some_and(|member| member.node_id == *node);
        let mut machines = self.facts().into_iter().flat_map(|facts| facts.machines.values());
        machines.any(|row| row.former_node.is_some() && of_it(row))
    }

    /// Does the coordinator know the node's machine, and wait for its drains?
    fn is_counted_on(&self, node: &SwarmId) -> bool {
        let Some((_, node)) = self.find(node) else { return false };
        let machine = self.machines.get(node.index);
        machine.and_then(|machine| self.facts()?.by_id(machine.id)).is_some_and(|row| !row.revoked)
    }

    fn find(&self, node: &SwarmId) -> Option<(&Swarm, &Node)> {
        self.swarms.iter().find_map(|swarm| Some((swarm, swarm.nodes.iter().find(|known| known.id == *node)?)))
    }

    /// Rule 4, its services: a drain takes no task from a service that another drain has taken from, until the service
    /// has run all of its tasks again. No drain is ordered against a recent count.
    pub(crate) fn may_drain(&mut self, op: &SwarmOp, ordered: bool) -> Result<(), Violation> {
        let SwarmOp::SetAvailability { node, availability: SwarmAvailability::Drain } = op else { return Ok(()) };
        let at = self.at;
        self.swarms.iter_mut().for_each(|swarm| swarm.restart_tasks(at, &mut self.rng));
        let Some((swarm, found)) = self.find(node).filter(|_| self.is_counted_on(node)) else { return Ok(()) };
        if found.load.availability == SwarmAvailability::Drain {
            return Ok(());
        }
        let counted = |moment: u64| moment + COUNTED_AGO_MS < at;
        let unspared = |lost: &&Lost| {
            found.load.tasks.iter().filter(|task| task.service == lost.service && task.runs(at)).any(|task| {
                match ordered {
                    true => counted(lost.since) && counted(task.comes),
                    false => lost.drained_by_us && task.lost_by.unwrap_or(found.index) != lost.by,
                }
            })
        };
        match swarm.lost.iter().find(unspared) {
            Some(lost) => Err(self.watcher.drains_degraded_service(node, lost.service, at.saturating_sub(lost.since))),
            None => Ok(()),
        }
    }

    /// Operators scale down services that lack room. False: there were none.
    pub(crate) fn scale_down(&mut self) -> bool {
        let lost: usize = self.swarms.iter().map(|swarm| swarm.lost.len()).sum();
        self.swarms.iter_mut().for_each(|swarm| swarm.lost.clear());
        lost > 0
    }

    /// Does an engine perform this after the caller's timeout?
    pub(crate) fn is_late(&mut self, index: usize, op: &SwarmOp) -> bool {
        let permille = if self.awaits_late_drain() { OFTEN_LATE_PERMILLE } else { LATE_PERMILLE };
        let late = self.chaos && matches!(op, SwarmOp::SetAvailability { .. }) && self.rng.permille(permille);
        if late {
            self.count("a change of a node came late");
            let delay = self.rng.between(1_000, 29_000);
            self.later(delay, Event::LateChange(index, op.clone()));
        }
        late
    }

    /// The coordinator makes a query for one of its drains.
    pub(crate) fn ask_swarm(&mut self, question: SwarmQuestion) -> Result<(), Violation> {
        let SwarmQuestion { number, about, agent, op, timeout_ms } = question;
        self.may_drain(&op, true)?;
        if let SwarmOp::SetAvailability { node, availability: SwarmAvailability::Drain } = &op {
            self.kubernetes_is_drained_first(node)?;
        }
        self.may_demote(&about, &op)?;
        self.last_call += 1;
        let call = self.last_call;
        self.questions.insert(call, (agent, about, number));
        let epoch = self.coordinator.as_ref().map(|core| core.facts().meta.epoch).unwrap_or_default();
        let connected = self.index_of(agent).zip(self.sessions.get(&agent).copied());
        let timeout_ms = if connected.is_some() { timeout_ms } else { 0 };
        if let Some((index, session)) = connected {
            self.carry(Parcel { index, id: agent, session, what: Said::SwarmCall(SwarmCall { id: call, epoch, op }) });
        }
        self.later(timeout_ms, Event::QuestionSilent(call));
        Ok(())
    }

    /// An answer to such a query, or its timeout. False: it belongs to another query.
    pub(crate) fn question_answered(
        &mut self,
        from: Option<MachineId>,
        call: u64,
        result: Result<SwarmReply, SwarmFailure>,
    ) -> bool {
        let asked = self.questions.get(&call).is_some_and(|(agent, ..)| from.is_none_or(|from| from == *agent));
        if !asked {
            return false;
        }
        let Some((_, about, number)) = self.questions.remove(&call) else { return false };
        if result.is_err() {
            self.watcher.managers_listed(&about, &[Listed::Unanswered], self.at);
        }
        self.tell(Input::SwarmAnswered { about, number, result });
        true
    }

    pub(crate) fn question_silent(&mut self, call: u64) {
        let failure = SwarmFailure { code: SwarmFailureCode::Timeout, message: "no answer".to_owned() };
        self.question_answered(None, call, Err(failure));
    }

    /// An operator sets the availability of a node with docker itself.
    pub(crate) fn set_availability(&mut self) {
        let at = self.at;
        let nodes = self.swarms.last().map_or(0, |swarm| swarm.nodes.len());
        let picked = usize::try_from(self.rng.between(0, 20)).unwrap_or(0) % nodes.max(1);
        let Some(index) = self.swarms.last().and_then(|swarm| swarm.nodes.get(picked)).map(|node| node.index) else {
            return;
        };
        let word = *self
            .rng
            .pick(&[SwarmAvailability::Active, SwarmAvailability::Pause, SwarmAvailability::Drain])
            .unwrap_or(&SwarmAvailability::Active);
        let requested = self.is_requested(index);
        let Some(swarm) = self.swarms.last_mut() else { return };
        swarm.restart_tasks(at, &mut self.rng);
        swarm.set(picked, word, (at, false), (&mut self.rng, self.chaos));
        let Some(node) = swarm.nodes.get_mut(picked) else { return };
        (node.load.word, node.load.touched) = (word, requested);
        self.count("an operator set a node's availability");
    }

    fn is_requested(&self, index: usize) -> bool {
        let Some(machine) = self.machines.get(index) else { return false };
        let row = self.facts().and_then(|facts| facts.by_id(machine.id));
        // This is unknown while the coordinator is down.
        self.coordinator.is_none()
            || row
                .and_then(|row| row.update.as_ref())
                .is_some_and(|part| part.request.is_some() || part.drains.swarm.is_some())
    }

    /// The node of a machine, as known to its engine and its swarm.
    fn load_of(&self, index: usize) -> Option<(&MachineName, &Load)> {
        let machine = self.machines.get(index)?;
        let place = machine.engine.as_ref()?;
        let node = self.swarms.get(place.swarm)?.nodes.iter().find(|node| node.id == place.node)?;
        Some((&machine.name, &node.load))
    }

    /// Rule 4: no disruptive item starts on a worker while service tasks run there.
    pub(crate) fn is_disturbed(&self, index: usize, permitted: bool) -> Result<(), Violation> {
        let worker = self.machines.get(index).is_some_and(|machine| machine.machine_type == MachineType::Worker);
        match self.load_of(index).filter(|(_, load)| permitted && worker && !load.touched) {
            Some((name, load)) => self.watcher.no_task_is_hurt(name, load.running(self.at)),
            None => Ok(()),
        }
    }

    /// Rule 4: no worker goes out of service while service tasks run there.
    pub(crate) fn nobody_left_with_tasks(&self) -> Result<(), Violation> {
        let now_ms = self.now().wall_ms;
        for (index, machine) in self.machines.iter().enumerate() {
            let row = self.facts().and_then(|facts| facts.by_id(machine.id));
            let known = row.and_then(|row| row.update.as_ref()?.maintenance?.since_ms);
            self.is_disturbed(index, known == Some(now_ms))?;
        }
        Ok(())
    }

    /// Rule 9: a node of a machine without a request is as its operator set it.
    pub(crate) fn nodes_are_given_back(&self) -> Result<(), Violation> {
        for index in 0..self.machines.len() {
            if self.is_requested(index) {
                continue;
            }
            let Some(machine) = self.machines.get(index) else { continue };
            let known = self.facts().is_some_and(|facts| facts.by_id(machine.id).is_some_and(|row| !row.revoked));
            if let Some((name, load)) = self.load_of(index).filter(|(_, load)| known && !load.touched) {
                self.watcher.is_as_it_was(name, load.word, load.availability)?;
            }
        }
        Ok(())
    }

    /// The faults are over: stuck tasks are released.
    pub(crate) fn loosen_tasks(&mut self) {
        let at = self.at;
        for swarm in &mut self.swarms {
            swarm.nodes.iter_mut().for_each(|node| node.load.loosen(at));
            for lost in &mut swarm.lost {
                (lost.since, lost.back_at) = (lost.since.min(at), lost.back_at.min(at + 4_000));
            }
        }
    }

    /// An operator restores a node's availability, with docker itself.
    pub(crate) fn serve_again(&mut self, name: &MachineName) {
        let at = self.at;
        let Some(index) = self.machines.iter().position(|machine| machine.name == *name) else { return };
        let place = self.machines.get(index).and_then(|machine| machine.engine.clone());
        let swarm = place.as_ref().and_then(|place| self.swarms.get_mut(place.swarm));
        let Some(swarm) = swarm else { return };
        let Some(place) = swarm.nodes.iter().position(|node| node.index == index) else { return };
        let Some(word) = swarm.nodes.get(place).map(|node| node.load.word) else { return };
        swarm.set(place, word, (at, false), (&mut self.rng, false));
        if let Some(node) = swarm.nodes.get_mut(place) {
            node.load.touched = false;
        }
    }

    /// A restored store lacks later changes to the nodes.
    pub(crate) fn nobody_knows_of_nodes(&mut self) {
        self.swarms.iter_mut().flat_map(|swarm| &mut swarm.nodes).for_each(|node| node.load.touched = true);
        self.nobody_knows_of_kubernetes();
    }

    /// Operators make sure that each worker is in a working swarm, or in none. False: there was nothing to do.
    pub(crate) fn bring_home(&mut self, adrift: &[(MachineName, bool)]) -> bool {
        let mended = self.mend_swarms();
        let mut left = false;
        for (name, unknown) in adrift {
            let Some(index) = self.machines.iter().position(|machine| machine.name == *name) else { continue };
            let home = self.machines.get(index).and_then(|machine| machine.engine.as_ref()).map(|place| place.swarm);
            let lost = home.is_some_and(|swarm| *unknown || !self.is_managed(swarm) || self.load_of(index).is_none());
            if lost {
                self.leave_swarm(name);
                left = true;
            }
        }
        mended || left
    }

    /// An agent is gone: queries to it fail.
    pub(crate) fn questions_end(&mut self, agent: MachineId) {
        let open: Vec<u64> =
            self.questions.iter().filter(|(_, (of, ..))| *of == agent).map(|(call, _)| *call).collect();
        for call in open {
            let failure = SwarmFailure { code: SwarmFailureCode::Engine, message: "not connected".to_owned() };
            self.question_answered(None, call, Err(failure));
        }
    }
}
