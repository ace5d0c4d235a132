//! Recordings 40 to 43: watches, expired revisions, restarts.

use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::BodyExt as _;
use muster_kubernetes_stand_in::{Config, Fault, FaultAction, Kubernetes};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    objects::{PATH, REQUESTS, requests, serve},
    replay::{Replay, cluster, config},
};
use crate::client::{Client, MERGE, soon};

fn watched(config: Config) -> Result<(Kubernetes, Client)> {
    let (kubernetes, client) = cluster(config)?;
    serve(&kubernetes);
    Ok((kubernetes, client))
}

/// The recorded path with another timeout and, if given, another resourceVersion.
fn path(recording: &Value, timeout: u32, revision: Option<u64>) -> String {
    let recorded = recording["request"]["path"].as_str().unwrap_or("");
    let (start, query) = recorded.split_once('?').unwrap_or((recorded, ""));
    let edit = |part: &str| match (part.split_once('='), revision) {
        (Some(("timeoutSeconds", _)), _) => format!("timeoutSeconds={timeout}"),
        (Some(("resourceVersion", _)), Some(revision)) => format!("resourceVersion={revision}"),
        _ => part.to_owned(),
    };
    format!("{start}?{}", query.split('&').map(edit).collect::<Vec<_>>().join("&"))
}

/// The lines of a watch until its end, which may be a cut connection.
async fn lines(client: Client, path: String) -> Result<(u16, Vec<Value>)> {
    lines_with_start(client, path, oneshot::channel().0).await
}

/// The same. Tells `started` when the first line arrives.
async fn lines_with_start(client: Client, path: String, started: oneshot::Sender<()>) -> Result<(u16, Vec<Value>)> {
    let mut started = Some(started);
    let response = client.open("GET", &path, &[], &Value::Null).await?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        text.extend(frame.data_ref().context("trailers")?);
        if let Some(started) = started.take() {
            // An error means that the caller does not wait for it.
            let _ = started.send(());
        }
    }
    let lines = String::from_utf8(text)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok((status, lines))
}

fn types(lines: &Value) -> Value {
    lines
        .as_array()
        .map(|lines| lines.iter().map(|line| line["type"].clone()).collect::<Vec<_>>())
        .unwrap_or_default()
        .into()
}

fn compare_lines(replay: &mut Replay, file: &str, recording: &Value, answer: &(u16, Vec<Value>)) {
    replay.equal(file, "HTTP status", &recording["status"], &answer.0.into());
    replay.equal(file, "types", &types(&recording["body"]), &types(&json!(answer.1)));
    for (recorded, actual) in recording["body"].as_array().into_iter().flatten().zip(&answer.1) {
        if recorded["type"] == "ERROR" {
            replay.compare_status(file, &recorded["object"], &actual["object"]);
        } else {
            for field in ["kind", "apiVersion"] {
                replay.equal(file, field, &recorded["object"][field], &actual["object"][field]);
            }
        }
    }
}

pub(crate) async fn events(replay: &mut Replay) -> Result<()> {
    let file = "40-watch-events";
    let (kubernetes, client) = watched(Config { bookmark_every: Duration::from_millis(300), ..config() })?;
    let mut recording = replay.recording(file)?;
    let from = kubernetes.revision();
    let watching = tokio::spawn(lines(client.clone(), path(&recording, 2, Some(from))));
    let object = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "NodeMaintenanceRequest",
        "metadata": {"name": "w1"}, "spec": {"nodeName": "n", "scope": "os"}});
    client.send("POST", PATH, "application/json", &object).await?;
    let one = format!("{PATH}/w1");
    client.send("PATCH", &one, MERGE, &json!({"metadata": {"finalizers": ["a.b/c"]}})).await?;
    client.send("PATCH", &one, MERGE, &json!({"spec": {"scope": "drain"}})).await?;
    client.send("DELETE", &one, "", &Value::Null).await?;
    client.send("PATCH", &one, MERGE, &json!({"metadata": {"finalizers": null}})).await?;
    let mut answer = soon(watching).await???;
    // The number of bookmarks depends on the timeout.
    let bookmarks: Vec<Value> = answer.1.iter().filter(|line| line["type"] == "BOOKMARK").cloned().collect();
    let last = bookmarks.last().context("no bookmark")?.clone();
    let quiet =
        |line: &&Value| line["object"]["metadata"]["resourceVersion"] == last["object"]["metadata"]["resourceVersion"];
    replay.check(file, "bookmarks of a quiet kind", bookmarks.iter().filter(quiet).count() >= 2);
    answer.1.retain(|line| line["type"] != "BOOKMARK");
    if let Some(lines) = recording["body"].as_array_mut() {
        lines.retain(|line| line["type"] != "BOOKMARK");
    }
    compare_lines(replay, file, &recording, &answer);
    for (recorded, actual) in recording["body"].as_array().into_iter().flatten().zip(&answer.1) {
        for field in ["name", "generation", "finalizers", "deletionGracePeriodSeconds"] {
            let at = |line: &Value| line["object"]["metadata"][field].clone();
            replay.equal(file, field, &at(recorded), &at(actual));
        }
    }
    Ok(())
}

pub(crate) async fn starts(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = watched(config())?;
    let recording = replay.recording("40c-watch-without-rv")?;
    requests(&kubernetes, recording["body"].as_array().context("lines")?.len())?;
    for file in ["40b-watch-list-streaming", "40c-watch-without-rv", "40d-watch-future-rv"] {
        let recording = replay.recording(file)?;
        let answer = lines(client.clone(), path(&recording, 1, None)).await?;
        let mut answer = answer;
        if file == "40b-watch-list-streaming" {
            let pointer = "/object/metadata/annotations";
            let mark =
                |lines: &[Value]| lines.last().and_then(|line| line.pointer(pointer)).cloned().unwrap_or_default();
            let recorded = recording["body"].as_array().cloned().unwrap_or_default();
            // The stream may end with a further bookmark at its timeout.
            answer.1.truncate(recorded.len());
            replay.equal(file, "end of the initial events", &mark(&recorded), &mark(&answer.1));
        }
        compare_lines(replay, file, &recording, &answer);
    }
    replay.send(&client, "40e-list-future-rv").await?;
    replay.send(&client, "41h-watch-rv-garbage").await?;
    Ok(())
}

pub(crate) async fn expired(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = watched(config())?;
    requests(&kubernetes, 10)?;
    let file = "41-watch-old-rv-in-watch-cache";
    let recording = replay.recording(file)?;
    // Other changes bring the store to the recorded revision.
    advance(&kubernetes, 923)?;
    for number in 0..recording["body"].as_array().context("lines")?.len() {
        let patch = json!({"metadata": {"annotations": {"i": number.to_string()}}});
        client.send("PATCH", &format!("{PATH}/l0"), MERGE, &patch).await?;
    }
    let answer = lines(client.clone(), path(&recording, 1, None)).await?;
    compare_lines(replay, file, &recording, &answer);
    advance(&kubernetes, 966)?;
    kubernetes.compact();
    for file in ["41d-watch-410", "41e-watch-410-pods"] {
        let recording = replay.recording(file)?;
        let answer = lines(client.clone(), path(&recording, 5, None)).await?;
        compare_lines(replay, file, &recording, &answer);
    }
    for file in [
        "41b-list-exact-old",
        "41c-list-continue-expired",
        "41f-watch-410-as-list",
        "41g-list-limit-with-old-rv",
        "41i-list-old-rv-no-limit",
        "41j-list-rv0",
    ] {
        replay.send(&client, file).await?;
    }
    Ok(())
}

/// Change an object of another kind until the store is at this revision.
fn advance(kubernetes: &Kubernetes, revision: u64) -> Result<()> {
    if kubernetes.object("configmaps", "default", "counter").is_none() {
        kubernetes.put("configmaps", "default", json!({"metadata": {"name": "counter"}}))?;
    }
    for number in kubernetes.revision()..revision {
        kubernetes.modify("configmaps", "default", "counter", |object| object["data"] = json!({"n": number}))?;
    }
    Ok(())
}

pub(crate) async fn starting(replay: &mut Replay) -> Result<()> {
    let file = "42-apiserver-starting";
    let (kubernetes, client) = watched(config())?;
    requests(&kubernetes, 1)?;
    let answers = replay.recording(file)?["body"]["answers"].clone();
    kubernetes.stop(true)?;
    let refused = client.get("/readyz").await.is_err_and(|error| error.to_string().contains("refused"));
    replay.check(file, "connection refused", refused);
    kubernetes.hang_handshakes(true);
    kubernetes.start_again()?;
    let hangs = tokio::time::timeout(Duration::from_millis(200), client.get("/readyz")).await.is_err();
    replay.check(file, "hanging handshake", hangs);
    kubernetes.hang_handshakes(false);
    kubernetes.inject(Fault::next(1, FaultAction::Starting));
    for name in ["503 ServiceUnavailable", "200 NodeMaintenanceRequest"] {
        let answer = client.get(&format!("{PATH}/l0")).await?;
        let mut recorded = answers[name].clone();
        // The object was changed before the recording.
        if recorded["body"]["metadata"]["generation"].is_number() {
            recorded["body"]["metadata"]["generation"] = 1.into();
        }
        replay.compare(file, &recorded, &answer);
    }
    Ok(())
}

pub(crate) async fn restarts(replay: &mut Replay) -> Result<()> {
    for (file, kill) in [("43-watch-apiserver-kill", true), ("43-watch-apiserver-term", false)] {
        let (kubernetes, client) = watched(config())?;
        requests(&kubernetes, 3)?;
        let recording = replay.recording(file)?;
        let from = kubernetes.revision();
        let (started, first_line) = oneshot::channel();
        let watching = tokio::spawn(lines_with_start(client.clone(), path(&recording, 2, Some(from)), started));
        let patch = json!({"metadata": {"annotations": {"r": "x"}}});
        client.send("PATCH", &format!("{PATH}/l1"), MERGE, &patch).await?;
        soon(first_line).await??;
        kubernetes.stop(kill)?;
        replay.check(file, "listener closed", client.get("/readyz").await.is_err());
        kubernetes.modify(REQUESTS, "", "l2", |object| object["spec"]["scope"] = "drain".into())?;
        let answer = soon(watching).await???;
        compare_lines(replay, file, &recording, &answer);
        kubernetes.start_again()?;
        let last = answer.1.last().and_then(|line| line["object"]["metadata"]["resourceVersion"].as_str());
        let last = last.context("no line")?.parse()?;
        let again = lines(client.clone(), path(&recording, 2, Some(last))).await?;
        let resumed = json!({"status": recording["resumed"]["status"], "body": recording["resumed"]["lines"]});
        compare_lines(replay, file, &resumed, &again);
    }
    Ok(())
}
