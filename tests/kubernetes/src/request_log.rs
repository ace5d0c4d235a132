//! The log of requests, for assertions of tests.

use std::time::SystemTime;

use serde_json::Value;

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct LoggedRequest {
    pub(super) id: u64,
    /// Time of arrival.
    pub at: SystemTime,
    /// Index of the API server that received it.
    pub server: usize,
    /// The user of the token; empty for an unknown token.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`; a lower-case HTTP method for other paths.
    pub verb: String,
    /// Plural name of the resource, or the path if it is no resource.
    pub resource: String,
    /// Namespace; empty at the cluster scope.
    pub namespace: String,
    /// Name of the object; empty for a collection.
    pub name: String,
    /// `status`, `eviction`, or empty.
    pub subresource: String,
    /// The query as sent.
    pub query: String,
    /// HTTP status of the answer; `None` if the request is open or stayed unanswered.
    pub status: Option<u16>,
    /// Body of the request as JSON; null if there was none.
    pub body: Value,
}
