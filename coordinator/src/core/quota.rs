//! Quota of one machine in the record: statuses of its items only, limited in number and in total bytes of output. A
//! holder of its key can send anything; this protects the other machines.

use std::sync::Arc;

use muster_proto::{
    convert::ITEMS_MAX,
    model::{Assignment, ItemName, ItemState, ItemStatus, MachineName},
};

use crate::facts::{MachineRow, Transaction};

/// Maximum bytes of output and results of a machine's items, as stored: 128 items with the 8 KiB that an agent keeps.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Maximum names of a machine's items. More than its newest list can have, because earlier ones may still run.
const ASSIGNED_ITEMS_MAX: usize = 2 * ITEMS_MAX;

/// JSON writes a control character as six bytes (`\u0000`).
const ESCAPED_BYTES: usize = 6;

/// Records the items of a list that a machine gets.
pub(super) fn note_given(row: &mut MachineRow, list: &Assignment) {
    let Some(assigned_items) = &mut row.assigned_items else { return };
    assigned_items.extend(list.items.iter().map(|item| item.name.clone()));
    if assigned_items.len() > ASSIGNED_ITEMS_MAX {
        let listed = |name: &ItemName| list.items.iter().any(|item| item.name == *name);
        assigned_items.retain(|name| row.statuses.contains_key(name) || listed(name));
    }
}

/// Can the machine have been given this item?
pub(super) fn is_given(row: &MachineRow, item: &ItemName) -> bool {
    row.assigned_items.as_ref().is_none_or(|assigned_items| assigned_items.contains(item))
}

/// Records a status within the machine's quota. Beyond the maximum number, an item outside its list makes room. Beyond
/// the total bytes, the oldest outputs are dropped.
pub(super) fn put_status(tx: &mut Transaction<'_>, machine: &MachineName, status: ItemStatus) {
    if let Some(row) = tx.machines.get(machine)
        && row.statuses.len() >= ITEMS_MAX
        && !row.statuses.contains_key(&status.name)
    {
        let items = tx.live.machines.get(machine).and_then(|live| live.items.as_ref());
        let items = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
        let is_listed = |name: &&ItemName| items.iter().any(|item| item.name == **name);
        let mut ended = row.statuses.iter().filter(|(_, status)| status.state != ItemState::Running);
        let Some(unlisted) = ended.find(|(name, _)| !is_listed(name)).map(|(name, _)| name.clone()) else { return };
        tx.drop_status(machine, &unlisted);
    }
    let newest = status.name.clone();
    tx.put_status(machine, status);
    drop_outputs(tx, machine, &newest);
}

/// Drops outputs and results, oldest first, until the rest fits the quota. The newest one is kept.
fn drop_outputs(tx: &mut Transaction<'_>, machine: &MachineName, newest: &ItemName) {
    let Some(row) = tx.machines.get(machine) else { return };
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
        tx.put_status(machine, bare);
    }
}

/// Bytes of an attempt's output and result in the store.
fn output_bytes(status: &ItemStatus) -> usize {
    let stored = |text: &str| text.bytes().map(|byte| if byte < b' ' { ESCAPED_BYTES } else { 1 }).sum::<usize>();
    stored(&status.output_tail) + status.result_json.as_deref().map_or(0, stored)
}
