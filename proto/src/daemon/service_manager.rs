//! Notifications to the service manager (`sd_notify`): ready, status, watchdog, stopping. They are sent only if there
//! is a service manager. They are best effort: a loss is ignored, and the watchdog handles missing signs of life.

use std::time::{Duration, Instant};

use sd_notify::{NotifyState, notify, watchdog_enabled};

use crate::convert::as_line;

/// Keep-alives per watchdog period; when one is late, the next still arrives in time.
const FEEDS_PER_PERIOD: u32 = 3;

/// Notify that the daemon is ready.
pub fn ready() {
    notify(&[NotifyState::Ready]).ok();
}

/// Notify that the daemon is stopping.
pub fn stopping() {
    notify(&[NotifyState::Stopping]).ok();
}

/// Status line for `systemctl status`, sent when it changes.
#[derive(Debug, Default)]
pub struct StatusLine {
    last: String,
}

impl StatusLine {
    /// Send the line if it is new. Line breaks are removed: each would begin another message to the service manager.
    pub fn say(&mut self, text: &str) {
        let line = as_line(text);
        if line != self.last {
            notify(&[NotifyState::Status(&line)]).ok();
            self.last = line;
        }
    }
}

/// Watchdog of this process. Only the loop that it guards may feed it.
#[derive(Debug)]
pub struct Watchdog {
    /// Interval between keep-alives. None: the watchdog is off.
    every: Option<Duration>,
    fed_at: Option<Instant>,
}

impl Watchdog {
    /// The watchdog that the service manager asks for (`WatchdogSec=`).
    #[must_use]
    pub fn from_environment() -> Self {
        Self { every: watchdog_enabled().map(|period| period / FEEDS_PER_PERIOD), fed_at: None }
    }

    /// Send a keep-alive if one is due.
    pub fn feed(&mut self) {
        let Some(every) = self.every else { return };
        let now = Instant::now();
        if self.fed_at.is_none_or(|fed_at| now.duration_since(fed_at) >= every) {
            notify(&[NotifyState::Watchdog]).ok();
            self.fed_at = Some(now);
        }
    }

    /// How long the loop may wait for work. None: forever.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        let every = self.every?;
        Some(self.fed_at.map_or(Duration::ZERO, |fed_at| every.saturating_sub(fed_at.elapsed())))
    }
}
