//! The renewal of pods of `OnDelete` DaemonSets, after the machines and the hooks after them: one node of the cluster
//! at a time, each in a turn of its own with its request and locks, without a drain. Level-triggered: what is due
//! follows from the last list of the DaemonSets and from the recorded eviction.

use muster_proto::model::{Blocked, ClusterSpec, MachineName, OnDeleteDaemonSets, Reason, RunnerKind};

use super::{ClusterStep, MachineStep, Step, cluster::halt, stages, targets, turn::Participant};
use crate::{
    facts::{
        ClusterStage, DesiredState, RenewalObservation, RenewedPod, StageRow, UpdateKind, UpdateRow,
        kubernetes::{
            KubernetesOp,
            daemon_sets::{DaemonPod, DaemonSet, DaemonSets},
        },
    },
    plan::{
        drain::kubernetes::{self, FRESH_MS, SETTLE_MS, eviction, identity, questions},
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Interval between two lists of the DaemonSets, in milliseconds.
const LOOK_EVERY_MS: u64 = questions::LOOK_EVERY_MS;

/// A step of the renewal on one machine's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewalStep {
    /// The machine, done with the update, takes part again.
    Join,
    /// Its locks are inactive.
    Begin,
    /// This pod is evicted next.
    Evict(RenewedPod),
    /// The evicted pod's successor is Ready.
    Renewed,
}

/// The DaemonSets whose pods an update to this spec renews.
#[must_use]
pub fn wanted(spec: &ClusterSpec) -> Vec<OnDeleteDaemonSets> {
    let Some(kubernetes) = &spec.kubernetes else { return Vec::new() };
    let is_vrouter = spec.machine_types.values().flatten().any(|item| item.runner == RunnerKind::VrouterRestart);
    let vrouter = is_vrouter.then(OnDeleteDaemonSets::of_vrouter);
    kubernetes.on_delete.iter().cloned().chain(vrouter).collect()
}

/// Does this update renew pods?
#[must_use]
pub fn has(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> bool {
    update.kind == UpdateKind::Update && !wanted(snapshot.spec).is_empty()
}

fn stage(update: &UpdateRow) -> Option<&StageRow> {
    update.stages.get(&ClusterStage::PodsRenewed)
}

/// Has this update begun to renew pods, and not ended that?
#[must_use]
pub fn is_under_way(update: &UpdateRow) -> bool {
    stage(update).is_some_and(|stage| stage.finished_at_ms.is_none())
}

fn look<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a RenewalObservation> {
    snapshot.facts.live.renewals.get(&snapshot.cluster.name)
}

fn waits(message: impl Into<String>, clears_when: impl Into<String>) -> Blocked {
    blocked(Reason::KubernetesPodRenewal, message, clears_when)
}

/// The last list, if it is young enough to decide by.
fn listed<'a>(snapshot: &ClusterSnapshot<'a>) -> Result<&'a DaemonSets, Blocked> {
    let look = look(snapshot);
    let fresh = |listed_mono_ms: u64| snapshot.now.mono_ms.saturating_sub(listed_mono_ms) < FRESH_MS;
    let seen = look.filter(|look| fresh(look.listed_mono_ms)).and_then(|look| look.seen.as_ref());
    if let Some(seen) = seen {
        return Ok(&seen.what);
    }
    Err(match look.and_then(|look| look.failure.as_ref()) {
        Some(failure) => kubernetes::failed(&failure.what),
        None => {
            blocked(Reason::KubernetesUnavailable, "the DaemonSets are being listed", "the API server has answered")
        }
    })
}

/// Pods of an older template on this node, each with its DaemonSet.
fn outdated<'d>(found: &'d DaemonSets, node: &'d str) -> impl Iterator<Item = (&'d DaemonSet, &'d DaemonPod)> {
    let of_node = found.sets.iter().flat_map(|set| set.pods.iter().map(move |pod| (set, pod)));
    of_node.filter(move |(set, pod)| pod.node == node && is_outdated(set, pod))
}

fn is_outdated(set: &DaemonSet, pod: &DaemonPod) -> bool {
    !pod.pod.finished && set.newest.as_ref().is_some_and(|newest| pod.hash != *newest)
}

/// The name of the machine's node.
fn node_of<'d>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    found: &'d DaemonSets,
) -> Result<&'d str, Blocked> {
    let node = identity::of(snapshot, view, &found.nodes)?;
    Ok(node.map_or("", |node| node.object.name.as_str()))
}

/// The pod on the machine's node that is renewed next. None: no pod there is of an older template.
///
/// # Errors
/// Why that is unknown, or the pod that terminates.
pub fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<Option<RenewedPod>, Blocked> {
    let found = listed(snapshot)?;
    let node = node_of(snapshot, view, found)?;
    let Some((set, pod)) = outdated(found, node).next() else { return Ok(None) };
    if pod.pod.deletion_s.is_some() {
        let name = eviction::name_of(&pod.pod.object);
        return Err(waits(format!("pod {name} on {node} terminates, and Muster did not evict it"), "it has ended"));
    }
    let hash = set.newest.clone().unwrap_or_default();
    Ok(Some(RenewedPod { pod: pod.pod.object.clone(), daemon_set: set.name.clone(), hash }))
}

/// Can the pods on the machine's node be evicted at all? Asked before its turn.
///
/// # Errors
/// The pod, and the budget that never allows it; or why that is unknown.
pub fn preflight(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let found = listed(snapshot)?;
    let node = node_of(snapshot, view, found)?;
    let Some(why) = outdated(found, node).find_map(|(_, pod)| never_leaves(found, pod)) else { return Ok(()) };
    let clears_when = format!("an operator has changed that budget; then `musterctl retry {}`", view.row.name);
    Err(blocked(Reason::KubernetesUndrainable, format!("Error: {why}"), clears_when))
}

/// Why a pod of a DaemonSet can never be evicted as things are.
#[must_use]
pub fn never_leaves(found: &DaemonSets, pod: &DaemonPod) -> Option<String> {
    eviction::never_evicted(&found.budgets, &pod.pod)
}

/// Is the recorded eviction over: is its pod gone, and its successor Ready and of the wanted template?
///
/// # Errors
/// What it waits for.
pub fn renewed(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, evicted: &RenewedPod) -> Result<(), Blocked> {
    let found = listed(snapshot)?;
    let node = node_of(snapshot, view, found)?;
    let Some(set) = found.sets.iter().find(|set| set.name == evicted.daemon_set) else { return Ok(()) };
    let name = eviction::name_of(&evicted.pod);
    if let Some(old) = set.pods.iter().find(|pod| pod.pod.object.uid == evicted.pod.uid) {
        // Its template came back.
        let is_newest = set.newest.as_ref() == Some(&old.hash);
        if is_newest && is_left_alone(snapshot, view, evicted) {
            return Ok(());
        }
        return Err(old_pod(found, view, old));
    }
    let mut successors = set.pods.iter().filter(|pod| pod.node == node && pod.pod.deletion_s.is_none());
    let Some(successor) = successors.find(|pod| !pod.pod.finished) else {
        let message = format!("pod {name} on {node} is gone; the next one of DaemonSet {} is awaited", set.name);
        return Err(waits(message, format!("its controller has made it (`kubectl describe node {node}`)")));
    };
    let is_wanted = successor.hash == evicted.hash || set.newest.as_ref() == Some(&successor.hash);
    let name = eviction::name_of(&successor.pod.object);
    if !is_wanted {
        let message = format!("pod {name} on {node} came with template {}, not {}", successor.hash, evicted.hash);
        return Err(waits(message, format!("it is of the newest template of DaemonSet {}", set.name)));
    }
    if !successor.ready {
        let clears_when =
            format!("it is (`kubectl describe pod -n {} {}`)", evicted.pod.namespace, successor.pod.object.name);
        return Err(waits(format!("the new pod {name} on {node} is not Ready"), clears_when));
    }
    Ok(())
}

/// What the old pod waits for.
fn old_pod(found: &DaemonSets, view: &MachineView<'_>, old: &DaemonPod) -> Blocked {
    let (name, node) = (eviction::name_of(&old.pod.object), &old.node);
    if old.pod.deletion_s.is_some() {
        return waits(format!("pod {name} on {node} was evicted, and terminates"), "it has ended");
    }
    let refused = kubernetes::look(view).and_then(|look| look.refused.get(&old.pod.object.uid));
    match refused {
        Some(refused) => {
            let why = eviction::refusal(&found.budgets, &old.pod, &refused.what);
            let clears_when = "the API server accepts the eviction; it is tried again every 5 s";
            waits(format!("Error: pod {name} cannot be evicted: {why}"), clears_when)
        }
        None => waits(format!("pod {name} on {node} is about to be evicted"), "the API server has accepted that"),
    }
}

/// Is the pod still there, and can no eviction of it be under way any more? An earlier coordinator may have sent one.
fn is_left_alone(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, evicted: &RenewedPod) -> bool {
    let (Ok(found), Some(list)) = (listed(snapshot), look(snapshot)) else { return false };
    let mut pods = found.sets.iter().flat_map(|set| &set.pods);
    let stays = pods.any(|pod| pod.pod.object.uid == evicted.pod.uid && pod.pod.deletion_s.is_none());
    let node = kubernetes::look(view);
    let sent = node.and_then(|look| look.evicted_at_mono_ms).unwrap_or(0).max(snapshot.facts.live.started_mono_ms);
    let open = node.is_some_and(|look| look.asked.is_some() || look.evicted_number > list.number);
    stays && !open && snapshot.now.mono_ms >= sent.saturating_add(SETTLE_MS)
}

/// Does the machine give its request back: is nothing left to renew, or was it refused? An eviction that was recorded
/// comes to its end first, or to its deadline.
pub(super) fn gives_back(part: Participant<'_, '_>, evicted: Option<&RenewedPod>) -> bool {
    let Participant { snapshot, update, view, mine } = part;
    let aborted = update.desired == DesiredState::Abort;
    match evicted {
        None => aborted || mine.deferral.is_some() || next(snapshot, view) == Ok(None),
        Some(evicted) => {
            let late = stages::late_at_ms(part).is_some_and(|at_ms| snapshot.now.wall_ms >= at_ms);
            aborted && (late || is_left_alone(snapshot, view, evicted))
        }
    }
}

/// The machines that take part in the renewal from now on: those done with the update whose nodes have such a pod.
pub(super) fn joining(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Vec<Step> {
    let is_free = update.desired == DesiredState::Go && targets(snapshot).next().is_none();
    if !is_free || !is_under_way(update) || safety::may_start_hooks(snapshot).is_err() {
        return Vec::new();
    }
    let Ok(found) = listed(snapshot) else { return Vec::new() };
    // Else a machine would have another turn when the newest template is known.
    if found.sets.iter().any(|set| set.newest.is_none()) {
        return Vec::new();
    }
    let members = snapshot.machines.iter().filter(|view| is_member(snapshot, view));
    let due =
        members.filter(|view| node_of(snapshot, view, found).is_ok_and(|node| outdated(found, node).next().is_some()));
    let join =
        |name: &MachineName| Step::Machine { machine: name.clone(), step: MachineStep::Renew(RenewalStep::Join) };
    due.map(|view| join(&view.row.name)).collect()
}

fn is_member(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    snapshot.joined(view) && view.ready_once() && !view.row.revoked && view.row.removal.is_none()
}

/// Are all pods of the DaemonSets of their newest templates?
///
/// # Errors
/// Which are not, and what renews them.
pub fn all_renewed(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    let found = listed(snapshot)?;
    for set in &found.sets {
        let name = &set.name;
        if set.newest.is_none() {
            let message = format!("the controller of DaemonSet {name} has not seen its newest template");
            return Err(waits(message, "its observedGeneration is its generation"));
        }
        if let Some(pod) = set.pods.iter().find(|pod| is_outdated(set, pod)) {
            let object = &pod.pod.object;
            let message = format!(
                "pod {} of DaemonSet {name} is of an older template, and its node {} is of no machine of this update",
                eviction::name_of(object),
                pod.node
            );
            let by_hand = format!("`kubectl delete pod -n {} {}` has renewed it", object.namespace, object.name);
            return Err(waits(message, by_hand));
        }
        if set.updated != set.current {
            let message = format!("DaemonSet {name}: {} of {} pods are up to date", set.updated, set.current);
            return Err(waits(message, "all are (`kubectl get daemonsets`, UP-TO-DATE)"));
        }
    }
    Ok(())
}

/// The next step of the cluster's stage.
pub(super) fn step(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<ClusterStep> {
    let stage_row = stage(update);
    if stage_row.is_none() {
        let may = update.desired == DesiredState::Go && safety::may_start_hooks(snapshot).is_ok();
        return may.then_some(ClusterStep::Begin(ClusterStage::PodsRenewed));
    }
    if targets(snapshot).next().is_some() || !joining(snapshot, update).is_empty() {
        return None;
    }
    if all_renewed(snapshot).is_ok() {
        return Some(ClusterStep::End(ClusterStage::PodsRenewed));
    }
    let late = deadline_ms(snapshot, update).is_some_and(|at_ms| snapshot.now.wall_ms >= at_ms);
    let outcome = snapshot.spec.update_deadlines.kubernetes_drain.outcome;
    (late && update.desired == DesiredState::Go).then(|| halt(update.kind, outcome, ClusterStage::PodsRenewed))
}

/// Deadline of the wait for the DaemonSets while no machine has a turn, Unix milliseconds. It restarts with each
/// machine that ends, and with this coordinator, which has to look first.
fn deadline_ms(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<u64> {
    let begun_ms = stage(update).filter(|_| is_under_way(update))?.started_at_ms;
    let begun_ms = begun_ms.max(update.moved_at_ms).max(update.resumed_at_ms);
    let begun_ms = begun_ms.max(snapshot.facts.live.started_wall_ms);
    Some(begun_ms.saturating_add(snapshot.spec.update_deadlines.kubernetes_drain.after_ms))
}

/// Why the cluster's stage does not end. None: a machine has a turn in it, or it is not under way.
#[must_use]
pub fn of_cluster(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<Blocked> {
    let alone = is_under_way(update) && targets(snapshot).next().is_none();
    if alone { all_renewed(snapshot).err() } else { None }
}

/// The next list of the DaemonSets. One at a time.
#[must_use]
pub fn question(snapshot: &ClusterSnapshot<'_>) -> Option<KubernetesOp> {
    snapshot.update().filter(|update| is_under_way(update))?;
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    let due = look(snapshot).is_none_or(|look| asks_at(look) <= snapshot.now.mono_ms);
    due.then(|| KubernetesOp::DaemonSets { wanted: wanted(snapshot.spec) })
}

/// When the DaemonSets are listed next, in monotonic milliseconds.
fn asks_at(look: &RenewalObservation) -> u64 {
    let seen = look.seen.iter().map(|seen| seen.at_mono_ms.saturating_add(LOOK_EVERY_MS));
    let failure = look.failure.iter();
    let failure = failure.map(|failure| failure.at_mono_ms.saturating_add(questions::delay_ms(&failure.what)));
    // An answer that is so late counts as lost.
    let open = look.asked.iter().map(|asked| asked.at_mono_ms.saturating_add(SETTLE_MS));
    seen.chain(failure).chain(open).max().unwrap_or(0)
}

/// The evictions to send now. The recorded pod alone is evicted, by its UID, after a list of a moment ago that was
/// asked for after the last eviction was answered.
#[must_use]
pub fn evictions<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<(&'a MachineName, KubernetesOp)> {
    let go = snapshot.update().is_some_and(|update| is_under_way(update) && update.desired == DesiredState::Go);
    let (Some(list), true) = (look(snapshot), go) else { return Vec::new() };
    let age = snapshot.now.mono_ms.saturating_sub(list.listed_mono_ms);
    let Some(seen) = list.seen.as_ref().filter(|_| age < questions::EVICT_WITHIN_MS) else { return Vec::new() };
    let due = targets(snapshot).filter_map(|view| {
        let evicted = view.update()?.renewal.as_ref()?.evicted.as_ref().filter(|_| view.row.slot.is_some())?;
        let node = questions::free(snapshot, view).filter(|node| list.number > node.evicted_number)?;
        let mut pods = seen.what.sets.iter().flat_map(|set| set.pods.iter().map(move |pod| (set, pod)));
        let (set, old) = pods.find(|(_, pod)| pod.pod.object == evicted.pod)?;
        let rests = eviction::retry_at(node, &old.pod).is_some_and(|at| at > snapshot.now.mono_ms);
        let leaves = is_outdated(set, old) && old.pod.deletion_s.is_none() && !rests;
        let may = leaves && safety::locks_granted(snapshot, view).is_ok();
        may.then(|| (&view.row.name, KubernetesOp::Evict { pods: vec![evicted.pod.clone()] }))
    });
    due.collect()
}

/// The next time, Unix milliseconds, at which time alone changes something about the renewal.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let update = snapshot.update().filter(|update| is_under_way(update))?;
    let now = snapshot.now;
    let list =
        look(snapshot).into_iter().flat_map(|look| [asks_at(look), look.listed_mono_ms.saturating_add(FRESH_MS)]);
    let of_pods = targets(snapshot).filter_map(kubernetes::look).flat_map(|look| {
        let sent = look.evicted_at_mono_ms.map(|at| at.saturating_add(SETTLE_MS));
        let retries = look.refused.values().map(|refused| refused.at_mono_ms.saturating_add(eviction::RETRY_MS));
        retries.chain(sent).chain([questions::free_at(look)])
    });
    let next = list.chain(of_pods).filter(|at| *at > now.mono_ms).min();
    let next_ms = next.map(|at| now.wall_ms.saturating_add(at - now.mono_ms));
    next_ms.into_iter().chain(deadline_ms(snapshot, update)).filter(|at_ms| *at_ms > now.wall_ms).min()
}
