//! What may happen next in the model: the moves of a world without faults.

use muster_coordinator::core::{Core, Input, LockCommand};

use super::{Fault, State, cluster::CONTROLLER};
use crate::{
    invariants::Violation,
    sim::{Event, machine::Machine, network::Parcel},
};

/// The next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The coordinator's process starts.
    StartCoordinator,
    /// The machine gets power if it had none, and its agent's process starts.
    StartAgent(usize),
    /// The agent opens a stream, and the coordinator takes its Hello.
    Greet(usize),
    /// The coordinator takes everything that the machine has sent.
    Take(usize),
    /// The coordinator's messages arrive.
    Arrive(usize),
    /// The machine's own timer fires: its process ends well, or its backoff is over.
    Wake(usize),
    /// The coordinator notices that the machine's stream is gone.
    Notice(usize),
    /// An earlier message arrives a second time.
    Again,
    /// The application controller sends the command of this number.
    RolloutCommand(usize),
    /// An operator recovers a store that has proved older than the fleet.
    Recover,
    /// A fault occurs at a machine, or at the coordinator.
    Strike {
        /// The fault.
        fault: Fault,
        /// Index of the machine; 0 if the fault has none.
        machine: usize,
        /// Variant of the fault: see [`State::strike`].
        way: u64,
    },
}

/// Did it have an effect?
pub(super) type Happened = Result<bool, Violation>;

impl State {
    /// Events without faults. Moves that commute with all others come first, and alone.
    pub(super) fn moves(&self, actions: &mut Vec<Action>) {
        if self.violation.is_some() {
            return;
        }
        let Some(core) = &self.world.coordinator else { return actions.push(Action::StartCoordinator) };
        let mut hearers = (0..self.told.len()).filter(|index| !self.told[*index].is_empty());
        if let Some(index) = hearers.find(|index| self.late != Some(*index)) {
            return actions.push(Action::Arrive(index));
        }
        if core.facts().live.older_than_fleet().is_some() {
            actions.push(Action::Recover);
        }
        if self.again.is_some() {
            actions.push(Action::Again);
        }
        actions.extend((0..self.world.wishes(CONTROLLER).len()).map(Action::RolloutCommand));
        for (index, machine) in self.world.machines.iter().enumerate() {
            self.moves_of(index, machine, core, actions);
        }
    }

    fn moves_of(&self, index: usize, machine: &Machine, core: &Core, actions: &mut Vec<Action>) {
        if machine.agent.is_none() {
            actions.push(Action::StartAgent(index));
        } else if machine.session.is_none()
            && !self.world.machines[..index].iter().any(|before| greets_before(before, machine))
        {
            actions.push(Action::Greet(index));
        }
        if !self.said[index].is_empty() {
            actions.push(Action::Take(index));
        }
        if !self.told[index].is_empty() {
            actions.push(Action::Arrive(index));
        }
        if machine.powered && machine.wake_at().is_some() {
            actions.push(Action::Wake(index));
        }
        let connected = core.facts().live.machines.get(&machine.name).and_then(|live| live.session);
        if self.gone.iter().any(|(id, session)| *id == machine.id && connected == Some(*session)) {
            actions.push(Action::Notice(index));
        }
    }

    /// Performs an action. Returns whether it had an effect.
    pub(super) fn act(&mut self, action: Action) -> bool {
        let happened = self.happen(action).and_then(|happened| {
            if happened {
                self.settle()?;
            }
            Ok(happened)
        });
        let happened = happened.unwrap_or_else(|violation| {
            self.violation = Some(violation);
            true
        });
        self.sum_up();
        happened
    }

    pub(super) fn happen(&mut self, action: Action) -> Happened {
        match action {
            Action::StartCoordinator => {
                self.world.happen(Event::StartCoordinator)?;
                self.world.happen(Event::Decide)?;
            }
            Action::StartAgent(index) => {
                self.world.happen(Event::PowerOn(index))?;
                self.world.happen(Event::StartAgent(index))?;
            }
            Action::Greet(index) => {
                let late = std::mem::take(&mut self.said[index]);
                self.world.happen(Event::Connect(index))?;
                self.collect();
                self.take(index, usize::MAX)?;
                self.said[index] = late;
            }
            Action::Take(index) => self.take(index, usize::MAX)?,
            Action::Arrive(index) => self.arrive(index)?,
            Action::Wake(index) => self.wake(index)?,
            Action::Notice(index) => {
                let id = self.world.machines[index].id;
                let gone = self.gone.iter().position(|(other, _)| *other == id).map(|at| self.gone.remove(at));
                if let Some((id, session)) = gone {
                    self.world.happen(Event::NoticeGone(id, session))?;
                    self.world.happen(Event::Decide)?;
                }
            }
            Action::Again => {
                if let Some((_, parcels)) = self.again.take() {
                    self.deliver(parcels)?;
                }
            }
            Action::RolloutCommand(nth) => {
                if let Some(word) = self.world.wishes(CONTROLLER).into_iter().nth(nth) {
                    self.say(word)?;
                }
            }
            Action::Recover => {
                self.world.recover()?;
                self.world.happen(Event::Decide)?;
                self.lose_everything();
            }
            Action::Strike { fault, machine, way } => return self.strike(fault, machine, way),
        }
        Ok(true)
    }

    /// The coordinator takes the machine's messages, or the first part of them, in one step.
    pub(super) fn take(&mut self, index: usize, most: usize) -> Result<(), Violation> {
        let said = &mut self.said[index];
        let rest = said.split_off(most.min(said.len()));
        let said = std::mem::replace(said, rest);
        self.deliver(said)
    }

    /// The machine receives the messages sent to it.
    pub(super) fn arrive(&mut self, index: usize) -> Result<(), Violation> {
        self.late = self.late.filter(|late| *late != index);
        let told = std::mem::take(&mut self.told[index]);
        self.deliver(told)
    }

    fn deliver(&mut self, parcels: Vec<Parcel>) -> Result<(), Violation> {
        let to_coordinator = parcels.first().is_some_and(|parcel| parcel.what.to_coordinator());
        for parcel in parcels {
            self.world.happen(Event::Deliver(parcel))?;
        }
        if to_coordinator { self.world.happen(Event::Decide) } else { Ok(()) }
    }

    /// A controller sends a command.
    pub(super) fn say(&mut self, word: LockCommand) -> Result<(), Violation> {
        let controller = CONTROLLER.to_owned();
        self.world.tell(Input::Maintenance { controller, word });
        self.world.happen(Event::Decide)
    }

    /// The machine's own timer fires.
    pub(super) fn wake(&mut self, index: usize) -> Result<(), Violation> {
        let at = self.world.at;
        self.world.at = self.world.machines[index].wake_at().unwrap_or(at).max(at);
        self.world.happen(Event::Wake(index))?;
        self.world.at = at;
        Ok(())
    }
}

/// Machines with nothing to report connect in index order: any other order gives the same state.
fn greets_before(before: &Machine, machine: &Machine) -> bool {
    let idle = |machine: &Machine| {
        machine.disk.outbox.is_empty() && machine.attempts.values().all(|attempt| attempt.ends_at.is_none())
    };
    before.session.is_none() && before.agent.is_some() && idle(before) && idle(machine)
}
