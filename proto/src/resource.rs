//! The documents that people read: the output of `musterctl get -o json`, with LCM's field names. The coordinator
//! builds them from its facts, the Fleet service carries them as JSON, and `view` turns them into tables and lines.

mod audit;
mod host;
mod kind;
mod kubernetes;
mod plan;
mod secret;
mod update;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use host::{Cpu, Hardware, HostInfo, Memory};
pub use kind::{Kind, Of};
pub use kubernetes::{CheckLine, CheckSection, KubernetesCheck, LineKind};
pub use plan::{Plan, PlannedMachine, Wave};
pub use update::{
    BackupStatus, ChangedMachine, ClusterState, ClusterStateSpec, ClusterStateStatus, GroupStatus, HookStatus, Lock,
    LockSpec, LockStatus, MachineProgress, MaintenanceStatus, RebootStatus, Request, RequestSpec, RequestStatus,
    StuckStage, UpdatePhase, UpdatePlan, UpdateStatus, Waiting,
};

use crate::model::{Blocked, ClusterSpec, Counts, ItemHash, MachineSpec, MachineType, Phase};

pub use audit::{
    Audit, AuditChain, AuditChainSpec, AuditChainStatus, AuditFault, AuditSpec, AuditStatus, HashedAudit, verify_audit,
};
pub use secret::{Secret, SecretSpec, SecretStatus};

/// A document: identity, desired state, actual state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document<Spec, Status> {
    /// Identity.
    pub metadata: Metadata,
    /// Desired state.
    pub spec: Spec,
    /// Actual state.
    pub status: Status,
}

/// A cluster as shown to people.
pub type Cluster = Document<ClusterSpec, ClusterStatus>;
/// A machine as shown to people.
pub type Machine = Document<MachineSpec, MachineStatus>;
/// A rollout as shown to people.
pub type Rollout = Document<RolloutSpec, RolloutStatus>;
/// A join token as shown to people; its secret is left out.
pub type Token = Document<TokenSpec, TokenStatus>;
/// Credentials of a person or a program as shown to people; keys are left out.
pub type Credential = Document<CredentialSpec, CredentialStatus>;

/// Name and notes of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Unique among its kind.
    pub name: String,
    /// When it was first recorded.
    pub creation_timestamp: Timestamp,
    /// Notes of operators, read by controllers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Status of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Machines that its manifest asks for or that it has, whichever are more.
    pub requested_nodes: u32,
    /// Machines that have enrolled, except revoked ones.
    #[serde(default)]
    pub nodes: u32,
    /// Machines that are Ready.
    pub ready_nodes: u32,
    /// The release at which every machine was last Ready, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The releases at which its machines were last Ready, in the order in which they were applied. Several mean that
    /// an update is incomplete or was aborted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub releases: Vec<String>,
    /// An update would change something, and no rollout is under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_due: bool,
    /// The operation under way (update, reboot, maintenance, removal or reconfiguration) waits for an operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_operator: bool,
    /// Machines silent for longer than the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_nodes: Vec<String>,
    /// Machines whose certificate an operator revoked, still to be replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked_nodes: Vec<String>,
    /// Machines with an item that failed for good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<String>,
    /// Machines with an item whose outcome is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indeterminate_nodes: Vec<String>,
    /// The stage past its deadline: the cluster's own, else the oldest of a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lcm_operation_stuck: Option<StuckStage>,
    /// Is the Helm controller as the manifest says, as far as is known? None: the manifest has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helm_controller_deployed: Option<bool>,
    /// The rollout under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
    /// Progress of each phase, in order.
    pub phases: Vec<PhaseProgress>,
    /// Why the cluster is blocked, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedSince>,
}

/// Progress of one phase of a cluster, in machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseProgress {
    /// The phase.
    pub phase: Phase,
    /// Machines that have items in it.
    pub total: u32,
    /// Machines that have completed it.
    pub done: u32,
    /// Machines in it now.
    pub running: u32,
    /// Machines that failed in it.
    pub failed: u32,
}

/// A wait and its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedSince {
    /// Reason, message and what ends the wait.
    #[serde(flatten)]
    pub blocked: Blocked,
    /// Start of the wait.
    pub since: Timestamp,
}

/// Status of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// One of `Uninitialized Pending Prepare Deploy Reboot Upgrade Reconfigure Ready`.
    pub state: String,
    /// InternalIP and Hostname.
    pub addresses: Vec<Address>,
    /// Version of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Identity in its certificate. None: declared, still to enrol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// Id of the join token it enrolled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_token: Option<String>,
    /// Does it have a stream to the coordinator now?
    pub connected: bool,
    /// Two agents use its identity and take its stream from each other. Omitted if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_agents: bool,
    /// Silent for longer than the limit.
    pub lost: bool,
    /// An item failed for good; a person decides.
    pub failed: bool,
    /// An item's outcome is unknown; a person decides.
    pub indeterminate: bool,
    /// Time of its last sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Timestamp>,
    /// Generation of its assignment.
    pub generation: u64,
    /// Since when it holds a slot, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_since: Option<Timestamp>,
    /// The release at which it was last Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Why it is blocked, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedSince>,
    /// The item under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Its items, in the order they run.
    pub items: Vec<ItemPlan>,
    /// Statuses by item name.
    pub state_item_statuses: BTreeMap<String, StateItemStatus>,
    /// Steps of the rollout on this machine.
    pub stages: Vec<StageStatus>,
    /// The stage that is past its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lcm_operation_stuck: Option<StuckStage>,
    /// Outcome of an operator's request to reboot it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<RebootStatus>,
    /// Present if it is out of service, or on the way there or back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceStatus>,
    /// Pods of its Kubernetes node that are deleted in this turn, as operators said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced_pods: Vec<ForcedPod>,
    /// Phase of its removal: `started`, `aborting` or `failed` (a person is needed). None: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare_deletion_phase: Option<String>,
    /// Facts that the machine reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_info: Option<HostInfo>,
}

/// A pod that an operator said is deleted (`musterctl drain-force`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedPod {
    /// `namespace/name`.
    pub pod: String,
    /// Its UID: another pod of that name is not deleted.
    pub uid: String,
    /// Who said so.
    pub by: String,
    /// When.
    pub since: Timestamp,
}

/// An address of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// `InternalIP` or `Hostname`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address.
    pub address: String,
}

/// Current activity of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// The item.
    pub item: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Start of the attempt, by the machine's clock.
    pub started_at: Timestamp,
    /// Progress, for downloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Bytes>,
    /// Current task, for playbooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// Progress of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bytes {
    /// Bytes fetched.
    pub done: u64,
    /// Bytes in total; 0 = unknown.
    pub total: u64,
    /// Bytes per second.
    pub per_second: u64,
}

/// One item that a machine is to have, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemPlan {
    /// Its name.
    pub name: String,
    /// Its phase.
    pub phase: Phase,
    /// Its runner.
    pub runner: String,
    /// Its version.
    pub version: String,
    /// `due`, `running`, `retrying`, `done`, `failed`, `held`, `skipped`, `accepted`.
    pub standing: String,
}

/// The newest attempt at an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateItemStatus {
    /// Hash of the item as it was run.
    pub hash: ItemHash,
    /// `Running`, `Succeeded`, `Failed` or `Indeterminate`.
    pub state: String,
    /// None while it runs, or if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// One line.
    pub message: String,
    /// Free JSON from the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// By the machine's clock.
    pub started_at: Timestamp,
    /// By the machine's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// End of the output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output_tail: String,
}

/// One step of a rollout on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// `Prepare phase done`.
    pub name: String,
    /// `NotStarted`, `InProgress`, `Success` or `Fail`.
    pub status: String,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl Rollout {
    /// Sort key among rollouts: start time and number. One may start in the moment in which another ends.
    #[must_use]
    pub fn order(&self) -> (Timestamp, u64) {
        (self.metadata.creation_timestamp, rollout_number(&self.metadata.name))
    }
}

/// The number in a rollout's name. All rollouts of a cluster share one sequence, whatever their kind.
#[must_use]
pub fn rollout_number(name: &str) -> u64 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The task of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSpec {
    /// `deploy`, `update`, `reconfigure`, `reboot`, `maintenance` or `removal`.
    pub kind: String,
    /// Its cluster.
    pub cluster_name: String,
    /// Its initiator: an operator, or `muster` itself (the last declared machine reported, the control set changed).
    pub started_by: String,
}

/// Progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// `InProgress`, `Blocked`, `Paused`, `Aborting`, `Aborted` or `Ready`.
    pub state: String,
    /// When its last machine became Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Its machines.
    pub machines: u32,
    /// Machines that are Ready.
    pub ready: u32,
    /// Failures that count against the budget.
    pub failures: Counts,
    /// Details of an update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateStatus>,
    /// Why it is blocked, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedSince>,
}

/// What a token permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenSpec {
    /// Its cluster.
    pub cluster_name: String,
    /// Only for machines of this type.
    #[serde(rename = "type")]
    pub machine_type: MachineType,
    /// Only for this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Number of permitted uses.
    pub uses: u32,
}

/// State of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    /// `Valid`, `Expired`, `UsedUp` or `Revoked`.
    pub state: String,
    /// Number of uses so far.
    pub used: u32,
    /// Expiry time.
    pub expires_at: Timestamp,
}

/// What credentials permit. Role and name are the document's name: `operator/anna`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialSpec {
    /// The only clusters they apply to; empty: all.
    pub clusters: Vec<String>,
}

/// State of credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialStatus {
    /// `Valid`, `Expired` or `Revoked`.
    pub state: String,
    /// Expiry time, unless they are revoked before.
    pub expires_at: Timestamp,
    /// Time of their revocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}
