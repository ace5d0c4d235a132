//! Copies of a simulated swarm: what the runner finds when it inspects its engine. Also the machine whose join the
//! operators skip.

use std::collections::BTreeSet;

use muster_agent::attempt::record::AttemptKey;
use muster_coordinator::core::Request;
use muster_proto::model::{CONSISTENT_COPY_ITEM, MachineId, MachineType, SWARM_COPY_ITEM};

use super::{World, machine::Machine, manifest, swarm::NotEntered};
use crate::{invariants::Violation, rng::Rng};

/// With fewer managers none is stopped: a hot copy is made there.
pub(super) const MANAGERS_MIN: usize = 3;
/// Permille of swarm updates with a control machine outside of the swarm.
const OUTSIDERS_PERMILLE: u64 = 150;

pub(crate) const NOT_MANAGER: NotEntered = NotEntered { message: "NotManager", retryable: false };
pub(crate) const QUORUM_AT_RISK: NotEntered = NotEntered { message: "QuorumAtRisk", retryable: true };

/// Machines outside of every swarm.
#[derive(Clone, Default)]
pub(crate) struct Outsiders {
    /// Machines with a skipped join.
    pub(crate) skipped: BTreeSet<MachineId>,
    /// The machine with a failing swarm-join.
    pub(crate) chosen: Option<MachineId>,
}

impl World {
    /// Copies that are due inspect their engine, as the runner does.
    pub(crate) fn end_copies(&mut self, index: usize) {
        let Some(machine) = self.machines.get(index) else { return };
        let is_copy = |key: &AttemptKey| [SWARM_COPY_ITEM, CONSISTENT_COPY_ITEM].contains(&key.item.as_str());
        let due = machine
            .attempts
            .iter()
            .find(|(key, attempt)| is_copy(key) && attempt.ends_at.is_some_and(|end| end <= self.at));
        let Some(key) = due.map(|(key, _)| key.clone()) else { return };
        let Some(refused) = self.refuses_copy(machine, key.item.as_str() == CONSISTENT_COPY_ITEM) else { return };
        if let Some(attempt) = self.machines.get_mut(index).and_then(|machine| machine.attempts.get_mut(&key)) {
            attempt.entered = Some(Err(refused));
        }
    }

    fn refuses_copy(&self, machine: &Machine, consistent: bool) -> Option<NotEntered> {
        let Some(place) = machine.engine.as_ref().filter(|place| place.manager) else { return Some(NOT_MANAGER) };
        let mut others = self.managers(place.swarm).filter(|node| node.id != place.node);
        let many = self.managers(place.swarm).count() >= MANAGERS_MIN;
        (consistent && many && others.any(|node| !self.is_up(node))).then_some(QUORUM_AT_RISK)
    }

    /// Occasionally one of several control machines fails to join the swarm when the cluster is deployed. Uses separate
    /// random numbers.
    pub(crate) fn choose_outsider(&mut self) {
        let mut dice = Rng::new(self.rng.clone().next());
        let controls = self.machines.iter().filter(|machine| machine.machine_type == MachineType::Control);
        let ids: Vec<MachineId> = controls.map(|machine| machine.id).collect();
        if self.plan.swarm && ids.len() > 1 && dice.permille(OUTSIDERS_PERMILLE) {
            self.outsiders.chosen = dice.pick(&ids).copied();
        }
    }

    /// Its operator skips its join.
    pub(crate) fn leave_out(&mut self) -> Result<(), Violation> {
        let outsider = self.machines.iter().find(|machine| Some(machine.id) == self.outsiders.chosen);
        let Some(machine) = outsider.map(|machine| machine.name.clone()) else { return Ok(()) };
        let skip = Request::Skip { machine, item: Some(manifest::join_name()) };
        if self.operator(skip)?.is_ok() {
            self.count("a manager was left out of the swarm");
        }
        self.note_skips();
        // A later swarm-join may succeed.
        self.outsiders.chosen = None;
        self.rest()
    }
}
