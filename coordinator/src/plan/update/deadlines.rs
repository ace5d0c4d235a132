//! When what machines wait for has had its time, and when time alone changes something.

use super::{DECISION_MS, around, cluster, drain, is_at_work, machine, stages, targets, wants_slot};
use crate::{
    facts::{ClusterStage, MachineUpdate, UpdateRow, Wish},
    plan::{
        locks, removal, safety,
        survey::{Position, Survey},
    },
};

/// When waiting for locks that are still inactive from the last maintenance ends, Unix milliseconds: so long after
/// machines may be disturbed at all, after the last sign of these locks, and after another machine's end. None: there
/// are none, or it does not wait for them.
pub(super) fn return_deadline_ms(survey: &Survey<'_>, update: &UpdateRow, position: &Position<'_>) -> Option<u64> {
    let node = Some(&position.row.name);
    let waits = update.wish == Wish::Go && wants_slot(position) && locks::came_back(survey, node).is_err();
    let open = update.stages.get(&ClusterStage::LocksInactive).filter(|_| waits)?.finished_at_ms?;
    let since_ms = open.max(update.moved_at_ms).max(locks::last_progress_ms(survey, node));
    Some(since_ms.saturating_add(survey.spec.update_deadlines.node_locks.after_ms))
}

/// When waiting for locks that are to be active again ends, Unix milliseconds, if the request is gone since then.
pub(super) fn returned_deadline_ms(survey: &Survey<'_>, update: &UpdateRow, since_ms: u64) -> u64 {
    since_ms.max(update.resumed_at_ms).saturating_add(survey.spec.update_deadlines.locks_returned.after_ms)
}

/// When waiting for a machine's locks ends, Unix milliseconds. It starts anew when a lock of it moves, when it is to be
/// removed for good, and when another machine comes to its end ([`stages::others_moved_ms`]). None: never, because the
/// update is halted.
pub(super) fn lock_deadline_ms(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
) -> Option<u64> {
    let request = mine.request.as_ref().filter(|_| update.wish == Wish::Go)?;
    let others_ms = stages::others_moved_ms(survey, update, position);
    let progress_ms = locks::last_progress_ms(survey, Some(&position.row.name)).max(others_ms);
    let removed_ms = position.row.removal.as_ref().map_or(0, |removal| removal.since_ms);
    let asked_ms = request.since_ms.max(removed_ms);
    Some(asked_ms.max(progress_ms).saturating_add(survey.spec.update_deadlines.node_locks.after_ms))
}

/// Had its controllers their time to let it go?
#[must_use]
pub fn are_locks_late(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let (Some(update), Some(mine)) = (survey.update(), position.update()) else { return false };
    lock_deadline_ms(survey, update, position, mine).is_some_and(|late_at_ms| survey.now.wall_ms >= late_at_ms)
}

/// Does it wait for the controllers or for the swarm to say go, or to bring its workloads back, and does a deadline of
/// that run?
#[must_use]
pub fn is_waiting_for_others(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let (Some(update), Some(mine)) = (survey.update(), position.update()) else { return false };
    let coming = |at: Option<u64>| at.is_some_and(|at| at.saturating_add(DECISION_MS) > survey.now.wall_ms);
    if position.is_let_go() {
        return removal::is_moving(survey, position);
    }
    if mine.in_maintenance() && !removal::takes_turn(position) {
        return false;
    }
    if let Some(since_ms) = mine.returned_at_ms {
        let deadline_ms = returned_deadline_ms(survey, update, since_ms);
        return coming(Some(deadline_ms)) && locks::returned(survey, position.row).is_err();
    }
    if position.row.slot.is_none() {
        return coming(return_deadline_ms(survey, update, position));
    }
    let gives_back = machine::gives_back(survey, update, position, mine).is_some();
    if position.is_stopped() && !gives_back {
        return false;
    }
    if drain::aim(survey, position).is_some() {
        return coming(drain::deadline_ms(survey, update, position));
    }
    let leaves = mine.in_maintenance();
    let locks = if leaves { safety::locks_let_leave } else { safety::locks_granted };
    let waits = locks(survey, position).is_err() && !is_at_work(position);
    waits && coming(lock_deadline_ms(survey, update, position, mine))
}

/// The next moment, Unix milliseconds, at which time alone changes what this update does. None: there is none.
#[must_use]
pub fn wakes_at_ms(survey: &Survey<'_>) -> Option<u64> {
    let update = survey.update()?;
    let of_machines = targets(survey).filter_map(|position| {
        let mine = position.update()?;
        let back = mine.returned_at_ms.map(|since_ms| returned_deadline_ms(survey, update, since_ms));
        let late = lock_deadline_ms(survey, update, position, mine);
        let late = late.or_else(|| return_deadline_ms(survey, update, position));
        let drained = drain::deadline_ms(survey, update, position);
        let swarm = drain::questions::wakes_at(survey, position);
        let swarm = swarm.map(|mono_ms| survey.now.wall_ms + mono_ms.saturating_sub(survey.now.mono_ms));
        let own = back.into_iter().chain(late).chain(drained).chain(swarm);
        own.filter(|at| *at > survey.now.wall_ms).min()
    });
    let requests = targets(survey).filter_map(|position| position.update()?.request).chain(update.request);
    let removals = targets(survey).filter_map(|position| position.row.removal.as_ref());
    let (requests, removals) = (requests.map(|request| request.since_ms), removals.map(|removal| removal.since_ms));
    let of_locks = locks::settles_at_ms(survey, requests, removals);
    let late = cluster::deadline_ms(survey, update);
    let of_stages = stages::wakes_at_ms(survey, update);
    let of_stages = of_stages.chain(around::deadline_ms(survey, update));
    of_machines.chain(of_locks).chain([late]).chain(of_stages).filter(|at| *at > survey.now.wall_ms).min()
}
