//! Invariants of the backups of an update: no update begins in a swarm whose managers were not copied for it. With
//! fewer than three managers none is stopped.

use std::collections::{BTreeMap, BTreeSet};

use muster_agent::attempt::record::AttemptKey;
use muster_coordinator::facts::{Facts, LeftOut, MachineRow, RolloutRow, UpdateKind, UpdateRow};
use muster_proto::model::{
    CONSISTENT_COPY_ITEM, ItemHash, ItemName, MachineId, MachineName, MachineType, RunnerKind, SWARM_COPY_ITEM,
};

use super::{Run, has_begun, run};
use crate::{
    invariants::{Checked, Watcher},
    sim::{machine::Machine, manifest::join_name},
};

/// With fewer managers none is stopped.
const MANAGERS_MIN: usize = 3;

/// Observations about backups, in clusters with a swarm.
#[derive(Clone, Default, Hash)]
pub(in crate::invariants) struct Seen {
    /// Updates seen open.
    open: BTreeSet<Run>,
    /// Updates among them that have begun with their machines.
    begun: BTreeSet<Run>,
    /// Started copies: the version, the machine, and the item content that has to succeed.
    started: BTreeSet<(String, MachineName, MachineId, ItemHash)>,
    /// Copies that succeeded: the machine, and the item content. A copy outlives the ledger that records it.
    made: BTreeSet<(MachineId, ItemHash)>,
    /// Machines that have joined a swarm once, whatever became of their join items since.
    joined: BTreeSet<MachineId>,
    /// Number of managers when the newest update of a machine was started.
    managers: BTreeMap<MachineName, usize>,
}

impl Watcher {
    /// Records a process that copies the swarm.
    pub fn copy_started(&mut self, machine: &Machine, key: &AttemptKey, facts: Option<&Facts>) -> Checked {
        let copies = [SWARM_COPY_ITEM, CONSISTENT_COPY_ITEM].contains(&key.item.as_str());
        let row = facts.and_then(|facts| facts.by_id(machine.id)).filter(|_| copies);
        if row.is_some_and(|row| self.is_outside(row)) {
            let detail = format!("{} is copied, and was left out of the swarm", machine.name);
            return Err(self.violation("backup", detail));
        }
        let managers = self.seen.hooks.backup.managers.get(&machine.name);
        if key.item.as_str() == CONSISTENT_COPY_ITEM && managers.is_some_and(|count| *count < MANAGERS_MIN) {
            let detail = format!("{}: Docker is stopped on one of {managers:?} managers", machine.name);
            return Err(self.violation("backup", detail));
        }
        let hash = self.hashes.get(&(machine.id, key.clone())).filter(|_| key.item.as_str() == SWARM_COPY_ITEM);
        if let (Some(hash), Some(item)) = (hash, machine.disk.assigned(&key.item)) {
            let copy = (item.version.clone(), machine.name.clone(), machine.id, *hash);
            self.seen.hooks.backup.started.insert(copy);
        }
        Ok(())
    }

    /// Records a copy of the swarm that succeeded.
    pub(in crate::invariants) fn copy_ended(&mut self, id: MachineId, item: &ItemName, hash: ItemHash) {
        if item.as_str() == SWARM_COPY_ITEM {
            self.seen.hooks.backup.made.insert((id, hash));
        }
    }

    /// Records a machine that has joined a swarm.
    pub(in crate::invariants) fn joined(&mut self, id: MachineId, item: &ItemName) {
        if *item == join_name() {
            self.seen.hooks.backup.joined.insert(id);
        }
    }

    /// No update begins in a swarm whose managers were not copied for it, unless an operator skips that.
    pub(super) fn backups_come_first(&mut self, facts: &Facts) -> Checked {
        for rollout in facts.rollouts.values().filter(|rollout| rollout.finished_at_ms.is_none()) {
            let update = rollout.update.as_ref().filter(|update| update.kind == UpdateKind::Update);
            let Some(update) = update.filter(|update| has_swarm(facts, rollout, update)) else { continue };
            let controls: Vec<&MachineRow> = controls(facts, update).filter(|row| !self.is_outside(row)).collect();
            if self.seen.hooks.backup.open.insert(run(rollout)) {
                let counted = controls.iter().map(|row| (row.name.clone(), controls.len()));
                self.seen.hooks.backup.managers.extend(counted);
            }
            let changes = update.targets.values().any(|target| target.disruptive || !target.changed.is_empty());
            let wanted = changes && !update.skip_backup;
            if !has_begun(facts, rollout, update) || !self.seen.hooks.backup.begun.insert(run(rollout)) {
                continue;
            }
            let missing = controls.iter().find(|row| wanted && !self.is_copied(rollout, row));
            if let Some(row) = missing {
                let detail = format!("{} has begun, and the swarm of {} was not copied", rollout.name, row.name);
                return Err(self.violation("backup", detail));
            }
        }
        Ok(())
    }

    /// Is this machine outside the swarm since an operator skipped its join?
    fn is_outside(&self, row: &MachineRow) -> bool {
        let join = join_name();
        let skipped = row.verdicts.get(&join).and_then(|verdict| verdict.left_out) == Some(LeftOut::Skipped);
        skipped && !row.id.is_some_and(|id| self.seen.hooks.backup.joined.contains(&id))
    }

    /// Has a copy succeeded here for this update, or has an operator skipped it?
    fn is_copied(&self, rollout: &RolloutRow, row: &MachineRow) -> bool {
        let of_it = format!("{}@{}", rollout.name, rollout.started_at_ms);
        let seen = &self.seen.hooks.backup;
        let is_made = |(version, name, id, hash): &(String, MachineName, MachineId, ItemHash)| {
            *name == row.name && *version == of_it && seen.made.contains(&(*id, *hash))
        };
        let left_out = row.verdicts.get(SWARM_COPY_ITEM).is_some_and(|verdict| verdict.left_out.is_some());
        left_out || seen.started.iter().any(is_made)
    }
}

/// Do the cluster's control machines form a swarm?
fn has_swarm(facts: &Facts, rollout: &RolloutRow, update: &UpdateRow) -> bool {
    let spec = facts.specs.get(&(rollout.cluster.clone(), update.version));
    let mut items = spec.into_iter().flat_map(|spec| spec.items(MachineType::Control));
    items.any(|item| item.runner == RunnerKind::SwarmJoin)
}

/// The update's control machines. A machine replaced since comes after the copies, and has no swarm to copy.
fn controls<'a>(facts: &'a Facts, update: &'a UpdateRow) -> impl Iterator<Item = &'a MachineRow> {
    let rows = update.targets.keys().filter_map(|name| facts.machines.get(name)).map(|row| &**row);
    rows.filter(|row| row.spec.machine_type == MachineType::Control && row.ready_at.is_some())
}
