//! A fleet of real processes on loopback: the binaries of coordinator, agents and musterctl in a directory of their
//! own, over mTLS, without root. The end-to-end tests drive it. It observes the processes from outside only: through
//! musterctl, through files, and through what the items themselves wrote.

mod agents;
pub mod effects;
pub(crate) mod machines;
pub mod manifest;
pub mod processes;
pub mod programs;
pub mod proxy;
pub mod raw;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use muster_proto::resource::Machine;
use nix::sys::signal::{Signal, kill};

use self::{
    effects::Effect,
    processes::pid_of,
    programs::{Programs, Ran},
    proxy::Proxy,
};

/// Name of the cluster of every end-to-end test.
pub const CLUSTER: &str = "e2e";
/// Default timeout of every wait. Two cores may run several fleets at once.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Poll interval for files and processes.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Most queries to the coordinator within one timeout: each is a process and a TLS handshake.
const QUESTIONS_MAX: u32 = 1000;

/// Does this test run alone on the computer? `make full` sets this; measured figures are then checked against the
/// documented ones.
#[must_use]
pub fn alone() -> bool {
    env::var_os("MUSTER_TEST_ALONE").is_some()
}

/// Polls until there is an answer or the timeout expires.
///
/// # Errors
/// Fails if `look` fails, or on timeout.
pub fn wait_for<T>(what: &str, time_limit: Duration, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    look_every(LOOK_EVERY, what, time_limit, look)
}

pub(crate) fn look_every<T>(
    every: Duration,
    what: &str,
    time_limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + time_limit;
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            bail!("not seen within {} s: {what}", time_limit.as_secs());
        }
        pause(every);
    }
}

/// Blocks this thread for this long, between two polls of a source without change notification. `park_timeout` may
/// return early: a thread that ends in a scope of this thread unparks it, whether or not it waits.
pub fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        thread::park_timeout(left);
    }
}

struct Agent {
    child: Option<Child>,
    proxy: Proxy,
}

/// A fleet of real processes (see the module). Drop kills all its processes; its directory stays unless [`Fleet::done`]
/// was called.
pub struct Fleet {
    dir: PathBuf,
    programs: Programs,
    settings: Vec<String>,
    door: Proxy,
    coordinator: Option<Child>,
    agents: BTreeMap<String, Agent>,
    time_limit: Duration,
    done: bool,
}

impl Fleet {
    /// Starts a new coordinator, with these further options of `muster-coordinator run`.
    ///
    /// # Errors
    /// Fails on a start error.
    pub fn start(name: &str, settings: &[&str]) -> Result<Self> {
        let programs = Programs::find()?;
        let dir = tempfile::Builder::new().prefix(&format!("muster-e2e-{name}-")).tempdir()?.keep();
        let settings = settings.iter().map(|&word| word.to_owned()).collect();
        let door = Proxy::open()?;
        let (coordinator, agents) = (None, BTreeMap::new());
        let mut fleet =
            Self { dir, programs, settings, door, coordinator, agents, time_limit: TIME_LIMIT, done: false };
        for name in ["logs", "tokens", "machines"] {
            fs::create_dir(fleet.dir.join(name))?;
        }
        let address = fleet.address();
        let init =
            [&["init", "--address", &address, "--demo", "--out", &fleet.path("operator.toml")], &fleet.place()[..]];
        fleet.coordinator_command(&init.concat())?.ok()?;
        fleet.start_coordinator()?;
        Ok(fleet)
    }

    /// Sets the timeout of waits for a machine, where [`PATIENCE`] is too short.
    pub fn set_time_limit(&mut self, time_limit: Duration) {
        self.time_limit = time_limit;
    }

    /// Marks the test as passed: deletes the directory.
    ///
    /// # Errors
    /// Fails if a process survives.
    pub fn done(mut self) -> Result<()> {
        processes::end_all(&self.dir)?;
        self.done = true;
        Ok(())
    }

    /// The directory that holds all files of the fleet.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path below the fleet's directory, as text.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// `HOST:PORT` where operators reach the coordinator, whichever process runs.
    #[must_use]
    pub fn address(&self) -> String {
        self.door.address()
    }

    /// Writes a new file that only its owner may read.
    ///
    /// # Errors
    /// Fails if the file exists.
    pub fn write_secret(&self, name: &str, text: &str) -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.dir.join(name))?;
        Ok(file.write_all(text.as_bytes())?)
    }

    /// Path of the file where the items log what they do.
    #[must_use]
    pub fn effects_log(&self) -> String {
        self.path("effects.log")
    }

    /// What the items have logged so far.
    ///
    /// # Errors
    /// Fails on a line of another format.
    pub fn effects(&self) -> Result<Vec<Effect>> {
        effects::read(Path::new(&self.effects_log()))
    }

    fn background(&self, command: &mut Command, log: &str) -> Result<Child> {
        let log = OpenOptions::new().append(true).create(true).open(self.dir.join("logs").join(log))?;
        let name: OsString = command.get_program().to_owned();
        // The test runner may be a systemd service itself.
        for of_service in ["INVOCATION_ID", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET"] {
            command.env_remove(of_service);
        }
        let command = command.current_dir(&self.dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {}", name.display()))
    }

    fn place(&self) -> [&'static str; 4] {
        ["--state-dir", "coordinator", "--key-file", "coordinator.key"]
    }
}

/// Control of the coordinator.
impl Fleet {
    /// Runs a command of `muster-coordinator` in the fleet's directory.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn coordinator_command(&self, words: &[&str]) -> Result<Ran> {
        programs::run(Command::new(&self.programs.coordinator).args(words).current_dir(&self.dir))
    }

    /// Path of the coordinator's store.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.dir.join("coordinator/store")
    }

    /// Process id of the coordinator.
    ///
    /// # Errors
    /// Fails unless it runs.
    pub fn coordinator_pid(&self) -> Result<i32> {
        Ok(pid_of(self.coordinator.as_ref().context("the coordinator does not run")?)?.as_raw())
    }

    /// Port on loopback where the running coordinator listens.
    #[must_use]
    pub fn coordinator_port(&self) -> Option<u16> {
        self.door.leads_to()
    }

    /// Starts the coordinator, and waits until it listens.
    ///
    /// # Errors
    /// Fails if it ends, or on timeout.
    pub fn start_coordinator(&mut self) -> Result<()> {
        let port_file = self.dir.join("port");
        if port_file.exists() {
            fs::remove_file(&port_file)?;
        }
        let state = self.dir.join("coordinator");
        let mut command = Command::new(&self.programs.coordinator);
        command.arg("run").arg("--state-dir").arg(state).args(["--key-file", "coordinator.key"]);
        command.args(["--listen", "127.0.0.1:0", "--port-file", "port"]).args(&self.settings);
        let mut child = self.background(&mut command, "coordinator")?;
        let port = wait_for("the coordinator's port", TIME_LIMIT, || {
            if let Some(status) = child.try_wait()? {
                bail!("the coordinator ended: {status}\n{}", self.log("coordinator"));
            }
            Ok(fs::read_to_string(&port_file).ok().and_then(|text| text.trim().parse::<u16>().ok()))
        })?;
        self.coordinator = Some(child);
        self.door.lead_to(port);
        for agent in self.agents.values() {
            agent.proxy.lead_to(port);
        }
        Ok(())
    }

    /// Kills the coordinator (SIGKILL) and reaps it.
    ///
    /// # Errors
    /// No error is expected.
    pub fn kill_coordinator(&mut self) -> Result<()> {
        end(self.coordinator.take(), Signal::SIGKILL)
    }

    /// Stops the coordinator (SIGTERM) and reaps it.
    ///
    /// # Errors
    /// Fails on timeout.
    pub fn stop_coordinator(&mut self) -> Result<()> {
        end(self.coordinator.take(), Signal::SIGTERM)
    }

    /// Sends SIGSTOP or SIGCONT to the coordinator.
    ///
    /// # Errors
    /// Fails unless it runs.
    pub fn signal_coordinator(&self, signal: Signal) -> Result<()> {
        let child = self.coordinator.as_ref().context("no coordinator runs")?;
        Ok(kill(pid_of(child)?, signal)?)
    }
}

/// Actions of the operator.
impl Fleet {
    /// Runs musterctl with the first operator's credentials.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn ctl(&self, words: &[&str]) -> Result<Ran> {
        self.ctl_as("operator.toml", words)
    }

    /// Runs musterctl with the credentials in this file.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn ctl_as(&self, config: &str, words: &[&str]) -> Result<Ran> {
        let mut command = self.musterctl();
        programs::run(command.arg("--config").arg(config).args(words))
    }

    /// A bare musterctl in the fleet's directory, without any configuration.
    #[must_use]
    pub fn musterctl(&self) -> Command {
        let mut command = Command::new(&self.programs.musterctl);
        command.current_dir(&self.dir).env_remove("MUSTER_CONFIG").env("HOME", &self.dir);
        command
    }

    /// Writes a manifest and applies it.
    ///
    /// # Errors
    /// Fails if it is rejected.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        fs::write(self.dir.join("manifest.yaml"), manifest)?;
        self.ctl(&["apply", "-f", "manifest.yaml"])?.ok()?;
        Ok(())
    }

    /// All machines, as `get machines -o json` prints them: without the output of their items.
    ///
    /// # Errors
    /// Fails if musterctl does.
    pub fn machines(&self) -> Result<BTreeMap<String, Machine>> {
        machines::of(self.ctl(machines::GET)?)
    }

    /// One machine, as `get machine NAME -o json` prints it: with output and results of its items.
    ///
    /// # Errors
    /// Fails if musterctl does, or for an unknown machine.
    pub fn machine(&self, name: &str) -> Result<Machine> {
        machines::of(self.ctl(&machines::one(name))?)?.remove(name).context("the machine")
    }

    /// Are all machines Ready at this release?
    #[must_use]
    pub fn are_at(&self, release: &str) -> bool {
        let is_at =
            |machine: &Machine| machine.status.release.as_deref() == Some(release) && machine.status.state == "Ready";
        self.machines().is_ok_and(|machines| machines.values().all(is_at))
    }

    /// Waits until an update changed something elsewhere, or all machines are Ready at its release. Returns: are they?
    ///
    /// # Errors
    /// Fails on timeout. The coordinator may be down meanwhile.
    pub fn changed_or_at(&self, release: &str, changed: impl Fn() -> bool) -> Result<bool> {
        wait_for("a change, or the end of the update", self.time_limit, || {
            let ended = self.are_at(release);
            Ok((ended || changed()).then_some(ended))
        })
    }

    /// Waits until musterctl says that the rollout ended well. It may say before that a person is needed.
    ///
    /// # Errors
    /// Fails on timeout.
    pub fn wait_rollout(&self) -> Result<()> {
        wait_for("the end of the rollout", self.time_limit, || {
            Ok(self.ctl(&["watch", CLUSTER])?.exits(0).is_ok().then_some(()))
        })
    }

    /// Polls musterctl until a machine satisfies a condition.
    ///
    /// # Errors
    /// Fails on timeout. The coordinator may be down meanwhile.
    pub fn wait_machine(&self, name: &str, what: &str, wanted: impl Fn(&Machine) -> bool) -> Result<Machine> {
        machines::wait(
            (self.time_limit / QUESTIONS_MAX, self.time_limit),
            (name, what),
            || self.ctl(&machines::one(name)),
            wanted,
        )
    }

    /// Waits until all these machines are Ready.
    ///
    /// # Errors
    /// Fails on timeout.
    pub fn wait_ready(&self, count: usize) -> Result<()> {
        let mut last = Vec::new();
        let seen =
            look_every(self.time_limit / QUESTIONS_MAX, &format!("{count} machines Ready"), self.time_limit, || {
                let Ok(machines) = self.machines() else { return Ok(None) };
                let ready = machines.len() == count && machines.values().all(|machine| machine.status.state == "Ready");
                last = machines
                    .iter()
                    .map(|(name, m)| format!("{name} {} {:?}", m.status.state, m.status.blocked))
                    .collect();
                Ok(ready.then_some(()))
            });
        seen.with_context(|| last.join("\n"))
    }
}

fn end(child: Option<Child>, signal: Signal) -> Result<()> {
    let mut child = child.context("it does not run")?;
    kill(pid_of(&child)?, signal)?;
    wait_for("the end of a process that was told to end", TIME_LIMIT, || Ok(child.try_wait()?))?;
    Ok(())
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let ended = processes::end_all(&self.dir);
        for child in self.coordinator.iter_mut().chain(self.agents.values_mut().filter_map(|a| a.child.as_mut())) {
            let _ = child.wait(); // they were killed: this only takes them from the kernel's list
        }
        if self.done && ended.is_ok() {
            let _ = fs::remove_dir_all(&self.dir); // what stays is in the temporary directory
        } else {
            programs::complain(&format!("kept to look into: {}", self.dir.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_as_long_as_it_should() {
        for _ in 0..100 {
            thread::scope(|scope| scope.spawn(|| ()).join().is_ok());
            let (began, time) = (Instant::now(), Duration::from_millis(10));
            pause(time);
            let lasted = began.elapsed();
            assert!(lasted >= time, "{lasted:?}");
        }
    }
}
