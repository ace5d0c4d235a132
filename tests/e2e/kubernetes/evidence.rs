//! Evidence from outside of Muster: samples of the cluster's own state, taken all the while, and its request log.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::anyhow;
use muster_tests::fleet::pause;

use super::*;

const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Least time between two evictions of one pod.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Most time between a list that shows a pod and its eviction.
const LISTED_WITHIN: Duration = Duration::from_secs(2);
/// Further time for the list itself: its age counts from the last byte of its answer.
const LIST_TAKES: Duration = Duration::from_millis(500);
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSample {
    /// Is it unschedulable?
    pub(super) cordoned: bool,
    /// Pods that have to leave before its machine is disturbed.
    pub(super) leaving: BTreeSet<String>,
    /// Volumes that are attached to it.
    pub(super) volumes: BTreeSet<String>,
}

/// All nodes at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Unix milliseconds.
    pub(super) at_ms: u64,
    /// The nodes by name.
    pub(super) nodes: BTreeMap<String, NodeSample>,
}

/// What was sampled.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// In the order of time.
    pub(super) samples: Vec<Sample>,
    /// The node of every pod, by its UID.
    pub(super) homes: BTreeMap<String, String>,
}

/// Samples the cluster until it is ended.
pub(super) struct Observer {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

impl Observer {
    /// Begins to sample.
    pub(super) fn start(kubernetes: &Arc<Kubernetes>) -> Self {
        let (kubernetes, ends) = (Arc::clone(kubernetes), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            let mut seen = Seen::default();
            while !ended.load(Ordering::Relaxed) {
                seen.take(&kubernetes);
                pause(SAMPLE_EVERY);
            }
            seen
        });
        Self { ends, thread: Some(thread) }
    }

    /// What was seen.
    pub(super) fn end(mut self) -> Result<Seen> {
        self.ends.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it ends once")?;
        thread.join().map_err(|_| anyhow!("the observer panicked"))
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// Does the pod have to leave before its machine is disturbed?
fn must_leave(pod: &Value) -> bool {
    let owner = pod["metadata"]["ownerReferences"].as_array().and_then(|owners| owners.first());
    let of_daemon_set = owner.is_some_and(|owner| owner["kind"] == "DaemonSet");
    let mirror = pod["metadata"]["annotations"].get(MIRROR).is_some();
    let finished = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    let skipped = pod["metadata"]["labels"].get("muster/drain").is_some_and(|label| label == "skip");
    !of_daemon_set && !mirror && !finished && !skipped
}

/// Names of the pods on a node that have to leave, `NAMESPACE/NAME`.
pub(super) fn leaving(kubernetes: &Kubernetes, node: &str) -> Vec<String> {
    let pods = kubernetes.objects("pods");
    let here = pods.iter().filter(|pod| text(pod, "/spec/nodeName") == node && must_leave(pod));
    here.map(|pod| name_of(pod)).collect()
}

fn name_of(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

/// Unix milliseconds.
pub(super) fn unix_ms(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

impl Seen {
    fn take(&mut self, kubernetes: &Kubernetes) {
        let mut nodes: BTreeMap<String, NodeSample> = BTreeMap::new();
        for pod in kubernetes.objects("pods") {
            let node = text(&pod, "/spec/nodeName").to_owned();
            if node.is_empty() {
                continue;
            }
            self.homes.insert(text(&pod, "/metadata/uid").to_owned(), node.clone());
            if must_leave(&pod) {
                nodes.entry(node).or_default().leaving.insert(name_of(&pod));
            }
        }
        for attachment in kubernetes.objects("volumeattachments.storage.k8s.io") {
            let volume = text(&attachment, "/spec/source/persistentVolumeName").to_owned();
            nodes.entry(text(&attachment, "/spec/nodeName").to_owned()).or_default().volumes.insert(volume);
        }
        for node in kubernetes.objects("nodes") {
            let sample = nodes.entry(text(&node, "/metadata/name").to_owned()).or_default();
            sample.cordoned = node["spec"]["unschedulable"] == true;
        }
        // The moment after the look: what had left by an item's start was gone before.
        self.samples.push(Sample { at_ms: unix_ms(SystemTime::now()), nodes });
    }

    /// The samples of a node between two moments, Unix milliseconds.
    pub(super) fn between(&self, node: &str, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &NodeSample> {
        let within = self.samples.iter().filter(move |sample| (from_ms..=to_ms).contains(&sample.at_ms));
        within.filter_map(move |sample| sample.nodes.get(node))
    }

    /// Every item since the first sample ran on a cordoned node without a pod that has to leave, and without a volume.
    pub(super) fn ran_on_drained(&self, fleet: &Fleet, items: usize) -> Result<()> {
        let since_ms = self.samples.first().context("a sample")?.at_ms;
        let effects: Vec<_> = fleet.effects()?.into_iter().filter(|effect| effect.at_ms >= since_ms).collect();
        let starts = effects.iter().filter(|effect| effect.is_start);
        ensure!(starts.clone().count() == items, "{items} items were to run: {effects:?}");
        for start in starts {
            let of_it = |end: &&muster_tests::fleet::effects::Effect| {
                !end.is_start && (&end.machine, &end.item) == (&start.machine, &start.item) && end.at_ms >= start.at_ms
            };
            let end = effects.iter().find(of_it).with_context(|| format!("{start:?}: its end"))?;
            // The first look that saw the start began before it.
            let mut samples = self.between(&start.machine, start.at_ms, end.at_ms).skip(1).peekable();
            ensure!(samples.peek().is_some(), "{start:?}: nothing was sampled until {end:?}");
            for node in samples {
                let drained = node.cordoned && node.leaving.is_empty() && node.volumes.is_empty();
                ensure!(drained, "{} of {} ran undrained: {node:?}", start.item, start.machine);
            }
        }
        Ok(())
    }
}

/// Muster's evictions.
pub(super) fn evictions(kubernetes: &Kubernetes) -> Vec<LoggedRequest> {
    let mut changes = changes(kubernetes);
    changes.retain(|request| request.subresource == "eviction");
    changes
}

fn uid_of(eviction: &LoggedRequest) -> Result<&str> {
    eviction.body["deleteOptions"]["preconditions"]["uid"].as_str().context("a UID precondition")
}

/// No pod is evicted again within 5 s. Returns how many were refused.
pub(super) fn evicted_rarely(kubernetes: &Kubernetes) -> Result<usize> {
    let evictions = evictions(kubernetes);
    let mut last: BTreeMap<&str, SystemTime> = BTreeMap::new();
    for eviction in &evictions {
        if let Some(before) = last.insert(uid_of(eviction)?, eviction.at) {
            let after = eviction.at.duration_since(before).unwrap_or_default();
            ensure!(after >= AGAIN_AFTER, "{} was evicted again after {after:?}", eviction.name);
        }
    }
    Ok(evictions.iter().filter(|eviction| eviction.status == Some(429)).count())
}

/// Each eviction follows a list of the pods on that node in the last two seconds.
pub(super) fn evicted_after_list(kubernetes: &Kubernetes, seen: &Seen) -> Result<()> {
    let requests = kubernetes.requests();
    for eviction in evictions(kubernetes) {
        let node = seen.homes.get(uid_of(&eviction)?).with_context(|| format!("the node of {}", eviction.name))?;
        let of_node = |request: &&LoggedRequest| {
            request.verb == "list"
                && request.resource == "pods"
                && request.status == Some(200)
                && (request.query.contains(&format!("spec.nodeName%3D{node}"))
                    || request.query.contains(&format!("spec.nodeName={node}")))
        };
        let lists = requests.iter().filter(of_node).filter(|list| list.at <= eviction.at);
        let list = lists.map(|list| list.at).max().with_context(|| format!("a list before {eviction:?}"))?;
        let age = eviction.at.duration_since(list).unwrap_or_default();
        ensure!(age < LISTED_WITHIN + LIST_TAKES, "{} was evicted {age:?} after a list of {node}", eviction.name);
    }
    Ok(())
}

/// Muster's changes of a node, in order: does it cordon it?
pub(super) fn cordons(kubernetes: &Kubernetes, node: &str) -> Vec<bool> {
    let patches = changes(kubernetes).into_iter().filter(|request| request.resource == "nodes" && request.name == node);
    patches.map(|request| request.body["spec"]["unschedulable"] == true).collect()
}
