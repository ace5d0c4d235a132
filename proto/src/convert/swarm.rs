use std::fmt;

use crate::{
    convert::{WireError, counted, line},
    model::{
        Epoch, SWARM_NODES_MAX, SWARM_SERVICES_MAX, SWARM_TASKS_MAX, SwarmAnswer, SwarmAvailability, SwarmCall,
        SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo, SwarmLabels, SwarmLocalState, SwarmManager, SwarmNode,
        SwarmNodeState, SwarmOp, SwarmReply, SwarmService, SwarmTask, SwarmTokens, are_labels_few,
    },
    wire::{self, swarm_answer::Result as WireResult, swarm_call::Op},
};

/// Longest hostname, address or service name in an answer.
const NAME_BYTES_MAX: usize = 256;
/// Longest token. Docker's tokens have 85 bytes.
const TOKEN_BYTES_MAX: usize = 256;

/// The generated implementation would print the tokens.
impl fmt::Debug for wire::SwarmTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwarmTokens").field("swarm_id", &self.swarm_id).finish_non_exhaustive()
    }
}

fn id(field: &'static str, text: String) -> Result<SwarmId, WireError> {
    SwarmId::new(text).map_err(|_| WireError::new(field, "not an id of Docker's"))
}

fn name(field: &'static str, text: String) -> Result<String, WireError> {
    if text.len() > NAME_BYTES_MAX {
        return Err(WireError::new(field, "too long"));
    }
    line(field, text)
}

fn token(field: &'static str, text: String) -> Result<String, WireError> {
    let good = (1..=TOKEN_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if good { Ok(text) } else { Err(WireError::new(field, "not a token")) }
}

fn labels(field: &'static str, labels: SwarmLabels) -> Result<SwarmLabels, WireError> {
    if are_labels_few(&labels) { Ok(labels) } else { Err(WireError::new(field, "too many")) }
}

/// Convert between an enum of the model and its wire counterpart; the wire's `Unspecified` is invalid.
macro_rules! twins {
    ($to_wire:ident, $from_wire:ident, $name:ident, $field:literal, $($variant:ident),+) => {
        const fn $to_wire(value: $name) -> i32 {
            match value { $($name::$variant => wire::$name::$variant as i32,)+ }
        }

        fn $from_wire(value: i32) -> Result<$name, WireError> {
            match wire::$name::try_from(value) {
                $(Ok(wire::$name::$variant) => Ok($name::$variant),)+
                Ok(wire::$name::Unspecified) | Err(_) => Err(WireError::new($field, "unknown")),
            }
        }
    };
}

twins!(wire_availability, availability, SwarmAvailability, "swarm.availability", Active, Pause, Drain);
twins!(wire_node_state, node_state, SwarmNodeState, "swarm.node.state", Unknown, Ready, Down, Disconnected);
twins!(wire_local_state, local_state, SwarmLocalState, "swarm.info.state", Inactive, Pending, Active, Error, Locked);
twins!(
    wire_code,
    code,
    SwarmFailureCode,
    "swarm.failure.code",
    StaleEpoch,
    Busy,
    Timeout,
    Engine,
    NotManager,
    NoQuorum,
    NoSuchNode,
    NotAllowed
);

impl From<&SwarmCall> for wire::SwarmCall {
    fn from(call: &SwarmCall) -> Self {
        let op = match &call.op {
            SwarmOp::Info => Op::Info(wire::SwarmInfoOp {}),
            SwarmOp::Tokens => Op::Tokens(wire::SwarmTokensOp {}),
            SwarmOp::Nodes => Op::Nodes(wire::SwarmNodesOp {}),
            SwarmOp::Tasks { node } => Op::Tasks(wire::SwarmTasksOp { node_id: node.to_string() }),
            SwarmOp::Services { node } => Op::Services(wire::SwarmServicesOp { node_id: node.to_string() }),
            SwarmOp::SetAvailability { node, availability } => Op::SetAvailability(wire::SwarmAvailabilityOp {
                node_id: node.to_string(),
                availability: wire_availability(*availability),
            }),
            SwarmOp::Labels { node } => Op::Labels(wire::SwarmLabelsOp { node_id: node.to_string() }),
            SwarmOp::AddLabels { node, labels } => {
                Op::AddLabels(wire::SwarmAddLabelsOp { node_id: node.to_string(), labels: labels.clone() })
            }
            SwarmOp::Demote { node } => Op::Demote(wire::SwarmDemoteOp { node_id: node.to_string() }),
            SwarmOp::Remove { node, hostname, force } => {
                Op::Remove(wire::SwarmRemoveOp { node_id: node.to_string(), hostname: hostname.clone(), force: *force })
            }
            SwarmOp::Leave { node } => Op::Leave(wire::SwarmLeaveOp { node_id: node.to_string() }),
        };
        Self { id: call.id, epoch: call.epoch.0, op: Some(op) }
    }
}

impl TryFrom<wire::SwarmCall> for SwarmCall {
    type Error = WireError;

    fn try_from(wire: wire::SwarmCall) -> Result<Self, WireError> {
        let op = match wire.op.ok_or(WireError::new("swarm_call.op", "missing or unknown"))? {
            Op::Info(wire::SwarmInfoOp {}) => SwarmOp::Info,
            Op::Tokens(wire::SwarmTokensOp {}) => SwarmOp::Tokens,
            Op::Nodes(wire::SwarmNodesOp {}) => SwarmOp::Nodes,
            Op::Tasks(op) => SwarmOp::Tasks { node: id("swarm_call.tasks.node_id", op.node_id)? },
            Op::Services(op) => SwarmOp::Services { node: id("swarm_call.services.node_id", op.node_id)? },
            Op::SetAvailability(op) => SwarmOp::SetAvailability {
                node: id("swarm_call.set_availability.node_id", op.node_id)?,
                availability: availability(op.availability)?,
            },
            Op::Labels(op) => SwarmOp::Labels { node: id("swarm_call.labels.node_id", op.node_id)? },
            Op::AddLabels(op) => SwarmOp::AddLabels {
                node: id("swarm_call.add_labels.node_id", op.node_id)?,
                labels: labels("swarm_call.add_labels.labels", op.labels)?,
            },
            Op::Demote(op) => SwarmOp::Demote { node: id("swarm_call.demote.node_id", op.node_id)? },
            Op::Remove(op) => SwarmOp::Remove {
                node: id("swarm_call.remove.node_id", op.node_id)?,
                hostname: name("swarm_call.remove.hostname", op.hostname)?,
                force: op.force,
            },
            Op::Leave(op) => SwarmOp::Leave { node: id("swarm_call.leave.node_id", op.node_id)? },
        };
        Ok(Self { id: wire.id, epoch: Epoch(counted("swarm_call.epoch", wire.epoch)?), op })
    }
}

impl From<&SwarmAnswer> for wire::SwarmAnswer {
    fn from(answer: &SwarmAnswer) -> Self {
        let result = match &answer.result {
            Err(SwarmFailure { code, message }) => {
                WireResult::Failure(wire::SwarmFailure { code: wire_code(*code), message: message.clone() })
            }
            Ok(SwarmReply::Info(info)) => WireResult::Info(wire::SwarmInfo {
                state: wire_local_state(info.state),
                node_id: info.node.as_ref().map(SwarmId::to_string).unwrap_or_default(),
                manager: info.manager,
                hostname: info.hostname.clone(),
                error: info.error.clone(),
            }),
            Ok(SwarmReply::Tokens(tokens)) => WireResult::Tokens(wire::SwarmTokens {
                swarm_id: tokens.swarm.to_string(),
                manager: tokens.manager.clone(),
                worker: tokens.worker.clone(),
            }),
            Ok(SwarmReply::Nodes(nodes)) => {
                WireResult::Nodes(wire::SwarmNodes { nodes: nodes.iter().map(Into::into).collect() })
            }
            Ok(SwarmReply::Tasks(tasks)) => {
                let task = |task: &SwarmTask| wire::SwarmTask {
                    id: task.id.to_string(),
                    service: task.service.clone(),
                    state: task.state.clone(),
                };
                WireResult::Tasks(wire::SwarmTasks { tasks: tasks.iter().map(task).collect() })
            }
            Ok(SwarmReply::Services(services)) => {
                let service = |service: &SwarmService| wire::SwarmService {
                    name: service.name.clone(),
                    wanted: service.wanted,
                    running: service.running,
                };
                WireResult::Services(wire::SwarmServices { services: services.iter().map(service).collect() })
            }
            Ok(SwarmReply::Labels(labels)) => WireResult::Labels(wire::SwarmLabels { labels: labels.clone() }),
            Ok(SwarmReply::Done) => WireResult::Done(wire::SwarmDone {}),
        };
        Self { id: answer.id, result: Some(result) }
    }
}

impl TryFrom<wire::SwarmAnswer> for SwarmAnswer {
    type Error = WireError;

    fn try_from(wire: wire::SwarmAnswer) -> Result<Self, WireError> {
        let result = match wire.result.ok_or(WireError::new("swarm_answer.result", "missing or unknown"))? {
            WireResult::Failure(failure) => Err(SwarmFailure {
                code: code(failure.code)?,
                message: line("swarm_answer.failure.message", failure.message)?,
            }),
            WireResult::Info(info) => Ok(SwarmReply::Info(info.try_into()?)),
            WireResult::Tokens(tokens) => Ok(SwarmReply::Tokens(SwarmTokens {
                swarm: id("swarm_answer.tokens.swarm_id", tokens.swarm_id)?,
                manager: token("swarm_answer.tokens.manager", tokens.manager)?,
                worker: token("swarm_answer.tokens.worker", tokens.worker)?,
            })),
            WireResult::Nodes(wire::SwarmNodes { nodes }) if nodes.len() > SWARM_NODES_MAX => {
                return Err(WireError::new("swarm_answer.nodes", "too many"));
            }
            WireResult::Nodes(wire::SwarmNodes { nodes }) => {
                Ok(SwarmReply::Nodes(nodes.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?))
            }
            WireResult::Tasks(wire::SwarmTasks { tasks }) if tasks.len() > SWARM_TASKS_MAX => {
                return Err(WireError::new("swarm_answer.tasks", "too many"));
            }
            WireResult::Tasks(wire::SwarmTasks { tasks }) => {
                Ok(SwarmReply::Tasks(tasks.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?))
            }
            WireResult::Services(wire::SwarmServices { services }) if services.len() > SWARM_SERVICES_MAX => {
                return Err(WireError::new("swarm_answer.services", "too many"));
            }
            WireResult::Services(wire::SwarmServices { services }) => {
                Ok(SwarmReply::Services(services.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?))
            }
            WireResult::Labels(found) => Ok(SwarmReply::Labels(labels("swarm_answer.labels", found.labels)?)),
            WireResult::Done(wire::SwarmDone {}) => Ok(SwarmReply::Done),
        };
        Ok(Self { id: wire.id, result })
    }
}

impl TryFrom<wire::SwarmInfo> for SwarmInfo {
    type Error = WireError;

    fn try_from(wire: wire::SwarmInfo) -> Result<Self, WireError> {
        let node = Some(wire.node_id).filter(|node| !node.is_empty());
        Ok(Self {
            state: local_state(wire.state)?,
            node: node.map(|node| id("swarm_answer.info.node_id", node)).transpose()?,
            manager: wire.manager,
            hostname: name("swarm_answer.info.hostname", wire.hostname)?,
            error: line("swarm_answer.info.error", wire.error)?,
        })
    }
}

impl From<&SwarmNode> for wire::SwarmNode {
    fn from(node: &SwarmNode) -> Self {
        let manager = node.manager.as_ref();
        Self {
            id: node.id.to_string(),
            hostname: node.hostname.clone(),
            state: wire_node_state(node.state),
            availability: wire_availability(node.availability),
            manager: manager.is_some(),
            leader: manager.is_some_and(|manager| manager.leader),
            reachable: manager.is_some_and(|manager| manager.reachable),
            address: manager.map(|manager| manager.address.clone()).unwrap_or_default(),
        }
    }
}

impl TryFrom<wire::SwarmNode> for SwarmNode {
    type Error = WireError;

    fn try_from(wire: wire::SwarmNode) -> Result<Self, WireError> {
        let address = name("swarm.node.address", wire.address)?;
        let (leader, reachable) = (wire.leader, wire.reachable);
        Ok(Self {
            id: id("swarm.node.id", wire.id)?,
            hostname: name("swarm.node.hostname", wire.hostname)?,
            state: node_state(wire.state)?,
            availability: availability(wire.availability)?,
            manager: wire.manager.then_some(SwarmManager { leader, reachable, address }),
        })
    }
}

impl TryFrom<wire::SwarmTask> for SwarmTask {
    type Error = WireError;

    fn try_from(wire: wire::SwarmTask) -> Result<Self, WireError> {
        Ok(Self {
            id: id("swarm.task.id", wire.id)?,
            service: name("swarm.task.service", wire.service)?,
            state: name("swarm.task.state", wire.state)?,
        })
    }
}

impl TryFrom<wire::SwarmService> for SwarmService {
    type Error = WireError;

    fn try_from(wire: wire::SwarmService) -> Result<Self, WireError> {
        let (wanted, running) = (wire.wanted, wire.running);
        Ok(Self { name: name("swarm.service.name", wire.name)?, wanted, running })
    }
}

#[cfg(test)]
#[path = "swarm/tests.rs"]
mod tests;
