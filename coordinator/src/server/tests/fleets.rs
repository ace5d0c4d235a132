//! What operators get, and whose clusters they touch.

use muster_proto::wire::{self, watch_event::Type};
use tonic::Code;

use super::*;

fn get(kind: &str, name: &str, cluster: &str) -> wire::GetRequest {
    wire::GetRequest { kind: kind.to_owned(), name: name.to_owned(), cluster: cluster.to_owned() }
}

async fn names(client: &mut FleetClient<Channel>, request: wire::GetRequest) -> Result<Vec<String>, Code> {
    let answer = soon(client.get(request)).await.map_err(|status| status.code())?;
    Ok(answer.into_inner().items.into_iter().map(|item| item.name).collect())
}

#[tokio::test]
async fn get_gives_what_is_asked_for() {
    let world = World::start().await;
    for (cluster, name) in [("edge", "a"), ("edge", "b"), ("other", "c")] {
        world.enrolled(cluster, name).await;
    }
    let mut client = world.operator().await;
    let check = async |request, expected: Result<&[&str], Code>, client: &mut FleetClient<Channel>| {
        let found = names(client, request).await;
        assert_eq!(found, expected.map(|names| names.iter().map(ToString::to_string).collect()));
    };
    check(get("clusters", "", ""), Ok(&["edge", "other"]), &mut client).await;
    check(get("machines", "", ""), Ok(&["a", "b", "c"]), &mut client).await;
    check(get("machines", "", "edge"), Ok(&["a", "b"]), &mut client).await;
    check(get("machines", "b", ""), Ok(&["b"]), &mut client).await;
    check(get("machines", "b", "other"), Err(Code::NotFound), &mut client).await;
    check(get("machines", "", "nowhere"), Ok(&[]), &mut client).await;
    check(get("rollouts", "", ""), Ok(&[]), &mut client).await;
    check(get("nodes", "", ""), Err(Code::InvalidArgument), &mut client).await;
    check(get("machines", "", "No Label"), Err(Code::InvalidArgument), &mut client).await;
    assert_eq!(names(&mut client, get("tokens", "", "")).await.expect("tokens").len(), 3);
    assert!(names(&mut client, get("audit", "", "")).await.expect("lines").len() >= 7);
}

#[tokio::test]
async fn who_is_limited_to_a_cluster_sees_and_touches_only_that() {
    let world = World::start().await;
    let (mine, theirs) = (world.enrolled("edge", "mine").await, world.enrolled("other", "theirs").await);
    let theirs_token = world.token("other", None, None, 60_000).await;
    let identity = world.limited(Role::Operator("eve".to_owned()), "edge");
    let mut client = world.fleet(&identity).await;
    assert_eq!(names(&mut client, get("clusters", "", "")).await, Ok(vec!["edge".to_owned()]));
    assert_eq!(names(&mut client, get("machines", "", "")).await, Ok(vec!["mine".to_owned()]));
    assert_eq!(names(&mut client, get("machines", "theirs", "")).await, Err(Code::NotFound));
    assert_eq!(names(&mut client, get("machines", "", "other")).await, Ok(vec![]));
    assert_eq!(names(&mut client, get("audit", "", "")).await, Err(Code::PermissionDenied));

    let machine = || wire::MachineRequest { machine: theirs.name.to_string(), machine_is_off: false };
    let item = || wire::ItemRequest { machine: theirs.name.to_string(), item: String::new() };
    let cluster = || "other".to_owned();
    let files = vec![wire::ManifestFile { name: "m".to_owned(), text: MANIFEST.to_owned() }];
    let moved = "{apiVersion: muster/v1alpha1, kind: Machine, metadata: {name: theirs}, \
                 spec: {clusterName: edge, type: control}}";
    let moving = vec![wire::ManifestFile { name: "m".to_owned(), text: moved.to_owned() }];
    let annotate =
        wire::AnnotateRequest { kind: "machine".to_owned(), name: "theirs".to_owned(), ..Default::default() };
    let of_cluster = wire::AnnotateRequest { kind: "cluster".to_owned(), name: cluster(), ..Default::default() };
    let token =
        wire::CreateTokenRequest { cluster: cluster(), machine_type: "control".to_owned(), ..Default::default() };
    let refused = [
        ("plan", client.plan(wire::PlanRequest { cluster: cluster(), ..Default::default() }).await.err()),
        ("logs", client.logs(wire::LogsRequest { machine: "theirs".to_owned(), ..Default::default() }).await.err()),
        ("apply", client.apply(wire::ApplyRequest { files, dry_run: false }).await.err()),
        ("apply a move", client.apply(wire::ApplyRequest { files: moving, dry_run: true }).await.err()),
        ("deploy", client.deploy(wire::DeployRequest { cluster: cluster() }).await.err()),
        ("retry", client.retry(item()).await.err()),
        ("skip", client.skip(item()).await.err()),
        ("accept", client.accept(item()).await.err()),
        ("annotate machine", client.annotate(annotate).await.err()),
        ("annotate cluster", client.annotate(of_cluster).await.err()),
        ("create token", client.create_token(token).await.err()),
        ("revoke token", client.revoke_token(wire::RevokeTokenRequest { id: theirs_token.id.clone() }).await.err()),
        ("revoke machine", client.revoke_machine(machine()).await.err()),
        ("replace machine", client.replace_machine(machine()).await.err()),
    ];
    for (what, status) in refused {
        assert_eq!(status.map(|status| status.code()), Some(Code::PermissionDenied), "{what}");
    }
    let row = world.engine.facts().machines[&theirs.name].clone();
    assert!(!row.revoked && row.spec.cluster_name.as_str() == "other");
    client
        .revoke_machine(wire::MachineRequest { machine: mine.name.to_string(), machine_is_off: false })
        .await
        .expect("its own");
}

#[tokio::test]
async fn a_watcher_hears_everything_then_what_changes() {
    let world = World::start().await;
    world.enrolled("edge", "a").await;
    let mut events = world.operator().await.watch(get("machines", "", "edge")).await.expect("open").into_inner();
    let mut next = async || {
        let event = soon(events.message()).await.expect("open").expect("more");
        (event.r#type(), event.resource.map(|resource| resource.name).unwrap_or_default())
    };
    assert_eq!(next().await, (Type::Put, "a".to_owned()));
    assert_eq!(next().await, (Type::Synced, String::new()));
    world.enrolled("other", "not-asked-for").await;
    world.enrolled("edge", "b").await;
    assert_eq!(next().await, (Type::Put, "b".to_owned()));
}

#[tokio::test]
async fn a_manifest_with_faults_changes_nothing() {
    let world = World::start().await;
    let text = MANIFEST.replace("release: '1'", "relase: '1'");
    let files = vec![wire::ManifestFile { name: "m.yaml".to_owned(), text }];
    let answer = world.operator().await.apply(wire::ApplyRequest { files, dry_run: false }).await.expect("read");
    let answer = answer.into_inner();
    assert!(answer.changes.is_empty());
    assert!(answer.faults.iter().any(|fault| fault.file == "m.yaml" && fault.nearest == "release"), "{answer:?}");

    let text = "x".repeat(6 * 1024 * 1024);
    let files = vec![wire::ManifestFile { name: "m.yaml".to_owned(), text }];
    let status =
        world.operator().await.apply(wire::ApplyRequest { files, dry_run: false }).await.expect_err("too long");
    assert_eq!(status.code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_token_made_here_carries_our_pin_and_its_secret_is_kept_nowhere() {
    let world = World::start().await;
    let request = wire::CreateTokenRequest {
        cluster: "edge".to_owned(),
        machine_type: "control".to_owned(),
        ttl_ms: 1000,
        uses: 3,
        ..Default::default()
    };
    let mut client = world.operator().await;
    let made = client.create_token(request.clone()).await.expect("made").into_inner();
    let row = world.engine.facts().tokens[&made.id].clone();
    assert_eq!((row.uses, row.expires_at_ms), (Some(3), made.expires_at_ms));
    let secret = made.token.split('.').nth(1).expect("three parts");
    assert!(!serde_json::to_string(&*row).expect("JSON").contains(secret));
    let code = |status: Result<_, tonic::Status>| status.map(|_| ()).expect_err("refused").code();
    let wrong_type = wire::CreateTokenRequest { machine_type: "boss".to_owned(), ..request.clone() };
    assert_eq!(code(client.create_token(wrong_type).await), Code::InvalidArgument);
    let no_cluster = wire::CreateTokenRequest { cluster: "nowhere".to_owned(), ..request };
    assert_eq!(code(client.create_token(no_cluster).await), Code::NotFound);
}

#[tokio::test]
async fn when_the_coordinator_ends_its_streams_do() {
    let world = World::start().await;
    let mut events = world.operator().await.watch(get("machines", "", "")).await.expect("open").into_inner();
    let World { _end: end, .. } = world;
    drop(end);
    soon(async { while let Ok(Some(_)) = events.message().await {} }).await;
}
