//! One machine's way through an update, as a function of the facts.

use muster_proto::{
    model::{Blocked, DeadlineOutcome, MachineType, Phase, Standing},
    plant::planted,
};

use super::{
    DECISION_MS, DrainStep, MachineStep, around, cluster, concerns, drain, frozen_set, is_at_work, maintenance,
    not_halted, stages, targets, wants_slot,
};
use crate::{
    facts::{ClusterStage, MachineUpdate, Stage, UpdateKind, UpdateRow, Wish},
    plan::{
        assign, locks, removal, safety,
        survey::{Position, Progress, Survey},
    },
};

/// What follows from where the machine is, without granting anything new to another.
pub(super) fn outcome(survey: &Survey<'_>, update: &UpdateRow, position: &Position<'_>) -> Option<MachineStep> {
    // What becomes of it next is decided by its removal.
    let mine = position.update().filter(|_| !position.is_let_go())?;
    on_its_way(survey, update, position, mine).or_else(|| stages::overdue(survey, update, position, mine))
}

fn on_its_way(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
) -> Option<MachineStep> {
    if position.row.slot.is_none() {
        return without_slot(survey, update, position, mine);
    }
    if let Some(since_ms) = mine.returned_at_ms {
        return after_request(survey, update, position, mine, since_ms);
    }
    if let Some(upgraded) = gives_back(survey, update, position, mine) {
        return give_back(survey, position, mine, upgraded);
    }
    if mine.disturbed() && mine.maintenance.is_some_and(|row| row.since_ms.is_none()) {
        return leaves_disturbed(survey, position).or_else(|| waits_too_long(survey, update, position, mine));
    }
    // Who is out of service runs nothing more, however long it waits for its departure.
    if mine.disturbed() && mine.maintenance.is_none() {
        return next_permit(survey, position).or_else(|| waits_too_long(survey, update, position, mine));
    }
    if !mine.disruptive {
        // Something disruptive became due since: it needs a request, and takes its turn with one. Or it stands still,
        // and nobody wants it to go on.
        let aborted = update.wish == Wish::Abort && !is_at_work(position);
        let free = match mine.maintenance {
            Some(_) => maintenance::will_run_nothing(survey, position).is_ok(),
            None => (position.awaits_permit() || aborted) && !position.in_flight(),
        };
        if free {
            return Some(MachineStep::FreeSlot);
        }
        let below = mine.maintenance.is_none() && position.row.reach < Some(top(survey, position));
        return below
            .then(|| MachineStep::Enter(top(survey, position), frozen_set(survey, position, Phase::Reconfigure)));
    }
    before_first_permit(survey, update, position, mine)
}

/// Does it give back what it holds, and as an upgraded machine? A harmless item before the first disruptive one may
/// still run when it is refused: it is left to end.
pub(super) fn gives_back(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
) -> Option<bool> {
    if let Some(row) = &mine.maintenance {
        return maintenance::gives_back(position, mine, row).then_some(false);
    }
    if is_through(survey, position) {
        return Some(true);
    }
    let failed = planted("give-back-after-failure") && position.failed() && mine.request.is_some();
    let at_work = position.row.reach > Some(Phase::Prepare) && is_at_work(position);
    let refused = update.wish == Wish::Abort || mine.set_aside.is_some();
    (failed || (mine.disruptive && !mine.disturbed() && refused && !at_work)).then_some(false)
}

/// Its node in the swarm first, its request after.
fn give_back(
    survey: &Survey<'_>,
    position: &Position<'_>,
    mine: &MachineUpdate,
    upgraded: bool,
) -> Option<MachineStep> {
    if mine.drain.is_some() {
        if !position.row.stages.contains_key(&Stage::SwarmUncordoned) {
            return Some(MachineStep::Drain(DrainStep::Uncordon { upgraded }));
        }
        return drain::given_back(survey, position).is_ok().then_some(MachineStep::Drain(DrainStep::Uncordoned));
    }
    let finished = upgraded && mine.request.is_none();
    Some(if finished { MachineStep::Finish } else { MachineStep::GiveBack { upgraded } })
}

/// Nothing is held: it is done if nothing is left to do, and leaves if the update was aborted.
fn without_slot(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
) -> Option<MachineStep> {
    if position.row.revoked || mine.maintenance.is_some_and(|row| row.leaving) {
        return Some(MachineStep::Leave);
    }
    if mine.only_added {
        if around::is_called_off(survey.facts, position.row) {
            return maintenance::will_run_nothing(survey, position).is_ok().then_some(MachineStep::Leave);
        }
        let after = update.stages.contains_key(&ClusterStage::HooksAfter) && around::is_through(survey, position);
        return after.then_some(MachineStep::Finish);
    }
    if update.wish != Wish::Abort && safety::before_update_done(survey).is_err() {
        return None;
    }
    let done = |phase| !concerns(survey.cluster, position.row, phase) || position.progress(phase) == Progress::Done;
    let untouched = position.row.reach != Some(Phase::Prepare) || !position.in_flight();
    let nothing_left = Phase::ALL.iter().all(|phase| done(*phase)) && mine.maintenance.is_none();
    if nothing_left && untouched && !mine.disturbed() {
        return Some(MachineStep::Finish);
    }
    if update.wish == Wish::Abort {
        return Some(MachineStep::Leave);
    }
    if is_left_out(update, position) {
        return Some(MachineStep::LeaveOut);
    }
    if mine.set_aside.as_ref().is_some_and(|aside| aside.message == LOST) {
        return Some(MachineStep::IsBack);
    }
    let prepared = position.row.reach == Some(Phase::Prepare) && position.progress(Phase::Prepare) == Progress::Done;
    if prepared && !position.row.stages.contains_key(&Stage::PreviousDeployed) {
        return Some(MachineStep::Prepared);
    }
    let late = survey.now.wall_ms >= return_deadline_ms(survey, update, position)?;
    let blocked = safety::may_take_slot(survey, position).err()?;
    (late && position.available() && blocked.reason == locks::NOT_YET_ACTIVE)
        .then(|| give_up(Stage::LocksInactive, survey.spec.update_deadlines.node_locks.outcome, &blocked))
}

/// Does its rollout go on without it? One that began by itself is kept open by no worker that is lost: who is back has
/// one of its own. A control machine is waited for: no worker is disturbed while one is missing.
fn is_left_out(update: &UpdateRow, position: &Position<'_>) -> bool {
    let mine = position.update().is_some_and(|mine| mine.maintenance.is_none() && !mine.disturbed());
    let worker = position.row.spec.machine_type == MachineType::Worker;
    update.kind == UpdateKind::Reconfigure && worker && position.lost && mine && position.row.removal.is_none()
}

/// Why a machine that is left out was put aside before.
const LOST: &str = "it is lost, and was not disturbed yet";

/// When waiting for locks that are still inactive from the last maintenance ends, Unix milliseconds: so long after
/// machines may be disturbed at all, after the last sign of these locks, and after another machine's end. None: there
/// are none, or it does not wait for them.
fn return_deadline_ms(survey: &Survey<'_>, update: &UpdateRow, position: &Position<'_>) -> Option<u64> {
    let node = Some(&position.row.name);
    let waits = update.wish == Wish::Go && wants_slot(position) && locks::came_back(survey, node).is_err();
    let open = update.stages.get(&ClusterStage::LocksInactive).filter(|_| waits)?.finished_at_ms?;
    let since_ms = open.max(update.moved_at_ms).max(locks::last_progress_ms(survey, node));
    Some(since_ms.saturating_add(survey.spec.update_deadlines.node_locks.after_ms))
}

/// Its locks were taken back between two permits, or tasks came back to its node. There is no way back for it: past the
/// deadline a person decides.
fn waits_too_long(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
) -> Option<MachineStep> {
    let late_at_ms = match safety::locks_granted(survey, position) {
        Err(_) => lock_deadline_ms(survey, update, position, mine)?,
        Ok(()) => drain::deadline_ms(survey, update, position)?,
    };
    let Blocked { message, .. } = safety::may_disturb(survey, position).err()?;
    let stage = stages::current(position.row).map_or(Stage::DeployDone, |(stage, _)| stage);
    (position.awaits_permit() && survey.now.wall_ms >= late_at_ms).then_some(MachineStep::PauseAll { stage, message })
}

/// Rule 9, its end: the request is gone; the locks are active again, or have had their time.
fn after_request(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
    since_ms: u64,
) -> Option<MachineStep> {
    let deadline_ms = returned_deadline_ms(survey, update, since_ms);
    if let Err(Blocked { message, .. }) = locks::returned(survey, position.row) {
        let outcome = survey.spec.update_deadlines.locks_returned.outcome;
        let known = mine.stuck.as_ref().is_some_and(|stuck| stuck.stage == Stage::RequestRemoved);
        match (known, survey.now.wall_ms < deadline_ms) {
            // An operator is to look at it, and a pause is nobody's fault. When the update goes on, it goes its way.
            _ if outcome == DeadlineOutcome::Pause && matches!(update.wish, Wish::Pause { .. }) => return None,
            (true, _) => {}
            (false, true) => return None,
            (false, false) if outcome == DeadlineOutcome::Pause && update.wish == Wish::Go => {
                return Some(MachineStep::Stuck { stage: Stage::RequestRemoved, outcome, message });
            }
            (false, false) => {}
        }
    }
    if let Some(row) = &mine.maintenance {
        let over = maintenance::is_wanted_back(row);
        return Some(if over { MachineStep::Finish } else { MachineStep::FreeSlot });
    }
    let through = is_through(survey, position);
    // Planted: the slot is free though the agent may have an older list.
    if mine.disturbed() && !planted("free-slot-before-accepted") {
        // Who was disturbed has done its items: its slot is held until its agent has the very list that says so. What
        // became due since is for the next update.
        let left = position.awaits_permit() && assign::is_accepted(survey.facts, position);
        return (through || left).then_some(MachineStep::Finish);
    }
    Some(if through && mine.set_aside.is_none() { MachineStep::Finish } else { MachineStep::FreeSlot })
}

/// Are all its items done, and does its agent have the very list that says so?
fn is_through(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let reached = position.row.reach >= Some(top(survey, position));
    reached && position.all_done() && assign::is_accepted(survey.facts, position)
}

/// How far its list reaches in the end.
pub(super) fn top(survey: &Survey<'_>, position: &Position<'_>) -> Phase {
    let items = position.items.unwrap_or_default();
    let phases = items.iter().map(|item| item.phase).filter(|phase| concerns(survey.cluster, position.row, *phase));
    phases.max().unwrap_or(Phase::Deploy).max(Phase::Deploy)
}

/// A machine that was disturbed in this update is to be removed in the middle of it: its workloads are away already.
fn leaves_disturbed(survey: &Survey<'_>, position: &Position<'_>) -> Option<MachineStep> {
    let drained = drain::step(survey, position);
    drained.or_else(|| maintenance::may_enter(survey, position).is_ok().then_some(MachineStep::OutOfService))
}

/// The next item that needs leave gets it, if rule 4 holds now. What a machine has begun it may end, whatever an
/// operator wants of the others.
fn next_permit(survey: &Survey<'_>, position: &Position<'_>) -> Option<MachineStep> {
    let item = position.next_open().filter(|_| position.awaits_permit())?;
    let (Standing::Due { attempt } | Standing::Running { attempt }) = position.standing(item) else { return None };
    if let Some(step) = drain::step(survey, position) {
        return Some(step);
    }
    let free = position.available() && safety::may_disturb_again(survey, position).is_ok();
    free.then(|| MachineStep::Permit { item: item.name.clone(), attempt, phase: item.phase })
}

/// Its request is made and nothing disruptive has been started: it waits for its locks, or gives everything back.
fn before_first_permit(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
) -> Option<MachineStep> {
    if mine.maintenance.is_some_and(|row| row.since_ms.is_some()) {
        return drain::step(survey, position).filter(|_| removal::takes_turn(position));
    }
    if update.wish == Wish::Abort || mine.set_aside.is_some() {
        return None;
    }
    if is_left_out(update, position) {
        let stage = stages::current(position.row).map_or(Stage::LocksInactive, |(stage, _)| stage);
        return Some(MachineStep::SetAside { stage, message: LOST.to_owned(), failed: false });
    }
    let deadlines = &survey.spec.update_deadlines;
    if let Err(blocked) = safety::locks_granted(survey, position) {
        let late_at_ms = lock_deadline_ms(survey, update, position, mine)?;
        return refused(survey, late_at_ms, (Stage::LocksInactive, deadlines.node_locks.outcome), &blocked);
    }
    if not_halted(survey, update).is_err() || safety::may_begin(survey, position).is_err() {
        return None;
    }
    if let Some(step) = drain::step(survey, position) {
        return Some(step);
    }
    if matches!(drain::aim(survey, position), Some(drain::Aim::Drained | drain::Aim::Counted))
        && let Err(blocked) = safety::swarm_drained(survey, position)
    {
        let late_at_ms = drain::deadline_ms(survey, update, position)?;
        return refused(survey, late_at_ms, (Stage::SwarmDrained, deadlines.swarm_drain.outcome), &blocked);
    }
    if mine.maintenance.is_some() {
        return maintenance::may_enter(survey, position).is_ok().then_some(MachineStep::OutOfService);
    }
    if position.row.reach < Some(top(survey, position)) {
        return Some(MachineStep::Enter(top(survey, position), frozen_set(survey, position, Phase::Reconfigure)));
    }
    next_permit(survey, position)
}

/// It may not be disturbed yet. Past the deadline it gets out of the way, as the cluster's policy wants it.
fn refused(
    survey: &Survey<'_>,
    late_at_ms: u64,
    (stage, outcome): (Stage, DeadlineOutcome),
    blocked: &Blocked,
) -> Option<MachineStep> {
    (survey.now.wall_ms >= late_at_ms).then(|| give_up(stage, outcome, blocked))
}

/// What a machine waits for in this stage has had its time: what the cluster's policy wants then.
fn give_up(stage: Stage, outcome: DeadlineOutcome, blocked: &Blocked) -> MachineStep {
    let message = blocked.message.clone();
    match outcome {
        DeadlineOutcome::Fail | DeadlineOutcome::Defer => {
            MachineStep::SetAside { stage, message, failed: outcome == DeadlineOutcome::Fail }
        }
        DeadlineOutcome::Pause => MachineStep::PauseAll { stage, message },
    }
}

/// When waiting for locks that are to be active again ends, Unix milliseconds, if the request is gone since then.
fn returned_deadline_ms(survey: &Survey<'_>, update: &UpdateRow, since_ms: u64) -> u64 {
    since_ms.max(update.resumed_at_ms).saturating_add(survey.spec.update_deadlines.locks_returned.after_ms)
}

/// When waiting for a machine's locks ends, Unix milliseconds. It starts anew when a lock of it moves, when it is to be
/// removed for good, and when another machine comes to its end ([`stages::others_moved_ms`]). None: never, because the
/// update is halted.
fn lock_deadline_ms(
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
    if drain::aim(survey, position).is_some() {
        return coming(drain::deadline_ms(survey, update, position));
    }
    let waits = safety::locks_granted(survey, position).is_err() && !is_at_work(position);
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
    let requested = requests.map(|request| request.since_ms).chain(removals.map(|removal| removal.since_ms));
    let of_locks = locks::settles_at_ms(survey, requested);
    let late = cluster::deadline_ms(survey, update);
    let of_stages = stages::wakes_at_ms(survey, update);
    let of_stages = of_stages.chain(around::deadline_ms(survey, update));
    of_machines.chain(of_locks).chain([late]).chain(of_stages).filter(|at| *at > survey.now.wall_ms).min()
}
