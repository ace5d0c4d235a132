//! Documents of the maintenance handshake: locks and requests.

mod cluster_states;

use std::collections::BTreeMap;

use muster_proto::{
    model::{ClusterName, MachineName, Now, Scope},
    resource::{Document, Lock, LockSpec, LockStatus, Metadata, Request, RequestSpec, RequestStatus},
};

pub use cluster_states::cluster_states;

use super::{at, snapshots};
use crate::{
    facts::{Facts, LockRow, MachineRow, RequestRow, UpdateRow},
    plan::{Limits, locks as answers, snapshot::ClusterSnapshot},
};

/// Every lock of the clusters that `wanted` accepts.
#[must_use]
pub fn locks(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool) -> Vec<Lock> {
    facts.locks.values().filter(|row| wanted(&row.key.cluster)).map(|row| lock(facts, row)).collect()
}

fn lock(facts: &Facts, row: &LockRow) -> Lock {
    let watcher = (row.key.cluster.clone(), row.key.controller.clone());
    let node = row.key.node.as_ref();
    let of = node.map_or(row.key.cluster.as_str(), MachineName::as_str);
    let kind = if node.is_some() { "NodeWorkloadLock" } else { "ClusterWorkloadLock" };
    Document {
        metadata: Metadata {
            name: format!("{}-{of}", row.key.controller),
            creation_timestamp: at(row.since_ms),
            annotations: BTreeMap::new(),
        },
        spec: LockSpec {
            cluster_name: row.key.cluster.to_string(),
            kind: kind.to_owned(),
            controller_name: row.key.controller.clone(),
            node_name: node.map(ToString::to_string),
        },
        status: LockStatus {
            state: row.state,
            since: at(row.since_ms),
            error_message: row.message.clone(),
            percentage: row.percentage,
            description: row.description.clone(),
            release: row.release.clone(),
            connected: facts.live.watching.contains_key(&watcher),
        },
    }
}

/// An existing maintenance request, with its content for the controllers.
#[derive(Clone, Copy, Debug)]
pub struct Requested<'a> {
    /// Its machine. None: it concerns the cluster itself.
    pub machine: Option<&'a MachineRow>,
    /// Its row, with its start.
    pub row: RequestRow,
    /// Permitted operations.
    pub scope: Scope,
    /// The machine is removed for good.
    pub removal: bool,
    /// The release of the update, if any; else empty.
    pub release: &'a str,
}

impl Requested<'_> {
    /// The machine's name; empty for the cluster's own request.
    #[must_use]
    pub fn machine_name(&self) -> &str {
        self.machine.map_or("", |row| row.name.as_str())
    }
}

/// Existing requests: the cluster's own, then those of its machines.
pub fn requested<'a>(facts: &'a Facts, cluster: &'a ClusterName) -> impl Iterator<Item = Requested<'a>> {
    let update = facts.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref());
    let scope = update.map_or(Scope::Drain, |update: &UpdateRow| update.scope);
    let coming = update.filter(|update| update.kind.brings_release());
    let coming = coming.and_then(|update| facts.specs.get(&(cluster.clone(), update.version)));
    let coming = coming.map_or("", |spec| spec.release.as_str());
    let own = update.and_then(|update| update.request);
    let own = own.map(|row| Requested { machine: None, row, scope, removal: false, release: coming });
    let of_machines = facts.machines_of(cluster).filter_map(move |machine| {
        let mine = machine.update.as_ref()?;
        // A machine that is removed meanwhile stays at its release.
        let release = if mine.maintenance.is_some() { "" } else { coming };
        Some(Requested { machine: Some(machine), row: mine.request?, scope, removal: machine.is_removed(), release })
    });
    own.into_iter().chain(of_machines)
}

/// Every request of the clusters that `wanted` accepts.
#[must_use]
pub fn requests(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool, limits: &Limits, now: Now) -> Vec<Request> {
    snapshots(facts, wanted, limits, now)
        .iter()
        .flat_map(|snapshot| {
            requested(facts, &snapshot.cluster.name).map(|requested| request(snapshot, requested)).collect::<Vec<_>>()
        })
        .collect()
}

fn request(snapshot: &ClusterSnapshot<'_>, requested: Requested<'_>) -> Request {
    let Requested { machine, row, scope, removal, release } = requested;
    let node = machine.map(|machine| &machine.name);
    let waits = answers::granted(snapshot, machine, &row).err();
    let kind = if node.is_some() { "NodeMaintenanceRequest" } else { "ClusterMaintenanceRequest" };
    Document {
        metadata: Metadata {
            name: node.map_or(snapshot.cluster.name.as_str(), MachineName::as_str).to_owned(),
            creation_timestamp: at(row.since_ms),
            annotations: BTreeMap::new(),
        },
        spec: RequestSpec {
            cluster_name: snapshot.cluster.name.to_string(),
            kind: kind.to_owned(),
            node_name: node.map(ToString::to_string),
            scope,
            removal,
            release: release.to_owned(),
        },
        status: RequestStatus {
            state: if waits.is_some() { "waiting" } else { "granted" }.to_owned(),
            message: waits.map(|waits| waits.message).unwrap_or_default(),
        },
    }
}
