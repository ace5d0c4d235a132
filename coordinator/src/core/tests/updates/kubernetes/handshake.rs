//! The maintenance handshake as custom resources: requests made and removed, locks that hold a machine, and controllers
//! that have not answered.

mod locks;
mod objects;

use muster_proto::model::{MIGRATION_MODE, MaintenanceObjects, ObjectController, RemovalPolicy};

use super::*;
use crate::{
    core::Refusal,
    facts::{
        handshake::{LockObject, RequestObject, Subject},
        kubernetes::KubernetesFailure,
    },
};

const FINALIZER: &str = "lcm.mirantis.com/rockoon.nodemaintenancerequest-finalizer";
const HANDLED: &str = "kopf.zalando.org/last-handled-configuration";

/// A controller that is known by its name: Rockoon.
fn openstack() -> ObjectController {
    ObjectController {
        name: "openstack".to_owned(),
        finalizer: None,
        handled_annotation: None,
        node_labels: Vec::new(),
    }
}

/// One worker at a time; the control machines are at the new release.
fn workers(controllers: Vec<ObjectController>) -> (Fleet, Kubernetes) {
    workers_with(controllers, |_| {})
}

fn workers_with(controllers: Vec<ObjectController>, set_up: impl FnOnce(&mut Kubernetes)) -> (Fleet, Kubernetes) {
    workers_of(1, controllers, set_up)
}

/// The same with so many workers at a time.
fn workers_of(
    width: u32,
    controllers: Vec<ObjectController>,
    set_up: impl FnOnce(&mut Kubernetes),
) -> (Fleet, Kubernetes) {
    let (mut fleet, mut kubernetes) = controls_with(controllers, (&["install"], width), set_up);
    for control in ["control-1", "control-2", "control-3"] {
        handle(&mut fleet, &mut kubernetes);
        fleet.complete_in(&mut kubernetes, control);
        fleet.live(&mut kubernetes, 12);
        assert_eq!((fleet.part(control), fleet.slot(control)), (None, None), "{:?}", fleet.says(control));
    }
    kubernetes.log.clear();
    (fleet, kubernetes)
}

/// The first control machine has its turn. `items` have changed, and so many workers go at a time.
fn controls_with(
    controllers: Vec<ObjectController>,
    (items, width): (&[&str], u32),
    set_up: impl FnOnce(&mut Kubernetes),
) -> (Fleet, Kubernetes) {
    let mut fleet = at_rest_with(|spec| spec.maintenance = Some(MaintenanceObjects { controllers }));
    release(&mut fleet, items, width);
    let mut kubernetes = Kubernetes::of(&fleet);
    set_up(&mut kubernetes);
    fleet.ask(update()).expect("starts");
    for name in fleet.agents.keys().cloned().collect::<Vec<_>>() {
        fleet.finish(&name);
    }
    fleet.live(&mut kubernetes, 6);
    handle(&mut fleet, &mut kubernetes);
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    (fleet, kubernetes)
}

/// The controller is through with all requests, and makes no lock.
fn handle(fleet: &mut Fleet, kubernetes: &mut Kubernetes) {
    for request in &mut kubernetes.requests {
        request.annotations = vec![HANDLED.to_owned()];
    }
    fleet.live(kubernetes, 6);
}

fn lock(controller: &str, node: &str, uid: &str, state: LockState) -> LockObject {
    LockObject {
        subject: Subject::Node(node.to_owned()),
        name: format!("{controller}-{node}"),
        uid: uid.to_owned(),
        controller: controller.to_owned(),
        takes_deletion: false,
        state,
        message: String::new(),
        percentage: 0,
        description: String::new(),
        release: String::new(),
    }
}

fn set(kubernetes: &mut Kubernetes, uid: &str, state: LockState) {
    kubernetes.locks.iter_mut().filter(|lock| lock.uid == uid).for_each(|lock| lock.state = state);
}

fn names(kubernetes: &Kubernetes) -> Vec<&str> {
    kubernetes.requests.iter().map(|request| request.name.as_str()).collect()
}

#[test]
fn requests_are_made_and_removed_there() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    assert_eq!(names(&kubernetes), [cluster().as_str(), "worker-1"]);
    assert_eq!(kubernetes.requests[0].subject, Subject::Cluster);
    assert_eq!(kubernetes.requests[1].subject, Subject::Node("worker-1".to_owned()));
    for worker in ["worker-1", "worker-2"] {
        fleet.complete_in(&mut kubernetes, worker);
        fleet.live(&mut kubernetes, 12);
        assert_eq!((fleet.part(worker), fleet.slot(worker)), (None, None), "{}", fleet.says(worker));
        assert!(!names(&kubernetes).contains(&worker));
    }
    fleet.live(&mut kubernetes, 6);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

#[test]
fn lock_there_holds_machine_and_is_waited_for() {
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Active));
    };
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"));
    assert!(fleet.says("worker-1").contains("tungstenfabric"), "{}", fleet.says("worker-1"));
    let way_out = "`kubectl delete nodeworkloadlock tungstenfabric-worker-1`";
    assert!(fleet.clears_when("worker-1").contains(way_out), "{}", fleet.clears_when("worker-1"));
    set(&mut kubernetes, "one", LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
    fleet.finish("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksReturning"));
    assert!(!names(&kubernetes).contains(&"worker-1"));
    set(&mut kubernetes, "one", LockState::Active);
    fleet.live(&mut kubernetes, 6);
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "{}", fleet.says("worker-1"));
}

/// A lock stands for itself alone: it releases no registered one, nor another object's of the same spec.
#[test]
fn worst_of_the_locks_counts() {
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.locks.push(lock("ceph", "worker-1", "one", LockState::Active));
        kubernetes.locks.push(lock("ceph", "worker-1", "two", LockState::Active));
    };
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    for (step, waits) in [("one", true), ("two", true), ("registered", false)] {
        if step == "registered" {
            fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        } else {
            set(&mut kubernetes, step, LockState::Inactive);
        }
        fleet.live(&mut kubernetes, 12);
        let reason = (fleet.why("worker-1"), fleet.permit("worker-1").is_none());
        assert_eq!(reason.1, waits, "{step}: {}", fleet.says("worker-1"));
        assert!(!waits || reason.0.as_deref() == Some("LocksActive"), "{step}: {reason:?}");
    }
    // One is taken back.
    set(&mut kubernetes, "two", LockState::Failed);
    fleet.live(&mut kubernetes, 4);
    let row = fleet.row("worker-1");
    assert_eq!(row.kubernetes_node.as_deref(), Some("worker-1"));
    let locks = fleet.core.facts().locks.values().filter(|lock| lock.key.controller == "ceph").count();
    assert!(locks > 3, "each has a row of its own");
}

/// A declared controller that has not seen the request consents to nothing.
#[test]
fn silence_is_no_consent() {
    let (mut fleet, mut kubernetes) = workers_with(vec![openstack()], |kubernetes| {
        kubernetes.finalizer = Some(FINALIZER);
    });
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    kubernetes.request("worker-1").finalizers.clear();
    fleet.live(&mut kubernetes, 60);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ControllerSilent"));
    assert!(fleet.says("worker-1").contains(FINALIZER), "{}", fleet.says("worker-1"));
    kubernetes.request("worker-1").finalizers.push(FINALIZER.to_owned());
    fleet.live(&mut kubernetes, 60);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
    assert!(fleet.permit("worker-1").is_none());
    kubernetes.request("worker-1").annotations.push(HANDLED.to_owned());
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

/// A lock that comes with the request is an answer, however fast it is inactive.
#[test]
fn late_lock_answers() {
    let (mut fleet, mut kubernetes) = workers_with(vec![openstack()], |kubernetes| {
        kubernetes.finalizer = Some(FINALIZER);
    });
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    kubernetes.locks.push(lock("openstack", "worker-1", "late", LockState::Inactive));
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

#[test]
fn lock_left_inactive_delays_request() {
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Inactive));
    };
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, 15);
    assert!(!names(&kubernetes).contains(&"worker-1"), "{:?}", kubernetes.requests);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LockNotYetActive"), "{}", fleet.says("worker-1"));
}

/// A controller that is through with the request, and does not know the node: its label there is no consent.
#[test]
fn label_without_lock_is_no_consent() {
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.finalizer = Some(FINALIZER);
        for worker in ["worker-1", "worker-2"] {
            kubernetes.node(worker).labels = vec!["openstack-compute-node=enabled".to_owned()];
        }
    };
    let (mut fleet, mut kubernetes) = workers_with(vec![openstack()], open);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    handle(&mut fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ControllerCannotSee"), "{}", fleet.says("worker-1"));
    assert!(kubernetes.is_untouched("worker-1") && fleet.permit("worker-1").is_none());
    assert!(fleet.says("worker-1").contains("openstack-compute-node=enabled"), "{}", fleet.says("worker-1"));
    // Another label says nothing.
    kubernetes.node("worker-1").labels = vec!["openstack-compute-node=disabled".to_owned()];
    fleet.live(&mut kubernetes, 25);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

/// A request that somebody made by hand.
fn foreign(name: &str, node: &str) -> RequestObject {
    RequestObject {
        subject: Subject::Node(node.to_owned()),
        name: name.to_owned(),
        uid: "foreign".to_owned(),
        requested_by: None,
        mark: None,
        deleting: false,
        finalizers: Vec::new(),
        annotations: Vec::new(),
    }
}

#[test]
fn foreign_request_is_named_and_left() {
    let open = |kubernetes: &mut Kubernetes| kubernetes.requests.push(foreign("by-hand", "worker-1"));
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ForeignRequest"), "the other one goes first");
    assert!(fleet.says("worker-1").contains("by-hand"), "{}", fleet.says("worker-1"));
    assert!(names(&kubernetes).contains(&"by-hand"), "it is left alone");
    kubernetes.requests.retain(|request| request.uid != "foreign");
    fleet.live(&mut kubernetes, 15);
    fleet.complete_in(&mut kubernetes, "worker-1");
    fleet.live(&mut kubernetes, 12);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
}

/// Two objects cannot have one name: ours cannot be made.
#[test]
fn foreign_request_of_our_name_is_in_the_way() {
    let open = |kubernetes: &mut Kubernetes| kubernetes.requests.push(foreign("worker-1", "elsewhere"));
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ForeignRequest"), "the other one goes first");
    assert!(fleet.says("worker-1").contains("NodeMaintenanceRequest worker-1"), "{}", fleet.says("worker-1"));
    kubernetes.requests.retain(|request| request.uid != "foreign");
    fleet.live(&mut kubernetes, 15);
    fleet.complete_in(&mut kubernetes, "worker-1");
    fleet.live(&mut kubernetes, 12);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
}

#[test]
fn creation_without_effect_is_tried_once_a_second() {
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), |_| {});
    kubernetes.requests.clear();
    kubernetes.makes_none = true;
    let answered = kubernetes.answered;
    fleet.live(&mut kubernetes, 20);
    let tries = kubernetes.log.iter().filter(|line| *line == "request worker-1").count();
    assert!((2..=20).contains(&tries), "{tries} tries, {} answers", kubernetes.answered - answered);
}

#[test]
fn request_is_gone_when_its_finalizers_are() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    kubernetes.request("worker-1").finalizers.push("example.com/holds".to_owned());
    fleet.complete_in(&mut kubernetes, "worker-1");
    fleet.live(&mut kubernetes, 12);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksReturning"));
    assert!(fleet.says("worker-1").contains("held by example.com/holds"), "{}", fleet.says("worker-1"));
    kubernetes.requests.retain(|request| request.name != "worker-1");
    fleet.live(&mut kubernetes, 6);
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "{}", fleet.says("worker-1"));
}

/// The wait for it is over, and it is not gone: nobody takes it for a success.
#[test]
fn request_that_is_held_past_its_deadline_is_named() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    kubernetes.request("worker-1").finalizers.push("example.com/holds".to_owned());
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.live(&mut kubernetes, 2_000);
    assert_eq!(fleet.part("worker-1"), None, "the time for it is over");
    let stage = fleet.row("worker-1").stages.get(&Stage::RequestRemoved).map(|stage| stage.succeeded);
    assert_eq!(stage, Some(false));
    assert!(fleet.says("worker-1").contains("held by example.com/holds"), "{}", fleet.says("worker-1"));
    kubernetes.requests.clear();
    fleet.live(&mut kubernetes, 90);
    assert_eq!(fleet.why("worker-1"), None, "{}", fleet.says("worker-1"));
}

/// A removal takes the request over, with what answered it.
#[test]
fn removal_keeps_the_request_that_stands() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    fleet.live(&mut kubernetes, 3);
    let standing = |fleet: &Fleet| fleet.part("worker-1").and_then(|part| part.standing.clone());
    let before = standing(&fleet);
    assert!(before.is_some(), "it stands");
    let policy = RemovalPolicy::Graceful;
    let remove = Request::Remove { machine: machine("worker-1"), policy, accept_control_plane_downtime: false };
    fleet.ask(remove).expect("begins");
    fleet.live(&mut kubernetes, 5);
    assert_eq!(standing(&fleet), before, "a lock that let go for it has nothing else to say");
}

/// No update pins the cluster; what is left there goes all the same, and nobody asks without a pause.
#[test]
fn request_without_an_update_is_removed() {
    let mut fleet = at_rest_with(|spec| spec.maintenance = Some(MaintenanceObjects::default()));
    let mut kubernetes = Kubernetes::of(&fleet);
    fleet.live(&mut kubernetes, 80);
    let left = RequestObject { requested_by: Some(cluster().to_string()), ..foreign("worker-1", "worker-1") };
    kubernetes.requests.push(left);
    let answered = kubernetes.answered;
    fleet.live(&mut kubernetes, 66);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
    assert!(kubernetes.answered < answered + 10, "{} answers", kubernetes.answered - answered);
}

#[test]
fn abort_removes_requests() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    fleet.live(&mut kubernetes, 5);
    assert_eq!(names(&kubernetes).len(), 2);
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.live(&mut kubernetes, 12);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "{}", fleet.says("worker-1"));
}

/// The next coordinator finds what the last one made, makes nothing twice, and removes what nobody wants.
#[test]
fn next_coordinator_goes_on() {
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Active));
    };
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.live(&mut kubernetes, 5);
    set(&mut kubernetes, "one", LockState::Inactive);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 3);
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    kubernetes.log.retain(|line| !line.starts_with("request"));
    fleet.live(&mut kubernetes, 90);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
    assert!(!kubernetes.log.iter().any(|line| line.starts_with("request")), "{:?}", kubernetes.log);
}

#[test]
fn api_server_that_is_silent_delays() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    fleet.live(&mut kubernetes, 5);
    kubernetes.broken = Some(KubernetesFailure::Unreachable("no answer".to_owned()));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 30);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUnavailable"));
    assert!(fleet.permit("worker-1").is_none());
}

#[test]
fn release_of_an_object_is_refused_with_the_command() {
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Active));
    };
    let (mut fleet, _) = workers_with(Vec::new(), open);
    let release =
        crate::core::LockRelease { cluster: cluster(), controller: "tungstenfabric".to_owned(), machine: None };
    match fleet.ask(Request::ReleaseLocks(release)) {
        Err(Refusal::State { reason: "LockIsObject", message }) => {
            assert!(message.contains("kubectl delete nodeworkloadlock tungstenfabric-worker-1"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// A controller reads the node's annotations when it sees the request: they come first, and go with it.
#[test]
fn annotations_come_before_the_request() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    for (mode, done) in [("manual", "worker-1"), ("skip", "worker-2")] {
        let set = [(MIGRATION_MODE.to_owned(), mode.to_owned())].into();
        let annotate = Request::AnnotateMachine { machine: machine("worker-2"), set, remove: Vec::new() };
        fleet.ask(annotate).expect("is annotated");
        fleet.live(&mut kubernetes, 6);
        fleet.complete_in(&mut kubernetes, done);
        fleet.live(&mut kubernetes, 12);
    }
    let told: Vec<&String> = kubernetes.log.iter().filter(|line| line.contains(" worker-2")).collect();
    let annotated = |mode: &str| format!("annotate worker-2 {{{MIGRATION_MODE:?}: {mode:?}}}");
    let (made, gone) = ("request worker-2".to_owned(), "release worker-2".to_owned());
    let order = [annotated("manual"), made, annotated("skip"), "annotate worker-2 {}".to_owned(), gone];
    let told: Vec<&String> = told.into_iter().filter(|line| order.contains(line)).collect();
    assert_eq!(told, order.iter().collect::<Vec<_>>(), "{:?}", kubernetes.log);
    assert!(fleet.part("worker-2").is_none(), "{}", fleet.says("worker-2"));
}

/// What keeps a request from being made is said, and not only that it is about to be made.
#[test]
fn refused_creation_is_named() {
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), |_| {});
    kubernetes.requests.clear();
    kubernetes.refused = Some(KubernetesFailure::Forbidden("cannot create resource".to_owned()));
    fleet.live(&mut kubernetes, 30);
    assert!(fleet.says("worker-1").contains("cannot create resource"), "{}", fleet.says("worker-1"));
    kubernetes.refused = None;
    fleet.live(&mut kubernetes, 30);
    assert!(names(&kubernetes).contains(&"worker-1"), "{}", fleet.says("worker-1"));
}
