//! What the core answers to an input.

use std::sync::Arc;

use muster_proto::model::{ClusterName, MachineId, MachineType};

use crate::{facts::SecretRow, plan::swarm::Entry};

/// The answer to one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing to say.
    Ok,
    /// What was done, a line each.
    Done(Vec<String>),
    /// The machine is let in.
    Enrolled {
        /// Its identity.
        id: MachineId,
        /// Its cluster.
        cluster: ClusterName,
        /// What it is there.
        machine_type: MachineType,
    },
    /// What an item starts with.
    Inputs {
        /// The secrets it refers to.
        secrets: Vec<Arc<SecretRow>>,
        /// How it gets its machine into the swarm, if that is what it does.
        entry: Option<Entry>,
    },
    /// The token is recorded.
    Token {
        /// Unix milliseconds.
        expires_at_ms: u64,
        /// How often it may be used.
        uses: u32,
    },
}

/// Why an input was not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such thing.
    #[error("there is no {kind} {name}{}", nearest.as_ref().map_or(String::new(), |n| format!("; did you mean {n}?")))]
    NotFound {
        /// `machine`.
        kind: &'static str,
        /// As asked for.
        name: String,
        /// The nearest name that exists.
        nearest: Option<String>,
    },
    /// The state of things does not allow it. Reason and what to do.
    #[error("{reason}: {message}")]
    State {
        /// A named reason.
        reason: &'static str,
        /// What is the case, and what to do.
        message: String,
    },
    /// The token is not good for this; the peer is told nothing more, the log has the detail.
    #[error("the join token was refused")]
    Token {
        /// For our own log.
        detail: String,
    },
    /// More than a rate limit allows. The caller may come again later.
    #[error("TooFast: {what}; come again in {} s", again_in_ms.div_ceil(1_000).max(1))]
    TooFast {
        /// Whose limit it is, and how much it allows.
        what: String,
        /// When one more fits, in milliseconds.
        again_in_ms: u64,
    },
    /// A message that breaks the protocol: its stream is to be closed.
    #[error("{code}: {message}")]
    Protocol {
        /// `SequenceGap`.
        code: &'static str,
        /// What was wrong.
        message: String,
    },
}

impl Refusal {
    /// A certificate of ours that names a machine which is not in the record. Told to the agent, whose log has it.
    pub(crate) fn unknown_machine(id: MachineId) -> Self {
        let message = format!(
            "no machine has the identity {id}: its machine was replaced or removed, or enrolled after the copy was \
             made that the coordinator was recovered from. To take it in: `musterctl replace` its name, if `musterctl \
             get machines` shows it; a new token; `muster-agent enroll --force` here"
        );
        Self::Protocol { code: "UnknownMachine", message }
    }
}
