//! DaemonSets with the update strategy `OnDelete`, and what is known of them while the process lives.

use std::collections::BTreeMap;

use muster_proto::model::OnDeleteDaemonSets;
use serde::{Deserialize, Serialize};

use super::{Budget, KubernetesFailure, KubernetesNode, Pod, PodRef};
use crate::facts::{KubernetesAsked, Seen};

/// DaemonSets with the update strategy `OnDelete`, their pods, and the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSets {
    /// The nodes that were asked for.
    pub nodes: Vec<KubernetesNode>,
    /// The DaemonSets, by namespace and name.
    pub sets: Vec<DaemonSet>,
    /// Selectors that no DaemonSet matches.
    pub unmatched: Vec<OnDeleteDaemonSets>,
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
    /// `status.desiredNumberScheduled`: nodes that are to have a pod.
    pub desired: i64,
    /// `status.numberAvailable`: pods that have been Ready for `min_ready_s`.
    pub available: i64,
    /// `spec.minReadySeconds`: how long a pod has to be Ready before it counts as available, in seconds.
    pub min_ready_s: u64,
    /// Nodes with a taint that its newest template does not tolerate, each with that taint: no new pod starts there.
    pub tainted: BTreeMap<String, String>,
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

/// A DaemonSet as an update that renews its pods knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewedSet {
    /// The hash of its newest template, as it was seen last.
    pub newest: String,
    /// Changes of that hash since the renewal began, or since an operator's last command.
    pub changes: u32,
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
    /// UIDs of the pods that are Ready, each with the time since when every list has shown that, in monotonic
    /// milliseconds.
    pub ready: BTreeMap<String, u64>,
    /// Why the last question has no answer. None: it had one.
    pub failure: Option<Seen<KubernetesFailure>>,
}
