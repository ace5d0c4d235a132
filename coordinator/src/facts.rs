//! The record in memory: what the store holds, and what is known only while the process lives. PURE. The core reads it
//! and changes it through a [`Draft`], which remembers what has to be made durable.

mod added_rows;
mod audit;
mod backup_rows;
mod control_set;
mod credential;
mod draft;
mod enrolled;
mod former_node;
mod greeted;
mod live;
mod lock_rows;
mod rate;
mod removal_rows;
mod rows;
mod secret;
mod swarm_live;
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
pub use draft::Draft;
pub use enrolled::EnrolledWith;
pub use former_node::FormerNode;
pub use live::{ItemInputs, ItemProgress, Items, Live, MachineLive, UnprovenClaim, Unresolved};
pub use lock_rows::{LockKey, LockRow, SETTLE_MS};
pub use rate::{Rate, Used};
pub use removal_rows::{DepartingNode, Departure, RemovalRow};
pub use rows::{Assigned, ClusterRow, LeftOut, MachineRow, Meta, RolloutRow, Slot, SpecRow, Stage, StageRow, Verdict};
pub use secret::{Sealed, SecretId, SecretRow};
pub use swarm_live::{Asked, Peers, Seen, SwarmLook};
pub use update_rows::{
    ClusterStage, DeferralCause, DrainRow, DrainTarget, MachineUpdate, MaintenanceRow, Overwrites, PermitRow,
    RequestRow, SetAside, Stuck, Target, UpdateKind, UpdateRow, Wish,
};

use crate::store::{Row, Table};

/// Key of the one row of [`Table::Meta`] that is ours.
const META_KEY: &str = "core";

/// Number of the record's format. Raised with every field that an older coordinator must not drop: it would read the
/// rows without it and write them back so. Format 1 was that of builds before the first release; nothing reads it.
pub const FORMAT: u64 = 2;

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// A stored row does not say what it should.
    #[error("row {key} of table {table} does not parse; restore a backup (`muster-coordinator backup` makes them)")]
    Parse {
        /// The table.
        table: &'static str,
        /// The key.
        key: String,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// A newer coordinator has written it.
    #[error(
        "the record has format {format}, and this is muster-coordinator {}, which knows formats up to {}; run version \
         {written_by} or newer, or restore a backup from before the update of Muster",
        muster_proto::VERSION,
        FORMAT
    )]
    Newer {
        /// Of the record.
        format: u64,
        /// The version of the coordinator that wrote it first.
        written_by: String,
    },
    /// A build from before the first release has written it.
    #[error(
        "the record has format {format}, of a build of Muster before its first release; muster-coordinator {} reads \
         format {FORMAT} alone. It is whole: the build that wrote it can still run on it. For this one make a new \
         record (`muster-coordinator init` with another --state-dir) and enrol the machines anew",
        muster_proto::VERSION
    )]
    Older {
        /// Of the record.
        format: u64,
    },
}

/// What every format has in [`META_KEY`]'s row.
#[derive(Deserialize)]
struct FormatRow {
    #[serde(default)]
    format: u64,
    #[serde(default)]
    written_by: String,
}

/// Everything the coordinator knows. Cheap to clone: the rows are shared.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What concerns the whole coordinator.
    pub meta: Meta,
    /// By name.
    pub clusters: BTreeMap<ClusterName, Arc<ClusterRow>>,
    /// Specs that some machine follows, by cluster and version.
    pub specs: BTreeMap<(ClusterName, u64), Arc<ClusterSpec>>,
    /// By name.
    pub machines: BTreeMap<MachineName, Arc<MachineRow>>,
    /// By name.
    pub rollouts: BTreeMap<String, Arc<RolloutRow>>,
    /// Of application controllers.
    pub locks: BTreeMap<LockKey, Arc<LockRow>>,
    /// By id.
    pub tokens: BTreeMap<String, Arc<TokenRow>>,
    /// By name.
    pub secrets: BTreeMap<SecretId, Arc<SecretRow>>,
    /// Who did what, in chains; the oldest lines are dropped.
    pub audit: BTreeMap<AuditScope, Arc<AuditChain>>,
    /// Identities that are refused.
    pub denied: BTreeMap<MachineId, Arc<DeniedRow>>,
    /// Of people and programs, by role and name.
    pub credentials: BTreeMap<String, Arc<CredentialRow>>,
    /// Names by identity; derived.
    pub names: BTreeMap<MachineId, MachineName>,
    /// Known only while the process lives.
    pub live: Live,
}

impl Facts {
    /// The record as the store has it.
    ///
    /// # Errors
    /// [`RowError`] for the first row that does not parse.
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

    /// The audit record, in the order in which it was written.
    #[must_use]
    pub fn audit_lines(&self) -> Vec<&Arc<AuditRow>> {
        let mut lines: Vec<_> = self.audit.values().flat_map(|chain| chain.lines()).collect();
        lines.sort_by_key(|line| line.seq);
        lines
    }

    /// The audit lines of the newest batch that has any. Whoever made it durable may have been killed before they were
    /// in the journal; those of every batch before are there.
    #[must_use]
    pub fn audit_lines_of_newest_batch(&self) -> Vec<&Arc<AuditRow>> {
        let mut lines = self.audit_lines();
        lines.retain(|line| line.seq > self.meta.audit_told);
        lines
    }

    /// Is the audit record whole, as far as it is kept?
    ///
    /// # Errors
    /// The first gap of each chain that has one, and chains that are missing.
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

    /// The spec a machine follows: the one its update goes to, the one it became Ready with, else the newest.
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

    /// Has this machine enrolled, and never reported? While the record may be older than the fleet, nobody knows that.
    #[must_use]
    pub fn never_reported(&self, row: &MachineRow) -> bool {
        let current = !self.meta.recovering && self.live.older_than_fleet().is_none();
        current && row.id.is_some() && row.ledger.is_none() && row.slot.is_none()
    }

    /// The machine that alone shows that this store is older than the fleet. None: several do, or this store does not
    /// know it.
    #[must_use]
    pub fn only_witness(&self) -> Option<&MachineName> {
        let mut witnesses = self.live.newer.keys();
        witnesses.next().filter(|_| witnesses.next().is_none()).and_then(|id| self.names.get(id))
    }

    /// The rollout of a cluster that has not ended.
    #[must_use]
    pub fn open_rollout(&self, cluster: &ClusterName) -> Option<&Arc<RolloutRow>> {
        self.rollouts.values().find(|rollout| rollout.cluster == *cluster && rollout.finished_at_ms.is_none())
    }

    /// The stored part of two records, compared: the debug check of the engine and the simulator.
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

/// The row of one status.
fn status_key(machine: &MachineName, item: &ItemName) -> String {
    format!("{machine}/{item}")
}

fn parse<T: DeserializeOwned>(table: Table, key: &str, value: &[u8]) -> Result<T, RowError> {
    serde_json::from_slice(value).map_err(|source| RowError::Parse { table: table.name(), key: key.to_owned(), source })
}
