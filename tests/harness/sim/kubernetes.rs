//! The Kubernetes of a simulated fleet: one node for each machine, the answers of its API server to the coordinator,
//! and the faults on the way there. A seed with an update runs once more with a Kubernetes; the other runs are
//! independent of its random numbers.

mod checks;
mod cluster;
mod forcing;
mod handshake;
mod operators;
mod removing;
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use muster_coordinator::{
    core::{About, Core, Input, KubernetesQuestion},
    facts::{
        Facts,
        handshake::HandshakeObjects,
        kubernetes::{
            ControlServer, ControlState, Deletion, EtcdState, Eviction, EvictionAnswer, KubernetesFailure,
            KubernetesNode, KubernetesOp, KubernetesReply, NodeLoad, PodRef,
        },
    },
};
use muster_proto::model::{
    Epoch, EtcdProbe, KubeconfigSource, KubernetesDrain, KubernetesSpec, MachineId, MachineType, UnmanagedPods,
};

use super::{Event, Plan, World, machine::Machine, manifest};
use crate::{invariants::Violation, rng::Rng};
use cluster::{Cluster, Node};
use handshake::Handshake;
use server::Evicted;

/// Timeout of the coordinator's questions.
const TIMEOUT_MS: u64 = 10_000;
/// Longest time after which the API server carries out a change that nobody awaits any more.
const LATE_MS: u64 = 60_000;
/// Permille of cordons that are carried out late while there are faults.
const LATE_CORDONS_PERMILLE: u64 = 300;
/// The same of the ends of cordons, and of changes of requests.
const LATE_PERMILLE: u64 = 80;
/// Permille of cordons just before which another pod is bound to the node, while there are faults.
const BINDS_PERMILLE: u64 = 200;
/// Permille of questions or answers that are lost while there are faults.
const LOST_PERMILLE: u64 = 20;
/// Permille of requests that a busy API server rejects while there are faults.
const BUSY_PERMILLE: u64 = 30;
/// Time after which the cluster counts a silent node as not Ready.
const SILENT_MS: u64 = 40_000;

/// The cluster, and the way to it.
#[derive(Clone)]
pub(crate) struct SimKubernetes {
    pub(crate) cluster: Cluster,
    /// UID of its namespace `kube-system`.
    uid: String,
    dice: Rng,
    calls: BTreeMap<u64, Call>,
    last_call: u64,
    trouble: Trouble,
    /// Does it exist yet?
    founded: bool,
    /// Machines with a kubelet.
    installed: BTreeSet<MachineId>,
    /// Machines whose kubelet registers no node before this time.
    absent_until: BTreeMap<usize, u64>,
    /// What operators said of single pods.
    words: forcing::Words,
    /// The maintenance handshake there. None: the cluster has none.
    handshake: Option<Handshake>,
    /// Observations of its invariants.
    seen: checks::Seen,
}

/// What is wrong with its API server, each until a time.
#[derive(Clone, Default)]
struct Trouble {
    down_until: u64,
    /// Another cluster is behind the address.
    foreign_until: u64,
    unauthorized_until: u64,
    forbidden_until: u64,
}

/// A question on its way.
#[derive(Clone)]
struct Call {
    about: About,
    number: u64,
    op: KubernetesOp,
    asked_at: u64,
    /// The coordinator that awaits the answer.
    epoch: Epoch,
    /// Its answer never comes.
    is_mute: bool,
    /// It is carried out after its timeout.
    is_late: bool,
    result: Option<Result<KubernetesReply, KubernetesFailure>>,
}

impl SimKubernetes {
    /// A cluster that has yet to be founded, and its settings in the manifest.
    pub(crate) fn new(mut dice: Rng) -> (Self, KubernetesSpec) {
        let handshake = Handshake::of_world(&dice);
        let maintenance = handshake.as_ref().map(Handshake::section);
        let drain = KubernetesDrain {
            unmanaged_pods: if dice.permille(300) { UnmanagedPods::Delete } else { UnmanagedPods::Keep },
            keep_local_storage: dice.permille(300),
            wait_for_volumes: dice.permille(800),
            evictions_at_once: u32::try_from(dice.between(1, 10)).unwrap_or(1),
        };
        let cluster = Cluster::new(Rng::new(dice.next()), drain);
        let words = forcing::Words::new(&dice);
        let kubernetes = Self {
            cluster,
            uid: "kube-system-1".to_owned(),
            dice,
            calls: BTreeMap::new(),
            last_call: 0,
            trouble: Trouble::default(),
            founded: false,
            installed: BTreeSet::new(),
            absent_until: BTreeMap::new(),
            words,
            handshake,
            seen: checks::Seen::default(),
        };
        (
            kubernetes,
            KubernetesSpec {
                source: KubeconfigSource::Secret(manifest::secret_name(MachineType::Control)),
                drain,
                etcd: Some(probe()),
                maintenance,
                on_delete: Vec::new(),
                helm_controller: None,
                addons: Vec::new(),
            },
        )
    }

    /// The machine's kubelet works, and reports what it knows.
    fn kubelet(&mut self, index: usize, machine: &Machine, facts: Option<&Facts>) {
        let at = self.cluster.at;
        let row = facts.and_then(|facts| facts.by_id(machine.id));
        if row.is_some_and(|row| row.ready_at.is_some() && !row.revoked && !row.departs()) {
            self.installed.insert(machine.id);
        }
        // Where the coordinator left the node behind, its operator deletes it.
        let removed = facts.is_some_and(|facts| !facts.machines.contains_key(&machine.name));
        let known = self.cluster.node_of(index).map(|node| node.uid.clone());
        if let Some(uid) = known.as_ref().filter(|_| removed) {
            self.installed.remove(&machine.id);
            self.cluster.delete_node(uid);
            return;
        }
        let up = machine.powered && self.installed.contains(&machine.id) && !removed;
        let addresses: Vec<IpAddr> = machine.address.iter().filter_map(|address| address.parse().ok()).collect();
        if known.is_none() {
            let absent = self.absent_until.get(&index).is_some_and(|until| *until > at);
            if up && !absent {
                let control = machine.machine_type == MachineType::Control;
                self.cluster.register(index, machine.name.as_str(), machine.boot_id(), addresses, control);
            }
            return;
        }
        let late = self.cluster.troubled && self.cluster.dice.permille(150);
        let takes_ms =
            if late { self.cluster.dice.between(15_000, 50_000) } else { self.cluster.dice.between(300, 6_000) };
        let version = self.cluster.number();
        let Some(node) = self.cluster.nodes.iter_mut().find(|node| node.index == index) else { return };
        let before = (node.ready, node.boot_id.clone(), node.addresses.clone());
        report(node, up, (machine.boot_id(), addresses), takes_ms, at);
        let lacks = !node.ready || node.api_down_until > at || node.etcd_down_until > at;
        node.lacking_since = lacks.then(|| node.lacking_since.unwrap_or(at));
        if before != (node.ready, node.boot_id.clone(), node.addresses.clone()) {
            node.version = version;
            (0..self.cluster.apps.len()).for_each(|n| self.cluster.touch(n));
        }
    }
}

/// A node's state follows its machine, with a delay.
fn report(node: &mut Node, up: bool, (boot_id, addresses): (String, Vec<IpAddr>), takes_ms: u64, at: u64) {
    if up && node.boot_id == boot_id {
        (node.ready, node.addresses, node.down_since, node.back_at) = (true, addresses, None, None);
        return;
    }
    let down_since = *node.down_since.get_or_insert(at);
    node.ready &= at < down_since + SILENT_MS;
    if !up {
        node.back_at = None;
        return;
    }
    if at >= *node.back_at.get_or_insert(at + takes_ms) {
        (node.ready, node.boot_id, node.addresses) = (true, boot_id, addresses);
        (node.down_since, node.back_at) = (None, None);
    }
}

/// How the etcd members are asked. The cluster answers for the agents.
fn probe() -> EtcdProbe {
    EtcdProbe { health: "http://${machine.internalIP}:2381/health".to_owned(), ca_file: None, client: None }
}

/// What control machines lack: their nodes are to be Ready, and their API servers; and how their etcd members are.
fn control_plane(cluster: &Cluster, cluster_uid: String, servers: &[ControlServer]) -> KubernetesReply {
    let lacks = |server: &ControlServer| {
        let node = cluster.nodes.iter().find(|node| node.name == server.hostname);
        match node.filter(|node| node.ready) {
            None => Some("its node is not Ready".to_owned()),
            Some(node) if node.api_down_until > cluster.at => Some("/readyz answers 500".to_owned()),
            Some(_) => None,
        }
    };
    // Its agent is there to ask while its machine is up.
    let etcd = |server: &ControlServer| {
        server.etcd.as_ref()?;
        let node = cluster.nodes.iter().find(|node| node.name == server.hostname);
        Some(match node.filter(|node| node.ready) {
            None => EtcdState::Unknown("its agent is not connected".to_owned()),
            Some(node) if node.etcd_down_until > cluster.at => EtcdState::Unhealthy("RAFT NO LEADER".to_owned()),
            Some(_) => EtcdState::Healthy,
        })
    };
    let state = |server: &ControlServer| {
        let (lacks, etcd) = (lacks(server), etcd(server));
        ControlState { server: server.clone(), lacks, etcd }
    };
    KubernetesReply::ControlPlane { cluster_uid, servers: servers.iter().map(state).collect() }
}

/// A node with the labels of controllers.
fn labelled(handshake: Option<&Handshake>, node: &Node) -> KubernetesNode {
    let shown = node.shown();
    match handshake {
        Some(handshake) => handshake.label(shown),
        None => shown,
    }
}

/// The same objects in another cluster: names and boots agree, UIDs differ.
fn foreign(node: &Node) -> KubernetesNode {
    let mut shown = node.shown();
    shown.object.uid = format!("other-{}", node.uid);
    (shown.unschedulable, shown.drained_for) = (false, None);
    shown
}

impl World {
    /// Creates a cluster with a Kubernetes, as [`World::new`] does without one.
    pub(crate) fn with_kubernetes(mut rng: Rng, plan: Plan, dice: Rng) -> Result<Self, Violation> {
        let (kubernetes, settings) = SimKubernetes::new(dice);
        let mut spec = manifest::spec(&mut rng, plan);
        spec.kubernetes = Some(settings);
        let mut world = Self::with_spec(rng, plan, spec)?;
        world.kubernetes = Some(kubernetes);
        world.chaos = true;
        Ok(world)
    }

    /// The machines are deployed, and form a cluster with pods.
    pub(crate) fn found_kubernetes(&mut self) {
        let Some(kubernetes) = &mut self.kubernetes else { return };
        kubernetes.founded = true;
        self.advance_kubernetes();
        if let Some(kubernetes) = &mut self.kubernetes {
            kubernetes.cluster.deploy();
            self.count("a Kubernetes was founded");
            self.start_object_controllers();
        }
    }

    /// Brings the cluster up to now.
    pub(crate) fn advance_kubernetes(&mut self) {
        let facts = self.coordinator.as_ref().map(Core::facts);
        let Some(kubernetes) = self.kubernetes.as_mut().filter(|kubernetes| kubernetes.founded) else { return };
        kubernetes.cluster.troubled = self.chaos;
        kubernetes.cluster.advance(self.at);
        kubernetes.cluster.end_nodes();
        for (index, machine) in self.machines.iter().enumerate() {
            kubernetes.kubelet(index, machine, facts);
        }
        kubernetes.cluster.advance(self.at);
    }

    /// The coordinator asks the API server.
    pub(crate) fn ask_kubernetes(&mut self, question: KubernetesQuestion) -> Result<(), Violation> {
        self.advance_kubernetes();
        self.question_is_right(&question)?;
        let KubernetesQuestion { number, about, op, .. } = question;
        let epoch = self.facts().map(|facts| facts.meta.epoch).unwrap_or_default();
        let (chaos, asked_at) = (self.chaos, self.at);
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        let dice = &mut kubernetes.dice;
        let is_late = match op {
            KubernetesOp::Cordon { .. } => chaos && dice.permille(LATE_CORDONS_PERMILLE),
            KubernetesOp::Uncordon { .. } | KubernetesOp::Requests { .. } => chaos && dice.permille(LATE_PERMILLE),
            _ => false,
        };
        let arrives = !(chaos && !is_late && dice.permille(LOST_PERMILLE));
        let is_mute = is_late || !arrives || (chaos && dice.permille(LOST_PERMILLE));
        let delay_ms = match () {
            () if is_late => dice.between(TIMEOUT_MS, LATE_MS),
            () if chaos && dice.permille(50) => dice.between(500, 4_000),
            () => dice.between(1, 60),
        };
        kubernetes.last_call += 1;
        let call = kubernetes.last_call;
        kubernetes.calls.insert(call, Call { about, number, op, asked_at, epoch, is_mute, is_late, result: None });
        if arrives {
            self.later(delay_ms, Event::KubernetesAsked(call));
        }
        if is_mute {
            self.count("a question to Kubernetes had no answer");
            self.later(TIMEOUT_MS, Event::KubernetesAnswered(call));
        }
        Ok(())
    }

    /// A question reaches the API server.
    pub(crate) fn kubernetes_asked(&mut self, number: u64) -> Result<(), Violation> {
        self.advance_kubernetes();
        let (at, chaos) = (self.at, self.chaos);
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        let Some(call) = kubernetes.calls.get(&number).cloned() else { return Ok(()) };
        let trouble = &kubernetes.trouble;
        let result = if at < trouble.down_until {
            Err(KubernetesFailure::Unreachable("connection refused".to_owned()))
        } else if at < trouble.foreign_until {
            self.another_cluster(&call)?
        } else if at < trouble.unauthorized_until {
            Err(KubernetesFailure::Unauthorized("Unauthorized".to_owned()))
        } else if at < trouble.forbidden_until {
            Err(KubernetesFailure::Forbidden("nodes is forbidden".to_owned()))
        } else if chaos && kubernetes.dice.permille(BUSY_PERMILLE) {
            self.count("a busy API server rejected a request");
            let message = "Too many requests, please try again later.".to_owned();
            Err(KubernetesFailure::Busy { after: Duration::from_secs(1), message })
        } else {
            self.serve_kubernetes(&call)?
        };
        if self.trace {
            eprintln!("{} {:?} {:?}: {result:?}", self.at, call.about, call.op);
        }
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(()) };
        if call.is_mute {
            // A late change may come after its timeout.
            if call.is_late {
                kubernetes.calls.remove(&number);
            }
            return Ok(());
        }
        let delay_ms = kubernetes.dice.between(1, 60);
        if let Some(call) = kubernetes.calls.get_mut(&number) {
            call.result = Some(result);
        }
        self.later(delay_ms, Event::KubernetesAnswered(number));
        Ok(())
    }

    /// The answer to a question, or its timeout.
    pub(crate) fn kubernetes_answered(&mut self, number: u64) {
        let epoch = self.facts().map(|facts| facts.meta.epoch);
        let Some(kubernetes) = &mut self.kubernetes else { return };
        let Some(mut call) = kubernetes.calls.get(&number).cloned() else { return };
        if !call.is_late {
            kubernetes.calls.remove(&number);
        }
        let unanswered = || Err(KubernetesFailure::Unreachable("no answer within 10 s".to_owned()));
        let result = call.result.take().unwrap_or_else(unanswered);
        // The coordinator may have restarted since.
        if epoch == Some(call.epoch) {
            self.tell(Input::KubernetesAnswered { about: call.about, number: call.number, result });
        }
    }

    /// Performs a request.
    fn serve_kubernetes(&mut self, call: &Call) -> Result<Result<KubernetesReply, KubernetesFailure>, Violation> {
        self.change_is_right(call)?;
        match &call.op {
            KubernetesOp::Handshake { .. } => return Ok(Ok(self.list_handshake())),
            KubernetesOp::Requests { make, remove, annotate, .. } => {
                return self.change_handshake(call, (make, remove, annotate)).map(Ok);
            }
            _ => {}
        }
        let Some(kubernetes) = &mut self.kubernetes else { return Ok(Ok(KubernetesReply::Done)) };
        let (cluster, cluster_uid) = (&mut kubernetes.cluster, kubernetes.uid.clone());
        Ok(match &call.op {
            KubernetesOp::Nodes => {
                let nodes = cluster.nodes.iter().map(|node| labelled(kubernetes.handshake.as_ref(), node));
                Ok(KubernetesReply::Nodes { cluster_uid, nodes: nodes.collect() })
            }
            KubernetesOp::Node { name } => {
                let found = cluster.nodes.iter().filter(|node| node.name == *name);
                let nodes = found.map(|node| labelled(kubernetes.handshake.as_ref(), node));
                Ok(KubernetesReply::Nodes { cluster_uid, nodes: nodes.collect() })
            }
            KubernetesOp::Load { node } => Ok(KubernetesReply::Load { cluster_uid, load: cluster.load(node) }),
            KubernetesOp::Cordon { node, drained_for, scale_down } => {
                if self.chaos && kubernetes.dice.permille(BINDS_PERMILLE) {
                    cluster.bind_another(&node.uid);
                }
                let done = cluster.cordon(node, drained_for, scale_down);
                if done.is_ok() {
                    self.count(if call.is_late { "a change of a Kubernetes node came late" } else { "cordoned" });
                }
                done.map(KubernetesReply::Patched)
            }
            KubernetesOp::Uncordon { node, schedulable, scale_down } => {
                let done = cluster.uncordon(node, *schedulable, scale_down.as_ref()).map(KubernetesReply::Patched);
                if done.is_ok() {
                    call.about.machine().iter().for_each(|machine| kubernetes.words.end(machine));
                    self.count("uncordoned");
                }
                done
            }
            KubernetesOp::Evict { pods } => Ok(KubernetesReply::Evicted(self.evict_all(call, pods)?)),
            KubernetesOp::Delete { pod } => Ok(KubernetesReply::Deleted(self.delete_pod(call, pod)?)),
            KubernetesOp::DeleteNode { name, uid } => self.delete_node(call, (name, uid))?,
            KubernetesOp::ControlPlane { servers } => Ok(control_plane(&kubernetes.cluster, cluster_uid, servers)),
            // The handshake is served above.
            KubernetesOp::Event { .. }
            | KubernetesOp::Handshake { .. }
            | KubernetesOp::Requests { .. }
            | KubernetesOp::DaemonSets { .. }
            | KubernetesOp::Addons { .. }
            | KubernetesOp::Apply { .. } => Ok(KubernetesReply::Done),
        })
    }

    fn evict_all(&mut self, call: &Call, pods: &[PodRef]) -> Result<Vec<EvictionAnswer>, Violation> {
        let mut answers = Vec::new();
        for pod in pods {
            let chaos = self.chaos;
            let Some(kubernetes) = &mut self.kubernetes else { return Ok(answers) };
            if chaos && kubernetes.dice.permille(BUSY_PERMILLE) {
                let message = "Too many requests, please try again later.".to_owned();
                answers.push((pod.clone(), Err(KubernetesFailure::Busy { after: Duration::from_secs(1), message })));
                continue;
            }
            if chaos && kubernetes.dice.permille(40) {
                kubernetes.cluster.replace(&pod.name);
            }
            let (answer, evicted) = kubernetes.cluster.evict(pod);
            self.count(match &answer {
                Eviction::Accepted => "an eviction was accepted",
                Eviction::Gone => "an evicted pod was gone",
                Eviction::Replaced => "an eviction met another pod",
                Eviction::Budget(_) => "a budget refused an eviction",
                Eviction::Unobserved(_) => "a budget was still being counted",
                Eviction::TwoBudgets(_) | Eviction::NamespaceTerminating | Eviction::Refused(_) => {
                    "an eviction was refused"
                }
            });
            if let Some(Evicted { pod, counted }) = evicted {
                self.eviction_is_right(call, &pod, counted)?;
            }
            answers.push((pod.clone(), Ok(answer)));
        }
        Ok(answers)
    }

    /// Another cluster answers: nothing there is known, and nothing may be changed.
    fn another_cluster(&mut self, call: &Call) -> Result<Result<KubernetesReply, KubernetesFailure>, Violation> {
        self.count("another cluster answered");
        self.change_is_in_cluster(call)?;
        let Some(kubernetes) = &self.kubernetes else { return Ok(Ok(KubernetesReply::Done)) };
        let cluster_uid = "kube-system-2".to_owned();
        let nodes = kubernetes.cluster.nodes.iter();
        Ok(match &call.op {
            KubernetesOp::Nodes => Ok(KubernetesReply::Nodes { cluster_uid, nodes: nodes.map(foreign).collect() }),
            KubernetesOp::Node { name } => {
                let found = nodes.filter(|node| node.name == *name);
                Ok(KubernetesReply::Nodes { cluster_uid, nodes: found.map(foreign).collect() })
            }
            KubernetesOp::Load { .. } => Ok(KubernetesReply::Load { cluster_uid, load: NodeLoad::default() }),
            KubernetesOp::Cordon { .. } | KubernetesOp::Uncordon { .. } => {
                Err(KubernetesFailure::Conflict("metadata.uid: field is immutable".to_owned()))
            }
            KubernetesOp::Evict { pods } => {
                Ok(KubernetesReply::Evicted(pods.iter().map(|pod| (pod.clone(), Ok(Eviction::Gone))).collect()))
            }
            KubernetesOp::Delete { .. } => Ok(KubernetesReply::Deleted(Deletion::Gone)),
            KubernetesOp::ControlPlane { servers } => Ok(control_plane(&kubernetes.cluster, cluster_uid, servers)),
            KubernetesOp::Handshake { .. } => {
                Ok(KubernetesReply::Handshake { cluster_uid, objects: HandshakeObjects::default() })
            }
            KubernetesOp::Requests { cluster_uid: known, .. } => {
                Err(KubernetesFailure::AnotherCluster { known: known.clone(), found: cluster_uid, more: String::new() })
            }
            // Its nodes have other UIDs.
            KubernetesOp::DeleteNode { .. }
            | KubernetesOp::Event { .. }
            | KubernetesOp::DaemonSets { .. }
            | KubernetesOp::Addons { .. }
            | KubernetesOp::Apply { .. } => Ok(KubernetesReply::Done),
        })
    }
}
