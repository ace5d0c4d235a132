//! An item that left a machine's list runs again when it returns: something else may have undone it.

use std::collections::BTreeSet;

use muster_agent::attempt::record::AttemptKey;
use muster_coordinator::{
    facts::{Facts, MachineRow},
    plan::snapshot::MachineView,
};
use muster_proto::model::{AssignedItem, ItemName, ItemProgress, MachineId, Now, OWN_ITEMS};

use super::{Checked, Watcher};
use crate::sim::{
    LIMITS,
    manifest::{HOOK_AFTER, HOOK_BEFORE},
};

impl Watcher {
    /// A machine at rest never counts an item as done that was out of its list since it succeeded there.
    pub(super) fn dropped_runs_again(&mut self, facts: &Facts, now: Now) -> Checked {
        for row in facts.machines.values().filter(|row| row.update.is_none() && row.slot.is_none()) {
            let view = MachineView::of(facts, row, &LIMITS, now);
            let (Some(id), Ok(items)) = (row.id, view.items) else { continue };
            if items.is_empty() {
                continue;
            }
            if row.ready_at.is_some() && !row.needs_review && !facts.meta.recovering {
                let again = |item: &&AssignedItem| self.dropped.contains(&(id, item.name.clone(), item.hash));
                let taken = |item: &&AssignedItem| view.standing(item) == ItemProgress::Done && !is_left_out(row, item);
                if let Some(item) = items.iter().find(|item| again(item) && taken(item)) {
                    let detail = format!("{}: {} counts as done, and was out of its list since", row.name, item.name);
                    return Err(self.violation("again", detail));
                }
            }
            let names: BTreeSet<&ItemName> = items.iter().map(|item| &item.name).collect();
            let is_gone = |item: &ItemName| !names.contains(item) && !is_of_an_update(item);
            let gone = self.succeeded.extract_if(.., |(of, item, _)| *of == id && is_gone(item));
            let gone: Vec<_> = gone.collect();
            if row.ready_at.is_some() {
                self.dropped.extend(gone);
                for item in row.assigned_items.iter().flatten().filter(|item| is_gone(item)) {
                    self.out_since.insert((id, item.clone()), row.assigned.generation);
                }
            }
        }
        Ok(())
    }

    /// Was this attempt's item out of its machine's list since the attempt began?
    pub(super) fn was_out_since(&self, id: MachineId, key: &AttemptKey) -> bool {
        self.out_since.get(&(id, key.item.clone())).is_some_and(|newest| key.generation <= *newest)
    }
}

/// Does an update add this item, with its own version?
fn is_of_an_update(item: &ItemName) -> bool {
    let name = item.as_str();
    OWN_ITEMS.contains(&name) || name.starts_with(HOOK_BEFORE) || name.starts_with(HOOK_AFTER)
}

/// Does an operator's override, or the store's knowledge of another ledger, replace a success?
fn is_left_out(row: &MachineRow, item: &AssignedItem) -> bool {
    row.verdicts.get(&item.name).is_some_and(|verdict| verdict.hash == item.hash && verdict.left_out.is_some())
}
