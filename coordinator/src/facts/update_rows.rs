//! The rows of an update, as they are stored.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{
    DeadlineOutcome, Generation, ItemName, MachineName, Scope, SecretName, SwarmAvailability, SwarmId, UpdateGroupName,
};
use serde::{Deserialize, Serialize};

use super::{Added, AddedEnd, AddedReboot, BackupRow, MachineRow, Stage, StageRow};

/// Params of single items that belong to one machine.
pub type Overwrites = BTreeMap<ItemName, BTreeMap<String, String>>;

/// What makes a rollout an update: the plan as it was frozen at its start, and how far the cluster is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRow {
    /// What it is for.
    #[serde(default)]
    pub kind: UpdateKind,
    /// What it may do to machines.
    pub scope: Scope,
    /// Version of the spec that every machine goes to.
    pub version: u64,
    /// Its release, for those who read this when the spec is long forgotten.
    #[serde(default)]
    pub release: String,
    /// An operator accepts that the control plane is down for a while: no majority is asked for.
    pub accept_control_plane_downtime: bool,
    /// Who takes part, and what is to be done there.
    pub targets: BTreeMap<MachineName, Target>,
    /// What the operators want of it now.
    pub wish: Wish,
    /// The ClusterMaintenanceRequest, while it is there.
    pub request: Option<RequestRow>,
    /// Unix milliseconds of the last machine's end, or of an operator's last word: deadlines start anew then.
    pub moved_at_ms: u64,
    /// How many machines have come to their end.
    #[serde(default)]
    pub ends: u32,
    /// Unix milliseconds of an operator's last word: the time of a pause is nobody's fault.
    #[serde(default)]
    pub resumed_at_ms: u64,
    /// Machines that came to their end since the last time that those put aside were tried again.
    pub finished_in_round: u32,
    /// Steps of the cluster.
    pub stages: BTreeMap<ClusterStage, StageRow>,
    /// An operator does without backups.
    #[serde(default)]
    pub skip_backup: bool,
    /// Backups that were made for it, in the order in which they were noted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<BackupRow>,
}

impl UpdateRow {
    /// Has a machine that is no part of it any more come to its end in it? Out of maintenance it is when it is back.
    #[must_use]
    pub fn is_through(&self, machine: &MachineRow) -> bool {
        let upgraded = machine.stages.get(&Stage::Upgraded).is_some_and(|stage| stage.succeeded);
        let back = self.kind == UpdateKind::Maintenance && self.wish != Wish::Abort && !machine.revoked;
        upgraded || (back && machine.update.is_none())
    }
}

/// What a rollout is for that takes machines out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateKind {
    /// Machines go to another version of the spec.
    #[default]
    Update,
    /// The set of control machines changed: machines run what refers to it, and stay at the version they have.
    Reconfigure,
    /// Machines reboot, and stay at the version they have.
    Reboot,
    /// Machines are out of service until an operator gives them back, and stay at the version they have.
    Maintenance,
    /// Machines go out of service, and then for good.
    Removal,
}

impl UpdateKind {
    /// As it stands in the rollout's name.
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

    /// Is a release coming with such a rollout, which application controllers may have to get ready for?
    #[must_use]
    pub const fn brings_release(self) -> bool {
        matches!(self, Self::Update | Self::Reconfigure)
    }

    /// Do machines of such a rollout go out of service, and keep the version they have?
    #[must_use]
    pub const fn takes_out(self) -> bool {
        matches!(self, Self::Maintenance | Self::Removal)
    }
}

/// What an update does to one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Items that are not done at the version wanted, in the order they run.
    pub changed: Vec<ItemName>,
    /// The update group it goes with. None: the default group.
    #[serde(default)]
    pub group: Option<UpdateGroupName>,
    /// Does one of them disturb workloads?
    pub disruptive: bool,
    /// What is added to its list, in the order it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Added>,
    /// What of that was done when the machine left the update, or came to its end.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<Added>,
    /// How else it stood then: what was skipped is done as well.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ends: BTreeSet<(Added, AddedEnd)>,
}

/// What the operators want of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// It goes on.
    Go,
    /// Nothing new starts; what has been disturbed comes to its end.
    Pause {
        /// Unix milliseconds.
        since_ms: u64,
    },
    /// Nothing new starts ever; what was taken is given back.
    Abort,
}

/// A maintenance request that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Unix milliseconds.
    pub since_ms: u64,
    /// An answer that is older than this answers something else.
    pub revision: u64,
}

/// A machine's part in an update, from the start until it is done or has left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineUpdate {
    /// Version of the spec it goes to.
    pub version: u64,
    /// Its own params, as they were when the plan was frozen.
    pub overwrites: Overwrites,
    /// The update group it goes with, as it was when the plan was frozen. None: the default group.
    #[serde(default)]
    pub group: Option<UpdateGroupName>,
    /// Versions of the secrets that its items may refer to, as they were then.
    #[serde(default)]
    pub secrets: BTreeMap<SecretName, u64>,
    /// Does it need a request, locks and permits? Looked at again when it takes its slot.
    pub disruptive: bool,
    /// The reboot at the end of its list.
    #[serde(default)]
    pub reboot: Option<AddedReboot>,
    /// What else is in its list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Added>,
    /// Nothing is started on it but what was added: the hooks before, or after, are under way.
    #[serde(default)]
    pub only_added: bool,
    /// Its NodeMaintenanceRequest, while it is there.
    pub request: Option<RequestRow>,
    /// How many others had come to their end when the request was made.
    #[serde(default)]
    pub ends_before: u32,
    /// The newest permit. From the first one on there is no way back: it goes on to its end.
    pub permit: Option<PermitRow>,
    /// Unix milliseconds of the request's removal: its locks are to be active again.
    pub returned_at_ms: Option<u64>,
    /// It was refused, and is out of the way of the others.
    pub set_aside: Option<SetAside>,
    /// The stage that takes longer than it may.
    #[serde(default)]
    pub stuck: Option<Stuck>,
    /// Its node in the Swarm is drained, or is to be, or is to be given back.
    #[serde(default)]
    pub drain: Option<DrainRow>,
    /// How often its drain was begun in this update.
    #[serde(default)]
    pub drains: u32,
    /// It goes out of service, and nothing else is done to it.
    #[serde(default)]
    pub maintenance: Option<MaintenanceRow>,
}

/// A machine that an operator takes out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceRow {
    /// Unix milliseconds since when it is out of service: its locks are inactive, its node is drained, nothing runs on
    /// it. None: it is on its way.
    pub since_ms: Option<u64>,
    /// An operator wants it back.
    pub leaving: bool,
    /// The control plane may be down for a while, for this machine's sake.
    #[serde(default)]
    pub accept_control_plane_downtime: bool,
}

/// The Swarm drain of a machine, from its beginning until its node is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRow {
    /// Unix milliseconds.
    pub since_ms: u64,
    /// What is drained.
    pub target: DrainTarget,
}

/// What a machine is in the Swarm. Recorded before anything of it is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainTarget {
    /// It has not been asked yet.
    Unknown,
    /// Its engine is in no swarm: no task of a service can run there.
    Absent,
    /// A node.
    Node {
        /// Its id, as its own engine and the managers say.
        id: SwarmId,
        /// The availability somebody else last gave it: it gets that back.
        was: SwarmAvailability,
    },
}

impl MachineUpdate {
    /// May something disruptive have been started here?
    #[must_use]
    pub const fn disturbed(&self) -> bool {
        self.permit.is_some()
    }

    /// Is its Swarm node drained, or may that be ordered by now? Not for us if somebody else had drained it.
    #[must_use]
    pub fn takes_tasks(&self) -> bool {
        self.drain.as_ref().is_some_and(|row| match row.target {
            DrainTarget::Node { was, .. } => was != SwarmAvailability::Drain,
            DrainTarget::Unknown | DrainTarget::Absent => false,
        })
    }

    /// Is this item one that the update has added?
    #[must_use]
    pub fn adds(&self, item: &ItemName) -> bool {
        self.added.iter().any(|added| added.item_name() == item.as_str())
    }

    /// Is the machine out of service, and nobody wants it back yet? What it does meanwhile is its operator's affair.
    #[must_use]
    pub fn in_maintenance(&self) -> bool {
        self.maintenance.is_some_and(|row| row.since_ms.is_some() && !row.leaving)
    }
}

/// Leave to start one attempt at one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitRow {
    /// From 1; counts on over all updates of the machine.
    pub number: u64,
    /// At this item.
    pub item: ItemName,
    /// This attempt.
    pub attempt: u32,
    /// Nothing will start under it: the agent says so, or it never reached it.
    pub expired: bool,
    /// Generation of the list that showed it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Generation>,
}

/// A stage that is past its deadline (LCM's `lcmOperationStuck`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// Which.
    pub stage: Stage,
    /// Unix milliseconds of the stage's beginning.
    pub since_ms: u64,
    /// Does the machine count against the failure budget until the stage is done?
    pub counts: bool,
    /// What was waited for, in one sentence; empty: its items.
    pub message: String,
}

/// Why a machine is out of the way of the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// In one sentence: the controllers' own words.
    pub message: String,
    /// What was decided about it.
    pub cause: DeferralCause,
}

impl SetAside {
    /// Does it count against the failure budget? Then it is not tried again by itself.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.cause == DeferralCause::Failed
    }
}

/// Why a machine was deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeferralCause {
    /// A deadline passed, and the policy is to try it again after the others.
    Late,
    /// A deadline passed, and the policy is that it has failed.
    Failed,
    /// It is lost and was not disturbed yet. It comes back by itself.
    Lost,
}

impl DeferralCause {
    /// What a deadline with this outcome makes of a machine.
    #[must_use]
    pub fn of(outcome: DeadlineOutcome) -> Self {
        match outcome {
            DeadlineOutcome::Fail => Self::Failed,
            DeadlineOutcome::Defer | DeadlineOutcome::Pause => Self::Late,
        }
    }
}

/// The stages of a cluster's update, in order, under the names operators know.
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
    /// `Hooks after the update done`.
    HooksAfter,
    /// `Cluster maintenance request removed`.
    RequestRemoved,
}

impl ClusterStage {
    /// All of them, in order.
    pub const ALL: &'static [Self] = &[
        Self::HooksBefore,
        Self::Requested,
        Self::LocksInactive,
        Self::ControlUpgraded,
        Self::WorkersUpgraded,
        Self::AllUpgraded,
        Self::HooksAfter,
        Self::RequestRemoved,
    ];

    /// The name operators know. Only an update upgrades anything.
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
            Self::HooksAfter => "Hooks after the update done",
            Self::RequestRemoved => "Cluster maintenance request removed",
        }
    }
}
