//! What may happen next in the model: the moves of a world that works, and what may go wrong with it.

use muster_coordinator::core::Core;

use super::{Scenario, State};
use crate::{
    invariants::Violation,
    sim::{Event, machine::Machine},
};

/// Effects of one move of an agent before which it may crash.
const CRASH_POINTS_MAX: u64 = 8;
/// Permille: for certain.
const ALWAYS: u64 = 1_000;

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The coordinator's process dies; everything on its way is lost.
    CoordinatorCrash,
    /// An agent's process dies, between two moves or between two effects of one.
    AgentCrash,
    /// A machine loses power.
    PowerCut,
    /// A stream breaks; what was on its way is lost, in part or as a whole, or comes after the next stream's Hello.
    Cut,
    /// What the coordinator says to one machine comes late.
    Late,
    /// A program fails; another attempt may help.
    Failure,
    /// The store is copied; the second time the copy takes its place.
    OldStore,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The coordinator's process starts.
    StartCoordinator,
    /// The machine has power again if it had none, and its agent's process starts.
    StartAgent(usize),
    /// The agent opens a stream, and the coordinator takes its Hello.
    Greet(usize),
    /// The coordinator takes everything that the machine has said.
    Take(usize),
    /// What the coordinator has said arrives.
    Arrive(usize),
    /// The machine's own time: its process ends well, or its backoff is over.
    Wake(usize),
    /// The coordinator notices that the machine's stream is gone.
    Notice(usize),
    /// An operator recovers a store that has shown itself older than the fleet.
    Recover,
    /// Something goes wrong with a machine, or with the coordinator.
    Strike {
        /// What.
        fault: Fault,
        /// With which machine; 0 if with none.
        machine: usize,
        /// In which way: see [`State::strike`].
        way: u64,
    },
}

type Happened = Result<bool, Violation>;

impl State {
    /// What happens when nothing goes wrong. Moves that commute with all others come first, and alone.
    pub(super) fn moves(&self, actions: &mut Vec<Action>) {
        if self.violation.is_some() {
            return;
        }
        let Some(core) = &self.world.coordinator else { return actions.push(Action::StartCoordinator) };
        let mut hearers = (0..self.told.len()).filter(|index| !self.told[*index].is_empty());
        if let Some(index) = hearers.find(|index| self.late != Some(*index)) {
            return actions.push(Action::Arrive(index));
        }
        if core.facts().live.older_than_fleet.is_some() {
            actions.push(Action::Recover);
        }
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

    /// What may go wrong now.
    pub(super) fn faults(&self, scenario: &Scenario, actions: &mut Vec<Action>) {
        if self.violation.is_some() || self.faults_left == 0 || self.world.coordinator.is_none() {
            return;
        }
        for fault in scenario.faults {
            let (machines, ways) = match fault {
                Fault::CoordinatorCrash | Fault::OldStore => (1, 1),
                Fault::AgentCrash => (self.world.machines.len(), CRASH_POINTS_MAX + 1),
                Fault::Cut => (self.world.machines.len(), 3),
                Fault::PowerCut | Fault::Late | Fault::Failure => (self.world.machines.len(), 1),
            };
            for machine in (0..machines).filter(|machine| !scenario.spared.contains(machine)) {
                let strikes = (0..ways).map(|way| Action::Strike { fault: *fault, machine, way });
                actions.extend(strikes.filter(|strike| self.may_strike(*strike)));
            }
        }
    }

    /// Can this fault make a difference here? One that turns out to make none is dropped later.
    fn may_strike(&self, strike: Action) -> bool {
        let Action::Strike { fault, machine: index, way } = strike else { return false };
        let Some(machine) = self.world.machines.get(index) else { return false };
        let runs = machine.attempts.values().any(|attempt| attempt.ends_at.is_some());
        let hears = !self.told[index].is_empty() && self.late != Some(index);
        match (fault, way) {
            (Fault::CoordinatorCrash, _) => true,
            // A copy before anything else is committed is as good as a later one.
            (Fault::OldStore, _) => self.world.old_disk.is_some() || self.told.iter().any(|told| !told.is_empty()),
            // To the others, an agent that has nothing to do crashes as if its stream broke.
            (Fault::AgentCrash, 0) => machine.agent.is_some() && runs,
            (Fault::AgentCrash, _) => machine.agent.is_some() && (hears || runs),
            (Fault::PowerCut, _) => machine.powered && runs,
            (Fault::Cut, 0) => machine.session.is_some(),
            (Fault::Cut, 1) => machine.session.is_some() && self.said[index].len() > 1,
            (Fault::Cut, _) => machine.session.is_some() && !self.said[index].is_empty(),
            (Fault::Late, _) => hears && self.late.is_none(),
            (Fault::Failure, _) => runs && machine.powered,
        }
    }

    /// Lets it happen. False: it comes to nothing.
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

    fn happen(&mut self, action: Action) -> Happened {
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
            Action::Recover => {
                self.world.recover()?;
                self.world.happen(Event::Decide)?;
                self.lose_everything();
            }
            Action::Strike { fault, machine, way } => return self.strike(fault, machine, way),
        }
        Ok(true)
    }

    /// The coordinator takes what the machine has said, or the first part of it, in one step.
    fn take(&mut self, index: usize, most: usize) -> Result<(), Violation> {
        let said = &mut self.said[index];
        let rest = said.split_off(most.min(said.len()));
        for parcel in std::mem::replace(said, rest) {
            self.world.happen(Event::Deliver(parcel))?;
        }
        self.world.happen(Event::Decide)
    }

    fn arrive(&mut self, index: usize) -> Result<(), Violation> {
        self.late = self.late.filter(|late| *late != index);
        for parcel in std::mem::take(&mut self.told[index]) {
            self.world.happen(Event::Deliver(parcel))?;
        }
        Ok(())
    }

    fn wake(&mut self, index: usize) -> Result<(), Violation> {
        let at = self.world.at;
        self.world.at = self.world.machines[index].wake_at().unwrap_or(at).max(at);
        self.world.happen(Event::Wake(index))?;
        self.world.at = at;
        Ok(())
    }

    /// Lets a fault strike. What `way` means is said with each.
    fn strike(&mut self, fault: Fault, index: usize, way: u64) -> Happened {
        self.faults_left -= 1;
        match (fault, way) {
            (Fault::CoordinatorCrash, _) => {
                self.world.crash_coordinator();
                self.lose_everything();
            }
            (Fault::OldStore, _) => {
                let restores = self.world.old_disk.is_some();
                self.world.old_store()?;
                if restores {
                    self.lose_everything();
                }
            }
            (Fault::AgentCrash, 0) => self.crash_agent(index),
            // Before the so manieth effect of its next move.
            (Fault::AgentCrash, before) => {
                self.world.crash_in = Some(before - 1);
                let hears = !self.told[index].is_empty();
                if hears {
                    self.arrive(index)?
                } else {
                    self.wake(index)?
                }
                let crashed = self.world.crash_in.take().is_none();
                self.lose_streams_of(index);
                return Ok(crashed);
            }
            (Fault::PowerCut, _) => {
                self.world.cut_power(index, 0)?;
                self.lose_streams_of(index);
            }
            // 0: nothing of what it said was taken, 1: a part of it, 2: it comes later.
            (Fault::Cut, way) => {
                if way == 1 {
                    self.take(index, 1)?;
                    self.collect();
                }
                let said = std::mem::take(&mut self.said[index]);
                self.world.drop_session(index);
                self.lose_streams_of(index);
                if way == 2 {
                    self.said[index] = said;
                }
            }
            (Fault::Late, _) => self.late = Some(index),
            (Fault::Failure, _) => {
                self.world.plan.fate.fail_permille = ALWAYS;
                self.wake(index)?;
                self.world.plan.fate.fail_permille = 0;
            }
        }
        Ok(true)
    }

    fn crash_agent(&mut self, index: usize) {
        self.world.crash_agent(index);
        self.lose_streams_of(index);
    }
}

/// Machines with nothing to report greet in their order: nobody could tell one order from another.
fn greets_before(before: &Machine, machine: &Machine) -> bool {
    let idle = |machine: &Machine| {
        machine.disk.outbox.is_empty() && machine.attempts.values().all(|attempt| attempt.ends_at.is_none())
    };
    before.session.is_none() && before.agent.is_some() && idle(before) && idle(machine)
}
