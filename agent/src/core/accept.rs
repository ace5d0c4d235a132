//! Which assignments and calls are accepted: the fences of epoch and generation, and the hash of every item.

use std::{cmp::Ordering, fmt};

use muster_proto::{
    model::{Assignment, SwarmAnswer, SwarmCall, SwarmFailure, SwarmFailureCode},
    plant::planted,
};

use crate::core::LedgerState;

/// Why an assignment was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people.
    pub message: String,
}

/// Why an assignment was refused, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// From a coordinator that has been succeeded.
    StaleEpoch,
    /// Older than the accepted one.
    StaleGeneration,
    /// The accepted generation, but with other content.
    GenerationReused,
    /// An item is not what its hash says.
    HashMismatch,
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What becomes of an assignment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To be recorded and acted upon.
    Accepted,
    /// The one accepted already.
    Same,
    /// Nothing changes.
    Refused(Refusal),
}

/// Judges an assignment by what the ledger holds.
pub(super) fn verdict(ledger: &LedgerState, new: &Assignment) -> Verdict {
    let refused = |code, message| Verdict::Refused(Refusal { code, message });
    // Planted: a coordinator that has been succeeded is still obeyed.
    if new.epoch < ledger.epoch && !planted("agent-accept-older-epoch") {
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
        // Planted: an assignment that was overtaken on its way takes its successor's place.
        Ordering::Less if planted("agent-accept-older-generation") => Verdict::Accepted,
        Ordering::Less => {
            let message = format!("generation {} is over: {} was accepted", new.generation, old.generation);
            refused(RefusalCode::StaleGeneration, message)
        }
        Ordering::Equal if same_content(old, new) => Verdict::Same,
        // Planted: the content of a generation may change.
        Ordering::Equal if planted("agent-accept-reused-generation") => Verdict::Accepted,
        Ordering::Equal => {
            let message = format!("generation {} was accepted with other content", new.generation);
            refused(RefusalCode::GenerationReused, message)
        }
    }
}

/// The refusal of a call, if it comes from a coordinator that has been succeeded.
pub(super) fn refused_call(ledger: &LedgerState, call: &SwarmCall) -> Option<SwarmAnswer> {
    // Planted: the swarm is changed for a coordinator that has been succeeded.
    if call.epoch >= ledger.epoch || planted("agent-answer-older-epoch") {
        return None;
    }
    let message = format!("epoch {} is over: this machine has seen {}", call.epoch, ledger.epoch);
    let failure = SwarmFailure { code: SwarmFailureCode::StaleEpoch, message };
    Some(SwarmAnswer { id: call.id, result: Err(failure) })
}

fn same_content(old: &Assignment, new: &Assignment) -> bool {
    old.cluster == new.cluster && old.items == new.items && old.variables == new.variables
}
