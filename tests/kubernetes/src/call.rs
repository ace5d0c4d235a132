//! A request, taken apart.

use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::{access::Action, kinds::Kind};

/// A request with the resource that its path names.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query_text: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) content_type: String,
    pub(super) accept: String,
    /// Null: an empty body. `None`: a body that is not JSON.
    pub(super) body: Option<Value>,
    pub(super) verb: String,
    pub(super) kind: Option<Arc<Kind>>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
}

impl Call {
    /// Take apart method, path and query. The caller sets headers and body.
    pub(super) fn parse(kinds: &[Arc<Kind>], method: &str, path: &str, query_text: &str) -> Self {
        let mut call = Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query_text: query_text.to_owned(),
            query: pairs(query_text),
            content_type: String::new(),
            accept: String::new(),
            body: Some(Value::Null),
            verb: method.to_lowercase(),
            kind: None,
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
        };
        call.find_resource(kinds);
        call
    }

    fn find_resource(&mut self, kinds: &[Arc<Kind>]) {
        let decoded: Vec<String> = self.path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, inner @ ..] if !matches!(inner, [] | ["status" | "finalize"]) => {
                (Some(*namespace), inner)
            }
            _ => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return,
        };
        let is_this = |kind: &&Arc<Kind>| {
            kind.group == group
                && kind.version == version
                && kind.plural == plural
                && (kind.namespaced || namespace.is_none())
        };
        let Some(kind) = kinds.iter().find(is_this) else { return };
        // The path of an object includes its namespace; only a list may cover all of them.
        if kind.namespaced && namespace.is_none() && (!name.is_empty() || self.method == "POST") {
            return;
        }
        self.kind = Some(kind.clone());
        self.namespace = namespace.unwrap_or("").to_owned();
        self.name = name.to_owned();
        self.subresource = subresource.to_owned();
        self.verb = self.verb_of_resource().to_owned();
    }

    fn verb_of_resource(&self) -> &'static str {
        match self.method.as_str() {
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if self.name.is_empty() => "deletecollection",
            "DELETE" => "delete",
            _ if self.is_set("watch") => "watch",
            _ if self.name.is_empty() => "list",
            _ => "get",
        }
    }

    /// A parameter of the query; empty if absent.
    pub(super) fn parameter(&self, key: &str) -> &str {
        self.query.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value)
    }

    /// Is a parameter `1` or `true`?
    pub(super) fn is_set(&self, key: &str) -> bool {
        matches!(self.parameter(key), "1" | "true")
    }

    pub(super) fn is_dry_run(&self) -> bool {
        !self.parameter("dryRun").is_empty()
    }

    /// Does the client accept only `PartialObjectMetadata`?
    pub(super) fn wants_metadata_only(&self) -> bool {
        self.accept.contains("as=PartialObjectMetadata")
    }

    /// The name for fault rules and the log: `pods/eviction`, or the path if it is no resource.
    pub(super) fn resource_name(&self) -> String {
        match &self.kind {
            Some(kind) if self.subresource.is_empty() => kind.plural.clone(),
            Some(kind) => format!("{}/{}", kind.plural, self.subresource),
            None => self.path.clone(),
        }
    }

    /// The action that the access check judges.
    pub(super) fn action<'a>(&'a self, kind: &'a Kind) -> Action<'a> {
        Action {
            verb: &self.verb,
            group: &kind.group,
            plural: &kind.plural,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
        }
    }
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, ""))).map(|(k, v)| (decode(k), decode(v))).collect()
}

/// Decode `%2F` and `+` in a part of a URL.
fn decode(part: &str) -> String {
    percent_decode_str(&part.replace('+', " ")).decode_utf8_lossy().into_owned()
}
