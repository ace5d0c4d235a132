//! The lists of the DaemonSets: when they are asked for, how long they count, and the evictions that follow from one.

use muster_proto::model::{Blocked, MachineName, Reason};

use super::{deadline_ms, is_free, is_under_way, pods, waits, wanted};
use crate::{
    facts::{
        DesiredState, RenewalObservation, Stage,
        kubernetes::{
            KubernetesOp,
            daemon_sets::{DaemonPod, DaemonSet, DaemonSets},
        },
    },
    plan::{
        drain::kubernetes::{self, FRESH_MS, SETTLE_MS, eviction, questions},
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
        update::{targets, wants_slot},
    },
};

/// Interval between two lists while a machine has its turn or is about to take it, in milliseconds.
const LOOK_EVERY_MS: u64 = questions::LOOK_EVERY_MS;
/// Interval between two lists otherwise, in milliseconds: each reads all pods of a namespace, and mostly all nodes.
const REST_EVERY_MS: u64 = 60_000;

pub(super) fn look<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a RenewalObservation> {
    snapshot.facts.live.renewals.get(&snapshot.cluster.name)
}

/// The last list, if it is young enough to decide by. It is as old as its question.
pub(super) fn listed<'a>(snapshot: &ClusterSnapshot<'a>) -> Result<&'a DaemonSets, Blocked> {
    within(snapshot, FRESH_MS)
}

/// The last list, if it is young enough to say by what is waited for.
pub(super) fn known<'a>(snapshot: &ClusterSnapshot<'a>) -> Result<&'a DaemonSets, Blocked> {
    let failed = look(snapshot).is_some_and(|look| look.failure.is_some());
    within(snapshot, if failed { FRESH_MS } else { REST_EVERY_MS + FRESH_MS })
}

fn within<'a>(snapshot: &ClusterSnapshot<'a>, age_ms: u64) -> Result<&'a DaemonSets, Blocked> {
    let look = look(snapshot);
    let seen = look.and_then(|look| look.seen.as_ref());
    if let Some(seen) = seen.filter(|seen| snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms) < age_ms) {
        return Ok(&seen.what);
    }
    Err(match look.and_then(|look| look.failure.as_ref()) {
        Some(failure) => kubernetes::failed(&failure.what),
        None => {
            blocked(Reason::KubernetesUnavailable, "the DaemonSets are being listed", "the API server has answered")
        }
    })
}

/// Has this pod, which is Ready, been so for its set's minReadySeconds, and does its controller agree? Measured by the
/// coordinator's own clock: the node may have another one.
///
/// # Errors
/// What is missing.
pub(super) fn is_available(snapshot: &ClusterSnapshot<'_>, set: &DaemonSet, pod: &DaemonPod) -> Result<(), Blocked> {
    let (name, node) = (eviction::name_of(&pod.pod.object), &pod.node);
    let since = look(snapshot).and_then(|look| look.ready.get(&pod.pod.object.uid));
    let ready_ms = since.map_or(0, |since| snapshot.now.mono_ms.saturating_sub(*since));
    let seconds = set.min_ready_s;
    if ready_ms < seconds.saturating_mul(1_000) {
        let message = format!("the new pod {name} on {node} has been Ready for {} s", ready_ms / 1_000);
        return Err(waits(
            message,
            format!("it has been so for {seconds} s (minReadySeconds of DaemonSet {})", set.name),
        ));
    }
    let ready = set.pods.iter().filter(|pod| pod.ready && pod.pod.deletion_s.is_none()).count();
    if set.available < i64::try_from(ready).unwrap_or(i64::MAX) {
        let message = format!(
            "DaemonSet {} counts {} of {ready} Ready pods as available, after the renewal of that on {node}",
            set.name, set.available
        );
        return Err(waits(message, "all are (`kubectl get daemonsets`, AVAILABLE)"));
    }
    Ok(())
}

/// The machine whose pods are being renewed: its locks were inactive, and it has not given its request back.
fn at_work<'s, 'a>(snapshot: &'s ClusterSnapshot<'a>) -> Option<&'s MachineView<'a>> {
    targets(snapshot).find(|view| {
        let begun = view.row.stages.get(&Stage::PodsRenewed);
        view.row.slot.is_some() && begun.is_some_and(|stage| stage.finished_at_ms.is_none())
    })
}

/// Is a machine about to take its turn?
fn is_next_due(snapshot: &ClusterSnapshot<'_>) -> bool {
    let goes = snapshot.update().is_some_and(|update| update.desired == DesiredState::Go);
    let renews = |view: &&MachineView<'_>| view.update().is_some_and(|mine| mine.renewal.is_some());
    let mut waiting = targets(snapshot).filter(|view| renews(view) && wants_slot(view) && view.available());
    goes && is_free(snapshot) && waiting.any(|view| safety::before_preflight(snapshot, view).is_ok())
}

/// Is the pass about to end, and the list from before the last machine's end?
fn is_last_due(snapshot: &ClusterSnapshot<'_>, look: &RenewalObservation) -> bool {
    let (Some(update), Some(seen)) = (snapshot.update(), &look.seen) else { return false };
    let age_ms = snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms);
    let moved_ms = snapshot.now.wall_ms.saturating_sub(update.moved_at_ms);
    targets(snapshot).next().is_none() && age_ms > moved_ms
}

/// Is a machine about to take its turn, once the DaemonSets are listed again?
#[must_use]
pub fn is_undecided(snapshot: &ClusterSnapshot<'_>) -> bool {
    listed(snapshot).is_err() && is_next_due(snapshot)
}

/// The next list of the DaemonSets. One at a time. In a machine's turn its own node is enough.
#[must_use]
pub fn question(snapshot: &ClusterSnapshot<'_>) -> Option<KubernetesOp> {
    snapshot.update().filter(|update| is_under_way(update))?;
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    let due = look(snapshot).is_none_or(|look| asks_at(snapshot, look) <= snapshot.now.mono_ms);
    if !due {
        return None;
    }
    let seen = look(snapshot).and_then(|look| look.seen.as_ref());
    let node = at_work(snapshot).zip(seen).and_then(|(view, seen)| pods::node_of(snapshot, view, &seen.what).ok());
    let node = node.filter(|node| !node.is_empty()).map(str::to_owned);
    Some(KubernetesOp::DaemonSets { wanted: wanted(snapshot.spec), node })
}

/// When the DaemonSets are listed next, in monotonic milliseconds.
fn asks_at(snapshot: &ClusterSnapshot<'_>, look: &RenewalObservation) -> u64 {
    let failure = look.failure.iter();
    let failure = failure.map(|failure| failure.at_mono_ms.saturating_add(questions::delay_ms(&failure.what)));
    // An answer that is so late counts as lost.
    let open = look.asked.iter().map(|asked| asked.at_mono_ms.saturating_add(SETTLE_MS));
    let soonest = look.seen.iter().map(|seen| seen.at_mono_ms.saturating_add(LOOK_EVERY_MS));
    let soonest = soonest.chain(failure).chain(open).max().unwrap_or(0);
    let rested = look.seen.as_ref().map_or(0, |seen| seen.at_mono_ms.saturating_add(REST_EVERY_MS));
    let often = || at_work(snapshot).is_some() || is_next_due(snapshot) || is_last_due(snapshot, look);
    if rested <= soonest || often() { soonest } else { rested }
}

/// The evictions to send now. The recorded pod alone is evicted, by its UID, after a list of a moment ago that was
/// asked for after the last eviction was answered.
#[must_use]
pub fn evictions<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<(&'a MachineName, KubernetesOp)> {
    let go = snapshot.update().is_some_and(|update| is_under_way(update) && update.desired == DesiredState::Go);
    let (Some(list), Ok(found), true) = (look(snapshot), listed(snapshot), go) else { return Vec::new() };
    if snapshot.now.mono_ms.saturating_sub(list.listed_mono_ms) >= questions::EVICT_WITHIN_MS {
        return Vec::new();
    }
    let due = targets(snapshot).filter_map(|view| {
        let evicted = view.update()?.renewal.as_ref()?.evicted.as_ref().filter(|_| view.row.slot.is_some())?;
        let node = questions::free(snapshot, view).filter(|node| list.number > node.evicted_number)?;
        let mut pods = found.sets.iter().flat_map(|set| set.pods.iter().map(move |pod| (set, pod)));
        let (set, old) = pods.find(|(_, pod)| pod.pod.object == evicted.pod)?;
        let rests = eviction::retry_at(node, &old.pod).is_some_and(|at| at > snapshot.now.mono_ms);
        let leaves = pods::is_outdated(set, old) && old.pod.deletion_s.is_none() && !rests;
        let may = leaves
            && pods::may_leave(snapshot, view, found, (set, old)).is_ok()
            && safety::locks_granted(snapshot, view).is_ok();
        may.then(|| (&view.row.name, KubernetesOp::Evict { pods: vec![evicted.pod.clone()] }))
    });
    due.collect()
}

/// The next time, Unix milliseconds, at which time alone changes something about the renewal.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let update = snapshot.update().filter(|update| is_under_way(update))?;
    let now = snapshot.now;
    let expires = |look: &RenewalObservation| Some(look.seen.as_ref()?.at_mono_ms.saturating_add(FRESH_MS));
    let list = look(snapshot).into_iter().flat_map(|look| [Some(asks_at(snapshot, look)), expires(look)]).flatten();
    let of_pods = targets(snapshot).filter_map(kubernetes::look).flat_map(|look| {
        let sent = look.evicted_at_mono_ms.map(|at| at.saturating_add(SETTLE_MS));
        let retries = look.refused.values().map(|refused| refused.at_mono_ms.saturating_add(eviction::RETRY_MS));
        retries.chain(sent).chain([questions::free_at(look)])
    });
    let next = list.chain(of_pods).filter(|at| *at > now.mono_ms).min();
    let next_ms = next.map(|at| now.wall_ms.saturating_add(at - now.mono_ms));
    next_ms.into_iter().chain(deadline_ms(snapshot, update)).filter(|at_ms| *at_ms > now.wall_ms).min()
}
