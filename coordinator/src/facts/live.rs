//! What is known only while the process lives: who is connected, who was heard when. A restart forgets it on purpose.

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

use super::{Added, AddedReboot, ControlSet, MachineRow, Overwrites, SwarmLook, Used};

/// Streams of one machine that took the place of open ones so soon after each other are of two agents. An agent that is
/// turned away comes back within 25 s (its `RECONNECT_MAX`, spread).
const TAKEN_OVER_WITHIN_MS: u64 = 60_000;
/// So many of them are no accident of the network.
const TAKEN_OVER_MIN: u32 = 3;

/// The part of the facts that is not stored.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// By machine.
    pub machines: BTreeMap<MachineName, MachineLive>,
    /// Monotonic milliseconds of this coordinator's start.
    pub started_mono_ms: u64,
    /// Unix milliseconds of this coordinator's start.
    pub started_wall_ms: u64,
    /// Machines that were enrolled when this coordinator started and have not said Hello since.
    pub awaited: BTreeSet<MachineName>,
    /// What agents were told and this store does not have, in one sentence each: it is older than the fleet.
    pub newer: BTreeMap<MachineId, String>,
    /// Questions about swarms asked so far.
    pub swarm_questions: u64,
    /// Application controllers that watch the requests of a cluster, by cluster and name: when each of their streams
    /// began, by its number. Monotonic milliseconds.
    pub watching: BTreeMap<(ClusterName, String), BTreeMap<u64, u64>>,
    /// When a machine was last shut out in the middle of its Swarm drain, by cluster, in monotonic milliseconds: what
    /// that takes from services is nobody's any more, and a manager may not count it as missing yet.
    pub drains_let_go_mono_ms: BTreeMap<ClusterName, u64>,
    /// Requests of late by operator, enrolments by cluster, and repeated ones by machine.
    pub requests: BTreeMap<String, Used>,
    /// When a controller that could have answered last stopped to watch a cluster, Unix milliseconds.
    pub controllers_left_ms: BTreeMap<ClusterName, u64>,
}

impl Live {
    /// Evidence that this store is older than the fleet, in one sentence.
    #[must_use]
    pub fn older_than_fleet(&self) -> Option<&str> {
        self.newer.values().next().map(String::as_str)
    }
}

/// How far what runs on a machine has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemProgress {
    /// The item.
    pub item: ItemName,
    /// Bytes of a download so far.
    pub done: u64,
    /// Bytes in all; 0 = unknown.
    pub total: u64,
    /// Bytes per second.
    pub per_second: u64,
    /// Task of a playbook.
    pub task: Option<String>,
}

/// What a machine claims beyond the record, in one sentence, and why that says nothing of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnprovenClaim {
    /// It shows no code of a coordinator of this fleet.
    NoCode(String),
    /// It shows one, for a ledger that another of this machine has followed since.
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

/// What is known of one machine while the process lives.
#[derive(Clone, Debug, Default)]
pub struct MachineLive {
    /// Has it a stream now, and which?
    pub session: Option<u64>,
    /// The newest list that was sent on this stream; zero = none.
    pub told: Generation,
    /// Streams that took the place of one that was open, soon after each other, and when the last one did: monotonic
    /// milliseconds.
    taken_over: (u32, u64),
    /// Monotonic milliseconds of the last sign of life.
    pub heard_mono_ms: Option<u64>,
    /// Unix milliseconds of the last sign of life.
    pub heard_wall_ms: Option<u64>,
    /// How far what runs there has come.
    pub progress: Option<ItemProgress>,
    /// Why the agent itself starts nothing: reason, message.
    pub agent_blocked: Option<(Reason, String)>,
    /// Since when it waits for the inputs of one item, Unix milliseconds: through every permit that runs out meanwhile.
    pub inputs_wanted_ms: Option<u64>,
    /// Its agent asks for leave to start what it is to start next: what is recorded as running there never began.
    pub wants_permit: bool,
    /// Monotonic milliseconds of its agent's last word of what it does: an event, or a greeting while something is due.
    pub busy_mono_ms: Option<u64>,
    /// Somebody with a certificate of ours called itself by its name, whom the record does not know: the machine was
    /// enrolled anew since the copy was made that this coordinator was recovered from.
    pub stranger: bool,
    /// The event of its agent that cannot be, and why: none is taken before it comes right.
    pub event_refused: Option<String>,
    /// What it claims beyond this store without proof. It gets nothing before it greets without.
    pub unproven: Option<UnprovenClaim>,
    /// Its stream is of a ledger that this store did not take over: its events are neither taken nor acknowledged.
    pub ledger_left_out: bool,
    /// What the swarm was asked of its node.
    pub swarm: SwarmLook,
    /// Its items, resolved; derived.
    pub items: Option<Arc<Items>>,
    /// What these were last found to follow from. While both are the very same and so is its spec, they are the same.
    pub items_follow: Option<(Arc<MachineRow>, Arc<ItemInputs>)>,
}

impl MachineLive {
    /// Its agent has greeted on a new stream: what was said of it before is no news any more.
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

    /// Its identity is refused from now on: it has no stream, and who took it from whom is over.
    pub fn is_shut_out(&mut self) {
        self.session = None;
        self.unproven = None;
        self.taken_over = (0, 0);
    }

    /// Do two agents have its identity? They take the stream from each other, again and again.
    #[must_use]
    pub fn has_two_agents(&self, now: Now) -> bool {
        self.taken_over.0 >= TAKEN_OVER_MIN && self.is_just_taken_over(now)
    }

    const fn is_just_taken_over(&self, now: Now) -> bool {
        now.mono_ms.saturating_sub(self.taken_over.1) < TAKEN_OVER_WITHIN_MS
    }

    /// Does its agent wait for what an item of the list it has starts with?
    #[must_use]
    pub fn waits_for_inputs(&self) -> bool {
        let reason = self.agent_blocked.as_ref().map(|(reason, _)| *reason);
        matches!(reason, Some(Reason::WaitingForSecret | Reason::WaitingForSwarm))
    }
}

/// What the items of all machines of a cluster are resolved with.
#[derive(Debug, PartialEq, Eq)]
pub struct ItemInputs {
    /// The control machines as a phase granted now would see them.
    pub provisional: ControlSet,
    /// Newest versions of secrets.
    pub secrets: BTreeMap<SecretName, u64>,
}

/// The resolved items of a machine, and what they were resolved from.
#[derive(Debug)]
pub struct Items {
    /// The spec.
    pub spec: Arc<ClusterSpec>,
    /// What the machine is.
    pub machine_type: MachineType,
    /// Its own params.
    pub overwrites: Overwrites,
    /// Its hostname.
    pub hostname: String,
    /// The control machines as each phase sees them.
    pub control_sets: BTreeMap<Phase, ControlSet>,
    /// Versions of the secrets it can refer to.
    pub secrets: BTreeMap<SecretName, u64>,
    /// The reboot at the end of the list.
    pub reboot: Option<AddedReboot>,
    /// What else an update has added, and in which version.
    pub added: Option<(String, Vec<Added>)>,
    /// In the order they run.
    pub resolved: Result<Vec<AssignedItem>, Unresolved>,
    /// Of each of these, of everything in it.
    pub digests: Vec<ItemHash>,
}

/// A variable that has no value yet, and where it stands.
#[derive(Clone, Debug, thiserror::Error)]
#[error("item {item}, param {param}: {fault}")]
pub struct Unresolved {
    /// The item.
    pub item: ItemName,
    /// Its param.
    pub param: String,
    /// What is wrong with the variable.
    pub fault: VariableError,
}
