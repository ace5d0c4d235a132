//! What goes into the core and what comes out of it.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    address::Addresses,
    convert::Hello,
    model::{
        AckProof, Assignment, ClusterName, ClusterSpec, Generation, HostFacts, ItemHash, ItemName, ItemStatus,
        MachineId, MachineName, MachineSpec, MachineType, Reason, RemovalPolicy, SecretName, Seq, SwarmFailure,
        SwarmOp, SwarmReply,
    },
};

use super::{LockRelease, Word, update::Options};
use crate::{
    facts::{CredentialRow, ItemProgress, Sealed, SecretId},
    plan::swarm::joining::NodeEntry,
};

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// An agent opened a stream.
    Hello {
        /// From its certificate.
        id: MachineId,
        /// Number of the stream, unique in this process.
        session: u64,
        /// What it said.
        hello: Box<Hello>,
    },
    /// A stream ended.
    Gone {
        /// Whose.
        id: MachineId,
        /// Which.
        session: u64,
    },
    /// A sign of life.
    Heard {
        /// Whose.
        id: MachineId,
    },
    /// A durable event of an agent.
    Status {
        /// Whose.
        id: MachineId,
        /// On this stream.
        session: u64,
        /// Its number in the agent's ledger.
        seq: Seq,
        /// What it says.
        status: Box<ItemStatus>,
    },
    /// A machine's facts changed.
    HostChanged {
        /// Whose.
        id: MachineId,
        /// The stream it came on: what comes late on an older one is from before the newest Hello, and does not count.
        session: u64,
        /// What they are now.
        facts: Box<HostFacts>,
    },
    /// An agent's answer to an assignment.
    Answer {
        /// Whose.
        id: MachineId,
        /// The stream it came on. On an older one, what was said before it may have been lost.
        session: u64,
        /// To this one.
        generation: Generation,
        /// None: accepted. Else why not.
        refused: Option<String>,
    },
    /// A permit came to nothing: the agent will start nothing under it.
    PermitWanted {
        /// Whose.
        id: MachineId,
        /// Number of the permit.
        permit: u64,
    },
    /// An application controller's word.
    Maintenance {
        /// From its certificate.
        controller: String,
        /// What it says.
        word: Word,
    },
    /// How far a download or a playbook is.
    Progress {
        /// Whose.
        id: MachineId,
        /// What it has come to.
        progress: ItemProgress,
    },
    /// Why an agent itself starts nothing; None: nothing is in its way any more.
    AgentBlocked {
        /// Whose.
        id: MachineId,
        /// The stream it came on. What comes late on an older one is of a time before the newest Hello: it does not
        /// count.
        session: u64,
        /// Reason and message.
        blocked: Option<(Reason, String)>,
    },
    /// An agent is about to start an item and asks for its inputs.
    Fetch {
        /// Whose agent.
        id: MachineId,
        /// Of this item.
        item: ItemName,
        /// As the agent has accepted it.
        generation: Generation,
    },
    /// A machine that wants to get into its swarm has left this entry behind there, which is removed next.
    NodeLeftBehind {
        /// Whose agent waits.
        id: MachineId,
        /// What the entry has.
        entry: NodeEntry,
    },
    /// What became of a question that was asked with [`Effect::AskSwarm`].
    SwarmAnswered {
        /// Of this machine's node.
        about: MachineName,
        /// Number of the question.
        number: u64,
        /// The answer.
        result: Result<SwarmReply, SwarmFailure>,
    },
    /// A machine wants an identity.
    Enroll(Enroll),
    /// An operator's wish.
    Operator {
        /// `operator/anna`.
        actor: String,
        /// What is wished.
        request: Request,
    },
    /// Time has passed.
    Tick,
}

impl Input {
    /// The identity of the agent that says something, as its certificate has it.
    #[must_use]
    pub const fn agent(&self) -> Option<MachineId> {
        match self {
            Self::Hello { id, .. }
            | Self::Heard { id }
            | Self::Status { id, .. }
            | Self::HostChanged { id, .. }
            | Self::Answer { id, .. }
            | Self::Progress { id, .. }
            | Self::PermitWanted { id, .. }
            | Self::AgentBlocked { id, .. }
            | Self::Fetch { id, .. }
            | Self::NodeLeftBehind { id, .. } => Some(*id),
            Self::Gone { .. }
            | Self::Maintenance { .. }
            | Self::SwarmAnswered { .. }
            | Self::Enroll(_)
            | Self::Operator { .. }
            | Self::Tick => None,
        }
    }
}

/// A machine's wish for an identity.
#[derive(Clone, Debug)]
pub struct Enroll {
    /// First part of its token.
    pub token_id: String,
    /// SHA-256 of the second part.
    pub secret_sha256: ItemHash,
    /// SHA-256 of the public key of its request; it has proved that it has the other half.
    pub key_sha256: ItemHash,
    /// As it wants to be called.
    pub name: MachineName,
    /// Made by the rim: the identity it gets if it is let in.
    pub new_id: MachineId,
    /// Of its agent.
    pub agent_version: String,
}

/// What an operator may wish. Names are checked here; what a manifest says was checked by its parser.
#[derive(Clone, Debug)]
pub enum Request {
    /// Clusters and machines as they should be.
    Apply {
        /// By name, with annotations.
        clusters: BTreeMap<ClusterName, (ClusterSpec, BTreeMap<String, String>)>,
        /// By name, with annotations.
        machines: BTreeMap<MachineName, (MachineSpec, BTreeMap<String, String>)>,
        /// Say what would change, and change nothing.
        dry_run: bool,
    },
    /// Start the deployment with the machines that have reported.
    Deploy {
        /// Of this cluster.
        cluster: ClusterName,
    },
    /// Bring a deployed cluster to its newest spec.
    Update {
        /// This one.
        cluster: ClusterName,
        /// In this way.
        options: Options,
    },
    /// Reboot machines, in the order of an update.
    Reboot {
        /// Of this cluster.
        cluster: ClusterName,
        /// These; none named: all.
        machines: BTreeSet<MachineName>,
        /// The control plane may be down for a while: no majority is asked for.
        accept_control_plane_downtime: bool,
    },
    /// Take a machine out of service, until it is wanted back.
    EnterMaintenance {
        /// This one.
        machine: MachineName,
        /// The control plane may be down for a while: no majority is asked for.
        accept_control_plane_downtime: bool,
    },
    /// Give a machine back that is out of service, or on its way there.
    LeaveMaintenance {
        /// This one.
        machine: MachineName,
    },
    /// Take a machine out of its cluster for good, or loosen the policy of a removal under way.
    Remove {
        /// This one.
        machine: MachineName,
        /// What it waits for.
        policy: RemovalPolicy,
        /// The control plane may be down for a while: no majority is asked for.
        accept_control_plane_downtime: bool,
    },
    /// Keep a machine that is being removed.
    AbortRemoval {
        /// This one.
        machine: MachineName,
    },
    /// Nothing new starts until `Resume`.
    Pause {
        /// This rollout.
        rollout: String,
    },
    /// A paused update goes on.
    Resume {
        /// This rollout.
        rollout: String,
    },
    /// Nothing new starts ever; what was taken is given back.
    Abort {
        /// This rollout.
        rollout: String,
    },
    /// Let failed or held items run again, and a machine that was put aside be asked for again.
    Retry {
        /// On this machine.
        machine: MachineName,
        /// This one; None: all that failed or are held.
        item: Option<ItemName>,
    },
    /// Do without an item.
    Skip {
        /// On this machine.
        machine: MachineName,
        /// This one; None: the one in the way.
        item: Option<ItemName>,
    },
    /// A held item is done.
    Accept {
        /// On this machine.
        machine: MachineName,
        /// This one; None: the one in the way.
        item: Option<ItemName>,
    },
    /// Let an item that is done run again.
    Rerun {
        /// On this machine.
        machine: MachineName,
        /// This one.
        item: ItemName,
    },
    /// Set and remove annotations of a machine.
    AnnotateMachine {
        /// This one.
        machine: MachineName,
        /// To be set.
        set: BTreeMap<String, String>,
        /// To be removed.
        remove: Vec<String>,
    },
    /// Set and remove annotations of a cluster.
    AnnotateCluster {
        /// This one.
        cluster: ClusterName,
        /// To be set.
        set: BTreeMap<String, String>,
        /// To be removed.
        remove: Vec<String>,
    },
    /// Record a join token that the rim made.
    CreateToken {
        /// First part.
        id: String,
        /// SHA-256 of the second part.
        secret_sha256: ItemHash,
        /// For this cluster.
        cluster: ClusterName,
        /// For machines of this type.
        machine_type: MachineType,
        /// For this machine only.
        machine: Option<MachineName>,
        /// Milliseconds; None: the cluster's `tokenTTL`.
        ttl_ms: Option<u64>,
        /// How often; None: as often as the manifest still lacks machines.
        uses: Option<u32>,
    },
    /// Take a token back.
    RevokeToken {
        /// This one.
        id: String,
        /// And the enrolments made with it of machines that never reported.
        machines: bool,
    },
    /// Record credentials that the rim is about to hand out.
    RecordCredentials(CredentialRow),
    /// Name these addresses in new credentials, and to the agents.
    SetAddress(Addresses),
    /// Refuse every certificate that a person or a program has so far.
    RevokeCredentials {
        /// Role and name: `operator/anna`.
        subject: String,
    },
    /// Record a secret that the rim sealed, or another version of it.
    CreateSecret {
        /// Its name.
        id: SecretId,
        /// It was sealed as this version.
        version: u64,
        /// Its value.
        sealed: Sealed,
        /// Share it with these clusters too.
        clusters: BTreeSet<ClusterName>,
    },
    /// Say which clusters may refer to a shared secret.
    ShareSecret {
        /// This one.
        name: SecretName,
        /// These may too.
        add: BTreeSet<ClusterName>,
        /// These may no more.
        remove: BTreeSet<ClusterName>,
        /// Though items of theirs refer to it.
        in_use: bool,
    },
    /// Forget a secret.
    DeleteSecret {
        /// This one.
        id: SecretId,
        /// Though items refer to it.
        in_use: bool,
    },
    /// Forget locks of a controller that is gone for good.
    ReleaseLocks(LockRelease),
    /// Forget a cluster in which no machine is enrolled.
    DeleteCluster {
        /// This one.
        cluster: ClusterName,
    },
    /// Refuse a machine's identity from now on.
    RevokeMachine {
        /// This one.
        machine: MachineName,
        /// The operator says that it is off: nothing runs there under a permit it was given.
        machine_is_off: bool,
    },
    /// Let a new machine take a name that is in use.
    ReplaceMachine {
        /// This one.
        machine: MachineName,
        /// The operator says that it is off: nothing runs there under a permit it was given.
        machine_is_off: bool,
    },
}

/// A question about a machine's node in the swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmQuestion {
    /// Names the answer.
    pub number: u64,
    /// The machine whose node it is about.
    pub about: MachineName,
    /// Whose agent is asked.
    pub agent: MachineId,
    /// What.
    pub op: SwarmOp,
    /// Without an answer for so long it counts as failed, in milliseconds.
    pub patience_ms: u64,
}

/// What the rim does once the changes are durable, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send an agent its list.
    Assign {
        /// To this one.
        id: MachineId,
        /// The list.
        assignment: Assignment,
    },
    /// Tell an agent that its events up to this one are recorded.
    Ack {
        /// To this one.
        id: MachineId,
        /// On this stream.
        session: u64,
        /// Up to here.
        seq: Seq,
        /// Proves that it was told.
        proof: AckProof,
    },
    /// Ask an agent something of its swarm. Ends in [`Input::SwarmAnswered`], whatever happens.
    AskSwarm(SwarmQuestion),
    /// Close every stream of an identity.
    Close {
        /// Whose.
        id: MachineId,
        /// Why, for the log and the peer.
        reason: String,
    },
}
