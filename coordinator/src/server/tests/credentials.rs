//! Credentials of people and programs: listed, revoked, and cut off when revoked.

use std::time::Instant;

use muster_proto::wire::{CredentialsRequest, GetRequest, VersionRequest};
use tonic::Code;

use super::*;

const CUT_WITHIN: Duration = Duration::from_secs(10);

fn get(kind: &str) -> GetRequest {
    GetRequest { kind: kind.to_owned(), ..Default::default() }
}

fn subject(name: &str) -> CredentialsRequest {
    CredentialsRequest { subject: name.to_owned() }
}

#[tokio::test]
async fn whoever_is_revoked_is_cut_off_and_the_others_are_not() {
    let world = World::start().await;
    world.issued(Role::Operator("anna".to_owned())).await;
    let mut anna = world.operator().await;
    for role in [Role::Operator as fn(String) -> Role, Role::Viewer, Role::Controller] {
        let (bad, good) = (world.issued(role("bo".to_owned())).await, world.issued(role("good".to_owned())).await);
        let name = Peer { role: role("bo".to_owned()), clusters: None }.to_string();
        let (mut of_bad, mut of_good) = (world.fleet(&bad).await, world.fleet(&good).await);
        for client in [&mut of_bad, &mut of_good] {
            client.version(VersionRequest {}).await.expect("it is good");
        }
        let watching = match name.starts_with("controller") {
            true => None,
            false => Some(of_bad.watch(get("machines")).await.expect("open").into_inner()),
        };
        let began = Instant::now();
        anna.revoke_credentials(subject(&name)).await.expect("revoked");
        if let Some(mut events) = watching {
            soon(async { while let Ok(Some(_)) = events.message().await {} }).await;
            assert!(began.elapsed() < CUT_WITHIN, "{name}: its stream is cut: {:?}", began.elapsed());
        }
        of_bad.version(VersionRequest {}).await.expect_err("revoked");
        let again = world.fleet(&bad).await.version(VersionRequest {}).await.expect_err("revoked");
        assert_eq!(again.code(), Code::Unauthenticated, "{name}");
        of_good.version(VersionRequest {}).await.expect("another name of the same role");
        // Later credentials are valid, and the old ones stay revoked.
        let anew = world.issued(role("bo".to_owned())).await;
        world.fleet(&anew).await.version(VersionRequest {}).await.expect("it is new");
        assert!(world.fleet(&bad).await.version(VersionRequest {}).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn a_wrong_wish_to_revoke_says_what_to_do() {
    let world = World::start().await;
    world.issued(Role::Operator("anna".to_owned())).await;
    world.issued(Role::Viewer("bo".to_owned())).await;
    let mut anna = world.operator().await;
    for (name, code, told) in [
        ("viewer/boo", Code::NotFound, "did you mean viewer/bo"),
        ("viewer/nobody-at-all", Code::NotFound, "there is no credential viewer/nobody-at-all"),
        ("viewer/ix", Code::NotFound, "there is no credential viewer/ix"),
        ("operator/anna", Code::FailedPrecondition, "make others first"),
        ("", Code::InvalidArgument, "subject"),
        ("viewer/bo\n", Code::InvalidArgument, "subject"),
    ] {
        let status = anna.revoke_credentials(subject(name)).await.expect_err(name);
        assert_eq!(status.code(), code, "{name}: {status:?}");
        assert!(status.message().contains(told), "{name}: {status:?}");
        assert_eq!(status.message().contains("did you mean"), name == "viewer/boo", "{name}: {status:?}");
    }
    anna.revoke_credentials(subject("viewer/bo")).await.expect("revoked");
    let twice = anna.revoke_credentials(subject("viewer/bo")).await.expect_err("once is enough");
    assert_eq!((twice.code(), twice.message().contains("already")), (Code::FailedPrecondition, true), "{twice:?}");

    let audit = anna.get(get("audit")).await.expect("read").into_inner().items;
    let lines: Vec<String> = audit.iter().map(|line| String::from_utf8_lossy(&line.json).into_owned()).collect();
    let told = |what: &str| lines.iter().any(|line| line.contains(what) && line.contains("credentials/viewer/bo"));
    assert!(told("\"issue\"") && told("\"revoke\""), "{lines:?}");
}

#[tokio::test]
async fn who_sees_one_cluster_only_sees_and_revokes_no_credentials() {
    let world = World::start().await;
    world.issued(Role::Viewer("bo".to_owned())).await;
    let mut limited = world.fleet(&world.limited(Role::Operator("cy".to_owned()), "edge")).await;
    assert_eq!(limited.get(get("credentials")).await.expect_err("no").code(), Code::PermissionDenied);
    let status = limited.revoke_credentials(subject("viewer/bo")).await.expect_err("no");
    assert_eq!(status.code(), Code::PermissionDenied);
    let items = world.operator().await.get(get("credentials")).await.expect("read").into_inner().items;
    let mut names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
    // Bo has two certificates.
    names.dedup();
    assert!(PEOPLE.iter().all(|subject| names.contains(subject)) && names.len() == PEOPLE.len(), "{names:?}");
    assert!(items.iter().all(|item| String::from_utf8_lossy(&item.json).contains("\"Valid\"")));
}

/// Two certificates of one name may apply to different clusters.
#[tokio::test]
async fn certificates_of_one_name_are_listed_apart() {
    let world = World::start().await;
    let issue = async |cluster: &str, issued_at_ms: u64| {
        let certificate = CertificateRow {
            issued_at_ms,
            expires_at_ms: issued_at_ms + 3_600_000,
            clusters: [muster_proto::model::ClusterName::new(cluster).expect("a name")].into(),
        };
        let subject = "operator/dora".to_owned();
        let row = CredentialRow { subject, certificates: vec![certificate], revoked_at_ms: None };
        world.desired(DesiredState::RecordCredentials(row)).await;
    };
    issue("edge", world.began_ms).await;
    issue("other", world.began_ms + 1_000).await;
    let mut anna = world.operator().await;
    let get = GetRequest { name: "operator/dora".to_owned(), ..get("credentials") };
    let items = anna.get(get).await.expect("read").into_inner().items;
    let [first, second] = items.as_slice() else { panic!("two: {items:?}") };
    let text = |item: &muster_proto::wire::Resource| String::from_utf8_lossy(&item.json).into_owned();
    assert!(text(first).contains("[\"edge\"]") && text(second).contains("[\"other\"]"), "{items:?}");
    assert!(first.name == second.name && first.key != second.key, "a watcher tells them apart");
}
