//! Machines that go down because an item says so: how long they may be silent.

use muster_proto::model::{AssignedItem, ItemState, RunnerKind};

use super::Limits;
use crate::facts::{Facts, MachineRow};

pub(super) fn is_reboot(item: &AssignedItem) -> bool {
    item.runner == RunnerKind::Reboot.as_str()
}

/// The reboot item that is recorded as running.
pub(super) fn rebooting<'a>(row: &MachineRow, items: &'a [AssignedItem]) -> Option<&'a AssignedItem> {
    let runs = |item: &&AssignedItem| {
        let status = row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
        status.is_some_and(|status| status.state == ItemState::Running)
    };
    items.iter().filter(|item| is_reboot(item)).find(runs)
}

/// How long a machine may be silent before it is missed: one that reboots because we asked, as long as that may take.
pub(super) fn patience_ms(rebooting: Option<&AssignedItem>, limits: &Limits) -> u64 {
    rebooting.map_or(0, |item| item.timeout_ms).max(limits.lost_after_ms)
}

/// When a machine is missed if nothing is heard of it again. Monotonic milliseconds.
#[must_use]
pub fn missed_at(facts: &Facts, row: &MachineRow, limits: &Limits) -> u64 {
    let live = facts.live.machines.get(&row.name);
    let items = live.and_then(|live| live.items.as_deref()).and_then(|items| items.resolved.as_deref().ok());
    let heard = live.and_then(|live| live.heard_mono_ms).unwrap_or(facts.live.started_mono_ms);
    heard.saturating_add(patience_ms(rebooting(row, items.unwrap_or_default()), limits))
}
