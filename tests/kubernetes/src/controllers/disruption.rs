//! The disruption controller: counts the pods of every budget.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::super::{
    Config,
    objects::{
        controller_of, has, is_ready, is_terminating, name, namespace, number, selects, set, set_condition, text, uid,
        unset,
    },
    store::Store,
    times,
};
use super::{Memory, State};

const BUDGETS: &str = "poddisruptionbudgets.policy";

/// Count the pods of all budgets. Without a change it counts only those with a timer.
pub(super) fn tick(state: &mut State, memory: &mut Memory, config: &Config, changed: bool) {
    for budget in state.store.all(BUDGETS) {
        let waits = has(&budget, "/status/disruptedPods") || memory.is_waiting("budget", uid(&budget));
        if !changed && !waits {
            continue;
        }
        let mut counted = (*budget).clone();
        recount(&state.store, &mut counted, config.disrupted_pod_timeout);
        if counted == *budget {
            memory.forget("budget", uid(&budget));
        } else if memory.age("budget", uid(&budget)) >= config.disruption_lag {
            memory.forget("budget", uid(&budget));
            state.store.put(BUDGETS, counted);
        }
    }
}

/// Set the status of a budget.
fn recount(store: &Store, budget: &mut Value, timeout: Duration) {
    let mut pods = store.within("pods", namespace(budget));
    pods.retain(|pod| selects(budget.pointer("/spec/selector"), pod));
    let (expected, desired) = match expected_and_desired(store, budget, &pods) {
        Ok(counts) => counts,
        Err(message) => {
            // The real controller leaves the counts and observedGeneration as they are.
            set(budget, &["status", "disruptionsAllowed"], 0);
            set_condition(budget, "DisruptionAllowed", "False", json!({"reason": "SyncFailed", "message": message}));
            return;
        }
    };
    let disrupted = disrupted_pods(budget, &pods, timeout);
    let counts = |pod: &&Arc<Value>| is_ready(pod) && !is_terminating(pod) && !disrupted.contains_key(name(pod));
    let healthy = count(pods.iter().filter(counts).count());
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let generation = number(budget, "/metadata/generation");
    let fields = [
        ("observedGeneration", generation),
        ("disruptionsAllowed", allowed),
        ("currentHealthy", healthy),
        ("desiredHealthy", desired),
        ("expectedPods", expected),
    ];
    for (field, value) in fields {
        set(budget, &["status", field], value);
    }
    if disrupted.is_empty() {
        unset(budget, &["status", "disruptedPods"]);
    } else {
        set(budget, &["status", "disruptedPods"], disrupted);
    }
    let (status, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let fields = json!({"observedGeneration": generation, "reason": reason, "message": ""});
    set_condition(budget, "DisruptionAllowed", status, fields);
}

/// The pods that an eviction took from the budget and that still stand there.
fn disrupted_pods(budget: &Value, pods: &[Arc<Value>], timeout: Duration) -> Map<String, Value> {
    let empty = Map::new();
    let noted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).unwrap_or(&empty);
    let stands = |pod: &str| pods.iter().any(|known| name(known) == pod && !is_terminating(known));
    let is_fresh =
        |time: &Value| time.as_str().and_then(times::parse).is_some_and(|time| time + timeout > Timestamp::now());
    noted
        .iter()
        .filter(|(pod, time)| stands(pod) && is_fresh(time))
        .map(|(pod, time)| (pod.clone(), time.clone()))
        .collect()
}

/// Expected pods and desired healthy pods, or why they cannot be known.
fn expected_and_desired(store: &Store, budget: &Value, pods: &[Arc<Value>]) -> Result<(i64, i64), String> {
    let minimum = budget.pointer("/spec/minAvailable");
    if has(budget, "/spec/maxUnavailable") {
        let expected = scale_of_all(store, pods)?;
        let maximum = budget.pointer("/spec/maxUnavailable").map_or(0, |value| scaled(value, expected));
        return Ok((expected, (expected - maximum).max(0)));
    }
    match minimum {
        Some(Value::Number(_)) => Ok((count(pods.len()), number(budget, "/spec/minAvailable"))),
        Some(percent) => {
            let expected = scale_of_all(store, pods)?;
            Ok((expected, scaled(percent, expected)))
        }
        None => Ok((count(pods.len()), 0)),
    }
}

/// A number, or a percentage rounded up.
fn scaled(value: &Value, total: i64) -> i64 {
    match value {
        Value::String(percent) => {
            let percent: i64 = percent.trim_end_matches('%').parse().unwrap_or(0);
            (percent * total + 99) / 100
        }
        other => other.as_i64().unwrap_or(0),
    }
}

/// Replicas of all controllers of these pods. Only pods with a controller count.
fn scale_of_all(store: &Store, pods: &[Arc<Value>]) -> Result<i64, String> {
    let mut scales = BTreeMap::new();
    for pod in pods {
        if let Some(owner) = controller_of(pod)
            && let Some((uid, replicas)) = scale(store, namespace(pod), owner)?
        {
            scales.insert(uid, replicas);
        }
    }
    Ok(scales.values().sum())
}

/// UID and replicas of the controller that decides on a pod's number of replicas.
fn scale(store: &Store, namespace: &str, owner: &Value) -> Result<Option<(String, i64)>, String> {
    let resource = match text(owner, "/kind") {
        "ReplicaSet" => "replicasets.apps",
        "StatefulSet" => "statefulsets.apps",
        "Deployment" => "deployments.apps",
        "DaemonSet" => return Err("daemonsets.apps does not implement the scale subresource".to_owned()),
        "Job" => return Err("jobs.batch does not implement the scale subresource".to_owned()),
        "Node" => return Err("nodes does not implement the scale subresource".to_owned()),
        other => return Err(format!("{}s does not implement the scale subresource", other.to_lowercase())),
    };
    let Some(object) = store.get(resource, namespace, text(owner, "/name")) else { return Ok(None) };
    if uid(&object) != text(owner, "/uid") {
        return Ok(None);
    }
    // The Deployment of a ReplicaSet decides, if there is one.
    if let Some(above) = controller_of(&object)
        && let Some(found) = scale(store, namespace, above)?
    {
        return Ok(Some(found));
    }
    let replicas = if has(&object, "/spec/replicas") { number(&object, "/spec/replicas") } else { 1 };
    Ok(Some((uid(&object).to_owned(), replicas)))
}

fn count(pods: usize) -> i64 {
    i64::try_from(pods).unwrap_or(i64::MAX)
}
