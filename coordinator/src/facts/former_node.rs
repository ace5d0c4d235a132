//! The swarm node of a machine's former identity: part of its row.

use muster_proto::model::{SwarmAvailability, SwarmId, SwarmLabels};
use serde::{Deserialize, Serialize};

use super::{MachineRow, SwarmTarget};

/// State of the former node that the machine's node gets back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerNode {
    /// The former node.
    pub id: SwarmId,
    /// The availability set by its operator, if a Muster drain changed it or its entry was removed.
    pub availability: Option<SwarmAvailability>,
    /// Labels of a removed entry.
    #[serde(default)]
    pub labels: SwarmLabels,
}

impl MachineRow {
    /// Facts about its current node, for its next identity. None: it is in no known swarm.
    #[must_use]
    pub fn node_left_behind(&self) -> Option<FormerNode> {
        let drained = match self.update.as_ref().and_then(|mine| mine.drains.swarm.as_ref()).map(|drain| &drain.target)
        {
            Some(SwarmTarget::Node { id, was }) if *was != SwarmAvailability::Drain => Some((id, *was)),
            Some(SwarmTarget::Node { .. } | SwarmTarget::Unknown | SwarmTarget::Absent) | None => None,
        };
        let joined = self.swarm.as_ref().map(|member| &member.node_id);
        // An identity that never joined the swarm passes on what it inherited.
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
