//! How many machines a cluster still lacks, and how many it takes at most. PURE.

use muster_proto::model::{ClusterName, MachineType};

use crate::facts::{Facts, MachineRow};

/// Machines that a cluster takes beyond those its manifest names: this part of them, and at least [`BEYOND_MIN`]. Room
/// for machines whose manifest is applied later, and for a few that were enrolled under a wrong name.
const BEYOND_PART: usize = 10;
/// See [`BEYOND_PART`].
const BEYOND_MIN: usize = 10;
/// Machines of a cluster whose manifest does not say how many it has (`machines`).
const UNCOUNTED_MAX: usize = 1_000;
/// Machines of one cluster on record, whatever its manifest names: whoever may apply that must not fill the coordinator
/// for the others.
pub const CLUSTER_MACHINES_MAX: usize = 10_000;

/// Machines of this type that the manifest names, by number or by a Machine document, and that have not enrolled. A
/// revoked one is to be replaced, so it counts as lacking. None: the manifest does not say how many there are.
#[must_use]
pub fn lacking(facts: &Facts, cluster: &ClusterName, machine_type: MachineType) -> Option<u32> {
    let of_type = || facts.machines_of(cluster).filter(|row| row.spec.machine_type == machine_type);
    let enrolled = of_type().filter(|row| is_enrolled(row)).count();
    let declared = of_type().filter(|row| row.declared && !is_enrolled(row)).count();
    let named = facts.spec(cluster).and_then(|spec| spec.machines).map(|counts| counts.of(machine_type) as usize);
    let lacking = named.map_or(0, |named| named.saturating_sub(enrolled)).max(declared);
    (named.is_some() || declared > 0).then(|| u32::try_from(lacking).unwrap_or(u32::MAX))
}

fn is_enrolled(row: &MachineRow) -> bool {
    row.id.is_some() && !row.revoked
}

/// Most machines of a cluster. Whoever holds a join token of one cluster must not fill the coordinator for all.
#[must_use]
pub fn machines_max(facts: &Facts, cluster: &ClusterName) -> usize {
    let declared = facts.machines_of(cluster).filter(|row| row.declared && has_place(row)).count();
    let Some(counts) = facts.spec(cluster).and_then(|spec| spec.machines) else { return UNCOUNTED_MAX.max(declared) };
    let named = (counts.control as usize).saturating_add(counts.worker as usize).max(declared);
    named.saturating_add(BEYOND_MIN.max(named / BEYOND_PART))
}

/// Machines that have a place in the cluster.
#[must_use]
pub fn machines_count(facts: &Facts, cluster: &ClusterName) -> usize {
    facts.machines_of(cluster).filter(|row| has_place(row)).count()
}

/// Has it a place: is it there, or to come, as under a Machine document or in the place of one that was replaced? One
/// that was revoked for good has left it to another.
fn has_place(row: &MachineRow) -> bool {
    !row.revoked || row.replaceable
}
