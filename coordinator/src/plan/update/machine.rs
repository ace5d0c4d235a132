//! One machine's way through an update, as a function of the facts.

use muster_proto::{
    model::{Blocked, DeadlineOutcome, MachineType, Phase, Reason, Standing},
    plant::planted,
};

use super::{
    DrainStep, MachineStep, around, concerns,
    deadlines::{lock_deadline_ms, return_deadline_ms, returned_deadline_ms},
    drain, frozen_set, is_at_work, maintenance, not_halted, stages,
};
use crate::{
    facts::{ClusterStage, DeferralCause, MachineUpdate, Stage, UpdateKind, UpdateRow, Wish},
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
            None => (position.is_withheld() || aborted) && !position.in_flight(),
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
    if mine.set_aside.as_ref().is_some_and(|aside| aside.cause == DeferralCause::Lost) {
        return Some(MachineStep::IsBack);
    }
    let prepared = position.row.reach == Some(Phase::Prepare) && position.progress(Phase::Prepare) == Progress::Done;
    if prepared && !position.row.stages.contains_key(&Stage::PreviousDeployed) {
        return Some(MachineStep::Prepared);
    }
    let late = survey.now.wall_ms >= return_deadline_ms(survey, update, position)?;
    let blocked = safety::may_take_slot(survey, position).err()?;
    (late && position.available() && blocked.reason == Reason::LockNotYetActive)
        .then(|| give_up(Stage::LocksInactive, survey.spec.update_deadlines.node_locks.outcome, &blocked))
}

/// Does its rollout go on without it? One that began by itself is kept open by no worker that is lost: who is back has
/// one of its own. A control machine is waited for: no worker is disturbed while one is missing.
fn is_left_out(update: &UpdateRow, position: &Position<'_>) -> bool {
    let mine = position.update().is_some_and(|mine| mine.maintenance.is_none() && !mine.disturbed());
    let worker = position.row.spec.machine_type == MachineType::Worker;
    update.kind == UpdateKind::Reconfigure && worker && position.lost && mine && position.row.removal.is_none()
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
    let waits = position.awaits_permit() || mine.maintenance.is_some();
    (waits && survey.now.wall_ms >= late_at_ms).then_some(MachineStep::PauseAll { stage, message })
}

/// It is out of service and to be removed for good, and those who let it go for its maintenance do not let it go for
/// that. There it stays, and nothing is to be given back: a person decides.
fn stays_too_long(
    survey: &Survey<'_>,
    update: &UpdateRow,
    position: &Position<'_>,
    mine: &MachineUpdate,
) -> Option<MachineStep> {
    let Blocked { message, .. } = safety::may_leave(survey, position).err()?;
    let deadlines = &survey.spec.update_deadlines;
    let (stage, late_at_ms, outcome) = match safety::locks_let_leave(survey, position) {
        Err(_) => {
            let late_at_ms = lock_deadline_ms(survey, update, position, mine)?;
            (Stage::LocksInactive, late_at_ms, deadlines.node_locks.outcome)
        }
        Ok(()) => (Stage::SwarmDrained, drain::deadline_ms(survey, update, position)?, deadlines.swarm_drain.outcome),
    };
    let known = mine.stuck.as_ref().is_some_and(|stuck| stuck.stage == stage);
    let late = !known && survey.now.wall_ms >= late_at_ms;
    late.then_some(match outcome {
        DeadlineOutcome::Pause => MachineStep::PauseAll { stage, message },
        DeadlineOutcome::Fail | DeadlineOutcome::Defer => {
            MachineStep::Stuck { stage, outcome: DeadlineOutcome::Defer, message }
        }
    })
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
        let left = position.is_withheld() && assign::is_accepted(survey.facts, position);
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
        let leaves = || drain::step(survey, position).or_else(|| stays_too_long(survey, update, position, mine));
        return removal::takes_turn(position).then(leaves).flatten();
    }
    // One that failed waits for a person: no deadline of controllers or of the swarm runs for it.
    let failed = position.is_stopped();
    if update.wish == Wish::Abort || mine.set_aside.is_some() || failed {
        return None;
    }
    if is_left_out(update, position) {
        let stage = stages::current(position.row).map_or(Stage::LocksInactive, |(stage, _)| stage);
        return Some(MachineStep::SetAside {
            stage,
            message: "it is lost, and was not disturbed yet".to_owned(),
            cause: DeferralCause::Lost,
        });
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
            MachineStep::SetAside { stage, message, cause: DeferralCause::of(outcome) }
        }
        DeadlineOutcome::Pause => MachineStep::PauseAll { stage, message },
    }
}
