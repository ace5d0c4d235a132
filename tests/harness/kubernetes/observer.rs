//! A view of the cluster from outside of Muster, by two watches: pods and nodes as they are, the fewest ready replicas
//! of every workload, the pods that left by other means than an eviction, and pods of somebody else on the run's nodes.
//! A watch shows every state in its order, so no short dip is missed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes, header::ACCEPT};
use serde_json::Value;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use super::{
    CLUSTER_LIMIT, LOOK_EVERY, RUN_LABEL, client::Client, is_cordoned, is_ready, is_terminating, label, list, name,
    text, uid,
};
use crate::fleet::look_every;

/// Time after which the server ends a watch, and a new one goes on.
const WATCH_SECONDS: u64 = 300;
/// Time for a line of a watch: it ends itself before.
const LINE_LIMIT: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// Pause after a watch failed.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Namespace and name.
pub(super) type Key = (String, String);
/// Namespace, and the label `app`.
type App = (String, String);

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) pods: BTreeMap<Key, Value>,
    pub(super) nodes: BTreeMap<String, Value>,
    /// Is everything listed once?
    listed: BTreeSet<&'static str>,
    run: String,
    /// Fewest ready replicas since the sampling began.
    lowest: BTreeMap<App, usize>,
    /// The namespace that is sampled.
    sampled: Option<String>,
    /// Pods that left by other means than an eviction, and those whose end was not seen.
    departures: BTreeMap<String, String>,
    /// Names of pods that were evicted.
    evicted: BTreeSet<String>,
    /// Was a node schedulable or cordoned? Every state since the sampling began, in order.
    cordons: BTreeMap<String, Vec<bool>>,
    /// The first pod of somebody else that was bound to a node of the run, and where.
    pub(super) foreign: Option<String>,
    /// The last failure of a watch, for messages.
    pub(super) failure: Option<String>,
}

impl Seen {
    /// Is it a pod of the run: with its label, or in a namespace of its own?
    pub(super) fn is_own(&self, pod: &Value) -> bool {
        label(pod, RUN_LABEL) == self.run || text(pod, "/metadata/namespace").starts_with(&self.run)
    }

    /// Ready pods of an app that stay.
    fn ready(&self, namespace: &str, app: &str) -> usize {
        let counts = |pod: &&Value| label(pod, "app") == app && is_ready(pod) && !is_terminating(pod);
        let within = self.pods.iter().filter(|((space, _), _)| space == namespace);
        within.map(|(_, pod)| pod).filter(counts).count()
    }

    /// Take the next state of an object. None: it is gone.
    fn take(&mut self, kind: &'static str, object: &Value, gone: bool) {
        if kind == "nodes" {
            let cordons = self.cordons.entry(name(object).to_owned()).or_default();
            if cordons.last() != Some(&is_cordoned(object)) {
                cordons.push(is_cordoned(object));
            }
            match gone {
                true => drop(self.nodes.remove(name(object))),
                false => drop(self.nodes.insert(name(object).to_owned(), object.clone())),
            }
            return;
        }
        let key = (text(object, "/metadata/namespace").to_owned(), name(object).to_owned());
        if self.sampled.as_ref() == Some(&key.0) && label(object, RUN_LABEL) == self.run {
            self.judge(object, gone);
        }
        let node = text(object, "/spec/nodeName");
        // The names of the run's nodes and namespaces begin with its own.
        if !self.is_own(object) && node.starts_with(&self.run) {
            self.foreign.get_or_insert_with(|| format!("pod {}/{} is on node {node}", key.0, key.1));
        }
        let app = (key.0.clone(), label(object, "app").to_owned());
        match gone {
            true => drop(self.pods.remove(&key)),
            false => drop(self.pods.insert(key, object.clone())),
        }
        let ready = self.ready(&app.0, &app.1);
        if let Some(lowest) = self.lowest.get_mut(&app) {
            *lowest = ready.min(*lowest);
        }
    }

    /// How does the pod leave?
    fn judge(&mut self, pod: &Value, gone: bool) {
        if !gone && !is_terminating(pod) {
            return;
        }
        let is_eviction = |condition: &Value| {
            text(condition, "/type") == "DisruptionTarget"
                && text(condition, "/status") == "True"
                && text(condition, "/reason") == "EvictionByEvictionAPI"
        };
        if list(pod, "/status/conditions").iter().any(is_eviction) {
            self.evicted.insert(name(pod).to_owned());
        } else {
            let what = format!("pod {} left without an eviction: {}", name(pod), pod["status"]);
            self.departures.entry(uid(pod).to_owned()).or_insert(what);
        }
    }

    /// Replace all objects of a kind by a list. An object that is not in it left unseen.
    fn replace(&mut self, kind: &'static str, objects: &[Value]) {
        let known: BTreeSet<&str> = objects.iter().map(uid).collect();
        let all: Vec<Value> = if kind == "nodes" {
            self.nodes.values().cloned().collect()
        } else {
            self.pods.values().cloned().collect()
        };
        for lost in all.iter().filter(|object| !known.contains(uid(object))) {
            self.take(kind, lost, true);
        }
        for object in objects {
            self.take(kind, object, false);
        }
        self.listed.insert(kind);
    }
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

/// The watches. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Observer {
    shared: Arc<Shared>,
    #[expect(dead_code, reason = "held for its Drop")]
    tasks: Arc<Tasks>,
}

#[derive(Debug)]
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Observer {
    /// Start to watch, and wait until everything was listed.
    pub(super) fn start(client: &Client, run: &str) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        lock(&shared.seen).run = run.to_owned();
        let runtime = client.runtime()?;
        let start = |kind: &'static str| runtime.spawn(follow(client.clone(), kind, shared.clone()));
        let tasks = Arc::new(Tasks(vec![start("pods"), start("nodes")]));
        let observer = Self { shared, tasks };
        observer.wait("the lists of pods and nodes", |seen| seen.listed.len() == 2)?;
        Ok(observer)
    }

    /// What was seen so far.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.shared.seen)
    }

    /// Wait for a change, or at most this long.
    pub(super) fn pause(&self, time: Duration) {
        let seen = lock(&self.shared.seen);
        drop(self.shared.changed.wait_timeout(seen, time).unwrap_or_else(PoisonError::into_inner));
    }

    /// Block until a pod of somebody else was bound to a node of the run. Returns the pod and its node.
    pub(super) fn wait_foreign_pod(&self) -> String {
        let mut seen = self.seen();
        loop {
            if let Some(foreign) = &seen.foreign {
                return foreign.clone();
            }
            seen = self.shared.changed.wait(seen).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wait until a condition holds.
    pub(super) fn wait(&self, what: &str, holds: impl Fn(&Seen) -> bool) -> Result<()> {
        let waited = look_every(LOOK_EVERY, what, CLUSTER_LIMIT, || Ok(holds(&self.seen()).then_some(())));
        waited.with_context(|| format!("what the suite sees: {}", self.summary()))
    }

    /// Nodes and pods in a few lines, for messages.
    pub(super) fn summary(&self) -> String {
        let seen = self.seen();
        let node = |node: &Value| {
            format!(
                "node {} ready {} cordoned {} taints {}",
                name(node),
                is_ready(node),
                node["spec"]["unschedulable"],
                node["spec"]["taints"]
            )
        };
        let pod = |((namespace, name), pod): (&Key, &Value)| {
            let (place, status) = (text(pod, "/spec/nodeName"), &pod["status"]);
            format!(
                "pod {namespace}/{name} on {place:?} {} ready {} {}",
                status["phase"],
                is_ready(pod),
                status["conditions"]
            )
        };
        let lines = seen.failure.iter().cloned().chain(seen.nodes.values().map(node)).chain(seen.pods.iter().map(pod));
        lines.collect::<Vec<_>>().join("\n  ")
    }

    /// Start to sample a namespace: its apps have these replicas now.
    pub(super) fn sample(&self, namespace: &str, apps: &[&str]) {
        let mut seen = self.seen();
        let counted = |app: &&str| ((namespace.to_owned(), (*app).to_owned()), seen.ready(namespace, app));
        seen.lowest = apps.iter().map(counted).collect();
        seen.sampled = Some(namespace.to_owned());
        seen.departures.clear();
        seen.evicted.clear();
        seen.cordons = seen.nodes.iter().map(|(name, node)| (name.clone(), vec![is_cordoned(node)])).collect();
    }

    /// Stop to judge how pods leave.
    pub(super) fn stop_sampling(&self) {
        self.seen().sampled = None;
    }

    /// Each app kept at least this many ready replicas, and each pod that left was evicted.
    pub(super) fn kept(&self, promises: &[(&str, usize)]) -> Result<()> {
        let seen = self.seen();
        for (app, least) in promises {
            let lowest = seen.lowest.iter().find(|((_, known), _)| known == app);
            let lowest = *lowest.with_context(|| format!("{app} was not sampled"))?.1;
            ensure!(lowest >= *least, "{app} had {lowest} ready replicas, and its budget promises {least}");
        }
        let departures: Vec<&str> = seen.departures.values().map(String::as_str).collect();
        ensure!(departures.is_empty(), "{}", departures.join("\n"));
        Ok(())
    }

    /// Was the node cordoned? Every state since the sampling began, in order.
    pub(super) fn cordons(&self, node: &str) -> Vec<bool> {
        self.seen().cordons.get(node).cloned().unwrap_or_default()
    }

    /// Names of the pods that were evicted since the sampling began.
    pub(super) fn evicted(&self) -> BTreeSet<String> {
        self.seen().evicted.clone()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// List, then watch, for ever. After a failure, list again.
async fn follow(client: Client, kind: &'static str, shared: Arc<Shared>) {
    loop {
        if let Err(error) = list_and_watch(&client, kind, &shared).await {
            lock(&shared.seen).failure = Some(format!("the watch of {kind} failed: {error:#}"));
        }
        sleep(AGAIN_AFTER).await;
    }
}

async fn list_and_watch(client: &Client, kind: &'static str, shared: &Shared) -> Result<()> {
    let lists = client.clone();
    let (objects, mut version) = spawn_blocking(move || lists.list(&format!("/api/v1/{kind}"))).await??;
    lock(&shared.seen).replace(kind, &objects);
    shared.changed.notify_all();
    loop {
        let path = format!(
            "/api/v1/{kind}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        );
        let request = Request::get(path).header(ACCEPT, "application/json").body(Full::new(Bytes::new()))?;
        let response = client.exchange(request).await?;
        ensure!(response.status().is_success(), "the API server answers {}", response.status());
        let mut body = response.into_body();
        let mut pending = Vec::new();
        while let Some(frame) = timeout(LINE_LIMIT, body.frame()).await.map_err(|_| anyhow!("it is silent"))? {
            let Ok(data) = frame?.into_data() else { continue };
            pending.extend_from_slice(&data);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                version = event(kind, &serde_json::from_slice(&line)?, shared)?;
            }
        }
    }
}

/// Take an event. Returns its resourceVersion.
fn event(kind: &'static str, event: &Value, shared: &Shared) -> Result<String> {
    let object = &event["object"];
    match text(event, "/type") {
        "ADDED" | "MODIFIED" => lock(&shared.seen).take(kind, object, false),
        "DELETED" => lock(&shared.seen).take(kind, object, true),
        "BOOKMARK" => {}
        other => return Err(anyhow!("{other}: {}", text(object, "/message"))),
    }
    shared.changed.notify_all();
    Ok(text(object, "/metadata/resourceVersion").to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ready: bool) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web", RUN_LABEL: "run"}},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        })
    }

    fn observer(pods: &[Value]) -> Observer {
        let shared = Arc::new(Shared::default());
        let observer = Observer { shared, tasks: Arc::new(Tasks(Vec::new())) };
        observer.seen().run = "run".to_owned();
        observer.seen().replace("pods", pods);
        observer.sample("shop", &["web"]);
        observer
    }

    #[test]
    fn short_dip_is_seen() {
        let observer = observer(&[pod("a", true), pod("b", true)]);
        assert!(observer.kept(&[("web", 2)]).is_ok());
        observer.seen().take("pods", &pod("a", false), false);
        observer.seen().take("pods", &pod("a", true), false);
        assert!(observer.kept(&[("web", 1)]).is_ok());
        assert!(observer.kept(&[("web", 2)]).is_err());
    }

    /// However short it was there.
    #[test]
    fn foreign_pod_on_own_node_is_seen() {
        let bound = |namespace: &str, labels: Value, node: &str| {
            let metadata = json!({"name": "a", "namespace": namespace, "labels": labels});
            json!({"metadata": metadata, "spec": {"nodeName": node}})
        };
        let observer = observer(&[]);
        let take = |pod: Value, gone: bool| observer.seen().take("pods", &pod, gone);
        take(bound("shop", json!({RUN_LABEL: "run"}), "run-1"), false);
        take(bound("run-stage", json!({}), "run-1"), false);
        take(bound("shop", json!({}), ""), false);
        take(bound("shop", json!({}), "other"), false);
        assert_eq!(observer.seen().foreign, None);
        take(bound("shop", json!({}), "run-1"), false);
        take(bound("shop", json!({}), "run-1"), true);
        assert_eq!(observer.seen().foreign.as_deref(), Some("pod shop/a is on node run-1"));
    }

    #[test]
    fn deleted_pod_is_no_eviction() {
        let marked = |pod: &Value, reason: &str| {
            let mut pod = pod.clone();
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-28T00:00:00Z");
            pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
            pod
        };
        let evicted = observer(&[pod("a", true)]);
        evicted.seen().take("pods", &marked(&pod("a", true), "EvictionByEvictionAPI"), false);
        assert!(evicted.kept(&[("web", 0)]).is_ok() && evicted.evicted().contains("a"));
        for reason in ["PreemptionByScheduler", ""] {
            let deleted = observer(&[pod("a", true)]);
            deleted.seen().take("pods", &marked(&pod("a", true), reason), false);
            assert!(deleted.kept(&[("web", 0)]).is_err(), "{reason}");
        }
        let vanished = observer(&[pod("a", true)]);
        vanished.seen().replace("pods", &[]);
        assert!(vanished.kept(&[("web", 0)]).is_err());
    }
}
