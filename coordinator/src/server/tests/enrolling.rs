//! How machines get and keep an identity, and how others fail to (reliability.md, "token").

use muster_proto::wire::{
    Credentials, EnrollRequest, RenewExpiredRequest, RenewRequest, enrollment_client::EnrollmentClient,
};
use rcgen::SigningKey;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tonic::{Code, Status};

use super::*;
use crate::pki::{Certificate, Token};

async fn enroll(world: &World, token: &str, name: &str) -> Result<Credentials, Status> {
    let request = EnrollRequest {
        token: token.to_owned(),
        name: name.to_owned(),
        csr_der: request().1,
        agent_version: "0.1".to_owned(),
    };
    Ok(soon(world.stranger().await.enroll(request)).await?.into_inner())
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")
}

#[tokio::test]
async fn a_token_lets_a_machine_in_and_its_certificate_works() {
    let world = World::start().await;
    let token = world.token("edge", None, Some(2), 60_000).await;
    let credentials = enroll(&world, &token.text, "node-1").await.expect("let in");
    assert_eq!((credentials.cluster.as_str(), credentials.machine_type.as_str()), ("edge", "control"));
    assert_eq!(credentials.ca_pem, world.ca.pem());
    let read = Certificate::read(&domain(), &certificate(&credentials.certificate_pem)).expect("readable");
    assert_eq!(read.peer.to_string(), format!("agent/{}", credentials.machine_id));
    assert_eq!(read.not_after_ms, credentials.not_after_ms);
    let life_ms = credentials.not_after_ms - credentials.server_time_ms;
    assert!((3_598_000..=3_600_000).contains(&life_ms), "{life_ms}");

    let taken = enroll(&world, &token.text, "node-1").await.expect_err("the name is in use");
    assert_eq!(taken.code(), Code::FailedPrecondition);
    assert!(taken.message().contains("NameTaken") && taken.message().contains("musterctl replace"), "{taken:?}");
    enroll(&world, &token.text, "node-2").await.expect("a name in use costs no use of the token");
    enroll(&world, &token.text, "node-3").await.expect_err("used up");
}

#[tokio::test]
async fn whatever_is_wrong_with_a_token_the_answer_is_the_same() {
    let world = World::start().await;
    let good = world.token("edge", None, None, 60_000).await;
    let other = world.token("edge", None, None, 60_000).await;
    let used_up = world.token("edge", None, Some(1), 60_000).await;
    enroll(&world, &used_up.text, "first").await.expect("its one use");
    let revoked = world.token("edge", None, None, 60_000).await;
    world.desired(DesiredState::RevokeToken { id: revoked.id.clone(), machines: false }).await;
    let for_another = world.token("edge", Some("somebody"), None, 60_000).await;
    let expired = world.token("edge", None, None, 1).await;
    let expires_ms = world.engine.facts().tokens.get(&expired.id).expect("there").expires_at_ms;
    soon(async {
        while world.engine.now().wall_ms < expires_ms {
            tokio::task::yield_now().await
        }
    })
    .await;
    let never_made = NewToken::make(&world.ca.pin()).expect("a token");
    let secret = other.text.split('.').nth(1).expect("three parts");
    let mixed = format!("{}.{secret}.{}", good.id, good.text.split('.').nth(2).expect("three parts"));
    assert!(Token::parse(&mixed).is_some(), "it looks like one");

    let mut answers = Vec::new();
    for token in ["", "hello", &mixed, &never_made.text, &used_up.text, &revoked.text, &for_another.text, &expired.text]
    {
        let status = enroll(&world, token, "node-1").await.expect_err(token);
        answers.push((status.code(), status.message().to_owned()));
    }
    answers.dedup();
    assert_eq!(answers, [(Code::Unauthenticated, status::TOKEN_REFUSED.to_owned())]);
    assert!(!world.engine.facts().machines.contains_key("node-1"));
    enroll(&world, &good.text, "node-1").await.expect("a good one works all the while");
}

#[tokio::test]
async fn who_guesses_keeps_nobody_out() {
    let world = World::start().await;
    let good = world.token("edge", None, None, 60_000).await;
    let never_made = || NewToken::make(&[0; 32]).expect("random").text;
    for _ in 0..30 {
        enroll(&world, &never_made(), "n").await.expect_err("wrong");
    }
    let start = std::time::Instant::now();
    enroll(&world, &never_made(), "n").await.expect_err("wrong");
    assert!(start.elapsed() >= std::time::Duration::from_secs(1), "answered late: {:?}", start.elapsed());
    enroll(&world, &good.text, "node-1").await.expect("another machine behind the same address");
}

#[tokio::test]
async fn what_else_is_wrong_with_a_request_is_said_and_costs_no_use() {
    let world = World::start().await;
    let token = world.token("edge", None, Some(1), 60_000).await.text;
    let mut client = world.stranger().await;
    for (name, csr_der, expected) in [
        ("Node_1", request().1, "name: "),
        ("", request().1, "name: "),
        ("node-1", vec![], "csr_der: "),
        ("node-1", vec![0x30; 3000], "csr_der: "),
    ] {
        let request = EnrollRequest { token: token.clone(), name: name.to_owned(), csr_der, ..Default::default() };
        let status = client.enroll(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().starts_with(expected), "{status:?}");
    }
    let csr_der = vec![0; 200_000];
    let request = EnrollRequest { token: token.clone(), name: "node-1".to_owned(), csr_der, ..Default::default() };
    assert_eq!(client.enroll(request).await.expect_err("too long").code(), Code::OutOfRange);
    enroll(&world, &token, "node-1").await.expect("the token is as good as new");
}

#[tokio::test]
async fn a_machine_renews_its_own_identity() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let mut client = EnrollmentClient::new(world.channel(Some(&machine.identity)).await);
    let credentials = client.renew(RenewRequest { csr_der: request().1 }).await.expect("renewed").into_inner();
    assert_eq!(credentials.machine_id, machine.id.to_string());
    let nobody = world.identity(Role::Agent(MachineId(Uuid::new_v4())));
    let mut client = EnrollmentClient::new(world.channel(Some(&nobody)).await);
    let status = client.renew(RenewRequest { csr_der: request().1 }).await.expect_err("no such machine");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    world.desired(DesiredState::RevokeMachine { machine: machine.name, machine_is_off: false }).await;
    let mut client = EnrollmentClient::new(world.channel(Some(&machine.identity)).await);
    let status = client.renew(RenewRequest { csr_der: request().1 }).await.expect_err("revoked");
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn an_expired_certificate_is_renewed_for_a_week_with_its_key() {
    const DAY_MS: u64 = 24 * 3_600_000;
    let world = World::start().await;
    let now_ms = world.engine.now().wall_ms;
    let (machine, revoked) = (world.enrolled("edge", "node-1").await, world.enrolled("edge", "node-2").await);
    world.desired(DesiredState::RevokeMachine { machine: revoked.name.clone(), machine_is_off: false }).await;
    let other_ca = Ca::create(&domain(), now_ms).expect("a CA");
    let ended =
        |days: u64| Validity { not_before_ms: now_ms - 30 * DAY_MS, not_after_ms: now_ms - days * DAY_MS - 1000 };
    let (key, other_key) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let sign = |ca: &Ca, peer: Peer, validity| ca.sign(&peer, &key, validity).expect("signed");
    let nobody = Peer::agent(MachineId(Uuid::new_v4()));
    let anna = Peer { role: Role::Operator("anna".to_owned()), clusters: None };
    let mut client = world.stranger().await;
    let mut answers = Vec::new();
    for (what, pem, signer, purpose, expected) in [
        ("a minute late", sign(&world.ca, Peer::agent(machine.id), ended(0)), &key, "muster-renew-v1", true),
        ("six days late", sign(&world.ca, Peer::agent(machine.id), ended(6)), &key, "muster-renew-v1", true),
        ("still good", sign(&world.ca, Peer::agent(machine.id), world.validity()), &key, "muster-renew-v1", true),
        ("eight days late", sign(&world.ca, Peer::agent(machine.id), ended(8)), &key, "muster-renew-v1", false),
        (
            "signed by another key",
            sign(&world.ca, Peer::agent(machine.id), ended(0)),
            &other_key,
            "muster-renew-v1",
            false,
        ),
        (
            "signed for something else",
            sign(&world.ca, Peer::agent(machine.id), ended(0)),
            &key,
            "muster-other-v1",
            false,
        ),
        ("of another CA", sign(&other_ca, Peer::agent(machine.id), ended(0)), &key, "muster-renew-v1", false),
        ("revoked", sign(&world.ca, Peer::agent(revoked.id), ended(0)), &key, "muster-renew-v1", false),
        ("of no machine", sign(&world.ca, nobody, ended(0)), &key, "muster-renew-v1", false),
        ("of an operator", sign(&world.ca, anna, ended(0)), &key, "muster-renew-v1", false),
    ] {
        let csr_der = request().1;
        let message = [purpose.as_bytes(), &csr_der].concat();
        let signature = signer.sign(&message).expect("signed");
        let certificate_der = certificate(&pem).to_vec();
        let renewed = client.renew_expired(RenewExpiredRequest { csr_der, certificate_der, signature }).await;
        assert_eq!(renewed.is_ok(), expected, "{what}: {renewed:?}");
        match renewed {
            Ok(credentials) => assert_eq!(credentials.into_inner().machine_id, machine.id.to_string()),
            Err(status) => answers.push((status.code(), status.message().to_owned())),
        }
    }
    answers.dedup();
    assert_eq!(answers, [(Code::Unauthenticated, authz::NOT_ACCEPTED.to_owned())], "no reason is told");
}
