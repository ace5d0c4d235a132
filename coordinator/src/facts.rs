//! The record in memory: the stored facts, and live facts that end with the process. PURE. The core reads it and
//! changes it through a [`Transaction`], which tracks what to make durable.

mod added_rows;
mod audit;
mod backup_rows;
mod control_set;
mod credential;
mod drain_rows;
mod enrolled;
mod former_node;
pub mod handshake;
mod hello_facts;
pub mod kubernetes;
mod kubernetes_live;
mod live;
mod lock_rows;
mod rate;
mod removal_rows;
mod rows;
mod secret;
mod swarm_live;
mod transaction;
mod update_rows;

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use muster_proto::model::{ClusterName, ClusterSpec, ItemName, ItemStatus, MachineId, MachineName};
use serde::{Deserialize, de::DeserializeOwned};

pub use added_rows::{Added, AddedEnd, AddedReboot, RebootAsked, RebootWhy};
pub use audit::{
    AuditChain, AuditGap, AuditHead, AuditObject, AuditRow, AuditScope, AuditSource, InvalidAuditScope, MUSTER,
};
pub use backup_rows::BackupRow;
pub use control_set::{ControlSet, Member};
pub use credential::{CertificateRow, CredentialRow, DeniedRow, TokenRow};
pub use drain_rows::{DrainKind, DrainRow, Drains, ForcedPod, KubernetesTarget, SwarmTarget};
pub use enrolled::EnrolledWith;
pub use former_node::{FormerNode, OwedCordon};
pub use handshake::{HandshakeObservation, StandingRequest};
pub use kubernetes::addons::{AddonRow, AddonsObservation};
pub use kubernetes::daemon_sets::{RenewalObservation, RenewedPod, RenewedSet};
pub use kubernetes_live::{EvictedPod, KubernetesAsked, KubernetesObservation, Undrainable};
pub use live::{ItemActivity, ItemInputs, Items, Live, MachineLive, UnprovenClaim, Unresolved};
pub use lock_rows::{LockKey, LockOf, LockRow, SETTLE_MS};
pub use rate::{Rate, Used};
pub use removal_rows::{DepartingNode, DepartingObject, Departure, RemovalRow};
pub use rows::{
    Assigned, ClusterRow, ItemOverride, LeftOut, MachineRow, Meta, RolloutRow, Slot, SpecRow, Stage, StageRow,
};
pub use secret::{Sealed, SecretId, SecretRow};
pub use swarm_live::{Asked, NodeObservation, Peers, Seen};
pub use transaction::Transaction;
pub use update_rows::{
    ClusterStage, Deferral, DeferralCause, DesiredState, MachineUpdate, MaintenanceRow, Overwrites, PermitRow,
    PutAnnotations, RenewalRow, RequestRow, Stuck, Target, UpdateKind, UpdateRow,
};

use crate::store::{Row, Table};

/// Key of the core's only row in [`Table::Meta`].
const META_KEY: &str = "core";

/// Format number of the record. It rises with every field that must survive an older coordinator, which would rewrite
/// rows without it. Format 1 belongs to builds before the first release and is unsupported.
pub const FORMAT: u64 = 2;

/// Error of loading a record.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// A stored row is malformed.
    #[error("row {key} of table {table} does not parse; restore a backup (`muster-coordinator backup` makes them)")]
    Parse {
        /// The table.
        table: &'static str,
        /// The key.
        key: String,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// A newer coordinator wrote it.
    #[error(
        "the record has format {format}, and this is muster-coordinator {}, which knows formats up to {}; run version \
         {written_by} or newer, or restore a backup from before the update of Muster",
        muster_proto::VERSION,
        FORMAT
    )]
    Newer {
        /// Format of the record.
        format: u64,
        /// Version of the coordinator that first wrote it.
        written_by: String,
    },
    /// A build from before the first release wrote it.
    #[error(
        "the record has format {format}, of a build of Muster before its first release; muster-coordinator {} reads \
         format {FORMAT} alone. It is whole: the build that wrote it can still run on it. For this one make a new \
         record (`muster-coordinator init` with another --state-dir) and enrol the machines anew",
        muster_proto::VERSION
    )]
    Older {
        /// Format of the record.
        format: u64,
    },
}

/// The fields of [`META_KEY`]'s row that every format has.
#[derive(Deserialize)]
struct FormatRow {
    #[serde(default)]
    format: u64,
    #[serde(default)]
    written_by: String,
}

/// All facts of the coordinator. Cheap to clone: rows are shared.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Facts about the whole coordinator.
    pub meta: Meta,
    /// Clusters by name.
    pub clusters: BTreeMap<ClusterName, Arc<ClusterRow>>,
    /// Specs that machines follow, by cluster and version.
    pub specs: BTreeMap<(ClusterName, u64), Arc<ClusterSpec>>,
    /// Machines by name.
    pub machines: BTreeMap<MachineName, Arc<MachineRow>>,
    /// Rollouts by name.
    pub rollouts: BTreeMap<String, Arc<RolloutRow>>,
    /// Locks of application controllers.
    pub locks: BTreeMap<LockKey, Arc<LockRow>>,
    /// Join tokens by id.
    pub tokens: BTreeMap<String, Arc<TokenRow>>,
    /// Secrets by name.
    pub secrets: BTreeMap<SecretId, Arc<SecretRow>>,
    /// Audit lines, in chains; the oldest lines are dropped.
    pub audit: BTreeMap<AuditScope, Arc<AuditChain>>,
    /// Refused identities.
    pub denied: BTreeMap<MachineId, Arc<DeniedRow>>,
    /// Credentials of people and programs, by role and name.
    pub credentials: BTreeMap<String, Arc<CredentialRow>>,
    /// Names by identity; derived.
    pub names: BTreeMap<MachineId, MachineName>,
    /// Live facts, which end with the process.
    pub live: Live,
}

impl Facts {
    /// Loads the record from the store.
    ///
    /// # Errors
    /// [`RowError`] for the first malformed row.
    pub fn load(rows: impl IntoIterator<Item = Row>) -> Result<Self, RowError> {
        let mut facts = Self::default();
        let mut statuses = Vec::new();
        for (table, key, value) in rows {
            match table {
                Table::Pki => {}
                Table::Meta if key == META_KEY => {
                    check_format(parse(table, &key, &value)?)?;
                    facts.meta = parse(table, &key, &value)?;
                }
                Table::Meta => {}
                Table::Clusters => {
                    let row: ClusterRow = parse(table, &key, &value)?;
                    facts.clusters.insert(row.name.clone(), Arc::new(row));
                }
                Table::Specs => {
                    let row: SpecRow = parse(table, &key, &value)?;
                    facts.specs.insert((row.cluster, row.version), row.spec);
                }
                Table::Machines => {
                    let row: MachineRow = parse(table, &key, &value)?;
                    facts.names.extend(row.id.map(|id| (id, row.name.clone())));
                    facts.machines.insert(row.name.clone(), Arc::new(row));
                }
                Table::Statuses => {
                    let status: ItemStatus = parse(table, &key, &value)?;
                    statuses.extend(key.split_once('/').map(|(machine, _)| (machine.to_owned(), status)));
                }
                Table::Denied => {
                    let row: DeniedRow = parse(table, &key, &value)?;
                    facts.denied.insert(row.id, Arc::new(row));
                }
                Table::Credentials => {
                    let row: CredentialRow = parse(table, &key, &value)?;
                    facts.credentials.insert(row.subject.clone(), Arc::new(row));
                }
                Table::Rollouts => {
                    let row: RolloutRow = parse(table, &key, &value)?;
                    facts.rollouts.insert(row.name.clone(), Arc::new(row));
                }
                Table::Locks => {
                    let row: LockRow = parse(table, &key, &value)?;
                    facts.locks.insert(row.key.clone(), Arc::new(row));
                }
                Table::Tokens => {
                    let row: TokenRow = parse(table, &key, &value)?;
                    facts.tokens.insert(row.id.clone(), Arc::new(row));
                }
                Table::Secrets => {
                    let row: SecretRow = parse(table, &key, &value)?;
                    facts.secrets.insert(row.id.clone(), Arc::new(row));
                }
                Table::Audit => {
                    facts.load_audit(&key, &value)?;
                }
            }
        }
        for (machine, status) in statuses {
            if let Some(row) = facts.machines.get_mut(machine.as_str()) {
                Arc::make_mut(row).statuses.insert(status.name.clone(), Arc::new(status));
            }
        }
        Ok(facts)
    }

    fn load_audit(&mut self, key: &str, value: &[u8]) -> Result<(), RowError> {
        let Some((scope, number)) = AuditScope::of_key(key) else { return Ok(()) };
        let chain = Arc::make_mut(self.audit.entry(scope).or_default());
        match number {
            Some(number) => chain.load(number, parse(Table::Audit, key, value)?),
            None => chain.load_head(parse(Table::Audit, key, value)?),
        }
        Ok(())
    }

    /// The audit record, in the order of writing.
    #[must_use]
    pub fn audit_lines(&self) -> Vec<&Arc<AuditRow>> {
        let mut lines: Vec<_> = self.audit.values().flat_map(|chain| chain.lines()).collect();
        lines.sort_by_key(|line| line.seq);
        lines
    }

    /// The audit lines of the newest batch with any. The process may have been killed after the commit and before they
    /// reached the journal. The lines of all earlier batches are there.
    #[must_use]
    pub fn audit_lines_of_newest_batch(&self) -> Vec<&Arc<AuditRow>> {
        let mut lines = self.audit_lines();
        lines.retain(|line| line.seq > self.meta.audit_told);
        lines
    }

    /// Is the kept part of the audit record complete?
    ///
    /// # Errors
    /// The first gap of each damaged chain, and the missing chains.
    pub fn verify_audit(&self) -> Result<(), Vec<AuditGap>> {
        let listed = &self.meta.audit_chains;
        let mut gaps: Vec<_> = self.audit.iter().filter_map(|(scope, chain)| chain.verify(scope).err()).collect();
        let lost = listed.iter().filter(|scope| !self.audit.contains_key(scope));
        gaps.extend(lost.map(|scope| AuditGap::Chain { chain: scope.to_string() }));
        let unlisted = self.audit.keys().filter(|scope| !listed.contains(scope));
        gaps.extend(unlisted.map(|scope| AuditGap::Unlisted { chain: scope.to_string() }));
        let newest = self.audit.values().filter_map(|chain| chain.lines().next_back()).map(|line| line.seq).max();
        let (newest, expected) = (newest.unwrap_or_default(), self.meta.audit_seq);
        if gaps.is_empty() && newest != expected {
            gaps.push(AuditGap::NotNewest { newest, expected });
        }
        if gaps.is_empty() { Ok(()) } else { Err(gaps) }
    }

    /// The machine with this identity.
    #[must_use]
    pub fn by_id(&self, id: MachineId) -> Option<&Arc<MachineRow>> {
        self.names.get(&id).and_then(|name| self.machines.get(name))
    }

    /// The newest spec of a cluster.
    #[must_use]
    pub fn spec(&self, cluster: &ClusterName) -> Option<&Arc<ClusterSpec>> {
        let row = self.clusters.get(cluster)?;
        self.specs.get(&(cluster.clone(), row.spec_version))
    }

    /// The spec that holds for a cluster: the one that its open update froze, else the newest.
    #[must_use]
    pub fn spec_in_force(&self, cluster: &ClusterName) -> Option<&Arc<ClusterSpec>> {
        match self.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref()) {
            Some(update) => self.specs.get(&(cluster.clone(), update.version)),
            None => self.spec(cluster),
        }
    }

    /// The spec that a machine follows: the target of its update, else the one it became Ready with, else the newest.
    #[must_use]
    pub fn spec_of(&self, machine: &MachineRow) -> Option<&Arc<ClusterSpec>> {
        match machine.follows() {
            Some(version) => self.specs.get(&(machine.spec.cluster_name.clone(), version)),
            None => self.spec(&machine.spec.cluster_name),
        }
    }

    /// The machines of a cluster, by name.
    pub fn machines_of<'a>(&'a self, cluster: &'a ClusterName) -> impl Iterator<Item = &'a Arc<MachineRow>> {
        self.machines.values().filter(move |machine| machine.spec.cluster_name == *cluster)
    }

    /// Has this machine enrolled without ever reporting? Always false while the record may be older than the fleet.
    #[must_use]
    pub fn never_reported(&self, row: &MachineRow) -> bool {
        let current = !self.meta.recovering && self.live.older_than_fleet().is_none();
        current && row.id.is_some() && row.ledger.is_none() && row.slot.is_none()
    }

    /// The only machine that shows that this store is older than the fleet. None: several do, or this store lacks it.
    #[must_use]
    pub fn only_witness(&self) -> Option<&MachineName> {
        let mut witnesses = self.live.newer.keys();
        witnesses.next().filter(|_| witnesses.next().is_none()).and_then(|id| self.names.get(id))
    }

    /// The open rollout of a cluster.
    #[must_use]
    pub fn open_rollout(&self, cluster: &ClusterName) -> Option<&Arc<RolloutRow>> {
        self.rollouts.values().find(|rollout| rollout.cluster == *cluster && rollout.finished_at_ms.is_none())
    }

    /// Are the stored parts of two records equal? Debug check of the engine and the simulator.
    #[must_use]
    pub fn same_record(&self, other: &Self) -> bool {
        self.meta == other.meta
            && self.clusters == other.clusters
            && self.specs == other.specs
            && self.machines == other.machines
            && self.rollouts == other.rollouts
            && self.locks == other.locks
            && self.tokens == other.tokens
            && self.secrets == other.secrets
            && self.audit == other.audit
            && self.denied == other.denied
            && self.credentials == other.credentials
            && self.names == other.names
    }
}

fn check_format(row: FormatRow) -> Result<(), RowError> {
    let FormatRow { format, written_by } = row;
    match format.cmp(&FORMAT) {
        Ordering::Less => Err(RowError::Older { format }),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(RowError::Newer { format, written_by }),
    }
}

/// Key of a status row.
fn status_key(machine: &MachineName, item: &ItemName) -> String {
    format!("{machine}/{item}")
}

fn parse<T: DeserializeOwned>(table: Table, key: &str, value: &[u8]) -> Result<T, RowError> {
    serde_json::from_slice(value).map_err(|source| RowError::Parse { table: table.name(), key: key.to_owned(), source })
}
