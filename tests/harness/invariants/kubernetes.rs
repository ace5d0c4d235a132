//! Invariants of the machines' Kubernetes. What is true there is observed by `sim/kubernetes/checks.rs`.

use muster_coordinator::facts::kubernetes::ScaleDown;
use muster_proto::model::MachineName;

use super::{Checked, Violation, Watcher};

impl Watcher {
    /// `pods`: rule 4. A machine is disturbed, or goes out of service, only while its node is unschedulable and without
    /// pods that have to leave, and without their volumes.
    pub fn pods_have_left(&self, name: &MachineName, left: Option<String>) -> Checked {
        left.map_or(Ok(()), |left| Err(self.violation("pods", format!("{name} is disturbed, and {left}"))))
    }

    /// `controls`: rule 1. A control machine is disturbed only while the kubelet and the API server of every other are
    /// ready, and its etcd member is healthy.
    pub fn controls_are_ready(&self, name: &MachineName, lacking: Option<String>) -> Checked {
        let violation = |other| {
            self.violation("controls", format!("{name} is disturbed, and the API server or etcd of {other} is down"))
        };
        lacking.map_or(Ok(()), |other| Err(violation(other)))
    }

    /// `order`: a Swarm node is drained after the machine's Kubernetes node.
    pub fn drained_out_of_order(&self, node: &str, left: &str) -> Violation {
        self.violation("order", format!("the Swarm node of {node} is drained, and {left}"))
    }

    /// `eviction`: only pods that have to leave are evicted, from the unschedulable node of the machine in its turn.
    pub fn evicts_elsewhere(&self, about: &MachineName, what: &str) -> Violation {
        self.violation("eviction", format!("the drain of {about} evicts {what}"))
    }

    /// `forced`: a pod is deleted only if an operator said so of this very pod, in the turn of its machine.
    pub fn deletes_another(&self, about: &MachineName, pod: &str) -> Violation {
        self.violation("forced", format!("the drain of {about} deletes pod {pod}, of which no operator said so"))
    }

    /// `eviction`: no more pods of an application are away because of evictions than its budget allows.
    pub fn takes_too_many(&self, app: &str, away: u32, allowed: u32) -> Violation {
        self.violation("eviction", format!("{away} pods of {app} are away; its budget allows {allowed}"))
    }

    /// `cordon`: rule 9. A node without a drain is as its operators want it, and has no annotation of Muster.
    pub fn node_is_as_it_was(&self, node: &str, wanted: bool, (is, drained_for): (bool, Option<&str>)) -> Checked {
        if is == wanted && drained_for.is_none() {
            return Ok(());
        }
        let detail =
            format!("node {node} has no drain; unschedulable: {is}, its operators want {wanted}, {drained_for:?}");
        Err(self.violation("cordon", detail))
    }

    /// `cordon`: the cluster-autoscaler may do with a node without a drain what its operators want.
    pub fn scale_down_is_as_it_was(&self, node: &str, wanted: &Option<String>, is: &ScaleDown) -> Checked {
        if is.now == *wanted && is.before.is_none() {
            return Ok(());
        }
        let detail = format!("node {node} has no drain; scale-down-disabled: {is:?}, its operators want {wanted:?}");
        Err(self.violation("cordon", detail))
    }

    /// `cordon`: a node that an operator uncordoned during its drain is not cordoned against the operator.
    pub fn operator_is_respected(&self, node: &str, uncordoned: bool) -> Checked {
        if !uncordoned {
            return Ok(());
        }
        Err(self.violation("cordon", format!("node {node} is cordoned again, and an operator uncordoned it")))
    }

    /// `back`: the node of a disturbed machine takes pods only when its kubelet is Ready in the machine's boot.
    pub fn kubelet_is_back(&self, node: &str, back: bool) -> Checked {
        if back {
            return Ok(());
        }
        Err(self.violation("back", format!("node {node} is uncordoned, and its kubelet is not back")))
    }

    /// `undrainable`: no machine is requested or cordoned while a pod on its node can never leave.
    pub fn cannot_be_drained(&self, node: &str, what: &str, pod: &str, for_ms: u64) -> Violation {
        self.violation("undrainable", format!("{node} is {what}; for {for_ms} ms, {pod} there can never leave"))
    }

    /// `shared`: no second node is cordoned while pods of one budget are leaving another, or not yet back.
    pub fn shares_a_budget(&self, node: &str, other: &str, app: &str) -> Violation {
        self.violation("shared", format!("{node} is cordoned, and {other} is being drained of pods of {app} as well"))
    }

    /// `consent`: rule 4. A machine is disturbed, or goes out of service, only while every controller in the cluster
    /// consents to the request that stands there.
    pub fn not_everybody_consents(&self, name: &MachineName, why: &str) -> Violation {
        self.violation("consent", format!("{name} is disturbed, and {why}"))
    }

    /// `request`: a request that stands for an open one is not removed.
    pub fn request_goes_early(&self, name: &MachineName, uid: &str) -> Violation {
        self.violation("request", format!("request {uid} is removed, and the maintenance of {name} is not over"))
    }

    /// `request`: nobody else's request is removed.
    pub fn removes_foreign_request(&self, uid: &str) -> Violation {
        self.violation("request", format!("request {uid} is removed, and Muster did not make it"))
    }

    /// `request`: none of ours is left at the end.
    pub fn request_is_left(&self, request: &str) -> Violation {
        self.violation("request", format!("everything is over, and there is {request}"))
    }

    /// `annotation`: rule 9. At the end nodes have the annotations that their operators want.
    pub fn annotations_are_not_as_they_were(&self, node: &str, detail: &str) -> Violation {
        self.violation("annotation", format!("node {node} {detail}"))
    }

    /// `node`: only the machine's own node is changed. None: it is gone.
    pub fn is_own_node(&self, about: &MachineName, machine: Option<&MachineName>) -> Checked {
        match machine.filter(|machine| *machine != about) {
            Some(machine) => Err(self.violation("node", format!("{about} changes the node of {machine}"))),
            None => Ok(()),
        }
    }

    /// `node`: of a removed machine, the recorded node is deleted, and none that was made anew since.
    pub fn deletes_another_node(&self, about: &MachineName, uid: &str) -> Violation {
        self.violation("node", format!("the removal of {about} deletes node {uid}, which the record does not name"))
    }

    /// `removal`: a machine that is gone has left no node in Kubernetes, unless it was removed by force.
    pub fn node_is_left(&self, about: &MachineName, uid: &str) -> Violation {
        self.violation("removal", format!("{about} is gone, and its Kubernetes node {uid} is there"))
    }

    /// `node`: nothing is changed in another cluster.
    pub fn changes_another_cluster(&self, about: &MachineName, uid: &str) -> Violation {
        self.violation("node", format!("{about} changes node {uid} of another cluster"))
    }

    /// `node`: the cluster that is believed is the one that was there first.
    pub fn is_pinned(&self, known: Option<&String>, uid: &str) -> Checked {
        match known.filter(|known| *known != uid) {
            Some(known) => Err(self.violation("node", format!("cluster {known} is believed; {uid} was there first"))),
            None => Ok(()),
        }
    }
}
