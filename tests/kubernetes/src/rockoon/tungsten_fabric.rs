//! The operator of Tungsten Fabric, by its documentation (tf-controller-update-flow): its sources are closed.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    super::objects::{has, is_terminating, name, text},
    client::Client,
    locks::{CLUSTER_REQUESTS, Lock, NODE_LOCKS, NODE_REQUESTS, NODES, is_inactive},
    operator::{Daemon, Handlers, Link},
};

/// Label of its nodes. The value is `enabled`.
const VROUTER: &str = "/metadata/labels/tfvrouter";

/// Settings of the operator.
#[derive(Clone, Debug)]
pub struct TungstenFabricConfig {
    /// Name of the TFOperator, after which the cluster's lock is named: `tf-NAME`. Nodes' locks are `tf-NODE`.
    pub operator: String,
    /// Interval in which it looks at requests, and writes progress.
    pub poll: Duration,
    /// Pause after a request that failed.
    pub reconnect: Duration,
    /// Pause after each write to a lock.
    pub pace: Duration,
    /// Time until a node may be taken.
    pub work: Duration,
    /// Time until the pods of the vRouter are Ready again.
    pub restore: Duration,
}

impl Default for TungstenFabricConfig {
    fn default() -> Self {
        Self {
            operator: "openstack-tf".to_owned(),
            poll: Duration::from_secs(1),
            reconnect: Duration::from_secs(10),
            pace: Duration::from_millis(40),
            work: Duration::ZERO,
            restore: Duration::ZERO,
        }
    }
}

/// A running operator of Tungsten Fabric. Nodes with the label `tfvrouter=enabled` are its own. It grants one of them
/// at a time, has no finalizer, and puts its progress into its locks: into the cluster's also while that is inactive.
/// Drop stops it.
#[derive(Debug)]
pub struct TungstenFabric(Daemon<Fabric>);

impl TungstenFabric {
    /// Start with the server and the token of a kubeconfig.
    pub fn start(kubeconfig: &str, config: TungstenFabricConfig) -> Result<Self> {
        let (client, retry) = (Client::of_kubeconfig(kubeconfig)?, config.reconnect);
        let link = Link { client, retry, reconnect: retry };
        Daemon::start(Fabric { config, link, updated: Mutex::default() }).map(Self)
    }

    /// Stop at once. Returns when nothing is written any more.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Start after a stop.
    pub fn start_again(&self) -> Result<()> {
        self.0.start_again()
    }
}

#[derive(Debug)]
struct Fabric {
    config: TungstenFabricConfig,
    link: Link,
    /// Nodes that came back since the cluster request was made.
    updated: Mutex<BTreeSet<String>>,
}

impl Handlers for Fabric {
    fn link(&self) -> &Link {
        &self.link
    }

    async fn started(&self) {
        loop {
            let pause = if self.round().await.is_ok() { self.config.poll } else { self.config.reconnect };
            sleep(pause).await;
        }
    }
}

impl Fabric {
    /// Look at everything, and act.
    async fn round(&self) -> Result<()> {
        let (mut nodes, _) = self.link.client.list(NODES).await?;
        nodes.retain(|node| text(node, VROUTER) == "enabled");
        let asked = self.requests(NODE_REQUESTS).await?;
        let asked: BTreeSet<&str> = asked.iter().map(|request| text(request, "/spec/nodeName")).collect();
        let (locks, _) = self.link.client.list(NODE_LOCKS).await?;
        let mut granted = false;
        let mut waiting = None;
        for node in nodes.iter().map(name) {
            let lock = Lock::of_node(&self.link.client, format!("tf-{node}"), self.config.pace);
            let found = locks.iter().find(|known| name(known) == format!("tf-{node}") && has(known, "/status"));
            let inactive = match found {
                Some(found) => is_inactive(found),
                None => {
                    let fields = json!({"spec": {"controllerName": "tungstenfabric", "nodeName": node}});
                    is_inactive(&lock.present(&fields, None).await?)
                }
            };
            match (inactive, asked.contains(node)) {
                (true, true) => granted = true,
                (true, false) => self.bring_back(&lock, node).await?,
                (false, true) => waiting = waiting.or(Some(lock)),
                (false, false) => {}
            }
        }
        if let (false, Some(lock)) = (granted, waiting) {
            self.work(&lock).await?;
        }
        self.cluster(nodes.len()).await
    }

    /// The requests that are not being deleted.
    async fn requests(&self, collection: &str) -> Result<Vec<Value>> {
        let (mut requests, _) = self.link.client.list(collection).await?;
        requests.retain(|request| !is_terminating(request));
        Ok(requests)
    }

    async fn bring_back(&self, lock: &Lock, node: &str) -> Result<()> {
        sleep(self.config.restore).await;
        lock.set(json!({"state": "active", "inactivationProgress": null})).await?;
        self.updated().insert(node.to_owned());
        Ok(())
    }

    async fn work(&self, lock: &Lock) -> Result<()> {
        let start = Instant::now();
        let end = start + self.config.work;
        while Instant::now() < end {
            let passed = start.elapsed().as_millis() * 100 / self.config.work.as_millis().max(1);
            lock.set(progress("Waiting for the pods of the vRouter", passed)).await?;
            sleep_until(end.min(Instant::now() + self.config.poll)).await;
        }
        lock.set_state("inactive").await?;
        lock.set(progress("The pods of the vRouter are ready", 100)).await
    }

    /// Let the cluster's lock follow the cluster request.
    async fn cluster(&self, nodes: usize) -> Result<()> {
        let name = format!("tf-{}", self.config.operator);
        let lock = Lock::of_cluster(&self.link.client, name, self.config.pace);
        let found = lock.present(&json!({"spec": {"controllerName": "tungstenfabric"}}), None).await?;
        if self.requests(CLUSTER_REQUESTS).await?.is_empty() {
            self.updated().clear();
            if is_inactive(&found) {
                lock.set(json!({"state": "active", "inactivationProgress": null})).await?;
            }
            return Ok(());
        }
        let done = self.updated().len().min(nodes);
        let percentage = u128::try_from(done * 100 / nodes.max(1))?;
        lock.set_state("inactive").await?;
        lock.set(progress(&format!("{done} out of {nodes} nodes updated"), percentage)).await
    }

    fn updated(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.updated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn progress(description: &str, percentage: u128) -> Value {
    let percentage = u64::try_from(percentage).unwrap_or(100);
    json!({"inactivationProgress": {"description": description, "percentage": percentage}})
}
