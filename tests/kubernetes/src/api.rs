//! Answers to requests: access check, then the operation.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    access::{self, Action, Caller},
    apply,
    call::Call,
    deletion, eviction,
    failure::Failure,
    kinds::Kind,
    lists,
    objects::{set, text},
    state::State,
    write,
};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A successful answer.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Json(u16, Value),
    Text(&'static str),
}

/// Check the caller's rights.
pub(super) fn authorize(caller: &Caller, call: &Call) -> Result<(), Failure> {
    if let Some(kind) = &call.kind {
        let action = call.action(kind);
        return if caller.may(&action) { Ok(()) } else { Err(caller.forbidden(&action, kind)) };
    }
    if call.path == REVIEWS || caller.may_read(&call.verb, &call.path) {
        return Ok(());
    }
    Err(caller.forbidden_path(&call.verb, &call.path))
}

/// Perform a request other than a watch.
pub(super) fn perform(
    state: &mut State,
    server: usize,
    floor: u64,
    caller: &Caller,
    call: &Call,
) -> Result<Answer, Failure> {
    // Protobuf and YAML bodies, for example.
    if call.body.is_none() && !call.content_type.contains("json") {
        let message = "the body of the request was in an unknown format - accepted media types include: \
                       application/json";
        return Err(Failure::new(415, Some("UnsupportedMediaType"), message));
    }
    let Some(kind) = call.kind.clone() else { return perform_path(state, server, caller, call) };
    let floor = floor.max(state.store.floor());
    let known = match call.subresource.as_str() {
        "" => true,
        "eviction" => kind.resource() == "pods" && call.verb == "create",
        "token" => kind.resource() == "serviceaccounts" && call.verb == "create",
        "status" => kind.status && matches!(call.verb.as_str(), "get" | "update" | "patch"),
        _ => false,
    };
    if !known {
        return Err(Failure::not_found(&kind, &call.name));
    }
    if call.subresource == "token" {
        return Ok(Answer::Json(201, access::issue(state, call, &kind)?));
    }
    if apply::is_apply(call) && call.subresource.is_empty() {
        let exists = state.store.get(&kind.resource(), &call.namespace, &call.name).is_some();
        let action = Action { verb: "create", ..call.action(&kind) };
        if !exists && !caller.may(&action) {
            return Err(caller.forbidden(&action, &kind));
        }
        let (code, object) = apply::perform(&mut state.store, call, &kind)?;
        return Ok(Answer::Json(code, object));
    }
    let store = &mut state.store;
    let (code, object) = match call.verb.as_str() {
        "get" => (200, lists::get(store, call, &kind)?),
        "list" => (200, lists::list(store, floor, call, &kind)?),
        "create" if call.subresource == "eviction" => (201, eviction::evict(store, call, &kind)?),
        "create" if call.name.is_empty() => (201, write::create(store, call, &kind)?),
        "update" => (200, write::replace(store, call, &kind)?),
        "patch" => (200, write::patch(store, call, &kind)?),
        "delete" => (200, deletion::delete(store, call, &kind)?),
        _ => {
            let message = "the server does not allow this method on the requested resource";
            return Err(Failure::new(405, Some("MethodNotAllowed"), message));
        }
    };
    Ok(Answer::Json(code, object))
}

fn perform_path(state: &State, server: usize, caller: &Caller, call: &Call) -> Result<Answer, Failure> {
    let path = call.path.trim_end_matches('/');
    match (call.method.as_str(), path) {
        ("POST", REVIEWS) => review(caller, call),
        ("GET", "/readyz" | "/healthz") if state.unready.contains(&server) => {
            Err(Failure::text(500, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"))
        }
        ("GET", "/readyz" | "/livez" | "/healthz") => Ok(Answer::Text("ok")),
        ("GET", "/version") => Ok(Answer::Json(200, version())),
        ("GET", _) => discovery(&state.kinds, path)
            .map(|document| Answer::Json(200, document))
            .ok_or_else(|| Failure::text(404, "404 page not found\n")),
        _ => Err(Failure::text(404, "404 page not found\n")),
    }
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.2",
        "gitTreeState": "clean",
        "goVersion": "go1.26.1",
        "compiler": "gc",
        "platform": "linux/amd64",
    })
}

/// May the caller do this? A SelfSubjectAccessReview.
fn review(caller: &Caller, call: &Call) -> Result<Answer, Failure> {
    let body = call.body.as_ref().filter(|body| body.is_object());
    let body = body.ok_or_else(|| Failure::bad_request("the body of the request is not a JSON object"))?;
    let at = |field: &str| text(body, &format!("/spec/resourceAttributes/{field}"));
    let allowed = if body.pointer("/spec/nonResourceAttributes").is_some() {
        let at = |field: &str| text(body, &format!("/spec/nonResourceAttributes/{field}"));
        caller.may_read(at("verb"), at("path"))
    } else {
        caller.may(&Action {
            verb: at("verb"),
            group: at("group"),
            plural: at("resource"),
            subresource: at("subresource"),
            namespace: at("namespace"),
            name: at("name"),
        })
    };
    let mut answer = body.clone();
    set(&mut answer, &["apiVersion"], "authorization.k8s.io/v1");
    set(&mut answer, &["kind"], "SelfSubjectAccessReview");
    set(&mut answer, &["metadata"], json!({}));
    set(&mut answer, &["status"], json!({"allowed": allowed}));
    Ok(Answer::Json(201, answer))
}

/// Discovery documents.
fn discovery(kinds: &[std::sync::Arc<Kind>], path: &str) -> Option<Value> {
    let versions: BTreeSet<(&str, &str)> =
        kinds.iter().filter(|kind| !kind.group.is_empty()).map(|k| (k.group.as_str(), k.version.as_str())).collect();
    match path {
        "/api" => return Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        "/apis" => {
            let group = |(group, version): &(&str, &str)| {
                let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
                json!({"name": group, "versions": [version], "preferredVersion": version})
            };
            let groups: Vec<Value> = versions.iter().map(group).collect();
            return Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}));
        }
        _ => {}
    }
    let group_version = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
    let resources: Vec<Value> =
        kinds.iter().filter(|kind| kind.api_version() == group_version).flat_map(|kind| resources(kind)).collect();
    (!resources.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
    })
}

fn resources(kind: &Kind) -> Vec<Value> {
    let all = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let entry = |suffix: &str, verbs: &[&str]| {
        json!({
            "name": format!("{}{suffix}", kind.plural),
            "singularName": if suffix.is_empty() { kind.kind.to_lowercase() } else { String::new() },
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs,
        })
    };
    let mut main = entry("", &all);
    if let Some(short) = short_name(&kind.resource()) {
        set(&mut main, &["shortNames"], json!([short]));
    }
    let mut list = vec![main];
    if kind.status {
        list.push(entry("/status", &["get", "patch", "update"]));
    }
    if kind.resource() == "pods" {
        let mut eviction = entry("/eviction", &["create"]);
        set(&mut eviction, &["group"], "policy");
        set(&mut eviction, &["version"], "v1");
        set(&mut eviction, &["kind"], "Eviction");
        list.push(eviction);
    }
    list
}

/// The abbreviation that kubectl accepts.
fn short_name(resource: &str) -> Option<&'static str> {
    Some(match resource {
        "namespaces" => "ns",
        "nodes" => "no",
        "pods" => "po",
        "events" => "ev",
        "configmaps" => "cm",
        "serviceaccounts" => "sa",
        "persistentvolumeclaims" => "pvc",
        "persistentvolumes" => "pv",
        "poddisruptionbudgets.policy" => "pdb",
        "deployments.apps" => "deploy",
        "replicasets.apps" => "rs",
        "statefulsets.apps" => "sts",
        "daemonsets.apps" => "ds",
        _ => return None,
    })
}
