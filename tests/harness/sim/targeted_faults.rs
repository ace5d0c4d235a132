//! Targeted faults and operator actions, at the time at which they do most harm. Random chaos hits such a time once in
//! many thousand seeds; therefore the second run of a seed targets one.

use muster_coordinator::{
    core::Request,
    facts::{MachineRow, MachineUpdate, SwarmTarget},
};
use muster_proto::model::{MachineName, RemovalPolicy, SwarmAvailability, SwarmOp};

use super::{Event, World, manifest};
use crate::invariants::Violation;

/// Permille of events at the targeted time at which the fault is injected.
const USED_PERMILLE: u64 = 300;
/// Permille of events before it at which an operator takes a machine out of service.
const ENTERS_PERMILLE: u64 = 50;
/// A machine is away for longer than the conditions of its permit may count: the invariant of rule 4 allows a minute.
const AWAY_MS: (u64, u64) = (61_000, 120_000);
/// Absence of a machine that an operator wants back.
const WANTED_MS: (u64, u64) = (5_000, 40_000);

/// The targeted fault.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A permit is in transit: the machine is cut off until the permit expires.
    Permit,
    /// A machine out of service is removed permanently.
    RemovedOutOfService,
    /// A machine out of service is cut off, and wanted back.
    WantedUnreachable,
    /// A machine's node is drained: another machine replaces it, and the next to drain shares services with it.
    ReplacedInDrain,
    /// The drain of a machine's node is carried out late; meanwhile its rollout is aborted.
    AbortedBeforeDrain,
    /// The drain is late, and meanwhile another machine replaces this one.
    ReplacedBeforeDrain,
}

/// The targeted fault of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetedFault {
    kind: Kind,
    /// An operator has taken a machine out of service for it.
    entered: bool,
}

/// Is its permit still in transit?
fn awaits_permit(row: &MachineRow) -> bool {
    let permit = row.update.as_ref().and_then(|mine| mine.permit.as_ref()).filter(|permit| !permit.expired);
    permit.and_then(|permit| permit.listed).is_some_and(|listed| row.assigned.accepted < listed)
}

/// Is its node drained, or about to be?
fn is_drained(row: &MachineRow) -> bool {
    !row.revoked && row.removal.is_none() && row.update.as_ref().is_some_and(MachineUpdate::takes_tasks)
}

/// Is it out of service, and to stay there?
fn stays_out(row: &MachineRow) -> bool {
    let out =
        |mine: &MachineUpdate| mine.maintenance.as_ref().is_some_and(|out| out.since_ms.is_some() && !out.leaving);
    row.removal.is_none() && row.update.as_ref().is_some_and(out)
}

impl World {
    /// A second run targets one such fault.
    pub(crate) fn choose_targeted_fault(&mut self) {
        let Some(dice) = &mut self.second_life else { return };
        let kinds = [
            Kind::Permit,
            Kind::RemovedOutOfService,
            Kind::WantedUnreachable,
            Kind::ReplacedInDrain,
            Kind::AbortedBeforeDrain,
            Kind::ReplacedBeforeDrain,
        ];
        self.targeted_fault = dice.pick(&kinds).map(|kind| TargetedFault { kind: *kind, entered: false });
    }

    /// Injects the targeted fault if its condition holds.
    pub(crate) fn inject_targeted_fault(&mut self) -> Result<(), Violation> {
        let Some(TargetedFault { kind, entered }) = self.targeted_fault else { return Ok(()) };
        let there: fn(&MachineRow) -> bool = match kind {
            Kind::Permit => awaits_permit,
            Kind::ReplacedInDrain => is_drained,
            Kind::RemovedOutOfService | Kind::WantedUnreachable => stays_out,
            Kind::AbortedBeforeDrain | Kind::ReplacedBeforeDrain => return self.before_drain(kind),
        };
        let Some((machine, index)) = self.first(there) else {
            return if entered || matches!(kind, Kind::Permit | Kind::ReplacedInDrain) {
                Ok(())
            } else {
                self.enter_for_fault(kind)
            };
        };
        if !self.falls(USED_PERMILLE) {
            return Ok(());
        }
        match kind {
            Kind::Permit => {
                self.targeted_fault = None;
                self.count("a machine was away while its permit was on its way");
                self.cut_off(index, AWAY_MS);
                Ok(())
            }
            Kind::RemovedOutOfService => {
                self.targeted_fault = None;
                self.count("a machine was removed while it was out of service");
                self.remove(index, RemovalPolicy::Graceful)
            }
            Kind::WantedUnreachable => self.want_unreachable(machine, index),
            Kind::ReplacedInDrain => {
                self.targeted_fault = None;
                self.count("a machine was replaced in its drain");
                self.replace(index)
            }
            Kind::AbortedBeforeDrain | Kind::ReplacedBeforeDrain => Ok(()),
        }
    }

    /// Does this run wait for an engine that drains a node late?
    pub(crate) fn awaits_late_drain(&self) -> bool {
        matches!(
            self.targeted_fault,
            Some(TargetedFault { kind: Kind::AbortedBeforeDrain | Kind::ReplacedBeforeDrain, .. })
        )
    }

    /// The engine performs an obsolete drain.
    fn before_drain(&mut self, kind: Kind) -> Result<(), Violation> {
        let drained = |event: &Event| match event {
            Event::LateChange(_, SwarmOp::SetAvailability { node, availability: SwarmAvailability::Drain }) => {
                Some(node.clone())
            }
            _ => None,
        };
        let Some(node) = self.queue.values().find_map(drained).filter(|_| self.falls(USED_PERMILLE)) else {
            return Ok(());
        };
        let Some(facts) = self.facts() else { return Ok(()) };
        let of_node = |row: &MachineRow| {
            let drain = row.update.as_ref().and_then(|mine| mine.drains.swarm.as_ref());
            drain.is_some_and(|drain| matches!(&drain.target, SwarmTarget::Node { id, .. } if *id == node))
        };
        let machine = facts.machines.values().find(|row| of_node(row)).and_then(|row| row.id);
        let rollout = facts.open_rollout(&manifest::cluster_name()).map(|rollout| rollout.name.clone());
        match (kind, rollout, machine.and_then(|id| self.index_of(id))) {
            (Kind::ReplacedBeforeDrain, _, Some(index)) => {
                self.targeted_fault = None;
                self.count("a machine was replaced while its drain was late");
                self.replace(index)
            }
            (Kind::AbortedBeforeDrain, Some(rollout), _) => {
                self.targeted_fault = None;
                self.count("an update was aborted while a drain was late");
                self.operator(Request::Abort { rollout }).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// The machine is cut off; once that is noticed, an operator wants it back.
    fn want_unreachable(&mut self, machine: MachineName, index: usize) -> Result<(), Violation> {
        let live = self.facts().and_then(|facts| facts.live.machines.get(&machine));
        if live.is_some_and(|live| live.session.is_some()) {
            self.cut_off(index, WANTED_MS);
            return Ok(());
        }
        self.targeted_fault = None;
        self.count("a machine was wanted back while it was away");
        self.operator(Request::LeaveMaintenance { machine }).map(drop)
    }

    fn cut_off(&mut self, index: usize, (shortest, longest): (u64, u64)) {
        let Some(dice) = &mut self.second_life else { return };
        let until = self.at + dice.between(shortest, longest);
        let Some(machine) = self.machines.get_mut(index).filter(|machine| machine.session.is_some()) else { return };
        machine.cut_off_until = until;
        self.drop_session(index);
    }

    /// The first machine that satisfies a predicate.
    fn first(&self, holds: fn(&MachineRow) -> bool) -> Option<(MachineName, usize)> {
        let row = self.facts()?.machines.values().find(|row| holds(row))?;
        Some((row.name.clone(), self.index_of(row.id?)?))
    }

    fn falls(&mut self, permille: u64) -> bool {
        self.second_life.as_mut().is_some_and(|dice| dice.permille(permille))
    }

    /// An operator takes a machine out of service.
    fn enter_for_fault(&mut self, kind: Kind) -> Result<(), Violation> {
        if !self.falls(ENTERS_PERMILLE) {
            return Ok(());
        }
        let names: Vec<MachineName> =
            self.facts().into_iter().flat_map(|facts| facts.machines.keys().cloned()).collect();
        let Some(machine) = self.second_life.as_mut().and_then(|dice| dice.pick(&names).cloned()) else {
            return Ok(());
        };
        let accept_control_plane_downtime = self.accepts_downtime();
        let request = Request::EnterMaintenance { machine, accept_control_plane_downtime };
        let entered = self.operator(request)?.is_ok();
        if entered {
            self.count("maintenance entered");
        }
        self.targeted_fault = Some(TargetedFault { kind, entered });
        Ok(())
    }
}
