//! Merge patches, strategic merge patches and JSON patches.

use serde_json::{Map, Value};

use super::{call::Call, failure::Failure, kinds::Kind, objects::text};

/// Apply the patch of a request to an object.
pub(super) fn apply(call: &Call, kind: &Kind, object: &Value) -> Result<Value, Failure> {
    let empty = Value::Null;
    let patch = call.body.as_ref().unwrap_or(&empty);
    let mut patched = object.clone();
    match call.content_type.split(';').next().unwrap_or("").trim() {
        _ if !(patch.is_object() || patch.is_array()) => {
            return Err(Failure::bad_request("the body of the request is not a JSON object"));
        }
        "application/merge-patch+json" => merge(&mut patched, patch),
        "application/strategic-merge-patch+json" if !kind.custom => strategic(&mut patched, patch),
        "application/json-patch+json" => {
            let operations = patch.as_array().ok_or_else(|| Failure::bad_request("a JSON patch is an array"))?;
            for operation in operations {
                json_operation(&mut patched, operation).ok_or_else(json_patch_failure)?;
            }
        }
        _ => return Err(unknown_format(kind)),
    }
    Ok(patched)
}

fn json_patch_failure() -> Failure {
    Failure::new(422, Some("Invalid"), "the server rejected our request due to an error in our request")
        .with_details(Value::Object(Map::new()))
}

fn unknown_format(kind: &Kind) -> Failure {
    let strategic = if kind.custom { "" } else { ", application/strategic-merge-patch+json" };
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json{strategic}, application/apply-patch+yaml"
    );
    Failure::new(415, Some("UnsupportedMediaType"), message)
}

/// RFC 7386.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return };
    for (key, value) in fields {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The key by which a list of objects is merged; `None` if the list is replaced.
pub(super) fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" | "addresses" => Some("type"),
        "containers" | "initContainers" | "volumes" | "env" => Some("name"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

/// Kubernetes' merge patch for its own kinds.
pub(super) fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() || text(patch, "/$patch") == "replace" {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return };
    for (key, value) in fields {
        if key.starts_with('$') {
            delete_from_list(object, key, value);
        } else if value.is_null() {
            object.remove(key);
        } else if let (Some(by), Some(items)) = (merge_key(key), value.as_array()) {
            merge_list(object.entry(key.clone()).or_insert(Value::Null), items, by);
        } else if let (true, Some(items)) = (key == "finalizers", value.as_array()) {
            add_to_list(object.entry(key.clone()).or_insert(Value::Null), items);
        } else {
            strategic(object.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// `$deleteFromPrimitiveList/finalizers: [..]`.
fn delete_from_list(object: &mut Map<String, Value>, directive: &str, values: &Value) {
    let Some(field) = directive.strip_prefix("$deleteFromPrimitiveList/") else { return };
    if let (Some(list), Some(values)) = (object.get_mut(field).and_then(Value::as_array_mut), values.as_array()) {
        list.retain(|item| !values.contains(item));
    }
}

fn add_to_list(list: &mut Value, items: &[Value]) {
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    if let Some(list) = list.as_array_mut() {
        for item in items {
            if !list.contains(item) {
                list.push(item.clone());
            }
        }
    }
}

fn merge_list(list: &mut Value, items: &[Value], by: &str) {
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(list) = list.as_array_mut() else { return };
    for item in items {
        let position = list.iter().position(|old| old.get(by) == item.get(by));
        match (position, text(item, "/$patch")) {
            (Some(position), "delete") => drop(list.remove(position)),
            (None, "delete") => {}
            (Some(position), _) => list.get_mut(position).into_iter().for_each(|old| strategic(old, item)),
            (None, _) => list.push(item.clone()),
        }
    }
}

/// One operation of RFC 6902. `move` and `copy` are not supported.
fn json_operation(target: &mut Value, operation: &Value) -> Option<()> {
    let path = text(operation, "/path");
    let value = operation.get("value");
    if text(operation, "/op") == "test" {
        return (target.pointer(path) == value).then_some(());
    }
    let (parent, last) = path.rsplit_once('/')?;
    let last = last.replace("~1", "/").replace("~0", "~");
    let operator = text(operation, "/op");
    match (target.pointer_mut(parent)?, operator) {
        (Value::Object(fields), "add") => drop(fields.insert(last, value?.clone())),
        (Value::Object(fields), "replace") => *fields.get_mut(&last)? = value?.clone(),
        (Value::Object(fields), "remove") => drop(fields.remove(&last)?),
        (Value::Array(items), "add") if last == "-" => items.push(value?.clone()),
        (Value::Array(items), "add") => {
            let position = last.parse().ok().filter(|position| *position <= items.len())?;
            items.insert(position, value?.clone());
        }
        (Value::Array(items), "replace") => *items.get_mut(last.parse::<usize>().ok()?)? = value?.clone(),
        (Value::Array(items), "remove") => {
            let position = last.parse().ok().filter(|position| *position < items.len())?;
            items.remove(position);
        }
        _ => return None,
    }
    Some(())
}
