//! A machine: a state directory with a `muster-agent` process.

use std::{path::PathBuf, process::Stdio};

use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

use crate::coordinator::{Coordinator, DEADLINE};

pub(crate) struct Machine {
    dir: tempfile::TempDir,
}

/// End of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("run")).expect("a runtime directory");
        Self { dir }
    }

    pub(crate) async fn enrolled(coordinator: &Coordinator) -> Self {
        let machine = Self::new();
        let ended = machine.enroll(&coordinator.address.to_string(), &coordinator.token(), &[]).await;
        assert_eq!(ended.code, 0, "{ended:?}");
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster-agent"));
        command.args(args).arg("--state-dir").arg(self.state()).kill_on_drop(true);
        // The test process may itself run in a service.
        for of_service in ["INVOCATION_ID", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET"] {
            command.env_remove(of_service);
        }
        command
    }

    /// Runs a command to its end with `stdin` as its standard input.
    pub(crate) async fn command_with(&self, args: &[&str], stdin: &str) -> Ended {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("spawned");
        // A command that ignores its input may have ended already.
        child.stdin.take().expect("a pipe").write_all(stdin.as_bytes()).await.ok();
        let output = timeout(DEADLINE, child.wait_with_output()).await.expect("in time").expect("an end");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    pub(crate) async fn enroll(&self, address: &str, token: &str, more: &[&str]) -> Ended {
        let args = ["enroll", "--coordinator", address, "--token-file", "-", "--name", "worker-1"];
        self.command_with(&[&args, more].concat(), token).await
    }

    /// Starts the daemon.
    pub(crate) fn run(&self) -> Child {
        self.run_with(&[])
    }

    /// Starts the daemon with additional environment variables.
    pub(crate) fn run_with(&self, environment: &[(&str, &str)]) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).expect("a log");
        let mut command = self.command(&["run"]);
        command.env("RUNTIME_DIRECTORY", self.path("run")).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stderr(log).spawn().expect("spawned")
    }

    /// Starts the daemon as `nohup` does.
    pub(crate) fn run_ignoring_hangup(&self) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap '' HUP; exec "$0" run --state-dir "$1""#, env!("CARGO_BIN_EXE_muster-agent")]);
        command.arg(self.state()).env_remove("NOTIFY_SOCKET").env("RUNTIME_DIRECTORY", self.path("run"));
        command.kill_on_drop(true).stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawned")
    }

    /// Starts the daemon with its own hostname, which [`rename`] changes; it reads its facts continuously.
    pub(crate) fn run_as(&self, hostname: &str) -> Child {
        let log = std::fs::File::create(self.path("log")).expect("a log");
        let mut command = Command::new("unshare");
        let agent = r#"hostname "$0" && exec "$@""#;
        command.args(["--map-root-user", "--uts", "sh", "-c", agent, hostname, env!("CARGO_BIN_EXE_muster-agent")]);
        command.args(["run", "--facts-every-ms", "50", "--state-dir"]).arg(self.state());
        command.env("RUNTIME_DIRECTORY", self.path("run"));
        command.kill_on_drop(true).stdin(Stdio::null()).stderr(log).spawn().expect("spawned")
    }

    pub(crate) async fn status(&self) -> serde_json::Value {
        let ended = self.command_with(&["status", "-o", "json"], "").await;
        assert_eq!(ended.code, 0, "{ended:?}");
        serde_json::from_str(&ended.stdout).expect("JSON")
    }
}

/// Changes the hostname of an agent that [`Machine::run_as`] started.
pub(crate) async fn rename(agent: &Child, hostname: &str) {
    let pid = agent.id().expect("it runs").to_string();
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid, "--user", "--preserve-credentials", "--uts", "hostname", hostname]);
    assert!(command.status().await.expect("started").success());
}
