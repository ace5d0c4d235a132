//! What a look at a cluster's Kubernetes adds to the plan of an update.

pub mod check;

use muster_proto::{
    model::{ClusterName, Now},
    resource::{ForcedPod, Plan},
};

use super::at;
use crate::{
    facts::{
        self, Facts, MachineRow,
        kubernetes::{ClusterLoad, KubernetesFailure, KubernetesNode},
    },
    plan::{
        Limits,
        drain::kubernetes::{eviction, forcing::DrainRules, identity},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Does the planned update disturb a machine?
#[must_use]
pub fn disturbs(plan: &Plan) -> bool {
    plan.update.as_ref().is_some_and(|update| update.machines.iter().any(|machine| machine.disruptive))
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
    let nodes_with_load = match looked {
        Ok(ClusterLoad { cluster_uid, .. })
            if snapshot.cluster.kubernetes_uid.as_ref().is_some_and(|known| known != cluster_uid) =>
        {
            update.warnings.push(format!(
                "the kubeconfig leads to another Kubernetes cluster (kube-system has UID {cluster_uid})"
            ));
            return;
        }
        Ok(ClusterLoad { nodes, .. }) => nodes,
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
    let warnings: Vec<String> = warnings.collect();
    update.warnings.extend(warnings);
}
