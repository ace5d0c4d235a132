//! A stand-in for the Kubernetes API server 1.36.2, with the controllers that a drain meets.
//!
//! It answers as the recordings of a real server do. Objects are JSON values; only custom resources are checked, by
//! the schema of their definition. Several servers may share one state. The state survives a restart of the servers.
//!
//! Of server-side apply there is no `managedFields`, and only appliers own fields.
//!
//! Not supported: deletion of collections (405), changes of definitions,
//! `Warning` headers, rolling updates, Jobs and CronJobs that run, tables, and compressed or protobuf bodies.

mod access;
mod api;
mod apply;
mod call;
pub mod client;
mod cluster;
mod controllers;
mod defaults;
mod deletion;
mod eviction;
mod failure;
mod faults;
mod fixtures;
mod kinds;
mod lists;
mod objects;
mod patch;
mod request_log;
pub mod rockoon;
mod sampler;
mod schemas;
mod selectors;
mod server;
mod state;
mod store;
mod times;
mod tls;
mod watch;
mod write;

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;

pub use self::{
    access::Rule,
    controllers::Controller,
    faults::{Fault, FaultAction},
    fixtures::{Allowance, PodTraits},
    kinds::Kind,
    request_log::LoggedRequest,
    sampler::{Replicas, Workload},
};
use self::{
    access::Token,
    server::{Server, bind},
    state::{State, lock},
};

/// Settings of a stand-in.
#[derive(Clone, Debug)]
pub struct Config {
    /// One address per API server; port 0 takes a free port. On Linux every address of 127.0.0.0/8 can be used.
    pub listeners: Vec<SocketAddr>,
    /// Further names and addresses for the certificate.
    pub names: Vec<String>,
    /// Period of the controllers.
    pub tick: Duration,
    /// Delay between a change and the recount of its budgets.
    pub disruption_lag: Duration,
    /// Age at which an entry of `disruptedPods` expires.
    pub disrupted_pod_timeout: Duration,
    /// Time from the binding of a pod until it is ready.
    pub pod_start: Duration,
    /// Upper limit of the time that a terminating pod takes.
    pub pod_stop: Duration,
    /// Time from the end of a pod until its volumes are detached.
    pub detach_after: Duration,
    /// Period of a watch's bookmarks.
    pub bookmark_every: Duration,
    /// Time from the deletion of a node until its pods are deleted.
    pub orphan_after: Duration,
    /// Time from SIGTERM until a server cuts its open watches.
    pub shutdown_after: Duration,
    /// Do nodes have kubelets? Without them somebody else starts and ends the pods.
    pub kubelets: bool,
    /// Time without a new renewal of its Lease after which a node is not Ready. None: nodes need no Leases.
    pub node_grace: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            names: Vec::new(),
            tick: Duration::from_millis(50),
            disruption_lag: Duration::ZERO,
            disrupted_pod_timeout: Duration::from_secs(120),
            pod_start: Duration::from_millis(100),
            pod_stop: Duration::from_millis(100),
            detach_after: Duration::from_millis(200),
            bookmark_every: Duration::from_secs(60),
            orphan_after: Duration::from_secs(40),
            shutdown_after: Duration::from_secs(60),
            kubelets: true,
            node_grace: None,
        }
    }
}

/// State that servers, controllers and the handle share.
struct Shared {
    config: Config,
    acceptor: TlsAcceptor,
    state: Mutex<State>,
    ids: AtomicU64,
    hang_handshakes: AtomicBool,
    /// Servers that were started before.
    started: Mutex<Vec<usize>>,
    /// Number of servers that run.
    running: AtomicUsize,
}

impl Shared {
    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn hangs_handshakes(&self) -> bool {
        self.hang_handshakes.load(Ordering::Relaxed)
    }

    /// Does any API server run?
    fn is_served(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Is this the first start of the server?
    fn is_new(&self, index: usize) -> bool {
        let mut started = self.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let new = !started.contains(&index);
        started.push(index);
        new
    }
}

/// One API server of the cluster.
struct Place {
    address: SocketAddr,
    server: Option<Server>,
    /// Servers that were stopped by SIGTERM and may have open watches.
    leftover: Vec<Server>,
}

/// A running stand-in. Its methods are synchronous: tests call them with or without a runtime.
pub struct Kubernetes {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    places: Mutex<Vec<Place>>,
    ca_pem: String,
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Kubernetes").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Kubernetes {
    /// Start the API servers and the controllers. The namespaces that every cluster has exist from the
    /// start.
    pub fn start(config: Config) -> Result<Self> {
        let mut names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "kubernetes".to_owned()];
        names.extend(config.listeners.iter().map(|listener| listener.ip().to_string()));
        names.extend(config.names.iter().cloned());
        names.sort();
        names.dedup();
        let identity = tls::make(&names)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("kubernetes")
            .enable_all()
            .build()
            .context("cannot start the threads of the API server")?;
        let shared = Arc::new(Shared {
            acceptor: identity.acceptor,
            state: Mutex::new(State::new()),
            ids: AtomicU64::new(0),
            hang_handshakes: AtomicBool::new(false),
            started: Mutex::new(Vec::new()),
            running: AtomicUsize::new(0),
            config,
        });
        let mut places = Vec::new();
        for (index, address) in shared.config.listeners.iter().enumerate() {
            let listener = bind(*address)?;
            let address = listener.local_addr()?;
            let server = Server::start(runtime.handle(), &shared, index, listener)?;
            shared.running.fetch_add(1, Ordering::Relaxed);
            places.push(Place { address, server: Some(server), leftover: Vec::new() });
        }
        runtime.spawn(controllers::run(shared.clone()));
        let kubernetes = Self { shared, runtime: Some(runtime), places: Mutex::new(places), ca_pem: identity.ca_pem };
        for namespace in ["default", "kube-system", "kube-node-lease"] {
            kubernetes.namespace(namespace)?;
        }
        Ok(kubernetes)
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Addresses of the API servers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.places().iter().map(|place| place.address).collect()
    }

    /// `https://ADDRESS` of the API server with this index.
    pub fn url(&self, server: usize) -> Result<String> {
        let addresses = self.addresses();
        let address = addresses.get(server).with_context(|| format!("there is no API server {server}"))?;
        Ok(format!("https://{address}"))
    }

    /// The certificate authority in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A kubeconfig for the first API server with this bearer token.
    pub fn kubeconfig(&self, token: &str) -> Result<String> {
        Ok(self.kubeconfig_for(&self.url(0)?, token))
    }

    /// A kubeconfig for any URL, such as the address of another API server or of a proxy.
    pub fn kubeconfig_for(&self, url: &str, token: &str) -> String {
        let ca = BASE64_STANDARD.encode(&self.ca_pem);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: stand-in\n\
             clusters:\n- name: stand-in\n  cluster:\n    server: {url}\n    certificate-authority-data: {ca}\n\
             users:\n- name: stand-in\n  user:\n    token: {token}\n\
             contexts:\n- name: stand-in\n  context:\n    cluster: stand-in\n    user: stand-in\n"
        )
    }

    /// Stop all API servers. `kill` cuts every connection; otherwise open watches stay open and silent. Returns when
    /// the ports are closed. Controllers and kubelets pause while no API server runs.
    pub fn stop(&self, kill: bool) -> Result<()> {
        (0..self.addresses().len()).try_for_each(|server| self.stop_server(server, kill))
    }

    /// Start all stopped API servers on their ports.
    pub fn start_again(&self) -> Result<()> {
        (0..self.addresses().len()).try_for_each(|server| self.start_server(server))
    }

    /// Stop one API server.
    pub fn stop_server(&self, server: usize, kill: bool) -> Result<()> {
        let mut places = self.places();
        let place = places.get_mut(server).with_context(|| format!("there is no API server {server}"))?;
        if let Some(running) = place.server.take() {
            self.shared.running.fetch_sub(1, Ordering::Relaxed);
            running.stop(kill)?;
            if !kill {
                place.leftover.push(running);
            }
        }
        Ok(())
    }

    /// Start one API server on its port. Its watch cache starts empty: older resourceVersions get 410.
    pub fn start_server(&self, server: usize) -> Result<()> {
        let runtime = self.runtime.as_ref().context("the stand-in is shut down")?;
        let mut places = self.places();
        let place = places.get_mut(server).with_context(|| format!("there is no API server {server}"))?;
        if place.server.is_none() {
            // A new process starts only after the old one is gone.
            place.leftover.drain(..).for_each(|old| old.kill());
            place.server = Some(Server::start(runtime.handle(), &self.shared, server, bind(place.address)?)?);
            self.shared.running.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Let TLS handshakes hang, as those of a server that is starting.
    pub fn hang_handshakes(&self, hang: bool) {
        self.shared.hang_handshakes.store(hang, Ordering::Relaxed);
    }

    /// Let `/readyz` of one server answer 200 or 500.
    pub fn set_readyz(&self, server: usize, ready: bool) {
        let mut state = lock(&self.shared.state);
        if ready {
            state.unready.remove(&server);
        } else {
            state.unready.insert(server);
        }
    }

    /// Accept a bearer token.
    pub fn add_token(&self, token: &str, user: &str, rules: Vec<Rule>) {
        let token = Token { token: token.to_owned(), user: user.to_owned(), rules };
        lock(&self.shared.state).tokens.push(token);
    }

    /// Refuse a bearer token from now on, as after it expired.
    pub fn revoke_token(&self, token: &str) {
        lock(&self.shared.state).tokens.retain(|known| known.token != token);
    }

    /// Serve a further kind, as after its CustomResourceDefinition is established.
    pub fn serve_kind(&self, kind: Kind) {
        lock(&self.shared.state).serve(kind);
    }

    /// Add a fault after those that are pending.
    pub fn inject(&self, fault: Fault) {
        lock(&self.shared.state).faults.push(fault);
    }

    /// Drop all pending faults.
    pub fn clear_faults(&self) {
        lock(&self.shared.state).faults.clear();
    }

    /// All requests since the start or the last `clear_requests`.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        lock(&self.shared.state).log.clone()
    }

    /// Forget the logged requests.
    pub fn clear_requests(&self) {
        lock(&self.shared.state).log.clear();
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        // Allowed within a runtime, unlike a shutdown that waits.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
