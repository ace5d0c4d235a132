//! Number of machines that a cluster still lacks, and its maximum. PURE.

use muster_proto::model::{ClusterName, MachineType};

use crate::facts::{Facts, MachineRow};

/// Machines that a cluster accepts beyond those its manifest names: one per this many, and at least [`BEYOND_MIN`].
/// They leave room for machines with a manifest applied later, and for a few enrolled under a wrong name.
const BEYOND_PART: usize = 10;
/// See [`BEYOND_PART`].
const BEYOND_MIN: usize = 10;
/// Maximum of machines in a cluster with a manifest that omits their number (`machines`).
const UNCOUNTED_MAX: usize = 1_000;
/// Maximum of recorded machines in one cluster, independent of its manifest. An operator who may apply that must not
/// fill the coordinator for the others.
pub const CLUSTER_MACHINES_MAX: usize = 10_000;

/// Machines of this type that the manifest names, by number or by a Machine document, and that have yet to enrol. A
/// revoked machine counts, because it is to be replaced. None: the manifest omits the number.
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

/// Maximum of machines in a cluster: the holder of one cluster's join token must not fill the coordinator for all.
#[must_use]
pub fn machines_max(facts: &Facts, cluster: &ClusterName) -> usize {
    let declared = facts.machines_of(cluster).filter(|row| row.declared && has_place(row)).count();
    let Some(counts) = facts.spec(cluster).and_then(|spec| spec.machines) else { return UNCOUNTED_MAX.max(declared) };
    let named = (counts.control as usize).saturating_add(counts.worker as usize).max(declared);
    named.saturating_add(BEYOND_MIN.max(named / BEYOND_PART))
}

/// Number of machines that have a place in the cluster.
#[must_use]
pub fn machines_count(facts: &Facts, cluster: &ClusterName) -> usize {
    facts.machines_of(cluster).filter(|row| has_place(row)).count()
}

/// Does it have a place: is it present, or expected under a Machine document or as a replacement? A machine revoked for
/// good has left its place to another.
fn has_place(row: &MachineRow) -> bool {
    !row.revoked || row.replaceable
}
