//! Fields that the server fills in or leaves out.

use serde_json::{Value, json};

use super::{
    kinds::{self, Kind},
    objects::{self, default, set, text, unset},
    times,
};

/// Complete a new object before it is stored.
pub(super) fn complete(kind: &Kind, namespace: &str, object: &mut Value) {
    set(object, &["apiVersion"], kind.api_version());
    set(object, &["kind"], kind.kind.as_str());
    if kind.namespaced {
        set(object, &["metadata", "namespace"], namespace);
    }
    let generated = text(object, "/metadata/generateName").to_owned();
    if objects::name(object).is_empty() && !generated.is_empty() {
        set(object, &["metadata", "name"], format!("{generated}{}", objects::random_suffix()));
    }
    set(object, &["metadata", "uid"], uuid::Uuid::new_v4().to_string());
    set(object, &["metadata", "creationTimestamp"], times::now());
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "generation"] {
        unset(object, &["metadata", field]);
    }
    if kind.generation {
        set(object, &["metadata", "generation"], 1);
    }
    if kind.status && kind.resource() != "nodes" {
        unset(object, &["status"]);
    }
    match kind.resource().as_str() {
        "pods" => complete_pod(object),
        "namespaces" => complete_namespace(object),
        "poddisruptionbudgets.policy" => {
            let counts = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
            set(object, &["status"], counts);
        }
        "daemonsets.apps" => complete_daemon_set(object),
        kinds::DEFINITIONS => kinds::complete(object),
        _ => {}
    }
    normalize(kind, object);
}

fn complete_namespace(object: &mut Value) {
    let name = objects::name(object).to_owned();
    set(object, &["metadata", "labels", "kubernetes.io/metadata.name"], name);
    set(object, &["spec", "finalizers"], json!(["kubernetes"]));
    set(object, &["status", "phase"], "Active");
}

fn complete_daemon_set(object: &mut Value) {
    set(object, &["metadata", "annotations", "deprecated.daemonset.template.generation"], "1");
    default(object, &["spec", "updateStrategy"], json!({"type": "RollingUpdate"}));
    default(object, &["spec", "revisionHistoryLimit"], 10);
    let counts = json!({
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    });
    set(object, &["status"], counts);
}

fn complete_pod(object: &mut Value) {
    default(object, &["spec", "restartPolicy"], "Always");
    default(object, &["spec", "terminationGracePeriodSeconds"], 30);
    default(object, &["spec", "schedulerName"], "default-scheduler");
    default(object, &["spec", "enableServiceLinks"], true);
    default(object, &["spec", "preemptionPolicy"], "PreemptLowerPriority");
    let priority = match text(object, "/spec/priorityClassName") {
        "system-node-critical" => 2_000_001_000,
        "system-cluster-critical" => 2_000_000_000,
        _ => 0,
    };
    default(object, &["spec", "priority"], priority);
    let toleration =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    let tolerations = [toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable")];
    if !object.pointer("/spec/tolerations").is_some_and(Value::is_array) {
        set(object, &["spec", "tolerations"], json!([]));
    }
    if let Some(list) = object.pointer_mut("/spec/tolerations").and_then(Value::as_array_mut) {
        list.extend(tolerations);
    }
    set(object, &["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
}

/// Leave out empty fields, as the real server's `omitempty` does.
pub(super) fn normalize(kind: &Kind, object: &mut Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        drop_if_empty(object, &["metadata", field]);
    }
    if kind.resource() == "nodes" {
        drop_if_empty(object, &["spec", "taints"]);
        if object.pointer("/spec/unschedulable") == Some(&Value::Bool(false)) {
            unset(object, &["spec", "unschedulable"]);
        }
        default(object, &["spec"], json!({}));
    }
}

fn drop_if_empty(object: &mut Value, path: &[&str]) {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if object.pointer(&format!("/{}", path.join("/"))).is_some_and(is_empty) {
        unset(object, path);
    }
}
