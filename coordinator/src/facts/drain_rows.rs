//! Stored rows of a machine's drains.

use std::collections::BTreeMap;

use muster_proto::model::{SwarmAvailability, SwarmId};
use serde::{Deserialize, Serialize};

use super::kubernetes::PodRef;

/// What drains machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DrainKind {
    /// Kubernetes.
    Kubernetes,
    /// Docker Swarm.
    Swarm,
}

/// The drains of a machine in an update, by orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drains {
    /// That of its Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<DrainRow<KubernetesTarget>>,
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
            DrainKind::Kubernetes => self.kubernetes.is_some(),
            DrainKind::Swarm => self.swarm.is_some(),
        }
    }

    /// Has one of them begun, without having restored the node since?
    #[must_use]
    pub const fn any_begun(&self) -> bool {
        self.kubernetes.is_some() || self.swarm.is_some()
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

/// A machine's node in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KubernetesTarget {
    /// It is still to be identified.
    Unknown,
    /// The machine was never Ready, and the cluster has no node for it.
    Absent,
    /// A node.
    Node {
        /// Its name.
        name: String,
        /// Its UID: a node made anew has another.
        uid: String,
        /// It was unschedulable before, and stays so.
        was_unschedulable: bool,
        /// It was seen unschedulable since the drain began. If it is schedulable after that, an operator did it.
        cordoned: bool,
    },
}

/// A pod that an operator said is to be deleted from the node of a machine in its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedPod {
    /// The pod as it was listed then. A later one of the same name has another UID, and is not meant.
    pub pod: PodRef,
    /// Who said so: `operator/anna`.
    pub by: String,
    /// Time in Unix milliseconds.
    pub since_ms: u64,
}
