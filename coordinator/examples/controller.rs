//! An application controller: it guards workloads on machines of a cluster, and lets a machine go for maintenance once
//! its workloads have moved away. `controller.py` beside it does the same in Python.
//!
//!     muster-coordinator credentials --role controller --name example --out example.toml     # on the coordinator
//!     controller example.toml edge-7 worker-1 worker-2
//!
//! What a real one puts in the place of [`move_away`] and [`bring_back`] is its own affair; the rest is the protocol:
//! register, watch, answer each request with a lock, and set the lock active again when the request is gone.

use std::time::Duration;

use anyhow::{Context as _, bail};
use muster_proto::{
    tls::{self, Identity},
    wire::{
        HeldLock, LockState, RegisterRequest, RequestEvent, SetLockRequest, WatchRequestsRequest,
        maintenance_client::MaintenanceClient, request_event::Type,
    },
};
use serde::Deserialize;
use tonic::transport::Channel;

/// Wait before the coordinator is dialled again.
const AGAIN: Duration = Duration::from_secs(1);

/// What `muster-coordinator credentials` writes.
#[derive(Deserialize)]
struct Credentials {
    /// `HOST:PORT`.
    coordinator: String,
    /// PEM.
    ca: String,
    certificate: String,
    key: String,
}

struct Controller {
    client: MaintenanceClient<Channel>,
    cluster: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(cluster)) = (args.next(), args.next()) else {
        bail!("usage: controller CREDENTIALS CLUSTER MACHINE…");
    };
    let machines: Vec<String> = args.collect();
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let credentials: Credentials =
        toml::from_str(&text).map_err(|error| anyhow::anyhow!("{file}: {}", error.message()))?;
    loop {
        // The coordinator may be starting again: a controller comes back by itself, and says anew what it guards.
        if let Err(error) = guard(&credentials, &cluster, &machines).await {
            tracing::warn!("{error:#}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Guards the machines until the connection breaks.
async fn guard(credentials: &Credentials, cluster: &str, machines: &[String]) -> anyhow::Result<()> {
    let identity = Identity { certificate_pem: credentials.certificate.clone(), key_pem: credentials.key.clone() };
    // The certificate that is shown must be the coordinator's, whatever its address: coordinator.muster.internal.
    let tls = tls::client_config(&credentials.ca, Some(&identity))?;
    let client = MaintenanceClient::new(tls::connect(&credentials.coordinator, tls).await?.channel);
    let mut controller = Controller { client, cluster: cluster.to_owned() };
    let register = RegisterRequest { cluster: cluster.to_owned(), machines: machines.to_vec(), of_cluster: true };
    controller.client.register(register).await?;
    let watch = WatchRequestsRequest { cluster: cluster.to_owned() };
    let mut events = controller.client.watch_requests(watch).await?.into_inner();
    while let Some(event) = events.message().await? {
        controller.hear(event).await?;
    }
    bail!("the coordinator ended the watch")
}

impl Controller {
    async fn hear(&mut self, event: RequestEvent) -> anyhow::Result<()> {
        match (event.r#type(), event.request) {
            (Type::Put, Some(request)) => {
                move_away(&request.machine, request.removal);
                self.set(request.machine, LockState::Inactive, request.release).await
            }
            // What was removed for good does not come back.
            (Type::Deleted, Some(request)) if request.removal => Ok(()),
            (Type::Deleted, Some(request)) => self.give_back(request.machine).await,
            (Type::Synced, _) => self.catch_up(event.locks).await,
            (Type::Put | Type::Deleted | Type::Unspecified, _) => Ok(()),
        }
    }

    /// Locks that no request is there for any more: their requests went away while nobody watched.
    async fn catch_up(&mut self, locks: Vec<HeldLock>) -> anyhow::Result<()> {
        for lock in locks.into_iter().filter(|lock| !lock.requested && lock.state() != LockState::Active) {
            self.give_back(lock.machine).await?;
        }
        Ok(())
    }

    async fn give_back(&mut self, machine: String) -> anyhow::Result<()> {
        bring_back(&machine);
        self.set(machine, LockState::Active, String::new()).await
    }

    async fn set(&mut self, machine: String, state: LockState, release: String) -> anyhow::Result<()> {
        let lock = SetLockRequest {
            cluster: self.cluster.clone(),
            machine,
            state: state.into(),
            release,
            ..Default::default()
        };
        self.client.set_lock(lock).await?;
        Ok(())
    }
}

/// Gets the workloads out of the way, off the machine for good if it is removed. An empty name is the cluster itself:
/// it is asked whether it can spare machines at all.
fn move_away(machine: &str, removed: bool) {
    tracing::info!(machine, removed, "workloads move away");
}

/// Brings them back.
fn bring_back(machine: &str) {
    tracing::info!(machine, "workloads come back");
}
