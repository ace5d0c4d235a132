//! Why the agent starts nothing, for `muster-agent status`: a small file, there while it is so. News, not a record:
//! never synced, and nothing is decided by it. The engine tells, the status reads.

use serde::{Deserialize, Serialize};

use crate::{attempt::durable, config::StateDir, core::AgentBlocked, host::unix_ms};

/// Why nothing is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockReport {
    /// A named reason, `WaitingForSecret`.
    pub reason: String,
    /// What is the matter, in one sentence.
    pub message: String,
    /// Since when it is so. Unix milliseconds.
    pub since_ms: u64,
}

impl BlockReport {
    /// The report of the agent that runs here or ran here last.
    #[must_use]
    pub fn load(dir: &StateDir) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.blocked()).ok()?).ok()
    }
}

/// Keeps the file true.
#[derive(Debug)]
pub(crate) struct BlockNews {
    dir: StateDir,
    /// What the file says; None: not yet looked.
    told: Option<Option<AgentBlocked>>,
}

impl BlockNews {
    pub(crate) fn new(dir: &StateDir) -> Self {
        Self { dir: dir.clone(), told: None }
    }

    /// Writes what is new. Only news: a full disk must not end the agent.
    pub(crate) fn tell(&mut self, blocked: Option<&AgentBlocked>) {
        if self.told.as_ref().is_some_and(|told| told.as_ref() == blocked) {
            return;
        }
        match blocked {
            None => drop(std::fs::remove_file(self.dir.blocked())),
            Some(AgentBlocked { reason, message }) => {
                let report =
                    BlockReport { reason: (*reason).to_owned(), message: message.to_string(), since_ms: unix_ms() };
                let text = serde_json::to_vec_pretty(&report).unwrap_or_default();
                drop(durable::replace_unsynced(&self.dir.blocked(), &text));
            }
        }
        self.told = Some(blocked.cloned());
    }
}
