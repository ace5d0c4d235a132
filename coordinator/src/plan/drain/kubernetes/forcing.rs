//! Pods that are deleted because an operator said so, each by its UID: the last resort for a pod that cannot be
//! evicted. They go from the cordoned node of a machine in its turn, and the operator's word ends with that turn.

use muster_proto::{
    model::{Blocked, KubernetesDrain, MachineName, Reason},
    seeded_bug::seeded_bug,
};

use super::{
    eviction::{self, RETRY_MS},
    look, row, spec,
};
use crate::{
    facts::{
        DeferralCause, ForcedPod, KubernetesObservation, KubernetesTarget,
        kubernetes::{Deletion, NodeLoad, Pod, PodName, PodRef},
    },
    plan::{
        safety::blocked,
        snapshot::{ClusterSnapshot, MachineView},
        update::turn::{Participant, TurnState},
    },
};

/// Time after a deletion without evictions from the node, in milliseconds: the numbers of the budgets that it took from
/// follow late, and an eviction would rely on them.
pub const PAUSE_MS: u64 = 5_000;
/// Most pods of one machine that are deleted in one turn.
const FORCED_MAX: usize = 100;
/// Pods named as the ones that could be meant.
const NAMES_MAX: usize = 5;
/// How the account gets the right.
const ALLOW: &str = "`musterctl kubernetes rbac --with-delete | kubectl apply -f -`";

/// What decides which pods leave a node, and how: the cluster's settings, and what operators said of single pods.
#[derive(Clone, Copy, Debug)]
pub struct DrainRules<'a> {
    /// The cluster's settings.
    pub policy: &'a KubernetesDrain,
    /// Pods that are deleted in this turn.
    pub forced: &'a [ForcedPod],
}

impl<'a> DrainRules<'a> {
    /// Those of a cluster, whatever operators said of single pods.
    #[must_use]
    pub const fn of_cluster(policy: &'a KubernetesDrain) -> Self {
        Self { policy, forced: &[] }
    }

    /// Those of a machine in its turn.
    #[must_use]
    pub fn of_machine(policy: &'a KubernetesDrain, view: &MachineView<'a>) -> Self {
        Self { policy, forced: view.update().map_or(&[], |mine| &mine.forced_pods) }
    }

    /// Did an operator say that this very pod is deleted?
    #[must_use]
    pub fn forces(&self, pod: &Pod) -> bool {
        // Seeded bug: delete what a budget guards.
        let unasked = seeded_bug("delete-without-word") && !pod.budgets.is_empty();
        unasked || self.forced.iter().any(|forced| forced.pod == pod.object)
    }
}

/// The next pod to delete: in its place among the evictions, one at a time.
#[must_use]
pub fn next(look: &KubernetesObservation, rules: &DrainRules<'_>, now_mono_ms: u64) -> Option<PodRef> {
    let load = &look.load.as_ref()?.what;
    let first = eviction::first_place(load, rules)?;
    let due = |pod: &&Pod| {
        let in_turn = eviction::place(pod) == first && pod.deletion_s.is_none();
        in_turn && rules.forces(pod) && retry_at(look, pod).is_none_or(|at| at <= now_mono_ms)
    };
    let due = eviction::leaving(load).filter(due);
    due.min_by_key(|pod| (pod.priority, &pod.object)).map(|pod| pod.object.clone())
}

/// When this pod may be deleted again, in monotonic milliseconds. None: that was not refused.
#[must_use]
pub fn retry_at(look: &KubernetesObservation, pod: &Pod) -> Option<u64> {
    Some(look.undeleted.get(&pod.object.uid)?.at_mono_ms.saturating_add(RETRY_MS))
}

/// May pods be evicted from this node, after the last deletion there?
#[must_use]
pub fn may_evict(look: &KubernetesObservation, now_mono_ms: u64) -> bool {
    look.deleted_mono_ms.is_none_or(|at| now_mono_ms >= at.saturating_add(PAUSE_MS))
}

/// Why a pod is still there although an operator said that it is deleted. None: it is about to be.
#[must_use]
pub fn refusal(look: &KubernetesObservation, load: &NodeLoad, rules: &DrainRules<'_>) -> Option<Blocked> {
    let forced = eviction::leaving(load).filter(|pod| rules.forces(pod));
    let mut refused = forced.filter_map(|pod| Some((pod, &look.undeleted.get(&pod.object.uid)?.what)));
    refused.find_map(|(pod, answer)| {
        let name = eviction::name_of(&pod.object);
        match answer {
            Deletion::Forbidden(text) => Some(blocked(
                Reason::KubernetesUndrainable,
                format!("Error: pod {name} cannot be deleted, as an operator said: {text}"),
                format!("Muster's account has that right ({ALLOW}); it is tried again every 5 s"),
            )),
            Deletion::Refused(text) => Some(blocked(
                Reason::KubernetesDraining,
                format!("Error: pod {name} cannot be deleted, as an operator said: {text}"),
                "the API server accepts the deletion; it is tried again every 5 s",
            )),
            Deletion::Accepted | Deletion::Gone | Deletion::Replaced => None,
        }
    })
}

/// The last way out for a pod that cannot be evicted, as a part of a sentence.
#[must_use]
pub fn last_resort(machine: &MachineName, pod: &str) -> String {
    format!("as the last resort, `musterctl drain-force {machine} --pod {pod}` deletes that pod")
}

/// The same for a deferred machine, whose pod may be unknown since a restart.
#[must_use]
pub fn last_resort_for(view: &MachineView<'_>) -> String {
    let known = look(view).and_then(|look| look.undrainable.as_ref());
    last_resort(&view.row.name, known.map_or("NAMESPACE/NAME", |known| &known.pod))
}

/// What is wrong with an operator's word about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordFault {
    /// The cluster has no Kubernetes that Muster drains.
    NoKubernetes,
    /// The machine is not in its turn, nor deferred because it cannot be drained.
    NotDraining,
    /// The pods of its node are not listed yet.
    NotListed,
    /// No such pod is on the node.
    NoSuchPod,
    /// The pod stays on the node.
    PodStays,
    /// The pod is leaving already.
    NothingToDo,
    /// There are words about too many pods.
    TooManyPods,
}

/// Why an operator's word about a pod is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotForced {
    /// What is wrong.
    pub fault: WordFault,
    /// One sentence for people.
    pub message: String,
}

/// The pod that an operator means by `namespace/name`: on the node of this machine when it was listed last.
///
/// # Errors
/// Why the word is not taken: the machine is not in its turn, or there is no such pod that has to leave.
pub fn meant(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    PodName { namespace, name }: &PodName,
) -> Result<PodRef, NotForced> {
    let machine = &view.row.name;
    let refused = |fault, message| Err(NotForced { fault, message });
    let Some(spec) = spec(snapshot) else {
        let cluster = &view.row.spec.cluster_name;
        return refused(
            WordFault::NoKubernetes,
            format!("cluster {cluster} has no Kubernetes: its manifest has no spec.kubernetes"),
        );
    };
    is_in_its_turn(snapshot, view)?;
    let Some(load) = look(view).and_then(|look| look.load.as_ref()) else {
        let failure = look(view).and_then(|look| look.failure.as_ref());
        let why = failure.map(|failure| format!(" (the Kubernetes API server cannot be asked - {})", failure.what));
        let message = format!("the pods of {machine} are not listed yet{}; say it again then", why.unwrap_or_default());
        return refused(WordFault::NotListed, message);
    };
    let (load, wanted) = (&load.what, format!("{namespace}/{name}"));
    let found = load.pods.iter().find(|pod| pod.object.namespace == *namespace && pod.object.name == *name);
    let Some(pod) = found else {
        let message = format!("pod {wanted} is not on the Kubernetes node of {machine}; {}", candidates(load));
        return refused(WordFault::NoSuchPod, message);
    };
    let rules = DrainRules::of_machine(&spec.drain, view);
    if !eviction::must_leave(pod) {
        let message = format!("pod {wanted} stays on the node, and keeps nothing; {}", candidates(load));
        return refused(WordFault::PodStays, message);
    }
    if pod.deletion_s.is_some() {
        let message = format!(
            "pod {wanted} is terminating already; `kubectl describe pod -n {namespace} {name}` says what holds it"
        );
        return refused(WordFault::NothingToDo, message);
    }
    if rules.forced.iter().any(|forced| forced.pod == pod.object) {
        let message = format!("pod {wanted} of {machine} is deleted already, as was said before, once its turn comes");
        return refused(WordFault::NothingToDo, message);
    }
    if rules.forced.len() >= FORCED_MAX {
        let message = format!("at most {FORCED_MAX} pods of a machine are deleted in one turn");
        return refused(WordFault::TooManyPods, message);
    }
    Ok(pod.object.clone())
}

/// Is the machine's node being drained, or is the machine deferred because it cannot be?
fn is_in_its_turn(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), NotForced> {
    let machine = &view.row.name;
    let refused = |message| Err(NotForced { fault: WordFault::NotDraining, message });
    let Some(mine) = view.update() else {
        return refused(format!("{machine} is in no update, and its Kubernetes node is not drained"));
    };
    if mine.renewal.is_some() {
        return refused(format!(
            "{machine} renews pods of DaemonSets, and its Kubernetes node is not drained for that"
        ));
    }
    match Participant::of(snapshot, view).map(Participant::state) {
        Some(TurnState::Returning { .. } | TurnState::GivingBack { .. }) => {
            return refused(format!("{machine} is being given back, and its Kubernetes node is not drained any more"));
        }
        Some(TurnState::Out) => {
            return refused(format!("{machine} is out of service, and its Kubernetes node is drained"));
        }
        _ => {}
    }
    let draining = matches!(row(view), Some(KubernetesTarget::Node { .. }));
    let deferred = mine.deferral.as_ref().is_some_and(|deferral| deferral.cause == DeferralCause::Undrainable);
    if draining || (deferred && view.row.slot.is_none()) {
        return Ok(());
    }
    refused(format!(
        "the Kubernetes node of {machine} is not being drained, and {machine} is not deferred as \
         KubernetesUndrainable; `musterctl describe machine {machine}` says what it waits for"
    ))
}

/// The pods that an operator could have meant.
fn candidates(load: &NodeLoad) -> String {
    let leaving = eviction::leaving(load).filter(|pod| pod.deletion_s.is_none());
    let names: Vec<String> = leaving.map(|pod| eviction::name_of(&pod.object)).collect();
    match names.len() {
        0 => "no pod has to leave it".to_owned(),
        count if count > NAMES_MAX => {
            let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("these have to leave: {shown} and {} more", count - NAMES_MAX)
        }
        _ => format!("these have to leave: {}", names.join(", ")),
    }
}
