//! Cordons that outlive their drain: what a machine's next identity, and a recovered store, give back.

use super::*;
use crate::{
    core::KubernetesQuestion,
    facts::{
        OwedCordon,
        kubernetes::{KubernetesNode, KubernetesOp},
    },
};

/// `worker-1` is drained, and has a permit.
fn drained() -> (Fleet, Kubernetes) {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 6);
    assert!(fleet.permit("worker-1").is_some() && !kubernetes.is_untouched("worker-1"));
    kubernetes.log.clear();
    (fleet, kubernetes)
}

fn owed(fleet: &Fleet) -> Option<&OwedCordon> {
    fleet.row("worker-1").owed_cordon.as_ref()
}

fn leave(fleet: &mut Fleet, name: &str) -> Result<Reply, Refusal> {
    fleet.ask(Request::LeaveMaintenance { machine: machine(name) })
}

/// A new identity takes the name, at the address of the former one, and the update is aborted.
fn is_replaced(fleet: &mut Fleet, kubernetes: &mut Kubernetes) {
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true }).expect("replaced");
    fleet.enroll("worker-1", Worker).expect("enrols");
    fleet.connect("worker-1");
    fleet.report_boot("worker-1", "boot-new");
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.lock("ceph", None, LockState::Active);
    fleet.live(kubernetes, 5);
}

/// The kubelet has started in the boot of the new identity, or the machine has another state of its own.
fn kubelet_reports(kubernetes: &mut Kubernetes, change: impl FnOnce(&mut KubernetesNode)) {
    let node = kubernetes.node("worker-1");
    "boot-new".clone_into(&mut node.boot_id);
    change(node);
    let version: u64 = node.object.resource_version.parse().expect("a number");
    node.object.resource_version = (version + 1).to_string();
}

#[test]
fn replaced_machine_gets_its_node_back() {
    let (mut fleet, mut kubernetes) = drained();
    is_replaced(&mut fleet, &mut kubernetes);
    assert!(owed(&fleet).is_some_and(|owed| owed.name == "worker-1" && !owed.needs_review));
    fleet.live(&mut kubernetes, 70);
    assert!(kubernetes.log.is_empty(), "it is not Ready yet: {:?}", kubernetes.log);
    fleet.finish("worker-1");
    assert_eq!(fleet.state("worker-1"), "Ready");
    fleet.live(&mut kubernetes, 70);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesNodeNotRestored"), "its kubelet is of another boot");
    assert!(kubernetes.log.is_empty(), "{:?}", kubernetes.log);
    kubelet_reports(&mut kubernetes, |node| node.ready = false);
    fleet.live(&mut kubernetes, 70);
    assert!(fleet.says("worker-1").ends_with("is not Ready"), "{}", fleet.says("worker-1"));
    kubelet_reports(&mut kubernetes, |node| node.ready = true);
    fleet.live(&mut kubernetes, 70);
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
    assert_eq!((fleet.why("worker-1"), owed(&fleet)), (None, None));
    let audited =
        fleet.core.facts().audit_lines().iter().any(|line| line.message.contains("node worker-1 bears no cordon"));
    assert!(audited);
}

#[test]
fn owed_node_is_asked_about_once_a_minute() {
    let (mut fleet, mut kubernetes) = drained();
    is_replaced(&mut fleet, &mut kubernetes);
    fleet.finish("worker-1");
    fleet.live(&mut kubernetes, 100);
    let before = kubernetes.answered;
    fleet.live(&mut kubernetes, 180);
    assert_eq!(kubernetes.answered - before, 3);
}

/// It may be in pieces, so its node waits for the next identity.
#[test]
fn revoked_machine_owes_its_cordon() {
    let (mut fleet, mut kubernetes) = drained();
    fleet.ask(Request::RevokeMachine { machine: machine("worker-1"), machine_is_off: true }).expect("revoked");
    fleet.agents.get_mut("worker-1").expect("an agent").session = None;
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.live(&mut kubernetes, 140);
    assert!(owed(&fleet).is_some() && kubernetes.log.is_empty(), "{:?}", kubernetes.log);
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true }).expect("replaced");
    fleet.enroll("worker-1", Worker).expect("enrols");
    fleet.connect("worker-1");
    fleet.report_boot("worker-1", "boot-new");
    kubelet_reports(&mut kubernetes, |_| {});
    fleet.live(&mut kubernetes, 70);
    assert!(kubernetes.log.is_empty(), "it is not deployed yet: {:?}", kubernetes.log);
    fleet.finish("worker-1");
    fleet.live(&mut kubernetes, 140);
    assert!(owed(&fleet).is_none() && kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
}

#[test]
fn node_made_anew_owes_nothing() {
    let (mut fleet, mut kubernetes) = drained();
    is_replaced(&mut fleet, &mut kubernetes);
    fleet.finish("worker-1");
    // An operator cordoned it.
    kubelet_reports(&mut kubernetes, |node| {
        "uid-again".clone_into(&mut node.object.uid);
        node.drained_for = None;
    });
    fleet.live(&mut kubernetes, 140);
    assert_eq!((fleet.why("worker-1"), owed(&fleet)), (None, None));
    assert!(kubernetes.node("worker-1").unschedulable && kubernetes.log.is_empty(), "{:?}", kubernetes.log);
}

#[test]
fn owed_node_stays_cordoned_for_its_operator() {
    let (mut fleet, mut kubernetes) = drained();
    is_replaced(&mut fleet, &mut kubernetes);
    fleet.finish("worker-1");
    kubelet_reports(&mut kubernetes, |node| node.keep_cordoned = true);
    fleet.live(&mut kubernetes, 140);
    let node = kubernetes.node("worker-1");
    assert!(node.unschedulable && node.drained_for.is_none(), "{node:?}");
    assert_eq!(owed(&fleet), None);
}

#[test]
fn operators_cordon_is_not_owed() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    kubernetes.node("worker-1").unschedulable = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 6);
    is_replaced(&mut fleet, &mut kubernetes);
    assert_eq!(owed(&fleet), None);
}

/// An order without an answer is carried out after the identity has ended.
#[test]
fn late_cordon_of_former_identity_is_given_back() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    let is_cordon = |question: &KubernetesQuestion| matches!(question.op, KubernetesOp::Cordon { .. });
    let cordons = |fleet: &Fleet| fleet.kubernetes.first().is_some_and(is_cordon);
    while !cordons(&fleet) {
        if !fleet.answer_kubernetes(&mut kubernetes) {
            fleet.pass(1_000, &[]);
        }
    }
    kubernetes.broken = Some(KubernetesFailure::Unreachable("no answer".to_owned()));
    fleet.answer_kubernetes(&mut kubernetes);
    kubernetes.broken = None;
    assert!(kubernetes.is_untouched("worker-1") && fleet.kubernetes_drain("worker-1").is_some());
    is_replaced(&mut fleet, &mut kubernetes);
    fleet.finish("worker-1");
    kubelet_reports(&mut kubernetes, |_| {});
    fleet.live(&mut kubernetes, 60);
    assert!(owed(&fleet).is_some(), "the order may still be carried out");
    kubelet_reports(&mut kubernetes, |node| {
        (node.unschedulable, node.drained_for) = (true, Some("edge-7-update-2/uid-worker-1".to_owned()));
    });
    fleet.live(&mut kubernetes, 70);
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
    assert_eq!(owed(&fleet), None);
}

/// One machine has yet to report.
#[test]
fn recovering_store_gives_nothing_back() {
    let (mut fleet, mut kubernetes) = drained();
    is_replaced(&mut fleet, &mut kubernetes);
    fleet.finish("worker-1");
    kubelet_reports(&mut kubernetes, |_| {});
    fleet.recover_from(fleet.store.clone());
    fleet.kubernetes.clear();
    ["control-1", "control-2", "control-3", "worker-1"].iter().for_each(|name| fleet.connect(name));
    fleet.report_boot("worker-1", "boot-new");
    let before = kubernetes.answered;
    fleet.live(&mut kubernetes, 140);
    assert!(fleet.core.facts().meta.recovering && owed(&fleet).is_some());
    assert_eq!(kubernetes.answered, before, "nothing is asked");
    fleet.connect("worker-2");
    fleet.live(&mut kubernetes, 70);
    assert!(kubernetes.is_untouched("worker-1") && owed(&fleet).is_none(), "{:?}", kubernetes.log);
}

/// Its operator has looked at the machine, and the record knows what its node gets back.
#[test]
fn machine_that_leaves_recovery_gets_its_node_back() {
    let (mut fleet, mut kubernetes) = drained();
    fleet.recover_from(fleet.store.clone());
    fleet.kubernetes.clear();
    fleet.all_report();
    fleet.report_boots();
    fleet.live(&mut kubernetes, 140);
    assert!(kubernetes.log.is_empty() && fleet.core.facts().meta.recovering, "{:?}", kubernetes.log);
    for name in ["control-1", "control-2", "control-3", "worker-1", "worker-2"] {
        drop(leave(&mut fleet, name));
    }
    assert!(!fleet.core.facts().meta.recovering);
    fleet.live(&mut kubernetes, 70);
    assert!(kubernetes.is_untouched("worker-1") && owed(&fleet).is_none(), "{:?}", kubernetes.log);
}

/// The store is from before the update: its operator says when the node is given back.
#[test]
fn cordon_unknown_to_recovered_store_needs_a_word() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    let copy = fleet.store.clone();
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 6);
    assert!(fleet.kubernetes_drain("worker-1").is_some() && !kubernetes.is_untouched("worker-1"));
    kubernetes.log.clear();
    fleet.recover_from(copy);
    fleet.kubernetes.clear();
    fleet.all_report();
    fleet.report_boots();
    fleet.pass(90_000, &[]);
    for name in ["control-1", "control-2", "control-3", "worker-1", "worker-2"] {
        drop(leave(&mut fleet, name));
    }
    assert!(!fleet.core.facts().meta.recovering && owed(&fleet).is_none());
    fleet.live(&mut kubernetes, 70);
    assert_eq!(owed(&fleet).map(|owed| owed.needs_review), Some(true));
    assert!(fleet.core.facts().live.cordons_known.contains(&cluster()), "it is listed once");
    fleet.live(&mut kubernetes, 130);
    assert!(kubernetes.log.is_empty(), "{:?}", kubernetes.log);
    leave(&mut fleet, "worker-1").expect("an operator has looked");
    assert!(leave(&mut fleet, "worker-1").is_err(), "it is said already");
    fleet.live(&mut kubernetes, 70);
    assert!(kubernetes.is_untouched("worker-1") && owed(&fleet).is_none(), "{:?}", kubernetes.log);
}

/// The update begins before the nodes are listed.
#[test]
fn next_drain_gives_former_cordon_back() {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    let node = kubernetes.node("worker-1");
    (node.unschedulable, node.drained_for) = (true, Some("edge-7-update-1/uid-worker-1".to_owned()));
    fleet.complete_in(&mut kubernetes, "worker-1");
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
}

/// A late uncordon of the former drain would undo the cordon of the next one, and look like an operator's.
#[test]
fn update_begins_after_owed_node_is_given_back() {
    let (mut fleet, mut kubernetes) = drained();
    is_replaced(&mut fleet, &mut kubernetes);
    fleet.finish("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    fleet.live(&mut kubernetes, 70);
    release(&mut fleet, &["install"], 2);
    let mut fleet = fleet.started();
    fleet.drive(&mut kubernetes);
    ["control-1", "control-2", "control-3"].iter().for_each(|name| fleet.complete_in(&mut kubernetes, name));
    kubernetes.log.clear();
    fleet.live(&mut kubernetes, 20);
    assert!(fleet.requests().contains(&"worker-2"), "the rest goes on: {:?}", fleet.requests());
    assert!(!fleet.requests().contains(&"worker-1"), "{:?}", fleet.requests());
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesNodeNotRestored"));
    kubelet_reports(&mut kubernetes, |_| {});
    fleet.live(&mut kubernetes, 80);
    assert_eq!(owed(&fleet), None);
    assert!(fleet.requests().contains(&"worker-1"), "{:?}", fleet.why("worker-1"));
    fleet.complete_in(&mut kubernetes, "worker-1");
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
    let of_worker_1 = kubernetes.log.iter().filter(|line| line.ends_with(" worker-1"));
    assert_eq!(of_worker_1.collect::<Vec<_>>(), ["uncordon worker-1", "cordon worker-1", "uncordon worker-1"]);
}

/// An operator may still be about to correct the kubeconfig.
#[test]
fn list_outside_updates_pins_no_cluster() {
    let mut fleet = at_rest(|_| {});
    let mut kubernetes = Kubernetes::of(&fleet);
    fleet.live(&mut kubernetes, 100);
    assert!(kubernetes.answered > 0 && fleet.core.facts().live.cordons_known.contains(&cluster()));
    assert_eq!(fleet.core.facts().clusters[&cluster()].kubernetes_uid, None);
}
