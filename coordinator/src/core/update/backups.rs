//! Recording of the backups of an update.

use muster_proto::model::{AssignedItem, ItemState, ItemStatus, MachineName};
use serde::Deserialize;

use crate::facts::{BackupRow, Transaction};

/// Result of an item that made a backup.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Made {
    path: String,
    bytes: u64,
    sha256: String,
}

/// Records a successful backup in its update, because later statuses replace this one.
pub(in crate::core) fn note(tx: &mut Transaction<'_>, machine: &MachineName, status: &ItemStatus) {
    let Some(row) = tx.machines.get(machine).filter(|_| status.state == ItemState::Succeeded) else { return };
    let (Some(rollout), Some(mine)) = (row.rollout.clone(), &row.update) else { return };
    let mut backups = mine.added.iter().filter(|added| added.is_backup());
    let Some(of) = backups.find(|added| added.item_name() == status.name.as_str()).cloned() else { return };
    let items = tx.live.machines.get(machine).and_then(|live| live.items.as_deref());
    let items = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
    let is_it = |item: &AssignedItem| item.name == status.name && item.hash == status.hash;
    if !items.iter().any(is_it) {
        return;
    }
    let made = status.result_json.as_deref().and_then(|json| serde_json::from_str(json).ok());
    let Made { path, bytes, sha256 } = made.unwrap_or_default();
    let taken_at_ms = status.finished_at_ms.unwrap_or(status.started_at_ms);
    let (machine, message) = (machine.clone(), status.message.clone());
    if let Some(update) = tx.update_mut(&rollout) {
        update.backups.push(BackupRow { machine, of, path, bytes, sha256, message, taken_at_ms });
    }
}
