//! The parts of Kubernetes' objects that a drain reads. Everything else in an answer is skipped unread.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::IgnoredAny};

use crate::orchestrator::kubernetes::selector::{LabelSelector, Labels};

/// The default for an explicit null: Go writes an empty list or map as null where the field has no `omitempty`.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// One page of a LIST.
#[derive(Debug, Deserialize)]
pub(crate) struct Page<T> {
    #[serde(default)]
    pub(crate) metadata: ListMeta,
    #[serde(default = "Vec::new", deserialize_with = "nullable", bound(deserialize = "T: Deserialize<'de>"))]
    pub(crate) items: Vec<T>,
}

/// A LIST's `metadata`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ListMeta {
    /// Token of the next page; empty at the end.
    #[serde(default, rename = "continue", deserialize_with = "nullable")]
    pub(crate) next: String,
}

/// An object's `metadata`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: Option<i64>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) deletion_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) labels: Labels,
    #[serde(deserialize_with = "nullable")]
    pub(crate) annotations: Labels,
    #[serde(deserialize_with = "nullable")]
    pub(crate) finalizers: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) owner_references: Vec<OwnerReference>,
}

/// Who made an object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OwnerReference {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) controller: bool,
}

/// A condition of an object's `status`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A Namespace.
#[derive(Debug, Deserialize)]
pub(crate) struct NamespaceObject {
    pub(crate) metadata: Meta,
}

/// A Node.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeObject {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: NodeSpec,
    #[serde(default)]
    pub(crate) status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    #[serde(deserialize_with = "nullable")]
    pub(crate) unschedulable: bool,
    #[serde(deserialize_with = "nullable")]
    pub(crate) taints: Vec<Taint>,
}

/// A node's taint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taint {
    pub(crate) key: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) value: String,
    pub(crate) effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    pub(crate) node_info: NodeInfo,
    #[serde(deserialize_with = "nullable")]
    pub(crate) addresses: Vec<NodeAddress>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) conditions: Vec<Condition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeInfo {
    #[serde(rename = "bootID")]
    pub(crate) boot_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAddress {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) address: String,
}

/// A Pod.
#[derive(Debug, Deserialize)]
pub(crate) struct PodObject {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: PodSpec,
    #[serde(default)]
    pub(crate) status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: String,
    pub(crate) priority: Option<i32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) volumes: Vec<PodVolume>,
}

/// A pod's volume; one of the sources is set, or none of these.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodVolume {
    pub(crate) name: String,
    pub(crate) empty_dir: Option<IgnoredAny>,
    pub(crate) persistent_volume_claim: Option<ClaimSource>,
    /// A claim that is made for the pod, and named after pod and volume.
    pub(crate) ephemeral: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimSource {
    pub(crate) claim_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) conditions: Vec<Condition>,
}

/// A PodDisruptionBudget.
#[derive(Debug, Deserialize)]
pub(crate) struct BudgetObject {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: BudgetSpec,
    #[serde(default)]
    pub(crate) status: BudgetStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BudgetSpec {
    /// None selects no pod; an empty one selects all of the namespace.
    pub(crate) selector: Option<LabelSelector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BudgetStatus {
    pub(crate) observed_generation: Option<i64>,
    pub(crate) disruptions_allowed: i32,
    pub(crate) current_healthy: i32,
    pub(crate) desired_healthy: i32,
    pub(crate) expected_pods: i32,
    #[serde(deserialize_with = "nullable")]
    pub(crate) disrupted_pods: BTreeMap<String, IgnoredAny>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) conditions: Vec<Condition>,
}

/// A VolumeAttachment.
#[derive(Debug, Deserialize)]
pub(crate) struct AttachmentObject {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: AttachmentSpec,
    #[serde(default)]
    pub(crate) status: AttachmentStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachmentSpec {
    pub(crate) node_name: String,
    pub(crate) source: AttachmentSource,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachmentSource {
    /// None: the volume is described inline, and has no PersistentVolume.
    pub(crate) persistent_volume_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AttachmentStatus {
    pub(crate) attached: bool,
}

/// A PersistentVolume.
#[derive(Debug, Deserialize)]
pub(crate) struct VolumeObject {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: VolumeSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeSpec {
    /// The claim it is bound to.
    pub(crate) claim_ref: Option<ClaimRef>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A Deployment, a DaemonSet, or a CronJob.
#[derive(Debug, Deserialize)]
pub(crate) struct WorkloadObject {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: WorkloadSpec,
    #[serde(default)]
    pub(crate) status: WorkloadStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadSpec {
    /// A Deployment's.
    pub(crate) replicas: Option<i64>,
    /// A CronJob's.
    #[serde(deserialize_with = "nullable")]
    pub(crate) suspend: bool,
    pub(crate) template: PodTemplate,
    /// A CronJob's.
    pub(crate) job_template: JobTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadStatus {
    /// A DaemonSet's.
    pub(crate) desired_number_scheduled: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct JobTemplate {
    pub(crate) spec: JobSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct JobSpec {
    pub(crate) template: PodTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodTemplate {
    pub(crate) spec: TemplateSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateSpec {
    #[serde(deserialize_with = "nullable")]
    pub(crate) containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    pub(crate) image: String,
}

/// A custom resource by which another program is told to disturb nodes.
#[derive(Debug, Deserialize)]
pub(crate) struct OrderObject {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: OrderSpec,
    #[serde(default)]
    pub(crate) status: OrderStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OrderSpec {
    /// A MachineHealthCheck's.
    pub(crate) cluster_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OrderStatus {
    /// A plan's.
    pub(crate) state: String,
}
