//! The stored removal of a machine, in its row.

use muster_proto::model::{RemovalPolicy, SwarmId};
use serde::{Deserialize, Serialize};

use super::MachineRow;

/// An operator's request to remove a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalRow {
    /// Start in Unix milliseconds.
    pub since_ms: u64,
    /// Its place in the common order of requests and lock changes.
    #[serde(default = "later_than_any")]
    pub revision: u64,
    /// The policy.
    pub policy: RemovalPolicy,
    /// It goes out of service first, by the rules of updates.
    pub by_turn: bool,
    /// Skip the majority check: the control plane may be down for it.
    #[serde(default)]
    pub accept_control_plane_downtime: bool,
    /// It was out of service when its removal began: an abort leaves it there.
    pub from_maintenance: bool,
    /// An operator wants it back: give back what it holds.
    pub aborting: bool,
    /// Its departure from the swarm and from Kubernetes. Once begun, this is irreversible.
    pub departure: Option<Departure>,
}

/// Default for rows without a revision: their controllers must still see the request.
const fn later_than_any() -> u64 {
    u64::MAX
}

/// A machine's departure: first from the swarm, then from Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// Start in Unix milliseconds.
    pub since_ms: u64,
    /// The departing node of the swarm.
    pub node: DepartingNode,
    /// The departing node of Kubernetes.
    #[serde(default)]
    pub object: DepartingObject,
    /// Since when that has been so, in Unix milliseconds. Of an unknown one: since the machine is out of the swarm.
    #[serde(default)]
    pub object_since_ms: u64,
}

/// A removed machine's node in the swarm. Recorded before anything of it is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DepartingNode {
    /// Its engine is still to be asked.
    Unknown,
    /// It is in no known swarm, or in none any more.
    Absent,
    /// This node.
    Node(SwarmId),
}

/// A removed machine's Node object in Kubernetes. Recorded before it is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DepartingObject {
    /// The API server is still to be asked.
    #[default]
    Unknown,
    /// This one, proven to be the machine's.
    Node {
        /// Its name.
        name: String,
        /// Its UID: a node made anew under this name is not meant.
        uid: String,
    },
    /// There is none, or it is gone.
    Gone,
}

impl MachineRow {
    /// Its departing node of Kubernetes. None: it does not depart.
    #[must_use]
    pub fn departing_object(&self) -> Option<&DepartingObject> {
        Some(&self.removal.as_ref()?.departure.as_ref()?.object)
    }

    /// Has it left Kubernetes for good?
    #[must_use]
    pub fn has_left_kubernetes(&self) -> bool {
        self.departing_object() == Some(&DepartingObject::Gone)
    }

    /// Is it being removed permanently, and the removal still wanted?
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removal.as_ref().is_some_and(|removal| !removal.aborting)
    }

    /// Has its permanent departure from the swarm begun?
    #[must_use]
    pub fn departs(&self) -> bool {
        self.removal.as_ref().is_some_and(|removal| removal.departure.is_some())
    }
}
