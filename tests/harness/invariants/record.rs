//! Recorded outcomes of a machine's items, read from the statuses themselves.

use std::collections::BTreeSet;

use muster_coordinator::facts::{Added, Facts, MachineRow};
use muster_proto::model::{AssignedItem, ItemState, Phase};

/// Is the outcome of every assigned item recorded: all succeeded or left out, or one failed?
pub(super) fn has_outcome(facts: &Facts, row: &MachineRow) -> bool {
    let Some(items) = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref()) else { return true };
    let Ok(items) = &items.resolved else { return true };
    let done = own(items, row).all(|item| {
        let left_out = row.verdicts.get(&item.name).is_some_and(|v| v.hash == item.hash && v.left_out.is_some());
        let status = row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
        left_out || status.is_some_and(|status| row.counts(status))
    });
    done || failed_for_good(facts, row)
}

/// Is the machine done with a deployment although items are due? It was Ready before, they disturb workloads, so only
/// an
/// update brings them about, and its agent has accepted a list without them and runs nothing.
pub(super) fn waits_for_an_update(row: &MachineRow) -> bool {
    let running = row.statuses.values().any(|status| status.state == ItemState::Running);
    row.ready_at.is_some() && row.assigned.accepted == row.assigned.generation && !running
}

/// Items of a machine's list that its own completion depends on. A machine that came back for a hook after the update
/// had completed before, perhaps in the same step that ended its own part.
pub(super) fn own<'i>(items: &'i [AssignedItem], row: &MachineRow) -> impl Iterator<Item = &'i AssignedItem> {
    let back = row.update.as_ref().filter(|part| part.hooks_only);
    let reconfigured = row.control_sets.contains_key(&Phase::Reconfigure);
    let end = if reconfigured { Phase::Reconfigure } else { Phase::Deploy };
    let max_phase = if back.is_some() { Some(end) } else { row.max_phase };
    let hooks: BTreeSet<&str> = back.iter().flat_map(|part| &part.added).map(Added::item_name).collect();
    items.iter().filter(move |item| Some(item.phase) <= max_phase && !hooks.contains(item.name.as_str()))
}

/// Is a final failure recorded?
pub(super) fn failed_for_good(facts: &Facts, row: &MachineRow) -> bool {
    let Some(items) = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref()) else { return false };
    let Ok(items) = &items.resolved else { return false };
    items.iter().filter(|item| Some(item.phase) <= row.max_phase).any(|item| {
        let verdict = row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
        let cleared = verdict.map_or(0, |verdict| verdict.cleared_attempts);
        let left_out = verdict.is_some_and(|verdict| verdict.left_out.is_some());
        row.statuses.get(&item.name).is_some_and(|status| match status.state {
            ItemState::Failed { retryable, .. } => {
                let spent = status.attempt > cleared + item.retries;
                status.hash == item.hash && status.attempt > cleared && (!retryable || spent) && !left_out
            }
            ItemState::Running | ItemState::Succeeded | ItemState::Indeterminate => false,
        })
    })
}
