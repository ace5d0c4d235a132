//! A separate state directory for each test, and helpers to run items in it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use muster_agent::{
    attempt::{AttemptKey, Attempts, Exit, Found, Request},
    host::Host,
};
use muster_proto::model::{ClusterName, Generation, ItemHash, ItemName, ItemState, MachineId, MachineName, Phase};
use nix::{sys::signal::kill, unistd::Pid};

/// Timeout of all waits; only a hang takes this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Site {
    dir: tempfile::TempDir,
    pub(crate) attempts: Attempts,
}

pub(crate) fn key(item: &str) -> AttemptKey {
    AttemptKey { item: ItemName::new(item).expect("a label"), generation: Generation(3), attempt: 2 }
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let program = PathBuf::from(env!("CARGO_BIN_EXE_muster-agent"));
        let attempts = Attempts::open(dir.path(), program, Host::Processes).expect("attempts");
        Self { dir, attempts }
    }

    /// Path of a test's file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of the attempt `key("it")`.
    pub(crate) fn attempt(&self) -> PathBuf {
        self.path("attempts").join(key("it").to_string())
    }

    /// A request for `key("it")`.
    pub(crate) fn request(&self, runner: &str, params: &[(&str, &str)]) -> Request {
        Request {
            key: key("it"),
            hash: ItemHash([0; 32]),
            machine: MachineName::new("worker-1").expect("a label"),
            machine_id: MachineId(uuid::Uuid::nil()),
            cluster: ClusterName::new("edge").expect("a label"),
            runner: runner.to_owned(),
            version: "1.10".to_owned(),
            phase: Phase::Deploy,
            params: params
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>(),
            secret_params: BTreeMap::new(),
            timeout_ms: 60_000,
        }
    }

    /// A script that starts by setting `$SITE` to the test's directory.
    pub(crate) fn script(&self, text: &str) -> Request {
        self.request("bash", &[("script", &format!("SITE={}\n{text}", self.dir.path().display()))])
    }

    pub(crate) async fn start(&self, request: &Request) {
        self.attempts.create(request, &[]).expect("create");
        self.attempts.start(&request.key).await.expect("start");
    }

    pub(crate) async fn ended(&self, request: &Request) -> Found {
        tokio::time::timeout(DEADLINE, self.attempts.ended(&request.key)).await.expect("in time").expect("readable")
    }

    /// Runs it to its end.
    pub(crate) async fn run(&self, request: &Request) -> Exit {
        self.start(request).await;
        match self.ended(request).await {
            Found::Exited(exit) => exit,
            other => panic!("{other:?}"),
        }
    }

    /// Runs it to its end directly, without the agent, in this environment.
    pub(crate) async fn run_in(&self, request: &Request, environment: &[(&str, &str)]) -> Exit {
        self.attempts.create(request, &[]).expect("create");
        let mut exec_item = Command::new(env!("CARGO_BIN_EXE_muster-agent"));
        exec_item.arg("exec-item").arg(self.attempt()).envs(environment.iter().copied()).stdout(Stdio::null());
        assert!(exec_item.status().expect("run").success());
        match self.ended(request).await {
            Found::Exited(exit) => exit,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the program has written this file completely, and reads it.
    pub(crate) async fn told(&self, name: &str) -> String {
        let path = self.path(name);
        until(&format!("{name} is written"), || {
            fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n')).map(|text| text.trim().to_owned())
        })
        .await
    }

    /// A process id that the program has written.
    pub(crate) async fn told_pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.told(name).await.parse().expect("a process id"))
    }
}

/// Waits for a condition, with a timeout.
pub(crate) async fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Is the process gone, or only waiting to be reaped?
pub(crate) fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    kill(pid, None).is_err() || stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Process that hosts an attempt, found by its command line.
pub(crate) fn exec_item_pid(attempt: &Path) -> Pid {
    let wanted = [b"exec-item\0", attempt.as_os_str().as_encoded_bytes(), b"\0"].concat();
    let pid = fs::read_dir("/proc").expect("/proc").flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let cmdline = fs::read(entry.path().join("cmdline")).ok()?;
        cmdline.ends_with(&wanted).then(|| Pid::from_raw(pid))
    });
    pid.expect("an exec-item")
}

pub(crate) const fn failed(exit_code: i32) -> ItemState {
    ItemState::Failed { exit_code, retryable: true }
}

pub(crate) const HOPELESS: ItemState = ItemState::Failed { exit_code: -1, retryable: false };
