//! Secrets over the wire: permission to create them, and to get them.

use muster_proto::wire::{self, coordinator_message::Body as Heard};
use tonic::{Code, Status};

use super::{
    links::{Stream, hello, open},
    *,
};

const VALUE: &[u8] = b"hunter2-of-the-registry";

fn manifest(param: &str) -> wire::ApplyRequest {
    let text = MANIFEST.replacen("script: echo hello", &format!("script: echo hello, password: '{param}'"), 1);
    wire::ApplyRequest { files: vec![wire::ManifestFile { name: "m".to_owned(), text }], ..Default::default() }
}

/// Create the secret `registry`: a cluster's own, or one shared by `edge` and `other`.
async fn create(world: &World, identity: &Identity, cluster: &str, value: &[u8]) -> Result<Vec<String>, Status> {
    let clusters = if cluster.is_empty() { ["edge", "other"].map(str::to_owned).into() } else { Vec::new() };
    let (name, cluster, value) = ("registry".to_owned(), cluster.to_owned(), value.to_vec());
    let request = wire::CreateSecretRequest { name, cluster, value, clusters };
    Ok(world.fleet(identity).await.create_secret(request).await?.into_inner().lines)
}

/// Generation and first item's param of the next list.
async fn next_list(stream: &mut Stream) -> (u64, String) {
    loop {
        if let Heard::Assignment(list) = stream.next().await.expect("open").expect("more") {
            return (list.generation, list.items[0].params["password"].clone());
        }
    }
}

async fn fetch(world: &World, identity: &Identity, item: &str, generation: u64) -> Result<Vec<u8>, Status> {
    let request = wire::FetchSecretsRequest { item: item.to_owned(), generation };
    let inputs = soon(world.agent(identity).await.fetch_secrets(request)).await?.into_inner().inputs;
    assert!(inputs.iter().all(|input| input.name == "registry" && input.secret), "{}", inputs.len());
    Ok(inputs.into_iter().flat_map(|input| input.value).collect())
}

#[tokio::test]
async fn a_machine_gets_the_secrets_of_its_own_list_and_nothing_else() {
    let world = World::start().await;
    let anna = world.identity(Role::Operator("anna".to_owned()));
    create(&world, &anna, "", VALUE).await.expect("created");
    let applied = world.operator().await.apply(manifest("${secret.registry}")).await.expect("applied").into_inner();
    assert_eq!(applied.faults, []);
    let own = world.enrolled("edge", "own").await;
    let other = world.enrolled("other", "other").await;
    let mut stream = open(&world, &own.identity, hello(&own.name)).await.expect("open");
    let (generation, param) = next_list(&mut stream).await;
    assert_eq!(param, "${secret.registry@1}");
    assert_eq!(fetch(&world, &own.identity, "hello", generation).await.expect("served"), VALUE);

    let other_stream = open(&world, &other.identity, hello(&other.name)).await.expect("open");
    for (identity, item, asked, code) in [
        (&own.identity, "hello", generation + 1, Code::FailedPrecondition),
        (&own.identity, "hello", 0, Code::FailedPrecondition),
        (&own.identity, "goodbye", generation, Code::FailedPrecondition),
        (&own.identity, "../hello", generation, Code::InvalidArgument),
        (&anna, "hello", generation, Code::PermissionDenied),
    ] {
        let status = fetch(&world, identity, item, asked).await.expect_err("refused");
        assert_eq!(status.code(), code, "{item} {asked}: {status}");
    }
    // Its item of that name is free of secrets.
    assert_eq!(fetch(&world, &other.identity, "hello", 1).await.unwrap_or_default(), b"");
    drop(other_stream);

    // A new version makes a new item; the previous list loses its access.
    create(&world, &anna, "", b"new").await.expect("created");
    let (newer, param) = next_list(&mut stream).await;
    assert_eq!((newer > generation, param.as_str()), (true, "${secret.registry@2}"));
    fetch(&world, &own.identity, "hello", generation).await.expect_err("refused");
    assert_eq!(fetch(&world, &own.identity, "hello", newer).await.expect("served"), b"new");
    // A cluster's own secret takes precedence.
    create(&world, &anna, "edge", b"own").await.expect("created");
    let (newest, param) = next_list(&mut stream).await;
    assert_eq!(param, "${secret.registry@3}");
    assert_eq!(fetch(&world, &own.identity, "hello", newest).await.expect("served"), b"own");
}

#[tokio::test]
async fn secrets_are_made_listed_and_deleted_but_never_shown() {
    let world = World::start().await;
    let anna = world.identity(Role::Operator("anna".to_owned()));
    let applied = world.operator().await.apply(manifest("${secret.registri}")).await.expect("answered").into_inner();
    assert_eq!(applied.faults[0].problem, "unknown secret 'registri'");
    let lines = create(&world, &anna, "edge", VALUE).await.expect("created");
    assert_eq!(lines, ["secret edge/registry created"]);
    let applied = world.operator().await.apply(manifest("${secret.registri}")).await.expect("answered").into_inner();
    assert_eq!((applied.faults[0].line, applied.faults[0].nearest.as_str()), (11, "registry"));
    let applied = world.operator().await.apply(manifest("u:${secret.registry}")).await.expect("answered").into_inner();
    assert_eq!(applied.faults, []);

    let get = |kind: &str| wire::GetRequest { kind: kind.to_owned(), ..Default::default() };
    for kind in ["secrets", "audit", "clusters", "machines"] {
        let items = world.operator().await.get(get(kind)).await.expect("answered").into_inner().items;
        let text: String = items.iter().map(|item| String::from_utf8_lossy(&item.json)).collect();
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(text.contains("\"usedBy\":[\"edge/hello\"]"), kind == "secrets", "{text}");
    }
    for (cluster, value, code) in [
        ("edge", vec![], Code::InvalidArgument),
        ("edge", vec![0; 64 * 1024 + 1], Code::InvalidArgument),
        ("Edge", vec![1], Code::InvalidArgument),
    ] {
        assert_eq!(create(&world, &anna, cluster, &value).await.expect_err("refused").code(), code, "{cluster}");
    }
    create(&world, &anna, "other", &vec![0xff; 64 * 1024]).await.expect("the largest");

    let delete = async |cluster: &str, in_use| {
        let (name, cluster) = ("registry".to_owned(), cluster.to_owned());
        world.operator().await.delete_secret(wire::DeleteSecretRequest { name, cluster, in_use }).await
    };
    let status = delete("edge", false).await.expect_err("refused");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("SecretInUse: edge/registry is used by edge/hello"), "{status}");
    assert_eq!(delete("", false).await.expect_err("refused").code(), Code::NotFound);
    assert_eq!(delete("other", false).await.expect("unused").into_inner().lines, ["secret other/registry deleted"]);
    delete("edge", true).await.expect("insisted upon");
    assert!(world.engine.facts().secrets.is_empty());
    let actions: Vec<_> = world.engine.facts().audit_lines().into_iter().map(|row| row.action.clone()).collect();
    assert_eq!(actions.iter().filter(|action| ["create", "delete"].contains(&action.as_str())).count(), 4);
}

#[tokio::test]
async fn who_is_limited_to_a_cluster_touches_its_secrets_only() {
    let world = World::start().await;
    let anna = world.identity(Role::Operator("anna".to_owned()));
    for cluster in ["", "edge", "other"] {
        create(&world, &anna, cluster, VALUE).await.expect("created");
    }
    let limited = world.limited(Role::Operator("bert".to_owned()), "edge");
    create(&world, &limited, "edge", b"new").await.expect("its own");
    for cluster in ["", "other"] {
        assert_eq!(create(&world, &limited, cluster, b"x").await.expect_err("no").code(), Code::PermissionDenied);
    }
    let request = wire::GetRequest { kind: "secrets".to_owned(), ..Default::default() };
    let seen = world.fleet(&limited).await.get(request).await.expect("answered").into_inner().items;
    assert_eq!(seen.iter().map(|item| item.name.as_str()).collect::<Vec<_>>(), ["registry", "edge/registry"]);
    let text: String = seen.iter().map(|item| String::from_utf8_lossy(&item.json)).collect();
    assert!(text.contains("\"clusters\":[\"edge\"]") && !text.contains("other"), "nothing of foreign clusters: {text}");
}

/// Applying a manifest gives an operator access to every secret in it.
#[tokio::test]
async fn limited_operator_names_shared_secrets_only() {
    let world = World::start().await;
    let anna = world.identity(Role::Operator("anna".to_owned()));
    let limited = world.limited(Role::Operator("bert".to_owned()), "edge");
    let share = async |identity: &Identity, add: &[&str], remove: &[&str]| {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let (name, add, remove) = ("registry".to_owned(), names(add), names(remove));
        world.fleet(identity).await.share_secret(wire::ShareSecretRequest { name, add, remove, in_use: true }).await
    };
    let only = MANIFEST.split("---").next().expect("the first").replacen(
        "script: echo hello",
        "script: echo hello, password: '${secret.registry}'",
        1,
    );
    let apply = async || {
        let files = vec![wire::ManifestFile { name: "m".to_owned(), text: only.clone() }];
        let applied =
            world.fleet(&limited).await.apply(wire::ApplyRequest { files, dry_run: false, ..Default::default() }).await;
        applied.expect("answered").into_inner().faults
    };
    let unknown = apply().await;
    create(&world, &anna, "", VALUE).await.expect("created");
    share(&anna, &[], &["edge"]).await.expect("not for edge");
    let foreign = apply().await;
    assert_eq!(unknown, foreign, "whether others have one is not told");
    assert_eq!(foreign[0].problem, "unknown secret 'registry'");
    assert!(foreign[0].expected.contains("`musterctl secret share registry --clusters edge`"), "{foreign:?}");
    assert_eq!(share(&limited, &["edge"], &[]).await.expect_err("no").code(), Code::PermissionDenied);
    let none: Vec<String> = Vec::new();
    let seen = wire::GetRequest { kind: "secrets".to_owned(), ..Default::default() };
    let seen = world.fleet(&limited).await.get(seen).await.expect("read").into_inner().items;
    assert_eq!(seen.into_iter().map(|item| item.name).collect::<Vec<_>>(), none);
    share(&anna, &["edge"], &[]).await.expect("shared");
    assert_eq!(apply().await, []);
}
