//! Deployments, ReplicaSets and StatefulSets.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{
    deletion::{DeleteOptions, delete_object},
    objects::{
        has, hash, is_ready, is_terminating, list, name, namespace, number, owner_reference, random_suffix, set,
        set_condition, text, uid, unset,
    },
    sampler::owned_pods,
    state::State,
};
use super::{create, is_finished};

/// Every Deployment has one ReplicaSet per template. Simplified from a rolling update: the newest has its full size at
/// once, and the pods of an older one that are ready stay until all of the newest are.
pub(super) fn deployments(state: &mut State) {
    for deployment in state.store.all("deployments.apps") {
        if is_terminating(&deployment) {
            continue;
        }
        let space = namespace(&deployment).to_owned();
        let wanted =
            format!("{}-{}", name(&deployment), hash(deployment.pointer("/spec/template").unwrap_or(&Value::Null)));
        let replicas = replicas(&deployment);
        let mut sets = state.store.within("replicasets.apps", &space);
        sets.retain(|set| super::super::objects::is_owned_by(set, uid(&deployment)));
        if !sets.iter().any(|set| name(set) == wanted) {
            // A namespace that is terminating refuses it.
            drop(create(state, "replicasets.apps", &space, replica_set(&deployment, &wanted, replicas)));
        }
        let ready = |set: &Arc<Value>| number(set, "/status/readyReplicas");
        let newest = sets.iter().find(|set| name(set) == wanted);
        let is_through = newest.map_or(0, ready) >= replicas;
        for set in &sets {
            let size = match (name(set) == wanted, is_through) {
                (true, _) => replicas,
                (false, true) => 0,
                (false, false) => ready(set).min(number(set, "/spec/replicas")),
            };
            state.store.update("replicasets.apps", set, |set| scale_to(set, size));
        }
        let counts = sets.iter().map(ready).sum();
        let total: i64 = sets.iter().map(|set| number(set, "/status/replicas")).sum();
        let updated = sets.iter().filter(|set| name(set) == wanted).map(|set| number(set, "/status/replicas")).sum();
        state.store.update("deployments.apps", &deployment, |deployment| {
            report(deployment, total, counts);
            set_count(deployment, "updatedReplicas", updated);
            set_count(deployment, "unavailableReplicas", (replicas.max(total) - counts).max(0));
            let (status, reason, message) = if counts >= replicas {
                ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
            } else {
                ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
            };
            set_condition(deployment, "Available", status, json!({"reason": reason, "message": message}));
        });
    }
}

fn scale_to(set_object: &mut Value, size: i64) {
    if number(set_object, "/spec/replicas") != size {
        set(set_object, &["spec", "replicas"], size);
        let generation = number(set_object, "/metadata/generation") + 1;
        set(set_object, &["metadata", "generation"], generation);
    }
}

fn replica_set(deployment: &Value, set_name: &str, replicas: i64) -> Value {
    let mut template = deployment.pointer("/spec/template").cloned().unwrap_or_else(|| json!({}));
    let suffix = set_name.rsplit('-').next().unwrap_or("").to_owned();
    set(&mut template, &["metadata", "labels", "pod-template-hash"], suffix);
    json!({
        "metadata": {
            "name": set_name,
            "labels": template.pointer("/metadata/labels"),
            "ownerReferences": [owner_reference("apps/v1", "Deployment", deployment)],
        },
        "spec": {"replicas": replicas, "selector": deployment.pointer("/spec/selector"), "template": template},
    })
}

fn replicas(object: &Value) -> i64 {
    if has(object, "/spec/replicas") { number(object, "/spec/replicas") } else { 1 }
}

fn report(object: &mut Value, total: i64, ready: i64) {
    let generation = number(object, "/metadata/generation");
    set(object, &["status", "observedGeneration"], generation);
    set(object, &["status", "replicas"], total);
    set_count(object, "readyReplicas", ready);
    set_count(object, "availableReplicas", ready);
}

/// Zero counts are absent.
fn set_count(object: &mut Value, field: &str, count: i64) {
    if count == 0 {
        unset(object, &["status", field]);
    } else {
        set(object, &["status", field], count);
    }
}

/// ReplicaSets replace a pod as soon as it terminates.
pub(super) fn replica_sets(state: &mut State) {
    for owner in state.store.all("replicasets.apps") {
        if is_terminating(&owner) {
            continue;
        }
        let mut pods = owned_pods(&state.store, &owner);
        pods.retain(|pod| !is_terminating(pod) && !is_finished(pod));
        let wanted = usize::try_from(replicas(&owner)).unwrap_or(0);
        for _ in pods.len()..wanted {
            let pod_name = format!("{}-{}", name(&owner), random_suffix());
            let pod = pod_of(&owner, "ReplicaSet", &pod_name);
            drop(create(state, "pods", namespace(&owner), pod));
        }
        if pods.len() > wanted {
            // Pods that are not ready go first.
            pods.sort_by_key(|pod| is_ready(pod));
            let surplus = pods.len() - wanted;
            pods.drain(..surplus).for_each(|pod| delete_pod(state, &pod));
        }
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        let (total, ready) = (i64::try_from(pods.len()).unwrap_or(0), i64::try_from(ready).unwrap_or(0));
        state.store.update("replicasets.apps", &owner, |owner| report(owner, total, ready));
    }
}

fn delete_pod(state: &mut State, pod: &Arc<Value>) {
    if let Some(kind) = state.kind("pods") {
        // Only a precondition could fail.
        drop(delete_object(&mut state.store, &kind, pod, &DeleteOptions::default()));
    }
}

/// A new pod from the template of its owner.
pub(super) fn pod_of(owner: &Value, kind: &str, pod_name: &str) -> Value {
    let mut pod = owner.pointer("/spec/template").cloned().unwrap_or_else(|| json!({}));
    let stem = format!("{}-", name(owner));
    set(&mut pod, &["metadata", "name"], pod_name);
    set(&mut pod, &["metadata", "generateName"], stem);
    set(&mut pod, &["metadata", "ownerReferences"], json!([owner_reference("apps/v1", kind, owner)]));
    pod
}

/// StatefulSets reuse a name after its pod is gone, one pod after the other unless they are parallel.
pub(super) fn stateful_sets(state: &mut State) {
    for owner in state.store.all("statefulsets.apps") {
        if is_terminating(&owner) {
            continue;
        }
        let space = namespace(&owner).to_owned();
        let in_order = text(&owner, "/spec/podManagementPolicy") != "Parallel";
        let wanted = replicas(&owner);
        for ordinal in 0..wanted {
            let pod_name = format!("{}-{ordinal}", name(&owner));
            match state.store.get("pods", &space, &pod_name) {
                None => {
                    let pod = stateful_pod(state, &owner, &pod_name);
                    drop(create(state, "pods", &space, pod));
                    if in_order {
                        break;
                    }
                }
                Some(pod) if in_order && (is_terminating(&pod) || !is_ready(&pod)) => break,
                Some(_) => {}
            }
        }
        let pods = owned_pods(&state.store, &owner);
        for pod in &pods {
            let ordinal = name(pod).rsplit('-').next().and_then(|text| text.parse::<i64>().ok());
            if ordinal.is_some_and(|ordinal| ordinal >= wanted) && !is_terminating(pod) {
                delete_pod(state, pod);
            }
        }
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        let (total, ready) = (i64::try_from(pods.len()).unwrap_or(0), i64::try_from(ready).unwrap_or(0));
        state.store.update("statefulsets.apps", &owner, |owner| report(owner, total, ready));
    }
}

/// A pod with its own claims, which outlive it.
fn stateful_pod(state: &mut State, owner: &Value, pod_name: &str) -> Value {
    let mut pod = pod_of(owner, "StatefulSet", pod_name);
    set(&mut pod, &["metadata", "labels", "statefulset.kubernetes.io/pod-name"], pod_name);
    set(&mut pod, &["spec", "hostname"], pod_name);
    let mut volumes = list(&pod, "/spec/volumes").to_vec();
    for template in list(owner, "/spec/volumeClaimTemplates") {
        let claim = format!("{}-{pod_name}", name(template));
        // It exists already if the pod is not the first of its name.
        drop(super::attachments::create_claim(state, namespace(owner), &claim));
        volumes.push(json!({"name": name(template), "persistentVolumeClaim": {"claimName": claim}}));
    }
    if !volumes.is_empty() {
        set(&mut pod, &["spec", "volumes"], volumes);
    }
    pod
}
