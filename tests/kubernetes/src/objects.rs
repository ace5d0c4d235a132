//! Reading and changing objects, which are plain JSON values.

use serde_json::{Map, Value, json};

use super::times;

/// The string at a JSON pointer; empty if absent.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The number at a JSON pointer; 0 if absent.
pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// The array at a JSON pointer; empty if absent.
pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn has(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).is_some_and(|value| !value.is_null())
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub(super) fn is_terminating(object: &Value) -> bool {
    has(object, "/metadata/deletionTimestamp")
}

pub(super) fn has_finalizers(object: &Value) -> bool {
    !list(object, "/metadata/finalizers").is_empty()
}

/// Set the field at `path`. Creates the objects on the way.
pub(super) fn set(object: &mut Value, path: &[&str], value: impl Into<Value>) {
    let mut at = object;
    for field in path {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Some(fields) = at.as_object_mut() else { return };
        at = fields.entry((*field).to_owned()).or_insert(Value::Null);
    }
    *at = value.into();
}

/// Remove the field at `path`, if there is one.
pub(super) fn unset(object: &mut Value, path: &[&str]) {
    let Some((last, before)) = path.split_last() else { return };
    let mut at = object;
    for field in before {
        let Some(next) = at.get_mut(*field) else { return };
        at = next;
    }
    if let Some(fields) = at.as_object_mut() {
        fields.remove(*last);
    }
}

/// Set the field if it is absent.
pub(super) fn default(object: &mut Value, path: &[&str], value: impl Into<Value>) {
    if !has(object, &format!("/{}", path.join("/"))) {
        set(object, path, value);
    }
}

/// The condition of this type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|condition| text(condition, "/type") == kind)
}

/// Is the condition `Ready` true?
pub(super) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| text(ready, "/status") == "True")
}

/// Set a condition. Keeps `lastTransitionTime` while the status stays the same.
pub(super) fn set_condition(object: &mut Value, kind: &str, status: &str, fields: Value) {
    let mut new = json!({"type": kind, "status": status, "lastTransitionTime": times::now()});
    if let (Some(new), Value::Object(fields)) = (new.as_object_mut(), fields) {
        new.extend(fields);
    }
    if let Some(old) = condition(object, kind)
        && text(old, "/status") == status
    {
        set(&mut new, &["lastTransitionTime"], text(old, "/lastTransitionTime"));
    }
    if !object.pointer("/status/conditions").is_some_and(Value::is_array) {
        set(object, &["status", "conditions"], json!([]));
    }
    let Some(conditions) = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else { return };
    match conditions.iter_mut().find(|condition| text(condition, "/type") == kind) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// The owner reference with `controller: true`.
pub(super) fn controller_of(object: &Value) -> Option<&Value> {
    let is_controller = |owner: &&Value| owner.pointer("/controller").and_then(Value::as_bool).unwrap_or(false);
    list(object, "/metadata/ownerReferences").iter().find(is_controller)
}

/// Does this object belong to the controller with this UID?
pub(super) fn is_owned_by(object: &Value, uid: &str) -> bool {
    controller_of(object).is_some_and(|owner| text(owner, "/uid") == uid)
}

/// A controller's owner reference.
pub(super) fn owner_reference(api_version: &str, kind: &str, owner: &Value) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "name": name(owner),
        "uid": uid(owner),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Does a `LabelSelector` object match these labels? A missing selector matches nothing, an empty one everything.
pub(super) fn selects(selector: Option<&Value>, object: &Value) -> bool {
    let Some(selector) = selector.filter(|selector| selector.is_object()) else { return false };
    let empty = Map::new();
    let wanted = selector.pointer("/matchLabels").and_then(Value::as_object).unwrap_or(&empty);
    let label = |key: &str| object.pointer("/metadata/labels").and_then(|labels| labels.get(key));
    wanted.iter().all(|(key, value)| label(key) == Some(value))
        && list(selector, "/matchExpressions").iter().all(|expression| {
            let value = label(text(expression, "/key"));
            let listed = value.is_some_and(|value| list(expression, "/values").contains(value));
            match text(expression, "/operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

/// Does the node have all labels of the spec's `nodeSelector`?
pub(super) fn node_selector_matches(spec: &Value, node: &Value) -> bool {
    let empty = Map::new();
    let wanted = spec.pointer("/nodeSelector").and_then(Value::as_object).unwrap_or(&empty);
    wanted.iter().all(|(key, value)| node.pointer("/metadata/labels").and_then(|l| l.get(key)) == Some(value))
}

/// A short hash as the names of pods and revisions carry it.
pub(super) fn hash(value: &Value) -> String {
    const ALPHABET: &[u8; 16] = b"bcdf456789ghjklm";
    let fnv = value
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (0..10)
        .map(|position| usize::try_from(fnv >> (4 * position) & 15).unwrap_or(0))
        .map(|digit| char::from(ALPHABET[digit]))
        .collect()
}

/// Five random characters for generated names.
pub(super) fn random_suffix() -> String {
    hash(&Value::from(uuid::Uuid::new_v4().to_string())).chars().take(5).collect()
}
