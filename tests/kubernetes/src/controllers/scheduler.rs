//! The scheduler: binds pending pods to nodes.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::super::{
    objects::{is_ready, is_terminating, list, name, node_selector_matches, set, set_condition, text},
    state::State,
};
use super::is_finished;

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) fn tick(state: &mut State) {
    let pods = state.store.all("pods");
    let nodes = state.store.all("nodes");
    let mut load: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_finished(pod)) {
        *load.entry(text(pod, "/spec/nodeName").to_owned()).or_default() += 1;
    }
    let is_waiting = |pod: &&Arc<Value>| text(pod, "/spec/nodeName").is_empty() && !is_terminating(pod);
    for pod in pods.iter().filter(is_waiting) {
        let fitting = nodes.iter().filter(|node| fits(pod, node));
        let best = fitting.min_by_key(|node| load.get(name(node)).copied().unwrap_or(0));
        let Some(node) = best else {
            let message = format!("0/{} nodes are available", nodes.len());
            state.store.update("pods", pod, |pod| {
                let fields = json!({"reason": "Unschedulable", "message": message});
                set_condition(pod, "PodScheduled", "False", fields);
            });
            continue;
        };
        *load.entry(name(node).to_owned()).or_default() += 1;
        state.store.update("pods", pod, |pod| {
            set(pod, &["spec", "nodeName"], name(node));
            set_condition(pod, "PodScheduled", "True", json!({"lastProbeTime": null}));
        });
    }
}

fn fits(pod: &Value, node: &Value) -> bool {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let cordoned = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    let taints = list(node, "/spec/taints").iter().filter(|taint| text(taint, "/effect") != "PreferNoSchedule");
    let is_daemon = !affine_nodes(pod).is_empty();
    // A DaemonSet's pod tolerates a node that is not ready.
    (is_ready(node) || is_daemon)
        && !is_terminating(node)
        && node_selector_matches(spec, node)
        && (!is_daemon || affine_nodes(pod).iter().any(|wanted| wanted == name(node)))
        && (!cordoned || tolerates(pod, &json!({"key": UNSCHEDULABLE, "effect": "NoSchedule"})))
        && taints.into_iter().all(|taint| tolerates(pod, taint))
}

/// The nodes that the affinity of a DaemonSet's pod names.
fn affine_nodes(pod: &Value) -> Vec<String> {
    let terms =
        list(pod, "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
    let fields = terms.iter().flat_map(|term| list(term, "/matchFields"));
    let values = fields.flat_map(|field| list(field, "/values"));
    values.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    list(pod, "/spec/tolerations").iter().any(|toleration| {
        let (key, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
        let any_value = text(toleration, "/operator") == "Exists";
        (key == text(taint, "/key") || (key.is_empty() && any_value))
            && (effect.is_empty() || effect == text(taint, "/effect"))
            && (any_value || text(toleration, "/value") == text(taint, "/value"))
    })
}
