//! Faults of a simulated Kubernetes, and what operators do about it with kubectl.

use muster_coordinator::{core::Request, facts::kubernetes::KubernetesOp};
use muster_proto::model::MachineName;

use super::{World, cluster::Node};
use crate::{invariants::Violation, sim::manifest};

/// Permille of events with a late cordon on its way at which an operator aborts the update.
const ABORTS_PERMILLE: u64 = 400;

impl World {
    /// A fault of the cluster, or an operator with kubectl. Uses random numbers of its own.
    pub(crate) fn kubernetes_fault(&mut self) -> Result<(), Violation> {
        self.abort_before_cordon()?;
        self.force_a_pod()?;
        self.annotate_for_autoscaler();
        self.handshake_fault()?;
        let (at, often) = (self.at, self.plan.fault_permille);
        let Some(kubernetes) = self.kubernetes.as_mut().filter(|kubernetes| kubernetes.founded) else { return Ok(()) };
        let dice = &mut kubernetes.dice;
        if !dice.permille(often) {
            return Ok(());
        }
        let for_ms = dice.between(2_000, 30_000);
        let what = dice.between(0, 15);
        let count = u64::try_from(kubernetes.cluster.nodes.len().max(1)).unwrap_or(1);
        let mut place = usize::try_from(dice.between(0, count - 1)).unwrap_or(0);
        let drained = kubernetes.cluster.nodes.iter().position(|node| node.drained_for.is_some());
        if let Some(drained) = drained.filter(|_| dice.permille(500)) {
            place = drained;
        }
        let pinned = self.coordinator.as_ref().is_some_and(|core| {
            let row = core.facts().clusters.get(&manifest::cluster_name());
            row.is_some_and(|row| row.kubernetes_uid.is_some())
        });
        let trouble = &mut kubernetes.trouble;
        let counted = match what {
            0 => {
                trouble.down_until = at + for_ms;
                "an API server was unreachable"
            }
            1 => {
                let node = kubernetes.cluster.nodes.get_mut(place);
                node.map_or("there was no node", |node| node.part_is_down(at, for_ms))
            }
            2 => {
                trouble.unauthorized_until = at + for_ms;
                "credentials were rejected for a while"
            }
            3 => {
                trouble.forbidden_until = at + for_ms;
                "a right was missing for a while"
            }
            4 | 5 if !pinned => return Ok(()),
            4 | 5 => {
                trouble.foreign_until = at + for_ms;
                "another cluster was behind the address for a while"
            }
            6 => return self.make_node_anew(place),
            7..=13 => return self.kubectl(place),
            14 => {
                self.relax_kubernetes();
                return Ok(());
            }
            _ if drained.is_some() && dice.permille(300) => {
                let index = drained.and_then(|place| kubernetes.cluster.nodes.get(place)).map(|node| node.index);
                self.count("a machine was replaced while its Kubernetes node was cordoned");
                return index.map_or(Ok(()), |index| self.replace(index));
            }
            _ => {
                let n = kubernetes.dice.between(0, 4);
                kubernetes.cluster.tighten(usize::try_from(n).unwrap_or(0));
                "operators tightened a disruption budget"
            }
        };
        self.count(counted);
        Ok(())
    }

    /// An operator aborts the update while a cordon is still to be carried out.
    fn abort_before_cordon(&mut self) -> Result<(), Violation> {
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        let late = kubernetes.calls.values().any(|call| call.is_late && matches!(call.op, KubernetesOp::Cordon { .. }));
        if !late || !kubernetes.dice.permille(ABORTS_PERMILLE) {
            return Ok(());
        }
        let rollout = self.facts().and_then(|facts| facts.open_rollout(&manifest::cluster_name()));
        let Some(rollout) = rollout.map(|rollout| rollout.name.clone()) else { return Ok(()) };
        if self.operator(Request::Abort { rollout })?.is_ok() {
            self.count("an update was aborted while a cordon was late");
        }
        Ok(())
    }

    /// An operator cordons or uncordons a node.
    fn kubectl(&mut self, place: usize) -> Result<(), Violation> {
        self.advance_kubernetes();
        let at = self.at;
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        let (choice, version) = (kubernetes.dice.between(0, 9), kubernetes.cluster.number());
        let Some(node) = kubernetes.cluster.nodes.get_mut(place) else { return Ok(()) };
        node.version = version;
        let counted = match (node.unschedulable, choice) {
            (true, 0..=4) if node.drained_for.is_some() => {
                (node.keep_cordoned, node.wanted_cordoned) = (true, true);
                "an operator kept a node cordoned"
            }
            (true, _) => {
                node.uncordon_by_hand(at);
                "an operator uncordoned a node"
            }
            (false, _) => {
                (node.unschedulable, node.cordoned_at) = (true, at);
                // Over Muster's annotation it counts as Muster's cordon.
                node.wanted_cordoned = node.drained_for.is_none();
                "an operator cordoned a node"
            }
        };
        self.count(counted);
        Ok(())
    }

    /// A node object is deleted, and its kubelet registers another.
    fn make_node_anew(&mut self, place: usize) -> Result<(), Violation> {
        self.advance_kubernetes();
        let at = self.at;
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        let Some((index, uid)) = kubernetes.cluster.nodes.get(place).map(|node| (node.index, node.uid.clone())) else {
            return Ok(());
        };
        let until = at + kubernetes.dice.between(500, 20_000);
        kubernetes.absent_until.insert(index, until);
        kubernetes.cluster.delete_node(&uid);
        self.count("a node was deleted and made anew");
        Ok(())
    }

    /// The faults are over.
    pub(crate) fn calm_kubernetes(&mut self) {
        let Some(kubernetes) = &mut self.kubernetes else { return };
        kubernetes.trouble = super::Trouble::default();
        kubernetes.absent_until.clear();
        for node in &mut kubernetes.cluster.nodes {
            (node.back_at, node.api_down_until, node.etcd_down_until) = (None, 0, 0);
            node.held_until = node.held_until.map(|_| 0);
        }
    }

    /// Operators change pods and budgets so that every node can be drained. False: there was nothing to do.
    pub(crate) fn relax_kubernetes(&mut self) -> bool {
        self.advance_kubernetes();
        let changed = self.kubernetes.as_mut().is_some_and(|kubernetes| kubernetes.cluster.relax());
        if changed {
            self.count("operators relaxed disruption budgets");
        }
        changed
    }

    /// Operators resolve what keeps drains: budgets, finalizers, and nodes that they uncordoned. False: there was
    /// nothing to do.
    pub(crate) fn mend_kubernetes(&mut self, uncordoned: &[MachineName]) -> bool {
        let mut mended = self.mend_handshake() | self.relax_kubernetes();
        let (at, machines) = (self.at, &self.machines);
        let Some(kubernetes) = &mut self.kubernetes else { return mended };
        let version = kubernetes.cluster.number();
        for node in &mut kubernetes.cluster.nodes {
            let named = machines.get(node.index).is_some_and(|machine| uncordoned.contains(&machine.name));
            if named && !node.unschedulable {
                (node.unschedulable, node.cordoned_at, node.version) = (true, at, version);
                node.wanted_cordoned = node.drained_for.is_none();
                mended = true;
            }
        }
        mended
    }

    /// A restored store lacks later changes of the nodes.
    pub(crate) fn nobody_knows_of_kubernetes(&mut self) {
        let Some(kubernetes) = &mut self.kubernetes else { return };
        // It may not know the cluster.
        kubernetes.trouble.foreign_until = 0;
        kubernetes.cluster.nodes.iter_mut().for_each(|node| node.touched = true);
        self.annotations_are_forgotten();
    }
}

impl Node {
    /// Its API server is not ready, or its etcd member not healthy.
    fn part_is_down(&mut self, at: u64, for_ms: u64) -> &'static str {
        let until = at + 2 * for_ms;
        if for_ms.is_multiple_of(2) {
            self.etcd_down_until = until;
            return "the etcd member of one machine was not healthy";
        }
        self.api_down_until = until;
        "the API server of one machine was not ready"
    }

    fn uncordon_by_hand(&mut self, at: u64) {
        (self.unschedulable, self.wanted_cordoned, self.keep_cordoned) = (false, false, false);
        self.uncordoned_at = Some(at);
    }
}
