//! Recovery from a damaged ledger: a new one that keeps the readable parts, without guesses.

use std::sync::Arc;

use muster_proto::model::{ItemHash, ItemName, ItemState, ItemStatus, LedgerId, MachineId, Now};

use crate::{
    attempt::record::{Found, Trace},
    core::{LedgerState, Record, Slot, outcome_of},
    ledger::{Disk, LOG, LedgerError, act, line, move_aside, write_whole},
};

/// Result of a reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Path of the old log's copy. None = there was no log.
    pub old_log: Option<std::path::PathBuf>,
    /// Items with a now unknown outcome; a person decides about them.
    pub indeterminate: Vec<ItemName>,
}

/// Starts a new ledger from the valid lines of the old one, which is kept as a copy, and from the `traces` of this
/// machine's attempts. Its event numbers start again.
///
/// # Errors
/// [`LedgerError::File`]; the old ledger is still in place then.
pub fn reset(
    disk: &mut impl Disk,
    (ledger_id, machine_id): (LedgerId, MachineId),
    traces: &[Trace],
    now_ms: u64,
) -> Result<Reset, LedgerError> {
    let old = act(disk, "read", LOG, |disk| disk.read(LOG))?;
    let aside = format!("{LOG}.{now_ms}");
    move_aside(disk, &aside)?;
    let (records, damaged) = line::parse_what_is_sound(old.as_deref().unwrap_or_default());
    let (state, indeterminate) = salvage((&records, damaged), traces, LedgerState::new(ledger_id, machine_id), now_ms);
    write_whole(disk, &state)?;
    Ok(Reset { old_log: old.map(|_| disk.path(&aside)), indeterminate })
}

/// Rebuilds a ledger. An attempt that ran is Indeterminate. If a line was unreadable, so is every assigned item without
/// a recorded success: the line may have held its start. The new ledger [lacks](LedgerState::lacks) none of the
/// attempts.
fn salvage(
    (records, damaged): (&[Record], bool),
    traces: &[Trace],
    fresh: LedgerState,
    now_ms: u64,
) -> (LedgerState, Vec<ItemName>) {
    let mut old = LedgerState::clone(&fresh);
    records.iter().for_each(|record| old.apply(record));
    // From another enrolment: another coordinator assigned its numbers, and its items belong to another machine.
    if old.machine_id != fresh.machine_id {
        return (fresh, Vec::new());
    }
    traces.iter().for_each(|trace| replay(&mut old, trace, now_ms));
    let mut state =
        LedgerState { epoch: old.epoch, epoch_code: old.epoch_code, assignment: old.assignment.clone(), ..fresh };

    let mut uncertain: Vec<ItemStatus> =
        old.slots.values().filter(|slot| slot.is_running()).map(|slot| ItemStatus::clone(&slot.status)).collect();
    let assigned = old.assignment.iter().flat_map(|assignment| &assignment.items);
    for item in assigned.filter(|_| damaged) {
        let slot = old.slots.get(&item.name);
        match slot.map(|slot| &slot.status).filter(|status| status.hash == item.hash) {
            Some(status) if matches!(status.state, ItemState::Succeeded | ItemState::Running) => {}
            Some(status) => uncertain.push(ItemStatus::clone(status)),
            // From a list that was unreadable.
            None if slot.is_some_and(|slot| slot.status.generation > old.generation()) => {}
            None => uncertain.push(ItemStatus {
                name: item.name.clone(),
                hash: item.hash,
                state: ItemState::Running,
                attempt: 1,
                generation: old.generation(),
                message: String::new(),
                output_tail: String::new(),
                result_json: None,
                started_at_ms: now_ms,
                finished_at_ms: None,
            }),
        }
    }
    for slot in old.slots.values() {
        let copy = Slot { seq: state.last_seq, ..slot.clone() };
        state.slots.insert(slot.status.name.clone(), copy);
        let is_uncertain = uncertain.iter().any(|status| status.name == slot.status.name);
        if slot.seq > old.acked && !is_uncertain {
            let seq = state.last_seq.next();
            state.apply(&Record::Finished { seq, status: Arc::clone(&slot.status) });
        }
    }
    for status in &uncertain {
        let seq = state.last_seq.next();
        let status = Arc::new(ItemStatus {
            state: ItemState::Indeterminate,
            message: "its outcome was lost with the ledger, which was reset".to_owned(),
            finished_at_ms: Some(now_ms),
            ..status.clone()
        });
        let slot = Slot { status: Arc::clone(&status), boot_id: String::new(), seq };
        state.slots.insert(status.name.clone(), slot);
        state.apply(&Record::Finished { seq, status });
    }
    (state, uncertain.into_iter().map(|status| status.name).collect())
}

/// Applies what the directory of an attempt proves and the ledger lacks: its start, and its outcome if there is one.
fn replay(old: &mut LedgerState, trace: &Trace, now_ms: u64) {
    let Trace { key, hash, found } = trace;
    let recorded = old.running().filter(|slot| slot.key() == *key).map(|slot| Arc::clone(&slot.status));
    if recorded.is_none() && !old.lacks(key) {
        return;
    }
    let assigned = old.assigned(&key.item).map(|item| item.hash);
    let began = || {
        Arc::new(ItemStatus {
            name: key.item.clone(),
            hash: hash.or(assigned).unwrap_or(ItemHash([0; 32])),
            state: ItemState::Running,
            attempt: key.attempt,
            generation: key.generation,
            message: String::new(),
            output_tail: String::new(),
            result_json: None,
            started_at_ms: now_ms,
            finished_at_ms: None,
        })
    };
    let running = recorded.unwrap_or_else(|| {
        let status = began();
        let (seq, boot_id) = (old.last_seq.next(), String::new());
        old.apply(&Record::Started { seq, boot_id, status: Arc::clone(&status) });
        status
    });
    if let Found::Exited(exit) = found {
        let status = Arc::new(outcome_of(&running, exit.clone(), Now { wall_ms: now_ms, mono_ms: 0 }));
        old.apply(&Record::Finished { seq: old.last_seq.next(), status });
    }
}
