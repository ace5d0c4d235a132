//! Record of one attempt: plain data, shared with the pure core and the simulator. No I/O, no clock.

use std::{collections::BTreeMap, fmt, str::FromStr};

use muster_proto::model::{ClusterName, Generation, ItemHash, ItemName, ItemState, MachineId, MachineName, Phase};
use serde::{Deserialize, Serialize};

/// Exit code of an attempt that has none.
pub const NO_EXIT_CODE: i32 = -1;

/// One attempt of one item under one assignment. At most one process is ever started for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptKey {
    /// The item's slot.
    pub item: ItemName,
    /// Generation of the assignment under which it is started.
    pub generation: Generation,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// Name of the attempt's directory: `<item>.<generation>.<attempt>`. Labels exclude dots, so the name parses back.
impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.item, self.generation, self.attempt)
    }
}

/// A directory name with another format than an attempt's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an attempt is named <item>.<generation>.<attempt>")]
pub struct InvalidKey;

impl FromStr for AttemptKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let mut parts = text.split('.');
        let (Some(item), Some(generation), Some(attempt), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidKey);
        };
        let key = Self {
            item: ItemName::new(item).map_err(|_| InvalidKey)?,
            generation: Generation(generation.parse().map_err(|_| InvalidKey)?),
            attempt: attempt.parse().map_err(|_| InvalidKey)?,
        };
        // `+1` and `01` parse as numbers too; only the canonical name is valid.
        if key.to_string() == text { Ok(key) } else { Err(InvalidKey) }
    }
}

/// Everything that a runner is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The attempt.
    pub key: AttemptKey,
    /// Hash of the item.
    pub hash: ItemHash,
    /// Machine it runs on.
    pub machine: MachineName,
    /// The machine's identity. After a new enrolment on the same disk, older attempts belong to another machine.
    pub machine_id: MachineId,
    /// The machine's cluster.
    pub cluster: ClusterName,
    /// Name of the runner. It is text because the agent may be older than the manifest.
    pub runner: String,
    /// Version of the item.
    pub version: String,
    /// Phase of the item.
    pub phase: Phase,
    /// The runner's inputs with every variable replaced.
    pub params: BTreeMap<String, String>,
    /// Params that refer to secrets, as texts for `variables::replace_late`. A request never contains a secret's value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_params: BTreeMap<String, String>,
    /// Time limit of this attempt, in milliseconds. exec-item enforces it, so it counts while the agent is down.
    pub timeout_ms: u64,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Final state, never `Running`. `Indeterminate`: it was stopped from outside before its end.
    pub state: ItemState,
    /// One line for people: "exit status 3", "killed by SIGSEGV", "timed out after 30 s".
    pub message: String,
    /// End of its output, redacted; at most 8 KiB.
    pub output_tail: String,
    /// Free JSON from the runner; at most 16 KiB.
    pub result_json: Option<String>,
    /// Start, in Unix milliseconds.
    pub started_at_ms: u64,
    /// End, in Unix milliseconds.
    pub finished_at_ms: u64,
}

impl Exit {
    /// Outcome of an attempt whose exec-item was killed with all its processes before it could record anything.
    #[must_use]
    pub const fn of_lost(message: String) -> Self {
        let state = ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: true };
        Self { state, message, output_tail: String::new(), result_json: None, started_at_ms: 0, finished_at_ms: 0 }
    }

    /// Outcome of an attempt without a recorded one, where part of the cause is known.
    #[must_use]
    pub fn of_unknown(why: &str) -> Self {
        let message = format!("its process ended without an outcome: {why}");
        Self { state: ItemState::Indeterminate, ..Self::of_lost(message) }
    }
}

/// State of an attempt according to its record. Reads leave it unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its process has yet to begin: start the same attempt.
    NotStarted,
    /// Its exec-item lives.
    Running,
    /// It ended, and the outcome is recorded.
    Exited(Exit),
    /// It began, its exec-item is gone, and its outcome is unknown.
    Lost,
}

/// Evidence from an attempt's directory for a ledger that lacks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The attempt.
    pub key: AttemptKey,
    /// Hash of the item; None: its request is unreadable.
    pub hash: Option<ItemHash>,
    /// State of the attempt.
    pub found: Found,
}

/// Progress of a long transfer, or the running task of a playbook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Bytes received.
    pub done_bytes: u64,
    /// Total bytes; 0 = unknown.
    pub total_bytes: u64,
    /// Rate since the last progress.
    pub bytes_per_second: u64,
    /// Name of the task in the playbook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_from_its_directory_name() {
        let key =
            AttemptKey { item: ItemName::new("install-mke").expect("a label"), generation: Generation(7), attempt: 2 };
        assert_eq!(key.to_string(), "install-mke.7.2");
        assert_eq!("install-mke.7.2".parse(), Ok(key));
        for bad in ["", "a", "a.1", "a.1.2.3", "A.1.1", "a.x.1", "a.1.x", "a.+1.1", "a.01.1", "../x.1.1", "a.1.-1"] {
            assert_eq!(bad.parse::<AttemptKey>(), Err(InvalidKey), "{bad}");
        }
    }
}
