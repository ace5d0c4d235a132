//! The node lifecycle controller: taints, and pods on nodes that are not ready.

use serde_json::{Value, json};

use super::super::{
    objects::{is_ready, is_terminating, list, set, text, unset},
    state::State,
    times,
};
use super::kubelet::set_ready;

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) fn tick(state: &mut State) {
    for node in state.store.all("nodes") {
        state.store.update("nodes", &node, taint);
    }
    for pod in state.store.all("pods") {
        let node = state.store.get("nodes", "", text(&pod, "/spec/nodeName"));
        if node.is_some_and(|node| !is_ready(&node)) && is_ready(&pod) && !is_terminating(&pod) {
            state.store.update("pods", &pod, |pod| set_ready(pod, false));
        }
    }
}

/// Let the taint follow `spec.unschedulable`.
fn taint(node: &mut Value) {
    let cordoned = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    let mut taints = list(node, "/spec/taints").to_vec();
    let tainted = taints.iter().any(|taint| text(taint, "/key") == UNSCHEDULABLE);
    if cordoned && !tainted {
        taints.push(json!({"key": UNSCHEDULABLE, "effect": "NoSchedule", "timeAdded": times::now()}));
    } else if !cordoned && tainted {
        taints.retain(|taint| text(taint, "/key") != UNSCHEDULABLE);
    } else {
        return;
    }
    if taints.is_empty() {
        unset(node, &["spec", "taints"]);
    } else {
        set(node, &["spec", "taints"], taints);
    }
}
