//! Documents of updates and of the maintenance handshake.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Document, StageStatus};
use crate::model::{LockState, MachineType, Reason, Scope};

/// A workload lock as people see it.
pub type Lock = Document<LockSpec, LockStatus>;
/// A maintenance request as people see it.
pub type Request = Document<RequestSpec, RequestStatus>;

/// A state of the child cluster that Muster brings about for a machine, as people see it (LCMClusterState).
pub type ClusterState = Document<ClusterStateSpec, ClusterStateStatus>;

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStateSpec {
    /// Of which cluster.
    pub cluster_name: String,
    /// `swarm-drain`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The machine.
    pub arg: String,
    /// `true` or `false`.
    pub value: String,
}

/// What is the case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStateStatus {
    /// `true` or `false`.
    pub actual_value: String,
    /// How often it was begun in this rollout.
    pub attempt: u32,
    /// What is waited for, in the product's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whose lock it is, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockSpec {
    /// Of which cluster.
    pub cluster_name: String,
    /// `NodeWorkloadLock` or `ClusterWorkloadLock`.
    pub kind: String,
    /// The application controller that holds it.
    pub controller_name: String,
    /// The machine. None: the cluster itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// What its controller says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// May it be touched?
    pub state: LockState,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// What keeps the controller.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error_message: String,
    /// How far the workloads are out of the way, in percent.
    pub percentage: u32,
    /// What the controller is doing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The release it last worked for. Empty: it says none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Is its controller connected, so that it sees requests? Without it the lock stays as it is. An older coordinator
    /// does not say.
    #[serde(default = "LockStatus::unsaid")]
    pub connected: bool,
}

impl LockStatus {
    const fn unsaid() -> bool {
        true
    }
}

/// What is requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestSpec {
    /// Of which cluster.
    pub cluster_name: String,
    /// `NodeMaintenanceRequest` or `ClusterMaintenanceRequest`.
    pub kind: String,
    /// The machine. None: the cluster itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// What may be done.
    pub scope: Scope,
    /// The machine is removed for good: it does not come back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removal: bool,
    /// The release that is coming. Empty: none is, as in maintenance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
}

/// What it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestStatus {
    /// `waiting` for locks, or `granted`.
    pub state: String,
    /// Which locks are still active, in the product's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A machine that an operator has taken out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceStatus {
    /// Since when it is out of service. None: it is on its way there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// It is wanted back.
    pub leaving: bool,
}

/// How far an update is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// What may be done to machines.
    pub scope: Scope,
    /// The release all go to.
    pub release: String,
    /// Steps of the cluster.
    pub stages: Vec<StageStatus>,
    /// What it adds to machines' lists, hooks and backups, in the order of machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookStatus>,
    /// Backups that were made for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<BackupStatus>,
    /// An operator does without backups.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_backup: bool,
    /// How far each update group is, in the order in which they go. Empty: the cluster has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupStatus>,
    /// Nothing moves by itself any more: an operator decides what is next.
    pub needs_operator: bool,
    /// Its machines in the order in which they go, and how far each is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineProgress>,
    /// Machines that have not come to their end and do not move, and why.
    pub waiting: Vec<Waiting>,
    /// Since when it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Timestamp>,
    /// Paused for over a day: a cluster between two releases is a risk.
    pub paused_too_long: bool,
}

/// How far a hook of an update, or a backup, is on one machine.
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
    /// The machine it lies on.
    pub machine: String,
    /// The item that made it.
    pub item: String,
    /// Its file there.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Its digest, in hex.
    pub sha256: String,
    /// What was said of it: a copy may be hot though a consistent one was wanted.
    pub message: String,
    /// When, by the machine's clock.
    pub taken_at: Timestamp,
}

/// How far an update group is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its place in the order; equal ones go together.
    pub index: u32,
    /// Its workers in this rollout.
    pub total: u32,
    /// Those that have come to their end.
    pub done: u32,
}

/// How far an update is on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineProgress {
    /// Its name.
    pub machine: String,
    /// `done`, `under way`, `waiting` (why is in `waiting`), `in maintenance`, or `left out`: it keeps what it had.
    pub progress: String,
    /// The item under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

/// A machine that does not move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Its name.
    pub machine: String,
    /// Its named reason.
    pub reason: Reason,
    /// In words.
    pub message: String,
    /// What lets it go on.
    pub clears_when: String,
}

/// A stage that takes longer than it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StuckStage {
    /// Its name.
    pub stage: String,
    /// When it began.
    pub since: Timestamp,
    /// Whose it is, in the status of a cluster. None: the cluster's own, or the machine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// What became of an operator's wish that a machine reboots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RebootStatus {
    /// When it was applied.
    pub requested_at: Timestamp,
    /// Has it rebooted since, because of it?
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
    /// What may be done to machines.
    pub scope: Scope,
    /// Why it cannot start, where that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Names what it would do, to start this and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Warnings: what would hold it up if it started now.
    pub warnings: Vec<String>,
    /// What it will not do, though an operator may expect it to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The phases that are present, in order.
    pub phases: Vec<UpdatePhase>,
    /// Machines on which something changes, in the order in which they go.
    pub machines: Vec<ChangedMachine>,
    /// Machines on which nothing changes.
    pub unchanged: u32,
}

/// One phase of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePhase {
    /// Its name.
    pub name: String,
    /// What happens in it.
    pub what: String,
    /// What users and workloads notice.
    pub impact: String,
    /// Can it be paused, and what that means.
    pub pause: String,
}

/// A machine on which something changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangedMachine {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub machine_type: MachineType,
    /// The update group it goes with. None: a control machine, or a cluster without groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Items that change, in the order they run.
    pub items: Vec<String>,
    /// Must its workloads move away?
    pub disruptive: bool,
}
