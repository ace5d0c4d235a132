//! Selects the next attempt and builds its request.

use std::collections::BTreeMap;

use muster_proto::{
    model::{AssignedItem, ItemHash, ItemName, ItemProgress, ItemStatus, MachineName},
    seeded_bug::seeded_bug,
    variables::{has_secret, replace_all_but_secrets, replace_in_param, replace_late},
};

use crate::{
    attempt::record::{Exit, Request},
    core::{Config, LedgerState, Slot, outcome},
};

/// Wait before the first retry.
pub const BACKOFF_MS_MIN: u64 = 1_000;
/// Longest wait before a retry; jitter comes on top.
pub const BACKOFF_MS_MAX: u64 = 60_000;
/// Jitter: a wait is lengthened by up to 1/4, to spread the retries of a fleet.
const JITTER_PART: u64 = 4;

/// Next action for the assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All is done, or a person must decide about the first unfinished item.
    Nothing,
    /// An attempt is under way.
    Running,
    /// This attempt is due.
    Start {
        /// The item.
        name: ItemName,
        /// Hash of the item.
        hash: ItemHash,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// End of the retry's backoff. 0 = at once.
        not_before_mono_ms: u64,
    },
}

/// Next action. `ended_mono_ms` is the end of the last attempt, as far as this process knows.
pub(super) fn next(ledger: &LedgerState, machine: &MachineName, ended_mono_ms: u64) -> Next {
    // Seeded bug: a new assignment starts its items beside the running one.
    if ledger.running().is_some() && !seeded_bug("agent-two-at-once") {
        return Next::Running;
    }
    let items = ledger.assignment.as_ref().map(|assignment| assignment.items.as_slice()).unwrap_or_default();
    for item in items {
        let status = ledger.slots.get(&item.name).map(|slot| &*slot.status);
        let attempt = match item.standing(status) {
            // Seeded bug: run a succeeded item again.
            ItemProgress::Done if seeded_bug("agent-rerun-done") => status.map_or(1, |status| status.attempt + 1),
            ItemProgress::Done => continue,
            ItemProgress::Running { .. } => return Next::Running,
            ItemProgress::Failed | ItemProgress::Held => return Next::Nothing,
            ItemProgress::Due { attempt } => attempt,
        };
        let backoff_ms = backoff_ms(item, attempt, machine);
        let not_before_mono_ms = if backoff_ms == 0 { 0 } else { ended_mono_ms.saturating_add(backoff_ms) };
        return Next::Start { name: item.name.clone(), hash: item.hash, attempt, not_before_mono_ms };
    }
    Next::Nothing
}

/// Wait before an attempt: 0 before the first, and 0 before one that an operator requested.
fn backoff_ms(item: &AssignedItem, attempt: u32, machine: &MachineName) -> u64 {
    let failed = attempt.saturating_sub(1).saturating_sub(item.cleared_attempts);
    if failed == 0 {
        return 0;
    }
    wait_ms(failed, machine, &item.name)
}

/// Wait after this many failures, at least one. It doubles and has a jitter per machine, to spread the retries of a
/// fleet. The result is deterministic.
pub(super) fn wait_ms(failures: u32, machine: &MachineName, item: &ItemName) -> u64 {
    let wait_ms = BACKOFF_MS_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_MS_MAX);
    // FNV-1a.
    let mut seed: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in machine.as_str().bytes().chain(item.as_str().bytes()).chain(failures.to_le_bytes()) {
        seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    wait_ms + seed % (wait_ms / JITTER_PART)
}

/// Request for the attempt that `status` records as running, or the outcome if this agent is unable to start it.
pub(super) fn request(ledger: &LedgerState, config: &Config, status: &ItemStatus) -> Result<Request, Exit> {
    let (Some(assignment), Some(item)) = (&ledger.assignment, ledger.assigned(&status.name)) else {
        return Err(outcome::never_started());
    };
    if !(config.supports)(&item.runner) {
        return Err(outcome::hopeless(format!(
            "RunnerNotSupported: this agent ({}) has no runner '{}'; if no newer agent has it, take the item out of \
             the manifest, or `musterctl skip` it",
            muster_proto::VERSION,
            item.runner
        )));
    }
    let (mut params, mut secret_params) = (BTreeMap::new(), BTreeMap::new());
    for (name, text) in &item.params {
        let faulty = |error| outcome::hopeless(format!("param {name}: {error}"));
        let values = &assignment.variables;
        if has_secret(name, text) {
            let text = replace_in_param(name, text, |text| replace_all_but_secrets(text, values)).map_err(faulty)?;
            secret_params.insert(name.clone(), text);
        } else {
            let text = replace_in_param(name, text, |text| replace_late(text, values)).map_err(faulty)?;
            params.insert(name.clone(), text);
        }
    }
    Ok(Request {
        key: Slot::key_of(status),
        hash: status.hash,
        machine: config.machine.clone(),
        machine_id: ledger.machine_id,
        cluster: assignment.cluster.clone(),
        runner: item.runner.clone(),
        version: item.version.clone(),
        phase: item.phase,
        params,
        secret_params,
        timeout_ms: item.timeout_ms,
    })
}
