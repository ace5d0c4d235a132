//! The signals that end a daemon, and SIGHUP, which is always logged.

use std::{
    fs::{self, File},
    io,
};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::warn;

/// Signal handlers, installed on creation.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// None: SIGHUP was ignored when the process started (`nohup`), and stays ignored.
    hangup: Option<Signal>,
    /// Was it started on a terminal? Then SIGHUP means that the terminal was closed.
    on_terminal: bool,
}

impl Signals {
    /// Install the handlers: from now on signals are queued instead of ending the process.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: if is_ignored(SignalKind::hangup()) { None } else { Some(signal(SignalKind::hangup())?) },
            on_terminal: File::open("/dev/tty").is_ok(),
        })
    }

    /// Wait for a signal to end; return its name. Settings are read at the start only, so a reload signal is logged and
    /// otherwise ignored.
    pub async fn wait_for_end(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                () = received(self.hangup.as_mut()) => {}
            }
            if self.on_terminal {
                return "SIGHUP (its terminal is closed)";
            }
            warn!("SIGHUP: refused, nothing is reloaded; settings are read at the start: restart it for new ones");
        }
    }
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Was this process started with the signal ignored? False if unreadable.
fn is_ignored(signal: SignalKind) -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

/// Is the signal in `SigIgn`, a process's mask in hexadecimal? Bit 0 is signal 1.
fn ignores(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let bit = u32::try_from(signal.as_raw_value() - 1).ok().and_then(|bit| 1_u64.checked_shl(bit));
    bit.is_some_and(|bit| mask & bit != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn signal_ignored_at_the_start_is_told_apart() {
        for (trap, ignored) in [("", false), ("trap '' HUP; ", true), ("trap '' INT; ", false)] {
            let script = format!("{trap}exec cat /proc/self/status");
            let status = Command::new("sh").args(["-c", &script]).output().expect("a shell").stdout;
            let status = String::from_utf8(status).expect("text");
            assert!(status.contains("SigIgn:"), "{status}");
            assert_eq!(ignores(&status, SignalKind::hangup()), ignored, "{trap}");
        }
        assert!(!ignores("SigIgn:\tnonsense\n", SignalKind::hangup()));
    }
}
