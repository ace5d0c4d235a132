//! A transaction on the facts: tracks the touched rows and turns them into a batch for the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
};

use muster_proto::{
    json::json,
    model::{ClusterName, ClusterSpec, ItemName, ItemStatus, MachineId, MachineName, Now},
};

use super::{
    AddonsObservation, AuditObject, AuditRow, AuditScope, ClusterRow, CredentialRow, DeniedRow, Facts,
    HandshakeObservation, LockKey, LockRow, META_KEY, MachineLive, MachineRow, MachineUpdate, Meta, Rate,
    RenewalObservation, RolloutRow, SETTLE_MS, SecretId, SecretRow, SpecRow, TokenRow, UpdateRow,
    audit::{self, Deed},
    status_key,
};
use crate::store::{Change, Table};

/// Maximum counted operators, clusters and machines. Beyond it, those without recent requests are dropped.
const ACTORS_COUNTED_MAX: usize = 1_000;

/// Reads like [`Facts`]; writes only through its methods.
pub struct Transaction<'a> {
    facts: &'a mut Facts,
    dirty: BTreeSet<(Table, String)>,
    audited: Vec<Arc<AuditRow>>,
}

impl Deref for Transaction<'_> {
    type Target = Facts;
    fn deref(&self) -> &Facts {
        self.facts
    }
}

/// The row under `key`, unshared.
fn unshared<'a, K: Ord + ?Sized, Q: Ord + std::borrow::Borrow<K>, T: Clone>(
    rows: &'a mut BTreeMap<Q, Arc<T>>,
    key: &K,
) -> Option<&'a mut T> {
    rows.get_mut(key).map(Arc::make_mut)
}

impl<'a> Transaction<'a> {
    /// Begins a transaction.
    pub const fn new(facts: &'a mut Facts) -> Self {
        Self { facts, dirty: BTreeSet::new(), audited: Vec::new() }
    }

    fn touch(&mut self, table: Table, key: impl Into<String>) {
        self.dirty.insert((table, key.into()));
    }

    /// Facts about the whole coordinator, for modification.
    pub fn meta_mut(&mut self) -> &mut Meta {
        self.touch(Table::Meta, META_KEY);
        &mut self.facts.meta
    }

    /// A cluster, for modification.
    pub fn cluster_mut(&mut self, name: &ClusterName) -> Option<&mut ClusterRow> {
        self.touch(Table::Clusters, name.as_str());
        unshared(&mut self.facts.clusters, name)
    }

    /// Records a new cluster.
    pub fn put_cluster(&mut self, row: ClusterRow) {
        self.touch(Table::Clusters, row.name.as_str());
        self.facts.clusters.insert(row.name.clone(), Arc::new(row));
    }

    /// Deletes a cluster and all that it owns except its machines. Returns the number of its join tokens and secrets.
    pub fn drop_cluster(&mut self, name: &ClusterName) -> (usize, usize) {
        let specs: Vec<u64> = self.specs.keys().filter(|(of, _)| of == name).map(|(_, version)| *version).collect();
        for version in specs {
            self.touch(Table::Specs, spec_key(name, version));
            self.facts.specs.remove(&(name.clone(), version));
        }
        let of = |row: &&Arc<RolloutRow>| row.cluster == *name;
        let rollouts: Vec<String> = self.rollouts.values().filter(of).map(|row| row.name.clone()).collect();
        rollouts.iter().for_each(|rollout| self.drop_rollout(rollout));
        let locks: Vec<LockKey> = self.locks.keys().filter(|key| key.cluster == *name).cloned().collect();
        locks.iter().for_each(|key| self.drop_lock(key));
        let tokens: Vec<String> =
            self.tokens.values().filter(|token| token.cluster == *name).map(|token| token.id.clone()).collect();
        tokens.iter().for_each(|id| self.drop_token(id));
        let secrets: Vec<SecretId> =
            self.secrets.keys().filter(|id| id.cluster.as_ref() == Some(name)).cloned().collect();
        secrets.iter().for_each(|id| self.drop_secret(id));
        // A later cluster of this name is another one.
        let shared: Vec<_> = self.secrets.values().filter(|row| row.clusters.contains(name)).cloned().collect();
        for row in shared {
            let mut row = (*row).clone();
            row.clusters.remove(name);
            self.put_secret(row);
        }
        self.touch(Table::Clusters, name.as_str());
        self.facts.clusters.remove(name);
        self.facts.live.handshakes.remove(name);
        self.facts.live.renewals.remove(name);
        self.facts.live.addons.remove(name);
        (tokens.len(), secrets.len())
    }

    /// Records a version of a spec.
    pub fn put_spec(&mut self, cluster: &ClusterName, version: u64, spec: Arc<ClusterSpec>) {
        self.touch(Table::Specs, spec_key(cluster, version));
        self.facts.specs.insert((cluster.clone(), version), spec);
    }

    /// Drops unused specs of a cluster.
    pub fn drop_unused_specs(&mut self, cluster: &ClusterName) {
        let newest = self.clusters.get(cluster).map(|row| row.spec_version);
        let mut used: BTreeSet<u64> =
            self.machines_of(cluster).filter_map(|machine| machine.ready_at.as_ref().map(|(_, v)| *v)).collect();
        used.extend(newest);
        used.extend(
            self.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref()).map(|update| update.version),
        );
        let unused: Vec<_> =
            self.specs.keys().filter(|(name, version)| name == cluster && !used.contains(version)).cloned().collect();
        for key in unused {
            self.touch(Table::Specs, spec_key(&key.0, key.1));
            self.facts.specs.remove(&key);
        }
    }

    /// A machine, for modification. For its identity use [`Self::identify`].
    pub fn machine_mut(&mut self, name: &MachineName) -> Option<&mut MachineRow> {
        self.touch(Table::Machines, name.as_str());
        unshared(&mut self.facts.machines, name)
    }

    /// Records a new machine.
    pub fn put_machine(&mut self, row: MachineRow) {
        self.touch(Table::Machines, row.name.as_str());
        self.facts.names.extend(row.id.map(|id| (id, row.name.clone())));
        self.facts.machines.insert(row.name.clone(), Arc::new(row));
    }

    /// Deletes a machine and all facts about it.
    pub fn drop_machine(&mut self, name: &MachineName) {
        self.drop_statuses(name);
        self.identify(name, None);
        self.facts.machines.remove(name);
        self.facts.live.machines.remove(name);
        self.facts.live.awaited.remove(name);
    }

    /// Sets or removes a machine's identity.
    pub fn identify(&mut self, name: &MachineName, id: Option<MachineId>) {
        let Some(row) = self.machine_mut(name) else { return };
        let old = std::mem::replace(&mut row.id, id);
        if let Some(old) = old {
            self.facts.names.remove(&old);
        }
        self.facts.names.extend(id.map(|id| (id, name.clone())));
    }

    /// Records the newest attempt at an item.
    pub fn put_status(&mut self, machine: &MachineName, status: ItemStatus) {
        self.touch(Table::Statuses, status_key(machine, &status.name));
        if let Some(row) = unshared(&mut self.facts.machines, machine) {
            row.statuses.insert(status.name.clone(), Arc::new(status));
        }
    }

    /// Deletes one status of a machine.
    pub fn drop_status(&mut self, machine: &MachineName, item: &ItemName) {
        self.touch(Table::Statuses, status_key(machine, item));
        if let Some(row) = unshared(&mut self.facts.machines, machine) {
            row.statuses.remove(item);
        }
    }

    /// Deletes all statuses of a machine.
    pub fn drop_statuses(&mut self, machine: &MachineName) {
        let Some(row) = unshared(&mut self.facts.machines, machine) else { return };
        for item in std::mem::take(&mut row.statuses).into_keys() {
            self.dirty.insert((Table::Statuses, status_key(machine, &item)));
        }
    }

    /// Records a rollout, or its change.
    pub fn put_rollout(&mut self, row: RolloutRow) {
        self.touch(Table::Rollouts, row.name.as_str());
        self.facts.rollouts.insert(row.name.clone(), Arc::new(row));
    }

    /// Deletes a rollout.
    pub fn drop_rollout(&mut self, name: &str) {
        self.touch(Table::Rollouts, name);
        self.facts.rollouts.remove(name);
    }

    /// An update, for modification.
    pub fn update_mut(&mut self, rollout: &str) -> Option<&mut UpdateRow> {
        self.touch(Table::Rollouts, rollout);
        unshared(&mut self.facts.rollouts, rollout)?.update.as_mut()
    }

    /// The next number in the common order of lock changes and requests.
    pub fn next_revision(&mut self) -> u64 {
        let meta = self.meta_mut();
        meta.revision += 1;
        meta.revision
    }

    /// Records a lock, or its change.
    pub fn put_lock(&mut self, row: LockRow) {
        self.touch(Table::Locks, row.key.text());
        self.facts.locks.insert(row.key.clone(), Arc::new(row));
    }

    /// Deletes a lock.
    pub fn drop_lock(&mut self, key: &LockKey) {
        self.touch(Table::Locks, key.text());
        self.facts.locks.remove(key);
    }

    /// A token, for modification.
    pub fn token_mut(&mut self, id: &str) -> Option<&mut TokenRow> {
        self.touch(Table::Tokens, id);
        unshared(&mut self.facts.tokens, id)
    }

    /// Records a new token.
    pub fn put_token(&mut self, row: TokenRow) {
        self.touch(Table::Tokens, row.id.as_str());
        self.facts.tokens.insert(row.id.clone(), Arc::new(row));
    }

    /// Deletes a token.
    pub fn drop_token(&mut self, id: &str) {
        self.touch(Table::Tokens, id);
        self.facts.tokens.remove(id);
    }

    /// Records a secret, replacing its older version.
    pub fn put_secret(&mut self, row: SecretRow) {
        self.touch(Table::Secrets, row.id.to_string());
        self.facts.secrets.insert(row.id.clone(), Arc::new(row));
    }

    /// Deletes a secret.
    pub fn drop_secret(&mut self, id: &SecretId) {
        self.touch(Table::Secrets, id.to_string());
        self.facts.secrets.remove(id);
    }

    /// Refuses an identity from now on.
    pub fn deny(&mut self, id: MachineId, machine: &MachineName, now: Now) {
        self.touch(Table::Denied, id.to_string());
        let known = self.machines.get(machine).cloned();
        let drained = known.as_ref().and_then(|known| known.update.as_ref()).is_some_and(MachineUpdate::takes_tasks);
        let in_drain_of = known.as_ref().filter(|_| drained).map(|known| known.spec.cluster_name.clone());
        if let Some(cluster) = &in_drain_of {
            self.facts.live.drains_let_go_mono_ms.insert(cluster.clone(), now.mono_ms);
        }
        if let Some(row) = self.machine_mut(machine) {
            row.leave_nodes_behind();
        }
        // It may already be refused, and its successor about to take its name.
        let in_drain_of = in_drain_of.or_else(|| self.facts.denied.get(&id)?.in_drain_of.clone());
        let generation = known.map(|row| row.assigned.generation).unwrap_or_default();
        let row = DeniedRow { id, machine: machine.clone(), at_ms: now.wall_ms, generation, in_drain_of };
        self.facts.denied.insert(id, Arc::new(row));
        // Discard its evidence.
        self.facts.live.newer.remove(&id);
    }

    /// Records credentials, or their change.
    pub fn put_credentials(&mut self, row: CredentialRow) {
        self.touch(Table::Credentials, row.subject.as_str());
        self.facts.credentials.insert(row.subject.clone(), Arc::new(row));
    }

    /// Deletes credentials.
    pub fn drop_credentials(&mut self, subject: &str) {
        self.touch(Table::Credentials, subject);
        self.facts.credentials.remove(subject);
    }

    /// Writes an audit line. A quick repetition by the same actor increments the count of its newest line.
    pub fn audit(&mut self, actor: &str, action: &str, object: AuditObject<'_>, message: &str, at_ms: u64) {
        let deed = Deed::new(self.facts, (actor, action), object, message);
        let scope = deed.scope.clone();
        let is_first = self.audited.is_empty();
        let meta = self.meta_mut();
        if is_first {
            // All earlier batches are in the journal, otherwise this one would not exist.
            meta.audit_told = meta.audit_seq;
        }
        meta.audit_seq += 1;
        let seq = meta.audit_seq;
        if !meta.audit_chains.contains(&scope) {
            meta.audit_chains.insert(scope.clone());
        }
        let chain = Arc::make_mut(self.facts.audit.entry(scope.clone()).or_default());
        let row = chain.write(&deed, at_ms, seq);
        let mut dropped = Vec::new();
        while chain.is_too_long() {
            dropped.extend(chain.drop_oldest());
        }
        self.touch(Table::Audit, scope.line_key(row.number));
        self.touch(Table::Audit, scope.head_key());
        dropped.into_iter().for_each(|number| self.touch(Table::Audit, scope.line_key(number)));
        self.audited.push(row);
        if let Some(longest) = audit::longest(&self.facts.audit, scope.source).cloned() {
            self.drop_oldest_line(&longest);
        }
    }

    fn drop_oldest_line(&mut self, scope: &AuditScope) {
        let Some(chain) = self.facts.audit.get_mut(scope) else { return };
        let Some(number) = Arc::make_mut(chain).drop_oldest() else { return };
        self.touch(Table::Audit, scope.line_key(number));
        self.touch(Table::Audit, scope.head_key());
    }

    /// The audit lines written by this transaction, in order. A repeated line appears once for each count.
    #[must_use]
    pub fn take_audited(&mut self) -> Vec<Arc<AuditRow>> {
        std::mem::take(&mut self.audited)
    }

    /// Live facts about a machine. They live in memory only, so tracking is unnecessary.
    pub fn live_mut(&mut self, name: &MachineName) -> &mut MachineLive {
        self.facts.live.machines.entry(name.clone()).or_default()
    }

    /// Every cordon of Muster's on a machine's node in this cluster is in the record. Not stored: each start lists the
    /// nodes again.
    pub fn knows_cordons(&mut self, cluster: &ClusterName) {
        self.facts.live.cordons_known.insert(cluster.clone());
    }

    /// There may be cordons of Muster's in this cluster that the record lacks.
    pub fn may_lack_cordons(&mut self, cluster: &ClusterName) {
        self.facts.live.cordons_known.remove(cluster);
    }

    /// Counts a request of an operator, an enrolment into a cluster, or a machine's repeated request. Not stored.
    ///
    /// # Errors
    /// Above `rate`: milliseconds until one more fits.
    pub fn count(&mut self, actor: &str, rate: Rate, now: Now) -> Result<(), u64> {
        let requests = &mut self.facts.live.requests;
        if requests.len() >= ACTORS_COUNTED_MAX {
            requests.retain(|_, used| !used.is_over(now.mono_ms));
        }
        requests.entry(actor.to_owned()).or_default().take(rate, now.mono_ms)
    }

    /// What is known of a cluster's handshake as custom resources. Not stored: each start lists them again.
    pub fn handshake_mut(&mut self, cluster: &ClusterName) -> &mut HandshakeObservation {
        self.facts.live.handshakes.entry(cluster.clone()).or_default()
    }

    /// What is known of a cluster's DaemonSets whose pods are renewed. Not stored: each start lists them again.
    pub fn renewal_mut(&mut self, cluster: &ClusterName) -> &mut RenewalObservation {
        self.facts.live.renewals.entry(cluster.clone()).or_default()
    }

    /// What is known of a cluster's add-ons. Not stored: each start looks again.
    pub fn addons_mut(&mut self, cluster: &ClusterName) -> &mut AddonsObservation {
        self.facts.live.addons.entry(cluster.clone()).or_default()
    }

    /// The number of the next question about a swarm. Not stored: answers do not outlive the process.
    pub fn next_question(&mut self) -> u64 {
        self.facts.live.swarm_questions += 1;
        self.facts.live.swarm_questions
    }

    /// Registers a controller's stream of a cluster's requests. Not stored: it opens another after a restart.
    pub fn begin_watch(&mut self, cluster: ClusterName, controller: String, stream: u64, now: Now) {
        let live = &mut self.facts.live;
        live.watching.entry((cluster, controller)).or_default().insert(stream, now.mono_ms);
    }

    /// Removes a stream that has ended.
    pub fn end_watch(&mut self, cluster: ClusterName, controller: String, stream: u64, now: Now) {
        let live = &mut self.facts.live;
        let whose = (cluster, controller);
        let Some(streams) = live.watching.get_mut(&whose) else { return };
        let began_ms = streams.remove(&stream);
        if streams.is_empty() {
            live.watching.remove(&whose);
            // A controller that never stays long enough to answer gets no more time for that.
            if began_ms.is_some_and(|began_ms| now.mono_ms.saturating_sub(began_ms) >= SETTLE_MS) {
                live.controllers_left_ms.insert(whose.0, now.wall_ms);
            }
        }
    }

    /// Stops waiting for a machine that was enrolled before the start: it sent Hello, or its identity is refused.
    pub fn stop_awaiting(&mut self, name: &MachineName) {
        self.facts.live.awaited.remove(name);
    }

    /// Records evidence that this store is older than the fleet. Not stored: it appears again after a restart.
    pub fn older_than_fleet(&mut self, id: MachineId, evidence: String) {
        self.facts.live.newer.entry(id).or_insert(evidence);
    }

    /// The batch that makes this transaction durable.
    #[must_use]
    pub fn into_changes(self) -> Vec<Change> {
        let facts = &*self.facts;
        self.dirty
            .into_iter()
            .map(|(table, key)| match value_of(facts, table, &key) {
                Some(value) => Change::Put { table, key, value },
                None => Change::Delete { table, key },
            })
            .collect()
    }
}

fn spec_key(cluster: &ClusterName, version: u64) -> String {
    format!("{cluster}/{version}")
}

/// The stored form of a row. None: the row was deleted.
fn value_of(facts: &Facts, table: Table, key: &str) -> Option<Vec<u8>> {
    match table {
        Table::Pki => None,
        Table::Meta => Some(json(&facts.meta)),
        Table::Clusters => facts.clusters.get(key).map(|row| json(&**row)),
        Table::Specs => {
            let (cluster, version) = key.split_once('/')?;
            let at = (ClusterName::new(cluster).ok()?, version.parse().ok()?);
            let spec = facts.specs.get(&at)?;
            Some(json(&SpecRow { cluster: at.0, version: at.1, spec: Arc::clone(spec) }))
        }
        Table::Machines => facts.machines.get(key).map(|row| json(&**row)),
        Table::Statuses => {
            let (machine, item) = key.split_once('/')?;
            facts.machines.get(machine)?.statuses.get(item).map(|row| json(&**row))
        }
        Table::Denied => facts.denied.get(&key.parse().ok()?).map(|row| json(&**row)),
        Table::Credentials => facts.credentials.get(key).map(|row| json(&**row)),
        Table::Rollouts => facts.rollouts.get(key).map(|row| json(&**row)),
        Table::Locks => facts.locks.get(&LockKey::of_text(key)?).map(|row| json(&**row)),
        Table::Tokens => facts.tokens.get(key).map(|row| json(&**row)),
        Table::Secrets => facts.secrets.get(&key.parse().ok()?).map(|row| json(&**row)),
        Table::Audit => {
            let (scope, number) = AuditScope::of_key(key)?;
            let chain = facts.audit.get(&scope)?;
            match number {
                Some(number) => chain.line(number).map(|row| json(&**row)),
                None => Some(json(&chain.head())),
            }
        }
    }
}
