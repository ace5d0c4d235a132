//! A coordinator that the test controls message by message. TLS, certificates and gRPC are real.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use muster_proto::{
    convert::Hello,
    model::{
        AssignedItem, Assignment, AuthCode, ClusterName, Epoch, Generation, ItemName, ItemState, OnInterrupt, Phase,
    },
    tls::{ALPN, SERVER_NAME, provider, spki_sha256},
    wire::{
        Ack, AgentMessage, CoordinatorMessage, Credentials, EnrollRequest, FetchSecretsRequest, FetchSecretsResponse,
        ItemInput, RenewExpiredRequest, RenewRequest, StatusEvent, Welcome,
        agent_link_server::{AgentLink, AgentLinkServer},
        agent_message::Body as FromAgent,
        coordinator_message::Body as ToAgent,
        enrollment_server::{Enrollment, EnrollmentServer},
    },
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, PublicKeyData,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{DuplexStream, copy_bidirectional, duplex},
    net::TcpListener,
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Timeout of all waits; only a hang takes this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
pub(crate) const SECRET: &str = "s3cret-of-the-token";
pub(crate) const MACHINE_ID: &str = "a0e1b2c3-0000-4000-8000-0000000000aa";

/// Deviations of the simulated coordinator from a good one.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) certificate_life: Duration,
    /// Enrolment issues expired certificates.
    pub(crate) issues_expired: bool,
    /// Its own certificate has expired.
    pub(crate) out_of_date: bool,
    /// Its answer to the first enrolment is lost.
    pub(crate) first_answer_lost: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            certificate_life: Duration::from_secs(3600),
            issues_expired: false,
            out_of_date: false,
            first_answer_lost: false,
        }
    }
}

pub(crate) struct Coordinator {
    pub(crate) address: SocketAddr,
    pub(crate) calls: Arc<Calls>,
    pin: String,
    sessions: mpsc::Receiver<Session>,
}

/// Calls of the Enrollment service.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) enroll: AtomicU32,
    /// Public keys of the enrolment requests.
    pub(crate) keys: Mutex<Vec<Vec<u8>>>,
    pub(crate) renew: AtomicU32,
    pub(crate) renew_expired: AtomicU32,
    /// Value of the secret `db`; None: refused.
    pub(crate) secret: Mutex<Option<Vec<u8>>>,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
}

struct Service {
    authority: Authority,
    calls: Arc<Calls>,
    traits: Traits,
    sessions: mpsc::Sender<Session>,
}

pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_millis()).expect("before the end of time")
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("signed");
        Self { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    fn server(&self, out_of_date: bool) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if out_of_date {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        let leaf = params.signed_by(&key, &self.issuer).expect("signed").der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).expect("a root");
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .allow_unauthenticated()
            .build()
            .expect("a verifier");
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![leaf, self.der.clone()],
                PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
            )
            .expect("a certificate");
        config.alpn_protocols = vec![ALPN.to_vec()];
        Arc::new(config)
    }

    fn for_an_hour(&self, csr_der: &[u8]) -> Credentials {
        let hour = Duration::from_secs(3600);
        self.credentials(csr_der, hour, SystemTime::now() + hour)
    }

    fn credentials(&self, csr_der: &[u8], life: Duration, until: SystemTime) -> Credentials {
        let mut request = CertificateSigningRequestParams::from_der(&csr_der.into()).expect("a request");
        request.params.not_before = (SystemTime::now() - Duration::from_secs(60)).into();
        request.params.not_after = until.into();
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let life_ms = u64::try_from(life.as_millis()).expect("short");
        Credentials {
            machine_id: MACHINE_ID.to_owned(),
            certificate_pem: request.signed_by(&self.issuer).expect("signed").pem(),
            ca_pem: self.pem.clone(),
            not_after_ms: unix_ms() + life_ms,
            server_time_ms: unix_ms(),
            cluster: "edge".to_owned(),
            machine_type: "worker".to_owned(),
        }
    }
}

impl Coordinator {
    pub(crate) async fn start(traits: Traits) -> Self {
        let authority = Authority::new();
        let acceptor = TlsAcceptor::from(authority.server(traits.out_of_date));
        let pin = spki_sha256(&authority.der).expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (calls, (sessions, arrived)) = (Arc::new(Calls::default()), mpsc::channel(16));
        let service = Arc::new(Service { authority, calls: Arc::clone(&calls), traits, sessions });
        let (connections, incoming) = mpsc::channel::<std::io::Result<DuplexStream>>(16);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, connections) = (acceptor.clone(), connections.clone());
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                    let (mut ours, theirs) = duplex(64 * 1024);
                    connections.send(Ok(theirs)).await.ok();
                    copy_bidirectional(&mut tls, &mut ours).await.ok();
                });
            }
        });
        let server = tonic::transport::Server::builder()
            .add_service(AgentLinkServer::from_arc(Arc::clone(&service)))
            .add_service(EnrollmentServer::from_arc(service))
            .serve_with_incoming(ReceiverStream::new(incoming));
        tokio::spawn(server);
        let pin = pin.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { address, calls, pin, sessions: arrived }
    }

    pub(crate) fn token(&self) -> String {
        format!("id1.{SECRET}.{}", self.pin)
    }

    /// The next session, after its hello.
    pub(crate) async fn session(&mut self) -> Session {
        timeout(DEADLINE, self.sessions.recv()).await.expect("a session in time").expect("a session")
    }

    /// The next session, after its welcome.
    pub(crate) async fn welcomed(&mut self, epoch: u64) -> Session {
        let mut session = self.session().await;
        session.welcome(epoch).await;
        session
    }
}

#[tonic::async_trait]
impl Enrollment for Service {
    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<Credentials>, Status> {
        let before = self.calls.enroll.fetch_add(1, Ordering::SeqCst);
        let request = request.into_inner();
        let asked = CertificateSigningRequestParams::from_der(&request.csr_der.as_slice().into()).expect("a request");
        self.calls.keys.lock().expect("no panic").push(asked.public_key.der_bytes().to_vec());
        if self.traits.first_answer_lost && before == 0 {
            return Err(Status::unavailable("the connection was lost"));
        }
        if request.token.split('.').nth(1) != Some(SECRET) {
            return Err(Status::unauthenticated("the token is not valid"));
        }
        let now = SystemTime::now();
        let life = self.traits.certificate_life;
        let until = if self.traits.issues_expired { now - Duration::from_secs(2) } else { now + life };
        Ok(Response::new(self.authority.credentials(&request.csr_der, life, until)))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Credentials>, Status> {
        self.calls.renew.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(self.authority.for_an_hour(&request.into_inner().csr_der)))
    }

    async fn renew_expired(&self, request: Request<RenewExpiredRequest>) -> Result<Response<Credentials>, Status> {
        self.calls.renew_expired.fetch_add(1, Ordering::SeqCst);
        let request = request.into_inner();
        let (_, old) = x509_parser::parse_x509_certificate(&request.certificate_der).expect("a certificate");
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &old.public_key().subject_public_key.data);
        let signed = [b"muster-renew-v1", request.csr_der.as_slice()].concat();
        key.verify(&signed, &request.signature).map_err(|_| Status::unauthenticated("the signature is wrong"))?;
        let new = CertificateSigningRequestParams::from_der(&request.csr_der.as_slice().into()).expect("a request");
        assert_ne!(new.public_key.der_bytes(), &*old.public_key().subject_public_key.data, "a new key");
        Ok(Response::new(self.authority.for_an_hour(&request.csr_der)))
    }
}

#[tonic::async_trait]
impl AgentLink for Service {
    type ConnectStream = ReceiverStream<Result<CoordinatorMessage, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let mut inbound = request.into_inner();
        let (out, queue) = mpsc::channel(64);
        let sessions = self.sessions.clone();
        tokio::spawn(async move {
            let Ok(Some(AgentMessage { body: Some(FromAgent::Hello(hello)) })) = inbound.message().await else {
                panic!("no hello");
            };
            let hello = Hello::try_from(hello).expect("a sound hello");
            sessions.send(Session { hello, inbound, out, acks: false }).await.ok();
        });
        Ok(Response::new(ReceiverStream::new(queue)))
    }

    async fn fetch_secrets(
        &self,
        request: Request<FetchSecretsRequest>,
    ) -> Result<Response<FetchSecretsResponse>, Status> {
        let FetchSecretsRequest { item, generation } = request.into_inner();
        let value = self.calls.secret.lock().expect("whole").clone();
        let value = value.ok_or_else(|| Status::failed_precondition(format!("NotAssigned: {item} {generation}")))?;
        let inputs = vec![ItemInput { name: "db".to_owned(), value, secret: true }];
        Ok(Response::new(FetchSecretsResponse { inputs }))
    }
}

pub(crate) struct Session {
    pub(crate) hello: Hello,
    /// Acknowledge events as they arrive?
    pub(crate) acks: bool,
    inbound: Streaming<AgentMessage>,
    out: mpsc::Sender<Result<CoordinatorMessage, Status>>,
}

impl Session {
    pub(crate) async fn welcome(&mut self, epoch: u64) {
        self.welcome_to(epoch, "", "").await;
    }

    /// Sends a welcome that says how to choose the InternalIP.
    pub(crate) async fn welcome_to(&mut self, epoch: u64, interface: &str, cidr: &str) {
        let (interface, cidr) = (interface.to_owned(), cidr.to_owned());
        let (heartbeat_interval_ms, cluster) = (200, "edge".to_owned());
        let welcome = Welcome { epoch, heartbeat_interval_ms, cluster, interface, cidr, ..Welcome::default() };
        self.send(ToAgent::Welcome(welcome)).await;
        self.acks = true;
    }

    /// Ends the stream with this status.
    pub(crate) async fn end(self, status: Status) {
        self.out.send(Err(status)).await.expect("a session");
    }

    pub(crate) async fn send(&self, body: ToAgent) {
        self.out.send(Ok(CoordinatorMessage { body: Some(body) })).await.expect("a session");
    }

    pub(crate) async fn assign(&self, epoch: u64, generation: u64, items: Vec<AssignedItem>) {
        let assignment = Assignment {
            epoch: Epoch(epoch),
            generation: Generation(generation),
            cluster: ClusterName::new("edge").expect("a label"),
            items,
            variables: [].into(),
            digest: muster_proto::model::ItemHash([1; 32]),
            code: AuthCode::NONE,
        };
        self.send(ToAgent::Assignment((&assignment).into())).await;
    }

    /// The next message for which `wanted` returns a value; None = the stream has ended.
    pub(crate) async fn next<T>(&mut self, mut wanted: impl FnMut(FromAgent) -> Option<T>) -> Option<T> {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let message = tokio::time::timeout_at(deadline, self.inbound.message()).await.expect("a message in time");
            let body = message.ok()??.body.expect("a body");
            if let (FromAgent::Status(event), true) = (&body, self.acks) {
                self.send(ToAgent::Ack(Ack { seq: event.seq, proof: None })).await;
            }
            if let Some(found) = wanted(body) {
                return Some(found);
            }
        }
    }

    /// The next event: its number, state and attempt.
    pub(crate) async fn event(&mut self) -> (u64, ItemState, u32) {
        let StatusEvent { seq, status } = self
            .next(|body| if let FromAgent::Status(event) = body { Some(event) } else { None })
            .await
            .expect("an event");
        let status = muster_proto::model::ItemStatus::try_from(status.expect("a status")).expect("a sound status");
        (seq, status.state, status.attempt)
    }
}

pub(crate) fn script(name: &str, script: &str) -> AssignedItem {
    let mut item = AssignedItem {
        name: ItemName::new(name).expect("a label"),
        runner: "bash".to_owned(),
        version: "1".to_owned(),
        params: [("script".to_owned(), script.to_owned())].into(),
        phase: Phase::Deploy,
        hash: muster_proto::model::ItemHash([0; 32]),
        timeout_ms: 60_000,
        retries: 0,
        on_interrupt: OnInterrupt::Hold,
        cleared_attempts: 0,
        redo_up_to: Generation(0),
        ignore_changes: BTreeSet::new(),
        permit: None,
    };
    item.hash = item.computed_hash();
    item
}
