//! The update of a cluster as a whole: its request, its locks, its stages, and its halts.

use muster_proto::{
    model::{Blocked, DeadlineOutcome, MachineType, Reason},
    seeded_bug::seeded_bug,
};

use super::{ClusterStep, DECISION_MS, disturbs, hooks, renewal, targets};
use crate::{
    facts::{ClusterStage, DesiredState, MachineUpdate, StageRow, UpdateKind, UpdateRow},
    plan::{
        addons, locks,
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// The next step to record for the cluster as a whole.
pub(super) fn cluster_step(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<ClusterStep> {
    let needs_request = needs_request(snapshot);
    let succeeded = |stage| update.stages.get(&stage).is_some_and(|row: &StageRow| row.succeeded);
    let ended = |machine_type| targets(snapshot).all(|view| view.row.spec.machine_type != machine_type);
    if update.desired == DesiredState::Abort {
        return targets(snapshot).next().is_none().then_some(ClusterStep::Close);
    }
    if safety::before_update_done(snapshot).is_err() {
        // All targets have left the update.
        if targets(snapshot).next().is_none() {
            return Some(ClusterStep::Close);
        }
        return hooks::step(snapshot, update, ClusterStage::HooksBefore);
    }
    if needs_request && update.request.is_none() {
        let free = update.desired == DesiredState::Go && safety::may_start_anything(snapshot).is_ok();
        if locks::may_request(snapshot, None).is_ok() {
            return free.then_some(ClusterStep::Request);
        }
        return is_late(snapshot, update, ClusterStage::Requested)
            .filter(|_| locks::came_back(snapshot, None).is_err());
    }
    if let Some(request) = &update.request
        && needs_request
        && !succeeded(ClusterStage::LocksInactive)
    {
        if locks::granted(snapshot, None, request).is_ok() {
            return Some(ClusterStep::End(ClusterStage::LocksInactive));
        }
        return is_late(snapshot, update, ClusterStage::LocksInactive);
    }
    if waits_for_cluster(snapshot, update)
        && let Some(halt) = is_late(snapshot, update, ClusterStage::LocksInactive)
    {
        return Some(halt);
    }
    let order = [
        (ClusterStage::ControlUpgraded, ended(MachineType::Control)),
        (ClusterStage::WorkersUpgraded, ended(MachineType::Control) && ended(MachineType::Worker)),
        (ClusterStage::AllUpgraded, targets(snapshot).next().is_none()),
    ];
    for (stage, reached) in order {
        if !succeeded(stage) && reached {
            return Some(ClusterStep::End(stage));
        }
        if !succeeded(stage) {
            return (!update.stages.contains_key(&stage)).then_some(ClusterStep::Begin(stage));
        }
    }
    if addons::has(snapshot, update) && !succeeded(ClusterStage::AddonsVerified) {
        return addons::step(snapshot, update);
    }
    // Seeded bug: end the update when its machines are done.
    let after = hooks::has(update, ClusterStage::HooksAfter) && !seeded_bug("skip-hooks-after");
    if after && !succeeded(ClusterStage::HooksAfter) {
        return hooks::step(snapshot, update, ClusterStage::HooksAfter);
    }
    if renewal::has(snapshot, update) && !succeeded(ClusterStage::PodsRenewed) {
        return renewal::step(snapshot, update);
    }
    Some(ClusterStep::Close)
}

/// Does a remaining machine of the update need the cluster's maintenance? All machines to be disturbed may have been
/// revoked or replaced since; then the update ends without a request.
fn needs_request(snapshot: &ClusterSnapshot<'_>) -> bool {
    let mut staying = targets(snapshot).filter(|view| !view.is_let_go());
    staying.any(|view| view.update().is_some_and(|mine| mine.disruptive) || disturbs(snapshot, view))
}

/// The halt, if the wait for the cluster's locks at this stage is past its deadline.
fn is_late(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, stage: ClusterStage) -> Option<ClusterStep> {
    // A controller that has come gets its full time.
    let waited = update.request.and_then(|request| locks::granted(snapshot, None, &request).err());
    let settles = waited.is_some_and(|blocked| blocked.reason == Reason::LocksSettling);
    let late = snapshot.now.wall_ms >= deadline_ms(snapshot, update) && !settles;
    let outcome = snapshot.spec.update_deadlines.cluster_locks.outcome;
    (late && update.desired == DesiredState::Go).then(|| halt(update.kind, outcome, stage))
}

/// What happens to an update at the deadline of this stage: an operator decides, or it was decided beforehand.
/// Maintenance is never aborted: its end returns machines that are out of service, and only their operator knows when
/// that is safe.
pub(in crate::plan) const fn halt(kind: UpdateKind, outcome: DeadlineOutcome, stage: ClusterStage) -> ClusterStep {
    match outcome {
        DeadlineOutcome::Fail if !kind.takes_out() => ClusterStep::Abort(stage),
        DeadlineOutcome::Fail | DeadlineOutcome::Pause | DeadlineOutcome::Defer => ClusterStep::Pause(stage),
    }
}

/// Does a machine wait to be disturbed because the cluster's own locks are still active?
fn waits_for_cluster(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> bool {
    let held = update.request.is_some_and(|request| locks::granted(snapshot, None, &request).is_err());
    held && is_ahead(snapshot)
}

/// Are the cluster's own locks awaited, with their deadline running?
#[must_use]
pub fn is_cluster_moving(snapshot: &ClusterSnapshot<'_>) -> bool {
    let Some(update) = snapshot.update().filter(|update| update.desired == DesiredState::Go) else { return false };
    let waits = if update.request.is_some() {
        waits_for_cluster(snapshot, update)
    } else {
        is_ahead(snapshot) && locks::came_back(snapshot, None).is_err()
    };
    waits && snapshot.now.wall_ms < deadline_ms(snapshot, update).saturating_add(DECISION_MS)
}

/// Is the first disturbance of some machine still ahead?
pub(super) fn is_ahead(snapshot: &ClusterSnapshot<'_>) -> bool {
    let ahead = |mine: &MachineUpdate| mine.disruptive && !mine.disturbed();
    let waiting = |view: &&MachineView<'_>| !view.in_maintenance() && !view.is_let_go();
    targets(snapshot).filter(waiting).any(|view| view.update().is_some_and(ahead))
}

/// The stage of the cluster itself that is past its deadline, and its start, Unix milliseconds. An update that is being
/// aborted waits for none.
#[must_use]
pub fn overdue_stage(snapshot: &ClusterSnapshot<'_>) -> Option<(ClusterStage, u64)> {
    let (update, rollout) =
        (snapshot.update().filter(|update| update.desired != DesiredState::Abort)?, snapshot.rollout?);
    let of_stage = hooks::overdue(snapshot).or_else(|| addons::overdue(snapshot));
    if let Some(late) = of_stage.or_else(|| renewal::overdue(snapshot)) {
        return Some(late);
    }
    let late = safety::before_update_done(snapshot).is_ok() && snapshot.now.wall_ms >= deadline_ms(snapshot, update);
    let asked = update.stages.get(&ClusterStage::LocksInactive).filter(|stage| stage.finished_at_ms.is_none());
    match update.request {
        Some(_) => asked.filter(|_| late).map(|stage| (ClusterStage::LocksInactive, stage.started_at_ms)),
        // Locks of an earlier update are still inactive, and a new request has to wait for them.
        None => (late && is_ahead(snapshot) && locks::came_back(snapshot, None).is_err())
            .then_some((ClusterStage::Requested, rollout.started_at_ms)),
    }
}

/// Deadline of the wait for the cluster's locks, Unix milliseconds. Progress of a lock restarts it, and so does a start
/// of this coordinator, because controllers have to connect first. If only the answer of an absent controller is
/// missing, its departure restarts it.
pub(super) fn deadline_ms(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> u64 {
    let begun = snapshot.rollout.map_or(0, |rollout| rollout.started_at_ms);
    let begun = update.stages.get(&ClusterStage::LocksInactive).map_or(begun, |row| row.started_at_ms);
    let begun = begun.max(update.moved_at_ms).max(snapshot.facts.live.started_wall_ms);
    let silent = update.request.is_some_and(|request| locks::inactive(snapshot, None, &request).is_ok());
    let begun = if silent { begun.max(locks::controllers_left_ms(snapshot)) } else { begun };
    begun
        .max(locks::last_progress_ms(snapshot, None))
        .saturating_add(snapshot.spec.update_deadlines.cluster_locks.after_ms)
}

/// May machines of this update be disturbed at all: are the cluster's own locks inactive, and is the update running?
///
/// # Errors
/// What it waits for.
pub fn is_open(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    let Some(update) = snapshot.update() else { return Ok(()) };
    not_halted(snapshot, update)?;
    cluster_lets(snapshot, update)
}

/// Are the cluster's own locks inactive?
///
/// # Errors
/// What it waits for.
pub(in crate::plan) fn cluster_lets(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Result<(), Blocked> {
    let Some(request) = &update.request else {
        locks::may_request(snapshot, None)?;
        return Err(blocked(Reason::Deciding, "the cluster's maintenance is about to be requested", "it is requested"));
    };
    // Seeded bug: ignore the cluster's own locks.
    if seeded_bug("ignore-cluster-locks") { Ok(()) } else { locks::granted(snapshot, None, request) }
}

/// Duration of a pause from which on its operator is warned, in milliseconds: a cluster between two releases is a risk.
const PAUSE_MS_MAX: u64 = 24 * 3600 * 1000;

/// Has it been paused long enough to warn its operator?
#[must_use]
pub fn paused_too_long(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> bool {
    let age_ms = |since_ms: u64| snapshot.now.wall_ms.saturating_sub(since_ms);
    matches!(update.desired, DesiredState::Pause { since_ms } if age_ms(since_ms) > PAUSE_MS_MAX)
}

/// Check that it is neither paused nor aborted.
///
/// # Errors
/// The halt, and what ends it.
pub fn not_halted(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Result<(), Blocked> {
    let name = snapshot.rollout.map_or("", |rollout| rollout.name.as_str());
    let kind = update.kind.as_str();
    match update.desired {
        DesiredState::Go => Ok(()),
        DesiredState::Pause { .. } => {
            let message = match (paused_too_long(snapshot, update), update.kind) {
                (false, _) => format!("the {kind} is paused: nothing new starts"),
                (true, UpdateKind::Update) => {
                    "the update has been paused for over a day: a cluster between two releases is a risk".to_owned()
                }
                (true, _) => format!("the {kind} has been paused for over a day"),
            };
            Err(blocked(Reason::Paused, message, format!("`musterctl resume {name}`, or `musterctl abort {name}`")))
        }
        DesiredState::Abort => {
            let message = format!("the {kind} was aborted: nothing new starts");
            Err(blocked(Reason::Aborting, message, "what was taken has been given back"))
        }
    }
}
