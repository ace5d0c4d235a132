//! Ready replicas of every workload, as the budgets' controller counts them.

use serde_json::Value;

use super::{
    objects::{controller_of, is_owned_by, is_ready, is_terminating, name, namespace, number, text, uid},
    store::Store,
};

/// A controller of pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    /// `Deployment`, `ReplicaSet`, `StatefulSet` or `DaemonSet`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Replicas of a workload at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The workload.
    pub workload: Workload,
    /// Wanted replicas. A DaemonSet wants one pod a matching node.
    pub wanted: usize,
    /// Pods that are Ready and not terminating.
    pub ready: usize,
    /// The smallest `ready` since `reset_lowest_ready`; the current count if it was never reset.
    pub lowest: usize,
}

/// The workload at the top of the owners of a pod.
pub(super) fn workload_of(store: &Store, pod: &Value) -> Option<Workload> {
    let owner = controller_of(pod)?;
    let (mut kind, mut owner_name) = (text(owner, "/kind"), text(owner, "/name"));
    let set = store.get("replicasets.apps", namespace(pod), owner_name).filter(|_| kind == "ReplicaSet");
    if let Some(deployment) = set.as_deref().and_then(controller_of) {
        (kind, owner_name) = (text(deployment, "/kind"), text(deployment, "/name"));
    }
    let known = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"].contains(&kind);
    known.then(|| Workload { kind: kind.to_owned(), namespace: namespace(pod).to_owned(), name: owner_name.to_owned() })
}

/// Ready pods of a workload now.
pub(super) fn ready(store: &Store, workload: &Workload) -> usize {
    let counts = |pod: &&std::sync::Arc<Value>| {
        is_ready(pod) && !is_terminating(pod) && workload_of(store, pod).as_ref() == Some(workload)
    };
    store.within("pods", &workload.namespace).iter().filter(counts).count()
}

/// Every workload with its counts.
pub(super) fn sample(store: &Store) -> Vec<Replicas> {
    let mut all = Vec::new();
    for (resource, kind) in [
        ("deployments.apps", "Deployment"),
        ("replicasets.apps", "ReplicaSet"),
        ("statefulsets.apps", "StatefulSet"),
        ("daemonsets.apps", "DaemonSet"),
    ] {
        for object in store.all(resource) {
            // A Deployment's ReplicaSet is not a workload of its own.
            if kind == "ReplicaSet" && controller_of(&object).is_some() {
                continue;
            }
            let workload = Workload {
                kind: kind.to_owned(),
                namespace: namespace(&object).to_owned(),
                name: name(&object).to_owned(),
            };
            let ready = ready(store, &workload);
            let lowest = store.lowest_ready.get(&workload).map_or(ready, |lowest| ready.min(*lowest));
            all.push(Replicas { wanted: wanted(kind, &object), ready, lowest, workload });
        }
    }
    all
}

fn wanted(kind: &str, object: &Value) -> usize {
    let field = if kind == "DaemonSet" { "/status/desiredNumberScheduled" } else { "/spec/replicas" };
    usize::try_from(number(object, field)).unwrap_or(0)
}

/// Pods of this controller.
pub(super) fn owned_pods(store: &Store, owner: &Value) -> Vec<std::sync::Arc<Value>> {
    let mut pods = store.within("pods", namespace(owner));
    pods.retain(|pod| is_owned_by(pod, uid(owner)));
    pods
}
