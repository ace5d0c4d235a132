//! A fleet's agents: enrol, start, stop and kill each of them, and read their files.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command},
};

use anyhow::{Context as _, Result, anyhow};
use muster_agent::{
    core::LedgerState,
    ledger::{self, FileDisk},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::geteuid,
};

use super::{
    Agent, CLUSTER, Fleet, end,
    processes::pid_of,
    programs::{self, Ran},
    proxy::Proxy,
};

impl Fleet {
    /// Creates a join token of this type, with further options. Returns the path of its file.
    ///
    /// # Errors
    /// Fails if musterctl does.
    pub fn token(&self, machine_type: &str, more: &[&str]) -> Result<String> {
        let made = self.ctl(&[&["token", "create", "--cluster", CLUSTER, "--type", machine_type], more].concat())?;
        let token = made.ok()?;
        let count = fs::read_dir(self.dir.join("tokens"))?.count();
        let name = format!("tokens/{machine_type}-{count}");
        self.write_secret(&name, &token)?;
        Ok(self.path(&name))
    }

    /// Enrols a machine with a token file; its connections pass a proxy of its own.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn enroll(&mut self, name: &str, token_file: &str, more: &[&str]) -> Result<Ran> {
        if !self.agents.contains_key(name) {
            let proxy = Proxy::open()?;
            if let Some(port) = self.door.leads_to() {
                proxy.lead_to(port);
            }
            self.agents.insert(name.to_owned(), Agent { child: None, proxy });
        }
        let address = self.proxy(name)?.address();
        self.enroll_at(name, token_file, &[&["--coordinator", &address], more].concat())
    }

    /// Enrols a machine with the coordinator that the arguments name.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn enroll_at(&self, name: &str, token_file: &str, words: &[&str]) -> Result<Ran> {
        let mut command = Command::new(&self.programs.agent);
        command.args(["enroll", "--token-file", token_file, "--name", name]);
        programs::run(command.arg("--state-dir").arg(self.agent_dir(name)).args(words))
    }

    /// Enrols and starts `control-1`… and `worker-1`….
    ///
    /// # Errors
    /// Fails if an enrolment or a start does.
    pub fn add_machines(&mut self, control: usize, workers: usize) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (machine_type, count) in [("control", control), ("worker", workers)] {
            if count == 0 {
                continue;
            }
            let token = self.token(machine_type, &["--uses", &count.to_string()])?;
            for n in 1..=count {
                let name = format!("{machine_type}-{n}");
                self.enroll(&name, &token, &[])?.ok()?;
                self.start_agent(&name)?;
                names.push(name);
            }
        }
        Ok(names)
    }

    /// State directory of an agent.
    #[must_use]
    pub fn agent_dir(&self, name: &str) -> PathBuf {
        self.dir.join("machines").join(name)
    }

    /// State of an agent's ledger; None before its first run.
    ///
    /// # Errors
    /// Fails if the ledger is damaged.
    pub fn ledger(&self, name: &str) -> Result<Option<LedgerState>> {
        Ok(ledger::read(&mut FileDisk::new(&self.agent_dir(name)))?)
    }

    /// The proxy between an agent and the coordinator.
    ///
    /// # Errors
    /// Fails for an unknown machine.
    pub fn proxy(&self, name: &str) -> Result<&Proxy> {
        Ok(&self.agents.get(name).with_context(|| format!("no machine {name}"))?.proxy)
    }

    /// Runs `muster-agent status -o json`.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn agent_status(&self, name: &str) -> Result<Ran> {
        self.agent_command(name, &["status", "-o", "json"])
    }

    /// Runs a muster-agent command on an agent's state directory.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn agent_command(&self, name: &str, words: &[&str]) -> Result<Ran> {
        let mut command = Command::new(&self.programs.agent);
        programs::run(command.args(words).arg("--state-dir").arg(self.agent_dir(name)))
    }

    /// Starts an enrolled agent.
    ///
    /// # Errors
    /// Fails on a start error.
    pub fn start_agent(&mut self, name: &str) -> Result<()> {
        let mut command = Command::new(&self.programs.agent);
        let child = self.background(command.arg("run").arg("--state-dir").arg(self.agent_dir(name)), name)?;
        self.agents.get_mut(name).ok_or_else(|| anyhow!("no machine {name}"))?.child = Some(child);
        Ok(())
    }

    /// Starts an enrolled agent on a host of its own, as far as hostname and boot id tell: it gets its name as hostname
    /// and this boot id, in namespaces of its own.
    ///
    /// # Errors
    /// Fails on a start error.
    pub fn start_agent_as_host(&mut self, name: &str, boot_id: &str) -> Result<()> {
        let file = self.dir.join(format!("boot-id-{name}"));
        fs::write(&file, format!("{boot_id}\n"))?;
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = r#"hostname "$0" && mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@""#;
        command.args(["--uts", "--mount", "sh", "-c", script, name]).arg(file);
        command.arg(&self.programs.agent).arg("run").arg("--state-dir").arg(self.agent_dir(name));
        let child = self.background(&mut command, name)?;
        self.agents.get_mut(name).ok_or_else(|| anyhow!("no machine {name}"))?.child = Some(child);
        Ok(())
    }

    /// Kills an agent (SIGKILL) and reaps it; the items that it hosts keep running.
    ///
    /// # Errors
    /// Fails for an unknown machine.
    pub fn kill_agent(&mut self, name: &str) -> Result<()> {
        end(self.agents.get_mut(name).ok_or_else(|| anyhow!("no machine {name}"))?.child.take(), Signal::SIGKILL)
    }

    /// Sends SIGSTOP or SIGCONT to an agent.
    ///
    /// # Errors
    /// Fails unless it runs.
    pub fn signal_agent(&self, name: &str, signal: Signal) -> Result<()> {
        Ok(kill(nix::unistd::Pid::from_raw(self.agent_pid(name)?), signal)?)
    }

    /// Process id of an agent.
    ///
    /// # Errors
    /// Fails unless it runs.
    pub fn agent_pid(&self, name: &str) -> Result<i32> {
        let child = self.agents.get(name).and_then(|agent| agent.child.as_ref());
        Ok(pid_of(child.with_context(|| format!("{name} does not run"))?)?.as_raw())
    }

    /// The log of a process.
    #[must_use]
    pub fn log(&self, process: &str) -> String {
        fs::read_to_string(self.dir.join("logs").join(process)).unwrap_or_default()
    }

    /// Starts a long-running musterctl.
    ///
    /// # Errors
    /// Fails on a start error.
    pub fn start_ctl(&self, words: &[&str], log: &str) -> Result<Child> {
        self.background(self.musterctl().args(words), log)
    }
}
