//! Answers that are not a success, as the API server words them.

use serde_json::{Value, json};

use super::kinds::Kind;

/// A failed request: HTTP status, headers and body.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) code: u16,
    reason: Option<&'static str>,
    message: String,
    details: Option<Box<Value>>,
    pub(super) retry_after: Option<u32>,
    continue_token: Option<String>,
    /// A body of plain text takes the place of the Status.
    text: Option<&'static str>,
}

impl Failure {
    pub(super) fn new(code: u16, reason: Option<&'static str>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, reason, message, details: None, retry_after: None, continue_token: None, text: None }
    }

    pub(super) fn with_details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Sets the header and the field of the Status.
    pub(super) fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        let mut details = self.details.take().unwrap_or_else(|| Box::new(json!({})));
        if let Some(fields) = details.as_object_mut() {
            fields.insert("retryAfterSeconds".to_owned(), seconds.into());
        }
        self.details = Some(details);
        self
    }

    pub(super) fn with_continue(mut self, token: String) -> Self {
        self.continue_token = Some(token);
        self
    }

    pub(super) fn text(code: u16, text: &'static str) -> Self {
        Self { text: Some(text), ..Self::new(code, None, text) }
    }

    /// API Priority and Fairness rejects the request before the server looks at it.
    pub(super) fn priority_and_fairness() -> Self {
        Self { retry_after: Some(1), ..Self::text(429, "Too many requests, please try again later.\n") }
    }

    /// The server is still installing its paths.
    pub(super) fn starting() -> Self {
        let message = "the request has been made before all known HTTP paths have been installed, please try again";
        Self::new(503, Some("ServiceUnavailable"), message).with_retry_after(5)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, Some("Unauthorized"), "Unauthorized")
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, Some("BadRequest"), message)
    }

    pub(super) fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, Some("NotFound"), format!("{} \"{name}\" not found", kind.resource()))
            .with_details(details(kind, name))
    }

    pub(super) fn namespace_not_found(name: &str) -> Self {
        Self::new(404, Some("NotFound"), format!("namespaces \"{name}\" not found"))
            .with_details(json!({"name": name, "kind": "namespaces"}))
    }

    pub(super) fn namespace_terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut details = details(kind, name);
        if let Some(fields) = details.as_object_mut() {
            let cause = json!({
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            });
            fields.insert("causes".to_owned(), json!([cause]));
        }
        Self::new(403, Some("Forbidden"), format!("{} \"{name}\" is forbidden: {why}", kind.resource()))
            .with_details(details)
    }

    pub(super) fn already_exists(kind: &Kind, name: &str, terminating: bool) -> Self {
        let start = if terminating { "object is being deleted: " } else { "" };
        Self::new(409, Some("AlreadyExists"), format!("{start}{} \"{name}\" already exists", kind.resource()))
            .with_details(details(kind, name))
    }

    /// The object changed since the version that the request names.
    pub(super) fn modified(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::new(
            409,
            Some("Conflict"),
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource()),
        )
        .with_details(details(kind, name))
    }

    /// A precondition of a deletion or an eviction fails. The answer names the kind; others name the resource.
    pub(super) fn precondition(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified_kind());
        Self::new(409, Some("Conflict"), message).with_details(kind_details(kind, name))
    }

    /// The object is invalid in one field. Custom resources name each cause twice, as the real server does.
    pub(super) fn invalid(kind: &Kind, name: &str, field: &str, reason: &str, why: &str) -> Self {
        let cause = json!({"reason": reason, "message": why, "field": field});
        let causes = if kind.custom { json!([cause, cause]) } else { json!([cause]) };
        Self::unprocessable(kind, name, causes, &format!("{field}: {why}"))
    }

    /// The object is invalid in these fields: field, reason and message of each.
    pub(super) fn invalid_fields(kind: &Kind, name: &str, faults: &[(String, &str, String)]) -> Self {
        let cause =
            |(field, reason, why): &(String, &str, String)| json!({"reason": reason, "message": why, "field": field});
        let causes = faults.iter().map(cause).collect();
        let texts: Vec<String> = faults.iter().map(|(field, _, why)| format!("{field}: {why}")).collect();
        let text = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        Self::unprocessable(kind, name, causes, &text)
    }

    fn unprocessable(kind: &Kind, name: &str, causes: Value, why: &str) -> Self {
        let mut details = kind_details(kind, name);
        if let Some(fields) = details.as_object_mut() {
            fields.insert("causes".to_owned(), causes);
        }
        let message = format!("{} \"{name}\" is invalid: {why}", kind.qualified_kind());
        Self::new(422, Some("Invalid"), message).with_details(details)
    }

    /// The storage of a custom resource is not ready yet.
    pub(super) fn initializing() -> Self {
        Self::new(429, Some("TooManyRequests"), "storage is (re)initializing").with_retry_after(1)
    }

    /// A budget refuses the eviction.
    pub(super) fn budget(why: String) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Self::new(429, Some("TooManyRequests"), message)
            .with_details(json!({"causes": [{"reason": "DisruptionBudget", "message": why}]}))
    }

    /// The Status object of this failure.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if let Some(fields) = status.as_object_mut() {
            if let Some(reason) = self.reason {
                fields.insert("reason".to_owned(), reason.into());
            }
            if let Some(details) = &self.details {
                fields.insert("details".to_owned(), (**details).clone());
            }
            if let Some(token) = &self.continue_token {
                fields.insert("metadata".to_owned(), json!({"continue": token}));
            }
        }
        status
    }

    /// Content type and body of the answer.
    pub(super) fn body(&self) -> (&'static str, String) {
        match self.text {
            Some(text) => ("text/plain; charset=utf-8", text.to_owned()),
            None => ("application/json", self.status().to_string()),
        }
    }
}

/// Details that name the resource. An empty name is left out.
pub(super) fn details(kind: &Kind, name: &str) -> Value {
    named(&kind.plural, &kind.group, name)
}

fn kind_details(kind: &Kind, name: &str) -> Value {
    named(&kind.kind, &kind.group, name)
}

fn named(kind: &str, group: &str, name: &str) -> Value {
    let mut fields = serde_json::Map::new();
    if !name.is_empty() {
        fields.insert("name".to_owned(), name.into());
    }
    if !group.is_empty() {
        fields.insert("group".to_owned(), group.into());
    }
    fields.insert("kind".to_owned(), kind.into());
    Value::Object(fields)
}
