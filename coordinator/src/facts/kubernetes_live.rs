//! Questions to a cluster's Kubernetes API server about a machine's node, and the answers. Known only while the process
//! lives, and asked again after a restart.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Seen,
    kubernetes::{ControlState, Deletion, Eviction, KubernetesFailure, KubernetesNode, KubernetesOp, NodeLoad},
};

/// A question, and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesAsked {
    /// Number of the question and its answer.
    pub number: u64,
    /// The question.
    pub op: KubernetesOp,
    /// Time in monotonic milliseconds.
    pub at_mono_ms: u64,
}

/// An evicted pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictedPod {
    /// Its controller, `Kind/name` in its namespace.
    pub controller: Option<String>,
    /// The budgets that selected it, `namespace/name`.
    pub budgets: Vec<String>,
}

/// A verdict that a machine can never be drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undrainable {
    /// The pod, `namespace/name`.
    pub pod: String,
    /// The pod and what keeps it, in one sentence.
    pub why: String,
    /// Since when every look came to this verdict, in monotonic milliseconds.
    pub since_mono_ms: u64,
}

/// Facts about one machine's node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesObservation {
    /// The open question; one at a time.
    pub asked: Option<KubernetesAsked>,
    /// Nodes that could be the machine's, by name, address or boot id.
    pub nodes: Option<Seen<Vec<KubernetesNode>>>,
    /// What is on the node.
    pub load: Option<Seen<NodeLoad>>,
    /// What the other control machines lack; of a control machine.
    pub control_plane: Option<Seen<Vec<ControlState>>>,
    /// Number of the question that `load` answers.
    pub load_number: u64,
    /// When `load` was answered, in monotonic milliseconds: its pods were listed last.
    pub listed_mono_ms: u64,
    /// Why the last question has no answer. None: it had one.
    pub failure: Option<Seen<KubernetesFailure>>,
    /// Since when questions have had no answer, in monotonic milliseconds.
    pub failing_since_mono_ms: Option<u64>,
    /// Refused evictions by the pod's UID: the last answer to each.
    pub refused: BTreeMap<String, Seen<Eviction>>,
    /// Refused deletions of pods by UID: the last answer to each.
    pub undeleted: BTreeMap<String, Seen<Deletion>>,
    /// Time of the last deletion of a pod, in monotonic milliseconds. The numbers of its budget follow late.
    pub deleted_mono_ms: Option<u64>,
    /// Time of the last order to delete a removed machine's node, in monotonic milliseconds.
    pub node_deleted_mono_ms: Option<u64>,
    /// Pods evicted or deleted in this drain, by UID.
    pub evicted: BTreeMap<String, EvictedPod>,
    /// Number of the last eviction's question. Lists of pods that were asked for earlier prove nothing.
    pub evicted_number: u64,
    /// Time of the last eviction, in monotonic milliseconds.
    pub evicted_at_mono_ms: Option<u64>,
    /// UIDs of the pods that may have been on the node before its cordon.
    pub known: BTreeSet<String>,
    /// Pods that came back to the cordoned node, by controller: their UIDs.
    pub returned: BTreeMap<String, BTreeSet<String>>,
    /// Terminating pods by UID: when that was first seen, in monotonic milliseconds.
    pub terminating: BTreeMap<String, u64>,
    /// Time of the last cordon without an answer, in monotonic milliseconds. It may yet be carried out.
    pub unsettled_mono_ms: Option<u64>,
    /// Unschedulable nodes by UID: since when every look showed them so, in monotonic milliseconds. A list of pods from
    /// before that proves nothing, because a pod may have come after it.
    pub unschedulable: BTreeMap<String, u64>,
    /// Did this process begin the drain, or change the node since? Otherwise an earlier coordinator may have requested
    /// changes.
    pub begun_here: bool,
    /// The verdict of the looks before the machine's turn. None: it can be drained.
    pub undrainable: Option<Undrainable>,
    /// Events that were recorded on the node in this drain, by reason: the message, and the time in monotonic
    /// milliseconds.
    pub told: BTreeMap<&'static str, Seen<String>>,
    /// Start of the wait of something disruptive for the drain, in Unix milliseconds. None: nothing waits.
    pub awaited_since_ms: Option<u64>,
    /// The fewest pods seen on the node since its drain began.
    pub fewest: Option<usize>,
    /// Time when that number fell, in Unix milliseconds.
    pub fewer_at_ms: Option<u64>,
}

impl KubernetesObservation {
    /// Forgets what was seen of the nodes, and the question under way about them: its answer may be from before.
    pub fn forget_nodes(&mut self) {
        self.nodes = None;
        self.asked.take_if(|asked| matches!(asked.op, KubernetesOp::Nodes | KubernetesOp::Node { .. }));
    }
}
