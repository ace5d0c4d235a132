//! The controllers of a cluster, its scheduler and its kubelets, in one task.

mod attachments;
mod daemon_sets;
mod disruption;
mod garbage;
mod kubelet;
mod nodes;
mod scheduler;
mod workloads;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

pub(super) use self::attachments::create_claim;
use super::{
    Config, Shared, defaults,
    kinds::{self, Kind},
    objects::{condition, is_terminating, name, text},
    state::{State, lock},
    write,
};

/// Annotation that keeps a terminating pod from ending.
pub(super) const STUCK: &str = "stand-in/stuck";
/// Annotation that keeps a running pod from becoming ready.
pub(super) const UNREADY: &str = "stand-in/unready";
/// Annotation with the milliseconds that the pod takes to become ready.
pub(super) const START_AFTER: &str = "stand-in/start-after";

/// A part of the cluster that can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Budgets' status.
    Disruption,
    /// Deployments.
    Deployments,
    /// ReplicaSets.
    ReplicaSets,
    /// StatefulSets.
    StatefulSets,
    /// DaemonSets and their revisions.
    DaemonSets,
    /// Binding of pods to nodes.
    Scheduler,
    /// Start and end of pods on nodes.
    Kubelets,
    /// Taints of nodes, and readiness of pods on nodes that are not ready.
    Nodes,
    /// Content of terminating namespaces.
    Namespaces,
    /// Objects without their owner.
    Garbage,
    /// Pods on nodes that were deleted.
    Orphans,
    /// VolumeAttachments.
    Attachments,
    /// Definitions of custom resources.
    Definitions,
}

/// Memory of the controllers between ticks.
#[derive(Debug, Default)]
pub(super) struct Memory {
    since: HashMap<(&'static str, String), Instant>,
    /// Revision and paused controllers at the start of the last tick.
    seen: Option<(u64, BTreeSet<Controller>)>,
}

impl Memory {
    /// Time since this was first asked for.
    fn age(&mut self, what: &'static str, uid: &str) -> Duration {
        self.since.entry((what, uid.to_owned())).or_insert_with(Instant::now).elapsed()
    }

    /// Is this being timed?
    fn is_waiting(&self, what: &'static str, uid: &str) -> bool {
        self.since.contains_key(&(what, uid.to_owned()))
    }

    fn forget(&mut self, what: &'static str, uid: &str) {
        self.since.remove(&(what, uid.to_owned()));
    }
}

/// Run all controllers until the runtime ends.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut ticks = interval(shared.config.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut memory = Memory::default();
    loop {
        ticks.tick().await;
        // Controllers and kubelets need an API server to write anything.
        if shared.is_served() {
            tick(&mut lock(&shared.state), &mut memory, &shared.config);
        }
    }
}

fn tick(state: &mut State, memory: &mut Memory, config: &Config) {
    let all = [
        Controller::Nodes,
        Controller::Kubelets,
        Controller::Garbage,
        Controller::Orphans,
        Controller::Namespaces,
        Controller::Deployments,
        Controller::ReplicaSets,
        Controller::StatefulSets,
        Controller::DaemonSets,
        Controller::Scheduler,
        Controller::Attachments,
        Controller::Disruption,
        Controller::Definitions,
    ];
    let now = Some((state.store.revision(), state.paused.clone()));
    let changed = memory.seen != now;
    memory.seen = now;
    for controller in all {
        // These act as time passes; the others act on changes.
        let timed = match controller {
            Controller::Kubelets | Controller::Orphans | Controller::Attachments | Controller::Disruption => true,
            Controller::Nodes => config.node_grace.is_some(),
            _ => false,
        };
        if state.paused.contains(&controller) || !(timed || changed) {
            continue;
        }
        match controller {
            Controller::Disruption => disruption::tick(state, memory, config, changed),
            Controller::Deployments => workloads::deployments(state),
            Controller::ReplicaSets => workloads::replica_sets(state),
            Controller::StatefulSets => workloads::stateful_sets(state),
            Controller::DaemonSets => daemon_sets::tick(state),
            Controller::Scheduler => scheduler::tick(state),
            Controller::Kubelets if config.kubelets => kubelet::tick(state, memory, config),
            Controller::Kubelets => {}
            Controller::Nodes => nodes::tick(state, memory, config),
            Controller::Namespaces => garbage::namespaces(state),
            Controller::Garbage => garbage::tick(state),
            Controller::Orphans => garbage::orphans(state, memory, config),
            Controller::Attachments => attachments::tick(state, memory, config),
            Controller::Definitions => definitions(state),
        }
    }
}

/// Establish new definitions and serve their kinds, and end those that are deleted.
fn definitions(state: &mut State) {
    for definition in state.store.all(kinds::DEFINITIONS) {
        if is_terminating(&definition) {
            garbage::definition(state, &definition);
            continue;
        }
        if condition(&definition, "Established").is_some() {
            continue;
        }
        state.store.update(kinds::DEFINITIONS, &definition, kinds::establish);
        for kind in Kind::defined_by(&definition) {
            state.initializing.insert(kind.resource());
            state.serve(kind);
        }
    }
}

/// Create an object as a controller or a fixture does, with the server's rules for new objects.
pub(super) fn create(state: &mut State, resource: &str, namespace: &str, mut object: Value) -> Result<Arc<Value>> {
    let kind = state.kind(resource).with_context(|| format!("the stand-in does not serve {resource}"))?;
    let status = object.get("status").cloned();
    write::admit_creation(&state.store, &kind, namespace, name(&object))
        .map_err(|failure| anyhow!("{}", failure.status()))?;
    defaults::complete(&kind, namespace, &mut object);
    if state.store.get(resource, namespace, name(&object)).is_some() {
        return Err(anyhow!("{resource} {namespace}/{} already exists", name(&object)));
    }
    if let Some(status) = status {
        super::objects::set(&mut object, &["status"], status);
    }
    Ok(state.store.put(resource, object))
}

/// The value of an annotation.
fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations").and_then(|all| all.get(key)).and_then(Value::as_str)
}

/// Has the pod ended by itself?
fn is_finished(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}
