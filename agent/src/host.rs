//! The machine below the agent: its clocks and boot id, which the core gets as values, and where exec-items live.

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

/// Changes with every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// There is one where systemd is PID 1.
const SYSTEMD_RUNS: &str = "/run/systemd/system";
/// In the environment of whatever systemd started, and of what that started in turn.
pub(crate) const INVOCATION: &str = "INVOCATION_ID";
/// systemd hears of the end of a process within milliseconds.
const END_KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where the exec-items of this machine live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Each in a session of its own beside the agent: a laptop, the demo.
    Processes,
    /// Each in a transient unit of systemd, with a cgroup of its own: neither the end nor the sandbox of the agent's
    /// unit reaches it.
    Units {
        /// The agent's own unit. At shutdown it is stopped before its items, so that it sees none of them die.
        agent: String,
    },
}

/// An exec-item could not be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// As a process.
    #[error("cannot execute {}", program.display())]
    Spawn {
        /// `muster-agent`.
        program: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// As a unit.
    #[error(transparent)]
    Unit(#[from] SystemdError),
}

impl Host {
    /// Units, if this process is root's and a service of systemd itself; else processes. A shell's or a demo's agent
    /// is not: its items go with it when its session is closed for good.
    ///
    /// # Errors
    /// [`SystemdError`] if systemd runs here and does not answer.
    pub async fn detect() -> Result<Self, SystemdError> {
        let by_systemd = std::env::var_os(INVOCATION).is_some() && Path::new(SYSTEMD_RUNS).is_dir();
        if !by_systemd || !nix::unistd::geteuid().is_root() {
            return Ok(Self::Processes);
        }
        let service = Systemd::connect().await?.service_of(std::process::id()).await?;
        Ok(service.map_or(Self::Processes, |agent| Self::Units { agent }))
    }

    /// Launches an exec-item. False = there is one of this attempt already.
    pub(crate) async fn launch(&self, wanted: &Wanted<'_>) -> Result<bool, LaunchError> {
        match self {
            Self::Processes => spawn(wanted).map(|()| true),
            Self::Units { agent } => {
                let name = unit::name(wanted.key);
                Ok(Systemd::connect().await?.start_transient(&name, wanted.properties(agent)).await?)
            }
        }
    }

    /// How the exec-item of an attempt ended, as far as anybody but itself knows. None = nobody does.
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

    /// Gives up whatever the host keeps of an attempt. Nothing there is as good.
    pub(crate) async fn release(&self, key: &AttemptKey) -> Result<(), SystemdError> {
        match self {
            Self::Processes => Ok(()),
            Self::Units { .. } => Systemd::connect().await?.forget(&unit::name(key)).await,
        }
    }

    /// Gives up what the host keeps of all attempts but this one.
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
    /// Both clocks, read now. The monotonic one counts from when this was made.
    #[must_use]
    pub fn now(&self) -> Now {
        Now { wall_ms: unix_ms(), mono_ms: millis(self.start.elapsed()) }
    }

    /// A moment of [`Now::mono_ms`] as the runtime counts it.
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

/// Names this boot of the machine.
///
/// # Errors
/// What the kernel says.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}
