//! Status file for `muster-agent status`: why the agent is blocked. It exists only while a reason holds. It is best
//! effort: never synced, and ignored by all decisions. The engine writes it, the status command reads it.

use muster_proto::model::Reason;
use serde::{Deserialize, Serialize};

use crate::{attempt::durable, config::StateDir, core::AgentBlocked, host::unix_ms};

/// Reason why the agent is blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockReport {
    /// The named reason.
    pub reason: Reason,
    /// Description of the problem in one sentence.
    pub message: String,
    /// Start of the condition, in Unix milliseconds.
    pub since_ms: u64,
}

impl BlockReport {
    /// Report of the agent that runs here or ran here last.
    #[must_use]
    pub fn load(dir: &StateDir) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.blocked()).ok()?).ok()
    }
}

/// Keeps the file up to date.
#[derive(Debug)]
pub(crate) struct StatusFile {
    dir: StateDir,
    /// Content of the file and its start time; None: unknown so far.
    told: Option<Option<(AgentBlocked, u64)>>,
}

impl StatusFile {
    pub(crate) fn new(dir: &StateDir) -> Self {
        Self { dir: dir.clone(), told: None }
    }

    /// Writes a change, best effort: a full disk must not end the agent.
    pub(crate) fn tell(&mut self, blocked: Option<&AgentBlocked>) {
        let told = self.told.as_ref().map(Option::as_ref);
        if told.is_some_and(|told| told.map(|(told, _)| told) == blocked) {
            return;
        }
        let new = blocked.map(|blocked| {
            // The text may change while the reason stays.
            let same = told.flatten().filter(|(told, _)| told.reason == blocked.reason);
            (blocked.clone(), same.map_or_else(unix_ms, |(_, since_ms)| *since_ms))
        });
        match &new {
            None => drop(std::fs::remove_file(self.dir.blocked())),
            Some((AgentBlocked { reason, message }, since_ms)) => {
                let report = BlockReport { reason: *reason, message: message.to_string(), since_ms: *since_ms };
                let text = serde_json::to_vec_pretty(&report).unwrap_or_default();
                drop(durable::replace_unsynced(&self.dir.blocked(), &text));
            }
        }
        self.told = Some(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_the_time_of_the_reason_and_not_of_the_words() {
        let state = tempfile::tempdir().expect("a directory");
        let dir = StateDir::new(state.path());
        let mut file = StatusFile::new(&dir);
        let blocked = |reason, message: &str| AgentBlocked { reason, message: message.to_owned().into() };
        file.tell(Some(&blocked(Reason::WaitingForSecret, "no session")));
        file.told = Some(Some((blocked(Reason::WaitingForSecret, "no session"), 7)));
        file.tell(Some(&blocked(Reason::WaitingForSecret, "refused")));
        let told = BlockReport::load(&dir).expect("told");
        assert_eq!((told.message.as_str(), told.since_ms), ("refused", 7));
        file.tell(Some(&blocked(Reason::DiskFull, "full")));
        assert!(BlockReport::load(&dir).expect("told").since_ms > 7);
        file.tell(None);
        assert_eq!(BlockReport::load(&dir), None);
    }
}
