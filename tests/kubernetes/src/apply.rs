//! Server-side apply. Only appliers own fields here: a field that another write set is nobody's, and no conflict.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    call::Call,
    failure::Failure,
    kinds::Kind,
    objects::{has, name, set, uid},
    patch,
    store::Store,
    write,
};

/// Media type of an application.
pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// The fields that each manager applied, of one object: paths as the API server's messages show them.
pub(super) type Owners = BTreeMap<String, BTreeSet<String>>;

/// Is the request an application?
pub(super) fn is_apply(call: &Call) -> bool {
    call.verb == "patch" && call.content_type.split(';').next().unwrap_or("").trim() == APPLY
}

/// Create or change the object. Answers with 201 or 200.
pub(super) fn perform(store: &mut Store, call: &Call, kind: &Kind) -> Result<(u16, Value), Failure> {
    let manager = call.parameter("fieldManager");
    if manager.is_empty() {
        let why = "fieldManager: Required value: is required for apply patch";
        return Err(Failure::new(422, Some("Invalid"), format!("PatchOptions.meta.k8s.io \"\" is invalid: {why}")));
    }
    let applied = call.body.clone().filter(Value::is_object);
    let mut applied = applied.ok_or_else(|| Failure::bad_request("the body of the request is not a YAML object"))?;
    if has(&applied, "/metadata/managedFields") {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    if name(&applied).is_empty() {
        set(&mut applied, &["metadata", "name"], call.name.as_str());
    }
    let fields = fields(&applied, kind);
    let current = store.get(&kind.resource(), &call.namespace, &call.name);
    let owners = current.as_ref().map(|current| store.owners(&kind.resource(), uid(current))).unwrap_or_default();
    let call = Call { body: Some(applied.clone()), ..call.clone() };
    let (code, object, owners) = match current {
        None => (201, write::create(store, &call, kind)?, owners),
        Some(current) => {
            let owners = taken(&owners, manager, &fields, &current, kind, call.is_set("force"))?;
            let given_up = given_up(&owners, manager, &fields);
            let mut new = pruned(&current, kind, &given_up);
            match kind.custom {
                true => patch::merge(&mut new, &applied),
                false => patch::strategic(&mut new, &applied),
            }
            (200, write::store_change(store, &call, kind, &current, new)?, owners)
        }
    };
    if !call.is_dry_run() {
        let mut owners = owners;
        owners.insert(manager.to_owned(), fields.into_keys().collect());
        store.set_owners(&kind.resource(), uid(&object), owners);
    }
    Ok((code, object))
}

/// The other managers' fields, without those that this one takes by force.
fn taken(
    owners: &Owners,
    manager: &str,
    applied: &BTreeMap<String, Value>,
    current: &Value,
    kind: &Kind,
    force: bool,
) -> Result<Owners, Failure> {
    let now = fields(current, kind);
    let differs = |path: &String| applied.get(path).is_some_and(|value| now.get(path) != Some(value));
    let mut conflicts = Vec::new();
    let mut left = owners.clone();
    for (other, paths) in owners.iter().filter(|(other, _)| *other != manager) {
        let conflicting: Vec<&String> = paths.iter().filter(|path| differs(path)).collect();
        conflicts.extend(conflicting.iter().map(|path| (other.clone(), (*path).clone())));
        if let Some(paths) = left.get_mut(other) {
            paths.retain(|path| !differs(path));
        }
    }
    if conflicts.is_empty() || force { Ok(left) } else { Err(conflict(&conflicts)) }
}

fn conflict(conflicts: &[(String, String)]) -> Failure {
    let cause = |(manager, field): &(String, String)| {
        let message = format!("conflict with \"{manager}\"");
        json!({"reason": "FieldManagerConflict", "message": message, "field": field})
    };
    let causes: Vec<Value> = conflicts.iter().map(cause).collect();
    let said = conflicts.iter().map(|(manager, field)| format!("conflict with \"{manager}\": {field}"));
    let said: Vec<String> = said.collect();
    let message = match conflicts.len() {
        1 => format!("Apply failed with 1 conflict: {}", said.join("")),
        count => format!("Apply failed with {count} conflicts: {}", said.join("; ")),
    };
    Failure::new(409, Some("Conflict"), message).with_details(json!({"causes": causes}))
}

/// Fields that this manager applied before, and nobody applies any more: they go.
fn given_up(owners: &Owners, manager: &str, applied: &BTreeMap<String, Value>) -> BTreeSet<String> {
    let before = owners.get(manager).cloned().unwrap_or_default();
    let others: BTreeSet<&String> =
        owners.iter().filter(|(other, _)| *other != manager).flat_map(|(_, paths)| paths).collect();
    before.into_iter().filter(|path| !applied.contains_key(path) && !others.contains(path)).collect()
}

/// The fields of an object, but for those that identify it, with the values of the leaves.
fn fields(object: &Value, kind: &Kind) -> BTreeMap<String, Value> {
    let mut fields = BTreeMap::new();
    collect(object, "", kind.custom, &mut fields);
    for own in [".apiVersion", ".kind", ".metadata.name", ".metadata.namespace"] {
        fields.remove(own);
    }
    fields
}

/// The key by which the items of a list at this field are told apart. None: the list is one value.
fn key_of(field: &str, items: &[Value], custom: bool) -> Option<&'static str> {
    let key = patch::merge_key(field).filter(|_| !custom)?;
    items.iter().all(|item| item.get(key).is_some_and(Value::is_string)).then_some(key)
}

fn item_path(path: &str, key: &str, item: &Value) -> String {
    format!("{path}[{key}={}]", item.get(key).unwrap_or(&Value::Null))
}

fn collect(value: &Value, path: &str, custom: bool, into: &mut BTreeMap<String, Value>) {
    let field = path.rsplit('.').next().unwrap_or("");
    match value {
        Value::Null => {}
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(key, value)| collect(value, &format!("{path}.{key}"), custom, into));
        }
        Value::Array(items) => match key_of(field, items, custom) {
            Some(key) => {
                for item in items {
                    let path = item_path(path, key, item);
                    collect(item, &path, custom, into);
                    into.insert(path, Value::Null);
                }
            }
            None => drop(into.insert(path.to_owned(), value.clone())),
        },
        _ => drop(into.insert(path.to_owned(), value.clone())),
    }
}

/// The object without these fields.
fn pruned(object: &Value, kind: &Kind, gone: &BTreeSet<String>) -> Value {
    let mut object = object.clone();
    if !gone.is_empty() {
        prune(&mut object, "", kind.custom, gone);
    }
    object
}

fn prune(value: &mut Value, path: &str, custom: bool, gone: &BTreeSet<String>) {
    let field = path.rsplit('.').next().unwrap_or("").to_owned();
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !gone.contains(&format!("{path}.{key}")));
            fields.iter_mut().for_each(|(key, value)| prune(value, &format!("{path}.{key}"), custom, gone));
            // A map of which nothing is left was made by what went.
            let prefix = |key: &str| format!("{path}.{key}.");
            fields.retain(|key, value| {
                let emptied = value.as_object().is_some_and(serde_json::Map::is_empty);
                !(emptied && gone.iter().any(|gone| gone.starts_with(&prefix(key))))
            });
        }
        Value::Array(items) => {
            let Some(key) = key_of(&field, items, custom) else { return };
            items.retain(|item| !gone.contains(&item_path(path, key, item)));
            for item in items {
                let path = item_path(path, key, item);
                prune(item, &path, custom, gone);
            }
        }
        _ => {}
    }
}
