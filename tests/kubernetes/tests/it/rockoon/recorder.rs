//! Everything that happens to requests and locks, in the order of the revisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::client::Client;

pub(crate) const REQUESTS: &str = "/apis/lcm.mirantis.com/v1alpha1/nodemaintenancerequests";
const LOCKS: &str = "/apis/lcm.mirantis.com/v1alpha1/nodeworkloadlocks";

/// A watch event: is the object gone, and the object.
type Events = Arc<Mutex<BTreeMap<u64, (bool, Value)>>>;

/// Two watches.
pub(crate) struct Recorder(Events);

impl Recorder {
    pub(crate) async fn start(client: &Client) -> Result<Self> {
        let events = Events::default();
        let list = client.get(LOCKS).await?;
        let version = list.text_at("/metadata/resourceVersion");
        for collection in [REQUESTS, LOCKS] {
            let path = format!("{collection}?watch=1&resourceVersion={version}&timeoutSeconds=600");
            let response = client.open("GET", &path, &[], &Value::Null).await?;
            ensure!(response.status() == 200, "{path}");
            let events = events.clone();
            tokio::spawn(async move { read(response.into_body(), &events).await });
        }
        Ok(Self(events))
    }

    /// Request and lock of each of these nodes after every change since a revision, as the recordings show them.
    pub(crate) fn states(&self, since: u64, nodes: &BTreeSet<String>) -> Vec<Value> {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut objects: BTreeMap<(String, String), Value> = BTreeMap::new();
        let mut states = vec![state(&objects, nodes)];
        for (revision, (gone, object)) in events {
            let (kind, node) =
                (object["kind"].to_string(), object["spec"]["nodeName"].as_str().unwrap_or("").to_owned());
            if gone {
                objects.remove(&(kind, node));
            } else {
                objects.insert((kind, node), object);
            }
            if revision <= since {
                states.clear();
            }
            let now = state(&objects, nodes);
            if states.last() != Some(&now) {
                states.push(now);
            }
        }
        states
    }
}

async fn read(mut body: Incoming, events: &Events) -> Result<()> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        text.extend_from_slice(&frame?.into_data().ok().context("a frame without data")?);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line)?;
            let version = event["object"]["metadata"]["resourceVersion"].as_str().context("a resourceVersion")?;
            let entry = (event["type"] == "DELETED", event["object"].clone());
            events.lock().unwrap_or_else(PoisonError::into_inner).insert(version.parse()?, entry);
        }
    }
    Ok(())
}

fn state(objects: &BTreeMap<(String, String), Value>, nodes: &BTreeSet<String>) -> Value {
    let at = |kind: &str, node: &str| objects.get(&(format!("\"{kind}\""), node.to_owned()));
    let request = |object: &Value| {
        let annotations = object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        let annotations: Vec<String> = annotations.into_iter().map(|(key, _)| key).collect();
        json!({
            "finalizers": object["metadata"]["finalizers"],
            "deleting": !object["metadata"]["deletionTimestamp"].is_null(),
            "annotations": annotations,
        })
    };
    let lock = |object: &Value| {
        json!({
            "status": object["status"],
            "inner_state": object["metadata"]["annotations"]["inner_state"],
            "finalizers": object["metadata"]["finalizers"],
        })
    };
    let of_node = |node: &String| {
        let state = json!({
            "nmr": at("NodeMaintenanceRequest", node).map(request),
            "nwl": at("NodeWorkloadLock", node).map(lock),
        });
        (node.clone(), normalized(state))
    };
    Value::Object(nodes.iter().map(of_node).collect())
}

/// The state of a node without what differs in each run: the time of a message, and the order of annotations.
pub(crate) fn normalized(mut state: Value) -> Value {
    if let Some(message) = state.pointer_mut("/nwl/status/errorMessage") {
        let text = message.as_str().unwrap_or("");
        let time = "2026-11-27 02:12:28.309325";
        let is_time =
            |(letter, sample): (char, char)| letter == sample || (letter.is_ascii_digit() && sample.is_ascii_digit());
        let (start, rest) = text.split_at_checked(time.len()).unwrap_or(("", text));
        let dated = start.len() == time.len() && start.chars().zip(time.chars()).all(is_time);
        *message = if dated { format!("TIME{rest}").into() } else { text.into() };
    }
    if let Some(annotations) = state.pointer_mut("/nmr/annotations").and_then(Value::as_array_mut) {
        annotations.sort_by_key(Value::to_string);
    }
    state
}
