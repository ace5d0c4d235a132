//! A simulated Kubernetes cluster beside a simulated fleet.

use std::collections::BTreeMap;

use muster_proto::model::{
    AddonDeployment, EtcdProbe, HostFacts, KubeconfigSource, KubernetesDrain, KubernetesSpec, OnDeleteDaemonSets,
    SecretName,
};

use super::*;
use crate::{
    core::KubernetesQuestion,
    facts::{
        DrainRow, KubernetesTarget, Sealed, SecretId,
        handshake::{HandshakeObjects, LockObject, NewRequest, NodeAnnotations, OldRequest, RequestObject, Subject},
        kubernetes::{
            Budget, ControlServer, ControlState, Deletion, EtcdState, Eviction, KubernetesFailure, KubernetesNode,
            KubernetesOp, KubernetesReply, NodeLoad, NodeRef, Pod, PodRef, ScaleDown,
            addons::DeploymentState,
            daemon_sets::{DaemonSet, DaemonSets},
        },
    },
};

/// UID of namespace `kube-system`.
pub(super) const CLUSTER_UID: &str = "cluster-uid";

/// The simulated cluster of a simulated fleet.
pub(super) struct Kubernetes {
    pub(super) cluster_uid: &'static str,
    pub(super) nodes: BTreeMap<String, KubernetesNode>,
    pub(super) pods: BTreeMap<String, Vec<Pod>>,
    pub(super) budgets: BTreeMap<String, Budget>,
    /// Volumes that stay attached, by node.
    pub(super) attachments: BTreeMap<String, Vec<String>>,
    /// Control machines with an API server that is not ready.
    pub(super) down: Vec<String>,
    /// Control machines with an etcd member that is not healthy.
    pub(super) unhealthy: BTreeMap<String, EtcdState>,
    /// Its answer to every question.
    pub(super) broken: Option<KubernetesFailure>,
    /// Writes land, and their answers are lost.
    pub(super) mute: bool,
    /// Evicted pods stay, terminating.
    pub(super) slow: bool,
    /// A pod that the scheduler binds right before the next cordon.
    pub(super) late_pod: Option<Pod>,
    /// The API server's words against every deletion: the account may not, or an admission webhook.
    pub(super) undeletable: Option<Deletion>,
    /// Its maintenance requests.
    pub(super) requests: Vec<RequestObject>,
    /// A finalizer that somebody puts on new requests.
    pub(super) finalizer: Option<&'static str>,
    /// Its answer to every change of requests.
    pub(super) refused: Option<KubernetesFailure>,
    /// Annotations of its nodes for application controllers.
    pub(super) annotations: BTreeMap<String, BTreeMap<String, String>>,
    /// Nodes that take no annotations.
    pub(super) unannotated: Vec<String>,
    /// Number of lists of requests and locks.
    pub(super) lists: usize,
    /// The definitions of requests and locks are gone.
    pub(super) lists_none: bool,
    /// No request is made, and nothing says why.
    pub(super) makes_none: bool,
    /// Its DaemonSets, without the nodes.
    pub(super) daemon_sets: DaemonSets,
    /// What DaemonSets count as available. None: their Ready pods.
    pub(super) available: Option<i64>,
    /// The lists of DaemonSets, each with the only node that it asked for.
    pub(super) looks: Vec<Option<String>>,
    /// Its Deployments.
    pub(super) deployments: BTreeMap<AddonDeployment, DeploymentState>,
    /// What the Deployment of an add-on is when that was applied, by the content of its manifest.
    pub(super) manifests: BTreeMap<String, (AddonDeployment, DeploymentState)>,
    /// Its workload locks.
    pub(super) locks: Vec<LockObject>,
    /// Events on nodes, as text.
    pub(super) events: Vec<String>,
    /// Log of the changes and evictions, as text.
    pub(super) log: Vec<String>,
    /// Number of answered questions.
    pub(super) answered: usize,
}

/// A pod of a Deployment.
pub(super) fn pod(name: &str) -> Pod {
    Pod {
        object: PodRef { namespace: "shop".to_owned(), name: name.to_owned(), uid: format!("uid-{name}") },
        controller: Some("ReplicaSet/web".to_owned()),
        of_daemon_set: false,
        mirror: false,
        finished: false,
        deletion_s: None,
        grace_s: 0,
        finalizers: Vec::new(),
        local_storage: false,
        priority: 0,
        drain_label: String::new(),
        budgets: Vec::new(),
        claims: Vec::new(),
    }
}

/// The budget `shop/web`: so many healthy pods wanted, healthy, and in all.
pub(super) fn budget(desired: i32, healthy: i32, expected: i32) -> Budget {
    let allowed = (healthy - desired).max(0);
    Budget { observed: true, sync_failed: None, allowed, healthy, desired, expected, disrupted: Vec::new() }
}

impl Kubernetes {
    /// One node for each machine.
    pub(super) fn of(fleet: &Fleet) -> Self {
        let node = |name: &String| {
            let host = fleet.row(name).host.clone().expect("reported");
            let object = NodeRef { name: name.clone(), uid: format!("uid-{name}"), resource_version: "1".to_owned() };
            let node = KubernetesNode {
                object,
                boot_id: host.boot_id,
                internal_ips: host.internal_ip.and_then(|ip| ip.parse().ok()).into_iter().collect(),
                unschedulable: false,
                ready: true,
                deleting: false,
                finalizers: Vec::new(),
                drained_for: None,
                keep_cordoned: false,
                labels: Vec::new(),
                scale_down: ScaleDown::default(),
            };
            (name.clone(), node)
        };
        Self {
            cluster_uid: CLUSTER_UID,
            nodes: fleet.agents.keys().map(node).collect(),
            pods: BTreeMap::new(),
            budgets: BTreeMap::new(),
            attachments: BTreeMap::new(),
            down: Vec::new(),
            unhealthy: BTreeMap::new(),
            broken: None,
            mute: false,
            slow: false,
            late_pod: None,
            undeletable: None,
            requests: Vec::new(),
            finalizer: None,
            refused: None,
            annotations: BTreeMap::new(),
            unannotated: Vec::new(),
            lists: 0,
            lists_none: false,
            makes_none: false,
            daemon_sets: DaemonSets::default(),
            available: None,
            looks: Vec::new(),
            deployments: BTreeMap::new(),
            manifests: BTreeMap::new(),
            locks: Vec::new(),
            events: Vec::new(),
            log: Vec::new(),
            answered: 0,
        }
    }

    pub(super) fn node(&mut self, name: &str) -> &mut KubernetesNode {
        self.nodes.get_mut(name).expect("a node")
    }

    /// Is the node as if it had never been drained?
    pub(super) fn is_untouched(&self, name: &str) -> bool {
        let node = &self.nodes[name];
        !node.unschedulable && node.drained_for.is_none()
    }

    fn answer(&mut self, op: &KubernetesOp) -> Result<KubernetesReply, KubernetesFailure> {
        if let Some(failure) = &self.broken {
            return Err(failure.clone());
        }
        let cluster_uid = self.cluster_uid.to_owned();
        match op {
            KubernetesOp::Nodes => {
                Ok(KubernetesReply::Nodes { cluster_uid, nodes: self.nodes.values().cloned().collect() })
            }
            KubernetesOp::Node { name } => {
                Ok(KubernetesReply::Nodes { cluster_uid, nodes: self.nodes.get(name).cloned().into_iter().collect() })
            }
            KubernetesOp::Load { node } => {
                let pods = self.pods.get(node).cloned().unwrap_or_default();
                let attachments = self.attachments.get(node).cloned().unwrap_or_default();
                let load = NodeLoad { pods, budgets: self.budgets.clone(), attachments };
                Ok(KubernetesReply::Load { cluster_uid, load })
            }
            KubernetesOp::Cordon { node, drained_for, scale_down } => {
                self.log.push(format!("cordon {}", node.name));
                self.pods.entry(node.name.clone()).or_default().extend(self.late_pod.take());
                let scale_down = ScaleDown { now: Some("true".to_owned()), before: Some(scale_down.clone()) };
                self.patch(node, true, Some(drained_for.clone()), scale_down)
            }
            KubernetesOp::Uncordon { node, schedulable, scale_down } => {
                self.log.push(format!("uncordon {}", node.name));
                let node_now = &self.nodes[&node.name];
                let was = node_now.unschedulable;
                let now = scale_down.as_ref().map_or_else(|| node_now.scale_down.now.clone(), |value| value.0.clone());
                self.patch(node, was && !schedulable, None, ScaleDown { now, before: None })
            }
            KubernetesOp::Evict { pods } => {
                let answers = pods.iter().map(|pod| (pod.clone(), Ok(self.evict(pod))));
                Ok(KubernetesReply::Evicted(answers.collect()))
            }
            KubernetesOp::Delete { pod } => Ok(KubernetesReply::Deleted(self.delete(pod))),
            KubernetesOp::DeleteNode { name, uid } => self.delete_node(name, uid),
            KubernetesOp::ControlPlane { servers } => {
                Ok(KubernetesReply::ControlPlane { cluster_uid, servers: self.control_plane(servers) })
            }
            KubernetesOp::Handshake { define: false } if self.lists_none => {
                self.lists += 1;
                Err(KubernetesFailure::NotFound("the server could not find the requested resource".to_owned()))
            }
            KubernetesOp::Handshake { .. } => {
                self.lists += 1;
                let objects = HandshakeObjects { requests: self.requests.clone(), locks: self.locks.clone() };
                Ok(KubernetesReply::Handshake { cluster_uid, objects })
            }
            KubernetesOp::Requests { make, remove, annotate, .. } => self.change_requests(make, remove, annotate),
            KubernetesOp::DaemonSets { wanted, node } => {
                Ok(KubernetesReply::DaemonSets { cluster_uid, found: self.list_daemon_sets(wanted, node.as_ref()) })
            }
            KubernetesOp::Addons { deployments } => {
                let found = deployments.iter().map(|name| (name.clone(), self.deployments.get(name).cloned()));
                Ok(KubernetesReply::Addons { cluster_uid, found: found.collect() })
            }
            KubernetesOp::Apply { addon, .. } => self.apply(addon),
            KubernetesOp::Event { node, reason, .. } => {
                self.events.push(format!("{}: {reason}", node.name));
                Ok(KubernetesReply::Done)
            }
        }
    }

    fn change_requests(
        &mut self,
        make: &[NewRequest],
        remove: &[OldRequest],
        annotate: &[NodeAnnotations],
    ) -> Result<KubernetesReply, KubernetesFailure> {
        if let Some(failure) = &self.refused {
            return Err(failure.clone());
        }
        let says = |node: &NodeAnnotations| format!("annotate {} {:?}", node.node, node.values);
        self.log.extend(annotate.iter().map(says));
        make.iter().for_each(|new| self.make(new));
        remove.iter().for_each(|old| self.remove(old));
        let refused = |node: &&NodeAnnotations| self.unannotated.contains(&node.node);
        let failure = || KubernetesFailure::Other("the webhook denied the request".to_owned());
        let not_annotated = annotate.iter().filter(refused).map(|wanted| (wanted.node.clone(), failure()));
        let not_annotated: Vec<_> = not_annotated.collect();
        for wanted in annotate.iter().filter(|wanted| !self.unannotated.contains(&wanted.node)) {
            self.annotations.insert(wanted.node.clone(), wanted.values.clone());
        }
        Ok(KubernetesReply::Changed { failure: None, not_annotated })
    }

    fn list_daemon_sets(&mut self, wanted: &[OnDeleteDaemonSets], node: Option<&String>) -> DaemonSets {
        self.looks.push(node.cloned());
        let asked = |known: &&KubernetesNode| node.is_none_or(|name| known.object.name == *name);
        let nodes = self.nodes.values().filter(asked).cloned().collect();
        let is_of =
            |set: &DaemonSet, wanted: &OnDeleteDaemonSets| set.name.starts_with(&format!("{}/", wanted.namespace));
        let has = |wanted: &OnDeleteDaemonSets| self.daemon_sets.sets.iter().any(|set| is_of(set, wanted));
        let unmatched = wanted.iter().filter(|wanted| !has(wanted)).cloned().collect();
        let mut found = DaemonSets { nodes, unmatched, ..self.daemon_sets.clone() };
        found.sets.iter_mut().for_each(|set| self.count_available(set));
        found
    }

    fn count_available(&self, set: &mut DaemonSet) {
        let ready = set.pods.iter().filter(|pod| pod.ready && pod.pod.deletion_s.is_none()).count();
        set.available = self.available.unwrap_or(i64::try_from(ready).expect("few"));
    }

    fn control_plane(&self, servers: &[ControlServer]) -> Vec<ControlState> {
        let lacks = |server: &ControlServer| self.down.contains(&server.hostname).then(|| "etcd".to_owned());
        let state = |server: &ControlServer| ControlState {
            server: server.clone(),
            lacks: lacks(server),
            etcd: self.etcd(server),
        };
        servers.iter().map(state).collect()
    }

    fn make(&mut self, new: &NewRequest) {
        let deletion = matches!(new.subject, Subject::Deletion(_));
        self.log.push(format!("request {}{}", if deletion { "the end of " } else { "" }, new.name));
        if self.makes_none {
            return;
        }
        let is_there = self.requests.iter().any(|known| known.subject == new.subject);
        assert!(!is_there, "{} is there", new.name);
        self.requests.push(RequestObject {
            subject: new.subject.clone(),
            name: new.name.clone(),
            uid: format!("uid-{}-{}", new.name, self.log.len()),
            requested_by: Some(new.requested_by.clone()),
            mark: Some(new.mark),
            deleting: false,
            finalizers: self.finalizer.into_iter().map(str::to_owned).collect(),
            annotations: Vec::new(),
        });
    }

    fn remove(&mut self, old: &OldRequest) {
        let deletion = matches!(old.subject, Subject::Deletion(_));
        self.log.push(format!("release {}{}", if deletion { "the end of " } else { "" }, old.name));
        self.requests.iter_mut().filter(|known| known.uid == old.uid).for_each(|known| known.deleting = true);
        // The controller lets it go at once.
        let held = |known: &RequestObject| known.finalizers.iter().any(|name| Some(name.as_str()) != self.finalizer);
        self.requests.retain(|known| !known.deleting || held(known));
    }

    /// The request about this node.
    pub(super) fn request(&mut self, node: &str) -> &mut RequestObject {
        let subject = Subject::Node(node.to_owned());
        self.requests.iter_mut().find(|known| known.subject == subject).expect("a request")
    }

    fn etcd(&self, server: &ControlServer) -> Option<EtcdState> {
        server.etcd.as_ref()?;
        Some(self.unhealthy.get(&server.hostname).cloned().unwrap_or(EtcdState::Healthy))
    }

    fn patch(
        &mut self,
        seen: &NodeRef,
        unschedulable: bool,
        drained_for: Option<String>,
        scale_down: ScaleDown,
    ) -> Result<KubernetesReply, KubernetesFailure> {
        let node = self.nodes.get_mut(&seen.name).ok_or_else(|| KubernetesFailure::NotFound("gone".to_owned()))?;
        if node.object != *seen {
            return Err(KubernetesFailure::Conflict("it has been modified".to_owned()));
        }
        let version: u64 = node.object.resource_version.parse().expect("a number");
        node.object.resource_version = (version + 1).to_string();
        (node.unschedulable, node.drained_for, node.scale_down) = (unschedulable, drained_for, scale_down);
        let node = node.clone();
        match self.mute {
            true => Err(KubernetesFailure::Unreachable("no answer within 10 s".to_owned())),
            false => Ok(KubernetesReply::Patched(node)),
        }
    }

    /// A node is gone when its finalizers are.
    fn delete_node(&mut self, name: &str, uid: &str) -> Result<KubernetesReply, KubernetesFailure> {
        self.log.push(format!("delete node {name}"));
        if let Some(node) = self.nodes.get_mut(name).filter(|node| node.object.uid == uid) {
            node.deleting = true;
        }
        self.nodes.retain(|_, node| !node.deleting || !node.finalizers.is_empty());
        match self.mute {
            true => Err(KubernetesFailure::Unreachable("no answer within 10 s".to_owned())),
            false => Ok(KubernetesReply::Done),
        }
    }

    fn delete(&mut self, pod: &PodRef) -> Deletion {
        self.log.push(format!("delete {}", pod.name));
        if let Some(refusal) = &self.undeletable {
            return refusal.clone();
        }
        for pods in self.pods.values_mut() {
            let Some(at) = pods.iter().position(|known| known.object.name == pod.name) else { continue };
            if pods[at].object.uid != pod.uid {
                return Deletion::Replaced;
            }
            for name in pods[at].budgets.clone() {
                self.budgets.get_mut(&name).expect("a budget").healthy -= 1;
            }
            pods.remove(at);
            return Deletion::Accepted;
        }
        Deletion::Gone
    }

    fn evict(&mut self, pod: &PodRef) -> Eviction {
        if let Some(answer) = self.evict_daemon_pod(pod) {
            return answer;
        }
        for pods in self.pods.values_mut() {
            let Some(at) = pods.iter().position(|known| known.object == *pod) else { continue };
            let refused = pods[at].budgets.iter().any(|name| self.budgets[name].allowed == 0);
            self.log.push(format!("evict {}{}", pod.name, if refused { ": refused" } else { "" }));
            if refused {
                return Eviction::Budget("it would violate the pod's disruption budget".to_owned());
            }
            for name in pods[at].budgets.clone() {
                let budget = self.budgets.get_mut(&name).expect("a budget");
                (budget.allowed, budget.healthy) = (budget.allowed - 1, budget.healthy - 1);
            }
            if self.slow {
                pods[at].deletion_s = Some(1);
            } else {
                pods.remove(at);
            }
            return Eviction::Accepted;
        }
        Eviction::Gone
    }
}

impl Fleet {
    /// Answers the first question of a Kubernetes. False: there is none.
    pub(super) fn answer_kubernetes(&mut self, kubernetes: &mut Kubernetes) -> bool {
        if self.kubernetes.is_empty() {
            return false;
        }
        let KubernetesQuestion { number, about, op, .. } = self.kubernetes.remove(0);
        kubernetes.answered += 1;
        let result = kubernetes.answer(&op);
        self.step(Input::KubernetesAnswered { about, number, result }).expect("taken");
        true
    }

    /// Answers questions until there is none, or until time has to pass.
    pub(super) fn drive(&mut self, kubernetes: &mut Kubernetes) {
        for _ in 0..200 {
            if !self.answer_kubernetes(kubernetes) {
                return;
            }
        }
        panic!("asks without end: {:?}", kubernetes.log);
    }

    /// Time passes in steps of a second, and questions are answered.
    pub(super) fn live(&mut self, kubernetes: &mut Kubernetes, seconds: u64) {
        for _ in 0..seconds {
            self.pass(1_000, &[]);
            self.drive(kubernetes);
        }
    }

    /// Until the answer to the first eviction, and no question further.
    pub(super) fn drive_until_evicted(&mut self, kubernetes: &mut Kubernetes) {
        for _ in 0..200 {
            if !self.answer_kubernetes(kubernetes) {
                self.pass(1_000, &[]);
            }
            if kubernetes.log.iter().any(|line| line.starts_with("evict")) {
                return;
            }
        }
        panic!("evicts nothing: {:?}", kubernetes.log);
    }

    /// Each machine reports a boot id of its own.
    pub(super) fn report_boots(&mut self) {
        for name in self.agents.keys().cloned().collect::<Vec<_>>() {
            self.report_boot(&name, &format!("boot-{name}"));
        }
    }

    pub(super) fn report_boot(&mut self, name: &str, boot: &str) {
        let host = self.row(name).host.clone().expect("reported");
        self.report_host(self.agents[name].id, HostFacts { boot_id: boot.to_owned(), ..host });
    }

    pub(super) fn is_paused(&self) -> bool {
        let update = self.core.facts().rollouts[&self.rollout()].update.as_ref().expect("an update");
        matches!(update.desired, DesiredState::Pause { .. })
    }

    pub(super) fn kubernetes_drain(&self, name: &str) -> Option<&DrainRow<KubernetesTarget>> {
        self.part(name)?.drains.kubernetes.as_ref()
    }

    /// The machine does its items, and `ceph` brings its workloads back.
    pub(super) fn complete_in(&mut self, kubernetes: &mut Kubernetes, name: &str) {
        self.lock("ceph", Some(name), LockState::Inactive);
        self.live(kubernetes, 8);
        self.finish(name);
        self.live(kubernetes, 8);
        self.lock("ceph", Some(name), LockState::Active);
        self.drive(kubernetes);
    }
}

/// A cluster with Kubernetes, two workers wide: its control machines are at the new release.
pub(super) fn at_workers(width: u32, change: impl FnOnce(&mut KubernetesDrain)) -> (Fleet, Kubernetes) {
    at_workers_with(width, change, |_| {})
}

/// Each machine's etcd has a URL of its own.
fn probe() -> EtcdProbe {
    EtcdProbe { health: "http://${machine.internalIP}:2381/health".to_owned(), ca_file: None, client: None }
}

/// A deployed cluster with Kubernetes, at rest.
pub(super) fn at_rest(change: impl FnOnce(&mut KubernetesDrain)) -> Fleet {
    at_rest_with(|spec| change(&mut spec.drain))
}

/// The same, with other settings as well.
pub(super) fn at_rest_with(change: impl FnOnce(&mut KubernetesSpec)) -> Fleet {
    let mut fleet = deployed(3, 2);
    let name = SecretName::new("kubeconfig").expect("a label");
    let id = SecretId { cluster: Some(cluster()), name: name.clone() };
    let version = fleet.core.facts().meta.secret_seq + 1;
    let create = Request::CreateSecret { id, version, sealed: Sealed(vec![1]), clusters: [].into() };
    fleet.ask(create).expect("made");
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    let (source, drain) = (KubeconfigSource::Secret(name), KubernetesDrain::default());
    let mut kubernetes = KubernetesSpec {
        source,
        drain,
        etcd: Some(probe()),
        maintenance: None,
        on_delete: Vec::new(),
        helm_controller: None,
        addons: Vec::new(),
    };
    change(&mut kubernetes);
    spec.kubernetes = Some(kubernetes);
    fleet.ask(apply(spec, &[])).expect("applies");
    fleet.report_boots();
    fleet
}

/// The update is about to begin with the first control machine. `pods` sets the cluster up before that.
pub(super) fn before_controls(
    width: u32,
    change: impl FnOnce(&mut KubernetesDrain),
    pods: impl FnOnce(&mut Kubernetes),
) -> (Fleet, Kubernetes) {
    before_controls_of(at_rest(change), width, pods)
}

/// The same with a fleet at rest.
pub(super) fn before_controls_of(
    mut fleet: Fleet,
    width: u32,
    pods: impl FnOnce(&mut Kubernetes),
) -> (Fleet, Kubernetes) {
    release(&mut fleet, &["install"], width);
    let mut kubernetes = Kubernetes::of(&fleet);
    pods(&mut kubernetes);
    let mut fleet = fleet.started();
    fleet.drive(&mut kubernetes);
    (fleet, kubernetes)
}

/// The control machines are at the new release. `pods` sets the cluster up before the update begins.
pub(super) fn at_workers_with(
    width: u32,
    change: impl FnOnce(&mut KubernetesDrain),
    pods: impl FnOnce(&mut Kubernetes),
) -> (Fleet, Kubernetes) {
    after_controls(before_controls(width, change, pods))
}

/// The control machines are updated.
pub(super) fn after_controls((mut fleet, mut kubernetes): (Fleet, Kubernetes)) -> (Fleet, Kubernetes) {
    for control in ["control-1", "control-2", "control-3"] {
        fleet.complete_in(&mut kubernetes, control);
        assert_eq!((fleet.part(control), fleet.slot(control)), (None, None), "{:?}", fleet.why(control));
        assert!(kubernetes.is_untouched(control));
    }
    kubernetes.log.clear();
    kubernetes.events.clear();
    (fleet, kubernetes)
}
