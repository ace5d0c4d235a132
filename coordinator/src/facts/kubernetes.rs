//! Questions and orders to a cluster's Kubernetes API server, and its answers.

pub mod addons;
pub mod check;
pub mod daemon_sets;

use core::net::IpAddr;
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use muster_proto::{
    model::{AddonDeployment, ClusterName, EtcdProbe, MachineId, MachineName, OnDeleteDaemonSets},
    seeded_bug::seeded_bug,
};

use addons::{AddonToApply, DeploymentStates};
use daemon_sets::DaemonSets;
use serde::{Deserialize, Serialize};

use super::{
    SecretRow,
    handshake::{HandshakeObjects, NewRequest, NodeAnnotations, OldRequest},
};

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesOp {
    /// The UID of namespace `kube-system`, and all nodes. Answered with [`KubernetesReply::Nodes`].
    Nodes,
    /// The UID of namespace `kube-system`, and this node, if it exists. Answered with [`KubernetesReply::Nodes`].
    Node {
        /// The node's name.
        name: String,
    },
    /// Everything that keeps a node from being drained: its pods, their budgets, its volumes. The list is a quorum read
    /// (without resourceVersion). Answered with [`KubernetesReply::Load`].
    Load {
        /// The node's name.
        node: String,
    },
    /// Set `unschedulable`, [`DRAINED_FOR`] and [`SCALE_DOWN_DISABLED`] in one merge patch, guarded by resourceVersion
    /// and UID. Answered with [`KubernetesReply::Patched`].
    Cordon {
        /// The node as it was seen.
        node: NodeRef,
        /// The annotation's value.
        drained_for: String,
        /// Former value of [`SCALE_DOWN_DISABLED`], for [`SCALE_DOWN_BEFORE`].
        scale_down: ScaleDownBefore,
    },
    /// Remove [`DRAINED_FOR`], and `unschedulable` where that is ours, in one guarded merge patch. Answered with
    /// [`KubernetesReply::Patched`].
    Uncordon {
        /// The node as it was seen.
        node: NodeRef,
        /// Make it schedulable. False: it was unschedulable before, and stays so.
        schedulable: bool,
        /// The value that [`SCALE_DOWN_DISABLED`] gets back. None: it stays as it is.
        scale_down: Option<ScaleDownBefore>,
    },
    /// Evict pods by policy/v1, each with a UID precondition, all at once. Answered with
    /// [`KubernetesReply::Evicted`].
    Evict {
        /// The pods.
        pods: Vec<PodRef>,
    },
    /// Delete a pod with a UID precondition, whatever its budget says, with its own grace period: an operator said so.
    /// Answered with [`KubernetesReply::Deleted`].
    Delete {
        /// The pod.
        pod: PodRef,
    },
    /// Delete a node with a UID precondition: its machine leaves for good. One that is gone, or was made anew, is no
    /// failure. Answered with [`KubernetesReply::Done`].
    DeleteNode {
        /// The node's name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Nodes, API servers and etcd members of control machines: `/readyz` at each address, with the kubeconfig's port,
    /// CA and TLS server name; and the health of etcd, asked by each machine's own agent. Answered with
    /// [`KubernetesReply::ControlPlane`].
    ControlPlane {
        /// The control machines.
        servers: Vec<ControlServer>,
    },
    /// List the requests and locks of group `lcm.mirantis.com`. Answered with [`KubernetesReply::Handshake`].
    Handshake {
        /// First create the definitions that the API server lacks, and never change one that it has.
        define: bool,
    },
    /// Create and delete requests, and annotate nodes, all at once. One that exists, or is gone, is no failure.
    /// Answered with [`KubernetesReply::Changed`].
    Requests {
        /// UID of namespace `kube-system`: nothing is changed in another cluster.
        cluster_uid: String,
        /// Requests to create.
        make: Vec<NewRequest>,
        /// Requests to delete, each with a UID precondition.
        remove: Vec<OldRequest>,
        /// Nodes whose annotations for application controllers change.
        annotate: Vec<NodeAnnotations>,
    },
    /// List DaemonSets with the update strategy `OnDelete`, their newest templates, their pods, and nodes. Answered
    /// with [`KubernetesReply::DaemonSets`].
    DaemonSets {
        /// Which.
        wanted: Vec<OnDeleteDaemonSets>,
        /// The only node that is asked for, if it exists. None: all nodes.
        node: Option<String>,
    },
    /// Look at these Deployments. Answered with [`KubernetesReply::Addons`].
    Addons {
        /// Which.
        deployments: Vec<AddonDeployment>,
    },
    /// Apply every object of an add-on's manifest (server-side, field manager `muster`). What is applied already stays.
    /// Answered with [`KubernetesReply::Applied`].
    Apply {
        /// UID of namespace `kube-system`: nothing is applied in another cluster.
        cluster_uid: String,
        /// The add-on.
        addon: Box<AddonToApply>,
    },
    /// Record an Event on a node, best effort. Answered with [`KubernetesReply::Done`].
    Event {
        /// The node it is about.
        node: NodeRef,
        /// CamelCase, such as `Cordoned`.
        reason: &'static str,
        /// One sentence.
        message: String,
        /// Is it of type `Warning`?
        warning: bool,
    },
}

/// How a cluster's API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesAccess {
    /// The kubeconfig is the value of this secret.
    Secret(Arc<SecretRow>),
    /// It is a file on the control machines.
    AdminConf(Arc<AdminConfFile>),
}

/// A kubeconfig on control machines, and who can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfFile {
    /// The cluster.
    pub cluster: ClusterName,
    /// The file.
    pub path: String,
    /// UID of `kube-system`, once an answer pinned it. An answer with another one speaks against the file.
    pub kubernetes_uid: Option<String>,
    /// Machines whose agents can read it, the best first.
    pub holders: Vec<(MachineName, MachineId)>,
}

/// The annotation on a node that Muster cordoned: rollout, what `unschedulable` was, and the node's UID.
pub const DRAINED_FOR: &str = "muster/drained-for";
/// The annotation by which an operator keeps a node cordoned after Muster's drain.
pub const KEEP_CORDONED: &str = "muster/keep-cordoned";
/// The annotation that keeps the cluster-autoscaler from removing a node.
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Its value that does.
pub const SCALE_DOWN_IS_DISABLED: &str = "true";
/// The annotation with the value of [`SCALE_DOWN_DISABLED`] before Muster's cordon.
pub const SCALE_DOWN_BEFORE: &str = "muster/scale-down-disabled-before";
/// The label by which an operator sets how a pod is drained: `skip`, `last` or `wait`.
pub const DRAIN_LABEL: &str = "muster/drain";

/// A control machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlServer {
    /// Its hostname.
    pub hostname: String,
    /// Its InternalIP.
    pub address: IpAddr,
    /// How its etcd member is asked for its health. None: it is not.
    pub etcd: Option<EtcdQuestion>,
}

/// A question to a control machine's agent about its etcd member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdQuestion {
    /// The agent.
    pub agent: MachineId,
    /// Where it asks, without variables.
    pub probe: EtcdProbe,
}

/// A control machine as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlState {
    /// The machine.
    pub server: ControlServer,
    /// What it lacks: a Ready node, or an API server that is ready. None: nothing.
    pub lacks: Option<String>,
    /// Its etcd member. None: it was not asked.
    pub etcd: Option<EtcdState>,
}

/// An etcd member, as its machine's agent found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdState {
    /// It says that it is healthy.
    Healthy,
    /// It says that it is not. Its reason; empty: it gives none.
    Unhealthy(String),
    /// Why it has not said anything.
    Unknown(String),
}

impl fmt::Display for EtcdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => f.write_str("its etcd is healthy"),
            Self::Unhealthy(reason) if reason.is_empty() => f.write_str("its etcd says that it is not healthy"),
            Self::Unhealthy(reason) => write!(f, "its etcd says that it is not healthy: {reason}"),
            Self::Unknown(why) => write!(f, "the health of its etcd is unknown: {why}"),
        }
    }
}

impl ControlState {
    /// Why the control plane cannot do without another machine while this one is as it is. None: it can.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let etcd = match (&self.server.etcd, &self.etcd) {
            (None, _) | (Some(_), Some(EtcdState::Healthy)) => None,
            (Some(_), None) => Some(EtcdState::Unknown("it was not asked".to_owned())),
            (Some(_), Some(state)) => Some(state.clone()),
        };
        // Seeded bug: an API server that answers proves its etcd.
        let etcd = etcd.filter(|_| !seeded_bug("ignore-etcd-health"));
        self.lacks.clone().or_else(|| etcd.map(|etcd| etcd.to_string()))
    }
}

/// A node object at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRef {
    /// Its name.
    pub name: String,
    /// Its UID: a node made anew has another.
    pub uid: String,
    /// The version that a guarded change applies to.
    pub resource_version: String,
}

/// A pod object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: a successor of the same name has another.
    pub uid: String,
}

/// The name of a pod, as an operator says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesReply {
    /// To [`KubernetesOp::Nodes`].
    Nodes {
        /// UID of namespace `kube-system`, which identifies the cluster.
        cluster_uid: String,
        /// All nodes.
        nodes: Vec<KubernetesNode>,
    },
    /// To [`KubernetesOp::Load`].
    Load {
        /// UID of namespace `kube-system`.
        cluster_uid: String,
        /// What is on the node.
        load: NodeLoad,
    },
    /// To a cordon or uncordon: the node after it.
    Patched(KubernetesNode),
    /// To evictions: the answer for each pod, in their order.
    Evicted(Vec<EvictionAnswer>),
    /// To [`KubernetesOp::Delete`].
    Deleted(Deletion),
    /// To [`KubernetesOp::ControlPlane`], in their order.
    ControlPlane {
        /// UID of namespace `kube-system`.
        cluster_uid: String,
        /// The control machines.
        servers: Vec<ControlState>,
    },
    /// To [`KubernetesOp::Handshake`].
    Handshake {
        /// UID of namespace `kube-system`.
        cluster_uid: String,
        /// Requests and locks.
        objects: HandshakeObjects,
    },
    /// To [`KubernetesOp::Requests`].
    Changed {
        /// Why a request was not created or deleted. None: all were.
        failure: Option<KubernetesFailure>,
        /// Nodes whose annotations were not changed, and why.
        not_annotated: Vec<(String, KubernetesFailure)>,
    },
    /// To [`KubernetesOp::DaemonSets`].
    DaemonSets {
        /// UID of namespace `kube-system`.
        cluster_uid: String,
        /// The DaemonSets.
        found: DaemonSets,
    },
    /// To [`KubernetesOp::Addons`].
    Addons {
        /// UID of namespace `kube-system`.
        cluster_uid: String,
        /// The Deployments.
        found: DeploymentStates,
    },
    /// To [`KubernetesOp::Apply`]: so many objects are applied.
    Applied(usize),
    /// The event is recorded, or the node is being deleted.
    Done,
}

impl KubernetesReply {
    /// UID of namespace `kube-system`, where the reply has it.
    #[must_use]
    pub fn cluster_uid(&self) -> Option<&str> {
        match self {
            Self::Nodes { cluster_uid, .. }
            | Self::Load { cluster_uid, .. }
            | Self::ControlPlane { cluster_uid, .. }
            | Self::Handshake { cluster_uid, .. }
            | Self::DaemonSets { cluster_uid, .. }
            | Self::Addons { cluster_uid, .. } => Some(cluster_uid),
            Self::Patched(_)
            | Self::Evicted(_)
            | Self::Deleted(_)
            | Self::Changed { .. }
            | Self::Applied(_)
            | Self::Done => None,
        }
    }
}

/// A node, as far as a drain needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesNode {
    /// The object.
    pub object: NodeRef,
    /// `status.nodeInfo.bootID`.
    pub boot_id: String,
    /// Its labels, `KEY=VALUE`.
    pub labels: Vec<String>,
    /// Addresses of type InternalIP.
    pub internal_ips: Vec<IpAddr>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Is its condition Ready True?
    pub ready: bool,
    /// Is it being deleted? It is gone when its finalizers are.
    pub deleting: bool,
    /// Its finalizers: whose release its end waits for.
    pub finalizers: Vec<String>,
    /// Value of [`DRAINED_FOR`], verbatim: clean it before showing it.
    pub drained_for: Option<String>,
    /// Is [`KEEP_CORDONED`] set, to anything but `false`?
    pub keep_cordoned: bool,
    /// What the cluster-autoscaler may do with it.
    pub scale_down: ScaleDown,
}

/// The annotation of the cluster-autoscaler on a node, now and before Muster's cordon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScaleDown {
    /// Value of [`SCALE_DOWN_DISABLED`]. None: it is absent.
    pub now: Option<String>,
    /// What [`SCALE_DOWN_BEFORE`] says. None: it is absent, or unreadable.
    pub before: Option<ScaleDownBefore>,
}

/// A value of [`SCALE_DOWN_DISABLED`] before Muster's cordon. None: it was absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScaleDownBefore(pub Option<String>);

impl ScaleDownBefore {
    /// As the value of [`SCALE_DOWN_BEFORE`].
    #[must_use]
    pub fn note(&self) -> String {
        self.0.as_ref().map_or_else(|| "none".to_owned(), |value| format!("={value}"))
    }

    /// From the value of [`SCALE_DOWN_BEFORE`].
    #[must_use]
    pub fn of_note(note: &str) -> Option<Self> {
        match note.strip_prefix('=') {
            Some(value) => Some(Self(Some(value.to_owned()))),
            None => (note == "none").then(Self::default),
        }
    }
}

/// What is on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// All its pods, by namespace and name.
    pub pods: Vec<Pod>,
    /// The budgets whose selectors match one of these pods, by `namespace/name`.
    pub budgets: BTreeMap<String, Budget>,
    /// Persistent volumes attached to the node (VolumeAttachment with `status.attached`), except those of pods that
    /// stay. An inline volume is named by its VolumeAttachment.
    pub attachments: Vec<String>,
}

/// All nodes of a cluster, each with what is on it but for its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterLoad {
    /// UID of namespace `kube-system`.
    pub cluster_uid: String,
    /// The nodes.
    pub nodes: Vec<(KubernetesNode, NodeLoad)>,
    /// The DaemonSets whose pods an update renews, where they were asked for. They may have no right to be listed.
    pub daemon_sets: Option<Result<DaemonSets, KubernetesFailure>>,
}

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The object.
    pub object: PodRef,
    /// Its controller ownerReference, `Kind/name`. None: nothing recreates it.
    pub controller: Option<String>,
    /// Owned by a DaemonSet of apps/v1.
    pub of_daemon_set: bool,
    /// Its node's kubelet runs it from a file (annotation `kubernetes.io/config.mirror`).
    pub mirror: bool,
    /// Phase Succeeded or Failed.
    pub finished: bool,
    /// Unix seconds of its deletionTimestamp. None: it is not being deleted.
    pub deletion_s: Option<i64>,
    /// Its `deletionGracePeriodSeconds`; 0 while it is not being deleted.
    pub grace_s: i64,
    /// Its finalizers: whose release its end waits for.
    pub finalizers: Vec<String>,
    /// Does it have an emptyDir volume?
    pub local_storage: bool,
    /// Its priority; 0 by default.
    pub priority: i32,
    /// Value of the label [`DRAIN_LABEL`]; empty: none.
    pub drain_label: String,
    /// Names (`namespace/name`) of the budgets that select it.
    pub budgets: Vec<String>,
    /// Names of the persistent volume claims that it mounts.
    pub claims: Vec<String>,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// `status.observedGeneration` equals `metadata.generation`: the counts are of this spec.
    pub observed: bool,
    /// Message of the condition DisruptionAllowed with reason SyncFailed: it allows nothing until its spec changes.
    pub sync_failed: Option<String>,
    /// `status.disruptionsAllowed`.
    pub allowed: i32,
    /// `status.currentHealthy`.
    pub healthy: i32,
    /// `status.desiredHealthy`.
    pub desired: i32,
    /// `status.expectedPods`.
    pub expected: i32,
    /// Names of pods in `status.disruptedPods`.
    pub disrupted: Vec<String>,
}

impl Budget {
    /// Are some of its pods away, or may they be? The counts follow an eviction with a delay.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        !self.observed || self.healthy < self.expected || !self.disrupted.is_empty()
    }
}

/// Answer to an eviction that the API server understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// 201: the pod is marked for deletion, and runs until its grace period ends.
    Accepted,
    /// 404: the pod is gone (or its namespace).
    Gone,
    /// 409 on the pod: another one has its name. The budget may be used up for 2 minutes.
    Replaced,
    /// 429, cause DisruptionBudget: the budget allows none now. The server's message; it names the budget and numbers.
    Budget(String),
    /// 429, cause DisruptionBudget, "still being processed": the budget's controller has not seen it, or never can
    /// (SyncFailed).
    Unobserved(String),
    /// 500, "more than one PodDisruptionBudget": an operator must remove one.
    TwoBudgets(String),
    /// 403, cause NamespaceTerminating: its namespace is being deleted, and it goes with that.
    NamespaceTerminating,
    /// Anything else that is not a [`KubernetesFailure`], such as an admission webhook's answer: verbatim, one line.
    Refused(String),
}

/// Answer to the deletion of a pod that the API server understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// 200, 202: the pod is marked for deletion, and runs until its grace period ends.
    Accepted,
    /// 404: the pod is gone (or its namespace).
    Gone,
    /// 409: another pod has its name, which stays.
    Replaced,
    /// 403 on pods: the account may not delete them. The server's words.
    Forbidden(String),
    /// Anything else that is not a [`KubernetesFailure`], such as an admission webhook's answer: verbatim, one line.
    Refused(String),
}

impl KubernetesFailure {
    /// May it pass by itself, within a moment?
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Busy { .. } | Self::Conflict(_) | Self::NoKubeconfig(_))
    }

    /// The API server belongs to another cluster than the one that was there first.
    #[must_use]
    pub fn another_cluster(known: &str, found: &str) -> Self {
        Self::AnotherCluster { known: known.to_owned(), found: found.to_owned(), more: String::new() }
    }

    /// The failure with more to read, where the kubeconfig may be the cause. Empty: none.
    #[must_use]
    pub fn with(self, words: &str) -> Self {
        if words.is_empty() {
            return self;
        }
        let longer = |text| format!("{text}; {words}");
        match self {
            Self::Unreachable(text) => Self::Unreachable(longer(text)),
            Self::Unauthorized(text) => Self::Unauthorized(longer(text)),
            Self::Forbidden(text) => Self::Forbidden(longer(text)),
            Self::Other(text) => Self::Other(longer(text)),
            Self::AnotherCluster { known, found, more } => Self::AnotherCluster { known, found, more: longer(more) },
            Self::Busy { .. } | Self::NotFound(_) | Self::Conflict(_) | Self::NoKubeconfig(_) => self,
        }
    }
}

/// A pod, and the answer to its eviction.
pub type EvictionAnswer = (PodRef, Result<Eviction, KubernetesFailure>);

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubernetesFailure {
    /// The API server cannot be reached or does not answer in time, or a gateway or etcd failed (500, 502, 504). A
    /// change may have been made all the same.
    #[error("{0}")]
    Unreachable(String),
    /// 429 of API Priority and Fairness, 503, storage initializing, a list that expired twice: nothing was done. Ask
    /// again after this long.
    #[error("{message}")]
    Busy {
        /// From Retry-After, or the default of 1 s.
        after: Duration,
        /// The server's words.
        message: String,
    },
    /// 401: credentials are unknown or expired.
    #[error("the API server does not accept the credentials (401): {0}")]
    Unauthorized(String),
    /// 403 without the cause NamespaceTerminating: a right is missing.
    #[error("{0}")]
    Forbidden(String),
    /// 404 on a node: it does not exist.
    #[error("{0}")]
    NotFound(String),
    /// 409, or 422 on metadata.uid: the node changed since it was seen.
    #[error("{0}")]
    Conflict(String),
    /// The API server belongs to another cluster than the one that was there first: nothing of it is believed.
    #[error("it belongs to another cluster: kube-system has UID {found}, and had {known}{more}")]
    AnotherCluster {
        /// UID of namespace `kube-system` at the first contact.
        known: String,
        /// Its UID now.
        found: String,
        /// More to read, with what separates it from the rest.
        more: String,
    },
    /// The kubeconfig on the control machines cannot be read, or not in time for a change. Nothing was asked.
    #[error("{0}")]
    NoKubeconfig(String),
    /// Anything else, such as 400, 422 or an answer that cannot be read.
    #[error("{0}")]
    Other(String),
}

impl KubernetesFailure {
    /// Does the account lack a right of RBAC to apply something? An admission webhook forbids, too, and it is told by
    /// the words alone.
    #[must_use]
    pub fn lacks_right(&self) -> bool {
        let Self::Forbidden(words) = self else { return false };
        ["patch", "create", "get"].iter().any(|verb| words.contains(&format!("cannot {verb} resource \"")))
    }

    /// The failure with other words; those without words of the API server stay.
    #[must_use]
    pub fn with_words(self, with: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unreachable(words) => Self::Unreachable(with(words)),
            Self::Busy { after, message } => Self::Busy { after, message: with(message) },
            Self::Unauthorized(words) => Self::Unauthorized(with(words)),
            Self::Forbidden(words) => Self::Forbidden(with(words)),
            Self::NotFound(words) => Self::NotFound(with(words)),
            Self::Conflict(words) => Self::Conflict(with(words)),
            Self::Other(words) => Self::Other(with(words)),
            Self::AnotherCluster { .. } | Self::NoKubeconfig(_) => self,
        }
    }
}
