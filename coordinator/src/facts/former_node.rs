//! The node in the swarm that a machine's former identity was: part of its row.

use muster_proto::model::{SwarmAvailability, SwarmId, SwarmLabels};
use serde::{Deserialize, Serialize};

use super::{DrainTarget, MachineRow};

/// What the machine's node gets back of what its former one had, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerNode {
    /// The former node.
    pub id: SwarmId,
    /// The availability that its operator gave it, where a drain of ours has taken it or its entry was removed.
    pub availability: Option<SwarmAvailability>,
    /// Labels of an entry that was removed.
    #[serde(default)]
    pub labels: SwarmLabels,
}

impl MachineRow {
    /// What is known of its node now, for the identity that comes after this one. None: it is in no swarm, as far as is
    /// known.
    #[must_use]
    pub fn node_left_behind(&self) -> Option<FormerNode> {
        let drained = match self.update.as_ref().and_then(|mine| mine.drain.as_ref()).map(|drain| &drain.target) {
            Some(DrainTarget::Node { id, was }) if *was != SwarmAvailability::Drain => Some((id, *was)),
            Some(DrainTarget::Node { .. } | DrainTarget::Unknown | DrainTarget::Absent) | None => None,
        };
        let joined = self.swarm.as_ref().map(|member| &member.node_id);
        // An identity that never came into the swarm passes on what it was left.
        let Some(id) = joined.or(drained.map(|(id, _)| id)) else { return self.former_node.clone() };
        let owed = self.former_node.clone();
        let taken = drained.filter(|(node, _)| *node == id).map(|(_, was)| was);
        Some(FormerNode {
            id: id.clone(),
            availability: taken.or(owed.as_ref().and_then(|owed| owed.availability)),
            labels: owed.map(|owed| owed.labels).unwrap_or_default(),
        })
    }
}
