//! The servers from outside: real sockets, real TLS, the real engine over a store in memory.

mod access;
mod credentials;
mod enrolling;
mod fleets;
mod floods;
mod handshakes;
mod links;
mod renewals;
mod secrets;
mod swarm;

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use muster_proto::{
    model::{ItemHash, MachineId, MachineName, MachineType},
    tls::{self, Identity},
    wire::{agent_link_client::AgentLinkClient, enrollment_client::EnrollmentClient, fleet_client::FleetClient},
};
use rcgen::{CertificateParams, KeyPair};
use tokio::sync::oneshot;
use tonic::transport::Channel;
use uuid::Uuid;

use super::*;
use crate::{
    core::tests::proof_key,
    core::{Enroll, Input, Reply, Request as DesiredState},
    engine,
    facts::{CertificateRow, CredentialRow},
    pki::{NewToken, Peer, Role, TrustDomain, Validity, Vault},
    plan::Limits,
    setup::Credentials,
    store::MemoryStore,
};

/// Timeout forevery step; only a bug takes longer.
const TIME_LIMIT: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);
/// Credentials in the record of every [`World`].
const PEOPLE: [&str; 11] = [
    "operator/anna",
    "operator/bert",
    "operator/cy",
    "operator/eve",
    "viewer/bo",
    "viewer/eve",
    "controller/ceph",
    "controller/locks",
    "controller/nova",
    "controller/own",
    "controller/theirs",
];

const MANIFEST: &str = r"
apiVersion: muster/v1alpha1
kind: Cluster
metadata: {name: edge}
spec:
  lcmType: generic
  machines: {control: 1, worker: 0}
  release: '1'
  machineTypes:
    control:
      - {name: hello, runner: bash, version: '1', phase: prepare, params: {script: echo hello}}
---
apiVersion: muster/v1alpha1
kind: Cluster
metadata: {name: other}
spec:
  lcmType: generic
  release: '1'
  machineTypes:
    control:
      - {name: hello, runner: bash, version: '1', phase: prepare, params: {script: echo hello}}
";

/// A running coordinator.
struct World {
    address: SocketAddr,
    ca: Arc<Ca>,
    engine: EngineHandle,
    /// Issue time of all certificates except those of enrolments and of [`World::issued`].
    began_ms: u64,
    _end: oneshot::Sender<()>,
}

/// An enrolled machine.
struct Enrolled {
    id: MachineId,
    name: MachineName,
    identity: Identity,
}

fn domain() -> TrustDomain {
    TrustDomain::new("muster.test").expect("a name")
}

impl World {
    async fn start() -> Self {
        Self::with(Settings { heartbeat: Duration::from_secs(1), agent_lifetime: HOUR }).await
    }

    async fn with(settings: Settings) -> Self {
        let sessions = Sessions::default();
        let limits = Limits { lost_after_ms: 30_000 };
        let (engine, _) =
            engine::start(MemoryStore::default(), sessions.clone(), limits, proof_key()).expect("an engine");
        let ca = Arc::new(Ca::create(&domain(), engine.now().wall_ms).expect("a CA"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        let keys = (Arc::clone(&ca), Arc::new(Vault::of_test()));
        let serving = serve(listener, engine.clone(), sessions, keys, settings, async {
            drop(ended.await);
        });
        tokio::spawn(async { serving.await.expect("it serves") });
        let began_ms = engine.now().wall_ms;
        let world = Self { address, ca, engine, began_ms, _end: end };
        for subject in PEOPLE {
            let row = CredentialRow {
                subject: subject.to_owned(),
                certificates: vec![CertificateRow {
                    issued_at_ms: world.began_ms,
                    expires_at_ms: u64::MAX,
                    clusters: BTreeSet::new(),
                }],
                revoked_at_ms: None,
            };
            world.desired(DesiredState::RecordCredentials(row)).await;
        }
        let files = vec![muster_proto::wire::ManifestFile { name: "m".to_owned(), text: MANIFEST.to_owned() }];
        let applied = world
            .operator()
            .await
            .apply(muster_proto::wire::ApplyRequest { files, dry_run: false, ..Default::default() })
            .await;
        assert_eq!(applied.expect("applied").into_inner().faults, []);
        world
    }

    fn validity(&self) -> Validity {
        Validity::from(self.began_ms, HOUR)
    }

    fn identity(&self, role: Role) -> Identity {
        self.ca.issue(&Peer { role, clusters: None }, self.validity()).expect("issued")
    }

    /// Credentials as the coordinator issues them: recorded first.
    async fn issued(&self, role: Role) -> Identity {
        let peer = Peer { role, clusters: None };
        let (facts, now_ms) = (self.engine.facts(), self.engine.now().wall_ms);
        let known = facts.credentials.get(&peer.to_string()).map(|row| &**row);
        let (credentials, row) = Credentials::issue(&self.ca, "", (&peer, HOUR), known, now_ms).expect("issued");
        self.desired(DesiredState::RecordCredentials(row)).await;
        Identity { certificate_pem: credentials.certificate, key_pem: credentials.key }
    }

    fn limited(&self, role: Role, cluster: &str) -> Identity {
        let cluster = muster_proto::model::ClusterName::new(cluster).expect("a name");
        self.ca.issue(&Peer { role, clusters: Some([cluster].into()) }, self.validity()).expect("issued")
    }

    async fn channel(&self, identity: Option<&Identity>) -> Channel {
        let config = tls::client_config(self.ca.pem(), identity).expect("a config");
        tls::connect(&self.address.to_string(), config).await.expect("connected").channel
    }

    async fn fleet(&self, identity: &Identity) -> FleetClient<Channel> {
        FleetClient::new(self.channel(Some(identity)).await)
    }

    async fn operator(&self) -> FleetClient<Channel> {
        self.fleet(&self.identity(Role::Operator("anna".to_owned()))).await
    }

    async fn stranger(&self) -> EnrollmentClient<Channel> {
        EnrollmentClient::new(self.channel(None).await)
    }

    async fn agent(&self, identity: &Identity) -> AgentLinkClient<Channel> {
        AgentLinkClient::new(self.channel(Some(identity)).await)
    }

    async fn desired(&self, request: DesiredState) -> Reply {
        self.engine.submit(Input::Operator { actor: "operator/test".to_owned(), request }).await.expect("granted")
    }

    /// A token for control machines of a cluster.
    async fn token(&self, cluster: &str, machine: Option<&str>, uses: Option<u32>, ttl_ms: u64) -> NewToken {
        let token = NewToken::make(&self.ca.pin()).expect("a token");
        self.desired(DesiredState::CreateToken {
            id: token.id.clone(),
            secret_sha256: ItemHash(token.secret_sha256),
            cluster: muster_proto::model::ClusterName::new(cluster).expect("a name"),
            machine_type: MachineType::Control,
            machine: machine.map(|name| MachineName::new(name).expect("a name")),
            ttl_ms: Some(ttl_ms),
            uses: Some(uses.unwrap_or(u32::MAX)),
        })
        .await;
        token
    }

    async fn enrolled(&self, cluster: &str, name: &str) -> Enrolled {
        let token = self.token(cluster, None, None, 60_000).await;
        let name = MachineName::new(name).expect("a name");
        let enroll = Enroll {
            token_id: token.id.clone(),
            secret_sha256: ItemHash(token.secret_sha256),
            key_sha256: ItemHash([0; 32]),
            name: name.clone(),
            new_id: MachineId(Uuid::new_v4()),
            agent_version: "0".to_owned(),
        };
        let Reply::Enrolled { id, .. } = self.engine.submit(Input::Enroll(enroll)).await.expect("let in") else {
            panic!("no identity");
        };
        Enrolled { id, name, identity: self.identity(Role::Agent(id)) }
    }
}

/// A key and a request for a certificate.
fn request() -> (KeyPair, Vec<u8>) {
    let key = KeyPair::generate().expect("a key");
    let request = CertificateParams::default().serialize_request(&key).expect("a request").der().to_vec();
    (key, request)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIME_LIMIT, what).await.expect("it takes too long")
}
