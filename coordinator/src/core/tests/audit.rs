//! The audit record: what a flood drops, what is counted up, and what shows when it was changed.

use muster_proto::model::ClusterName;

use super::{
    fleet::{Fleet, cluster, spec},
    reason,
};
use crate::{
    core::{Request, operators::RATE},
    facts::{AuditGap, AuditObject, Draft, Facts, RowError},
    store::{Change, MemoryStore, Store, Table},
};

fn name(text: &str) -> ClusterName {
    ClusterName::new(text).expect("a label")
}

/// A record, in memory and in a store.
#[derive(Default)]
struct Record {
    facts: Facts,
    store: MemoryStore,
}

impl Record {
    /// Something that an operator does to a cluster, made durable.
    fn write(&mut self, of: &str, actor: &str, message: &str, at_ms: u64) {
        let mut draft = Draft::new(&mut self.facts);
        draft.audit(actor, "annotate", AuditObject::Cluster(&name(of)), message, at_ms);
        self.store.commit(&draft.into_changes()).expect("in memory");
    }

    /// Whose lines there are, of one cluster.
    fn messages(&self, of: &str) -> Vec<&str> {
        let lines = self.facts.audit_lines().into_iter();
        lines.filter(|line| line.scope.cluster == Some(name(of))).map(|line| line.message.as_str()).collect()
    }

    /// The gaps of what the store has, after somebody has changed it.
    fn gaps_after(&self, change: Change) -> Vec<AuditGap> {
        let mut store = self.store.clone();
        store.commit(&[change]).expect("in memory");
        let facts = load(&store).expect("rows");
        facts.verify_audit().err().unwrap_or_default()
    }
}

fn load(store: &MemoryStore) -> Result<Facts, RowError> {
    Facts::load(store.load().expect("in memory"))
}

#[test]
fn flood_drops_no_foreign_line() {
    let mut record = Record::default();
    record.write("other", "operator/bert", "what was done", 0);
    for n in 0..6_000 {
        record.write("flooded", "operator/eve", &format!("note {n}"), 0);
    }
    assert_eq!(record.messages("other"), ["what was done"]);
    let flooded = record.messages("flooded");
    assert_eq!((flooded.len(), flooded.first(), flooded.last()), (5_000, Some(&"note 1000"), Some(&"note 5999")));
    let loaded = load(&record.store).expect("rows");
    assert!(loaded.same_record(&record.facts));
    assert_eq!(loaded.verify_audit(), Ok(()), "what is left is whole");
}

/// Long lines are bounded by their text, and all clusters together by their lines.
#[test]
fn audit_record_is_bounded() {
    let mut record = Record::default();
    let long = "x".repeat(4_000);
    for n in 0..700 {
        record.write("long", "operator/eve", &format!("{n} {long}"), 0);
    }
    let text: usize = record.messages("long").iter().map(|message| message.len()).sum();
    assert!((1_900_000..=2_000_000).contains(&text), "{text}");
    for cluster in 0..5 {
        for n in 0..4_500 {
            record.write(&format!("c{cluster}"), "operator/anna", &format!("note {n}"), 0);
        }
    }
    assert_eq!(record.facts.audit_lines().len(), 20_000);
    assert!(record.messages("long").len() > 400, "the longest chain gives way, not a short one");
    assert_eq!(load(&record.store).expect("rows").verify_audit(), Ok(()));
}

#[test]
fn repeated_line_is_counted_up() {
    let mut record = Record::default();
    for at_ms in (0..50_000).step_by(1_000) {
        record.write("edge", "operator/eve", "a set", at_ms);
    }
    let line = record.facts.audit_lines().pop().expect("a line").clone();
    assert_eq!((record.messages("edge").len(), line.times, line.at_ms, line.last_ms), (1, 50, 0, 49_000));
    assert_eq!(record.facts.meta.audit_seq, 1);
    record.write("edge", "operator/anna", "a set", 49_000);
    record.write("edge", "operator/eve", "b set", 49_000);
    record.write("edge", "operator/eve", "b set", 109_001);
    assert_eq!(record.messages("edge"), ["a set", "a set", "b set", "b set"], "by another, of something else, later");
    let loaded = load(&record.store).expect("rows");
    assert!(loaded.same_record(&record.facts) && loaded.verify_audit().is_ok());
}

#[test]
fn every_count_is_told_to_the_log() {
    let mut facts = Facts::default();
    let mut draft = Draft::new(&mut facts);
    for message in ["a", "a", "b"] {
        draft.audit("operator/eve", "annotate", AuditObject::Store, message, 0);
    }
    let told = draft.take_audited();
    let numbers: Vec<_> = told.iter().map(|line| (line.seq, line.times)).collect();
    assert_eq!(numbers, [(1, 1), (1, 2), (2, 1)]);
    assert_eq!(told[2].previous, told[1].hash, "a line follows on the last count of the one before");
    let mut fleet = Fleet::of(1, 0);
    let input = crate::core::Input::Operator {
        actor: "operator/anna".to_owned(),
        request: Request::RevokeToken { id: "control".to_owned(), machines: false },
    };
    let step = fleet.core.step(vec![input.clone(), input], fleet.now());
    assert_eq!(step.audited.iter().map(|line| line.times).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn changed_record_has_a_gap() {
    let mut record = Record::default();
    for message in ["one", "two", "three"] {
        record.write("edge", "operator/anna", message, 0);
    }
    assert_eq!(load(&record.store).expect("rows").verify_audit(), Ok(()));
    let key = |number: u64| format!("edge/{number:020}");
    let delete = |key: String| Change::Delete { table: Table::Audit, key };
    let missing = |missing| vec![AuditGap::Missing { chain: "edge".to_owned(), missing }];
    assert_eq!(record.gaps_after(delete(key(2))), missing(2));
    assert_eq!(record.gaps_after(delete(key(3))), missing(3), "the newest");
    let rows = record.store.load().expect("in memory");
    let (_, _, value) = rows.into_iter().find(|(_, found, _)| *found == key(2)).expect("a row");
    let text = String::from_utf8(value).expect("JSON").replace("anna", "bert");
    let changed = Change::Put { table: Table::Audit, key: key(2), value: text.into_bytes() };
    let gaps = record.gaps_after(changed);
    assert_eq!(gaps, [AuditGap::Changed { chain: "edge".to_owned(), number: 2 }]);
    assert_eq!(gaps[0].to_string(), "line 2 of edge is not as it was written");
}

#[test]
fn operator_rate_refuses_floods() {
    let mut fleet = Fleet::applied(spec(1, 0));
    let note = |n: u32| Request::AnnotateCluster {
        cluster: cluster(),
        set: [("note".to_owned(), n.to_string())].into(),
        remove: Vec::new(),
    };
    let mut facts = fleet.core.facts().clone();
    let now = fleet.now();
    let mut draft = Draft::new(&mut facts);
    let taken = (0..2_000).filter(|_| draft.count("operator/eve", RATE, now).is_ok()).count();
    assert_eq!(taken, 1_000);
    fleet.core.set_facts(facts);
    let refused = fleet.ask_as("operator/eve", note(1)).expect_err("too many").to_string();
    assert_eq!(refused, "TooFast: operator/eve may make 20 requests a second that change something; come again in 1 s");
    assert_eq!(reason(fleet.ask_as("operator/eve", note(1))), "TooFast");
    fleet.ask_as("operator/anna", note(2)).expect("another operator");
    fleet.pass(50, &[]);
    fleet.ask_as("operator/eve", note(3)).expect("a moment later");
    fleet.ask_as("operator/eve", note(4)).expect_err("one in 50 ms");
}

#[test]
fn restart_keeps_the_chain() {
    let mut fleet = Fleet::of(1, 1);
    let before = fleet.core.facts().audit_lines().len();
    fleet.restart();
    assert_eq!(fleet.core.facts().verify_audit(), Ok(()));
    assert_eq!(fleet.core.facts().audit_lines().len(), before);
    assert_eq!(Facts::default().verify_audit(), Ok(()), "nothing was ever done");
}
