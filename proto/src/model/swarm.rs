use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    Epoch,
    item::{Unknown, words},
};

/// Longest id of a swarm's node. Docker's have 25 letters and digits.
pub const SWARM_ID_BYTES_MAX: usize = 64;
/// Most nodes one answer lists: a swarm of that many is ten times the largest that Docker tests.
pub const SWARM_NODES_MAX: usize = 4_000;
/// Most tasks one answer lists; the count of a full node is a few hundred.
pub const SWARM_TASKS_MAX: usize = 2_000;
/// Most services one answer lists: as many as there may be tasks.
pub const SWARM_SERVICES_MAX: usize = SWARM_TASKS_MAX;

/// Most labels of one node: MKE gives it about ten, operators a few more.
pub const SWARM_LABELS_MAX: usize = 256;
/// Most bytes that the labels of one node have together, names and values.
pub const SWARM_LABELS_BYTES_MAX: usize = 32 << 10;

/// Labels of a node.
pub type SwarmLabels = BTreeMap<String, String>;

/// Are these so few that they are passed on?
#[must_use]
pub fn are_labels_few(labels: &SwarmLabels) -> bool {
    let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    labels.len() <= SWARM_LABELS_MAX && bytes <= SWARM_LABELS_BYTES_MAX
}

/// Not an id as Docker gives them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id of Docker's has 1 to {SWARM_ID_BYTES_MAX} letters and digits")]
pub struct InvalidSwarmId;

/// Docker's id of a swarm or of a node in it: letters and digits, so it is safe in a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SwarmId(String);

impl SwarmId {
    /// The id, if it is one.
    ///
    /// # Errors
    /// [`InvalidSwarmId`] if it is not.
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

/// Something only a Swarm manager can do, asked of a machine's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmCall {
    /// Names the answer.
    pub id: u64,
    /// Of the coordinator that asks.
    pub epoch: Epoch,
    /// What is asked.
    pub op: SwarmOp,
}

/// The closed set of what can be asked. Every one is idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwarmOp {
    /// What the machine's own engine says of its swarm. The one that needs no manager.
    Info,
    /// The tokens that join this swarm.
    Tokens,
    /// Every node, with its availability and its manager's status.
    Nodes,
    /// The tasks of services that run, or are about to run, on a node.
    Tasks {
        /// Which node.
        node: SwarmId,
    },
    /// The replicated services with tasks that run, or are about to run, on a node, and how many of their tasks run
    /// anywhere.
    Services {
        /// Which node.
        node: SwarmId,
    },
    /// Make a node take tasks, or give them away.
    SetAvailability {
        /// Which node.
        node: SwarmId,
        /// What it is to be.
        availability: SwarmAvailability,
    },
    /// The labels of a node.
    Labels {
        /// Which node.
        node: SwarmId,
    },
    /// Give a node those of these labels that it has not.
    AddLabels {
        /// Which node.
        node: SwarmId,
        /// The labels.
        labels: SwarmLabels,
    },
    /// Make a manager a worker.
    Demote {
        /// Which node.
        node: SwarmId,
    },
    /// Forget a node: only one that has this hostname and is no manager, and that is down unless `force`.
    Remove {
        /// Which node.
        node: SwarmId,
        /// As the swarm has it.
        hostname: String,
        /// Its machine is gone for good, though the managers have not noticed.
        force: bool,
    },
    /// Leave the swarm: the machine's own engine, and only if it is this node and no manager.
    Leave {
        /// Which node it is to be.
        node: SwarmId,
    },
}

impl SwarmOp {
    /// Is this the reply that belongs to it?
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

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmAnswer {
    /// Of the call.
    pub id: u64,
    /// The reply that belongs to the operation, or why there is none.
    pub result: Result<SwarmReply, SwarmFailure>,
}

/// The reply to a call that was carried out.
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
    /// It is so now, or was so before.
    Done,
}

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct SwarmFailure {
    /// Of which sort.
    pub code: SwarmFailureCode,
    /// One line for people.
    pub message: String,
}

/// The sorts of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwarmFailureCode {
    /// The agent has seen a newer coordinator.
    StaleEpoch,
    /// The agent answers as many calls already as it does at once.
    Busy,
    /// Nothing within the deadline.
    Timeout,
    /// The engine does not answer, or answers with an error of its own.
    Engine,
    /// The machine's engine is no manager of a swarm.
    NotManager,
    /// The swarm's managers have no majority.
    NoQuorum,
    /// The swarm has no such node.
    NoSuchNode,
    /// The node is not in the state that the operation asks for.
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

    /// May another manager do what this one could not? What concerns the node itself is the same everywhere.
    #[must_use]
    pub const fn another_may_help(self) -> bool {
        match self {
            Self::StaleEpoch | Self::Busy | Self::Timeout | Self::Engine | Self::NotManager | Self::NoQuorum => true,
            Self::NoSuchNode | Self::NotAllowed => false,
        }
    }
}

/// What an engine says of its own place in a swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmInfo {
    /// Is it in one?
    pub state: SwarmLocalState,
    /// Its node. None: in no swarm.
    pub node: Option<SwarmId>,
    /// Is it a manager?
    pub manager: bool,
    /// The engine's hostname: what the swarm calls the node.
    pub hostname: String,
    /// What the engine complains of.
    pub error: String,
}

/// Is an engine in a swarm?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwarmLocalState {
    /// In none.
    Inactive,
    /// On its way into one.
    Pending,
    /// In one.
    Active,
    /// In one, and something is wrong.
    Error,
    /// In one, and the unlock key is missing.
    Locked,
}

/// What joins a swarm. Whoever has a token can: it is never stored and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SwarmTokens {
    /// Of the swarm they join.
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
    /// How it is.
    pub state: SwarmNodeState,
    /// Does it take tasks?
    pub availability: SwarmAvailability,
    /// None: a worker.
    pub manager: Option<SwarmManager>,
}

/// A manager as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmManager {
    /// Does it lead?
    pub leader: bool,
    /// Do the others reach it?
    pub reachable: bool,
    /// `HOST:PORT` where it is joined.
    pub address: String,
}

words!(
    /// How a node is.
    SwarmNodeState {
        /// Nobody knows.
        Unknown = "unknown",
        /// At work.
        Ready = "ready",
        /// Not heard of.
        Down = "down",
        /// Its connection broke a moment ago.
        Disconnected = "disconnected",
    }
);

words!(
    /// Does a node take tasks?
    SwarmAvailability {
        /// It does.
        Active = "active",
        /// It keeps those it has.
        Pause = "pause",
        /// It gives away those it has.
        Drain = "drain",
    }
);

/// A task of a service on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmTask {
    /// Its id.
    pub id: SwarmId,
    /// The service's name; its id if it is gone.
    pub service: String,
    /// Docker's word for its state.
    pub state: String,
}

/// A replicated service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmService {
    /// Its name.
    pub name: String,
    /// Tasks it is to have.
    pub wanted: u32,
    /// Tasks of it that run and are to go on running, on whatever node: one that is to stop counts as missing.
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
