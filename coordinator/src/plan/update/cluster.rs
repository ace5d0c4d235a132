//! The update of a cluster as a whole: its request, its locks, its stages, and its halts.

use muster_proto::{
    model::{Blocked, DeadlineOutcome, MachineType, Reason},
    plant::planted,
};

use super::{ClusterStep, DECISION_MS, around, disturbs, targets};
use crate::{
    facts::{ClusterStage, MachineUpdate, StageRow, UpdateKind, UpdateRow, Wish},
    plan::{
        locks,
        safety::{self, blocked},
        survey::{Position, Survey},
    },
};

/// The next step to record for the cluster as a whole.
pub(super) fn cluster_step(survey: &Survey<'_>, update: &UpdateRow) -> Option<ClusterStep> {
    let needs_request = needs_request(survey);
    let succeeded = |stage| update.stages.get(&stage).is_some_and(|row: &StageRow| row.succeeded);
    let ended = |machine_type| targets(survey).all(|position| position.row.spec.machine_type != machine_type);
    if update.wish == Wish::Abort {
        return targets(survey).next().is_none().then_some(ClusterStep::Close);
    }
    if safety::before_update_done(survey).is_err() {
        // All targets have left the update.
        if targets(survey).next().is_none() {
            return Some(ClusterStep::Close);
        }
        return around::step(survey, update, ClusterStage::HooksBefore);
    }
    if needs_request && update.request.is_none() {
        let free = update.wish == Wish::Go && safety::may_start_anything(survey).is_ok();
        if locks::may_request(survey, None).is_ok() {
            return free.then_some(ClusterStep::Request);
        }
        return is_late(survey, update, ClusterStage::Requested).filter(|_| locks::came_back(survey, None).is_err());
    }
    if let Some(request) = &update.request
        && needs_request
        && !succeeded(ClusterStage::LocksInactive)
    {
        if locks::granted(survey, None, request).is_ok() {
            return Some(ClusterStep::End(ClusterStage::LocksInactive));
        }
        return is_late(survey, update, ClusterStage::LocksInactive);
    }
    if waits_for_cluster(survey, update)
        && let Some(halt) = is_late(survey, update, ClusterStage::LocksInactive)
    {
        return Some(halt);
    }
    let order = [
        (ClusterStage::ControlUpgraded, ended(MachineType::Control)),
        (ClusterStage::WorkersUpgraded, ended(MachineType::Control) && ended(MachineType::Worker)),
        (ClusterStage::AllUpgraded, targets(survey).next().is_none()),
    ];
    for (stage, reached) in order {
        if !succeeded(stage) && reached {
            return Some(ClusterStep::End(stage));
        }
        if !succeeded(stage) {
            return (!update.stages.contains_key(&stage)).then_some(ClusterStep::Begin(stage));
        }
    }
    // Seeded bug: end the update when its machines are done.
    let after = around::has(update, ClusterStage::HooksAfter) && !planted("skip-hooks-after");
    if after && !succeeded(ClusterStage::HooksAfter) {
        return around::step(survey, update, ClusterStage::HooksAfter);
    }
    Some(ClusterStep::Close)
}

/// Does a remaining machine of the update need the cluster's maintenance? All machines to be disturbed may have been
/// revoked or replaced since; then the update ends without a request.
fn needs_request(survey: &Survey<'_>) -> bool {
    let mut staying = targets(survey).filter(|position| !position.is_let_go());
    staying.any(|position| position.update().is_some_and(|mine| mine.disruptive) || disturbs(survey, position))
}

/// The halt, if the wait for the cluster's locks at this stage is past its deadline.
fn is_late(survey: &Survey<'_>, update: &UpdateRow, stage: ClusterStage) -> Option<ClusterStep> {
    // A controller that has come gets its full time.
    let waited = update.request.and_then(|request| locks::granted(survey, None, &request).err());
    let settles = waited.is_some_and(|blocked| blocked.reason == Reason::LocksSettling);
    let late = survey.now.wall_ms >= deadline_ms(survey, update) && !settles;
    let outcome = survey.spec.update_deadlines.cluster_locks.outcome;
    (late && update.wish == Wish::Go).then(|| halt(update.kind, outcome, stage))
}

/// What happens to an update at the deadline of this stage: an operator decides, or it was decided beforehand.
/// Maintenance is never aborted: its end returns machines that are out of service, and only their operator knows when
/// that is safe.
pub(super) const fn halt(kind: UpdateKind, outcome: DeadlineOutcome, stage: ClusterStage) -> ClusterStep {
    match outcome {
        DeadlineOutcome::Fail if !kind.takes_out() => ClusterStep::Abort(stage),
        DeadlineOutcome::Fail | DeadlineOutcome::Pause | DeadlineOutcome::Defer => ClusterStep::Pause(stage),
    }
}

/// Does a machine wait to be disturbed because the cluster's own locks are still active?
fn waits_for_cluster(survey: &Survey<'_>, update: &UpdateRow) -> bool {
    let held = update.request.is_some_and(|request| locks::granted(survey, None, &request).is_err());
    held && is_ahead(survey)
}

/// Are the cluster's own locks awaited, with their deadline running?
#[must_use]
pub fn is_cluster_moving(survey: &Survey<'_>) -> bool {
    let Some(update) = survey.update().filter(|update| update.wish == Wish::Go) else { return false };
    let waits = if update.request.is_some() {
        waits_for_cluster(survey, update)
    } else {
        is_ahead(survey) && locks::came_back(survey, None).is_err()
    };
    waits && survey.now.wall_ms < deadline_ms(survey, update).saturating_add(DECISION_MS)
}

/// Is the first disturbance of some machine still ahead?
pub(super) fn is_ahead(survey: &Survey<'_>) -> bool {
    let ahead = |mine: &MachineUpdate| mine.disruptive && !mine.disturbed();
    let waiting = |position: &&Position<'_>| !position.in_maintenance() && !position.is_let_go();
    targets(survey).filter(waiting).any(|position| position.update().is_some_and(ahead))
}

/// The stage of the cluster itself that is past its deadline, and its start, Unix milliseconds. An update that is being
/// aborted waits for none.
#[must_use]
pub fn overdue_stage(survey: &Survey<'_>) -> Option<(ClusterStage, u64)> {
    let (update, rollout) = (survey.update().filter(|update| update.wish != Wish::Abort)?, survey.rollout?);
    if let Some(hooks) = around::overdue(survey) {
        return Some(hooks);
    }
    let late = safety::before_update_done(survey).is_ok() && survey.now.wall_ms >= deadline_ms(survey, update);
    let asked = update.stages.get(&ClusterStage::LocksInactive).filter(|stage| stage.finished_at_ms.is_none());
    match update.request {
        Some(_) => asked.filter(|_| late).map(|stage| (ClusterStage::LocksInactive, stage.started_at_ms)),
        // Locks of an earlier update are still inactive, and a new request has to wait for them.
        None => (late && is_ahead(survey) && locks::came_back(survey, None).is_err())
            .then_some((ClusterStage::Requested, rollout.started_at_ms)),
    }
}

/// Deadline of the wait for the cluster's locks, Unix milliseconds. Progress of a lock restarts it, and so does a start
/// of this coordinator, because controllers have to connect first. If only the answer of an absent controller is
/// missing, its departure restarts it.
pub(super) fn deadline_ms(survey: &Survey<'_>, update: &UpdateRow) -> u64 {
    let begun = survey.rollout.map_or(0, |rollout| rollout.started_at_ms);
    let begun = update.stages.get(&ClusterStage::LocksInactive).map_or(begun, |row| row.started_at_ms);
    let begun = begun.max(update.moved_at_ms).max(survey.facts.live.started_wall_ms);
    let silent = update.request.is_some_and(|request| locks::inactive(survey, None, &request).is_ok());
    let begun = if silent { begun.max(locks::controllers_left_ms(survey)) } else { begun };
    begun.max(locks::last_progress_ms(survey, None)).saturating_add(survey.spec.update_deadlines.cluster_locks.after_ms)
}

/// May machines of this update be disturbed at all: are the cluster's own locks inactive, and is the update running?
///
/// # Errors
/// What it waits for.
pub fn is_open(survey: &Survey<'_>) -> Result<(), Blocked> {
    let Some(update) = survey.update() else { return Ok(()) };
    not_halted(survey, update)?;
    cluster_lets(survey, update)
}

/// Are the cluster's own locks inactive?
///
/// # Errors
/// What it waits for.
pub(in crate::plan) fn cluster_lets(survey: &Survey<'_>, update: &UpdateRow) -> Result<(), Blocked> {
    let Some(request) = &update.request else {
        locks::may_request(survey, None)?;
        return Err(blocked(Reason::Deciding, "the cluster's maintenance is about to be requested", "it is requested"));
    };
    // Seeded bug: ignore the cluster's own locks.
    if planted("ignore-cluster-locks") { Ok(()) } else { locks::granted(survey, None, request) }
}

/// Duration of a pause from which on its operator is warned, in milliseconds: a cluster between two releases is a risk.
const PAUSE_MS_MAX: u64 = 24 * 3600 * 1000;

/// Has it been paused long enough to warn its operator?
#[must_use]
pub fn paused_too_long(survey: &Survey<'_>, update: &UpdateRow) -> bool {
    matches!(update.wish, Wish::Pause { since_ms } if survey.now.wall_ms.saturating_sub(since_ms) > PAUSE_MS_MAX)
}

/// Check that it is neither paused nor aborted.
///
/// # Errors
/// The halt, and what ends it.
pub fn not_halted(survey: &Survey<'_>, update: &UpdateRow) -> Result<(), Blocked> {
    let name = survey.rollout.map_or("", |rollout| rollout.name.as_str());
    let kind = update.kind.as_str();
    match update.wish {
        Wish::Go => Ok(()),
        Wish::Pause { .. } => {
            let message = match (paused_too_long(survey, update), update.kind) {
                (false, _) => format!("the {kind} is paused: nothing new starts"),
                (true, UpdateKind::Update) => {
                    "the update has been paused for over a day: a cluster between two releases is a risk".to_owned()
                }
                (true, _) => format!("the {kind} has been paused for over a day"),
            };
            Err(blocked(Reason::Paused, message, format!("`musterctl resume {name}`, or `musterctl abort {name}`")))
        }
        Wish::Abort => {
            let message = format!("the {kind} was aborted: nothing new starts");
            Err(blocked(Reason::Aborting, message, "what was taken has been given back"))
        }
    }
}
