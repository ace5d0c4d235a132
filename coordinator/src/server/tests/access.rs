//! Every method of every service, called by every sort of peer over a real connection.

use http::{Method, uri::PathAndQuery};
use tower::{Service, ServiceExt};

use super::*;

/// gRPC's numbers of the two refusals.
const DENIED: [&str; 2] = ["7", "16"];

/// Was the call refused before it reached a service? The table answers in the headers.
async fn denied(channel: &Channel, method: &str) -> bool {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(PathAndQuery::try_from(method).expect("a path"));
    let request = http::Request::builder()
        .method(Method::POST)
        .uri(http::Uri::from_parts(parts).expect("a URI"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::empty())
        .expect("a request");
    let mut channel = channel.clone();
    let response = soon(async { channel.ready().await.expect("ready").call(request).await }).await.expect("answered");
    response.headers().get("grpc-status").is_some_and(|code| DENIED.contains(&code.to_str().expect("text")))
}

#[tokio::test]
async fn every_method_for_every_sort_of_peer() {
    let world = World::start().await;
    let now_ms = world.engine.now().wall_ms;
    let own = world.enrolled("edge", "own").await;
    let revoked = world.enrolled("edge", "revoked").await;
    world.wish(Wish::RevokeMachine { machine: revoked.name.clone(), machine_is_off: false }).await;
    let bo = world.issued(Role::Operator("bo".to_owned())).await;
    world.wish(Wish::RevokeCredentials { subject: "operator/bo".to_owned() }).await;
    let past = Validity { not_before_ms: now_ms - 90_000_000, not_after_ms: now_ms - 1000 };
    let other_ca = Ca::create(&domain(), now_ms).expect("a CA");
    let anna = Peer { role: Role::Operator("anna".to_owned()), clusters: None };
    let wrong_ca = other_ca.issue(&anna, world.validity()).expect("issued");
    let expired = world.ca.issue(&anna, past).expect("issued");
    let expired_agent = world.ca.issue(&Peer::agent(own.id), past).expect("issued");
    let (enroll, renew) = (["Enroll", "RenewExpired"].as_slice(), ["Renew", "Connect", "FetchSecrets"].as_slice());
    let read = ["Version", "Get", "Watch", "Plan", "Logs"].as_slice();
    let act = [
        "Version",
        "Get",
        "Watch",
        "Plan",
        "Logs",
        "Apply",
        "Deploy",
        "Update",
        "Reboot",
        "Pause",
        "Resume",
        "Abort",
        "Retry",
        "Skip",
        "Accept",
        "Annotate",
        "CreateToken",
        "RevokeToken",
        "RevokeCredentials",
        "RevokeMachine",
        "ReplaceMachine",
        "CreateSecret",
        "DeleteSecret",
    ]
    .as_slice();
    let control = ["Version", "Register", "Release", "SetLock", "WatchRequests"].as_slice();
    for (peer, identity, allowed) in [
        ("none", None, enroll),
        ("wrong CA", Some(wrong_ca), &[]),
        ("expired", Some(expired), &[]),
        ("expired agent", Some(expired_agent), &[]),
        ("revoked", Some(revoked.identity), &[]),
        ("revoked operator", Some(bo), &[]),
        ("agent", Some(own.identity), renew),
        ("viewer", Some(world.identity(Role::Viewer("bo".to_owned()))), read),
        ("operator", Some(world.identity(Role::Operator("anna".to_owned()))), act),
        ("controller", Some(world.identity(Role::Controller("locks".to_owned()))), control),
    ] {
        let channel = world.channel(identity.as_ref()).await;
        for method in authz::methods() {
            let name = method.rsplit('/').next().expect("a name");
            assert_eq!(denied(&channel, method).await, !allowed.contains(&name), "{peer} {method}");
        }
        assert!(denied(&channel, "/muster.v1.Fleet/Nothing").await, "{peer}: what is not in the table");
    }
}
