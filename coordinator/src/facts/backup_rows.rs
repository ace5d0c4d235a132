//! What an update has backed up, as it is stored.

use muster_proto::model::MachineName;
use serde::{Deserialize, Serialize};

use super::Added;

/// A backup as its item left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRow {
    /// The machine it lies on.
    pub machine: MachineName,
    /// Of what.
    pub of: Added,
    /// Its file there; empty: the item did not say.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Its digest, in hex.
    pub sha256: String,
    /// What the item said of it, in one line: a copy may be hot though a consistent one was wanted.
    pub message: String,
    /// Unix milliseconds, the machine's clock.
    pub taken_at_ms: u64,
}
