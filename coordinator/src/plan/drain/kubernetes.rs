//! The Kubernetes drain of a machine: its node is cordoned and its pods are evicted, and it gets back exactly what was
//! taken. Level-triggered: decided from the record and from the API server's last answers; [`questions`] says what to
//! ask next. The only criterion for a completed drain is a fresh list of pods without one that had to leave.

pub mod access;
pub mod autoscaler;
pub mod control_plane;
pub mod events;
pub mod eviction;
pub mod forcing;
pub mod identity;
pub mod owed;
pub mod questions;

use std::collections::BTreeSet;

use muster_proto::{
    model::{Blocked, KubernetesSpec, MachineType, Reason},
    seeded_bug::seeded_bug,
};

use super::{DrainStep, Goal, Orchestrator, deadline_ms, goal, to_restore};
use crate::{
    facts::{
        DrainKind, KubernetesObservation, KubernetesTarget, MachineRow, MachineUpdate, Seen,
        kubernetes::{Budget, KubernetesFailure, KubernetesNode, KubernetesOp},
    },
    plan::{
        safety::blocked,
        snapshot::{ClusterSnapshot, MachineView},
        update::stages,
    },
};
use forcing::DrainRules;

/// Validity of an answer, in milliseconds; then the API server is asked again.
pub const FRESH_MS: u64 = 10_000;
/// Time after its request in which an unanswered change of a node may still be carried out, in milliseconds: the API
/// server ends a request after 60 s, ours has 10 s, and 5 s.
pub const SETTLE_MS: u64 = 75_000;
/// Time after the cordon in which the scheduler may still bind a pod to the node, in milliseconds: it follows the API
/// server's watch.
pub const BIND_MS: u64 = 2_000;
/// Time for which the API server may be silent before a machine's turn without a word to operators, in milliseconds.
const SILENT_MS: u64 = 120_000;
/// Time for which every look must find that a machine cannot be drained before it is deferred, in milliseconds. The
/// numbers of a budget follow its pods with a delay.
pub const UNDRAINABLE_MS: u64 = 60_000;

/// Kubernetes.
pub struct Kubernetes;

impl Orchestrator for Kubernetes {
    fn kind(&self) -> DrainKind {
        DrainKind::Kubernetes
    }

    fn is_wanted(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
        spec(snapshot).is_some() && view.update().is_some_and(MachineUpdate::drains_nodes)
    }

    fn target(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<DrainStep> {
        target(snapshot, view).map(DrainStep::KubernetesTarget)
    }

    fn drained(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
        drained(snapshot, view)
    }

    fn restored(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
        restored(snapshot, view)
    }

    fn is_at_it(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
        aim(snapshot, view) == Some(Goal::Drained)
    }

    fn awaited_since_ms(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64> {
        look(view).filter(|_| room_from(snapshot, view).is_none()).and_then(waits_since_ms)
    }
}

/// The cluster's settings. None: it has no Kubernetes that Muster drains.
#[must_use]
pub fn spec<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a KubernetesSpec> {
    snapshot.spec.kubernetes.as_ref()
}

/// What is known of the machine's node.
#[must_use]
pub fn look<'a>(view: &MachineView<'a>) -> Option<&'a KubernetesObservation> {
    view.live.map(|live| &live.kubernetes)
}

/// An answer that is still valid.
#[must_use]
pub fn fresh<'a, T>(snapshot: &ClusterSnapshot<'_>, seen: Option<&'a Seen<T>>) -> Option<&'a T> {
    seen.filter(|seen| snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms) < FRESH_MS).map(|seen| &seen.what)
}

fn row<'a>(view: &MachineView<'a>) -> Option<&'a KubernetesTarget> {
    Some(&view.update()?.drains.kubernetes.as_ref()?.target)
}

/// The goal for the machine's node now, if its drain has begun. A node is restored after all that was drained later.
#[must_use]
pub fn aim(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Goal> {
    row(view)?;
    if view.is_let_go() {
        return None;
    }
    match goal(snapshot, view)? {
        Goal::Restored => {
            (to_restore(view).is_some_and(|last| last.kind() == DrainKind::Kubernetes)).then_some(Goal::Restored)
        }
        Goal::Drained => Some(Goal::Drained),
    }
}

/// The recorded node as the API server showed it last. Outer None: it was not seen yet. Inner None: it is gone, or was
/// made anew.
fn recorded<'a>(view: &MachineView<'a>, uid: &str) -> Option<Seen<Option<&'a KubernetesNode>>> {
    let seen = look(view)?.nodes.as_ref()?;
    let node = seen.what.iter().find(|node| node.object.uid == uid);
    Some(Seen { what: node, at_mono_ms: seen.at_mono_ms })
}

fn is_fresh<T>(snapshot: &ClusterSnapshot<'_>, seen: &Seen<T>) -> bool {
    snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms) < FRESH_MS
}

/// The annotation's value for a node that is cordoned in this rollout.
#[must_use]
pub fn drained_for(snapshot: &ClusterSnapshot<'_>, uid: &str) -> String {
    format!("{}/{uid}", snapshot.rollout.map_or("", |rollout| rollout.name.as_str()))
}

/// Was this node cordoned by Muster? The annotation of another node's object means nothing.
#[must_use]
pub fn is_ours(node: &KubernetesNode) -> bool {
    node.drained_for.as_ref().is_some_and(|value| value.ends_with(&format!("/{}", node.object.uid)))
}

/// What to record next about the machine's node. None: nothing has changed.
fn target(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<KubernetesTarget> {
    let look = look(view)?;
    match row(view)? {
        KubernetesTarget::Unknown => {
            let nodes = fresh(snapshot, look.nodes.as_ref())?;
            Some(match identity::of(snapshot, view, nodes).ok()? {
                None => KubernetesTarget::Absent,
                Some(node) => KubernetesTarget::Node {
                    name: node.object.name.clone(),
                    uid: node.object.uid.clone(),
                    // A former drain of ours took it, and gave nothing back.
                    was_unschedulable: node.unschedulable && (!is_ours(node) || seeded_bug("cordon-becomes-operators")),
                    cordoned: false,
                },
            })
        }
        KubernetesTarget::Absent => None,
        KubernetesTarget::Node { name, uid, was_unschedulable, cordoned } => {
            let seen = recorded(view, uid).filter(|seen| is_fresh(snapshot, seen))?;
            // It is gone, or was made anew.
            let Some(node) = seen.what else { return Some(KubernetesTarget::Unknown) };
            let by_others = node.unschedulable && !is_ours(node);
            let was_unschedulable = *was_unschedulable || by_others;
            // A node with our annotation was cordoned, whatever the answer to that was.
            let now_cordoned = !cordoned && (node.unschedulable || is_ours(node));
            let (name, uid) = (name.clone(), uid.clone());
            now_cordoned.then_some(KubernetesTarget::Node { name, uid, was_unschedulable, cordoned: true })
        }
    }
}

/// Rule 4, its Kubernetes: did a list of pods made a moment ago, after the cordon, show none that has to leave?
fn drained(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let wanted = Kubernetes.is_wanted(snapshot, view);
    let Some(spec) = spec(snapshot).filter(|_| wanted) else { return Ok(()) };
    let about = |what: &str| blocked(Reason::KubernetesDraining, what, "the API server has answered");
    let (Some(target), Some(look)) = (row(view), look(view)) else {
        return Err(about("its Kubernetes drain is about to begin"));
    };
    let (uid, was_cordoned) = match target {
        KubernetesTarget::Absent => return Ok(()),
        KubernetesTarget::Unknown => return Err(unidentified(snapshot, view, look)),
        KubernetesTarget::Node { uid, cordoned, .. } => (uid, *cordoned),
    };
    if is_on_its_own(snapshot, view, look) {
        return Ok(());
    }
    let Some(seen) = recorded(view, uid) else {
        return Err(unanswered(look, "its Kubernetes node is being looked at"));
    };
    let Some(node) = seen.what else {
        let message = format!("Error: the Kubernetes node of {} is gone, or was made anew", view.row.name);
        return Err(blocked(Reason::KubernetesNodeNotFound, message, "its kubelet has registered it again"));
    };
    if !node.unschedulable {
        return Err(match was_cordoned {
            true => uncordoned_by_others(&node.object.name),
            false => keeps_cordon(snapshot, view, look, spec)
                .unwrap_or_else(|| unanswered(look, "its Kubernetes node is about to be cordoned")),
        });
    }
    // Seeded bug: evictions that were accepted count as pods that have left.
    if !seeded_bug("accepted-is-gone")
        && let Some(why) = what_is_left(snapshot, view, look, spec)
    {
        return Err(look.failure.as_ref().map_or(why, |failure| failed(&failure.what)));
    }
    control_plane::keeps_going(snapshot, view, look)?;
    let recent = snapshot.now.mono_ms.saturating_sub(look.listed_mono_ms) < FRESH_MS;
    let listed = look.load.as_ref().filter(|_| recent);
    match listed.filter(|seen| is_listed_since_cordon(look, uid, seen.at_mono_ms)) {
        Some(_) if is_fresh(snapshot, &seen) => Ok(()),
        _ => Err(unanswered(look, "the pods on its Kubernetes node are being looked at")),
    }
}

/// Why the machine's node is not drained yet. None: nothing is left on it.
fn what_is_left(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &KubernetesObservation,
    spec: &KubernetesSpec,
) -> Option<Blocked> {
    let rules = DrainRules::of_machine(&spec.drain, view);
    let mut left = eviction::what_is_left(&view.row.name, look, &rules, snapshot.now.mono_ms)?;
    if let Some(other) = room_from(snapshot, view) {
        let other = &other.row.name;
        left.clears_when = format!("{}; its deadline waits while {other} gives its node back", left.clears_when);
    }
    Some(left)
}

/// Was a list of pods asked for after the node was seen unschedulable, and no pod could be bound to it any more? A list
/// from before the last eviction has that pod in it.
fn is_listed_since_cordon(look: &KubernetesObservation, uid: &str, at_mono_ms: u64) -> bool {
    let cordoned = look.unschedulable.get(uid);
    let since_cordon = cordoned.is_some_and(|cordoned| at_mono_ms >= cordoned.saturating_add(BIND_MS));
    // Seeded bug: a list from before the cordon proves the drain.
    since_cordon || seeded_bug("list-before-cordon")
}

/// Why its node is not cordoned yet. None: it is about to be.
fn keeps_cordon(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &KubernetesObservation,
    spec: &KubernetesSpec,
) -> Option<Blocked> {
    let rules = DrainRules::of_machine(&spec.drain, view);
    let undrainable = look.load.as_ref().and_then(|seen| eviction::undrainable(&seen.what, &rules));
    let undrainable = undrainable.map(|kept| eviction::needs_operator(&view.row.name, &kept));
    undrainable
        .or_else(|| control_plane::keeps_going(snapshot, view, look).err())
        .or_else(|| shares_budgets(snapshot, view))
}

/// Was the only control machine drained and disturbed, and is the API server silent now? It may have been on that very
/// machine: a turn that has begun must end. The same if an operator accepts that the control plane is down.
fn is_on_its_own(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &KubernetesObservation) -> bool {
    let control = view.row.spec.machine_type == MachineType::Control;
    let disturbed = view.update().is_some_and(|mine| mine.disturbed());
    let silent = look.failure.as_ref().filter(|seen| is_fresh(snapshot, seen));
    let silent = silent.is_some_and(|seen| matches!(seen.what, KubernetesFailure::Unreachable(_)));
    control && disturbed && silent && control_plane::others(snapshot, view).is_empty()
}

/// As [`is_on_its_own`], for what is asked about the whole cluster.
pub(in crate::plan) fn is_without_control_plane(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> bool {
    let view = snapshot.machines.iter().find(|view| view.row.name == row.name);
    view.is_some_and(|view| look(view).is_some_and(|look| is_on_its_own(snapshot, view, look)))
}

/// An operator made the node schedulable while Muster drained it. Muster does not cordon against an operator.
fn uncordoned_by_others(node: &str) -> Blocked {
    blocked(
        Reason::KubernetesUncordoned,
        format!("Error: an operator made Kubernetes node {node} schedulable while it was drained"),
        format!("`kubectl cordon {node}`, then `musterctl retry` of its machine or `musterctl resume`"),
    )
}

/// Why its node is still unknown.
fn unidentified(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &KubernetesObservation) -> Blocked {
    let unclear = look.nodes.as_ref().and_then(|seen| identity::of(snapshot, view, &seen.what).err());
    match &look.failure {
        None => unclear.unwrap_or_else(|| unanswered(look, "its Kubernetes node is being looked for")),
        Some(_) => unanswered(look, ""),
    }
}

/// The API server's answer is outdated: it failed to answer the last time, or is being asked.
fn unanswered(look: &KubernetesObservation, what: &str) -> Blocked {
    match &look.failure {
        Some(failure) => failed(&failure.what),
        None => blocked(Reason::KubernetesDraining, what, "the API server has answered"),
    }
}

/// The last question has no answer.
pub(in crate::plan) fn failed(failure: &KubernetesFailure) -> Blocked {
    let message = format!("Error: the Kubernetes API server cannot be asked - {failure}");
    let clears_when = match failure {
        KubernetesFailure::Unauthorized(_) => {
            "its secret (`musterctl secret create NAME --cluster CLUSTER` again) or adminConf has valid credentials"
        }
        KubernetesFailure::Forbidden(_) => {
            "the account has its rights (`musterctl kubernetes rbac | kubectl apply -f -`)"
        }
        KubernetesFailure::AnotherCluster { .. } => "the kubeconfig leads to the cluster that was there first",
        KubernetesFailure::NoKubeconfig(_) => "an agent of a control machine reads it; it is asked every few seconds",
        KubernetesFailure::Other(_) => "its cause is gone; it is tried again every few seconds",
        KubernetesFailure::Unreachable(_)
        | KubernetesFailure::Busy { .. }
        | KubernetesFailure::NotFound(_)
        | KubernetesFailure::Conflict(_) => "it answers; it is tried again every few seconds",
    };
    blocked(Reason::KubernetesUnavailable, message, clears_when)
}

/// Another machine whose drain takes from the budgets of this node's pods, and whose evicted pods do not run again
/// yet. Two machines that both wait for such a budget would wait for each other.
fn shares_budgets(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    // Seeded bug: cordon a second node that draws on the same budgets.
    if seeded_bug("cordon-over-shared-budget") {
        return None;
    }
    let Seen { what: load, at_mono_ms } = look(view)?.load.as_ref()?;
    let short = |name: &String| load.budgets.get(name).is_none_or(Budget::is_short);
    let ours: BTreeSet<&String> = eviction::leaving(load).flat_map(|pod| &pod.budgets).collect();
    let mut others = snapshot.machines.iter().filter(|other| other.row.name != view.row.name && row(other).is_some());
    let other = others.find(|other| {
        let Some(look) = look(other) else { return false };
        // After a restart: what it has evicted, and what is left there, is unknown.
        let unknown = takes_pods(other, look) && !look.begun_here;
        if unknown && (look.load.is_none() || ours.iter().any(|name| short(name))) {
            return !ours.is_empty();
        }
        let mut leaving = look.load.iter().flat_map(|seen| eviction::leaving(&seen.what)).flat_map(|pod| &pod.budgets);
        // Our list may be from before its evictions.
        let overtaken = look.evicted_at_mono_ms.is_some_and(|evicted| *at_mono_ms <= evicted);
        let mut left = look.evicted.values().flat_map(|pod| &pod.budgets).filter(|name| overtaken || short(name));
        let goes_first = takes_pods(other, look) || goes_before(other, view);
        (goes_first && leaving.any(|name| ours.contains(name)))
            || (left.any(|name| ours.contains(name)) && !seeded_bug("evicted-is-back"))
    })?;
    Some(blocked(
        Reason::KubernetesDraining,
        format!("Error: waiting for the pods of {}: they share disruption budgets", other.row.name),
        "its evicted pods are Ready elsewhere",
    ))
}

/// Is its node cordoned, or about to be?
fn takes_pods(view: &MachineView<'_>, look: &KubernetesObservation) -> bool {
    let cordoned = matches!(row(view), Some(KubernetesTarget::Node { cordoned: true, .. }));
    let asked = look.asked.as_ref().is_some_and(|asked| matches!(asked.op, KubernetesOp::Cordon { .. }));
    cordoned || asked || look.unsettled_mono_ms.is_some()
}

/// Which of two machines that share budgets is cordoned first?
fn goes_before(one: &MachineView<'_>, other: &MachineView<'_>) -> bool {
    let place =
        |view: &MachineView<'_>| (view.row.slot.map_or(u64::MAX, |slot| slot.granted_at_ms), view.row.name.clone());
    place(one) < place(other)
}

/// Until when an unanswered cordon may still be carried out, in monotonic milliseconds. The previous coordinator may
/// have requested it at its last moment. Once the node was seen cordoned, none is under way: every change is guarded by
/// the version of the node that it was made for, so a late one cannot follow another. For the same reason a late
/// uncordon does no harm.
fn unsettled_until(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &KubernetesObservation,
) -> Option<u64> {
    let cordoned = matches!(row(view)?, KubernetesTarget::Node { cordoned: true, .. });
    // Seeded bug: a change without an answer was not carried out.
    if cordoned || seeded_bug("no-settle-after-cordon") {
        return None;
    }
    settles_at(snapshot, look).filter(|until| *until > snapshot.now.mono_ms)
}

/// When the last cordon without an answer can be carried out no longer, in monotonic milliseconds. None: none is under
/// way.
fn settles_at(snapshot: &ClusterSnapshot<'_>, look: &KubernetesObservation) -> Option<u64> {
    let inherited = (!look.begun_here).then_some(snapshot.facts.live.started_mono_ms);
    let last = look.unsettled_mono_ms.into_iter().chain(inherited).max()?;
    Some(last.saturating_add(SETTLE_MS))
}

/// Rule 9, its Kubernetes: is the node as it was? What was unschedulable before stays so.
fn restored(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let Some(KubernetesTarget::Node { uid, was_unschedulable, .. }) = row(view) else { return Ok(()) };
    if *was_unschedulable {
        return Ok(());
    }
    let nothing = KubernetesObservation::default();
    let look = look(view).unwrap_or(&nothing);
    let waits = |message: String| match &look.failure {
        Some(failure) => failed(&failure.what),
        None => blocked(Reason::KubernetesUncordoning, message, "the API server has confirmed it"),
    };
    let Some(seen) = recorded(view, uid).filter(|seen| is_fresh(snapshot, seen)) else {
        return Err(waits("its Kubernetes node is being looked at".to_owned()));
    };
    let Some(node) = seen.what else { return Ok(()) };
    // Seeded bug: count the node as given back.
    if is_ours(node) && !seeded_bug("leave-cordoned") {
        return Err(match may_uncordon(view, node) {
            Ok(()) => waits(format!("Kubernetes node {} is made schedulable again", node.object.name)),
            Err(blocked) => blocked,
        });
    }
    match unsettled_until(snapshot, view, look) {
        None => Ok(()),
        Some(_) => Err(waits("a change of its Kubernetes node that has no answer may still be carried out".to_owned())),
    }
}

/// A disturbed machine's node takes pods again when its kubelet is Ready in the machine's current boot.
fn may_uncordon(view: &MachineView<'_>, node: &KubernetesNode) -> Result<(), Blocked> {
    let disturbed = view
        .update()
        .is_some_and(|mine| mine.disturbed() || mine.maintenance.is_some_and(|row| row.since_ms.is_some()));
    // Seeded bug: uncordon before the kubelet is back.
    if !disturbed || (node.ready && identity::has_boot(view.row, node)) || seeded_bug("uncordon-before-ready") {
        return Ok(());
    }
    let name = &node.object.name;
    let what = if node.ready { "has not reported since the machine was booted" } else { "is not Ready" };
    Err(blocked(
        Reason::KubernetesUncordoning,
        format!("Error: Kubernetes node {name} {what}"),
        format!("its kubelet is (`kubectl describe node {name}`)"),
    ))
}

/// Can the machine be drained at all, as a look a moment ago shows? Asked before its turn, so that no slot is taken and
/// no workload moved for a machine that cannot be drained.
///
/// # Errors
/// What keeps it: [`Reason::KubernetesUndrainable`] once that has held for [`UNDRAINABLE_MS`], or that it is looked at.
pub fn preflight(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    // Seeded bug: find out in the drain.
    if spec(snapshot).is_none() || seeded_bug("no-preflight") {
        return Ok(());
    }
    if view.row.owed_cordon.is_some() {
        let about = "its Kubernetes node is given back after an earlier drain";
        let about = || blocked(Reason::KubernetesNodeNotRestored, about, "the API server has confirmed it");
        return Err(owed::waits(snapshot, view).unwrap_or_else(about));
    }
    let looks = |what: &str| blocked(Reason::KubernetesPreflight, what, "the API server has answered");
    let Some(look) = look(view) else { return Err(looks("its Kubernetes node is being looked for")) };
    let silent_ms = look.failing_since_mono_ms.map_or(0, |since| snapshot.now.mono_ms.saturating_sub(since));
    let waits = |what: &str| match &look.failure {
        Some(Seen { what: failure, .. }) if !failure.may_pass() || silent_ms >= SILENT_MS => failed(failure),
        Some(Seen { what: failure, .. }) => looks(&failed(failure).message),
        None => looks(what),
    };
    let Some(nodes) = fresh(snapshot, look.nodes.as_ref()) else {
        return Err(waits("its Kubernetes node is being looked for"));
    };
    if identity::of(snapshot, view, nodes)?.is_none() {
        return Ok(());
    }
    if look.load.is_none() || snapshot.now.mono_ms.saturating_sub(look.listed_mono_ms) >= FRESH_MS {
        return Err(waits("the pods on its Kubernetes node are being looked at"));
    }
    let Some(verdict) = &look.undrainable else { return Ok(()) };
    let for_ms = snapshot.now.mono_ms.saturating_sub(verdict.since_mono_ms);
    let message = format!("Error: {}", verdict.why);
    if for_ms >= UNDRAINABLE_MS {
        let last_resort = forcing::last_resort(&view.row.name, &verdict.pod);
        return Err(blocked(
            Reason::KubernetesUndrainable,
            message,
            format!("an operator has changed that; then `musterctl retry`; {last_resort}"),
        ));
    }
    Err(blocked(Reason::KubernetesPreflight, message, "it is gone, or has held for 60 s: then the machine is deferred"))
}

/// Is another machine of the cluster being disturbed? The numbers of budgets are not at rest then.
#[must_use]
pub fn others_disturbed(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let moves = |other: &MachineView<'_>| !other.is_stopped() && !other.in_maintenance() && !other.lost;
    let disturbed = |other: &MachineView<'_>| other.row.name != view.row.name && row(other).is_some() && moves(other);
    snapshot.machines.iter().any(disturbed)
}

/// Does the drain of this machine wait for something that has no deadline of its own?
#[must_use]
pub fn is_awaited(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let waits_for_others = shares_budgets_now(snapshot, view).is_some() && others_disturbed(snapshot, view);
    aim(snapshot, view) == Some(Goal::Drained) && !waits_for_others && room_from(snapshot, view).is_none()
}

/// The deferred machine that is giving its node back, where pods that this machine's drain evicted may run again. Of
/// two machines that wait for one another only one gives back: the other has its time again. At one moment that is the
/// younger one.
fn room_from<'s>(snapshot: &'s ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<&'s MachineView<'s>> {
    let gives_back = |other: &&MachineView<'_>| {
        let cordoned = matches!(row(other), Some(KubernetesTarget::Node { cordoned: true, .. }));
        let deferred = other.update().is_some_and(|mine| mine.deferral.is_some());
        let is_about_to = || goes_before(view, other) && lacks_room(other) && is_late(snapshot, other);
        cordoned && ((deferred && returns_in_time(snapshot, other)) || is_about_to())
    };
    let mut others = snapshot.machines.iter().filter(|other| other.row.name != view.row.name);
    if lacks_room(view) { others.find(gives_back) } else { None }
}

/// Is a machine's node given back before that is overdue? One whose kubelet never returns is waited for no longer.
fn returns_in_time(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let is_restored = goal(snapshot, view) == Some(Goal::Restored);
    let update = snapshot.update().filter(|_| is_restored);
    let deadline_ms = update.and_then(|update| deadline_ms(snapshot, update, view));
    deadline_ms.is_none_or(|at_ms| snapshot.now.wall_ms < at_ms)
}

/// Are pods that its drain evicted not Ready again, so that a budget of the pods that are left is short?
fn lacks_room(view: &MachineView<'_>) -> bool {
    let Some(look) = look(view) else { return false };
    let budgets = look.load.as_ref().map(|seen| &seen.what.budgets);
    let short = |name: &String| budgets.and_then(|budgets| budgets.get(name)).is_some_and(Budget::is_short);
    look.evicted.values().flat_map(|pod| &pod.budgets).any(short)
}

/// Start of the wait for a drain, or its last progress, Unix milliseconds.
fn waits_since_ms(look: &KubernetesObservation) -> Option<u64> {
    Some(look.awaited_since_ms?.max(look.fewer_at_ms.unwrap_or(0)))
}

/// Is the drain past its deadline?
fn is_late(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let (Some(update), Some(since_ms)) = (snapshot.update(), look(view).and_then(waits_since_ms)) else { return false };
    let begun_ms = since_ms.max(stages::others_moved_ms(snapshot, update, view));
    snapshot.now.wall_ms >= begun_ms.saturating_add(snapshot.spec.update_deadlines.kubernetes_drain.after_ms)
}

fn shares_budgets_now(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    match row(view)? {
        KubernetesTarget::Node { cordoned: false, .. } => shares_budgets(snapshot, view),
        KubernetesTarget::Node { .. } | KubernetesTarget::Unknown | KubernetesTarget::Absent => None,
    }
}
