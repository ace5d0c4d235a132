//! The coordinator's swarm calls while a machine waits to join: `Joining` as in production, each call carried to an
//! agent and its answer back. A crash of the coordinator drops them.

use muster_coordinator::{
    core::{Input, Reply},
    plan::swarm::{
        Entry,
        joining::{Joining, Next, Refused},
    },
};
use muster_proto::model::{
    MachineId, SwarmAnswer, SwarmCall, SwarmFailure, SwarmFailureCode, SwarmJoin, SwarmOp, SwarmReply, SwarmWay,
};

use super::{
    Event, World,
    network::{Parcel, Said},
    secrets::Fetch,
    swarm::Way,
};
use crate::invariants::Violation;

/// Permille of calls that an engine leaves unanswered while there are faults.
const SILENT_PERMILLE: u64 = 30;

/// Pending swarm calls for one machine.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    fetch: Fetch,
    joining: Joining,
    /// The call in progress, and the machine asked.
    call: Option<(u64, MachineId)>,
    /// Number of managers, and of those up, when last listed for it.
    counted: Option<(usize, usize)>,
}

impl World {
    /// The record admits a machine: it is told to create the swarm, or the swarm is asked for it.
    pub(crate) fn let_in(&mut self, fetch: Fetch, entry: Entry) -> Result<(), Violation> {
        match entry {
            Entry::Init => {
                self.watcher.told_to_make_swarm(fetch.0, &self.disk)?;
                self.count("told to make the swarm");
                let join = SwarmJoin { manager: true, way: SwarmWay::Init };
                self.answer_fetch(&fetch, Ok(Some(Way { join, token: None })));
                Ok(())
            }
            Entry::Join { manager, managers, others } => {
                let id = fetch.0;
                let (joining, next) = Joining::begin(id, manager, managers, others, self.at);
                self.talks.insert(id, Talk { fetch, joining, call: None, counted: None });
                self.go_on_talking(id, next)
            }
        }
    }

    fn go_on_talking(&mut self, id: MachineId, mut next: Next) -> Result<(), Violation> {
        loop {
            let (machine, op, timeout_ms) = match next {
                Next::Ask { machine, op, timeout_ms } => (machine, op, timeout_ms),
                Next::Record(entry) => {
                    let node = entry.node.clone();
                    let kept = self.ask(Input::NodeLeftBehind { id, entry })?;
                    let Some(talk) = self.talks.get_mut(&id) else { return Ok(()) };
                    next = match kept {
                        Ok(_) => talk.joining.recorded(self.at),
                        Err(refusal) => Next::Refuse(Refused::Unrecorded { node, why: refusal.to_string() }),
                    };
                    continue;
                }
                Next::Give { join, token } => {
                    let token = token.map(|token| String::from_utf8_lossy(&token.into_bytes()).into_owned());
                    return self.give_way(id, Way { join, token });
                }
                Next::Refuse(refused) => {
                    if let Some(talk) = self.talks.remove(&id) {
                        self.count("no way into the swarm");
                        self.answer_fetch(&talk.fetch, Err(refused.to_string()));
                    }
                    return Ok(());
                }
            };
            self.last_call += 1;
            let call = self.last_call;
            let at = self.at;
            let epoch = self.coordinator.as_ref().map(|core| core.facts().meta.epoch).unwrap_or_default();
            let reached = self.index_of(machine).zip(self.sessions.get(&machine).copied());
            let Some(talk) = self.talks.get_mut(&id) else { return Ok(()) };
            talk.call = Some((call, machine));
            if let Some((index, session)) = reached {
                let what = Said::SwarmCall(SwarmCall { id: call, epoch, op });
                self.carry(Parcel { index, id: machine, session, what });
                self.later(timeout_ms, Event::SwarmSilent(id, call));
                return Ok(());
            }
            let failure = SwarmFailure { code: SwarmFailureCode::Engine, message: "not connected".to_owned() };
            next = talk.joining.answered(Err(failure), at);
        }
    }

    /// Checks the record once more before a token is sent.
    fn give_way(&mut self, id: MachineId, way: Way) -> Result<(), Violation> {
        let Some(talk) = self.talks.remove(&id) else { return Ok(()) };
        let (machine, item, generation) = talk.fetch.clone();
        let again = self.ask(Input::Fetch { id: machine, item, generation })?;
        if !matches!(again, Ok(Reply::Inputs { entry: Some(Entry::Join { .. }), .. })) {
            self.count("no way into the swarm");
            self.answer_fetch(&talk.fetch, Err("NotAssigned".to_owned()));
            return Ok(());
        }
        if matches!(way.join.way, SwarmWay::Join { .. }) {
            self.watcher.let_in(id, way.join.manager, talk.counted)?;
            self.count(if way.join.manager { "a manager was let in" } else { "a worker was let in" });
        }
        self.answer_fetch(&talk.fetch, Ok(Some(way)));
        Ok(())
    }

    pub(crate) fn answer_fetch(&mut self, (id, item, generation): &Fetch, outcome: Result<Option<Way>, String>) {
        if let (Some(index), Some(session)) = (self.index_of(*id), self.sessions.get(id).copied()) {
            let what = Said::Fetched(item.clone(), *generation, outcome);
            self.carry(Parcel { index, id: *id, session, what });
        }
    }

    /// A call has reached an agent that accepts it: normally its engine answers.
    pub(crate) fn ask_engine(&mut self, index: usize, call: SwarmCall) -> Result<(), Violation> {
        if self.chaos && self.rng.permille(SILENT_PERMILLE) {
            self.count("an engine did not answer");
            return Ok(());
        }
        if self.is_late(index, &call.op) {
            return Ok(());
        }
        self.may_drain(&call.op, false)?;
        let swarm = self.machines.get(index).and_then(|machine| machine.engine.as_ref()).map(|place| place.swarm);
        if let Some(swarm) = swarm.filter(|_| call.op == SwarmOp::Nodes) {
            self.list_for(call.id, swarm);
        }
        let (result, counted) = self.engine_answers(index, &call.op);
        let Some(machine) = self.machines.get(index) else { return Ok(()) };
        let (id, Some(session)) = (machine.id, machine.session) else { return Ok(()) };
        if let Some(talk) = self.talks.values_mut().find(|talk| talk.call == Some((call.id, id))) {
            talk.counted = counted.or(talk.counted);
        }
        let what = Said::FromAgent(muster_agent::core::ToCoordinator::Swarm(SwarmAnswer { id: call.id, result }));
        self.carry(Parcel { index, id, session, what });
        Ok(())
    }

    /// An agent's answer has arrived.
    pub(crate) fn swarm_answered(&mut self, from: MachineId, answer: SwarmAnswer) -> Result<(), Violation> {
        self.count("swarm answered");
        if self.question_answered(Some(from), answer.id, answer.result.clone()) {
            return Ok(());
        }
        self.answered(Some(from), answer.id, answer.result)
    }

    /// A call timed out.
    pub(crate) fn swarm_silent(&mut self, id: MachineId, call: u64) -> Result<(), Violation> {
        if self.talks.get(&id).and_then(|talk| talk.call).is_none_or(|(current, _)| current != call) {
            return Ok(());
        }
        let failure = SwarmFailure { code: SwarmFailureCode::Timeout, message: "no answer".to_owned() };
        self.answered(None, call, Err(failure))
    }

    fn answered(
        &mut self,
        from: Option<MachineId>,
        call: u64,
        result: Result<SwarmReply, SwarmFailure>,
    ) -> Result<(), Violation> {
        let at = self.at;
        let waits = |talk: &Talk| talk.call.is_some_and(|(id, of)| id == call && from.is_none_or(|from| from == of));
        let Some((id, talk)) = self.talks.iter_mut().find(|(_, talk)| waits(talk)) else { return Ok(()) };
        talk.call = None;
        let (id, next) = (*id, talk.joining.answered(result, at));
        self.go_on_talking(id, next)
    }
}
