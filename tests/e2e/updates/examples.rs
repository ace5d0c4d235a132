//! The application controllers in coordinator/examples behave as documented: each lets an update through, even if it is
//! killed in the middle, and renews its certificate.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    TIME_LIMIT,
    programs::{self, Programs, Ran},
    wait_for,
};

use super::place::{Place, deployed, second_release};

const MACHINES: [&str; 4] = ["control-1", "control-2", "control-3", "worker-1"];
/// Debian's Python, with Debian's grpc; `python3` on the path may be another one.
const PYTHON: &str = "/usr/bin/python3";

/// A child process, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &Place, command: &mut Command) -> Result<Running> {
    let log = fs::OpenOptions::new().create(true).append(true).open(place.dir().join("example.log"))?;
    command.arg(place.dir().join("controller.toml")).arg("demo").args(MACHINES);
    let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
    wait_for("its locks, all active", TIME_LIMIT, || {
        let active = place.items("locks", "/status/state")?.iter().filter(|state| *state == "active").count();
        Ok((active == MACHINES.len() + 1).then_some(()))
    })?;
    Ok(Running(child))
}

/// The update completes. The machine that was away when the controller was killed gets its lock back.
fn lets_an_update_through(example: impl Fn(&Place) -> Result<Command>) -> Result<()> {
    let place = deployed("1")?;
    let mut running = start(&place, &mut example(&place)?)?;
    second_release(&place, 1, ("60s", "0.1"))?;
    let mut update = place.start_ctl(&["update", "demo", "--yes"], &place.dir().join("update.out"))?;
    let state_of = |name: &str| -> Result<Option<String>> {
        let named = place.items("locks", "/metadata/name")?.into_iter().zip(place.items("locks", "/status/state")?);
        Ok(named.into_iter().find(|(lock, _)| *lock == format!("toy-{name}")).map(|(_, state)| state))
    };
    wait_for("control-1 let go", TIME_LIMIT, || {
        Ok((state_of("control-1")?.as_deref() == Some("inactive")).then_some(()))
    })?;
    running.0.kill()?;
    running.0.wait()?;
    wait_for("the request of control-1 gone", TIME_LIMIT, || {
        let requests = place.items("requests", "/metadata/name")?;
        Ok((!requests.is_empty() && !requests.iter().any(|name| name == "control-1")).then_some(()))
    })?;
    assert_eq!(state_of("control-1")?.as_deref(), Some("inactive"), "nobody is there to give it back");
    running = start(&place, &mut example(&place)?).context("started again")?;
    let status = wait_for("the update's end", TIME_LIMIT, || Ok(update.try_wait()?))?;
    let said = fs::read_to_string(place.dir().join("example.log"))?;
    assert!(status.success(), "{status}\n{said}");
    wait_for("every lock active again", TIME_LIMIT, || {
        let states = place.items("locks", "/status/state")?;
        Ok(states.iter().all(|state| state == "active").then_some(()))
    })?;
    drop(running);
    renews_its_certificate(&place, &mut example(&place)?)
}

/// With a certificate valid for 20 s it is still connected after that time, with a renewed one that it has saved.
fn renews_its_certificate(place: &Place, command: &mut Command) -> Result<()> {
    let file = place.dir().join("controller.toml");
    fs::remove_file(&file)?;
    place.credentials(&["--lifetime", "20s"])?;
    let given = fs::read_to_string(&file)?;
    let running = start(place, command)?;
    let renewed = wait_for("renewed credentials in the file", TIME_LIMIT, || {
        Ok(Some(fs::read_to_string(&file)?).filter(|text| *text != given))
    })?;
    assert_eq!(file.metadata()?.permissions().mode() & 0o777, 0o600);
    let old = place.dir().join("given.toml");
    fs::write(&old, given)?;
    fs::set_permissions(&old, fs::Permissions::from_mode(0o600))?;
    let config = |path: &Path| -> Result<Ran> {
        let mut command = Command::new(Programs::find()?.musterctl);
        programs::run(command.arg("--config").arg(path).arg("version"))
    };
    config(&old)?.exits(0).context("the former certificate stays valid")?;
    wait_for("the end of the former certificate", TIME_LIMIT, || Ok((config(&old)?.exits(0).is_err()).then_some(())))?;
    let said = fs::read_to_string(place.dir().join("example.log"))?;
    let released = place.ctl(&["locks", "release", "toy", "--cluster", "demo", "--yes"])?;
    released.exits(4).and_then(|ran| ran.says(&["ControllerConnected"])).with_context(|| said)?;
    place.ctl(&["get", "audit"])?.exits(0)?.says(&["renew", "credentials/controller/toy"])?;
    drop((running, renewed));
    Ok(())
}

#[test]
fn rust_example_lets_update_through() -> Result<()> {
    lets_an_update_through(|_| {
        let test = env::current_exe()?;
        let examples = test.parent().and_then(Path::parent).context("target/…/deps")?.join("examples");
        Ok(Command::new(examples.join("controller")))
    })
}

#[test]
fn python_example_lets_update_through() -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
    lets_an_update_through(|place| {
        let dir = place.dir();
        let mut protoc = Command::new("protoc");
        protoc.arg(format!("--proto_path={}", sources.join("proto").display()));
        protoc.args(["--plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin"]);
        protoc.arg(format!("--python_out={}", dir.display())).arg(format!("--grpc_python_out={}", dir.display()));
        programs::run(protoc.arg("muster/v1/maintenance.proto"))?.exits(0)?;
        let mut python = Command::new(PYTHON);
        python.env("PYTHONPATH", dir).arg(sources.join("coordinator/examples/controller.py"));
        Ok(python)
    })
}
