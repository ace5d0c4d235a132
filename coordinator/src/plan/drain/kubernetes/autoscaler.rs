//! The cluster-autoscaler leaves a node in its drain alone: the cordon sets the annotation by which it does, and notes
//! the former value beside it, on the node. So it comes back with the cordon, whatever became of the record meanwhile.

use muster_proto::seeded_bug::seeded_bug;

use crate::facts::kubernetes::{KubernetesNode, SCALE_DOWN_IS_DISABLED, ScaleDownBefore};

/// The value that the cordon notes: the one of operators. An earlier note counts while Muster's value is there.
#[must_use]
pub fn noted(node: &KubernetesNode) -> ScaleDownBefore {
    let earlier = node.scale_down.before.as_ref().filter(|_| is_ours(node));
    earlier.cloned().unwrap_or_else(|| ScaleDownBefore(node.scale_down.now.clone()))
}

/// The value that the node gets back with the cordon. None: it stays as it is, for an operator changed it meanwhile.
#[must_use]
pub fn given_back(node: &KubernetesNode) -> Option<ScaleDownBefore> {
    // Seeded bug: leave what the cordon set.
    if seeded_bug("keep-scale-down-disabled") {
        return None;
    }
    node.scale_down.before.clone().filter(|_| is_ours(node))
}

/// Is it the value that Muster's cordon set?
fn is_ours(node: &KubernetesNode) -> bool {
    node.scale_down.now.as_deref() == Some(SCALE_DOWN_IS_DISABLED)
}
