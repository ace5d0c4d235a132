//! The domain types (glossary in docs/ARCHITECTURE.md). Plain data: no I/O, no clock.

mod backup;
mod control_plane;
mod duration;
mod facts;
mod hook;
mod ids;
mod input;
mod item;
mod kubernetes;
mod maintenance;
mod network;
mod package;
mod proof;
mod reason;
mod spec;
mod status;
mod swarm;
mod swarm_join;

pub use backup::Backups;
pub use control_plane::{
    AdminConf, ControlPlaneAnswer, ControlPlaneCall, ControlPlaneOp, ControlPlaneReply, EtcdClient, EtcdHealth,
    EtcdProbe, KUBECONFIG_BYTES_MAX, PROBE_TEXT_BYTES_MAX,
};
pub use duration::duration_ms;
pub use facts::{Disk, HostFacts, NetworkInterface, own_label};
pub use hook::{Hook, HookMachines, UpdateHooks};
pub use ids::{
    CONSISTENT_COPY_ITEM, ClusterName, Epoch, Generation, InvalidName, ItemName, LABEL_BYTES_MAX, LedgerId,
    LedgerOrdinal, MKE_BACKUP_ITEM, MachineId, MachineName, OWN_ITEMS, REBOOT_ITEM, SWARM_COPY_ITEM, SecretName, Seq,
    UpdateGroupName, is_label,
};
pub use input::{INPUT_BYTES_MAX, INPUTS_PER_ITEM_MAX, ItemInput};
pub use item::{
    AssignedItem, Assignment, IGNORE_CHANGES_MAX, ItemHash, MachineType, OnInterrupt, PARAM_BYTES_MAX,
    PARAM_NAME_BYTES_MAX, Permit, Phase, RETRIES_DEFAULT, RETRIES_MAX, RunnerKind, StateItem, TIMEOUT_DEFAULT,
    TIMEOUT_MAX, Unknown, VAR_NAME_BYTES_MAX, VARS_DEPTH_MAX, is_param_name, is_var_name,
};
pub use kubernetes::{
    Addon, AddonDeployment, AddonManifest, EVICTIONS_AT_ONCE_MAX, HELM_CONTROLLER, HelmController, KubeconfigSource,
    KubernetesDrain, KubernetesSpec, MaintenanceObjects, ObjectController, OnDeleteDaemonSets, PROBE_VARIABLES,
    UnmanagedPods,
};
pub use maintenance::{
    DEFAULT_GROUP, DEFAULT_GROUP_INDEX, Deadline, DeadlineOutcome, LockState, MANUAL, MIGRATION_MODE, RemovalPolicy,
    Scope, UpdateDeadlines, UpdateGroup,
};
pub use network::Network;
pub use package::package_and_version;
pub use proof::{AckProof, AuthCode, ListProof};
pub use reason::{Reason, Severity};
pub use spec::{
    ClusterSpec, Counts, LcmType, MachineSpec, TOKEN_TTL_DEFAULT_MS, TOKEN_TTL_MAX_MS, WORKERS_AT_ONCE_MAX,
};
pub use status::{ItemProgress, ItemState, ItemStatus};
pub use swarm::{
    InvalidSwarmId, SWARM_ID_BYTES_MAX, SWARM_LABELS_BYTES_MAX, SWARM_LABELS_MAX, SWARM_NODES_MAX, SWARM_SERVICES_MAX,
    SWARM_TASKS_MAX, SwarmAnswer, SwarmAvailability, SwarmCall, SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo,
    SwarmLabels, SwarmLocalState, SwarmManager, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply, SwarmService,
    SwarmTask, SwarmTokens, are_labels_few,
};
pub use swarm_join::{SWARM_JOIN_INPUT, SWARM_LABEL, SWARM_TOKEN_INPUT, SwarmJoin, SwarmMember, SwarmWay};

use serde::{Deserialize, Serialize};

/// A point in time, passed to decisions as an argument: pure code reads no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Now {
    /// Unix time in milliseconds. For people and records; it may jump.
    pub wall_ms: u64,
    /// Milliseconds of a monotonic clock with an arbitrary zero. For deadlines and ages within one process.
    pub mono_ms: u64,
}

/// A wait with its reason. Every idle machine has one until it is final.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// Named reason of the wait.
    pub reason: Reason,
    /// What is awaited, in one sentence.
    pub message: String,
    /// What ends the wait: an event, or an action of a person.
    pub clears_when: String,
}
