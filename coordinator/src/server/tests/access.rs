//! Every method of every service, called by every kind of peer over a real connection.

use http::{Method, uri::PathAndQuery};
use muster_proto::wire::{
    self, agent_message::Body as Said, coordinator_message::Body as Heard, maintenance_client::MaintenanceClient,
};
use rcgen::SigningKey;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tonic::Code;
use tower::{Service, ServiceExt};

use super::{
    links::{hello, open},
    *,
};

/// Call a method with any body, and return the code from the headers: the answer of the table or of the quotas.
pub(super) async fn called(channel: &Channel, method: &str, body: tonic::body::Body) -> Option<Code> {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(PathAndQuery::try_from(method).expect("a path"));
    let request = http::Request::builder()
        .method(Method::POST)
        .uri(http::Uri::from_parts(parts).expect("a URI"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .expect("a request");
    let mut channel = channel.clone();
    let response = soon(async { channel.ready().await.expect("ready").call(request).await }).await.expect("answered");
    response.headers().get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()))
}

/// Was the call refused before it reached a service?
async fn denied(channel: &Channel, method: &str) -> bool {
    let code = called(channel, method, tonic::body::Body::empty()).await;
    code.is_some_and(|code| [Code::PermissionDenied, Code::Unauthenticated].contains(&code))
}

/// Methods that operators may call.
const ACT: &[&str] = &[
    "Version",
    "Get",
    "Watch",
    "Plan",
    "Logs",
    "CheckKubernetes",
    "Apply",
    "Deploy",
    "Update",
    "Reboot",
    "EnterMaintenance",
    "LeaveMaintenance",
    "Remove",
    "AbortRemoval",
    "Pause",
    "Resume",
    "Abort",
    "Retry",
    "DrainForce",
    "Skip",
    "Accept",
    "Rerun",
    "Annotate",
    "CreateToken",
    "RevokeToken",
    "RevokeCredentials",
    "RevokeMachine",
    "ReplaceMachine",
    "CreateSecret",
    "ShareSecret",
    "DeleteSecret",
    "ReleaseLocks",
    "DeleteCluster",
];

#[tokio::test]
async fn every_method_for_every_sort_of_peer() {
    let world = World::start().await;
    let now_ms = world.engine.now().wall_ms;
    let own = world.enrolled("edge", "own").await;
    let revoked = world.enrolled("edge", "revoked").await;
    world.desired(DesiredState::RevokeMachine { machine: revoked.name.clone(), machine_is_off: false }).await;
    let bo = world.issued(Role::Operator("bo".to_owned())).await;
    world.desired(DesiredState::RevokeCredentials { subject: "operator/bo".to_owned() }).await;
    let past = Validity { not_before_ms: now_ms - 90_000_000, not_after_ms: now_ms - 1000 };
    let other_ca = Ca::create(&domain(), now_ms).expect("a CA");
    let anna = Peer { role: Role::Operator("anna".to_owned()), clusters: None };
    let wrong_ca = other_ca.issue(&anna, world.validity()).expect("issued");
    let expired = world.ca.issue(&anna, past).expect("issued");
    let expired_agent = world.ca.issue(&Peer::agent(own.id), past).expect("issued");
    let (enroll, renew) = (["Enroll", "RenewExpired"].as_slice(), ["Renew", "Connect", "FetchSecrets"].as_slice());
    let read = ["Version", "Get", "Watch", "Plan", "Logs"].as_slice();
    let control =
        ["Version", "Register", "Release", "SetLock", "ListLocks", "WatchRequests", "RenewCertificate"].as_slice();
    // Methods of gRPC itself, forevery known peer.
    let of_known = ["Check", "ServerReflectionInfo"];
    for (peer, identity, allowed) in [
        ("none", None, enroll),
        ("wrong CA", Some(wrong_ca), &[]),
        ("expired", Some(expired), &[]),
        ("expired agent", Some(expired_agent), &[]),
        ("revoked", Some(revoked.identity), &[]),
        ("revoked operator", Some(bo), &[]),
        ("agent", Some(own.identity), renew),
        ("viewer", Some(world.identity(Role::Viewer("bo".to_owned()))), read),
        ("operator", Some(world.identity(Role::Operator("anna".to_owned()))), ACT),
        ("controller", Some(world.identity(Role::Controller("locks".to_owned()))), control),
    ] {
        let channel = world.channel(identity.as_ref()).await;
        let known = allowed != enroll && !allowed.is_empty();
        // Concurrently: many denials of one address are answered late.
        let calls = authz::methods().map(async |method| (method, denied(&channel, method).await));
        for (method, denied) in futures_util::future::join_all(calls).await {
            let mut names = allowed.iter().chain(of_known.iter().filter(|_| known));
            assert_eq!(denied, !names.any(|name| method.ends_with(&format!("/{name}"))), "{peer} {method}");
        }
        let code = called(&channel, "/muster.v1.Fleet/Nothing", tonic::body::Body::empty()).await;
        let expected = if known { Code::Unimplemented } else { Code::Unauthenticated };
        assert_eq!(code, Some(expected), "{peer}: what is not in the table");
    }
}

/// An agent with its own certificate tries every permitted method with another machine's name, secrets and certificate.
#[tokio::test]
async fn an_agent_is_nobody_but_itself() {
    let world = World::start().await;
    let (own, theirs) = (world.enrolled("other", "own").await, world.enrolled("edge", "theirs").await);
    let mut their_stream = open(&world, &theirs.identity, hello(&theirs.name)).await.expect("open");
    their_stream.next().await.expect("welcomed");
    let generation = loop {
        if let Some(Heard::Assignment(list)) = their_stream.next().await.expect("open") {
            break list.generation;
        }
    };
    let before = world.engine.facts().machines[&theirs.name].clone();

    // Connect: under the other name.
    let refused = open(&world, &own.identity, hello(&theirs.name)).await.err().expect("refused");
    assert_eq!((refused.code(), refused.message().contains("ForeignMachine")), (Code::Aborted, true), "{refused:?}");
    // FetchSecrets: the item is found by name and generation, only in the caller's own list.
    let request = wire::FetchSecretsRequest { item: "hello".to_owned(), generation };
    let refused = soon(world.agent(&own.identity).await.fetch_secrets(request)).await.expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    // Renew: the certificate is for the caller, whatever key it sends.
    let mut enrollment = EnrollmentClient::new(world.channel(Some(&own.identity)).await);
    let renewed = enrollment.renew(wire::RenewRequest { csr_der: request_der() }).await.expect("its own").into_inner();
    assert_eq!(renewed.machine_id, own.id.to_string());
    // RenewExpired, without a certificate: the other's certificate, signed with a wrong key.
    let mut stranger = world.stranger().await;
    let certificate_der = CertificateDer::from_pem_slice(theirs.identity.certificate_pem.as_bytes()).expect("PEM");
    let (certificate_der, csr_der) = (certificate_der.to_vec(), request_der());
    let request = wire::RenewExpiredRequest { signature: own_signature(&own, &csr_der), csr_der, certificate_der };
    assert_eq!(stranger.renew_expired(request).await.expect_err("refused").code(), Code::Unauthenticated);
    // Enroll: with a valid token, under the other name.
    let token = world.token("other", None, None, 60_000).await.text;
    let request =
        wire::EnrollRequest { token, name: theirs.name.to_string(), csr_der: request_der(), ..Default::default() };
    let refused = stranger.enroll(request).await.expect_err("refused");
    assert_eq!((refused.code(), refused.message().contains("NameTaken")), (Code::FailedPrecondition, true));

    // Messages name no machine: what it sends on its stream concerns itself, and the other's stream continues.
    let mut stream = open(&world, &own.identity, hello(&own.name)).await.expect("open");
    stream.next().await.expect("welcomed");
    stream.say(Said::Answer(wire::AssignmentAnswer { generation, accepted: true, ..Default::default() }));
    stream.say(Said::Facts(wire::HostFacts { internal_ip: "10.9.9.9".to_owned(), ..Default::default() }));
    let mut facts = world.engine.watch();
    let told = |facts: &Arc<crate::facts::Facts>| facts.machines[&own.name].internal_ip() == Some("10.9.9.9");
    soon(facts.wait_for(told)).await.expect("recorded");
    assert_eq!(world.engine.facts().machines[&theirs.name], before);
    their_stream.say(Said::Heartbeat(wire::Heartbeat {}));
    assert!(world.engine.facts().live.machines[&theirs.name].session.is_some());
}

fn request_der() -> Vec<u8> {
    request().1
}

/// Signature of the own key on a renewal request.
fn own_signature(own: &Enrolled, csr_der: &[u8]) -> Vec<u8> {
    let key = KeyPair::from_pem(&own.identity.key_pem).expect("a key");
    key.sign(&[b"muster-renew-v1", csr_der].concat()).expect("signed")
}

/// A controller answers only for its own locks: those of others are invisible to it.
#[tokio::test]
async fn a_controller_is_nobody_but_itself() {
    let world = World::start().await;
    world.enrolled("edge", "own").await;
    let controller = async |name: &str| {
        let identity = world.identity(Role::Controller(name.to_owned()));
        MaintenanceClient::new(world.channel(Some(&identity)).await)
    };
    let (mut theirs, mut own) = (controller("theirs").await, controller("own").await);
    let (cluster, machine) = ("edge".to_owned(), "own".to_owned());
    let register = wire::RegisterRequest { cluster, machines: vec![machine], of_cluster: true };
    theirs.register(register).await.expect("registered");
    let before = world.engine.facts().locks.clone();
    for machine in ["own", ""] {
        let (cluster, machine) = ("edge".to_owned(), machine.to_owned());
        let release = wire::ReleaseRequest { cluster: cluster.clone(), machine: machine.clone() };
        assert_eq!(own.release(release).await.expect_err("refused").code(), Code::FailedPrecondition);
        let mut set = wire::SetLockRequest { cluster, machine, ..Default::default() };
        set.set_state(wire::LockState::Inactive);
        assert_eq!(own.set_lock(set).await.expect_err("refused").code(), Code::FailedPrecondition);
    }
    assert_eq!((before.len(), &world.engine.facts().locks), (2, &before));
}

/// A release from a peer becomes one short line.
#[tokio::test]
async fn a_lock_says_which_release_its_controller_last_worked_for() {
    let world = World::start().await;
    world.enrolled("edge", "own").await;
    let identity = world.identity(Role::Controller("ceph".to_owned()));
    let mut client = MaintenanceClient::new(world.channel(Some(&identity)).await);
    let (cluster, machine) = ("edge".to_owned(), "own".to_owned());
    let register =
        wire::RegisterRequest { cluster: cluster.clone(), machines: vec![machine.clone()], of_cluster: false };
    client.register(register).await.expect("registered");
    let long = "x".repeat(600);
    for (said, kept) in
        [("17.3.0", "17.3.0"), ("17.3.0\n\u{1b}[31m", "17.3.0  [31m"), (long.as_str(), &long[..512]), ("", "")]
    {
        let (cluster, machine, release) = (cluster.clone(), machine.clone(), said.to_owned());
        let mut set = wire::SetLockRequest { cluster, machine, release, ..Default::default() };
        set.set_state(wire::LockState::Active);
        client.set_lock(set).await.expect("taken");
        let get = wire::GetRequest { kind: "locks".to_owned(), ..Default::default() };
        let shown = world.operator().await.get(get).await.expect("shown").into_inner().items.remove(0);
        let lock: muster_proto::resource::Lock = serde_json::from_slice(&shown.json).expect("a lock");
        assert_eq!(lock.status.release, kept);
    }
}

/// A controller with a stream of requests is present, whatever else it does; an absent one has not answered.
#[tokio::test]
async fn a_controller_is_there_as_long_as_its_stream() {
    let world = World::start().await;
    let identity = world.identity(Role::Controller("nova".to_owned()));
    let mut client = MaintenanceClient::new(world.channel(Some(&identity)).await);
    let request = |cluster: &str| wire::WatchRequestsRequest { cluster: cluster.to_owned() };
    let refused = client.watch_requests(request("nowhere")).await.expect_err("there is no such cluster");
    assert_eq!(refused.code(), Code::NotFound);
    let mut facts = world.engine.watch();
    let mut streams = async |count: usize| {
        let those = |facts: &Arc<crate::facts::Facts>| {
            let all = || facts.live.watching.iter();
            let named = all().all(|((cluster, name), _)| (cluster.as_str(), name.as_str()) == ("edge", "nova"));
            named && all().map(|(_, streams)| streams.len()).sum::<usize>() == count
        };
        soon(facts.wait_for(those)).await.expect("recorded");
    };
    let first = client.watch_requests(request("edge")).await.expect("open");
    streams(1).await;
    let second = client.watch_requests(request("edge")).await.expect("open");
    streams(2).await;
    drop(first);
    streams(1).await;
    drop((second, client));
    streams(0).await;
}
