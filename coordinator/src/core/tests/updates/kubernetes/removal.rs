//! A machine that is removed leaves Kubernetes: the end of its node is requested, its Node object is deleted and gone,
//! and only then is it forgotten.

use muster_proto::model::{MaintenanceObjects, RemovalPolicy};

use super::*;
use crate::{
    facts::{
        DepartingObject,
        handshake::{LockObject, Subject},
    },
    plan::removal::kubernetes::{NODE_GONE_MS, REQUESTS_GONE_MS},
};

const HOLDS: &str = "example.com/holds";

fn remove_by(name: &str, policy: RemovalPolicy) -> Request {
    Request::Remove { machine: machine(name), policy, accept_control_plane_downtime: false }
}

/// A lock of a controller that answers requests for the end of a node.
fn lock(node: &str, state: LockState) -> LockObject {
    LockObject {
        subject: Subject::Node(node.to_owned()),
        name: format!("tf-{node}"),
        uid: format!("lock-{node}"),
        controller: "tungstenfabric".to_owned(),
        takes_deletion: true,
        state,
        message: String::new(),
        percentage: 0,
        description: String::new(),
        release: String::new(),
    }
}

impl Fleet {
    fn is_left(&self, name: &str) -> bool {
        self.core.facts().machines.contains_key(name)
    }

    /// Time passes until the machine is gone, and at most so many seconds.
    fn until_gone(&mut self, kubernetes: &mut Kubernetes, name: &str, seconds: u64) {
        for _ in 0..seconds {
            if !self.is_left(name) {
                self.agents.remove(name);
                return;
            }
            // It may be forgotten between two signs of life.
            let silent: &[&str] = if self.row(name).departs() { &[name] } else { &[] };
            self.pass(1_000, silent);
            self.drive(kubernetes);
        }
        panic!("{name} is left: {}; {:?}", self.says(name), kubernetes.log);
    }

    /// Time passes, and this agent is silent.
    fn live_without(&mut self, kubernetes: &mut Kubernetes, name: &str, seconds: u64) {
        for _ in 0..seconds {
            self.pass(1_000, &[name]);
            self.drive(kubernetes);
        }
    }

    fn object(&self, name: &str) -> Option<&DepartingObject> {
        self.row(name).departing_object()
    }

    /// The last line of the audit record about the end of a removal.
    fn said_at_end(&self) -> String {
        let lines = self.core.facts().audit_lines();
        let line = lines.into_iter().rev().find(|line| line.action == "removed").expect("it was removed");
        line.message.clone()
    }
}

/// A cluster at rest with the handshake as custom resources. The removal of `worker-1` has begun, its requests stand,
/// and its controllers hold it.
fn leaving(change: impl FnOnce(&mut Kubernetes)) -> (Fleet, Kubernetes) {
    let mut fleet = at_rest_with(|spec| spec.maintenance = Some(MaintenanceObjects::default()));
    let mut kubernetes = Kubernetes::of(&fleet);
    kubernetes.locks.push(lock("worker-1", LockState::Active));
    change(&mut kubernetes);
    fleet.ask(remove_by("worker-1", RemovalPolicy::Graceful)).expect("begins");
    fleet.live(&mut kubernetes, 6);
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.live(&mut kubernetes, 20);
    (fleet, kubernetes)
}

/// Its controllers let it go.
fn let_go(fleet: &mut Fleet, kubernetes: &mut Kubernetes) {
    kubernetes.locks.iter_mut().for_each(|lock| lock.state = LockState::Inactive);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
}

/// The machine departs, and its node is held by a finalizer.
fn held() -> (Fleet, Kubernetes) {
    let (mut fleet, mut kubernetes) =
        leaving(|kubernetes| kubernetes.node("worker-1").finalizers = vec![HOLDS.to_owned()]);
    let_go(&mut fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 30);
    (fleet, kubernetes)
}

fn subjects(kubernetes: &Kubernetes) -> Vec<&Subject> {
    kubernetes.requests.iter().map(|request| &request.subject).collect()
}

fn position(kubernetes: &Kubernetes, line: &str) -> usize {
    kubernetes.log.iter().position(|known| known == line).unwrap_or_else(|| panic!("{line}: {:?}", kubernetes.log))
}

#[test]
fn node_goes_before_its_row() {
    let (mut fleet, mut kubernetes) = leaving(|_| {});
    let (own, end) = (Subject::Node("worker-1".to_owned()), Subject::Deletion("worker-1".to_owned()));
    // An answer to the request for the end would pass for the consent to the maintenance.
    assert!(subjects(&kubernetes).contains(&&own) && !subjects(&kubernetes).contains(&&end), "{:?}", kubernetes.log);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
    let_go(&mut fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 6);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-1"));
    let standing = fleet.part("worker-1").and_then(|part| part.standing_deletion.as_ref());
    let there = kubernetes.requests.iter().find(|request| request.subject == end).map(|request| &request.uid);
    assert_eq!(standing.map(|standing| &standing.uid), there);
    let told = crate::documents::requests(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    let kinds: Vec<&str> = told.iter().map(|request| request.spec.kind.as_str()).collect();
    assert_eq!(kinds, ["ClusterMaintenanceRequest", "NodeMaintenanceRequest", "NodeDeletionRequest"]);
    fleet.until_gone(&mut kubernetes, "worker-1", 40);
    let order = ["request the end of worker-1", "cordon worker-1", "delete node worker-1"];
    let order: Vec<usize> = order.iter().map(|line| position(&kubernetes, line)).collect();
    assert!(order.is_sorted(), "{:?}", kubernetes.log);
    assert!(position(&kubernetes, "release the end of worker-1") > order[2], "not before the node is gone");
    assert!(!kubernetes.nodes.contains_key("worker-1") && kubernetes.nodes.len() == 4);
    assert!(kubernetes.requests.iter().all(|request| request.subject.node().is_none()), "{:?}", kubernetes.requests);
    assert_eq!(fleet.said_at_end(), "machine worker-1: removed; its name is free");
}

/// A lock that became inactive says nothing of the end of the node before its controller could see that request.
#[test]
fn end_of_node_has_to_be_heard_of() {
    let (mut fleet, mut kubernetes) = leaving(|kubernetes| kubernetes.locks.clear());
    let end = Subject::Deletion("worker-1".to_owned());
    assert!(!subjects(&kubernetes).contains(&&end), "nobody answers it: {:?}", kubernetes.log);
    // The lock comes late, and is inactive at once.
    kubernetes.locks.push(lock("worker-1", LockState::Inactive));
    fleet.live(&mut kubernetes, 3);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 5);
    assert!(subjects(&kubernetes).contains(&&end), "{:?}", kubernetes.log);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksSettling"), "{}", fleet.says("worker-1"));
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
    fleet.until_gone(&mut kubernetes, "worker-1", 40);
}

/// Rockoon shows by its annotation that it is through with a request, and works long on some.
#[test]
fn known_controller_has_to_be_through_with_the_end() {
    let handled = "kopf.zalando.org/last-handled-configuration";
    let (mut fleet, mut kubernetes) = leaving(|kubernetes| {
        kubernetes.locks[0].controller = "openstack".to_owned();
        kubernetes.finalizer = Some("lcm.mirantis.com/rockoon.nodemaintenancerequest-finalizer");
    });
    kubernetes.requests.iter_mut().for_each(|request| request.annotations = vec![handled.to_owned()]);
    fleet.live(&mut kubernetes, 20);
    kubernetes.request("worker-1").annotations = vec![handled.to_owned()];
    let_go(&mut fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 60);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
    assert!(fleet.says("worker-1").contains("NodeDeletionRequest worker-1"), "{}", fleet.says("worker-1"));
    kubernetes.requests.iter_mut().for_each(|request| request.annotations = vec![handled.to_owned()]);
    fleet.until_gone(&mut kubernetes, "worker-1", 40);
}

/// Before it departs, the removal is taken back, and with it the request for the end of the node.
#[test]
fn abort_takes_the_request_back() {
    let (mut fleet, mut kubernetes) = leaving(|_| {});
    let_go(&mut fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 6);
    let end = Subject::Deletion("worker-1".to_owned());
    assert!(subjects(&kubernetes).contains(&&end), "{:?}", kubernetes.log);
    fleet.ask(Request::AbortRemoval { machine: machine("worker-1") }).expect("stays");
    // The record does not know the request for the end of the node any more: a coordinator that has just started waits.
    fleet.live(&mut kubernetes, 90);
    kubernetes.locks.iter_mut().for_each(|lock| lock.state = LockState::Active);
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    fleet.live(&mut kubernetes, 20);
    fleet.lock("ceph", None, LockState::Active);
    fleet.live(&mut kubernetes, 20);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
    let row = fleet.row("worker-1");
    assert!(row.removal.is_none() && row.update.is_none(), "{}", fleet.says("worker-1"));
    assert!(kubernetes.is_untouched("worker-1") && kubernetes.nodes.contains_key("worker-1"));
    assert!(!kubernetes.log.iter().any(|line| line.starts_with("delete node")), "{:?}", kubernetes.log);
}

#[test]
fn finalizer_of_somebody_else_is_named_and_left() {
    let (mut fleet, mut kubernetes) = held();
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LeavingKubernetes"), "{}", fleet.says("worker-1"));
    assert!(fleet.says("worker-1").contains(HOLDS), "{}", fleet.says("worker-1"));
    assert!(fleet.clears_when("worker-1").contains("kubectl patch node worker-1"), "{}", fleet.clears_when("worker-1"));
    let abort = fleet.ask(Request::AbortRemoval { machine: machine("worker-1") });
    assert!(matches!(abort, Err(Refusal::State { reason: "TooLate", .. })), "{abort:?}");
    assert!(!fleet.says("worker-1").contains("a person is needed"));
    fleet.live(&mut kubernetes, NODE_GONE_MS / 1_000);
    assert!(fleet.says("worker-1").contains("a person is needed"), "{}", fleet.says("worker-1"));
    let deleted = kubernetes.log.iter().filter(|line| *line == "delete node worker-1").count();
    assert_eq!(deleted, 1, "once it is being deleted, it is only watched");
    kubernetes.nodes.remove("worker-1");
    fleet.until_gone(&mut kubernetes, "worker-1", 40);
}

/// The deletion was recorded, and its answer was lost with the coordinator.
#[test]
fn next_coordinator_goes_on_with_the_recorded_node() {
    for carried_out in [false, true] {
        let (mut fleet, mut kubernetes) = leaving(|_| {});
        let_go(&mut fleet, &mut kubernetes);
        let is_deletion =
            |question: &crate::core::KubernetesQuestion| matches!(question.op, KubernetesOp::DeleteNode { .. });
        for _ in 0..300 {
            if fleet.kubernetes.first().is_some_and(is_deletion) {
                break;
            }
            if !fleet.answer_kubernetes(&mut kubernetes) {
                fleet.pass(1_000, &[]);
            }
        }
        let DepartingObject::Node { name, .. } = fleet.object("worker-1").expect("it departs").clone() else {
            panic!("recorded before it is deleted: {:?}", fleet.object("worker-1"));
        };
        assert_eq!(name, "worker-1");
        if carried_out {
            kubernetes.nodes.remove("worker-1");
        }
        fleet.kubernetes.clear();
        fleet.restart();
        fleet.all_report();
        fleet.report_boots();
        fleet.until_gone(&mut kubernetes, "worker-1", 60);
        assert!(!kubernetes.nodes.contains_key("worker-1"));
        let deleted = kubernetes.log.iter().filter(|line| *line == "delete node worker-1").count();
        assert_eq!(deleted, usize::from(!carried_out), "{:?}", kubernetes.log);
    }
}

/// A node made anew under this name is not the one that was recorded.
#[test]
fn node_made_anew_is_left() {
    let (mut fleet, mut kubernetes) = held();
    kubernetes.node("worker-1").object.uid = "another".to_owned();
    kubernetes.node("worker-1").deleting = false;
    fleet.until_gone(&mut kubernetes, "worker-1", 40);
    assert!(kubernetes.nodes.contains_key("worker-1"));
}

#[test]
fn node_that_is_gone_already_delays_nobody() {
    let mut fleet = at_rest(|_| {});
    let mut kubernetes = Kubernetes::of(&fleet);
    kubernetes.nodes.remove("worker-1");
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.until_gone(&mut kubernetes, "worker-1", 5);
    assert!(!kubernetes.log.iter().any(|line| line.starts_with("delete")), "{:?}", kubernetes.log);
}

/// A machine whose deployment never began has no node, and nobody is asked.
#[test]
fn machine_that_never_joined_delays_nobody() {
    let mut fleet = at_rest(|_| {});
    fleet.enroll("worker-9", Worker).expect("enrols");
    fleet.kubernetes.clear();
    fleet.ask(remove_by("worker-9", RemovalPolicy::Forced)).expect("begins");
    assert!(!fleet.is_left("worker-9"));
}

/// A node that might be another machine's is never deleted.
#[test]
fn node_of_another_machine_is_left() {
    type Change = fn(&mut Kubernetes);
    let cases: [(&str, Change, &str); 3] = [
        ("its kubelet reported another boot, and works", |k| k.node("worker-1").boot_id = "x".to_owned(), "Unclear"),
        ("the boot is that of worker-2", |k| k.node("worker-1").boot_id = "boot-worker-2".to_owned(), "Unclear"),
        (
            "two nodes are in its boot",
            |k| {
                let mut copy = k.node("worker-1").clone();
                (copy.object.name, copy.object.uid) = ("copy".to_owned(), "uid-copy".to_owned());
                k.nodes.insert("copy".to_owned(), copy);
            },
            "Unclear",
        ),
    ];
    for (case, change, reason) in cases {
        let mut fleet = at_rest(|_| {});
        let mut kubernetes = Kubernetes::of(&fleet);
        change(&mut kubernetes);
        let nodes = kubernetes.nodes.len();
        fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
        fleet.live(&mut kubernetes, 30);
        assert!(fleet.why("worker-1").is_some_and(|why| why.contains(reason)), "{case}: {}", fleet.says("worker-1"));
        assert!(fleet.clears_when("worker-1").contains("--policy forced"), "{case}");
        fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("loosened");
        fleet.until_gone(&mut kubernetes, "worker-1", NODE_GONE_MS / 1_000 + 30);
        assert_eq!(kubernetes.nodes.len(), nodes, "{case}: {:?}", kubernetes.log);
        assert!(fleet.said_at_end().contains("`kubectl delete node worker-1`"), "{case}: {}", fleet.said_at_end());
    }
}

/// A dead machine's kubelet is silent, and reported an earlier boot last: its place is enough.
#[test]
fn node_of_dead_machine_is_deleted() {
    let mut fleet = at_rest(|_| {});
    let mut kubernetes = Kubernetes::of(&fleet);
    (kubernetes.node("worker-1").boot_id, kubernetes.node("worker-1").ready) = ("earlier".to_owned(), false);
    fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)).expect("begins");
    fleet.until_gone(&mut kubernetes, "worker-1", 10);
    assert!(!kubernetes.nodes.contains_key("worker-1"), "{:?}", kubernetes.log);
}

/// Where nobody answers, a removal by force leaves the node behind, and says so.
#[test]
fn forced_removal_ends_without_api_server() {
    let mut fleet = at_rest(|_| {});
    let mut kubernetes = Kubernetes::of(&fleet);
    kubernetes.broken = Some(KubernetesFailure::Unreachable("connection refused".to_owned()));
    fleet.ask(remove_by("worker-1", RemovalPolicy::Unsafe)).expect("begins");
    fleet.live(&mut kubernetes, NODE_GONE_MS / 1_000 + 30);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("KubernetesUnavailable"), "{}", fleet.says("worker-1"));
    assert!(fleet.says("worker-1").contains("a person is needed"), "{}", fleet.says("worker-1"));
    assert!(fleet.clears_when("worker-1").contains("musterctl remove worker-1 --policy forced"));
    let Ok(Reply::Done(lines)) = fleet.ask(remove_by("worker-1", RemovalPolicy::Forced)) else { panic!("loosened") };
    assert!(lines.iter().any(|line| line.contains("left behind")), "{lines:?}");
    assert!(!fleet.is_left("worker-1"), "that time has passed: {}", fleet.says("worker-1"));
    assert!(fleet.said_at_end().contains("`kubectl delete node worker-1`"), "{}", fleet.said_at_end());
    fleet.agents.remove("worker-1");
    fleet.ask(remove_by("worker-2", RemovalPolicy::Forced)).expect("begins");
    fleet.live_without(&mut kubernetes, "worker-2", NODE_GONE_MS / 1_000 - 30);
    assert!(fleet.is_left("worker-2"), "there may be an answer yet");
    fleet.until_gone(&mut kubernetes, "worker-2", 60);
}

/// A request that a finalizer holds is waited for, and left behind in the end: the node is gone.
#[test]
fn request_that_is_held_is_left_behind() {
    let (mut fleet, mut kubernetes) = leaving(|_| {});
    kubernetes.request("worker-1").finalizers.push(HOLDS.to_owned());
    let_go(&mut fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 40);
    assert!(!kubernetes.nodes.contains_key("worker-1"), "{:?}", kubernetes.log);
    let message = fleet.says("worker-1");
    assert!(message.contains("NodeMaintenanceRequest worker-1") && message.contains(HOLDS), "{message}");
    fleet.until_gone(&mut kubernetes, "worker-1", REQUESTS_GONE_MS / 1_000 + 5);
    assert_eq!(kubernetes.requests.iter().filter(|request| request.name == "worker-1").count(), 1);
    assert!(fleet.said_at_end().contains("NodeMaintenanceRequest worker-1"), "{}", fleet.said_at_end());
}
