//! The Docker Engine around a copy: its swarm state, its stop and its start. systemd does the stop and guarantees the
//! start: a timer is armed before the stop, and disarmed only when the engine answers.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use muster_proto::model::{SwarmAnswer, SwarmCall, SwarmInfo, SwarmNode, SwarmOp, SwarmReply};
use tokio::time::{Instant, sleep};

use super::Seen;
use crate::{
    docker::{self, DockerError},
    exec_item::Report,
    swarm::{SwarmCalls, local_info},
};

/// Timeout of one request to the engine.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// Timeout from the start of Docker until the other managers reach this one.
const REACHABLE_DEADLINE: Duration = Duration::from_secs(180);
/// Polling interval of that state.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Delay after which systemd starts Docker again in any case. A copy takes seconds.
const STARTED_AGAIN_AFTER: &str = "10min";
/// Name of that timer.
const TIMER: &str = "muster-docker-again";
const SERVICE: &str = "docker.service";
/// Socket unit, if there is one. It starts Docker on each connection, so it is stopped first and started with Docker.
const SOCKET_UNIT: &str = "docker.socket";

/// Error of the engine.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    #[error(transparent)]
    Docker(#[from] DockerError),
    #[error("cannot start the work")]
    Runtime(#[source] io::Error),
    #[error("cannot list the swarm's nodes: {0}")]
    Nodes(String),
    #[error("cannot run {program}")]
    Program {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{what} failed: {said}")]
    Unit { what: String, said: String },
    #[error(
        "Docker was started while the copy was made (by `systemctl start`, or by the timer that sees to it after \
         {STARTED_AGAIN_AFTER}): its files may be of different moments, and it was thrown away"
    )]
    StartedMeanwhile,
    #[error("Docker runs again, but this manager was not reachable within {} s", REACHABLE_DEADLINE.as_secs())]
    NotReachable,
}

/// Reads the swarm's state from the engine.
pub(super) fn look(socket: &Path) -> Result<Seen, EngineError> {
    docker::block_on(async {
        let docker = docker::connect(socket, REQUEST_DEADLINE)?;
        let SwarmInfo { state, node, manager, .. } = local_info(&docker).await?;
        let info = docker.info().await.map_err(DockerError::while_doing("ask the Docker Engine about itself"))?;
        let mut seen = Seen {
            state,
            node,
            manager,
            swarm_id: String::new(),
            autolock: false,
            engine_version: info.server_version.unwrap_or_default(),
            root_dir: PathBuf::from(info.docker_root_dir.unwrap_or_else(|| "/var/lib/docker".to_owned())),
            nodes: Vec::new(),
        };
        if manager {
            let swarm = docker.inspect_swarm().await.map_err(DockerError::while_doing("read the swarm"))?;
            let encryption = swarm.spec.and_then(|spec| spec.encryption_config);
            seen.autolock = encryption.and_then(|encryption| encryption.auto_lock_managers) == Some(true);
            seen.swarm_id = swarm.id.unwrap_or_default();
            seen.nodes = nodes(socket).await?;
        }
        Ok(seen)
    })
    .map_err(EngineError::Runtime)?
}

async fn nodes(socket: &Path) -> Result<Vec<SwarmNode>, EngineError> {
    let call = SwarmCall { id: 0, epoch: muster_proto::model::Epoch(0), op: SwarmOp::Nodes };
    match SwarmCalls::new(socket).answer(call).await {
        SwarmAnswer { result: Ok(SwarmReply::Nodes(nodes)), .. } => Ok(nodes),
        SwarmAnswer { result: Ok(_), .. } => Err(EngineError::Nodes("another answer came".to_owned())),
        SwarmAnswer { result: Err(failure), .. } => Err(EngineError::Nodes(failure.to_string())),
    }
}

/// Starts Docker if an interrupted attempt left it stopped: its timer is still armed.
pub(super) fn start_if_stopped(report: &Report) -> Result<(), EngineError> {
    if is_active(&format!("{TIMER}.timer"))? {
        report.line("an earlier attempt was interrupted while Docker was stopped: starting it");
        start()?;
        disarm()?;
    }
    Ok(())
}

/// Runs `work` while Docker is stopped, and always starts it again. Fails if Docker was started before the work was
/// done.
pub(super) fn with_docker_stopped<T>(
    report: &Report,
    socket: &Path,
    work: impl FnOnce() -> T,
) -> Result<T, EngineError> {
    arm()?;
    report.line("stopping Docker");
    let stopped = stop();
    let done = stopped.is_ok().then(work);
    let still_stopped = is_stopped();
    report.line("starting Docker");
    start()?;
    stopped?;
    docker::block_on(reachable(socket)).map_err(EngineError::Runtime)??;
    disarm()?;
    report.line("this manager is reachable again");
    if !still_stopped {
        return Err(EngineError::StartedMeanwhile);
    }
    done.ok_or(EngineError::NotReachable)
}

/// Waits until the other managers reach this one again.
async fn reachable(socket: &Path) -> Result<(), EngineError> {
    let until = Instant::now() + REACHABLE_DEADLINE;
    while Instant::now() < until {
        if is_reachable(socket).await == Ok(true) {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    Err(EngineError::NotReachable)
}

/// Any uncertain answer counts as unreachable for now.
async fn is_reachable(socket: &Path) -> Result<bool, ()> {
    let docker = docker::connect(socket, REQUEST_DEADLINE).map_err(|_| ())?;
    let own = local_info(&docker).await.map_err(|_| ())?.node;
    let nodes = nodes(socket).await.map_err(|_| ())?;
    let of_own = nodes.into_iter().find(|node| Some(&node.id) == own.as_ref());
    Ok(of_own.and_then(|node| node.manager).is_some_and(|manager| manager.reachable))
}

fn arm() -> Result<(), EngineError> {
    disarm()?;
    let timer = format!("--unit={TIMER}");
    let when = format!("--on-active={STARTED_AGAIN_AFTER}");
    let args = [&timer, &when, "--collect", "--quiet", "--", "systemctl", "start", SERVICE];
    succeed("systemd-run", &args, "arming the timer that starts Docker again")
}

fn disarm() -> Result<(), EngineError> {
    let timer = format!("{TIMER}.timer");
    if is_active(&timer)? {
        succeed("systemctl", &["stop", &timer], "disarming the timer that starts Docker again")?;
    }
    Ok(())
}

fn stop() -> Result<(), EngineError> {
    let units: &[&str] = if is_active(SOCKET_UNIT)? { &[SOCKET_UNIT, SERVICE] } else { &[SERVICE] };
    succeed("systemctl", &[&["stop"], units].concat(), "stopping Docker")
}

fn start() -> Result<(), EngineError> {
    // Docker requires its socket unit by itself, if there is one.
    succeed("systemctl", &["start", SERVICE], "starting Docker")
}

/// Is Docker inactive or failed, as opposed to running or in transition?
fn is_stopped() -> bool {
    let state = output("systemctl", &["show", "--property", "ActiveState", "--value", SERVICE]);
    state.is_ok_and(|state| matches!(String::from_utf8_lossy(&state.stdout).trim(), "inactive" | "failed"))
}

fn is_active(unit: &str) -> Result<bool, EngineError> {
    Ok(output("systemctl", &["is-active", "--quiet", unit])?.status.success())
}

fn succeed(program: &'static str, args: &[&str], what: &str) -> Result<(), EngineError> {
    let output = output(program, args)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(EngineError::Unit { what: what.to_owned(), said })
}

/// systemd answers each of these within its own limits for the unit.
fn output(program: &'static str, args: &[&str]) -> Result<Output, EngineError> {
    Command::new(program).args(args).output().map_err(|source| EngineError::Program { program, source })
}
