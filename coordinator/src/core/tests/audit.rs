//! The audit record: lines dropped in a flood, repetition counts, and detection of changes.

use muster_proto::{model::ClusterName, resource::verify_audit};

use super::{
    fleet::{Fleet, cluster, spec},
    reason,
};
use crate::{
    core::{Request, operators::RATE},
    documents,
    facts::{AuditObject, AuditRow, AuditScope, Facts, RowError, Transaction},
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
    /// Writes an operator's action on a cluster durably.
    fn write(&mut self, of: &str, actor: &str, message: &str, at_ms: u64) {
        let mut tx = Transaction::new(&mut self.facts);
        tx.audit(actor, "annotate", AuditObject::Cluster(&name(of)), message, at_ms);
        self.store.commit(&tx.into_changes()).expect("in memory");
    }

    /// Messages of one cluster's lines.
    fn messages(&self, of: &str) -> Vec<&str> {
        let lines = self.facts.audit_lines().into_iter();
        lines.filter(|line| line.scope.cluster == Some(name(of))).map(|line| line.message.as_str()).collect()
    }

    /// The gaps that the coordinator reports at its start after changes to the store, and whether `musterctl audit
    /// verify` finds them too.
    fn gaps_after(&self, changes: &[Change]) -> (Vec<String>, bool) {
        let mut store = self.store.clone();
        store.commit(changes).expect("in memory");
        let facts = load(&store).expect("rows");
        let gaps = facts.verify_audit().err().unwrap_or_default();
        let found = documents::audit_chains(&facts).iter().any(|chain| verify_audit(chain).is_err());
        (gaps.iter().map(ToString::to_string).collect(), found)
    }

    /// The value of a row of the audit table.
    fn value(&self, key: &str) -> String {
        let rows = self.store.load().expect("in memory");
        let (.., value) = rows.into_iter().find(|(table, found, _)| *table == Table::Audit && found == key).expect(key);
        String::from_utf8(value).expect("JSON")
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
    assert_eq!((record.facts.meta.audit_seq, line.seq), (50, 50));
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
    let mut tx = Transaction::new(&mut facts);
    for message in ["a", "a", "b"] {
        tx.audit("operator/eve", "annotate", AuditObject::Store, message, 0);
    }
    let told = tx.take_audited();
    let numbers: Vec<_> = told.iter().map(|line| (line.seq, line.number, line.times)).collect();
    assert_eq!(numbers, [(1, 1, 1), (2, 1, 2), (3, 2, 1)], "each has a number of its own in the whole record");
    assert_eq!(told[2].previous, told[1].hash, "a line follows on the last count of the one before");
    let mut fleet = Fleet::of(1, 0);
    let input = crate::core::Input::Operator {
        actor: "operator/anna".to_owned(),
        request: Request::RevokeToken { id: "control".to_owned(), machines: false },
    };
    let step = fleet.core.step(vec![input.clone(), input], fleet.now());
    assert_eq!(step.audited.iter().map(|line| line.times).collect::<Vec<_>>(), [1, 2]);
}

fn line(of: &str, number: u64) -> String {
    format!("{of}/{number:020}")
}

fn delete(key: String) -> Change {
    Change::Delete { table: Table::Audit, key }
}

fn put(key: String, text: String) -> Change {
    Change::Put { table: Table::Audit, key, value: text.into_bytes() }
}

/// All ways to remove lines: one in the middle, some at the front, some at the end, all of them, a whole chain, the
/// whole record; with and without the head beside them.
#[test]
fn removed_lines_show() {
    let mut record = Record::default();
    record.write("other", "operator/anna", "elsewhere", 0);
    for n in 1..=5 {
        record.write("edge", "operator/anna", &n.to_string(), 0);
    }
    let facts = load(&record.store).expect("rows");
    assert_eq!((facts.verify_audit(), record.gaps_after(&[])), (Ok(()), (Vec::new(), false)));
    let lines = |numbers: std::ops::RangeInclusive<u64>| numbers.map(|n| delete(line("edge", n))).collect::<Vec<_>>();
    let head = || delete("edge/".to_owned());
    let missing = |number: u64| format!("line {number} of edge is missing");
    let every = || "every line of edge is missing".to_owned();
    let cases = [
        ("one in the middle", lines(3..=3), missing(3)),
        ("some in the middle", lines(2..=4), missing(2)),
        ("the first", lines(1..=1), missing(1)),
        ("the front", lines(1..=3), missing(1)),
        ("the newest", lines(5..=5), missing(5)),
        ("the end", lines(3..=5), missing(3)),
        ("all but one", [lines(1..=2), lines(4..=5)].concat(), missing(1)),
        ("every line", lines(1..=5), every()),
        ("the head", vec![head()], "line 5 of edge is not as it was written".to_owned()),
        ("the front and the head", [lines(1..=3), vec![head()]].concat(), missing(1)),
        (
            "the end and the head",
            [lines(4..=5), vec![head()]].concat(),
            "line 3 of edge is not as it was written".to_owned(),
        ),
        ("the chain", [lines(1..=5), vec![head()]].concat(), every()),
    ];
    for (case, changes, gap) in cases {
        assert_eq!(record.gaps_after(&changes), (vec![gap], true), "{case}");
    }
    let everything = [lines(1..=5), vec![head(), delete(line("other", 1)), delete("other/".to_owned())]].concat();
    let gaps = record.gaps_after(&everything);
    assert_eq!(gaps, (vec![every(), "every line of other is missing".to_owned()], true), "the whole record");
}

/// An end removed together with its head, replaced by the former head: only the coordinator detects it.
#[test]
fn end_that_was_put_back_shows() {
    let mut record = Record::default();
    record.write("edge", "operator/anna", "one", 0);
    let head = record.value("edge/");
    record.write("edge", "operator/anna", "two", 0);
    let (gaps, _) = record.gaps_after(&[delete(line("edge", 2)), put("edge/".to_owned(), head)]);
    assert_eq!(gaps, ["the newest line of all is number 1 of the record, and should be 2"]);
}

#[test]
fn changed_lines_show() {
    let mut record = Record::default();
    for message in ["one", "two", "three"] {
        record.write("edge", "operator/anna", message, 0);
    }
    for n in 1..=3 {
        let text = record.value(&line("edge", n)).replace("anna", "bert");
        let gap = format!("line {n} of edge is not as it was written");
        assert_eq!(record.gaps_after(&[put(line("edge", n), text)]), (vec![gap], true));
    }
    let (two, three) = (record.value(&line("edge", 2)), record.value(&line("edge", 3)));
    let (gaps, found) = record.gaps_after(&[put(line("edge", 2), three), put(line("edge", 3), two.clone())]);
    assert!(gaps.len() == 1 && found, "two in each other's place: {gaps:?}");
    let (gaps, found) = record.gaps_after(&[put(line("edge", 4), two)]);
    assert!(gaps.len() == 1 && found, "one more: {gaps:?}");
    let text = record.value(&line("edge", 1)).replace("\"edge\"", "\"fake\"");
    let head = record.value("edge/");
    let (gaps, _) = record.gaps_after(&[put(line("fake", 1), text), put("fake/".to_owned(), head)]);
    assert!(gaps.contains(&"fake is no chain of this record".to_owned()), "{gaps:?}");
}

/// After giving a changed line a matching hash, an attacker must rewrite all later lines and the head.
#[test]
fn changed_lines_with_new_hashes_show() {
    let mut record = Record::default();
    for message in ["one", "two", "three"] {
        record.write("edge", "operator/anna", message, 0);
    }
    for (changed, shows) in [(1, 2), (2, 3), (3, 3)] {
        let mut row: AuditRow = serde_json::from_str(&record.value(&line("edge", changed))).expect("a line");
        row.actor = "operator/bert".to_owned();
        row.hash = row.computed_hash();
        let text = serde_json::to_string(&row).expect("JSON");
        let gap = format!("line {shows} of edge is not as it was written");
        assert_eq!(record.gaps_after(&[put(line("edge", changed), text)]), (vec![gap], true), "{changed}");
    }
}

/// Retention leaves the record intact; one more removed line is a gap.
#[test]
fn retention_moves_the_oldest() {
    let mut record = Record::default();
    for n in 0..5_010 {
        record.write("edge", "operator/anna", &n.to_string(), 0);
    }
    assert_eq!(record.gaps_after(&[]), (Vec::new(), false));
    let head = load(&record.store).expect("rows").audit.values().next().expect("a chain").head();
    assert_eq!((head.oldest, head.number), (11, 5_010));
    let missing = (vec!["line 11 of edge is missing".to_owned()], true);
    assert_eq!(record.gaps_after(&[delete(line("edge", 11))]), missing);
}

/// Machines and holders of join tokens cause any number of lines, in every cluster they are in.
#[test]
fn caused_lines_drop_no_operators_line() {
    let mut record = Record::default();
    for n in 0..4_000 {
        record.write("edge", "operator/anna", &format!("note {n}"), 0);
    }
    for cluster in 0..4 {
        for n in 0..5_500 {
            let (of, text) = (format!("c{}", cluster / 2), format!("note {n}"));
            record.write(&of, if cluster % 2 == 0 { "muster" } else { "token/special" }, &text, 0);
        }
    }
    record.write("edge", "muster", &"é".repeat(9_000), 0);
    assert_eq!(record.messages("edge").len(), 4_001);
    let lines = record.facts.audit_lines();
    let count = |of: &str| lines.iter().filter(|line| line.actor.starts_with(of)).count();
    assert_eq!((count("operator/"), count("token/")), (4_000, 10_000));
    assert_eq!((count("muster"), lines.last().map(|line| line.message.len())), (10_000, Some(4_096)));
    let loaded = load(&record.store).expect("rows");
    assert!(loaded.same_record(&record.facts) && loaded.verify_audit().is_ok());
    for scope in loaded.audit.keys() {
        assert_eq!(scope.to_string().parse::<AuditScope>().expect("its own name"), *scope);
    }
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
    let mut tx = Transaction::new(&mut facts);
    let taken = (0..2_000).filter(|_| tx.count("operator/eve", RATE, now).is_ok()).count();
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
