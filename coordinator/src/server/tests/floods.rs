//! Authorized peers that use more than their share.

use std::{pin::pin, time::Instant};

use futures_util::{StreamExt, stream};
use http_body_util::{BodyStream, Full, StreamBody};
use muster_proto::wire::{self, fleet_server::Fleet as _};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tonic::{Code, body::Body};

use super::{
    access::called,
    links::{hello, open},
    *,
};
use crate::pki::Certificate;

const GET: &str = "/muster.v1.Fleet/Get";

/// A message that announces `announced` bytes, sends `sent` of them, and then stalls.
fn half_sent(announced: u32, sent: usize) -> Body {
    let bytes = [[0].as_slice(), &announced.to_be_bytes(), &vec![b'x'; sent]].concat();
    Body::new(StreamBody::new(BodyStream::new(Full::from(bytes)).chain(stream::pending())))
}

fn machines() -> wire::GetRequest {
    wire::GetRequest { kind: "machines".to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_request_takes_no_more_than_its_method_needs() {
    let world = World::start().await;
    let viewer = world.channel(Some(&world.identity(Role::Viewer("bo".to_owned())))).await;
    let operator = world.channel(Some(&world.identity(Role::Operator("anna".to_owned())))).await;
    // A refusal comes even if the rest of the request is never sent.
    for (channel, method, sent) in [
        (&viewer, GET, 70_000),
        (&viewer, "/muster.v1.Fleet/Plan", 70_000),
        (&operator, "/muster.v1.Fleet/Deploy", 70_000),
        (&operator, "/muster.v1.Fleet/CreateSecret", 140_000),
    ] {
        assert_eq!(called(channel, method, half_sent(5_000_000, sent)).await, Some(Code::OutOfRange), "{method}");
    }
    let stranger = world.channel(None).await;
    let enrol = called(&stranger, "/muster.v1.Enrollment/Enroll", half_sent(17_000, 0)).await;
    assert_eq!(enrol, Some(Code::OutOfRange));
}

#[tokio::test]
async fn requests_that_do_not_end_cost_nobody_else_anything() {
    let world = World::start().await;
    let (bo, eve) = (world.identity(Role::Viewer("bo".to_owned())), world.identity(Role::Viewer("eve".to_owned())));
    let mut watch = world.fleet(&eve).await.watch(machines()).await.expect("open").into_inner();
    let mut held = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let channel = world.channel(Some(&eve)).await;
        for _ in 0..20 {
            let channel = channel.clone();
            held.spawn(async move { called(&channel, GET, half_sent(5_000_000, 1000)).await });
        }
    }
    let mut refused = 0;
    while refused < 40 - 8 {
        assert_eq!(soon(held.join_next()).await.expect("one").expect("ran"), Some(Code::ResourceExhausted));
        refused += 1;
    }
    let busy = world.fleet(&eve).await.get(machines()).await.expect_err("as many as it may have");
    assert_eq!(busy.code(), Code::ResourceExhausted);
    assert!(busy.message().starts_with("Busy: these credentials have 8 reads under way"), "{busy}");
    soon(world.fleet(&bo).await.get(machines())).await.expect("somebody else reads");
    soon(watch.message()).await.expect("a stream lives on");
    drop(held);
    let again = async {
        while world.fleet(&eve).await.get(machines()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(again).await;
}

/// The agent continues, unaware of it: its messages are discarded.
#[tokio::test]
async fn a_stream_that_was_replaced_is_listened_to_no_more() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "a").await;
    let first = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    let mut second = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    soon(first.unheard()).await;
    second.next().await.expect("it is the machine's");
}

#[tokio::test]
async fn who_keeps_on_asking_for_what_it_may_not_is_answered_late() {
    let world = World::start().await;
    let channel = world.channel(Some(&world.identity(Role::Viewer("eve".to_owned())))).await;
    let long = format!("/{}", "x".repeat(8000));
    let began = Instant::now();
    let refused = [("/muster.v1.Fleet/Apply", Code::PermissionDenied), (long.as_str(), Code::Unimplemented)];
    for (method, code) in refused.repeat(15) {
        assert_eq!(called(&channel, method, Body::empty()).await, Some(code));
    }
    let at_once = began.elapsed();
    assert_eq!(called(&channel, &long, Body::empty()).await, Some(Code::Unimplemented));
    assert!(began.elapsed() >= at_once + Duration::from_secs(1), "one try too many");
    world.fleet(&world.identity(Role::Viewer("eve".to_owned()))).await.get(machines()).await.expect("it may read");
}

/// While reading is blocked, reads wait, but agents' messages are processed.
#[tokio::test]
async fn reads_wait_for_their_turn_where_no_agent_waits_for_them() {
    let world = World::start().await;
    let watches = watches::Watches::default();
    let fleet = Arc::new(fleet::Fleet {
        engine: world.engine.clone(),
        sessions: Sessions::default(),
        ca: Arc::clone(&world.ca),
        vault: Arc::new(Vault::of_test()),
        watches: watches.clone(),
    });
    let caller = caller(&world, Role::Operator("anna".to_owned()));
    let stopped = watches.stopped().await;
    let get = fleet.get(of(machines(), &caller));
    let plan = fleet.plan(of(wire::PlanRequest { cluster: "edge".to_owned(), ..Default::default() }, &caller));
    let apply = fleet.apply(of(wire::ApplyRequest { files: Vec::new(), dry_run: true, ..Default::default() }, &caller));
    let (mut get, mut plan, mut apply) = (pin!(get), pin!(plan), pin!(apply));
    let moment = Duration::from_millis(50);
    assert!(tokio::time::timeout(moment, &mut get).await.is_err(), "it waits");
    assert!(tokio::time::timeout(moment, &mut plan).await.is_err(), "it waits");
    assert!(tokio::time::timeout(moment, &mut apply).await.is_err(), "it waits");
    drop(stopped);
    soon(get).await.expect("read");
    soon(plan).await.expect("read");
    drop(soon(apply).await.expect("parsed"));
}

fn caller(world: &World, role: Role) -> Caller {
    let identity = world.identity(role);
    let der = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
    let certificate = Certificate::read(world.ca.trust_domain(), &der).expect("ours");
    Caller::new(world.address, PeerStatus::Known(Arc::new(certificate)))
}

fn of<T>(message: T, caller: &Caller) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(caller.clone());
    request
}
