//! What a look at a cluster's Kubernetes adds to the plan of an update.

pub mod check;

use muster_proto::{
    model::{ClusterName, Now},
    resource::{ForcedPod, Plan},
};

use super::{at, update};
use crate::{
    facts::{
        self, Facts, MachineRow,
        kubernetes::{ClusterLoad, KubernetesFailure, KubernetesNode, daemon_sets::DaemonSets},
    },
    plan::{
        Limits,
        drain::kubernetes::{eviction, forcing::DrainRules, identity},
        snapshot::{ClusterSnapshot, MachineView},
        update::renewal,
    },
};

/// Does the planned update disturb a machine, or renew pods?
#[must_use]
pub fn disturbs(plan: &Plan) -> bool {
    plan.update.as_ref().is_some_and(|update| {
        let renews = update.phases.iter().any(|phase| phase.name == update::RENEWAL);
        renews || update.machines.iter().any(|machine| machine.disruptive)
    })
}

/// Pods that are deleted in the machine's turn, as operators said.
pub(super) fn forced_pods(row: &MachineRow) -> Vec<ForcedPod> {
    let forced = row.update.iter().flat_map(|mine| &mine.forced_pods);
    let document = |forced: &facts::ForcedPod| ForcedPod {
        pod: eviction::name_of(&forced.pod),
        uid: forced.pod.uid.clone(),
        by: forced.by.clone(),
        since: at(forced.since_ms),
    };
    forced.map(document).collect()
}

/// Warns of machines that could not be drained if the update started now: the pod, and what keeps it.
pub fn warn(
    plan: &mut Plan,
    facts: &Facts,
    cluster: &ClusterName,
    looked: &Result<ClusterLoad, KubernetesFailure>,
    limits: &Limits,
    now: Now,
) {
    let Some(update) = plan.update.as_mut() else { return };
    let Some(snapshot) = ClusterSnapshot::of(facts, cluster, limits, now) else { return };
    let Some(spec) = &snapshot.spec.kubernetes else { return };
    let (nodes_with_load, daemon_sets) = match looked {
        Ok(ClusterLoad { cluster_uid, .. })
            if snapshot.cluster.kubernetes_uid.as_ref().is_some_and(|known| known != cluster_uid) =>
        {
            update.warnings.push(format!(
                "the kubeconfig leads to another Kubernetes cluster (kube-system has UID {cluster_uid})"
            ));
            return;
        }
        Ok(ClusterLoad { nodes, daemon_sets, .. }) => (nodes, daemon_sets),
        Err(failure) => {
            update.warnings.push(format!("the Kubernetes API server cannot be asked: {failure}"));
            return;
        }
    };
    let nodes: Vec<KubernetesNode> = nodes_with_load.iter().map(|(node, _)| node.clone()).collect();
    let why = |view: &MachineView<'_>| match identity::of(&snapshot, view, &nodes) {
        Err(blocked) => Some(blocked.message.trim_start_matches("Error: ").to_owned()),
        Ok(None) => None,
        Ok(Some(node)) => {
            let (_, load) = nodes_with_load.iter().find(|(known, _)| known.object.uid == node.object.uid)?;
            let kept = eviction::undrainable(load, &DrainRules::of_cluster(&spec.drain));
            kept.map(|kept| format!("it cannot be drained: {}", kept.why))
        }
    };
    let disturbed = update.machines.iter().filter(|machine| machine.disruptive);
    let warnings = disturbed.filter_map(|machine| {
        let view = snapshot.machines.iter().find(|view| view.row.name.as_str() == machine.name)?;
        Some(format!("{}: {}", machine.name, why(view)?))
    });
    let warnings: Vec<String> = warnings.chain(of_renewal(daemon_sets.as_ref())).collect();
    update.warnings.extend(warnings);
}

/// What would keep pods of DaemonSets from being renewed: one budget keeps them on every node.
fn of_renewal(looked: Option<&Result<DaemonSets, KubernetesFailure>>) -> Option<String> {
    match looked? {
        Err(failure) => Some(format!("the DaemonSets whose pods are renewed cannot be listed: {failure}")),
        Ok(found) => {
            if let Some(wanted) = found.unmatched.first() {
                return Some(format!("{}: the update would wait for one at its end", renewal::unmatched(wanted)));
            }
            let mut pods = found.sets.iter().flat_map(|set| set.pods.iter().map(move |pod| (set, pod)));
            pods.find_map(|(set, pod)| {
                let why = renewal::never_leaves(found, pod)?;
                Some(format!("DaemonSet {}: its pods cannot be renewed: {why}", set.name))
            })
        }
    }
}
