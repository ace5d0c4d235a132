//! What the recordings do not show: controllers, faults, restarts, access control.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_kubernetes_stand_in::{Allowance, Config, Controller, Fault, FaultAction, Kubernetes, PodTraits, Rule};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    client::{Client, MERGE, soon, until},
    recordings::definitions::define,
};

fn config() -> Config {
    Config {
        tick: Duration::from_millis(10),
        pod_start: Duration::from_millis(20),
        pod_stop: Duration::from_millis(20),
        detach_after: Duration::from_millis(50),
        ..Config::default()
    }
}

fn cluster(nodes: usize, config: Config) -> Result<(Kubernetes, Client)> {
    let kubernetes = Kubernetes::start(config)?;
    kubernetes.add_admin("admin");
    kubernetes.namespace("shop")?;
    for node in 1..=nodes {
        kubernetes.add_node(&format!("node-{node}"), &format!("10.0.0.{node}"), &format!("boot-{node}"))?;
    }
    let client = Client::new(&kubernetes, 0, Some("admin"))?;
    Ok((kubernetes, client))
}

fn ready(kubernetes: &Kubernetes, name: &str) -> usize {
    kubernetes.ready_replicas().iter().find(|replicas| replicas.workload.name == name).map_or(0, |r| r.ready)
}

/// Evict the pods of node-1 until it has none. Returns how many evictions were refused.
async fn drain(client: &Client) -> Result<usize> {
    let mut refused = 0;
    loop {
        let list = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1").await?;
        let items = list.body["items"].as_array().context("items")?.clone();
        if items.is_empty() {
            return Ok(refused);
        }
        for pod in items {
            let name = pod["metadata"]["name"].as_str().context("name")?;
            refused += usize::from(client.evict("shop", name).await?.status == 429);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn drain_moves_pods_within_budget() -> Result<()> {
    // Longer than a request takes on a busy computer: the second eviction comes before the first pod is replaced.
    let (kubernetes, client) = cluster(3, Config { pod_start: Duration::from_millis(500), ..config() })?;
    kubernetes.deployment("shop", "web", 6)?;
    kubernetes.budget("shop", "web", Allowance::MaxUnavailable(1))?;
    until("web is ready", || ready(&kubernetes, "web") == 6).await?;
    kubernetes.reset_lowest_ready();
    let patch = json!({"spec": {"unschedulable": true}});
    client.send("PATCH", "/api/v1/nodes/node-1", MERGE, &patch).await?;
    let refused = soon(drain(&client)).await??;
    until("web is ready again", || ready(&kubernetes, "web") == 6).await?;
    let replicas = kubernetes.ready_replicas();
    let web = replicas.iter().find(|replicas| replicas.workload.name == "web").context("web")?;
    ensure!(web.lowest == 5 && refused > 0, "{web:?}, refused {refused}");
    ensure!(kubernetes.pods_on("node-1").is_empty());
    let taints = kubernetes.object("nodes", "", "node-1").context("node")?["spec"]["taints"].clone();
    ensure!(taints[0]["key"] == "node.kubernetes.io/unschedulable");
    Ok(())
}

#[tokio::test]
async fn statefulset_pod_keeps_its_volume() -> Result<()> {
    let (kubernetes, client) = cluster(2, config())?;
    let traits = PodTraits { claim: Some("data".to_owned()), ..PodTraits::default() };
    kubernetes.statefulset_with("shop", "db", 2, &traits)?;
    until("db is ready", || ready(&kubernetes, "db") == 2).await?;
    let attachments = || kubernetes.objects("volumeattachments.storage.k8s.io");
    until("volumes are attached", || attachments().len() == 2).await?;
    let before = kubernetes.object("pods", "shop", "db-0").context("db-0")?;
    let node = before["spec"]["nodeName"].as_str().context("node")?.to_owned();
    client.send("PATCH", &format!("/api/v1/nodes/{node}"), MERGE, &json!({"spec": {"unschedulable": true}})).await?;
    ensure!(client.evict("shop", "db-0").await?.status == 201);
    let moved = || {
        let pod = kubernetes.object("pods", "shop", "db-0");
        pod.is_some_and(|pod| {
            pod["metadata"]["uid"] != before["metadata"]["uid"] && pod["spec"]["nodeName"].is_string()
        })
    };
    until("db-0 is replaced", moved).await?;
    let detached = || attachments().iter().all(|attachment| attachment["spec"]["nodeName"] != node.as_str());
    until("the old volume is detached", detached).await?;
    until("two volumes are attached", || attachments().len() == 2).await
}

#[tokio::test]
async fn percentage_budget_counts_owner_scale() -> Result<()> {
    let (kubernetes, _) = cluster(2, config())?;
    kubernetes.deployment("shop", "web", 5)?;
    kubernetes.budget("shop", "web", Allowance::MinAvailablePercent(50))?;
    until("web is ready", || ready(&kubernetes, "web") == 5).await?;
    let status = || kubernetes.object("poddisruptionbudgets.policy", "shop", "web").map(|b| b["status"].clone());
    let counted =
        || status().is_some_and(|s| s["desiredHealthy"] == 3 && s["disruptionsAllowed"] == 2 && s["expectedPods"] == 5);
    until("the budget is counted", counted).await
}

#[tokio::test]
async fn disruption_lag_delays_count() -> Result<()> {
    let lag = Duration::from_millis(800);
    let (kubernetes, client) = cluster(1, Config { disruption_lag: lag, ..config() })?;
    kubernetes.bare_pod("shop", "web", Some("node-1"))?;
    until("the pod runs", || {
        kubernetes.object("pods", "shop", "web").is_some_and(|pod| pod["status"]["phase"] == "Running")
    })
    .await?;
    let created = Instant::now();
    kubernetes.budget("shop", "web", Allowance::MinAvailable(1))?;
    let answer = client.evict("shop", "web").await?;
    ensure!(answer.status == 429 && answer.header("Retry-After") == Some("10"), "{answer:?}");
    let counted = || {
        let budget = kubernetes.object("poddisruptionbudgets.policy", "shop", "web");
        budget.is_some_and(|budget| budget["status"]["currentHealthy"] == 1)
    };
    until("the budget is counted", counted).await?;
    ensure!(created.elapsed() >= lag, "{:?}", created.elapsed());
    let answer = client.evict("shop", "web").await?;
    ensure!(answer.status == 429 && answer.header("Retry-After").is_none(), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn pod_stays_pending_without_node() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    client.send("PATCH", "/api/v1/nodes/node-1", MERGE, &json!({"spec": {"unschedulable": true}})).await?;
    kubernetes.deployment("shop", "web", 1)?;
    kubernetes.daemonset("shop", "agent")?;
    until("the DaemonSet's pod runs on the cordoned node", || ready(&kubernetes, "agent") == 1).await?;
    ensure!(ready(&kubernetes, "web") == 0);
    client.send("PATCH", "/api/v1/nodes/node-1", MERGE, &json!({"spec": {"unschedulable": null}})).await?;
    until("the pod is scheduled", || ready(&kubernetes, "web") == 1).await
}

#[tokio::test]
async fn unready_node_stops_its_pods() -> Result<()> {
    let (kubernetes, _) = cluster(1, config())?;
    kubernetes.deployment("shop", "web", 2)?;
    until("web is ready", || ready(&kubernetes, "web") == 2).await?;
    kubernetes.set_ready("node-1", false)?;
    until("web is not ready", || ready(&kubernetes, "web") == 0).await?;
    kubernetes.set_boot_id("node-1", "boot-2")?;
    kubernetes.set_ready("node-1", true)?;
    until("web is ready again", || ready(&kubernetes, "web") == 2).await?;
    let node = kubernetes.object("nodes", "", "node-1").context("node")?;
    ensure!(node["status"]["nodeInfo"]["bootID"] == "boot-2");
    Ok(())
}

#[tokio::test]
async fn mirror_pod_returns_after_eviction() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    kubernetes.mirror_pod("kube-system", "etcd-node-1", "node-1")?;
    let uid = || kubernetes.object("pods", "kube-system", "etcd-node-1").map(|pod| pod["metadata"]["uid"].clone());
    let before = uid();
    ensure!(client.evict("kube-system", "etcd-node-1").await?.status == 201);
    until("the mirror returns", || uid().is_some() && uid() != before).await
}

#[tokio::test]
async fn lost_answer_leaves_write_applied() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    let patch = json!({"spec": {"unschedulable": true}});
    kubernetes.inject(Fault::next(1, FaultAction::CutAfter).verb("patch").resource("nodes"));
    ensure!(client.send("PATCH", "/api/v1/nodes/node-1", MERGE, &patch).await.is_err());
    let cordoned = || kubernetes.object("nodes", "", "node-1").is_some_and(|n| n["spec"]["unschedulable"] == true);
    ensure!(cordoned());
    kubernetes.inject(Fault::next(1, FaultAction::CutBefore).verb("patch").resource("nodes"));
    let back = json!({"spec": {"unschedulable": false}});
    ensure!(client.send("PATCH", "/api/v1/nodes/node-1", MERGE, &back).await.is_err());
    ensure!(cordoned());
    Ok(())
}

#[tokio::test]
async fn late_write_outlives_its_client() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    kubernetes.inject(Fault::next(1, FaultAction::LandLate(Duration::from_secs(1))).verb("patch"));
    let patch = json!({"spec": {"unschedulable": true}});
    let sent = client.send("PATCH", "/api/v1/nodes/node-1", MERGE, &patch);
    ensure!(tokio::time::timeout(Duration::from_millis(100), sent).await.is_err());
    let cordoned = || kubernetes.object("nodes", "", "node-1").is_some_and(|n| n["spec"]["unschedulable"] == true);
    ensure!(!cordoned());
    until("the write lands", cordoned).await
}

#[tokio::test]
async fn faults_match_verb_and_resource() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    kubernetes.inject(Fault::next(1, FaultAction::Unauthorized).verb("get").resource("nodes"));
    kubernetes.inject(Fault::next(1, FaultAction::Forbidden).verb("get").resource("nodes"));
    kubernetes.inject(Fault::always(FaultAction::Hang).resource("pods/eviction"));
    ensure!(client.get("/api/v1/pods").await?.status == 200);
    ensure!(client.get("/api/v1/nodes/node-1").await?.status == 401);
    ensure!(client.get("/api/v1/nodes/node-1").await?.status == 403);
    ensure!(client.get("/api/v1/nodes/node-1").await?.status == 200);
    kubernetes.bare_pod("shop", "web", Some("node-1"))?;
    ensure!(tokio::time::timeout(Duration::from_millis(200), client.evict("shop", "web")).await.is_err());
    kubernetes.clear_faults();
    ensure!(client.evict("shop", "web").await?.status == 201);
    let log = kubernetes.requests();
    let evictions: Vec<_> = log.iter().filter(|request| request.subresource == "eviction").collect();
    ensure!(evictions.len() == 2 && evictions[0].status.is_none() && evictions[1].status == Some(201));
    ensure!(evictions[1].user == "cluster-admin" && evictions[1].body["metadata"]["name"] == "web");
    Ok(())
}

#[tokio::test]
async fn state_survives_restart() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    ensure!(client.get("/api/v1/nodes/node-1").await?.status == 200);
    kubernetes.stop(true)?;
    ensure!(client.get("/api/v1/nodes/node-1").await.is_err());
    kubernetes.start_again()?;
    ensure!(client.get("/api/v1/nodes/node-1").await?.status == 200);
    Ok(())
}

#[tokio::test]
async fn servers_share_state() -> Result<()> {
    let listeners = vec!["127.0.0.1:0".parse()?, "127.0.0.1:0".parse()?, "127.0.0.2:0".parse()?];
    let (kubernetes, first) = cluster(1, Config { listeners, ..config() })?;
    let second = Client::new(&kubernetes, 1, Some("admin"))?;
    first.send("PATCH", "/api/v1/nodes/node-1", MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).await?;
    ensure!(second.get("/api/v1/nodes/node-1").await?.text_at("/metadata/labels/a") == "b");
    let third = Client::new(&kubernetes, 2, Some("admin"))?;
    ensure!(third.get("/readyz").await?.status == 200);
    kubernetes.stop_server(0, true)?;
    ensure!(first.get("/readyz").await.is_err());
    ensure!(second.get("/readyz").await?.text == "ok");
    kubernetes.set_readyz(1, false);
    ensure!(second.get("/readyz").await?.status == 500);
    ensure!(second.get("/livez").await?.status == 200);
    Ok(())
}

#[tokio::test]
async fn rules_limit_token() -> Result<()> {
    let (kubernetes, _) = cluster(1, config())?;
    let rules =
        vec![Rule::on("", &["nodes"], &["get", "list"]), Rule::on("", &["pods/eviction"], &["create"]).within("shop")];
    kubernetes.add_token("limited", "muster", rules);
    let client = Client::new(&kubernetes, 0, Some("limited"))?;
    ensure!(client.get("/api/v1/nodes").await?.status == 200);
    ensure!(client.get("/api/v1/pods").await?.status == 403);
    ensure!(client.get("/readyz").await?.status == 200);
    ensure!(client.get("/metrics").await?.status == 403);
    ensure!(client.evict("shop", "none").await?.status == 404);
    let denied = client.evict("kube-system", "none").await?;
    ensure!(denied.status == 403 && denied.text_at("/message").contains("pods/eviction"), "{denied:?}");
    let attributes = json!({"verb": "create", "resource": "pods", "subresource": "eviction", "namespace": "shop"});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    ensure!(client.send("POST", path, "application/json", &review).await?.body["status"]["allowed"] == true);
    kubernetes.revoke_token("limited");
    ensure!(client.get("/api/v1/nodes").await?.status == 401);
    Ok(())
}

#[tokio::test]
async fn watch_with_selector_follows_matches() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    kubernetes.pause(Controller::Kubelets, true);
    let from = kubernetes.revision();
    kubernetes.bare_pod("shop", "web", None)?;
    until("the pod is bound", || !kubernetes.pods_on("node-1").is_empty()).await?;
    kubernetes.remove("pods", "shop", "web")?;
    let path =
        format!("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dnode-1&resourceVersion={from}&timeoutSeconds=1");
    let (status, lines) = soon(client.watch(&path)).await??;
    let types: Vec<&Value> = lines.iter().map(|line| &line["type"]).collect();
    ensure!(status == 200 && types == ["ADDED", "DELETED"], "{types:?}");
    Ok(())
}

#[tokio::test]
async fn selectors_choose_objects() -> Result<()> {
    let (kubernetes, client) = cluster(3, config())?;
    kubernetes.label_node("node-1", "role", Some("control"))?;
    kubernetes.label_node("node-2", "role", Some("worker"))?;
    let names = |selector: &'static str| {
        let client = client.clone();
        async move {
            let answer = client.get(&format!("/api/v1/nodes?{selector}")).await?;
            let items = answer.body["items"].as_array().cloned().unwrap_or_default();
            let name = |item: &Value| item["metadata"]["name"].as_str().unwrap_or("").to_owned();
            anyhow::Ok(items.iter().map(name).collect::<Vec<_>>())
        }
    };
    ensure!(names("labelSelector=role%3Dcontrol").await? == ["node-1"]);
    ensure!(names("labelSelector=role%20in%20(control,worker)").await? == ["node-1", "node-2"]);
    ensure!(names("labelSelector=role!%3Dcontrol").await? == ["node-2", "node-3"]);
    ensure!(names("labelSelector=!role").await? == ["node-3"]);
    ensure!(names("labelSelector=role,kubernetes.io/os%3Dlinux").await? == ["node-1", "node-2"]);
    ensure!(names("fieldSelector=metadata.name%3Dnode-2").await? == ["node-2"]);
    Ok(())
}

#[tokio::test]
async fn namespace_goes_when_empty() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    kubernetes.deployment("shop", "web", 2)?;
    until("web is ready", || ready(&kubernetes, "web") == 2).await?;
    ensure!(client.send("DELETE", "/api/v1/namespaces/shop", "", &Value::Null).await?.status == 200);
    until("the namespace is gone", || kubernetes.object("namespaces", "", "shop").is_none()).await?;
    ensure!(kubernetes.objects("pods").is_empty() && kubernetes.objects("replicasets.apps").is_empty());
    Ok(())
}

#[tokio::test]
async fn eviction_without_kind_is_accepted() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    kubernetes.bare_pod("shop", "web", Some("node-1"))?;
    // The crate kube sends such a body, with an unknown field in place of deleteOptions.
    let body = json!({"metadata": {"name": "web"}, "delete_options": {"dryRun": ["All"]}});
    let path = "/api/v1/namespaces/shop/pods/web/eviction";
    ensure!(client.send("POST", path, "application/json", &body).await?.status == 201);
    until("the pod is gone", || kubernetes.objects("pods").is_empty()).await
}

#[tokio::test]
async fn pods_of_deleted_node_go() -> Result<()> {
    let (kubernetes, client) = cluster(2, Config { orphan_after: Duration::from_millis(100), ..config() })?;
    kubernetes.bare_pod("shop", "web", Some("node-1"))?;
    ensure!(client.send("DELETE", "/api/v1/nodes/node-1", "", &Value::Null).await?.status == 200);
    until("the pod is gone", || kubernetes.objects("pods").is_empty()).await
}

#[test]
fn handle_works_without_runtime() -> Result<()> {
    let kubernetes = Kubernetes::start(config())?;
    ensure!(kubernetes.kubeconfig("secret")?.contains("token: secret"));
    kubernetes.stop(false)
}

/// A node without kubelets of the stand-in lives as long as its Lease is renewed.
#[tokio::test]
async fn silent_node_becomes_unknown() -> Result<()> {
    let grace = Duration::from_millis(400);
    let (kubernetes, client) = cluster(1, Config { kubelets: false, node_grace: Some(grace), ..config() })?;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"metadata": {"name": "node-1"}, "spec": {"renewTime": "0"}});
    ensure!(client.send("POST", leases, "application/json", &lease).await?.status == 201);
    let node = || kubernetes.object("nodes", "", "node-1").context("the node");
    let began = Instant::now();
    for renewal in 1.. {
        let renewed = json!({"spec": {"renewTime": renewal.to_string()}});
        client.send("PATCH", &format!("{leases}/node-1"), MERGE, &renewed).await?;
        ensure!(node()?["spec"]["taints"].is_null(), "{}", node()?);
        if began.elapsed() > 2 * grace {
            break;
        }
        sleep(grace / 10).await;
    }
    until("the silent node", || {
        node().is_ok_and(|node| node["spec"]["taints"][0]["key"] == "node.kubernetes.io/unreachable")
    })
    .await?;
    // Nobody starts its pods.
    kubernetes.bare_pod("shop", "idle", Some("node-1"))?;
    sleep(config().pod_start * 5).await;
    let pod = kubernetes.object("pods", "shop", "idle").context("the pod")?;
    ensure!(pod["status"]["phase"] == "Pending", "{pod}");
    Ok(())
}

#[tokio::test]
async fn bindings_give_rights_to_accounts() -> Result<()> {
    let (kubernetes, client) = cluster(1, config())?;
    let (rbac, post) = ("/apis/rbac.authorization.k8s.io/v1", "application/json");
    let accounts = "/api/v1/namespaces/shop/serviceaccounts";
    ensure!(client.send("POST", accounts, post, &json!({"metadata": {"name": "reader"}})).await?.status == 201);
    let role = json!({
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}],
    });
    ensure!(client.send("POST", &format!("{rbac}/clusterroles"), post, &role).await?.status == 201);
    let request = json!({"spec": {"expirationSeconds": 600}});
    let issued = client.send("POST", &format!("{accounts}/reader/token"), post, &request).await?;
    let reader = Client::new(&kubernetes, 0, Some(issued.text_at("/status/token")))?;
    ensure!(reader.get("/api/v1/nodes").await?.status == 403, "no binding yet");
    let binding = json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "shop"}],
    });
    ensure!(client.send("POST", &format!("{rbac}/clusterrolebindings"), post, &binding).await?.status == 201);
    ensure!(reader.get("/api/v1/nodes").await?.status == 200);
    ensure!(reader.get("/api/v1/pods").await?.status == 403, "another resource");
    let other = client.send("POST", &format!("{accounts}/nobody/token"), post, &request).await?;
    ensure!(other.status == 404, "{other:?}");
    Ok(())
}

/// A definition goes after its objects, and they go after their finalizers. Its kind is served no more, until somebody
/// defines it again.
#[tokio::test]
async fn deleted_definition_takes_its_objects_along() -> Result<()> {
    let (kubernetes, client) = cluster(0, config())?;
    define(&kubernetes, &client).await?;
    let (kind, name) = ("customresourcedefinitions", "clusterworkloadlocks.lcm.mirantis.com");
    let definition = &format!("/apis/apiextensions.k8s.io/v1/{kind}/{name}");
    let locks = "/apis/lcm.mirantis.com/v1alpha1/clusterworkloadlocks";
    for (name, finalizers) in [("free", json!([])), ("held", json!(["example.com/held"]))] {
        let lock = json!({"metadata": {"name": name, "finalizers": finalizers}, "spec": {"controllerName": "c"}});
        ensure!(client.send("POST", locks, "application/json", &lock).await?.status == 201);
    }
    let deleted = client.send("DELETE", definition, "", &Value::Null).await?;
    ensure!(deleted.status == 200 && !deleted.text_at("/metadata/deletionTimestamp").is_empty(), "{}", deleted.text);
    let names = || {
        let held = kubernetes.objects(name);
        held.iter().map(|lock| lock["metadata"]["name"].to_string()).collect::<Vec<_>>()
    };
    until("the free lock is gone", || names() == ["\"held\""]).await?;
    ensure!(client.get(definition).await?.status == 200, "it waits for the other one");
    let released = json!({"metadata": {"finalizers": []}});
    client.send("PATCH", &format!("{locks}/held"), MERGE, &released).await?;
    let is_there = || kubernetes.object(&format!("{kind}.apiextensions.k8s.io"), "", name).is_some();
    until("the definition is gone", || !is_there()).await?;
    ensure!(client.get(locks).await?.status == 404);
    define(&kubernetes, &client).await?;
    ensure!(client.get(locks).await?.body["items"] == json!([]));
    Ok(())
}
