use super::*;
use crate::{
    convert::{COUNT_MAX, LINE_BYTES_MAX},
    model::ItemHash,
};

/// Changes a valid message.
type Change = fn(&mut wire::ItemStatus);

fn status(state: ItemState) -> ItemStatus {
    ItemStatus {
        name: ItemName::new("install").expect("a label"),
        hash: ItemHash([7; 32]),
        finished_at_ms: (state != ItemState::Running).then_some(2),
        state,
        attempt: 2,
        generation: Generation(4),
        message: "exit status 3".to_owned(),
        output_tail: "a\n\tb\u{1b}[0m".to_owned(),
        result_json: Some("{\"a\":1}".to_owned()),
        started_at_ms: 1,
    }
}

const FAILED: ItemState = ItemState::Failed { exit_code: 3, retryable: true };

fn read(state: ItemState, change: Change) -> Result<ItemStatus, String> {
    let mut wire = wire::ItemStatus::from(&status(state));
    change(&mut wire);
    wire.try_into().map_err(|error: WireError| error.to_string())
}

#[test]
fn statuses_come_back_as_they_went() {
    use ItemState::{Indeterminate, Running, Succeeded};
    for state in [Running, Succeeded, FAILED, ItemState::Failed { exit_code: -1, retryable: false }, Indeterminate] {
        assert_eq!(read(state.clone(), |_| {}), Ok(status(state)));
    }
}

#[test]
fn statuses_at_their_limits() {
    for change in [
        (|wire| wire.attempt = ATTEMPT_MAX) as Change,
        |wire| wire.generation = COUNT_MAX,
        |wire| wire.message.clear(),
        |wire| wire.message = "x".repeat(LINE_BYTES_MAX),
        |wire| wire.output_tail = "x".repeat(OUTPUT_TAIL_BYTES_MAX),
        |wire| wire.result_json = format!("\"{}\"", "x".repeat(RESULT_BYTES_MAX - 2)),
        // The machine's clock may be arbitrarily wrong.
        |wire| (wire.started_at_ms, wire.finished_at_ms) = (u64::MAX, 1),
    ] {
        read(FAILED, change).expect("taken");
    }
}

#[test]
fn statuses_that_are_none() {
    let table: &[(Change, &str)] = &[
        (|wire| *wire = wire::ItemStatus::default(), "status.state: unknown"),
        (|wire| wire.state = 0, "status.state: unknown"),
        (|wire| wire.state = 99, "status.state: unknown"),
        (|wire| wire.name.clear(), "status.name: not a DNS-1123 label"),
        (|wire| wire.name = "a/b".to_owned(), "status.name: not a DNS-1123 label"),
        (|wire| wire.hash.clear(), "status.hash: a hash has 32 bytes"),
        (|wire| wire.hash.truncate(31), "status.hash: a hash has 32 bytes"),
        (|wire| wire.attempt = 0, "status.attempt: counts from 1"),
        (|wire| wire.attempt = ATTEMPT_MAX + 1, "status.attempt: nobody can have tried so often"),
        (|wire| wire.generation = 0, "status.generation: counts from 1"),
        (|wire| wire.generation = COUNT_MAX + 1, "status.generation: nobody can have counted so far"),
        (|wire| wire.exit_code = 0, "status.exit_code: does not fit the state"),
        (|wire| wire.state = wire::ItemState::Succeeded.into(), "status.exit_code: does not fit the state"),
        (|wire| wire.message = "a\nb".to_owned(), "status.message: has a control character"),
        (|wire| wire.message = "x".repeat(LINE_BYTES_MAX + 1), "status.message: too long"),
        (|wire| wire.output_tail = "x".repeat(OUTPUT_TAIL_BYTES_MAX + 1), "status.output_tail: too long"),
        (|wire| wire.output_tail = "a\0b".to_owned(), "status.output_tail: has a NUL"),
        (|wire| wire.result_json = "{".to_owned(), "status.result_json: not JSON"),
        (|wire| wire.result_json = " ".repeat(RESULT_BYTES_MAX + 1), "status.result_json: too long"),
        (|wire| wire.finished_at_ms = 0, "status.finished_at_ms: does not fit the state"),
    ];
    for (change, expected) in table {
        assert_eq!(read(FAILED, *change).expect_err(expected), *expected);
    }
    for (state, change, expected) in [
        (
            ItemState::Running,
            (|wire| wire.finished_at_ms = 2) as Change,
            "status.finished_at_ms: does not fit the state",
        ),
        (ItemState::Succeeded, |wire| wire.retryable = true, "status.retryable: does not fit the state"),
        (ItemState::Indeterminate, |wire| wire.exit_code = 1, "status.exit_code: does not fit the state"),
    ] {
        assert_eq!(read(state, change).expect_err(expected), expected);
    }
}
