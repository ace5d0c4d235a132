//! Invariants of update groups: no worker of a later group starts before all workers of earlier groups are finished or
//! excluded. No more workers of a group run at once than it allows.

use muster_coordinator::{facts::MachineRow, plan::snapshot::ClusterSnapshot};
use muster_proto::model::{ClusterSpec, DEFAULT_GROUP, DEFAULT_GROUP_INDEX, MachineType};

use super::{Checked, Watcher};

fn name(row: &MachineRow) -> &str {
    row.update.as_ref().and_then(|part| part.group.as_ref()).map_or(DEFAULT_GROUP, |group| group.as_str())
}

fn index(spec: &ClusterSpec, row: &MachineRow) -> u32 {
    let group = spec.update_groups.iter().find(|group| group.name.as_str() == name(row));
    group.map_or(DEFAULT_GROUP_INDEX, |group| group.index)
}

impl Watcher {
    /// `granted`: machines granted a slot in this step.
    pub(super) fn groups_in_order(&self, snapshot: &ClusterSnapshot<'_>, granted: &[&MachineRow]) -> Checked {
        let spec = snapshot.spec;
        let workers = || snapshot.machines.iter().filter(|p| p.row.spec.machine_type == MachineType::Worker);
        for row in granted.iter().filter(|row| row.spec.machine_type == MachineType::Worker && row.update.is_some()) {
            // Machines enter maintenance in any order.
            let ordered = row.update.as_ref().is_some_and(|part| part.maintenance.is_none());
            let before = workers().filter(|_| ordered).find(|other| {
                let aside = other.row.update.as_ref().is_none_or(|part| part.deferral.is_some());
                let unreachable = other.row.slot.is_none() && (other.lost || other.row.revoked);
                !aside && !unreachable && index(spec, other.row) < index(spec, row)
            });
            if let Some(other) = before {
                let detail = format!("{} was granted a slot before {}, of an earlier group", row.name, other.row.name);
                return Err(self.violation("group", detail));
            }
            let most = spec.update_groups.iter().find(|group| group.name.as_str() == name(row));
            let held = workers().filter(|p| p.row.slot.is_some() && p.row.update.is_some() && name(p.row) == name(row));
            let held = held.count();
            if most.is_some_and(|group| held > group.concurrent_updates as usize) {
                return Err(self.violation("group", format!("{held} machines of group {} hold a slot", name(row))));
            }
        }
        Ok(())
    }
}
