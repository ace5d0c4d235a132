//! Answers of the core.

use std::sync::Arc;

use muster_proto::model::{ClusterName, MachineId, MachineType};

use crate::{facts::SecretRow, plan::swarm::Entry};

/// The answer to one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success without a result.
    Ok,
    /// What was done, one line each.
    Done(Vec<String>),
    /// The machine is admitted.
    Enrolled {
        /// Its identity.
        id: MachineId,
        /// Its cluster.
        cluster: ClusterName,
        /// Its type.
        machine_type: MachineType,
    },
    /// Inputs of an item.
    Inputs {
        /// The secrets it refers to.
        secrets: Vec<Arc<SecretRow>>,
        /// How the machine enters the swarm, if the item is a swarm-join.
        entry: Option<Entry>,
    },
    /// The token is recorded.
    Token {
        /// Unix milliseconds.
        expires_at_ms: u64,
        /// Number of uses.
        uses: u32,
    },
}

/// Why an input was rejected; the facts are unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The object is unknown.
    #[error("there is no {kind} {name}{}", nearest.as_ref().map_or(String::new(), |n| format!("; did you mean {n}?")))]
    NotFound {
        /// `machine`.
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The nearest name that exists.
        nearest: Option<String>,
    },
    /// The input conflicts with the current state.
    #[error("{reason}: {message}")]
    State {
        /// A named reason.
        reason: &'static str,
        /// The problem and its solution.
        message: String,
    },
    /// The token is invalid for this. The peer learns only that; the log has the detail.
    #[error("the join token was refused")]
    Token {
        /// Detail for the log.
        detail: String,
    },
    /// A rate limit was exceeded. The caller may retry later.
    #[error("TooFast: {what}; come again in {} s", again_in_ms.div_ceil(1_000).max(1))]
    TooFast {
        /// The limit and its owner.
        what: String,
        /// Milliseconds until one more fits.
        again_in_ms: u64,
    },
    /// A protocol violation: close the stream.
    #[error("{code}: {message}")]
    Protocol {
        /// `SequenceGap`.
        code: &'static str,
        /// The problem.
        message: String,
    },
}

impl Refusal {
    /// A valid certificate names a machine that is missing from the record. The agent gets this text and logs it.
    pub(crate) fn unknown_machine(id: MachineId) -> Self {
        let message = format!(
            "no machine has the identity {id}: its machine was replaced or removed, or enrolled after the copy was \
             made that the coordinator was recovered from. To take it in: `musterctl replace` its name, if `musterctl \
             get machines` shows it; a new token; `muster-agent enroll --force` here"
        );
        Self::Protocol { code: "UnknownMachine", message }
    }
}
