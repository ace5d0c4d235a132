//! DELETE: preconditions, grace periods, finalizers.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    call::Call,
    failure::Failure,
    kinds::{DEFINITIONS, Kind},
    objects::{has, has_finalizers, is_terminating, list, name, namespace, number, set, set_condition, text, uid},
    store::Store,
    times,
};

/// Finalizer of a definition whose objects are being deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// How to delete.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub(super) grace: Option<i64>,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) propagation: String,
    pub(super) dry_run: bool,
}

impl DeleteOptions {
    /// From a `DeleteOptions` object, which may be null.
    pub(super) fn from_object(object: &Value) -> Self {
        Self {
            grace: object.pointer("/gracePeriodSeconds").and_then(Value::as_i64),
            uid: text(object, "/preconditions/uid").to_owned(),
            resource_version: text(object, "/preconditions/resourceVersion").to_owned(),
            propagation: text(object, "/propagationPolicy").to_owned(),
            dry_run: !list(object, "/dryRun").is_empty(),
        }
    }

    /// From the body and the query of a DELETE.
    fn from_call(call: &Call) -> Self {
        let mut options = Self::from_object(call.body.as_ref().unwrap_or(&Value::Null));
        options.dry_run |= call.is_dry_run();
        if let Ok(grace) = call.parameter("gracePeriodSeconds").parse() {
            options.grace = Some(grace);
        }
        if !call.parameter("propagationPolicy").is_empty() {
            call.parameter("propagationPolicy").clone_into(&mut options.propagation);
        }
        options
    }

    fn check(&self, kind: &Kind, object: &Value) -> Result<(), Failure> {
        let differs = |what: &str, how: &str, wanted: &str, actual: &str| {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({actual}). \
                 The object might have been {how}"
            );
            Failure::precondition(kind, name(object), &why)
        };
        if !self.uid.is_empty() && self.uid != uid(object) {
            return Err(differs("UID", "deleted and then recreated", &self.uid, uid(object)));
        }
        let revision = text(object, "/metadata/resourceVersion");
        if !self.resource_version.is_empty() && self.resource_version != revision {
            return Err(differs("ResourceVersion", "modified", &self.resource_version, revision));
        }
        Ok(())
    }
}

/// Answer a DELETE of one object.
pub(super) fn delete(store: &mut Store, call: &Call, kind: &Kind) -> Result<Value, Failure> {
    let options = DeleteOptions::from_call(call);
    let current = store.get(&kind.resource(), &call.namespace, &call.name);
    let current = current.ok_or_else(|| Failure::not_found(kind, &call.name))?;
    let uid = uid(&current).to_owned();
    let (object, gone) = delete_object(store, kind, &current, &options)?;
    // Most kinds answer a deletion that is complete with a Status; these answer with the object.
    let returns_object = ["pods", "persistentvolumes", "persistentvolumeclaims"].contains(&kind.resource().as_str());
    if !gone || returns_object {
        return Ok(object);
    }
    let mut details = super::failure::details(kind, &call.name);
    set(&mut details, &["uid"], uid);
    Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}))
}

/// Delete an object, or mark it for deletion. Returns its last state and whether it is gone.
pub(super) fn delete_object(
    store: &mut Store,
    kind: &Kind,
    current: &Value,
    options: &DeleteOptions,
) -> Result<(Value, bool), Failure> {
    options.check(kind, current)?;
    let mut object = current.clone();
    let resource = kind.resource();
    let gone = match resource.as_str() {
        "pods" => mark_pod(&mut object, options),
        "namespaces" => mark_namespace(&mut object),
        DEFINITIONS => mark_definition(&mut object),
        _ => mark(kind, &mut object, options),
    };
    if options.dry_run {
        return Ok((object, gone));
    }
    if gone {
        store.remove(&resource, namespace(&object), name(&object));
        return Ok((object, true));
    }
    if object != *current {
        object = (*store.put(&resource, object)).clone();
    }
    Ok((object, false))
}

/// Mark an object without a grace period. Returns whether it goes at once.
fn mark(kind: &Kind, object: &mut Value, options: &DeleteOptions) -> bool {
    if is_terminating(object) {
        return !has_finalizers(object);
    }
    let finalizer = match options.propagation.as_str() {
        "Foreground" => Some("foregroundDeletion"),
        "Orphan" => Some("orphan"),
        _ => None,
    };
    if let Some(finalizer) = finalizer {
        let mut finalizers = list(object, "/metadata/finalizers").to_vec();
        finalizers.push(finalizer.into());
        set(object, &["metadata", "finalizers"], finalizers);
    }
    if !has_finalizers(object) {
        return true;
    }
    set(object, &["metadata", "deletionTimestamp"], times::now());
    set(object, &["metadata", "deletionGracePeriodSeconds"], 0);
    if kind.generation {
        let generation = number(object, "/metadata/generation") + 1;
        set(object, &["metadata", "generation"], generation);
    }
    false
}

/// A namespace waits for the namespace controller.
fn mark_namespace(object: &mut Value) -> bool {
    if !is_terminating(object) {
        set(object, &["metadata", "deletionTimestamp"], times::now());
        set(object, &["status", "phase"], "Terminating");
    }
    false
}

/// A definition waits for its objects. By the sources of apiextensions-apiserver: no recording shows it.
fn mark_definition(object: &mut Value) -> bool {
    if !is_terminating(object) {
        let mut finalizers = list(object, "/metadata/finalizers").to_vec();
        finalizers.push(CLEANUP.into());
        set(object, &["metadata", "finalizers"], finalizers);
        set(object, &["metadata", "deletionTimestamp"], times::now());
        set(object, &["metadata", "deletionGracePeriodSeconds"], 0);
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        set_condition(object, "Terminating", "True", json!({"reason": "InstanceDeletionPending", "message": message}));
    }
    false
}

/// Start or shorten the grace period of a pod. Returns whether it goes at once.
fn mark_pod(pod: &mut Value, options: &DeleteOptions) -> bool {
    let own = if has(pod, "/spec/terminationGracePeriodSeconds") {
        number(pod, "/spec/terminationGracePeriodSeconds")
    } else {
        30
    };
    let is_idle =
        text(pod, "/spec/nodeName").is_empty() || matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    let grace = if is_idle { 0 } else { options.grace.unwrap_or(own).max(0) };
    if grace == 0 && !has_finalizers(pod) {
        return true;
    }
    if is_terminating(pod) {
        shorten(pod, grace);
        return false;
    }
    set(pod, &["metadata", "deletionTimestamp"], times::after_now(grace.unsigned_abs()));
    set(pod, &["metadata", "deletionGracePeriodSeconds"], grace);
    let generation = number(pod, "/metadata/generation") + 1;
    set(pod, &["metadata", "generation"], generation);
    false
}

/// A shorter grace period counts from the first deletion; a longer one changes nothing.
fn shorten(pod: &mut Value, grace: i64) {
    let before = number(pod, "/metadata/deletionGracePeriodSeconds");
    if grace >= before {
        return;
    }
    if let Some(end) = times::parse(text(pod, "/metadata/deletionTimestamp")) {
        let end = end - Duration::from_secs((before - grace).unsigned_abs());
        set(pod, &["metadata", "deletionTimestamp"], times::format(end));
    }
    set(pod, &["metadata", "deletionGracePeriodSeconds"], grace);
}
