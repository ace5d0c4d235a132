//! Acceptance of assignments and calls: the fences of epoch and generation, and the hash of every item.

use std::{cmp::Ordering, fmt};

use muster_proto::{
    model::{Assignment, Epoch, SwarmAnswer, SwarmCall, SwarmFailure, SwarmFailureCode},
    seeded_bug::seeded_bug,
};

use crate::core::LedgerState;

/// Refusal of an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason for programs.
    pub code: RefusalCode,
    /// Reason for people.
    pub message: String,
}

/// Named reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The coordinator has been succeeded.
    StaleEpoch,
    /// Older than the accepted one.
    StaleGeneration,
    /// The accepted generation with different content.
    GenerationReused,
    /// An item's content differs from its hash.
    HashMismatch,
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Decision about an assignment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Record it and act upon it.
    Accepted,
    /// It is the accepted one.
    Same,
    /// Refuse it; nothing changes.
    Refused(Refusal),
}

/// Checks an assignment against the ledger.
pub(super) fn verdict(ledger: &LedgerState, new: &Assignment) -> Verdict {
    let refused = |code, message| Verdict::Refused(Refusal { code, message });
    // Seeded bug: obey a coordinator that has been succeeded.
    if new.epoch < ledger.epoch && !seeded_bug("agent-accept-older-epoch") {
        let message = format!("epoch {} is over: this machine has seen {}", new.epoch, ledger.epoch);
        return refused(RefusalCode::StaleEpoch, message);
    }
    let differs = new.items.iter().find(|item| item.hash != item.computed_hash());
    if let Some(item) = differs {
        let message = format!(
            "item {}: its hash is {}, not {}; agent and coordinator must be of versions that hash alike",
            item.name,
            item.computed_hash(),
            item.hash
        );
        return refused(RefusalCode::HashMismatch, message);
    }
    let Some(old) = &ledger.assignment else { return Verdict::Accepted };
    match new.generation.cmp(&old.generation) {
        Ordering::Greater => Verdict::Accepted,
        // Seeded bug: an assignment that was overtaken in transit replaces its successor.
        Ordering::Less if seeded_bug("agent-accept-older-generation") => Verdict::Accepted,
        Ordering::Less => {
            let message = format!("generation {} is over: {} was accepted", new.generation, old.generation);
            refused(RefusalCode::StaleGeneration, message)
        }
        Ordering::Equal if same_content(old, new) => Verdict::Same,
        // Seeded bug: the content of a generation may change.
        Ordering::Equal if seeded_bug("agent-accept-reused-generation") => Verdict::Accepted,
        Ordering::Equal => {
            let message = format!("generation {} was accepted with other content", new.generation);
            refused(RefusalCode::GenerationReused, message)
        }
    }
}

/// Refusal of a call from a coordinator that has been succeeded.
pub(super) fn refused_call(ledger: &LedgerState, call: &SwarmCall) -> Option<SwarmAnswer> {
    // Seeded bug: change the swarm for a coordinator that has been succeeded.
    let message = over(ledger, call.epoch).filter(|_| !seeded_bug("agent-answer-older-epoch"))?;
    let failure = SwarmFailure { code: SwarmFailureCode::StaleEpoch, message };
    Some(SwarmAnswer { id: call.id, result: Err(failure) })
}

/// Why a coordinator of this epoch is answered no more. None: it has no successor that this machine knows.
pub(super) fn over(ledger: &LedgerState, epoch: Epoch) -> Option<String> {
    let message = || format!("epoch {epoch} is over: this machine has seen {}", ledger.epoch);
    (epoch < ledger.epoch).then(message)
}

fn same_content(old: &Assignment, new: &Assignment) -> bool {
    old.cluster == new.cluster && old.items == new.items && old.variables == new.variables
}
