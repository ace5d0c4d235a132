//! Update groups: their order among workers, and the number of workers at once.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{DEFAULT_GROUP, DEFAULT_GROUP_INDEX, MachineType};

use super::targets;
use crate::plan::{
    safety,
    snapshot::{ClusterSnapshot, MachineView},
};

/// A worker's update group, as frozen with the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// Its name, as machines refer to it.
    pub name: &'a str,
    /// Its position in the order; groups with equal ones go together.
    pub index: u32,
    /// Maximum of its machines that hold a slot at once.
    pub at_once: usize,
    /// Does a machine of it reboot if its host reports that need?
    pub reboots: bool,
}

/// The group of a machine. Control machines belong to none, and get the default group for its setting of reboots.
#[must_use]
pub fn of<'a>(snapshot: &ClusterSnapshot<'a>, view: &MachineView<'a>) -> Group<'a> {
    let named = match view.update() {
        Some(mine) => mine.group.as_ref(),
        None => view.row.spec.update_group.as_ref(),
    };
    let group = snapshot.spec.update_group(named);
    let most = safety::worker_slots_max(snapshot);
    Group {
        name: named.map_or(DEFAULT_GROUP, |name| name.as_str()),
        index: group.map_or(DEFAULT_GROUP_INDEX, |group| group.index),
        at_once: group.map_or(most, |group| most.min(group.concurrent_updates as usize)),
        reboots: group.is_some_and(|group| group.reboot_if_update_requires),
    }
}

fn workers<'a, 's>(snapshot: &'s ClusterSnapshot<'a>) -> impl Iterator<Item = &'s MachineView<'a>> {
    targets(snapshot).filter(|view| view.row.spec.machine_type == MachineType::Worker)
}

/// Answers about all workers that each of them asks for, computed once.
#[derive(Debug)]
pub struct Groups {
    /// Names of unfinished workers of earlier groups, for the machines at each index.
    before: BTreeMap<u32, Option<String>>,
    /// Number of machines of each group that hold a slot.
    used: BTreeMap<String, usize>,
}

impl Groups {
    fn of(snapshot: &ClusterSnapshot<'_>) -> Self {
        let mut used = BTreeMap::new();
        for view in workers(snapshot).filter(|view| view.row.slot.is_some()) {
            *used.entry(of(snapshot, view).name.to_owned()).or_default() += 1;
        }
        // Deferred machines are out of the way, and so are unreachable ones that hold no slot.
        let aside = |other: &MachineView<'_>| {
            let unreachable = other.row.slot.is_none() && (other.lost || other.row.revoked);
            unreachable || other.update().is_some_and(|mine| mine.deferral.is_some())
        };
        let open: Vec<(u32, &str)> = workers(snapshot)
            .filter(|other| !aside(other))
            .map(|other| (of(snapshot, other).index, other.row.name.as_str()))
            .collect();
        let indexes: BTreeSet<u32> = targets(snapshot).map(|view| of(snapshot, view).index).collect();
        let names = |index: u32| {
            let earlier: Vec<&str> = open.iter().filter(|(of, _)| *of < index).map(|(_, name)| *name).collect();
            (!earlier.is_empty()).then(|| safety::some_names(earlier))
        };
        Self { before: indexes.into_iter().map(|index| (index, names(index))).collect(), used }
    }

    fn found<'s>(snapshot: &'s ClusterSnapshot<'_>) -> &'s Self {
        snapshot.cache.groups.get_or_init(|| Self::of(snapshot))
    }
}

/// Names of workers of earlier groups for which this one waits.
#[must_use]
pub fn open_before<'s>(snapshot: &'s ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<&'s str> {
    // Machines go into maintenance in the order of their operators' requests.
    let ordered = view.update().is_some_and(|mine| mine.maintenance.is_none());
    if snapshot.spec.update_groups.is_empty() || !ordered {
        return None;
    }
    Groups::found(snapshot).before.get(&of(snapshot, view).index)?.as_deref()
}

/// Number of machines of a group that hold a slot.
#[must_use]
pub fn slots_used(snapshot: &ClusterSnapshot<'_>, group: &Group<'_>) -> usize {
    Groups::found(snapshot).used.get(group.name).copied().unwrap_or_default()
}
