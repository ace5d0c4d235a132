//! The annotation by which the cluster-autoscaler leaves a node in its drain alone.

use super::*;
use crate::facts::kubernetes::{SCALE_DOWN_IS_DISABLED, ScaleDown, ScaleDownBefore};

fn annotate(kubernetes: &mut Kubernetes, now: Option<&str>) {
    let now = now.map(str::to_owned);
    let node = kubernetes.node("worker-1");
    node.scale_down.now = now;
    let version: u64 = node.object.resource_version.parse().expect("a number");
    node.object.resource_version = (version + 1).to_string();
}

fn scale_down(kubernetes: &mut Kubernetes) -> ScaleDown {
    kubernetes.node("worker-1").scale_down.clone()
}

/// Set with the cordon, and given back with it: absent, `true` and `false`.
#[test]
fn annotation_is_given_back_as_it_was() {
    for value in [None, Some("true"), Some("false")] {
        let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
        annotate(&mut kubernetes, value);
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.live(&mut kubernetes, 12);
        let before = ScaleDownBefore(value.map(str::to_owned));
        let set = ScaleDown { now: Some(SCALE_DOWN_IS_DISABLED.to_owned()), before: Some(before.clone()) };
        assert_eq!(scale_down(&mut kubernetes), set);
        fleet.finish("worker-1");
        fleet.live(&mut kubernetes, 8);
        assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
        assert_eq!(scale_down(&mut kubernetes), ScaleDown { now: before.0, before: None });
    }
}

/// What an operator sets in the middle stays.
#[test]
fn operators_annotation_stays() {
    for value in [None, Some("false")] {
        let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
        annotate(&mut kubernetes, Some("yes"));
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.live(&mut kubernetes, 12);
        annotate(&mut kubernetes, value);
        fleet.finish("worker-1");
        fleet.live(&mut kubernetes, 8);
        let now = value.map(str::to_owned);
        assert_eq!(scale_down(&mut kubernetes), ScaleDown { now, before: None }, "{:?}", kubernetes.log);
    }
}

/// The former value is noted on the node: it comes back with an owed cordon, which the store knows nothing more of.
#[test]
fn owed_cordon_gives_annotation_back() {
    let mut fleet = super::fixture::at_rest(|_| {});
    let mut kubernetes = Kubernetes::of(&fleet);
    let node = kubernetes.node("worker-1");
    (node.unschedulable, node.drained_for) = (true, Some("edge-7-update-1/uid-worker-1".to_owned()));
    let before = Some(ScaleDownBefore(Some("false".to_owned())));
    node.scale_down = ScaleDown { now: Some(SCALE_DOWN_IS_DISABLED.to_owned()), before };
    fleet.live(&mut kubernetes, SETTLE_MS / 1_000 + 65);
    fleet.ask(Request::LeaveMaintenance { machine: machine("worker-1") }).expect("known");
    fleet.live(&mut kubernetes, 65);
    assert!(kubernetes.is_untouched("worker-1"), "{:?}", kubernetes.log);
    assert_eq!(scale_down(&mut kubernetes), ScaleDown { now: Some("false".to_owned()), before: None });
}

#[test]
fn note_reads_as_it_was_written() {
    for value in [None, Some(String::new()), Some("true".to_owned()), Some("none".to_owned())] {
        let before = ScaleDownBefore(value);
        assert_eq!(ScaleDownBefore::of_note(&before.note()), Some(before));
    }
    assert_eq!(ScaleDownBefore::of_note("foreign"), None);
}
