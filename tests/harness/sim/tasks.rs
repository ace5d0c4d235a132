//! Services in a simulated swarm: their tasks, and how they leave a node that is drained, some slowly; what operators
//! set with docker itself; and the questions that the coordinator asks for its drains.

use muster_coordinator::core::{Input, SwarmQuestion};
use muster_proto::model::{
    MachineId, MachineName, MachineType, SwarmAvailability, SwarmCall, SwarmFailure, SwarmFailureCode, SwarmOp,
    SwarmReply, SwarmTask,
};

use super::{
    Event, World,
    network::{Parcel, Said},
    swarm::swarm_id,
};
use crate::{invariants::Violation, rng::Rng};

/// So many of a thousand changes of a node are carried out late, when nobody waits for an answer any more.
const LATE_PERMILLE: u64 = 60;
/// So many of a thousand tasks do not leave while there are faults.
const STUCK_PERMILLE: u64 = 40;

/// What a node is for services.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) availability: SwarmAvailability,
    /// What an operator last set.
    pub(crate) word: SwarmAvailability,
    /// An operator set something while its machine's maintenance was requested: what it gets back is anybody's guess.
    pub(crate) touched: bool,
    /// Tasks: when each comes, and when it leaves; None: it stays.
    tasks: Vec<(u64, Option<u64>)>,
}

impl Load {
    /// Of a node that has just joined.
    pub(crate) fn new(at: u64, rng: &mut Rng) -> Self {
        let tasks = (0..rng.between(0, 3)).map(|_| (at, None)).collect();
        let availability = SwarmAvailability::Active;
        Self { availability, word: availability, touched: false, tasks }
    }

    /// Tasks that run there.
    pub(crate) fn running(&self, at: u64) -> usize {
        self.tasks.iter().filter(|(comes, leaves)| *comes <= at && leaves.is_none_or(|leaves| leaves > at)).count()
    }

    fn set(&mut self, availability: SwarmAvailability, at: u64, rng: &mut Rng, chaos: bool) {
        let before = std::mem::replace(&mut self.availability, availability);
        if before == availability {
            return;
        }
        match availability {
            SwarmAvailability::Drain => {
                self.tasks.retain(|(comes, _)| *comes <= at);
                for (_, leaves) in self.tasks.iter_mut().filter(|(_, leaves)| leaves.is_none()) {
                    let stuck = chaos && rng.permille(STUCK_PERMILLE);
                    *leaves = Some(if stuck { u64::MAX } else { at + rng.between(0, 12_000) });
                }
            }
            SwarmAvailability::Active => {
                let coming = rng.between(0, 3);
                self.tasks.extend((0..coming).map(|_| (at + rng.between(0, 4_000), None)));
            }
            SwarmAvailability::Pause => {}
        }
    }

    /// What did not leave does now.
    fn loosen(&mut self, at: u64) {
        for (_, leaves) in &mut self.tasks {
            *leaves = leaves.map(|leaves| leaves.min(at + 2_000));
        }
    }
}

impl World {
    /// The tasks on a node, or the change of one.
    pub(crate) fn load_answers(&mut self, swarm: usize, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        let at = self.at;
        let (SwarmOp::Tasks { node } | SwarmOp::SetAvailability { node, .. }) = op else { return Ok(SwarmReply::Done) };
        let known = self.swarms.get_mut(swarm).and_then(|swarm| swarm.nodes.iter_mut().find(|known| known.id == *node));
        let Some(known) = known else {
            let message = "said the engine".to_owned();
            return Err(SwarmFailure { code: SwarmFailureCode::NoSuchNode, message });
        };
        match op {
            SwarmOp::SetAvailability { availability, .. } => {
                known.load.set(*availability, at, &mut self.rng, self.chaos);
                Ok(SwarmReply::Done)
            }
            _ => {
                let task = |n: usize| SwarmTask {
                    id: swarm_id(format!("task{n}")),
                    service: "web".to_owned(),
                    state: "running".to_owned(),
                };
                Ok(SwarmReply::Tasks((0..known.load.running(at)).map(task).collect()))
            }
        }
    }

    /// Does an engine do this when nobody waits for its answer any more?
    pub(crate) fn is_late(&mut self, index: usize, op: &SwarmOp) -> bool {
        let late = self.chaos && matches!(op, SwarmOp::SetAvailability { .. }) && self.rng.permille(LATE_PERMILLE);
        if late {
            self.count("a change of a node came late");
            let delay = self.rng.between(1_000, 29_000);
            self.later(delay, Event::LateChange(index, op.clone()));
        }
        late
    }

    /// The coordinator asks for one of its drains.
    pub(crate) fn ask_swarm(&mut self, question: SwarmQuestion) {
        let SwarmQuestion { number, about, agent, op, patience_ms } = question;
        self.last_call += 1;
        let call = self.last_call;
        self.questions.insert(call, (agent, about, number));
        let epoch = self.coordinator.as_ref().map(|core| core.facts().meta.epoch).unwrap_or_default();
        let connected = self.index_of(agent).zip(self.sessions.get(&agent).copied());
        let patience_ms = if connected.is_some() { patience_ms } else { 0 };
        if let Some((index, session)) = connected {
            self.carry(Parcel { index, id: agent, session, what: Said::SwarmCall(SwarmCall { id: call, epoch, op }) });
        }
        self.later(patience_ms, Event::QuestionSilent(call));
    }

    /// An answer to such a question, or none in time. False: it is no such question.
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
        self.tell(Input::SwarmAnswered { about, number, result });
        true
    }

    pub(crate) fn question_silent(&mut self, call: u64) {
        let failure = SwarmFailure { code: SwarmFailureCode::Timeout, message: "no answer".to_owned() };
        self.question_answered(None, call, Err(failure));
    }

    /// An operator says with docker itself what a node is to be.
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
        let node = self.swarms.last_mut().and_then(|swarm| swarm.nodes.get_mut(picked));
        let Some(node) = node else { return };
        node.load.set(word, at, &mut self.rng, self.chaos);
        (node.load.word, node.load.touched) = (word, requested);
        self.count("an operator set a node's availability");
    }

    fn is_requested(&self, index: usize) -> bool {
        let Some(machine) = self.machines.get(index) else { return false };
        let row = self.facts().and_then(|facts| facts.by_id(machine.id));
        // Without a coordinator nobody knows.
        self.coordinator.is_none()
            || row
                .and_then(|row| row.update.as_ref())
                .is_some_and(|part| part.request.is_some() || part.drain.is_some())
    }

    /// The node of a machine, as its engine and its swarm have it.
    fn load_of(&self, index: usize) -> Option<(&MachineName, &Load)> {
        let machine = self.machines.get(index)?;
        let place = machine.engine.as_ref()?;
        let node = self.swarms.get(place.swarm)?.nodes.iter().find(|node| node.id == place.node)?;
        Some((&machine.name, &node.load))
    }

    /// Rule 4: nothing disruptive starts on a worker while tasks of services run there.
    pub(crate) fn is_disturbed(&self, index: usize, permitted: bool) -> Result<(), Violation> {
        let worker = self.machines.get(index).is_some_and(|machine| machine.machine_type == MachineType::Worker);
        match self.load_of(index).filter(|(_, load)| permitted && worker && !load.touched) {
            Some((name, load)) => self.watcher.no_task_is_hurt(name, load.running(self.at)),
            None => Ok(()),
        }
    }

    /// Rule 4: no worker goes out of service while tasks of services run there.
    pub(crate) fn nobody_left_with_tasks(&self) -> Result<(), Violation> {
        let now_ms = self.now().wall_ms;
        for (index, machine) in self.machines.iter().enumerate() {
            let row = self.facts().and_then(|facts| facts.by_id(machine.id));
            let known = row.and_then(|row| row.update.as_ref()?.maintenance?.since_ms);
            self.is_disturbed(index, known == Some(now_ms))?;
        }
        Ok(())
    }

    /// Rule 9: a node whose machine is in nobody's hands is as its operator had it.
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

    /// The faults are over: what is stuck comes loose.
    pub(crate) fn loosen_tasks(&mut self) {
        let at = self.at;
        for node in self.swarms.iter_mut().flat_map(|swarm| &mut swarm.nodes) {
            node.load.loosen(at);
        }
    }

    /// Operators see to it that workers are in a swarm that works, or in none. False: there was nothing to do.
    pub(crate) fn bring_home(&mut self, adrift: &[(MachineName, bool)]) -> bool {
        let mended = self.mend_swarms();
        let mut left = false;
        for (name, unknown) in adrift {
            let Some(index) = self.machines.iter().position(|machine| machine.name == *name) else { continue };
            let home = self.machines.get(index).and_then(|machine| machine.engine.as_ref()).map(|place| place.swarm);
            let lost = home.is_some_and(|swarm| *unknown || !self.works(swarm) || self.load_of(index).is_none());
            if lost {
                self.leave_swarm(name);
                left = true;
            }
        }
        mended || left
    }

    /// An agent is gone: what it was asked is not answered.
    pub(crate) fn questions_end(&mut self, agent: MachineId) {
        let open: Vec<u64> =
            self.questions.iter().filter(|(_, (of, ..))| *of == agent).map(|(call, _)| *call).collect();
        for call in open {
            let failure = SwarmFailure { code: SwarmFailureCode::Engine, message: "not connected".to_owned() };
            self.question_answered(None, call, Err(failure));
        }
    }
}
