//! Tables of locks, requests and cluster states. All cells of a row differ, except the product's fixed words, so a
//! misplaced column is noticed.

use muster_proto::{
    model::{LockState, Scope},
    resource::{
        ClusterState, ClusterStateSpec, ClusterStateStatus, Kind, Lock, LockSpec, LockStatus, Of, Request, RequestSpec,
        RequestStatus,
    },
};

use super::{
    check,
    documents::{at, metadata},
    json,
};

const MOVING: &str = "moving placement groups, 3 of 5 OSDs are out of the way";

/// Check the narrow and the wide table: they have the same columns; only the narrow one cuts text.
fn check_both(kind: Kind, documents: &[Vec<u8>], narrow: &str, wide: &str) {
    check(kind, false, documents, &narrow.lines().collect::<Vec<_>>());
    check(kind, true, documents, &wide.lines().collect::<Vec<_>>());
}

fn lock(name: &str, kind: &str, (holder, node): (&str, Option<&str>), status: LockStatus) -> Vec<u8> {
    let spec = LockSpec {
        cluster_name: "edge-7".into(),
        kind: kind.into(),
        controller_name: holder.into(),
        node_name: node.map(str::to_owned),
        uid: None,
    };
    json(&Lock { metadata: metadata(name, "2026-03-01T12:00:00Z"), spec, status })
}

fn status(state: LockState, percentage: u32, error: &str, description: &str) -> LockStatus {
    LockStatus {
        state,
        since: at("2026-03-01T12:04:00Z"),
        error_message: error.into(),
        percentage,
        description: description.into(),
        release: "1.3".into(),
        connected: true,
    }
}

#[test]
fn locks() {
    let node = "NodeWorkloadLock";
    let failed = status(LockState::Failed, 7, "OSDs do not come up", MOVING);
    let gone = |status: LockStatus| LockStatus { connected: false, ..status };
    let documents = [
        lock("ceph-worker-1", node, ("ceph", Some("worker-1")), status(LockState::Active, 40, "", MOVING)),
        lock("ceph-worker-2", node, ("ceph", Some("worker-2")), failed),
        lock("nova-edge-7", "ClusterWorkloadLock", ("nova", None), gone(status(LockState::Inactive, 100, "", ""))),
        lock("iam-edge-7", "ClusterWorkloadLock", ("iam", None), gone(status(LockState::Active, 0, "", "busy"))),
    ];
    for of in [Of::All, Of::Nodes, Of::Clusters] {
        check_both(Kind::Locks(of), &documents, include_str!("locks.txt"), include_str!("locks-wide.txt"));
    }
}

#[test]
fn requests() {
    let request = |name: &str, kind: &str, scope, state: &str, message: &str| {
        let spec = RequestSpec {
            cluster_name: "edge-7".into(),
            kind: kind.into(),
            node_name: (name != "edge-7").then(|| name.into()),
            uid: None,
            scope,
            removal: name != "edge-7",
            release: "1.4".into(),
        };
        let status = RequestStatus { state: state.into(), message: message.into() };
        json(&Request { metadata: metadata(name, "2026-03-01T12:00:00Z"), spec, status })
    };
    let waits = format!("LocksActive: ceph keeps its lock on worker-1: {MOVING}");
    let documents = [
        request("worker-1", "NodeMaintenanceRequest", Scope::Os, "waiting", &waits),
        request("edge-7", "ClusterMaintenanceRequest", Scope::Drain, "granted", ""),
    ];
    for of in [Of::All, Of::Nodes, Of::Clusters] {
        check_both(Kind::Requests(of), &documents, include_str!("requests.txt"), include_str!("requests-wide.txt"));
    }
}

#[test]
fn cluster_states() {
    let state = |name: &str, kind: &str, (arg, value, actual): (&str, &str, &str), attempt, message: &str| {
        let spec =
            ClusterStateSpec { cluster_name: "edge-7".into(), kind: kind.into(), arg: arg.into(), value: value.into() };
        let status = ClusterStateStatus { actual_value: actual.into(), attempt, message: message.into() };
        json(&ClusterState { metadata: metadata(name, "2026-03-01T12:00:00Z"), spec, status })
    };
    let runs = "3 tasks still run on worker-1, and a manager said so only a moment ago";
    let documents = [
        state("sd-worker-1", "swarm-drain", ("worker-1", "true", "false"), 2, runs),
        state("sr-worker-2", "swarm-remove", ("worker-2", "false", "true"), 1, ""),
    ];
    let (narrow, wide) = (include_str!("clusterstates.txt"), include_str!("clusterstates-wide.txt"));
    check_both(Kind::ClusterStates, &documents, narrow, wide);
}
