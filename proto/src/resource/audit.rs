use serde::{Deserialize, Serialize};

use super::Document;

/// One line of the audit record.
pub type Audit = Document<AuditSpec, AuditStatus>;

/// Who did what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditSpec {
    /// `operator/anna`.
    pub actor: String,
    /// `retry`.
    pub action: String,
    /// `machine/worker-3`.
    pub object: String,
    /// The rest, in one line.
    pub message: String,
}

/// Nothing: an audit line never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditStatus {}
