//! The renewal with the maintenance handshake as custom resources: nothing is evicted without a request about its node.

use muster_proto::model::{Blocked, MaintenanceObjects};

use super::*;
use crate::{
    facts::handshake::{LockObject, Subject},
    plan::handshake,
};

/// All workers are at the new release, and the template changed meanwhile. `all`: the control machines are disturbed in
/// that update too.
fn at_renewal_with_requests(all: bool, set_up: impl FnOnce(&mut Kubernetes)) -> (Fleet, Kubernetes) {
    let mut fleet = at_rest_with(|spec| {
        spec.on_delete = vec![selector()];
        spec.maintenance = Some(MaintenanceObjects::default());
    });
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.release.push_str(".1");
    spec.max_worker_upgrade_count = 1;
    let items = spec.machine_types.iter_mut().filter(|(of, _)| all || **of == Worker).flat_map(|(_, items)| items);
    items.filter(|item| item.name.as_str() == "install").for_each(|item| item.version.push_str(".1"));
    fleet.ask(apply(spec, &[])).expect("applies");
    let mut kubernetes = Kubernetes::of(&fleet);
    kubernetes.daemon_sets.sets = vec![vrouter(OLD, OLD)];
    kubernetes.locks = vec![lock("control-1")];
    fleet.ask(update()).expect("starts");
    for name in fleet.agents.keys().cloned().collect::<Vec<_>>() {
        fleet.finish(&name);
    }
    fleet.live(&mut kubernetes, 6);
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.live(&mut kubernetes, 20);
    for name in ["control-1", "control-2", "control-3"].iter().filter(|_| all) {
        set(&mut kubernetes, LockState::Inactive);
        fleet.live(&mut kubernetes, 6);
        fleet.complete_in(&mut kubernetes, name);
        set(&mut kubernetes, LockState::Active);
        fleet.live(&mut kubernetes, 15);
    }
    fleet.complete_in(&mut kubernetes, "worker-1");
    fleet.live(&mut kubernetes, 15);
    kubernetes.set().newest = Some(NEW.to_owned());
    count(kubernetes.set());
    set_up(&mut kubernetes);
    fleet.complete_in(&mut kubernetes, "worker-2");
    kubernetes.log.clear();
    fleet.live(&mut kubernetes, 15);
    (fleet, kubernetes)
}

/// The lock of Tungsten Fabric's controller for a node.
fn lock(node: &str) -> LockObject {
    LockObject {
        subject: Subject::Node(node.to_owned()),
        name: format!("tungstenfabric-{node}"),
        uid: "lock".to_owned(),
        controller: "tungstenfabric".to_owned(),
        state: LockState::Active,
        message: String::new(),
        percentage: 0,
        description: String::new(),
        release: String::new(),
        takes_deletion: false,
    }
}

fn set(kubernetes: &mut Kubernetes, state: LockState) {
    kubernetes.locks.iter_mut().for_each(|lock| lock.state = state);
}

fn nodes_requested(kubernetes: &Kubernetes) -> Vec<&str> {
    let requests = kubernetes.requests.iter().filter(|request| request.subject != Subject::Cluster);
    requests.map(|request| request.name.as_str()).collect()
}

/// The request is about the node, and the lock there holds it.
fn is_held_by_lock(fleet: &mut Fleet, kubernetes: &mut Kubernetes, node: &str) {
    assert_eq!((fleet.requests(), nodes_requested(kubernetes)), (vec!["control-1"], vec![node]));
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(kubernetes, 20);
    assert_eq!(kubernetes.evictions(), 0, "its lock is active: {:?}", kubernetes.log);
    assert!(fleet.says("control-1").contains("tungstenfabric"), "{}", fleet.says("control-1"));
    set(kubernetes, LockState::Inactive);
    fleet.live(kubernetes, 20);
    assert_eq!(kubernetes.evictions(), 1, "{}", fleet.says("control-1"));
}

/// A machine that the update does not disturb was never looked for.
#[test]
fn node_is_known_before_its_request() {
    let (mut fleet, mut kubernetes) = at_renewal_with_requests(false, |_| {});
    is_held_by_lock(&mut fleet, &mut kubernetes, "control-1");
}

#[test]
fn request_is_about_renamed_node() {
    let (mut fleet, mut kubernetes) = at_renewal_with_requests(true, |kubernetes| {
        let mut node = kubernetes.nodes.remove("control-1").expect("a node");
        node.object.name = "renamed".to_owned();
        kubernetes.nodes.insert("renamed".to_owned(), node);
        kubernetes.on("control-1").node = "renamed".to_owned();
        kubernetes.locks = vec![lock("renamed")];
    });
    is_held_by_lock(&mut fleet, &mut kubernetes, "renamed");
}

/// A node that gets another name in the turn has another request first.
#[test]
fn node_renamed_in_turn_is_requested_anew() {
    let (mut fleet, mut kubernetes) = at_renewal_with_requests(false, |_| {});
    assert_eq!(nodes_requested(&kubernetes), ["control-1"]);
    let mut node = kubernetes.nodes.remove("control-1").expect("a node");
    node.object.name = "renamed".to_owned();
    kubernetes.nodes.insert("renamed".to_owned(), node);
    kubernetes.on("control-1").node = "renamed".to_owned();
    kubernetes.locks = vec![lock("renamed")];
    fleet.live(&mut kubernetes, 70);
    is_held_by_lock(&mut fleet, &mut kubernetes, "renamed");
}

/// A machine that was Ready has a node: while that is unknown, nothing is requested and nothing is granted.
#[test]
fn unknown_node_is_no_consent() {
    let fleet = at_rest_with(|spec| spec.maintenance = Some(MaintenanceObjects::default()));
    let unclear = |blocked: Option<Blocked>| blocked.map(|blocked| blocked.reason.to_string());
    let (asked, stands) = fleet.look("control-1", |snapshot, view| {
        let asked = handshake::may_request(snapshot, Some(&view.row.name)).err();
        (unclear(asked), unclear(handshake::stands(snapshot, Some(view.row)).err()))
    });
    let expected = Some("KubernetesNodeUnclear");
    assert_eq!((asked.as_deref(), stands.as_deref()), (expected, expected));
}
