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
