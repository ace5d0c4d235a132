//! The garbage collector and the namespace controller.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::super::{
    Config,
    deletion::{DeleteOptions, delete_object},
    kinds::{DEFINITIONS, Kind},
    objects::{
        controller_of, has_finalizers, is_terminating, list, name, namespace, set, set_condition, text, uid, unset,
    },
    state::State,
};
use super::Memory;

const DEPENDENTS: [&str; 3] = ["pods", "replicasets.apps", "controllerrevisions.apps"];
const OWNERS: [(&str, &str); 6] = [
    ("Deployment", "deployments.apps"),
    ("ReplicaSet", "replicasets.apps"),
    ("StatefulSet", "statefulsets.apps"),
    ("DaemonSet", "daemonsets.apps"),
    ("Job", "jobs.batch"),
    ("Node", "nodes"),
];

/// Delete objects without their controller, and finish deletions with a propagation policy.
pub(super) fn tick(state: &mut State) {
    for kind in state.kinds.clone() {
        for owner in state.store.all(&kind.resource()) {
            if is_terminating(&owner) && has_finalizers(&owner) {
                propagate(state, &kind, &owner);
            }
        }
    }
    let owners: BTreeSet<String> =
        OWNERS.iter().flat_map(|(_, resource)| state.store.all(resource)).map(|owner| uid(&owner).to_owned()).collect();
    for resource in DEPENDENTS {
        for object in state.store.all(resource) {
            let is_orphan = controller_of(&object).is_some_and(|owner| {
                OWNERS.iter().any(|(kind, _)| *kind == text(owner, "/kind")) && !owners.contains(text(owner, "/uid"))
            });
            if is_orphan && !is_terminating(&object) {
                delete(state, resource, &object);
            }
        }
    }
}

fn delete(state: &mut State, resource: &str, object: &Value) {
    if let Some(kind) = state.kind(resource) {
        // Only a precondition could fail.
        drop(delete_object(&mut state.store, &kind, object, &DeleteOptions::default()));
    }
}

/// Remove the finalizers `orphan` and `foregroundDeletion` when their work is done.
fn propagate(state: &mut State, kind: &Arc<Kind>, owner: &Value) {
    let has = |finalizer: &str| list(owner, "/metadata/finalizers").iter().any(|known| known == finalizer);
    let (orphan, foreground) = (has("orphan"), has("foregroundDeletion"));
    if !orphan && !foreground {
        return;
    }
    let mut is_done = true;
    for resource in DEPENDENTS {
        for object in state.store.within(resource, namespace(owner)) {
            if !super::super::objects::is_owned_by(&object, uid(owner)) {
                continue;
            }
            if orphan {
                state.store.update(resource, &object, |object| unset(object, &["metadata", "ownerReferences"]));
            } else {
                is_done = false;
                if !is_terminating(&object) {
                    delete(state, resource, &object);
                }
            }
        }
    }
    if !is_done {
        return;
    }
    let mut rest = list(owner, "/metadata/finalizers").to_vec();
    rest.retain(|finalizer| finalizer != "orphan" && finalizer != "foregroundDeletion");
    if rest.is_empty() {
        state.store.remove(&kind.resource(), namespace(owner), name(owner));
    } else {
        state.store.update(&kind.resource(), owner, |owner| set(owner, &["metadata", "finalizers"], rest));
    }
}

/// Delete the objects of a definition that is being deleted, and then the definition: its kinds are served no more.
pub(super) fn definition(state: &mut State, definition: &Value) {
    let resources: BTreeSet<String> = Kind::defined_by(definition).iter().map(Kind::resource).collect();
    for resource in &resources {
        for object in state.store.all(resource).iter().filter(|object| !is_terminating(object)) {
            delete(state, resource, object);
        }
    }
    if resources.iter().all(|resource| state.store.all(resource).is_empty()) {
        resources.iter().for_each(|resource| state.withdraw(resource));
        state.store.remove(DEFINITIONS, "", name(definition));
    }
}

/// Delete pods that are bound to a node that does not exist.
pub(super) fn orphans(state: &mut State, memory: &mut Memory, config: &Config) {
    for pod in state.store.all("pods") {
        let node = text(&pod, "/spec/nodeName");
        if node.is_empty() || state.store.get("nodes", "", node).is_some() {
            continue;
        }
        if memory.age("orphan", uid(&pod)) >= config.orphan_after && !has_finalizers(&pod) {
            memory.forget("orphan", uid(&pod));
            state.store.remove("pods", namespace(&pod), name(&pod));
        }
    }
}

/// Empty terminating namespaces and remove them when they are empty.
pub(super) fn namespaces(state: &mut State) {
    for space in state.store.all("namespaces") {
        if !is_terminating(&space) {
            continue;
        }
        let content = state.store.content(name(&space));
        if content.is_empty() {
            state.store.remove("namespaces", "", name(&space));
            continue;
        }
        for (resource, namespace, object_name) in content {
            let object = state.store.get(&resource, &namespace, &object_name);
            if let Some(object) = object.filter(|object| !is_terminating(object)) {
                delete(state, &resource, &object);
            }
        }
        state.store.update("namespaces", &space, |space| {
            for (condition, reason, message) in CONDITIONS {
                set_condition(space, condition, "False", json!({"reason": reason, "message": message}));
            }
        });
    }
}

const CONDITIONS: [(&str, &str, &str); 3] = [
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
];
