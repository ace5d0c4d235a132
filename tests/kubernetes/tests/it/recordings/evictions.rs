//! Recordings 01 to 14, 32 to 35: evictions.

use std::time::Duration;

use anyhow::{Context as _, Result};
use muster_kubernetes_stand_in::{Allowance, Config, Controller, Fault, FaultAction, Kubernetes, PodTraits};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::replay::{Replay, adopt_uid, cluster, config};
use crate::client::{Client, until};

const BUDGETS: &str = "poddisruptionbudgets.policy";

/// Create a pod on node-2 and wait until it is ready.
async fn pod(kubernetes: &Kubernetes, namespace: &str, name: &str, app: &str, traits: &PodTraits) -> Result<()> {
    kubernetes.bare_pod_with(namespace, name, app, Some("node-2"), traits)?;
    let ready = || {
        let pod = kubernetes.object("pods", namespace, name);
        pod.is_some_and(|pod| pod["status"]["containerStatuses"][0]["ready"] == !traits.never_ready)
    };
    until(name, ready).await
}

async fn pods(kubernetes: &Kubernetes, namespace: &str, app: &str, names: &[&str]) -> Result<()> {
    for name in names {
        pod(kubernetes, namespace, name, app, &PodTraits::default()).await?;
    }
    Ok(())
}

/// Create a budget and wait until its status has this many disruptions allowed.
async fn budget(kubernetes: &Kubernetes, name: &str, app: &str, allowance: Allowance, allowed: i64) -> Result<()> {
    kubernetes.budget_over("ev", name, app, allowance)?;
    allows(kubernetes, "ev", name, allowed).await
}

async fn allows(kubernetes: &Kubernetes, namespace: &str, name: &str, allowed: i64) -> Result<()> {
    let counted = || {
        kubernetes.object(BUDGETS, namespace, name).is_some_and(|budget| {
            budget["status"]["observedGeneration"] == budget["metadata"]["generation"]
                && budget["status"]["disruptionsAllowed"] == allowed
        })
    };
    until(&format!("{name} allows {allowed}"), counted).await
}

fn evicting() -> Result<(Kubernetes, Client)> {
    let (kubernetes, client) = cluster(config())?;
    kubernetes.namespace("ev")?;
    Ok((kubernetes, client))
}

fn status_of(kubernetes: &Kubernetes, name: &str) -> Result<Value> {
    Ok(kubernetes.object(BUDGETS, "ev", name).context("budget")?["status"].clone())
}

/// Compare a budget's counts and its condition with the recorded status.
fn compare_counts(replay: &mut Replay, file: &str, recorded: &Value, actual: &Value) {
    let fields = ["observedGeneration", "disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    for field in fields {
        replay.equal(file, field, &recorded[field], &actual[field]);
    }
    for field in ["type", "status", "reason", "observedGeneration", "message"] {
        let at = |status: &Value| status["conditions"][0][field].clone();
        replay.equal(file, field, &at(recorded), &at(actual));
    }
    let names = |status: &Value| {
        json!(status["disruptedPods"].as_object().map(|pods| pods.keys().cloned().collect::<Vec<_>>()))
    };
    replay.equal(file, "disruptedPods", &names(recorded), &names(actual));
}

pub(crate) async fn without_budget(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = evicting()?;
    pods(&kubernetes, "ev", "free", &["a1", "e1"]).await?;
    replay.send(&client, "01-eviction-ok").await?;
    let shown = replay.send(&client, "01b-pod-after-eviction").await?;
    replay.fields("01b-pod-after-eviction", &shown.body, &["/status/phase", "/status/qosClass"])?;
    let recording = replay.recording("01b-pod-after-eviction")?;
    let target = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition["type"] == "DisruptionTarget");
        found.map_or(Value::Null, |found| json!([found["status"], found["reason"], found["message"]]))
    };
    replay.equal("01b-pod-after-eviction", "condition", &target(&recording["body"]), &target(&shown.body));
    for file in ["05-eviction-gone", "05c-eviction-empty-name", "05d-eviction-namespace-gone"] {
        replay.send(&client, file).await?;
    }
    replay.send(&client, "06-eviction-uid-mismatch").await?;
    let request = replay.recording("06b-eviction-uid-match")?;
    adopt_uid(&kubernetes, ("pods", "ev", "e1"), &request["request"]["body"]["deleteOptions"]["preconditions"]["uid"])?;
    replay.send(&client, "06b-eviction-uid-match").await?;
    Ok(())
}

pub(crate) async fn blocked(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = evicting()?;
    kubernetes.add_token("powerless", "nobody", Vec::new());
    pods(&kubernetes, "ev", "b", &["b1", "b2"]).await?;
    budget(&kubernetes, "pdb-b", "b", Allowance::MinAvailable(2), 0).await?;
    replay.send(&client, "02-eviction-blocked-pdb").await?;
    let shown = replay.send(&client, "02b-pdb-status-0-allowed").await?;
    let recorded = replay.recording("02b-pdb-status-0-allowed")?["body"]["status"].clone();
    compare_counts(replay, "02b-pdb-status-0-allowed", &recorded, &shown.body["status"]);
    for file in [
        "02c-eviction-blocked-dryrun",
        "02d-eviction-blocked-dryrun-in-body",
        "02e-delete-ignores-pdb",
        "05b-eviction-name-mismatch",
        "06c-eviction-uid-mismatch-and-pdb-0",
    ] {
        replay.send(&client, file).await?;
    }
    let powerless = Client::new(&kubernetes, 0, Some("powerless"))?;
    replay.send(&powerless, "12-eviction-forbidden").await?;
    pods(&kubernetes, "ev", "d", &["d1"]).await?;
    budget(&kubernetes, "pdb-d1", "d", Allowance::MinAvailable(0), 1).await?;
    budget(&kubernetes, "pdb-d2", "d", Allowance::MinAvailable(0), 1).await?;
    replay.send(&client, "04-eviction-two-pdbs").await?;
    pods(&kubernetes, "ev", "h", &["h1"]).await?;
    budget(&kubernetes, "pdb-h", "h", Allowance::MaxUnavailable(1), 0).await?;
    replay.send(&client, "10-eviction-pdb-syncfailed").await?;
    let recorded = replay.recording("10-eviction-pdb-syncfailed")?["pdb"].clone();
    compare_counts(replay, "10-eviction-pdb-syncfailed", &recorded, &status_of(&kubernetes, "pdb-h")?);
    replay.send(&client, "11-eviction-v1beta1").await?;
    let shown = client.get("/api/v1").await?;
    let resources = shown.body["resources"].as_array().cloned().unwrap_or_default();
    let entry = resources.iter().find(|resource| resource["name"] == "pods/eviction").cloned().unwrap_or(Value::Null);
    let recorded = replay.recording("11b-discovery-eviction")?["body"]["resources"][0].clone();
    replay.equal("11b-discovery-eviction", "pods/eviction", &recorded, &entry);
    Ok(())
}

pub(crate) async fn budget_of_one(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = evicting()?;
    pods(&kubernetes, "ev", "c", &["c1", "c2"]).await?;
    budget(&kubernetes, "pdb-c", "c", Allowance::MinAvailable(1), 1).await?;
    replay.send(&client, "03-eviction-dryrun-allowed").await?;
    let then = replay.recording("03-eviction-dryrun-allowed")?["then"].clone();
    let pod = kubernetes.object("pods", "ev", "c1").context("c1")?;
    replay.equal(
        "03-eviction-dryrun-allowed",
        "pod",
        &then["pod.deletionTimestamp"],
        &pod["metadata"]["deletionTimestamp"],
    );
    let allowed = status_of(&kubernetes, "pdb-c")?["disruptionsAllowed"].clone();
    replay.equal("03-eviction-dryrun-allowed", "budget", &then["pdb.disruptionsAllowed"], &allowed);
    replay.send(&client, "03b-eviction-dryrun-allowed-second-pod").await?;
    replay.send(&client, "03c-eviction-allowed-with-pdb").await?;
    let recounted = || status_of(&kubernetes, "pdb-c").is_ok_and(|status| status["currentHealthy"] == 1);
    until("pdb-c is counted again", recounted).await?;
    let path = "/apis/policy/v1/namespaces/ev/poddisruptionbudgets/pdb-c";
    let shown = replay.send_to(&client, "03d-pdb-after-eviction", path).await?;
    let recorded = replay.recording("03d-pdb-after-eviction")?["body"]["status"].clone();
    compare_counts(replay, "03d-pdb-after-eviction", &recorded, &shown.body["status"]);
    replay.send(&client, "03e-eviction-second-blocked").await?;
    pods(&kubernetes, "ev", "c", &["c3"]).await?;
    allows(&kubernetes, "ev", "pdb-c", 1).await?;
    replay.send(&client, "06d-eviction-uid-mismatch-consumes-budget").await?;
    until("pdb-c is counted again", recounted).await?;
    let shown = replay.send_to(&client, "06e-pdb-after-uid-mismatch", path).await?;
    let recorded = replay.recording("06e-pdb-after-uid-mismatch")?["body"]["status"].clone();
    compare_counts(replay, "06e-pdb-after-uid-mismatch", &recorded, &shown.body["status"]);
    replay.send(&client, "06f-eviction-stale-resourceversion").await?;
    Ok(())
}

pub(crate) async fn lost_budget(replay: &mut Replay) -> Result<()> {
    let file = "06g-budget-lost-by-failed-eviction";
    let (kubernetes, client) = cluster(Config { disrupted_pod_timeout: Duration::from_secs(2), ..config() })?;
    kubernetes.namespace("ev")?;
    pods(&kubernetes, "ev", "c", &["c7", "c8", "c9"]).await?;
    budget(&kubernetes, "pdb-c", "c", Allowance::MinAvailable(1), 2).await?;
    let recording = replay.recording(file)?;
    compare_counts(replay, file, &recording["body"]["before"], &status_of(&kubernetes, "pdb-c")?);
    let request = replay.recording("06-eviction-uid-mismatch")?["request"]["body"].clone();
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "c9", "namespace": "ev"},
        "deleteOptions": request["deleteOptions"]});
    let answer = client.send("POST", "/api/v1/namespaces/ev/pods/c9/eviction", "application/json", &body).await?;
    replay.equal(file, "HTTP status", &recording["status"], &answer.status.into());
    for step in recording["body"]["timeline [s]"].as_array().context("timeline")? {
        let expected = &step[1];
        let fields = ["disruptionsAllowed", "currentHealthy", "desiredHealthy"];
        let matches = || {
            status_of(&kubernetes, "pdb-c").is_ok_and(|status| {
                fields.iter().all(|field| status[field] == expected[field])
                    && status["disruptedPods"].is_null() == expected["disruptedPods"].is_null()
            })
        };
        replay.check(file, &expected.to_string(), until("timeline", matches).await.is_ok());
    }
    Ok(())
}

pub(crate) async fn terminating(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = evicting()?;
    let traits = PodTraits { grace: Some(600), ..PodTraits::default() };
    pod(&kubernetes, "ev", "f1", "f", &traits).await?;
    client.evict("ev", "f1").await?;
    budget(&kubernetes, "pdb-f", "f", Allowance::MinAvailable(1), 0).await?;
    let recorded = replay.recording("07c-pod-after-shorter-grace")?["body"].clone();
    let mut steps = Vec::new();
    let metadata = |steps: &mut Vec<Value>| -> Result<()> {
        steps.push(kubernetes.object("pods", "ev", "f1").context("f1")?["metadata"].clone());
        Ok(())
    };
    metadata(&mut steps)?;
    replay.send(&client, "07-eviction-already-terminating").await?;
    metadata(&mut steps)?;
    replay.send(&client, "07b-eviction-already-terminating-shorter-grace").await?;
    metadata(&mut steps)?;
    replay.send(&client, "07d-eviction-already-terminating-longer-grace").await?;
    metadata(&mut steps)?;
    for (step, name) in steps.iter().zip(["before 07", "after 07", "after 07b", "after 07b"]) {
        let field = "deletionGracePeriodSeconds";
        replay.equal("07c-pod-after-shorter-grace", name, &recorded[name][field], &step[field]);
    }
    let times: Vec<&str> = steps.iter().filter_map(|step| step["deletionTimestamp"].as_str()).collect();
    let holds = times.len() == 4 && times[0] == times[1] && times[2] < times[1] && times[3] == times[2];
    replay.check("07c-pod-after-shorter-grace", &format!("deletionTimestamps {times:?}"), holds);
    // 600 s become 60 s, counted from the first deletion.
    let recorded = [&recorded["after 07"]["deletionTimestamp"], &recorded["after 07b"]["deletionTimestamp"]];
    let recorded = seconds_between(recorded[1].as_str(), recorded[0].as_str());
    let actual = seconds_between(times.get(2).copied(), times.get(1).copied());
    replay.equal("07c-pod-after-shorter-grace", "shortened by", &json!(recorded), &json!(actual));
    Ok(())
}

/// Seconds between two timestamps that are less than a day apart.
fn seconds_between(from: Option<&str>, to: Option<&str>) -> Option<i64> {
    let seconds = |text: &str| {
        let part = |start: usize| text.get(start..start + 2)?.parse::<i64>().ok();
        Some(part(11)? * 3600 + part(14)? * 60 + part(17)?)
    };
    Some((seconds(to?)? - seconds(from?)?).rem_euclid(86_400))
}

pub(crate) async fn idle_pods(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = evicting()?;
    kubernetes.pause(Controller::Kubelets, true);
    kubernetes.pause(Controller::Scheduler, true);
    for (name, phase, node) in [
        ("g-failed", "Failed", Some("node-2")),
        ("g-succeeded", "Succeeded", Some("node-2")),
        ("g-pending-on-node", "Pending", Some("node-2")),
        ("g-pending-unscheduled", "Pending", None),
    ] {
        kubernetes.bare_pod("ev", name, node)?;
        kubernetes.modify("pods", "ev", name, |pod| pod["status"]["phase"] = phase.into())?;
        budget(&kubernetes, name, name, Allowance::MinAvailable(1), 0).await?;
        replay.send(&client, &format!("08-eviction-{}", name.trim_start_matches("g-"))).await?;
    }
    Ok(())
}

pub(crate) async fn unready_pods(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = evicting()?;
    for (name, policy) in
        [("ualwaysallow", Some("AlwaysAllow")), ("udefault", None), ("uifhealthybudget", Some("IfHealthyBudget"))]
    {
        for number in 1..=3 {
            let traits = PodTraits { never_ready: number == 1, ..PodTraits::default() };
            pod(&kubernetes, "ev", &format!("{name}-{number}"), name, &traits).await?;
        }
        let budget = format!("pdb-{name}");
        kubernetes.budget_over("ev", &budget, name, Allowance::MinAvailable(3))?;
        let policy = policy.map_or(Value::Null, Value::from);
        kubernetes.modify(BUDGETS, "ev", &budget, |budget| budget["spec"]["unhealthyPodEvictionPolicy"] = policy)?;
        let counted = |desired: i64| {
            status_of(&kubernetes, &budget).is_ok_and(|s| s["currentHealthy"] == 2 && s["desiredHealthy"] == desired)
        };
        until("the budget is counted", || counted(3)).await?;
        let file = format!("09-unready-{name}-budget-not-met");
        let status = status_of(&kubernetes, &budget)?;
        replay.send(&client, &file).await?;
        let recorded = replay.recording(&file)?["pdb status"].clone();
        compare_counts(replay, &file, &recorded, &status);
        if name == "ualwaysallow" {
            continue;
        }
        let path = format!("/apis/policy/v1/namespaces/ev/poddisruptionbudgets/{budget}");
        client.send("PATCH", &path, crate::client::MERGE, &json!({"spec": {"minAvailable": 2}})).await?;
        until("the budget is counted", || counted(2)).await?;
        let file = format!("09b-unready-{name}-budget-met");
        let status = status_of(&kubernetes, &budget)?;
        replay.send(&client, &file).await?;
        let recorded = replay.recording(&file)?["pdb status"].clone();
        compare_counts(replay, &file, &recorded, &status);
    }
    Ok(())
}

pub(crate) async fn finalizer(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(Config { pod_stop: Duration::ZERO, ..config() })?;
    kubernetes.namespace("fin")?;
    let hold = vec!["example.com/hold".to_owned()];
    let traits = PodTraits { finalizers: hold, grace: Some(1), ..PodTraits::default() };
    pod(&kubernetes, "fin", "p1", "p", &traits).await?;
    replay.send(&client, "13-evict-pod-with-finalizer").await?;
    let ended =
        || kubernetes.object("pods", "fin", "p1").is_some_and(|pod| pod["metadata"]["deletionGracePeriodSeconds"] == 0);
    until("the kubelet confirms the end", ended).await?;
    replay.send(&client, "13b-pod-held-by-finalizer").await?;
    replay.send(&client, "13c-evict-pod-held-by-finalizer").await?;
    Ok(())
}

pub(crate) async fn at_once(replay: &mut Replay) -> Result<()> {
    let file = "14-evictions-at-once";
    let (kubernetes, client) = cluster(config())?;
    kubernetes.namespace("ev")?;
    kubernetes.deployment("ev", "web", 20)?;
    let ready = || kubernetes.ready_replicas().first().is_some_and(|replicas| replicas.ready == 20);
    until("web is ready", ready).await?;
    budget(&kubernetes, "web", "web", Allowance::MinAvailable(17), 3).await?;
    kubernetes.pause(Controller::Scheduler, true);
    let mut evictions = JoinSet::new();
    for pod in kubernetes.objects("pods") {
        let name = pod["metadata"]["name"].as_str().context("name")?.to_owned();
        let client = client.clone();
        evictions.spawn(async move { client.evict("ev", &name).await });
    }
    let mut answers = Vec::new();
    while let Some(answer) = evictions.join_next().await {
        answers.push(answer??);
    }
    let recorded = replay.recording(file)?["body"].clone();
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    replay.equal(file, "counts", &recorded["counts"], &json!({"201": count(201), "429": count(429)}));
    for answer in answers.iter().filter(|answer| answer.status == 429) {
        replay.equal(file, "reason", &"TooManyRequests".into(), &answer.body["reason"]);
        replay.equal(file, "retry-after", &Value::Null, &answer.header("Retry-After").map_or(Value::Null, Value::from));
        // Before the controller counts again, the budget still says 20 healthy pods.
        let cause = answer.text_at("/details/causes/0/message");
        let known = ["needs 17 healthy pods and has 17 currently", "does not allow evicting pods currently"];
        let holds = known.iter().any(|text| cause == format!("The disruption budget web {text}"));
        replay.check(file, cause, holds);
    }
    Ok(())
}

pub(crate) async fn mirror(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    kubernetes.mirror_pod("kube-system", "etcd-node-3", "node-3")?;
    let running = || {
        kubernetes.object("pods", "kube-system", "etcd-node-3").is_some_and(|pod| pod["status"]["phase"] == "Running")
    };
    until("the mirror runs", running).await?;
    let shown = replay.send(&client, "32-mirror-pod").await?;
    let same = [
        "/metadata/annotations",
        "/metadata/ownerReferences/0/kind",
        "/metadata/ownerReferences/0/name",
        "/metadata/ownerReferences/0/controller",
        "/spec/nodeName",
        "/spec/priority",
        "/status/phase",
    ];
    replay.fields("32-mirror-pod", &shown.body, &same)?;
    replay.send(&client, "32b-mirror-pod-evict").await?;
    Ok(())
}

pub(crate) async fn namespace_terminating(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    kubernetes.namespace("dying")?;
    pods(&kubernetes, "dying", "p", &["p1", "p2"]).await?;
    kubernetes.set_stuck("dying", "p1", true)?;
    client.send("DELETE", "/api/v1/namespaces/dying/pods/p1", "", &Value::Null).await?;
    kubernetes.pause(Controller::Namespaces, true);
    let shown = replay.send(&client, "33-namespace-delete").await?;
    replay.fields("33-namespace-delete", &shown.body, &["/metadata/labels", "/spec", "/status"])?;
    for file in [
        "33b-evict-in-terminating-namespace",
        "33b2-evict-in-terminating-namespace-dryrun",
        "33c-create-in-terminating-namespace",
        "33d-evict-terminating-pod-in-terminating-namespace",
        "33e-delete-in-terminating-namespace",
    ] {
        replay.send(&client, file).await?;
    }
    kubernetes.pause(Controller::Namespaces, false);
    let noted = || kubernetes.object("namespaces", "", "dying").is_some_and(|n| n["status"]["conditions"].is_array());
    until("the controller notes conditions", noted).await?;
    let shown = replay.send(&client, "33f-namespace-terminating").await?;
    replay.fields("33f-namespace-terminating", &shown.body, &["/spec", "/status/phase"])?;
    Ok(())
}

pub(crate) async fn unobserved(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    kubernetes.namespace("obs")?;
    pods(&kubernetes, "obs", "o", &["p1", "p2", "p3"]).await?;
    kubernetes.pause(Controller::Disruption, true);
    kubernetes.budget_over("obs", "new", "o", Allowance::MinAvailable(1))?;
    let shown = replay.send(&client, "34-pdb-just-created").await?;
    replay.fields("34-pdb-just-created", &shown.body, &["/spec", "/status"])?;
    replay.send(&client, "34b-evict-pdb-unobserved").await?;
    kubernetes.pause(Controller::Disruption, false);
    allows(&kubernetes, "obs", "new", 2).await?;
    kubernetes.pause(Controller::Disruption, true);
    for (file, eviction) in [("34c-pdb-observed", "34d-evict-1-of-2"), ("34e-pdb-after-one", "34f-evict-2-of-2")] {
        let shown = replay.send(&client, file).await?;
        let recorded = replay.recording(file)?["body"]["status"].clone();
        compare_counts(replay, file, &recorded, &shown.body["status"]);
        replay.send(&client, eviction).await?;
    }
    replay.send(&client, "34g-evict-third").await?;
    Ok(())
}

pub(crate) async fn priority_and_fairness(replay: &mut Replay) -> Result<()> {
    let (kubernetes, client) = evicting()?;
    pods(&kubernetes, "ev", "a", &["a1"]).await?;
    kubernetes.inject(Fault::next(2, FaultAction::PriorityAndFairness));
    let recording = replay.recording("35-priority-and-fairness-429")?;
    let answer = client.get("/api/v1/pods").await?;
    replay.compare("35-priority-and-fairness-429", &recording, &answer);
    let recording = replay.recording("35b-pf-429-on-eviction")?;
    let answer = client.evict("ev", "a1").await?;
    replay.compare("35b-pf-429-on-eviction", &recording, &answer);
    let pod = kubernetes.object("pods", "ev", "a1").context("a1")?;
    replay.check("35b-pf-429-on-eviction", "not executed", pod["metadata"]["deletionTimestamp"].is_null());
    Ok(())
}
