//! How the link is, for `muster-agent status`: a small file, written when it changes. News, not a record: never
//! synced, and nothing is decided by it.

use serde::{Deserialize, Serialize};

use crate::{attempt::durable, config::StateDir, host::unix_ms};

/// How the link is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkReport {
    /// `HOST:PORT`.
    pub coordinator: String,
    /// Is there a session?
    pub connected: bool,
    /// Since when it is so. Unix milliseconds.
    pub since_ms: u64,
    /// Why there is no session.
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

    /// Writes it if it says something new; returns whether it does.
    pub(super) fn save(&self, dir: &StateDir) -> bool {
        let old = Self::load(dir);
        if old.is_some_and(|old| Self { since_ms: self.since_ms, ..old } == *self) {
            return false;
        }
        // Only news: a full disk must not end the link.
        serde_json::to_vec_pretty(self).map(|text| durable::replace_unsynced(&dir.link(), &text).ok()).ok();
        true
    }
}
