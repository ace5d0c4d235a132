//! The rows of the record, as they are stored.

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
    plant::planted,
};
use serde::{Deserialize, Serialize};

use super::{
    AuditScope, ControlSet, EnrolledWith, FORMAT, FormerNode, MachineUpdate, Member, Overwrites, RebootAsked,
    RemovalRow, UpdateRow,
};

/// What concerns the whole coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Format of the record: [`FORMAT`].
    pub format: u64,
    /// Version of the coordinator that made the record.
    pub written_by: String,
    /// Of the coordinator that runs, or ran last: each start takes the next.
    pub epoch: Epoch,
    /// The highest epoch any agent has shown. Above ours: this store is older than the fleet.
    pub fleet_epoch: Epoch,
    /// `muster-coordinator recover` was run: the agents' ledgers fill in what this store lacks.
    pub recovering: bool,
    /// Epoch of the first coordinator after the newest `recover`; 0: there was none. What was told before it proves
    /// nothing more, nor does an identity that this store does not know.
    #[serde(default)]
    pub recovered_epoch: Epoch,
    /// `HOST:PORT` that new credentials name.
    #[serde(default)]
    pub address: String,
    /// Where agents are told that the coordinator is reached. None: they are told nothing.
    #[serde(default)]
    pub advertised: Option<Addresses>,
    /// Number of the newest audit line.
    pub audit_seq: u64,
    /// Number of the newest audit line that was in the journal before the newest batch with audit lines was made.
    pub audit_told: u64,
    /// Every chain of audit lines that was ever begun.
    pub audit_chains: BTreeSet<AuditScope>,
    /// Of the newest change of a lock, or the newest request.
    #[serde(default)]
    pub revision: u64,
    /// Version of the newest secret.
    #[serde(default)]
    pub secret_seq: u64,
}

/// Of a new record.
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
    /// Unix milliseconds.
    pub created_at_ms: u64,
    /// Operators' notes.
    pub annotations: BTreeMap<String, String>,
    /// Version of the newest spec; machines that are not yet Ready follow it.
    pub spec_version: u64,
    /// An operator said `deploy`: start with the machines that are there.
    pub deploy_requested: bool,
    /// Number of the newest rollout.
    pub rollout_seq: u64,
    /// The control machines, once the last expected one is Ready.
    pub control_set: Vec<MachineName>,
    /// Those very machines, and where they were reached when the set became complete.
    #[serde(default)]
    pub control_members: BTreeMap<MachineName, Member>,
    /// How often the set has changed.
    #[serde(default)]
    pub control_version: u64,
    /// The machine that was told to make the cluster's swarm. It may have done so, whatever is known of it since.
    #[serde(default)]
    pub swarm_init: Option<MachineId>,
    /// Why nothing new starts, and since when.
    pub blocked_since: Option<(Reason, u64)>,
}

/// One version of a cluster's spec. Kept while a machine is pinned to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecRow {
    /// Whose.
    pub cluster: ClusterName,
    /// From 1.
    pub version: u64,
    /// The spec.
    pub spec: Arc<ClusterSpec>,
}

/// What a machine's place in its rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// For which phase: `deploy` or `reconfigure`.
    pub phase: Phase,
    /// Unix milliseconds.
    pub granted_at_ms: u64,
}

/// What an operator, or a ledger's loss, has decided of an item: counts for this hash only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Of the item it was said of.
    pub hash: ItemHash,
    /// Attempts up to this one count no more.
    pub cleared_attempts: u32,
    /// Leave it out of the assignment: it counts as done.
    pub left_out: Option<LeftOut>,
}

/// Why an item counts as done though no success of it is recorded in the agent's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftOut {
    /// An operator does without it.
    Skipped,
    /// An operator looked, and says that it is done.
    Accepted,
    /// It succeeded under a ledger that the machine has lost since.
    DoneBefore,
}

/// What the coordinator last told a machine to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// Of the newest assignment. 0 = none yet.
    pub generation: Generation,
    /// Digest of its content: another content gets another generation.
    pub digest: Option<ItemHash>,
    /// The newest generation the agent has accepted.
    pub accepted: Generation,
    /// Why the agent refused it.
    pub refused: Option<String>,
}

/// A step of a rollout on a machine (domain.md §3). `Success` is never overwritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRow {
    /// Unix milliseconds.
    pub started_at_ms: u64,
    /// Unix milliseconds, once it has ended.
    pub finished_at_ms: Option<u64>,
    /// How it ended.
    pub succeeded: bool,
}

/// The stages of a machine's rollout, in order, under the names operators know.
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
    /// `Node maintenance request removed`.
    RequestRemoved,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: &'static [Self] = &[
        Self::PrepareDone,
        Self::PreviousDeployed,
        Self::NodeRequested,
        Self::LocksInactive,
        Self::SwarmDrained,
        Self::DeployDone,
        Self::ReconfigureDone,
        Self::RebootDone,
        Self::Upgraded,
        Self::SwarmUncordoned,
        Self::RequestRemoved,
    ];

    /// The name operators know.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrepareDone => "Prepare phase done",
            Self::PreviousDeployed => "Previous machines are deployed",
            Self::NodeRequested => "Node maintenance requested",
            Self::LocksInactive => "Node workload locks inactive",
            Self::SwarmDrained => "Swarm drained",
            Self::DeployDone => "Deploy phase done",
            Self::ReconfigureDone => "Reconfigure phase done",
            Self::RebootDone => "Reboot done",
            Self::Upgraded => "Machine upgraded",
            Self::SwarmUncordoned => "Swarm uncordoned",
            Self::RequestRemoved => "Node maintenance request removed",
        }
    }
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRow {
    /// Its name.
    pub name: MachineName,
    /// Unix milliseconds.
    pub created_at_ms: u64,
    /// Operators' notes.
    pub annotations: BTreeMap<String, String>,
    /// What is wanted of it.
    pub spec: MachineSpec,
    /// Has it a Machine document?
    pub declared: bool,
    /// Identity in its certificate. None: not enrolled.
    pub id: Option<MachineId>,
    /// With what it enrolled. Who asks with the same again before it has reported has lost the answer.
    #[serde(default)]
    pub enrolled_with: Option<EnrolledWith>,
    /// An operator revoked it.
    pub revoked: bool,
    /// An operator lets a new machine take this name.
    pub replaceable: bool,
    /// Of its ledger, and the newest event of it that is recorded here.
    pub ledger: Option<(LedgerId, Seq)>,
    /// Which of the ledgers of its identity that is.
    #[serde(default)]
    pub ledger_ordinal: LedgerOrdinal,
    /// Items whose status comes from another ledger than this, or from a greeting after `recover`: what its events say
    /// of them first need not follow on that.
    #[serde(default)]
    pub carried: BTreeSet<ItemName>,
    /// Of its agent.
    pub agent_version: String,
    /// What it says of itself. None: it has never reported.
    pub host: Option<HostFacts>,
    /// What it was last told to have.
    pub assigned: Assigned,
    /// The items of all lists that this identity was given: nothing else can come of it. None: it may have had others,
    /// from a coordinator that did not note them, or that this store is older than.
    #[serde(default)]
    pub given: Option<BTreeSet<ItemName>>,
    /// How far its list reaches. None: nothing assigned yet.
    pub reach: Option<Phase>,
    /// Its slot, from the grant until an outcome is recorded or an operator frees it.
    pub slot: Option<Slot>,
    /// Decisions about single items.
    pub verdicts: BTreeMap<ItemName, Verdict>,
    /// Items to be done again though they succeeded: successes under lists up to this one count no more.
    #[serde(default)]
    pub redo: BTreeMap<ItemName, Generation>,
    /// Control machines as the items of each phase see them, frozen when the phase is granted.
    pub control_sets: BTreeMap<Phase, ControlSet>,
    /// The release it was last Ready at, and the version of the spec. None: never Ready.
    pub ready_at: Option<(String, u64)>,
    /// Its own params when it was last Ready: it keeps them until an update.
    #[serde(default)]
    pub ready_overwrites: Option<Overwrites>,
    /// An operator's newest wish that it reboots.
    #[serde(default)]
    pub reboot: Option<RebootAsked>,
    /// Its part in an update that it is in.
    #[serde(default)]
    pub update: Option<MachineUpdate>,
    /// An operator wants it to be removed.
    #[serde(default)]
    pub removal: Option<RemovalRow>,
    /// After `recover`: it may be in the middle of an update, and an operator has to look.
    #[serde(default)]
    pub in_doubt: bool,
    /// Number of the newest permit it was ever given.
    #[serde(default)]
    pub permit_seq: u64,
    /// Its place in the swarm, once a swarm-join of it has succeeded.
    #[serde(default)]
    pub swarm: Option<SwarmMember>,
    /// The node that its former identity was, and what its own gets back of it. None: nothing.
    #[serde(default)]
    pub former_node: Option<FormerNode>,
    /// Versions of secrets its items had when it was last Ready: a new version alone does not undo that.
    #[serde(default)]
    pub ready_secrets: BTreeMap<SecretName, u64>,
    /// The rollout its stages belong to.
    pub rollout: Option<String>,
    /// Steps of that rollout.
    pub stages: BTreeMap<Stage, StageRow>,
    /// Why it does not move, and since when.
    pub blocked_since: Option<(Reason, u64)>,
    /// Newest attempt at each item; rows of their own in the store.
    #[serde(skip)]
    pub statuses: BTreeMap<ItemName, Arc<ItemStatus>>,
}

impl MachineRow {
    /// May its agent be at work? One that never enrolled has none; a revoked one may go on with what it was told as
    /// long as it has its slot.
    #[must_use]
    pub const fn may_live(&self) -> bool {
        self.id.is_some() && (!self.revoked || self.slot.is_some())
    }

    /// A machine that has not enrolled yet.
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
            carried: BTreeSet::new(),
            agent_version: String::new(),
            host: None,
            assigned: Assigned::default(),
            given: None,
            reach: None,
            slot: None,
            verdicts: BTreeMap::new(),
            redo: BTreeMap::new(),
            control_sets: BTreeMap::new(),
            ready_at: None,
            swarm: None,
            former_node: None,
            ready_overwrites: None,
            reboot: None,
            update: None,
            removal: None,
            in_doubt: false,
            permit_seq: 0,
            ready_secrets: BTreeMap::new(),
            rollout: None,
            stages: BTreeMap::new(),
            blocked_since: None,
            statuses: BTreeMap::new(),
        }
    }

    /// Its events come from this ledger from now on, and those up to `seq` are recorded or nobody's any more.
    pub fn take_ledger(&mut self, ledger: LedgerId, seq: Seq) {
        if self.ledger.is_none_or(|(known, _)| known != ledger) {
            self.ledger_ordinal = self.ledger_ordinal.next();
        }
        self.ledger = Some((ledger, seq));
    }

    /// The version of the spec it follows. None: the newest.
    #[must_use]
    pub fn follows(&self) -> Option<u64> {
        let ready = self.ready_at.as_ref().map(|(_, version)| *version);
        self.update.as_ref().map(|update| update.version).or(ready)
    }

    /// Its own params of single items: as frozen by its update, as it became Ready with, else as its document has them.
    #[must_use]
    pub fn overwrites(&self) -> &Overwrites {
        let frozen = self.update.as_ref().map(|update| &update.overwrites).or(self.ready_overwrites.as_ref());
        frozen.unwrap_or(&self.spec.state_items_overwrites)
    }

    /// Successes of this item under lists up to this one count no more.
    #[must_use]
    pub fn redo_up_to(&self, item: &ItemName) -> Generation {
        self.redo.get(item).copied().unwrap_or_default()
    }

    /// Did this attempt bring about what its item still stands for?
    #[must_use]
    pub fn counts(&self, status: &ItemStatus) -> bool {
        status.state == ItemState::Succeeded && status.generation > self.redo_up_to(&status.name)
    }

    /// Its items are these, and no others: what another brought about may be gone before it comes again, so that it is
    /// due then. An operator's word of another is over too, but for `skip`: that holds until the item is another.
    pub fn drop_others(&mut self, is_mine: impl Fn(&ItemName) -> bool) {
        // Planted: what was done once is taken for done for ever.
        if planted("keep-dropped-done") {
            return;
        }
        let dropped: Vec<ItemName> = self
            .statuses
            .values()
            .filter(|status| !is_mine(&status.name) && self.counts(status))
            .map(|status| status.name.clone())
            .collect();
        let newest = self.assigned.generation;
        // Of what it was given once it may yet report a success that was not heard when the item was dropped.
        let may_come = |item: &ItemName| self.given.as_ref().is_none_or(|given| given.contains(item));
        self.redo.retain(|item, _| self.statuses.contains_key(item) || may_come(item));
        for item in dropped {
            self.verdicts.remove(&item);
            self.redo.insert(item, newest);
        }
        let is_word = |verdict: &Verdict| matches!(verdict.left_out, Some(LeftOut::Accepted | LeftOut::DoneBefore));
        self.verdicts.retain(|item, verdict| is_mine(item) || !is_word(verdict));
    }

    /// The address the cluster uses.
    #[must_use]
    pub fn internal_ip(&self) -> Option<&str> {
        self.host.as_ref().and_then(|host| host.internal_ip.as_deref())
    }

    /// Is it enrolled, known by an address, and of a type that has work?
    #[must_use]
    pub fn reported(&self) -> bool {
        self.id.is_some()
            && !self.revoked
            && self.internal_ip().is_some()
            && self.spec.machine_type != MachineType::Unassigned
    }
}

/// One run over a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutRow {
    /// `edge-7-deploy-1`.
    pub name: String,
    /// Of which cluster.
    pub cluster: ClusterName,
    /// An operator, or `muster`.
    pub started_by: String,
    /// Unix milliseconds.
    pub started_at_ms: u64,
    /// Unix milliseconds, once every machine of it is Ready.
    pub finished_at_ms: Option<u64>,
    /// None: a deployment.
    #[serde(default)]
    pub update: Option<UpdateRow>,
    /// Machines in it, and those that were through, when it ended: later rollouts take the machines over.
    #[serde(default)]
    pub ended: Option<(u32, u32)>,
}
