//! Enrolment: admitted and refused machines.

use std::collections::BTreeMap;

use muster_proto::model::{
    ClusterName, ClusterSpec, ItemHash, MachineId,
    MachineType::{Control, Worker},
    Now,
};
use uuid::Uuid;

use super::{
    done,
    fleet::{Fleet, cluster, machine, machine_spec, spec, token},
    reason,
};
use crate::{
    core::{
        Effect, Enroll, Input, Refusal, Reply, Request,
        enroll::{RATE, REPEATS},
    },
    facts::{AuditObject, Facts, MachineRow, Transaction},
    store::Store,
};

/// A cluster with a token `worker`, modified by `change`.
fn fleet_with_token(change: impl FnOnce(&mut Option<muster_proto::model::MachineName>, &mut Option<u32>)) -> Fleet {
    let mut fleet = Fleet::applied(spec(1, 2));
    let mut request = token("special", Worker);
    if let Request::CreateToken { machine, uses, .. } = &mut request {
        change(machine, uses);
    }
    fleet.ask(request).expect("a token");
    fleet
}

#[test]
fn a_token_is_made_for_what_its_machine_is() {
    let mut fleet = Fleet::applied(spec(1, 2));
    fleet.enroll("worker-1", Worker).expect("let in");
    for (machine_type, fits) in [(Worker, true), (muster_proto::model::MachineType::Control, false)] {
        let mut request = token(machine_type.as_str(), machine_type);
        if let Request::CreateToken { machine: only, .. } = &mut request {
            *only = Some(machine("worker-1"));
        }
        match fleet.ask(request) {
            Ok(_) => assert!(fits),
            Err(refusal) => assert!(!fits && refusal.to_string().contains("--type worker"), "{refusal}"),
        }
    }
}

fn refused(fleet: &mut Fleet, token: &str, name: &str) -> String {
    let before = fleet.core.facts().clone();
    let answer = fleet.enroll_with(token, name);
    assert!(before.same_record(fleet.core.facts()), "a refusal changes nothing");
    match answer.expect_err("refused") {
        Refusal::Token { detail } => detail,
        other => panic!("{other}"),
    }
}

#[test]
fn tokens_that_are_no_good() {
    let mut fleet = fleet_with_token(|_, uses| *uses = Some(1));
    assert_eq!(refused(&mut fleet, "nothing", "worker-1"), "unknown token id");
    fleet.enroll_with("special", "worker-1").expect("the first use");
    assert_eq!(refused(&mut fleet, "special", "worker-2"), "token special: used up");

    let mut fleet = fleet_with_token(|only_for, _| *only_for = Some(machine("worker-1")));
    assert_eq!(refused(&mut fleet, "special", "worker-2"), "token special: for another machine than worker-2");
    fleet.enroll_with("special", "worker-1").expect("its own machine");

    let mut fleet = fleet_with_token(|_, _| {});
    let guessed = Enroll {
        token_id: "special".to_owned(),
        secret_sha256: ItemHash([8; 32]),
        key_sha256: ItemHash([1; 32]),
        name: machine("worker-1"),
        new_id: MachineId(Uuid::nil()),
        agent_version: String::new(),
    };
    let detail = "token special: wrong secret".to_owned();
    assert_eq!(fleet.step(Input::Enroll(guessed)), Err(Refusal::Token { detail }));
    fleet.ask(Request::RevokeToken { id: "special".to_owned(), machines: false }).expect("revoked");
    assert_eq!(refused(&mut fleet, "special", "worker-1"), "token special: revoked");

    let mut fleet = fleet_with_token(|_, _| {});
    fleet.pass(24 * 3_600_000 - 1, &[]);
    fleet.enroll_with("special", "worker-1").expect("the last millisecond");
    fleet.pass(1, &[]);
    assert_eq!(refused(&mut fleet, "special", "worker-2"), "token special: expired");
}

#[test]
fn names_that_are_taken() {
    let mut fleet = Fleet::of(1, 1);
    assert_eq!(reason(fleet.enroll("worker-1", Worker)), "NameTaken");
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: false }).expect("replaces");
    assert_eq!(reason(fleet.enroll("worker-1", Control)), "OtherRole");
    fleet.enroll("worker-1", Worker).expect("its successor");
    assert_eq!(reason(fleet.enroll("worker-1", Worker)), "NameTaken", "one successor");
    let declared = [("worker-7", machine_spec(Worker))];
    fleet.ask(super::fleet::apply(spec(1, 1), &declared)).expect("applies");
    assert_eq!(reason(fleet.enroll("worker-7", Control)), "OtherRole");
    fleet.enroll("worker-7", Worker).expect("as declared");
}

#[test]
fn an_enrolment_whose_answer_was_lost_is_answered_again() {
    let mut fleet = fleet_with_token(|_, uses| *uses = Some(1));
    let first = fleet.enroll_by("special", "worker-1", Some(255)).expect("let in");
    let enrolled = fleet.agents["worker-1"].clone();
    assert_eq!(fleet.enroll_by("special", "worker-1", Some(255)).as_ref(), Ok(&first), "the same identity");
    let facts = fleet.core.facts();
    assert_eq!((facts.tokens["special"].used, facts.denied.len()), (1, 0));
    let line = facts.audit_lines().pop().expect("a line");
    assert_eq!((line.action.as_str(), line.message.contains("once more")), ("enroll", true));

    assert_eq!(refused(&mut fleet, "special", "worker-1"), "token special: used up", "with another key");
    assert_eq!(reason(fleet.enroll_by("worker", "worker-1", Some(255))), "NameTaken", "with another token");
    fleet.agents.insert("worker-1".to_owned(), enrolled);
    fleet.connect("worker-1");
    let late = fleet.enroll_by("special", "worker-1", Some(255)).expect_err("the identity is in use");
    assert_eq!(late, Refusal::Token { detail: "token special: used up".to_owned() });
}

/// A holder of a token can ask repeatedly, under one name or many; operators' actions stay in the record.
#[test]
fn enrolments_do_not_push_what_people_did_out_of_the_record() {
    let mut fleet = fleet_with_token(|_, _| {});
    let lines = |fleet: &Fleet, of: &str| {
        fleet.core.facts().audit_lines().into_iter().filter(|line| line.actor.starts_with(of)).count()
    };
    let by_people = lines(&fleet, "operator/");
    for _ in 0..20 {
        fleet.enroll_by("special", "worker-1", Some(255)).expect("let in, and answered again");
        // Longer than the interval in which repetitions share a line.
        fleet.pass(61_000, &[]);
    }
    assert_eq!(lines(&fleet, "token/"), 2, "that it was answered again, once");

    let mut facts = fleet.core.facts().clone();
    let mut tx = Transaction::new(&mut facts);
    for n in 0..10_500 {
        tx.audit("token/special", "enroll", AuditObject::Cluster(&cluster()), &format!("worker-{n}"), 0);
    }
    tx.audit("operator/anna", "retry", AuditObject::Machine(&machine("worker-1")), "again", 0);
    drop(tx);
    let count = |of: &str| facts.audit_lines().into_iter().filter(|line| line.actor.starts_with(of)).count();
    assert_eq!((count("operator/"), count("token/")), (by_people + 1, 5_000));
    let newest = facts.audit_lines().into_iter().rfind(|line| line.actor.starts_with("token/")).expect("a line");
    assert_eq!(newest.message, "worker-10499", "the oldest are gone");
}

/// Creates a token for workers without a number of uses. Returns that number, or the reason of the refusal.
fn uses(fleet: &mut Fleet, only: Option<&str>) -> Result<u32, &'static str> {
    let mut request = token("counted", Worker);
    if let Request::CreateToken { machine: of, uses, .. } = &mut request {
        (*of, *uses) = (only.map(machine), None);
    }
    match fleet.ask(request) {
        Ok(Reply::Token { uses, .. }) => Ok(uses),
        refused => Err(reason(refused)),
    }
}

#[test]
fn token_uses_are_what_is_lacking() {
    let mut fleet = Fleet::applied(spec(1, 2));
    assert_eq!(uses(&mut fleet, None), Ok(3), "two, and one to spare");
    assert_eq!(uses(&mut fleet, Some("worker-1")), Ok(1));
    fleet.enroll("worker-1", Worker).expect("let in");
    assert_eq!(uses(&mut fleet, None), Ok(2));
    fleet.enroll("worker-2", Worker).expect("let in");
    assert_eq!(uses(&mut fleet, None), Err("NothingLacking"));
    fleet.ask(super::fleet::apply(spec(1, 2), &[("worker-9", machine_spec(Worker))])).expect("declares one more");
    assert_eq!(uses(&mut fleet, None), Ok(2));
    fleet.enroll("worker-9", Worker).expect("let in");
    fleet.ask(Request::RevokeMachine { machine: machine("worker-2"), machine_is_off: true }).expect("revoked");
    assert_eq!(uses(&mut fleet, None), Err("NothingLacking"), "worker-9 is one of the two");
    fleet.ask(Request::RevokeMachine { machine: machine("worker-1"), machine_is_off: true }).expect("revoked");
    assert_eq!(uses(&mut fleet, None), Ok(2));
    let mut uncounted = Fleet::applied(ClusterSpec { machines: None, ..spec(1, 2) });
    assert_eq!(uses(&mut uncounted, None), Err("NothingLacking"));
}

#[test]
fn cluster_is_full_others_are_not() {
    let mut fleet = Fleet::applied(spec(1, 1));
    let other = ClusterName::new("other").expect("a label");
    let clusters = BTreeMap::from([(other.clone(), (spec(1, 0), BTreeMap::new()))]);
    fleet.ask(Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false }).expect("applies");
    let mut theirs = token("theirs", Control);
    if let Request::CreateToken { cluster, .. } = &mut theirs {
        *cluster = other;
    }
    fleet.ask(theirs).expect("a token");
    // Two are named, and ten more are admitted.
    (0..12).for_each(|n| drop(fleet.enroll(&format!("junk-{n}"), Worker).expect("let in")));
    assert_eq!(reason(fleet.enroll("junk-12", Worker)), "ClusterFull");
    fleet.enroll_with("theirs", "control-9").expect("another cluster has room");
    fleet.ask(super::fleet::apply(spec(1, 1), &[("worker-1", machine_spec(Worker))])).expect("declares one");
    fleet.enroll("worker-1", Worker).expect("its place was kept");
}

#[test]
fn enrolment_rate_lets_a_fleet_in() {
    let mut fleet = fleet_with_token(|_, _| {});
    let mut facts = fleet.core.facts().clone();
    let mut tx = Transaction::new(&mut facts);
    let mut take = |at_ms| tx.count("cluster/edge-7", RATE, Now { wall_ms: 0, mono_ms: at_ms });
    assert!((0..10_000).all(|n| take(5_000 + n * 1_000 / 300).is_ok()), "ten thousand, 300 a second");
    assert_eq!((0..3_000).filter(|_| take(3_600_000).is_ok()).count(), 1_000, "and no more at once");

    let now = fleet.now();
    let mut tx = Transaction::new(&mut facts);
    while tx.count("cluster/edge-7", RATE, now).is_ok() {}
    fleet.core.set_facts(facts);
    let refused = fleet.enroll_with("special", "worker-1").expect_err("too many at once");
    assert_eq!(fleet.enroll("worker-1", Worker), Err(refused.clone()), "by whatever token");
    assert!(refused.to_string().ends_with("lets 500 machines a second enrol; come again in 1 s"), "{refused}");
    fleet.pass(10, &[]);
    fleet.enroll_with("special", "worker-1").expect("a moment later");
}

/// A holder of a token's secret asks endlessly: for its existing identity, and for refused ones.
#[test]
fn repeats_and_refusals_hold_no_other_machine_up() {
    let mut fleet = fleet_with_token(|_, _| {});
    let mut again = |key| fleet.enroll_by("special", "worker-1", Some(key));
    again(255).expect("let in");
    assert_eq!((0..2 * RATE.burst).filter(|_| again(255).is_ok()).count() as u64, REPEATS.burst);
    let refused = again(255).expect_err("too often").to_string();
    assert!(refused.contains("machine worker-1") && refused.ends_with("come again in 1 s"), "{refused}");
    (0..=RATE.burst).for_each(|_| assert_eq!(reason(again(1)), "NameTaken"));
    fleet.enroll_with("special", "worker-2").expect("it is let in as if nobody else asked");
}

#[test]
fn revoked_machine_leaves_its_place() {
    let mut fleet = Fleet::applied(spec(1, 1));
    (0..12).for_each(|n| drop(fleet.enroll(&format!("junk-{n}"), Worker).expect("let in")));
    assert_eq!(reason(fleet.enroll("junk-12", Worker)), "ClusterFull");
    fleet.ask(Request::RevokeMachine { machine: machine("junk-0"), machine_is_off: true }).expect("revoked");
    fleet.enroll("junk-12", Worker).expect("in the place of one that is gone");
    fleet.ask(Request::ReplaceMachine { machine: machine("junk-1"), machine_is_off: true }).expect("replaces");
    assert_eq!(reason(fleet.enroll("junk-13", Worker)), "ClusterFull", "the place is for the successor");
    fleet.enroll("junk-1", Worker).expect("its successor");
}

/// Whether a machine took the place of another must be recorded: the lists given under its name are no evidence.
#[test]
fn taken_back_name_is_what_it_was() {
    let revoke = || Request::RevokeToken { id: "special".to_owned(), machines: true };
    let mut fleet = fleet_with_token(|_, _| {});
    fleet.enroll("worker-1", Worker).expect("let in");
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: true }).expect("replaces");
    fleet.enroll_with("special", "worker-1").expect("its successor");
    fleet.ask(revoke()).expect("taken back");
    assert!(fleet.row("worker-1").replaceable && fleet.row("worker-1").revoked, "as `replace` left it");

    let mut fleet = Fleet::of(1, 1).reported().prepared();
    fleet.ask(token("special", Worker)).expect("a token");
    let (id, now) = (fleet.agents["worker-1"].id, fleet.now());
    let mut facts = fleet.core.facts().clone();
    let mut tx = Transaction::new(&mut facts);
    tx.deny(id, &machine("worker-1"), now);
    tx.drop_machine(&machine("worker-1"));
    fleet.core.set_facts(facts);
    fleet.enroll_with("special", "worker-1").expect("under a name that was removed");
    assert!(fleet.row("worker-1").assigned.generation.0 > 0, "it goes on counting");
    fleet.ask(revoke()).expect("taken back");
    assert!(!fleet.core.facts().machines.contains_key("worker-1"), "there was no such machine");
}

#[test]
fn leaked_token_takes_its_machines_back() {
    let mut fleet = Fleet::of(1, 2).reported();
    fleet.ask(super::fleet::apply(spec(1, 2), &[("worker-9", machine_spec(Worker))])).expect("declares one");
    fleet.ask(token("leaked", Worker)).expect("a token");
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: false }).expect("replaces");
    for name in ["worker-1", "worker-9", "junk-1", "junk-2", "mine"] {
        fleet.enroll_with("leaked", name).expect("let in");
    }
    fleet.connect("mine");
    let ids = |fleet: &Fleet, names: &[&str]| names.iter().map(|name| fleet.agents[*name].id).collect::<Vec<_>>();
    let junk = ids(&fleet, &["worker-1", "worker-9", "junk-1", "junk-2"]);
    let revoke = |machines| Request::RevokeToken { id: "leaked".to_owned(), machines };
    let hint = done(fleet.ask(revoke(false)));
    assert!(hint.contains("4 machines enrolled with it never reported; `musterctl token revoke leaked"), "{hint}");
    assert_eq!(
        done(fleet.ask(revoke(true))),
        "token leaked revoked\n4 machines enrolled with it taken back that never reported\n\
         1 machine enrolled with it reported and stay: mine"
    );
    let facts = fleet.core.facts();
    assert!(junk.iter().all(|id| facts.denied.contains_key(id) && facts.by_id(*id).is_none_or(|row| row.revoked)));
    assert!(!facts.machines.contains_key("junk-1") && facts.machines.contains_key("worker-2"), "only its own");
    assert!(fleet.row("worker-9").id.is_none() && fleet.row("worker-9").declared, "as its document has it");
    assert!(fleet.row("worker-1").replaceable, "as `replace` left it");
    assert!(!fleet.row("mine").revoked);
    for name in ["worker-1", "worker-9"] {
        fleet.enroll(name, Worker).expect("the right one comes");
    }
    let loaded = Facts::load(fleet.store.load().expect("in memory")).expect("rows");
    assert!(loaded.same_record(fleet.core.facts()), "it is all durable");
}

/// A copy of the record may be older than the latest actions of its machines.
#[test]
fn recovering_store_takes_no_machine_back() {
    let mut fleet = fleet_with_token(|_, _| {});
    fleet.enroll_with("special", "worker-1").expect("let in");
    let copy = fleet.store.clone();
    fleet.connect("worker-1");
    fleet.recover_from(copy);
    let said = done(fleet.ask(Request::RevokeToken { id: "special".to_owned(), machines: true }));
    assert!(said.contains("1 machine enrolled with it reported and stay: worker-1"), "{said}");
    assert_eq!(reason(fleet.ask(Request::DeleteCluster { cluster: cluster() })), "MachinesLeft");
}

#[test]
fn what_was_taken_back_is_not_given_again() {
    let by = [
        Request::RevokeMachine { machine: machine("worker-1"), machine_is_off: false },
        Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: false },
        Request::RevokeToken { id: "special".to_owned(), machines: false },
    ];
    for request in by {
        let mut fleet = fleet_with_token(|_, uses| *uses = Some(1));
        fleet.enroll_by("special", "worker-1", Some(255)).expect("let in");
        fleet.ask(request).expect("taken back");
        fleet.enroll_by("special", "worker-1", Some(255)).expect_err("refused");
    }
}

#[test]
fn an_enrolment_is_audited_and_counted() {
    let mut fleet = Fleet::applied(spec(1, 0));
    let reply = fleet.enroll("control-1", Control).expect("let in");
    let id = fleet.agents["control-1"].id;
    assert_eq!(reply, Reply::Enrolled { id, cluster: cluster(), machine_type: Control });
    let facts = fleet.core.facts();
    assert_eq!(facts.tokens["control"].used, 1);
    let line = facts.audit_lines().pop().expect("a line");
    assert_eq!((line.actor.as_str(), line.action.as_str()), ("token/control", "enroll"));
}

#[test]
fn a_successor_starts_anew_and_the_old_one_is_shut_out() {
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    fleet.finish("control-1");
    let (old, generation) = (fleet.agents["control-1"].id, fleet.row("control-1").assigned.generation);
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: false }).expect("replaces");
    assert!(matches!(&fleet.effects[..], [Effect::Close { id, .. }, ..] if *id == old));
    fleet.enroll("control-1", Control).expect("its successor");
    let MachineRow { max_phase, slot, ready_at, statuses, assigned, .. } = fleet.row("control-1");
    assert!(max_phase.is_none() && slot.is_none() && ready_at.is_none() && statuses.is_empty());
    assert_eq!(assigned.generation, generation, "it goes on counting");
    assert!(fleet.core.facts().denied.contains_key(&old) && fleet.core.facts().by_id(old).is_none());
    fleet.connect("control-1");
    fleet.finish("control-1");
    assert_eq!(fleet.state("control-1"), "Ready");
}
