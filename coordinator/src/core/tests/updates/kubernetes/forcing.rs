//! Pods that are deleted because an operator said so: which, when, and which are not.

use super::*;
use crate::{
    core::Refusal,
    facts::kubernetes::{Deletion, PodName},
};

/// A worker that is deferred: a budget never lets its pod `shop/a` go.
fn deferred() -> (Fleet, Kubernetes) {
    let never = |kubernetes: &mut Kubernetes| {
        web(kubernetes, "worker-1", &["a"]);
        under_budget(kubernetes, &["worker-1"], budget(1, 1, 1));
    };
    let (mut fleet, mut kubernetes) = at_workers_with(1, |_| {}, never);
    fleet.live(&mut kubernetes, 15);
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, UNDRAINABLE_MS / 1_000 + 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUndrainable"));
    kubernetes.log.clear();
    (fleet, kubernetes)
}

fn force(fleet: &mut Fleet, machine_name: &str, pod: &str) -> Result<Vec<String>, String> {
    let pod = PodName { namespace: "shop".to_owned(), name: pod.to_owned() };
    match fleet.ask(Request::DrainForce { machine: machine(machine_name), pod }) {
        Ok(Reply::Done(lines)) => Ok(lines),
        Err(Refusal::State { reason, message }) => Err(format!("{reason}: {message}")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn forced_pod_is_deleted_after_cordon() {
    let (mut fleet, mut kubernetes) = deferred();
    kubernetes.pods.get_mut("worker-1").expect("pods").push(pod("c"));
    let lines = force(&mut fleet, "worker-1", "a").expect("taken");
    assert!(lines[0].contains("pod shop/a (UID uid-a)") && lines.len() == 2, "{lines:?}");
    fleet.live(&mut kubernetes, 15);
    assert!(kubernetes.log.is_empty() && fleet.requests() == ["worker-1"], "{:?}", fleet.why("worker-1"));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    assert_eq!(kubernetes.log, ["cordon worker-1", "delete a", "evict c"], "no eviction keeps it waiting");
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
    fleet.finish("worker-1");
    fleet.live(&mut kubernetes, 8);
    assert!(fleet.part("worker-1").is_none_or(|part| part.forced_pods.is_empty()), "it ends with the turn");
    assert!(kubernetes.is_untouched("worker-1"));
    let audited = fleet.core.facts().audit_lines().iter().any(|line| line.action == "drain-force");
    assert!(audited);
}

/// The word is for a pod, not for a name.
#[test]
fn successor_of_forced_pod_is_left_alone() {
    let (mut fleet, mut kubernetes) = deferred();
    force(&mut fleet, "worker-1", "a").expect("taken");
    kubernetes.pods.get_mut("worker-1").expect("pods")[0].object.uid = "uid-of-another".to_owned();
    fleet.live(&mut kubernetes, UNDRAINABLE_MS / 1_000 + 15);
    assert_eq!((fleet.slot("worker-1"), fleet.why("worker-1").as_deref()), (None, Some("KubernetesUndrainable")));
    assert!(kubernetes.log.is_empty(), "{:?}", kubernetes.log);
    force(&mut fleet, "worker-1", "a").expect("the other one is meant now");
    fleet.live(&mut kubernetes, 15);
    fleet.complete_in(&mut kubernetes, "worker-1");
    assert!(kubernetes.log.contains(&"delete a".to_owned()), "{:?}", kubernetes.log);
}

#[test]
fn word_survives_restart() {
    let (mut fleet, mut kubernetes) = deferred();
    force(&mut fleet, "worker-1", "a").expect("taken");
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    fleet.live(&mut kubernetes, 15);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 90);
    assert_eq!(kubernetes.log, ["cordon worker-1", "delete a"], "{}", fleet.says("worker-1"));
}

/// After a restart the pods of a deferred machine are listed again, so that an operator can name one.
#[test]
fn deferred_machine_is_listed_again() {
    let (mut fleet, mut kubernetes) = deferred();
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    let refusal = force(&mut fleet, "worker-1", "a").expect_err("not listed");
    assert!(refusal.starts_with("NotListed"), "{refusal}");
    fleet.live(&mut kubernetes, 3);
    let before = kubernetes.answered;
    fleet.live(&mut kubernetes, 50);
    assert_eq!(kubernetes.answered, before, "once a minute");
    force(&mut fleet, "worker-1", "a").expect("listed");
}

#[test]
fn missing_right_is_named() {
    let (mut fleet, mut kubernetes) = deferred();
    kubernetes.undeletable = Some(Deletion::Forbidden("pods \"a\" is forbidden".to_owned()));
    force(&mut fleet, "worker-1", "a").expect("taken");
    fleet.live(&mut kubernetes, 15);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUndrainable"));
    assert!(fleet.says("worker-1").contains("pod shop/a cannot be deleted, as an operator said"));
    let tries = kubernetes.log.iter().filter(|line| *line == "delete a").count();
    assert!((2..=3).contains(&tries), "at most one in 5 s: {:?}", kubernetes.log);
    kubernetes.undeletable = None;
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

/// A pod that can never leave appears in the drain. Evictions rest after its deletion: the numbers of its budget follow
/// late.
#[test]
fn forced_pod_leaves_in_drain() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.late_pod = Some(Pod { controller: None, ..pod("bare") });
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 8);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUndrainable"));
    let last = Pod { drain_label: "last".to_owned(), ..pod("b") };
    kubernetes.pods.get_mut("worker-1").expect("pods").push(last);
    force(&mut fleet, "worker-1", "bare").expect("taken");
    let twice = force(&mut fleet, "worker-1", "bare").expect_err("again");
    assert!(twice.starts_with("NothingToDo"), "{twice}");
    while kubernetes.log.len() < 2 {
        fleet.live(&mut kubernetes, 1);
    }
    assert_eq!(kubernetes.log, ["cordon worker-1", "delete bare"]);
    fleet.live(&mut kubernetes, 3);
    assert_eq!(kubernetes.log.len(), 2, "{:?}", kubernetes.log);
    fleet.live(&mut kubernetes, 8);
    assert_eq!(kubernetes.log[2], "evict b");
    assert!(fleet.permit("worker-1").is_some(), "{}", fleet.says("worker-1"));
}

#[test]
fn word_ends_with_turn() {
    let (mut fleet, mut kubernetes) = deferred();
    kubernetes.undeletable = Some(Deletion::Refused("no".to_owned()));
    force(&mut fleet, "worker-1", "a").expect("taken");
    fleet.live(&mut kubernetes, 15);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 8);
    assert!(kubernetes.log.contains(&"delete a".to_owned()), "{:?}", kubernetes.log);
    // An operator uncordons the node: its turn ends.
    let node = kubernetes.node("worker-1");
    (node.unschedulable, node.object.resource_version) = (false, "90".to_owned());
    fleet.live(&mut kubernetes, 10);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    fleet.live(&mut kubernetes, 5);
    assert_eq!(fleet.part("worker-1").map(|part| part.forced_pods.len()), Some(0));
    (kubernetes.undeletable, kubernetes.log) = (None, Vec::new());
    fleet.ask(Request::Retry { machine: machine("worker-1"), item: None }).expect("again");
    fleet.live(&mut kubernetes, UNDRAINABLE_MS / 1_000 + 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUndrainable"));
    assert!(kubernetes.log.is_empty(), "{:?}", kubernetes.log);
}

/// Nothing acts on the node of a machine that is out of service.
#[test]
fn word_out_of_service_is_refused() {
    let mut fleet = at_rest(|_| {});
    let mut kubernetes = Kubernetes::of(&fleet);
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("begins");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.live(&mut kubernetes, 5);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("InMaintenance"));
    let refusal = force(&mut fleet, "worker-1", "a").expect_err("out of service");
    assert!(refusal.contains("worker-1 is out of service"), "{refusal}");
}

#[test]
fn word_out_of_turn_is_refused() {
    let (mut fleet, mut kubernetes) = deferred();
    let mut agent = pod("agent");
    agent.of_daemon_set = true;
    kubernetes.pods.get_mut("worker-1").expect("pods").push(agent);
    fleet.live(&mut kubernetes, 65);
    for (name, pod, reason) in [
        (
            "worker-1",
            "b",
            "NoSuchPod: pod shop/b is not on the Kubernetes node of worker-1; these have to leave: shop/a",
        ),
        ("worker-1", "agent", "PodStays"),
        ("worker-2", "a", "NotDraining"),
    ] {
        let refusal = force(&mut fleet, name, pod).expect_err(reason);
        assert!(refusal.starts_with(reason), "{refusal}");
    }
    assert!(kubernetes.log.is_empty());
}
