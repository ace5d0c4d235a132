//! Live facts: connections and times of messages. A restart deliberately forgets them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use muster_proto::{
    model::{
        AssignedItem, ClusterName, ClusterSpec, Generation, ItemHash, ItemName, MachineId, MachineName, MachineType,
        Now, Phase, Reason, SecretName,
    },
    variables::VariableError,
};

use super::{
    Added, AddedReboot, AddonsObservation, ControlSet, HandshakeObservation, KubernetesObservation, MachineRow,
    NodeObservation, Overwrites, RenewalObservation, Used,
};

/// Maximum time between two takeovers of one machine's stream that count together. A rejected agent comes back within
/// 25 s (its `RECONNECT_MAX`, spread), so quick takeovers mean two agents.
const TAKEN_OVER_WITHIN_MS: u64 = 60_000;
/// Number of takeovers that rules out a network problem.
const TAKEN_OVER_MIN: u32 = 3;

/// The part of the facts that stays in memory.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// Live facts by machine.
    pub machines: BTreeMap<MachineName, MachineLive>,
    /// Start of this coordinator, in monotonic milliseconds.
    pub started_mono_ms: u64,
    /// Start of this coordinator, in Unix milliseconds.
    pub started_wall_ms: u64,
    /// Machines that were enrolled at the start of this coordinator and have yet to send Hello.
    pub awaited: BTreeSet<MachineName>,
    /// Evidence that this store is older than the fleet: what agents were told and it lacks, in one sentence each.
    pub newer: BTreeMap<MachineId, String>,
    /// Number of questions about swarms so far.
    pub swarm_questions: u64,
    /// Application controllers that watch a cluster's requests, by cluster and name. Values are the start of each of
    /// their streams in monotonic milliseconds, by stream number.
    pub watching: BTreeMap<(ClusterName, String), BTreeMap<u64, u64>>,
    /// Time of the last revocation of a machine during its Swarm drain, by cluster, in monotonic milliseconds. Its
    /// drain still takes tasks from services, and a manager may not count them as missing yet.
    pub drains_let_go_mono_ms: BTreeMap<ClusterName, u64>,
    /// Recent requests by operator, enrolments by cluster, and repeated ones by machine.
    pub requests: BTreeMap<String, Used>,
    /// Clusters whose Kubernetes nodes were listed since this start, and since the last new machine was deployed: each
    /// annotation of Muster's on a machine's node is in its row.
    pub cordons_known: BTreeSet<ClusterName>,
    /// The maintenance handshake as custom resources, by cluster.
    pub handshakes: BTreeMap<ClusterName, HandshakeObservation>,
    /// DaemonSets whose pods are renewed, by cluster.
    pub renewals: BTreeMap<ClusterName, RenewalObservation>,
    /// Add-ons, by cluster.
    pub addons: BTreeMap<ClusterName, AddonsObservation>,
    /// Time when a controller that could have answered last stopped watching a cluster, in Unix milliseconds.
    pub controllers_left_ms: BTreeMap<ClusterName, u64>,
}

impl Live {
    /// Evidence that this store is older than the fleet, in one sentence.
    #[must_use]
    pub fn older_than_fleet(&self) -> Option<&str> {
        self.newer.values().next().map(String::as_str)
    }
}

/// Progress of the running item of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemActivity {
    /// The item.
    pub item: ItemName,
    /// Bytes of a download so far.
    pub done: u64,
    /// Total bytes; 0 = unknown.
    pub total: u64,
    /// Bytes per second.
    pub per_second: u64,
    /// Task of a playbook.
    pub task: Option<String>,
}

/// A machine's unproven claim beyond the record, in one sentence, and why it is unproven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnprovenClaim {
    /// It comes without a code of a coordinator of this fleet.
    NoCode(String),
    /// It has a code, but for a ledger that another ledger of this machine replaced.
    FormerLedger(String),
}

impl fmt::Display for UnprovenClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCode(claim) => write!(f, "{claim}, and nothing proves that"),
            Self::FormerLedger(claim) => write!(f, "{claim}, and the machine has begun another ledger since"),
        }
    }
}

/// Live facts about one machine.
#[derive(Clone, Debug, Default)]
pub struct MachineLive {
    /// Its current stream.
    pub session: Option<u64>,
    /// The newest list sent on this stream; zero = none.
    pub told: Generation,
    /// Number of quick takeovers of an open stream, and the time of the last one in monotonic milliseconds.
    taken_over: (u32, u64),
    /// Time of the last sign of life, in monotonic milliseconds.
    pub heard_mono_ms: Option<u64>,
    /// Time of the last sign of life, in Unix milliseconds.
    pub heard_wall_ms: Option<u64>,
    /// Progress of its running item.
    pub progress: Option<ItemActivity>,
    /// Why the agent itself is blocked: reason, message.
    pub agent_blocked: Option<(Reason, String)>,
    /// Start of its wait for the inputs of one item, in Unix milliseconds. The wait continues across expired permits.
    pub inputs_wanted_ms: Option<u64>,
    /// Its agent requests a permit for its next start: an item recorded as running there never began.
    pub wants_permit: bool,
    /// Time of its agent's last message about work, in monotonic milliseconds: an event, or a Hello while something is
    /// due.
    pub busy_mono_ms: Option<u64>,
    /// An unknown machine with a valid certificate used its name. The machine enrolled again after the copy was made
    /// from which this coordinator was recovered.
    pub stranger: bool,
    /// The impossible event of its agent, and why. All events are rejected until this is resolved.
    pub event_refused: Option<String>,
    /// Its unproven claim beyond this store. It gets nothing until it sends a Hello without one.
    pub unproven: Option<UnprovenClaim>,
    /// Its stream belongs to a ledger that this store rejected: its events stay unrecorded and unacknowledged.
    pub ledger_left_out: bool,
    /// Answers of the swarm about its node.
    pub swarm: NodeObservation,
    /// Answers of the API server about its Kubernetes node.
    pub kubernetes: KubernetesObservation,
    /// Its resolved items; derived.
    pub items: Option<Arc<Items>>,
    /// Inputs of the resolved items. They stay valid while both inputs and the spec are identical.
    pub items_follow: Option<(Arc<MachineRow>, Arc<ItemInputs>)>,
}

impl MachineLive {
    /// Its agent sent Hello on a new stream: reset the facts of the former one.
    pub fn has_stream(&mut self, session: u64, now: Now) {
        if self.session.replace(session).is_some() {
            let so_far = if self.is_just_taken_over(now) { self.taken_over.0 } else { 0 };
            self.taken_over = (so_far.saturating_add(1), now.mono_ms);
        }
        self.told = Generation(0);
        self.progress = None;
        self.agent_blocked = None;
        self.inputs_wanted_ms = None;
        self.wants_permit = false;
        self.stranger = false;
    }

    /// Its identity is refused from now on: reset its stream and takeovers.
    pub fn is_shut_out(&mut self) {
        self.session = None;
        self.unproven = None;
        self.taken_over = (0, 0);
    }

    /// Do two agents share its identity? They take the stream from each other repeatedly.
    #[must_use]
    pub fn has_two_agents(&self, now: Now) -> bool {
        self.taken_over.0 >= TAKEN_OVER_MIN && self.is_just_taken_over(now)
    }

    const fn is_just_taken_over(&self, now: Now) -> bool {
        now.mono_ms.saturating_sub(self.taken_over.1) < TAKEN_OVER_WITHIN_MS
    }

    /// Does its agent wait for inputs of an item in its list?
    #[must_use]
    pub fn waits_for_inputs(&self) -> bool {
        let reason = self.agent_blocked.as_ref().map(|(reason, _)| *reason);
        matches!(reason, Some(Reason::WaitingForSecret | Reason::WaitingForSwarm))
    }
}

/// Inputs for resolving the items of all machines of a cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct ItemInputs {
    /// The control machines as a phase granted now would see them.
    pub provisional: ControlSet,
    /// Newest versions of secrets.
    pub secrets: BTreeMap<SecretName, u64>,
}

/// The resolved items of a machine, and their inputs.
#[derive(Debug)]
pub struct Items {
    /// The spec.
    pub spec: Arc<ClusterSpec>,
    /// The machine's type.
    pub machine_type: MachineType,
    /// Its own params.
    pub overwrites: Overwrites,
    /// Its hostname.
    pub hostname: String,
    /// The control machines as each phase sees them.
    pub control_sets: BTreeMap<Phase, ControlSet>,
    /// Versions of the secrets that it can refer to.
    pub secrets: BTreeMap<SecretName, u64>,
    /// The reboot at the end of the list.
    pub reboot: Option<AddedReboot>,
    /// Other additions of an update, and their version.
    pub added: Option<(String, Vec<Added>)>,
    /// The resolved items, in the order they run.
    pub resolved: Result<Vec<AssignedItem>, Unresolved>,
    /// Digest of each resolved item's whole content.
    pub digests: Vec<ItemHash>,
}

/// A variable without a value, and its place.
#[derive(Clone, Debug, thiserror::Error)]
#[error("item {item}, param {param}: {fault}")]
pub struct Unresolved {
    /// The item.
    pub item: ItemName,
    /// The param of the item.
    pub param: String,
    /// The error of the variable.
    pub fault: VariableError,
}
