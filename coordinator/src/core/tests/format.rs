//! The record's format: a coordinator that is too old for a record leaves it alone.

use super::fleet::{Fleet, proof_key};
use crate::{
    core::Core,
    facts::{FORMAT, RowError},
    plan::LIMITS,
    store::{Store, Table},
};

#[test]
fn a_record_of_a_newer_coordinator_is_refused() {
    let fleet = Fleet::of(1, 1);
    assert_eq!(fleet.core.facts().meta.format, FORMAT);
    let mut rows = fleet.store.load().expect("in memory");
    let meta = rows.iter_mut().find(|(table, ..)| *table == Table::Meta).expect("a row");
    let text = String::from_utf8(meta.2.clone()).expect("JSON");
    let known = format!("\"format\":{FORMAT}");
    assert!(text.contains(&known), "{text}");
    meta.2 = text.replace(&known, "\"format\":99,\"more\":1").replace(muster_proto::VERSION, "9.9.9").into_bytes();
    let refused = Core::start(rows, LIMITS, proof_key(), fleet.now()).expect_err("too new");
    assert!(matches!(refused, RowError::Newer { format: 99, .. }), "{refused}");
    assert!(refused.to_string().contains("run version 9.9.9 or newer"), "{refused}");
}
