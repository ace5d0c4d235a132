//! The next questions to the API server about machines' nodes: one at a time per machine.

use muster_proto::{
    model::{MachineName, MachineType},
    seeded_bug::seeded_bug,
};

use super::{
    BIND_MS, FRESH_MS, SETTLE_MS, UNDRAINABLE_MS, aim, autoscaler, control_plane, drained_for, events, eviction,
    forcing::{self, DrainRules},
    fresh, identity, is_fresh, is_listed_since_cordon, is_ours, keeps_cordon, look, may_uncordon, preflight, recorded,
    row, spec, unsettled_until, what_is_left,
};
use crate::{
    facts::{
        DeferralCause, KubernetesObservation, KubernetesTarget,
        kubernetes::{KubernetesFailure, KubernetesNode, KubernetesOp},
    },
    plan::{
        drain::Goal,
        locks, safety,
        snapshot::{ClusterSnapshot, MachineView},
        update::{disturbs, targets, wants_slot},
    },
};

/// Interval between two lists of the pods on a node that is being drained, in milliseconds.
pub const LOOK_EVERY_MS: u64 = 2_000;
/// Age from which an answer that holds is asked for again, in milliseconds, so that it does not expire meanwhile.
const REFRESH_MS: u64 = FRESH_MS / 2;
/// Age of a list of pods up to which evictions may follow from it, in milliseconds.
pub const EVICT_WITHIN_MS: u64 = 2_000;
/// Delay before the API server is asked again after it failed to answer, in milliseconds.
pub const RETRY_MS: u64 = 5_000;
/// Delay after a change of the node that met another one, in milliseconds.
const CONFLICT_MS: u64 = 500;
/// Interval between two looks at a machine that is deferred because it cannot be drained, in milliseconds.
const DEFERRED_LOOK_MS: u64 = 60_000;
/// Most machines that are looked at before their turn.
const PREFLIGHT_MAX: usize = 10;

/// The next questions, by the machine that each is about.
#[must_use]
pub fn all<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<(&'a MachineName, KubernetesOp)> {
    let Some(spec) = spec(snapshot) else { return Vec::new() };
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return Vec::new();
    }
    let in_flight: usize = snapshot.machines.iter().filter_map(look).map(evictions_in_flight).sum();
    let mut room = (spec.drain.evictions_at_once as usize).saturating_sub(in_flight);
    let drains = targets(snapshot).filter_map(|view| {
        let op = next(snapshot, view, room)?;
        if let KubernetesOp::Evict { pods } = &op {
            room = room.saturating_sub(pods.len());
        }
        Some((&view.row.name, op))
    });
    let drains: Vec<_> = drains.collect();
    let slots = safety::has_worker_slot(snapshot);
    let may_go = |view: &&MachineView<'_>| slots || view.row.spec.machine_type != MachineType::Worker;
    // Those looked at longest ago first: a machine with a lasting answer keeps no other from being looked at.
    let mut before: Vec<_> = targets(snapshot).filter(may_go).filter(|view| awaits_preflight(snapshot, view)).collect();
    before.sort_by_key(|view| look(view).and_then(|look| look.nodes.as_ref()).map(|seen| seen.at_mono_ms));
    let before = before.into_iter().take(PREFLIGHT_MAX);
    let before = before.filter_map(|view| Some((&view.row.name, look_before(snapshot, view)?)));
    let deferred = targets(snapshot).filter_map(|view| Some((&view.row.name, look_at_deferred(snapshot, view)?)));
    let waiting = targets(snapshot).filter_map(|view| Some((&view.row.name, look_at_labels(snapshot, view)?)));
    drains.into_iter().chain(before).chain(deferred.take(PREFLIGHT_MAX)).chain(waiting).collect()
}

fn evictions_in_flight(look: &KubernetesObservation) -> usize {
    match look.asked.as_ref().map(|asked| &asked.op) {
        Some(KubernetesOp::Evict { pods }) => pods.len(),
        _ => 0,
    }
}

/// Could it take a slot now, if it can be drained?
fn awaits_preflight(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    // What an earlier drain owes is asked about first.
    let owes = view.row.owed_cordon.is_some();
    let renews = view.update().is_some_and(|mine| mine.renewal.is_some());
    let disturbs = !owes && !renews && wants_slot(view) && disturbs(snapshot, view);
    disturbs && view.available() && safety::before_preflight(snapshot, view).is_ok()
}

/// May the API server be asked about this machine now?
pub(in crate::plan) fn free<'a>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'a>,
) -> Option<&'a KubernetesObservation> {
    look(view).filter(|look| free_at(look) <= snapshot.now.mono_ms)
}

/// When the API server may be asked about this machine again, in monotonic milliseconds.
pub(in crate::plan) fn free_at(look: &KubernetesObservation) -> u64 {
    let failure = look.failure.iter().map(|failure| failure.at_mono_ms.saturating_add(delay_ms(&failure.what)));
    // An answer that is so late counts as lost.
    let open = look.asked.iter().map(|asked| asked.at_mono_ms.saturating_add(SETTLE_MS));
    failure.chain(open).max().unwrap_or(0)
}

/// Delay after a failure.
pub(in crate::plan) fn delay_ms(failure: &KubernetesFailure) -> u64 {
    match failure {
        KubernetesFailure::Conflict(_) => CONFLICT_MS,
        KubernetesFailure::Busy { after, .. } => u64::try_from(after.as_millis()).unwrap_or(RETRY_MS),
        _ => RETRY_MS,
    }
}

/// The next question about a machine that waits for its turn.
fn look_before(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<KubernetesOp> {
    let look = free(snapshot, view)?;
    let Some(nodes) = fresh(snapshot, look.nodes.as_ref()) else { return Some(KubernetesOp::Nodes) };
    let node = identity::of(snapshot, view, nodes).ok()??;
    let old = look.load.is_none() || snapshot.now.mono_ms.saturating_sub(look.listed_mono_ms) >= FRESH_MS;
    (old && preflight(snapshot, view).is_err()).then(|| KubernetesOp::Load { node: node.object.name.clone() })
}

/// The next question about a machine that is deferred because it cannot be drained: an operator may say that one of its
/// pods is deleted, and means one that is there.
fn look_at_deferred(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<KubernetesOp> {
    let look = free(snapshot, view).filter(|_| is_undrainable(view) && view.available())?;
    if deferred_look_at(look) > snapshot.now.mono_ms {
        return None;
    }
    let Some(nodes) = fresh(snapshot, look.nodes.as_ref()) else { return Some(KubernetesOp::Nodes) };
    let node = identity::of(snapshot, view, nodes).ok()??;
    Some(KubernetesOp::Load { node: node.object.name.clone() })
}

/// The next question about a machine that waits for locks: labels of its node may keep it waiting, and may come and go.
fn look_at_labels(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<KubernetesOp> {
    let node = view.row.kubernetes_node.as_ref().filter(|_| waits_for_locks(snapshot, view))?;
    let look = free(snapshot, view)?;
    let age = look.nodes.as_ref().map(|seen| snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms));
    age.is_none_or(|age| age >= REFRESH_MS).then(|| KubernetesOp::Node { name: node.clone() })
}

/// Does it wait for an answer to its request, before its drain or between two of its items? What it is given back for
/// has questions of its own.
fn waits_for_locks(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let asks = spec(snapshot).is_some_and(|spec| spec.maintenance.is_some());
    let request = view.update().filter(|_| asks).and_then(|mine| mine.request);
    request.is_some_and(|request| {
        aim(snapshot, view).is_none() && locks::granted(snapshot, Some(view.row), &request).is_err()
    })
}

/// Is it deferred because its workloads can never be moved away as things are?
fn is_undrainable(view: &MachineView<'_>) -> bool {
    let mine = view.update().filter(|mine| view.row.slot.is_none() && mine.renewal.is_none());
    let deferral = mine.and_then(|mine| mine.deferral.as_ref());
    deferral.is_some_and(|deferral| deferral.cause == DeferralCause::Undrainable)
}

/// When a deferred machine is looked at next, in monotonic milliseconds.
fn deferred_look_at(look: &KubernetesObservation) -> u64 {
    let listed = look.load.as_ref().map(|_| look.listed_mono_ms);
    let failed = look.failure.as_ref().map(|failure| failure.at_mono_ms);
    listed.into_iter().chain(failed).max().map_or(0, |at| at.saturating_add(DEFERRED_LOOK_MS))
}

/// The next question about a machine in its turn. `room`: evictions that may be sent.
fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, room: usize) -> Option<KubernetesOp> {
    let aim = aim(snapshot, view)?;
    let look = free(snapshot, view)?;
    match (row(view)?, aim) {
        (KubernetesTarget::Absent, _) | (KubernetesTarget::Unknown, Goal::Restored) => None,
        (KubernetesTarget::Unknown, Goal::Drained) => {
            fresh(snapshot, look.nodes.as_ref()).is_none().then_some(KubernetesOp::Nodes)
        }
        (KubernetesTarget::Node { name, uid, was_unschedulable, cordoned }, aim) => {
            let seen = recorded(view, uid).filter(|seen| is_fresh(snapshot, seen));
            let Some(seen) = seen else { return Some(KubernetesOp::Node { name: name.clone() }) };
            let node = seen.what?;
            let op = match aim {
                // Seeded bug: evict pods from a node that takes new ones.
                Goal::Drained if !node.unschedulable && !seeded_bug("evict-before-cordon") => {
                    // Seeded bug: cordon against an operator who uncordoned the node.
                    if *cordoned && !seeded_bug("cordon-against-operator") {
                        None
                    } else {
                        cordon(snapshot, view, look, node)
                    }
                }
                Goal::Drained => drain(snapshot, view, look, node, room),
                Goal::Restored if *was_unschedulable => None,
                Goal::Restored => uncordon(view, node),
            };
            let old = snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms) >= REFRESH_MS;
            op.or_else(|| old.then(|| KubernetesOp::Node { name: name.clone() }))
        }
    }
}

/// Cordon the node, after a look at what is on it.
fn cordon(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &KubernetesObservation,
    node: &KubernetesNode,
) -> Option<KubernetesOp> {
    let spec = spec(snapshot)?;
    let age = snapshot.now.mono_ms.saturating_sub(look.listed_mono_ms);
    if look.load.is_none() || age >= FRESH_MS {
        return Some(KubernetesOp::Load { node: node.object.name.clone() });
    }
    let servers = control_plane::due(snapshot, view, look, LOOK_EVERY_MS);
    if !servers.is_empty() {
        return Some(KubernetesOp::ControlPlane { servers });
    }
    // Seeded bug: find out in the drain.
    if keeps_cordon(snapshot, view, look, spec).is_some() && !seeded_bug("cordon-undrainable") {
        return (age >= LOOK_EVERY_MS).then(|| KubernetesOp::Load { node: node.object.name.clone() });
    }
    let drained_for = drained_for(snapshot, &node.object.uid);
    Some(KubernetesOp::Cordon { node: node.object.clone(), drained_for, scale_down: autoscaler::noted(node) })
}

/// Evict what is due, look at the other control machines, or list the pods again.
fn drain(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &KubernetesObservation,
    node: &KubernetesNode,
    room: usize,
) -> Option<KubernetesOp> {
    let (spec, now) = (spec(snapshot)?, snapshot.now.mono_ms);
    let list = || Some(KubernetesOp::Load { node: node.object.name.clone() });
    let Some(seen) = &look.load else { return list() };
    let age = now.saturating_sub(look.listed_mono_ms);
    let since_eviction = look.load_number > look.evicted_number;
    let rules = DrainRules::of_machine(&spec.drain, view);
    let pods = eviction::next(look, &rules, room, now);
    let may_take = since_eviction && age < EVICT_WITHIN_MS;
    // First: evictions that are refused again and again would leave it no list that is young enough.
    if let Some(pod) = forcing::next(look, &rules, now).filter(|_| may_take) {
        return Some(KubernetesOp::Delete { pod });
    }
    if !pods.is_empty() && may_take {
        return Some(KubernetesOp::Evict { pods });
    }
    let left = what_is_left(snapshot, view, look, spec).is_some();
    let servers = if left { Vec::new() } else { control_plane::due(snapshot, view, look, LOOK_EVERY_MS) };
    if !servers.is_empty() {
        return Some(KubernetesOp::ControlPlane { servers });
    }
    let bound = look.unschedulable.get(&node.object.uid).map_or(u64::MAX, |cordoned| cordoned.saturating_add(BIND_MS));
    let due = if left || !pods.is_empty() {
        age >= LOOK_EVERY_MS || !since_eviction
    } else if is_listed_since_cordon(look, &node.object.uid, seen.at_mono_ms) {
        age >= REFRESH_MS
    } else {
        now >= bound
    };
    if due { list() } else { None }
}

/// Give the node back, if that is due.
fn uncordon(view: &MachineView<'_>, node: &KubernetesNode) -> Option<KubernetesOp> {
    let due = is_ours(node) && may_uncordon(view, node).is_ok();
    // Seeded bug: ignore that an operator keeps it cordoned.
    let schedulable = !node.keep_cordoned || seeded_bug("ignore-keep-cordoned");
    let scale_down = autoscaler::given_back(node);
    due.then(|| KubernetesOp::Uncordon { node: node.object.clone(), schedulable, scale_down })
}

/// When time alone brings the next question or another reason, monotonic milliseconds.
#[must_use]
pub fn wakes_at(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64> {
    spec(snapshot)?;
    let look = look(view)?;
    let before = (look.nodes.is_some() || look.failure.is_some()) && wants_slot(view);
    let waits = before || is_undrainable(view) || waits_for_locks(snapshot, view);
    if aim(snapshot, view).is_none() && !waits {
        return None;
    }
    let later = |at_mono_ms: u64, by_ms: u64| at_mono_ms.saturating_add(by_ms);
    let failure = look.failure.iter().map(|failure| later(failure.at_mono_ms, delay_ms(&failure.what)));
    let nodes = look.nodes.iter().flat_map(|seen| [REFRESH_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms)));
    let load = [LOOK_EVERY_MS, REFRESH_MS, FRESH_MS].map(|by_ms| later(look.listed_mono_ms, by_ms)).into_iter();
    let bound = look.unschedulable.values().map(|cordoned| later(*cordoned, BIND_MS));
    let pods = look.load.iter().flat_map(|seen| &seen.what.pods);
    let controls = look.control_plane.iter();
    let controls = controls.flat_map(|seen| [LOOK_EVERY_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms)));
    let of_pod =
        |pod| [eviction::retry_at(look, pod), forcing::retry_at(look, pod), eviction::stuck_at(look, pod)].into_iter();
    let of_pods = pods.flat_map(of_pod).flatten();
    let deferred = is_undrainable(view).then(|| deferred_look_at(look));
    let paused = look.deleted_mono_ms.map(|at| later(at, forcing::PAUSE_MS));
    let verdict = look.undrainable.iter().map(|verdict| later(verdict.since_mono_ms, UNDRAINABLE_MS));
    let told = look.told.values().map(|told| later(told.at_mono_ms, events::AGAIN_MS));
    let settled = unsettled_until(snapshot, view, look);
    let open = look.asked.iter().map(|asked| later(asked.at_mono_ms, SETTLE_MS));
    let moments = failure
        .chain(nodes)
        .chain(controls)
        .chain(load)
        .chain(bound)
        .chain(of_pods)
        .chain(deferred)
        .chain(paused)
        .chain(verdict)
        .chain(told)
        .chain(settled)
        .chain(open);
    moments.filter(|at| *at > snapshot.now.mono_ms).min()
}
