//! Rockoon's handlers (its controllers/maintenance.py and controllers/node.py).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, sleep_until},
};

use super::{
    super::objects::{controller_of, has, is_ready, name, set, text},
    RockoonConfig,
    client::Client,
    locks::{CLUSTER_REQUESTS, DELETION_REQUESTS, Lock, NODE_LOCKS, NODE_REQUESTS, NODES, is_inactive},
    operator::{Collection, Handlers, Link},
};

/// Labels of the roles. The value is `enabled`.
const CONTROLLER: &str = "openstack-control-plane";
const GATEWAY: &str = "openstack-gateway";
const COMPUTE: &str = "openstack-compute-node";
const ROLES: [&str; 3] = [CONTROLLER, GATEWAY, COMPUTE];

/// Annotation of a lock: is its node in maintenance?
const INNER_STATE: &str = "/metadata/annotations/inner_state";
const MIGRATING: &str = "Waiting servers migration is completed";

/// Rockoon's state beside the objects.
#[derive(Debug)]
pub(super) struct OpenStack {
    config: RockoonConfig,
    link: Link,
    /// Held while a node enters or leaves maintenance, so that no two nodes take the last place.
    maintenance: Arc<Mutex<()>>,
}

impl OpenStack {
    pub(super) fn new(client: Client, config: RockoonConfig) -> Self {
        let link = Link { client, retry: config.retry, reconnect: config.reconnect };
        Self { config, link, maintenance: Arc::default() }
    }

    /// Its finalizer. Nodes are watched by another process of it.
    fn finalizer(&self, of_node: bool) -> &'static str {
        match (self.config.legacy, of_node) {
            (false, false) => "lcm.mirantis.com/rockoon.nodemaintenancerequest-finalizer",
            (false, true) => "lcm.mirantis.com/rockoon.node-finalizer",
            (true, false) => "lcm.mirantis.com/openstack-controller.nodemaintenancerequest-finalizer",
            (true, true) => "lcm.mirantis.com/openstack-controller.node-finalizer",
        }
    }

    fn lock(&self, node: &str) -> Lock {
        let name = if self.config.legacy { node.to_owned() } else { format!("openstack-{node}") };
        Lock::of_node(&self.link.client, name, self.config.pace)
    }

    async fn node(&self, name: &str) -> Result<Option<Value>> {
        self.link.client.get(&format!("{NODES}/{name}")).await
    }

    /// Set the state active and name the release, if the lock names another one.
    async fn renew(&self, lock: &Lock, found: &Value) -> Result<()> {
        if self.config.legacy || text(found, "/status/release") == self.config.release {
            return Ok(());
        }
        lock.set_state("active").await?;
        lock.set(json!({"release": self.config.release})).await
    }

    /// Create or renew the lock of a node.
    async fn present(&self, node: &Value) -> Result<Lock> {
        let lock = self.lock(name(node));
        let original = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "spec": node.get("spec"),
            "metadata": {"name": name(node), "labels": node.pointer("/metadata/labels")},
        });
        let fields = json!({
            "metadata": {"annotations": {"openstack.lcm.mirantis.com/original-node": original.to_string()}},
            "spec": {"controllerName": "openstack", "nodeName": name(node), "nodeDeletionRequestSupported": true},
        });
        let found = lock.present(&fields, Some(self.finalizer(false))).await?;
        self.renew(&lock, &found).await?;
        Ok(lock)
    }

    fn cluster_lock(&self) -> Option<Lock> {
        let name = format!("openstack-{}", self.config.deployment.as_ref()?);
        Some(Lock::of_cluster(&self.link.client, name, self.config.pace))
    }

    /// Set a message, which begins with the time and so changes at every try.
    async fn say(&self, lock: &Lock, what: &str) -> Result<()> {
        if self.config.legacy {
            return Ok(());
        }
        let now = Timestamp::now().strftime("%Y-%m-%d %H:%M:%S.%6f");
        lock.set(json!({"errorMessage": format!("{now} {what}")})).await
    }

    async fn set_state(&self, lock: &Lock, state: &str) -> Result<()> {
        lock.set_state(state).await?;
        lock.set(json!({"errorMessage": null})).await
    }

    /// Refuse a request of another release.
    async fn check_release(&self, request: &Value, lock: &Lock) -> Result<()> {
        let (theirs, ours) = (text(request, "/spec/release"), &self.config.release);
        if theirs.is_empty() || theirs == ours {
            return Ok(());
        }
        let why = format!("Current maintenancerequest {theirs} release does not match ours {ours}. Skipping handling.");
        self.say(lock, &why).await?;
        bail!(why)
    }

    /// May one more node enter maintenance? As soon as one role has its maximum there, none may.
    async fn has_room(&self) -> Result<bool> {
        let (locks, _) = self.link.client.list(NODE_LOCKS).await?;
        let busy = |lock: &&Value| text(lock, "/spec/controllerName") == "openstack" && is_in_maintenance(lock);
        let busy: BTreeSet<&str> = locks.iter().filter(busy).map(|lock| text(lock, "/spec/nodeName")).collect();
        let (mut nodes, _) = self.link.client.list(NODES).await?;
        nodes.retain(|node| busy.contains(name(node)));
        let RockoonConfig { legacy, controllers_max, gateways_max, computes_max, .. } = self.config;
        let maxima = [(CONTROLLER, controllers_max), (GATEWAY, gateways_max), (COMPUTE, computes_max)];
        let count = |role: &str| nodes.iter().filter(|node| has_role(node, role)).count();
        Ok(if legacy { nodes.is_empty() } else { maxima.into_iter().all(|(role, maximum)| count(role) < maximum) })
    }

    /// Take a place among the nodes in maintenance, or keep it.
    async fn enter_maintenance(&self, lock: &Lock, node: &str) -> Result<()> {
        let _alone = self.maintenance.lock().await;
        if !is_in_maintenance(&lock.read().await?) && !self.has_room().await? {
            let why = format!(
                "Number of inactive NodeWorkloadLocks exceeds allowed concurrency. Deferring processing for node {node}"
            );
            self.say(lock, &why).await?;
            bail!(why)
        }
        lock.patch(json!({"metadata": {"annotations": {"inner_state": "active"}}})).await
    }

    /// Work for a time, with a message again and again.
    async fn work(&self, lock: &Lock, time: Duration, what: &str) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.say(lock, what).await?;
            sleep_until(end.min(Instant::now() + self.config.poll)).await;
        }
        Ok(())
    }

    async fn request_changed(&self, request: &Value) -> Result<()> {
        let node_name = node_name(request)?;
        let node = self.node(node_name).await?;
        let Some(node) = node.filter(has_any_role) else { return Ok(()) };
        let lock = self.present(&node).await?;
        self.check_release(request, &lock).await?;
        self.enter_maintenance(&lock, node_name).await?;
        if self.config.deployment.is_some() && !is_inactive(&lock.read().await?) {
            if !has(request, "/spec/scope") {
                bail!("'scope'");
            }
            self.work(&lock, self.config.work, MIGRATING).await?;
        }
        self.set_state(&lock, "inactive").await?;
        if let Some(after) = self.config.flap {
            tokio::spawn(revoke(lock, self.maintenance.clone(), after, self.config.retry));
        }
        Ok(())
    }

    async fn request_deleted(&self, request: &Value) -> Result<()> {
        let node_name = node_name(request)?;
        let lock = self.lock(node_name);
        if let Some(node) = self.node(node_name).await? {
            if !has_any_role(&node) {
                return lock.delete().await;
            }
            if self.config.deployment.is_some() && is_in_maintenance(&lock.read().await?) {
                self.until_ready(node_name).await?;
                sleep(self.config.restore).await;
            }
        }
        let _alone = self.maintenance.lock().await;
        lock.patch(json!({"metadata": {"annotations": {"inner_state": "inactive"}}})).await?;
        self.set_state(&lock, "active").await
    }

    /// Wait until a node is Ready, and OpenStack's pods on it. Rockoon waits without a limit.
    async fn until_ready(&self, node: &str) -> Result<()> {
        while !is_ready(&self.node(node).await?.context("the node is gone")?) {
            sleep(self.config.poll).await;
        }
        let path = format!("/api/v1/namespaces/openstack/pods?fieldSelector=spec.nodeName%3D{node}");
        let counts = |pod: &Value| controller_of(pod).is_none_or(|owner| text(owner, "/kind") != "Job");
        while self.link.client.list(&path).await?.0.iter().any(|pod| counts(pod) && !is_ready(pod)) {
            sleep(self.config.poll).await;
        }
        Ok(())
    }

    async fn cluster_request_changed(&self, request: &Value) -> Result<()> {
        let Some(lock) = self.cluster_lock() else { return Ok(()) };
        self.check_release(request, &lock).await?;
        if is_inactive(&lock.read().await?) {
            return Ok(());
        }
        self.work(&lock, self.config.health, "Waiting for all OpenStack services are healthy.").await?;
        self.set_state(&lock, "inactive").await
    }

    async fn deletion_request_changed(&self, request: &Value) -> Result<()> {
        let node_name = node_name(request)?;
        let lock = self.lock(node_name);
        if self.config.deployment.is_some() && self.node(node_name).await?.is_some() {
            self.work(&lock, self.config.work, MIGRATING).await?;
        }
        self.set_state(&lock, "inactive").await
    }

    /// Labels of its own follow the roles, and so does the lock.
    async fn node_changed(&self, node: &Value) -> Result<()> {
        let mut labels = json!({});
        for role in ROLES {
            let value = has_role(node, role).then_some("controller");
            set(&mut labels, &[&format!("rockoon-{role}")], value);
        }
        self.link.client.merge(&format!("{NODES}/{}", name(node)), &json!({"metadata": {"labels": labels}})).await?;
        if has_any_role(node) {
            return self.present(node).await.map(drop);
        }
        self.lock(name(node)).delete().await
    }

    /// The lock of a node stays while its node does: later the services' data of that node are removed.
    async fn lock_deleted(&self, lock: &Value) -> Result<()> {
        let ours = text(lock, "/spec/controllerName") == "openstack" && self.config.deployment.is_some();
        let node = text(lock, "/spec/nodeName");
        if ours && self.node(node).await?.is_some() {
            bail!("The kubernetes node {node} still exists. Deffer OpenStack service metadata removal.");
        }
        Ok(())
    }
}

impl Handlers for OpenStack {
    fn link(&self) -> &Link {
        &self.link
    }

    fn collections(&self) -> Vec<Collection> {
        let finalizer = Some(self.finalizer(false));
        let collection = |path, handler| Collection { path, finalizer, handler, finishes: true };
        let deletions = collection(DELETION_REQUESTS, "node_deletion_request_change_handler");
        let mut all = vec![
            collection(NODE_REQUESTS, "node_maintenance_request_change_handler"),
            collection(CLUSTER_REQUESTS, "cluster_maintenance_request_change_handler"),
            collection(NODE_LOCKS, "node_workloadlock_request_delete_handler"),
            Collection { finalizer: None, ..deletions },
        ];
        if !self.config.late_locks {
            // Its handler of conditions fails without a deployment (recording 60b).
            let finishes = self.config.deployment.is_some();
            let nodes = collection(NODES, "node_change_handler");
            all.push(Collection { finalizer: Some(self.finalizer(true)), finishes, ..nodes });
        }
        all
    }

    /// The lock of the deployment, which its handler makes.
    async fn started(&self) {
        let Some(lock) = self.cluster_lock() else { return };
        let fields = json!({"spec": {"controllerName": "openstack"}});
        loop {
            if let Ok(found) = lock.present(&fields, None).await
                && self.renew(&lock, &found).await.is_ok()
            {
                return;
            }
            sleep(self.config.reconnect).await;
        }
    }

    async fn changed(&self, collection: &Collection, object: &Value) -> Result<()> {
        match collection.path {
            NODE_REQUESTS => self.request_changed(object).await,
            CLUSTER_REQUESTS => self.cluster_request_changed(object).await,
            DELETION_REQUESTS => self.deletion_request_changed(object).await,
            NODES => self.node_changed(object).await,
            _ => Ok(()),
        }
    }

    async fn deleted(&self, collection: &Collection, object: &Value) -> Result<()> {
        match collection.path {
            NODE_REQUESTS => self.request_deleted(object).await,
            CLUSTER_REQUESTS => match self.cluster_lock() {
                Some(lock) => self.set_state(&lock, "active").await,
                None => Ok(()),
            },
            NODE_LOCKS => self.lock_deleted(object).await,
            _ => self.lock(name(object)).delete().await,
        }
    }
}

/// Revoke a consent after a time, and give it again, while the node is in maintenance.
async fn revoke(lock: Lock, maintenance: Arc<Mutex<()>>, after: Duration, again: Duration) {
    for (pause, state) in [(after, "active"), (again, "inactive")] {
        sleep(pause).await;
        let _alone = maintenance.lock().await;
        let in_maintenance = lock.read().await.is_ok_and(|lock| is_in_maintenance(&lock));
        if !in_maintenance || lock.set_state(state).await.is_err() {
            return;
        }
    }
}

/// The node of a request: the first DNS label only.
fn node_name(request: &Value) -> Result<&str> {
    let name = text(request, "/spec/nodeName").split('.').next();
    name.filter(|name| !name.is_empty()).context("'nodeName'")
}

fn is_in_maintenance(lock: &Value) -> bool {
    text(lock, INNER_STATE) == "active"
}

fn has_role(node: &Value, role: &str) -> bool {
    text(node, &format!("/metadata/labels/{role}")) == "enabled"
}

fn has_any_role(node: &Value) -> bool {
    ROLES.iter().any(|role| has_role(node, role))
}
