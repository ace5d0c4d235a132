//! What the lock objects mean: which absence is an answer, whose they are, and the way out of those that stay.

use super::*;

/// A controller that waits for its work on worker-1, where the registered lock is inactive.
fn tungstenfabric_at_work(uids: &[&str]) -> (Fleet, Kubernetes) {
    let (mut fleet, mut kubernetes) = workers_with(vec![], |kubernetes| {
        let locks = uids.iter().map(|uid| lock("tungstenfabric", "worker-1", uid, LockState::Active));
        kubernetes.locks.extend(locks);
    });
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 60);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
    (fleet, kubernetes)
}

/// An operator of Tungsten Fabric that is upgraded makes its locks anew.
#[test]
fn vanished_lock_is_no_consent() {
    // The same of one of two locks: the other has let go.
    for uids in [&["one"][..], &["one", "two"]] {
        let (mut fleet, mut kubernetes) = tungstenfabric_at_work(uids);
        set(&mut kubernetes, "two", LockState::Inactive);
        kubernetes.locks.retain(|lock| lock.uid != "one");
        fleet.live(&mut kubernetes, 9);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-1"));
        assert!(fleet.says("worker-1").contains("tungstenfabric"), "{}", fleet.says("worker-1"));
        assert!(kubernetes.is_untouched("worker-1") && fleet.permit("worker-1").is_none());
        kubernetes.locks.push(lock("tungstenfabric", "worker-1", "anew", LockState::Active));
        fleet.live(&mut kubernetes, 30);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
        // Uninstalled, and an operator has deleted it.
        kubernetes.locks.retain(|lock| lock.uid != "anew");
        fleet.live(&mut kubernetes, 9);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-1"));
        fleet.live(&mut kubernetes, 8);
        assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
    }
}

/// The next coordinator does not know when the lock vanished: the time begins again.
#[test]
fn next_coordinator_waits_for_vanished_lock() {
    let (mut fleet, mut kubernetes) = workers_with(vec![openstack()], |kubernetes| {
        kubernetes.finalizer = Some(FINALIZER);
        kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Active));
    });
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    handle(&mut fleet, &mut kubernetes);
    kubernetes.locks.clear();
    fleet.live(&mut kubernetes, 5);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-1"));
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    fleet.live(&mut kubernetes, 9);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-1"));
    assert!(fleet.says("worker-1").contains("tungstenfabric"), "{}", fleet.says("worker-1"));
    fleet.live(&mut kubernetes, 90);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

/// A lock that is left out of the record would count as absent.
#[test]
fn too_many_locks_are_no_answer() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    let more = (0..=100_000).map(|n| lock("tungstenfabric", "elsewhere", &n.to_string(), LockState::Active));
    kubernetes.locks.extend(more);
    kubernetes.locks.push(lock("tungstenfabric", "worker-1", "last", LockState::Active));
    fleet.live(&mut kubernetes, 12);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUnavailable"), "{}", fleet.says("worker-1"));
    assert!(fleet.says("worker-1").contains("100002 workload locks"), "{}", fleet.says("worker-1"));
    assert!(fleet.permit("worker-1").is_none());
    kubernetes.locks.clear();
    fleet.live(&mut kubernetes, 15);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

const COMPUTE: &str = "openstack-compute-node=enabled";

/// Its request is made now, and its registered lock is inactive at once. Seconds until its node is cordoned. `every` is
/// called each second.
fn consent_takes(fleet: &mut Fleet, kubernetes: &mut Kubernetes, worker: &str, every: impl Fn(&mut Kubernetes)) -> u64 {
    let has = |kubernetes: &Kubernetes, line: String| kubernetes.log.contains(&line);
    for _ in 0..60 {
        if has(kubernetes, format!("request {worker}")) {
            break;
        }
        fleet.live(kubernetes, 1);
    }
    fleet.lock("ceph", Some(worker), LockState::Inactive);
    for seconds in 0..60 {
        every(kubernetes);
        if has(kubernetes, format!("cordon {worker}")) {
            return seconds;
        }
        fleet.live(kubernetes, 1);
    }
    panic!("{}", fleet.says(worker));
}

/// The next worker is about to be requested.
fn before_worker_2(controllers: Vec<ObjectController>, finalizer: Option<&'static str>) -> (Fleet, Kubernetes) {
    let (mut fleet, mut kubernetes) = workers_with(controllers, |kubernetes| kubernetes.finalizer = finalizer);
    fleet.live(&mut kubernetes, 12);
    handle(&mut fleet, &mut kubernetes);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 6);
    fleet.finish("worker-1");
    fleet.live(&mut kubernetes, 6);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    (fleet, kubernetes)
}

/// Nobody knows the controllers there. One may make its lock when it sees the request.
#[test]
fn controller_that_is_not_known_has_ten_seconds() {
    let (mut fleet, mut kubernetes) = before_worker_2(Vec::new(), None);
    let seconds = consent_takes(&mut fleet, &mut kubernetes, "worker-2", |_| {});
    assert!((10..=14).contains(&seconds), "{seconds} s");
}

#[test]
fn late_lock_of_an_unknown_controller_holds_machine() {
    let (mut fleet, mut kubernetes) = before_worker_2(Vec::new(), None);
    fleet.live(&mut kubernetes, 4);
    fleet.lock("ceph", Some("worker-2"), LockState::Inactive);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-2"));
    kubernetes.locks.push(lock("openstack", "worker-2", "late", LockState::Active));
    fleet.live(&mut kubernetes, 30);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-2"));
    assert!(kubernetes.is_untouched("worker-2"));
}

/// Every controller that is known has answered this very request: nobody else is waited for.
#[test]
fn answers_at_once_need_no_wait() {
    let (mut fleet, mut kubernetes) = before_worker_2(vec![openstack()], Some(FINALIZER));
    let handles = |kubernetes: &mut Kubernetes| {
        for request in &mut kubernetes.requests {
            request.annotations = vec![HANDLED.to_owned()];
        }
    };
    let seconds = consent_takes(&mut fleet, &mut kubernetes, "worker-2", handles);
    assert!(seconds <= 6, "{seconds} s");
}

/// A clock that is set has no part in it.
#[test]
fn time_to_make_a_lock_is_monotonic() {
    for step_ms in [-3_600_000, 3_600_000] {
        let (mut fleet, mut kubernetes) = before_worker_2(Vec::new(), None);
        fleet.live(&mut kubernetes, 3);
        fleet.clock_ms = step_ms;
        let seconds = consent_takes(&mut fleet, &mut kubernetes, "worker-2", |_| {});
        assert!((7..=14).contains(&seconds), "{seconds} s, with a step of {step_ms} ms");
    }
}

/// Its label makes a controller known, and nobody else does.
#[test]
fn label_alone_makes_controller_known() {
    let open = |kubernetes: &mut Kubernetes| {
        for worker in ["worker-1", "worker-2"] {
            kubernetes.node(worker).labels = vec![COMPUTE.to_owned()];
        }
    };
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 60);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ControllerSilent"), "{}", fleet.says("worker-1"));
    assert!(kubernetes.is_untouched("worker-1") && fleet.permit("worker-1").is_none());
    let way_out = "`kubectl label node worker-1 openstack-compute-node-`";
    assert!(fleet.clears_when("worker-1").contains(way_out), "{}", fleet.clears_when("worker-1"));
    kubernetes.node("worker-1").labels.clear();
    fleet.live(&mut kubernetes, 25);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

/// The record of an older store: worker-2 had the node's name before.
#[test]
fn lock_holds_each_machine_with_its_node() {
    let (mut fleet, mut kubernetes) = tungstenfabric_at_work(&["one"]);
    let row = fleet.core.facts.machines.get_mut(&machine("worker-2")).expect("a row");
    std::sync::Arc::make_mut(row).kubernetes_node = Some("worker-1".to_owned());
    fleet.live(&mut kubernetes, 4);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
    fleet.live(&mut kubernetes, 30);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
    assert_eq!(fleet.row("worker-2").kubernetes_node, None, "it is certain whose the node is");
}

/// Uninstalled between two items of a machine: what is said is done, and it goes on.
#[test]
fn controller_that_goes_in_a_turn_has_a_way_out() {
    let control = "openstack-control-plane=enabled";
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.finalizer = Some(FINALIZER);
        kubernetes.node("control-1").labels = vec![control.to_owned()];
        kubernetes.locks.push(lock("openstack", "control-1", "one", LockState::Active));
    };
    let (mut fleet, mut kubernetes) = controls_with(vec![openstack()], (&["install", "join"], 1), open);
    handle(&mut fleet, &mut kubernetes);
    set(&mut kubernetes, "one", LockState::Inactive);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.permit("control-1").is_some(), "{}", fleet.says("control-1"));
    fleet.begin("control-1");
    set(&mut kubernetes, "one", LockState::Active);
    fleet.live(&mut kubernetes, 6);
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    fleet.live(&mut kubernetes, 6);
    assert_eq!(fleet.why("control-1").as_deref(), Some("LocksActive"), "{}", fleet.says("control-1"));
    kubernetes.locks.clear();
    fleet.live(&mut kubernetes, 20);
    assert_eq!(fleet.why("control-1").as_deref(), Some("ControllerCannotSee"), "{}", fleet.says("control-1"));
    let way_out = "`kubectl label node control-1 openstack-control-plane-`";
    assert!(fleet.clears_when("control-1").contains(way_out), "{}", fleet.clears_when("control-1"));
    kubernetes.node("control-1").labels.clear();
    fleet.live(&mut kubernetes, 20);
    assert!(fleet.permit("control-1").is_some(), "{}", fleet.says("control-1"));
}

/// A label that comes while the machine waits for another controller's lock.
#[test]
fn label_that_comes_in_the_wait_counts() {
    let (mut fleet, mut kubernetes) = tungstenfabric_at_work(&["one"]);
    kubernetes.node("worker-1").labels = vec![COMPUTE.to_owned()];
    fleet.live(&mut kubernetes, 10);
    set(&mut kubernetes, "one", LockState::Inactive);
    fleet.live(&mut kubernetes, 30);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ControllerSilent"), "{}", fleet.says("worker-1"));
    assert!(kubernetes.is_untouched("worker-1"));
}

/// Left inactive by a controller that was uninstalled: nobody sets it active, and the command is said.
#[test]
fn inactive_lock_that_is_left_has_a_way_out() {
    let of_cluster = |kubernetes: &mut Kubernetes| {
        let left = lock("tungstenfabric", "", "one", LockState::Inactive);
        kubernetes.locks.push(LockObject { subject: Subject::Cluster, name: "tf".to_owned(), ..left });
    };
    let (mut fleet, mut kubernetes) = controls_with(Vec::new(), (&["install"], 1), of_cluster);
    assert_eq!(fleet.why("control-1").as_deref(), Some("LockNotYetActive"), "{}", fleet.says("control-1"));
    let way_out = "or, if it was uninstalled, `kubectl delete clusterworkloadlock tf`";
    assert!(fleet.clears_when("control-1").contains(way_out), "{}", fleet.clears_when("control-1"));
    kubernetes.locks.clear();
    for state in [LockState::Active, LockState::Inactive] {
        fleet.lock("ceph", None, state);
        fleet.live(&mut kubernetes, 15);
    }
    assert!(names(&kubernetes).contains(&"control-1"), "{}", fleet.says("control-1"));

    let (mut fleet, mut kubernetes) = tungstenfabric_at_work(&["one"]);
    set(&mut kubernetes, "one", LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    fleet.finish("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksReturning"), "{}", fleet.says("worker-1"));
    let way_out = "or, if it was uninstalled, `kubectl delete nodeworkloadlock tungstenfabric-worker-1`";
    assert!(fleet.clears_when("worker-1").contains(way_out), "{}", fleet.clears_when("worker-1"));
    kubernetes.locks.clear();
    fleet.live(&mut kubernetes, 6);
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "{}", fleet.says("worker-1"));
}

/// The request was deleted by hand and is made again: a controller without a finalizer may not have seen that.
#[test]
fn lock_that_is_inactive_from_before_the_request_has_a_way_out() {
    for way in ["flips", "is deleted"] {
        let (mut fleet, mut kubernetes) = workers_with(Vec::new(), |kubernetes| {
            kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Active));
        });
        fleet.live(&mut kubernetes, 6);
        set(&mut kubernetes, "one", LockState::Inactive);
        fleet.live(&mut kubernetes, 6);
        kubernetes.requests.retain(|request| request.name != "worker-1");
        fleet.live(&mut kubernetes, 15);
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        assert!(names(&kubernetes).contains(&"worker-1"), "{:?}", kubernetes.requests);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
        let says = "tungstenfabric: inactive since before this request; it must be set active once";
        assert!(fleet.says("worker-1").contains(says), "{}", fleet.says("worker-1"));
        let way_out = "tungstenfabric sets its lock active once, then inactive; or, if it was uninstalled, \
                       `kubectl delete nodeworkloadlock tungstenfabric-worker-1`";
        assert!(fleet.clears_when("worker-1").contains(way_out), "{}", fleet.clears_when("worker-1"));
        if way == "flips" {
            set(&mut kubernetes, "one", LockState::Active);
            fleet.live(&mut kubernetes, 4);
            set(&mut kubernetes, "one", LockState::Inactive);
        } else {
            kubernetes.locks.clear();
        }
        fleet.live(&mut kubernetes, 15);
        assert!(fleet.permit("worker-1").is_some(), "{way}: {}", fleet.says("worker-1"));
    }
}
