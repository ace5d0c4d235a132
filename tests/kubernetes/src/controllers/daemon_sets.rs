//! DaemonSets and their ControllerRevisions. All behave like `OnDelete`: there is no rolling update.

use serde_json::{Value, json};

use super::super::{
    objects::{
        hash, is_owned_by, is_ready, is_terminating, list, name, namespace, node_selector_matches, number,
        owner_reference, random_suffix, set, text, uid, unset,
    },
    sampler::owned_pods,
    state::State,
};
use super::{create, is_finished, workloads::pod_of};

const HASH: &str = "controller-revision-hash";

pub(super) fn tick(state: &mut State) {
    for owner in state.store.all("daemonsets.apps") {
        if is_terminating(&owner) {
            continue;
        }
        let newest = newest_revision(state, &owner);
        let spec = owner.pointer("/spec/template/spec").cloned().unwrap_or_else(|| json!({}));
        let mut nodes = state.store.all("nodes");
        nodes.retain(|node| node_selector_matches(&spec, node) && !is_terminating(node));
        let pods = owned_pods(&state.store, &owner);
        for node in &nodes {
            // A terminating pod still holds its place.
            let is_there = |pod: &std::sync::Arc<Value>| target(pod) == name(node) && !is_finished(pod);
            if !pods.iter().any(is_there) {
                let pod = daemon_pod(&owner, name(node), &newest);
                drop(create(state, "pods", namespace(&owner), pod));
            }
        }
        let desired = nodes.len();
        report(state, &owner, desired, &newest);
    }
}

/// The node that a pod belongs to, before and after its binding.
fn target(pod: &Value) -> &str {
    let field = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0\
                 /matchFields/0/values/0";
    match text(pod, "/spec/nodeName") {
        "" => text(pod, field),
        node => node,
    }
}

fn daemon_pod(owner: &Value, node: &str, revision: &str) -> Value {
    let mut pod = pod_of(owner, "DaemonSet", &format!("{}-{}", name(owner), random_suffix()));
    set(&mut pod, &["metadata", "labels", HASH], revision);
    let generation = number(owner, "/metadata/generation").to_string();
    set(&mut pod, &["metadata", "labels", "pod-template-generation"], generation);
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let terms = json!([{"matchFields": [field]}]);
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    set(&mut pod, &["spec", "affinity", "nodeAffinity"], affinity);
    let tolerated = ["not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"];
    let toleration = |taint: &&str| {
        let effect = if taint.starts_with("not-") || *taint == "unreachable" { "NoExecute" } else { "NoSchedule" };
        json!({"key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": effect})
    };
    let mut tolerations = list(&pod, "/spec/tolerations").to_vec();
    tolerations.extend(tolerated.iter().map(toleration));
    set(&mut pod, &["spec", "tolerations"], tolerations);
    pod
}

/// The hash of the current template. A template that returns gets the highest revision number again.
fn newest_revision(state: &mut State, owner: &Value) -> String {
    let template = owner.pointer("/spec/template").cloned().unwrap_or(Value::Null);
    let hash = hash(&template);
    let mut revisions = state.store.within("controllerrevisions.apps", namespace(owner));
    revisions.retain(|revision| is_owned_by(revision, uid(owner)));
    let highest = revisions.iter().map(|revision| number(revision, "/revision")).max().unwrap_or(0);
    let known = revisions.iter().find(|revision| text(revision, &format!("/metadata/labels/{HASH}")) == hash);
    match known {
        Some(revision) if number(revision, "/revision") == highest => {}
        Some(revision) => {
            state.store.update("controllerrevisions.apps", revision, |old| set(old, &["revision"], highest + 1));
        }
        None => {
            let mut labels = template.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
            set(&mut labels, &[HASH], hash.as_str());
            let mut data = template;
            set(&mut data, &["$patch"], "replace");
            let generation = number(owner, "/metadata/generation").to_string();
            let revision = json!({
                "metadata": {
                    "name": format!("{}-{hash}", name(owner)),
                    "labels": labels,
                    "annotations": {"deprecated.daemonset.template.generation": generation},
                    "ownerReferences": [owner_reference("apps/v1", "DaemonSet", owner)],
                },
                "data": {"spec": {"template": data}},
                "revision": highest + 1,
            });
            drop(create(state, "controllerrevisions.apps", namespace(owner), revision));
        }
    }
    hash
}

fn report(state: &mut State, owner: &Value, desired: usize, newest: &str) {
    let mut pods = owned_pods(&state.store, owner);
    pods.retain(|pod| !is_finished(pod));
    let updated = pods.iter().filter(|pod| text(pod, &format!("/metadata/labels/{HASH}")) == newest).count();
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let generation = number(owner, "/metadata/generation");
    let scheduled = pods.len();
    state.store.update("daemonsets.apps", owner, |owner| {
        set(owner, &["status", "observedGeneration"], generation);
        set(owner, &["status", "currentNumberScheduled"], scheduled);
        set(owner, &["status", "desiredNumberScheduled"], desired);
        set(owner, &["status", "numberMisscheduled"], 0);
        set(owner, &["status", "numberReady"], ready);
        let optional = [
            ("updatedNumberScheduled", updated),
            ("numberAvailable", ready),
            ("numberUnavailable", desired.saturating_sub(ready)),
        ];
        for (field, value) in optional {
            // Zero counts are absent.
            if value == 0 { unset(owner, &["status", field]) } else { set(owner, &["status", field], value) }
        }
    });
}
