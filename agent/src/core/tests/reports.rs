//! Reports to the coordinator, and what blocks the agent while they are undelivered.

use super::*;
use muster_proto::model::Reason;

#[test]
fn events_are_sent_in_order_until_they_are_acknowledged() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE })), [1]);
    assert_eq!(sent_seqs(&rig.end(key("a", 1, 1), ItemState::Succeeded)), [2, 3]);
    assert_eq!(
        rig.step(Input::Acked(Seq(2), AckProof::NONE)),
        [Effect::Record(vec![Record::Acked(Seq(2), AckProof::NONE)])]
    );
    assert_eq!(rig.step(Input::Acked(Seq(2), AckProof::NONE)), [], "said twice");
    rig.step(Input::LinkDown);
    assert_eq!(sent_seqs(&rig.end(key("b", 1, 1), ItemState::Succeeded)), [] as [u64; 0]);
    let mut rig = rig.restarted();
    rig.started("boot-1");
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE })), [3, 4]);
    rig.step(Input::Acked(Seq(4), AckProof::NONE));
    assert!(rig.core.ledger().outbox.is_empty());
    assert_eq!(rig.status("b").map(|status| status.output_tail), Some(String::new()), "the coordinator has it");
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE })), [] as [u64; 0]);
}

#[test]
fn a_ledger_older_than_what_it_told_starts_nothing() {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE });
    assert_eq!(rig.step(Input::Acked(Seq(9), AckProof::NONE)).len(), 1, "the coordinator is told");
    let said = blocked_message(&rig).expect("a reason");
    assert!(
        said.starts_with("LedgerBehind: ") && said.contains("`muster-agent ledger reset --keep-identity`"),
        "{said}"
    );
    rig.receive(assignment(2, 1, vec![item("a", "1")]));
    assert_eq!(rig.state("a"), None);
    rig.step(Input::LinkDown);
    rig.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE });
    assert_eq!(rig.state("a"), None, "nor on the next session");
    // An older coordinator may acknowledge any number.
    let mut rig = Rig::new();
    rig.receive(assignment(5, 1, vec![item("a", "1")]));
    rig.step(Input::LinkUp { epoch: Epoch(4), code: AuthCode::NONE });
    rig.step(Input::Acked(Seq(9), AckProof::NONE));
    assert_eq!(blocked_message(&rig), None);
}

#[test]
fn ledger_older_than_attempts_starts_nothing() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    let old = rig.core.ledger().clone();
    rig.end(key("a", 1, 1), FAILED);
    rig.now.mono_ms = 60_000;
    rig.step(Input::Tick);
    rig.end(key("a", 1, 2), ItemState::Succeeded);
    let newest = rig.core.ledger().clone();
    let found = [key("a", 1, 1), key("a", 1, 2), key("b", 1, 1)];
    for (ledger, keys, behind) in [
        (&old, &found[..1], false),
        (&old, &found[1..2], true),
        (&old, &found[2..], true),
        (&newest, &found[..], false),
        (&newest, &[key("b", 2, 1)], true),
        (&newest, &[], false),
        (&empty(), &found[..1], true),
    ] {
        let mut rig = Rig::on(ledger.clone());
        assert_eq!(rig.step(Input::TracesFound { attempts: keys.to_vec(), mark: None }), []);
        let effects = rig.started("boot-1");
        assert_eq!((rig.core.is_behind(), effects.is_empty()), (behind, behind), "{keys:?}: {effects:?}");
        if behind {
            let said = blocked_message(&rig).expect("a reason");
            assert!(said.starts_with("LedgerBehind: attempts/") && rig.core.summary() == said, "{said}");
            let known = rig.core.ledger().clone();
            assert_eq!(rig.receive(assignment(1, 9, vec![item("c", "1")])), [], "it is no list of this ledger's");
            assert_eq!(rig.core.ledger(), &known, "what proves it stays as it is");
        }
    }
}

#[test]
fn ledger_behind_its_mark_starts_nothing() {
    let mut rig = Rig::new();
    let old = rig.core.ledger().clone();
    rig.receive(assignment(1, 1, vec![item("a", "1")]));
    let mark = Mark::of(rig.core.ledger());
    let mut rig = Rig::on(old);
    rig.step(Input::TracesFound { attempts: Vec::new(), mark: Some(mark) });
    rig.started("boot-1");
    assert_eq!(started_key(&rig.receive(assignment(1, 1, vec![item("a", "1")]))), None);
    assert!(blocked_message(&rig).is_some_and(|said| said.starts_with("LedgerBehind: its ledger has been further")));
}

#[test]
fn an_older_coordinator_gets_no_events() {
    let mut rig = Rig::new();
    rig.receive(assignment(5, 1, vec![item("a", "1")]));
    assert_eq!(rig.step(Input::LinkUp { epoch: Epoch(4), code: AuthCode::NONE }), []);
    assert_eq!(rig.step(Input::Acked(Seq(1), AckProof::NONE)), []);
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(6), code: AuthCode::NONE })), [1]);
    assert_eq!(rig.core.ledger().epoch, Epoch(6));
}

#[test]
fn few_events_are_in_flight() {
    let items: Vec<_> = (0..100).map(|n| item(&format!("i{n}"), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    for n in 0..100 {
        rig.end(key(&format!("i{n}"), 1, 1), ItemState::Succeeded);
    }
    let first: Vec<u64> = (1..=64).collect();
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE })), first);
    assert_eq!(sent_seqs(&rig.step(Input::Acked(Seq(10), AckProof::NONE))), (65..=74).collect::<Vec<u64>>());
}

#[test]
fn a_full_disk_or_outbox_starts_nothing_new_and_says_so() {
    let said = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Send(ToCoordinator::Blocked(blocked)) => Some(blocked.as_ref().map(|blocked| blocked.reason)),
            _ => None,
        })
    };
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    assert_eq!(said(&rig.step(Input::DiskFull(true))), Some(Some(Reason::DiskFull)));
    let effects = rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert_eq!((started_key(&effects), rig.state("a")), (None, Some(ItemState::Succeeded)));
    assert_eq!(
        said(&rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE })),
        Some(Some(Reason::DiskFull)),
        "on every session"
    );
    let effects = rig.step(Input::DiskFull(false));
    assert_eq!((said(&effects), started_key(&effects)), (Some(None), Some(key("b", 1, 1))));

    let items: Vec<_> = (0..1000).map(|n| item(&format!("i{n}"), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    let large = Exit { output_tail: "x".repeat(20_000), ..exit(ItemState::Succeeded) };
    let mut ended = 0;
    while let Some(slot) = rig.core.ledger().running() {
        let ended_key = slot.key();
        let _ = rig.core.step(Input::Ended { key: ended_key, found: Found::Exited(large.clone()) }, rig.now);
        ended += 1;
    }
    assert!((600..800).contains(&ended), "{ended}");
    assert_eq!(
        said(&rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE })),
        Some(Some(Reason::OutboxFull))
    );
    assert!(started_key(&rig.step(Input::Acked(Seq(60), AckProof::NONE))).is_some());
}

#[test]
fn the_hello_fits_into_a_message() {
    let items: Vec<_> = (0..ITEMS_MAX).map(|n| item(&format!("{n}-{}", "x".repeat(55)), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    let wordy = Exit { message: "ü".repeat(4_000), ..exit(ItemState::Succeeded) };
    while let Some(slot) = rig.core.ledger().running() {
        let ended = slot.key();
        rig.step(Input::Ended { key: ended, found: Found::Exited(wordy.clone()) });
        rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
        rig.step(Input::Acked(rig.core.ledger().last_seq, AckProof::NONE));
    }
    let hello = rig.core.hello(HostFacts::default());
    assert_eq!(hello.statuses.len(), ITEMS_MAX);
    // JSON is larger than the wire format.
    let bytes = serde_json::to_vec(&hello.statuses).expect("JSON").len();
    assert!(bytes < muster_proto::LINK_MESSAGE_BYTES_MAX, "{bytes}");
}

#[test]
fn the_ledger_is_a_fold_of_its_records() {
    let mut rig = Rig::new();
    let mut folded = empty();
    let mut inputs = vec![
        Input::LinkUp { epoch: Epoch(3), code: AuthCode::NONE },
        Input::Received(assignment(3, 1, vec![item("a", "1")])),
    ];
    inputs.push(Input::Ended { key: key("a", 1, 1), found: Found::Lost });
    inputs.push(Input::Acked(Seq(1), AckProof::NONE));
    for input in inputs {
        for effect in rig.step(input) {
            if let Effect::Record(records) = effect {
                for record in &records {
                    assert_eq!(folded.apply_read(record), Ok(()));
                    assert_eq!(folded.apply_read(record), Err(Misfit), "twice: {record:?}");
                }
            }
        }
    }
    assert_eq!(&folded, rig.core.ledger());
    let text = serde_json::to_string(&folded).expect("JSON");
    assert_eq!(serde_json::from_str::<LedgerState>(&text).ok(), Some(folded));
    assert_eq!(Arc::strong_count(&rig.core.ledger().outbox[&Seq(2)]), 2, "slot and outbox share a status");
}
