//! The operator of Tungsten Fabric: one node at a time, with progress.

use std::time::Duration;

use anyhow::{Result, ensure};
use muster_kubernetes_stand_in::{
    Kubernetes, LoggedRequest,
    rockoon::{TungstenFabric, TungstenFabricConfig},
};
use serde_json::{Value, json};

use crate::{
    client::until,
    recordings::{
        definitions::define,
        replay::{cluster, config},
    },
};

const PATH: &str = "/apis/lcm.mirantis.com/v1alpha1";
const JSON: &str = "application/json";

fn status(kubernetes: &Kubernetes, plural: &str, name: &str) -> Value {
    let found = kubernetes.object(&format!("{plural}.lcm.mirantis.com"), "", name);
    found.map(|found| found["status"].clone()).unwrap_or_default()
}

#[tokio::test]
async fn tungsten_fabric_grants_one_node_at_a_time() -> Result<()> {
    let (kubernetes, client) = cluster(config())?;
    define(&kubernetes, &client).await?;
    for node in ["node-1", "node-2"] {
        kubernetes.label_node(node, "tfvrouter", Some("enabled"))?;
    }
    let work = Duration::from_millis(300);
    let quick = Duration::from_millis(10);
    let config = TungstenFabricConfig {
        poll: quick,
        reconnect: quick,
        pace: Duration::ZERO,
        work,
        restore: quick,
        ..TungstenFabricConfig::default()
    };
    let _fabric = TungstenFabric::start(&kubernetes.kubeconfig("admin")?, config)?;
    let lock = |node: &str| status(&kubernetes, "nodeworkloadlocks", &format!("tf-{node}"));
    let cluster = || status(&kubernetes, "clusterworkloadlocks", "tf-openstack-tf");
    until("the locks exist", || [lock("node-1"), lock("node-2"), cluster()].iter().all(|s| s["state"] == "active"))
        .await?;
    let request = json!({"metadata": {"name": "edge"}, "spec": {"scope": "os"}});
    client.send("POST", &format!("{PATH}/clustermaintenancerequests"), JSON, &request).await?;
    let progress =
        |done: u32| json!({"description": format!("{done} out of 2 nodes updated"), "percentage": done * 50});
    let cluster_is = |done: u32| cluster() == json!({"state": "inactive", "inactivationProgress": progress(done)});
    until("the cluster's lock is inactive", || cluster_is(0)).await?;
    for node in ["node-1", "node-2"] {
        let request = json!({"metadata": {"name": node}, "spec": {"nodeName": node, "scope": "os"}});
        client.send("POST", &format!("{PATH}/nodemaintenancerequests"), JSON, &request).await?;
    }
    until("the first is granted", || lock("node-1")["state"] == "inactive").await?;
    let said = |request: &LoggedRequest| {
        let progress = request.body["status"]["inactivationProgress"]["percentage"].clone();
        Some(progress).filter(|progress| request.name == "tf-node-1" && progress.is_u64())
    };
    let said: Vec<Value> = kubernetes.requests().iter().filter_map(said).collect();
    ensure!(said.len() > 1 && said[0] != said[1], "progress before the grant: {said:?}");
    // The second is not even begun, in any number of rounds.
    kubernetes.clear_requests();
    let rounds = || kubernetes.requests().iter().filter(|request| request.resource == "nodes").count();
    until("some rounds have passed", || rounds() > 3).await?;
    ensure!(lock("node-2") == json!({"state": "active"}), "{}", lock("node-2"));
    client.send("DELETE", &format!("{PATH}/nodemaintenancerequests/node-1"), JSON, &Value::Null).await?;
    until("the first is back", || lock("node-1")["state"] == "active").await?;
    until("the second is granted", || lock("node-2")["state"] == "inactive").await?;
    until("the cluster's progress moves while inactive", || cluster_is(1)).await?;
    client.send("DELETE", &format!("{PATH}/nodemaintenancerequests/node-2"), JSON, &Value::Null).await?;
    until("both are counted", || cluster_is(2)).await?;
    client.send("DELETE", &format!("{PATH}/clustermaintenancerequests/edge"), JSON, &Value::Null).await?;
    until("the cluster's lock is active", || cluster() == json!({"state": "active"})).await
}
