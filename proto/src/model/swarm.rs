use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    Epoch,
    item::{Unknown, words},
};

/// Longest id of a swarm's node. Docker's have 25 letters and digits.
pub const SWARM_ID_BYTES_MAX: usize = 64;
/// Most nodes in one answer: ten times the largest swarm that Docker tests.
pub const SWARM_NODES_MAX: usize = 4_000;
/// Most tasks in one answer; a full node has a few hundred.
pub const SWARM_TASKS_MAX: usize = 2_000;
/// Most services in one answer: as many as tasks.
pub const SWARM_SERVICES_MAX: usize = SWARM_TASKS_MAX;

/// Most labels of one node: MKE gives it about ten, operators a few more.
pub const SWARM_LABELS_MAX: usize = 256;
/// Largest total size of one node's labels, names and values.
pub const SWARM_LABELS_BYTES_MAX: usize = 32 << 10;

/// Labels of a node.
pub type SwarmLabels = BTreeMap<String, String>;

/// Are the labels within the limits for passing them on?
#[must_use]
pub fn are_labels_few(labels: &SwarmLabels) -> bool {
    let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    labels.len() <= SWARM_LABELS_MAX && bytes <= SWARM_LABELS_BYTES_MAX
}

/// Text in another format than Docker's ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id of Docker's has 1 to {SWARM_ID_BYTES_MAX} letters and digits")]
pub struct InvalidSwarmId;

/// Docker's id of a swarm or of a node in it: letters and digits, so it is safe in a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SwarmId(String);

impl SwarmId {
    /// Create an id from its text.
    ///
    /// # Errors
    /// [`InvalidSwarmId`] for any other text.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidSwarmId> {
        let text = text.into();
        let good = (1..=SWARM_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if good { Ok(Self(text)) } else { Err(InvalidSwarmId) }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SwarmId {
    type Error = InvalidSwarmId;
    fn try_from(text: String) -> Result<Self, InvalidSwarmId> {
        Self::new(text)
    }
}

impl From<SwarmId> for String {
    fn from(id: SwarmId) -> Self {
        id.0
    }
}

impl fmt::Display for SwarmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A request to a machine's agent for an operation that only a Swarm manager can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmCall {
    /// Matches the answer to the call.
    pub id: u64,
    /// Epoch of the coordinator that calls.
    pub epoch: Epoch,
    /// The operation.
    pub op: SwarmOp,
}

/// The closed set of operations. Each is idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwarmOp {
    /// The state of the machine's own engine in its swarm. Works on every machine; all other operations need a manager.
    Info,
    /// The join tokens of this swarm.
    Tokens,
    /// Every node, with its availability and its manager's status.
    Nodes,
    /// The tasks of services that run, or are about to run, on a node.
    Tasks {
        /// The node.
        node: SwarmId,
    },
    /// The replicated services with tasks that run, or are about to run, on a node, and the number of their tasks that
    /// run anywhere.
    Services {
        /// The node.
        node: SwarmId,
    },
    /// Make a node accept tasks, or give them away.
    SetAvailability {
        /// The node.
        node: SwarmId,
        /// The availability to set.
        availability: SwarmAvailability,
    },
    /// The labels of a node.
    Labels {
        /// The node.
        node: SwarmId,
    },
    /// Add those of these labels that a node lacks.
    AddLabels {
        /// The node.
        node: SwarmId,
        /// The labels.
        labels: SwarmLabels,
    },
    /// Make a manager a worker.
    Demote {
        /// The node.
        node: SwarmId,
    },
    /// Remove a node from the swarm. It must have this hostname, be a worker, and be down unless `force`.
    Remove {
        /// The node.
        node: SwarmId,
        /// Hostname as the swarm knows it.
        hostname: String,
        /// Its machine is gone for good, though the managers still list it as up.
        force: bool,
    },
    /// Leave the swarm: the machine's own engine, only if it is this node and a worker.
    Leave {
        /// The node it must be.
        node: SwarmId,
    },
}

impl SwarmOp {
    /// Does this reply belong to the operation?
    #[must_use]
    pub const fn is_answered_by(&self, reply: &SwarmReply) -> bool {
        match self {
            Self::Info => matches!(reply, SwarmReply::Info(_)),
            Self::Tokens => matches!(reply, SwarmReply::Tokens(_)),
            Self::Nodes => matches!(reply, SwarmReply::Nodes(_)),
            Self::Tasks { .. } => matches!(reply, SwarmReply::Tasks(_)),
            Self::Services { .. } => matches!(reply, SwarmReply::Services(_)),
            Self::Labels { .. } => matches!(reply, SwarmReply::Labels(_)),
            Self::SetAvailability { .. }
            | Self::AddLabels { .. }
            | Self::Demote { .. }
            | Self::Remove { .. }
            | Self::Leave { .. } => matches!(reply, SwarmReply::Done),
        }
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmAnswer {
    /// Id of the call.
    pub id: u64,
    /// The operation's reply, or the reason of its failure.
    pub result: Result<SwarmReply, SwarmFailure>,
}

/// The reply to a successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwarmReply {
    /// To [`SwarmOp::Info`].
    Info(SwarmInfo),
    /// To [`SwarmOp::Tokens`].
    Tokens(SwarmTokens),
    /// To [`SwarmOp::Nodes`].
    Nodes(Vec<SwarmNode>),
    /// To [`SwarmOp::Tasks`].
    Tasks(Vec<SwarmTask>),
    /// To [`SwarmOp::Services`].
    Services(Vec<SwarmService>),
    /// To [`SwarmOp::Labels`].
    Labels(SwarmLabels),
    /// The state is as requested, now or since before.
    Done,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct SwarmFailure {
    /// Kind of failure.
    pub code: SwarmFailureCode,
    /// One line for people.
    pub message: String,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwarmFailureCode {
    /// The agent has seen a newer coordinator.
    StaleEpoch,
    /// The agent already serves its maximum of concurrent calls.
    Busy,
    /// No answer within the deadline.
    Timeout,
    /// The engine is silent, or answers with an error of its own.
    Engine,
    /// The machine's engine is no manager of a swarm.
    NotManager,
    /// The swarm's managers lack a majority.
    NoQuorum,
    /// The node is unknown to the swarm.
    NoSuchNode,
    /// The node is in another state than the operation requires.
    NotAllowed,
}

impl SwarmFailureCode {
    /// The name operators see.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StaleEpoch => "StaleEpoch",
            Self::Busy => "Busy",
            Self::Timeout => "Timeout",
            Self::Engine => "EngineFailed",
            Self::NotManager => "NotManager",
            Self::NoQuorum => "NoQuorum",
            Self::NoSuchNode => "NoSuchNode",
            Self::NotAllowed => "NotAllowed",
        }
    }

    /// May another manager succeed? Failures that concern the node itself are the same everywhere.
    #[must_use]
    pub const fn another_may_help(self) -> bool {
        match self {
            Self::StaleEpoch | Self::Busy | Self::Timeout | Self::Engine | Self::NotManager | Self::NoQuorum => true,
            Self::NoSuchNode | Self::NotAllowed => false,
        }
    }
}

/// An engine's report of its own place in a swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmInfo {
    /// Membership in a swarm.
    pub state: SwarmLocalState,
    /// Its node, if it is in a swarm.
    pub node: Option<SwarmId>,
    /// Is it a manager?
    pub manager: bool,
    /// The engine's hostname: the name of the node in the swarm.
    pub hostname: String,
    /// The engine's error message.
    pub error: String,
}

/// Membership of an engine in a swarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwarmLocalState {
    /// Outside any swarm.
    Inactive,
    /// Joining a swarm.
    Pending,
    /// In a swarm.
    Active,
    /// In a swarm, with an error.
    Error,
    /// In a swarm, and the unlock key is missing.
    Locked,
}

/// The tokens that join a swarm. They give access to anyone, so they are never stored or shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SwarmTokens {
    /// The swarm they join.
    pub swarm: SwarmId,
    /// Joins as a manager.
    pub manager: String,
    /// Joins as a worker.
    pub worker: String,
}

impl fmt::Debug for SwarmTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwarmTokens").field("swarm", &self.swarm).finish_non_exhaustive()
    }
}

/// A node as its managers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmNode {
    /// Its id.
    pub id: SwarmId,
    /// Its engine's hostname.
    pub hostname: String,
    /// State of the node.
    pub state: SwarmNodeState,
    /// Does it take tasks?
    pub availability: SwarmAvailability,
    /// Manager status. None: a worker.
    pub manager: Option<SwarmManager>,
}

/// A manager as the other managers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmManager {
    /// Is it the leader?
    pub leader: bool,
    /// Can the other managers reach it?
    pub reachable: bool,
    /// `HOST:PORT` for joining.
    pub address: String,
}

words!(
    /// State of a node.
    SwarmNodeState {
        /// Unknown.
        Unknown = "unknown",
        /// Working.
        Ready = "ready",
        /// Unreachable.
        Down = "down",
        /// Its connection broke a moment ago.
        Disconnected = "disconnected",
    }
);

words!(
    /// Whether a node accepts tasks.
    SwarmAvailability {
        /// Accepts tasks.
        Active = "active",
        /// Keeps its tasks, rejects new ones.
        Pause = "pause",
        /// Gives its tasks away.
        Drain = "drain",
    }
);

/// A task of a service on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmTask {
    /// Its id.
    pub id: SwarmId,
    /// The service's name, or its id if the service is gone.
    pub service: String,
    /// Docker's word for its state.
    pub state: String,
}

/// A replicated service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmService {
    /// Its name.
    pub name: String,
    /// Desired number of tasks.
    pub wanted: u32,
    /// Tasks that run and are meant to continue, on any node: a task that is about to stop counts as missing.
    pub running: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_in_a_path() {
        assert!(SwarmId::new("uxv6w0fgi1mvs9vqmmhwrvpde").is_ok());
        for bad in ["", "a/b", "..", "a b", "a?x=1", "é", &"a".repeat(SWARM_ID_BYTES_MAX + 1)] {
            assert_eq!(SwarmId::new(bad), Err(InvalidSwarmId), "{bad}");
        }
    }

    #[test]
    fn tokens_are_not_shown() {
        let swarm = SwarmId::new("abc").expect("an id");
        let tokens = SwarmTokens { swarm, manager: "SWMTKN-1-m".to_owned(), worker: "SWMTKN-1-w".to_owned() };
        let shown = format!("{:?} {:#?}", SwarmReply::Tokens(tokens.clone()), tokens);
        assert!(shown.contains("abc") && !shown.contains("SWMTKN"), "{shown}");
    }
}
