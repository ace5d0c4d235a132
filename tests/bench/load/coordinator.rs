//! The coordinator under load: a process of its own on a port that it keeps, so that the agents find it again.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use muster_tests::fleet::{
    processes::pid_of,
    programs::{self, Programs, Ran},
    wait_for,
};
use nix::sys::signal::{Signal, kill};

/// Timeout of start and end.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Kernel ticks a second in `/proc/PID/stat`: fixed for programs.
const TICKS_A_SECOND: f64 = 100.0;

/// A coordinator in a directory of its own. Drop kills it.
pub(crate) struct Coordinator {
    programs: Programs,
    dir: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Coordinator {
    /// Makes a new one in this directory, and starts it.
    pub(crate) fn start_in(dir: &Path) -> Result<Self> {
        // The port is free again when the listener is dropped.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut new = Self { programs: Programs::find()?, dir: dir.to_owned(), port, child: None };
        let mut init = Command::new(&new.programs.coordinator);
        init.args(["init", "--demo", "--state-dir", "coordinator", "--key-file", "coordinator.key"]);
        init.args(["--out", "operator.toml", "--address", &new.address()]).current_dir(dir);
        programs::run(&mut init)?.ok()?;
        new.start()?;
        Ok(new)
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn start(&mut self) -> Result<()> {
        let port_file = self.dir.join("port");
        if port_file.exists() {
            fs::remove_file(&port_file)?;
        }
        let log = File::options().append(true).create(true).open(self.dir.join("coordinator.log"))?;
        let mut command = Command::new(&self.programs.coordinator);
        command.args(["run", "--state-dir", "coordinator", "--key-file", "coordinator.key", "--port-file", "port"]);
        command.args(["--listen", &self.address()]).current_dir(&self.dir);
        let mut child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let listens = wait_for("the coordinator listens", TIME_LIMIT, || {
            if let Some(status) = child.try_wait()? {
                bail!("the coordinator ended: {status}; see {}", self.dir.display());
            }
            Ok(port_file.exists().then_some(()))
        });
        self.child = Some(child);
        listens
    }

    /// Kills it (SIGKILL) and reaps it.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it does not run")?;
        kill(pid_of(&child)?, Signal::SIGKILL)?;
        child.wait()?; // no process outlives this signal
        Ok(())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("it does not run")?.id())
    }

    /// Runs musterctl as the operator.
    pub(crate) fn ctl(&self, words: &[&str]) -> Result<Ran> {
        let mut command = Command::new(&self.programs.musterctl);
        command.current_dir(&self.dir).env_remove("MUSTER_CONFIG").env("HOME", &self.dir);
        programs::run(command.args(["--config", "operator.toml"]).args(words))
    }

    /// Runs musterctl and says how long that took, start of the program and handshake included.
    pub(crate) fn timed_ctl(&self, words: &[&str]) -> Result<(Duration, String)> {
        let began = Instant::now();
        let ran = self.ctl(words)?;
        Ok((began.elapsed(), ran.ok()?))
    }

    /// Machines that are Ready, in all clusters.
    pub(crate) fn ready(&self) -> Result<u64> {
        let clusters: serde_json::Value = serde_json::from_str(&self.ctl(&["get", "clusters", "-o", "json"])?.ok()?)?;
        let clusters = clusters["items"].as_array().context("no items")?;
        Ok(clusters.iter().filter_map(|cluster| cluster["status"]["readyNodes"].as_u64()).sum())
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        if self.child.is_some() {
            drop(self.kill()); // it may have ended by itself
        }
    }
}

/// Processor time that a process has used.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may contain anything.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / TICKS_A_SECOND)
}

/// Resident memory of a process in KiB.
pub(crate) fn resident_kib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    line.split_whitespace().next().and_then(|number| number.parse().ok()).context("no number")
}
