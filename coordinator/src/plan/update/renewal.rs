//! The renewal of pods of `OnDelete` DaemonSets, after the machines and the hooks after them: one node of the cluster
//! at a time, each in a turn of its own with its request and locks, without a drain. Level-triggered: what is due
//! follows from the last list of the DaemonSets and from the recorded eviction.

mod looks;
mod pods;

use muster_proto::model::{Blocked, ClusterSpec, MachineName, OnDeleteDaemonSets, Reason, RunnerKind};

pub use looks::{evictions, is_undecided, question, wakes_at_ms};
pub use pods::never_leaves;

use super::{ClusterStep, MachineStep, Step, cluster::halt, is_open, stages, targets, turn::Participant, wants_slot};
use crate::{
    facts::{
        ClusterStage, DesiredState, RenewedPod, Stage, StageRow, UpdateKind, UpdateRow,
        kubernetes::daemon_sets::{DaemonPod, DaemonSet, DaemonSets},
    },
    plan::{
        drain::kubernetes::{self, SETTLE_MS, eviction},
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};
use looks::{known, listed, look};
use pods::{is_outdated, may_leave, node_of, outdated};

/// Changes of a set's newest template within one pass from which on the update pauses. One may belong to the change of
/// applications that the pass follows.
const CHANGES_MAX: u32 = 2;

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

/// What ends a wait for DaemonSets that do not come.
const OR_ABORT: &str = "or the update is aborted (`musterctl abort`): its machines are done";

fn waits(message: impl Into<String>, clears_when: impl Into<String>) -> Blocked {
    blocked(Reason::KubernetesPodRenewal, message, clears_when)
}

/// The pod on the machine's node that is renewed next. None: no pod there is of an older template.
///
/// # Errors
/// Why that is unknown, or why it may not leave now.
pub fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<Option<RenewedPod>, Blocked> {
    let found = listed(snapshot)?;
    let node = node_of(snapshot, view, found)?;
    let Some((set, pod)) = outdated(found, node).next() else { return Ok(None) };
    if pod.pod.deletion_s.is_some() {
        let name = eviction::name_of(&pod.pod.object);
        return Err(waits(format!("pod {name} on {node} terminates, and Muster did not evict it"), "it has ended"));
    }
    may_leave(snapshot, view, found, (set, pod))?;
    let hash = set.newest.clone().unwrap_or_default();
    Ok(Some(RenewedPod { pod: pod.pod.object.clone(), daemon_set: set.name.clone(), hash }))
}

/// Can the pods on the machine's node be evicted at all, and may the first of them leave now? Asked before its turn.
///
/// # Errors
/// [`Reason::KubernetesUndrainable`] with the budget or taint that never allows it, the pod or node that is not Ready,
/// or why that is unknown.
pub fn preflight(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    may_begin(snapshot, view, listed(snapshot)?)
}

fn may_begin(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, found: &DaemonSets) -> Result<(), Blocked> {
    let node = node_of(snapshot, view, found)?;
    let never = outdated(found, node).find_map(|(set, pod)| never_leaves(found, pod).or_else(|| pods::lost(set, pod)));
    if let Some(why) = never {
        let clears_when = format!("an operator has changed that; then `musterctl retry {}`", view.row.name);
        return Err(blocked(Reason::KubernetesUndrainable, format!("Error: {why}"), clears_when));
    }
    outdated(found, node).next().map_or(Ok(()), |next| may_leave(snapshot, view, found, next))
}

/// Is the recorded eviction over: is its pod gone, and its successor Ready and of the wanted template?
///
/// # Errors
/// What it waits for.
pub fn renewed(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, evicted: &RenewedPod) -> Result<(), Blocked> {
    let found = listed(snapshot)?;
    let node = node_of(snapshot, view, found)?;
    let name = eviction::name_of(&evicted.pod);
    let Some(set) = found.sets.iter().find(|set| set.name == evicted.daemon_set) else {
        return Err(is_gone(&evicted.daemon_set));
    };
    if let Some(old) = set.pods.iter().find(|pod| pod.pod.object.uid == evicted.pod.uid) {
        // Its template came back.
        let is_newest = set.newest.as_ref() == Some(&old.hash);
        if is_newest && is_left_alone(snapshot, view, evicted) {
            return Ok(());
        }
        return Err(old_pod(snapshot, view, found, (set, old)));
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
    looks::is_available(snapshot, set, successor)
}

/// A DaemonSet that was there in this pass.
fn is_gone(set: &str) -> Blocked {
    let message = format!("DaemonSet {set} is gone, or is not as spec.kubernetes.onDelete says any more");
    waits(message, format!("it is there again (`kubectl get daemonsets`), {OR_ABORT}"))
}

/// What the old pod waits for.
fn old_pod(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    found: &DaemonSets,
    (set, old): (&DaemonSet, &DaemonPod),
) -> Blocked {
    let (name, node) = (eviction::name_of(&old.pod.object), &old.node);
    if old.pod.deletion_s.is_some() {
        return waits(format!("pod {name} on {node} was evicted, and terminates"), "it has ended");
    }
    if let Err(blocked) = may_leave(snapshot, view, found, (set, old)) {
        return blocked;
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

/// May this machine take part?
#[must_use]
pub fn is_member(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    snapshot.joined(view) && view.ready_once() && !view.row.revoked && view.row.removal.is_none()
}

/// Are all pods of the DaemonSets of their newest templates?
///
/// # Errors
/// Which are not, and what renews them.
fn all_renewed(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, found: &DaemonSets) -> Result<(), Blocked> {
    for set in &found.sets {
        let name = &set.name;
        if set.newest.is_none() {
            let message = format!("the controller of DaemonSet {name} has not seen its newest template");
            return Err(waits(message, "its observedGeneration is its generation"));
        }
        if let Some(pod) = set.pods.iter().find(|pod| is_outdated(set, pod)) {
            return Err(left_over(snapshot, found, set, pod));
        }
        if set.updated != set.current {
            let message = format!("DaemonSet {name}: {} of {} pods are up to date", set.updated, set.current);
            return Err(waits(message, "all are (`kubectl get daemonsets`, UP-TO-DATE)"));
        }
    }
    let gone = update.renewed_sets.keys().find(|name| found.sets.iter().all(|set| set.name != **name));
    if let Some(name) = gone {
        return Err(is_gone(name));
    }
    if let Some(wanted) = found.unmatched.first() {
        let clears_when = format!("there is one (`kubectl get daemonsets -n {}`), {OR_ABORT}", wanted.namespace);
        return Err(waits(unmatched(wanted), clears_when));
    }
    Ok(())
}

/// A selector without a DaemonSet, in one sentence.
#[must_use]
pub fn unmatched(wanted: &OnDeleteDaemonSets) -> String {
    let labels = wanted.match_labels.iter().map(|(name, value)| format!("label {name}={value}"));
    let name = Some(format!("name {}*", wanted.name_prefix)).filter(|_| !wanted.name_prefix.is_empty());
    let place = [format!("namespace {}", wanted.namespace)].into_iter();
    let said: Vec<String> = place.chain(name).chain(labels).collect();
    format!("no DaemonSet of update strategy OnDelete is as spec.kubernetes.onDelete says ({})", said.join(", "))
}

/// A pod of an older template that no machine's turn renews.
fn left_over(snapshot: &ClusterSnapshot<'_>, found: &DaemonSets, set: &DaemonSet, pod: &DaemonPod) -> Blocked {
    let (object, node) = (&pod.pod.object, &pod.node);
    let message = format!("pod {} of DaemonSet {} is of an older template", eviction::name_of(object), set.name);
    // A deletion by hand would go around the locks of that machine.
    if let Some((machine, unclear)) = pods::unclear_owner(snapshot, found, node) {
        let why = unclear.message.trim_start_matches("Error: ");
        return Blocked { message: format!("{message}, and its node may be {machine}'s: {why}"), ..unclear };
    }
    let by_hand = format!("`kubectl delete pod -n {} {}` has renewed it", object.namespace, object.name);
    waits(format!("{message}, and its node {node} is of no machine of this update"), by_hand)
}

/// A DaemonSet whose template changes again and again: each machine would have one turn after another.
#[must_use]
pub fn unsteady(update: &UpdateRow) -> Option<Blocked> {
    let (name, known) = update.renewed_sets.iter().find(|(_, known)| known.changes >= CHANGES_MAX)?;
    let message =
        format!("the template of DaemonSet {name} changed {} times while its pods are renewed", known.changes);
    Some(waits(message, "it stays as it is; then `musterctl resume`"))
}

/// The next step of the cluster's stage.
pub(super) fn step(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<ClusterStep> {
    let goes = update.desired == DesiredState::Go;
    if stage(update).is_none() {
        let may = goes && safety::may_start_hooks(snapshot).is_ok();
        return may.then_some(ClusterStep::Begin(ClusterStage::PodsRenewed));
    }
    if goes && unsteady(update).is_some() {
        return Some(ClusterStep::PauseUnsteady);
    }
    let alone = targets(snapshot).next().is_none();
    if !joining(snapshot, update).is_empty() || (!alone && !lacks_turn(snapshot)) {
        return None;
    }
    if alone && listed(snapshot).is_ok_and(|found| all_renewed(snapshot, update, found).is_ok()) {
        return Some(ClusterStep::End(ClusterStage::PodsRenewed));
    }
    let late = deadline_ms(snapshot, update).is_some_and(|at_ms| snapshot.now.wall_ms >= at_ms);
    let outcome = snapshot.spec.update_deadlines.kubernetes_drain.outcome;
    (late && goes).then(|| halt(update.kind, outcome, ClusterStage::PodsRenewed))
}

/// Has no machine of the cluster its turn?
fn is_free(snapshot: &ClusterSnapshot<'_>) -> bool {
    snapshot.machines.iter().all(|view| view.row.slot.is_none())
}

/// Does a machine of the pass wait for its turn, and can none of them take it as things are?
fn lacks_turn(snapshot: &ClusterSnapshot<'_>) -> bool {
    let gets_slot = |view: &&MachineView<'_>| view.available() && safety::may_take_slot(snapshot, view).is_ok();
    // The cluster's own locks have their own deadline.
    let mut waiting = targets(snapshot).filter(|view| wants_slot(view)).peekable();
    is_free(snapshot) && waiting.peek().is_some() && is_open(snapshot).is_ok() && !waiting.any(|view| gets_slot(&view))
}

/// Deadline of the wait for the DaemonSets while no machine has a turn, Unix milliseconds. It restarts with each
/// machine that ends or gives its slot back, and with this coordinator, which has to look first.
fn deadline_ms(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<u64> {
    let begun_ms = stage(update).filter(|_| is_under_way(update))?.started_at_ms;
    let begun_ms = begun_ms.max(update.moved_at_ms).max(update.resumed_at_ms);
    let given_back = targets(snapshot).filter_map(|view| view.row.stages.get(&Stage::RequestRemoved)?.finished_at_ms);
    let begun_ms = given_back.fold(begun_ms.max(snapshot.facts.live.started_wall_ms), u64::max);
    Some(begun_ms.saturating_add(snapshot.spec.update_deadlines.kubernetes_drain.after_ms))
}

/// The cluster's stage, if it is past its deadline, and its start, Unix milliseconds. The time of a pause that began
/// before the deadline is excluded, and a machine that has its turn has its own deadlines.
pub(super) fn overdue(snapshot: &ClusterSnapshot<'_>) -> Option<(ClusterStage, u64)> {
    let update = snapshot.update()?;
    let until_ms = match update.desired {
        DesiredState::Go => snapshot.now.wall_ms,
        DesiredState::Pause { since_ms } => since_ms,
        DesiredState::Abort => return None,
    };
    let began_ms = stage(update).filter(|_| is_free(snapshot))?.started_at_ms;
    let late = deadline_ms(snapshot, update).is_some_and(|at_ms| until_ms >= at_ms);
    late.then_some((ClusterStage::PodsRenewed, began_ms))
}

/// Deadline of a machine's wait for its turn in the pass, Unix milliseconds: past it the update pauses.
pub(super) fn turn_deadline_ms(
    snapshot: &ClusterSnapshot<'_>,
    update: &UpdateRow,
    view: &MachineView<'_>,
) -> Option<u64> {
    let waits = update.desired == DesiredState::Go && view.update()?.renewal.is_some() && wants_slot(view);
    deadline_ms(snapshot, update).filter(|_| waits)
}

/// Why the cluster's stage does not end. None: a machine has a turn in it, or it is not under way.
#[must_use]
pub fn of_cluster(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<Blocked> {
    if !is_under_way(update) {
        return None;
    }
    if let Some(unsteady) = unsteady(update) {
        return Some(unsteady);
    }
    if targets(snapshot).next().is_none() {
        return known(snapshot).and_then(|found| all_renewed(snapshot, update, found)).err();
    }
    let found = known(snapshot).ok().filter(|_| is_free(snapshot))?;
    let mut waiting = targets(snapshot).filter(|view| wants_slot(view));
    waiting.find_map(|view| may_begin(snapshot, view, found).err())
}
