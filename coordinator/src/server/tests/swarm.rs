//! Joining a swarm over the wire; the token is relayed and never stored.

use muster_proto::{
    model::{
        SWARM_JOIN_INPUT, SWARM_TOKEN_INPUT, SwarmAnswer, SwarmAvailability, SwarmCall, SwarmFailure, SwarmFailureCode,
        SwarmId, SwarmInfo, SwarmJoin, SwarmLocalState, SwarmManager, SwarmMember, SwarmNode, SwarmNodeState, SwarmOp,
        SwarmReply, SwarmTokens, SwarmWay,
    },
    wire::{self, agent_message::Body as Said, coordinator_message::Body as Heard},
};
use tonic::{Code, Status};

use super::{
    links::{Stream, hello, open},
    *,
};

const SWARM: &str = r"
apiVersion: muster/v1alpha1
kind: Cluster
metadata: {name: swarm}
spec:
  lcmType: swarm
  machines: {control: 2, worker: 0}
  release: '1'
  machineTypes:
    control:
      - {name: join, runner: swarm-join, version: '1', phase: deploy, params: {advertise: '${machine.internalIP}'}}
";
const TOKEN: &str = "SWMTKN-1-canary-manager";

fn id(text: &str) -> SwarmId {
    SwarmId::new(text).expect("an id")
}

/// Replies of the engines of `c1` and `c2`.
fn engine(op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
    let manager = SwarmManager { leader: true, reachable: true, address: "10.0.0.1:2377".to_owned() };
    match op {
        SwarmOp::Info => Ok(SwarmReply::Info(SwarmInfo {
            state: SwarmLocalState::Inactive,
            node: None,
            manager: false,
            hostname: "c2".to_owned(),
            error: String::new(),
        })),
        SwarmOp::Nodes => Ok(SwarmReply::Nodes(vec![SwarmNode {
            id: id("n1"),
            hostname: "c1".to_owned(),
            state: SwarmNodeState::Ready,
            availability: SwarmAvailability::Active,
            manager: Some(manager),
        }])),
        SwarmOp::Tokens => {
            let worker = "SWMTKN-1-canary-worker".to_owned();
            Ok(SwarmReply::Tokens(SwarmTokens { swarm: id("s1"), manager: TOKEN.to_owned(), worker }))
        }
        other => panic!("{other:?}"),
    }
}

/// The machine's list with `join` in it, accepted.
async fn turn(stream: &mut Stream) -> wire::Assignment {
    loop {
        if let Heard::Assignment(list) = stream.next().await.expect("open").expect("more") {
            let (generation, accepted) = (list.generation, true);
            stream.say(Said::Answer(wire::AssignmentAnswer { generation, accepted, ..Default::default() }));
            if !list.items.is_empty() {
                return list;
            }
        }
    }
}

async fn fetch(world: &World, machine: &Enrolled, generation: u64) -> Result<Vec<wire::ItemInput>, Status> {
    let request = wire::FetchSecretsRequest { item: "join".to_owned(), generation };
    Ok(soon(world.agent(&machine.identity).await.fetch_secrets(request)).await?.into_inner().inputs)
}

/// Answer this many calls; return the operations.
async fn answer(
    stream: &mut Stream,
    calls: usize,
    engine: impl Fn(&SwarmOp) -> Result<SwarmReply, SwarmFailure>,
) -> Vec<SwarmOp> {
    let mut asked = Vec::new();
    while asked.len() < calls {
        if let Heard::SwarmCall(call) = stream.next().await.expect("open").expect("more") {
            let call = SwarmCall::try_from(call).expect("a call");
            stream.say(Said::SwarmAnswer((&SwarmAnswer { id: call.id, result: engine(&call.op) }).into()));
            asked.push(call.op);
        }
    }
    asked
}

fn way(inputs: &[wire::ItemInput]) -> SwarmJoin {
    let input = inputs.iter().find(|input| input.name == SWARM_JOIN_INPUT && !input.secret).expect("the way in");
    serde_json::from_slice(&input.value).expect("as the runner reads it")
}

#[tokio::test]
async fn a_machine_makes_the_swarm_and_another_joins_with_a_token_that_nobody_keeps() {
    let world = World::start().await;
    let files = vec![wire::ManifestFile { name: "s".to_owned(), text: SWARM.to_owned() }];
    let applied = world
        .operator()
        .await
        .apply(wire::ApplyRequest { files, dry_run: false, ..Default::default() })
        .await
        .expect("applied");
    assert_eq!(applied.into_inner().faults, []);
    let (c1, c2) = (world.enrolled("swarm", "c1").await, world.enrolled("swarm", "c2").await);
    let mut first = open(&world, &c1.identity, hello(&c1.name)).await.expect("open");
    let mut second = open(&world, &c2.identity, hello(&c2.name)).await.expect("open");

    let list = turn(&mut first).await;
    let inputs = fetch(&world, &c1, list.generation).await.expect("told");
    assert_eq!(way(&inputs), SwarmJoin { manager: true, way: SwarmWay::Init });
    assert_eq!(inputs.len(), 1, "and no token");
    assert_eq!(world.engine.facts().clusters["swarm"].swarm_init, Some(c1.id));

    let member = SwarmMember { swarm_id: id("s1"), node_id: id("n1"), manager: true };
    for (seq, state) in [(1, wire::ItemState::Running), (2, wire::ItemState::Succeeded)] {
        let done = state == wire::ItemState::Succeeded;
        first.say(Said::Status(wire::StatusEvent {
            seq,
            status: Some(wire::ItemStatus {
                name: "join".to_owned(),
                hash: list.items[0].hash.clone(),
                state: state.into(),
                attempt: 1,
                generation: list.generation,
                started_at_ms: 1,
                finished_at_ms: if done { 2 } else { 0 },
                result_json: if done { serde_json::to_string(&member).expect("text") } else { String::new() },
                ..Default::default()
            }),
        }));
    }
    let generation = turn(&mut second).await.generation;
    let mut facts = world.engine.watch();
    soon(facts.wait_for(|facts| facts.machines["c1"].swarm == Some(member.clone()))).await.expect("recorded");

    let asked = async { (answer(&mut second, 1, engine).await, answer(&mut first, 2, engine).await) };
    let (inputs, asked) = tokio::join!(fetch(&world, &c2, generation), asked);
    assert_eq!(asked, (vec![SwarmOp::Info], vec![SwarmOp::Nodes, SwarmOp::Tokens]));
    let inputs = inputs.expect("let in");
    let managers = vec!["10.0.0.1:2377".to_owned()];
    assert_eq!(way(&inputs), SwarmJoin { manager: true, way: SwarmWay::Join { swarm: id("s1"), managers } });
    let token = inputs.iter().find(|input| input.name == SWARM_TOKEN_INPUT).expect("a token");
    assert!(token.secret && token.value == TOKEN.as_bytes(), "{}", token.name);
    assert!(!format!("{:?}", world.engine.facts()).contains("SWMTKN"), "it is in the record");

    // A manager that has lost the quorum: the machine is told why, and retries.
    let broken = |op: &SwarmOp| match op {
        SwarmOp::Info => engine(op),
        _ => Err(SwarmFailure { code: SwarmFailureCode::NoQuorum, message: "no leader".to_owned() }),
    };
    let asked = async { (answer(&mut second, 1, broken).await, answer(&mut first, 1, broken).await) };
    let (refused, _) = tokio::join!(fetch(&world, &c2, generation), asked);
    let refused = refused.expect_err("nobody lets it in");
    let expected = "NoManagerReachable: c1: NoQuorum: no leader";
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, expected));
}
