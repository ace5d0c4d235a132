//! POST, PUT and PATCH of objects.

use serde_json::{Value, json};

use super::{
    call::Call,
    defaults::{complete, normalize},
    failure::Failure,
    kinds::Kind,
    objects::{has_finalizers, is_terminating, list, name, number, set, text, uid, unset},
    patch, schemas,
    store::Store,
};

/// The rule of the admission plugin NamespaceLifecycle for creations, evictions included.
pub(super) fn admit_creation(store: &Store, kind: &Kind, namespace: &str, name: &str) -> Result<(), Failure> {
    if !kind.namespaced {
        return Ok(());
    }
    let Some(object) = store.get("namespaces", "", namespace) else {
        return Err(Failure::namespace_not_found(namespace));
    };
    if is_terminating(&object) {
        return Err(Failure::namespace_terminating(kind, name, namespace));
    }
    Ok(())
}

/// The body of a request as an object of this kind.
fn body<'a>(call: &'a Call, kind: &Kind) -> Result<&'a Value, Failure> {
    let object = call.body.as_ref().filter(|body| body.is_object());
    let object = object.ok_or_else(|| Failure::bad_request("the body of the request is not a JSON object"))?;
    for (field, expected) in [("/apiVersion", kind.api_version()), ("/kind", kind.kind.clone())] {
        let given = text(object, field);
        if !given.is_empty() && given != expected {
            let message = format!("the {} in the data ({given}) does not match the expected {expected}", &field[1..]);
            return Err(Failure::bad_request(message));
        }
    }
    let namespace = text(object, "/metadata/namespace");
    if !namespace.is_empty() && namespace != call.namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(object)
}

/// Create an object.
pub(super) fn create(store: &mut Store, call: &Call, kind: &Kind) -> Result<Value, Failure> {
    let mut object = body(call, kind)?.clone();
    let given = name(&object).to_owned();
    admit_creation(store, kind, &call.namespace, &given)?;
    if given.is_empty() && text(&object, "/metadata/generateName").is_empty() {
        let why = "Required value: name or generateName is required";
        return Err(Failure::invalid(kind, "", "metadata.name", "FieldValueRequired", why));
    }
    complete(kind, &call.namespace, &mut object);
    schemas::admit(call, kind, &mut object)?;
    if let Some(existing) = store.get(&kind.resource(), &call.namespace, name(&object)) {
        return Err(Failure::already_exists(kind, name(&object), is_terminating(&existing)));
    }
    if call.is_dry_run() {
        return Ok(object);
    }
    Ok((*store.put(&kind.resource(), object)).clone())
}

/// Replace an object.
pub(super) fn replace(store: &mut Store, call: &Call, kind: &Kind) -> Result<Value, Failure> {
    let new = body(call, kind)?.clone();
    if name(&new) != call.name {
        let message =
            format!("the name of the object ({}) does not match the name on the URL ({})", name(&new), call.name);
        return Err(Failure::bad_request(message));
    }
    let current = store.get(&kind.resource(), &call.namespace, &call.name);
    let current = current.ok_or_else(|| Failure::not_found(kind, &call.name))?;
    if kind.custom && text(&new, "/metadata/resourceVersion").is_empty() {
        return Err(missing_revision(kind, &call.name));
    }
    let given = uid(&new);
    if !given.is_empty() && given != uid(&current) {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {}", uid(&current));
        let message = format!("Operation cannot be fulfilled on {} \"{}\": {why}", kind.resource(), call.name);
        let details = super::failure::details(kind, &call.name);
        return Err(Failure::new(409, Some("Conflict"), message).with_details(details));
    }
    store_change(store, call, kind, &current, new)
}

/// The answer names the resource, unlike the other answers with 422.
fn missing_revision(kind: &Kind, name: &str) -> Failure {
    let why = "Invalid value: 0: must be specified for an update";
    let cause = json!({"reason": "FieldValueInvalid", "message": why, "field": "metadata.resourceVersion"});
    let mut details = super::failure::details(kind, name);
    set(&mut details, &["causes"], json!([cause]));
    let message = format!("{} \"{name}\" is invalid: metadata.resourceVersion: {why}", kind.resource());
    Failure::new(422, Some("Invalid"), message).with_details(details)
}

/// Patch an object.
pub(super) fn patch(store: &mut Store, call: &Call, kind: &Kind) -> Result<Value, Failure> {
    let current = store.get(&kind.resource(), &call.namespace, &call.name);
    let current = current.ok_or_else(|| Failure::not_found(kind, &call.name))?;
    let new = patch::apply(call, kind, &current)?;
    let given = uid(&new);
    if given != uid(&current) {
        let why = format!("Invalid value: \"{given}\": field is immutable");
        return Err(Failure::invalid(kind, &call.name, "metadata.uid", "FieldValueInvalid", &why));
    }
    store_change(store, call, kind, &current, new)
}

/// Check and store a changed object. An object without a change keeps its resourceVersion.
pub(super) fn store_change(
    store: &mut Store,
    call: &Call,
    kind: &Kind,
    current: &Value,
    mut new: Value,
) -> Result<Value, Failure> {
    let expected = text(&new, "/metadata/resourceVersion");
    if !expected.is_empty() && expected != text(current, "/metadata/resourceVersion") {
        return Err(Failure::modified(kind, &call.name));
    }
    keep_server_fields(kind, current, &mut new);
    keep_other_part(call, kind, current, &mut new);
    normalize(kind, &mut new);
    schemas::admit(call, kind, &mut new)?;
    check_finalizers(kind, current, &new)?;
    if new == *current {
        return Ok(new);
    }
    if kind.generation && is_spec_change(kind, current, &new) {
        let generation = number(current, "/metadata/generation") + 1;
        set(&mut new, &["metadata", "generation"], generation);
        if kind.resource() == "daemonsets.apps" && current.pointer("/spec/template") != new.pointer("/spec/template") {
            let path = ["metadata", "annotations", "deprecated.daemonset.template.generation"];
            set(&mut new, &path, generation.to_string());
        }
    }
    if call.is_dry_run() {
        return Ok(new);
    }
    // The last finalizer went: the object goes without being stored again.
    if is_terminating(&new) && !has_finalizers(&new) && has_finalizers(current) && is_over(&new) {
        store.remove(&kind.resource(), &call.namespace, &call.name);
        return Ok(new);
    }
    Ok((*store.put(&kind.resource(), new)).clone())
}

/// Is the grace period of a terminating object over?
fn is_over(object: &Value) -> bool {
    number(object, "/metadata/deletionGracePeriodSeconds") == 0 && text(object, "/kind") != "Namespace"
}

/// Keep the fields of the metadata that only the server sets.
fn keep_server_fields(kind: &Kind, current: &Value, new: &mut Value) {
    set(new, &["apiVersion"], kind.api_version());
    set(new, &["kind"], kind.kind.as_str());
    let fields = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    for field in fields {
        match current.pointer(&format!("/metadata/{field}")) {
            Some(value) => set(new, &["metadata", field], value.clone()),
            None => unset(new, &["metadata", field]),
        }
    }
}

/// A write through the main resource keeps the status; one through `/status` keeps the rest.
fn keep_other_part(call: &Call, kind: &Kind, current: &Value, new: &mut Value) {
    if call.subresource == "status" {
        let status = new.get("status").cloned();
        let metadata = new.get("metadata").cloned();
        *new = current.clone();
        match status {
            Some(status) => set(new, &["status"], status),
            None => unset(new, &["status"]),
        }
        // Custom resources ignore metadata here; built-in kinds accept it.
        if let (false, Some(metadata)) = (kind.custom, metadata) {
            set(new, &["metadata"], metadata);
        }
    } else if kind.status {
        match current.get("status") {
            Some(status) => set(new, &["status"], status.clone()),
            None => unset(new, &["status"]),
        }
    }
}

fn check_finalizers(kind: &Kind, current: &Value, new: &Value) -> Result<(), Failure> {
    if !is_terminating(current) {
        return Ok(());
    }
    let old = list(current, "/metadata/finalizers");
    let added: Vec<String> =
        list(new, "/metadata/finalizers").iter().filter(|f| !old.contains(f)).map(Value::to_string).collect();
    if added.is_empty() {
        return Ok(());
    }
    let why = format!(
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        added.join(", ")
    );
    Err(Failure::invalid(kind, name(current), "metadata.finalizers", "FieldValueForbidden", &why))
}

/// Does the change count for `metadata.generation`?
fn is_spec_change(kind: &Kind, current: &Value, new: &Value) -> bool {
    if !kind.custom {
        return current.get("spec") != new.get("spec");
    }
    let content = |object: &Value| {
        let mut object = object.clone();
        unset(&mut object, &["metadata"]);
        if kind.status {
            unset(&mut object, &["status"]);
        }
        object
    };
    content(current) != content(new)
}
