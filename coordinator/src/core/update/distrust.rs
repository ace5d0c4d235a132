//! What a recovered copy of the store says of updates is long over: nothing of it is believed.

use muster_proto::model::{LockState, MachineName, Now, RemovalPolicy};

use crate::facts::{Draft, LockKey, LockRow, MachineRow, MachineUpdate, UpdateKind, Wish};

/// The store is a copy that is being recovered. Updates that are open in it have long gone on, or ended: they end here,
/// and whoever had not come to its end then, or was on its way into maintenance or back, is for an operator to look at.
/// Who is out of service stays so. Removals are to be asked for again, unless they cannot be taken back.
pub(in crate::core) fn distrust(draft: &mut Draft<'_>, now: Now) {
    for machine in draft.machines.keys().cloned().collect::<Vec<MachineName>>() {
        let in_doubt = draft.machines.get(&machine).is_some_and(|row| is_on_its_way(draft, row));
        let Some(row) = draft.machine_mut(&machine) else { continue };
        if row.departs() {
            continue;
        }
        row.in_doubt |= in_doubt;
        row.removal = row.removal.take().filter(|removal| removal.policy == RemovalPolicy::Forced);
    }
    let open = draft.rollouts.values().filter(|row| row.finished_at_ms.is_none());
    let takes_out = |kind: UpdateKind| kind.takes_out();
    let updates = open.filter(|row| row.update.as_ref().is_some_and(|update| !takes_out(update.kind)));
    for name in updates.map(|row| row.name.clone()).collect::<Vec<String>>() {
        if let Some(update) = draft.update_mut(&name) {
            update.wish = Wish::Abort;
        }
    }
    forget_locks(draft, now);
}

/// Has it a part in a rollout that has not ended, and is it not simply out of service?
fn is_on_its_way(draft: &Draft<'_>, row: &MachineRow) -> bool {
    let open = row.rollout.as_ref().and_then(|name| draft.rollouts.get(name));
    let open = open.is_some_and(|rollout| rollout.finished_at_ms.is_none());
    open && row.update.as_ref().is_some_and(|mine| !mine.in_maintenance())
}

/// What a controller let go may be at work again, and it says so only when it changes. With whoever stays out of
/// service nothing is done before its operator wants it back.
fn forget_locks(draft: &mut Draft<'_>, now: Now) {
    let out = |name: &MachineName| {
        let part = draft.machines.get(name).and_then(|row| row.update.as_ref());
        part.is_some_and(MachineUpdate::in_maintenance)
    };
    let stays = |lock: &LockRow| lock.state == LockState::Active || lock.key.node.as_ref().is_some_and(out);
    let granted = draft.locks.values().filter(|lock| !stays(lock));
    for key in granted.map(|lock| lock.key.clone()).collect::<Vec<LockKey>>() {
        let Some(lock) = draft.locks.get(&key).map(|lock| (**lock).clone()) else { continue };
        let message = "as far as is known: the store was recovered".to_owned();
        let (state, since_ms, updated_ms) = (LockState::Active, now.wall_ms, now.wall_ms);
        draft.put_lock(LockRow { state, since_ms, updated_ms, message, percentage: 0, ..lock });
    }
}
