//! Reports of the engine to the service manager: readiness, status of the machine, and the watchdog of its loop.

use jiff::Timestamp;
use muster_proto::daemon::service_manager::{StatusLine, Watchdog};

use crate::{
    host::unix_ms,
    status::{shown, timestamp},
};

/// Notifier of the service manager; see the module.
pub(crate) struct Notifier {
    watchdog: Watchdog,
    status: StatusLine,
    connected: bool,
    /// Start of this state, or of this process.
    since: Option<Timestamp>,
}

impl Default for Notifier {
    fn default() -> Self {
        let (watchdog, status) = (Watchdog::from_environment(), StatusLine::default());
        Self { watchdog, status, connected: false, since: timestamp(unix_ms()) }
    }
}

impl Notifier {
    /// Notes the start or end of a session. A renewed certificate starts a new session without an end event of the old
    /// one.
    pub(crate) fn link(&mut self, connected: bool) {
        if connected != self.connected {
            self.connected = connected;
            self.since = timestamp(unix_ms());
        }
    }

    /// Reports one turn of the loop. Only the loop may call this: it feeds the watchdog.
    pub(crate) fn turn(&mut self, summary: &str) {
        self.watchdog.feed();
        let link = if self.connected { "connected" } else { "not connected" };
        self.status.say(&format!("{summary} ({link} since {})", shown(self.since)));
    }

    /// Longest wait allowed for the loop. None = unlimited.
    pub(crate) fn time_limit(&self) -> Option<std::time::Duration> {
        self.watchdog.time_limit()
    }
}
