use std::collections::BTreeMap;

use super::*;
use crate::{
    convert::{COUNT_MAX, LINE_BYTES_MAX},
    model::{AuthCode, ItemHash, Phase},
};

/// Changes a valid assignment.
type OfAssignment = fn(&mut wire::Assignment);

/// Changes a valid item.
type OfItem = fn(&mut wire::AssignedItem);

fn item(name: &str, phase: Phase) -> AssignedItem {
    AssignedItem {
        name: ItemName::new(name).expect("a label"),
        runner: "bash".to_owned(),
        version: "1".to_owned(),
        params: BTreeMap::from([("script".to_owned(), "true".to_owned())]),
        phase,
        hash: ItemHash([7; 32]),
        timeout_ms: 60_000,
        retries: 3,
        on_interrupt: OnInterrupt::Hold,
        cleared_attempts: 2,
        redo_up_to: Generation(1),
        ignore_changes: ["ucpTag".to_owned(), "_own".to_owned()].into(),
        permit: Some(Permit { number: 9, start_within_ms: 30_000 }),
    }
}

fn assignment() -> Assignment {
    Assignment {
        epoch: Epoch(3),
        generation: Generation(4),
        cluster: ClusterName::new("edge-7").expect("a label"),
        items: vec![item("images", Phase::Prepare), item("install", Phase::Deploy)],
        variables: BTreeMap::from([("machine.internalIP".to_owned(), "10.0.0.1".to_owned())]),
        digest: ItemHash([1; 32]),
        code: AuthCode::NONE,
    }
}

fn read(change: OfAssignment) -> Result<Assignment, String> {
    let mut wire = wire::Assignment::from(&assignment());
    change(&mut wire);
    wire.try_into().map_err(|error: WireError| error.to_string())
}

fn read_item(change: OfItem) -> Result<AssignedItem, String> {
    let mut wire = wire::AssignedItem::from(&item("install", Phase::Deploy));
    change(&mut wire);
    wire.try_into().map_err(|error: WireError| error.to_string())
}

#[test]
fn assignments_come_back_as_they_went() {
    assert_eq!(read(|_| {}), Ok(assignment()));
    let no_permit = AssignedItem { permit: None, ..item("install", Phase::Deploy) };
    assert_eq!(AssignedItem::try_from(wire::AssignedItem::from(&no_permit)), Ok(no_permit));
}

#[test]
fn assignments_at_their_limits() {
    for change in [
        (|wire| wire.epoch = COUNT_MAX) as OfAssignment,
        |wire| wire.generation = COUNT_MAX,
        |wire| wire.items.clear(),
        |wire| wire.variables.clear(),
        |wire| wire.variables = (0..VARIABLES_MAX).map(|n| (format!("v{n}"), String::new())).collect(),
        |wire| {
            let first = wire.items.remove(0);
            let named = |n| wire::AssignedItem { name: format!("n{n}"), ..first.clone() };
            wire.items = (0..ITEMS_MAX).map(named).collect();
        },
    ] {
        read(change).expect("taken");
    }
    for change in [
        (|wire| wire.timeout_ms = 7 * 24 * 3_600_000) as OfItem,
        |wire| wire.timeout_ms = 1,
        |wire| wire.retries = RETRIES_MAX,
        |wire| wire.cleared_attempts = ATTEMPT_MAX,
        |wire| wire.params.clear(),
        |wire| wire.version = "x".repeat(LINE_BYTES_MAX),
        |wire| drop(wire.params.insert("x".to_owned(), "a\n'$(b)".repeat(1_000))),
        |wire| drop(wire.params.insert("x".to_owned(), "x".repeat(PARAM_BYTES_MAX))),
    ] {
        read_item(change).expect("taken");
    }
}

#[test]
fn assignments_that_are_none() {
    let table: &[(OfAssignment, &str)] = &[
        (|wire| wire.items[0].redo_up_to = wire.generation, "item.redo_up_to: not a list before this one"),
        (|wire| *wire = wire::Assignment::default(), "assignment.epoch: counts from 1"),
        (|wire| wire.epoch = 0, "assignment.epoch: counts from 1"),
        (|wire| wire.epoch = COUNT_MAX + 1, "assignment.epoch: nobody can have counted so far"),
        (|wire| wire.generation = 0, "assignment.generation: counts from 1"),
        (|wire| wire.generation = u64::MAX, "assignment.generation: nobody can have counted so far"),
        (|wire| wire.cluster.clear(), "assignment.cluster: not a DNS-1123 label"),
        (|wire| wire.cluster = "Edge 7".to_owned(), "assignment.cluster: not a DNS-1123 label"),
        (|wire| wire.cluster = "x".repeat(64), "assignment.cluster: not a DNS-1123 label"),
        (|wire| wire.items = vec![wire::AssignedItem::default(); ITEMS_MAX + 1], "assignment.items: too many"),
        (|wire| wire.items[1].name = "images".to_owned(), "assignment.items: a name twice"),
        (|wire| wire.items.reverse(), "assignment.items: phases out of order"),
        (|wire| wire.items[1].hash.clear(), "item.hash: a hash has 32 bytes"),
        (
            |wire| wire.variables = (0..=VARIABLES_MAX).map(|n| (format!("v{n}"), String::new())).collect(),
            "assignment.variables: too many",
        ),
        (|wire| drop(wire.variables.insert(String::new(), String::new())), "assignment.variables: missing"),
        (
            |wire| drop(wire.variables.insert("x".repeat(LINE_BYTES_MAX + 1), String::new())),
            "assignment.variables: too long",
        ),
        (
            |wire| drop(wire.variables.insert("a".to_owned(), "b\nc".to_owned())),
            "assignment.variables: has a control character",
        ),
    ];
    for (change, expected) in table {
        assert_eq!(read(*change).expect_err(expected), *expected);
    }
}

#[test]
fn items_that_are_none() {
    let table: &[(OfItem, &str)] = &[
        (|wire| wire.name.clear(), "item.name: not a DNS-1123 label"),
        (|wire| wire.name = "../install".to_owned(), "item.name: not a DNS-1123 label"),
        (|wire| wire.runner.clear(), "item.runner: missing"),
        (|wire| wire.runner = "x".repeat(LINE_BYTES_MAX + 1), "item.runner: too long"),
        (|wire| wire.version.clear(), "item.version: missing"),
        (|wire| wire.version = "1\u{1b}[31m".to_owned(), "item.version: has a control character"),
        (|wire| wire.version = "1\0".to_owned(), "item.version: has a NUL"),
        (
            |wire| drop(wire.params.insert(String::new(), String::new())),
            "item.params: a name is [a-zA-Z][a-zA-Z0-9_]{0,62}",
        ),
        (
            |wire| drop(wire.params.insert("x".repeat(64), String::new())),
            "item.params: a name is [a-zA-Z][a-zA-Z0-9_]{0,62}",
        ),
        (
            |wire| drop(wire.params.insert("LD-PRELOAD".to_owned(), String::new())),
            "item.params: a name is [a-zA-Z][a-zA-Z0-9_]{0,62}",
        ),
        (|wire| drop(wire.params.insert("x".to_owned(), "a\0b".to_owned())), "item.params: has a NUL"),
        (|wire| drop(wire.params.insert("x".to_owned(), "x".repeat(PARAM_BYTES_MAX + 1))), "item.params: too long"),
        (|wire| wire.phase = 0, "item.phase: missing"),
        (|wire| wire.phase = 99, "item.phase: unknown phase"),
        (|wire| wire.phase = -1, "item.phase: unknown phase"),
        (
            |wire| wire.ignore_changes.push("a b".to_owned()),
            "item.ignore_changes: not the name of a param or of one of `vars`",
        ),
        (|wire| wire.ignore_changes = vec!["a".to_owned(); 257], "item.ignore_changes: too many"),
        (|wire| wire.hash.clear(), "item.hash: a hash has 32 bytes"),
        (|wire| wire.hash.push(0), "item.hash: a hash has 32 bytes"),
        (|wire| wire.timeout_ms = 0, "item.timeout_ms: missing"),
        (|wire| wire.timeout_ms = u64::MAX, "item.timeout_ms: longer than any item may take"),
        (|wire| wire.timeout_ms = 7 * 24 * 3_600_000 + 1, "item.timeout_ms: longer than any item may take"),
        (|wire| wire.retries = RETRIES_MAX + 1, "item.retries: more than a manifest may ask for"),
        (|wire| wire.on_interrupt = 0, "item.on_interrupt: unknown"),
        (|wire| wire.on_interrupt = 99, "item.on_interrupt: unknown"),
        (|wire| wire.cleared_attempts = u32::MAX, "item.cleared_attempts: nobody can have tried so often"),
        (|wire| wire.start_within_ms = 0, "item.start_within_ms: does not fit the permit"),
        (|wire| wire.permit = 0, "item.start_within_ms: does not fit the permit"),
    ];
    for (change, expected) in table {
        assert_eq!(read_item(*change).expect_err(expected), *expected);
    }
}
