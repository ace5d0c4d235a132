//! The machine below the agent: its clocks and boot id, which the core receives as values, and the host of exec-items.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use muster_proto::model::Now;
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use crate::{
    attempt::AttemptKey,
    systemd::{
        Systemd, SystemdError,
        unit::{self, ServiceEnd, Wanted},
    },
};

/// Kernel file with an id that changes at every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Directory that exists where systemd is PID 1.
const SYSTEMD_RUNS: &str = "/run/systemd/system";
/// Environment variable of all processes that systemd started, and of their descendants.
pub(crate) const INVOCATION: &str = "INVOCATION_ID";
/// Timeout for systemd to notice the end of a process, which takes milliseconds.
const END_KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Interval of checks for that.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Host of this machine's exec-items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Each in its own session beside the agent: a laptop, the demo.
    Processes,
    /// Each in its own transient systemd unit and cgroup: it outlives the agent's unit and is free of its sandbox.
    Units {
        /// The agent's own unit. It stops before its items at shutdown, so that it misses their deaths.
        agent: String,
    },
}

/// Failed launch of an exec-item.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// As a process.
    #[error("cannot execute {}", program.display())]
    Spawn {
        /// `muster-agent`.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// As a unit.
    #[error(transparent)]
    Unit(#[from] SystemdError),
}

impl Host {
    /// Units, if this process runs as root in a systemd service; otherwise processes. An agent in a shell or demo uses
    /// processes: its items end when its session is closed for good.
    ///
    /// # Errors
    /// [`SystemdError`] if systemd runs here but is unresponsive.
    pub async fn detect() -> Result<Self, SystemdError> {
        let by_systemd = std::env::var_os(INVOCATION).is_some() && Path::new(SYSTEMD_RUNS).is_dir();
        if !by_systemd || !nix::unistd::geteuid().is_root() {
            return Ok(Self::Processes);
        }
        let service = Systemd::connect().await?.service_of(std::process::id()).await?;
        Ok(service.map_or(Self::Processes, |agent| Self::Units { agent }))
    }

    /// Launches an exec-item. False = this attempt has one already.
    pub(crate) async fn launch(&self, wanted: &Wanted<'_>) -> Result<bool, LaunchError> {
        match self {
            Self::Processes => spawn(wanted).map(|()| true),
            Self::Units { agent } => {
                let name = unit::name(wanted.key);
                Ok(Systemd::connect().await?.start_transient(&name, wanted.properties(agent)).await?)
            }
        }
    }

    /// How the exec-item of an attempt ended, as seen from outside. None = unknown.
    pub(crate) async fn end_of(&self, key: &AttemptKey) -> Result<Option<ServiceEnd>, SystemdError> {
        let Self::Units { .. } = self else { return Ok(None) };
        let (systemd, name) = (Systemd::connect().await?, unit::name(key));
        let until = Instant::now() + END_KNOWN_WITHIN;
        loop {
            let end = systemd.end_of(&name).await?;
            if end.as_ref().is_none_or(ServiceEnd::is_known) || Instant::now() >= until {
                return Ok(end);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Drops all state that the host keeps of an attempt, if any.
    pub(crate) async fn release(&self, key: &AttemptKey) -> Result<(), SystemdError> {
        match self {
            Self::Processes => Ok(()),
            Self::Units { .. } => Systemd::connect().await?.forget(&unit::name(key)).await,
        }
    }

    /// Drops the state of all attempts except this one.
    pub(crate) async fn release_others(&self, kept: Option<&AttemptKey>) -> Result<(), SystemdError> {
        let Self::Units { .. } = self else { return Ok(()) };
        let systemd = Systemd::connect().await?;
        for name in systemd.units(unit::ALL).await? {
            if unit::key(&name).is_ok_and(|key| Some(&key) != kept) {
                systemd.forget(&name).await?;
            }
        }
        Ok(())
    }
}

fn spawn(wanted: &Wanted<'_>) -> Result<(), LaunchError> {
    let failed = |source| LaunchError::Spawn { program: wanted.program.to_owned(), source };
    Command::new(wanted.program)
        .args(wanted.args)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(OpenOptions::new().write(true).open(wanted.stdout).map_err(failed)?)
        .stderr(File::create(wanted.stderr).map_err(failed)?)
        .spawn()
        .map_err(failed)?;
    Ok(())
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock {
    /// Reads both clocks. The monotonic one counts from the creation of this value.
    #[must_use]
    pub fn now(&self) -> Now {
        Now { wall_ms: unix_ms(), mono_ms: millis(self.start.elapsed()) }
    }

    /// Converts a [`Now::mono_ms`] to an instant.
    #[must_use]
    pub fn instant(&self, mono_ms: u64) -> Instant {
        self.start + Duration::from_millis(mono_ms)
    }
}

/// Unix time in milliseconds.
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Id of this boot of the machine.
///
/// # Errors
/// The kernel's error.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}
