//! Deadlines of what machines wait for, and when time alone changes something.

use super::{
    DECISION_MS, cluster, hooks, renewal, stages, targets,
    turn::{Advance, Participant, wants_slot},
};
use crate::{
    facts::{ClusterStage, DesiredState, MachineUpdate, UpdateRow},
    plan::{
        drain::{kubernetes, swarm},
        locks, removal,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Deadline of the wait for locks that are still inactive from the last maintenance, Unix milliseconds. It runs from
/// the last of these: machines may be disturbed at all, such a lock changes, another machine ends. None: it does not
/// wait for such locks.
pub(super) fn return_deadline_ms(
    snapshot: &ClusterSnapshot<'_>,
    update: &UpdateRow,
    view: &MachineView<'_>,
) -> Option<u64> {
    let node = Some(&view.row.name);
    let waits = update.desired == DesiredState::Go && wants_slot(view) && locks::came_back(snapshot, node).is_err();
    let open = update.stages.get(&ClusterStage::LocksInactive).filter(|_| waits)?.finished_at_ms?;
    let since_ms = open.max(update.moved_at_ms).max(locks::last_progress_ms(snapshot, node));
    Some(since_ms.saturating_add(snapshot.spec.update_deadlines.node_locks.after_ms))
}

/// Deadline of the wait for locks to become active again, Unix milliseconds, if the request is gone since then.
pub(super) fn returned_deadline_ms(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, since_ms: u64) -> u64 {
    since_ms.max(update.resumed_at_ms).saturating_add(snapshot.spec.update_deadlines.locks_returned.after_ms)
}

/// Deadline of the wait for a machine's locks, Unix milliseconds. It restarts when one of its locks changes, when it is
/// to be removed for good, and when another machine ends ([`stages::others_moved_ms`]). None: the update is halted.
pub(super) fn lock_deadline_ms(
    snapshot: &ClusterSnapshot<'_>,
    update: &UpdateRow,
    view: &MachineView<'_>,
    mine: &MachineUpdate,
) -> Option<u64> {
    let request = mine.request.as_ref().filter(|_| update.desired == DesiredState::Go)?;
    let others_ms = stages::others_moved_ms(snapshot, update, view);
    let progress_ms = locks::last_progress_ms(snapshot, Some(&view.row.name)).max(others_ms);
    let removed_ms = view.row.removal.as_ref().map_or(0, |removal| removal.since_ms);
    let asked_ms = request.since_ms.max(removed_ms);
    Some(asked_ms.max(progress_ms).saturating_add(snapshot.spec.update_deadlines.node_locks.after_ms))
}

/// Have its controllers had their time to release it?
#[must_use]
pub fn are_locks_late(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let (Some(update), Some(mine)) = (snapshot.update(), view.update()) else { return false };
    lock_deadline_ms(snapshot, update, view, mine).is_some_and(|late_at_ms| snapshot.now.wall_ms >= late_at_ms)
}

/// Does it wait for the controllers or the swarm to consent, or to bring its workloads back, with a deadline running?
#[must_use]
pub fn is_waiting_for_others(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    if view.is_let_go() {
        return removal::is_moving(snapshot, view);
    }
    let until_ms = wait_until_ms(snapshot, view);
    until_ms.is_some_and(|at_ms| at_ms.saturating_add(DECISION_MS) > snapshot.now.wall_ms)
}

/// End of this machine's wait for others, Unix milliseconds. None: such a wait is absent, or unlimited.
fn wait_until_ms(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64> {
    match Participant::of(snapshot, view)?.advance() {
        Advance::Wait(wait) => wait.until_ms,
        Advance::Move(_) | Advance::Working => None,
    }
}

/// The next time, Unix milliseconds, at which time alone changes what this update does.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let update = snapshot.update()?;
    let of_machines = targets(snapshot).filter_map(|view| {
        let late = wait_until_ms(snapshot, view);
        let swarm = swarm::questions::wakes_at(snapshot, view);
        let swarm = swarm.map(|mono_ms| snapshot.now.wall_ms + mono_ms.saturating_sub(snapshot.now.mono_ms));
        let kubernetes = kubernetes::questions::wakes_at(snapshot, view);
        let kubernetes = kubernetes.map(|mono_ms| snapshot.now.wall_ms + mono_ms.saturating_sub(snapshot.now.mono_ms));
        let own = late.into_iter().chain(swarm).chain(kubernetes);
        own.filter(|at| *at > snapshot.now.wall_ms).min()
    });
    let requests = targets(snapshot).filter_map(|view| view.update()?.request).chain(update.request);
    let removals = targets(snapshot).filter_map(|view| view.row.removal.as_ref());
    let (requests, removals) = (requests.map(|request| request.since_ms), removals.map(|removal| removal.since_ms));
    let of_locks = locks::settles_at_ms(snapshot, requests, removals);
    let late = cluster::deadline_ms(snapshot, update);
    let of_stages = stages::wakes_at_ms(snapshot, update);
    let of_stages = of_stages.chain(hooks::deadline_ms(snapshot, update)).chain(renewal::wakes_at_ms(snapshot));
    of_machines.chain(of_locks).chain([late]).chain(of_stages).filter(|at| *at > snapshot.now.wall_ms).min()
}
