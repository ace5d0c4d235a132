//! Invariants of the hooks around an update: no machine begins before the hooks before the update are done, and no
//! update ends without the hooks after it.

mod backup;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_agent::attempt::record::AttemptKey;
use muster_coordinator::facts::{Added, DesiredState, Facts, MachineRow, RolloutRow, UpdateRow};
use muster_proto::model::{ItemName, ItemState, MachineName, Now, Phase};

use super::{Checked, Watcher};
use crate::sim::machine::Machine;

/// An update: its name and its start, Unix milliseconds. A restored store may assign a name a second time.
type Run = (String, u64);

/// Observations about hooks.
#[derive(Clone, Default, Hash)]
pub(super) struct Seen {
    /// Updates that have begun with their machines.
    begun: BTreeSet<Run>,
    /// Updates that have ended.
    ended: BTreeSet<Run>,
    /// Latest start of each item that an update added, by machine, Unix milliseconds.
    started: BTreeMap<(MachineName, ItemName), u64>,
    /// Completed hooks before an update, whose machine was part of it then.
    done: BTreeSet<(Run, MachineName, String)>,
    /// Machines whose removal was requested during an update, whatever its outcome.
    removed: BTreeSet<(Run, MachineName)>,
    /// Observations about backups.
    backup: backup::Seen,
}

impl Watcher {
    /// Records a process of an item that an update has added: the item's version contains the update's name.
    pub fn added_started(&mut self, machine: &Machine, key: &AttemptKey, now: Now) {
        let item = machine.disk.assigned(&key.item);
        if item.is_some_and(|item| item.version.contains("-update-")) {
            self.seen.hooks.started.insert((machine.name.clone(), key.item.clone()), now.wall_ms);
        }
    }

    pub(super) fn hooks_come_first_and_last(&mut self, facts: &Facts) -> Checked {
        for rollout in facts.rollouts.values() {
            let Some(update) = rollout.update.as_ref().filter(|update| all(update).next().is_some()) else { continue };
            self.note_removed(facts, rollout);
            self.note_done(facts, rollout, update);
            if has_begun(facts, rollout, update) && self.seen.hooks.begun.insert(run(rollout)) {
                self.before_is_done(facts, rollout, update)?;
            }
            let over = rollout.finished_at_ms.is_some() && update.desired != DesiredState::Abort;
            if over && self.seen.hooks.ended.insert(run(rollout)) {
                self.all_was_started(facts, rollout, update)?;
            }
        }
        self.backups_come_first(facts)
    }

    fn note_removed(&mut self, facts: &Facts, rollout: &RolloutRow) {
        let of_this = |row: &&Arc<MachineRow>| row.removal.is_some() && row.rollout.as_ref() == Some(&rollout.name);
        let removed = facts.machines.values().filter(of_this).map(|row| (run(rollout), row.name.clone()));
        self.seen.hooks.removed.extend(removed);
    }

    /// A paused update may begin long after its hooks were done, when one of their machines has been replaced or is
    /// being removed.
    fn note_done(&mut self, facts: &Facts, rollout: &RolloutRow, update: &UpdateRow) {
        let member = |row: &&Arc<MachineRow>| row.rollout.as_ref() == Some(&rollout.name);
        for (name, added) in all(update).filter(|(_, added)| added.is_before()) {
            let row = facts.machines.get(name).filter(member);
            if row.is_some_and(|row| self.is_done(facts, rollout, row, added)) {
                let done = (run(rollout), name.clone(), added.item_name().to_owned());
                self.seen.hooks.done.insert(done);
            }
        }
    }

    fn before_is_done(&self, facts: &Facts, rollout: &RolloutRow, update: &UpdateRow) -> Checked {
        for (name, added) in all(update).filter(|(_, added)| added.is_before()) {
            let known = (run(rollout), name.clone(), added.item_name().to_owned());
            let row = facts.machines.get(name);
            let done = self.seen.hooks.done.contains(&known);
            if !done && !row.is_some_and(|row| self.is_done(facts, rollout, row, added)) {
                let detail = format!("{} has begun, and {} of {name} is not done", rollout.name, added.item_name());
                return Err(self.violation("hooks", detail));
            }
        }
        Ok(())
    }

    fn all_was_started(&self, facts: &Facts, rollout: &RolloutRow, update: &UpdateRow) -> Checked {
        for (name, added) in all(update).filter(|(_, added)| added.is_before() || added.is_after()) {
            let Some(row) = facts.machines.get(name) else { continue };
            // A machine that leaves the update takes its hooks along; a hook that an operator skips need not run.
            let removed = self.seen.hooks.removed.contains(&(run(rollout), name.clone()));
            let left = row.revoked || removed || row.rollout.as_ref() != Some(&rollout.name);
            let skipped = row.verdicts.get(added.item_name()).is_some_and(|verdict| verdict.left_out.is_some());
            if !left && !skipped && !self.has_started(rollout, row, added) {
                let detail = format!("{} is over, and {} never ran on {name}", rollout.name, added.item_name());
                return Err(self.violation("hooks", detail));
            }
        }
        Ok(())
    }

    fn has_started(&self, rollout: &RolloutRow, row: &MachineRow, added: &Added) -> bool {
        self.seen.hooks.started.iter().any(|((machine, item), at_ms)| {
            *machine == row.name && item.as_str() == added.item_name() && *at_ms >= rollout.started_at_ms
        })
    }

    /// The step that ends its hooks may also end a machine's part in the update, if nothing changes on the machine, or
    /// move it to the hooks after the update. Its list then no longer contains the finished hooks.
    fn is_done(&self, facts: &Facts, rollout: &RolloutRow, row: &MachineRow, added: &Added) -> bool {
        if let Some(done) = row.update.as_ref().and_then(|_| is_done_in_list(facts, row, added)) {
            return done;
        }
        let left_out = row.verdicts.get(added.item_name()).is_some_and(|verdict| verdict.left_out.is_some());
        let status = row.statuses.get(added.item_name()).map(|status| &status.state);
        left_out || (status == Some(&ItemState::Succeeded) && self.has_started(rollout, row, added))
    }
}

fn run(rollout: &RolloutRow) -> Run {
    (rollout.name.clone(), rollout.started_at_ms)
}

fn all(update: &UpdateRow) -> impl Iterator<Item = (&MachineName, &Added)> {
    update.targets.iter().flat_map(|(name, target)| target.added.iter().map(move |added| (name, added)))
}

/// Has anything beyond the hooks before the update been requested, granted or assigned?
fn has_begun(facts: &Facts, rollout: &RolloutRow, update: &UpdateRow) -> bool {
    let begun = |row: &MachineRow| {
        let part = row.update.as_ref().filter(|part| !part.hooks_only);
        row.rollout.as_ref() == Some(&rollout.name)
            && part.is_some()
            && (row.slot.is_some() || row.max_phase == Some(Phase::Prepare))
    };
    rollout.finished_at_ms.is_none() && (update.request.is_some() || facts.machines.values().any(|row| begun(row)))
}

/// None: the machine's list lacks the item.
fn is_done_in_list(facts: &Facts, row: &MachineRow, added: &Added) -> Option<bool> {
    let items = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref());
    let mut items = items.into_iter().flat_map(|items| items.resolved.iter().flatten());
    let item = items.find(|item| item.name.as_str() == added.item_name())?;
    let verdict = row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
    let status = row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
    let left_out = verdict.is_some_and(|verdict| verdict.left_out.is_some());
    Some(left_out || status.is_some_and(|status| status.state == ItemState::Succeeded))
}
