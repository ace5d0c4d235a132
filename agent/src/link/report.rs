//! State of the link, for `muster-agent status`: a small file, written on each change. It is best effort: never synced,
//! and ignored by all decisions.

use serde::{Deserialize, Serialize};

use crate::{attempt::durable, config::StateDir, host::unix_ms};

/// State of the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkReport {
    /// Address of the coordinator, `HOST:PORT`.
    pub coordinator: String,
    /// Is there a session?
    pub connected: bool,
    /// Start of this state in Unix milliseconds. Consecutive sessions of a renewed certificate count as one.
    pub since_ms: u64,
    /// Reason for a missing session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl LinkReport {
    pub(super) fn connected(coordinator: &str) -> Self {
        Self { coordinator: coordinator.to_owned(), connected: true, since_ms: unix_ms(), error: None }
    }

    pub(super) fn disconnected(coordinator: &str, error: &str) -> Self {
        let error = Some(error.to_owned());
        Self { coordinator: coordinator.to_owned(), connected: false, since_ms: unix_ms(), error }
    }

    /// The report of the agent that runs here or ran here last.
    #[must_use]
    pub fn load(dir: &StateDir) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.link()).ok()?).ok()
    }

    /// Writes the state if it changed. A change of the error text keeps the start time. A new session always counts as
    /// a change, because a killed agent leaves the end of its own unreported.
    pub(super) fn save(mut self, dir: &StateDir) {
        let old = Self::load(dir);
        if let Some(old) = old.as_ref().filter(|old| !old.connected && !self.connected) {
            self.since_ms = old.since_ms;
        }
        if old.as_ref() == Some(&self) {
            return;
        }
        // Best effort: a full disk must not end the link.
        serde_json::to_vec_pretty(&self).map(|text| durable::replace_unsynced(&dir.link(), &text).ok()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_the_time_of_the_change_and_not_of_the_words() {
        let state = tempfile::tempdir().expect("a directory");
        let dir = StateDir::new(state.path());
        let at = |since_ms, report: LinkReport| {
            LinkReport { since_ms, ..report }.save(&dir);
            LinkReport::load(&dir).map(|report| (report.connected, report.since_ms, report.error)).expect("saved")
        };
        let down = |why| LinkReport::disconnected("c:1", why);
        assert_eq!(at(1, down("refused")), (false, 1, Some("refused".to_owned())));
        assert_eq!(at(2, down("it is 14:02")), (false, 1, Some("it is 14:02".to_owned())));
        assert_eq!(at(3, LinkReport::connected("c:1")), (true, 3, None));
        assert_eq!(at(4, LinkReport::connected("c:1")), (true, 4, None), "of another session");
        assert_eq!(at(5, down("refused")), (false, 5, Some("refused".to_owned())));
    }
}
