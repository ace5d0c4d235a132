use serde::{Deserialize, Serialize};

/// One line of who did what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// From 1.
    pub seq: u64,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// `operator/anna`.
    pub actor: String,
    /// `retry`.
    pub action: String,
    /// `machine/worker-3`.
    pub object: String,
    /// The rest, in one line.
    pub message: String,
}
