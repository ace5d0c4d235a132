//! Operators who say that a pod is deleted, and what is checked about it: only such pods are, each by its UID, from the
//! unschedulable node of the machine in its turn.

use std::collections::BTreeSet;

use muster_coordinator::{
    core::Request,
    facts::{
        DeferralCause, KubernetesTarget, MachineRow,
        kubernetes::{Deletion, PodName, PodRef},
    },
};
use muster_proto::model::MachineName;

use super::{Call, World, checks::target, cluster::NAMESPACE};
use crate::{invariants::Violation, rng::Rng};

/// Permille of events at which an operator says it of a pod that keeps a machine.
const WORDS_PERMILLE: u64 = 150;
/// Permille of events at which an operator sets the annotation of the cluster-autoscaler.
const ANNOTATES_PERMILLE: u64 = 10;
/// Permille of words about a pod that could be evicted as well.
const NEEDLESS_PERMILLE: u64 = 100;
/// Permille of deletions right before which somebody replaces the pod.
const REPLACED_PERMILLE: u64 = 300;

/// What operators said, and the random numbers by which they do.
#[derive(Clone)]
pub(super) struct Words {
    dice: Rng,
    /// Machines, and UIDs of their pods.
    said: BTreeSet<(MachineName, String)>,
    /// The word that is being said: machine, name of the pod, and number of the newest UID. The deletion may follow in
    /// the same step.
    saying: Option<(MachineName, String, u64)>,
}

impl Words {
    /// Separate random numbers: the other events stay the same.
    pub(super) fn new(dice: &Rng) -> Self {
        Self { dice: Rng::new(!dice.clone().next()), said: BTreeSet::new(), saying: None }
    }

    /// The machine's node was given back.
    pub(super) fn end(&mut self, machine: &MachineName) {
        self.said.retain(|(of, _)| of != machine);
    }

    /// Is it being said of a pod of this name? Its machine may be cordoned in the same step.
    pub(super) fn is_said_now(&self, pod: &str) -> bool {
        self.saying.as_ref().is_some_and(|(_, name, _)| name == pod)
    }

    pub(super) fn has(&self, machine: &MachineName, pod: &PodRef) -> bool {
        let is_said_now = self
            .saying
            .as_ref()
            .is_some_and(|(of, name, newest)| (of, name) == (machine, &pod.name) && number_of(&pod.uid) <= *newest);
        is_said_now || self.said.contains(&(machine.clone(), pod.uid.clone()))
    }
}

/// The number in a pod's UID. A later pod has a higher one.
fn number_of(uid: &str) -> u64 {
    uid.strip_prefix("pod-uid-").and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}

/// May an operator want to delete a pod of this machine?
fn is_kept(row: &MachineRow) -> bool {
    let deferral = row.update.as_ref().and_then(|mine| mine.deferral.as_ref());
    let undrainable = deferral.is_some_and(|deferral| deferral.cause == DeferralCause::Undrainable);
    undrainable || matches!(target(row), Some(KubernetesTarget::Node { .. }))
}

impl World {
    /// An operator says that a pod is deleted.
    pub(super) fn force_a_pod(&mut self) -> Result<(), Violation> {
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        if !kubernetes.words.dice.permille(WORDS_PERMILLE) {
            return Ok(());
        }
        let needless = kubernetes.words.dice.permille(NEEDLESS_PERMILLE);
        self.advance_kubernetes();
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        let facts = self.coordinator.as_ref().map(|core| core.facts());
        let pod_of = |row: &MachineRow| {
            let index = self.machines.iter().position(|machine| machine.name == row.name)?;
            let node = kubernetes.cluster.node_of(index)?;
            let kept = kubernetes.cluster.undrainable(&node.uid);
            let pod = kept.or_else(|| kubernetes.cluster.leaving(&node.uid).next().filter(|_| needless))?;
            Some((row.name.clone(), pod.name.clone()))
        };
        let kept = facts.iter().flat_map(|facts| facts.machines.values()).filter(|row| is_kept(row));
        let candidates: Vec<(MachineName, String)> = kept.filter_map(|row| pod_of(row)).collect();
        let newest = kubernetes.cluster.newest();
        let mut dice = kubernetes.words.dice.clone();
        let chosen = dice.pick(&candidates).cloned();
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        kubernetes.words.dice = dice;
        let Some((machine, pod)) = chosen else { return Ok(()) };
        let named = PodName { namespace: NAMESPACE.to_owned(), name: pod.clone() };
        let request = Request::DrainForce { machine: machine.clone(), pod: named };
        kubernetes.words.saying = Some((machine.clone(), pod.clone(), newest));
        let answer = self.operator(request)?;
        if let Some(kubernetes) = &mut self.kubernetes {
            kubernetes.words.saying = None;
        }
        if answer.is_err() {
            self.count("a word about a pod was refused");
            return Ok(());
        }
        self.count("an operator said that a pod is deleted");
        self.is_meant(&machine, &pod, newest)
    }

    /// An operator sets the annotation of the cluster-autoscaler on a node, or removes it. On a node in its drain
    /// `true` says nothing new.
    pub(super) fn annotate_for_autoscaler(&mut self) {
        let Some(kubernetes) = &mut self.kubernetes else { return };
        if !kubernetes.words.dice.permille(ANNOTATES_PERMILLE) {
            return;
        }
        self.advance_kubernetes();
        let Some(kubernetes) = &mut self.kubernetes else { return };
        let (dice, version) = (&mut kubernetes.words.dice, kubernetes.cluster.number());
        let count = u64::try_from(kubernetes.cluster.nodes.len().max(1)).unwrap_or(1);
        let place = usize::try_from(dice.between(0, count - 1)).unwrap_or(0);
        let value = [None, Some("false"), Some("true")].get(usize::try_from(dice.between(0, 2)).unwrap_or(0)).copied();
        let value = value.flatten().map(str::to_owned);
        let Some(node) = kubernetes.cluster.nodes.get_mut(place) else { return };
        if node.scale_down.before.is_some() && value.as_deref() == Some("true") {
            return;
        }
        node.version = version;
        (node.scale_down.now, node.wanted_scale_down) = (value.clone(), value);
        self.count("an operator annotated a node for the autoscaler");
    }

    /// The record names a pod of this name that was there when the operator said so.
    fn is_meant(&mut self, machine: &MachineName, pod: &str, newest: u64) -> Result<(), Violation> {
        let row = self.facts().and_then(|facts| facts.machines.get(machine));
        let forced = row.and_then(|row| row.update.as_ref()?.forced_pods.last()).map(|forced| forced.pod.clone());
        let Some(PodRef { name, uid, .. }) = forced else { return Ok(()) };
        if name != pod || number_of(&uid) > newest {
            return Err(self.watcher.deletes_another(machine, &format!("{name} ({uid})")));
        }
        if let Some(kubernetes) = &mut self.kubernetes {
            kubernetes.words.said.insert((machine.clone(), uid.clone()));
            kubernetes.cluster.forced.insert(uid);
        }
        Ok(())
    }

    /// A deletion reaches the API server.
    pub(super) fn delete_pod(&mut self, call: &Call, pod: &PodRef) -> Result<Deletion, Violation> {
        let chaos = self.chaos;
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(Deletion::Gone) };
        if chaos && kubernetes.words.dice.permille(REPLACED_PERMILLE) {
            kubernetes.cluster.replace(&pod.name);
        }
        let (answer, deleted) = kubernetes.cluster.delete(pod);
        self.count(match &answer {
            Deletion::Accepted => "a forced pod was deleted",
            Deletion::Replaced => "a deletion met another pod",
            Deletion::Gone | Deletion::Forbidden(_) | Deletion::Refused(_) => "a forced pod was gone",
        });
        match (call.about.machine(), deleted.filter(|uid| *uid != pod.uid)) {
            (Some(about), Some(uid)) => Err(self.watcher.deletes_another(about, &uid)),
            _ => Ok(answer),
        }
    }
}
