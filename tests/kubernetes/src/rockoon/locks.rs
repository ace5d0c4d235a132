//! Paths of the handshake's objects, and locks that are written step by step.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    super::objects::{has, set, text},
    client::Client,
};

pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const NODE_REQUESTS: &str = "/apis/lcm.mirantis.com/v1alpha1/nodemaintenancerequests";
pub(super) const CLUSTER_REQUESTS: &str = "/apis/lcm.mirantis.com/v1alpha1/clustermaintenancerequests";
pub(super) const DELETION_REQUESTS: &str = "/apis/lcm.mirantis.com/v1alpha1/nodedeletionrequests";
pub(super) const NODE_LOCKS: &str = "/apis/lcm.mirantis.com/v1alpha1/nodeworkloadlocks";
pub(super) const CLUSTER_LOCKS: &str = "/apis/lcm.mirantis.com/v1alpha1/clusterworkloadlocks";

/// A lock by its name.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    client: Client,
    kind: &'static str,
    collection: &'static str,
    name: String,
    /// Pause after each write.
    pace: Duration,
}

impl Lock {
    pub(super) fn of_node(client: &Client, name: String, pace: Duration) -> Self {
        Self { client: client.clone(), kind: "NodeWorkloadLock", collection: NODE_LOCKS, name, pace }
    }

    pub(super) fn of_cluster(client: &Client, name: String, pace: Duration) -> Self {
        Self { client: client.clone(), kind: "ClusterWorkloadLock", collection: CLUSTER_LOCKS, name, pace }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }

    /// The lock as it is now.
    pub(super) async fn read(&self) -> Result<Value> {
        let found = self.client.get(&self.path()).await?;
        found.with_context(|| format!("there is no lock {}", self.name))
    }

    /// Create the lock unless it exists, then make it agree with these fields. A lock without a status gets state
    /// active in a request of its own: a status in the first one would be dropped (recording 22).
    pub(super) async fn present(&self, fields: &Value, finalizer: Option<&str>) -> Result<Value> {
        let mut object = fields.clone();
        set(&mut object, &["apiVersion"], "lcm.mirantis.com/v1alpha1");
        set(&mut object, &["kind"], self.kind);
        set(&mut object, &["metadata", "name"], self.name.as_str());
        if self.client.get(&self.path()).await?.is_none() && self.client.create(self.collection, &object).await? {
            sleep(self.pace).await;
            if let Some(finalizer) = finalizer {
                self.patch(json!({"metadata": {"finalizers": [finalizer]}})).await?;
            }
        } else {
            self.patch(fields.clone()).await?;
        }
        if !has(&self.read().await?, "/status") {
            self.set_state("active").await?;
        }
        self.read().await
    }

    pub(super) async fn patch(&self, patch: Value) -> Result<()> {
        self.client.merge(&self.path(), &patch).await?;
        sleep(self.pace).await;
        Ok(())
    }

    /// Change fields of the status.
    pub(super) async fn set(&self, fields: Value) -> Result<()> {
        self.client.merge(&format!("{}/status", self.path()), &json!({"status": fields})).await?;
        sleep(self.pace).await;
        Ok(())
    }

    pub(super) async fn set_state(&self, state: &str) -> Result<()> {
        self.set(json!({"state": state})).await
    }

    pub(super) async fn delete(&self) -> Result<()> {
        self.client.delete(&self.path()).await
    }
}

pub(super) fn is_inactive(lock: &Value) -> bool {
    text(lock, "/status/state") == "inactive"
}
