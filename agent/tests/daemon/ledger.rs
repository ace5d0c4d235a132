//! A ledger restored from an older copy, and the evidence of that.

use std::fs;

use muster_proto::wire::agent_message::Body as FromAgent;

use crate::{
    coordinator::{Coordinator, Session, Traits, script},
    machine::Machine,
    secrets::blocked,
};

async fn accepted(session: &mut Session, generation: u64) {
    let answer = session.next(|body| if let FromAgent::Answer(answer) = body { Some(answer) } else { None }).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.generation, answer.accepted), (generation, true), "{answer:?}");
}

#[tokio::test]
async fn ledger_put_back_stays_behind_after_a_restart() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let (ledger, effects) = (machine.state().join("ledger.log"), machine.path("effects"));
    let mut agent = machine.run();
    let mut session = coordinator.welcomed(1).await;
    session.assign(1, 1, Vec::new()).await;
    accepted(&mut session, 1).await;
    let old = fs::read(&ledger).expect("a ledger");
    session.assign(1, 2, vec![script("a", &format!("echo ran >> {}", effects.display()))]).await;
    while session.event().await.0 != 2 {}
    agent.kill().await.expect("killed");

    fs::write(&ledger, old).expect("put back");
    fs::remove_dir_all(machine.state().join("attempts")).expect("removed");
    for epoch in [2, 3] {
        agent = machine.run();
        // A newer epoch advances the ledger, but it still lacks the earlier run.
        session = coordinator.welcomed(epoch).await;
        let (reason, message) = blocked(&mut session).await;
        assert_eq!(reason, "LedgerBehind", "{message}");
        agent.kill().await.expect("killed");
    }
    assert_eq!(fs::read_to_string(&effects).expect("effects"), "ran\n", "it ran once");
}

#[tokio::test]
async fn half_removed_attempt_proves_nothing() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    // A crash interrupted the removal after its request was deleted: its owner is unknown.
    let left = machine.state().join("attempts/old.9.1");
    fs::create_dir_all(&left).expect("a directory");
    fs::write(left.join("claim"), "").expect("a claim");
    let reset = machine.command_with(&["ledger", "reset", "--keep-identity"], "").await;
    assert!(reset.code == 0 && !reset.stdout.contains("Indeterminate"), "{reset:?}");
    let _agent = machine.run();
    let mut session = coordinator.welcomed(1).await;
    session.assign(1, 1, vec![script("a", "true")]).await;
    while session.event().await.0 != 2 {}
    assert!(machine.status().await["blocked"].is_null());
    assert!(!left.exists(), "swept");
}
