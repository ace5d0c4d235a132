//! People with kubectl and musterctl at the requests and annotations of a simulated Kubernetes.

use std::collections::BTreeMap;

use muster_coordinator::{
    core::Request as Command,
    facts::handshake::{OldRequest, RequestObject, Subject},
};
use muster_proto::model::{MIGRATION_MODE, MachineName};

use super::{Handshake, Request, is_place};
use crate::{
    invariants::Violation,
    sim::{World, manifest},
};

/// Permille of removals right before which somebody has put another request in the place of ours.
const REMADE_PERMILLE: u64 = 150;

impl Handshake {
    /// Somebody makes a request with this name, about this node.
    fn make_foreign(&mut self, name: &str, node: &str, at: u64) -> bool {
        let object = RequestObject {
            subject: Subject::Node(node.to_owned()),
            name: name.to_owned(),
            uid: self.uid(),
            requested_by: None,
            mark: None,
            deleting: false,
            finalizers: Vec::new(),
            annotations: Vec::new(),
        };
        let is_free = !self.requests.iter().any(|known| is_place(&known.object, &object));
        if is_free {
            self.requests.push(Request { object, made_at: at });
        }
        is_free
    }

    /// Whoever made requests beside Muster's deletes them. False: there were none.
    fn delete_foreign(&mut self) -> bool {
        let mut found = false;
        for request in self.requests.iter_mut().filter(|request| request.object.requested_by.is_none()) {
            found |= !request.object.deleting;
            request.object.deleting = true;
        }
        self.end_requests();
        found
    }
}

impl World {
    /// One of them acts.
    pub(in crate::sim) fn handshake_fault(&mut self) -> Result<(), Violation> {
        let (often, at) = (self.plan.fault_permille, self.at);
        let Some((handshake, cluster)) = self.handshake() else { return Ok(()) };
        if !handshake.dice.permille(often) {
            return Ok(());
        }
        let names: Vec<(String, String)> =
            cluster.nodes.iter().map(|node| (node.name.clone(), node.uid.clone())).collect();
        let Some((node, uid)) = handshake.dice.pick(&names).cloned() else { return Ok(()) };
        let mode = handshake.dice.pick(&["live", "manual", "skip"]).copied().unwrap_or_default();
        let counted = match handshake.dice.between(0, 7) {
            0 | 1 => {
                let other = names.iter().map(|(name, _)| name).find(|name| **name != node);
                let about = other.filter(|_| handshake.dice.permille(300)).unwrap_or(&node);
                if !handshake.make_foreign(&node, about, at) {
                    return Ok(());
                }
                "somebody made a request in Kubernetes"
            }
            2 | 3 if handshake.delete_foreign() => "somebody's request in Kubernetes was deleted",
            4 => {
                let known = handshake.annotations.entry(uid).or_default();
                known.changed_at = at;
                known.now.insert(MIGRATION_MODE.to_owned(), mode.to_owned());
                known.wanted.insert(MIGRATION_MODE.to_owned(), mode.to_owned());
                "an operator annotated a node with kubectl"
            }
            5 | 6 => return self.annotate_with_muster(&node, mode),
            _ => return Ok(()),
        };
        self.count(counted);
        Ok(())
    }

    fn annotate_with_muster(&mut self, node: &str, mode: &str) -> Result<(), Violation> {
        let Ok(machine) = MachineName::new(node) else { return Ok(()) };
        let set = BTreeMap::from([(MIGRATION_MODE.to_owned(), mode.to_owned())]);
        if self.operator(Command::AnnotateMachine { machine, set, remove: Vec::new() })?.is_ok() {
            self.count("a machine was annotated for controllers");
        }
        Ok(())
    }

    /// Somebody puts another request in the place of the one that is about to be removed.
    pub(super) fn remade_before_removal(&mut self, old: &OldRequest) {
        let (chaos, at) = (self.chaos, self.at);
        let Some((handshake, _)) = self.handshake() else { return };
        let Subject::Node(node) = &old.subject else { return };
        if !chaos || !handshake.dice.permille(REMADE_PERMILLE) {
            return;
        }
        let known = handshake.requests.len();
        let ours = Self::requested_by();
        let is_it = |known: &RequestObject| {
            known.name == old.name && known.subject == old.subject && known.requested_by.as_ref() == Some(&ours)
        };
        handshake.requests.retain(|request| !is_it(&request.object));
        if handshake.requests.len() < known {
            handshake.make_foreign(&old.name, node, at);
            self.count("a request was made anew by somebody");
        }
    }

    /// Operators resolve what keeps requests: those of others, labels of controllers that do not know the node. False:
    /// there was nothing to do.
    pub(in crate::sim) fn mend_handshake(&mut self) -> bool {
        let Some((handshake, _)) = self.handshake() else { return false };
        let deleted = handshake.delete_foreign();
        let unlabelled = handshake.unlabel_the_unknown();
        if deleted || unlabelled {
            self.count("operators resolved what kept requests");
        }
        deleted || unlabelled
    }

    /// The store was put back to before what Muster has annotated since.
    pub(in crate::sim) fn annotations_are_forgotten(&mut self) {
        if let Some((handshake, _)) = self.handshake() {
            handshake.forgotten = true;
        }
    }

    /// The name of the cluster, as requests of ours bear it.
    pub(super) fn requested_by() -> String {
        manifest::cluster_name().to_string()
    }
}
