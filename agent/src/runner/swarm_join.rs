//! Brings the machine into its cluster's Docker Swarm through the Docker Engine: initialises it, or joins it as a
//! manager or worker. The coordinator decides which, and through which managers, right before the start. The token
//! comes as a secret input and is absent from params, argv and logs. A repeat finds the work done.
//!
//! It never leaves a swarm: an engine in another one is an error that a person must resolve. It only undoes its own
//! failed join, because Docker keeps that and would refuse the next.

use std::{collections::HashMap, fmt, path::Path, time::Duration};

use bollard::{
    Docker,
    models::{SwarmInitRequest, SwarmJoinRequest, SwarmSpec},
};
use muster_proto::model::{
    ItemState, SWARM_JOIN_INPUT, SWARM_LABEL, SWARM_TOKEN_INPUT, SwarmId, SwarmInfo, SwarmJoin, SwarmLocalState,
    SwarmMember, SwarmWay,
};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{BuiltinWork, Outcome, Refused};
use crate::{
    attempt::{AttemptDir, Request},
    docker::{self, DockerError},
    exec_item::{Report, with_sources},
    swarm::local_info,
};

/// Default of the param `listen`: address for other engines.
const LISTEN_DEFAULT: &str = "0.0.0.0:2377";
/// Timeout of one request to the engine. A join that takes longer than Docker's limit of 20 s continues in the
/// background.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// Timeout of a connection to a manager; after it the next manager is tried.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Timeout from the accepted join until the engine is in the swarm.
const ACTIVE_DEADLINE: Duration = Duration::from_secs(120);
/// Polling interval of the engine meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The checked params and inputs.
struct Wanted {
    advertise: String,
    listen: String,
    cluster: String,
    join: SwarmJoin,
    token: Option<String>,
}

/// Reason why the join failed.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Docker(#[from] DockerError),
    #[error("cannot start the work")]
    Runtime(#[source] std::io::Error),
    #[error(
        "ForeignSwarm: the Docker Engine is node {node} of another swarm than this cluster's; if nothing of that swarm \
         is needed here, run `docker swarm leave --force` on this machine, then retry"
    )]
    Foreign { node: SwarmId },
    #[error(
        "SwarmRoleDiffers: the machine is in the swarm as a {is}; run `docker node {verb} {node}` on a manager, then \
         retry"
    )]
    Role { is: Role, verb: &'static str, node: SwarmId },
    #[error("SwarmLocked: the swarm's managers are locked; run `docker swarm unlock` with the unlock key, then retry")]
    Locked,
    #[error("the Docker Engine is in a swarm and reports: {0}")]
    Engine(String),
    #[error(
        "the Docker Engine could not join: {0}; if it stays so, run `docker swarm leave` on this machine, then retry"
    )]
    Failed(String),
    #[error("the Docker Engine's place in the swarm has changed since the coordinator looked; it looks again")]
    Changed,
    #[error("NoManagerReachable: no manager let this machine in: {0}")]
    NoManager(String),
    #[error("the Docker Engine joined, but was not active in the swarm within {} s", ACTIVE_DEADLINE.as_secs())]
    NotActive,
    #[error("the Docker Engine does not say what its {0} is")]
    Unknown(&'static str),
}

impl JoinError {
    /// May another attempt help? A foreign swarm, a wrong role and a missing key need a person; so do params that the
    /// engine rejects.
    fn is_retryable(&self) -> bool {
        match self {
            Self::Foreign { .. } | Self::Role { .. } | Self::Locked => false,
            Self::Docker(error) => !matches!(error.status(), Some(400..=499)),
            Self::Runtime(_)
            | Self::Engine(_)
            | Self::Failed(_)
            | Self::Changed
            | Self::NoManager(_)
            | Self::NotActive
            | Self::Unknown(_) => true,
        }
    }
}

/// Text of a node's role.
#[derive(Clone, Copy, Debug)]
struct Role {
    manager: bool,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.manager { "manager" } else { "worker" })
    }
}

/// Next step, from the decision and the engine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The engine is in a swarm: verify that it is the right one.
    Verify,
    /// The engine is joining one.
    Wait,
    Init,
    Join,
}

/// Checks params and inputs, and returns the work.
pub(super) fn prepare(request: &Request, dir: &AttemptDir) -> Result<BuiltinWork, Refused> {
    let wanted = Wanted::of(request, dir)?;
    Ok(Box::new(move |report| {
        bring_about(&wanted, Path::new(docker::SOCKET), report).unwrap_or_else(|error| {
            let message = with_sources(&error);
            report.line(&message);
            Outcome::failed(message, error.is_retryable())
        })
    }))
}

impl Wanted {
    fn of(request: &Request, dir: &AttemptDir) -> Result<Self, Refused> {
        let advertise = request.params.get("advertise").ok_or(Refused::Missing("advertise"))?;
        let listen = request.params.get("listen").map_or(LISTEN_DEFAULT, String::as_str);
        let input = |sort: &str, name: &str| std::fs::read(dir.path().join("inputs").join(sort).join(name)).ok();
        let join = input("plain", SWARM_JOIN_INPUT).ok_or(Refused::Missing(SWARM_JOIN_INPUT))?;
        let join = serde_json::from_slice(&join).map_err(|_| {
            Refused::param(SWARM_JOIN_INPUT, "the coordinator's answer is not understood; upgrade this agent")
        })?;
        let token = input("secret", SWARM_TOKEN_INPUT).map(|token| String::from_utf8_lossy(&token).into_owned());
        Ok(Self {
            advertise: advertise.clone(),
            listen: listen.to_owned(),
            cluster: request.cluster.to_string(),
            join,
            token,
        })
    }
}

/// Does the work.
fn bring_about(wanted: &Wanted, socket: &Path, report: &Report) -> Result<Outcome, JoinError> {
    let member = docker::block_on(enter(wanted, socket, report)).map_err(JoinError::Runtime)??;
    let (node, role) = (&member.node_id, Role { manager: member.manager });
    let message = format!("node {node} of swarm {}, {role}", member.swarm_id);
    report.line(&message);
    let result_json = serde_json::to_string(&member).ok();
    Ok(Outcome { state: ItemState::Succeeded, message, result_json })
}

async fn enter(wanted: &Wanted, socket: &Path, report: &Report) -> Result<SwarmMember, JoinError> {
    let docker = docker::connect(socket, REQUEST_DEADLINE)?;
    let info = local_info(&docker).await?;
    let step = next(&wanted.join.way, &info)?;
    match step {
        Step::Verify => return verify(&docker, wanted, &info, false).await,
        Step::Wait => report.line("the engine is on its way into a swarm already"),
        Step::Init => {
            report.line(&format!("initialising the swarm of cluster {}", wanted.cluster));
            docker.init_swarm(init_request(wanted)).await.map_err(DockerError::while_doing("initialise the swarm"))?;
        }
        Step::Join => join(&docker, wanted, report).await?,
    }
    let info = match active(&docker).await {
        Err(JoinError::Failed(error)) if step == Step::Join => {
            report.line("taking back the join that came to nothing");
            docker.leave_swarm(None).await.map_err(DockerError::while_doing("take back a failed join"))?;
            return Err(JoinError::NoManager(error));
        }
        other => other?,
    };
    verify(&docker, wanted, &info, step != Step::Wait).await
}

/// Selects the next step.
fn next(way: &SwarmWay, info: &SwarmInfo) -> Result<Step, JoinError> {
    match (info.state, way) {
        (SwarmLocalState::Active, _) => Ok(Step::Verify),
        (SwarmLocalState::Pending, _) => Ok(Step::Wait),
        (SwarmLocalState::Locked, _) => Err(JoinError::Locked),
        (SwarmLocalState::Error, _) => Err(reported(info)),
        (SwarmLocalState::Inactive, SwarmWay::Init) => Ok(Step::Init),
        (SwarmLocalState::Inactive, SwarmWay::Join { .. }) => Ok(Step::Join),
        (SwarmLocalState::Inactive, SwarmWay::Member { .. } | SwarmWay::Foreign { .. }) => Err(JoinError::Changed),
    }
}

/// Error of a faulty engine. A missing node id means that it was never admitted.
fn reported(info: &SwarmInfo) -> JoinError {
    let error = info.error.clone();
    if info.node.is_some() { JoinError::Engine(error) } else { JoinError::Failed(error) }
}

fn init_request(wanted: &Wanted) -> SwarmInitRequest {
    let labels = HashMap::from([(SWARM_LABEL.to_owned(), wanted.cluster.clone())]);
    SwarmInitRequest {
        advertise_addr: Some(wanted.advertise.clone()),
        listen_addr: Some(wanted.listen.clone()),
        spec: Some(SwarmSpec { labels: Some(labels), ..SwarmSpec::default() }),
        ..SwarmInitRequest::default()
    }
}

/// Joins through the first manager that accepts. Docker itself tries only the first address, so each is tried here.
async fn join(docker: &Docker, wanted: &Wanted, report: &Report) -> Result<(), JoinError> {
    let SwarmWay::Join { managers, .. } = &wanted.join.way else { return Err(JoinError::Changed) };
    let mut said = Vec::new();
    for manager in managers {
        match timeout(CONNECT_DEADLINE, TcpStream::connect(manager)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                said.push(format!("{manager}: {error}"));
                continue;
            }
            Err(_) => {
                said.push(format!("{manager}: no answer within {} s", CONNECT_DEADLINE.as_secs()));
                continue;
            }
        }
        report.line(&format!("joining through {manager} as a {}", Role { manager: wanted.join.manager }));
        let request = SwarmJoinRequest {
            advertise_addr: Some(wanted.advertise.clone()),
            listen_addr: Some(wanted.listen.clone()),
            remote_addrs: Some(vec![manager.clone()]),
            join_token: wanted.token.clone(),
            ..SwarmJoinRequest::default()
        };
        let doing = DockerError::while_doing("join the swarm");
        match docker.join_swarm(request).await.map_err(doing) {
            Ok(()) => return Ok(()),
            // Docker's 20 s are over and it continues by itself: its state shows the result.
            Err(_) if local_info(docker).await?.state != SwarmLocalState::Inactive => return Ok(()),
            Err(error) => said.push(format!("{manager}: {}", with_sources(&error))),
        }
    }
    Err(JoinError::NoManager(said.join("; ")))
}

/// Waits until the engine is in the swarm.
async fn active(docker: &Docker) -> Result<SwarmInfo, JoinError> {
    let until = Instant::now() + ACTIVE_DEADLINE;
    loop {
        let info = local_info(docker).await?;
        match info.state {
            SwarmLocalState::Active => return Ok(info),
            SwarmLocalState::Locked => return Err(JoinError::Locked),
            SwarmLocalState::Error => return Err(reported(&info)),
            SwarmLocalState::Inactive | SwarmLocalState::Pending => {}
        }
        if Instant::now() >= until {
            let error = Some(info.error).filter(|error| !error.is_empty());
            return Err(error.map_or(JoinError::NotActive, JoinError::Engine));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Verifies that the engine is in the right swarm with the wanted role. `ours`: we have just joined it ourselves.
async fn verify(docker: &Docker, wanted: &Wanted, info: &SwarmInfo, ours: bool) -> Result<SwarmMember, JoinError> {
    let node = info.node.clone().ok_or(JoinError::Unknown("node"))?;
    let swarm_id = match &wanted.join.way {
        SwarmWay::Member { swarm, node: known } if *known == node => swarm.clone(),
        SwarmWay::Join { swarm, .. } if ours => swarm.clone(),
        // Only managers know the swarm's id. The coordinator can ask them.
        SwarmWay::Join { .. } if !info.manager => return Err(JoinError::Changed),
        SwarmWay::Init | SwarmWay::Join { .. } if info.manager => own_swarm(docker, wanted, &node).await?,
        SwarmWay::Foreign { node: known } if *known != node => return Err(JoinError::Changed),
        SwarmWay::Init | SwarmWay::Join { .. } | SwarmWay::Member { .. } | SwarmWay::Foreign { .. } => {
            return Err(JoinError::Foreign { node });
        }
    };
    if info.manager != wanted.join.manager {
        let verb = if info.manager { "demote" } else { "promote" };
        return Err(JoinError::Role { is: Role { manager: info.manager }, verb, node });
    }
    Ok(SwarmMember { swarm_id, node_id: node, manager: info.manager })
}

/// Id of this manager's swarm, if it is the right one: the one to join, or one that we initialised for this cluster.
async fn own_swarm(docker: &Docker, wanted: &Wanted, node: &SwarmId) -> Result<SwarmId, JoinError> {
    let swarm = docker.inspect_swarm().await.map_err(DockerError::while_doing("read the swarm"))?;
    let id = swarm.id.and_then(|id| SwarmId::new(id).ok()).ok_or(JoinError::Unknown("swarm"))?;
    let label = swarm.spec.and_then(|spec| spec.labels).and_then(|mut labels| labels.remove(SWARM_LABEL));
    let meant = match &wanted.join.way {
        SwarmWay::Join { swarm, .. } | SwarmWay::Member { swarm, .. } => *swarm == id,
        SwarmWay::Foreign { .. } => false,
        SwarmWay::Init => label.as_deref() == Some(wanted.cluster.as_str()),
    };
    if meant { Ok(id) } else { Err(JoinError::Foreign { node: node.clone() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(state: SwarmLocalState) -> SwarmInfo {
        SwarmInfo { state, node: None, manager: false, hostname: "h".to_owned(), error: "e".to_owned() }
    }

    #[test]
    fn what_is_seen_and_what_was_decided_say_what_is_done() {
        use SwarmLocalState::{Active, Error, Inactive, Locked, Pending};
        let id = |text: &str| SwarmId::new(text).expect("an id");
        let join = || SwarmWay::Join { swarm: id("s"), managers: Vec::new() };
        let member = || SwarmWay::Member { swarm: id("s"), node: id("n") };
        for (way, state, expected) in [
            (SwarmWay::Init, Inactive, Ok(Step::Init)),
            (SwarmWay::Init, Active, Ok(Step::Verify)),
            (join(), Inactive, Ok(Step::Join)),
            (join(), Active, Ok(Step::Verify)),
            (join(), Pending, Ok(Step::Wait)),
            (member(), Active, Ok(Step::Verify)),
            (member(), Inactive, Err(true)),
            (SwarmWay::Foreign { node: id("n") }, Active, Ok(Step::Verify)),
            (SwarmWay::Foreign { node: id("n") }, Inactive, Err(true)),
            (join(), Locked, Err(false)),
            (SwarmWay::Init, Error, Err(true)),
        ] {
            let found = next(&way, &info(state)).map_err(|error| error.is_retryable());
            assert_eq!(found, expected, "{way:?} {state:?}");
        }
    }
}
