//! Machines that leave a simulated Kubernetes for good: what becomes of their nodes, and what is checked about it. A
//! row is forgotten only when its node is gone, and no other node is deleted.

use std::collections::BTreeMap;

use muster_coordinator::facts::{
    DepartingObject, Facts,
    kubernetes::{KubernetesFailure, KubernetesReply},
};
use muster_proto::model::{MachineName, RemovalPolicy};

use super::{Call, World, cluster::Cluster};
use crate::invariants::Violation;

/// Permille of deletions of a node that a finalizer delays while there are faults. Most nodes would go at once.
const HELD_PERMILLE: u64 = 500;
/// Longest time for which it does.
const HELD_MS: u64 = 90_000;
/// Permille of deletions right before which the node is made anew, while there are faults.
const MADE_ANEW_PERMILLE: u64 = 150;

/// Machines that leave, and the recorded UIDs of their nodes.
pub(super) type Leaving = BTreeMap<MachineName, String>;

/// The UID that the record has of a departing machine's node.
fn recorded<'a>(facts: &'a Facts, machine: &MachineName) -> Option<&'a str> {
    match facts.machines.get(machine)?.departing_object()? {
        DepartingObject::Node { uid, .. } => Some(uid),
        DepartingObject::Unknown | DepartingObject::Gone => None,
    }
}

/// Machines whose nodes have to be gone before they are. One that is removed by force may leave its node behind.
pub(super) fn leaving(facts: &Facts) -> Leaving {
    let rows = facts.machines.values();
    let bound = rows.filter(|row| row.removal.as_ref().is_some_and(|row| row.policy != RemovalPolicy::Forced));
    bound.filter_map(|row| Some((row.name.clone(), recorded(facts, &row.name)?.to_owned()))).collect()
}

impl Cluster {
    /// Nodes whose finalizers have gone since they were deleted are gone.
    pub(super) fn end_nodes(&mut self) {
        let ended = |held_until: u64| held_until <= self.at;
        let gone = self.nodes.iter().filter(|node| node.held_until.is_some_and(ended));
        for uid in gone.map(|node| node.uid.clone()).collect::<Vec<_>>() {
            self.delete_node(&uid);
        }
    }

    /// Somebody deletes the node of this name, and its kubelet registers another.
    fn make_node_anew(&mut self, name: &str) {
        let Some(node) = self.nodes.iter().find(|node| node.name == name).cloned() else { return };
        let is_control = self
            .pods
            .iter()
            .any(|pod| pod.node.as_deref() == Some(node.uid.as_str()) && pod.owner == super::cluster::Owner::Mirror);
        self.delete_node(&node.uid);
        self.register(node.index, &node.name, node.boot_id, node.addresses, is_control);
    }
}

impl World {
    /// The deletion of a node reaches the API server.
    pub(super) fn delete_node(
        &mut self,
        call: &Call,
        (name, uid): (&str, &str),
    ) -> Result<Result<KubernetesReply, KubernetesFailure>, Violation> {
        let (chaos, Some(about)) = (self.chaos, call.about.machine()) else { return Ok(Ok(KubernetesReply::Done)) };
        let meant = self.facts().and_then(|facts| recorded(facts, about)).map(str::to_owned);
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(Ok(KubernetesReply::Done)) };
        if chaos && kubernetes.dice.permille(MADE_ANEW_PERMILLE) {
            kubernetes.cluster.make_node_anew(name);
        }
        let at = kubernetes.cluster.at;
        let held_ms = (chaos && kubernetes.dice.permille(HELD_PERMILLE)).then(|| kubernetes.dice.between(1, HELD_MS));
        // Without a precondition whichever node has the name is deleted.
        let found = |node: &&mut super::Node| node.name == name && (uid.is_empty() || node.uid == uid);
        let Some(node) = kubernetes.cluster.nodes.iter_mut().find(found) else {
            self.count("a node to delete was gone");
            return Ok(Ok(KubernetesReply::Done));
        };
        node.held_until = node.held_until.or(Some(at + held_ms.unwrap_or(0)));
        let (index, found) = (node.index, node.uid.clone());
        if let Some(machine) = self.machines.get(index) {
            // Its kubelet registers no other node: it would have to start anew.
            kubernetes.installed.remove(&machine.id);
        }
        kubernetes.cluster.end_nodes();
        let owner = self.machines.get(index).map(|machine| &machine.name);
        self.watcher.is_own_node(about, owner)?;
        if meant.is_some_and(|meant| meant != found) {
            return Err(self.watcher.deletes_another_node(about, &found));
        }
        self.count(if held_ms.is_some() { "a finalizer held a node" } else { "a node was deleted" });
        Ok(Ok(KubernetesReply::Done))
    }

    /// After every step of the coordinator: a machine that is gone has left no node.
    pub(super) fn nodes_went_first(&mut self) -> Result<(), Violation> {
        let Some(facts) = self.coordinator.as_ref().map(|core| core.facts()) else { return Ok(()) };
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        let gone = kubernetes.seen.leaving.iter().filter(|(name, _)| !facts.machines.contains_key(*name));
        for (name, uid) in gone {
            if kubernetes.cluster.node(uid).is_some() {
                return Err(self.watcher.node_is_left(name, uid));
            }
        }
        kubernetes.seen.leaving = leaving(facts);
        Ok(())
    }
}
