//! DaemonSets with the update strategy `OnDelete`, and what is known of them while the process lives.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Budget, KubernetesFailure, KubernetesNode, Pod, PodRef};
use crate::facts::{KubernetesAsked, Seen};

/// DaemonSets with the update strategy `OnDelete`, their pods, and the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSets {
    /// All nodes of the cluster.
    pub nodes: Vec<KubernetesNode>,
    /// The DaemonSets, by namespace and name.
    pub sets: Vec<DaemonSet>,
    /// The budgets whose selectors match one of their pods, by `namespace/name`.
    pub budgets: BTreeMap<String, Budget>,
}

/// A DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSet {
    /// `namespace/name`.
    pub name: String,
    /// The hash of its newest template. None: its controller has not seen that template yet.
    pub newest: Option<String>,
    /// `status.currentNumberScheduled`.
    pub current: i64,
    /// `status.updatedNumberScheduled`: pods of the newest template.
    pub updated: i64,
    /// Its pods that were bound to a node.
    pub pods: Vec<DaemonPod>,
}

/// A pod of a DaemonSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPod {
    /// The pod.
    pub pod: Pod,
    /// The name of its node.
    pub node: String,
    /// The hash of its template.
    pub hash: String,
    /// Is its condition Ready True?
    pub ready: bool,
}

/// A pod that is evicted so that its DaemonSet makes it anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewedPod {
    /// The old pod. Its successor has another UID.
    pub pod: PodRef,
    /// Its DaemonSet, `namespace/name`.
    pub daemon_set: String,
    /// The hash of the template that its successor has to have.
    pub hash: String,
}

/// What is known of a cluster's DaemonSets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenewalObservation {
    /// The open question; one at a time.
    pub asked: Option<KubernetesAsked>,
    /// The last list.
    pub seen: Option<Seen<DaemonSets>>,
    /// Number of the question that `seen` answers.
    pub number: u64,
    /// When `seen` was answered, in monotonic milliseconds.
    pub listed_mono_ms: u64,
    /// Why the last question has no answer. None: it had one.
    pub failure: Option<Seen<KubernetesFailure>>,
}
