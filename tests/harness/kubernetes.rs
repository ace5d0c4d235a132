//! A suite of updates under any Kubernetes cluster that is reached by an administrator's kubeconfig alone: an API
//! server with a controller-manager and a scheduler. Nodes and kubelets are the suite's own, and workloads run on these
//! nodes only. `make test-kubernetes` runs it; end-to-end tests run it over the stand-in in a process of its own.
//!
//! The suite deletes what it made, each object by its UID, and refuses a cluster with nodes of somebody else, or with
//! pods of somebody else that would run on its nodes.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

mod admin;
mod client;
mod cluster;
mod handshake;
mod journal;
mod kubelets;
mod observer;
mod relay;
mod rights;
mod scenarios;
mod stage;
mod workloads;

pub use self::{
    cluster::{ClusterUnderTest, Refusal, clean_up},
    scenarios::{SCENARIOS, Scenario},
};

/// Label, taint and namespace prefix that tell what a run of the suite made. Its value is the run's name.
pub const RUN_LABEL: &str = "muster-test/run";
/// Label of all nodes of a stage.
const STAGE_LABEL: &str = "muster-test/stage";
/// Label with the type of a node's machine.
const TYPE_LABEL: &str = "muster-test/type";

/// The annotation by which the cluster-autoscaler leaves a node alone while it is "true".
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// The annotation by which an operator keeps a node cordoned.
pub const KEEP_CORDONED: &str = "muster/keep-cordoned";

/// Timeout of every wait for the cluster's controllers. A real one may be busy.
const CLUSTER_LIMIT: Duration = Duration::from_secs(120);
/// Poll interval of waits for the cluster.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The string at a JSON pointer; empty if absent.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The array at a JSON pointer; empty if absent.
fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// The value of a label; empty if absent.
fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object.pointer("/metadata/labels").and_then(|labels| labels.get(key)).and_then(Value::as_str).unwrap_or("")
}

fn is_terminating(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null())
}

/// Has it a condition of this type and status?
fn has_condition(object: &Value, kind: &str, status: &str) -> bool {
    let is_it = |condition: &Value| text(condition, "/type") == kind && text(condition, "/status") == status;
    list(object, "/status/conditions").iter().any(is_it)
}

/// Has the pod not started yet?
fn is_pending(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "" | "Pending")
}

fn is_ready(object: &Value) -> bool {
    has_condition(object, "Ready", "True")
}

fn is_cordoned(node: &Value) -> bool {
    node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true)
}

/// Is the node as it was before its drain? Cordoned only if it was then, and without the annotations that a drain sets:
/// Muster's own, and the cluster-autoscaler's.
///
/// # Errors
/// What is otherwise.
pub fn is_given_back(node: &Value, was_cordoned: bool) -> Result<()> {
    let (name, cordoned) = (name(node), is_cordoned(node));
    ensure!(cordoned == was_cordoned, "{name} is cordoned: {cordoned}, not {was_cordoned}");
    let is_of_drain = |key: &str, value: &Value| {
        (key.starts_with("muster/") && key != KEEP_CORDONED) || (key == SCALE_DOWN_DISABLED && value == "true")
    };
    let annotations = node["metadata"]["annotations"].as_object().into_iter().flatten();
    let left: Vec<&String> = annotations.filter(|(key, value)| is_of_drain(key, value)).map(|(key, _)| key).collect();
    ensure!(left.is_empty(), "{name} bears {left:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_annotation_of_a_drain_is_known() {
        let given_back = |annotations: Value| is_given_back(&json!({"metadata": {"annotations": annotations}}), false);
        assert!(given_back(Value::Null).is_ok());
        assert!(given_back(json!({"node.alpha.kubernetes.io/ttl": "0", KEEP_CORDONED: "true"})).is_ok());
        assert!(given_back(json!({SCALE_DOWN_DISABLED: "false"})).is_ok(), "an operator's value");
        assert!(given_back(json!({SCALE_DOWN_DISABLED: "true"})).is_err());
        for key in ["muster/drained-for", "muster/scale-down-disabled-before"] {
            assert!(given_back(json!({key: ""})).is_err(), "{key}");
        }
        assert!(is_given_back(&json!({}), true).is_err());
        assert!(is_given_back(&json!({"spec": {"unschedulable": true}}), true).is_ok());
    }
}
