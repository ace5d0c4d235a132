//! Stored rows of an update.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{
    DeadlineOutcome, Generation, ItemName, MachineName, Scope, SecretName, SwarmAvailability, UpdateGroupName,
};
use serde::{Deserialize, Serialize};

use super::{
    Added, AddedEnd, AddedReboot, BackupRow, Drains, ForcedPod, MachineRow, RenewedPod, RenewedSet, Stage, StageRow,
    StandingRequest, SwarmTarget,
};

/// A machine's own params of single items.
pub type Overwrites = BTreeMap<ItemName, BTreeMap<String, String>>;

/// The update part of a rollout: its plan, frozen at the start, and its progress in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRow {
    /// Its kind.
    #[serde(default)]
    pub kind: UpdateKind,
    /// What it may do to machines.
    pub scope: Scope,
    /// Target version of the spec.
    pub version: u64,
    /// Its release, readable after the spec is dropped.
    #[serde(default)]
    pub release: String,
    /// Skip the majority check: an operator accepts that the control plane is down for a while.
    pub accept_control_plane_downtime: bool,
    /// Participating machines, and the work on each.
    pub targets: BTreeMap<MachineName, Target>,
    /// The operators' current command.
    pub desired: DesiredState,
    /// The current ClusterMaintenanceRequest.
    pub request: Option<RequestRow>,
    /// The object that stands for the request in the Kubernetes cluster. None: none was seen yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<StandingRequest>,
    /// Time of the last machine's end or of an operator's last command, in Unix milliseconds: deadlines restart then.
    pub moved_at_ms: u64,
    /// Number of machines that have ended.
    #[serde(default)]
    pub ends: u32,
    /// Time of an operator's last command, in Unix milliseconds: the time of a pause is excluded.
    #[serde(default)]
    pub resumed_at_ms: u64,
    /// Machines that have ended since the last retry of deferred machines.
    pub finished_in_round: u32,
    /// Steps of the cluster.
    pub stages: BTreeMap<ClusterStage, StageRow>,
    /// An operator skips its backups.
    #[serde(default)]
    pub skip_backup: bool,
    /// Its backups, in the order of recording.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<BackupRow>,
    /// The DaemonSets whose pods it renews, by `namespace/name`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub renewed_sets: BTreeMap<String, RenewedSet>,
}

impl UpdateRow {
    /// Has a machine outside the update completed it? Maintenance is complete when the machine is back.
    #[must_use]
    pub fn is_complete(&self, machine: &MachineRow) -> bool {
        let upgraded = machine.stages.get(&Stage::Upgraded).is_some_and(|stage| stage.succeeded);
        let back = self.kind == UpdateKind::Maintenance && self.desired != DesiredState::Abort && !machine.revoked;
        upgraded || (back && machine.update.is_none())
    }
}

/// Kind of a rollout that takes machines out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateKind {
    /// Machines go to another version of the spec.
    #[default]
    Update,
    /// The set of control machines changed: machines run the items that refer to it, and keep their version.
    Reconfigure,
    /// Machines reboot and keep their version.
    Reboot,
    /// Machines are out of service until an operator returns them, and keep their version.
    Maintenance,
    /// Machines go out of service, and are then removed.
    Removal,
}

impl UpdateKind {
    /// Its part in the rollout's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Reconfigure => "reconfigure",
            Self::Reboot => "reboot",
            Self::Maintenance => "maintenance",
            Self::Removal => "removal",
        }
    }

    /// Does it bring a release for which application controllers may have to prepare?
    #[must_use]
    pub const fn brings_release(self) -> bool {
        matches!(self, Self::Update | Self::Reconfigure)
    }

    /// Do its machines go out of service and keep their version?
    #[must_use]
    pub const fn takes_out(self) -> bool {
        matches!(self, Self::Maintenance | Self::Removal)
    }
}

/// The work of an update on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Items that are incomplete at the wanted version, in the order they run.
    pub changed: Vec<ItemName>,
    /// Its update group. None: the default group.
    #[serde(default)]
    pub group: Option<UpdateGroupName>,
    /// Does one of them disturb workloads?
    pub disruptive: bool,
    /// Additions to its list, in the order they run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Added>,
    /// Additions that were done when the machine left the update or ended.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<Added>,
    /// Other results of additions by then; a skipped one also counts as done.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ends: BTreeSet<(Added, AddedEnd)>,
}

/// An operators' command for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DesiredState {
    /// Continue.
    Go,
    /// Stop new starts; machines that were disturbed complete their part.
    Pause {
        /// Start of the pause, in Unix milliseconds.
        since_ms: u64,
    },
    /// Stop starting anything new for good, and give back what was taken.
    Abort,
}

/// An existing maintenance request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Start in Unix milliseconds.
    pub since_ms: u64,
    /// An older answer belongs to another request.
    pub revision: u64,
}

/// A machine's part in an update, from the start until it is done or has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineUpdate {
    /// Target version of the spec.
    pub version: u64,
    /// Its own params, frozen with the plan.
    pub overwrites: Overwrites,
    /// Its update group, frozen with the plan. None: the default group.
    #[serde(default)]
    pub group: Option<UpdateGroupName>,
    /// Versions of secrets for its items, frozen with the plan.
    #[serde(default)]
    pub secrets: BTreeMap<SecretName, u64>,
    /// Does it need a request, locks and permits? Checked again when it takes its slot.
    pub disruptive: bool,
    /// The reboot at the end of its list.
    #[serde(default)]
    pub reboot: Option<AddedReboot>,
    /// Other additions to its list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Added>,
    /// Only its additions may start: the hooks before or after the update are in progress.
    #[serde(default)]
    pub hooks_only: bool,
    /// Its current NodeMaintenanceRequest.
    pub request: Option<RequestRow>,
    /// The object that stands for the request in the Kubernetes cluster. None: none was seen yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<StandingRequest>,
    /// The same for its NodeDeletionRequest, while it is removed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing_deletion: Option<StandingRequest>,
    /// Number of other machines that had ended when the request was made.
    #[serde(default)]
    pub ends_before: u32,
    /// The newest permit. After the first one, the machine must continue to its end.
    pub permit: Option<PermitRow>,
    /// Time of the request's removal, in Unix milliseconds: its locks should become active again.
    pub returned_at_ms: Option<u64>,
    /// The deferral after a refusal: it no longer blocks the others.
    pub deferral: Option<Deferral>,
    /// The stage past its deadline.
    #[serde(default)]
    pub stuck: Option<Stuck>,
    /// The drains of its nodes.
    #[serde(default)]
    pub drains: Drains,
    /// Pods that are deleted in this turn, as an operator said. They end with the turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced_pods: Vec<ForcedPod>,
    /// It only goes out of service.
    #[serde(default)]
    pub maintenance: Option<MaintenanceRow>,
    /// It is done with the update, and pods of DaemonSets are renewed on its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal: Option<RenewalRow>,
}

/// The renewal of pods on a machine's node, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewalRow {
    /// The pod that was, or is about to be, evicted. None: the next one is still to be chosen, or none is left.
    pub evicted: Option<RenewedPod>,
}

/// Annotations that Muster puts on a Kubernetes node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutAnnotations {
    /// The annotations. Empty: they are being taken back.
    pub values: BTreeMap<String, String>,
    /// Has the API server confirmed them?
    pub confirmed: bool,
}

/// A machine that an operator takes out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceRow {
    /// Time since when it is out of service, in Unix milliseconds: its locks are inactive, its node is drained, nothing
    /// runs on it. None: it is on its way.
    pub since_ms: Option<u64>,
    /// An operator wants it back.
    pub leaving: bool,
    /// Skip the majority check for this machine: the control plane may be down for a while.
    #[serde(default)]
    pub accept_control_plane_downtime: bool,
}

impl MachineUpdate {
    /// May something disruptive have been started here?
    #[must_use]
    pub const fn disturbed(&self) -> bool {
        self.permit.is_some()
    }

    /// Are its nodes drained before it is disturbed? A renewal of pods moves no others.
    #[must_use]
    pub const fn drains_nodes(&self) -> bool {
        self.disruptive && self.renewal.is_none()
    }

    /// Is its Swarm node drained by Muster, or may that drain be ordered by now? False if an operator had drained it.
    #[must_use]
    pub fn takes_tasks(&self) -> bool {
        self.drains.swarm.as_ref().is_some_and(|row| match row.target {
            SwarmTarget::Node { was, .. } => was != SwarmAvailability::Drain,
            SwarmTarget::Unknown | SwarmTarget::Absent => false,
        })
    }

    /// Is this item an addition of the update?
    #[must_use]
    pub fn adds(&self, item: &ItemName) -> bool {
        self.added.iter().any(|added| added.item_name() == item.as_str())
    }

    /// Is the machine out of service, and to stay so for now? Its operator decides what it does meanwhile.
    #[must_use]
    pub fn in_maintenance(&self) -> bool {
        self.maintenance.is_some_and(|row| row.since_ms.is_some() && !row.leaving)
    }
}

/// Permission to start one attempt at one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitRow {
    /// From 1; counts on over all updates of the machine.
    pub number: u64,
    /// The item.
    pub item: ItemName,
    /// The attempt.
    pub attempt: u32,
    /// It is unusable: the agent reported so, or never received it.
    pub expired: bool,
    /// Generation of the first list with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Generation>,
}

/// A stage past its deadline (LCM's `lcmOperationStuck`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The stage.
    pub stage: Stage,
    /// Start of the stage, in Unix milliseconds.
    pub since_ms: u64,
    /// Does the machine count against the failure budget until the stage is done?
    pub counts: bool,
    /// What it waited for, in one sentence; empty: its items.
    pub message: String,
}

/// A machine's deferral.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferral {
    /// The reason in one sentence: the controllers' own words.
    pub message: String,
    /// The cause.
    pub cause: DeferralCause,
}

impl Deferral {
    /// Does it count against the failure budget? Then only an operator can retry it.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.cause == DeferralCause::Failed
    }

    /// Is it tried again after the others?
    #[must_use]
    pub fn is_tried_again(&self) -> bool {
        matches!(self.cause, DeferralCause::Late | DeferralCause::Lost)
    }
}

/// Why a machine was deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeferralCause {
    /// A deadline passed, and the policy is to retry it after the others.
    Late,
    /// A deadline passed, and the policy is that it has failed.
    Failed,
    /// It was lost while still undisturbed. It returns automatically.
    Lost,
    /// Its workloads can never be moved away as things are. An operator changes that, and retries it.
    Undrainable,
    /// An operator made its node schedulable during the drain, and retries it when that is over.
    Uncordoned,
}

impl DeferralCause {
    /// The effect of a deadline's outcome on a machine.
    #[must_use]
    pub fn of(outcome: DeadlineOutcome) -> Self {
        match outcome {
            DeadlineOutcome::Fail => Self::Failed,
            DeadlineOutcome::Defer | DeadlineOutcome::Pause => Self::Late,
        }
    }
}

/// The stages of a cluster's update, in order, under their operator-visible names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClusterStage {
    /// `Hooks and backups before the update done`.
    HooksBefore,
    /// `Requested cluster maintenance`.
    Requested,
    /// `Cluster workload locks are inactive`.
    LocksInactive,
    /// `Control plane nodes upgraded`.
    ControlUpgraded,
    /// `Worker nodes upgraded`.
    WorkersUpgraded,
    /// `All machines of the cluster upgraded`.
    AllUpgraded,
    /// `Add-ons verified`.
    AddonsVerified,
    /// `Hooks after the update done`.
    HooksAfter,
    /// `Pods of OnDelete DaemonSets renewed`.
    PodsRenewed,
    /// `Cluster maintenance request removed`.
    RequestRemoved,
}

impl ClusterStage {
    /// All stages, in order.
    pub const ALL: &'static [Self] = &[
        Self::HooksBefore,
        Self::Requested,
        Self::LocksInactive,
        Self::ControlUpgraded,
        Self::WorkersUpgraded,
        Self::AllUpgraded,
        Self::AddonsVerified,
        Self::HooksAfter,
        Self::PodsRenewed,
        Self::RequestRemoved,
    ];

    /// The operator-visible name. Only an update upgrades anything.
    #[must_use]
    pub const fn name(self, kind: UpdateKind) -> &'static str {
        match self {
            Self::ControlUpgraded if !matches!(kind, UpdateKind::Update) => "Control plane nodes done",
            Self::WorkersUpgraded if !matches!(kind, UpdateKind::Update) => "Worker nodes done",
            Self::AllUpgraded if !matches!(kind, UpdateKind::Update) => "All machines of the rollout done",
            Self::HooksBefore => "Hooks and backups before the update done",
            Self::Requested => "Requested cluster maintenance",
            Self::LocksInactive => "Cluster workload locks are inactive",
            Self::ControlUpgraded => "Control plane nodes upgraded",
            Self::WorkersUpgraded => "Worker nodes upgraded",
            Self::AllUpgraded => "All machines of the cluster upgraded",
            Self::AddonsVerified => "Add-ons verified",
            Self::HooksAfter => "Hooks after the update done",
            Self::PodsRenewed => "Pods of OnDelete DaemonSets renewed",
            Self::RequestRemoved => "Cluster maintenance request removed",
        }
    }
}
