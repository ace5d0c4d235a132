//! The signals that end a daemon, and SIGHUP, which never does so in silence.

use std::{fs::File, io};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::warn;

/// Signals that are waited for, from when this is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Was it started on a terminal? Then SIGHUP says that the terminal is closed.
    on_terminal: bool,
}

impl Signals {
    /// Begins to wait: a signal that comes from now on is not lost, and ends nothing by itself.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            on_terminal: File::open("/dev/tty").is_ok(),
        })
    }

    /// Waits until the daemon is to end; returns the name of the signal that says so. Settings are read at the start
    /// only, so a service that is told to reload them says that it does not, and goes on.
    pub async fn wait_for_end(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {}
            }
            if self.on_terminal {
                return "SIGHUP (its terminal is closed)";
            }
            warn!("SIGHUP: refused, nothing is reloaded; settings are read at the start: restart it for new ones");
        }
    }
}
