//! The maintenance handshake as custom resources of group `lcm.mirantis.com`: requests and locks as they are in a
//! cluster, and what is known of them while the process lives.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{Epoch, LockState, Scope};
use serde::{Deserialize, Serialize};

use super::{KubernetesAsked, Seen, kubernetes::KubernetesFailure};

/// The annotation on a request that Muster made: the cluster's name in Muster.
pub const REQUESTED_BY: &str = "muster/requested-by";

/// The annotation on a request that Muster made, with a [`RequestMark`] as JSON.
pub const REQUEST_MARK: &str = "muster/request";

/// The annotation on a node with the application controllers' annotations that Muster set there, as JSON.
pub const NODE_ANNOTATIONS: &str = "muster/node-annotations";

/// What a request or a lock is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Subject {
    /// The cluster itself.
    Cluster,
    /// The node of this name.
    Node(String),
    /// The end of the node of this name: it leaves the cluster for good.
    Deletion(String),
}

impl Subject {
    /// Name of the node. None: it is the cluster.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Cluster => None,
            Self::Node(node) | Self::Deletion(node) => Some(node),
        }
    }
}

/// Which of Muster's requests an object stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestMark {
    /// Epoch of the coordinator that made it.
    pub epoch: Epoch,
    /// Start of the recorded request, in Unix milliseconds.
    pub since_ms: u64,
    /// Revision of the recorded request.
    pub revision: u64,
    /// Permitted operations.
    pub scope: Scope,
}

impl RequestMark {
    /// Is it about the same recorded request, whichever coordinator made the object?
    #[must_use]
    pub fn is_about_same(&self, other: &Self) -> bool {
        *self == Self { epoch: self.epoch, ..*other }
    }
}

/// A request to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRequest {
    /// What it is about.
    pub subject: Subject,
    /// Name of the object.
    pub name: String,
    /// Permitted operations.
    pub scope: Scope,
    /// Value of [`REQUESTED_BY`].
    pub requested_by: String,
    /// Value of [`REQUEST_MARK`].
    pub mark: RequestMark,
}

/// Annotations for application controllers that a node is to have because of Muster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnnotations {
    /// Name of the node.
    pub node: String,
    /// The annotations. Empty: those that Muster set are taken back.
    pub values: BTreeMap<String, String>,
}

/// A request to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldRequest {
    /// What it is about.
    pub subject: Subject,
    /// Name of the object.
    pub name: String,
    /// Its UID: another object of this name stays.
    pub uid: String,
}

/// A ClusterMaintenanceRequest, NodeMaintenanceRequest or NodeDeletionRequest in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestObject {
    /// What it is about.
    pub subject: Subject,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Value of [`REQUESTED_BY`]. None: Muster did not make it.
    pub requested_by: Option<String>,
    /// Value of [`REQUEST_MARK`]. None: it has none that can be read.
    pub mark: Option<RequestMark>,
    /// Is it being deleted? It is gone when its finalizers are.
    pub deleting: bool,
    /// Its finalizers: whose release its end waits for.
    pub finalizers: Vec<String>,
    /// Names of its annotations.
    pub annotations: Vec<String>,
}

/// A ClusterWorkloadLock or NodeWorkloadLock in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockObject {
    /// What it guards, by its spec.
    pub subject: Subject,
    /// Its name: no more than that.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// `spec.controllerName`.
    pub controller: String,
    /// `spec.nodeDeletionRequestSupported`: its controller answers NodeDeletionRequests.
    pub takes_deletion: bool,
    /// Its state. Without a status it is active.
    pub state: LockState,
    /// `status.errorMessage` on one line, without the time at its beginning: an error, or progress.
    pub message: String,
    /// `status.inactivationProgress.percentage`, from 0 to 100.
    pub percentage: u32,
    /// `status.inactivationProgress.description`, on one line.
    pub description: String,
    /// `status.release`; empty: unknown.
    pub release: String,
}

/// Requests and locks of a cluster. The locks were listed after the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandshakeObjects {
    /// Its requests.
    pub requests: Vec<RequestObject>,
    /// Its locks.
    pub locks: Vec<LockObject>,
}

/// A request object that stands for a recorded request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingRequest {
    /// Its UID.
    pub uid: String,
    /// Time when it was seen first, in Unix milliseconds. Documents show it as the start of a NodeDeletionRequest;
    /// the start of any other is that of the request for which it stands.
    pub since_ms: u64,
    /// A lock that changed earlier does not answer it.
    pub revision: u64,
    /// Controllers of which a lock has vanished while it stands: they may make it anew.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lost: BTreeSet<String>,
}

/// What is known of a cluster's handshake. The locks are recorded in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandshakeObservation {
    /// The open question; one at a time.
    pub asked: Option<KubernetesAsked>,
    /// Its requests.
    pub requests: Option<Seen<Vec<RequestObject>>>,
    /// UID of namespace `kube-system` where they were listed; empty: nowhere yet.
    pub cluster_uid: String,
    /// Requests were changed since that list.
    pub is_outdated: bool,
    /// Why the last question has no answer. None: it had one.
    pub failure: Option<Seen<KubernetesFailure>>,
    /// Why the last change was not made. None: it was.
    pub change_failure: Option<KubernetesFailure>,
    /// Why a node's annotations were not put or taken back at the last try, by the node's name.
    pub annotation_failures: BTreeMap<String, Seen<KubernetesFailure>>,
    /// Time of the last creation, in monotonic milliseconds: while it has no answer it may yet be carried out.
    pub unsettled_mono_ms: Option<u64>,
    /// When a list of this process showed a request first, by its UID, in monotonic milliseconds.
    pub first_seen: BTreeMap<String, u64>,
    /// When a NodeDeletionRequest of ours was seen last, by its node, in monotonic milliseconds.
    pub deletions: BTreeMap<String, u64>,
    /// Since when a request has borne a finalizer, by UID and finalizer, in monotonic milliseconds.
    pub finalizers: BTreeMap<(String, String), u64>,
    /// When a list lacked a lock about this first, by controller, in monotonic milliseconds: of requests that stand,
    /// and of the last moments.
    pub lost: BTreeMap<Subject, BTreeMap<String, u64>>,
}
