//! What one machine may have in the record: statuses of items that it was given, so many of them, and so many bytes of
//! output in all. Whoever holds its key can say what it likes; others must not pay for that.

use std::sync::Arc;

use muster_proto::{
    convert::ITEMS_MAX,
    model::{Assignment, ItemName, ItemState, ItemStatus, MachineName},
};

use crate::facts::{Draft, MachineRow};

/// Output and results of a machine's items, in bytes as they are stored: 128 items with the 8 KiB that an agent keeps.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Names of items that a machine was given: more than its newest list can have, for others may still be under way.
const GIVEN_MAX: usize = 2 * ITEMS_MAX;

/// JSON writes a control character as six (`\u0000`).
const ESCAPED_BYTES: usize = 6;

/// Notes the items of a list that a machine gets.
pub(super) fn note_given(row: &mut MachineRow, list: &Assignment) {
    let Some(given) = &mut row.given else { return };
    given.extend(list.items.iter().map(|item| item.name.clone()));
    if given.len() > GIVEN_MAX {
        let listed = |name: &ItemName| list.items.iter().any(|item| item.name == *name);
        given.retain(|name| row.statuses.contains_key(name) || listed(name));
    }
}

/// Can this item be one that the machine was given?
pub(super) fn is_given(row: &MachineRow, item: &ItemName) -> bool {
    row.given.as_ref().is_none_or(|given| given.contains(item))
}

/// Records a status. A machine has so many at most: one that its list does not name any more makes room. The oldest
/// outputs go when all of them together are too many bytes.
pub(super) fn put_status(draft: &mut Draft<'_>, machine: &MachineName, status: ItemStatus) {
    if let Some(row) = draft.machines.get(machine)
        && row.statuses.len() >= ITEMS_MAX
        && !row.statuses.contains_key(&status.name)
    {
        let items = draft.live.machines.get(machine).and_then(|live| live.items.as_ref());
        let items = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
        let is_listed = |name: &&ItemName| items.iter().any(|item| item.name == **name);
        let mut ended = row.statuses.iter().filter(|(_, status)| status.state != ItemState::Running);
        let Some(unlisted) = ended.find(|(name, _)| !is_listed(name)).map(|(name, _)| name.clone()) else { return };
        draft.drop_status(machine, &unlisted);
    }
    let newest = status.name.clone();
    draft.put_status(machine, status);
    drop_outputs(draft, machine, &newest);
}

/// Forgets outputs and results, the oldest first and this one never, until what is left is little enough.
fn drop_outputs(draft: &mut Draft<'_>, machine: &MachineName, newest: &ItemName) {
    let Some(row) = draft.machines.get(machine) else { return };
    let mut bytes: usize = row.statuses.values().map(|status| output_bytes(status)).sum();
    if bytes <= OUTPUT_BYTES_MAX {
        return;
    }
    let others = row.statuses.values().filter(|status| status.name != *newest && output_bytes(status) > 0);
    let mut others: Vec<Arc<ItemStatus>> = others.cloned().collect();
    others.sort_by_key(|status| (status.state == ItemState::Running, status.started_at_ms));
    for status in others {
        if bytes <= OUTPUT_BYTES_MAX {
            return;
        }
        bytes = bytes.saturating_sub(output_bytes(&status));
        let bare = ItemStatus { output_tail: String::new(), result_json: None, ..(*status).clone() };
        draft.put_status(machine, bare);
    }
}

/// What the output and the result of an attempt take in the store.
fn output_bytes(status: &ItemStatus) -> usize {
    let stored = |text: &str| text.bytes().map(|byte| if byte < b' ' { ESCAPED_BYTES } else { 1 }).sum::<usize>();
    stored(&status.output_tail) + status.result_json.as_deref().map_or(0, stored)
}
