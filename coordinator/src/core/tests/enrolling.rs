//! Who is let in, and who is not.

use muster_proto::model::MachineType::{Control, Worker};

use super::{
    fleet::{Fleet, cluster, machine, machine_spec, spec, token},
    reason,
};
use crate::{
    core::{Effect, Refusal, Reply, Request},
    facts::{Draft, MachineRow},
};

/// A cluster with a token `worker` that `how` changes as it is made.
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
    fleet.ask(Request::RevokeToken { id: "special".to_owned() }).expect("revoked");
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
    let line = facts.audit.values().last().expect("a line");
    assert_eq!((line.action.as_str(), line.message.contains("once more")), ("enroll", true));

    assert_eq!(refused(&mut fleet, "special", "worker-1"), "token special: used up", "with another key");
    assert_eq!(reason(fleet.enroll_by("worker", "worker-1", Some(255))), "NameTaken", "with another token");
    fleet.agents.insert("worker-1".to_owned(), enrolled);
    fleet.connect("worker-1");
    let late = fleet.enroll_by("special", "worker-1", Some(255)).expect_err("the identity is in use");
    assert_eq!(late, Refusal::Token { detail: "token special: used up".to_owned() });
}

/// Whoever has a token can ask again and again, under one name or many; what people did stays in the record.
#[test]
fn enrolments_do_not_push_what_people_did_out_of_the_record() {
    let mut fleet = fleet_with_token(|_, _| {});
    let lines =
        |fleet: &Fleet, of: &str| fleet.core.facts().audit.values().filter(|line| line.actor.starts_with(of)).count();
    let by_people = lines(&fleet, "operator/");
    for _ in 0..20 {
        fleet.enroll_by("special", "worker-1", Some(255)).expect("let in, and answered again");
    }
    assert_eq!(lines(&fleet, "token/"), 2, "that it was answered again, once");

    let mut facts = fleet.core.facts().clone();
    let mut draft = Draft::new(&mut facts);
    for n in 0..10_500 {
        draft.audit("token/special", "enroll", &format!("machine/worker-{n}"), "as worker", 0);
    }
    draft.audit("operator/anna", "retry", "machine/worker-1", "again", 0);
    drop(draft);
    let count = |of: &str| facts.audit.values().filter(|line| line.actor.starts_with(of)).count();
    assert_eq!((count("operator/"), count("token/")), (by_people + 1, 5_000));
    let newest = facts.audit.values().rfind(|line| line.actor.starts_with("token/")).expect("a line");
    assert_eq!(newest.object, "machine/worker-10499", "the oldest are gone");
}

#[test]
fn what_was_taken_back_is_not_given_again() {
    let by = [
        Request::RevokeMachine { machine: machine("worker-1"), machine_is_off: false },
        Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: false },
        Request::RevokeToken { id: "special".to_owned() },
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
    let line = facts.audit.values().last().expect("a line");
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
    let MachineRow { reach, slot, ready_at, statuses, assigned, .. } = fleet.row("control-1");
    assert!(reach.is_none() && slot.is_none() && ready_at.is_none() && statuses.is_empty());
    assert_eq!(assigned.generation, generation, "it goes on counting");
    assert!(fleet.core.facts().denied.contains_key(&old) && fleet.core.facts().by_id(old).is_none());
    fleet.connect("control-1");
    fleet.finish("control-1");
    assert_eq!(fleet.state("control-1"), "Ready");
}
