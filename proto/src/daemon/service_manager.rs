//! News for whoever started the daemon (`sd_notify`): that it is ready, what it is doing, that it lives, that it
//! stops. Without a service manager nothing is sent. News are best effort: one that does not arrive is no failure of
//! ours, and a missing sign of life is what the watchdog is for.

use std::time::{Duration, Instant};

use sd_notify::{NotifyState, notify, watchdog_enabled};

use crate::convert::as_line;

/// Signs of life within one period of the watchdog; with one of them late, the next still comes in time.
const FEEDS_PER_PERIOD: u32 = 3;

/// The daemon does its work from now on.
pub fn ready() {
    notify(&[NotifyState::Ready]).ok();
}

/// The daemon has begun to stop.
pub fn stopping() {
    notify(&[NotifyState::Stopping]).ok();
}

/// One line for `systemctl status`, sent when it is another than before.
#[derive(Debug, Default)]
pub struct StatusLine {
    last: String,
}

impl StatusLine {
    /// Says it, if it is new. A line break would begin another message to the service manager, so none is passed on.
    pub fn say(&mut self, text: &str) {
        let line = as_line(text);
        if line != self.last {
            notify(&[NotifyState::Status(&line)]).ok();
            self.last = line;
        }
    }
}

/// The watchdog of this process, to be fed by the loop that must not hang and by nothing else.
#[derive(Debug)]
pub struct Watchdog {
    /// None = nobody watches.
    every: Option<Duration>,
    fed_at: Option<Instant>,
}

impl Watchdog {
    /// As the service manager wants it (`WatchdogSec=`).
    #[must_use]
    pub fn from_environment() -> Self {
        Self { every: watchdog_enabled().map(|period| period / FEEDS_PER_PERIOD), fed_at: None }
    }

    /// Says that the loop turns, if that is due.
    pub fn feed(&mut self) {
        let Some(every) = self.every else { return };
        let now = Instant::now();
        if self.fed_at.is_none_or(|fed_at| now.duration_since(fed_at) >= every) {
            notify(&[NotifyState::Watchdog]).ok();
            self.fed_at = Some(now);
        }
    }

    /// How long the loop may wait for something to do. None = as long as it likes.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        let every = self.every?;
        Some(self.fed_at.map_or(Duration::ZERO, |fed_at| every.saturating_sub(fed_at.elapsed())))
    }
}
