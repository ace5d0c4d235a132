//! How often the DaemonSets are listed, and how old a list may be.

use super::*;

/// The lists in so many seconds.
fn looks_in(fleet: &mut Fleet, kubernetes: &mut Kubernetes, seconds: u64) -> usize {
    kubernetes.looks.clear();
    fleet.live(kubernetes, seconds);
    kubernetes.looks.len()
}

#[test]
fn lists_often_only_in_turn() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.slow = true);
    assert!(looks_in(&mut fleet, &mut kubernetes, 120) <= 3, "it waits for locks: {:?}", kubernetes.looks);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 8);
    let looks = looks_in(&mut fleet, &mut kubernetes, 30);
    assert!((10..=16).contains(&looks), "{looks}");
    let own = |node: &Option<String>| node.as_deref() == Some("control-1");
    assert!(kubernetes.looks.iter().all(own), "its own node is enough: {:?}", kubernetes.looks);
    let old = kubernetes.on("control-1").pod.object.clone();
    kubernetes.replace(&old, true);
    fleet.live(&mut kubernetes, 6);
    assert!(looks_in(&mut fleet, &mut kubernetes, 120) <= 3, "its locks return: {:?}", kubernetes.looks);
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    fleet.live(&mut kubernetes, 6);
    assert_eq!(fleet.requests(), ["worker-1"], "{}", fleet.says("worker-1"));
}

#[test]
fn lists_seldom_when_nothing_goes_on() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| {
        under(kubernetes, Budget { observed: false, sync_failed: Some("failed".to_owned()), ..budget(0, 0, 0) });
    });
    assert_eq!(fleet.why("worker-2").as_deref(), Some("KubernetesUndrainable"));
    assert!(looks_in(&mut fleet, &mut kubernetes, 120) <= 3, "all are deferred: {:?}", kubernetes.looks);
    under(&mut kubernetes, budget(2, 3, 3));
    fleet.ask(Request::Pause { rollout: fleet.rollout() }).expect("pauses");
    fleet.ask(Request::Retry { machine: machine("control-1"), item: None }).expect("again");
    fleet.live(&mut kubernetes, 6);
    assert!(looks_in(&mut fleet, &mut kubernetes, 120) <= 3, "it is paused: {:?}", kubernetes.looks);
    let foreign = |kubernetes: &mut Kubernetes| {
        kubernetes.set().pods = vec![daemon_pod("elsewhere", OLD)];
        count(kubernetes.set());
    };
    let (mut fleet, mut kubernetes) = at_renewal(foreign);
    assert!(looks_in(&mut fleet, &mut kubernetes, 120) <= 3, "no machine takes part: {:?}", kubernetes.looks);
    let blocked = cluster_says(&fleet);
    assert!(blocked.contains("its node elsewhere is of no machine"), "what is old is still said: {blocked}");
}

/// A list is as old as its question: what it shows may be from then.
#[test]
fn late_list_evicts_nothing() {
    let (mut fleet, mut kubernetes) = at_renewal(|_| {});
    fleet.live(&mut kubernetes, 12);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert!(matches!(fleet.kubernetes[0].op, KubernetesOp::DaemonSets { .. }), "the last list is old");
    fleet.pass(11_000, &[]);
    fleet.answer_kubernetes(&mut kubernetes);
    let asks = |asked: &crate::core::KubernetesQuestion| matches!(asked.op, KubernetesOp::Evict { .. });
    assert!(!fleet.kubernetes.iter().any(asks) && kubernetes.evictions() == 0, "{:?}", kubernetes.log);
    fleet.live(&mut kubernetes, 6);
    assert_eq!(kubernetes.evictions(), 1, "{}", fleet.says("control-1"));
}
