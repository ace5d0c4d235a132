//! The removal of a machine, as it is stored in its row.

use muster_proto::model::{RemovalPolicy, SwarmId};
use serde::{Deserialize, Serialize};

use super::MachineRow;

/// An operator wants a machine to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalRow {
    /// Unix milliseconds.
    pub since_ms: u64,
    /// Its place in the order in which requests are made and locks change.
    #[serde(default = "later_than_any")]
    pub revision: u64,
    /// What it waits for.
    pub policy: RemovalPolicy,
    /// It goes out of service first, by the rules of updates.
    pub by_turn: bool,
    /// The control plane may be down for it.
    #[serde(default)]
    pub accept_control_plane_downtime: bool,
    /// It was out of service when its removal began: there an abort leaves it.
    pub from_maintenance: bool,
    /// An operator wants it back: what it holds is given back.
    pub aborting: bool,
    /// How it is taken out of the swarm. From its beginning there is no way back.
    pub departure: Option<Departure>,
}

/// Of one that was stored without: its controllers have to hear of it.
const fn later_than_any() -> u64 {
    u64::MAX
}

/// A machine that is being taken out of the swarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// Unix milliseconds.
    pub since_ms: u64,
    /// What leaves.
    pub node: DepartingNode,
}

/// What a machine that is removed is in the swarm. Recorded before anything of it is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DepartingNode {
    /// Its engine has not been asked yet.
    Unknown,
    /// It is in no swarm, as far as anybody knows.
    Absent,
    /// This node.
    Node(SwarmId),
}

impl MachineRow {
    /// Is it being removed for good, and nobody wants it back?
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removal.as_ref().is_some_and(|removal| !removal.aborting)
    }

    /// Has it begun to leave the swarm, for good?
    #[must_use]
    pub fn departs(&self) -> bool {
        self.removal.as_ref().is_some_and(|removal| removal.departure.is_some())
    }
}
