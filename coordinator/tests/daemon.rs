//! The real `muster-coordinator`, as its operator meets it: processes, files, signals.
#![cfg(test)]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixDatagram, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use muster_coordinator::{
    facts::Facts,
    setup::Credentials,
    store::{EmbeddedStore, Store},
};
use muster_proto::{
    tls::{self, Identity},
    wire::{GetRequest, VersionRequest, VersionResponse, fleet_client::FleetClient},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tonic::{Code, Status, transport::Channel};

fn coordinator() -> Command {
    Command::new(env!("CARGO_BIN_EXE_muster-coordinator"))
}

fn output(arguments: &[&str], dir: &Path) -> Output {
    coordinator().args(arguments).current_dir(dir).output().expect("it starts")
}

fn succeed(arguments: &[&str], dir: &Path) -> String {
    let output = output(arguments, dir);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Exit code and complaint.
fn fail(arguments: &[&str], dir: &Path) -> (i32, String) {
    let output = output(arguments, dir);
    (output.status.code().expect("an exit code"), String::from_utf8(output.stderr).expect("text"))
}

const PLACE: [&str; 2] = ["--state-dir", "state"];
const KEY: [&str; 2] = ["--key-file", "key"];

fn init(dir: &Path) {
    succeed(&[&["init"], &PLACE[..], &KEY, &["--out", "anna.toml", "--operator", "anna"]].concat(), dir);
}

/// A coordinator that runs. Dropped, it is killed.
struct Running {
    child: Child,
    /// Held, so that the pipe stays open.
    _stdout: BufReader<ChildStdout>,
    dir: PathBuf,
    line: String,
    port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Running {
    fn start(dir: &Path, more: &[&str]) -> Self {
        Self::start_with(dir, more, &[])
    }

    /// With these environment variables besides.
    fn start_with(dir: &Path, more: &[&str], environment: &[(&str, &str)]) -> Self {
        let listen: &[&str] = if more.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let arguments = [&["run"], &PLACE[..], &KEY, &["--port-file", "port"], listen, more].concat();
        let mut child = coordinator()
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line when it is ready");
        assert!(!line.is_empty(), "it ended before it was ready");
        let port = fs::read_to_string(dir.join("port")).expect("a port").trim().parse().expect("a number");
        Self { child, _stdout: stdout, dir: dir.to_owned(), line, port }
    }

    async fn fleet(&self, credentials: &str) -> FleetClient<Channel> {
        let text = fs::read_to_string(self.dir.join(credentials)).expect("credentials");
        let Credentials { ca, certificate, key, .. } = toml::from_str(&text).expect("TOML");
        let identity = Identity { certificate_pem: certificate, key_pem: key };
        let config = tls::client_config(&ca, Some(&identity)).expect("a config");
        let connection = tls::connect(&format!("127.0.0.1:{}", self.port), config).await.expect("connected");
        FleetClient::new(connection.channel)
    }

    async fn version(&self, credentials: &str) -> Result<VersionResponse, Status> {
        Ok(self.fleet(credentials).await.version(VersionRequest {}).await?.into_inner())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().expect("a process id")), signal).expect("signalled");
    }

    /// Sends SIGTERM. Returns the exit code, and how long it took.
    fn terminate(mut self) -> (Option<i32>, Duration) {
        let began = Instant::now();
        self.signal(Signal::SIGTERM);
        (self.child.wait().expect("ended").code(), began.elapsed())
    }
}

/// Longest wait for a message to the service manager.
const NOTIFY_DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn a_service_manager_hears_of_start_work_and_stop() {
    let dir = tempfile::tempdir().expect("a directory");
    init(dir.path());
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(NOTIFY_DEADLINE)).expect("a deadline");
    let environment = [("NOTIFY_SOCKET", path.to_str().expect("text")), ("WATCHDOG_USEC", "600000")];
    let running = Running::start_with(dir.path(), &[], &environment);
    let (mut message, mut heard) = ([0; 4096], Vec::new());
    let status = format!("STATUS=epoch 1 on 127.0.0.1:{}: 0 of 0 machines connected", running.port);
    let mut hear_until = |enough: &dyn Fn(&[String]) -> bool| {
        while !enough(&heard) {
            let bytes = socket.recv(&mut message).unwrap_or_else(|error| panic!("{error} after {heard:?}"));
            heard.push(String::from_utf8_lossy(&message[..bytes]).trim_end().to_owned());
        }
    };
    let has = |heard: &[String], begins: &str| heard.iter().any(|line| line.starts_with(begins));
    hear_until(&|heard| has(heard, "READY=1") && has(heard, &status));
    hear_until(&|heard| heard.iter().filter(|line| *line == "WATCHDOG=1").count() >= 5);
    let (code, _) = running.terminate();
    hear_until(&|heard| has(heard, "STOPPING=1"));
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn init_run_and_stop() {
    let dir = tempfile::tempdir().expect("a directory");
    init(dir.path());
    let running = Running::start(dir.path(), &[]);
    assert!(running.line.contains(&format!("ready on 127.0.0.1:{}, epoch 1", running.port)), "{}", running.line);
    assert_eq!(running.version("anna.toml").await.expect("answered").epoch, 1);
    let mut watch = running
        .fleet("anna.toml")
        .await
        .watch(GetRequest { kind: "machines".to_owned(), ..Default::default() })
        .await
        .expect("open")
        .into_inner();
    let (code, took) = running.terminate();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(20), "{took:?}");
    let end = loop {
        match watch.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no word"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::Unavailable, "{end:?}");
    let running = Running::start(dir.path(), &[]);
    assert_eq!(running.version("anna.toml").await.expect("answered").epoch, 2, "each start has its own");
    // Killed, and seen to be gone: until then it holds the store.
    drop(running);
    let running = Running::start(dir.path(), &[]);
    assert_eq!(running.version("anna.toml").await.expect("answered").epoch, 3);
}

#[tokio::test]
async fn credentials_and_backups_whether_it_runs_or_not() {
    let dir = tempfile::tempdir().expect("a directory");
    // Deeper than a socket's path may be long.
    let deep = dir.path().join("d".repeat(120));
    fs::create_dir(&deep).expect("a directory");
    let dir = deep.as_path();
    init(dir);
    let credentials = |out: &str, role: &str| {
        let more = ["--role", role, "--name", "bo", "--out", out, "--cluster", "edge"];
        succeed(&[&["credentials"], &PLACE[..], &KEY, &more].concat(), dir)
    };
    let backup = |file: &str| succeed(&[&["backup"], &PLACE[..], &KEY, &[file]].concat(), dir);
    credentials("before.toml", "viewer");
    backup("before");
    let running = Running::start(dir, &[]);
    credentials("beside.toml", "viewer");
    backup("beside");
    let (code, complaint) = fail(&["backup", "--state-dir", "state", "beside"], dir);
    assert_eq!((code, complaint.contains("beside")), (1, true), "it overwrites nothing: {complaint}");
    for file in ["anna.toml", "before.toml", "beside.toml"] {
        running.version(file).await.expect(file);
    }
    let audit = GetRequest { kind: "audit".to_owned(), ..Default::default() };
    let refused = running.fleet("beside.toml").await.get(audit).await.expect_err("limited to a cluster");
    assert_eq!(refused.code(), Code::PermissionDenied);

    let epoch = |file: &str| {
        let rows = EmbeddedStore::open_copy(&dir.join(file)).expect("a store").load().expect("rows");
        Facts::load(rows).expect("facts").meta.epoch.0
    };
    assert_eq!((epoch("before"), epoch("beside")), (0, 1));
    let mut left: Vec<_> =
        fs::read_dir(dir.join("state")).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["admin.sock", "listening.json", "store", "store.mark"], "nothing is left of the copying");

    // Restored, and made good.
    drop(running);
    fs::copy(dir.join("before"), dir.join("state/store")).expect("restored");
    let said = succeed(&[&["recover"], &PLACE[..], &["--seen-epoch", "41"]].concat(), dir);
    assert!(said.contains("epoch 42"), "{said}");
    assert_eq!(Running::start(dir, &[]).version("anna.toml").await.expect("answered").epoch, 42);
}

#[test]
fn who_says_nothing_on_the_admin_socket_is_in_nobodys_way() {
    let dir = tempfile::tempdir().expect("a directory");
    init(dir.path());
    let _running = Running::start(dir.path(), &[]);
    let silent = UnixStream::connect(dir.path().join("state/admin.sock")).expect("connected");
    silent.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    succeed(&[&["backup"], &PLACE[..], &["beside"]].concat(), dir.path());
    assert_eq!((&silent).read(&mut [0; 1]).expect("cut off in time"), 0);
}

#[test]
fn health_is_an_answer_on_its_own_listener() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let health = [&["health"], &PLACE[..]].concat();
    let unhealthy = |expected: &str| {
        let (code, complaint) = fail(&health, dir);
        assert_eq!((code, complaint.contains(expected)), (1, true), "{complaint}");
    };
    init(dir);
    unhealthy("is --state-dir right, and has it been started?");
    let running = Running::start(dir, &["--listen", "[::]:0"]);
    assert!(succeed(&health, dir).contains(&format!("127.0.0.1:{}", running.port)));
    drop(running);
    unhealthy("cannot reach 127.0.0.1:");

    // Somebody else's coordinator at its place is not it.
    let other = tempfile::tempdir().expect("a directory");
    init(other.path());
    let stranger = Running::start(other.path(), &[]);
    let listening = dir.join("state/listening.json");
    let mut written: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&listening).expect("read")).expect("JSON");
    written["address"] = format!("127.0.0.1:{}", stranger.port).into();
    fs::write(&listening, written.to_string()).expect("write");
    unhealthy("is not the coordinator");
}

#[test]
fn lost_key_fails_health_and_backup() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    init(dir);
    let health = [&["health"], &PLACE[..]].concat();
    let backup = [&["backup"], &PLACE[..], &["copy"]].concat();
    let running = Running::start(dir, &[]);
    let check = |said: &str| {
        for words in [&health, &backup] {
            let (code, complaint) = fail(words, dir);
            assert_eq!((code, complaint.contains(said)), (1, true), "{words:?}: {complaint}");
            assert!(complaint.contains("do not stop it before"), "{words:?}: {complaint}");
        }
        assert!(!dir.join("copy").exists());
    };
    fs::rename(dir.join("key"), dir.join("kept")).expect("moved");
    check("cannot read the key file");
    fs::write(dir.join("key"), [7; 32]).expect("written");
    fs::set_permissions(dir.join("key"), fs::Permissions::from_mode(0o600)).expect("closed");
    check("is not the one this record was made with");
    fs::rename(dir.join("kept"), dir.join("key")).expect("put back");
    succeed(&health, dir);
    succeed(&backup, dir);
    drop(running);
    fs::rename(dir.join("key"), dir.join("kept")).expect("moved");
    let (code, complaint) = fail(&[&["backup"], &PLACE[..], &KEY, &["other"]].concat(), dir);
    assert_eq!((code, complaint.contains("cannot read the key file key")), (1, true), "{complaint}");
    assert!(!dir.join("other").exists());
}

#[test]
fn backup_to_stdout_is_the_copy_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    init(dir);
    let copied = |file: &str| {
        let written = output(&[&["backup"], &PLACE[..], &KEY, &["-"]].concat(), dir);
        assert!(written.status.success() && written.stderr.is_empty(), "{written:?}");
        fs::write(dir.join(file), written.stdout).expect("written");
        EmbeddedStore::open_copy(&dir.join(file)).expect("a store").load().expect("rows").len()
    };
    // What a copy that was cut off left behind is in nobody's way.
    let left = dir.join("state/backup.outgoing");
    fs::write(&left, "half a copy").expect("written");
    let down = copied("down");
    assert!(!left.exists());
    let _running = Running::start(dir, &[]);
    assert!(down > 3 && copied("up") >= down);
}

#[test]
fn store_moved_away_ends_its_coordinator() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    init(dir);
    let mut running = Running::start(dir, &[]);
    fs::rename(dir.join("state/store"), dir.join("state/elsewhere")).expect("moved");
    let moved = Instant::now();
    let status = running.child.wait().expect("it ends");
    assert!(moved.elapsed() < Duration::from_secs(10), "noticed after {:?}", moved.elapsed());
    assert_eq!(status.code(), Some(1), "a failure: the service manager starts it again");
    drop(running);
    fs::rename(dir.join("state/elsewhere"), dir.join("state/store")).expect("put back");
    Running::start(dir, &[]);
}

/// Without the mark the next start would refuse the store.
#[tokio::test]
async fn lost_mark_is_made_again_within_10_s() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    init(dir);
    let running = Running::start(dir, &[]);
    let mark = dir.join("state/store.mark");
    fs::remove_file(&mark).expect("removed");
    let lost = Instant::now();
    while !mark.exists() {
        assert!(lost.elapsed() < Duration::from_secs(10), "not made again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Killed: nothing is done at its end.
    drop(running);
    let running = Running::start(dir, &[]);
    fs::remove_file(&mark).expect("removed");
    assert_eq!(running.terminate().0, Some(0));
    Running::start(dir, &[]);
}

/// The journal of tests is stderr.
#[test]
fn offline_commands_show_what_they_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    init(dir);
    let shown = |arguments: &[&str]| {
        let output = output(arguments, dir);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let bo = ["--role", "viewer", "--name", "bo", "--out", "bo.toml"];
    let said = shown(&[&["credentials"], &PLACE[..], &KEY, &bo].concat());
    assert!(said.contains("audit: for every cluster seq=2 chain=+fleet number=2"), "{said}");
    assert!(said.contains("seq=1 "), "what init recorded is told by whoever comes next: {said}");
    let said = shown(&[&["set-address"], &PLACE[..], &["a.example:7443"]].concat());
    assert!(said.contains("audit: a.example:7443 seq=3"), "{said}");
    let said = shown(&[&["recover"], &PLACE[..]].concat());
    assert!(said.contains("audit: the next start has epoch 1") && said.contains("seq=4"), "{said}");
}

#[test]
fn what_is_wrong_is_said_and_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let run = [&["run"], &PLACE[..], &KEY].concat();
    let check = |arguments: &[&str], expected_code: i32, expected: &[&str]| {
        let (code, complaint) = fail(arguments, dir);
        assert_eq!(code, expected_code, "{arguments:?}: {complaint}");
        for words in expected {
            assert!(complaint.contains(words), "{arguments:?}: {complaint}");
        }
        assert!(!complaint.contains("panicked"), "{complaint}");
    };
    check(&run, 2, &["holds no record", "muster-coordinator init"]);
    check(&["backup", "--state-dir", "state", "x"], 2, &["holds no record"]);
    check(
        &["init", "--state-dir", "state", "--key-file", "state/key", "--out", "a"],
        2,
        &["lies in the state directory"],
    );
    check(&["init", "--trust-domain", "NO", "--out", "a"], 2, &["--trust-domain"]);
    check(&["init", "--operator", "Anna!", "--out", "a"], 2, &["--operator"]);
    check(&["init", "--address", "nowhere", "--out", "a"], 2, &["address nowhere", "HOST:PORT"]);
    check(&["init", "--address", "http://here:7443", "--out", "a"], 2, &["address http", "HOST:PORT"]);
    check(&["init", "--address", "fd00::7:7443", "--out", "a"], 2, &["address fd00", "[2001:db8::7]:7443"]);
    init(dir);
    check(
        &["init", "--state-dir", "state", "--key-file", "key", "--out", "b"],
        2,
        &["record already", "muster-coordinator credentials"],
    );
    check(&[&run[..], &["--heartbeat", "soon"]].concat(), 2, &["--heartbeat", "30s"]);
    check(&[&run[..], &["--heartbeat", "20s"]].concat(), 2, &["at least twice"]);
    check(&[&run[..], &["--config", "none.toml"]].concat(), 2, &["none.toml"]);
    fs::write(dir.join("bad.toml"), "lisen = 'x'").expect("write");
    check(&[&run[..], &["--config", "bad.toml"]].concat(), 2, &["bad.toml", "lisen"]);
    check(&[&run[..], &["--listen", "192.0.2.1:1"]].concat(), 1, &["cannot listen on 192.0.2.1:1"]);
    check(&["run", "--state-dir", "state", "--key-file", "none"], 1, &["key file none"]);
    check(&["credentials", "--role", "king", "--name", "k", "--out", "k"], 2, &["--role", "operator, viewer"]);

    let running = Running::start(dir, &[]);
    let holder = format!("process {}", running.child.id());
    check(&run, 1, &["in use", &holder]);
    check(&["recover", "--state-dir", "state"], 1, &["in use", &holder]);
    drop(running);
    let store = dir.join("state/store");
    let mut bytes = fs::read(&store).expect("the store");
    bytes[4096..].fill(0x5a);
    fs::write(&store, bytes).expect("write");
    check(&run, 1, &["damaged", "backup", "recover"]);
}

/// `muster-coordinator … | head -1`: whoever reads it has seen enough.
#[test]
fn nobody_has_to_read_all_of_an_answer() {
    for arguments in [&["version"][..], &["completion", "bash"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let status = coordinator().args(arguments).stdout(writer).status().expect("started");
        assert_eq!(status.code(), Some(0), "{arguments:?}");
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device without room");
        let lost = coordinator().args(arguments).stdout(full).output().expect("started");
        let error = String::from_utf8_lossy(&lost.stderr);
        assert!(error.contains("cannot write to stdout: No space left"), "{arguments:?}: {error}");
        assert_eq!(lost.status.code(), Some(1), "{arguments:?}");
    }
}
