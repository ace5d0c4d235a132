//! Documents of the maintenance handshake: locks and requests.

mod cluster_states;

use std::collections::BTreeMap;

use muster_proto::{
    model::{Blocked, ClusterName, MachineName, Now},
    resource::{Document, Lock, LockSpec, LockStatus, Metadata, Request, RequestSpec, RequestStatus},
};

pub use cluster_states::cluster_states;

use super::{at, snapshots};
use crate::{
    facts::{Facts, LockRow, handshake::Subject},
    plan::{
        Limits, handshake, locks as answers,
        requests::{Requested, requested},
        snapshot::ClusterSnapshot,
    },
};

/// Every lock of the clusters that `wanted` accepts.
#[must_use]
pub fn locks(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool) -> Vec<Lock> {
    facts.locks.values().filter(|row| wanted(&row.key.cluster)).map(|row| lock(facts, row)).collect()
}

fn lock(facts: &Facts, row: &LockRow) -> Lock {
    let watcher = (row.key.cluster.clone(), row.key.controller.clone());
    let node = match row.object.as_ref().map(|object| &object.subject) {
        None => row.key.node.as_ref().map(MachineName::as_str),
        Some(Subject::Cluster) => None,
        Some(Subject::Node(node) | Subject::Deletion(node)) => {
            Some(machine_of(facts, &row.key.cluster, node).unwrap_or(node))
        }
    };
    let of = node.unwrap_or(row.key.cluster.as_str());
    let kind = if node.is_some() { "NodeWorkloadLock" } else { "ClusterWorkloadLock" };
    let name = row.object.as_ref().map(|object| object.name.clone());
    Document {
        metadata: Metadata {
            name: name.unwrap_or_else(|| format!("{}-{of}", row.key.controller)),
            creation_timestamp: at(row.since_ms),
            annotations: BTreeMap::new(),
        },
        spec: LockSpec {
            cluster_name: row.key.cluster.to_string(),
            kind: kind.to_owned(),
            controller_name: row.key.controller.clone(),
            node_name: node.map(str::to_owned),
            uid: row.key.uid.clone(),
        },
        status: LockStatus {
            state: row.state,
            since: at(row.since_ms),
            error_message: row.message.clone(),
            percentage: row.percentage,
            description: row.description.clone(),
            release: row.release.clone(),
            connected: row.object.is_some() || facts.live.watching.contains_key(&watcher),
        },
    }
}

/// The machine with this Kubernetes node.
fn machine_of<'a>(facts: &'a Facts, cluster: &'a ClusterName, node: &str) -> Option<&'a str> {
    let row = facts.machines_of(cluster).find(|row| row.kubernetes_node.as_deref() == Some(node))?;
    Some(row.name.as_str())
}

/// Every request of the clusters that `wanted` accepts.
#[must_use]
pub fn requests(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool, limits: &Limits, now: Now) -> Vec<Request> {
    snapshots(facts, wanted, limits, now)
        .iter()
        .flat_map(|snapshot| {
            let all = requested(facts, &snapshot.cluster.name);
            all.flat_map(|requested| {
                let own = request(snapshot, requested);
                let deletion = deletion(snapshot, requested, &own);
                [Some(own), deletion].into_iter().flatten()
            })
            .collect::<Vec<_>>()
        })
        .collect()
}

/// The request for the end of the node of a machine that is removed, once it stands beside the machine's own.
fn deletion(snapshot: &ClusterSnapshot<'_>, requested: Requested<'_>, own: &Request) -> Option<Request> {
    let row = requested.machine.filter(|_| requested.removal)?;
    let standing = row.update.as_ref()?.standing_deletion.as_ref()?;
    let waits = handshake::lets_delete(snapshot, row).err();
    let metadata = Metadata { creation_timestamp: at(standing.since_ms), ..own.metadata.clone() };
    let kind = "NodeDeletionRequest".to_owned();
    let spec = RequestSpec { kind, uid: Some(standing.uid.clone()), ..own.spec.clone() };
    Some(Document { metadata, spec, status: status(waits) })
}

fn status(waits: Option<Blocked>) -> RequestStatus {
    RequestStatus {
        state: if waits.is_some() { "waiting" } else { "granted" }.to_owned(),
        message: waits.map(|waits| waits.message).unwrap_or_default(),
    }
}

fn request(snapshot: &ClusterSnapshot<'_>, requested: Requested<'_>) -> Request {
    let Requested { machine, row, scope, removal, release } = requested;
    let node = machine.map(|machine| &machine.name);
    let waits = answers::granted(snapshot, machine, &row).err();
    let standing = match machine {
        Some(machine) => machine.update.as_ref().and_then(|mine| mine.standing.as_ref()),
        None => snapshot.update().and_then(|update| update.standing.as_ref()),
    };
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
            uid: standing.map(|standing| standing.uid.clone()),
        },
        status: status(waits),
    }
}
