//! GET of objects and lists.

use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    call::Call,
    failure::Failure,
    kinds::Kind,
    objects::{name, namespace, number, set, text, unset},
    selectors::Filter,
    store::Store,
};

const TOO_OLD: &str = "The resourceVersion for the provided list is too old.";
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. \
    You can start a new list without the continue parameter, or use the continue token in this response to retrieve \
    the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that \
    were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// Read one object.
pub(super) fn get(store: &Store, call: &Call, kind: &Kind) -> Result<Value, Failure> {
    let found = store.get(&kind.resource(), &call.namespace, &call.name);
    let object = found.ok_or_else(|| Failure::not_found(kind, &call.name))?;
    Ok(if call.wants_metadata_only() { metadata_only(&object) } else { (*object).clone() })
}

/// The object reduced to its metadata.
pub(super) fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata")})
}

/// Where a list starts and which state it shows.
struct Page {
    revision: Option<u64>,
    start: Option<String>,
}

/// List objects. `floor` is the oldest revision that the server's cache holds.
pub(super) fn list(store: &Store, floor: u64, call: &Call, kind: &Kind) -> Result<Value, Failure> {
    let filter = Filter::parse(call, kind)?;
    let limit = call.parameter("limit").parse::<usize>().unwrap_or(0);
    let page = page(store, floor, call, limit)?;
    let resource = kind.resource();
    let mut objects = match page.revision {
        Some(revision) => store.snapshot(&resource, revision),
        None => store.all(&resource),
    };
    objects.retain(|object| {
        filter.matches(object) && page.start.as_ref().is_none_or(|start| position(call, object) > *start)
    });
    let shown = page.revision.unwrap_or_else(|| store.revision());
    let mut metadata = json!({"resourceVersion": shown.to_string()});
    // A list from the server's cache (resourceVersion=0) ignores the limit.
    if limit > 0 && objects.len() > limit && call.parameter("resourceVersion") != "0" {
        let rest = objects.split_off(limit);
        if let Some(last) = objects.last() {
            set(&mut metadata, &["continue"], token(shown.to_string(), &position(call, last)));
        }
        if !filter.is_selective() {
            set(&mut metadata, &["remainingItemCount"], rest.len());
        }
    }
    Ok(render(call, kind, &metadata, &objects))
}

fn render(call: &Call, kind: &Kind, metadata: &Value, objects: &[Arc<Value>]) -> Value {
    if call.wants_metadata_only() {
        let items: Vec<Value> = objects.iter().map(|object| metadata_only(object)).collect();
        return json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "items": items,
        });
    }
    let item = |object: &Arc<Value>| {
        let mut item = (**object).clone();
        // Lists of built-in kinds leave these two out of their items.
        if !kind.custom {
            unset(&mut item, &["kind"]);
            unset(&mut item, &["apiVersion"]);
        }
        item
    };
    let items: Vec<Value> = objects.iter().map(item).collect();
    json!({
        "kind": format!("{}List", kind.kind),
        "apiVersion": kind.api_version(),
        "metadata": metadata,
        "items": items,
    })
}

/// An object's place in the order of a list: with its namespace if the list covers all of them.
fn position(call: &Call, object: &Value) -> String {
    if call.namespace.is_empty() && !namespace(object).is_empty() {
        format!("{}/{}", namespace(object), name(object))
    } else {
        name(object).to_owned()
    }
}

fn token(revision: String, start: &str) -> String {
    let content = format!("{{\"v\":\"meta.k8s.io/v1\",\"rv\":{revision},\"start\":\"/{start}\\u0000\"}}");
    BASE64_URL_SAFE_NO_PAD.encode(content)
}

/// Read a resourceVersion. The real server answers 500 to a text that is no number.
pub(super) fn parse_revision(text: &str) -> Result<Option<u64>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let why = || {
        let why = format!("strconv.ParseUint: parsing \"{text}\": invalid syntax");
        Failure::new(500, None, format!("resourceVersion: Invalid value: \"{text}\": {why}"))
    };
    text.parse().map(Some).map_err(|_| why())
}

fn page(store: &Store, floor: u64, call: &Call, limit: usize) -> Result<Page, Failure> {
    let token = call.parameter("continue");
    if !token.is_empty() {
        return continued(store, floor, token);
    }
    let wanted = parse_revision(call.parameter("resourceVersion"))?.filter(|revision| *revision > 0);
    let Some(wanted) = wanted else { return Ok(Page { revision: None, start: None }) };
    let matching = call.parameter("resourceVersionMatch");
    let exact = matching == "Exact" || (matching.is_empty() && limit > 0);
    if wanted > store.revision() {
        return Err(too_large(wanted, store.revision()));
    }
    if exact && wanted < floor {
        return Err(Failure::new(410, Some("Expired"), TOO_OLD));
    }
    Ok(Page { revision: exact.then_some(wanted), start: None })
}

fn too_large(wanted: u64, current: u64) -> Failure {
    let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
    let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
    Failure::new(504, Some("Timeout"), message).with_details(json!({"causes": [cause]})).with_retry_after(1)
}

fn continued(store: &Store, floor: u64, text_of_token: &str) -> Result<Page, Failure> {
    let invalid = || {
        let why = "continue key is not valid: invalid character 'i' looking for beginning of value";
        Failure::bad_request(format!("invalid continue token: {why}"))
    };
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text_of_token.trim_end_matches('=')).map_err(|_| invalid())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
    let start = text(&value, "/start").trim_start_matches('/').trim_end_matches('\0').to_owned();
    // The token of an expired list carries -1: go on with the current state.
    let Ok(revision) = u64::try_from(number(&value, "/rv")) else {
        return Ok(Page { revision: None, start: Some(start) });
    };
    if revision < floor {
        let next = token("-1".to_owned(), &start);
        return Err(Failure::new(410, Some("Expired"), CONTINUE_EXPIRED).with_continue(next));
    }
    if revision > store.revision() {
        return Err(too_large(revision, store.revision()));
    }
    Ok(Page { revision: Some(revision), start: Some(start) })
}
