//! Rule 2: the number of workers that hold a slot together.

use muster_proto::{
    model::{Blocked, MachineType, Reason, WORKERS_AT_ONCE_MAX},
    seeded_bug::seeded_bug,
};

use super::{blocked, holds_slot, some_names};
use crate::plan::{
    snapshot::{ClusterSnapshot, MachineView, Progress},
    update::groups,
};

/// Worker slots that may be in use at once: the number configured for deployments or updates, at most 50.
#[must_use]
pub fn worker_slots_max(snapshot: &ClusterSnapshot<'_>) -> usize {
    let configured = match snapshot.update() {
        Some(_) => snapshot.spec.max_worker_upgrade_count,
        None => snapshot.spec.max_worker_deploy_count,
    };
    if seeded_bug("grant-51") {
        return configured as usize + 1;
    }
    configured.min(WORKERS_AT_ONCE_MAX) as usize
}

/// While more than [`FEW_FREE`] slots are free, a cluster grants one worker slot per this interval, in milliseconds.
/// Machines that start together end together, and their successors would wait in a crowd: at the coordinator, and at a
/// shared host, mirror or registry. At this interval, fifty starts take 1.5 s.
pub const SPREAD_MS: u64 = 30;
/// So few slots were freed by machines that ended just now. Their successors are spread as they were, and must not wait
/// for a free slot because the one before came a little late.
const FEW_FREE: usize = 4;

/// May a worker be granted a slot now, with respect to the slots of the others?
#[must_use]
pub fn has_worker_slot(snapshot: &ClusterSnapshot<'_>) -> bool {
    let free = worker_slots_max(snapshot).saturating_sub(snapshot.worker_slots_used);
    let granted = snapshot.of_type(MachineType::Worker).filter_map(|worker| worker.row.slot);
    // A clock that was set back delays no grant.
    let is_new = |at_ms: u64| snapshot.now.wall_ms.checked_sub(at_ms).is_some_and(|age_ms| age_ms < SPREAD_MS);
    free > 0 && (free <= FEW_FREE || !granted.map(|slot| slot.granted_at_ms).any(is_new))
}

/// Rule 2: at most min(configured, 50) workers hold a slot together.
pub fn workers_within_limit(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    let (used, most) = (snapshot.worker_slots_used, worker_slots_max(snapshot));
    if used < most {
        return Ok(());
    }
    let message = format!("{used} of {most} worker slots are in use");
    Err(waits_for_slot(message, stopped(snapshot), "a worker is done"))
}

/// At most `concurrentUpdates` machines of an update group hold a slot together.
pub fn within_group_limit(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    // Without groups all workers are one group, with the limit of `workers_within_limit`.
    if snapshot.spec.update_groups.is_empty() {
        return Ok(());
    }
    let group = groups::of(snapshot, view);
    let used = groups::slots_used(snapshot, &group);
    if used < group.at_once || seeded_bug("ignore-group-limit") {
        return Ok(());
    }
    let message = format!("{used} of {} slots of update group {} are in use", group.at_once, group.name);
    Err(waits_for_slot(message, stopped(snapshot), "a worker of the group is done"))
}

/// Names a machine that holds a slot and has stopped: its slot needs more than time to become free.
fn waits_for_slot(message: String, stopped: Option<&str>, clears_when: &str) -> Blocked {
    match stopped {
        None => blocked(Reason::WaitingForTurn, message, clears_when),
        Some(who) => {
            let first = who.split(' ').next().unwrap_or_default();
            let clears_when = format!("{clears_when}; what helps {first}: `musterctl describe machine {first}`");
            blocked(Reason::WaitingForTurn, format!("{message}; {who} holds one"), clears_when)
        }
    }
}

/// The workers with a slot that need a person, each with its state.
fn stopped<'s>(snapshot: &'s ClusterSnapshot<'_>) -> Option<&'s str> {
    let word = |view: &MachineView<'_>| match view.trouble() {
        _ if view.lost => Some("Lost"),
        Some(Progress::Failed(_)) => Some("Failed"),
        Some(Progress::Held(_)) => Some("Indeterminate"),
        _ => None,
    };
    let found = snapshot.cache.stopped_workers.get_or_init(|| {
        let holders = snapshot.of_type(MachineType::Worker).filter(|view| holds_slot(view));
        let named = holders.filter_map(|view| Some(format!("{} ({})", view.row.name, word(view)?)));
        let named: Vec<String> = named.collect();
        (!named.is_empty()).then(|| some_names(named.iter().map(String::as_str)))
    });
    found.as_deref()
}
