//! Discards what a recovered copy of the store says about updates: it is outdated until an operator has reviewed it.

use std::collections::BTreeSet;

use muster_proto::{
    model::{Blocked, LockState, MachineName, Now, RemovalPolicy},
    seeded_bug::seeded_bug,
};

use super::{at_rest_phase, record::has_its_own_items, refusal};
use crate::{
    core::{Refusal, Reply},
    facts::{AuditObject, DesiredState, LockKey, LockRow, MachineRow, Transaction, UpdateKind},
    plan::{Limits, assign, blocked, recovery, snapshot::MachineView},
};

/// Maximum time from an agent's last message until it begins what is due, in milliseconds: its longest backoff is 75 s.
const NEXT_ITEM_MS: u64 = 90_000;

/// Handles a store that is a copy being recovered. Its open updates have meanwhile continued or ended, so they end
/// here. Machines that were still within them, or on their way into maintenance or back, need an operator's review.
/// Machines out of service stay so. Removals must be requested again, except irreversible ones.
pub(in crate::core) fn invalidate(tx: &mut Transaction<'_>, now: Now) {
    for machine in tx.machines.keys().cloned().collect::<Vec<MachineName>>() {
        let needs_review = tx.machines.get(&machine).is_some_and(|row| is_on_its_way(tx, row));
        let Some(row) = tx.machine_mut(&machine) else { continue };
        if row.departs() {
            continue;
        }
        // Seeded bug: treat a machine in the middle of an update as done.
        row.needs_review |= needs_review && !seeded_bug("recover-doubts-nobody");
        // The pods that it names are of another time.
        row.update.iter_mut().for_each(|mine| mine.forced_pods.clear());
        row.removal = row.removal.take().filter(|removal| removal.policy == RemovalPolicy::Forced);
    }
    let open = tx.rollouts.values().filter(|row| row.finished_at_ms.is_none());
    let takes_out = |kind: UpdateKind| kind.takes_out();
    let updates = open.filter(|row| row.update.as_ref().is_some_and(|update| !takes_out(update.kind)));
    for name in updates.map(|row| row.name.clone()).collect::<Vec<String>>() {
        if let Some(update) = tx.update_mut(&name) {
            update.desired = DesiredState::Abort;
        }
    }
    forget_locks(tx, now);
}

/// Is it in an open rollout, other than being out of service?
fn is_on_its_way(tx: &Transaction<'_>, row: &MachineRow) -> bool {
    let open = row.rollout.as_ref().and_then(|name| tx.rollouts.get(name));
    let open = open.is_some_and(|rollout| rollout.finished_at_ms.is_none());
    open && row.update.as_ref().is_some_and(|mine| !mine.in_maintenance())
}

/// Resets released locks: their controllers may be at work again, and report a state only when it changes. This
/// includes machines out of service: they may be back, and the maintenance of their cluster may be over.
fn forget_locks(tx: &mut Transaction<'_>, now: Now) {
    let granted = tx.locks.values().filter(|lock| lock.state != LockState::Active);
    for key in granted.map(|lock| lock.key.clone()).collect::<Vec<LockKey>>() {
        let Some(lock) = tx.locks.get(&key).map(|lock| (**lock).clone()) else { continue };
        let message = "as far as is known: the store was recovered".to_owned();
        let (state, since_ms, updated_ms) = (LockState::Active, now.wall_ms, now.wall_ms);
        tx.put_lock(LockRow { state, since_ms, updated_ms, message, percentage: 0, ..lock });
    }
}

/// After `recover`: an operator has reviewed a machine about which this copy knows too little, and it is in service.
/// Its part in a known update ends, and so does its removal. Its missing items are for the next update.
pub(super) fn settle(
    tx: &mut Transaction<'_>,
    actor: &str,
    row: &MachineRow,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let (name, cluster) = (&row.name, &row.spec.cluster_name);
    if row.revoked || row.departs() {
        let message = format!(
            "{name} is revoked, or leaves the swarm for good, and does not come back into service; \
             `musterctl describe machine {name}` says what it waits for"
        );
        return Err(refusal("Revoked", message));
    }
    does_nothing(tx, &MachineView::of(tx, row, limits, now), now)?;
    if let Some(row) = tx.machine_mut(name) {
        row.needs_review = false;
        row.slot = None;
        row.owed_cordon = row.cordon_left_behind();
        row.update = None;
        row.removal = None;
        row.max_phase = at_rest_phase(row);
    }
    has_its_own_items(tx, name, row.update.as_ref(), BTreeSet::new());
    let mut line = format!(
        "machine {name}: is in service; apply the newest manifest, then `musterctl update {cluster}` brings about what \
         it lacks"
    );
    if row.removal.is_some() {
        line.push_str(&format!("; it stays, unless you say `musterctl remove {name}` again"));
    }
    tx.audit(actor, "maintenance-leave", AuditObject::Machine(name), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Is it idle, and will it stay so, by all that its agent reported since the start?
fn does_nothing(tx: &Transaction<'_>, view: &MachineView<'_>, now: Now) -> Result<(), Refusal> {
    let name = &view.row.name;
    if !view.connected() {
        let message = format!(
            "{name} is not connected, and nobody knows what runs there; say it again when it is, or `musterctl revoke \
             {name}` if the machine is gone"
        );
        return Err(refusal("Disconnected", message));
    }
    let live = view.live;
    let waits = view.waits_for_inputs() || live.is_some_and(|live| live.wants_permit);
    if let Some(running) = recovery::running(view) {
        let message = format!(
            "item {} still runs on {name}; say it again when it has ended (`musterctl describe machine {name}`), or \
             `musterctl revoke {name}` if the machine is gone",
            running.name
        );
        return Err(refusal("ItemRunning", message));
    }
    if let Some(Blocked { message, clears_when, .. }) = blocked::silent(view) {
        return Err(refusal("NotHeard", format!("{name}: {message}; first {clears_when}")));
    }
    if let Some((reason, message)) = live.and_then(|live| live.agent_blocked.as_ref()).filter(|_| !waits) {
        let message = format!("{name} begins its next item when this has passed: {reason}: {message}");
        return Err(refusal("ItemRunning", message));
    }
    let permits_end_mono_ms = tx.live.started_mono_ms.saturating_add(assign::PERMIT_MS);
    let busy = live.and_then(|live| live.busy_mono_ms).filter(|_| !waits);
    let busy_until_mono_ms = busy.map_or(0, |at_mono_ms| at_mono_ms.saturating_add(NEXT_ITEM_MS));
    let left_ms = permits_end_mono_ms.max(busy_until_mono_ms).saturating_sub(now.mono_ms);
    if left_ms > 0 {
        let left_s = left_ms.div_ceil(1_000);
        let message = format!(
            "{name} may still have leave to start an item, from before the store was recovered, or try one again; say \
             it again in {left_s} s"
        );
        return Err(refusal("ItemRunning", message));
    }
    Ok(())
}
