//! What is written down of one attempt: plain data, shared with the pure core and the simulator. No I/O, no clock.

use std::{collections::BTreeMap, fmt, str::FromStr};

use muster_proto::model::{ClusterName, Generation, ItemHash, ItemName, ItemState, MachineId, MachineName, Phase};
use serde::{Deserialize, Serialize};

/// Exit code of an attempt that has none.
pub const NO_EXIT_CODE: i32 = -1;

/// One attempt at one item under one assignment. For each of these at most one process is ever started.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptKey {
    /// The item's slot.
    pub item: ItemName,
    /// Of the assignment it is started under.
    pub generation: Generation,
    /// From 1.
    pub attempt: u32,
}

/// Name of the attempt's directory: `<item>.<generation>.<attempt>`. A label holds no dot, so it reads back.
impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.item, self.generation, self.attempt)
    }
}

/// A directory name that is none of an attempt.
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
        // `+1` and `01` parse as numbers too; only the name we would write is ours.
        if key.to_string() == text { Ok(key) } else { Err(InvalidKey) }
    }
}

/// Everything a runner is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Which attempt this is.
    pub key: AttemptKey,
    /// Of the item.
    pub hash: ItemHash,
    /// The machine it runs on.
    pub machine: MachineName,
    /// Its identity: attempts of one that was enrolled anew on the same disk are another's.
    pub machine_id: MachineId,
    /// The machine's cluster.
    pub cluster: ClusterName,
    /// Name of the runner. Text, because the agent may be older than the manifest.
    pub runner: String,
    /// Of the item.
    pub version: String,
    /// Of the item.
    pub phase: Phase,
    /// The runner's inputs, every variable replaced.
    pub params: BTreeMap<String, String>,
    /// The params that refer to secrets, as texts for `variables::replace_late`: a value never stands in a request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_params: BTreeMap<String, String>,
    /// Time limit of this attempt, in milliseconds. exec-item holds it, so it counts while the agent is away.
    pub timeout_ms: u64,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Never `Running`. `Indeterminate`: ended from outside before it had come to an end.
    pub state: ItemState,
    /// One line for people: "exit status 3", "killed by SIGSEGV", "timed out after 30 s".
    pub message: String,
    /// The end of its output, redacted; at most 8 KiB.
    pub output_tail: String,
    /// Free JSON the runner leaves; at most 16 KiB.
    pub result_json: Option<String>,
    /// Unix milliseconds.
    pub started_at_ms: u64,
    /// Unix milliseconds.
    pub finished_at_ms: u64,
}

impl Exit {
    /// Of an attempt whose exec-item was ended with all that it hosted, and could record nothing itself.
    #[must_use]
    pub const fn of_lost(message: String) -> Self {
        let state = ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: true };
        Self { state, message, output_tail: String::new(), result_json: None, started_at_ms: 0, finished_at_ms: 0 }
    }

    /// Of an attempt whose exec-item left no outcome, where something is known of the reason.
    #[must_use]
    pub fn of_unknown(why: &str) -> Self {
        let message = format!("its process ended without an outcome: {why}");
        Self { state: ItemState::Indeterminate, ..Self::of_lost(message) }
    }
}

/// What the record of an attempt says of it, whoever asks and however often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No process ever began: start it, same attempt.
    NotStarted,
    /// Its exec-item lives.
    Running,
    /// It ended, and the outcome is recorded.
    Exited(Exit),
    /// It began, its exec-item is gone, and nothing says how it ended.
    Lost,
}

/// What the directory of an attempt says to a ledger that does not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Which attempt.
    pub key: AttemptKey,
    /// Of the item; None: its request cannot be read.
    pub hash: Option<ItemHash>,
    /// What became of it.
    pub found: Found,
}

/// How far a long transfer has come, or which task of a playbook runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Bytes that are here.
    pub done_bytes: u64,
    /// Of the whole; 0 = unknown.
    pub total_bytes: u64,
    /// Since the last progress.
    pub bytes_per_second: u64,
    /// Name of the task, as the playbook has it.
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
