//! Schemas of custom resources: unknown fields are dropped, and invalid ones refused.

use serde_json::Value;

use super::{
    call::Call,
    failure::Failure,
    kinds::Kind,
    objects::{list, name, text},
};

/// Fields that every object has. Their schema is the server's.
const COMMON: [&str; 3] = ["apiVersion", "kind", "metadata"];
const NAME_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
    '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation \
    is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Field, reason and message.
type Fault = (String, &'static str, String);

/// Drop unknown fields of an object that a request creates or changes, and check the rest.
pub(super) fn admit(call: &Call, kind: &Kind, object: &mut Value) -> Result<(), Failure> {
    if !kind.schema.is_object() {
        return Ok(());
    }
    let mut unknown = Vec::new();
    prune(&kind.schema, object, "", &mut unknown);
    if let (Some(_), "Strict") = (unknown.first(), call.parameter("fieldValidation")) {
        let fields: Vec<String> = unknown.iter().map(|field| format!("unknown field \"{field}\"")).collect();
        return Err(Failure::bad_request(format!(
            "{0} in version \"{1}\" cannot be handled as a {0}: strict decoding error: {2}",
            kind.kind,
            kind.version,
            fields.join(", ")
        )));
    }
    let mut faults = Vec::new();
    if !is_subdomain(name(object)) {
        let why = format!("Invalid value: \"{}\": {NAME_RULE}", name(object));
        faults.push(("metadata.name".to_owned(), "FieldValueInvalid", why));
    }
    if call.subresource == "status" {
        // The status is checked on its own: messages name its fields from there.
        let status = (kind.schema.pointer("/properties/status"), object.get("status"));
        if let (Some(schema), Some(status)) = status {
            check(schema, status, "status", "", &mut faults);
        }
    } else {
        check(&kind.schema, object, "", "", &mut faults);
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::invalid_fields(kind, name(object), &faults)) }
}

fn is_subdomain(name: &str) -> bool {
    let is_inner = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    name.split('.').all(|label| {
        !label.is_empty() && label.chars().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
    })
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// Drop fields that the schema does not know. An object without `properties` keeps everything.
fn prune(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    if let (Value::Array(items), Some(schema)) = (&mut *value, schema.get("items")) {
        for (position, item) in items.iter_mut().enumerate() {
            prune(schema, item, &format!("{path}[{position}]"), unknown);
        }
    }
    let Some(known) = schema.get("properties").and_then(Value::as_object) else { return };
    let Some(fields) = value.as_object_mut() else { return };
    fields.retain(|field, inner| {
        if path.is_empty() && COMMON.contains(&field.as_str()) {
            return true;
        }
        if let Some(schema) = known.get(field) {
            prune(schema, inner, &join(path, field), unknown);
            return true;
        }
        unknown.push(join(path, field));
        false
    });
}

/// Check a value. `path` is its field, `body` the same as messages name it.
fn check(schema: &Value, value: &Value, path: &str, body: &str, faults: &mut Vec<Fault>) {
    let mut fault = |reason, why| faults.push((path.to_owned(), reason, why));
    let (wanted, actual) = (text(schema, "/type"), type_of(value));
    if !(wanted.is_empty() || wanted == actual || (wanted == "number" && actual == "integer")) {
        let why = format!("Invalid value: \"{actual}\": {body} in body must be of type {wanted}: \"{actual}\"");
        fault("FieldValueTypeInvalid", why);
        return;
    }
    let allowed = list(schema, "/enum");
    if !(allowed.is_empty() || allowed.contains(value)) {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        let why = format!("Unsupported value: {value}: supported values: {}", allowed.join(", "));
        fault("FieldValueNotSupported", why);
    }
    if let (Some(maximum), Some(number)) = (schema.get("maximum").and_then(Value::as_f64), value.as_f64())
        && number > maximum
    {
        let why = format!("Invalid value: {value}: {body} in body should be less than or equal to {maximum}");
        fault("FieldValueInvalid", why);
    }
    for required in list(schema, "/required").iter().filter_map(Value::as_str) {
        if value.is_object() && value.get(required).is_none() {
            faults.push((join(path, required), "FieldValueRequired", "Required value".to_owned()));
        }
    }
    for (field, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if let Some(inner) = value.get(field) {
            check(schema, inner, &join(path, field), &join(body, field), faults);
        }
    }
    if let (Some(schema), Some(items)) = (schema.get("items"), value.as_array()) {
        for (position, item) in items.iter().enumerate() {
            check(schema, item, &format!("{path}[{position}]"), &format!("{body}[{position}]"), faults);
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
