use uuid::Uuid;

use super::*;
use crate::{
    convert::{COUNT_MAX, LINE_BYTES_MAX},
    model::{ItemHash, ItemState},
};

/// Changes a valid message.
type Change = fn(&mut wire::Hello);

fn status(name: &str) -> ItemStatus {
    ItemStatus {
        name: ItemName::new(name).expect("a label"),
        hash: ItemHash([7; 32]),
        state: ItemState::Succeeded,
        attempt: 1,
        generation: Generation(4),
        message: String::new(),
        output_tail: String::new(),
        result_json: None,
        started_at_ms: 1,
        finished_at_ms: Some(2),
    }
}

fn hello() -> Hello {
    Hello {
        name: MachineName::new("node-1").expect("a label"),
        ledger_id: LedgerId(Uuid::from_u128(5)),
        agent_version: "0.1.0".to_owned(),
        epoch: Epoch(3),
        generation: Generation(4),
        acked_seq: Seq(9),
        max_phase: Some(Phase::Deploy),
        statuses: vec![status("images"), status("install")],
        facts: HostFacts { hostname: "node-1".to_owned(), ..HostFacts::default() },
        busy: true,
        epoch_code: AuthCode::new([1; 32]),
        list: Some(ListProof { epoch: Epoch(2), digest: ItemHash([2; 32]), code: AuthCode::new([3; 32]) }),
        acked: Some(AckProof { epoch: Epoch(1), ordinal: LedgerOrdinal(6), code: AuthCode::new([4; 32]) }),
    }
}

fn read(change: Change) -> Result<Hello, String> {
    let mut wire = wire::Hello::from(&hello());
    change(&mut wire);
    wire.try_into().map_err(|error: WireError| error.to_string())
}

#[test]
fn greetings_come_back_as_they_went() {
    assert_eq!(read(|_| {}), Ok(hello()));
}

#[test]
fn greetings_at_their_limits() {
    for change in [
        (|wire| (wire.epoch, wire.generation, wire.acked_seq) = (COUNT_MAX, COUNT_MAX, COUNT_MAX)) as Change,
        // A new ledger: everything is at zero.
        |wire| (wire.epoch, wire.generation, wire.acked_seq, wire.max_phase) = (0, 0, 0, 0),
        // An empty assignment lacks a highest phase.
        |wire| wire.max_phase = 0,
        |wire| wire.statuses.clear(),
        |wire| {
            let first = wire.statuses.remove(0);
            let named = |n| wire::ItemStatus { name: format!("n{n}"), ..first.clone() };
            wire.statuses = (0..ITEMS_MAX).map(named).collect();
        },
        |wire| wire.agent_version = "x".repeat(LINE_BYTES_MAX),
        // A machine leaves unknown facts empty.
        |wire| wire.facts = Some(wire::HostFacts::default()),
    ] {
        read(change).expect("taken");
    }
}

#[test]
fn greetings_that_are_none() {
    let table: &[(Change, &str)] = &[
        (|wire| *wire = wire::Hello::default(), "hello.name: not a DNS-1123 label"),
        (|wire| wire.name.clear(), "hello.name: not a DNS-1123 label"),
        (|wire| wire.name = "Node_1".to_owned(), "hello.name: not a DNS-1123 label"),
        (|wire| wire.name = "x".repeat(64), "hello.name: not a DNS-1123 label"),
        (|wire| wire.ledger_id.clear(), "hello.ledger_id: not a UUID"),
        (|wire| wire.ledger_id = "5".to_owned(), "hello.ledger_id: not a UUID"),
        (|wire| wire.agent_version.clear(), "hello.agent_version: missing"),
        (|wire| wire.agent_version = "x".repeat(LINE_BYTES_MAX + 1), "hello.agent_version: too long"),
        (|wire| wire.agent_version = "1\n2".to_owned(), "hello.agent_version: has a control character"),
        (|wire| wire.epoch = COUNT_MAX + 1, "hello.epoch: nobody can have counted so far"),
        (|wire| wire.generation = u64::MAX, "hello.generation: nobody can have counted so far"),
        (|wire| wire.acked_seq = u64::MAX, "hello.acked_seq: nobody can have counted so far"),
        (
            |wire| wire.acked = Some(wire::AckProof { ordinal: u64::MAX, ..Default::default() }),
            "ack_proof.ordinal: nobody can have counted so far",
        ),
        (|wire| wire.max_phase = 99, "hello.max_phase: unknown phase"),
        (|wire| wire.generation = 0, "hello.max_phase: without an assignment there is none"),
        (|wire| wire.statuses[1].name = "images".to_owned(), "hello.statuses: a name twice"),
        (|wire| wire.statuses[1].attempt = 0, "status.attempt: counts from 1"),
        (|wire| wire.statuses = vec![wire::ItemStatus::default(); ITEMS_MAX + 1], "hello.statuses: too many"),
        (|wire| wire.facts = None, "hello.facts: missing"),
        (
            |wire| wire.facts = Some(wire::HostFacts { internal_ip: "10.0.0.1/24".to_owned(), ..Default::default() }),
            "facts.internal_ip: not an IP address",
        ),
    ];
    for (change, expected) in table {
        assert_eq!(read(*change).expect_err(expected), *expected);
    }
}
