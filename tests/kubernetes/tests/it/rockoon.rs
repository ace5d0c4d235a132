//! Rockoon's stand-in does what the recordings 60 to 69 show of the real one, and what its sources say beside them.

mod behaviour;
mod recorder;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use muster_kubernetes_stand_in::{
    Kubernetes, LoggedRequest,
    rockoon::{Rockoon, RockoonConfig},
};
use recorder::{REQUESTS, Recorder, normalized};
use serde_json::{Value, json};

use crate::{
    client::{Client, MERGE, until},
    recordings::{
        definitions::define,
        replay::{cluster, config},
    },
};

const CONTROLLER: &str = "openstack-control-plane";
const COMPUTE: &str = "openstack-compute-node";
const CLUSTER_REQUESTS: &str = "/apis/lcm.mirantis.com/v1alpha1/clustermaintenancerequests";
const JSON: &str = "application/json";

/// A recording of `tests/golden/rockoon`.
fn recording(file: &str) -> Result<Value> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/rockoon"));
    let bytes = fs::read(folder.join(format!("{file}.json"))).with_context(|| file.to_owned())?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// A cluster with the definitions, and what happens in it.
struct Stage {
    kubernetes: Kubernetes,
    client: Client,
    recorder: Recorder,
}

/// Short times. The longest waits for the next step of a test.
fn quick() -> RockoonConfig {
    RockoonConfig {
        retry: Duration::from_millis(300),
        poll: Duration::from_millis(10),
        reconnect: Duration::from_millis(20),
        pace: Duration::ZERO,
        ..RockoonConfig::default()
    }
}

impl Stage {
    async fn new(roles: &[(&str, &str)]) -> Result<Self> {
        let (kubernetes, client) = cluster(config())?;
        define(&kubernetes, &client).await?;
        for (node, role) in roles {
            kubernetes.label_node(node, role, Some("enabled"))?;
        }
        let recorder = Recorder::start(&client).await?;
        Ok(Self { kubernetes, client, recorder })
    }

    fn rockoon(&self, config: RockoonConfig) -> Result<Rockoon> {
        Rockoon::start(&self.kubernetes.kubeconfig("admin")?, config)
    }

    async fn request(&self, node: &str, more: Value) -> Result<()> {
        let mut spec = json!({"nodeName": node, "scope": "os"});
        if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
            spec.extend(more);
        }
        let object = json!({"metadata": {"name": node}, "spec": spec});
        let created = self.client.send("POST", REQUESTS, JSON, &object).await?;
        ensure!(created.status == 201, "{}", created.text);
        Ok(())
    }

    async fn delete(&self, node: &str) -> Result<()> {
        let deleted = self.client.send("DELETE", &format!("{REQUESTS}/{node}"), JSON, &Value::Null).await?;
        ensure!(deleted.status == 200, "{}", deleted.text);
        Ok(())
    }

    fn object(&self, plural: &str, name: &str) -> Value {
        let found = self.kubernetes.object(&format!("{plural}.lcm.mirantis.com"), "", name);
        found.map(|found| (*found).clone()).unwrap_or_default()
    }

    fn lock(&self, node: &str) -> Value {
        self.object("nodeworkloadlocks", &format!("openstack-{node}"))
    }

    async fn lock_is(&self, node: &str, state: &str) -> Result<()> {
        until(&format!("the lock of {node} is {state}"), || self.lock(node)["status"]["state"] == state).await
    }

    /// Every value that the status of a lock was given at this JSON pointer.
    fn said(&self, lock: &str, pointer: &str) -> Vec<Value> {
        let of_status = |request: &LoggedRequest| request.subresource == "status" && request.name == lock;
        let requests = self.kubernetes.requests().into_iter().filter(of_status);
        requests.filter_map(|request| request.body["status"].pointer(pointer).cloned()).collect()
    }

    /// The request is handled: Rockoon has put its annotation on it.
    async fn handled(&self, node: &str) -> Result<()> {
        let handled = || {
            let request = self.object("nodemaintenancerequests", node);
            request["metadata"]["annotations"]["kopf.zalando.org/last-handled-configuration"].is_string()
        };
        until(&format!("the request of {node} is handled"), handled).await
    }

    /// Wait until all that a recording shows has happened since a revision, in its order.
    async fn shows(&self, file: &str, since: u64) -> Result<()> {
        let mut recorded = Vec::new();
        let body = recording(file)?["body"].clone();
        for sample in body.as_array().context("samples")? {
            let nodes = sample[1].as_object().cloned().context("nodes")?;
            recorded.push(Value::Object(nodes.into_iter().map(|(node, state)| (node, normalized(state))).collect()));
        }
        let nodes: BTreeSet<String> =
            recorded.iter().filter_map(Value::as_object).flat_map(|n| n.keys().cloned()).collect();
        let happened = || is_within(&recorded, &self.recorder.states(since, &nodes));
        let seen = until(file, happened).await;
        seen.with_context(|| {
            let lines = |states: &[Value]| states.iter().map(|state| format!("\n  {state}")).collect::<String>();
            format!("recorded:{}\nseen:{}", lines(&recorded), lines(&self.recorder.states(since, &nodes)))
        })
    }
}

/// Do the states of a recording appear in this order? It is sampled, and shows some of them only.
fn is_within(recorded: &[Value], seen: &[Value]) -> bool {
    let mut seen = seen.iter();
    recorded.iter().all(|state| seen.any(|seen| seen == state))
}

#[tokio::test]
async fn rockoon_acts_as_recorded() -> Result<()> {
    let roles = [("node-1", CONTROLLER), ("node-2", COMPUTE), ("node-3", COMPUTE), ("node-4", COMPUTE)];
    let stage = Stage::new(&roles).await?;
    let Stage { kubernetes, client, .. } = &stage;
    // Long enough for a step of this test: the recordings begin between two tries.
    let retry = Duration::from_secs(1);
    let rockoon = stage.rockoon(RockoonConfig { late_locks: true, retry, ..quick() })?;
    let mut since = kubernetes.revision();
    stage.request("node-2", json!({})).await?;
    stage.shows("61-rockoon-nmr-create", since).await?;
    stage.handled("node-2").await?;
    let recorded = recording("61b-rockoon-nmr-object")?["body"].clone();
    same_object(&recorded, &stage.object("nodemaintenancerequests", "node-2"))?;
    since = kubernetes.revision();
    stage.request("node-3", json!({})).await?;
    stage.shows("62-rockoon-second-compute", since).await?;
    stage.handled("node-3").await?;
    stage.request("node-1", json!({})).await?;
    stage.handled("node-1").await?;
    stage.shows("63-rockoon-controller-while-computes", kubernetes.revision()).await?;
    since = kubernetes.revision();
    stage.request("node-4", json!({})).await?;
    stage.shows("64-rockoon-compute-while-controller", since).await?;
    since = kubernetes.revision();
    stage.delete("node-1").await?;
    stage.shows("64b-rockoon-refused-compute-later", since).await?;
    since = kubernetes.revision();
    stage.delete("node-2").await?;
    stage.shows("65-rockoon-nmr-delete", since).await?;
    since = kubernetes.revision();
    stage.request("node-5", json!({})).await?;
    stage.shows("66-rockoon-node-without-role", since).await?;
    let release = json!({"release": "99.9"});
    stage.request("node-6", release).await?;
    stage.handled("node-6").await?;
    since = kubernetes.revision();
    kubernetes.label_node("node-6", COMPUTE, Some("enabled"))?;
    let touch = json!({"metadata": {"labels": {"touched": "true"}}});
    client.send("PATCH", &format!("{REQUESTS}/node-6"), MERGE, &touch).await?;
    stage.shows("67-rockoon-release-mismatch", since).await?;
    since = kubernetes.revision();
    let right = json!({"spec": {"release": "21.0.0"}});
    client.send("PATCH", &format!("{REQUESTS}/node-6"), MERGE, &right).await?;
    stage.shows("67b-rockoon-release-corrected", since).await?;
    rockoon.stop();
    since = kubernetes.revision();
    stage.delete("node-3").await?;
    stage.shows("68-rockoon-down-delete", since).await?;
    ensure!(kubernetes.revision() == since + 1, "a stopped Rockoon writes nothing");
    rockoon.start_again()?;
    stage.shows("68b-rockoon-back", since).await
}

/// Compare an object with a recorded one, but for what differs in each run.
fn same_object(recorded: &Value, object: &Value) -> Result<()> {
    let known = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in ["creationTimestamp", "managedFields", "resourceVersion", "uid"] {
                metadata.remove(field);
            }
        }
        if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            // Their JSON has no order.
            annotations.values_mut().for_each(|value| *value = unfolded(value));
        }
        object
    };
    let (recorded, object) = (known(recorded), known(object));
    ensure!(recorded == object, "recorded {recorded:#}\nseen {object:#}");
    Ok(())
}

/// JSON within a text, as a value. Annotations hold annotations.
fn unfolded(value: &Value) -> Value {
    match value {
        Value::String(text) => match serde_json::from_str(text) {
            Ok(inner @ Value::Object(_)) => unfolded(&inner),
            _ => value.clone(),
        },
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), unfolded(value))).collect(),
        other => other.clone(),
    }
}

#[tokio::test]
async fn lock_has_recorded_fields() -> Result<()> {
    let stage = Stage::new(&[]).await?;
    let recorded = recording("60-rockoon-lock")?["body"].clone();
    let original = recorded["metadata"]["annotations"]["openstack.lcm.mirantis.com/original-node"].as_str();
    let original: Value = serde_json::from_str(original.context("the node")?)?;
    let labels = original["metadata"]["labels"].clone();
    stage.kubernetes.modify("nodes", "", "node-3", |node| node["metadata"]["labels"] = labels)?;
    let _rockoon = stage.rockoon(RockoonConfig { late_locks: true, ..quick() })?;
    stage.request("node-3", json!({})).await?;
    stage.lock_is("node-3", "inactive").await?;
    // The annotation with the handled state follows the lock.
    until("the lock is as recorded", || same_object(&recorded, &stage.lock("node-3")).is_ok()).await?;
    same_object(&recorded, &stage.lock("node-3"))
}

#[tokio::test]
async fn node_has_recorded_traces() -> Result<()> {
    let stage = Stage::new(&[("node-2", COMPUTE)]).await?;
    let _rockoon = stage.rockoon(quick())?;
    let recorded = recording("60b-node-under-rockoon")?["body"]["metadata"].clone();
    let label = format!("rockoon-{COMPUTE}");
    let handler = "kopf.zalando.org/node_change_handler";
    let node = || stage.kubernetes.object("nodes", "", "node-2").map(|node| (*node).clone()).unwrap_or_default();
    let as_recorded = || {
        let metadata = node()["metadata"].clone();
        metadata["finalizers"] == recorded["finalizers"]
            && metadata["labels"][&label] == recorded["labels"][&label]
            && metadata["annotations"][handler].is_string() == recorded["annotations"][handler].is_string()
    };
    until("the node is as recorded", as_recorded).await?;
    // Without a request, too: this process watches the nodes.
    stage.lock_is("node-2", "active").await
}

#[tokio::test]
async fn cluster_request_without_deployment_stays_unanswered() -> Result<()> {
    let stage = Stage::new(&[]).await?;
    let _rockoon = stage.rockoon(quick())?;
    let object = json!({"metadata": {"name": "edge-7"}, "spec": {"scope": "os"}});
    stage.client.send("POST", CLUSTER_REQUESTS, JSON, &object).await?;
    let recorded = recording("69-rockoon-cmr-no-osdpl")?["body"].clone();
    let seen = || stage.object("clustermaintenancerequests", "edge-7");
    until("the request is as recorded", || same_object(&recorded, &seen()).is_ok()).await?;
    let locks = stage.kubernetes.objects("clusterworkloadlocks.lcm.mirantis.com");
    ensure!(locks.is_empty(), "{locks:?}");
    Ok(())
}
