//! Machines past a deadline, and operators' decisions about them.

use muster_proto::model::{DeadlineOutcome, MachineName, Now};

use super::record;
use crate::{
    core::{
        Refusal, Reply,
        decide::{begin_stage, end_stage},
        operators::audited,
    },
    facts::{AuditObject, Deferral, DeferralCause, Stage, Stuck, Transaction},
    plan::update::stages,
};

/// The stages in which items run.
const OF_ITEMS: [Stage; 4] = [Stage::PrepareDone, Stage::DeployDone, Stage::ReconfigureDone, Stage::RebootDone];

/// A manager's drain is skipped, so a failed count of the other managers is recorded only now: its locks were inactive,
/// and it has since waited for the swarm.
pub(super) fn locks_were_inactive(tx: &mut Transaction<'_>, machine: &MachineName, stage: Stage, now: Now) {
    let since_ms = tx.live.machines.get(machine).and_then(|live| live.swarm.awaited_since_ms);
    let Some(row) = tx.machine_mut(machine).filter(|_| stage == Stage::SwarmDrained) else { return };
    if !row.stages.contains_key(&stage) {
        end_stage(row, Stage::LocksInactive, true, now);
        begin_stage(row, stage, Now { wall_ms: since_ms.unwrap_or(now.wall_ms), ..now });
    }
}

/// Defers a machine after its request timed out.
pub(super) fn defer(tx: &mut Transaction<'_>, machine: &MachineName, (stage, aside): (Stage, Deferral), now: Now) {
    locks_were_inactive(tx, machine, stage, now);
    let Some(row) = tx.machine_mut(machine) else { return };
    let since_ms = row.stages.get(&stage).map_or(now.wall_ms, |row| row.started_at_ms);
    end_stage(row, stage, false, now);
    if let Some(mine) = &mut row.update {
        mine.stuck = Some(Stuck { stage, since_ms, counts: false, message: aside.message.clone() });
        mine.deferral = Some(aside);
    }
}

/// Records a stage past its deadline. A machine that is undisturbed yet can be deferred for it.
pub(super) fn stuck(
    tx: &mut Transaction<'_>,
    machine: &MachineName,
    (stage, outcome, message): (Stage, DeadlineOutcome, String),
    now: Now,
) {
    let Some(row) = tx.machine_mut(machine) else { return };
    // A machine that was out of service when its removal began was already at that stage for another reason.
    let removed_ms = row.removal.as_ref().map_or(0, |removal| removal.since_ms);
    let since_ms = row.stages.get(&stage).map_or(now.wall_ms, |row| row.started_at_ms.max(removed_ms));
    let rollout = row.rollout.clone();
    let undisturbed = stage == Stage::PrepareDone;
    let Some(mine) = &mut row.update else { return };
    let counts = outcome == DeadlineOutcome::Fail && !undisturbed;
    let waited = if message.is_empty() { String::new() } else { format!(" ({message})") };
    mine.stuck = Some(Stuck { stage, since_ms, counts, message });
    if undisturbed && outcome != DeadlineOutcome::Pause {
        let message = "its prepare items took longer than updateDeadlines.prepare allows".to_owned();
        mine.deferral = Some(Deferral { message, cause: DeferralCause::of(outcome) });
    }
    if let Some(rollout) = rollout.filter(|_| outcome == DeadlineOutcome::Pause) {
        let what = format!("\"{}\" of {machine}{waited}", stage.as_str());
        record::pause(tx, &rollout, &what, now);
    }
}

/// Was this machine deferred?
pub(in crate::core) fn is_deferred(tx: &Transaction<'_>, machine: &MachineName) -> bool {
    let update = tx.machines.get(machine).and_then(|row| row.update.as_ref());
    update.is_some_and(|update| update.deferral.is_some())
}

/// What kept the machine may have changed: it is looked at again before its turn.
pub(super) fn looks_again(tx: &mut Transaction<'_>, machine: &MachineName) {
    let look = &mut tx.live_mut(machine).kubernetes;
    (look.nodes, look.load, look.undrainable) = (None, None, None);
    let cluster = tx.machines.get(machine).map(|row| row.spec.cluster_name.clone());
    if let Some(cluster) = cluster.filter(|cluster| tx.live.renewals.contains_key(cluster)) {
        tx.renewal_mut(&cluster).seen = None;
    }
}

/// Ask again for a deferred machine, on an operator's request.
pub(in crate::core) fn ask_again(
    tx: &mut Transaction<'_>,
    actor: &str,
    machine: &MachineName,
    now: Now,
) -> Result<Reply, Refusal> {
    looks_again(tx, machine);
    let row = tx.machine_mut(machine);
    let rollout = row.and_then(|row| {
        record::take_back(row, now);
        row.rollout.clone()
    });
    if let Some(update) = rollout.and_then(|rollout| tx.update_mut(&rollout)) {
        update.moved_at_ms = now.wall_ms;
    }
    let line = format!("machine {machine}: its maintenance is requested again when its turn comes");
    audited(tx, actor, "retry", AuditObject::Machine(machine), vec![line], now)
}

/// Restarts the stage of an item that an operator lets run again in an update.
pub(in crate::core) fn has_its_time_anew(tx: &mut Transaction<'_>, machine: &MachineName, now: Now) {
    let Some(row) = tx.machine_mut(machine).filter(|row| row.update.is_some()) else { return };
    let Some((stage, _)) = stages::current(row).filter(|(stage, _)| OF_ITEMS.contains(stage)) else { return };
    begin_stage(row, stage, now);
    if let Some(mine) = &mut row.update {
        mine.stuck.take_if(|stuck| stuck.stage == stage);
    }
}
