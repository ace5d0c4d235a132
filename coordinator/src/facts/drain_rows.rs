//! Stored rows of a machine's drains.

use std::collections::BTreeMap;

use muster_proto::model::{SwarmAvailability, SwarmId};
use serde::{Deserialize, Serialize};

/// What drains machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DrainKind {
    /// Docker Swarm.
    Swarm,
}

/// The drains of a machine in an update, by orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drains {
    /// That of its Swarm node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarm: Option<DrainRow<SwarmTarget>>,
    /// Number of drains begun in this update, by orchestrator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub begun: BTreeMap<DrainKind, u32>,
}

impl Drains {
    /// Has this orchestrator begun, without having restored the node since?
    #[must_use]
    pub const fn has_begun(&self, kind: DrainKind) -> bool {
        match kind {
            DrainKind::Swarm => self.swarm.is_some(),
        }
    }

    /// Has one of them begun, without having restored the node since?
    #[must_use]
    pub const fn any_begun(&self) -> bool {
        self.swarm.is_some()
    }
}

/// A drain, from its beginning until the node's state is restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRow<T> {
    /// Start in Unix milliseconds.
    pub since_ms: u64,
    /// The drained node. Recorded before anything of it is changed.
    pub target: T,
}

/// A machine's node in the Swarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwarmTarget {
    /// The machine is still to be asked.
    Unknown,
    /// Its engine is outside every swarm, so it has no tasks of services.
    Absent,
    /// A node.
    Node {
        /// Its id, from its own engine and the managers.
        id: SwarmId,
        /// The availability that it gets back: the last one set by others.
        was: SwarmAvailability,
    },
}
