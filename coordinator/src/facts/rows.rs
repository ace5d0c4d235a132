//! Stored rows of the record.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_proto::{
    VERSION,
    address::Addresses,
    model::{
        ClusterName, ClusterSpec, Epoch, Generation, HostFacts, ItemHash, ItemName, ItemState, ItemStatus, LedgerId,
        LedgerOrdinal, MachineId, MachineName, MachineSpec, MachineType, Phase, Reason, SecretName, Seq, SwarmMember,
    },
    seeded_bug::seeded_bug,
};
use serde::{Deserialize, Serialize};

use super::{
    AddonRow, AuditScope, ControlSet, EnrolledWith, FORMAT, FormerNode, MachineUpdate, Member, Overwrites, OwedCordon,
    PutAnnotations, RebootAsked, RemovalRow, UpdateRow,
};

/// Facts about the whole coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Format of the record: [`FORMAT`].
    pub format: u64,
    /// Version of the coordinator that created the record.
    pub written_by: String,
    /// Epoch of the running or last coordinator: each start takes the next.
    pub epoch: Epoch,
    /// The highest epoch shown by any agent. If it is above ours, this store is older than the fleet.
    pub fleet_epoch: Epoch,
    /// `muster-coordinator recover` was run: the agents' ledgers supply what this store lacks.
    pub recovering: bool,
    /// Epoch of the first coordinator after the newest `recover`; 0: none. Claims from earlier epochs, and identities
    /// unknown to this store, prove nothing any more.
    #[serde(default)]
    pub recovered_epoch: Epoch,
    /// `HOST:PORT` for new credentials.
    #[serde(default)]
    pub address: String,
    /// The coordinator's addresses for agents. None: agents get none.
    #[serde(default)]
    pub advertised: Option<Addresses>,
    /// Number of the newest audit line.
    pub audit_seq: u64,
    /// Number of the newest audit line that was in the journal before the newest batch with audit lines.
    pub audit_told: u64,
    /// All chains of audit lines ever begun.
    pub audit_chains: BTreeSet<AuditScope>,
    /// Number of the newest lock change or request.
    #[serde(default)]
    pub revision: u64,
    /// Version of the newest secret.
    #[serde(default)]
    pub secret_seq: u64,
}

/// The row of a new record.
impl Default for Meta {
    fn default() -> Self {
        Self {
            format: FORMAT,
            written_by: VERSION.to_owned(),
            epoch: Epoch::default(),
            fleet_epoch: Epoch::default(),
            recovering: false,
            recovered_epoch: Epoch::default(),
            address: String::new(),
            advertised: None,
            audit_seq: 0,
            audit_told: 0,
            audit_chains: BTreeSet::new(),
            revision: 0,
            secret_seq: 0,
        }
    }
}

/// A cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRow {
    /// Its name.
    pub name: ClusterName,
    /// Creation in Unix milliseconds.
    pub created_at_ms: u64,
    /// Operators' notes.
    pub annotations: BTreeMap<String, String>,
    /// Version of the newest spec; machines follow it until they are Ready.
    pub spec_version: u64,
    /// An operator ran `deploy`: start with the machines that have reported.
    pub deploy_requested: bool,
    /// Number of the newest rollout.
    pub rollout_seq: u64,
    /// The control machines, once the last expected one is Ready.
    pub control_set: Vec<MachineName>,
    /// Identities of those machines, and their addresses when the set became complete.
    #[serde(default)]
    pub control_members: BTreeMap<MachineName, Member>,
    /// Number of changes of the set.
    #[serde(default)]
    pub control_version: u64,
    /// The machine that was told to create the cluster's swarm. It may have done so, whatever the later facts.
    #[serde(default)]
    pub swarm_init: Option<MachineId>,
    /// UID of namespace `kube-system` at the first contact with its Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_uid: Option<String>,
    /// Requests of Muster's may be in its Kubernetes cluster: one was made, and no list has shown since that none is
    /// left.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub kubernetes_requests: bool,
    /// Annotations for application controllers that Muster put on Kubernetes nodes, by the node's name. They outlive
    /// their machine: what no turn needs any more is taken back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kubernetes_annotations: BTreeMap<String, PutAnnotations>,
    /// Its add-ons that were applied, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addons: BTreeMap<String, AddonRow>,
    /// Why new starts are blocked, and since when.
    pub blocked_since: Option<(Reason, u64)>,
}

/// One version of a cluster's spec. Kept while a machine follows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecRow {
    /// The cluster.
    pub cluster: ClusterName,
    /// Its number, from 1.
    pub version: u64,
    /// The spec.
    pub spec: Arc<ClusterSpec>,
}

/// A machine's slot in its rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Its phase: `deploy` or `reconfigure`.
    pub phase: Phase,
    /// Time of the grant, in Unix milliseconds.
    pub granted_at_ms: u64,
}

/// The decision of an operator, or of a ledger's loss, about an item. It applies to this hash only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemOverride {
    /// Hash of the item.
    pub hash: ItemHash,
    /// Attempts up to this one are ignored.
    pub cleared_attempts: u32,
    /// Leave the item out of the assignment: it counts as done.
    pub left_out: Option<LeftOut>,
}

/// Why an item counts as done although the agent's ledger lacks a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftOut {
    /// An operator skipped it.
    Skipped,
    /// An operator reviewed it and declares it done.
    Accepted,
    /// It succeeded under a ledger that the machine has since lost.
    DoneBefore,
}

/// The last assignment of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// Generation of the newest assignment. 0 = none yet.
    pub generation: Generation,
    /// Digest of its content: other content gets another generation.
    pub digest: Option<ItemHash>,
    /// The newest generation that the agent accepted.
    pub accepted: Generation,
    /// Why the agent refused it.
    pub refused: Option<String>,
}

/// A step of a rollout on a machine (domain.md §3). `Success` is never overwritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRow {
    /// Start in Unix milliseconds.
    pub started_at_ms: u64,
    /// End in Unix milliseconds, once it has ended.
    pub finished_at_ms: Option<u64>,
    /// Did it succeed?
    pub succeeded: bool,
}

/// The stages of a machine's rollout, in order, under their operator-visible names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// `Prepare phase done`.
    PrepareDone,
    /// `Previous machines are deployed`.
    PreviousDeployed,
    /// `Node maintenance requested`.
    NodeRequested,
    /// `Node workload locks inactive`.
    LocksInactive,
    /// `Kubernetes drained`.
    KubernetesDrained,
    /// `Swarm drained`.
    SwarmDrained,
    /// `Deploy phase done`.
    DeployDone,
    /// `Reconfigure phase done`.
    ReconfigureDone,
    /// `Reboot done`.
    RebootDone,
    /// `Machine upgraded`.
    Upgraded,
    /// `Swarm uncordoned`.
    SwarmUncordoned,
    /// `Kubernetes uncordoned`.
    KubernetesUncordoned,
    /// `DaemonSet pods renewed`.
    PodsRenewed,
    /// `Node maintenance request removed`.
    RequestRemoved,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: &'static [Self] = &[
        Self::PrepareDone,
        Self::PreviousDeployed,
        Self::NodeRequested,
        Self::LocksInactive,
        Self::KubernetesDrained,
        Self::SwarmDrained,
        Self::DeployDone,
        Self::ReconfigureDone,
        Self::RebootDone,
        Self::Upgraded,
        Self::SwarmUncordoned,
        Self::KubernetesUncordoned,
        Self::PodsRenewed,
        Self::RequestRemoved,
    ];

    /// The operator-visible name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrepareDone => "Prepare phase done",
            Self::PreviousDeployed => "Previous machines are deployed",
            Self::NodeRequested => "Node maintenance requested",
            Self::LocksInactive => "Node workload locks inactive",
            Self::KubernetesDrained => "Kubernetes drained",
            Self::SwarmDrained => "Swarm drained",
            Self::DeployDone => "Deploy phase done",
            Self::ReconfigureDone => "Reconfigure phase done",
            Self::RebootDone => "Reboot done",
            Self::Upgraded => "Machine upgraded",
            Self::SwarmUncordoned => "Swarm uncordoned",
            Self::KubernetesUncordoned => "Kubernetes uncordoned",
            Self::PodsRenewed => "DaemonSet pods renewed",
            Self::RequestRemoved => "Node maintenance request removed",
        }
    }
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRow {
    /// Its name.
    pub name: MachineName,
    /// Creation in Unix milliseconds.
    pub created_at_ms: u64,
    /// Operators' notes.
    pub annotations: BTreeMap<String, String>,
    /// Its desired state.
    pub spec: MachineSpec,
    /// Has it a Machine document?
    pub declared: bool,
    /// Identity in its certificate. None: not enrolled.
    pub id: Option<MachineId>,
    /// Its enrolment data. A repeated request with the same data before its first report means that the answer was
    /// lost.
    #[serde(default)]
    pub enrolled_with: Option<EnrolledWith>,
    /// An operator revoked it.
    pub revoked: bool,
    /// An operator lets a new machine take this name.
    pub replaceable: bool,
    /// Its ledger, and the newest recorded event of it.
    pub ledger: Option<(LedgerId, Seq)>,
    /// Ordinal of that ledger among those of its identity.
    #[serde(default)]
    pub ledger_ordinal: LedgerOrdinal,
    /// Items with a status from another ledger, or from a Hello after `recover`. Their next events may contradict it.
    #[serde(default)]
    pub inherited: BTreeSet<ItemName>,
    /// Version of its agent.
    pub agent_version: String,
    /// Its reported host facts. None: it has never reported.
    pub host: Option<HostFacts>,
    /// Its last assignment.
    pub assigned: Assigned,
    /// Items of all lists given to this identity; its results concern only these. None: unknown, because another
    /// coordinator left them unrecorded, or this store is older.
    #[serde(default)]
    pub assigned_items: Option<BTreeSet<ItemName>>,
    /// Last phase of its list. None: nothing assigned yet.
    pub max_phase: Option<Phase>,
    /// Its slot, from the grant until an outcome is recorded or an operator frees it.
    pub slot: Option<Slot>,
    /// Decisions about single items.
    pub verdicts: BTreeMap<ItemName, ItemOverride>,
    /// Items to run again despite success: successes under lists up to this one are ignored.
    #[serde(default)]
    pub redo: BTreeMap<ItemName, Generation>,
    /// Control machines as the items of each phase see them, frozen when the phase is granted.
    pub control_sets: BTreeMap<Phase, ControlSet>,
    /// The release at which it was last Ready, and the version of the spec. None: never Ready.
    pub ready_at: Option<(String, u64)>,
    /// Was a machine whose place it took ever Ready? The place of a control machine counts for the majority until the
    /// machine is removed, whether the recorded set contains it or not.
    #[serde(default)]
    pub predecessor_ready: bool,
    /// Its own params when it was last Ready: it keeps them until an update.
    #[serde(default)]
    pub ready_overwrites: Option<Overwrites>,
    /// An operator's newest request for a reboot.
    #[serde(default)]
    pub reboot: Option<RebootAsked>,
    /// Its part in its current update.
    #[serde(default)]
    pub update: Option<MachineUpdate>,
    /// An operator's request for its removal.
    #[serde(default)]
    pub removal: Option<RemovalRow>,
    /// After `recover`: it needs review, because it may be in the middle of an update.
    #[serde(default)]
    pub needs_review: bool,
    /// Number of its newest permit.
    #[serde(default)]
    pub permit_seq: u64,
    /// Its place in the swarm, once a swarm-join of it has succeeded.
    #[serde(default)]
    pub swarm: Option<SwarmMember>,
    /// The node of its former identity, and the state that its own node gets back. None: nothing.
    #[serde(default)]
    pub former_node: Option<FormerNode>,
    /// The Kubernetes node that is still cordoned for a drain that is over. None: Muster owes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owed_cordon: Option<OwedCordon>,
    /// Name of its Kubernetes node, once that was certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_node: Option<String>,
    /// That node's labels by which application controllers guard it, as they were seen last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guarding_labels: Vec<String>,
    /// Versions of its items' secrets when it was last Ready: a new version alone does not undo that.
    #[serde(default)]
    pub ready_secrets: BTreeMap<SecretName, u64>,
    /// The rollout of its stages.
    pub rollout: Option<String>,
    /// Steps of that rollout.
    pub stages: BTreeMap<Stage, StageRow>,
    /// Why it is blocked, and since when.
    pub blocked_since: Option<(Reason, u64)>,
    /// Newest attempt at each item; separate rows in the store.
    #[serde(skip)]
    pub statuses: BTreeMap<ItemName, Arc<ItemStatus>>,
}

impl MachineRow {
    /// May its agent be at work? Before its enrolment it has none. A revoked one may continue as long as it has its
    /// slot.
    #[must_use]
    pub const fn may_live(&self) -> bool {
        self.id.is_some() && (!self.revoked || self.slot.is_some())
    }

    /// A machine before its enrolment.
    #[must_use]
    pub fn new(name: MachineName, spec: MachineSpec, declared: bool, created_at_ms: u64) -> Self {
        Self {
            name,
            created_at_ms,
            annotations: BTreeMap::new(),
            spec,
            declared,
            id: None,
            enrolled_with: None,
            revoked: false,
            replaceable: false,
            ledger: None,
            ledger_ordinal: LedgerOrdinal(0),
            inherited: BTreeSet::new(),
            agent_version: String::new(),
            host: None,
            assigned: Assigned::default(),
            assigned_items: None,
            max_phase: None,
            slot: None,
            verdicts: BTreeMap::new(),
            redo: BTreeMap::new(),
            control_sets: BTreeMap::new(),
            ready_at: None,
            predecessor_ready: false,
            swarm: None,
            former_node: None,
            owed_cordon: None,
            kubernetes_node: None,
            guarding_labels: Vec::new(),
            ready_overwrites: None,
            reboot: None,
            update: None,
            removal: None,
            needs_review: false,
            permit_seq: 0,
            ready_secrets: BTreeMap::new(),
            rollout: None,
            stages: BTreeMap::new(),
            blocked_since: None,
            statuses: BTreeMap::new(),
        }
    }

    /// Switches to this ledger. Its events up to `seq` are recorded or obsolete.
    pub fn take_ledger(&mut self, ledger: LedgerId, seq: Seq) {
        if self.ledger.is_none_or(|(known, _)| known != ledger) {
            self.ledger_ordinal = self.ledger_ordinal.next();
        }
        self.ledger = Some((ledger, seq));
    }

    /// The version of the spec that it follows. None: the newest.
    #[must_use]
    pub fn follows(&self) -> Option<u64> {
        let ready = self.ready_at.as_ref().map(|(_, version)| *version);
        self.update.as_ref().map(|update| update.version).or(ready)
    }

    /// Its own params of single items: as frozen by its update, else as it became Ready with, else from its document.
    #[must_use]
    pub fn overwrites(&self) -> &Overwrites {
        let frozen = self.update.as_ref().map(|update| &update.overwrites).or(self.ready_overwrites.as_ref());
        frozen.unwrap_or(&self.spec.state_items_overwrites)
    }

    /// Successes of this item under lists up to this one are ignored.
    #[must_use]
    pub fn redo_up_to(&self, item: &ItemName) -> Generation {
        self.redo.get(item).copied().unwrap_or_default()
    }

    /// Does this success still count for its item?
    #[must_use]
    pub fn counts(&self, status: &ItemStatus) -> bool {
        status.state == ItemState::Succeeded && status.generation > self.redo_up_to(&status.name)
    }

    /// Drops the results of all other items: their effects may be gone before they return, so they are due then.
    /// Operators' decisions about them end too, except `skip`, which lasts until the item changes.
    pub fn drop_others(&mut self, is_mine: impl Fn(&ItemName) -> bool) {
        // Seeded bug: treat an item as done forever.
        if seeded_bug("keep-dropped-done") {
            return;
        }
        let dropped: Vec<ItemName> = self
            .statuses
            .values()
            .filter(|status| !is_mine(&status.name) && self.counts(status))
            .map(|status| status.name.clone())
            .collect();
        let newest = self.assigned.generation;
        // An item it was once given may yet report a success that was unknown when the item was dropped.
        let may_come =
            |item: &ItemName| self.assigned_items.as_ref().is_none_or(|assigned_items| assigned_items.contains(item));
        self.redo.retain(|item, _| self.statuses.contains_key(item) || may_come(item));
        for item in dropped {
            self.verdicts.remove(&item);
            self.redo.insert(item, newest);
        }
        let is_word =
            |verdict: &ItemOverride| matches!(verdict.left_out, Some(LeftOut::Accepted | LeftOut::DoneBefore));
        self.verdicts.retain(|item, verdict| is_mine(item) || !is_word(verdict));
    }

    /// The address that the cluster uses.
    #[must_use]
    pub fn internal_ip(&self) -> Option<&str> {
        self.host.as_ref().and_then(|host| host.internal_ip.as_deref())
    }

    /// Is it enrolled, with a known address, and of a type that has work?
    #[must_use]
    pub fn reported(&self) -> bool {
        self.id.is_some()
            && !self.revoked
            && self.internal_ip().is_some()
            && self.spec.machine_type != MachineType::Unassigned
    }
}

/// One rollout over a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutRow {
    /// `edge-7-deploy-1`.
    pub name: String,
    /// The cluster.
    pub cluster: ClusterName,
    /// An operator, or `muster`.
    pub started_by: String,
    /// Start in Unix milliseconds.
    pub started_at_ms: u64,
    /// End in Unix milliseconds, once every machine of it is Ready.
    pub finished_at_ms: Option<u64>,
    /// The update. None: a deployment.
    #[serde(default)]
    pub update: Option<UpdateRow>,
    /// Number of its machines, and of the completed ones, when it ended: later rollouts take the machines over.
    #[serde(default)]
    pub ended: Option<(u32, u32)>,
}
