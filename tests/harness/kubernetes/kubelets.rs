//! The kubelets of the suite's nodes, all in one thread: they renew the nodes' Leases, let bound pods run and become
//! ready, and confirm the end of terminating pods, as kubelets do: by the status subresource, and by a deletion without
//! grace that names the pod's UID. Pods of somebody else are left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    client::{Client, MERGE, STRATEGIC},
    is_pending, is_ready, is_terminating, list, name,
    observer::Observer,
    text, uid, workloads,
};

/// Time from the binding of a pod until it is ready. Longer than a poll of Muster's takes, so that budgets matter.
const POD_START: Duration = Duration::from_millis(700);
/// Upper limit of the time that a terminating pod takes.
const POD_STOP: Duration = Duration::from_millis(500);
/// Period of a Lease's renewal. The node lifecycle controller waits for 40 s or more.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// Longest pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time after which an action without a visible effect is repeated.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// State that the thread and the handle share.
#[derive(Debug, Default)]
struct Shared {
    nodes: Mutex<BTreeSet<String>>,
    ended: AtomicBool,
    failure: Mutex<Option<String>>,
}

/// The running kubelets. Drop ends them.
#[derive(Debug)]
pub(super) struct Kubelets {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Kubelets {
    /// Start the thread, without a node.
    pub(super) fn start(client: &Client, observer: &Observer) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut work = Work {
            client: client.clone(),
            observer: observer.clone(),
            shared: shared.clone(),
            since: BTreeMap::new(),
            acted: BTreeMap::new(),
            beat: BTreeMap::new(),
            addresses: AtomicU32::new(0),
        };
        let thread = thread::Builder::new().name("kubelets".to_owned()).spawn(move || work.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Act for this node from now on.
    pub(super) fn add(&self, node: &str) {
        self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned());
    }

    /// Stop to act for this node.
    pub(super) fn remove(&self, node: &str) {
        self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }

    /// The last request that failed, for messages.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported by the thread itself
        }
    }
}

/// What the thread has.
struct Work {
    client: Client,
    observer: Observer,
    shared: Arc<Shared>,
    /// When was a pod first seen in this state, by state and UID?
    since: BTreeMap<(&'static str, String), Instant>,
    /// When was an action last taken, by action and UID?
    acted: BTreeMap<(&'static str, String), Instant>,
    /// When was a node's Lease renewed?
    beat: BTreeMap<String, Instant>,
    /// Addresses given to pods so far.
    addresses: AtomicU32,
}

impl Work {
    fn run(&mut self) {
        while !self.shared.ended.load(Ordering::Relaxed) {
            let nodes = self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (pods, known): (Vec<Value>, Vec<Value>) = {
                let seen = self.observer.seen();
                let here = |pod: &&Value| seen.is_own(pod) && nodes.contains(text(pod, "/spec/nodeName"));
                let known = nodes.iter().filter_map(|node| seen.nodes.get(node).cloned()).collect();
                (seen.pods.values().filter(here).cloned().collect(), known)
            };
            for node in &known {
                let kept = self.keep(node);
                self.note(kept);
            }
            for pod in &pods {
                let acted = self.act(pod);
                self.note(acted);
            }
            self.observer.pause(LOOK_EVERY);
        }
    }

    /// A failure is tried again; the waits of the suite show the last one.
    fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            let failure = Some(format!("a kubelet's request failed: {error:#}"));
            *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        }
    }

    /// May the action be taken now? Not a moment after it was taken.
    fn may(&mut self, action: &'static str, object: &Value) -> bool {
        let key = (action, uid(object).to_owned());
        let may = self.acted.get(&key).is_none_or(|at| at.elapsed() >= AGAIN_AFTER);
        if may {
            self.acted.insert(key, Instant::now());
        }
        may
    }

    fn age(&mut self, state: &'static str, object: &Value) -> Duration {
        self.since.entry((state, uid(object).to_owned())).or_insert_with(Instant::now).elapsed()
    }

    /// Renew the node's Lease, and report it Ready where a controller took that back.
    fn keep(&mut self, node: &Value) -> Result<()> {
        let node_name = name(node);
        if self.beat.get(node_name).is_none_or(|at| at.elapsed() >= HEARTBEAT) {
            self.beat.insert(node_name.to_owned(), Instant::now());
            let renewed = json!({"spec": {"renewTime": workloads::micro_time(Timestamp::now())}});
            let answer = self.client.patch(&workloads::lease_path(node_name), MERGE, &renewed)?;
            // The Lease is made after the node, and goes before it.
            ensure!(answer.status == 404 || answer.status < 300, "Lease {node_name}: {}", answer.body);
        }
        if !is_ready(node) && !is_terminating(node) && self.may("ready", node) {
            let status =
                json!({"metadata": {"uid": uid(node)}, "status": {"conditions": workloads::node_conditions()}});
            let path = format!("/api/v1/nodes/{node_name}/status");
            self.client.patch(&path, STRATEGIC, &status)?.object(&path)?;
        }
        Ok(())
    }

    fn act(&mut self, pod: &Value) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", text(pod, "/metadata/namespace"), name(pod));
        if is_terminating(pod) {
            let grace = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_u64).unwrap_or(0);
            if self.age("terminating", pod) >= POD_STOP.min(Duration::from_secs(grace)) && self.may("end", pod) {
                let answer = self.client.delete(&path, uid(pod), Some(0))?;
                // Gone, or another pod under its name: this one has ended.
                ensure!(matches!(answer.status, 200 | 202 | 404 | 409), "{path}: {}", answer.body);
            }
            return Ok(());
        }
        let runs = text(pod, "/status/phase") == "Running";
        let starts = is_pending(pod) && self.age("bound", pod) >= POD_START;
        if (starts || (runs && !is_ready(pod))) && self.may("start", pod) {
            let status = self.running(pod)?;
            let path = format!("{path}/status");
            let answer = self.client.patch(&path, STRATEGIC, &status)?;
            // It may have left in the meantime.
            ensure!(matches!(answer.status, 200 | 404 | 409 | 422), "{path}: {}", answer.body);
        }
        Ok(())
    }

    /// The status of a pod that runs and is ready.
    fn running(&self, pod: &Value) -> Result<Value> {
        let now = format!("{:.0}", Timestamp::now());
        let host = {
            let seen = self.observer.seen();
            let node = seen.nodes.get(text(pod, "/spec/nodeName")).context("the pod's node is gone")?;
            let addresses = list(node, "/status/addresses");
            let internal = addresses.iter().find(|address| text(address, "/type") == "InternalIP");
            text(internal.context("the node has no address")?, "/address").to_owned()
        };
        let known = text(pod, "/status/podIP");
        let address = if known.is_empty() { self.next_address() } else { known.to_owned() };
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
        let conditions: Vec<Value> =
            ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
                .map(condition)
                .to_vec();
        Ok(json!({
            "metadata": {"uid": uid(pod)},
            "status": {
                "phase": "Running",
                "conditions": conditions,
                "hostIP": host,
                "podIP": address,
                "podIPs": [{"ip": address}],
                "startTime": now,
                "containerStatuses": [{
                    "name": workloads::CONTAINER,
                    "image": workloads::IMAGE,
                    "imageID": "fake",
                    "containerID": format!("fake://{}", uid(pod)),
                    "ready": true,
                    "started": true,
                    "restartCount": 0,
                    "lastState": {},
                    "state": {"running": {"startedAt": now}},
                }],
            },
        }))
    }

    /// An address of 10.254.0.0/16.
    fn next_address(&self) -> String {
        let number = self.addresses.fetch_add(1, Ordering::Relaxed) + 1;
        format!("10.254.{}.{}", number / 250 % 250, number % 250 + 1)
    }
}
