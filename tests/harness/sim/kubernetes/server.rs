//! The API server of a simulated cluster: its answers to a drain, as the recordings of a real one show them.

use std::collections::BTreeMap;

use muster_coordinator::facts::kubernetes::{
    Budget, Deletion, Eviction, KubernetesFailure, KubernetesNode, NodeLoad, NodeRef, Pod as ShownPod, PodRef,
    SCALE_DOWN_IS_DISABLED, ScaleDown, ScaleDownBefore,
};

use super::cluster::{App, Cluster, NAMESPACE, Node, Owner, Pod};

/// An accepted eviction: what is checked about it.
#[derive(Clone, Debug)]
pub(crate) struct Evicted {
    /// The pod, as it was right before.
    pub(crate) pod: Pod,
    /// It was healthy, and its budget was reduced for it.
    pub(crate) counted: bool,
}

fn conflict(what: &str) -> KubernetesFailure {
    KubernetesFailure::Conflict(format!("the object has been modified: {what}"))
}

impl Node {
    pub(crate) fn shown(&self) -> KubernetesNode {
        KubernetesNode {
            object: NodeRef {
                name: self.name.clone(),
                uid: self.uid.clone(),
                resource_version: self.version.to_string(),
            },
            boot_id: self.boot_id.clone(),
            labels: Vec::new(),
            internal_ips: self.addresses.clone(),
            unschedulable: self.unschedulable,
            ready: self.ready,
            deleting: self.held_until.is_some(),
            finalizers: self.held_until.map(|_| "example.com/holds".to_owned()).into_iter().collect(),
            drained_for: self.drained_for.clone(),
            keep_cordoned: self.keep_cordoned,
            scale_down: self.scale_down.clone(),
        }
    }
}

impl Cluster {
    /// The node at this very version.
    fn guarded(&mut self, wanted: &NodeRef) -> Result<usize, KubernetesFailure> {
        let found = self.nodes.iter().position(|node| node.name == wanted.name);
        let Some((place, node)) = found.and_then(|place| Some((place, self.nodes.get(place)?))) else {
            return Err(KubernetesFailure::NotFound(format!("nodes {:?} not found", wanted.name)));
        };
        if node.uid != wanted.uid {
            return Err(conflict("metadata.uid: field is immutable"));
        }
        if node.version.to_string() != wanted.resource_version {
            return Err(conflict("apply your changes to the latest version"));
        }
        Ok(place)
    }

    pub(crate) fn cordon(
        &mut self,
        wanted: &NodeRef,
        drained_for: &str,
        before: &ScaleDownBefore,
    ) -> Result<KubernetesNode, KubernetesFailure> {
        let place = self.guarded(wanted)?;
        let (version, at) = (self.number(), self.at);
        let Some(node) = self.nodes.get_mut(place) else { return Err(conflict("gone")) };
        if !node.unschedulable {
            node.cordoned_at = at;
        }
        (node.unschedulable, node.drained_for, node.version) = (true, Some(drained_for.to_owned()), version);
        node.scale_down = ScaleDown { now: Some(SCALE_DOWN_IS_DISABLED.to_owned()), before: Some(before.clone()) };
        Ok(node.shown())
    }

    pub(crate) fn uncordon(
        &mut self,
        wanted: &NodeRef,
        schedulable: bool,
        scale_down: Option<&ScaleDownBefore>,
    ) -> Result<KubernetesNode, KubernetesFailure> {
        let place = self.guarded(wanted)?;
        let version = self.number();
        let Some(node) = self.nodes.get_mut(place) else { return Err(conflict("gone")) };
        (node.drained_for, node.scale_down.before, node.version) = (None, None, version);
        if let Some(ScaleDownBefore(value)) = scale_down {
            node.scale_down.now.clone_from(value);
        }
        node.unschedulable &= !schedulable;
        Ok(node.shown())
    }

    /// Everything on the node of this name.
    pub(crate) fn load(&self, name: &str) -> NodeLoad {
        let Some(node) = self.nodes.iter().find(|node| node.name == name) else { return NodeLoad::default() };
        let there: Vec<&Pod> = self.pods.iter().filter(|pod| pod.node.as_ref() == Some(&node.uid)).collect();
        let mut budgets = BTreeMap::new();
        for app in there.iter().filter_map(|pod| self.app_of(pod)) {
            budgets.extend(app.budgets().into_iter().map(|name| (name, app.shown_budget())));
        }
        let with_volume = |pod: &&&Pod| self.must_leave(pod) && self.app_of(pod).is_some_and(|app| app.has_volume);
        let attached = there.iter().filter(with_volume).map(|pod| format!("pv-{}", pod.uid));
        let detaching = node.detaching.iter().filter(|(_, at)| *at > self.at).map(|(name, _)| name.clone());
        let mut pods: Vec<ShownPod> = there.iter().map(|pod| self.shown(pod)).collect();
        pods.sort_by(|one, other| one.object.cmp(&other.object));
        NodeLoad { pods, budgets, attachments: attached.chain(detaching).collect() }
    }

    fn shown(&self, pod: &Pod) -> ShownPod {
        let app = self.app_of(pod);
        let controller = match pod.owner {
            Owner::App(_) => app.map(|app| format!("ReplicaSet/{}", app.name)),
            Owner::DaemonSet => Some("DaemonSet/network".to_owned()),
            Owner::Mirror => Some("Node/self".to_owned()),
            Owner::FinishedJob => Some("Job/once".to_owned()),
            Owner::Nothing => None,
        };
        let grace_ms = app.map_or(1_000, |app| app.grace_ms);
        ShownPod {
            object: Self::named(pod),
            controller,
            of_daemon_set: pod.owner == Owner::DaemonSet,
            mirror: pod.owner == Owner::Mirror,
            finished: pod.owner == Owner::FinishedJob,
            deletion_s: pod.deleted_at.map(|at| i64::try_from((at + grace_ms) / 1_000).unwrap_or(i64::MAX)),
            grace_s: pod.deleted_at.map_or(0, |_| i64::try_from(grace_ms / 1_000).unwrap_or(i64::MAX)),
            finalizers: if pod.held { vec!["example.com/slow".to_owned()] } else { Vec::new() },
            local_storage: app.is_some_and(|app| app.local_storage),
            priority: app.map_or(0, |app| app.priority),
            drain_label: app.map_or("", |app| app.label).to_owned(),
            budgets: app.map(App::budgets).unwrap_or_default(),
            claims: Vec::new(),
        }
    }

    /// An eviction with a UID precondition. The budget is checked, and reduced, before the UID.
    pub(crate) fn evict(&mut self, wanted: &PodRef) -> (Eviction, Option<Evicted>) {
        let Some(pod) = self.pods.iter().find(|pod| pod.name == wanted.name).cloned() else {
            return (Eviction::Gone, None);
        };
        let app = match pod.owner {
            Owner::App(n) => self.apps.get(n).filter(|app| app.budget.is_some()).map(|_| n),
            Owner::DaemonSet | Owner::Mirror | Owner::FinishedJob | Owner::Nothing => None,
        };
        let ready = self.is_ready(&pod);
        let exempt = pod.deleted_at.is_some() || pod.node.is_none();
        let mut counted = false;
        if let Some(app) = app.and_then(|n| self.apps.get_mut(n)).filter(|_| !exempt) {
            match app.allow(&pod.name, ready, self.at) {
                Ok(reduced) => counted = reduced,
                Err(refusal) => return (refusal, None),
            }
        }
        // Without a precondition any pod of this name is evicted.
        if pod.uid != wanted.uid && !wanted.uid.is_empty() {
            return (Eviction::Replaced, None);
        }
        let counted = counted && ready;
        if pod.deleted_at.is_none() {
            self.mark_deleted(&pod.uid, true);
            return (Eviction::Accepted, Some(Evicted { pod, counted }));
        }
        (Eviction::Accepted, None)
    }
}

impl Cluster {
    /// A deletion with a UID precondition: budgets do not count. Returns the UID of the deleted pod.
    pub(crate) fn delete(&mut self, wanted: &PodRef) -> (Deletion, Option<String>) {
        let Some(uid) = self.pods.iter().find(|pod| pod.name == wanted.name).map(|pod| pod.uid.clone()) else {
            return (Deletion::Gone, None);
        };
        if uid != wanted.uid && !wanted.uid.is_empty() {
            return (Deletion::Replaced, None);
        }
        self.mark_deleted(&uid, false);
        (Deletion::Accepted, Some(uid))
    }
}

impl App {
    fn shown_budget(&self) -> Budget {
        let status = &self.status;
        let narrow = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        let failed = self.budget.is_some_and(|budget| budget.sync_failed);
        Budget {
            observed: status.observed,
            sync_failed: failed.then(|| "found no controller ref".to_owned()),
            allowed: narrow(status.allowed),
            healthy: narrow(status.healthy),
            desired: narrow(status.desired),
            expected: narrow(status.expected),
            disrupted: status.disrupted.keys().cloned().collect(),
        }
    }

    /// Does the budget allow the eviction of this pod? Ok: whether it was reduced for it.
    fn allow(&mut self, pod: &str, ready: bool, at: u64) -> Result<bool, Eviction> {
        let Some(budget) = self.budget else { return Ok(false) };
        let name = format!("{NAMESPACE}/{}", self.name);
        if budget.twice {
            let message = "This pod has more than one PodDisruptionBudget".to_owned();
            return Err(Eviction::TwoBudgets(message));
        }
        if !self.status.observed {
            let message = format!("The disruption budget {name} is still being processed by the server.");
            return Err(Eviction::Unobserved(message));
        }
        let status = &mut self.status;
        if !ready && (budget.always_allow || (status.desired > 0 && status.healthy >= status.desired)) {
            return Ok(false);
        }
        if status.allowed == 0 {
            let (healthy, desired) = (status.healthy, status.desired);
            let message = format!("The disruption budget {name} needs {desired} healthy pods and has {healthy}.");
            return Err(Eviction::Budget(message));
        }
        status.allowed -= 1;
        status.disrupted.insert(pod.to_owned(), at);
        Ok(true)
    }
}
