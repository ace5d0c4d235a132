//! Objects, their one counter of revisions, and the history that watches read.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::Value;
use tokio::sync::watch;

use super::{
    apply::Owners,
    objects::{self, is_ready, is_terminating, name, namespace},
    sampler::{self, Workload},
};

/// Events kept for watches. An older resourceVersion is answered with 410.
const HISTORY: usize = 20_000;

/// Resource as `Kind::resource` writes it, namespace, name.
pub(super) type Key = (String, String, String);

/// A change of one object.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) revision: u64,
    pub(super) resource: String,
    /// The object before the change; absent when it was created.
    pub(super) before: Option<Arc<Value>>,
    /// The object after the change. A deletion shows the last state under the deletion's revision.
    pub(super) object: Arc<Value>,
    pub(super) deleted: bool,
}

/// All objects of the cluster.
#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    revision: u64,
    floor: u64,
    history: VecDeque<Event>,
    changed: watch::Sender<u64>,
    pub(super) lowest_ready: BTreeMap<Workload, usize>,
    /// Fields of applied objects, by resource and UID.
    owners: BTreeMap<(String, String), Owners>,
}

impl Store {
    pub(super) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            revision: 1,
            floor: 0,
            history: VecDeque::new(),
            changed: watch::Sender::new(1),
            lowest_ready: BTreeMap::new(),
            owners: BTreeMap::new(),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The oldest revision that a watch can start from.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Forget the history, as etcd's compaction and an empty watch cache do.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.floor = self.revision;
    }

    /// The fields of an object that were applied.
    pub(super) fn owners(&self, resource: &str, uid: &str) -> Owners {
        self.owners.get(&(resource.to_owned(), uid.to_owned())).cloned().unwrap_or_default()
    }

    pub(super) fn set_owners(&mut self, resource: &str, uid: &str, owners: Owners) {
        self.owners.insert((resource.to_owned(), uid.to_owned()), owners);
    }

    /// Notifies of every new revision.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.get(&(resource.to_owned(), namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects of a resource in the order of namespace and name.
    pub(super) fn all(&self, resource: &str) -> Vec<Arc<Value>> {
        let start = (resource.to_owned(), String::new(), String::new());
        self.objects.range(start..).take_while(|(key, _)| key.0 == resource).map(|(_, v)| v.clone()).collect()
    }

    /// The objects of a resource in one namespace.
    pub(super) fn within(&self, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        let start = (resource.to_owned(), namespace.to_owned(), String::new());
        self.objects
            .range(start..)
            .take_while(|(key, _)| key.0 == resource && key.1 == namespace)
            .map(|(_, v)| v.clone())
            .collect()
    }

    /// Everything that lives in a namespace.
    pub(super) fn content(&self, namespace: &str) -> Vec<Key> {
        self.objects.keys().filter(|key| key.1 == namespace && !key.1.is_empty()).cloned().collect()
    }

    /// The objects of a resource as they were at a revision within the history.
    pub(super) fn snapshot(&self, resource: &str, revision: u64) -> Vec<Arc<Value>> {
        let mut objects: BTreeMap<(String, String), Arc<Value>> =
            self.all(resource).into_iter().map(key_and_value).collect();
        let later = self.history.iter().rev().take_while(|event| event.revision > revision);
        for event in later.filter(|event| event.resource == resource) {
            let (key, _) = key_and_value(event.object.clone());
            match &event.before {
                Some(before) => objects.insert(key, before.clone()),
                None => objects.remove(&key),
            };
        }
        objects.into_values().collect()
    }

    /// The events of a resource after a revision.
    pub(super) fn events_after(&self, resource: &str, revision: u64) -> Vec<Event> {
        let start = self.history.partition_point(|event| event.revision <= revision);
        self.history.iter().skip(start).filter(|event| event.resource == resource).cloned().collect()
    }

    /// Store an object under its own name. Assigns the resourceVersion.
    pub(super) fn put(&mut self, resource: &str, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        objects::set(&mut object, &["metadata", "resourceVersion"], self.revision.to_string());
        let key = (resource.to_owned(), namespace(&object).to_owned(), name(&object).to_owned());
        let object = Arc::new(object);
        let before = self.objects.insert(key, object.clone());
        self.record(resource, before, object.clone(), false);
        object
    }

    /// Change an object in place. An unchanged object keeps its resourceVersion.
    pub(super) fn update(&mut self, resource: &str, object: &Value, change: impl FnOnce(&mut Value)) {
        let Some(current) = self.get(resource, namespace(object), name(object)) else { return };
        let mut changed = (*current).clone();
        change(&mut changed);
        if changed != *current {
            self.put(resource, changed);
        }
    }

    /// Remove an object. Returns its last state.
    pub(super) fn remove(&mut self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        let last = self.objects.remove(&key)?;
        self.revision += 1;
        let mut object = (*last).clone();
        objects::set(&mut object, &["metadata", "resourceVersion"], self.revision.to_string());
        self.record(resource, Some(last.clone()), Arc::new(object), true);
        Some(last)
    }

    fn record(&mut self, resource: &str, before: Option<Arc<Value>>, object: Arc<Value>, deleted: bool) {
        let sampled = resource == "pods" && is_readiness_change(before.as_deref(), &object, deleted);
        let event = Event { revision: self.revision, resource: resource.to_owned(), before, object, deleted };
        let pod = event.object.clone();
        self.history.push_back(event);
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.floor = oldest.revision;
        }
        if sampled && let Some(workload) = sampler::workload_of(self, &pod) {
            let ready = sampler::ready(self, &workload);
            self.lowest_ready.entry(workload).and_modify(|lowest| *lowest = ready.min(*lowest));
        }
        self.changed.send_replace(self.revision);
    }
}

fn key_and_value(object: Arc<Value>) -> ((String, String), Arc<Value>) {
    ((namespace(&object).to_owned(), name(&object).to_owned()), object)
}

/// Did a ready pod stop to count?
fn is_readiness_change(before: Option<&Value>, after: &Value, deleted: bool) -> bool {
    let counts = |pod: &Value| is_ready(pod) && !is_terminating(pod);
    before.is_some_and(counts) && (deleted || !counts(after))
}
