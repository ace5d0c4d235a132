//! An application controller: it guards workloads on machines of a cluster, and lets a machine go for maintenance once
//! its workloads have moved away. `controller.py` beside it does the same in Python.
//!
//!     muster-coordinator credentials --role controller --name example --out example.toml     # on the coordinator
//!     controller example.toml edge-7 worker-1 worker-2
//!
//! What a real one puts in the place of [`move_away`] and [`bring_back`] is its own affair; the rest is the protocol:
//! register, watch, answer each request with a lock, set the lock active again when the request is gone, and renew the
//! certificate at two thirds of its lifetime.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use muster_proto::{
    tls::{self, Identity},
    wire::{
        HeldLock, LockState, RegisterRequest, RenewCertificateRequest, RequestEvent, SetLockRequest,
        WatchRequestsRequest, maintenance_client::MaintenanceClient, request_event::Type,
    },
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tonic::transport::Channel;

/// Wait before the coordinator is dialled again.
const AGAIN: Duration = Duration::from_secs(1);
/// Wait before a failed renewal is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(60);
/// A certificate says that it is valid from so long before its issue, for clocks that are behind.
const BACKDATED: Duration = Duration::from_secs(3600);

/// What `muster-coordinator credentials` writes.
#[derive(Clone, Deserialize, Serialize)]
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
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let mut credentials: Credentials =
        toml::from_str(&text).map_err(|error| anyhow::anyhow!("{file}: {}", error.message()))?;
    loop {
        // The coordinator may be starting again: a controller comes back by itself, and says anew what it guards.
        match guard(&credentials, &cluster, &machines).await {
            Ok(renewed) => {
                // Before it is used. Where it cannot be written it is used all the same: the former one will expire.
                if let Err(error) = renewed.save(Path::new(&file)) {
                    tracing::error!("the renewed certificate is not saved to {file}: {error}");
                }
                credentials = renewed;
            }
            Err(error) => {
                tracing::warn!("{error:#}");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Guards the machines until the certificate is renewed or the connection breaks. Returns the renewed credentials.
async fn guard(credentials: &Credentials, cluster: &str, machines: &[String]) -> anyhow::Result<Credentials> {
    let identity = Identity { certificate_pem: credentials.certificate.clone(), key_pem: credentials.key.clone() };
    // The certificate that is shown must be the coordinator's, whatever its address: coordinator.muster.internal.
    let tls = tls::client_config(&credentials.ca, Some(&identity))?;
    let client = MaintenanceClient::new(tls::connect(&credentials.coordinator, tls).await?.channel);
    let mut controller = Controller { client, cluster: cluster.to_owned() };
    let register = RegisterRequest { cluster: cluster.to_owned(), machines: machines.to_vec(), of_cluster: true };
    controller.client.register(register).await?;
    let watch = WatchRequestsRequest { cluster: cluster.to_owned() };
    let mut events = controller.client.watch_requests(watch).await?.into_inner();
    let mut renew_at = Instant::now() + credentials.renewal_in()?;
    loop {
        tokio::select! {
            event = events.message() => match event? {
                Some(event) => controller.hear(event).await?,
                None => bail!("the coordinator ended the watch"),
            },
            () = tokio::time::sleep_until(renew_at) => match controller.renew(credentials).await {
                Ok(renewed) => return Ok(renewed),
                Err(error) => {
                    tracing::warn!("the certificate is not renewed: {error:#}");
                    renew_at = Instant::now() + RENEW_AGAIN;
                }
            },
        }
    }
}

impl Credentials {
    /// Time until two thirds of the certificate's lifetime are over.
    fn renewal_in(&self) -> anyhow::Result<Duration> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes())?;
        let validity = pem.parse_x509()?.validity().clone();
        let since_epoch = |seconds| anyhow::Ok(Duration::from_secs(u64::try_from(seconds)?));
        let issued = since_epoch(validity.not_before.timestamp())? + BACKDATED;
        let lifetime = since_epoch(validity.not_after.timestamp())?.saturating_sub(issued);
        Ok((issued + lifetime * 2 / 3).saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH)?))
    }

    /// Writes them in the place of the former ones: a reader, and a power cut, find these or those.
    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let new = path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(toml::to_string_pretty(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(fs::File::open(dir)?.sync_all()?)
    }
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

    /// A new certificate, for a new key. The former one stays valid until it expires.
    async fn renew(&mut self, former: &Credentials) -> anyhow::Result<Credentials> {
        let key = rcgen::KeyPair::generate()?;
        let csr_der = rcgen::CertificateParams::default().serialize_request(&key)?.der().to_vec();
        let renewed = self.client.renew_certificate(RenewCertificateRequest { csr_der }).await?.into_inner();
        let (ca, certificate) = (renewed.ca_pem, renewed.certificate_pem);
        Ok(Credentials { coordinator: former.coordinator.clone(), ca, certificate, key: key.serialize_pem() })
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
