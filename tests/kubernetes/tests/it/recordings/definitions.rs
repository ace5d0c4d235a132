//! Recordings 20 to 22: definitions of custom resources, and what their schemas refuse.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use muster_kubernetes_stand_in::{Controller, Kubernetes};
use serde_json::{Value, json};

use super::replay::{Replay, cluster, config};
use crate::client::{Answer, Client, MERGE, until};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const RESOURCE: &str = "customresourcedefinitions.apiextensions.k8s.io";
const JSON: &str = "application/json";

/// The kinds of Rockoon's chart.
const KINDS: [&str; 6] = [
    "ClusterMaintenanceRequest",
    "NodeMaintenanceRequest",
    "ClusterWorkloadLock",
    "NodeWorkloadLock",
    "NodeDeletionRequest",
    "NodeDisableNotification",
];

/// The definition of a kind in a group.
fn definition(group: &str, version: &str, kind: &str, schema: Value, status: bool) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let subresources = if status { json!({"status": {}}) } else { json!({}) };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"kind": kind, "plural": plural},
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": subresources,
            }],
        },
    })
}

/// The definition of a kind of the handshake.
fn of_handshake(kind: &str) -> Value {
    let lock = kind.ends_with("Lock");
    let required = match kind {
        "ClusterMaintenanceRequest" => vec![],
        "ClusterWorkloadLock" => vec!["controllerName"],
        "NodeWorkloadLock" => vec!["controllerName", "nodeName"],
        _ => vec!["nodeName"],
    };
    let text = json!({"type": "string"});
    let mut properties = json!({"spec": {
        "type": "object",
        "required": required,
        "properties": {
            "controllerName": text,
            "nodeName": text,
            "nodeDeletionRequestSupported": {"type": "boolean"},
            "release": text,
            "scope": {"type": "string", "enum": ["os", "drain"]},
        },
    }});
    if lock {
        properties["status"] = json!({
            "type": "object",
            "required": ["state"],
            "properties": {
                "state": {"type": "string", "enum": ["inactive", "active", "failed"]},
                "errorMessage": text,
                "release": text,
                "inactivationProgress": {
                    "type": "object",
                    "properties": {"percentage": {"type": "integer", "maximum": 100}, "description": text},
                },
            },
        });
    }
    let schema = json!({"type": "object", "properties": properties});
    definition("lcm.mirantis.com", "v1alpha1", kind, schema, lock)
}

async fn established(kubernetes: &Kubernetes, name: &str) -> Result<()> {
    let established = || {
        let definition = kubernetes.object(RESOURCE, "", name);
        let conditions = definition.and_then(|found| found["status"]["conditions"].as_array().cloned());
        let is_it = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        conditions.is_some_and(|conditions| conditions.iter().any(is_it))
    };
    until(&format!("{name} is established"), established).await
}

/// Create the definitions of the handshake's kinds that do not exist yet, and wait until they are served.
pub(crate) async fn define(kubernetes: &Kubernetes, client: &Client) -> Result<()> {
    for kind in KINDS {
        let definition = of_handshake(kind);
        let name = definition["metadata"]["name"].as_str().context("name")?;
        let created = client.send("POST", DEFINITIONS, JSON, &definition).await?;
        ensure!(matches!(created.status, 201 | 409), "{}", created.text);
        established(kubernetes, name).await?;
        let path = format!("/apis/lcm.mirantis.com/v1alpha1/{}s", kind.to_lowercase());
        // The first read after a definition is refused.
        client.get(&path).await?;
        ensure!(client.get(&path).await?.status == 200, "{path}");
    }
    Ok(())
}

pub(crate) async fn served(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    kubernetes.pause(Controller::Definitions, true);
    let created = replay.send(&client, "20b-crd-create").await?;
    replay.fields("20b-crd-create", &created.body, &["/spec", "/status", "/metadata/annotations"])?;
    replay.send(&client, "20e-crd-create-again").await?;
    kubernetes.pause(Controller::Definitions, false);
    established(&kubernetes, created.text_at("/metadata/name")).await?;
    let found = replay.send(&client, "20d-crd-established").await?;
    let pointers = ["/status/acceptedNames", "/status/storedVersions"];
    replay.fields("20d-crd-established", &found.body, &pointers)?;
    for condition in 0..3 {
        let fields = ["type", "status", "reason", "message"];
        let pointers = fields.map(|field| format!("/status/conditions/{condition}/{field}"));
        replay.fields("20d-crd-established", &found.body, &pointers.each_ref().map(String::as_str))?;
    }
    replay
        .send_edited(&client, "20c-cr-at-once-after-crd", |request| {
            request["contentType"] = JSON.into();
            request["body"] = json!({"metadata": {"name": "node-2"}, "spec": {"nodeName": "node-2", "scope": "os"}});
        })
        .await?;
    define(&kubernetes, &client).await?;
    discovery(replay, &client).await?;
    timeline(replay, &kubernetes, &client).await
}

async fn discovery(replay: &mut Replay, client: &Client) -> Result<()> {
    let file = "20f-discovery-group";
    let found = replay.send(client, file).await?;
    replay.fields(file, &found.body, &["/groupVersion"])?;
    let by_name = |body: &Value| {
        let resources = body["resources"].as_array().cloned().unwrap_or_default();
        let verbs = |resource: &Value| -> BTreeSet<String> {
            let verbs = resource["verbs"].as_array().cloned().unwrap_or_default();
            // The stand-in does not delete collections.
            verbs
                .iter()
                .filter_map(Value::as_str)
                .filter(|verb| *verb != "deletecollection")
                .map(str::to_owned)
                .collect()
        };
        let described = |resource: &Value| {
            let [name, singular, namespaced, kind] =
                ["name", "singularName", "namespaced", "kind"].map(|field| resource[field].clone());
            json!([name, singular, namespaced, kind, verbs(resource)])
        };
        let mut all: Vec<String> = resources.iter().map(|resource| described(resource).to_string()).collect();
        all.sort();
        Value::from(all)
    };
    let recorded = replay.recording(file)?;
    replay.equal(file, "resources", &by_name(&recorded["body"]), &by_name(&found.body));
    Ok(())
}

/// From the creation of a definition until its resource is served.
async fn timeline(replay: &mut Replay, kubernetes: &Kubernetes, client: &Client) -> Result<()> {
    let file = "20g-crd-served-timeline";
    let answers = replay.recording(file)?["body"]["answers"].clone();
    let mut compare = |what: &str, answer: &Answer| {
        let mut recorded = answers[what].clone();
        recorded["status"] = what.rsplit(' ').next().and_then(|status| status.parse::<u16>().ok()).into();
        replay.compare(file, &recorded, answer);
    };
    let (gets, posts) = ("/apis/x10.test/v1/t10s", "/apis/x11.test/v1/t11s");
    let object = json!({"metadata": {"name": "a"}});
    kubernetes.pause(Controller::Definitions, true);
    for (group, kind) in [("x10.test", "T10"), ("x11.test", "T11")] {
        let definition = definition(group, "v1", kind, json!({"type": "object"}), false);
        client.send("POST", DEFINITIONS, JSON, &definition).await?;
    }
    compare("GET 404", &client.get(gets).await?);
    compare("POST 404", &client.send("POST", posts, JSON, &object).await?);
    kubernetes.pause(Controller::Definitions, false);
    for name in ["t10s.x10.test", "t11s.x11.test"] {
        established(kubernetes, name).await?;
    }
    compare("GET 429", &client.get(gets).await?);
    compare("GET 200", &client.get(gets).await?);
    compare("POST 201", &client.send("POST", posts, JSON, &object).await?);
    Ok(())
}

pub(crate) async fn schemas(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    define(&kubernetes, &client).await?;
    for file in [
        "21-cr-unknown-enum",
        "21b-cr-missing-required",
        "21c-cr-wrong-type",
        "21d-cr-spec-missing",
        "21e-cr-unknown-field",
        "21f-cr-unknown-field-strict",
        "21g-cr-unknown-field-ignore",
        "21h-cr-no-scope",
        "21i-cr-status-on-kind-without-status",
        "21j-cr-bad-name",
        "22-lock-create-with-status",
        "22b-lock-status-patch-without-state",
        "22c-lock-status-patch",
        "22f-lock-status-bad-enum",
        "22g-lock-progress-101",
    ] {
        let answer = replay.send(&client, file).await?;
        if answer.status < 300 {
            replay.fields(file, &answer.body, &["/spec", "/status"])?;
        }
    }
    // Every fault is named, and a refused change changes nothing.
    let path = "/apis/lcm.mirantis.com/v1alpha1/nodemaintenancerequests/x8";
    let patch = json!({"spec": {"nodeName": 5, "scope": "reboot"}});
    let refused = client.send("PATCH", path, MERGE, &patch).await?;
    let fields = refused.body["details"]["causes"].as_array().cloned().unwrap_or_default();
    let fields: Vec<&Value> = fields.iter().map(|cause| &cause["field"]).collect();
    ensure!(refused.status == 422 && fields == ["spec.nodeName", "spec.scope"], "{}", refused.text);
    ensure!(client.get(path).await?.body["spec"] == json!({"nodeName": "node-2"}));
    Ok(())
}
