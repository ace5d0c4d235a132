//! The agents' streams.

use std::time::Instant;

use muster_proto::wire::{
    self, AgentMessage, CoordinatorMessage, agent_message::Body as Said, coordinator_message::Body as Heard,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use super::*;

/// One agent's stream.
pub(super) struct Stream {
    say: mpsc::UnboundedSender<AgentMessage>,
    heard: Streaming<CoordinatorMessage>,
}

pub(super) fn hello(name: &MachineName) -> Said {
    Said::Hello(wire::Hello {
        name: name.to_string(),
        ledger_id: Uuid::from_u128(1).to_string(),
        agent_version: "0".to_owned(),
        facts: Some(wire::HostFacts {
            hostname: name.to_string(),
            internal_ip: "10.0.0.1".to_owned(),
            boot_id: "b".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    })
}

/// Open a stream and send this first message.
pub(super) async fn open(world: &World, identity: &Identity, first: Said) -> Result<Stream, Status> {
    let (say, said) = mpsc::unbounded_channel();
    say.send(AgentMessage { body: Some(first) }).expect("open");
    let heard = soon(world.agent(identity).await.connect(UnboundedReceiverStream::new(said))).await?.into_inner();
    Ok(Stream { say, heard })
}

impl Stream {
    pub(super) fn say(&self, body: Said) {
        // The stream may be over; then its last message says so.
        drop(self.say.send(AgentMessage { body: Some(body) }));
    }

    pub(super) async fn next(&mut self) -> Result<Option<Heard>, Status> {
        Ok(soon(self.heard.message()).await?.and_then(|message| message.body))
    }

    /// Completes when the receiving side stops listening, whether received messages continue or end.
    pub(super) async fn unheard(&self) {
        self.say.closed().await;
    }

    /// Read to the end; return its reason.
    async fn end(mut self) -> Status {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok("ended"),
                Err(status) => return status,
            }
        }
    }
}

fn event(seq: u64) -> Said {
    Said::Status(wire::StatusEvent {
        seq,
        status: Some(wire::ItemStatus {
            name: "hello".to_owned(),
            hash: vec![1; 32],
            state: wire::ItemState::Running.into(),
            attempt: 1,
            generation: 1,
            started_at_ms: 1,
            ..Default::default()
        }),
    })
}

#[tokio::test]
async fn an_agent_is_welcomed_given_its_list_and_its_events_are_acknowledged() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let mut stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    let Some(Heard::Welcome(welcome)) = stream.next().await.expect("open") else { panic!("no Welcome") };
    assert_eq!((welcome.epoch, welcome.heartbeat_interval_ms), (1, 1000));
    assert_eq!((welcome.cluster.as_str(), welcome.machine_type.as_str()), ("edge", "control"));
    let Some(Heard::Assignment(assignment)) = stream.next().await.expect("open") else { panic!("no Assignment") };
    assert_eq!(assignment.items.iter().map(|item| item.name.as_str()).collect::<Vec<_>>(), ["hello"]);
    stream.say(event(1));
    let acknowledged = loop {
        match stream.next().await.expect("open").expect("more") {
            Heard::Ack(ack) => break ack.seq,
            Heard::Assignment(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(acknowledged, 1);
    let mut facts = world.engine.watch();
    soon(facts.wait_for(|facts| facts.machines[&machine.name].statuses.len() == 1)).await.expect("recorded");
}

#[tokio::test]
async fn a_stream_begins_with_hello() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let mut bad_name = hello(&machine.name);
    if let Said::Hello(hello) = &mut bad_name {
        hello.name = "Not A Label".to_owned();
    }
    for first in [Said::Heartbeat(wire::Heartbeat {}), event(1), bad_name] {
        let ended = open(&world, &machine.identity, first).await.err().expect("refused");
        assert_eq!(ended.code(), Code::InvalidArgument, "{ended:?}");
    }
    let nobody = world.identity(Role::Agent(MachineId(Uuid::new_v4())));
    let ended = open(&world, &nobody, hello(&machine.name)).await.err().expect("refused");
    assert_eq!(ended.code(), Code::Aborted, "whoever it says it is: {ended:?}");
    let live = world.engine.facts();
    assert!(live.live.machines.get(&machine.name).is_none_or(|live| live.session.is_none()), "nobody took its place");
}

#[tokio::test]
async fn who_keeps_sending_what_cannot_be_read_is_closed() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let nonsense = || Said::Progress(wire::Progress { item: "NO".to_owned(), ..Default::default() });
    let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    for _ in 0..3 {
        stream.say(nonsense());
    }
    assert_eq!(stream.end().await.code(), Code::InvalidArgument);

    let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    stream.say(event(7));
    let ended = stream.end().await;
    assert_eq!((ended.code(), ended.message().contains("SequenceGap")), (Code::Aborted, true), "{ended:?}");

    let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    stream.say(Said::Log(wire::LogChunk { data: vec![0; 2 * 1024 * 1024], ..Default::default() }));
    assert_eq!(stream.end().await.code(), Code::OutOfRange, "over 1 MiB");
}

/// Makes a valid event invalid.
type Lie = fn(&mut wire::ItemStatus);

/// Every message after Hello in an invalid form: sent three times, it ends the stream, and the record stays as it is.
#[tokio::test]
async fn what_cannot_be_read_is_told_by_the_name_of_its_field() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let answer = |accepted, code: &str, generation| {
        let (code, message) = (code.to_owned(), String::new());
        Said::Answer(wire::AssignmentAnswer { generation, accepted, code, message })
    };
    let status = |lie: Lie| match event(1) {
        Said::Status(mut event) => {
            lie(event.status.as_mut().expect("a status"));
            Said::Status(event)
        }
        other => other,
    };
    let blocked = wire::AgentBlocked { reason: String::new(), message: "full".to_owned() };
    let facts = wire::HostFacts { internal_ip: "here".to_owned(), ..Default::default() };
    for (said, expected) in [
        (None, "message.body: missing or unknown"),
        (Some(hello(&machine.name)), "hello: a stream has one Hello, its first message"),
        (Some(Said::Status(wire::StatusEvent { seq: 1, status: None })), "status.status: missing"),
        (Some(status(|status| status.name.clear())), "status.name: not a DNS-1123 label"),
        (Some(status(|status| status.state = 99)), "status.state: unknown"),
        (Some(status(|status| status.exit_code = 3)), "status.exit_code: does not fit the state"),
        (Some(Said::Facts(facts)), "facts.internal_ip: not an IP address"),
        (Some(answer(true, "", u64::MAX)), "answer.generation: nobody can have counted so far"),
        (Some(answer(true, "StaleEpoch", 1)), "answer.code: does not fit `accepted`"),
        (Some(answer(false, "", 1)), "answer.code: does not fit `accepted`"),
        (Some(Said::Progress(wire::Progress::default())), "progress.item: not a DNS-1123 label"),
        (Some(Said::Blocked(blocked)), "blocked.reason: missing"),
        (Some(Said::SwarmAnswer(wire::SwarmAnswer::default())), "swarm_answer.result: missing or unknown"),
        (Some(Said::PermitWanted(wire::PermitWanted::default())), "permit_wanted.permit: counts from 1"),
    ] {
        let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
        for _ in 0..3 {
            // The stream may be over; then its end has the reason.
            drop(stream.say.send(AgentMessage { body: said.clone() }));
        }
        let ended = stream.end().await;
        assert_eq!((ended.code(), ended.message()), (Code::InvalidArgument, expected));
    }
    let row = world.engine.facts().machines[&machine.name].clone();
    assert!(row.statuses.is_empty() && row.assigned.refused.is_none(), "{row:?}");
    assert_eq!(row.host.as_ref().and_then(|host| host.internal_ip.as_deref()), Some("10.0.0.1"));
}

/// A success that lacks a beginning: refused with its reason, again on every stream, and visible to operators.
#[tokio::test]
async fn an_event_that_cannot_be_is_refused_and_seen() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let said = |seq, state: wire::ItemState| match event(seq) {
        Said::Status(mut event) => {
            let status = event.status.as_mut().expect("a status");
            (status.state, status.finished_at_ms) = (state.into(), u64::from(state != wire::ItemState::Running));
            Said::Status(event)
        }
        other => other,
    };
    for _ in 0..2 {
        let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
        stream.say(said(1, wire::ItemState::Succeeded));
        let ended = stream.end().await;
        assert_eq!(ended.code(), Code::Aborted);
        let expected = "ImpossibleTransition: event 1, item hello: it ended, and was never said to have begun";
        assert_eq!(ended.message(), expected);
    }
    let get = wire::GetRequest { kind: "machines".to_owned(), name: "node-1".to_owned(), ..Default::default() };
    let items = world.operator().await.get(get).await.expect("answered").into_inner().items;
    let document = String::from_utf8_lossy(&items[0].json).into_owned();
    assert!(document.contains("\"EventRefused\"") && document.contains("never said to have begun"), "{document}");
    assert!(world.engine.facts().machines[&machine.name].statuses.is_empty(), "nothing was taken");

    let mut stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    stream.say(said(1, wire::ItemState::Running));
    while !matches!(stream.next().await, Ok(Some(Heard::Ack(_)))) {}
    // The acknowledgement may arrive before its facts are visible.
    let mut facts = world.engine.watch();
    let came_right = |facts: &Arc<crate::facts::Facts>| facts.live.machines[&machine.name].event_refused.is_none();
    soon(facts.wait_for(came_right)).await.expect("an engine");
}

/// Numbers too high to count on from: adding one would overflow.
#[tokio::test]
async fn numbers_that_nobody_can_have_counted_to_are_refused() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let lies: [fn(&mut wire::Hello); 4] = [
        |hello| hello.acked_seq = u64::MAX,
        |hello| hello.generation = u64::MAX,
        |hello| hello.epoch = u64::MAX,
        |hello| hello.acked_seq = (1 << 62) + 1,
    ];
    for (n, lie) in lies.into_iter().enumerate() {
        let mut first = hello(&machine.name);
        if let Said::Hello(hello) = &mut first {
            lie(hello);
        }
        let ended = open(&world, &machine.identity, first).await.err().expect("refused");
        assert_eq!(ended.code(), Code::InvalidArgument, "lie {n}: {ended:?}");
    }
    let status: [fn(&mut wire::ItemStatus); 2] =
        [|status| status.attempt = u32::MAX, |status| status.generation = u64::MAX];
    for lie in status {
        let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
        for _ in 0..3 {
            let mut said = event(1);
            if let Said::Status(event) = &mut said {
                lie(event.status.as_mut().expect("a status"));
            }
            stream.say(said);
        }
        assert_eq!(stream.end().await.code(), Code::InvalidArgument);
    }
    let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    for _ in 0..3 {
        stream.say(event(u64::MAX));
    }
    assert_eq!(stream.end().await.code(), Code::InvalidArgument);
    open(&world, &machine.identity, hello(&machine.name)).await.expect("the coordinator goes on");
}

#[tokio::test]
async fn the_newest_stream_of_a_machine_wins() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let first = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    let mut second = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    assert_eq!(first.end().await.code(), Code::Aborted);
    assert!(matches!(second.next().await, Ok(Some(Heard::Welcome(_)))));
    let session = world.engine.facts().live.machines[&machine.name].session;
    assert!(session.is_some(), "the end of the first is not the end of the machine's session");
}

#[tokio::test]
async fn a_revoked_machine_is_cut_off_and_the_others_are_not() {
    let world = World::start().await;
    let (bad, good) = (world.enrolled("edge", "bad").await, world.enrolled("edge", "good").await);
    let of_bad = open(&world, &bad.identity, hello(&bad.name)).await.expect("open");
    let mut of_good = open(&world, &good.identity, hello(&good.name)).await.expect("open");
    // A connection with no stream yet, made while the certificate was valid.
    let idle = world.channel(Some(&bad.identity)).await;
    let began = Instant::now();
    world
        .operator()
        .await
        .revoke_machine(wire::MachineRequest { machine: "bad".to_owned(), machine_is_off: false })
        .await
        .expect("revoked");
    of_bad.end().await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let mut idle = EnrollmentClient::new(idle);
    soon(async {
        // First refused by its identity; then the connection itself is cut.
        while idle.renew(wire::RenewRequest { csr_der: request().1 }).await.expect_err("revoked").code()
            == Code::Unauthenticated
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let again = open(&world, &bad.identity, hello(&bad.name)).await.err().expect("refused");
    assert_eq!(again.code(), Code::Unauthenticated);
    assert!(matches!(of_good.next().await, Ok(Some(Heard::Welcome(_)))));
    of_good.say(Said::Heartbeat(wire::Heartbeat {}));
    assert!(matches!(of_good.next().await, Ok(Some(Heard::Assignment(_)))));
}

#[tokio::test]
async fn an_agent_that_goes_is_noticed() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    let mut facts = world.engine.watch();
    let connected = |facts: &Arc<crate::facts::Facts>| {
        facts.live.machines.get(&machine.name).is_some_and(|live| live.session.is_some())
    };
    soon(facts.wait_for(|facts| connected(facts))).await.expect("an engine");
    drop(stream);
    soon(facts.wait_for(|facts| !connected(facts))).await.expect("an engine");
}

#[tokio::test]
async fn output_of_an_agent_reaches_the_operator_who_asked() {
    let world = World::start().await;
    let machine = world.enrolled("edge", "node-1").await;
    let logs = |machine: &str, item: &str| wire::LogsRequest {
        machine: machine.to_owned(),
        item: item.to_owned(),
        follow: true,
    };
    let mut client = world.operator().await;
    let code = async |request, client: &mut FleetClient<Channel>| client.logs(request).await.err().map(|s| s.code());
    assert_eq!(code(logs("node-1", ""), &mut client).await, Some(Code::FailedPrecondition), "not connected");
    assert_eq!(code(logs("nobody", ""), &mut client).await, Some(Code::NotFound));
    assert_eq!(code(logs("node-1", "No Item"), &mut client).await, Some(Code::InvalidArgument));

    let mut stream = open(&world, &machine.identity, hello(&machine.name)).await.expect("open");
    let mut output = client.logs(logs("node-1", "hello")).await.expect("asked").into_inner();
    let asked = async |stream: &mut Stream| loop {
        match stream.next().await.expect("open").expect("more") {
            Heard::LogRequest(request) => break (request.request_id, request.item),
            Heard::LogCancel(cancel) => break (cancel.request_id, "cancel".to_owned()),
            _ => {}
        }
    };
    let (request_id, item) = asked(&mut stream).await;
    assert_eq!(item, "hello");
    for data in ["one ", "two"] {
        stream.say(Said::Log(wire::LogChunk { request_id, data: data.into(), ..Default::default() }));
    }
    assert_eq!(soon(output.message()).await.expect("open").expect("data").data, b"one ");
    assert_eq!(soon(output.message()).await.expect("open").expect("data").data, b"two");
    drop(output);
    assert_eq!(asked(&mut stream).await, (request_id, "cancel".to_owned()), "nobody reads any more");
}
