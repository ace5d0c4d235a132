//! Documents of updates and of the maintenance handshake.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Document, StageStatus};
use crate::model::{LockState, MachineType, Reason, Scope};

/// A workload lock as shown to people.
pub type Lock = Document<LockSpec, LockStatus>;
/// A maintenance request as shown to people.
pub type Request = Document<RequestSpec, RequestStatus>;

/// A state of the child cluster that Muster sets for a machine, as shown to people (LCMClusterState).
pub type ClusterState = Document<ClusterStateSpec, ClusterStateStatus>;

/// Desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStateSpec {
    /// Its cluster.
    pub cluster_name: String,
    /// `swarm-drain`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The machine.
    pub arg: String,
    /// `true` or `false`.
    pub value: String,
}

/// Actual state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStateStatus {
    /// `true` or `false`.
    pub actual_value: String,
    /// Number of attempts in this rollout.
    pub attempt: u32,
    /// What is awaited, in the product's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Holder and subject of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockSpec {
    /// Its cluster.
    pub cluster_name: String,
    /// `NodeWorkloadLock` or `ClusterWorkloadLock`.
    pub kind: String,
    /// The application controller that holds it.
    pub controller_name: String,
    /// The machine, or a Kubernetes node that is no machine's. None: the cluster itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// UID of the custom resource that it is. None: its controller registered it with the coordinator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// The controller's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// Whether the subject may be touched.
    pub state: LockState,
    /// Start of this state.
    pub since: Timestamp,
    /// The problem that blocks the controller.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error_message: String,
    /// Progress of moving the workloads away, in percent.
    pub percentage: u32,
    /// Current activity of the controller.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The release that the controller last worked for; empty if unreported.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Is its controller connected, so that it sees requests? While it is disconnected, the lock keeps its state. Older
    /// coordinators omit this field.
    #[serde(default = "LockStatus::unsaid")]
    pub connected: bool,
}

impl LockStatus {
    const fn unsaid() -> bool {
        true
    }
}

/// Content of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestSpec {
    /// Its cluster.
    pub cluster_name: String,
    /// `NodeMaintenanceRequest` or `ClusterMaintenanceRequest`.
    pub kind: String,
    /// The machine. None: the cluster itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Permitted operations.
    pub scope: Scope,
    /// The machine is removed for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removal: bool,
    /// The release of the update; empty outside updates, as in maintenance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// UID of the custom resource that stands for it in the Kubernetes cluster. None: there is none, or not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// State of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestStatus {
    /// `waiting` for locks, or `granted`.
    pub state: String,
    /// The locks that are still active, in the product's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A machine that an operator has taken out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceStatus {
    /// Since when it is out of service. None: it is on the way there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// It is on the way back into service.
    pub leaving: bool,
}

/// Progress of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// Permitted operations on machines.
    pub scope: Scope,
    /// The target release.
    pub release: String,
    /// Stages of the cluster.
    pub stages: Vec<StageStatus>,
    /// Hooks and backups that it adds to machines, in the order of machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookStatus>,
    /// Backups made for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<BackupStatus>,
    /// An operator skips the backups.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_backup: bool,
    /// Progress of each update group, in their order. Empty: the cluster is ungrouped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupStatus>,
    /// It waits for an operator.
    pub needs_operator: bool,
    /// Its machines and their progress, in the order in which they go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineProgress>,
    /// Incomplete machines that are blocked, and why.
    pub waiting: Vec<Waiting>,
    /// Start of the pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Timestamp>,
    /// Paused for over a day: a cluster between two releases is a risk.
    pub paused_too_long: bool,
}

/// Progress of a hook or a backup of an update on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookStatus {
    /// Its name.
    pub name: String,
    /// The machine it runs on.
    pub machine: String,
    /// `before`, `after`, or `in its turn`.
    pub when: String,
    /// `waiting`, `running`, `done`, `skipped`, `failed`, `indeterminate`, or `not run`.
    pub state: String,
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// The machine that stores it.
    pub machine: String,
    /// The item that made it.
    pub item: String,
    /// Path of its file.
    pub path: String,
    /// Size of the file.
    pub bytes: u64,
    /// Its digest, in hex.
    pub sha256: String,
    /// The runner's message: a copy may be hot though a consistent one was requested.
    pub message: String,
    /// Time of the backup, by the machine's clock.
    pub taken_at: Timestamp,
}

/// Progress of an update group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its place in the order; groups with equal indexes go together.
    pub index: u32,
    /// Its workers in this rollout.
    pub total: u32,
    /// Workers that are complete.
    pub done: u32,
}

/// Progress of an update on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineProgress {
    /// Its name.
    pub machine: String,
    /// `done`, `under way`, `waiting` (with its reason in `waiting`), `in maintenance`, or `left out`: it keeps its
    /// present state.
    pub progress: String,
    /// The item under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

/// A blocked machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Its name.
    pub machine: String,
    /// Named reason.
    pub reason: Reason,
    /// The reason in words.
    pub message: String,
    /// What ends the wait.
    pub clears_when: String,
}

/// A stage past its deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StuckStage {
    /// Its name.
    pub stage: String,
    /// When it began.
    pub since: Timestamp,
    /// The machine concerned, in the status of a cluster. None: the cluster itself, or the machine with this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// Outcome of an operator's request to reboot a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RebootStatus {
    /// Time of the request.
    pub requested_at: Timestamp,
    /// Has the machine rebooted because of it?
    pub completed: bool,
    /// Why the reboot failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error_message: String,
}

/// What an update would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePlan {
    /// The release it goes to.
    pub release: String,
    /// Permitted operations on machines.
    pub scope: Scope,
    /// Reason of the refusal, if it would be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Digest of the plan; pass it to start exactly this update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Obstacles that would delay it if it started now.
    pub warnings: Vec<String>,
    /// Actions that an operator may expect but that it leaves out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The phases that apply, in order.
    pub phases: Vec<UpdatePhase>,
    /// Machines that change, in the order in which they go.
    pub machines: Vec<ChangedMachine>,
    /// Number of machines that stay the same.
    pub unchanged: u32,
}

/// One phase of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePhase {
    /// Its name.
    pub name: String,
    /// Description of the phase.
    pub what: String,
    /// Effect on users and workloads.
    pub impact: String,
    /// Whether it can be paused, and what that means.
    pub pause: String,
}

/// A machine that the update changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangedMachine {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub machine_type: MachineType,
    /// Its update group. None: a control machine, or an ungrouped cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Items that change, in the order they run.
    pub items: Vec<String>,
    /// Must its workloads move away?
    pub disruptive: bool,
}
