//! Which pods have to leave a node, which of them are evicted next, and what keeps the others.

use std::collections::BTreeMap;

use muster_proto::{
    model::{Blocked, MachineName, Reason, UnmanagedPods},
    seeded_bug::seeded_bug,
};

use super::forcing::{self, DrainRules};
use crate::{
    facts::{
        KubernetesObservation, Seen,
        kubernetes::{Budget, Eviction, NodeLoad, Pod, PodRef},
    },
    plan::safety::blocked,
};

/// Delay before a pod is evicted again after a refusal, in milliseconds; up to [`JITTER_MS`] is added for each pod.
pub const RETRY_MS: u64 = 5_000;
/// Spread of repeated evictions, in milliseconds.
const JITTER_MS: u64 = 1_000;
/// Time after its grace period in which a terminating pod must end, in milliseconds; then it is named as stuck.
const STUCK_MS: u64 = 60_000;
/// Returns to a cordoned node from which on a controller's pods are not evicted again.
const RETURNS_MAX: usize = 2;
/// The lowest priority of `system-cluster-critical`: such pods go last.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;
/// Pods named in one sentence; the others are counted.
const PODS_SHOWN_MAX: usize = 3;
/// Pods of this label value stay on the node.
const SKIP: &str = "skip";
/// Pods of this label value leave after all others.
const LAST: &str = "last";
/// Pods of this label value end by themselves, and are waited for.
const WAIT: &str = "wait";

/// Must the pod leave before the machine is disturbed? Pods of DaemonSets, mirror pods and finished pods stay.
#[must_use]
pub fn must_leave(pod: &Pod) -> bool {
    // Seeded bugs: evict a kind of pods as well.
    let of_daemon_set = pod.of_daemon_set && !seeded_bug("evict-daemon-set-pods");
    let mirror = pod.mirror && !seeded_bug("evict-mirror-pods");
    let finished = pod.finished && !seeded_bug("evict-finished-pods");
    let skipped = pod.drain_label == SKIP && !seeded_bug("evict-skipped-pods");
    !of_daemon_set && !mirror && !finished && !skipped
}

/// Pods that have to leave.
pub fn leaving(load: &NodeLoad) -> impl Iterator<Item = &Pod> {
    load.pods.iter().filter(|pod| must_leave(pod))
}

/// The place of a pod in the order of evictions. A later place begins when the earlier ones are empty.
pub(super) fn place(pod: &Pod) -> u8 {
    match (pod.priority >= SYSTEM_CRITICAL, pod.drain_label == LAST) {
        (false, false) => 0,
        (false, true) => 1,
        (true, _) => 2,
    }
}

/// `namespace/name`.
#[must_use]
pub fn name_of(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// A number that spreads pods, made of the UID.
fn spread(uid: &str) -> u64 {
    uid.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

/// When this pod may be evicted again, in monotonic milliseconds. None: it was not refused.
#[must_use]
pub fn retry_at(look: &KubernetesObservation, pod: &Pod) -> Option<u64> {
    let refused = look.refused.get(&pod.object.uid)?;
    Some(refused.at_mono_ms.saturating_add(RETRY_MS + spread(&pod.object.uid) % JITTER_MS))
}

/// The pod's controller, `namespace/Kind/name`.
#[must_use]
pub fn controller_of(pod: &Pod) -> Option<String> {
    pod.controller.as_ref().map(|controller| format!("{}/{controller}", pod.object.namespace))
}

fn returns_again(look: &KubernetesObservation, pod: &Pod) -> bool {
    controller_of(pod)
        .and_then(|controller| look.returned.get(&controller))
        .is_some_and(|uids| uids.len() >= RETURNS_MAX)
}

/// The place whose pods leave next. None: nothing has to leave but pods that end by themselves.
pub(super) fn first_place(load: &NodeLoad, rules: &DrainRules<'_>) -> Option<u8> {
    leaving(load).filter(|pod| pod.drain_label != WAIT || rules.forces(pod)).map(place).min()
}

/// The next pods to evict, at most `most`: those of the lowest place, lower priority first.
#[must_use]
pub fn next(look: &KubernetesObservation, rules: &DrainRules<'_>, most: usize, now_mono_ms: u64) -> Vec<PodRef> {
    let Some(Seen { what: load, .. }) = &look.load else { return Vec::new() };
    let Some(first) = first_place(load, rules) else { return Vec::new() };
    if !forcing::may_evict(look, now_mono_ms) {
        return Vec::new();
    }
    let mut due: Vec<&Pod> = leaving(load)
        .filter(|pod| place(pod) == first && pod.deletion_s.is_none() && pod.drain_label != WAIT)
        .filter(|pod| !rules.forces(pod) && !returns_again(look, pod) && keeps_for_good(load, pod, rules).is_none())
        .filter(|pod| retry_at(look, pod).is_none_or(|at| at <= now_mono_ms))
        .collect();
    due.sort_by_key(|pod| (pod.priority, &pod.object));
    due.into_iter().take(most).map(|pod| pod.object.clone()).collect()
}

/// What keeps a pod until an operator acts. None: it can leave in time, or is deleted.
fn keeps_for_good(load: &NodeLoad, pod: &Pod, rules: &DrainRules<'_>) -> Option<String> {
    let name = name_of(&pod.object);
    if pod.deletion_s.is_some() || pod.drain_label == WAIT || rules.forces(pod) {
        return None;
    }
    if pod.controller.is_none() && rules.policy.unmanaged_pods == UnmanagedPods::Keep {
        return Some(format!("pod {name} has no controller that would start it elsewhere"));
    }
    if pod.local_storage && rules.policy.keep_local_storage {
        return Some(format!("pod {name} has data in an emptyDir volume"));
    }
    never_evicted(&load.budgets, pod)
}

/// Why the API server can never accept an eviction of this pod, whatever becomes of other pods.
#[must_use]
pub fn never_evicted(budgets: &BTreeMap<String, Budget>, pod: &Pod) -> Option<String> {
    let name = name_of(&pod.object);
    match pod.budgets.as_slice() {
        [] => None,
        [one] => budgets.get(one).and_then(|budget| never_allows(one, budget)).map(|why| format!("pod {name}: {why}")),
        [first, second, ..] => {
            Some(format!("pod {name} has more than one disruption budget ({first}, {second}), so it cannot be evicted"))
        }
    }
}

/// Why a budget never allows an eviction, even if all its pods are healthy.
fn never_allows(name: &str, budget: &Budget) -> Option<String> {
    if let Some(message) = &budget.sync_failed {
        return Some(format!("disruption budget {name} cannot be evaluated ({message})"));
    }
    if !budget.observed {
        return None;
    }
    let (desired, expected) = (budget.desired, budget.expected);
    if expected == 0 {
        return Some(format!("disruption budget {name} counts no pods, so it allows no eviction"));
    }
    let never = desired >= expected && budget.healthy >= expected && budget.allowed == 0;
    never.then(|| {
        format!("disruption budget {name} needs {desired} healthy pods of {expected}, so it never allows one less")
    })
}

/// A pod that can never leave a node as things are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPod {
    /// `namespace/name`.
    pub pod: String,
    /// The pod and what keeps it, in one sentence.
    pub why: String,
}

/// The first pod that can never leave this node as things are, and why.
#[must_use]
pub fn undrainable(load: &NodeLoad, rules: &DrainRules<'_>) -> Option<KeptPod> {
    undrainable_pods(load, rules).next()
}

/// Every pod that can never leave this node as things are: why.
pub fn undrainable_pods(load: &NodeLoad, rules: &DrainRules<'_>) -> impl Iterator<Item = KeptPod> {
    let kept = |pod: &Pod| Some(KeptPod { why: keeps_for_good(load, pod, rules)?, pod: name_of(&pod.object) });
    leaving(load).filter_map(kept)
}

/// A pod that can never leave this machine as things are.
#[must_use]
pub fn needs_operator(machine: &MachineName, KeptPod { pod, why }: &KeptPod) -> Blocked {
    let last_resort = forcing::last_resort(machine, pod);
    let clears_when =
        format!("an operator has changed that (the pod, its budget, or spec.kubernetes.drain); {last_resort}");
    blocked(Reason::KubernetesUndrainable, format!("Error: {why}"), clears_when)
}

/// Why this machine's node is not drained yet. None: nothing is left on it.
#[must_use]
pub fn what_is_left(
    machine: &MachineName,
    look: &KubernetesObservation,
    rules: &DrainRules<'_>,
    now_mono_ms: u64,
) -> Option<Blocked> {
    let load = &look.load.as_ref()?.what;
    let wait =
        |reason, message: String, clears_when: &str| Some(blocked(reason, format!("Error: {message}"), clears_when));
    if let Some(kept) = undrainable(load, rules) {
        return Some(needs_operator(machine, &kept));
    }
    if let Some(refused) = forcing::refusal(look, load, rules) {
        return Some(refused);
    }
    if let Some(pod) = leaving(load).find(|pod| returns_again(look, pod) && !rules.forces(pod)) {
        let name = name_of(&pod.object);
        let message =
            format!("pod {name} was evicted {RETURNS_MAX} times, and its controller starts it on this node again");
        return wait(
            Reason::KubernetesPodReturns,
            message,
            "it tolerates no cordon any more, or has the label muster/drain=skip",
        );
    }
    if let Some(why) = leaving(load).find_map(|pod| stuck(look, pod, now_mono_ms)) {
        return wait(Reason::KubernetesPodStuck, why, "the pod is gone (`kubectl describe pod` shows what holds it)");
    }
    if let Some((pod, answer)) = leaving(load).find_map(|pod| Some((pod, &look.refused.get(&pod.object.uid)?.what))) {
        let message =
            format!("pod {} cannot be evicted: {}", name_of(&pod.object), refusal(&load.budgets, pod, answer));
        let clears_when = match answer {
            Eviction::Budget(_) | Eviction::Unobserved(_) => "the budget allows it; it is tried again every 5 s",
            Eviction::NamespaceTerminating
            | Eviction::Replaced
            | Eviction::Refused(_)
            | Eviction::Accepted
            | Eviction::Gone => "the API server accepts the eviction; it is tried again every 5 s",
            Eviction::TwoBudgets(_) => &format!(
                "the API server accepts the eviction; it is tried again every 5 s; {}",
                forcing::last_resort(machine, &name_of(&pod.object))
            ),
        };
        return wait(Reason::KubernetesDraining, message, clears_when);
    }
    let left: Vec<String> = leaving(load).map(|pod| name_of(&pod.object)).collect();
    if !left.is_empty() {
        let message = format!("waiting for pods to leave - {}", list(&left));
        return wait(Reason::KubernetesDraining, message, "they have ended");
    }
    // Seeded bug: ignore volumes that are still attached.
    if rules.policy.wait_for_volumes && !seeded_bug("ignore-volumes") && !load.attachments.is_empty() {
        let message = format!("waiting for volumes to be detached - {}", list(&load.attachments));
        return wait(Reason::KubernetesDraining, message, "they are detached (`kubectl get volumeattachments`)");
    }
    None
}

/// A refused eviction in words, with the numbers of its budget.
#[must_use]
pub fn refusal(budgets: &BTreeMap<String, Budget>, pod: &Pod, answer: &Eviction) -> String {
    let named = pod.budgets.first().and_then(|name| Some((name, budgets.get(name)?)));
    match (answer, named) {
        (Eviction::Budget(_), Some((name, Budget { healthy, desired, .. }))) if healthy <= desired => {
            format!("budget {name} needs {desired} healthy pods and has {healthy}")
        }
        (Eviction::Unobserved(_), Some((name, _))) => format!("budget {name} is still being counted"),
        (Eviction::NamespaceTerminating, _) => "its namespace is being deleted".to_owned(),
        (Eviction::Replaced, _) => "another pod has its name now".to_owned(),
        (
            Eviction::Budget(text) | Eviction::Unobserved(text) | Eviction::TwoBudgets(text) | Eviction::Refused(text),
            _,
        ) => text.clone(),
        (Eviction::Accepted | Eviction::Gone, _) => "it is leaving".to_owned(),
    }
}

/// When a terminating pod counts as stuck, in monotonic milliseconds: after its grace period and [`STUCK_MS`].
#[must_use]
pub fn stuck_at(look: &KubernetesObservation, pod: &Pod) -> Option<u64> {
    let since = look.terminating.get(&pod.object.uid)?;
    let grace_ms = u64::try_from(pod.grace_s).unwrap_or(0).saturating_mul(1_000);
    Some(since.saturating_add(grace_ms).saturating_add(STUCK_MS))
}

/// A pod that terminates for too long, and what holds it.
fn stuck(look: &KubernetesObservation, pod: &Pod, now_mono_ms: u64) -> Option<String> {
    if now_mono_ms < stuck_at(look, pod)? {
        return None;
    }
    let held = match pod.finalizers.as_slice() {
        [] => "its kubelet has not ended it".to_owned(),
        names => format!("it is held by finalizers {}", list(names)),
    };
    Some(format!("pod {} terminates for longer than its grace period: {held}", name_of(&pod.object)))
}

/// The first few names, and the number of the others.
fn list(names: &[String]) -> String {
    let shown = names.iter().take(PODS_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(PODS_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
