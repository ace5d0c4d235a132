//! The coordinator's gRPC side: TLS, authentication, authorization, and one file per service. It converts wire values
//! to model values and asks the engine; decisions about machines are made elsewhere.

mod accept;
mod agent_link;
mod authenticator;
mod authz;
mod bounds;
mod control_plane_relay;
mod enrollment;
mod failed_attempts;
mod fleet;
mod limiter;
mod log_relay;
mod maintenance;
mod reader;
mod refusals;
mod relay;
mod room;
mod sessions;
mod status;
mod swarm_relay;
mod tls;
mod watches;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use muster_proto::{
    APPLY_MESSAGE_BYTES_MAX, LINK_MESSAGE_BYTES_MAX,
    wire::{
        agent_link_server::AgentLinkServer, enrollment_server::EnrollmentServer, fleet_server::FleetServer,
        maintenance_server::MaintenanceServer,
    },
};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, transport::Server};
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

use bounds::{ENROLLMENT_MESSAGE_BYTES_MAX, NAMES_MESSAGE_BYTES_MAX};

use crate::{
    engine::EngineHandle,
    facts::Facts,
    orchestrator,
    pki::{Ca, PkiError, Vault},
};

pub use authenticator::{Authenticator, Caller, Identities, PeerStatus, Recorded};
pub use sessions::Sessions;
pub use swarm_relay::Asker;

/// Source of the wall clock's time in Unix milliseconds. The validity of certificates depends only on the coordinator's
/// clock.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Most concurrent calls on one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;
/// Largest total size of one call's headers.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Most streams that a peer may reset before we have handled them (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 16;
/// Most streams that we reset because of a peer's errors (CVE-2025-8671).
const LOCAL_RESETS_MAX: usize = 64;
/// Interval of keep-alive pings on a silent connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Timeout for the answer to a keep-alive ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const _: () = assert!(
    KEEPALIVE_INTERVAL.as_millis() + KEEPALIVE_TIMEOUT.as_millis() <= crate::plan::locks::UNNOTICED_MS as u128,
    "what is decided on a controller's silence relies on it"
);

/// Settings of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Interval of an agent's heartbeats.
    pub heartbeat: Duration,
    /// Lifetime of an agent's certificate.
    pub agent_lifetime: Duration,
}

/// Why the servers failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Setting up the certificate or its verifier failed.
    #[error("cannot set up TLS")]
    Tls(#[source] PkiError),
    /// The descriptors of the services are damaged: a bug in the build.
    #[error("cannot describe the services for gRPC reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("the gRPC server failed")]
    Grpc(#[source] tonic::transport::Error),
}

/// Serve every service on `listener` until `shutdown` completes; then open calls get a grace period.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    listener: TcpListener,
    engine: EngineHandle,
    sessions: Sessions,
    (ca, vault): (Arc<Ca>, Arc<Vault>),
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let clock = wall_clock(&engine);
    let authenticator = Authenticator::new(&ca, Arc::clone(&clock), engine.watch(), identities(&engine));
    let authenticator = Arc::new(authenticator.map_err(ServeError::Tls)?);
    let tls = tls::server_config(Arc::clone(&ca), clock).map_err(ServeError::Tls)?;
    let failed_attempts = Arc::new(failed_attempts::FailedAttempts::default());
    let noted = (Arc::clone(&failed_attempts), engine.clone());
    let connections = accept::Acceptor::spawn(listener, tls, Arc::clone(&authenticator), noted);
    let authorize =
        authz::Authorize { authenticator: Arc::clone(&authenticator), failed_attempts, engine: engine.clone() };
    tokio::spawn(advertise(engine.watch(), sessions.clone()));
    let watches = watches::Watches::default();
    tokio::spawn(ask_orchestrators(engine.clone(), sessions.clone(), Arc::clone(&vault)));

    let enrollment = enrollment::Enrollment {
        engine: engine.clone(),
        ca: Arc::clone(&ca),
        authenticator,
        lifetime: settings.agent_lifetime,
        failed_attempts: failed_attempts::FailedAttempts::default(),
    };
    let link = agent_link::Link {
        engine: engine.clone(),
        sessions: sessions.clone(),
        vault: Arc::clone(&vault),
        heartbeat: settings.heartbeat,
    };
    let maintenance = maintenance::Maintenance {
        engine: engine.clone(),
        ca: Arc::clone(&ca),
        sessions: sessions.clone(),
        watches: watches.clone(),
        last_stream: AtomicU64::default(),
    };
    let fleet = fleet::Fleet { engine, sessions: sessions.clone(), ca, vault, watches };
    let (health, serving) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(authorize)
        .layer(bounds::Bound::default())
        .add_service(EnrollmentServer::new(enrollment).max_decoding_message_size(ENROLLMENT_MESSAGE_BYTES_MAX))
        .add_service(
            AgentLinkServer::new(link)
                .max_decoding_message_size(LINK_MESSAGE_BYTES_MAX)
                .max_encoding_message_size(LINK_MESSAGE_BYTES_MAX),
        )
        .add_service(FleetServer::new(fleet).max_decoding_message_size(APPLY_MESSAGE_BYTES_MAX))
        .add_service(MaintenanceServer::new(maintenance).max_decoding_message_size(NAMES_MESSAGE_BYTES_MAX))
        .add_service(serving)
        .add_service(reflection()?)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), async move {
            shutdown.await;
            sessions.end_all();
        })
        .await
        .map_err(ServeError::Grpc)
}

fn wall_clock(engine: &EngineHandle) -> WallClock {
    let engine = engine.clone();
    Arc::new(move || engine.now().wall_ms)
}

/// The gRPC reflection service, which describes every service of ours.
fn reflection() -> Result<ServerReflectionServer<impl ServerReflection>, ServeError> {
    let described = tonic_reflection::server::Builder::configure();
    let described = described.register_encoded_file_descriptor_set(muster_proto::DESCRIPTORS);
    described.build_v1().map_err(ServeError::Reflection)
}

/// Asks the orchestrators what the plans want to know, until the sessions end.
async fn ask_orchestrators(engine: EngineHandle, sessions: Sessions, vault: Arc<Vault>) {
    let swarms = orchestrator::swarm::ask(engine.clone(), sessions.clone());
    let kubernetes = orchestrator::kubernetes::ask(engine, sessions.clone(), vault);
    tokio::select! {
        _ = async { tokio::join!(swarms, kubernetes) } => {}
        _ = sessions.ending() => {}
    }
}

/// Tell the connected agents the coordinator's addresses whenever they change.
async fn advertise(mut facts: watch::Receiver<Arc<Facts>>, sessions: Sessions) {
    let mut told = facts.borrow_and_update().meta.advertised.clone();
    while facts.changed().await.is_ok() {
        let news = {
            let facts = facts.borrow_and_update();
            (facts.meta.advertised != told).then(|| facts.meta.advertised.clone())
        };
        if let Some(advertised) = news {
            told = advertised;
            sessions.tell_addresses(told.as_ref());
        }
    }
}

/// Publish the recorded identities whenever they change, and only then.
fn identities(engine: &EngineHandle) -> Identities {
    let mut facts = engine.watch();
    let (publish, identities) = watch::channel(Arc::new(Recorded::of(&facts.borrow_and_update())));
    tokio::spawn(async move {
        while facts.changed().await.is_ok() {
            let now = Arc::new(Recorded::of(&facts.borrow_and_update()));
            publish.send_if_modified(|known| {
                let changed = *known != now;
                *known = now;
                changed
            });
        }
    });
    identities
}

/// The caller of a request, as attached by its connection.
fn caller_of<T>(request: &Request<T>) -> Result<Caller, Status> {
    request.extensions().get::<Caller>().cloned().ok_or_else(|| Status::unauthenticated(authz::NOT_ACCEPTED))
}

#[cfg(test)]
mod tests;
