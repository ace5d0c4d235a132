//! Kubelets: start bound pods and end terminating ones.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::{
    Config,
    objects::{
        has, has_finalizers, is_ready, is_terminating, list, name, namespace, number, set, set_condition, text, uid,
        unset,
    },
    state::State,
    times,
};
use super::{Memory, START_AFTER, STUCK, UNREADY, annotation, create, is_finished};

const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn tick(state: &mut State, memory: &mut Memory, config: &Config) {
    for pod in state.store.all("pods") {
        let node = state.store.get("nodes", "", text(&pod, "/spec/nodeName"));
        // Only the kubelet of a ready node acts.
        let Some(node) = node.filter(|node| is_ready(node)) else { continue };
        if is_terminating(&pod) {
            end(state, memory, config, &pod);
        } else if text(&pod, "/status/phase") == "Pending" && misses_image(state, &pod) {
            // Its kubelet tries to pull it on and on.
        } else if text(&pod, "/status/phase") == "Pending" {
            let wanted = annotation(&pod, START_AFTER).and_then(|text| text.parse().ok());
            let after = wanted.map_or(config.pod_start, Duration::from_millis);
            if memory.age("start", uid(&pod)) >= after {
                memory.forget("start", uid(&pod));
                let address = text(&node, "/status/addresses/0/address").to_owned();
                state.store.update("pods", &pod, |pod| start(pod, &address));
            }
        } else if !is_ready(&pod) && !is_finished(&pod) && annotation(&pod, UNREADY).is_none() {
            state.store.update("pods", &pod, |pod| set_ready(pod, true));
        }
    }
}

fn misses_image(state: &State, pod: &Value) -> bool {
    let images = list(pod, "/spec/containers").iter().map(|container| text(container, "/image"));
    images.into_iter().any(|image| state.missing_images.contains(image))
}

fn start(pod: &mut Value, host: &str) {
    let now = times::now();
    let ready = annotation(pod, UNREADY).is_none();
    set(pod, &["status", "phase"], "Running");
    set(pod, &["status", "hostIP"], host);
    set(pod, &["status", "startTime"], now.as_str());
    for condition in ["PodReadyToStartContainers", "Initialized"] {
        set_condition(pod, condition, "True", json!({"lastProbeTime": null}));
    }
    let state = json!({
        "name": "c",
        "image": "fake/img:1",
        "imageID": "fake",
        "containerID": format!("fake://{}", uid(pod)),
        "ready": ready,
        "started": true,
        "restartCount": 0,
        "lastState": {},
        "state": {"running": {"startedAt": now}},
    });
    set(pod, &["status", "containerStatuses"], json!([state]));
    set_ready(pod, ready);
}

/// Set the conditions that say whether a pod serves.
pub(super) fn set_ready(pod: &mut Value, ready: bool) {
    let status = if ready { "True" } else { "False" };
    for condition in ["Ready", "ContainersReady"] {
        set_condition(pod, condition, status, json!({"lastProbeTime": null}));
    }
}

/// End a pod when its time is over. A finalizer keeps its object.
fn end(state: &mut State, memory: &mut Memory, config: &Config, pod: &Value) {
    let grace = Duration::from_secs(number(pod, "/metadata/deletionGracePeriodSeconds").unsigned_abs());
    if annotation(pod, STUCK).is_some() || memory.age("stop", uid(pod)) < grace.min(config.pod_stop) {
        return;
    }
    if has_finalizers(pod) {
        state.store.update("pods", pod, |pod| {
            set(pod, &["metadata", "deletionGracePeriodSeconds"], 0);
            if !is_finished(pod) {
                set_ready(pod, false);
            }
        });
        return;
    }
    memory.forget("stop", uid(pod));
    state.store.remove("pods", namespace(pod), name(pod));
    // The kubelet makes the mirror of a static pod again: only its manifest on the node ends it.
    if has(pod, &format!("/metadata/annotations/{}", MIRROR.replace('/', "~1"))) {
        let mut mirror = pod.clone();
        unset(&mut mirror, &["status"]);
        drop(create(state, "pods", namespace(pod), mirror));
    }
}
