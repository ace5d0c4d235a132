//! What a simulated Kubernetes observes for the invariants in `invariants/kubernetes.rs`: the true state of its nodes
//! and pods whenever the coordinator decides, asks, or changes something.

use std::collections::{BTreeMap, BTreeSet};

use muster_coordinator::{
    core::KubernetesQuestion,
    facts::{
        Facts, KubernetesTarget, MachineRow,
        kubernetes::{KubernetesOp, NodeRef},
    },
};
use muster_proto::model::{MachineName, MachineType, SwarmId};

use super::{
    Call, World,
    cluster::{Cluster, Node, Owner, Pod},
};
use crate::{
    invariants::{Violation, maintenance::accepts},
    sim::manifest,
};

/// Maximum age of what the coordinator relies on when it decides.
const SEEN_AGO_MS: u64 = 11_000;
/// Time after a cordon in which the scheduler may still bind a pod to the node.
pub(super) const BIND_MS: u64 = 1_500;
/// Maximum age of a permit's conditions when something starts under it.
const PERMITTED_AGO_MS: u64 = 75_000;
/// Age from which on an operator's uncordon of a node that is being drained must have been noticed.
const LONG_AGO_MS: u64 = 600_000;

/// Observations.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// Number of the newest permit of each machine.
    permits: BTreeMap<MachineName, u64>,
    /// Machines whose maintenance is requested.
    requests: BTreeSet<MachineName>,
    /// Machines that leave for good.
    pub(super) leaving: super::removing::Leaving,
    /// Nodes, by UID, from which pods of an application were evicted that are not back.
    taken: BTreeSet<(String, usize)>,
}

fn permits(facts: &Facts) -> BTreeMap<MachineName, u64> {
    let rows = facts.machines.values().filter(|row| !row.needs_review);
    rows.filter_map(|row| Some((row.name.clone(), row.update.as_ref()?.permit.as_ref()?.number))).collect()
}

/// Machines whose maintenance is requested.
fn requests(facts: &Facts) -> BTreeSet<MachineName> {
    let requested = |row: &MachineRow| row.update.as_ref().is_some_and(|mine| mine.request.is_some());
    facts.machines.values().filter(|row| requested(row)).map(|row| row.name.clone()).collect()
}

/// The recorded node of a machine's drain.
pub(super) fn target(row: &MachineRow) -> Option<&KubernetesTarget> {
    Some(&row.update.as_ref()?.drains.kubernetes.as_ref()?.target)
}

impl Cluster {
    /// What makes it wrong to disturb this node's machine. What happened this recently may be unknown.
    fn in_the_way(&self, node: &Node, recent_ms: u64) -> Option<String> {
        let recent = |at: u64| at + recent_ms > self.at;
        if node.touched || recent(node.made_at) || node.uncordoned_at.is_some_and(recent) {
            return None;
        }
        if !node.unschedulable {
            return Some(format!("node {} is schedulable", node.name));
        }
        // The scheduler may notice a cordon late.
        let known = |pod: &&Pod| pod.bound_at < node.cordoned_at + BIND_MS || !recent(pod.bound_at);
        if let Some(pod) = self.leaving(&node.uid).find(known) {
            return Some(format!("pod {} is on node {} since {}", pod.name, node.name, pod.bound_at));
        }
        let attached = node.detaching.iter().find(|(_, until)| *until > self.at);
        let attached = attached.filter(|_| self.policy.wait_for_volumes);
        attached.map(|(volume, _)| format!("volume {volume} is attached to node {}", node.name))
    }

    /// Applications with a budget whose pods on this node have to leave. A pod that came this recently may be unknown,
    /// and so may one that came after the coordinator's last list of them. One that tolerates the cordon may come to a
    /// machine that was drained and has failed since: it is not evicted.
    fn budgeted(&self, node: &Node, listed_at: u64) -> BTreeSet<usize> {
        let stays = |pod: &Pod| node.unschedulable && pod.bound_at > node.cordoned_at + BIND_MS;
        let old = |pod: &Pod| pod.bound_at + SEEN_AGO_MS < self.at && pod.bound_at < listed_at;
        let known = self.leaving(&node.uid).filter(|pod| old(pod) && !stays(pod));
        let with_budget = |n: &usize| self.apps.get(*n).is_some_and(|app| app.budget.is_some());
        let apps = known.filter_map(|pod| if let Owner::App(n) = pod.owner { Some(n) } else { None });
        apps.filter(with_budget).collect()
    }

    /// The node at exactly this version.
    fn at_version(&self, wanted: &NodeRef) -> Option<&Node> {
        self.node(&wanted.uid).filter(|node| node.version.to_string() == wanted.resource_version)
    }
}

impl World {
    /// A restarted coordinator: what an earlier one decided was right or wrong then.
    pub(crate) fn kubernetes_decided_before(&mut self) {
        let Some(facts) = self.coordinator.as_ref().map(|core| core.facts()) else { return };
        let Some(kubernetes) = &mut self.kubernetes else { return };
        kubernetes.seen.permits = permits(facts);
        kubernetes.seen.requests = requests(facts);
        kubernetes.seen.leaving = super::removing::leaving(facts);
    }

    /// After every step of the coordinator.
    pub(crate) fn kubernetes_is_right(&mut self) -> Result<(), Violation> {
        self.advance_kubernetes();
        self.note_consents();
        let Some(facts) = self.coordinator.as_ref().map(|core| core.facts()) else { return Ok(()) };
        let Some(kubernetes) = self.kubernetes.as_ref().filter(|kubernetes| kubernetes.founded) else {
            return Ok(());
        };
        let (permits, requests, now_ms) = (permits(facts), requests(facts), self.now().wall_ms);
        let known = facts.clusters.get(&manifest::cluster_name()).and_then(|row| row.kubernetes_uid.as_ref());
        self.watcher.is_pinned(known, &kubernetes.uid)?;
        for node in &kubernetes.cluster.nodes {
            let row = self.machines.get(node.index).and_then(|machine| facts.by_id(machine.id));
            let Some(row) = row.filter(|row| !row.revoked && row.update.is_some()) else { continue };
            let permitted =
                permits.get(&row.name).filter(|number| kubernetes.seen.permits.get(&row.name) != Some(number));
            let leaves = row.update.as_ref().and_then(|mine| mine.maintenance?.since_ms) == Some(now_ms);
            if permitted.is_some() || leaves {
                self.watcher.pods_have_left(&row.name, kubernetes.cluster.in_the_way(node, SEEN_AGO_MS))?;
                self.watcher.controls_are_ready(&row.name, self.lacking_control(facts, row))?;
                self.everybody_consents(row, node)?;
            }
            let disruptive = row.update.as_ref().is_some_and(|mine| mine.disruptive);
            if disruptive && requests.contains(&row.name) && !kubernetes.seen.requests.contains(&row.name) {
                self.can_be_drained(node, "requested")?;
            }
        }
        if let Some(kubernetes) = &mut self.kubernetes {
            (kubernetes.seen.permits, kubernetes.seen.requests) = (permits, requests);
        }
        self.nodes_went_first()?;
        self.kubernetes_nodes_are_given_back()
    }

    /// Another control machine whose kubelet, API server or etcd has not been ready for long enough to be known.
    fn lacking_control(&self, facts: &Facts, row: &MachineRow) -> Option<String> {
        let cluster = &self.kubernetes.as_ref()?.cluster;
        let rollout = row.rollout.as_ref().and_then(|name| facts.rollouts.get(name)?.update.as_ref());
        let accepted = rollout.is_some_and(|update| update.accept_control_plane_downtime) || accepts(row);
        if accepted || row.removal.is_some() || row.spec.machine_type != MachineType::Control {
            return None;
        }
        let counts = |other: &MachineRow| {
            let deployed = other.ready_at.is_some() && !other.revoked && other.removal.is_none();
            deployed && other.name != row.name && other.spec.machine_type == MachineType::Control
        };
        let lacks = |node: &&Node| node.lacking_since.is_some_and(|since| since + SEEN_AGO_MS < self.at);
        let known = |node: &&Node| node.made_at + SEEN_AGO_MS < self.at && !node.touched;
        let found = cluster.nodes.iter().filter(known).filter(lacks).find(|node| {
            let machine = self.machines.get(node.index).and_then(|machine| facts.by_id(machine.id));
            machine.is_some_and(|machine| counts(machine))
        });
        found.map(|node| node.name.clone())
    }

    /// No machine is requested or cordoned while a pod on it can never leave.
    fn can_be_drained(&self, node: &Node, what: &str) -> Result<(), Violation> {
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        let since = node.undrainable_since.filter(|since| since + SEEN_AGO_MS < self.at);
        let pod = kubernetes.cluster.undrainable(&node.uid).filter(|pod| !kubernetes.words.is_said_now(&pod.name));
        match since.zip(pod) {
            Some((since, pod)) => Err(self.watcher.cannot_be_drained(&node.name, what, &pod.name, self.at - since)),
            None => Ok(()),
        }
    }

    /// A disruptive item starts.
    pub(crate) fn kubernetes_is_disturbed(&mut self, index: usize, permitted: bool) -> Result<(), Violation> {
        if !permitted {
            return Ok(());
        }
        self.advance_kubernetes();
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        let Some(node) = kubernetes.cluster.node_of(index) else { return Ok(()) };
        let Some(machine) = self.machines.get(index) else { return Ok(()) };
        self.watcher.pods_have_left(&machine.name, kubernetes.cluster.in_the_way(node, PERMITTED_AGO_MS))
    }

    /// A drain of the machine's Swarm node is ordered: its pods have left before.
    pub(crate) fn kubernetes_is_drained_first(&mut self, node: &SwarmId) -> Result<(), Violation> {
        self.advance_kubernetes();
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        let found = self.swarms.iter().flat_map(|swarm| &swarm.nodes).find(|known| known.id == *node);
        let Some(index) = found.map(|node| node.index) else { return Ok(()) };
        let Some(node) = kubernetes.cluster.node_of(index) else { return Ok(()) };
        let left = kubernetes.cluster.in_the_way(node, LONG_AGO_MS);
        left.map_or(Ok(()), |left| Err(self.watcher.drained_out_of_order(&node.name, &left)))
    }

    /// Nodes of machines without a drain are as their operators want them.
    fn kubernetes_nodes_are_given_back(&mut self) -> Result<(), Violation> {
        let Some(facts) = self.coordinator.as_ref().map(|core| core.facts()) else { return Ok(()) };
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        for node in &mut kubernetes.cluster.nodes {
            let Some(machine) = self.machines.get(node.index) else { continue };
            let row = facts.by_id(machine.id).filter(|row| !row.revoked);
            node.touched |= row.is_none() && node.drained_for.is_some();
            let Some(row) = row else { continue };
            let departs = row.removal.as_ref().is_some_and(|removal| removal.departure.is_some());
            match target(row) {
                Some(KubernetesTarget::Node { uid, .. }) if *uid == node.uid => node.touched = false,
                Some(_) => {}
                None if node.touched || departs || row.needs_review || row.owed_cordon.is_some() => {}
                None => {
                    let state = (node.unschedulable, node.drained_for.as_deref());
                    self.watcher.node_is_as_it_was(&node.name, node.wanted_cordoned, state)?;
                    self.watcher.scale_down_is_as_it_was(&node.name, &node.wanted_scale_down, &node.scale_down)?;
                }
            }
        }
        Ok(())
    }

    /// At the end nothing of Muster's is left on any node, whatever became of the records meanwhile.
    pub(crate) fn no_cordon_is_left(&mut self) -> Result<(), Violation> {
        self.advance_kubernetes();
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        for node in &kubernetes.cluster.nodes {
            let state = (node.unschedulable, node.drained_for.as_deref());
            self.watcher.node_is_as_it_was(&node.name, node.wanted_cordoned, state)?;
            self.watcher.scale_down_is_as_it_was(&node.name, &node.wanted_scale_down, &node.scale_down)?;
        }
        Ok(())
    }

    /// Checks a question when it is asked: what the coordinator relies on may be a few seconds old.
    pub(super) fn question_is_right(&mut self, question: &KubernetesQuestion) -> Result<(), Violation> {
        let Some(kubernetes) = &self.kubernetes else { return Ok(()) };
        let cluster = &kubernetes.cluster;
        let Some(about) = question.about.machine() else { return Ok(()) };
        let Some(row) = self.facts().and_then(|facts| facts.machines.get(about)) else { return Ok(()) };
        match &question.op {
            KubernetesOp::Cordon { node, .. } => {
                let Some(node) = cluster.at_version(node).filter(|node| !node.unschedulable) else { return Ok(()) };
                self.can_be_drained(node, "cordoned")?;
                let uncordoned = matches!(target(row), Some(KubernetesTarget::Node { cordoned: true, .. }));
                self.watcher.operator_is_respected(&node.name, uncordoned)?;
                if let Some((other, app)) = self.shares_a_budget(node) {
                    return Err(self.watcher.shares_a_budget(&node.name, &other, &app));
                }
            }
            KubernetesOp::Uncordon { node, .. } => {
                let Some(node) = cluster.at_version(node) else { return Ok(()) };
                let boot_id = row.host.as_ref().map(|host| host.boot_id.as_str()).unwrap_or_default();
                let back = node.ready && node.boot_id == boot_id;
                let disturbed = match &row.update {
                    Some(mine) => mine.disturbed(),
                    None => node.unschedulable,
                };
                self.watcher.kubelet_is_back(&node.name, back || !disturbed)?;
            }
            KubernetesOp::Delete { pod } if !kubernetes.words.has(about, pod) => {
                return Err(self.watcher.deletes_another(about, &format!("{} ({})", pod.name, pod.uid)));
            }
            KubernetesOp::Evict { .. } | KubernetesOp::Delete { .. } => {
                let Some(KubernetesTarget::Node { uid, .. }) = target(row) else {
                    return Err(self.watcher.evicts_elsewhere(about, "a pod, and its node is not recorded"));
                };
                let recent = |at: u64| at + SEEN_AGO_MS > self.at;
                let open = |node: &&Node| !node.unschedulable && !node.uncordoned_at.is_some_and(recent);
                if cluster.node(uid).filter(open).is_some() {
                    return Err(self.watcher.evicts_elsewhere(about, "pods from a schedulable node"));
                }
            }
            KubernetesOp::Nodes
            | KubernetesOp::Node { .. }
            | KubernetesOp::Load { .. }
            | KubernetesOp::DeleteNode { .. }
            | KubernetesOp::ControlPlane { .. }
            | KubernetesOp::Handshake { .. }
            | KubernetesOp::Requests { .. }
            | KubernetesOp::DaemonSets { .. }
            | KubernetesOp::Addons { .. }
            | KubernetesOp::Apply { .. }
            | KubernetesOp::Event { .. } => {}
        }
        Ok(())
    }

    /// When the coordinator asked last for the pods on a node, and had an answer.
    fn pods_listed_at(&self, node: &Node) -> u64 {
        let live = || self.facts()?.live.machines.get(&self.machines.get(node.index)?.name);
        live().and_then(|live| live.kubernetes.load.as_ref()).map_or(0, |load| load.at_mono_ms)
    }

    /// Another node whose drain takes pods from a budget that selects pods on this one.
    fn shares_a_budget(&self, node: &Node) -> Option<(String, String)> {
        let kubernetes = self.kubernetes.as_ref()?;
        let cluster = &kubernetes.cluster;
        let ours = cluster.budgeted(node, u64::MAX);
        let drains = |other: &Node| {
            let machine = self.machines.get(other.index);
            let row = machine.and_then(|machine| self.facts()?.by_id(machine.id)).filter(|row| !row.revoked);
            other.uid != node.uid && other.drained_for.is_some() && row.is_some_and(|row| target(row).is_some())
        };
        for other in cluster.nodes.iter().filter(|other| drains(other)) {
            let mut taken = cluster.budgeted(other, self.pods_listed_at(other));
            let away = kubernetes.seen.taken.iter().filter(|(uid, n)| *uid == other.uid && cluster.away(*n) > 0);
            taken.extend(away.map(|(_, n)| *n));
            if let Some(app) = taken.intersection(&ours).next().and_then(|n| cluster.apps.get(*n)) {
                return Some((other.name.clone(), app.name.clone()));
            }
        }
        None
    }

    /// Checks a change when it reaches the API server: it concerns the machine's own node.
    pub(super) fn change_is_right(&mut self, call: &Call) -> Result<(), Violation> {
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        let (KubernetesOp::Cordon { node, .. } | KubernetesOp::Uncordon { node, .. }) = &call.op else {
            return Ok(());
        };
        let Some(about) = call.about.machine() else { return Ok(()) };
        // What an earlier drain of this node has taken is not taken by this one.
        kubernetes.seen.taken.retain(|(uid, _)| *uid != node.uid);
        let machine = kubernetes.cluster.node(&node.uid).and_then(|node| self.machines.get(node.index));
        self.watcher.is_own_node(about, machine.map(|machine| &machine.name))
    }

    /// Nothing is to be changed in another cluster.
    pub(super) fn change_is_in_cluster(&self, call: &Call) -> Result<(), Violation> {
        let Some(about) = call.about.machine() else { return Ok(()) };
        match &call.op {
            KubernetesOp::Cordon { node, .. } | KubernetesOp::Uncordon { node, .. }
                if node.uid.starts_with("other-") =>
            {
                Err(self.watcher.changes_another_cluster(about, &node.uid))
            }
            KubernetesOp::DeleteNode { uid, .. } if uid.starts_with("other-") => {
                Err(self.watcher.changes_another_cluster(about, uid))
            }
            _ => Ok(()),
        }
    }

    /// An eviction was accepted. `counted`: the pod was healthy, and its budget was reduced for it.
    pub(super) fn eviction_is_right(&mut self, call: &Call, pod: &Pod, counted: bool) -> Result<(), Violation> {
        let (Some(kubernetes), Some(about)) = (&mut self.kubernetes, call.about.machine()) else { return Ok(()) };
        let cluster = &kubernetes.cluster;
        if !cluster.must_leave(pod) {
            return Err(self.watcher.evicts_elsewhere(about, &format!("pod {}, which stays", pod.name)));
        }
        let node = pod.node.as_ref().and_then(|uid| cluster.node(uid));
        let machine = node.and_then(|node| self.machines.get(node.index));
        if machine.is_none_or(|machine| machine.name != *about) {
            let what = format!("pod {} of node {:?}", pod.name, node.map(|node| &node.name));
            return Err(self.watcher.evicts_elsewhere(about, &what));
        }
        let Owner::App(n) = pod.owner else { return Ok(()) };
        let Some(app) = cluster.apps.get(n) else { return Ok(()) };
        if counted && cluster.away(n) > app.may_be_away() {
            let (away, allowed) = (cluster.away(n), app.may_be_away());
            return Err(self.watcher.takes_too_many(&app.name, away, allowed));
        }
        kubernetes.seen.taken.retain(|(_, n)| cluster.away(*n) > 0);
        kubernetes.seen.taken.extend(pod.node.clone().map(|uid| (uid, n)));
        Ok(())
    }
}
