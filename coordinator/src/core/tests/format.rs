//! The record's format: a coordinator too old or too new for a record leaves it unchanged and reports that.

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

/// The row of a build from before the first release: it lacks today's fields, and its other rows differ too.
#[test]
fn record_of_unreleased_build_is_of_another_format() {
    let old = r#"{"format":1,"written_by":"0.1.0","epoch":3,"fleet_epoch":3,"recovering":false,"audit_seq":2}"#;
    for (text, format) in [(old, 1), (r#"{"epoch":0,"fleet_epoch":0,"recovering":false,"audit_seq":0}"#, 0)] {
        let rows = vec![
            (Table::Meta, "core".to_owned(), text.as_bytes().to_vec()),
            (Table::Audit, "00000000000000000001".to_owned(), br#"{"seq":1}"#.to_vec()),
            (Table::Machines, "worker-1".to_owned(), b"{}".to_vec()),
        ];
        let refused = Core::start(rows, LIMITS, proof_key(), Fleet::of(1, 0).now()).expect_err("too old");
        assert!(matches!(refused, RowError::Older { format: of } if of == format), "{refused}");
        let said = refused.to_string();
        assert!(said.contains(&format!("has format {format}")) && said.contains("init"), "{said}");
        assert!(!said.contains("damaged") && !said.contains("backup"), "{said}");
    }
}
