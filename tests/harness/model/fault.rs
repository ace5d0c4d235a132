//! Faults of the model.

use muster_proto::model::{LockState, MachineName};

use super::{Action, Scenario, State, action::Happened};
use crate::{
    invariants::Violation,
    sim::{Event, controllers},
};

/// An agent may crash before each of this many effects of one move.
const CRASH_POINTS_MAX: u64 = 8;
/// Permille: for certain.
const ALWAYS: u64 = 1_000;
/// Longer than the silence after which a machine counts as Lost, and than the validity of a permit.
const SILENCE_MS: u64 = 31_000;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The coordinator's process dies; all messages in transit are lost.
    CoordinatorCrash,
    /// An agent's process dies, between two moves or between two effects of one.
    AgentCrash,
    /// A machine loses power.
    PowerCut,
    /// A stream breaks. Messages in transit are lost, in part or as a whole, or arrive after the next stream's Hello.
    Cut,
    /// The coordinator's messages to one machine are delayed.
    Late,
    /// A program fails; a retry may help.
    Failure,
    /// The store is copied; the second time the copy replaces the store.
    OldStore,
    /// A message from or to a machine arrives a second time, at any later moment.
    Twice,
    /// A machine is cut off for so long that it counts as Lost. Unused permits of other machines expire.
    Silence,
    /// A controller revokes its consent: for the cluster, or for a machine.
    TakenBack,
}

impl State {
    /// The faults that may occur now.
    pub(super) fn faults(&self, scenario: &Scenario, actions: &mut Vec<Action>) {
        if self.violation.is_some() || self.faults_left == 0 || self.world.coordinator.is_none() {
            return;
        }
        for fault in scenario.faults {
            let (machines, ways) = match fault {
                Fault::CoordinatorCrash | Fault::OldStore => (1, 1),
                Fault::AgentCrash => (self.world.machines.len(), CRASH_POINTS_MAX + 1),
                Fault::Cut => (self.world.machines.len(), 3),
                Fault::Twice | Fault::TakenBack => (self.world.machines.len(), 2),
                Fault::PowerCut | Fault::Late | Fault::Failure | Fault::Silence => (self.world.machines.len(), 1),
            };
            for machine in (0..machines).filter(|machine| !scenario.spared.contains(machine)) {
                let strikes = (0..ways).map(|way| Action::Strike { fault: *fault, machine, way });
                actions.extend(strikes.filter(|strike| self.may_strike(*strike)));
            }
        }
    }

    /// Can this fault make a difference here? A fault that turns out to make none is dropped later.
    fn may_strike(&self, strike: Action) -> bool {
        let Action::Strike { fault, machine: index, way } = strike else { return false };
        let Some(machine) = self.world.machines.get(index) else { return false };
        let runs = machine.attempts.values().any(|attempt| attempt.ends_at.is_some());
        let hears = !self.told[index].is_empty() && self.late != Some(index);
        match (fault, way) {
            (Fault::CoordinatorCrash, _) => true,
            // A copy before the next commit is as good as a later one.
            (Fault::OldStore, _) => self.world.old_disk.is_some() || self.told.iter().any(|told| !told.is_empty()),
            // To the others, the crash of an idle agent looks like a broken stream.
            (Fault::AgentCrash, 0) => machine.agent.is_some() && runs,
            (Fault::AgentCrash, _) => machine.agent.is_some() && (hears || runs),
            (Fault::PowerCut, _) => machine.powered && runs,
            (Fault::Cut, 0) => machine.session.is_some(),
            (Fault::Cut, 1) => machine.session.is_some() && self.said[index].len() > 1,
            (Fault::Cut, _) => machine.session.is_some() && !self.said[index].is_empty(),
            (Fault::Late, _) => hears && self.late.is_none(),
            (Fault::Twice, 0) => self.again.is_none() && !self.said[index].is_empty(),
            (Fault::Twice, _) => self.again.is_none() && hears,
            (Fault::Silence, _) => machine.session.is_some(),
            (Fault::TakenBack, way) => (way == 0 || index == 0) && self.has_let_go(self.guarded(index, way)),
            (Fault::Failure, _) => runs && machine.powered,
        }
    }

    /// Injects a fault. Each arm says what `way` means.
    pub(super) fn strike(&mut self, fault: Fault, index: usize, way: u64) -> Happened {
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
            (Fault::AgentCrash, 0) => {
                self.world.crash_agent(index);
                self.lose_streams_of(index);
            }
            (Fault::AgentCrash, before) => return self.crash_before(before, index),
            (Fault::PowerCut, _) => {
                self.world.cut_power(index, 0)?;
                self.lose_streams_of(index);
            }
            (Fault::Failure, _) => {
                self.world.plan.fate.fail_permille = ALWAYS;
                self.wake(index)?;
                self.world.plan.fate.fail_permille = 0;
            }
            (Fault::TakenBack, way) => self.say(controllers::word(self.guarded(index, way), LockState::Active, ""))?,
            (Fault::Cut | Fault::Late | Fault::Twice | Fault::Silence, way) => {
                self.disturb_stream(fault, index, way)?
            }
        }
        Ok(true)
    }

    /// An agent crashes before the effect of this number in its next move.
    fn crash_before(&mut self, effect: u64, index: usize) -> Happened {
        self.world.crash_in = Some(effect - 1);
        if self.told[index].is_empty() {
            self.wake(index)?
        } else {
            self.arrive(index)?
        }
        let crashed = self.world.crash_in.take().is_none();
        self.lose_streams_of(index);
        Ok(crashed)
    }

    fn disturb_stream(&mut self, fault: Fault, index: usize, way: u64) -> Result<(), Violation> {
        match (fault, way) {
            // 0: a message from it, 1: a message to it.
            (Fault::Twice, 0) => {
                self.again = Some((index, self.said[index].clone()));
                self.take(index, usize::MAX)
            }
            (Fault::Twice, _) => {
                self.again = Some((index, self.told[index].clone()));
                self.arrive(index)
            }
            (Fault::Silence, _) => {
                self.world.drop_session(index);
                self.lose_streams_of(index);
                self.world.at += SILENCE_MS;
                self.world.happen(Event::Decide)
            }
            // 0: none of its messages was taken, 1: a part of them, 2: they arrive later.
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
                Ok(())
            }
            _ => {
                self.late = Some(index);
                Ok(())
            }
        }
    }

    /// Subject of a lock: 0: the machine, 1: the cluster.
    fn guarded(&self, index: usize, way: u64) -> Option<&MachineName> {
        self.world.machines.get(index).map(|machine| &machine.name).filter(|_| way == 0)
    }

    /// Has the controller released the subject of this lock?
    fn has_let_go(&self, node: Option<&MachineName>) -> bool {
        let mut locks = self.world.facts().into_iter().flat_map(|facts| facts.locks.values());
        locks.any(|lock| lock.key.node.as_ref() == node && lock.state == LockState::Inactive)
    }
}
