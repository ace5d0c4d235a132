//! Controllers of the maintenance handshake, as clients of an API server: Rockoon (OpenStack) as it was recorded, and
//! the operator of Tungsten Fabric as its documentation describes it.
//!
//! They need only a kubeconfig with a token, so that they run against a real API server too. Each has a thread of its
//! own. [`Rockoon::stop`] ends it at once, as SIGKILL does: requests under way are cut, and nothing is written
//! afterwards. [`Rockoon::start_again`] continues from what the objects say.
//!
//! ```no_run
//! # use muster_kubernetes_stand_in::{Config, Kubernetes, rockoon::{Rockoon, RockoonConfig}};
//! # fn main() -> anyhow::Result<()> {
//! let kubernetes = Kubernetes::start(Config::default())?;
//! kubernetes.add_admin("rockoon");
//! kubernetes.label_node("node-1", "openstack-compute-node", Some("enabled"))?;
//! let kubeconfig = kubernetes.kubeconfig("rockoon")?;
//! let rockoon = Rockoon::start(&kubeconfig, RockoonConfig::default())?;
//! rockoon.stop();
//! rockoon.start_again()?;
//! # Ok(())
//! # }
//! ```
//!
//! What Rockoon does (the recordings 60 to 69, and the sources at 1390883a where those are silent):
//!
//! | event | answer |
//! |---|---|
//! | node with a role label | finalizer and label `rockoon-ROLE=controller` on it, lock `openstack-NODE`, active |
//! | role gone, or node being deleted | the lock is deleted; the node's finalizer goes |
//! | NodeMaintenanceRequest | finalizer, lock, limits, `work`, lock inactive, then the annotation "handled" |
//! | ... for a node without a role | finalizer and annotation only |
//! | ... of another release, or over a limit | errorMessage with the time; again after `retry`, not before |
//! | ... deleted | node and its pods Ready, `restore`, lock active, then the finalizer goes |
//! | ClusterMaintenanceRequest | finalizer; with a deployment: `health`, ClusterWorkloadLock inactive, later active |
//! | NodeDeletionRequest | `work`, lock inactive; no finalizer |
//! | lock being deleted | with a deployment: its finalizer stays while the node exists |
//!
//! Only the first DNS label of `spec.nodeName` counts. A deleted request whose lock is gone is held for ever, as by
//! Rockoon: it fails to patch the lock. With a deployment, a request without a scope is tried again for ever.
//!
//! Left out: NodeDisableNotifications, migration modes, availability zones, deletion of pods on lost nodes.

mod client;
mod handlers;
mod locks;
mod operator;
mod tungsten_fabric;

use std::time::Duration;

use anyhow::Result;

pub use self::tungsten_fabric::{TungstenFabric, TungstenFabricConfig};
use self::{client::Client, handlers::OpenStack, operator::Daemon};

/// Settings of Rockoon. Defaults are its own (etc/rockoon/01-controller-default.ini, kopf) or as recorded.
#[derive(Clone, Debug)]
pub struct RockoonConfig {
    /// Its release. A request that names another one is refused; a lock of another one is set active.
    pub release: String,
    /// Name of the OpenStackDeployment. None, as recorded: node requests are granted without work, nothing is waited
    /// for after them, and no ClusterWorkloadLock exists.
    pub deployment: Option<String>,
    /// Is the part that watches nodes away? Then a lock is made when its request is handled, and nodes stay as they
    /// are.
    pub late_locks: bool,
    /// Is it a controller from before Rockoon? Then one node in all is in maintenance, refusals are silent, locks have
    /// the names of their nodes and no release, and finalizers are of `openstack-controller`.
    pub legacy: bool,
    /// Control nodes in maintenance at which every node is refused.
    pub controllers_max: usize,
    /// The same for gateways.
    pub gateways_max: usize,
    /// The same for compute nodes.
    pub computes_max: usize,
    /// Time until a handler that failed or refused is tried again.
    pub retry: Duration,
    /// Interval of messages while it works, and of looks at what it waits for.
    pub poll: Duration,
    /// Pause after a list, a watch or a write that failed.
    pub reconnect: Duration,
    /// Pause after each write to a lock.
    pub pace: Duration,
    /// Time to move the workloads of a node away. Needs a deployment.
    pub work: Duration,
    /// Time to bring them back, once the node and its pods are Ready. Needs a deployment.
    pub restore: Duration,
    /// Time until all services are healthy after a cluster request. Needs a deployment.
    pub health: Duration,
    /// Time after which each consent for a node is revoked once, and given again after `retry`. None: never.
    pub flap: Option<Duration>,
}

impl Default for RockoonConfig {
    fn default() -> Self {
        Self {
            release: "21.0.0".to_owned(),
            deployment: None,
            late_locks: false,
            legacy: false,
            controllers_max: 1,
            gateways_max: 1,
            computes_max: 30,
            retry: Duration::from_secs(60),
            poll: Duration::from_secs(10),
            reconnect: Duration::from_secs(10),
            pace: Duration::from_millis(40),
            work: Duration::ZERO,
            restore: Duration::ZERO,
            health: Duration::ZERO,
            flap: None,
        }
    }
}

/// A running Rockoon. Drop stops it.
#[derive(Debug)]
pub struct Rockoon(Daemon<OpenStack>);

impl Rockoon {
    /// Start with the server and the token of a kubeconfig. The server may be away, and the definitions may not exist
    /// yet.
    pub fn start(kubeconfig: &str, config: RockoonConfig) -> Result<Self> {
        Daemon::start(OpenStack::new(Client::of_kubeconfig(kubeconfig)?, config)).map(Self)
    }

    /// Stop at once. Returns when nothing is written any more.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Start after a stop: every object is handled again.
    pub fn start_again(&self) -> Result<()> {
        self.0.start_again()
    }
}
