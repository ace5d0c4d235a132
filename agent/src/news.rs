//! What the engine tells the service manager: that it is ready, what the machine is at, that its loop turns.

use jiff::Timestamp;
use muster_proto::daemon::service_manager::{StatusLine, Watchdog};

use crate::{
    host::unix_ms,
    status::{shown, timestamp},
};

/// See the module.
pub(crate) struct News {
    watchdog: Watchdog,
    status: StatusLine,
    connected: bool,
    /// Since when it is so, or since when this process does not know better.
    since: Option<Timestamp>,
}

impl Default for News {
    fn default() -> Self {
        let (watchdog, status) = (Watchdog::from_environment(), StatusLine::default());
        Self { watchdog, status, connected: false, since: timestamp(unix_ms()) }
    }
}

impl News {
    /// The session began or ended. A renewed certificate brings a new session without an end of the one before.
    pub(crate) fn link(&mut self, connected: bool) {
        if connected != self.connected {
            self.connected = connected;
            self.since = timestamp(unix_ms());
        }
    }

    /// The loop has come round. Nothing else may call this: it feeds the watchdog.
    pub(crate) fn turn(&mut self, summary: &str) {
        self.watchdog.feed();
        let link = if self.connected { "connected" } else { "not connected" };
        self.status.say(&format!("{summary} ({link} since {})", shown(self.since)));
    }

    /// The longest the loop may wait. None = as long as it likes.
    pub(crate) fn patience(&self) -> Option<std::time::Duration> {
        self.watchdog.patience()
    }
}
