//! Recordings 12 and 20 to 26: access, custom resources, conflicts, deletion, lists.

use anyhow::{Context as _, Result};
use muster_kubernetes_stand_in::{Controller, Kind, Kubernetes};
use serde_json::{Value, json};

use super::replay::{Replay, adopt_uid, cluster, config};
use crate::client::{APPLY, Client, MERGE};

const GROUP: &str = "lcm.mirantis.com";
pub(crate) const REQUESTS: &str = "nodemaintenancerequests.lcm.mirantis.com";
pub(crate) const PATH: &str = "/apis/lcm.mirantis.com/v1alpha1/nodemaintenancerequests";

/// Serve the custom resources of the recordings.
pub(crate) fn serve(kubernetes: &Kubernetes) {
    kubernetes.serve_kind(Kind::custom(GROUP, "v1alpha1", "nodemaintenancerequests", "NodeMaintenanceRequest"));
    kubernetes.serve_kind(Kind::custom(GROUP, "v1alpha1", "nodeworkloadlocks", "NodeWorkloadLock").with_status());
}

/// Create maintenance requests `l0`, `l1` and so on.
pub(crate) fn requests(kubernetes: &Kubernetes, count: usize) -> Result<()> {
    (0..count).try_for_each(|number| {
        let object = json!({"metadata": {"name": format!("l{number}")}, "spec": {"nodeName": "n"}});
        kubernetes.put(REQUESTS, "", object)
    })
}

pub(crate) async fn access(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    replay.send(&client, "20-cr-before-crd").await?;
    serve(&kubernetes);
    kubernetes.add_token("powerless", "nobody", Vec::new());
    kubernetes.add_token("muster-token", "muster", Vec::new());
    let with = |token| Client::new(&kubernetes, 0, token);
    replay.send(&with(Some("wrong-token"))?, "12b-token-invalid").await?;
    replay.send(&with(None)?, "12c-anonymous").await?;
    kubernetes.add_token("expired", "system:serviceaccount:ev:default", Vec::new());
    kubernetes.revoke_token("expired");
    replay.send(&with(Some("expired"))?, "12e-token-expired").await?;
    kubernetes.namespace("ev")?;
    kubernetes.put("serviceaccounts", "ev", json!({"metadata": {"name": "default"}}))?;
    let token = replay.send(&client, "12d-tokenrequest").await?;
    replay.fields("12d-tokenrequest", &token.body, &["/kind", "/apiVersion", "/spec", "/metadata/name"])?;
    let review = replay.send(&with(Some("muster-token"))?, "12f-selfsubjectaccessreview").await?;
    replay.fields("12f-selfsubjectaccessreview", &review.body, &["/spec", "/status"])?;
    replay.send(&with(Some("powerless"))?, "26-rbac-cr-forbidden").await?;
    Ok(())
}

pub(crate) async fn status_subresource(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    serve(&kubernetes);
    for file in ["21d-cr-spec-missing", "21h-cr-no-scope", "21k-cr-percentage-101"] {
        let created = replay.send(&client, file).await?;
        replay.fields(file, &created.body, &["/spec"])?;
    }
    kubernetes.put(REQUESTS, "", json!({"metadata": {"name": "node-2"}, "spec": {"nodeName": "node-2"}}))?;
    let mut last = String::new();
    for file in [
        "22-lock-create-with-status",
        "22c-lock-status-patch",
        "22d-lock-status-through-main",
        "22e-lock-spec-through-status",
        "22i-lock-unset-errormessage-null",
    ] {
        let answer = replay.send(&client, file).await?;
        replay.fields(file, &answer.body, &["/spec", "/status", "/metadata/labels", "/metadata/annotations"])?;
        let revision = answer.text_at("/metadata/resourceVersion").to_owned();
        // The first two change the object, the others do not.
        let changes = file.starts_with("22-") || file.starts_with("22c");
        replay.check(file, "resourceVersion", (revision != last) == changes);
        last = revision;
    }
    replay.send(&client, "22h-status-of-kind-without-status-subresource").await?;
    replay.send(&client, "22j-strategic-patch-on-cr").await?;
    Ok(())
}

pub(crate) async fn conflicts_and_deletion(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    serve(&kubernetes);
    kubernetes.pause(Controller::Garbage, true);
    let spec = json!({"nodeName": "node-2", "scope": "os"});
    kubernetes.put(REQUESTS, "", json!({"metadata": {"name": "node-2"}, "spec": spec}))?;
    let uid = replay.recording("23b-put-stale-resourceversion")?["request"]["body"]["metadata"]["uid"].clone();
    adopt_uid(&kubernetes, (REQUESTS, "", "node-2"), &uid)?;
    for file in [
        "23-create-exists",
        "23b-put-stale-resourceversion",
        "23c-patch-stale-resourceversion",
        "23d-patch-other-uid",
        "23e-put-without-resourceversion",
        "23f-put-not-existing",
        "23i-dryrun-create-exists",
    ] {
        replay.send(&client, file).await?;
    }
    let finalizers = replay.recording("24-delete-with-finalizer")?["body"]["metadata"]["finalizers"].clone();
    let patch = json!({"metadata": {"finalizers": finalizers, "labels": {"a": "b"}}});
    client.send("PATCH", &format!("{PATH}/node-2"), MERGE, &patch).await?;
    for file in [
        "24-delete-with-finalizer",
        "24b-get-terminating",
        "24c-create-while-terminating",
        "24d-delete-again",
        "24e-patch-spec-while-terminating",
        "24f-add-finalizer-while-terminating",
        "24g-delete-uid-mismatch",
    ] {
        replay.send(&client, file).await?;
    }
    let applied = replay.send(&client, "24h-ssa-while-terminating").await?;
    replay.fields("24h-ssa-while-terminating", &applied.body, &["/spec", "/metadata/labels"])?;
    kubernetes.put(REQUESTS, "", json!({"metadata": {"name": "x7"}, "spec": spec}))?;
    kubernetes.put(REQUESTS, "", json!({"metadata": {"name": "x8"}, "spec": spec}))?;
    for file in [
        "24i-remove-finalizer",
        "24j-get-gone",
        "24k-delete-gone",
        "24l-delete-without-finalizer",
        "24m-recreate-new-uid",
        "24n-delete-foreground",
    ] {
        let answer = replay.send(&client, file).await?;
        if file == "24m-recreate-new-uid" {
            replay.check(file, "another uid", answer.body["metadata"]["uid"] != uid);
        }
    }
    Ok(())
}

pub(crate) async fn apply(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    serve(&kubernetes);
    let created = replay.send(&client, "23g-ssa-create").await?;
    replay.fields("23g-ssa-create", &created.body, &["/spec"])?;
    replay.send(&client, "23h-ssa-conflict").await?;
    // The same by force, and the first manager has lost the field.
    let forced = replay.recording("23h-ssa-conflict")?["request"].clone();
    let path = format!("{PATH}/ssa?fieldManager=other&force=true");
    let answer = client.send("PATCH", &path, APPLY, &forced["body"]).await?;
    replay.check("23h-ssa-conflict", "the same by force", answer.status == 200);
    let first = replay.recording("23g-ssa-create")?["request"].clone();
    let path = format!("{PATH}/ssa?fieldManager=muster");
    let answer = client.send("PATCH", &path, APPLY, &first["body"]).await?;
    replay.check("23h-ssa-conflict", "a conflict the other way round", answer.status == 409);
    Ok(())
}

pub(crate) async fn lists(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    serve(&kubernetes);
    let recorded = replay.recording("25-list-limit")?["body"]["metadata"]["remainingItemCount"].clone();
    requests(&kubernetes, 2 + usize::try_from(recorded.as_u64().context("count")?)?)?;
    let names = |list: &Value| {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Value::from(items.iter().map(|item| item["metadata"]["name"].clone()).collect::<Vec<_>>())
    };
    let first = replay.send(&client, "25-list-limit").await?;
    // Objects that appear between the pages are not part of the list.
    kubernetes.put(REQUESTS, "", json!({"metadata": {"name": "l10a"}}))?;
    kubernetes.put(REQUESTS, "", json!({"metadata": {"name": "l1a"}}))?;
    let token = first.text_at("/metadata/continue").to_owned();
    let path = format!("{PATH}?limit=2&continue={token}");
    let second = replay.send_to(&client, "25b-list-continue", &path).await?;
    for (file, answer) in [("25-list-limit", &first), ("25b-list-continue", &second)] {
        replay.fields(file, &answer.body, &["/metadata/remainingItemCount"])?;
        replay.check(file, "order of items", {
            let list = names(&answer.body);
            list[0].as_str() < list[1].as_str()
        });
    }
    let same = first.body["metadata"]["resourceVersion"] == second.body["metadata"]["resourceVersion"];
    replay.check("25b-list-continue", "same resourceVersion", same);
    replay.send(&client, "25c-list-bad-continue").await?;
    replay.send(&client, "25d-list-fieldselector-unsupported").await?;
    kubernetes.remove(REQUESTS, "", "l10a")?;
    kubernetes.remove(REQUESTS, "", "l1a")?;
    let partial = replay.send(&client, "25e-list-partial-metadata").await?;
    let same = ["/metadata/remainingItemCount", "/items/0/kind", "/items/0/apiVersion", "/items/0/spec"];
    replay.fields("25e-list-partial-metadata", &partial.body, &same)?;
    Ok(())
}
