//! The maintenance handshake of a simulated Kubernetes: requests and locks in its API server, annotations of its nodes,
//! and the controllers that answer there. Some worlds with a Kubernetes have it, with random numbers of its own.

mod checks;
mod controllers;
mod people;

use std::collections::BTreeMap;

use muster_coordinator::{
    facts::{
        handshake::{HandshakeObjects, LockObject, NewRequest, NodeAnnotations, OldRequest, RequestObject, Subject},
        kubernetes::{KubernetesFailure, KubernetesNode, KubernetesReply},
    },
    orchestrator::kubernetes::node_annotations,
};
use muster_proto::model::{MaintenanceObjects, ObjectController};

use super::{Call, World, cluster::Cluster};
use crate::{invariants::Violation, rng::Rng};
use controllers::Controller;

/// Permille of the worlds with a Kubernetes that have it.
const WORLDS_PERMILLE: u64 = 400;
/// Mark of the random numbers that decide it, chosen so that the seeds of the rarest seeded bugs are without.
const WORLDS: u64 = 0x1077c;
/// Permille of changes of which only the first half is made, while there are faults.
const HALF_PERMILLE: u64 = 60;
/// Permille of annotations that meet a change of the node, while there are faults.
const NOT_ANNOTATED_PERMILLE: u64 = 100;

/// A request in the cluster.
#[derive(Clone, Debug)]
struct Request {
    object: RequestObject,
    made_at: u64,
}

/// A lock in the cluster.
#[derive(Clone, Debug)]
struct Lock {
    object: LockObject,
    /// UID of the request that it was set inactive for.
    answers: Option<String>,
}

/// Annotations of a node.
#[derive(Clone, Debug, Default)]
struct Annotations {
    now: BTreeMap<String, String>,
    /// When they changed last: a change that was sent before fails.
    changed_at: u64,
    /// As its operators want them.
    wanted: BTreeMap<String, String>,
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct Handshake {
    dice: Rng,
    controllers: Vec<Controller>,
    requests: Vec<Request>,
    locks: Vec<Lock>,
    /// By UID of the node.
    annotations: BTreeMap<String, Annotations>,
    /// Number of the newest UID.
    last: u64,
    /// An older store has replaced the one that knew what Muster put on nodes.
    forgotten: bool,
    seen: checks::Seen,
}

impl Handshake {
    /// The handshake of a world, if it has one.
    pub(super) fn of_world(dice: &Rng) -> Option<Self> {
        let mut own = Rng::new(dice.clone().next() ^ WORLDS);
        own.permille(WORLDS_PERMILLE).then(|| Self {
            controllers: Controller::some(&mut own),
            dice: own,
            requests: Vec::new(),
            locks: Vec::new(),
            annotations: BTreeMap::new(),
            last: 0,
            forgotten: false,
            seen: checks::Seen::default(),
        })
    }

    /// The manifest's section. A controller that holds locks from the start need not be declared.
    pub(super) fn section(&self) -> MaintenanceObjects {
        let declared = self.controllers.iter().filter(|controller| controller.declared);
        let object = |of: &Controller| ObjectController {
            name: of.name.clone(),
            finalizer: of.finalizer(),
            handled_annotation: of.handled_annotation(),
            node_labels: of.label().into_iter().collect(),
        };
        MaintenanceObjects { controllers: declared.map(object).collect() }
    }

    fn uid(&mut self) -> String {
        self.last += 1;
        format!("handshake-{}", self.last)
    }

    /// A node with the labels of the controllers that guard it.
    pub(super) fn label(&self, mut node: KubernetesNode) -> KubernetesNode {
        let guards = self.controllers.iter().filter(|controller| controller.has_label_on(&node.object.name));
        node.labels = guards.filter_map(Controller::label).collect();
        node
    }

    fn objects(&self) -> HandshakeObjects {
        HandshakeObjects {
            requests: self.requests.iter().map(|request| request.object.clone()).collect(),
            locks: self.locks.iter().map(|lock| lock.object.clone()).collect(),
        }
    }

    /// One of its name stays as it is.
    fn create(&mut self, new: &NewRequest, at: u64) {
        let object = RequestObject {
            subject: new.subject.clone(),
            name: new.name.clone(),
            uid: self.uid(),
            requested_by: Some(new.requested_by.clone()),
            mark: Some(new.mark),
            deleting: false,
            finalizers: Vec::new(),
            annotations: Vec::new(),
        };
        if !self.requests.iter().any(|known| is_place(&known.object, &object)) {
            self.requests.push(Request { object, made_at: at });
        }
    }

    /// Deletes what the API server would, and returns it as it was. Without a UID it is whatever has the name.
    fn delete(&mut self, old: &OldRequest) -> Option<RequestObject> {
        let is_it = |known: &RequestObject| {
            same_kind(&known.subject, &old.subject)
                && known.name == old.name
                && (old.uid.is_empty() || known.uid == old.uid)
        };
        let found = self.requests.iter_mut().find(|known| is_it(&known.object))?;
        let was = found.object.clone();
        found.object.deleting = true;
        self.end_requests();
        Some(was)
    }

    /// Requests that are being deleted and that nobody holds are gone.
    fn end_requests(&mut self) {
        self.requests.retain(|request| !request.object.deleting || !request.object.finalizers.is_empty());
    }

    /// Annotates a node as the client does.
    fn annotate(
        &mut self,
        cluster: &Cluster,
        wanted: &NodeAnnotations,
        (asked_at, at): (u64, u64),
    ) -> Result<(), KubernetesFailure> {
        let Some(node) = cluster.nodes.iter().find(|node| node.name == wanted.node) else {
            let gone = KubernetesFailure::NotFound(format!("nodes {:?} not found", wanted.node));
            return if wanted.values.is_empty() { Ok(()) } else { Err(gone) };
        };
        let known = self.annotations.entry(node.uid.clone()).or_default();
        if known.changed_at > asked_at {
            return Err(KubernetesFailure::Conflict("the object has been modified".to_owned()));
        }
        let changes = node_annotations::changes(&known.now, &wanted.values);
        // Where nothing is to be taken back the node is changed all the same.
        if !changes.is_empty() || wanted.values.is_empty() {
            known.changed_at = at;
        }
        for (name, value) in changes {
            match value.as_str() {
                Some(value) => known.now.insert(name, value.to_owned()),
                None => known.now.remove(&name),
            };
        }
        Ok(())
    }
}

/// Are both of one kind?
const fn same_kind(one: &Subject, other: &Subject) -> bool {
    matches!(
        (one, other),
        (Subject::Cluster, Subject::Cluster)
            | (Subject::Node(_), Subject::Node(_))
            | (Subject::Deletion(_), Subject::Deletion(_))
    )
}

/// Has the API server room for only one of them?
fn is_place(one: &RequestObject, other: &RequestObject) -> bool {
    one.name == other.name && same_kind(&one.subject, &other.subject)
}

impl World {
    /// The handshake, if the world has one.
    fn handshake(&mut self) -> Option<(&mut Handshake, &mut Cluster)> {
        let kubernetes = self.kubernetes.as_mut()?;
        Some((kubernetes.handshake.as_mut()?, &mut kubernetes.cluster))
    }

    /// A list of requests and locks.
    pub(super) fn list_handshake(&mut self) -> KubernetesReply {
        let cluster_uid = self.kubernetes.as_ref().map(|kubernetes| kubernetes.uid.clone()).unwrap_or_default();
        let objects = self.handshake().map(|(handshake, _)| handshake.objects()).unwrap_or_default();
        KubernetesReply::Handshake { cluster_uid, objects }
    }

    /// Requests are made and removed, and nodes annotated.
    pub(super) fn change_handshake(
        &mut self,
        call: &Call,
        (make, remove, annotate): (&[NewRequest], &[OldRequest], &[NodeAnnotations]),
    ) -> Result<KubernetesReply, Violation> {
        let (chaos, at) = (self.chaos, self.at);
        let Some((handshake, _)) = self.handshake() else { return Ok(KubernetesReply::Done) };
        let cut = chaos && handshake.dice.permille(HALF_PERMILLE);
        let part = |count: usize| if cut { count / 2 } else { count };
        for new in make.iter().take(part(make.len())) {
            if let Some((handshake, _)) = self.handshake() {
                handshake.create(new, at);
            }
            self.count(if call.is_late { "a request in Kubernetes came late" } else { "a request was made there" });
        }
        for old in remove.iter().take(part(remove.len())) {
            self.remove_request(call, old)?;
        }
        let mut not_annotated = Vec::new();
        for wanted in annotate {
            self.count("a node was annotated for controllers");
            let Some((handshake, cluster)) = self.handshake() else { continue };
            let meets = chaos && handshake.dice.permille(NOT_ANNOTATED_PERMILLE);
            let conflict = || KubernetesFailure::Conflict("the object has been modified".to_owned());
            let done = if meets { Err(conflict()) } else { handshake.annotate(cluster, wanted, (call.asked_at, at)) };
            not_annotated.extend(done.err().map(|failure| (wanted.node.clone(), failure)));
        }
        self.note_consents();
        let failure = cut.then(|| KubernetesFailure::Unreachable("connection closed".to_owned()));
        Ok(KubernetesReply::Changed { failure, not_annotated })
    }

    fn remove_request(&mut self, call: &Call, old: &OldRequest) -> Result<(), Violation> {
        self.remade_before_removal(old);
        self.removal_of_request_is_right(call, old)?;
        let Some((handshake, _)) = self.handshake() else { return Ok(()) };
        let Some(was) = handshake.delete(old) else { return Ok(()) };
        self.count("a request was removed there");
        self.removed_request_was_ours(&was)
    }
}
