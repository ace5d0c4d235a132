//! State of former nodes to restore: part of a machine's row.

use muster_proto::{
    model::{SwarmAvailability, SwarmId, SwarmLabels},
    seeded_bug::seeded_bug,
};
use serde::{Deserialize, Serialize};

use super::{KubernetesTarget, MachineRow, SwarmTarget};

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

/// A Kubernetes node that Muster cordoned for a drain that is over, and has yet to give back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwedCordon {
    /// The node's name.
    pub name: String,
    /// Its UID: a node made anew bears no cordon of Muster's.
    pub uid: String,
    /// No drain in the record explains it: an operator says when it is given back.
    pub needs_review: bool,
}

impl MachineRow {
    /// Records what its nodes get back under its next identity.
    pub fn leave_nodes_behind(&mut self) {
        self.former_node = self.node_left_behind();
        self.owed_cordon = self.cordon_left_behind();
    }

    /// The cordon of its drain, when its part in the update ends before the node is given back. It counts before it is
    /// confirmed: an order without an answer may still be carried out.
    #[must_use]
    pub fn cordon_left_behind(&self) -> Option<OwedCordon> {
        // Seeded bug: forget the cordon of a former identity.
        let mine = self.update.as_ref().filter(|_| !seeded_bug("forget-owed-cordon"));
        match mine.and_then(|mine| mine.drains.kubernetes.as_ref()).map(|drain| &drain.target) {
            Some(KubernetesTarget::Node { name, uid, was_unschedulable: false, .. }) => {
                Some(OwedCordon { name: name.clone(), uid: uid.clone(), needs_review: false })
            }
            Some(KubernetesTarget::Node { .. } | KubernetesTarget::Unknown | KubernetesTarget::Absent) | None => {
                self.owed_cordon.clone()
            }
        }
    }

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
