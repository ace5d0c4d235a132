//! What the swarm was asked about a machine's node, and what it said. Known only while the process lives: whoever needs
//! it after a restart asks again.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{MachineId, SwarmAvailability, SwarmId, SwarmInfo, SwarmNode, SwarmOp, SwarmService};

/// A question, and when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Names the answer.
    pub number: u64,
    /// Whose agent.
    pub agent: MachineId,
    /// What.
    pub op: SwarmOp,
    /// Monotonic milliseconds.
    pub at_mono_ms: u64,
}

/// What was answered, as of the moment of the question in monotonic milliseconds: it may have changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<T> {
    /// The answer.
    pub what: T,
    /// Monotonic milliseconds.
    pub at_mono_ms: u64,
}

/// The managers of a swarm but for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// How many they are.
    pub managers: usize,
    /// Those that the others do not reach.
    pub away: Vec<SwarmId>,
}

impl Peers {
    /// How many of them the others reach.
    #[must_use]
    pub const fn reachable(&self) -> usize {
        self.managers.saturating_sub(self.away.len())
    }
}

/// What is known of one machine's node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwarmLook {
    /// The question under way; one at a time.
    pub asked: Option<Asked>,
    /// What its own engine says.
    pub info: Option<Seen<SwarmInfo>>,
    /// Who said the following: what one manager says is not mixed with another's words.
    pub manager: Option<MachineId>,
    /// The other managers, as that manager counted them.
    pub peers: Option<Seen<Peers>>,
    /// The node; None in it: that manager's swarm has none of this id.
    pub node: Option<Seen<Option<SwarmNode>>>,
    /// Tasks on the node by service.
    pub tasks: Option<Seen<BTreeMap<String, u32>>>,
    /// The replicated services with tasks on the node, by their names: as its managers last said before its drain.
    pub services: Option<Seen<BTreeMap<String, SwarmService>>>,
    /// When its drain was last ordered, or was seen to take something away, in monotonic milliseconds: what was said of
    /// services that have tasks there until then may not count those as missing.
    pub moved_mono_ms: Option<u64>,
    /// Was its drain ordered since it began? What is left on the node is known from `tasks`, which are forgotten with
    /// the order.
    pub ordered: bool,
    /// Services of which tasks were seen on the node since its drain was ordered.
    pub losing: BTreeSet<String>,
    /// Agents that could not answer: what they said.
    pub failures: BTreeMap<MachineId, Seen<String>>,
    /// Changes of the node that were asked for and not confirmed, by the question's number: what it was to become, and
    /// when that was asked. Each may yet be carried out.
    pub unsettled: BTreeMap<u64, Seen<SwarmAvailability>>,
    /// Did this process begin the drain? Whoever was coordinator before it may have asked for changes.
    pub begun_here: bool,
    /// Unix milliseconds since when something disruptive waits for the drain; None: nothing does, or it waits for that
    /// of another machine.
    pub awaited_since_ms: Option<u64>,
    /// The fewest tasks seen on the node since its drain began.
    pub fewest: Option<u32>,
    /// Unix milliseconds when that became fewer.
    pub fewer_at_ms: Option<u64>,
}

impl SwarmLook {
    /// Forgets what the managers said.
    pub fn forget_node(&mut self) {
        self.manager = None;
        self.node = None;
        self.peers = None;
        self.tasks = None;
    }
}
