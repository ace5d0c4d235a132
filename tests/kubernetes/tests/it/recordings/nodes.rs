//! Recordings 30 and 31: cordon, and a DaemonSet with the strategy OnDelete.

use std::time::Duration;

use anyhow::{Context as _, Result};
use muster_kubernetes_stand_in::{Allowance, Config, Controller, Kubernetes};
use serde_json::{Value, json};

use super::replay::{Replay, cluster, config};
use crate::client::{APPLY, Client, MERGE, until};

const DAEMON_SET: &str = "daemonsets.apps";
const NAME: &str = "tf-vrouter-agent";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

pub(crate) async fn cordon(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    kubernetes.add_token("powerless", "nobody", Vec::new());
    kubernetes.pause(Controller::Nodes, true);
    let node = || kubernetes.object("nodes", "", "node-5").map(|node| (*node).clone()).unwrap_or_default();
    let cordoned = replay.send(&client, "30-cordon-strategic").await?;
    replay.fields("30-cordon-strategic", &cordoned.body, &["/spec", "/metadata/annotations"])?;
    kubernetes.pause(Controller::Nodes, false);
    until("the taint appears", || node()["spec"]["taints"].is_array()).await?;
    let pointers = ["/spec/unschedulable", "/spec/taints/0/key", "/spec/taints/0/effect", "/spec/taints/1"];
    replay.send(&client, "30b-node-cordoned").await?;
    replay.fields("30b-node-cordoned", &node(), &pointers)?;
    let again = replay.send(&client, "30c-cordon-again").await?;
    replay.fields("30c-cordon-again", &again.body, &pointers)?;
    let same = again.body["metadata"]["resourceVersion"] == node()["metadata"]["resourceVersion"];
    replay.check("30c-cordon-again", "same resourceVersion", same);
    kubernetes.pause(Controller::Nodes, true);
    let back = replay.send(&client, "30d-uncordon-false").await?;
    replay.fields("30d-uncordon-false", &back.body, &pointers)?;
    kubernetes.pause(Controller::Nodes, false);
    until("the taint goes", || node()["spec"]["taints"].is_null()).await?;
    replay.send(&client, "30e-node-uncordoned").await?;
    replay.fields("30e-node-uncordoned", &node(), &["/spec"])?;
    client.send("PATCH", "/api/v1/nodes/node-5", STRATEGIC, &json!({"spec": {"unschedulable": true}})).await?;
    until("the taint appears", || node()["spec"]["taints"].is_array()).await?;
    let guarded = replay
        .send_edited(&client, "30h-cordon-with-annotation-one-patch", |request| {
            request["body"]["metadata"]["resourceVersion"] = node()["metadata"]["resourceVersion"].clone();
        })
        .await?;
    replay.fields("30h-cordon-with-annotation-one-patch", &guarded.body, &["/metadata/annotations"])?;
    replay.fields("30h-cordon-with-annotation-one-patch", &guarded.body, &pointers)?;
    replay.send(&client, "30i-cordon-stale-rv").await?;
    replay.send(&client, "30j-json-patch-test").await?;
    replay
        .send_edited(&client, "30k-node-put-stale", |request| {
            request["body"]["metadata"]["uid"] = node()["metadata"]["uid"].clone();
        })
        .await?;
    let powerless = Client::new(&kubernetes, 0, Some("powerless"))?;
    replay.send(&powerless, "30l-cordon-no-rights").await?;
    replay.send(&client, "30m-cordon-node-gone").await?;
    Ok(())
}

pub(crate) async fn cordon_by_apply(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    let cordoned = replay.send(&client, "30f-cordon-ssa").await?;
    replay.check("30f-cordon-ssa", "unschedulable", cordoned.body["spec"]["unschedulable"] == true);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-5"}});
    let path = "/api/v1/nodes/node-5?fieldManager=muster";
    let given_back = client.send("PATCH", path, APPLY, &node).await?;
    replay.check("30f-cordon-ssa", "given back", given_back.body["spec"]["unschedulable"].is_null());
    let patch = json!({"spec": {"unschedulable": true}});
    client.send("PATCH", "/api/v1/nodes/node-5", STRATEGIC, &patch).await?;
    let tainted = || kubernetes.object("nodes", "", "node-5").is_some_and(|node| node["spec"]["taints"].is_array());
    until("the taint appears", tainted).await?;
    let stays = replay.send(&client, "30g-uncordon-ssa-of-others-cordon").await?;
    let pointers = ["/spec/unschedulable", "/spec/taints/0/key", "/spec/taints/0/effect", "/spec/taints/1"];
    replay.fields("30g-uncordon-ssa-of-others-cordon", &stays.body, &pointers)?;
    Ok(())
}

fn daemon_set(kubernetes: &Kubernetes) -> Value {
    kubernetes.object(DAEMON_SET, "tf", NAME).map(|object| (*object).clone()).unwrap_or_default()
}

async fn observed(kubernetes: &Kubernetes, field: &str, value: Value) -> Result<()> {
    let holds = || {
        let object = daemon_set(kubernetes);
        object["status"]["observedGeneration"] == object["metadata"]["generation"] && object["status"][field] == value
    };
    until(&format!("{field} is {value}"), holds).await
}

fn pod_on(kubernetes: &Kubernetes, node: &str) -> Option<Value> {
    let pods = kubernetes.objects("pods");
    pods.iter().find(|pod| pod["spec"]["nodeName"] == node).map(|pod| (**pod).clone())
}

pub(crate) async fn on_delete(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(Config { pod_stop: Duration::from_millis(300), ..config() })?;
    kubernetes.namespace("tf")?;
    let spec = replay.recording("31-ds-ondelete-first")?["body"]["spec"].clone();
    kubernetes.put(DAEMON_SET, "tf", json!({"metadata": {"name": NAME}, "spec": spec}))?;
    observed(&kubernetes, "numberReady", 6.into()).await?;
    let shown = replay.send(&client, "31-ds-ondelete-first").await?;
    replay.fields("31-ds-ondelete-first", &shown.body, &["/spec", "/status", "/metadata/annotations"])?;
    first_pod_and_revision(replay, &client).await?;
    kubernetes.pause(Controller::DaemonSets, true);
    let patched = replay.send(&client, "31d-ds-update").await?;
    replay.fields("31d-ds-update", &patched.body, &["/spec/template", "/status", "/metadata/annotations"])?;
    kubernetes.pause(Controller::DaemonSets, false);
    observed(&kubernetes, "updatedNumberScheduled", Value::Null).await?;
    let mut recorded = replay.recording("31e-ds-status-after-update")?["body"][0].clone();
    if let Some(fields) = recorded.as_object_mut() {
        fields.remove("gen");
    }
    replay.equal("31e-ds-status-after-update", "status", &recorded, &daemon_set(&kubernetes)["status"]);
    let revisions = replay.send(&client, "31f-controllerrevisions-2").await?;
    compare_revisions(replay, "31f-controllerrevisions-2", &revisions.body)?;
    renewal(replay, &kubernetes, &client).await?;
    let path = format!("/apis/apps/v1/namespaces/tf/daemonsets/{NAME}");
    let back = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "fake/vrouter:1"}]}}}});
    client.send("PATCH", &path, STRATEGIC, &back).await?;
    observed(&kubernetes, "updatedNumberScheduled", 5.into()).await?;
    let revisions = replay.send(&client, "31i-controllerrevisions-rollback").await?;
    compare_revisions(replay, "31i-controllerrevisions-rollback", &revisions.body)?;
    let shown = replay.send(&client, "31j-ds-status-rollback").await?;
    replay.fields("31j-ds-status-rollback", &shown.body, &["/status", "/metadata/annotations"])?;
    kubernetes.budget_over("tf", "vrouter", NAME, Allowance::MaxUnavailable(1))?;
    let failed = || {
        kubernetes
            .object("poddisruptionbudgets.policy", "tf", "vrouter")
            .is_some_and(|b| b["status"]["conditions"].is_array())
    };
    until("the budget fails", failed).await?;
    let shown = replay.send(&client, "31k-pdb-over-daemonset").await?;
    let mut same = vec!["/spec", "/status/observedGeneration", "/status/disruptionsAllowed", "/status/expectedPods"];
    same.extend(["/status/conditions/0/reason", "/status/conditions/0/message", "/status/conditions/0/status"]);
    same.push("/status/conditions/0/observedGeneration");
    replay.fields("31k-pdb-over-daemonset", &shown.body, &same)?;
    let pod = pod_on(&kubernetes, "node-2").context("no pod on node-2")?;
    replay.send_edited(&client, "31l-evict-ds-pod-with-pdb", |request| evict_instead(request, &pod)).await?;
    let deleted = replay.send(&client, "31m-delete-ds-orphan").await?;
    replay.fields("31m-delete-ds-orphan", &deleted.body, &["/status", "/spec/updateStrategy"])
}

async fn first_pod_and_revision(replay: &mut Replay, client: &Client) -> Result<()> {
    let file = "31b-ds-pod";
    let pods = replay.send(client, file).await?;
    let recorded = replay.recording(file)?["body"]["items"][0].clone();
    let pod = &pods.body["items"][0];
    let keys = |value: &Value| json!(value.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()));
    replay.equal(file, "labels", &keys(&recorded["metadata"]["labels"]), &keys(&pod["metadata"]["labels"]));
    let field = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0\
                 /matchFields/0/key";
    for pointer in ["/metadata/ownerReferences/0/kind", "/metadata/ownerReferences/0/controller", field, "/kind"] {
        let at = |value: &Value| value.pointer(pointer).cloned().unwrap_or_default();
        replay.equal(file, pointer, &at(&recorded), &at(pod));
    }
    let tolerated = |pod: &Value| {
        let all = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
        all.iter().any(|toleration| toleration["key"] == "node.kubernetes.io/unschedulable")
    };
    replay.check(file, "toleration", tolerated(&recorded) == tolerated(pod));
    let file = "31c-controllerrevisions-1";
    let revisions = replay.send(client, file).await?;
    compare_revisions(replay, file, &revisions.body)?;
    replay.fields(file, &revisions.body, &["/items/0/data", "/items/0/metadata/annotations"])?;
    let hash = &revisions.body["items"][0]["metadata"]["labels"]["controller-revision-hash"];
    replay.equal(file, "hash", hash, &pod["metadata"]["labels"]["controller-revision-hash"]);
    Ok(())
}

/// Compare revisions by the image of their template, because hashes differ.
fn compare_revisions(replay: &mut Replay, file: &str, actual: &Value) -> Result<()> {
    let by_image = |list: &Value| {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let entry = |item: &Value| {
            let image = item.pointer("/data/spec/template/spec/containers/0/image").cloned().unwrap_or_default();
            let annotation = item["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone();
            json!([image, item["revision"], annotation, item["metadata"]["ownerReferences"][0]["name"]])
        };
        let mut entries: Vec<String> = items.iter().map(|item| entry(item).to_string()).collect();
        entries.sort();
        json!(entries)
    };
    let recorded = replay.recording(file)?;
    replay.equal(file, "revisions", &by_image(&recorded["body"]), &by_image(actual));
    Ok(())
}

fn evict_instead(request: &mut Value, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let query = request["path"].as_str().and_then(|path| path.split_once('?')).map(|(_, query)| format!("?{query}"));
    let query = query.unwrap_or_default();
    request["path"] = format!("/api/v1/namespaces/tf/pods/{name}/eviction{query}").into();
    request["body"]["metadata"]["name"] = name.into();
    if request["body"]["deleteOptions"]["preconditions"].is_object() {
        request["body"]["deleteOptions"]["preconditions"]["uid"] = pod["metadata"]["uid"].clone();
    } else if let Some(fields) = request["body"].as_object_mut() {
        fields.remove("deleteOptions");
    }
}

/// Recordings 31g and 31h: renewal of the pod on a cordoned node.
async fn renewal(replay: &mut Replay, kubernetes: &Kubernetes, client: &Client) -> Result<()> {
    client.send("PATCH", "/api/v1/nodes/node-2", MERGE, &json!({"spec": {"unschedulable": true}})).await?;
    let old = pod_on(kubernetes, "node-2").context("no pod on node-2")?;
    replay.send_edited(client, "31g-ds-pod-evict", |request| evict_instead(request, &old)).await?;
    let file = "31h-ds-renewal-timeline";
    let pods = kubernetes.objects("pods");
    let here: Vec<_> = pods.iter().filter(|pod| pod["spec"]["nodeName"] == "node-2").collect();
    let alone = here.len() == 1 && here.iter().all(|pod| pod["metadata"]["uid"] == old["metadata"]["uid"]);
    replay.check(file, "no new pod while the old one terminates", alone && pods.len() == 6);
    let renewed = || {
        pod_on(kubernetes, "node-2")
            .is_some_and(|pod| pod["metadata"]["uid"] != old["metadata"]["uid"] && pod["status"]["phase"] == "Running")
    };
    replay.check(file, "renewed on the cordoned node", until("renewal", renewed).await.is_ok());
    observed(kubernetes, "updatedNumberScheduled", 1.into()).await?;
    observed(kubernetes, "numberReady", 6.into()).await?;
    let hash = |pod: &Value| pod["metadata"]["labels"]["controller-revision-hash"].clone();
    let new = pod_on(kubernetes, "node-2").context("no pod on node-2")?;
    replay.check(file, "newest hash", hash(&new) != hash(&old));
    Ok(())
}
