//! What is observed for the invariants of the handshake: who has consented in truth, and which requests and annotations
//! are there.

use std::collections::BTreeMap;

use muster_coordinator::facts::{
    MachineRow,
    handshake::{NODE_ANNOTATIONS, OldRequest, RequestObject, Subject},
};

use super::{super::cluster::Node, Call, Handshake};
use crate::{invariants::Violation, sim::World};

/// Maximum age of what the coordinator relies on when it decides: a list, and the question that brought it.
const SEEN_AGO_MS: u64 = 21_000;
/// The same of a control machine without whose API server nothing can be listed.
const ALONE_AGO_MS: u64 = 3_600_000;

/// Observations.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// When everybody consented last, by the UID of the request.
    consented: BTreeMap<String, u64>,
    /// UID of the newest request of ours about a node.
    newest: BTreeMap<String, String>,
}

impl Handshake {
    /// Notes who consents now.
    pub(super) fn note_consents(&mut self, at: u64) {
        let ours = World::requested_by();
        for request in self.requests.iter().map(|request| &request.object) {
            let Subject::Node(node) = &request.subject else { continue };
            if request.requested_by.as_ref() != Some(&ours) || request.deleting {
                continue;
            }
            self.seen.newest.insert(node.clone(), request.uid.clone());
            if self.objector(request).is_none() {
                self.seen.consented.insert(request.uid.clone(), at);
            }
        }
    }

    /// A controller that does not consent to this request.
    fn objector(&self, request: &RequestObject) -> Option<&str> {
        let objects = |of: &&super::Controller| !self.consents(of, &request.subject, &request.uid);
        self.controllers.iter().find(objects).map(|of| of.name.as_str())
    }

    /// What makes it wrong to disturb the machine of this node.
    fn objection(&self, node: &str, ago_ms: u64, at: u64) -> Option<String> {
        let Some(uid) = self.seen.newest.get(node) else {
            return Some(format!("no request about {node} was ever there"));
        };
        let last = self.seen.consented.get(uid).copied();
        if last.is_some_and(|last| last + ago_ms >= at) {
            return None;
        }
        let open = self.requests.iter().find(|request| request.object.uid == *uid);
        let who = open.and_then(|request| self.objector(&request.object)).unwrap_or("nobody any more");
        Some(format!("everybody consented to request {uid} about {node} last at {last:?}; {who} objects"))
    }
}

impl World {
    /// Notes who consents now.
    pub(in crate::sim) fn note_consents(&mut self) {
        let at = self.at;
        if let Some((handshake, _)) = self.handshake() {
            handshake.note_consents(at);
        }
    }

    /// A machine may be disturbed, or goes out of service: everybody in the cluster has consented.
    pub(in crate::sim) fn everybody_consents(&self, row: &MachineRow, node: &Node) -> Result<(), Violation> {
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        let Some(handshake) = &kubernetes.handshake else { return Ok(()) };
        let trouble = &kubernetes.trouble;
        let silent = [trouble.down_until, trouble.unauthorized_until, trouble.forbidden_until, node.api_down_until];
        let alone = !node.ready || silent.into_iter().any(|until| until + SEEN_AGO_MS > self.at);
        let ago_ms = if alone { ALONE_AGO_MS } else { SEEN_AGO_MS };
        match handshake.objection(&node.name, ago_ms, self.at) {
            Some(why) => Err(self.watcher.not_everybody_consents(&row.name, &why)),
            None => Ok(()),
        }
    }

    /// A request is about to be removed: the record has none open for which it stands.
    pub(super) fn removal_of_request_is_right(&self, call: &Call, old: &OldRequest) -> Result<(), Violation> {
        let Some(facts) = self.facts().filter(|facts| facts.meta.epoch == call.epoch) else { return Ok(()) };
        let stands = |row: &MachineRow| {
            let mine = row.update.as_ref().filter(|mine| mine.request.is_some() && !row.has_left_kubernetes());
            mine.and_then(|mine| mine.standing.as_ref()).is_some_and(|standing| standing.uid == old.uid)
        };
        match facts.machines.values().find(|row| stands(row)) {
            Some(row) => Err(self.watcher.request_goes_early(&row.name, &old.uid)),
            None => Ok(()),
        }
    }

    /// A request was removed.
    pub(super) fn removed_request_was_ours(&self, was: &RequestObject) -> Result<(), Violation> {
        if was.requested_by == Some(Self::requested_by()) {
            return Ok(());
        }
        Err(self.watcher.removes_foreign_request(&was.uid))
    }

    /// At the end nothing of Muster's is left in the cluster.
    pub(in crate::sim) fn handshake_is_over(&mut self) -> Result<(), Violation> {
        self.advance_kubernetes();
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        let Some(handshake) = &kubernetes.handshake else { return Ok(()) };
        let ours = Self::requested_by();
        let left = handshake.requests.iter().find(|request| request.object.requested_by.as_ref() == Some(&ours));
        if let Some(left) = left {
            return Err(self.watcher.request_is_left(&format!("{:?}", left.object)));
        }
        for node in kubernetes.cluster.nodes.iter().filter(|_| !handshake.forgotten) {
            let Some(known) = handshake.annotations.get(&node.uid) else { continue };
            if known.now != known.wanted || known.now.contains_key(NODE_ANNOTATIONS) {
                let detail = format!("has {:?}, its operators want {:?}", known.now, known.wanted);
                return Err(self.watcher.annotations_are_not_as_they_were(&node.name, &detail));
            }
        }
        Ok(())
    }
}
