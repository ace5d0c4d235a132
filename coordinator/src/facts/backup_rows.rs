//! Stored rows of an update's backups.

use muster_proto::model::MachineName;
use serde::{Deserialize, Serialize};

use super::Added;

/// A backup as its item reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRow {
    /// The machine that stores it.
    pub machine: MachineName,
    /// The kind of backup.
    pub of: Added,
    /// Its file there; empty: unreported.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Its digest, in hex.
    pub sha256: String,
    /// The item's message about it, in one line: a copy may be hot although a consistent one was wanted.
    pub message: String,
    /// Time of the backup, in Unix milliseconds of the machine's clock.
    pub taken_at_ms: u64,
}
