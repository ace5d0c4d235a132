//! A fleet of real processes on loopback: the binaries of coordinator, agents and musterctl in a directory of
//! their own, over mTLS, without root. The end-to-end tests drive it. It never looks into a running process: what it
//! knows comes from musterctl, from files, and from what the items themselves wrote.

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
/// Longest wait for anything, unless a test says otherwise. Two cores may run several fleets at once.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at a file or process.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Questions to the coordinator within one's patience, at most: each is a process and a TLS handshake.
const QUESTIONS_MAX: u32 = 1000;

/// Has this test the computer to itself? So says `make full`; then figures are held against what is promised.
#[must_use]
pub fn alone() -> bool {
    env::var_os("MUSTER_TEST_ALONE").is_some()
}

/// Looks again and again until there is an answer, or the time is over.
///
/// # Errors
/// The look's own, or that nothing was seen in time.
pub fn wait_for<T>(what: &str, patience: Duration, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    look_every(LOOK_EVERY, what, patience, look)
}

pub(crate) fn look_every<T>(
    every: Duration,
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            bail!("not seen within {} s: {what}", patience.as_secs());
        }
        pause(every);
    }
}

/// Nothing happens on this thread for so long: between two looks at what tells nobody of its changes. Parking may end
/// at once: a thread that ends in a scope of this one unparks it, whether or not it waits.
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

/// See the module. Dropped, all its processes are killed; unless [`Fleet::done`] was called its directory stays.
pub struct Fleet {
    dir: PathBuf,
    programs: Programs,
    settings: Vec<String>,
    door: Proxy,
    coordinator: Option<Child>,
    agents: BTreeMap<String, Agent>,
    patience: Duration,
    done: bool,
}

impl Fleet {
    /// A new coordinator, running, with these further options of `muster-coordinator run`.
    ///
    /// # Errors
    /// Whatever keeps it from running.
    pub fn start(name: &str, settings: &[&str]) -> Result<Self> {
        let programs = Programs::find()?;
        let dir = tempfile::Builder::new().prefix(&format!("muster-e2e-{name}-")).tempdir()?.keep();
        let settings = settings.iter().map(|&word| word.to_owned()).collect();
        let door = Proxy::open()?;
        let (coordinator, agents) = (None, BTreeMap::new());
        let mut fleet = Self { dir, programs, settings, door, coordinator, agents, patience: PATIENCE, done: false };
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

    /// Waits this long for a machine, where [`PATIENCE`] is not enough.
    pub fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// All went well: the directory goes.
    ///
    /// # Errors
    /// Processes that do not end.
    pub fn done(mut self) -> Result<()> {
        processes::end_all(&self.dir)?;
        self.done = true;
        Ok(())
    }

    /// Where everything of it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Text of a path below its directory.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// `HOST:PORT` where operators reach the coordinator, whichever runs.
    #[must_use]
    pub fn address(&self) -> String {
        self.door.address()
    }

    /// Writes a file that only its owner may read, where none is yet.
    ///
    /// # Errors
    /// There is one.
    pub fn write_secret(&self, name: &str, text: &str) -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.dir.join(name))?;
        Ok(file.write_all(text.as_bytes())?)
    }

    /// Where the items write what they do.
    #[must_use]
    pub fn effects_log(&self) -> String {
        self.path("effects.log")
    }

    /// What the items wrote so far.
    ///
    /// # Errors
    /// A line that is none of theirs.
    pub fn effects(&self) -> Result<Vec<Effect>> {
        effects::read(Path::new(&self.effects_log()))
    }

    fn background(&self, command: &mut Command, log: &str) -> Result<Child> {
        let log = OpenOptions::new().append(true).create(true).open(self.dir.join("logs").join(log))?;
        let name: OsString = command.get_program().to_owned();
        // Whoever runs these tests may be a service itself.
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

/// The coordinator.
impl Fleet {
    /// Runs a command of `muster-coordinator` in the fleet's directory.
    ///
    /// # Errors
    /// It did not start, or did not end.
    pub fn coordinator_command(&self, words: &[&str]) -> Result<Ran> {
        programs::run(Command::new(&self.programs.coordinator).args(words).current_dir(&self.dir))
    }

    /// The file with the record.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.dir.join("coordinator/store")
    }

    /// Its process.
    ///
    /// # Errors
    /// It does not run.
    pub fn coordinator_pid(&self) -> Result<i32> {
        Ok(pid_of(self.coordinator.as_ref().context("the coordinator does not run")?)?.as_raw())
    }

    /// Where the one that runs listens, on loopback.
    #[must_use]
    pub fn coordinator_port(&self) -> Option<u16> {
        self.door.leads_to()
    }

    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    /// It ended, or does not listen in time.
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
        let port = wait_for("the coordinator's port", PATIENCE, || {
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

    /// SIGKILL, and it is gone.
    ///
    /// # Errors
    /// None that is expected.
    pub fn kill_coordinator(&mut self) -> Result<()> {
        end(self.coordinator.take(), Signal::SIGKILL)
    }

    /// SIGTERM, and it is gone.
    ///
    /// # Errors
    /// It does not end.
    pub fn stop_coordinator(&mut self) -> Result<()> {
        end(self.coordinator.take(), Signal::SIGTERM)
    }

    /// SIGSTOP or SIGCONT.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal_coordinator(&self, signal: Signal) -> Result<()> {
        let child = self.coordinator.as_ref().context("no coordinator runs")?;
        Ok(kill(pid_of(child)?, signal)?)
    }
}

/// The operator.
impl Fleet {
    /// musterctl with the first operator's credentials.
    ///
    /// # Errors
    /// It did not start, or did not end.
    pub fn ctl(&self, words: &[&str]) -> Result<Ran> {
        self.ctl_as("operator.toml", words)
    }

    /// musterctl with the credentials in this file.
    ///
    /// # Errors
    /// It did not start, or did not end.
    pub fn ctl_as(&self, config: &str, words: &[&str]) -> Result<Ran> {
        let mut command = self.musterctl();
        programs::run(command.arg("--config").arg(config).args(words))
    }

    /// A bare musterctl, in the fleet's directory, without any configuration to be found.
    #[must_use]
    pub fn musterctl(&self) -> Command {
        let mut command = Command::new(&self.programs.musterctl);
        command.current_dir(&self.dir).env_remove("MUSTER_CONFIG").env("HOME", &self.dir);
        command
    }

    /// Writes a manifest and applies it.
    ///
    /// # Errors
    /// It was refused.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        fs::write(self.dir.join("manifest.yaml"), manifest)?;
        self.ctl(&["apply", "-f", "manifest.yaml"])?.ok()?;
        Ok(())
    }

    /// Every machine, as `get machines -o json` has it: without what its items have said.
    ///
    /// # Errors
    /// musterctl failed.
    pub fn machines(&self) -> Result<BTreeMap<String, Machine>> {
        machines::of(self.ctl(machines::GET)?)
    }

    /// One machine, as `get machine NAME -o json` has it: with output and results of its items.
    ///
    /// # Errors
    /// musterctl failed, or there is no such machine.
    pub fn machine(&self, name: &str) -> Result<Machine> {
        machines::of(self.ctl(&machines::one(name))?)?.remove(name).context("the machine")
    }

    /// Waits until a machine is as wanted; musterctl is asked again and again.
    ///
    /// # Errors
    /// It is not, in time. The coordinator may be away meanwhile.
    pub fn wait_machine(&self, name: &str, what: &str, wanted: impl Fn(&Machine) -> bool) -> Result<Machine> {
        machines::wait(
            (self.patience / QUESTIONS_MAX, self.patience),
            (name, what),
            || self.ctl(&machines::one(name)),
            wanted,
        )
    }

    /// Waits until all these machines are Ready.
    ///
    /// # Errors
    /// They are not, in time.
    pub fn wait_ready(&self, count: usize) -> Result<()> {
        let mut last = Vec::new();
        let seen = look_every(self.patience / QUESTIONS_MAX, &format!("{count} machines Ready"), self.patience, || {
            let Ok(machines) = self.machines() else { return Ok(None) };
            let ready = machines.len() == count && machines.values().all(|machine| machine.status.state == "Ready");
            last =
                machines.iter().map(|(name, m)| format!("{name} {} {:?}", m.status.state, m.status.blocked)).collect();
            Ok(ready.then_some(()))
        });
        seen.with_context(|| last.join("\n"))
    }
}

fn end(child: Option<Child>, signal: Signal) -> Result<()> {
    let mut child = child.context("it does not run")?;
    kill(pid_of(&child)?, signal)?;
    wait_for("the end of a process that was told to end", PATIENCE, || Ok(child.try_wait()?))?;
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
