//! The objects of a simulated Kubernetes cluster: nodes, pods, the applications that own them, and their disruption
//! budgets. Its controllers work in simulated time: a replacement comes late, a terminating pod takes its grace period,
//! and the numbers of a budget lag behind its pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use muster_coordinator::facts::kubernetes::{PodRef, ScaleDown};
use muster_proto::model::{KubernetesDrain, UnmanagedPods};

use super::checks::BIND_MS;
use crate::rng::Rng;

/// Time for which a disrupted pod without an end counts as unhealthy, in milliseconds.
const DISRUPTED_MS: u64 = 120_000;
/// Interval between two tries to schedule a pod, in milliseconds.
const RESCHEDULE_MS: u64 = 3_000;
/// Replicas up to which an application grows.
const GROWS_TO: u32 = 6;
/// The namespace of all applications.
pub(crate) const NAMESPACE: &str = "shop";

/// A cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) apps: Vec<App>,
    pub(crate) policy: KubernetesDrain,
    /// UIDs of pods that are deleted, as operators said.
    pub(crate) forced: BTreeSet<String>,
    pub(crate) dice: Rng,
    /// Slow kubelets, registries and controllers occur.
    pub(crate) troubled: bool,
    /// Time up to which its controllers have worked.
    pub(crate) at: u64,
    /// Number of the newest UID, name or version.
    last: u64,
}

/// A node object.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Index of its machine.
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: u64,
    /// As its kubelet reported them last.
    pub(crate) boot_id: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ready: bool,
    pub(crate) unschedulable: bool,
    /// Muster's annotation.
    pub(crate) drained_for: Option<String>,
    /// The operators' annotation.
    pub(crate) keep_cordoned: bool,
    /// The annotation of the cluster-autoscaler.
    pub(crate) scale_down: ScaleDown,
    /// Its value as operators want it.
    pub(crate) wanted_scale_down: Option<String>,
    /// Do its operators want it cordoned?
    pub(crate) wanted_cordoned: bool,
    /// When an operator uncordoned it last.
    pub(crate) uncordoned_at: Option<u64>,
    /// Since when it is unschedulable.
    pub(crate) cordoned_at: u64,
    /// The record of its drain is lost: what it gets back is undefined.
    pub(crate) touched: bool,
    /// When it was registered.
    pub(crate) made_at: u64,
    /// It is being deleted: until when a finalizer holds it.
    pub(crate) held_until: Option<u64>,
    /// When its machine went down.
    pub(crate) down_since: Option<u64>,
    /// When its kubelet reports after a boot.
    pub(crate) back_at: Option<u64>,
    /// Until when the API server on it is not ready.
    pub(crate) api_down_until: u64,
    /// Its etcd member says until then that it is not healthy.
    pub(crate) etcd_down_until: u64,
    /// Since when its kubelet or its API server is not ready.
    pub(crate) lacking_since: Option<u64>,
    /// Volumes of pods that have ended, each with the time of its detachment.
    pub(crate) detaching: Vec<(String, u64)>,
    /// Since when a pod on it can never leave.
    pub(crate) undrainable_since: Option<u64>,
}

/// What a pod belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// An application.
    App(usize),
    DaemonSet,
    /// A file of the kubelet.
    Mirror,
    /// A Job that is done.
    FinishedJob,
    /// Nothing: it would start nowhere else.
    Nothing,
}

/// A pod.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) owner: Owner,
    /// UID of its node. None: it is Pending.
    pub(crate) node: Option<String>,
    /// When it was bound to the node.
    pub(crate) bound_at: u64,
    pub(crate) ready_at: u64,
    /// When its eviction was accepted, or its deletion began.
    pub(crate) deleted_at: Option<u64>,
    pub(crate) ends_at: Option<u64>,
    /// A finalizer holds it.
    pub(crate) held: bool,
    /// Did Muster evict it?
    pub(crate) evicted: bool,
    /// It replaces a pod that Muster evicted, and has not been Ready.
    pub(crate) replaces_evicted: bool,
    /// The next try to schedule it.
    schedule_at: u64,
}

/// A pod that its controller is about to create.
#[derive(Clone, Debug)]
struct Missing {
    name: String,
    at: u64,
    replaces_evicted: bool,
}

/// An application: its controller, its budget, and the properties of its pods.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) name: String,
    pub(crate) replicas: u32,
    /// Its pods keep their names, and a successor is created when its predecessor is gone.
    stateful: bool,
    pub(crate) grace_ms: u64,
    pub(crate) priority: i32,
    pub(crate) local_storage: bool,
    pub(crate) label: &'static str,
    pub(crate) has_volume: bool,
    /// Its pods tolerate a cordon.
    pub(crate) tolerant: bool,
    pub(crate) budget: Option<BudgetSpec>,
    pub(crate) status: BudgetStatus,
    missing: Vec<Missing>,
    /// When the disruption controller counts its pods again.
    recounts: BTreeSet<u64>,
}

/// The rule of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetSpec {
    pub(crate) allowance: Allowance,
    /// Pods that are not healthy may always be evicted.
    pub(crate) always_allow: bool,
    /// Its controller cannot evaluate it.
    pub(crate) sync_failed: bool,
    /// A second budget selects the same pods.
    pub(crate) twice: bool,
}

impl BudgetSpec {
    /// A sound budget.
    const fn of(allowance: Allowance) -> Self {
        Self { allowance, always_allow: false, sync_failed: false, twice: false }
    }
}

/// The number in a budget's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    MinAvailable(u32),
    MaxUnavailable(u32),
    /// `minAvailable: N%`
    MinPercent(u32),
    /// `maxUnavailable: N%`
    MaxPercent(u32),
}

impl Allowance {
    /// An allowance of some kind that wants this many healthy pods of all replicas.
    fn of_kind(kind: u64, healthy: u32, replicas: u32) -> Self {
        let unavailable = replicas.saturating_sub(healthy);
        let percent = |count: u32| count * 100 / replicas.max(1);
        match kind % 4 {
            0 => Self::MinAvailable(healthy),
            1 => Self::MaxUnavailable(unavailable),
            2 => Self::MinPercent(percent(healthy)),
            _ => Self::MaxPercent(percent(unavailable)),
        }
    }

    /// Healthy pods that it wants of this many. Kubernetes rounds both percentages up.
    fn healthy_of(self, replicas: u32) -> u32 {
        let share = |percent: u32| (percent * replicas).div_ceil(100);
        match self {
            Self::MinAvailable(healthy) => healthy,
            Self::MaxUnavailable(unavailable) => replicas.saturating_sub(unavailable),
            Self::MinPercent(percent) => share(percent),
            Self::MaxPercent(percent) => replicas.saturating_sub(share(percent)),
        }
    }
}

/// The published numbers of a budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct BudgetStatus {
    pub(crate) observed: bool,
    pub(crate) healthy: u32,
    pub(crate) desired: u32,
    pub(crate) expected: u32,
    pub(crate) allowed: u32,
    pub(crate) disrupted: BTreeMap<String, u64>,
}

impl App {
    pub(crate) fn budgets(&self) -> Vec<String> {
        let Some(budget) = &self.budget else { return Vec::new() };
        let second = budget.twice.then(|| format!("{NAMESPACE}/{}-other", self.name));
        [format!("{NAMESPACE}/{}", self.name)].into_iter().chain(second).collect()
    }

    /// Pods that may be away at once because of evictions.
    pub(crate) fn may_be_away(&self) -> u32 {
        self.budget.map_or(u32::MAX, |budget| self.replicas.saturating_sub(budget.allowance.healthy_of(self.replicas)))
    }

    /// Can an eviction of its pods never be allowed, as the published numbers show?
    fn never_allows(&self) -> bool {
        let status = &self.status;
        self.budget.is_some_and(|budget| {
            let full = status.observed
                && status.healthy >= status.expected
                && status.desired >= status.expected
                && status.allowed == 0;
            budget.sync_failed || budget.twice || full
        })
    }
}

impl Cluster {
    pub(crate) fn new(mut dice: Rng, policy: KubernetesDrain) -> Self {
        let apps = (0..dice.between(2, 5)).map(|n| App::random(n, &mut dice)).collect();
        let forced = BTreeSet::new();
        Self { nodes: Vec::new(), pods: Vec::new(), apps, policy, forced, dice, troubled: false, at: 0, last: 0 }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Number of the newest UID.
    pub(crate) const fn newest(&self) -> u64 {
        self.last
    }

    /// The node object of this UID.
    pub(crate) fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.uid == uid)
    }

    /// The node of a machine.
    pub(crate) fn node_of(&self, index: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.index == index)
    }

    pub(crate) fn app_of(&self, pod: &Pod) -> Option<&App> {
        match pod.owner {
            Owner::App(n) => self.apps.get(n),
            Owner::DaemonSet | Owner::Mirror | Owner::FinishedJob | Owner::Nothing => None,
        }
    }

    /// Does the pod have to leave before its machine is disturbed?
    pub(crate) fn must_leave(&self, pod: &Pod) -> bool {
        match pod.owner {
            Owner::App(_) => self.app_of(pod).is_none_or(|app| app.label != "skip"),
            Owner::Nothing => true,
            Owner::DaemonSet | Owner::Mirror | Owner::FinishedJob => false,
        }
    }

    /// Pods on a node that have to leave it.
    pub(crate) fn leaving<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().filter(move |pod| pod.node.as_deref() == Some(node) && self.must_leave(pod))
    }

    pub(crate) fn is_ready(&self, pod: &Pod) -> bool {
        let up = pod.node.as_ref().and_then(|uid| self.node(uid)).is_some_and(|node| node.ready);
        up && pod.ready_at <= self.at && pod.deleted_at.is_none()
    }

    /// Pods of an application that are away because Muster evicted them.
    pub(crate) fn away(&self, n: usize) -> u32 {
        let Some(app) = self.apps.get(n) else { return 0 };
        let missing = app.missing.iter().filter(|missing| missing.replaces_evicted).count();
        let away = |pod: &&Pod| {
            let coming = pod.replaces_evicted && pod.deleted_at.is_none();
            let going = app.stateful && pod.evicted && pod.deleted_at.is_some();
            pod.owner == Owner::App(n) && (coming || going)
        };
        u32::try_from(missing + self.pods.iter().filter(away).count()).unwrap_or(u32::MAX)
    }

    /// A pod that can never leave this node as things are.
    pub(crate) fn undrainable<'a>(&'a self, node: &'a str) -> Option<&'a Pod> {
        let keeps = |pod: &&Pod| {
            let app = self.app_of(pod);
            let forced = self.forced.contains(&pod.uid);
            let waits = forced || pod.deleted_at.is_some() || app.is_some_and(|app| app.label == "wait");
            let bare = pod.owner == Owner::Nothing && self.policy.unmanaged_pods == UnmanagedPods::Keep;
            let local = app.is_some_and(|app| app.local_storage) && self.policy.keep_local_storage;
            !waits && (bare || local || app.is_some_and(App::never_allows))
        };
        self.leaving(node).find(keeps)
    }

    /// Lets the controllers work until this time.
    pub(crate) fn advance(&mut self, to: u64) {
        while let Some(due) = self.due().filter(|due| *due <= to) {
            self.at = self.at.max(due);
            self.work();
        }
        self.at = self.at.max(to);
        self.look_for_undrainable();
    }

    /// When something changes next.
    fn due(&self) -> Option<u64> {
        let ends = self.pods.iter().filter(|pod| !pod.held).filter_map(|pod| pod.ends_at);
        let schedules = self.pods.iter().filter(|pod| pod.node.is_none()).map(|pod| pod.schedule_at);
        let made = self.apps.iter().flat_map(|app| app.missing.iter().map(|missing| missing.at));
        let counted = self.apps.iter().filter_map(|app| app.recounts.first().copied());
        ends.chain(schedules).chain(made).chain(counted).min()
    }

    fn work(&mut self) {
        self.end_pods();
        self.create_missing();
        self.schedule();
        let at = self.at;
        for pod in self.pods.iter_mut().filter(|pod| pod.node.is_some() && pod.ready_at <= at) {
            pod.replaces_evicted = false;
        }
        for n in 0..self.apps.len() {
            let due = self.apps.get(n).and_then(|app| app.recounts.first()).is_some_and(|due| *due <= at);
            if due {
                self.recount(n);
            }
        }
        self.look_for_undrainable();
    }

    fn look_for_undrainable(&mut self) {
        let at = self.at;
        for n in 0..self.nodes.len() {
            let kept = self.nodes.get(n).is_some_and(|node| self.undrainable(&node.uid).is_some());
            if let Some(node) = self.nodes.get_mut(n) {
                node.undrainable_since = kept.then(|| node.undrainable_since.unwrap_or(at));
            }
        }
    }

    fn end_pods(&mut self) {
        let at = self.at;
        let ended = |pod: &Pod| !pod.held && pod.ends_at.is_some_and(|end| end <= at);
        let (gone, left): (Vec<Pod>, Vec<Pod>) = std::mem::take(&mut self.pods).into_iter().partition(ended);
        self.pods = left;
        gone.iter().for_each(|pod| self.has_ended(pod));
    }

    /// A pod object is gone: its volume is detached late, and the successor of a stateful one is created.
    pub(crate) fn has_ended(&mut self, pod: &Pod) {
        let Owner::App(n) = pod.owner else { return };
        let (at, slow) = (self.at, self.troubled && self.dice.permille(200));
        let detached = at + if slow { self.dice.between(10_000, 40_000) } else { self.dice.between(0, 6_000) };
        let has_volume = self.apps.get(n).is_some_and(|app| app.has_volume);
        let node = self.nodes.iter_mut().find(|node| pod.node.as_ref() == Some(&node.uid));
        if let Some(node) = node.filter(|_| has_volume) {
            node.detaching.push((format!("pv-{}", pod.uid), detached));
        }
        // A Deployment has replaced it when its deletion began.
        let stateful = self.apps.get(n).is_some_and(|app| app.stateful);
        if stateful || pod.deleted_at.is_none() {
            let made = at + self.dice.between(1, 1_500);
            let name = if stateful { pod.name.clone() } else { format!("next-{}", self.number()) };
            self.is_missing(n, name, made, pod.evicted || pod.replaces_evicted);
        }
        self.touch(n);
    }

    fn is_missing(&mut self, n: usize, name: String, at: u64, replaces_evicted: bool) {
        if let Some(app) = self.apps.get_mut(n) {
            app.missing.push(Missing { name, at, replaces_evicted });
        }
    }

    /// A pod is to end: a Deployment replaces it at once.
    pub(crate) fn mark_deleted(&mut self, uid: &str, evicted: bool) {
        let at = self.at;
        let Some(found) = self.pods.iter().position(|pod| pod.uid == uid && pod.deleted_at.is_none()) else { return };
        let Some(owner) = self.pods.get(found).map(|pod| pod.owner) else { return };
        let app = if let Owner::App(n) = owner { self.apps.get(n).cloned().map(|app| (n, app)) } else { None };
        let grace_ms = app.as_ref().map_or(1_000, |(_, app)| app.grace_ms);
        let takes_ms = self.dice.between(grace_ms / 4, grace_ms);
        let held = self.troubled && evicted && self.dice.permille(15);
        let Some(pod) = self.pods.get_mut(found) else { return };
        let counts_as_ours = evicted || pod.replaces_evicted;
        (pod.deleted_at, pod.evicted, pod.held) = (Some(at), evicted, held);
        pod.ends_at = Some(at + if pod.node.is_some() { takes_ms } else { 0 });
        let Some((n, app)) = app else { return };
        if !app.stateful {
            let late = self.troubled && self.dice.permille(80);
            let made = at + if late { self.dice.between(5_000, 30_000) } else { self.dice.between(1, 1_500) };
            let name = format!("{}-{}", app.name, self.number());
            self.is_missing(n, name, made, counts_as_ours);
        }
        self.touch(n);
    }

    fn create_missing(&mut self) {
        let at = self.at;
        for n in 0..self.apps.len() {
            let Some(app) = self.apps.get_mut(n) else { continue };
            let (due, later) = std::mem::take(&mut app.missing).into_iter().partition(|missing| missing.at <= at);
            app.missing = later;
            let due: Vec<Missing> = due;
            for missing in due {
                self.create(Owner::App(n), missing.name, missing.replaces_evicted);
            }
        }
    }

    fn create(&mut self, owner: Owner, name: String, replaces_evicted: bool) {
        let uid = format!("pod-uid-{}", self.number());
        let schedule_at = self.at + self.dice.between(1, 500);
        self.pods.push(Pod {
            uid,
            name,
            owner,
            node: None,
            bound_at: 0,
            ready_at: u64::MAX,
            deleted_at: None,
            ends_at: None,
            held: false,
            evicted: false,
            replaces_evicted,
            schedule_at,
        });
    }

    /// Pending pods land on schedulable nodes, if there are any.
    fn schedule(&mut self) {
        let at = self.at;
        let due = |pod: &Pod| pod.node.is_none() && pod.deleted_at.is_none() && pod.schedule_at <= at;
        for place in 0..self.pods.len() {
            let Some(pod) = self.pods.get(place).filter(|pod| due(pod)) else { continue };
            let owner = pod.owner;
            let tolerant = self.app_of(pod).is_some_and(|app| app.tolerant);
            let unnoticed = self.troubled && self.dice.permille(300);
            let takes = |node: &&Node| {
                let recent = unnoticed && node.cordoned_at + BIND_MS > at;
                node.ready && (tolerant || recent || !node.unschedulable)
            };
            let takers: Vec<String> = self.nodes.iter().filter(takes).map(|node| node.uid.clone()).collect();
            let taker = self.dice.pick(&takers).cloned();
            let slow = self.troubled && self.dice.permille(60);
            let takes_ms = if slow { self.dice.between(10_000, 50_000) } else { self.dice.between(200, 5_000) };
            let job_ms = self.dice.between(3_000, 40_000);
            let job = self.pods.get(place).and_then(|pod| self.app_of(pod)).is_some_and(|app| app.label == "wait");
            let Some(pod) = self.pods.get_mut(place) else { continue };
            if taker.is_none() {
                pod.schedule_at = at + RESCHEDULE_MS;
                continue;
            }
            (pod.node, pod.bound_at, pod.ready_at) = (taker, at, at + takes_ms);
            if job {
                pod.ends_at = Some(at + takes_ms + job_ms);
            }
            if let Owner::App(n) = owner {
                self.touch(n);
                self.recount_after(n, at + takes_ms);
            }
        }
    }

    /// A pod of this application has changed: its budget is counted again soon.
    pub(crate) fn touch(&mut self, n: usize) {
        self.recount_after(n, self.at);
    }

    fn recount_after(&mut self, n: usize, at: u64) {
        let lag = if self.troubled && self.dice.permille(100) { 6_000 } else { self.dice.between(1, 1_200) };
        if let Some(app) = self.apps.get_mut(n) {
            app.recounts.insert(at + lag);
        }
    }

    /// The disruption controller counts the pods of a budget.
    fn recount(&mut self, n: usize) {
        let at = self.at;
        let of_app: Vec<&Pod> = self.pods.iter().filter(|pod| pod.owner == Owner::App(n)).collect();
        let there: BTreeSet<String> =
            of_app.iter().filter(|pod| pod.deleted_at.is_none()).map(|pod| pod.name.clone()).collect();
        let ready: BTreeSet<String> =
            of_app.iter().filter(|pod| self.is_ready(pod)).map(|pod| pod.name.clone()).collect();
        let Some(app) = self.apps.get_mut(n) else { return };
        app.recounts.retain(|due| *due > at);
        let Some(budget) = app.budget else { return };
        if budget.sync_failed {
            app.status = BudgetStatus::default();
            return;
        }
        let status = &mut app.status;
        status.disrupted.retain(|name, since| there.contains(name) && *since + DISRUPTED_MS > at);
        let forgotten = status.disrupted.values().map(|since| since + DISRUPTED_MS + 1);
        app.recounts.extend(forgotten);
        let status = &mut app.status;
        let healthy = ready.iter().filter(|name| !status.disrupted.contains_key(*name)).count();
        status.healthy = u32::try_from(healthy).unwrap_or(u32::MAX);
        let desired = budget.allowance.healthy_of(app.replicas);
        (status.observed, status.desired, status.expected) = (true, desired, app.replicas);
        status.allowed = status.healthy.saturating_sub(status.desired);
    }

    /// A machine's node: its pods of DaemonSets and files come with it, and sometimes a finished one.
    pub(crate) fn register(
        &mut self,
        index: usize,
        name: &str,
        boot_id: String,
        addresses: Vec<IpAddr>,
        control: bool,
    ) {
        let (at, uid, version) = (self.at, format!("node-uid-{}", self.number()), self.number());
        self.nodes.push(Node {
            index,
            name: name.to_owned(),
            uid: uid.clone(),
            version,
            boot_id,
            addresses,
            ready: true,
            unschedulable: false,
            drained_for: None,
            keep_cordoned: false,
            scale_down: ScaleDown::default(),
            wanted_scale_down: None,
            wanted_cordoned: false,
            uncordoned_at: None,
            cordoned_at: 0,
            touched: false,
            made_at: at,
            held_until: None,
            down_since: None,
            back_at: None,
            api_down_until: 0,
            etcd_down_until: 0,
            lacking_since: None,
            detaching: Vec::new(),
            undrainable_since: None,
        });
        let finished = self.dice.permille(300).then_some(Owner::FinishedJob);
        let mirror = control.then_some(Owner::Mirror);
        for owner in [Some(Owner::DaemonSet), mirror, finished].into_iter().flatten() {
            let name = format!("{owner:?}-{name}").to_lowercase();
            self.create(owner, name, false);
            self.bind_newest(&uid);
        }
    }

    /// An application grows by a pod that is bound to a node: right before its cordon, unnoticed by anybody.
    pub(crate) fn bind_another(&mut self, node: &str) {
        let n = self.apps.iter().position(|app| app.label.is_empty() && app.replicas < GROWS_TO);
        let number = self.number();
        let Some((n, app)) = n.and_then(|n| Some((n, self.apps.get_mut(n)?))) else { return };
        app.replicas += 1;
        let name = format!("{}-more-{number}", app.name);
        self.create(Owner::App(n), name, false);
        self.bind_newest(node);
        self.touch(n);
    }

    /// Binds the newest pod to a node.
    fn bind_newest(&mut self, node: &str) {
        let at = self.at;
        if let Some(pod) = self.pods.last_mut() {
            (pod.node, pod.bound_at, pod.ready_at) = (Some(node.to_owned()), at, at);
        }
    }

    /// The applications are deployed; their pods land in time.
    pub(crate) fn deploy(&mut self) {
        for n in 0..self.apps.len() {
            let Some(app) = self.apps.get(n).cloned() else { continue };
            for replica in 0..app.replicas {
                let name = if app.stateful {
                    format!("{}-{replica}", app.name)
                } else {
                    format!("{}-{}", app.name, self.number())
                };
                self.create(Owner::App(n), name, false);
            }
            self.touch(n);
        }
        if self.dice.permille(150) {
            let name = format!("bare-{}", self.number());
            self.create(Owner::Nothing, name, false);
        }
    }

    /// A node object is deleted: its pods go with it.
    pub(crate) fn delete_node(&mut self, uid: &str) {
        self.nodes.retain(|node| node.uid != uid);
        let there = |pod: &Pod| pod.node.as_deref() == Some(uid);
        let (gone, left): (Vec<Pod>, Vec<Pod>) = std::mem::take(&mut self.pods).into_iter().partition(there);
        self.pods = left;
        gone.iter().for_each(|pod| self.has_ended(pod));
    }

    /// Operators see to it that every pod can leave its node. False: there was nothing to do.
    pub(crate) fn relax(&mut self) -> bool {
        let mut changed = false;
        let at = self.at;
        for n in 0..self.apps.len() {
            let Some(app) = self.apps.get_mut(n) else { continue };
            // Another template: its controller replaces all pods.
            if app.tolerant {
                for pod in self.pods.iter_mut().filter(|pod| pod.owner == Owner::App(n)) {
                    (pod.deleted_at, pod.ends_at) = (pod.deleted_at.or(Some(at)), pod.ends_at.or(Some(at)));
                }
            }
            let hard = app.budget.is_some_and(|budget| {
                budget.allowance.healthy_of(app.replicas) > 0 || budget.sync_failed || budget.twice
            });
            if hard || app.tolerant || app.local_storage || app.label == "wait" {
                changed = true;
                app.budget = app.budget.map(|_| BudgetSpec::of(Allowance::MinAvailable(0)));
                (app.tolerant, app.local_storage) = (false, false);
                app.label = if app.label == "wait" { "" } else { app.label };
                app.status.observed = false;
                self.touch(n);
            }
        }
        for pod in self.pods.iter_mut().filter(|pod| pod.held || pod.owner == Owner::Nothing) {
            changed = true;
            pod.held = false;
            (pod.deleted_at, pod.ends_at) = (pod.deleted_at.or(Some(at)), pod.ends_at.or(Some(at)));
        }
        changed
    }

    /// Somebody deletes a pod without a grace period; a stateful one has a successor of the same name at once.
    pub(crate) fn replace(&mut self, name: &str) {
        let at = self.at;
        let stateful = |pod: &&Pod| self.app_of(pod).is_some_and(|app| app.stateful);
        let Some(pod) = self.pods.iter().find(|pod| pod.name == name).filter(stateful).cloned() else { return };
        self.pods.retain(|known| known.uid != pod.uid);
        self.has_ended(&pod);
        let Owner::App(n) = pod.owner else { return };
        if let Some(missing) = self.apps.get_mut(n).and_then(|app| app.missing.last_mut()) {
            missing.at = at;
        }
        self.create_missing();
    }

    /// Operators demand that all pods of an application run.
    pub(crate) fn tighten(&mut self, n: usize) {
        if let Some(app) = self.apps.get_mut(n) {
            let wanted = if n.is_multiple_of(2) { Allowance::MinPercent(100) } else { Allowance::MaxUnavailable(0) };
            app.budget = Some(BudgetSpec::of(wanted));
            app.status.observed = false;
            self.touch(n);
        }
    }

    /// A pod as the coordinator names it.
    pub(crate) fn named(pod: &Pod) -> PodRef {
        PodRef { namespace: NAMESPACE.to_owned(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

impl App {
    /// A random application.
    fn random(n: u64, dice: &mut Rng) -> Self {
        let replicas = u32::try_from(dice.between(1, 4)).unwrap_or(1);
        let hopeless = dice.permille(120);
        let min_available = match dice.between(0, 3) {
            _ if hopeless => replicas,
            0 => 0,
            _ => replicas - 1,
        };
        let (sync_failed, twice) = (dice.permille(30), dice.permille(30));
        // No dice are used, so that budgets of every kind begin the same.
        let kind = n + u64::from(replicas);
        let allowance = Allowance::of_kind(kind, min_available, replicas);
        let always_allow = kind.is_multiple_of(3);
        let budget = dice.permille(750).then_some(BudgetSpec { allowance, always_allow, sync_failed, twice });
        Self {
            name: format!("app{n}"),
            replicas,
            stateful: dice.permille(400),
            grace_ms: if dice.permille(100) { 30_000 } else { dice.between(200, 6_000) },
            priority: if dice.permille(150) { 2_000_000_000 } else { i32::try_from(dice.between(0, 3)).unwrap_or(0) },
            local_storage: dice.permille(150),
            label: match dice.between(0, 19) {
                0 => "skip",
                1 => "last",
                2 => "wait",
                _ => "",
            },
            has_volume: dice.permille(300),
            tolerant: dice.permille(40),
            budget,
            status: BudgetStatus::default(),
            missing: Vec::new(),
            recounts: BTreeSet::new(),
        }
    }
}
