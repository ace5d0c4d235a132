//! Machines whose evicted pods can run on one another only.

use super::*;

/// The default of `updateDeadlines.kubernetesDrain`, in seconds.
const DEADLINE_S: u64 = 30 * 60;

/// Two pods of a budget of their own on each worker, of which one may be away.
fn with_own_budgets(kubernetes: &mut Kubernetes) {
    for (node, names, budget_name) in [("worker-1", ["a", "b"], "shop/one"), ("worker-2", ["c", "d"], "shop/other")] {
        web(kubernetes, node, &names);
        for pod in kubernetes.pods.get_mut(node).expect("pods") {
            pod.budgets = vec![budget_name.to_owned()];
        }
        kubernetes.budgets.insert(budget_name.to_owned(), budget(1, 2, 2));
    }
}

fn deferred(fleet: &Fleet) -> Vec<&'static str> {
    let is_deferred = |worker: &&str| fleet.part(worker).is_some_and(|part| part.deferral.is_some());
    ["worker-1", "worker-2"].into_iter().filter(is_deferred).collect()
}

/// Both evict one pod, which runs nowhere. At their common deadline the younger
/// one gives back, and the other goes on.
#[test]
fn younger_of_two_gives_back() {
    let (mut fleet, mut kubernetes) = at_workers_with(2, |_| {}, |_| {});
    with_own_budgets(&mut kubernetes);
    for worker in ["worker-1", "worker-2"] {
        fleet.lock("ceph", Some(worker), LockState::Inactive);
    }
    fleet.live(&mut kubernetes, 20);
    assert!(kubernetes.log.contains(&"evict a".to_owned()) && kubernetes.log.contains(&"evict c".to_owned()));
    for (worker, name) in [("worker-1", "shop/one"), ("worker-2", "shop/other")] {
        let words = format!("budget {name} needs 1 healthy pods and has 1");
        assert!(fleet.says(worker).contains(&words), "{}", fleet.says(worker));
    }
    while deferred(&fleet).is_empty() {
        fleet.drive(&mut kubernetes);
        fleet.pass(1_000, &[]);
        assert!(fleet.now().mono_ms < 2 * DEADLINE_S * 1_000, "{}", fleet.says("worker-2"));
    }
    let clears_when = fleet.clears_when("worker-1");
    assert!(clears_when.ends_with("; its deadline waits while worker-2 gives its node back"), "{clears_when}");
    fleet.live(&mut kubernetes, 15);
    assert_eq!(deferred(&fleet), ["worker-2"], "the younger one");
    let clears_when = fleet.clears_when("worker-1");
    assert!(clears_when.ends_with("it is tried again every 5 s"), "{clears_when}");
    assert!(kubernetes.is_untouched("worker-2") && !kubernetes.is_untouched("worker-1"));
    // Both evicted pods run there now.
    for name in ["shop/one", "shop/other"] {
        kubernetes.budgets.insert(name.to_owned(), budget(1, 2, 2));
    }
    fleet.live(&mut kubernetes, 20);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

/// A machine that waits for a pod of its own is no reason to wait for longer.
#[test]
fn machines_with_unrelated_causes_both_give_back() {
    let (mut fleet, mut kubernetes) = at_workers_with(2, |_| {}, |_| {});
    for (node, name) in [("worker-1", "a"), ("worker-2", "b")] {
        web(&mut kubernetes, node, &[name]);
        fleet.lock("ceph", Some(node), LockState::Inactive);
    }
    kubernetes.slow = true;
    fleet.live(&mut kubernetes, DEADLINE_S + 30);
    assert_eq!(deferred(&fleet), ["worker-1", "worker-2"]);
}
