//! Hooks around an update: before anything is requested or disturbed, and after every machine is complete. They are
//! items that the update adds to machines' lists; while they are under way, all else waits there.

use muster_proto::{
    model::{Blocked, ItemProgress, MachineName, Reason},
    seeded_bug::seeded_bug,
};

use super::{ClusterStep, cluster::halt, targets};
use crate::{
    facts::{Added, ClusterStage, DesiredState, Facts, MachineRow, MachineUpdate, StageRow, Target, UpdateRow},
    plan::{
        added, assign,
        safety::{self, blocked, some_names},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

fn succeeded(update: &UpdateRow, stage: ClusterStage) -> bool {
    update.stages.get(&stage).is_some_and(|row| row.succeeded)
}

/// Does this update add items at this stage?
#[must_use]
pub fn has(update: &UpdateRow, stage: ClusterStage) -> bool {
    let at_stage = |added: &Added| match stage {
        ClusterStage::HooksAfter => added.is_after(),
        _ => added.is_before(),
    };
    update.targets.values().any(|target| target.added.iter().any(at_stage))
}

/// Are the hooks before this update still open?
#[must_use]
pub fn is_before_open(update: &UpdateRow) -> bool {
    has(update, ClusterStage::HooksBefore) && !succeeded(update, ClusterStage::HooksBefore)
}

/// Is everything done that precedes the first request or disturbance?
///
/// # Errors
/// What is still open, and what lets the update go on.
pub fn before(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    snapshot.cache.before_update.get_or_init(|| look_before(snapshot)).clone()
}

fn look_before(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    if !snapshot.update().is_some_and(is_before_open) {
        return Ok(());
    }
    nobody_is_gone(snapshot)?;
    let open = open(snapshot);
    if open.is_empty() {
        return Err(blocked(
            Reason::Deciding,
            "what comes before the update is done",
            "the coordinator's next decision",
        ));
    }
    let message = format!("not done before the update: {}", some_names(open.iter().map(String::as_str)));
    Err(blocked(
        Reason::BeforeUpdate,
        message,
        "it is done; if it failed, `musterctl retry` or `skip` it on its machine",
    ))
}

/// Are all machines with work before the update still part of it? Otherwise it can never go on, paused or not.
///
/// # Errors
/// The machines that have left.
pub fn nobody_is_gone(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    snapshot.cache.nobody_is_gone.get_or_init(|| look_for_gone(snapshot)).clone()
}

fn look_for_gone(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    let (Some(update), Some(rollout)) = (snapshot.update(), snapshot.rollout) else { return Ok(()) };
    if succeeded(update, ClusterStage::HooksBefore) || update.desired == DesiredState::Abort {
        return Ok(());
    }
    let gone = gone(snapshot, update);
    if gone.is_empty() {
        return Ok(());
    }
    let names = some_names(gone);
    let message = format!("{names} has left the update, and what was to run there before it never will");
    Err(blocked(Reason::BeforeUpdate, message, format!("`musterctl abort {}`; then start it anew", rollout.name)))
}

/// Machines that left the update, or are about to leave it, before their work ahead of it was done. That stays open: a
/// machine under removal starts nothing new.
fn gone<'a>(snapshot: &ClusterSnapshot<'_>, update: &'a UpdateRow) -> Vec<&'a str> {
    let never = |(name, target): &(&MachineName, &Target)| {
        let row = snapshot.facts.machines.get(*name).filter(|row| row.update.is_some());
        let is_done = |added: &Added| {
            let stands = row.and_then(|row| added::stands(snapshot.facts, row, added));
            target.done.contains(added) || stands.is_some_and(|(standing, _)| standing == ItemProgress::Done)
        };
        let leaves = row.is_none_or(|row| row.removal.is_some());
        leaves && target.added.iter().any(|added| added.is_before() && !is_done(added))
    };
    update.targets.iter().filter(never).map(|(name, _)| name.as_str()).collect()
}

/// The open work that precedes or follows the update, in words.
fn open(snapshot: &ClusterSnapshot<'_>) -> Vec<String> {
    let alone = targets(snapshot).filter(|view| view.update().is_some_and(|mine| !alone(mine).is_empty()));
    alone.filter(|view| !is_complete(snapshot, view)).map(|view| what_is_open(view)).collect()
}

/// Items added to a machine's list that run before or after everything else.
fn alone(mine: &MachineUpdate) -> Vec<&Added> {
    mine.added.iter().filter(|added| added.is_before() || added.is_after()).collect()
}

fn is_done(view: &MachineView<'_>, added: &Added) -> bool {
    let item = added::find(view.items.unwrap_or_default(), added);
    item.is_some_and(|item| {
        let standing = view.standing(item);
        // Seeded bug: go on after a failed hook.
        standing == ItemProgress::Done || (standing == ItemProgress::Failed && seeded_bug("go-on-after-failed-hook"))
    })
}

/// Are all items added to this machine's list done, with none running and none left to start?
pub(super) fn is_complete(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let Some(mine) = view.update().filter(|mine| mine.hooks_only) else { return false };
    let running = view.running().next().is_some();
    alone(mine).iter().all(|added| is_done(view, added)) && !running && assign::is_accepted(snapshot.facts, view)
}

fn what_is_open(view: &MachineView<'_>) -> String {
    let all = view.update().map(alone).unwrap_or_default();
    let open: Vec<String> = all.into_iter().filter(|a| !is_done(view, a)).map(added::said).collect();
    let name = &view.row.name;
    match open.is_empty() {
        false => format!("{} on {name}", open.join(", ")),
        // Until it confirms its list, it may still start what was skipped.
        true if !view.connected() => format!("{name}, which is not connected, has not confirmed"),
        true => format!("{name} has not confirmed"),
    }
}

/// Was the update aborted during this machine's hooks? Then its list is empty, and it leaves once all of them have
/// ended for good.
#[must_use]
pub fn is_called_off(facts: &Facts, row: &MachineRow) -> bool {
    let rollout = row.rollout.as_ref().and_then(|rollout| facts.rollouts.get(rollout));
    let aborted =
        rollout.and_then(|row| row.update.as_ref()).is_some_and(|update| update.desired == DesiredState::Abort);
    aborted && row.update.as_ref().is_some_and(|mine| mine.hooks_only)
}

/// The next step to record for one of the two stages.
pub(super) fn step(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, stage: ClusterStage) -> Option<ClusterStep> {
    if !update.stages.contains_key(&stage) {
        // A pause holds machines back: when all are complete, it has no effect.
        let held = stage == ClusterStage::HooksBefore && update.desired != DesiredState::Go;
        let may = !held && safety::may_start_hooks(snapshot).is_ok();
        return may.then_some(ClusterStep::Begin(stage));
    }
    let through = match stage {
        // A machine that has completed its hooks after the update leaves it.
        ClusterStage::HooksAfter => targets(snapshot).next().is_none(),
        _ => gone(snapshot, update).is_empty() && open(snapshot).is_empty(),
    };
    if through {
        return Some(ClusterStep::End(stage));
    }
    let late = deadline_ms(snapshot, update).is_some_and(|at_ms| snapshot.now.wall_ms >= at_ms);
    (late && update.desired == DesiredState::Go)
        .then(|| halt(update.kind, snapshot.spec.update_deadlines.hooks.outcome, stage))
}

/// Deadline of the hooks under way, Unix milliseconds. It restarts with this coordinator: work done in the absence of
/// one has yet to be reported.
pub(super) fn deadline_ms(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<u64> {
    let (_, began_ms) = under_way(update)?;
    let began_ms = began_ms.max(update.resumed_at_ms).max(snapshot.facts.live.started_wall_ms);
    Some(began_ms.saturating_add(snapshot.spec.update_deadlines.hooks.after_ms))
}

/// The one of the two stages that is under way, and its start, Unix milliseconds.
fn under_way(update: &UpdateRow) -> Option<(ClusterStage, u64)> {
    let stages = [ClusterStage::HooksBefore, ClusterStage::HooksAfter].into_iter();
    let begun = stages.filter_map(|stage| Some((stage, update.stages.get(&stage)?)));
    let open =
        |(stage, row): (ClusterStage, &StageRow)| row.finished_at_ms.is_none().then_some((stage, row.started_at_ms));
    begun.filter_map(open).next()
}

/// The one of the two stages that is past its deadline, and its start, Unix milliseconds. The time of a pause that
/// began before the deadline is excluded, and an update that is being aborted waits for neither.
#[must_use]
pub fn overdue(snapshot: &ClusterSnapshot<'_>) -> Option<(ClusterStage, u64)> {
    let update = snapshot.update()?;
    let until_ms = match update.desired {
        DesiredState::Go => snapshot.now.wall_ms,
        DesiredState::Pause { since_ms } => since_ms,
        DesiredState::Abort => return None,
    };
    under_way(update).filter(|_| deadline_ms(snapshot, update).is_some_and(|at_ms| until_ms >= at_ms))
}
