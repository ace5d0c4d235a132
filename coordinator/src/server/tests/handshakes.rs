//! Which peers pass the handshake, and how they are authenticated (reliability.md, "TLS").

use muster_proto::{
    IDENTITY_REVOKED,
    wire::{VersionRequest, fleet_client::FleetClient},
};
use rustls::{
    ClientConfig,
    client::ResolvesClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tonic::{Code, Status};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A ClientHello of TLS 1.2, as from a client that lacks 1.3.
fn hello_of_tls12() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]); // random
    body.push(0); // no session
    body.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x2f]); // two cipher suites
    body.extend([1, 0]); // no compression
    let extensions = [
        &[0, 10, 0, 4, 0, 2, 0, 23][..], // P-256
        &[0, 13, 0, 4, 0, 2, 4, 3],      // ecdsa_secp256r1_sha256
        &[0, 16, 0, 5, 0, 3, 2, b'h', b'2'],
    ]
    .concat();
    body.extend(u16::try_from(extensions.len()).expect("short").to_be_bytes());
    body.extend(extensions);
    let length = u16::try_from(body.len()).expect("short");
    let mut record = vec![22, 3, 1];
    record.extend((length + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend(length.to_be_bytes());
    record.extend(body);
    record
}

/// A server's answer to raw bytes, until it closes the connection.
async fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = Vec::new();
    // A reset counts as an answer.
    drop(soon(stream.read_to_end(&mut answer)).await);
    answer
}

#[tokio::test]
async fn what_is_not_tls13_is_answered_by_an_alert_and_nothing_else() {
    const ALERT: u8 = 21;
    const PROTOCOL_VERSION: u8 = 70;
    let world = World::start().await;
    let answer = answer_to(world.address, &hello_of_tls12()).await;
    assert_eq!((answer.first(), answer.last(), answer.len()), (Some(&ALERT), Some(&PROTOCOL_VERSION), 7), "{answer:?}");
    for plain in [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 600]] {
        let answer = answer_to(world.address, plain).await;
        assert!(answer.is_empty() || answer.first() == Some(&ALERT), "{plain:?}: {answer:?}");
        assert!(answer.len() <= 7, "{plain:?}: {answer:?}");
    }
}

#[tokio::test]
async fn who_says_nothing_is_not_waited_for() {
    let world = World::start().await;
    assert_eq!(answer_to(world.address, &[]).await, Vec::<u8>::new());
}

/// More silent sockets of one address than there is room for.
#[tokio::test]
async fn who_says_nothing_keeps_nobody_else_out() {
    const MUTE: usize = 600;
    let world = World::start().await;
    let mut mute = Vec::new();
    for _ in 0..MUTE {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.2:0".parse().expect("an address")).expect("bound");
        mute.push(soon(socket.connect(world.address)).await.expect("connected"));
    }
    let anna = world.identity(Role::Operator("anna".to_owned()));
    let came = std::time::Instant::now();
    assert_eq!(answer(&world, Some(&anna)).await.0, Code::Ok);
    assert!(came.elapsed() < Duration::from_secs(3), "who speaks waits for no silent one's end");
    // All of them are closed soon, cleanly or by a reset.
    for mut silent in mute {
        let hung_up = soon(silent.read(&mut [0; 1])).await;
        assert!(hung_up.as_ref().map_or(true, |bytes| *bytes == 0), "{hung_up:?}");
    }
    assert!(came.elapsed() < Duration::from_secs(4), "a second after they came: {:?}", came.elapsed());
}

/// More strangers of one address fall silent after TLS than there is room for. Another from the same address still
/// comes in, and so does a known peer.
#[tokio::test]
async fn silent_strangers_make_room() {
    const SILENT: usize = 600;
    let world = World::start().await;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(world.channel(None).await);
    }
    // From then on even the newest has stalled.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let token = world.token("edge", None, None, 60_000).await;
    let enrol = muster_proto::wire::EnrollRequest {
        token: token.text.clone(),
        name: "late".to_owned(),
        csr_der: request().1,
        agent_version: "0".to_owned(),
    };
    soon(world.stranger().await.enroll(enrol.clone())).await.expect("let in");
    let mut first = EnrollmentClient::new(silent.swap_remove(0));
    let cut = soon(first.enroll(enrol)).await.expect_err("the oldest silent one made room");
    assert!(std::error::Error::source(&cut).is_some(), "no answer of the coordinator: {cut:?}");
}

async fn version(channel: Channel) -> Result<(), Status> {
    soon(FleetClient::new(channel).version(VersionRequest {})).await.map(|_| ())
}

/// Code and text of the answer to a peer with this identity.
async fn answer(world: &World, identity: Option<&Identity>) -> (Code, String) {
    match version(world.channel(identity).await).await {
        Ok(()) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

#[tokio::test]
async fn a_certificate_is_good_or_gets_one_constant_answer() {
    let world = World::start().await;
    let now_ms = world.engine.now().wall_ms;
    let anna = || Peer { role: Role::Operator("anna".to_owned()), clusters: None };
    let issue = |ca: &Ca, peer: &Peer, validity| ca.issue(peer, validity).expect("issued");
    let long = Validity::from(now_ms, DAY);
    let past = Validity { not_before_ms: now_ms - 90_000_000, not_after_ms: now_ms - 1000 };
    let future = Validity { not_before_ms: now_ms + 3_600_000, not_after_ms: now_ms + 90_000_000 };
    let other_ca = Ca::create(&domain(), now_ms).expect("a CA");
    let other_domain = TrustDomain::new("elsewhere").expect("a name");
    let stranger_ca = Ca::create(&other_domain, now_ms).expect("a CA");
    let revoked = world.enrolled("edge", "gone").await;
    world.desired(DesiredState::RevokeMachine { machine: revoked.name.clone(), machine_is_off: false }).await;
    let revoked = revoked.identity;

    let operator = Role::Operator("anna".to_owned());
    for role in [operator, Role::Viewer("bo".to_owned()), Role::Controller("locks".to_owned())] {
        assert_eq!(answer(&world, Some(&world.identity(role))).await.0, Code::Ok);
    }
    let agent = world.enrolled("edge", "here").await;
    assert_eq!(answer(&world, Some(&agent.identity)).await.0, Code::PermissionDenied, "it is known, and may not");
    assert_eq!(answer(&world, None).await.0, Code::Unauthenticated);

    let mut answers = Vec::new();
    for (what, identity) in [
        ("expired", issue(&world.ca, &anna(), past)),
        ("of a name that is not in the record", world.identity(Role::Operator("new".to_owned()))),
        ("not in the record, of a name that is", issue(&world.ca, &anna(), Validity::from(now_ms + 2000, DAY))),
        ("not yet valid", issue(&world.ca, &anna(), future)),
        ("of another CA", issue(&other_ca, &anna(), long)),
        ("of another CA and trust domain", issue(&stranger_ca, &anna(), long)),
        ("of another trust domain", issue(&world.ca.signing_for(&other_domain), &anna(), long)),
        (
            "a client that calls itself coordinator",
            issue(&world.ca, &Peer { role: Role::Coordinator, clusters: None }, long),
        ),
        ("revoked", revoked.clone()),
    ] {
        let (code, text) = answer(&world, Some(&identity)).await;
        assert_eq!(code, Code::Unauthenticated, "{what}");
        answers.push(text);
    }
    // Only its own agent learns that an identity was revoked.
    let of_the_revoked = version(world.channel(Some(&revoked)).await).await.expect_err("refused");
    assert!(of_the_revoked.metadata().contains_key(IDENTITY_REVOKED));
    let of_an_expired = version(world.channel(Some(&issue(&world.ca, &anna(), past))).await).await;
    assert!(!of_an_expired.expect_err("refused").metadata().contains_key(IDENTITY_REVOKED));
    answers.push(answer_to_key(&world, world.ca.server_key(long).expect("a certificate")).await.1);
    answers.dedup();
    assert_eq!(answers, [authz::NOT_ACCEPTED], "the peer learns no reason");
}

fn config_with(world: &World, key: CertifiedKey) -> Arc<ClientConfig> {
    let plain = tls::client_config(world.ca.pem(), None).expect("a config");
    let mut config = (*plain).clone();
    let resolver: Arc<dyn ResolvesClientCert> = Arc::new(SingleCertAndKey::from(key));
    config.client_auth_cert_resolver = resolver;
    Arc::new(config)
}

async fn answer_to_key(world: &World, key: CertifiedKey) -> (Code, String) {
    let connection = tls::connect(&world.address.to_string(), config_with(world, key)).await.expect("connected");
    let status = version(connection.channel).await.expect_err("refused");
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn a_certificate_without_its_key_does_not_get_through_the_handshake() {
    let world = World::start().await;
    let (anna, eve) =
        (world.identity(Role::Operator("anna".to_owned())), world.identity(Role::Viewer("eve".to_owned())));
    let certificate = CertificateDer::from_pem_slice(anna.certificate_pem.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(eve.key_pem.as_bytes()).expect("PEM");
    let key = tls::provider().key_provider.load_private_key(key).expect("a key");
    let stolen = CertifiedKey::new(vec![certificate], key);
    // TLS 1.3 tells the client late: at its first read.
    match tls::connect(&world.address.to_string(), config_with(&world, stolen)).await {
        Err(_) => {}
        Ok(connection) => {
            let status = version(connection.channel).await.expect_err("refused");
            assert_ne!(status.code(), Code::Unauthenticated, "no request got through: {status:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate() {
    let world = World::start().await;
    let now_ms = world.engine.now().wall_ms;
    // Certificates have a resolution of seconds.
    let validity = Validity { not_after_ms: now_ms + 6000, ..world.validity() };
    let short = Peer { role: Role::Operator("anna".to_owned()), clusters: None };
    let channel = world.channel(Some(&world.ca.issue(&short, validity).expect("issued"))).await;
    version(channel.clone()).await.expect("still good");
    let mut watch = FleetClient::new(channel.clone())
        .watch(muster_proto::wire::GetRequest { kind: "machines".to_owned(), ..Default::default() })
        .await
        .expect("still good")
        .into_inner();
    soon(async { while let Ok(Some(_)) = watch.message().await {} }).await;
    assert!(version(channel).await.is_err());
}

#[tokio::test]
async fn the_pin_of_a_token_finds_the_ca_and_another_pin_does_not() {
    let world = World::start().await;
    let connect = |pin| {
        let address = world.address.to_string();
        async move { tls::connect(&address, tls::pinned_config(pin).expect("a config")).await.map(|_| ()) }
    };
    connect(world.ca.pin()).await.expect("the right one");
    let error = connect([7; 32]).await.expect_err("the wrong one");
    assert!(matches!(error, tls::ConnectError::PinMismatch { .. }), "{error:?}");
}
