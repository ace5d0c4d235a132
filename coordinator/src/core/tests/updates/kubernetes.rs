//! The Kubernetes drain: what is asked and changed, what waits until no pod is left, and what a node gets back.

mod addons;
mod autoscaler;
mod checking;
mod fixture;
mod forcing;
mod handshake;
mod one_another;
mod owed;
mod removal;
mod renewal;

use fixture::*;

use super::*;
use crate::{
    facts::{
        KubernetesTarget,
        kubernetes::{KubernetesFailure, KubernetesOp, Pod},
    },
    plan::drain::kubernetes::{SETTLE_MS, UNDRAINABLE_MS},
};

fn web(kubernetes: &mut Kubernetes, node: &str, names: &[&str]) {
    kubernetes.pods.insert(node.to_owned(), names.iter().map(|name| pod(name)).collect());
}

/// The budget `shop/web` selects all pods of these nodes.
fn under_budget(kubernetes: &mut Kubernetes, nodes: &[&str], budget: crate::facts::kubernetes::Budget) {
    for node in nodes {
        for pod in kubernetes.pods.get_mut(*node).expect("pods") {
            pod.budgets = vec!["shop/web".to_owned()];
        }
    }
    kubernetes.budgets.insert("shop/web".to_owned(), budget);
}

#[test]
fn drained_machine_is_disturbed_and_given_back() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a", "b"]);
    let mut agent = pod("agent");
    agent.of_daemon_set = true;
    kubernetes.pods.get_mut("worker-1").expect("pods").push(agent);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 6);
    assert_eq!(kubernetes.log, ["cordon worker-1", "evict a", "evict b"]);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", fleet.why("worker-1"));
    fleet.finish("worker-1");
    assert!(fleet.requests().contains(&"worker-1"), "not before its node is given back");
    fleet.live(&mut kubernetes, 2);
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None));
}

#[test]
fn pod_left_on_node_withholds_permit() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    kubernetes.slow = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 20);
    assert_eq!((fleet.permit("worker-1"), fleet.why("worker-1").as_deref()), (None, Some("KubernetesDraining")));
    fleet.live(&mut kubernetes, 60);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesPodStuck"));
    kubernetes.pods.clear();
    fleet.live(&mut kubernetes, 5);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", fleet.why("worker-1"));
    // A pod that comes before the first start is seen again.
    assert_eq!(kubernetes.log, ["cordon worker-1", "evict a"]);
}

#[test]
fn attached_volume_withholds_permit() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.attachments.insert("worker-1".to_owned(), vec!["pv-1".to_owned()]);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 5);
    assert_eq!((fleet.permit("worker-1"), fleet.why("worker-1").as_deref()), (None, Some("KubernetesDraining")));
    kubernetes.attachments.clear();
    fleet.live(&mut kubernetes, 3);
    assert!(fleet.permit("worker-1").is_some());
}

#[test]
fn refused_eviction_names_budget_and_rests() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    under_budget(&mut kubernetes, &["worker-1"], budget(2, 2, 3));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    let evictions = kubernetes.log.iter().filter(|line| line.starts_with("evict")).count();
    assert!((2..=3).contains(&evictions), "at most one in 5 s: {:?}", kubernetes.log);
    let message = fleet.says("worker-1");
    assert_eq!(message, "Error: pod shop/a cannot be evicted: budget shop/web needs 2 healthy pods and has 2");
    kubernetes.budgets.insert("shop/web".to_owned(), budget(2, 3, 3));
    fleet.live(&mut kubernetes, 10);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", fleet.why("worker-1"));
}

#[test]
fn undrainable_machine_is_deferred_untouched() {
    let never = |kubernetes: &mut Kubernetes| {
        web(kubernetes, "worker-1", &["a"]);
        under_budget(kubernetes, &["worker-1"], budget(1, 1, 1));
    };
    let (mut fleet, mut kubernetes) = at_workers_with(1, |_| {}, never);
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.requests(), ["worker-2"], "the rest goes on: {:?}", fleet.why("worker-1"));
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, UNDRAINABLE_MS / 1_000 + 15);
    assert_eq!((fleet.slot("worker-1"), fleet.why("worker-1").as_deref()), (None, Some("KubernetesUndrainable")));
    let message = fleet.says("worker-1");
    assert!(message.contains("pod shop/a") && message.contains("shop/web needs 1 healthy pods of 1"), "{message}");
    fleet.live(&mut kubernetes, 30);
    assert_eq!((fleet.slot("worker-1"), fleet.requests().len()), (None, 0), "it is not tried again by itself");
    assert!(kubernetes.is_untouched("worker-1") && !kubernetes.log.iter().any(|line| line.contains("worker-1")));
    kubernetes.budgets.insert("shop/web".to_owned(), budget(0, 1, 1));
    fleet.ask(Request::Retry { machine: machine("worker-1"), item: None }).expect("again");
    fleet.live(&mut kubernetes, 15);
    assert_eq!(fleet.requests(), ["worker-1"], "{:?}", fleet.why("worker-1"));
    fleet.complete_in(&mut kubernetes, "worker-1");
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "{:?}", fleet.why("worker-1"));
}

#[test]
fn operators_cordon_stays() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.node("worker-1").unschedulable = true;
    fleet.complete_in(&mut kubernetes, "worker-1");
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "{:?}", fleet.why("worker-1"));
    let node = kubernetes.node("worker-1");
    assert!(node.unschedulable && node.drained_for.is_none());
    assert!(kubernetes.log.is_empty(), "{:?}", kubernetes.log);
}

#[test]
fn operators_wish_keeps_node_cordoned() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.node("worker-1").keep_cordoned = true;
    fleet.complete_in(&mut kubernetes, "worker-1");
    let node = kubernetes.node("worker-1");
    assert!(node.unschedulable && node.drained_for.is_none(), "{node:?}");
}

#[test]
fn foreign_uncordon_defers_undisturbed_machine() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    kubernetes.slow = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 5);
    let node = kubernetes.node("worker-1");
    (node.unschedulable, node.object.resource_version) = (false, "90".to_owned());
    fleet.live(&mut kubernetes, 15);
    let deferral =
        fleet.part("worker-1").and_then(|part| part.deferral.as_ref()).map(|deferral| deferral.message.clone());
    assert!(deferral.is_some_and(|message| message.contains("an operator made Kubernetes node worker-1 schedulable")));
    assert!(kubernetes.is_untouched("worker-1"), "its annotation is gone, and it stays schedulable");
    assert_eq!(kubernetes.log.iter().filter(|line| line.starts_with("cordon")).count(), 1);
}

#[test]
fn foreign_uncordon_pauses_disturbed_machine() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 5);
    fleet.live(&mut kubernetes, 11);
    let id = fleet.agents["worker-1"].id;
    let permit = fleet.permit("worker-1").expect("permitted").number;
    let node = kubernetes.node("worker-1");
    (node.unschedulable, node.object.resource_version) = (false, "90".to_owned());
    fleet.step(Input::PermitWanted { id, permit }).expect("known");
    fleet.live(&mut kubernetes, 15);
    assert!(fleet.is_paused(), "{:?}", fleet.says("worker-1"));
    assert!(!kubernetes.log.contains(&"evict a".to_owned()));
    // What the operator does next is believed only after a look.
    let node = kubernetes.node("worker-1");
    (node.unschedulable, node.object.resource_version) = (true, "91".to_owned());
    fleet.ask(Request::Resume { rollout: fleet.rollout() }).expect("resumes");
    fleet.live(&mut kubernetes, 5);
    assert!(!fleet.is_paused(), "{:?}", fleet.says("worker-1"));
}

/// Resume looks again: the answer to a question from before may show what an operator has changed since.
#[test]
fn answer_from_before_resume_counts_for_nothing() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 16);
    let (id, permit) = (fleet.agents["worker-1"].id, fleet.permit("worker-1").expect("permitted").number);
    fleet.ask(Request::Pause { rollout: fleet.rollout() }).expect("pauses");
    fleet.step(Input::PermitWanted { id, permit }).expect("known");
    let begun_ms = fleet.now().mono_ms;
    while !fleet.kubernetes.iter().any(|question| matches!(question.op, KubernetesOp::Node { .. })) {
        fleet.drive(&mut kubernetes);
        fleet.pass(1_000, &[]);
        assert!(fleet.now().mono_ms < begun_ms + 60_000, "it is not looked at");
    }
    let open = |fleet: &Fleet| {
        let live = fleet.core.facts().live.machines.get(&machine("worker-1")).expect("known");
        (live.kubernetes.asked.is_some(), live.kubernetes.nodes.is_some())
    };
    assert_eq!(open(&fleet), (true, true));
    let asked = fleet.kubernetes.clone();
    fleet.kubernetes.clear();
    fleet.ask(Request::Resume { rollout: fleet.rollout() }).expect("resumes");
    let number = |question: &crate::core::KubernetesQuestion| question.number;
    let again: Vec<u64> = fleet.kubernetes.iter().map(number).collect();
    assert!(!again.is_empty() && asked.iter().all(|old| !again.contains(&old.number)), "asked anew at once");
    assert_eq!(open(&fleet), (true, false), "what was seen before is forgotten");
}

/// A cordon may be sent long after its decision: a kubeconfig is read from a machine first.
#[test]
fn unanswered_cordon_settles_from_its_failure_on() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    while !fleet.kubernetes.iter().any(|question| matches!(question.op, KubernetesOp::Cordon { .. })) {
        if !fleet.answer_kubernetes(&mut kubernetes) {
            fleet.pass(1_000, &[]);
        }
    }
    fleet.pass(30_000, &[]);
    kubernetes.broken = Some(KubernetesFailure::Unreachable("no answer within 10 s".to_owned()));
    fleet.drive(&mut kubernetes);
    let live = fleet.core.facts().live.machines.get(&machine("worker-1")).expect("known");
    assert_eq!(live.kubernetes.unsettled_mono_ms, Some(fleet.now().mono_ms));
}

#[test]
fn unanswered_cordon_is_waited_for() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.broken = Some(KubernetesFailure::Unreachable("no answer".to_owned()));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 20);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUnavailable"));
    (kubernetes.broken, kubernetes.mute) = (None, true);
    fleet.live(&mut kubernetes, 3);
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.live(&mut kubernetes, 20);
    kubernetes.mute = false;
    fleet.live(&mut kubernetes, SETTLE_MS / 1_000 + 20);
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "{:?}", fleet.why("worker-1"));
}

#[test]
fn another_cluster_is_not_believed() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.cluster_uid = "another";
    fleet.live(&mut kubernetes, 12);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    assert_eq!((fleet.why("worker-1").as_deref(), kubernetes.log.len()), (Some("KubernetesUnavailable"), 0));
    kubernetes.cluster_uid = CLUSTER_UID;
    fleet.live(&mut kubernetes, 20);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", fleet.why("worker-1"));
}

#[test]
fn node_of_another_boot_is_left_alone() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.node("worker-1").boot_id = "another".to_owned();
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    assert_eq!((fleet.why("worker-1").as_deref(), kubernetes.log.len()), (Some("KubernetesNodeUnclear"), 0));
    kubernetes.nodes.remove("worker-1");
    fleet.live(&mut kubernetes, 15);
    assert_eq!((fleet.why("worker-1").as_deref(), kubernetes.log.len()), (Some("KubernetesNodeNotFound"), 0));
}

#[test]
fn shared_budget_orders_two_machines() {
    let (mut fleet, mut kubernetes) = at_workers(2, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    web(&mut kubernetes, "worker-2", &["b"]);
    under_budget(&mut kubernetes, &["worker-1", "worker-2"], budget(1, 2, 2));
    for worker in ["worker-1", "worker-2"] {
        fleet.lock("ceph", Some(worker), LockState::Inactive);
    }
    fleet.live(&mut kubernetes, 15);
    assert_eq!(kubernetes.log, ["cordon worker-1", "evict a"], "its replacement is not Ready yet");
    assert!(fleet.permit("worker-1").is_some() && fleet.permit("worker-2").is_none());
    kubernetes.budgets.insert("shop/web".to_owned(), budget(1, 2, 2));
    fleet.live(&mut kubernetes, 15);
    assert!(fleet.permit("worker-2").is_some(), "{:?}", fleet.why("worker-2"));
}

#[test]
fn restart_in_drain_goes_on() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    kubernetes.slow = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 5);
    let target = fleet.kubernetes_drain("worker-1").expect("begun").target.clone();
    assert!(matches!(&target, KubernetesTarget::Node { cordoned: true, was_unschedulable: false, .. }), "{target:?}");
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    kubernetes.pods.clear();
    fleet.live(&mut kubernetes, 20);
    assert!(fleet.permit("worker-1").is_some(), "{:?}", fleet.says("worker-1"));
    fleet.finish("worker-1");
    fleet.live(&mut kubernetes, 5);
    assert!(kubernetes.is_untouched("worker-1"));
}

#[test]
fn node_is_given_back_when_kubelet_is_ready() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 5);
    kubernetes.node("worker-1").ready = false;
    fleet.finish("worker-1");
    fleet.live(&mut kubernetes, 30);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUncordoning"));
    assert!(!kubernetes.is_untouched("worker-1") && fleet.requests() == ["worker-1"]);
    kubernetes.node("worker-1").ready = true;
    fleet.live(&mut kubernetes, 15);
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
}

#[test]
fn api_server_that_is_not_ready_holds_control_machine() {
    let (mut fleet, mut kubernetes) =
        before_controls(1, |_| {}, |kubernetes| kubernetes.down.push("control-2".to_owned()));
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 15);
    assert_eq!((fleet.why("control-1").as_deref(), fleet.permit("control-1")), (Some("Quorum"), None));
    assert!(fleet.says("control-1").contains("control-2: etcd"), "{}", fleet.says("control-1"));
    kubernetes.down.clear();
    fleet.live(&mut kubernetes, 15);
    assert!(fleet.permit("control-1").is_some(), "{:?}", fleet.says("control-1"));
}

#[test]
fn unhealthy_etcd_holds_control_machine() {
    use crate::facts::kubernetes::EtcdState;
    let unhealthy = |state: EtcdState| {
        move |kubernetes: &mut Kubernetes| drop(kubernetes.unhealthy.insert("control-2".to_owned(), state))
    };
    for (state, says) in [
        (EtcdState::Unhealthy("RAFT NO LEADER".to_owned()), "control-2: its etcd says that it is not healthy: RAFT"),
        (EtcdState::Unknown("no answer".to_owned()), "control-2: the health of its etcd is unknown: no answer"),
    ] {
        let (mut fleet, mut kubernetes) = before_controls(1, |_| {}, unhealthy(state));
        fleet.lock("ceph", Some("control-1"), LockState::Inactive);
        fleet.live(&mut kubernetes, 15);
        assert_eq!((fleet.why("control-1").as_deref(), fleet.permit("control-1")), (Some("Quorum"), None));
        assert!(fleet.says("control-1").contains(says), "{}", fleet.says("control-1"));
        assert!(kubernetes.is_untouched("control-1"), "it is not even cordoned");
        kubernetes.unhealthy.clear();
        fleet.live(&mut kubernetes, 15);
        assert!(fleet.permit("control-1").is_some(), "{:?}", fleet.says("control-1"));
    }
}

/// Each machine's member is asked at its own address, by its own agent.
#[test]
fn etcd_is_asked_by_its_own_agent() {
    use crate::facts::kubernetes::KubernetesOp;
    let (mut fleet, mut kubernetes) = before_controls(1, |_| {}, |_| {});
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    for _ in 0..15 {
        fleet.pass(1_000, &[]);
        let asked = fleet.kubernetes.iter().find_map(|question| match &question.op {
            KubernetesOp::ControlPlane { servers } => Some(servers.clone()),
            _ => None,
        });
        let Some(servers) = asked else {
            fleet.answer_kubernetes(&mut kubernetes);
            continue;
        };
        let names: Vec<&str> = servers.iter().map(|server| server.hostname.as_str()).collect();
        assert_eq!(names, ["control-2", "control-3"]);
        for server in servers {
            let etcd = server.etcd.expect("asked");
            assert_eq!(etcd.agent, fleet.agents[&server.hostname].id);
            assert_eq!(etcd.probe.health, format!("http://{}:2381/health", server.address));
        }
        return;
    }
    panic!("the other control machines were not looked at");
}

/// The file is read on control machines that have been Ready, those that are connected first.
#[test]
fn admin_conf_is_read_on_ready_control_machines() {
    use muster_proto::model::KubeconfigSource;

    use crate::{
        facts::{Facts, kubernetes::KubernetesAccess},
        plan::drain::kubernetes::access,
    };
    let fleet = at_rest(|_| {});
    let mut facts = fleet.core.facts().clone();
    let mut spec = facts.spec(&cluster()).expect("applied").kubernetes.clone().expect("set");
    spec.source = KubeconfigSource::AdminConf("/etc/kubernetes/admin.conf".to_owned());
    let holders = |facts: &Facts| match access::of(facts, &cluster(), &spec) {
        Ok(KubernetesAccess::AdminConf(file)) => {
            assert_eq!((&file.cluster, file.path.as_str()), (&cluster(), "/etc/kubernetes/admin.conf"));
            assert_eq!(file.kubernetes_uid, facts.clusters[&cluster()].kubernetes_uid);
            Ok(file.holders.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>())
        }
        Ok(KubernetesAccess::Secret(_)) => panic!("a secret"),
        Err(failure) => Err(failure),
    };
    assert_eq!(holders(&facts), Ok(["control-1", "control-2", "control-3"].map(str::to_owned).to_vec()));
    facts.live.machines.get_mut(&machine("control-1")).expect("live").session = None;
    assert_eq!(holders(&facts), Ok(["control-2", "control-3", "control-1"].map(str::to_owned).to_vec()));
    std::sync::Arc::make_mut(facts.clusters.get_mut(&cluster()).expect("a row")).kubernetes_uid = Some("u".to_owned());
    std::sync::Arc::make_mut(facts.machines.get_mut(&machine("control-2")).expect("a row")).revoked = true;
    assert_eq!(holders(&facts), Ok(["control-3", "control-1"].map(str::to_owned).to_vec()));
    for row in facts.machines.values_mut() {
        std::sync::Arc::make_mut(row).ready_at = None;
    }
    let nobody = holders(&facts).expect_err("nobody can read it");
    assert!(matches!(nobody, KubernetesFailure::NoKubeconfig(_)) && nobody.may_pass());
    assert!(nobody.to_string().contains("no control machine is Ready yet"), "{nobody}");
}

#[test]
fn events_tell_the_drain_once() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    kubernetes.slow = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 40);
    kubernetes.pods.clear();
    fleet.live(&mut kubernetes, 10);
    let told = ["MusterCordoned", "MusterDrainWaits", "MusterDrained"].map(|reason| format!("worker-1: {reason}"));
    assert_eq!(kubernetes.events, told);
}

/// Pods that a budget lets go one after another are no pods that came back.
#[test]
fn pods_of_one_controller_all_leave() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a", "b", "c", "d"]);
    under_budget(&mut kubernetes, &["worker-1"], budget(3, 4, 4));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    for _ in 0..4 {
        fleet.live(&mut kubernetes, 8);
        kubernetes.budgets.insert("shop/web".to_owned(), budget(3, 4, 4));
    }
    fleet.live(&mut kubernetes, 8);
    assert!(fleet.permit("worker-1").is_some(), "{} {:?}", fleet.says("worker-1"), kubernetes.log);
}

/// Pods bound just before the cordon, and listed only after the first eviction, are no pods that came back.
#[test]
fn pods_bound_before_cordon_all_leave() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.drive_until_evicted(&mut kubernetes);
    web(&mut kubernetes, "worker-1", &["b", "c", "d"]);
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.permit("worker-1").is_some(), "{} {:?}", fleet.says("worker-1"), kubernetes.log);
}

/// A controller that starts its pods on the cordoned node is named, and its pods are left alone.
#[test]
fn pod_that_returns_twice_is_named() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    web(&mut kubernetes, "worker-1", &["a"]);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.drive_until_evicted(&mut kubernetes);
    for name in ["b", "c", "d", "e"] {
        // A Job that ends by itself keeps the drain open.
        let job = Pod { controller: None, drain_label: "wait".to_owned(), ..pod("job") };
        kubernetes.pods.insert("worker-1".to_owned(), vec![pod(name), job]);
        fleet.live(&mut kubernetes, 4);
    }
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesPodReturns"), "{:?}", kubernetes.log);
}

/// A pod that was bound between the list and the cordon is seen before the first permit.
#[test]
fn pod_bound_before_cordon_withholds_permit() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.late_pod = Some(pod("late"));
    kubernetes.slow = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 10);
    assert_eq!((fleet.permit("worker-1"), fleet.why("worker-1").as_deref()), (None, Some("KubernetesDraining")));
    assert_eq!(kubernetes.log, ["cordon worker-1", "evict late"]);
}

#[test]
fn uncordon_after_lost_answer_is_respected() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.mute = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 2);
    kubernetes.mute = false;
    let node = kubernetes.node("worker-1");
    assert!(node.unschedulable);
    (node.unschedulable, node.object.resource_version) = (false, "90".to_owned());
    fleet.live(&mut kubernetes, 30);
    assert_eq!(kubernetes.log.iter().filter(|line| line.starts_with("cordon")).count(), 1, "{:?}", kubernetes.log);
}

#[test]
fn node_made_anew_is_found_again() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 6);
    let (id, permit) = (fleet.agents["worker-1"].id, fleet.permit("worker-1").expect("permitted").number);
    let node = kubernetes.node("worker-1");
    (node.object.uid, node.unschedulable, node.drained_for) = ("uid-again".to_owned(), false, None);
    fleet.live(&mut kubernetes, 11);
    fleet.step(Input::PermitWanted { id, permit }).expect("known");
    fleet.live(&mut kubernetes, 20);
    assert!(fleet.permit("worker-1").is_some_and(|again| again.number > permit), "{}", fleet.says("worker-1"));
    assert!(kubernetes.node("worker-1").unschedulable);
}
