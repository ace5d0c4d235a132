//! Enrolment and renewal of an identity.

use std::{os::unix::fs::PermissionsExt, sync::atomic::Ordering, time::Duration};

use muster_proto::wire::agent_message::Body as FromAgent;
use tokio::time::timeout;
use tonic::Status;

use crate::{
    coordinator::{Coordinator, MACHINE_ID, SECRET, Traits, unix_ms},
    machine::Machine,
};

#[tokio::test]
async fn a_token_makes_an_identity_once() {
    let coordinator = Coordinator::start(Traits::default()).await;
    let address = coordinator.address.to_string();
    let machine = Machine::new();
    let ended = machine.enroll(&address, &coordinator.token(), &[]).await;
    assert_eq!(
        (ended.code, ended.stdout.contains("enrolled as worker-1 (worker) in cluster edge")),
        (0, true),
        "{ended:?}"
    );
    let next = format!("Next: muster-agent run --state-dir {}", machine.state().display());
    assert!(ended.stdout.contains(&next) && !ended.stdout.contains("by itself"), "{ended:?}");
    let file = machine.state().join("identity.json");
    assert_eq!(file.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).expect("text");
    assert!(text.contains(MACHINE_ID) && !text.contains(SECRET), "the token is not kept");

    let again = machine.enroll(&address, &coordinator.token(), &[]).await;
    assert_eq!((again.code, again.stderr.contains("--force")), (1, true), "{again:?}");
    assert_eq!(coordinator.calls.enroll.load(Ordering::SeqCst), 1);
    assert_eq!(machine.enroll(&address, &coordinator.token(), &["--force"]).await.code, 0);
}

#[tokio::test]
async fn an_enrolment_whose_answer_was_lost_is_asked_for_with_the_same_key() {
    let coordinator = Coordinator::start(Traits { first_answer_lost: true, ..Traits::default() }).await;
    let (machine, address) = (Machine::new(), coordinator.address.to_string());
    let lost = machine.enroll(&address, &coordinator.token(), &[]).await;
    assert_eq!(lost.code, 5, "{lost:?}");
    let key = machine.state().join("enrolment.key");
    assert_eq!(key.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    assert_eq!(machine.enroll(&address, &coordinator.token(), &[]).await.code, 0);
    assert!(!key.exists(), "it is in the identity now");
    assert_eq!(machine.enroll(&address, &coordinator.token(), &["--force"]).await.code, 0);
    let keys = coordinator.calls.keys.lock().expect("no panic").clone();
    assert_eq!((keys[0] == keys[1], keys[1] == keys[2]), (true, false));
}

#[tokio::test]
async fn nothing_is_sent_to_another_coordinator() {
    let ours = Coordinator::start(Traits::default()).await;
    let other = Coordinator::start(Traits::default()).await;
    let machine = Machine::new();
    let ended = machine.enroll(&other.address.to_string(), &ours.token(), &[]).await;
    assert_eq!((ended.code, ended.stderr.contains("nothing was sent to it")), (1, true), "{ended:?}");
    assert_eq!(other.calls.enroll.load(Ordering::SeqCst), 0);
    let wrong = ours.token().replace(SECRET, "guess");
    let ended = machine.enroll(&ours.address.to_string(), &wrong, &[]).await;
    assert_eq!((ended.code, ended.stderr.contains("the token is not valid")), (1, true), "{ended:?}");
    assert!(!machine.state().join("identity.json").exists());
}

#[tokio::test]
async fn a_wrong_clock_is_told_from_a_wrong_ca() {
    let coordinator = Coordinator::start(Traits { out_of_date: true, ..Traits::default() }).await;
    let machine = Machine::new();
    let ended = machine.enroll(&coordinator.address.to_string(), &coordinator.token(), &[]).await;
    assert_eq!((ended.code, ended.stderr.contains("ClockSkew")), (5, true), "{ended:?}");
}

#[tokio::test]
async fn a_certificate_is_renewed_at_half_its_life_and_a_second_session_takes_over() {
    let life = Duration::from_secs(8);
    let mut coordinator = Coordinator::start(Traits { certificate_life: life, ..Traits::default() }).await;
    let machine = Machine::enrolled(&coordinator).await;
    let old = std::fs::read_to_string(machine.state().join("identity.json")).expect("text");
    let enrolled_ms = unix_ms();
    let _agent = machine.run();
    let mut first = coordinator.welcomed(1).await;
    let second = coordinator.welcomed(1).await;
    let after_ms = unix_ms() - enrolled_ms;
    assert!(after_ms >= 2_000, "renewed after {after_ms} ms of {life:?}");
    assert_eq!(coordinator.calls.renew.load(Ordering::SeqCst), 1);
    assert_eq!(first.next(|_| None::<()>).await, None, "the first session ends");
    assert_eq!(second.hello.ledger_id, first.hello.ledger_id);
    let new = std::fs::read_to_string(machine.state().join("identity.json")).expect("text");
    assert_ne!(old, new);
}

#[tokio::test]
async fn a_renewed_certificate_that_cannot_be_saved_is_used_all_the_same() {
    let life = Duration::from_secs(8);
    let mut coordinator = Coordinator::start(Traits { certificate_life: life, ..Traits::default() }).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run();
    let _first = coordinator.welcomed(1).await;
    // Replacing a directory by a file fails.
    let path = machine.state().join("identity.json");
    std::fs::remove_file(&path).expect("removed");
    std::fs::create_dir_all(path.join("in-the-way")).expect("made");
    let _second = coordinator.welcomed(1).await;
    assert_eq!(coordinator.calls.renew.load(Ordering::SeqCst), 1);
    let log = std::fs::read_to_string(machine.path("log")).expect("a log");
    assert!(log.contains("not saved"), "{log}");
}

#[tokio::test]
async fn the_second_session_outlives_an_end_of_the_first_that_comes_before_its_welcome() {
    let life = Duration::from_secs(8);
    let mut coordinator = Coordinator::start(Traits { certificate_life: life, ..Traits::default() }).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run();
    let first = coordinator.welcomed(1).await;
    let mut second = coordinator.session().await;
    first.end(Status::aborted("SessionReplaced: a newer stream of this machine took over")).await;
    let given_up = timeout(Duration::from_secs(1), second.next(|_| None::<()>)).await;
    assert!(given_up.is_err(), "the second session ended with the first");
    second.welcome(1).await;
    let beat = second.next(|body| matches!(body, FromAgent::Heartbeat(_)).then_some(())).await;
    assert_eq!(beat, Some(()));
    let status = machine.status().await;
    assert_eq!((&status["link"]["connected"], &status["running"]), (&true.into(), &true.into()));
    let log = std::fs::read_to_string(machine.path("log")).expect("a log");
    assert!(!log.contains("no link to the coordinator"), "{log}");
}

#[tokio::test]
async fn an_expired_certificate_is_renewed_by_its_key() {
    let traits = Traits { certificate_life: Duration::from_millis(1), issues_expired: true, ..Traits::default() };
    let mut coordinator = Coordinator::start(traits).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run();
    coordinator.welcomed(1).await;
    assert_eq!(coordinator.calls.renew_expired.load(Ordering::SeqCst), 1);
    assert_eq!(coordinator.calls.renew.load(Ordering::SeqCst), 0);
}
