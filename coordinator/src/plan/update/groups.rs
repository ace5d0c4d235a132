//! Update groups: workers that go before or after others, and how many of them together.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{DEFAULT_GROUP, DEFAULT_GROUP_INDEX, MachineType};

use super::targets;
use crate::plan::{
    safety,
    survey::{Position, Survey},
};

/// A worker's update group, as the update was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// As machines name it.
    pub name: &'a str,
    /// Its place in the order; equal ones go together.
    pub index: u32,
    /// Its machines that may hold a slot at once.
    pub at_once: usize,
    /// Does a machine of it reboot because its host says that it needs to?
    pub reboots: bool,
}

/// The group of a machine. Control machines belong to none, and are given the default group's for what it says of
/// reboots.
#[must_use]
pub fn of<'a>(survey: &Survey<'a>, position: &Position<'a>) -> Group<'a> {
    let named = match position.update() {
        Some(mine) => mine.group.as_ref(),
        None => position.row.spec.update_group.as_ref(),
    };
    let group = survey.spec.update_group(named);
    let most = safety::worker_slots_max(survey);
    Group {
        name: named.map_or(DEFAULT_GROUP, |name| name.as_str()),
        index: group.map_or(DEFAULT_GROUP_INDEX, |group| group.index),
        at_once: group.map_or(most, |group| most.min(group.concurrent_updates as usize)),
        reboots: group.is_some_and(|group| group.reboot_if_update_requires),
    }
}

fn workers<'a, 's>(survey: &'s Survey<'a>) -> impl Iterator<Item = &'s Position<'a>> {
    targets(survey).filter(|position| position.row.spec.machine_type == MachineType::Worker)
}

/// What is asked of all workers by each of them, so found out once.
#[derive(Debug)]
pub struct Groups {
    /// Names of workers of earlier groups that are not through, for the machines at each index.
    before: BTreeMap<u32, Option<String>>,
    /// Machines of each group that hold a slot.
    used: BTreeMap<String, usize>,
}

impl Groups {
    fn of(survey: &Survey<'_>) -> Self {
        let mut used = BTreeMap::new();
        for position in workers(survey).filter(|position| position.row.slot.is_some()) {
            *used.entry(of(survey, position).name.to_owned()).or_default() += 1;
        }
        // Who is put aside stands in nobody's way; nor does one that nobody can reach and that holds nothing.
        let aside = |other: &Position<'_>| {
            let unreachable = other.row.slot.is_none() && (other.lost || other.row.revoked);
            unreachable || other.update().is_some_and(|mine| mine.set_aside.is_some())
        };
        let open: Vec<(u32, &str)> = workers(survey)
            .filter(|other| !aside(other))
            .map(|other| (of(survey, other).index, other.row.name.as_str()))
            .collect();
        let indexes: BTreeSet<u32> = targets(survey).map(|position| of(survey, position).index).collect();
        let names = |index: u32| {
            let earlier: Vec<&str> = open.iter().filter(|(of, _)| *of < index).map(|(_, name)| *name).collect();
            (!earlier.is_empty()).then(|| safety::some_names(earlier))
        };
        Self { before: indexes.into_iter().map(|index| (index, names(index))).collect(), used }
    }

    fn found<'s>(survey: &'s Survey<'_>) -> &'s Self {
        survey.found.groups.get_or_init(|| Self::of(survey))
    }
}

/// Workers of earlier groups that stand before this one, by name; none if there are none.
#[must_use]
pub fn open_before<'s>(survey: &'s Survey<'_>, position: &Position<'_>) -> Option<&'s str> {
    // Machines go into maintenance in the order in which their operators want it.
    let ordered = position.update().is_some_and(|mine| mine.maintenance.is_none());
    if survey.spec.update_groups.is_empty() || !ordered {
        return None;
    }
    Groups::found(survey).before.get(&of(survey, position).index)?.as_deref()
}

/// Machines of a group that hold a slot.
#[must_use]
pub fn slots_used(survey: &Survey<'_>, group: &Group<'_>) -> usize {
    Groups::found(survey).used.get(group.name).copied().unwrap_or_default()
}
