//! Inputs and effects of the core.

use core::net::IpAddr;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_proto::{
    address::Addresses,
    convert::Hello,
    model::{
        AckProof, Assignment, ClusterName, ClusterSpec, Generation, HostFacts, ItemHash, ItemName, ItemStatus,
        MachineId, MachineName, MachineSpec, MachineType, Reason, RemovalPolicy, SecretName, Seq, SwarmFailure,
        SwarmOp, SwarmReply,
    },
};

use super::{LockCommand, LockRelease, update::Options};
use crate::{
    facts::{
        CredentialRow, ItemActivity, Sealed, SecretId,
        kubernetes::{KubernetesAccess, KubernetesFailure, KubernetesOp, KubernetesReply, PodName},
    },
    plan::swarm::joining::NodeEntry,
};

/// An event.
#[derive(Clone, Debug)]
pub enum Input {
    /// An agent opened a stream.
    Hello {
        /// Identity in its certificate.
        id: MachineId,
        /// Number of the stream, unique in this process.
        session: u64,
        /// The message.
        hello: Box<Hello>,
    },
    /// A stream ended.
    Gone {
        /// Identity of the agent.
        id: MachineId,
        /// The stream.
        session: u64,
    },
    /// A sign of life.
    Heard {
        /// Identity of the agent.
        id: MachineId,
    },
    /// A durable event of an agent.
    Status {
        /// Identity of the agent.
        id: MachineId,
        /// The stream that carried it.
        session: u64,
        /// Its number in the agent's ledger.
        seq: Seq,
        /// The event.
        status: Box<ItemStatus>,
    },
    /// A machine's facts changed.
    HostChanged {
        /// Identity of the agent.
        id: MachineId,
        /// The stream that carried it. Facts on an older stream precede the newest Hello and are ignored.
        session: u64,
        /// The new facts.
        facts: Box<HostFacts>,
    },
    /// An agent's answer to an assignment.
    Answer {
        /// Identity of the agent.
        id: MachineId,
        /// The stream that carried it. On an older stream, earlier messages may have been lost.
        session: u64,
        /// Generation of the assignment.
        generation: Generation,
        /// Reason of a refusal. None: accepted.
        refused: Option<String>,
    },
    /// A permit expired unused.
    PermitWanted {
        /// Identity of the agent.
        id: MachineId,
        /// Number of the permit.
        permit: u64,
    },
    /// A command of an application controller.
    Maintenance {
        /// Name in its certificate.
        controller: String,
        /// The command.
        word: LockCommand,
    },
    /// Progress of a download or a playbook.
    Progress {
        /// Identity of the agent.
        id: MachineId,
        /// The progress.
        progress: ItemActivity,
    },
    /// Why an agent is blocked. None: it can start items again.
    AgentBlocked {
        /// Identity of the agent.
        id: MachineId,
        /// The stream that carried it. A message on an older stream precedes the newest Hello and is ignored.
        session: u64,
        /// Reason and message.
        blocked: Option<(Reason, String)>,
    },
    /// An agent requests the inputs of an item that it is about to start.
    Fetch {
        /// Identity of the agent.
        id: MachineId,
        /// The item.
        item: ItemName,
        /// The generation that the agent accepted.
        generation: Generation,
    },
    /// A machine that wants to join its swarm has an old node entry there, which is removed next.
    NodeLeftBehind {
        /// Identity of the waiting agent.
        id: MachineId,
        /// The entry.
        entry: NodeEntry,
    },
    /// Result of a question that [`Effect::AskSwarm`] asked.
    SwarmAnswered {
        /// The machine whose node it is about.
        about: MachineName,
        /// Number of the question.
        number: u64,
        /// The answer.
        result: Result<SwarmReply, SwarmFailure>,
    },
    /// Result of a question that [`Effect::AskKubernetes`] asked.
    KubernetesAnswered {
        /// What it is about.
        about: About,
        /// Number of the question.
        number: u64,
        /// The answer.
        result: Result<KubernetesReply, KubernetesFailure>,
    },
    /// A machine wants an identity.
    Enroll(Enroll),
    /// A request of an operator.
    Operator {
        /// `operator/anna`.
        actor: String,
        /// The request.
        request: Request,
    },
    /// Time has passed.
    Tick,
}

impl Input {
    /// Identity of the sending agent, from its certificate.
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
            | Self::KubernetesAnswered { .. }
            | Self::Enroll(_)
            | Self::Operator { .. }
            | Self::Tick => None,
        }
    }
}

/// A machine's request for an identity.
#[derive(Clone, Debug)]
pub struct Enroll {
    /// First part of its token.
    pub token_id: String,
    /// SHA-256 of the second part.
    pub secret_sha256: ItemHash,
    /// SHA-256 of the public key in its request. The machine has proved that it holds the private key.
    pub key_sha256: ItemHash,
    /// The name that it requests.
    pub name: MachineName,
    /// The identity that it gets if it is admitted, generated by the rim.
    pub new_id: MachineId,
    /// Version of its agent.
    pub agent_version: String,
}

/// Requests of an operator. Names are checked here; the parser has checked the content of manifests.
#[derive(Clone, Debug)]
pub enum Request {
    /// Apply the desired clusters and machines.
    Apply {
        /// Clusters by name, with annotations.
        clusters: BTreeMap<ClusterName, (ClusterSpec, BTreeMap<String, String>)>,
        /// Machines by name, with annotations.
        machines: BTreeMap<MachineName, (MachineSpec, BTreeMap<String, String>)>,
        /// Only report what would change.
        dry_run: bool,
    },
    /// Start the deployment with the machines that have reported.
    Deploy {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Bring a deployed cluster to its newest spec.
    Update {
        /// The cluster.
        cluster: ClusterName,
        /// The options.
        options: Options,
    },
    /// Reboot machines, in the order of an update.
    Reboot {
        /// The cluster.
        cluster: ClusterName,
        /// The machines; empty: all.
        machines: BTreeSet<MachineName>,
        /// Skip the majority check: the control plane may be down for a while.
        accept_control_plane_downtime: bool,
    },
    /// Take a machine out of service until an operator returns it.
    EnterMaintenance {
        /// The machine.
        machine: MachineName,
        /// Skip the majority check: the control plane may be down for a while.
        accept_control_plane_downtime: bool,
    },
    /// Return a machine to service, also one on its way out.
    LeaveMaintenance {
        /// The machine.
        machine: MachineName,
    },
    /// Remove a machine from its cluster permanently, or loosen the policy of an ongoing removal.
    Remove {
        /// The machine.
        machine: MachineName,
        /// What it waits for.
        policy: RemovalPolicy,
        /// Skip the majority check: the control plane may be down for a while.
        accept_control_plane_downtime: bool,
    },
    /// Keep a machine that is being removed.
    AbortRemoval {
        /// The machine.
        machine: MachineName,
    },
    /// Stop new starts until `Resume`.
    Pause {
        /// The rollout.
        rollout: String,
    },
    /// Continue a paused update.
    Resume {
        /// The rollout.
        rollout: String,
    },
    /// Stop starting anything new for good, and give back what was taken.
    Abort {
        /// The rollout.
        rollout: String,
    },
    /// Run failed or held items again, and ask again for a deferred machine.
    Retry {
        /// The machine.
        machine: MachineName,
        /// The item; None: all that failed or are held.
        item: Option<ItemName>,
    },
    /// Delete a pod from the Kubernetes node of a machine in its turn, whatever its budget says.
    DrainForce {
        /// The machine.
        machine: MachineName,
        /// The pod.
        pod: PodName,
    },
    /// Skip an item.
    Skip {
        /// The machine.
        machine: MachineName,
        /// The item; None: the blocking one.
        item: Option<ItemName>,
    },
    /// Accept a held item as done.
    Accept {
        /// The machine.
        machine: MachineName,
        /// The item; None: the blocking one.
        item: Option<ItemName>,
    },
    /// Run a completed item again.
    Rerun {
        /// The machine.
        machine: MachineName,
        /// The item.
        item: ItemName,
    },
    /// Set and remove annotations of a machine.
    AnnotateMachine {
        /// The machine.
        machine: MachineName,
        /// Annotations to set.
        set: BTreeMap<String, String>,
        /// Annotations to remove.
        remove: Vec<String>,
    },
    /// Set and remove annotations of a cluster.
    AnnotateCluster {
        /// The cluster.
        cluster: ClusterName,
        /// Annotations to set.
        set: BTreeMap<String, String>,
        /// Annotations to remove.
        remove: Vec<String>,
    },
    /// Record a join token that the rim generated.
    CreateToken {
        /// First part.
        id: String,
        /// SHA-256 of the second part.
        secret_sha256: ItemHash,
        /// The cluster.
        cluster: ClusterName,
        /// The type of machines.
        machine_type: MachineType,
        /// The only machine that may use it.
        machine: Option<MachineName>,
        /// Lifetime in milliseconds; None: the cluster's `tokenTTL`.
        ttl_ms: Option<u64>,
        /// Number of uses; None: as many as the manifest still lacks machines.
        uses: Option<u32>,
    },
    /// Revoke a token.
    RevokeToken {
        /// The token.
        id: String,
        /// Also revoke the enrolments made with it, of machines that never reported.
        machines: bool,
    },
    /// Record credentials that the rim is about to issue.
    RecordCredentials(CredentialRow),
    /// Set the addresses for new credentials and for the agents.
    SetAddress(Addresses),
    /// Refuse all existing certificates of a person or a program.
    RevokeCredentials {
        /// Role and name: `operator/anna`.
        subject: String,
    },
    /// Record a secret that the rim sealed, or a new version of it.
    CreateSecret {
        /// Its name.
        id: SecretId,
        /// The version under which it was sealed.
        version: u64,
        /// Its value.
        sealed: Sealed,
        /// Share it with these clusters too.
        clusters: BTreeSet<ClusterName>,
    },
    /// Set which clusters may refer to a shared secret.
    ShareSecret {
        /// The secret.
        name: SecretName,
        /// Clusters to add.
        add: BTreeSet<ClusterName>,
        /// Clusters to remove.
        remove: BTreeSet<ClusterName>,
        /// Allow it although items of removed clusters refer to the secret.
        in_use: bool,
    },
    /// Delete a secret.
    DeleteSecret {
        /// The secret.
        id: SecretId,
        /// Allow it although items refer to the secret.
        in_use: bool,
    },
    /// Delete locks of a controller that is permanently gone.
    ReleaseLocks(LockRelease),
    /// Delete a cluster without enrolled machines.
    DeleteCluster {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Refuse a machine's identity from now on.
    RevokeMachine {
        /// The machine.
        machine: MachineName,
        /// The operator states that it is off: nothing runs there under an earlier permit.
        machine_is_off: bool,
    },
    /// Let a new machine take a name that is in use.
    ReplaceMachine {
        /// The machine.
        machine: MachineName,
        /// The operator states that it is off: nothing runs there under an earlier permit.
        machine_is_off: bool,
    },
}

/// A question about a machine's node in the swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmQuestion {
    /// Number of the question; its answer has the same.
    pub number: u64,
    /// The machine whose node it is about.
    pub about: MachineName,
    /// The agent to ask.
    pub agent: MachineId,
    /// The question.
    pub op: SwarmOp,
    /// Timeout in milliseconds; after it the question counts as failed.
    pub timeout_ms: u64,
}

/// What a question to a Kubernetes API server is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The node of this machine.
    Machine(MachineName),
    /// The requests and locks of this cluster.
    Cluster(ClusterName),
    /// The DaemonSets of this cluster whose pods are renewed.
    DaemonSets(ClusterName),
    /// The add-ons of this cluster.
    Addons(ClusterName),
}

impl About {
    /// The machine whose node it is about.
    #[must_use]
    pub const fn machine(&self) -> Option<&MachineName> {
        match self {
            Self::Machine(machine) => Some(machine),
            Self::Cluster(_) | Self::DaemonSets(_) | Self::Addons(_) => None,
        }
    }
}

/// A question or order to a cluster's Kubernetes API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesQuestion {
    /// Number of the question; its answer has the same.
    pub number: u64,
    /// What it is about.
    pub about: About,
    /// The way to its cluster's API server.
    pub access: KubernetesAccess,
    /// The question.
    pub op: KubernetesOp,
    /// Addresses of control machines, for when the kubeconfig's server cannot be connected to.
    pub fallbacks: Arc<[IpAddr]>,
}

/// Actions of the rim once the changes are durable, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send an agent its list.
    Assign {
        /// The agent.
        id: MachineId,
        /// The list.
        assignment: Assignment,
    },
    /// Tell an agent that its events up to this one are recorded.
    Ack {
        /// The agent.
        id: MachineId,
        /// The stream.
        session: u64,
        /// Newest recorded event.
        seq: Seq,
        /// Proof of this acknowledgement.
        proof: AckProof,
    },
    /// Ask an agent about its swarm. The answer is always an [`Input::SwarmAnswered`].
    AskSwarm(SwarmQuestion),
    /// Ask a cluster's Kubernetes API server. The answer is always an [`Input::KubernetesAnswered`].
    AskKubernetes(KubernetesQuestion),
    /// Close every stream of an identity.
    Close {
        /// The identity.
        id: MachineId,
        /// Reason for the log and the peer.
        reason: String,
    },
}
