//! Answers a coordinator's calls about the machine's Docker Swarm: the closed set of `SwarmOp`, all idempotent, in
//! parallel with a running item. The core checks whether the caller is authorized; this module only performs the call.
//! Tokens pass through and are never logged.

mod counted;

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bollard::{
    Docker,
    errors::Error,
    models::{
        LocalNodeState, Node, NodeSpec, NodeSpecAvailabilityEnum, NodeSpecRoleEnum, NodeState, Reachability, Service,
        SwarmInfo as LocalSwarm, Task, TaskState,
    },
    query_parameters::{DeleteNodeOptionsBuilder, ListTasksOptionsBuilder, UpdateNodeOptionsBuilder},
};
use muster_proto::{
    convert::as_line,
    model::{
        SWARM_LABELS_BYTES_MAX, SWARM_LABELS_MAX, SWARM_NODES_MAX, SWARM_SERVICES_MAX, SWARM_TASKS_MAX, SwarmAnswer,
        SwarmAvailability, SwarmCall, SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo, SwarmLabels, SwarmLocalState,
        SwarmManager, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply, SwarmService, SwarmTask, SwarmTokens,
        are_labels_few,
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::{
    docker::{DockerError, connect},
    link::chain,
};
use counted::counted_of;

/// Timeout of a call.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum of concurrent calls.
const CALLS_MAX: usize = 8;
/// Maximum delay between a demotion at the managers and at the node's own engine, and the polling interval.
const DEMOTION_MAX: Duration = Duration::from_secs(15);
const DEMOTION_LOOK_EVERY: Duration = Duration::from_millis(200);
/// Maximum of tries: another manager may change a node between our read and our update.
const UPDATE_TRIES: usize = 3;

/// Handler of calls.
#[derive(Clone, Debug)]
pub struct SwarmCalls {
    socket: PathBuf,
    free: Arc<Semaphore>,
}

impl SwarmCalls {
    /// Uses the engine at this socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), free: Arc::new(Semaphore::new(CALLS_MAX)) }
    }

    /// Performs a call. There is always an answer, at the latest at the deadline.
    pub async fn answer(&self, call: SwarmCall) -> SwarmAnswer {
        let result = match self.free.try_acquire() {
            Err(_) => Err(failure(SwarmFailureCode::Busy, "too many calls at once; ask again later")),
            Ok(_free) => timeout(CALL_DEADLINE, self.perform(&call.op)).await.unwrap_or_else(|_| {
                let message = format!("the Docker Engine did not answer within {} s", CALL_DEADLINE.as_secs());
                Err(failure(SwarmFailureCode::Timeout, &message))
            }),
        };
        SwarmAnswer { id: call.id, result }
    }

    async fn perform(&self, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        let docker = connect(&self.socket, CALL_DEADLINE).map_err(|error| failed(&error))?;
        match op {
            SwarmOp::Info => local_info(&docker).await.map(SwarmReply::Info).map_err(|error| failed(&error)),
            SwarmOp::Tokens => tokens(&docker).await.map(SwarmReply::Tokens),
            SwarmOp::Nodes => nodes(&docker).await.map(SwarmReply::Nodes),
            SwarmOp::Tasks { node } => tasks(&docker, node).await.map(SwarmReply::Tasks),
            SwarmOp::Services { node } => services(&docker, node).await.map(SwarmReply::Services),
            SwarmOp::SetAvailability { node, availability } => {
                let wanted = docker_availability(*availability);
                let set = |spec: &mut NodeSpec| spec.availability.replace(wanted) != Some(wanted);
                update(&docker, node, set).await
            }
            SwarmOp::Labels { node } => labels(&docker, node).await,
            SwarmOp::AddLabels { node, labels } => {
                update(&docker, node, |spec: &mut NodeSpec| add_missing(spec.labels.get_or_insert_default(), labels))
                    .await
            }
            SwarmOp::Demote { node } => {
                let worker = NodeSpecRoleEnum::WORKER;
                update(&docker, node, |spec: &mut NodeSpec| spec.role.replace(worker) != Some(worker)).await
            }
            SwarmOp::Remove { node, hostname, force } => remove(&docker, node, hostname, *force).await,
            SwarmOp::Leave { node } => leave(&docker, node).await,
        }
    }
}

/// Parts of the Docker Engine's messages that mean a manager without a majority.
const NO_QUORUM: [&str; 3] = ["Manager is being prepared", "does not have a leader", "losing quorum"];

fn failure(code: SwarmFailureCode, message: &str) -> SwarmFailure {
    SwarmFailure { code, message: as_line(message) }
}

/// Maps an engine error. Docker distinguishes some reasons only by text.
fn failed(error: &DockerError) -> SwarmFailure {
    let text = chain(error);
    let timed_out = matches!(error.source, Error::RequestTimeoutError);
    failure(code_of(error.status(), timed_out, &text), &text)
}

fn code_of(status: Option<u16>, timed_out: bool, text: &str) -> SwarmFailureCode {
    match status {
        Some(404) => SwarmFailureCode::NoSuchNode,
        // The first is a manager's too: "This node is not a swarm manager. Manager is being prepared or has trouble
        // connecting to the cluster." (moby, daemon/cluster: errNoManager).
        Some(_) if NO_QUORUM.iter().any(|sign| text.contains(sign)) => SwarmFailureCode::NoQuorum,
        Some(503) if text.contains("not a swarm manager") => SwarmFailureCode::NotManager,
        Some(400..=499) => SwarmFailureCode::NotAllowed,
        Some(_) | None if timed_out => SwarmFailureCode::Timeout,
        Some(_) | None => SwarmFailureCode::Engine,
    }
}

fn malformed(what: &str) -> SwarmFailure {
    failure(SwarmFailureCode::Engine, &format!("the Docker Engine's answer has no {what}"))
}

fn swarm_id(what: &str, text: Option<String>) -> Result<SwarmId, SwarmFailure> {
    text.and_then(|text| SwarmId::new(text).ok()).ok_or_else(|| malformed(what))
}

/// Swarm state of this client's engine.
///
/// # Errors
/// [`DockerError`].
pub async fn local_info(docker: &Docker) -> Result<SwarmInfo, DockerError> {
    let info = docker.info().await.map_err(DockerError::while_doing("ask the Docker Engine about itself"))?;
    let swarm = info.swarm.unwrap_or_default();
    Ok(SwarmInfo {
        state: local_state(&swarm),
        manager: swarm.control_available == Some(true),
        hostname: as_line(&info.name.unwrap_or_default()),
        error: as_line(&swarm.error.unwrap_or_default()),
        node: swarm.node_id.and_then(|id| SwarmId::new(id).ok()),
    })
}

fn local_state(swarm: &LocalSwarm) -> SwarmLocalState {
    match swarm.local_node_state {
        Some(LocalNodeState::PENDING) => SwarmLocalState::Pending,
        Some(LocalNodeState::ACTIVE) => SwarmLocalState::Active,
        Some(LocalNodeState::ERROR) => SwarmLocalState::Error,
        Some(LocalNodeState::LOCKED) => SwarmLocalState::Locked,
        Some(LocalNodeState::INACTIVE | LocalNodeState::EMPTY) | None => SwarmLocalState::Inactive,
    }
}

async fn tokens(docker: &Docker) -> Result<SwarmTokens, SwarmFailure> {
    let doing = DockerError::while_doing("read the swarm");
    let swarm = docker.inspect_swarm().await.map_err(|error| failed(&doing(error)))?;
    let tokens = swarm.join_tokens.unwrap_or_default();
    Ok(SwarmTokens {
        swarm: swarm_id("id of the swarm", swarm.id)?,
        manager: tokens.manager.ok_or_else(|| malformed("manager's token"))?,
        worker: tokens.worker.ok_or_else(|| malformed("worker's token"))?,
    })
}

async fn nodes(docker: &Docker) -> Result<Vec<SwarmNode>, SwarmFailure> {
    let doing = DockerError::while_doing("list the swarm's nodes");
    let nodes = docker.list_nodes(None).await.map_err(|error| failed(&doing(error)))?;
    if nodes.len() > SWARM_NODES_MAX {
        let message = format!("the swarm has {} nodes; at most {SWARM_NODES_MAX} are supported", nodes.len());
        return Err(failure(SwarmFailureCode::NotAllowed, &message));
    }
    nodes.into_iter().map(node).collect()
}

fn node(node: Node) -> Result<SwarmNode, SwarmFailure> {
    let spec = node.spec.unwrap_or_default();
    let state = match node.status.and_then(|status| status.state) {
        Some(NodeState::READY) => SwarmNodeState::Ready,
        Some(NodeState::DOWN) => SwarmNodeState::Down,
        Some(NodeState::DISCONNECTED) => SwarmNodeState::Disconnected,
        Some(NodeState::UNKNOWN) | None => SwarmNodeState::Unknown,
    };
    let availability = match spec.availability {
        Some(NodeSpecAvailabilityEnum::DRAIN) => SwarmAvailability::Drain,
        Some(NodeSpecAvailabilityEnum::PAUSE) => SwarmAvailability::Pause,
        Some(NodeSpecAvailabilityEnum::ACTIVE | NodeSpecAvailabilityEnum::EMPTY) | None => SwarmAvailability::Active,
    };
    // A newly promoted manager has its role before its status. A manager that is down and lacks a status was excluded
    // when a new cluster was forced: it has lost its vote, and demoting it is impossible.
    let votes = node.manager_status.is_some() || state != SwarmNodeState::Down;
    let status = node.manager_status.unwrap_or_default();
    let manager = (votes && spec.role == Some(NodeSpecRoleEnum::MANAGER)).then(|| SwarmManager {
        leader: status.leader == Some(true),
        reachable: status.reachability == Some(Reachability::REACHABLE),
        address: as_line(&status.addr.unwrap_or_default()),
    });
    let hostname = node.description.and_then(|description| description.hostname).unwrap_or_default();
    Ok(SwarmNode { id: swarm_id("id of a node", node.id)?, hostname: as_line(&hostname), state, availability, manager })
}

const fn docker_availability(availability: SwarmAvailability) -> NodeSpecAvailabilityEnum {
    match availability {
        SwarmAvailability::Active => NodeSpecAvailabilityEnum::ACTIVE,
        SwarmAvailability::Pause => NodeSpecAvailabilityEnum::PAUSE,
        SwarmAvailability::Drain => NodeSpecAvailabilityEnum::DRAIN,
    }
}

/// Unfinished tasks on a node.
async fn living(docker: &Docker, node: &SwarmId) -> Result<Vec<Task>, SwarmFailure> {
    let mut tasks = find_tasks(docker, "node", vec![node.as_str()]).await?;
    tasks.retain(|task| lives(task) && task.node_id.as_deref() == Some(node.as_str()));
    Ok(tasks)
}

/// Tasks of these nodes or services.
async fn find_tasks(docker: &Docker, by: &str, ids: Vec<&str>) -> Result<Vec<Task>, SwarmFailure> {
    let filters = HashMap::from([(by, ids)]);
    let options = ListTasksOptionsBuilder::new().filters(&filters).build();
    let doing = DockerError::while_doing("list the swarm's tasks");
    docker.list_tasks(Some(options)).await.map_err(|error| failed(&doing(error)))
}

async fn find_services(docker: &Docker) -> Result<Vec<Service>, SwarmFailure> {
    let doing = DockerError::while_doing("list the swarm's services");
    docker.list_services(None).await.map_err(|error| failed(&doing(error)))
}

/// Counts the services of a node. Read the services last: if one wants more replicas meanwhile, it shows as incomplete.
async fn services(docker: &Docker, node: &SwarmId) -> Result<Vec<SwarmService>, SwarmFailure> {
    let here: BTreeSet<String> = living(docker, node).await?.into_iter().filter_map(|task| task.service_id).collect();
    if here.is_empty() {
        return Ok(Vec::new());
    }
    let tasks = find_tasks(docker, "service", here.iter().map(String::as_str).collect()).await?;
    let found = find_services(docker).await?.into_iter();
    let counted = found.filter(|service| service.id.as_ref().is_some_and(|id| here.contains(id)));
    let counted: Vec<SwarmService> = counted.filter_map(|service| counted_of(service, &tasks)).collect();
    if counted.len() > SWARM_SERVICES_MAX {
        let message =
            format!("a node has tasks of {} services; at most {SWARM_SERVICES_MAX} are supported", counted.len());
        return Err(failure(SwarmFailureCode::NotAllowed, &message));
    }
    Ok(counted)
}

async fn tasks(docker: &Docker, node: &SwarmId) -> Result<Vec<SwarmTask>, SwarmFailure> {
    let tasks = living(docker, node).await?;
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let names: HashMap<String, String> = find_services(docker)
        .await?
        .into_iter()
        .filter_map(|service| Some((service.id?, service.spec?.name?)))
        .collect();
    let named = |task: Task| {
        let service = task.service_id.unwrap_or_default();
        let state = task.status.and_then(|status| status.state).map(|state| state.to_string());
        Ok(SwarmTask {
            id: swarm_id("id of a task", task.id)?,
            service: as_line(names.get(&service).unwrap_or(&service)),
            state: state.unwrap_or_default(),
        })
    };
    // A truncated list is sufficient: the question is whether any task is left.
    tasks.into_iter().take(SWARM_TASKS_MAX).map(named).collect()
}

/// Does a task run, or will it? Its desired state is ignored: a stopping task runs until it has stopped.
fn lives(task: &Task) -> bool {
    match task.status.as_ref().and_then(|status| status.state) {
        Some(
            TaskState::NEW
            | TaskState::ALLOCATED
            | TaskState::PENDING
            | TaskState::ASSIGNED
            | TaskState::ACCEPTED
            | TaskState::PREPARING
            | TaskState::READY
            | TaskState::STARTING
            | TaskState::RUNNING,
        )
        | None => true,
        Some(
            TaskState::COMPLETE
            | TaskState::SHUTDOWN
            | TaskState::FAILED
            | TaskState::REJECTED
            | TaskState::REMOVE
            | TaskState::ORPHANED,
        ) => false,
    }
}

/// The labels of a node.
async fn labels(docker: &Docker, node: &SwarmId) -> Result<SwarmReply, SwarmFailure> {
    let doing = DockerError::while_doing("read a node");
    let found = docker.inspect_node(node.as_str()).await.map_err(|error| failed(&doing(error)))?;
    let labels: SwarmLabels = found.spec.and_then(|spec| spec.labels).unwrap_or_default().into_iter().collect();
    if are_labels_few(&labels) {
        return Ok(SwarmReply::Labels(labels));
    }
    let message = format!(
        "node {node} has {} labels; at most {SWARM_LABELS_MAX}, of {SWARM_LABELS_BYTES_MAX} bytes together, are \
         carried over to the node that takes its place: note them, and `docker node rm {node}`",
        labels.len()
    );
    Err(failure(SwarmFailureCode::NotAllowed, &message))
}

/// Adds the missing labels. False: all were there.
fn add_missing(has: &mut HashMap<String, String>, wanted: &SwarmLabels) -> bool {
    let before = has.len();
    for (name, value) in wanted {
        has.entry(name.clone()).or_insert_with(|| value.clone());
    }
    has.len() > before
}

/// Changes a node's spec, unless it is as wanted.
async fn update(
    docker: &Docker,
    node: &SwarmId,
    set: impl Fn(&mut NodeSpec) -> bool,
) -> Result<SwarmReply, SwarmFailure> {
    let mut tries = 0;
    loop {
        let doing = DockerError::while_doing("read a node");
        let found = docker.inspect_node(node.as_str()).await.map_err(|error| failed(&doing(error)))?;
        let version = found.version.and_then(|version| version.index).ok_or_else(|| malformed("version of a node"))?;
        let mut spec = found.spec.ok_or_else(|| malformed("spec of a node"))?;
        if !set(&mut spec) {
            return Ok(SwarmReply::Done);
        }
        // The API's type is signed although the number is always positive and far below the maximum.
        let version = i64::try_from(version).map_err(|_| malformed("version of a node"))?;
        let options = UpdateNodeOptionsBuilder::new().version(version).build();
        tries += 1;
        match docker.update_node(node.as_str(), spec, options).await {
            Ok(()) => return Ok(SwarmReply::Done),
            Err(error) if tries < UPDATE_TRIES && error.to_string().contains("out of sequence") => {}
            Err(error) => return Err(failed(&DockerError { what: "change a node", source: error })),
        }
    }
}

/// Removes the entry of a machine that is gone. Refuses a running node (unless `force`), a voting one, and one of
/// another hostname.
async fn remove(docker: &Docker, id: &SwarmId, hostname: &str, force: bool) -> Result<SwarmReply, SwarmFailure> {
    let found = match docker.inspect_node(id.as_str()).await {
        Ok(found) => node(found)?,
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => return Ok(SwarmReply::Done),
        Err(error) => return Err(failed(&DockerError { what: "read a node", source: error })),
    };
    let refusal = if found.hostname != hostname {
        Some(format!("node {id} is {}, not {hostname}", found.hostname))
    } else if found.state != SwarmNodeState::Down && !force {
        Some(format!("node {id} ({hostname}) is not down"))
    } else if found.manager.is_some() {
        Some(format!("node {id} ({hostname}) is a manager; it is demoted first"))
    } else {
        None
    };
    if let Some(refusal) = refusal {
        return Err(failure(SwarmFailureCode::NotAllowed, &refusal));
    }
    let options = DeleteNodeOptionsBuilder::new().force(force).build();
    match docker.delete_node(id.as_str(), Some(options)).await {
        Ok(()) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(SwarmReply::Done),
        Err(error) => Err(failed(&DockerError { what: "remove a node", source: error })),
    }
}

/// The machine's own engine leaves the swarm. A manager must be demoted first; if its node id has changed, it stays.
async fn leave(docker: &Docker, id: &SwarmId) -> Result<SwarmReply, SwarmFailure> {
    let until = Instant::now() + DEMOTION_MAX;
    let info = loop {
        let info = local_info(docker).await.map_err(|error| failed(&error))?;
        // The call comes after the managers demoted the node; its engine learns that a moment later.
        if !(info.manager && info.node.as_ref() == Some(id)) || Instant::now() >= until {
            break info;
        }
        sleep(DEMOTION_LOOK_EVERY).await;
    };
    let refusal = match &info.node {
        None if info.state == SwarmLocalState::Inactive => return Ok(SwarmReply::Done),
        Some(own) if own == id && !info.manager => None,
        Some(own) if own == id => Some(format!("node {id} is a manager; it is demoted first")),
        Some(own) => Some(format!("this engine is node {own}, not {id}")),
        None => Some(format!("this engine is on its way into a swarm: {}", info.error)),
    };
    if let Some(refusal) = refusal {
        return Err(failure(SwarmFailureCode::NotAllowed, &refusal));
    }
    match docker.leave_swarm(None).await {
        Ok(()) => Ok(SwarmReply::Done),
        Err(error) => Err(failed(&DockerError { what: "leave the swarm", source: error })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages are those of moby's daemon/cluster (errNoManager) and of swarmkit's Raft.
    #[test]
    fn manager_without_majority_is_a_manager() {
        let no_manager = |rest: &str| code_of(Some(503), false, &format!("This node is not a swarm manager. {rest}"));
        for rest in [
            "Use \"docker swarm init\" or \"docker swarm join\" to connect this node to swarm and try again.",
            "Worker nodes can't be used to view or modify cluster state. Please run this command on a manager node.",
        ] {
            assert_eq!(no_manager(rest), SwarmFailureCode::NotManager, "{rest}");
        }
        let prepared = "Manager is being prepared or has trouble connecting to the cluster.";
        assert_eq!(no_manager(prepared), SwarmFailureCode::NoQuorum);
        let leader = "rpc error: code = Unknown desc = The swarm does not have a leader.";
        assert_eq!(code_of(Some(503), false, leader), SwarmFailureCode::NoQuorum);
    }
}
