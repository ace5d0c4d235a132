//! Questions to the swarm about a machine's node, and the answers. Known only while the process lives, and asked again
//! after a restart.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{
    MachineId, SwarmAvailability, SwarmFailure, SwarmId, SwarmInfo, SwarmNode, SwarmOp, SwarmService,
};

/// A question, and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Number of the question and its answer.
    pub number: u64,
    /// The agent.
    pub agent: MachineId,
    /// The question.
    pub op: SwarmOp,
    /// Time in monotonic milliseconds.
    pub at_mono_ms: u64,
}

/// An answer as of the time of its question: it may have changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<T> {
    /// The answer.
    pub what: T,
    /// Time of the question, in monotonic milliseconds.
    pub at_mono_ms: u64,
}

/// The managers of a swarm except one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Their number.
    pub managers: usize,
    /// Those unreachable to the others.
    pub away: Vec<SwarmId>,
}

impl Peers {
    /// Number of those that the others reach.
    #[must_use]
    pub const fn reachable(&self) -> usize {
        self.managers.saturating_sub(self.away.len())
    }
}

/// Facts about one machine's node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeObservation {
    /// The open question; one at a time.
    pub asked: Option<Asked>,
    /// The answer of its own engine.
    pub info: Option<Seen<SwarmInfo>>,
    /// The manager that gave the following answers: answers of different managers are kept apart.
    pub manager: Option<MachineId>,
    /// The other managers, as that manager counted them.
    pub peers: Option<Seen<Peers>>,
    /// The node; None in it: that manager's swarm lacks a node of this id.
    pub node: Option<Seen<Option<SwarmNode>>>,
    /// Tasks on the node by service.
    pub tasks: Option<Seen<BTreeMap<String, u32>>>,
    /// The replicated services with tasks on the node, by name, from the managers' last answer before its drain.
    pub services: Option<Seen<BTreeMap<String, SwarmService>>>,
    /// Time when its drain was last ordered, or seen to remove a task, in monotonic milliseconds. Earlier answers about
    /// services with tasks there may not count those as missing.
    pub moved_mono_ms: Option<u64>,
    /// Was its drain ordered since it began? `tasks` shows what is left on the node, and is forgotten with the order.
    pub ordered: bool,
    /// Services with tasks seen on the node since its drain was ordered.
    pub losing: BTreeSet<String>,
    /// Errors of agents that failed to answer.
    pub failures: BTreeMap<MachineId, Seen<SwarmFailure>>,
    /// Requested and unconfirmed changes of the node, by the question's number: the wanted availability and the time of
    /// the request. Each may yet be carried out.
    pub unsettled: BTreeMap<u64, Seen<SwarmAvailability>>,
    /// Did this process begin the drain? An earlier coordinator may have requested changes.
    pub begun_here: bool,
    /// Start of the wait of something disruptive for the drain, in Unix milliseconds. None: nothing waits, or it waits
    /// for another machine's drain.
    pub awaited_since_ms: Option<u64>,
    /// The fewest tasks seen on the node since its drain began.
    pub fewest: Option<u32>,
    /// Time when that number fell, in Unix milliseconds.
    pub fewer_at_ms: Option<u64>,
}

impl NodeObservation {
    /// Forgets the managers' answers.
    pub fn forget_node(&mut self) {
        self.manager = None;
        self.node = None;
        self.peers = None;
        self.tasks = None;
    }
}
