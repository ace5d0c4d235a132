//! The documents people read: what `musterctl get -o json` prints, field names as LCM has them. The coordinator makes
//! them from its facts, the Fleet service carries them as JSON, `view` turns them into tables and lines.

mod audit;
mod host;
mod kind;
mod plan;
mod secret;
mod update;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use host::{Cpu, Hardware, HostInfo, Memory};
pub use kind::{Kind, Of};
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

/// A document: who, what is wanted, what is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document<Spec, Status> {
    /// Who.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: Spec,
    /// What is.
    pub status: Status,
}

/// A cluster as people see it.
pub type Cluster = Document<ClusterSpec, ClusterStatus>;
/// A machine as people see it.
pub type Machine = Document<MachineSpec, MachineStatus>;
/// A rollout as people see it.
pub type Rollout = Document<RolloutSpec, RolloutStatus>;
/// A join token as people see it; its secret is not in it.
pub type Token = Document<TokenSpec, TokenStatus>;
/// Credentials of a person or a program as people see them; no key is in them.
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

/// What a cluster is at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Machines that its manifest asks for, or that it has, whichever are more.
    pub requested_nodes: u32,
    /// Machines that have enrolled and are not revoked.
    #[serde(default)]
    pub nodes: u32,
    /// Those that are Ready.
    pub ready_nodes: u32,
    /// The release every machine was last Ready at, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The releases its machines were last Ready at, in the order in which they were applied: several where an update
    /// has not come to its end, or was aborted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub releases: Vec<String>,
    /// An update would have something to do, and no rollout is under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_due: bool,
    /// Nothing moves by itself any more in the update, reboot, maintenance, removal or reconfiguration under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_operator: bool,
    /// Machines not heard of for longer than the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_nodes: Vec<String>,
    /// Machines whose certificate an operator revoked, and whose place no other has taken yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked_nodes: Vec<String>,
    /// Machines of which an item failed for good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<String>,
    /// Machines of which nobody knows how an item ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indeterminate_nodes: Vec<String>,
    /// The stage past its deadline: the cluster's own, else the oldest of a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lcm_operation_stuck: Option<StuckStage>,
    /// The rollout under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
    /// How far each phase is, in order.
    pub phases: Vec<PhaseProgress>,
    /// Why nothing new starts, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedSince>,
}

/// How far one phase of a cluster is, in machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseProgress {
    /// Which one.
    pub phase: Phase,
    /// Machines that have items in it.
    pub total: u32,
    /// Through with it.
    pub done: u32,
    /// In it now.
    pub running: u32,
    /// Failed in it.
    pub failed: u32,
}

/// A wait, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedSince {
    /// Reason, message and what clears it.
    #[serde(flatten)]
    pub blocked: Blocked,
    /// Since when.
    pub since: Timestamp,
}

/// What a machine is at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// One of `Uninitialized Pending Prepare Deploy Reboot Upgrade Reconfigure Ready`.
    pub state: String,
    /// InternalIP and Hostname.
    pub addresses: Vec<Address>,
    /// Of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Identity in its certificate. None: declared, not enrolled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// Id of the join token it enrolled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_token: Option<String>,
    /// Has it a stream to the coordinator now?
    pub connected: bool,
    /// Two agents have its identity: they take its stream from each other. Left out where that is not so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_agents: bool,
    /// No sign of life for longer than the limit.
    pub lost: bool,
    /// An item failed for good; a person decides.
    pub failed: bool,
    /// An item's outcome is unknown; a person decides.
    pub indeterminate: bool,
    /// When it was last heard of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Timestamp>,
    /// Generation of its assignment.
    pub generation: u64,
    /// Does it hold a slot, and since when?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_since: Option<Timestamp>,
    /// The release it was last Ready at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Why it does not move, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedSince>,
    /// The item under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Its items, in the order they run.
    pub items: Vec<ItemPlan>,
    /// By item name.
    pub state_item_statuses: BTreeMap<String, StateItemStatus>,
    /// Steps of the rollout on this machine.
    pub stages: Vec<StageStatus>,
    /// The stage that is past its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lcm_operation_stuck: Option<StuckStage>,
    /// What became of an operator's wish that it reboots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<RebootStatus>,
    /// It is out of service, or goes there, or comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceStatus>,
    /// How far its removal is: `started`, `aborting` or `failed` (a person is wanted). None: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare_deletion_phase: Option<String>,
    /// What the machine says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_info: Option<HostInfo>,
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

/// What a machine is busy with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// The item.
    pub item: String,
    /// Which attempt.
    pub attempt: u32,
    /// Since when, by the machine's clock.
    pub started_at: Timestamp,
    /// Fetched so far, for downloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Bytes>,
    /// Task that runs now, for playbooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bytes {
    /// Fetched.
    pub done: u64,
    /// In all; 0 = unknown.
    pub total: u64,
    /// Rate.
    pub per_second: u64,
}

/// One item a machine is to have, and where it stands.
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
    /// Of the item as it was run.
    pub hash: ItemHash,
    /// `Running`, `Succeeded`, `Failed` or `Indeterminate`.
    pub state: String,
    /// None while it runs, or when nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// One line.
    pub message: String,
    /// Free JSON of the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// Which attempt, from 1.
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
    /// Its place among others: when it began, and its number, for one may begin in the moment in which another ends.
    #[must_use]
    pub fn order(&self) -> (Timestamp, u64) {
        (self.metadata.creation_timestamp, rollout_number(&self.metadata.name))
    }
}

/// The number in a rollout's name: they are numbered through in their cluster, of whatever kind.
#[must_use]
pub fn rollout_number(name: &str) -> u64 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// What a rollout is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSpec {
    /// `deploy`, `update`, `reconfigure`, `reboot`, `maintenance` or `removal`.
    pub kind: String,
    /// Of which cluster.
    pub cluster_name: String,
    /// Who started it: an operator, or `muster` itself (the last declared machine reported, the control set changed).
    pub started_by: String,
}

/// How far a rollout is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// `InProgress`, `Blocked`, `Paused`, `Aborting`, `Aborted` or `Ready`.
    pub state: String,
    /// When its last machine became Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Machines in it, and those Ready.
    pub machines: u32,
    /// Those that are Ready.
    pub ready: u32,
    /// Failures that count against the budget.
    pub failures: Counts,
    /// Of an update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateStatus>,
    /// Why it does not move, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedSince>,
}

/// What a token is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenSpec {
    /// Of which cluster.
    pub cluster_name: String,
    /// For machines of this type.
    #[serde(rename = "type")]
    pub machine_type: MachineType,
    /// For this machine only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// How often.
    pub uses: u32,
}

/// What is left of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    /// `Valid`, `Expired`, `UsedUp` or `Revoked`.
    pub state: String,
    /// Used so often.
    pub used: u32,
    /// Until when.
    pub expires_at: Timestamp,
}

/// What credentials are good for. Role and name are the document's name: `operator/anna`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialSpec {
    /// The only clusters they are for; empty: all.
    pub clusters: Vec<String>,
}

/// What credentials are worth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialStatus {
    /// `Valid`, `Expired` or `Revoked`.
    pub state: String,
    /// Until when, if nobody revokes them.
    pub expires_at: Timestamp,
    /// Since when they are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}
