//! A working agent: assignments, events, kills, output.

use std::time::Duration;

use muster_proto::{
    model::{Epoch, Generation, ItemState, Seq, SwarmAnswer, SwarmCall, SwarmFailureCode, SwarmOp, SwarmReply},
    wire::{LogRequest, agent_message::Body as FromAgent, coordinator_message::Body as ToAgent},
};

use tokio::time::timeout;

use crate::{
    coordinator::{Coordinator, DEADLINE, Session, Traits, script},
    machine::Machine,
};

fn lines(machine: &Machine, name: &str) -> usize {
    std::fs::read_to_string(machine.path(name)).unwrap_or_default().lines().count()
}

/// Waits for the effect of another process.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let come = async {
        while !condition() {
            look.tick().await;
        }
    };
    timeout(DEADLINE, come).await.expect("in time");
}

/// A script that reports its start, waits for a file, and reports its end.
fn waiting(machine: &Machine) -> String {
    let (began, go, ended) = (machine.path("began"), machine.path("go"), machine.path("ended"));
    let (began, go, ended) = (began.display(), go.display(), ended.display());
    format!("echo $$ >> {began}; echo begun; until [ -e {go} ]; do read -t 0.05 <> <(:); done; echo x >> {ended}")
}

async fn answer(session: &mut Session) -> (u64, bool, String) {
    let body = session.next(|body| if let FromAgent::Answer(answer) = body { Some(answer) } else { None }).await;
    body.map(|answer| (answer.generation, answer.accepted, answer.code)).expect("an answer")
}

#[tokio::test]
async fn a_swarm_call_is_answered_while_an_item_runs() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run();
    let mut session = coordinator.welcomed(3).await;
    session.assign(3, 1, vec![script("a", &waiting(&machine))]).await;
    until(|| lines(&machine, "began") == 1).await;
    // There is an answer on any machine, Docker Engine or not. tests/nodes covers the answers of engines.
    for (id, epoch) in [(7, 3), (8, 2)] {
        let call = SwarmCall { id, epoch: Epoch(epoch), op: SwarmOp::Info };
        session.send(ToAgent::SwarmCall((&call).into())).await;
    }
    let mut answers = std::collections::BTreeMap::new();
    while answers.len() < 2 {
        let answer =
            session.next(|body| if let FromAgent::SwarmAnswer(answer) = body { Some(answer) } else { None }).await;
        let answer = SwarmAnswer::try_from(answer.expect("an answer")).expect("a sound one");
        answers.insert(answer.id, answer.result.map_err(|failure| failure.code));
    }
    let looked = answers.remove(&7).expect("answered");
    assert!(matches!(looked, Ok(SwarmReply::Info(_)) | Err(SwarmFailureCode::Engine)), "{looked:?}");
    assert_eq!(answers.remove(&8), Some(Err(SwarmFailureCode::StaleEpoch)));
    assert_eq!(lines(&machine, "ended"), 0, "the item still runs");
    std::fs::write(machine.path("go"), "").expect("written");
    while session.event().await != (2, ItemState::Succeeded, 1) {}
}

#[tokio::test]
async fn an_item_is_run_and_reported() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let mut agent = machine.run();
    let mut session = coordinator.welcomed(3).await;
    assert_eq!((session.hello.generation, session.hello.statuses.len()), (Generation(0), 0));
    session.assign(3, 1, vec![script("a", "echo hello"), script("b", "exit 7")]).await;
    assert_eq!(answer(&mut session).await, (1, true, String::new()));
    assert_eq!(session.event().await, (1, ItemState::Running, 1));
    assert_eq!(session.event().await, (2, ItemState::Succeeded, 1));
    assert_eq!(session.event().await, (3, ItemState::Running, 1));
    assert_eq!(session.event().await, (4, ItemState::Failed { exit_code: 7, retryable: true }, 1));
    session.assign(2, 9, vec![]).await;
    assert_eq!(answer(&mut session).await, (9, false, "StaleEpoch".to_owned()));

    // A clean stop writes the deferred records.
    let pid = nix::unistd::Pid::from_raw(agent.id().expect("a process").cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
    assert_eq!(agent.wait().await.expect("an end").code(), Some(0));
    let status = machine.status().await;
    assert_eq!(status["machine"], "worker-1");
    assert_eq!((&status["link"]["connected"], &status["running"]), (&true.into(), &false.into()));
    assert_eq!((&status["ledger"]["generation"], &status["ledger"]["epoch"]), (&1.into(), &3.into()));
    assert_eq!(status["ledger"]["outbox"], 0);
    let states: Vec<_> = (0..2).map(|n| status["ledger"]["items"][n]["state"].clone()).collect();
    assert_eq!(states, ["Succeeded", "Failed"]);
    let table = machine.command_with(&["status"], "").await.stdout;
    assert!(table.contains("exit status 7") && table.contains("the agent does not run"), "{table}");
    assert!(table.contains("`muster-agent run --state-dir /"), "{table}");

    let _agent = machine.run();
    let hello = coordinator.welcomed(3).await.hello;
    assert_eq!((hello.generation, hello.acked_seq, hello.statuses.len()), (Generation(1), Seq(4), 2));
}

#[tokio::test]
async fn an_item_survives_its_agent_and_is_reported_once() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let mut agent = machine.run();
    let mut session = coordinator.welcomed(1).await;
    session.acks = false;
    session.assign(1, 1, vec![script("a", &waiting(&machine))]).await;
    assert_eq!(session.event().await, (1, ItemState::Running, 1));
    for round in 0..3 {
        agent.kill().await.expect("killed");
        if round == 2 {
            // It ends while the agent is down.
            std::fs::write(machine.path("go"), "").expect("a file");
            until(|| lines(&machine, "ended") > 0).await;
        }
        agent = machine.run();
        session = coordinator.welcomed(1).await;
        session.acks = false;
        assert_eq!(session.event().await, (1, ItemState::Running, 1), "not acknowledged, so said again");
    }
    session.acks = true;
    assert_eq!(session.event().await, (2, ItemState::Succeeded, 1));
    assert_eq!((lines(&machine, "began"), lines(&machine, "ended")), (1, 1));
}

#[tokio::test]
async fn output_is_read_while_it_is_written() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run();
    let mut session = coordinator.welcomed(1).await;
    let wanted =
        |request_id, item: &str, follow| ToAgent::LogRequest(LogRequest { request_id, item: item.to_owned(), follow });
    session.send(wanted(1, "", false)).await;
    let chunk = |body| if let FromAgent::Log(chunk) = body { Some(chunk) } else { None };
    let first = session.next(chunk).await.expect("a chunk");
    assert!(first.end && first.error.contains("nothing has run"), "{first:?}");

    session.assign(1, 1, vec![script("a", &waiting(&machine))]).await;
    session.event().await;
    session.send(wanted(2, "a", true)).await;
    let there = session.next(chunk).await.expect("a chunk");
    assert_eq!((there.request_id, there.data.len(), there.end), (2, 0, false), "a silent item has a reader too");
    let begun = session.next(chunk).await.expect("a chunk");
    assert_eq!((begun.request_id, begun.data.as_slice(), begun.end), (2, b"begun\n".as_slice(), false));
    std::fs::write(machine.path("go"), "").expect("a file");
    let last = session.next(chunk).await.expect("a chunk");
    assert_eq!((last.data.len(), last.end, last.error.as_str()), (0, true, ""));
}

/// `nohup muster-agent run &` outlives its terminal.
#[tokio::test]
async fn hangup_ignored_at_the_start_stays_ignored() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let ignored = |agent: &tokio::process::Child| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id().expect("it runs"))).expect("status");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask").trim().to_owned();
        u64::from_str_radix(&mask, 16).expect("digits") & 1 == 1
    };
    let mut agent = machine.run_ignoring_hangup();
    coordinator.welcomed(1).await;
    assert!(ignored(&agent));
    agent.kill().await.expect("killed");
    let agent = machine.run();
    coordinator.welcomed(1).await;
    assert!(!ignored(&agent), "a service says that it reloads nothing");
}

#[tokio::test]
async fn a_lost_coordinator_is_found_again() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run();
    let mut session = coordinator.welcomed(1).await;
    session.assign(1, 1, vec![script("a", "true")]).await;
    session.event().await;
    drop(session);
    let mut session = coordinator.welcomed(2).await;
    session.acks = true;
    while session.hello.generation != Generation(1) {
        session = coordinator.welcomed(2).await;
    }
    let heartbeat = session.next(|body| matches!(body, FromAgent::Heartbeat(_)).then_some(())).await;
    assert_eq!(heartbeat, Some(()));
}
