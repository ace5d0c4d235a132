//! What no recording shows: it follows Rockoon's sources.

use super::*;

const CLUSTER_LOCK: &str = "openstack-osh";

/// With a deployment, and time for the work.
fn deployed() -> RockoonConfig {
    let work = Duration::from_millis(300);
    RockoonConfig { deployment: Some("osh".to_owned()), work, restore: work, health: work, ..quick() }
}

#[tokio::test]
async fn compute_over_limit_waits_for_place() -> Result<()> {
    let roles = ["node-1", "node-2", "node-3"].map(|node| (node, COMPUTE));
    let stage = Stage::new(&roles).await?;
    let _rockoon = stage.rockoon(RockoonConfig { computes_max: 2, ..quick() })?;
    for node in ["node-1", "node-2"] {
        stage.request(node, json!({})).await?;
        stage.handled(node).await?;
    }
    stage.request("node-3", json!({})).await?;
    let message = || stage.lock("node-3")["status"]["errorMessage"].as_str().unwrap_or("").to_owned();
    until("the third is refused", || message().contains("exceeds allowed concurrency")).await?;
    let first = message();
    // It is tried again, and says so with another time.
    until("the refusal is renewed", || message() != first).await?;
    ensure!(stage.lock("node-3")["status"]["state"] == "active");
    stage.delete("node-1").await?;
    stage.lock_is("node-3", "inactive").await?;
    ensure!(stage.lock("node-2")["status"]["state"] == "inactive");
    Ok(())
}

#[tokio::test]
async fn legacy_takes_one_node_in_silence() -> Result<()> {
    let stage = Stage::new(&[("node-1", COMPUTE), ("node-2", COMPUTE)]).await?;
    let _rockoon = stage.rockoon(RockoonConfig { legacy: true, ..quick() })?;
    let lock = |node: &str| stage.object("nodeworkloadlocks", node)["status"].clone();
    stage.request("node-1", json!({})).await?;
    until("the first is granted", || lock("node-1") == json!({"state": "inactive"})).await?;
    stage.request("node-2", json!({})).await?;
    let refused = || {
        let request = stage.object("nodemaintenancerequests", "node-2");
        request["metadata"]["annotations"]["kopf.zalando.org/node_maintenance_request_change_handler"].is_string()
    };
    until("the second is refused", refused).await?;
    ensure!(lock("node-2") == json!({"state": "active"}), "no message, no release");
    stage.delete("node-1").await?;
    until("the second is granted", || lock("node-2")["state"] == "inactive").await
}

#[tokio::test]
async fn work_shows_progress_and_return_waits_for_node() -> Result<()> {
    let stage = Stage::new(&[("node-1", COMPUTE)]).await?;
    let _rockoon = stage.rockoon(deployed())?;
    stage.request("node-1", json!({})).await?;
    stage.handled("node-1").await?;
    let mut said = stage.said("openstack-node-1", "/errorMessage");
    // The message is removed at the end, and it changed all the time.
    ensure!(said.pop() == Some(Value::Null) && said.len() > 1, "{said:?}");
    let is_progress = |message: &Value| message.as_str().is_some_and(|m| m.ends_with("servers migration is completed"));
    ensure!(said.iter().all(is_progress) && said[0] != said[1], "{said:?}");
    ensure!(stage.lock("node-1")["status"] == json!({"state": "inactive", "release": "21.0.0"}));
    stage.kubernetes.set_ready("node-1", false)?;
    stage.delete("node-1").await?;
    // Rockoon reads the node again and again.
    stage.kubernetes.clear_requests();
    let reads = || {
        let requests = stage.kubernetes.requests();
        requests.iter().filter(|request| request.verb == "get" && request.resource == "nodes").count()
    };
    until("it waits for the node", || reads() > 2).await?;
    ensure!(stage.lock("node-1")["status"]["state"] == "inactive");
    stage.kubernetes.set_ready("node-1", true)?;
    until("the request is gone", || stage.object("nodemaintenancerequests", "node-1").is_null()).await?;
    ensure!(stage.lock("node-1")["status"]["state"] == "active");
    Ok(())
}

#[tokio::test]
async fn cluster_lock_follows_cluster_request() -> Result<()> {
    let stage = Stage::new(&[]).await?;
    let _rockoon = stage.rockoon(deployed())?;
    let status = || stage.object("clusterworkloadlocks", CLUSTER_LOCK)["status"].clone();
    until("the lock exists", || status() == json!({"state": "active", "release": "21.0.0"})).await?;
    let object = json!({"metadata": {"name": "edge"}, "spec": {"scope": "os"}});
    stage.client.send("POST", CLUSTER_REQUESTS, JSON, &object).await?;
    until("the lock is inactive", || status() == json!({"state": "inactive", "release": "21.0.0"})).await?;
    let said = stage.said(CLUSTER_LOCK, "/errorMessage");
    let text = "Waiting for all OpenStack services are healthy.";
    ensure!(said.iter().any(|message| message.as_str().is_some_and(|m| m.ends_with(text))), "{said:?}");
    stage.client.send("DELETE", &format!("{CLUSTER_REQUESTS}/edge"), JSON, &Value::Null).await?;
    until("the request is gone", || stage.object("clustermaintenancerequests", "edge").is_null()).await?;
    ensure!(status()["state"] == "active");
    Ok(())
}

#[tokio::test]
async fn flap_revokes_consent_once() -> Result<()> {
    let stage = Stage::new(&[("node-1", COMPUTE)]).await?;
    let _rockoon = stage.rockoon(RockoonConfig { flap: Some(Duration::from_millis(50)), ..quick() })?;
    let since = stage.kubernetes.revision();
    stage.request("node-1", json!({})).await?;
    let nodes = BTreeSet::from(["node-1".to_owned()]);
    let changes = || {
        let states = stage.recorder.states(since, &nodes);
        let mut states: Vec<Value> =
            states.iter().map(|state| state["node-1"]["nwl"]["status"]["state"].clone()).collect();
        states.dedup();
        states
    };
    let flapped = ["active", "inactive", "active", "inactive"];
    until("consent is given, revoked and given", || changes().ends_with(&flapped.map(Value::from))).await?;
    stage.delete("node-1").await?;
    stage.lock_is("node-1", "active").await
}

#[tokio::test]
async fn other_release_sets_locks_active() -> Result<()> {
    let stage = Stage::new(&[("node-1", COMPUTE)]).await?;
    let rockoon = stage.rockoon(quick())?;
    stage.request("node-1", json!({})).await?;
    stage.handled("node-1").await?;
    drop(rockoon);
    let slow = RockoonConfig { work: Duration::from_secs(600), release: "22.0.0".to_owned(), ..deployed() };
    let _rockoon = stage.rockoon(slow)?;
    stage.lock_is("node-1", "active").await?;
    until("the lock names the release", || stage.lock("node-1")["status"]["release"] == "22.0.0").await
}

#[tokio::test]
async fn deletion_request_sets_lock_inactive() -> Result<()> {
    let stage = Stage::new(&[("node-1", COMPUTE)]).await?;
    let _rockoon = stage.rockoon(deployed())?;
    stage.lock_is("node-1", "active").await?;
    let path = "/apis/lcm.mirantis.com/v1alpha1/nodedeletionrequests";
    stage
        .client
        .send("POST", path, JSON, &json!({"metadata": {"name": "node-1"}, "spec": {"nodeName": "node-1"}}))
        .await?;
    stage.lock_is("node-1", "inactive").await?;
    let request = || stage.object("nodedeletionrequests", "node-1");
    ensure!(request()["metadata"]["finalizers"].is_null(), "it needs no finalizer");
    stage.client.send("DELETE", &format!("{path}/node-1"), JSON, &Value::Null).await?;
    ensure!(request().is_null());
    // The node's finalizer goes, then the node, then its lock.
    stage.client.send("DELETE", "/api/v1/nodes/node-1", JSON, &Value::Null).await?;
    until("the node is gone", || stage.kubernetes.object("nodes", "", "node-1").is_none()).await?;
    until("the lock is gone", || stage.lock("node-1").is_null()).await
}

#[tokio::test]
async fn lock_goes_with_role() -> Result<()> {
    let stage = Stage::new(&[("node-1", COMPUTE)]).await?;
    let _rockoon = stage.rockoon(quick())?;
    stage.lock_is("node-1", "active").await?;
    stage.kubernetes.label_node("node-1", COMPUTE, None)?;
    until("the lock is gone", || stage.lock("node-1").is_null()).await?;
    let labels = || stage.kubernetes.object("nodes", "", "node-1").map(|node| node["metadata"]["labels"].clone());
    let internal = format!("rockoon-{COMPUTE}");
    until("its own label is gone", || labels().is_some_and(|labels| labels.get(&internal).is_none())).await
}

#[tokio::test]
async fn restarted_server_is_found_again() -> Result<()> {
    let stage = Stage::new(&[("node-1", COMPUTE)]).await?;
    let _rockoon = stage.rockoon(quick())?;
    stage.lock_is("node-1", "active").await?;
    stage.kubernetes.stop(true)?;
    stage.kubernetes.start_again()?;
    stage.request("node-1", json!({})).await?;
    stage.lock_is("node-1", "inactive").await
}
