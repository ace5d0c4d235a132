//! The node lifecycle controller: taints, and pods on nodes that are not ready.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::{
    Config,
    objects::{condition, is_ready, is_terminating, list, name, set, set_condition, text, uid, unset},
    state::State,
    times,
};
use super::{Memory, kubelet::set_ready};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

pub(super) fn tick(state: &mut State, memory: &mut Memory, config: &Config) {
    for node in state.store.all("nodes") {
        if let Some(grace) = config.node_grace {
            expect_lease(state, memory, grace, &node);
        }
        state.store.update("nodes", &node, taint);
    }
    for pod in state.store.all("pods") {
        let node = state.store.get("nodes", "", text(&pod, "/spec/nodeName"));
        if node.is_some_and(|node| !is_ready(&node)) && is_ready(&pod) && !is_terminating(&pod) {
            state.store.update("pods", &pod, |pod| set_ready(pod, false));
        }
    }
}

/// A node is Unknown when its Lease was not renewed for so long, and its taints follow its condition Ready.
fn expect_lease(state: &mut State, memory: &mut Memory, grace: Duration, node: &Value) {
    let lease = state.store.get("leases.coordination.k8s.io", "kube-node-lease", name(node));
    let renewal = lease.as_ref().map_or("", |lease| text(lease, "/spec/renewTime"));
    let lost = memory.age("lease", &format!("{} {renewal}", uid(node))) >= grace;
    state.store.update("nodes", node, |node| {
        if lost {
            let why = json!({"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."});
            set_condition(node, "Ready", "Unknown", why);
        }
        let unknown = condition(node, "Ready").is_some_and(|ready| text(ready, "/status") == "Unknown");
        set_taint(node, UNREACHABLE, unknown);
        let unready = !unknown && !is_ready(node);
        set_taint(node, NOT_READY, unready);
    });
}

/// Let the taint follow `spec.unschedulable`.
fn taint(node: &mut Value) {
    let cordoned = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    set_taint(node, UNSCHEDULABLE, cordoned);
}

fn set_taint(node: &mut Value, key: &str, wanted: bool) {
    let mut taints = list(node, "/spec/taints").to_vec();
    let tainted = taints.iter().any(|taint| text(taint, "/key") == key);
    if wanted && !tainted {
        taints.push(json!({"key": key, "effect": "NoSchedule", "timeAdded": times::now()}));
    } else if !wanted && tainted {
        taints.retain(|taint| text(taint, "/key") != key);
    } else {
        return;
    }
    if taints.is_empty() {
        unset(node, &["spec", "taints"]);
    } else {
        set(node, &["spec", "taints"], taints);
    }
}
