//! Documents for operators, and the clusters they may touch.

use std::collections::BTreeSet;

use muster_proto::{
    model::{ClusterName, MachineName},
    wire::{self, Resource, watch_event::Type},
};
use tonic::{Code, Status};

use super::*;
use crate::core::LockCommand;

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

/// Methods that hide foreign clusters instead of refusing them, or that are independent of clusters.
const READS: [&str; 3] = ["Version", "Get", "Watch"];

/// Names that are outside the caller's own cluster.
struct Named<'a> {
    machine: &'a str,
    cluster: &'a str,
    token: &'a str,
}

/// Answers of all other methods to requests with these names.
async fn foreign(client: &mut FleetClient<Channel>, named: Named<'_>) -> Vec<(&'static str, Result<(), Status>)> {
    let cluster = || named.cluster.to_owned();
    let machine_name = || named.machine.to_owned();
    let check = wire::CheckKubernetesRequest { cluster: cluster() };
    let machine = || wire::MachineRequest { machine: machine_name(), machine_is_off: true };
    let item = || wire::ItemRequest { machine: machine_name(), item: String::new() };
    let rollout = || wire::RolloutRequest { rollout: format!("{}-deploy-1", named.cluster) };
    let files = |text: &str| wire::ApplyRequest {
        files: vec![wire::ManifestFile { name: "m".to_owned(), text: text.to_owned() }],
        ..wire::ApplyRequest { dry_run: true, ..Default::default() }
    };
    let annotate = wire::AnnotateRequest { kind: "machine".to_owned(), name: machine_name(), ..Default::default() };
    let of_cluster = wire::AnnotateRequest { kind: "cluster".to_owned(), name: cluster(), ..Default::default() };
    let new_token =
        wire::CreateTokenRequest { cluster: cluster(), machine_type: "control".to_owned(), ..Default::default() };
    let no_token = wire::RevokeTokenRequest { id: named.token.to_owned(), machines: true };
    let secret =
        wire::CreateSecretRequest { name: "s".to_owned(), cluster: cluster(), value: vec![1], clusters: vec![] };
    let of_all =
        wire::CreateSecretRequest { name: "s".to_owned(), cluster: String::new(), value: vec![1], clusters: vec![] };
    let share = wire::ShareSecretRequest { name: "s".to_owned(), add: vec![cluster()], ..Default::default() };
    let no_secret = wire::DeleteSecretRequest { name: "s".to_owned(), cluster: cluster(), in_use: true };
    let release = wire::ReleaseLocksRequest { cluster: cluster(), controller: "ceph".to_owned(), ..Default::default() };
    let reboot = wire::RebootRequest { cluster: cluster(), machines: vec![machine_name()], ..Default::default() };
    let enter = wire::EnterMaintenanceRequest { machine: machine_name(), ..Default::default() };
    let leave = wire::LeaveMaintenanceRequest { machine: machine_name() };
    let keep = wire::AbortRemovalRequest { machine: machine_name() };
    let policy = "graceful".to_owned();
    let remove = wire::RemoveRequest { machine: machine_name(), policy, ..Default::default() };
    let subject = wire::CredentialsRequest { subject: "operator/anna".to_owned() };
    let force = wire::DrainForceRequest { machine: machine_name(), namespace: "n".to_owned(), pod: "p".to_owned() };
    vec![
        ("Plan", client.plan(wire::PlanRequest { cluster: cluster(), ..Default::default() }).await.map(drop)),
        ("CheckKubernetes", client.check_kubernetes(check).await.map(drop)),
        ("Logs", client.logs(wire::LogsRequest { machine: machine_name(), ..Default::default() }).await.map(drop)),
        (
            "Apply",
            client.apply(files(&MANIFEST.replace("name: other", &format!("name: {}", named.cluster)))).await.map(drop),
        ),
        ("Deploy", client.deploy(wire::DeployRequest { cluster: cluster() }).await.map(drop)),
        ("Update", client.update(wire::UpdateRequest { cluster: cluster(), ..Default::default() }).await.map(drop)),
        ("Reboot", client.reboot(reboot).await.map(drop)),
        ("EnterMaintenance", client.enter_maintenance(enter).await.map(drop)),
        ("LeaveMaintenance", client.leave_maintenance(leave).await.map(drop)),
        ("Remove", client.remove(remove).await.map(drop)),
        ("AbortRemoval", client.abort_removal(keep).await.map(drop)),
        ("Pause", client.pause(rollout()).await.map(drop)),
        ("Resume", client.resume(rollout()).await.map(drop)),
        ("Abort", client.abort(rollout()).await.map(drop)),
        ("Retry", client.retry(item()).await.map(drop)),
        ("DrainForce", client.drain_force(force).await.map(drop)),
        ("Skip", client.skip(item()).await.map(drop)),
        ("Accept", client.accept(item()).await.map(drop)),
        ("Rerun", client.rerun(item()).await.map(drop)),
        ("Annotate a machine", client.annotate(annotate).await.map(drop)),
        ("Annotate a cluster", client.annotate(of_cluster).await.map(drop)),
        ("CreateToken", client.create_token(new_token).await.map(drop)),
        ("RevokeToken", client.revoke_token(no_token).await.map(drop)),
        ("RevokeCredentials", client.revoke_credentials(subject).await.map(drop)),
        ("RevokeMachine", client.revoke_machine(machine()).await.map(drop)),
        ("ReplaceMachine", client.replace_machine(machine()).await.map(drop)),
        ("CreateSecret", client.create_secret(secret).await.map(drop)),
        ("CreateSecret for all", client.create_secret(of_all).await.map(drop)),
        ("ShareSecret", client.share_secret(share).await.map(drop)),
        ("DeleteSecret", client.delete_secret(no_secret).await.map(drop)),
        ("ReleaseLocks", client.release_locks(release).await.map(drop)),
        ("DeleteCluster", client.delete_cluster(wire::DeleteClusterRequest { cluster: cluster() }).await.map(drop)),
    ]
}

#[tokio::test]
async fn who_is_limited_to_a_cluster_sees_and_touches_only_that() {
    let world = World::start().await;
    let (mine, theirs) = (world.enrolled("edge", "mine").await, world.enrolled("other", "theirs").await);
    let theirs_token = world.token("other", None, None, 60_000).await;
    let mut stream = links::open(&world, &theirs.identity, links::hello(&theirs.name)).await.expect("open");
    stream.next().await.expect("welcomed");
    world.desired(DesiredState::Deploy { cluster: ClusterName::new("other").expect("a name") }).await;
    let identity = world.limited(Role::Operator("eve".to_owned()), "edge");
    let mut client = world.fleet(&identity).await;
    assert_eq!(names(&mut client, get("clusters", "", "")).await, Ok(vec!["edge".to_owned()]));
    assert_eq!(names(&mut client, get("machines", "", "")).await, Ok(vec!["mine".to_owned()]));
    assert_eq!(names(&mut client, get("machines", "", "other")).await, Ok(vec![]));
    assert_eq!(names(&mut client, get("audit", "", "")).await, Err(Code::PermissionDenied));
    let mut one =
        async |name: &str| client.get(get("machines", name, "")).await.expect_err("none").message().replace(name, "");
    assert_eq!(one("theirs").await, one("nobody").await);

    let before = world.engine.facts();
    assert!(before.rollouts.contains_key("other-deploy-1"), "there is something to be seen");
    let mut walked = BTreeSet::from(READS.map(str::to_owned));
    let there = foreign(&mut client, Named { machine: "theirs", cluster: "other", token: &theirs_token.id }).await;
    let not_there = foreign(&mut client, Named { machine: "nobody", cluster: "nowhere", token: "0123456789ab" }).await;
    for ((method, there), (_, not_there)) in there.into_iter().zip(not_there) {
        let (there, not_there) = (there.expect_err(method), not_there.expect_err(method));
        assert!(matches!(there.code(), Code::PermissionDenied | Code::NotFound), "{method}: {there}");
        let names = [("theirs", "nobody"), ("other", "nowhere"), (theirs_token.id.as_str(), "0123456789ab")];
        let same = names.iter().fold(there.message().to_owned(), |text, (theirs, none)| text.replace(theirs, none));
        assert_eq!((there.code(), same.as_str()), (not_there.code(), not_there.message()), "{method}");
        walked.insert(method.split(' ').next().expect("a name").to_owned());
    }
    let of_fleet = authz::methods().filter_map(|method| method.strip_prefix("/muster.v1.Fleet/"));
    assert_eq!(walked, of_fleet.map(str::to_owned).collect(), "every method of the service");
    let after = world.engine.facts();
    assert_eq!((&after.machines, &after.clusters), (&before.machines, &before.clusters), "nothing was changed");
    assert_eq!((&after.rollouts, &after.secrets), (&before.rollouts, &before.secrets), "nothing was changed");
    assert_eq!((&after.tokens, &after.specs), (&before.tokens, &before.specs), "nothing was changed");
    let row = world.engine.facts().machines[&theirs.name].clone();
    assert!(!row.revoked && row.spec.cluster_name.as_str() == "other");
    client
        .revoke_machine(wire::MachineRequest { machine: mine.name.to_string(), machine_is_off: false })
        .await
        .expect("its own");
}

/// Names of machines are unique in the whole fleet: a caller learns that one is taken; the cluster stays secret.
#[tokio::test]
async fn taken_name_tells_no_cluster() {
    let world = World::start().await;
    world.enrolled("other", "theirs").await;
    let mut client = world.fleet(&world.limited(Role::Operator("eve".to_owned()), "edge")).await;
    let moved = "{apiVersion: muster/v1alpha1, kind: Machine, metadata: {name: theirs}, \
                 spec: {clusterName: edge, type: control}}";
    let files = vec![wire::ManifestFile { name: "m".to_owned(), text: moved.to_owned() }];
    let applied =
        client.apply(wire::ApplyRequest { files, dry_run: true, ..Default::default() }).await.expect_err("taken");
    let (cluster, machine_type, machine) = ("edge".to_owned(), "control".to_owned(), "theirs".to_owned());
    let token = wire::CreateTokenRequest { cluster, machine_type, machine, ..Default::default() };
    let token = client.create_token(token).await.expect_err("taken");
    for status in [applied, token] {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().starts_with("NameTaken: another cluster"), "{status}");
        assert!(!status.message().contains("cluster other"), "{status}");
    }
}

/// Faults keep foreign clusters secret: for a limited caller they count as missing.
#[tokio::test]
async fn a_dry_run_tells_nothing_of_foreign_clusters() {
    let world = World::start().await;
    let machine = "{apiVersion: muster/v1alpha1, kind: Machine, metadata: {name: x}, spec: {clusterName: other, \
                   type: control, stateItemsOverwrites: {helo: {version: '2'}}}}";
    let faults = async |identity: Identity| {
        let files = vec![wire::ManifestFile { name: "m".to_owned(), text: machine.to_owned() }];
        let applied =
            world.fleet(&identity).await.apply(wire::ApplyRequest { files, dry_run: true, ..Default::default() }).await;
        format!("{:?}", applied.expect("read").into_inner().faults)
    };
    let seen = faults(world.identity(Role::Operator("anna".to_owned()))).await;
    assert!(seen.contains("helo") && seen.contains("hello"), "{seen}");
    let seen = faults(world.limited(Role::Operator("eve".to_owned()), "edge")).await;
    assert!(seen.contains("unknown cluster 'other'") && !seen.contains("hello"), "{seen}");
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

/// The lock of ceph on osd-1 has the same name as that of ceph-osd on 1; requests of a cluster and a machine may also
/// collide.
#[tokio::test]
async fn documents_that_share_a_name_are_told_apart() {
    let world = World::start().await;
    for (controller, machine) in [("ceph", "osd-1"), ("ceph-osd", "1")] {
        world.enrolled("edge", machine).await;
        let word = LockCommand::Register {
            cluster: ClusterName::new("edge").expect("a name"),
            machines: vec![MachineName::new(machine).expect("a name")],
            of_cluster: false,
        };
        world.engine.submit(Input::Maintenance { controller: controller.to_owned(), word }).await.expect("registered");
    }
    let mut events = world.operator().await.watch(get("locks", "", "edge")).await.expect("open").into_inner();
    let mut next = async || {
        let event = soon(events.message()).await.expect("open").expect("more");
        let sort = event.r#type();
        let Resource { name, key, .. } = event.resource.unwrap_or_default();
        (sort, name, key)
    };
    let event = |sort, name: &str, key: &str| (sort, name.to_owned(), key.to_owned());
    assert_eq!(next().await, event(Type::Put, "ceph-osd-1", "edge/ceph/osd-1"));
    assert_eq!(next().await, event(Type::Put, "ceph-osd-1", "edge/ceph-osd/1"));
    assert_eq!(next().await, event(Type::Synced, "", ""));
    let word = LockCommand::Release {
        cluster: ClusterName::new("edge").expect("a name"),
        machine: Some(MachineName::new("osd-1").expect("a name")),
    };
    world.engine.submit(Input::Maintenance { controller: "ceph".to_owned(), word }).await.expect("released");
    assert_eq!(next().await, event(Type::Deleted, "ceph-osd-1", "edge/ceph/osd-1"));
}

#[tokio::test]
async fn a_manifest_with_faults_changes_nothing() {
    let world = World::start().await;
    let text = MANIFEST.replace("release: '1'", "relase: '1'");
    let files = vec![wire::ManifestFile { name: "m.yaml".to_owned(), text }];
    let answer = world
        .operator()
        .await
        .apply(wire::ApplyRequest { files, dry_run: false, ..Default::default() })
        .await
        .expect("read");
    let answer = answer.into_inner();
    assert!(answer.changes.is_empty());
    assert!(answer.faults.iter().any(|fault| fault.file == "m.yaml" && fault.nearest == "release"), "{answer:?}");

    let text = "x".repeat(6 * 1024 * 1024);
    let files = vec![wire::ManifestFile { name: "m.yaml".to_owned(), text }];
    let status = world
        .operator()
        .await
        .apply(wire::ApplyRequest { files, dry_run: false, ..Default::default() })
        .await
        .expect_err("too long");
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
    assert_eq!((row.uses, row.expires_at_ms), (3, made.expires_at_ms));
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
