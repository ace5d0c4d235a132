//! The life of request objects and of annotations on nodes: which coordinator removes them, and when.

use muster_proto::model::{Epoch, Scope};

use super::*;
use crate::facts::handshake::RequestMark;

fn with_maintenance() -> Fleet {
    at_rest_with(|spec| spec.maintenance = Some(MaintenanceObjects::default()))
}

/// A request of this cluster that no update explains.
fn left(node: &str) -> RequestObject {
    RequestObject { requested_by: Some(cluster().to_string()), ..foreign(node, node) }
}

/// An update begins: its first control machine is under request, unless something keeps it back.
fn at_first_control(fleet: &mut Fleet, kubernetes: &mut Kubernetes) {
    fleet.ask(update()).expect("starts");
    for name in fleet.agents.keys().cloned().collect::<Vec<_>>() {
        fleet.finish(&name);
    }
    fleet.live(kubernetes, 6);
    handle(fleet, kubernetes);
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.live(kubernetes, 12);
}

/// The agents of a copy of the store report seconds after its start, and prove only then that it is older.
#[test]
fn older_store_leaves_live_requests() {
    let mut fleet = with_maintenance();
    release(&mut fleet, &["install"], 1);
    let copy = fleet.store.clone();
    let mut kubernetes = Kubernetes::of(&fleet);
    at_first_control(&mut fleet, &mut kubernetes);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.permit("control-1").is_some(), "{}", fleet.says("control-1"));
    let live = [cluster().to_string(), "control-1".to_owned()];
    assert_eq!(names(&kubernetes), live);
    fleet.kubernetes.clear();
    fleet.restart_from(copy);
    fleet.live(&mut kubernetes, 5);
    assert_eq!(names(&kubernetes), live, "nobody has reported yet");
    fleet.all_report();
    fleet.live(&mut kubernetes, 150);
    assert_eq!(names(&kubernetes), live, "the store is older");
}

/// A machine that is silent for long may be rebooting in a turn that this copy of the store does not know.
#[test]
fn request_stays_while_its_machine_is_silent() {
    let mut fleet = with_maintenance();
    let mut kubernetes = Kubernetes::of(&fleet);
    kubernetes.requests.push(left("worker-1"));
    fleet.restart();
    for name in ["control-1", "control-2", "control-3", "worker-2"] {
        fleet.connect(name);
    }
    fleet.live(&mut kubernetes, 300);
    assert_eq!(names(&kubernetes), ["worker-1"]);
    fleet.connect("worker-1");
    fleet.live(&mut kubernetes, 66);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
}

/// A turn that waits for it says so.
#[test]
fn request_that_stays_is_named() {
    let mut fleet = with_maintenance();
    release(&mut fleet, &["install"], 1);
    let mut kubernetes = Kubernetes::of(&fleet);
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    kubernetes.requests.push(left("control-1"));
    at_first_control(&mut fleet, &mut kubernetes);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Gathering"), "{}", fleet.says("control-1"));
    let said = "NodeMaintenanceRequest control-1 is unknown to this store";
    assert!(fleet.says("control-1").contains(said), "{}", fleet.says("control-1"));
    fleet.live(&mut kubernetes, 90);
    assert!(!kubernetes.requests.iter().any(|known| known.uid == "foreign"), "{:?}", kubernetes.requests);
}

/// The record has seen these objects, and their requests end: nothing is waited for.
#[test]
fn ended_requests_go_soon_after_a_restart() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    fleet.live(&mut kubernetes, 5);
    assert_eq!(names(&kubernetes).len(), 2);
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.live(&mut kubernetes, 10);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
}

/// Another coordinator of the cluster, or this one with a newer store, made it.
#[test]
fn request_of_a_higher_epoch_is_left_and_named() {
    let mark = |epoch: u64| Some(RequestMark { epoch: Epoch(epoch), since_ms: 0, revision: 0, scope: Scope::Drain });
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.requests.push(RequestObject { mark: mark(99), ..left("worker-1") });
    };
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, 200);
    assert!(names(&kubernetes).contains(&"worker-1"), "it is left alone");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("ForeignRequest"), "the other one goes first");
    assert!(fleet.says("worker-1").contains("with epoch 99, and this one has epoch 1"), "{}", fleet.says("worker-1"));
    kubernetes.request("worker-1").mark = mark(1);
    fleet.live(&mut kubernetes, 15);
    fleet.complete_in(&mut kubernetes, "worker-1");
    fleet.live(&mut kubernetes, 12);
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
}

/// Applies the newest manifest without the section.
fn drop_section(fleet: &mut Fleet) {
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.kubernetes.as_mut().expect("a cluster").maintenance = None;
    fleet.ask(apply(spec, &[])).expect("applies");
}

fn object_locks(fleet: &Fleet) -> usize {
    fleet.core.facts().locks.keys().filter(|key| key.uid.is_some()).count()
}

/// Nothing of ours is left, and nobody asks about it any more.
fn all_is_gone(fleet: &mut Fleet, kubernetes: &mut Kubernetes) {
    assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
    assert_eq!(object_locks(fleet), 0);
    let lists = kubernetes.lists;
    fleet.live(kubernetes, 200);
    assert_eq!(kubernetes.lists, lists);
}

/// A running update keeps the section, and its locks hold. What it made there goes with it.
#[test]
fn section_holds_until_the_end_of_its_update() {
    let open = |kubernetes: &mut Kubernetes| {
        kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Active));
    };
    let (mut fleet, mut kubernetes) = workers_with(Vec::new(), open);
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"));
    drop_section(&mut fleet);
    assert_eq!(object_locks(&fleet), 1);
    for _ in 0..3 {
        assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{}", fleet.says("worker-1"));
        assert!(fleet.permit("worker-1").is_none());
        fleet.live(&mut kubernetes, 9);
    }
    set(&mut kubernetes, "one", LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    fleet.finish("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    fleet.live(&mut kubernetes, 12);
    assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksReturning"), "{}", fleet.says("worker-1"));
    set(&mut kubernetes, "one", LockState::Active);
    fleet.live(&mut kubernetes, 6);
    fleet.lock("ceph", Some("worker-2"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "{}", fleet.says("worker-2"));
    all_is_gone(&mut fleet, &mut kubernetes);
}

/// The same after an abort, and with a coordinator that starts before everything is gone: the record tells it that
/// something may be left.
#[test]
fn what_is_left_after_the_section_goes() {
    for restarts in [false, true] {
        let (mut fleet, mut kubernetes) = workers(Vec::new());
        fleet.live(&mut kubernetes, 5);
        drop_section(&mut fleet);
        fleet.live(&mut kubernetes, 15);
        fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
        if restarts {
            kubernetes.refused = Some(KubernetesFailure::Forbidden("cannot delete resource".to_owned()));
            kubernetes.requests.retain(|request| request.subject == Subject::Cluster);
            fleet.live(&mut kubernetes, 20);
            assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "{}", fleet.says("worker-1"));
            fleet.kubernetes.clear();
            fleet.restart();
            fleet.all_report();
            fleet.report_boots();
            kubernetes.refused = None;
            assert_eq!(names(&kubernetes).len(), 1, "it could not be removed");
        }
        fleet.live(&mut kubernetes, 90);
        all_is_gone(&mut fleet, &mut kubernetes);
    }
}

/// With the definitions everything is gone.
#[test]
fn definitions_that_are_gone_leave_nothing() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    drop_section(&mut fleet);
    kubernetes.lists_none = true;
    kubernetes.requests.clear();
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.live(&mut kubernetes, 2_100);
    all_is_gone(&mut fleet, &mut kubernetes);
}

fn annotate(fleet: &mut Fleet, name: &str, mode: &str) {
    let set = [(MIGRATION_MODE.to_owned(), mode.to_owned())].into();
    fleet.ask(Request::AnnotateMachine { machine: machine(name), set, remove: Vec::new() }).expect("is annotated");
}

/// The mode that Muster set on a node. None: it took it back, or set none.
fn mode<'a>(kubernetes: &'a Kubernetes, node: &str) -> Option<&'a str> {
    kubernetes.annotations.get(node)?.get(MIGRATION_MODE).map(String::as_str)
}

/// A machine under request whose instances are not migrated.
fn skipping() -> (Fleet, Kubernetes) {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    annotate(&mut fleet, "worker-1", "skip");
    fleet.live(&mut kubernetes, 6);
    assert_eq!(mode(&kubernetes, "worker-1"), Some("skip"));
    (fleet, kubernetes)
}

/// However a machine leaves its turn, its node gets its annotations back: the next request asks without them.
#[test]
fn annotations_outlive_their_turn() {
    type Leaves = fn(&mut Fleet);
    let leaves: [(&str, Leaves); 3] = [
        ("revoked", |fleet| {
            let machine = machine("worker-1");
            drop(fleet.ask(Request::RevokeMachine { machine, machine_is_off: true }).expect("revokes"));
            drop(fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts"));
        }),
        ("replaced", |fleet| {
            let machine = machine("worker-1");
            drop(fleet.ask(Request::ReplaceMachine { machine, machine_is_off: true }).expect("replaces"));
            fleet.enroll("worker-1", Worker).expect("enrols");
            fleet.connect("worker-1");
        }),
        ("removed", |fleet| {
            let policy = RemovalPolicy::Forced;
            let machine = machine("worker-1");
            let remove = Request::Remove { machine, policy, accept_control_plane_downtime: false };
            drop(fleet.ask(remove).expect("removes"));
        }),
    ];
    for (how, leave) in leaves {
        let (mut fleet, mut kubernetes) = skipping();
        fleet.disconnect("worker-1");
        leave(&mut fleet);
        fleet.live(&mut kubernetes, 2_200);
        assert_eq!(mode(&kubernetes, "worker-1"), None, "{how}");
    }
}

/// The copy of the store knows what is on the node, and the part in the update is over when its machine is reviewed.
#[test]
fn annotations_outlive_a_recovery() {
    let (mut fleet, mut kubernetes) = skipping();
    fleet.kubernetes.clear();
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    fleet.report_boots();
    fleet.live(&mut kubernetes, 100);
    assert_eq!(mode(&kubernetes, "worker-1"), Some("skip"), "its state is in doubt");
    for worker in ["worker-1", "worker-2"] {
        fleet.ask(Request::LeaveMaintenance { machine: machine(worker) }).expect("is in service");
    }
    fleet.live(&mut kubernetes, 90);
    assert_eq!(mode(&kubernetes, "worker-1"), None);
}

/// Past its deadline a machine goes on without it, and it is taken back later all the same.
#[test]
fn annotations_are_taken_back_past_the_deadline() {
    let (mut fleet, mut kubernetes) = skipping();
    kubernetes.unannotated.push("worker-1".to_owned());
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.live(&mut kubernetes, 12);
    assert!(fleet.says("worker-1").contains("the webhook denied the request"), "{}", fleet.says("worker-1"));
    let tries = kubernetes.log.iter().filter(|line| *line == "annotate worker-1 {}").count();
    assert!((1..=4).contains(&tries), "{tries} tries in 12 s");
    fleet.live(&mut kubernetes, 2_000);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "the time for it is over");
    assert_eq!(mode(&kubernetes, "worker-1"), Some("skip"));
    kubernetes.unannotated.clear();
    fleet.live(&mut kubernetes, 70);
    assert_eq!(mode(&kubernetes, "worker-1"), None);
}

/// A node that takes no annotations keeps its own request back, and no other.
#[test]
fn node_that_takes_no_annotations_delays_itself_alone() {
    let (mut fleet, mut kubernetes) = workers_of(2, Vec::new(), |kubernetes| {
        kubernetes.unannotated.push("worker-2".to_owned());
    });
    annotate(&mut fleet, "worker-1", "skip");
    annotate(&mut fleet, "worker-2", "manual");
    fleet.live(&mut kubernetes, 30);
    assert_eq!(mode(&kubernetes, "worker-1"), Some("skip"));
    assert_eq!(mode(&kubernetes, "worker-2"), None);
    fleet.complete_in(&mut kubernetes, "worker-1");
    fleet.live(&mut kubernetes, 12);
    assert_eq!((fleet.part("worker-1"), fleet.slot("worker-1")), (None, None), "{}", fleet.says("worker-1"));
    kubernetes.unannotated.clear();
    fleet.live(&mut kubernetes, 12);
    assert_eq!(mode(&kubernetes, "worker-2"), Some("manual"));
}

/// Nobody would ever remove them.
#[test]
fn cluster_with_requests_there_is_not_deleted() {
    let refused = |fleet: &mut Fleet| match fleet.ask(Request::DeleteCluster { cluster: cluster() }) {
        Err(Refusal::State { reason: "RequestsLeft", message }) => message,
        other => panic!("{other:?}"),
    };
    for is_gone_for_good in [true, false] {
        let (mut fleet, mut kubernetes) = skipping();
        for name in fleet.agents.keys().cloned().collect::<Vec<_>>() {
            fleet.disconnect(&name);
            fleet.ask(Request::RevokeMachine { machine: machine(&name), machine_is_off: true }).expect("revokes");
        }
        let said = refused(&mut fleet);
        let left = format!("ClusterMaintenanceRequest {}, NodeMaintenanceRequest worker-1", cluster());
        assert!(said.contains(&left) && said.contains("annotations on node worker-1"), "{said}");
        if is_gone_for_good {
            let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
            spec.kubernetes = None;
            fleet.ask(apply(spec, &[])).expect("applies");
        } else {
            refused(&mut fleet);
            fleet.live(&mut kubernetes, 2_200);
            assert!(kubernetes.requests.is_empty(), "{:?}", kubernetes.requests);
            assert_eq!(mode(&kubernetes, "worker-1"), None);
        }
        fleet.ask(Request::DeleteCluster { cluster: cluster() }).expect("goes");
    }
}

/// etcd was restored from an earlier turn, or a creation of an earlier update lands late: what answered that request is
/// no answer to this one.
#[test]
fn request_of_an_earlier_turn_is_made_anew() {
    type Change = fn(&mut RequestMark);
    let changes: [Change; 3] = [|mark| mark.revision -= 1, |mark| mark.since_ms -= 1, |mark| mark.scope = Scope::Os];
    for (n, change) in changes.into_iter().enumerate() {
        let (mut fleet, mut kubernetes) = workers_with(Vec::new(), |kubernetes| {
            kubernetes.locks.push(lock("tungstenfabric", "worker-1", "one", LockState::Active));
        });
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.live(&mut kubernetes, 5);
        let request = kubernetes.request("worker-1");
        change(request.mark.as_mut().expect("a mark"));
        request.uid = "old".to_owned();
        set(&mut kubernetes, "one", LockState::Inactive);
        fleet.live(&mut kubernetes, 12);
        assert!(kubernetes.log.contains(&"release worker-1".to_owned()), "{n}: {:?}", kubernetes.log);
        let uid = kubernetes.request("worker-1").uid.clone();
        let standing = fleet.part("worker-1").and_then(|part| part.standing.clone()).expect("it stands");
        assert_eq!((standing.uid.as_str(), uid == "old"), (uid.as_str(), false), "{n}");
        assert!(fleet.permit("worker-1").is_none(), "{n}: the lock was inactive before");
        assert_eq!(fleet.why("worker-1").as_deref(), Some("LocksActive"), "{n}: {}", fleet.says("worker-1"));
        set(&mut kubernetes, "one", LockState::Active);
        fleet.live(&mut kubernetes, 4);
        set(&mut kubernetes, "one", LockState::Inactive);
        fleet.live(&mut kubernetes, 4);
        assert!(fleet.permit("worker-1").is_some(), "{n}: {}", fleet.says("worker-1"));
    }
}

/// The next turn of a machine has a request of its own, and nothing stands for it yet.
#[test]
fn object_of_the_last_turn_stands_for_no_other() {
    let (mut fleet, mut kubernetes) = workers(Vec::new());
    fleet.live(&mut kubernetes, 5);
    let first = fleet.part("worker-1").cloned().expect("its turn");
    assert!(first.standing.is_some());
    kubernetes.makes_none = true;
    fleet.lock("ceph", Some("worker-1"), LockState::Failed);
    let has_next = |fleet: &Fleet| {
        let request = fleet.part("worker-1").and_then(|part| part.request);
        request.is_some() && request != first.request
    };
    // It is deferred at its deadline, and the other one after it.
    for _ in 0..3 * NODE_LOCKS_MS / 10_000 {
        if !has_next(&fleet) {
            fleet.pass(10_000, &[]);
            fleet.drive(&mut kubernetes);
        }
    }
    assert!(has_next(&fleet), "{}", fleet.says("worker-1"));
    assert_eq!(fleet.part("worker-1").and_then(|part| part.standing.clone()), None);
}
