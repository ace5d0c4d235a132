//! Handlers of the simulator's events.

use muster_agent::{
    attempt::record::AttemptKey,
    core::{Input as AgentInput, ToCoordinator},
};
use muster_coordinator::{
    core::{Act, Core, Input, Refusal, Reply},
    proof::Told,
};
use muster_proto::model::{MachineId, REBOOT_ITEM};

use super::{
    Event, World,
    chaos::{AGENT_CRASH, BEFORE_COMMIT, BETWEEN_EFFECTS},
    machine::{Deed, Effects, End, status_of},
    network::{Parcel, Said},
    proof_key, secrets,
};
use crate::invariants::Violation;

/// Most inputs that one machine may cause itself in a row; more indicates a loop.
const CHAIN_MAX: usize = 1_000;
/// Interval of the agents' heartbeats, in milliseconds.
const HEARTBEAT_MS: u64 = 10_000;
/// Permille of coordinator steps followed by a heartbeat.
const HEARTBEATS_PERMILLE: u64 = 100;

impl World {
    pub(crate) fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Deliver(parcel) => self.deliver(parcel)?,
            Event::Wake(index) => self.wake(index)?,
            Event::Connect(index) => self.connect(index),
            Event::StartAgent(index) => self.start_agent(index)?,
            Event::PowerOn(index) => {
                if let Some(machine) = self.machines.get_mut(index).filter(|machine| !machine.powered) {
                    machine.power_on();
                    self.start_agent(index)?;
                }
            }
            Event::CutPower(index, off_ms) if self.chaos => self.cut_power(index, off_ms)?,
            Event::CutPower(..) => {}
            Event::GoDown(index, key) => self.go_down(index, &key)?,
            Event::StartCoordinator if self.coordinator.is_none() => {
                self.upgrade()?;
                self.start_coordinator()?;
            }
            Event::StartCoordinator => {}
            Event::Decide => self.decide()?,
            Event::Operate => self.operate()?,
            Event::Controller(index) => self.look(index)?,
            Event::ObjectController(n) => self.object_controller_looks(n),
            Event::NoticeGone(id, session) => {
                if self.sessions.get(&id) == Some(&session) {
                    self.sessions.remove(&id);
                }
                self.questions_end(id);
                self.tell(Input::Gone { id, session });
            }
            Event::SwarmSilent(id, call) => self.swarm_silent(id, call)?,
            Event::QuestionSilent(call) => self.question_silent(call),
            Event::LateChange(index, op) => {
                self.may_drain(&op, false)?;
                drop(self.engine_answers(index, &op));
            }
            Event::KubernetesAsked(call) => self.kubernetes_asked(call)?,
            Event::KubernetesAnswered(call) => self.kubernetes_answered(call),
        }
        self.watcher.processes(&self.machines, self.coordinator.as_ref())
    }

    /// Puts an input into the coordinator's inbox.
    pub(crate) fn tell(&mut self, input: Input) {
        if self.coordinator.is_some() {
            if self.inbox.is_empty() {
                let delay = self.rng.between(0, 4);
                self.later(delay, Event::Decide);
            }
            self.inbox.push(input);
        }
    }

    /// The coordinator processes its inbox: one step, one commit, then the effects. A crash may occur in between.
    fn decide(&mut self) -> Result<(), Violation> {
        let mut inputs = std::mem::take(&mut self.inbox);
        self.timer = self.timer.filter(|timer| *timer > self.at);
        // Heartbeats: every machine with a working stream was heard a moment ago.
        let alive =
            self.machines.iter().filter(|m| m.session.is_some() && m.session.as_ref() == self.sessions.get(&m.id));
        inputs.extend(alive.map(|machine| Input::Heard { id: machine.id }));
        if inputs.is_empty() {
            inputs.push(Input::Tick);
        }
        self.count_heartbeats(&inputs);
        let greetings: Vec<Option<(MachineId, u64)>> = inputs.iter().map(greeting).collect();
        let senders: Vec<Option<MachineId>> = inputs.iter().map(sender).collect();
        let fetches: Vec<_> = inputs.iter().map(secrets::fetch_of).collect();
        let told_more: Vec<_> = inputs.iter().map(|input| self.told_more(input)).collect();
        let recovering = self.facts().is_some_and(|facts| facts.meta.recovering);
        let (now, sent_before) = (self.now(), self.past.len());
        let Some(core) = &mut self.coordinator else { return Ok(()) };
        let (answers, acts) = core.step(inputs, now).into_acts();
        if self.crash_now(BEFORE_COMMIT) {
            self.crash_coordinator();
            return Ok(());
        }
        for (id, answer) in told_more.into_iter().zip(&answers) {
            self.is_believed(id, answer)?;
        }
        for (greeting, answer) in greetings.into_iter().zip(&answers) {
            if let Some((id, session)) = greeting {
                if recovering && answer.is_ok() {
                    self.recovery_asked((id, session));
                }
                self.greeted(id, session, answer);
            }
        }
        for act in acts {
            match act {
                Act::Commit(changes) => self.commit(&changes),
                Act::Perform(effect) => self.perform(effect)?,
            }
            if self.crash_now(BETWEEN_EFFECTS) {
                self.crash_coordinator();
                return Ok(());
            }
        }
        self.after_step()?;
        for (fetch, answer) in fetches.into_iter().zip(&answers) {
            if let Some(fetch) = fetch {
                self.hand_out(fetch, answer, sent_before)?;
            }
        }
        for (sender, answer) in senders.into_iter().zip(answers) {
            if let (Some(id), Err(Refusal::Protocol { .. })) = (sender, answer) {
                self.count("stream closed for a protocol error");
                if let Some(session) = self.sessions.remove(&id) {
                    self.carry_end(id, session);
                }
            }
        }
        self.schedule_decision();
        if self.rng.permille(HEARTBEATS_PERMILLE) {
            let delay = self.rng.between(0, HEARTBEAT_MS);
            self.later(delay, Event::Decide);
        }
        Ok(())
    }

    /// Counts the batches that contain only heartbeats.
    fn count_heartbeats(&mut self, inputs: &[Input]) {
        let due = self.coordinator.as_ref().is_some_and(|core| self.at >= core.decide_by_mono_ms());
        if inputs.iter().all(|input| matches!(input, Input::Heard { .. })) {
            self.count(if due { "a deadline passed among heartbeats" } else { "heartbeats came alone" });
        }
    }

    /// The answer to a Hello: a welcome on the newest stream, or its end.
    fn greeted(&mut self, id: MachineId, session: u64, answer: &Result<Reply, Refusal>) {
        let Some(index) = self.index_of(id) else { return };
        let epoch = self.facts().map(|facts| facts.meta.epoch);
        match (answer, epoch) {
            (Ok(_), Some(epoch)) => {
                // The latest stream wins and ends the other, although a delayed Hello may belong to a dead stream.
                if let Some(replaced) = self.sessions.insert(id, session).filter(|other| *other != session) {
                    self.carry_end(id, replaced);
                }
                let code = proof_key().code(id, &Told::Epoch(epoch));
                self.carry(Parcel { index, id, session, what: Said::Welcome(epoch, code) });
            }
            _ => self.carry(Parcel { index, id, session, what: Said::End }),
        }
    }

    fn deliver(&mut self, parcel: Parcel) -> Result<(), Violation> {
        let Parcel { index, id, session, what } = parcel;
        let at_machine = |world: &Self| {
            world.machines.get(index).is_some_and(|machine| machine.session == Some(session) && machine.id == id)
        };
        match what {
            Said::Hello(mut hello) => {
                self.as_of_this_build(id, &mut hello);
                self.tell(Input::Hello { id, session, hello });
            }
            Said::FromAgent(ToCoordinator::Swarm(answer)) => self.swarm_answered(id, answer)?,
            Said::FromAgent(what) => self.tell_what(id, session, what),
            Said::HostChanged(facts) => self.tell(Input::HostChanged { id, session, facts }),
            Said::Fetch(item, generation) => self.tell(Input::Fetch { id, item, generation }),
            Said::Fetched(item, generation, outcome) if at_machine(self) => {
                self.inputs_came(index, &item, generation, outcome)?;
            }
            Said::Welcome(epoch, code) if at_machine(self) => {
                self.agent_input(index, AgentInput::LinkUp { epoch, code })?;
            }
            Said::Assignment(assignment) if at_machine(self) => {
                self.agent_input(index, AgentInput::Received(*assignment))?;
            }
            Said::Ack(seq, proof) if at_machine(self) => {
                self.agent_input(index, AgentInput::Acked(seq, proof))?;
            }
            Said::SwarmCall(call) if at_machine(self) => self.agent_input(index, AgentInput::SwarmCalled(call))?,
            Said::End if at_machine(self) => self.drop_session(index),
            Said::Welcome(..)
            | Said::Assignment(_)
            | Said::Ack(..)
            | Said::Fetched(..)
            | Said::SwarmCall(_)
            | Said::End => {}
        }
        Ok(())
    }

    fn tell_what(&mut self, id: MachineId, session: u64, what: ToCoordinator) {
        match what {
            ToCoordinator::Event { seq, status } => {
                self.tell(Input::Status { id, session, seq, status: Box::new(status_of(&status)) });
            }
            ToCoordinator::Answer { generation, refusal } => {
                if refusal.is_some() {
                    self.count("assignment refused");
                }
                let refused = refusal.map(|refusal| format!("{}: {}", refusal.code, refusal.message));
                self.tell(Input::Answer { id, session, generation, refused });
            }
            // Handled outside of the core.
            ToCoordinator::Swarm(_) | ToCoordinator::ControlPlane(_) => {}
            ToCoordinator::PermitWanted(permit) => {
                self.count("permit ran out");
                self.tell(Input::PermitWanted { id, permit });
            }
            ToCoordinator::Blocked(blocked) => {
                let blocked = blocked.map(|blocked| (blocked.reason.to_owned(), blocked.message.into_owned()));
                self.tell(Input::AgentBlocked { id, session, blocked });
            }
        }
    }

    fn start_agent(&mut self, index: usize) -> Result<(), Violation> {
        let at = self.at;
        let Some(machine) = self.machines.get_mut(index).filter(|machine| machine.powered && machine.agent.is_none())
        else {
            return Ok(());
        };
        let effects = machine.start_agent(at).map_err(|error| self.watcher.violation("codec", error))?;
        let delay = self.rng.between(0, 500);
        self.later(delay, Event::Connect(index));
        self.run_effects(index, effects)
    }

    fn wake(&mut self, index: usize) -> Result<(), Violation> {
        let at = self.at;
        let fate = self.plan.fate;
        self.end_joins(index)?;
        self.end_copies(index);
        let Some(machine) = self.machines.get_mut(index) else { return Ok(()) };
        machine.waking_at.take_if(|waking_at| *waking_at <= at);
        let (ended, inputs) = machine.end_processes(at, &mut self.rng, &fate);
        for (key, end) in ended {
            let Some(machine) = self.machines.get(index) else { continue };
            self.watcher.ended(machine, &key, end == End::Succeeded);
            if end == End::GoesDown {
                let delay = self.rng.between(0, 3_000);
                self.later(delay, Event::GoDown(index, key));
            }
        }
        for input in inputs {
            self.agent_input(index, input)?;
        }
        self.agent_input(index, AgentInput::Tick)
    }

    /// The machine reboots for an item, unless it has rebooted for another reason meanwhile.
    fn go_down(&mut self, index: usize, key: &AttemptKey) -> Result<(), Violation> {
        let Some(machine) = self.machines.get_mut(index).filter(|machine| machine.powered) else { return Ok(()) };
        let same_boot = machine.attempts.get(key).is_some_and(|attempt| attempt.boot == machine.boot);
        if !same_boot {
            return Ok(());
        }
        self.watcher.rebooted(machine, key)?;
        self.watcher.may_reboot(machine, self.coordinator.as_ref().map(Core::facts))?;
        machine.power_off();
        if key.item.as_str() == REBOOT_ITEM {
            self.reached.count("rebooted by an update");
        }
        self.count("rebooted by its item");
        self.drop_session(index);
        let off_ms = match self.rng.between(0, 19) {
            0 => self.rng.between(61_000, 90_000), // longer than its item may take
            1..=3 => self.rng.between(20_000, 59_000),
            _ => self.rng.between(500, 9_000),
        };
        self.later(off_ms, Event::PowerOn(index));
        Ok(())
    }

    pub(crate) fn agent_input(&mut self, index: usize, input: AgentInput) -> Result<(), Violation> {
        let at = self.at;
        let Some(machine) = self.machines.get_mut(index) else { return Ok(()) };
        let effects = machine.input(input, at);
        self.run_effects(index, effects)
    }

    /// Effects of an input that matters to the network only.
    pub(crate) fn queue_effects(&mut self, index: usize, effects: Effects) {
        debug_assert!(effects.is_empty() || index < self.machines.len(), "a broken link asks for nothing");
    }

    /// Performs an agent's effects in order; a crash may cut them off anywhere.
    fn run_effects(&mut self, index: usize, mut effects: Effects) -> Result<(), Violation> {
        let (at, now) = (self.at, self.now());
        for _ in 0..CHAIN_MAX {
            let Some(effect) = effects.pop_front() else {
                let wake = self.machines.get_mut(index).and_then(|machine| machine.wake_unless_queued(at));
                if let Some(wake) = wake {
                    self.later(wake - at, Event::Wake(index));
                }
                return Ok(());
            };
            if self.crash_now(AGENT_CRASH) {
                self.crash_agent(index);
                return Ok(());
            }
            let fate = self.plan.fate;
            let Some(machine) = self.machines.get_mut(index) else { return Ok(()) };
            let performed = machine.perform(effect, at, &mut self.rng, &fate);
            let (deed, answer) = performed.map_err(|error| self.watcher.violation("codec", error))?;
            let (id, session) = (machine.id, machine.session);
            self.reached.look_at_machine(deed.as_ref(), answer.as_ref());
            match deed {
                Some(Deed::Said(what)) => {
                    if let Some(machine) = self.machines.get(index) {
                        self.watcher.said(machine, &what)?;
                    }
                    if let Some(session) = session.filter(|_| !self.ghostly) {
                        self.carry(Parcel { index, id, session, what: Said::FromAgent(what) });
                    }
                }
                Some(Deed::Asked(item, generation)) => {
                    if let Some(session) = session.filter(|_| !self.ghostly) {
                        self.carry(Parcel { index, id, session, what: Said::Fetch(item, generation) });
                    }
                }
                Some(Deed::Started { key, phase, claimed, destitute }) => {
                    if destitute {
                        return Err(self.watcher.violation("inputs", format!("{key} was started without its inputs")));
                    }
                    self.endanger_join(index, &key);
                    let Some(machine) = self.machines.get(index) else { return Ok(()) };
                    self.watcher.started(machine, &key, phase, claimed)?;
                    self.watcher.added_started(machine, &key, now);
                    self.reached.look_at_hook(&key);
                    let facts = self.coordinator.as_ref().map(Core::facts);
                    self.watcher.copy_started(machine, &key, facts)?;
                    self.watcher.disturbed(machine, &key, at, facts)?;
                    let item = machine.disk.assigned(&key.item);
                    let permitted = !claimed && item.is_some_and(|item| item.permit.is_some());
                    self.is_disturbed(index, permitted)?;
                    self.kubernetes_is_disturbed(index, permitted)?;
                }
                Some(Deed::AskedSwarm(call)) => {
                    let Some(machine) = self.machines.get(index) else { return Ok(()) };
                    self.watcher.swarm_asked(machine, &call)?;
                    if !self.ghostly {
                        self.ask_engine(index, call)?;
                    }
                }
                None => {}
            }
            if let Some(machine) = self.machines.get(index) {
                self.watcher.recorded(machine)?;
                self.watcher.received(machine, at);
            }
            if let (Some(answer), Some(machine)) = (answer, self.machines.get_mut(index)) {
                effects.extend(machine.input(answer, at));
            }
        }
        Err(self.watcher.violation("rest", format!("machine {index} answers itself without end")))
    }
}

fn greeting(input: &Input) -> Option<(MachineId, u64)> {
    match input {
        Input::Hello { id, session, .. } => Some((*id, *session)),
        _ => None,
    }
}

fn sender(input: &Input) -> Option<MachineId> {
    match input {
        Input::Status { id, .. } | Input::Answer { id, .. } | Input::AgentBlocked { id, .. } => Some(*id),
        _ => None,
    }
}
