//! What keeps a pod from being evicted in the renewal: another pod of its set, its node, or the set itself.

use super::*;

/// The pod on this node has the newest template, and is not Ready.
fn break_newest(kubernetes: &mut Kubernetes, node: &str) {
    *kubernetes.on(node) = DaemonPod { ready: false, ..daemon_pod(node, NEW) };
    count(kubernetes.set());
}

/// Its locks are inactive.
fn let_go(fleet: &mut Fleet, kubernetes: &mut Kubernetes, name: &str) {
    assert_eq!(fleet.requests(), [name], "{:?}", fleet.says(name));
    fleet.lock("ceph", Some(name), LockState::Inactive);
    fleet.live(kubernetes, 8);
}

#[test]
fn broken_pod_elsewhere_holds_all() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| break_newest(kubernetes, "worker-1"));
    fleet.live(&mut kubernetes, 12);
    assert_eq!((kubernetes.evictions(), fleet.slots().len()), (0, 0));
    assert_eq!(fleet.why("control-1").as_deref(), Some("KubernetesPodRenewal"));
    let says = "pod tf/vrouter-worker-1-new-hash of DaemonSet tf/vrouter on worker-1 is not Ready";
    assert_eq!((fleet.says("control-1").as_str(), cluster_says(&fleet).as_str()), (says, says));
    fleet.live(&mut kubernetes, 31 * 60);
    assert!(fleet.is_paused() && kubernetes.evictions() == 0, "{}", fleet.says("control-1"));
    assert!(cluster_says(&fleet).ends_with(says), "{}", cluster_says(&fleet));
    kubernetes.on("worker-1").ready = true;
    fleet.ask(Request::Resume { rollout: fleet.rollout() }).expect("goes on");
    fleet.live(&mut kubernetes, 6);
    renew(&mut fleet, &mut kubernetes, "control-1");
    assert_eq!((kubernetes.evictions(), fleet.slots()), (1, vec!["worker-2"]));
}

/// What is broken goes before what works, wherever it is: the newest template may mend it.
#[test]
fn broken_old_pods_go_first() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| {
        kubernetes.on("worker-1").ready = false;
        kubernetes.on("worker-2").ready = false;
    });
    for (n, name) in ["worker-1", "worker-2", "control-1"].iter().enumerate() {
        assert_eq!((fleet.slots(), kubernetes.evictions()), (vec![*name], n), "{}", fleet.says(name));
        renew(&mut fleet, &mut kubernetes, name);
    }
    assert!(!is_open(&fleet));
}

/// Another pod goes missing, or terminates, when the locks are inactive already.
#[test]
fn pod_that_leaves_holds_turn() {
    for missing in [true, false] {
        let (mut fleet, mut kubernetes) = at_renewal(|_| {});
        let other = kubernetes.on("worker-2").clone();
        if missing {
            kubernetes.set().pods.retain(|pod| pod.node != "worker-2");
        } else {
            kubernetes.on("worker-2").pod.deletion_s = Some(1);
        }
        let_go(&mut fleet, &mut kubernetes, "control-1");
        let says = fleet.says("control-1");
        let expected = if missing { "has 2 pods on 3 nodes" } else { "on worker-2 terminates" };
        assert!(says.contains(expected) && kubernetes.evictions() == 0, "{says}");
        fleet.live(&mut kubernetes, 31 * 60);
        assert!(fleet.is_paused() && kubernetes.evictions() == 0, "past its deadline: {says}");
        kubernetes.set().pods.retain(|pod| pod.node != "worker-2");
        kubernetes.set().pods.push(other);
        fleet.ask(Request::Resume { rollout: fleet.rollout() }).expect("goes on");
        fleet.live(&mut kubernetes, 8);
        assert_eq!(kubernetes.evictions(), 1, "{}", fleet.says("control-1"));
    }
}

/// An eviction that was refused is not sent again while another pod is away.
#[test]
fn refused_eviction_waits_for_other_pods() {
    let (mut fleet, mut kubernetes) = at_renewal(refusing);
    let_go(&mut fleet, &mut kubernetes, "control-1");
    let sent = kubernetes.evictions();
    assert!(sent > 0);
    break_newest(&mut kubernetes, "worker-1");
    fleet.live(&mut kubernetes, 30);
    assert!(kubernetes.evictions() <= sent + 1, "one may be on its way: {:?}", kubernetes.log);
    assert!(fleet.says("control-1").contains("on worker-1 is not Ready"), "{}", fleet.says("control-1"));
}

#[test]
fn machine_of_unready_node_waits() {
    let (fleet, kubernetes) = at_renewal(|kubernetes| kubernetes.node("control-1").ready = false);
    assert_eq!((fleet.slots(), kubernetes.evictions()), (vec!["worker-1"], 0));
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| {
        kubernetes.set().pods.retain(|pod| pod.node == "control-1");
        kubernetes.set().desired = 1;
        count(kubernetes.set());
        kubernetes.node("control-1").ready = false;
    });
    assert_eq!((fleet.slots().len(), fleet.says("control-1").as_str()), (0, "node control-1 is not Ready"));
    fleet.live(&mut kubernetes, 31 * 60);
    assert!(fleet.is_paused(), "it has a deadline");
}

/// A pod counts when it has been Ready for minReadySeconds, and when its controller says so too.
#[test]
fn successor_must_be_available() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.set().min_ready_s = 30);
    let_go(&mut fleet, &mut kubernetes, "control-1");
    assert_eq!((kubernetes.evictions(), fleet.requests()), (1, vec!["control-1"]));
    assert!(fleet.says("control-1").contains("has been Ready for "), "{}", fleet.says("control-1"));
    kubernetes.on("control-1").ready = false;
    fleet.live(&mut kubernetes, 4);
    kubernetes.on("control-1").ready = true;
    fleet.live(&mut kubernetes, 27);
    assert_eq!(fleet.requests(), ["control-1"], "it began anew: {}", fleet.says("control-1"));
    kubernetes.available = Some(2);
    fleet.live(&mut kubernetes, 30);
    assert!(fleet.says("control-1").contains("counts 2 of 3 Ready pods as available"), "{}", fleet.says("control-1"));
    kubernetes.available = None;
    fleet.live(&mut kubernetes, 4);
    assert!(fleet.requests().is_empty(), "{}", fleet.says("control-1"));
}

#[test]
fn selector_without_daemon_set_is_named() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.daemon_sets.sets.clear());
    let says = "no DaemonSet of update strategy OnDelete is as spec.kubernetes.onDelete says (namespace tf)";
    assert_eq!((stage(&fleet), cluster_says(&fleet).as_str()), (Some(false), says));
    fleet.live(&mut kubernetes, 31 * 60);
    assert!(fleet.is_paused(), "{}", cluster_says(&fleet));
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.live(&mut kubernetes, 4);
    assert!(!is_open(&fleet));
}

#[test]
fn daemon_set_gone_in_turn_is_awaited() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.slow = true);
    let_go(&mut fleet, &mut kubernetes, "control-1");
    let set = kubernetes.daemon_sets.sets.remove(0);
    fleet.live(&mut kubernetes, 8);
    assert!(fleet.says("control-1").starts_with("DaemonSet tf/vrouter is gone"), "{}", fleet.says("control-1"));
    assert_eq!(fleet.requests(), ["control-1"]);
    fleet.live(&mut kubernetes, 31 * 60);
    assert!(fleet.is_paused() && fleet.requests() == ["control-1"], "{}", fleet.says("control-1"));
    kubernetes.daemon_sets.sets.push(set);
    let old = kubernetes.on("control-1").pod.object.clone();
    kubernetes.replace(&old, true);
    fleet.live(&mut kubernetes, 4);
    assert!(fleet.requests().is_empty(), "{}", fleet.says("control-1"));
}

/// One that vanishes between two turns does not count as renewed.
#[test]
fn vanished_daemon_set_holds_stage() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| {
        let agent = DaemonSet { name: "tf/agent".to_owned(), newest: Some(NEW.to_owned()), ..DaemonSet::default() };
        kubernetes.daemon_sets.sets.push(agent);
    });
    renew(&mut fleet, &mut kubernetes, "control-1");
    kubernetes.daemon_sets.sets.pop();
    for name in ["worker-1", "worker-2"] {
        renew(&mut fleet, &mut kubernetes, name);
    }
    assert_eq!(stage(&fleet), Some(false));
    assert!(cluster_says(&fleet).starts_with("DaemonSet tf/agent is gone"), "{}", cluster_says(&fleet));
}

#[test]
fn second_change_of_template_pauses() {
    let (mut fleet, mut kubernetes) = at_renewal(|_| {});
    let change = |fleet: &mut Fleet, kubernetes: &mut Kubernetes, hash: &str| {
        kubernetes.set().newest = Some(hash.to_owned());
        count(kubernetes.set());
        fleet.live(kubernetes, 62);
    };
    change(&mut fleet, &mut kubernetes, "third");
    assert!(!fleet.is_paused(), "one change is like the first");
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    change(&mut fleet, &mut kubernetes, NEW);
    assert!(fleet.is_paused());
    let says = "the template of DaemonSet tf/vrouter changed 2 times while its pods are renewed";
    assert!(cluster_says(&fleet).ends_with(says), "{}", cluster_says(&fleet));
    fleet.ask(Request::Resume { rollout: fleet.rollout() }).expect("goes on");
    fleet.live(&mut kubernetes, 62);
    change(&mut fleet, &mut kubernetes, "fourth");
    assert!(!fleet.is_paused(), "it begins anew: {}", cluster_says(&fleet));
    renew(&mut fleet, &mut kubernetes, "control-1");
    assert_eq!(kubernetes.evictions(), 1);
}

/// No pod would follow there: the set does not tolerate a taint of the node.
#[test]
fn tainted_node_keeps_its_pod() {
    let taint = |kubernetes: &mut Kubernetes, node: &str| {
        kubernetes.set().tainted = [(node.to_owned(), "storage=yes:NoSchedule".to_owned())].into();
    };
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| taint(kubernetes, "control-1"));
    assert_eq!((fleet.slots(), fleet.why("control-1").as_deref()), (vec!["worker-1"], Some("KubernetesUndrainable")));
    let says = "Error: node control-1 has taint storage=yes:NoSchedule, which DaemonSet tf/vrouter does not tolerate: \
                no pod follows tf/vrouter-control-1-old-hash";
    assert_eq!(fleet.says("control-1"), says);
    taint(&mut kubernetes, "worker-1");
    let_go(&mut fleet, &mut kubernetes, "worker-1");
    assert!(fleet.says("worker-1").contains("has taint storage"), "{}", fleet.says("worker-1"));
    assert_eq!(kubernetes.evictions(), 0);
    kubernetes.set().tainted.clear();
    fleet.live(&mut kubernetes, 6);
    assert_eq!(kubernetes.evictions(), 1);
}

/// The advice to delete its pod by hand would go around the locks of the machine.
#[test]
fn unclear_node_is_said() {
    let (fleet, _) = at_renewal(|kubernetes| {
        kubernetes.set().pods.retain(|pod| pod.node == "control-1");
        kubernetes.set().desired = 1;
        count(kubernetes.set());
        kubernetes.node("control-1").boot_id = "another".to_owned();
    });
    let says = "pod tf/vrouter-control-1-old-hash of DaemonSet tf/vrouter is of an older template, and its node may be \
                control-1's: Kubernetes node control-1 has its name or address, and was started in another boot";
    assert_eq!(cluster_says(&fleet), says);
    let blocked = fleet.look("control-1", |snapshot, _| crate::plan::blocked::of_cluster(snapshot)).expect("waits");
    assert!(!blocked.clears_when.contains("kubectl delete pod"), "{}", blocked.clears_when);
}
