//! Messages of agents: events that come once, late, twice or out of order, and Hellos that know more than the store.

use muster_proto::{
    convert::{Hello, ITEMS_MAX},
    json::json,
    model::{
        AckProof, Epoch, Generation, HostFacts, ItemHash,
        ItemState::{Indeterminate, Running, Succeeded},
        ItemStatus, LedgerId, LedgerOrdinal, ListProof, LockState, MachineSpec, MachineType, Phase, Reason, Seq,
    },
};

use uuid::Uuid;

use super::{
    fleet::{Fleet, apply, item_name, machine, machine_spec, proof_key, spec},
    reason,
    updates::release,
};
use crate::{
    core::{Effect, Input, Request},
    plan::blocked,
    proof::Told,
};

fn acked(fleet: &Fleet) -> Option<Seq> {
    fleet.effects.iter().find_map(|effect| match effect {
        Effect::Ack { seq, .. } => Some(*seq),
        Effect::Assign { .. } | Effect::AskSwarm(_) | Effect::AskKubernetes(_) | Effect::Close { .. } => None,
    })
}

#[test]
fn events_are_taken_in_order_and_once() {
    let mut fleet = Fleet::of(1, 0).reported();
    fleet.accept("control-1");
    fleet.event("control-1", "images", Running);
    let running = fleet.agents["control-1"].statuses[&item_name("images")].clone();
    let later = muster_proto::model::ItemStatus { state: Succeeded, ..running.clone() };
    assert_eq!(reason(fleet.event_at("control-1", Seq(3), later)), "SequenceGap");
    assert_eq!(fleet.row("control-1").statuses[&item_name("images")].state, Running, "nothing was taken");

    fleet.event("control-1", "images", Succeeded);
    fleet.event_at("control-1", Seq(1), running).expect("again");
    assert_eq!(acked(&fleet), Some(Seq(2)), "a duplicate is acknowledged, with all that is recorded");
    assert_eq!(fleet.row("control-1").statuses[&item_name("images")].state, Succeeded, "and changes nothing");
}

/// Impossible events of an agent are rejected, and operators see that.
#[test]
fn an_event_that_cannot_be_is_refused_and_seen() {
    let mut fleet = Fleet::of(1, 1).reported();
    fleet.accept("worker-1");
    fleet.event("worker-1", "images", Running);
    let running = fleet.agents["worker-1"].statuses[&item_name("images")].clone();
    let again = ItemStatus { attempt: 2, ..running.clone() };
    for _ in 0..2 {
        assert_eq!(reason(fleet.event_at("worker-1", Seq(2), again.clone())), "ImpossibleTransition");
        assert_eq!(fleet.why("worker-1").as_deref(), Some("EventRefused"));
        fleet.connect("worker-1");
        assert_eq!(fleet.why("worker-1").as_deref(), Some("EventRefused"), "a new stream makes it no better");
    }
    assert_eq!(*fleet.row("worker-1").statuses[&item_name("images")], running, "nothing was taken");

    let done = ItemStatus { state: Succeeded, finished_at_ms: Some(1), ..running };
    fleet.event_at("worker-1", Seq(2), done.clone()).expect("what can be");
    assert_ne!(fleet.why("worker-1").as_deref(), Some("EventRefused"));
    let rerun = ItemStatus { state: Running, attempt: 2, finished_at_ms: None, ..done };
    assert_eq!(reason(fleet.event_at("worker-1", Seq(3), rerun)), "ImpossibleTransition");
}

/// The first event of a new ledger about an item may contradict the old ledger; later events must be consistent.
#[test]
fn a_new_ledger_begins_anew() {
    let mut fleet = Fleet::of(1, 1).reported();
    fleet.accept("worker-1");
    fleet.event("worker-1", "images", Running);
    let running = fleet.agents["worker-1"].statuses[&item_name("images")].clone();
    let lost = ItemStatus { state: Indeterminate, finished_at_ms: Some(1), ..running };
    // `muster-agent ledger reset` keeps such an outcome, without an event for its start.
    let agent = fleet.agents.get_mut("worker-1").expect("an agent");
    agent.ledger = LedgerId(Uuid::from_u128(77));
    agent.acked = Seq(0);
    agent.statuses.insert(lost.name.clone(), lost.clone());
    fleet.connect("worker-1");
    fleet.event_at("worker-1", Seq(1), lost.clone()).expect("the outcome of the old ledger's attempt");
    assert_eq!(reason(fleet.event_at("worker-1", Seq(2), lost)), "ImpossibleTransition");
}

#[test]
fn events_come_on_the_newest_stream_only() {
    let mut fleet = Fleet::of(1, 0).reported();
    fleet.accept("control-1");
    fleet.event("control-1", "images", Running);
    let status = fleet.agents["control-1"].statuses[&item_name("images")].clone();
    let old = fleet.agents["control-1"].session;
    fleet.connect("control-1");
    fleet.agents.get_mut("control-1").expect("an agent").session = old;
    assert_eq!(reason(fleet.event_at("control-1", Seq(2), status)), "NotGreeted");
}

#[test]
fn the_end_of_an_old_stream_is_not_the_end_of_the_new() {
    let mut fleet = Fleet::of(1, 0).reported();
    let (id, old) = (fleet.agents["control-1"].id, fleet.agents["control-1"].session.expect("connected"));
    fleet.connect("control-1");
    fleet.step(Input::Gone { id, session: old }).expect("known");
    assert!(fleet.core.facts().live.machines[&machine("control-1")].session.is_some());
}

#[test]
fn a_lost_acknowledgement_is_made_up_for_at_hello() {
    let mut fleet = Fleet::of(1, 0).reported();
    fleet.accept("control-1");
    fleet.event("control-1", "images", Running);
    fleet.agents.get_mut("control-1").expect("an agent").acked = Seq(0);
    fleet.connect("control-1");
    assert_eq!(acked(&fleet), Some(Seq(1)));
}

/// An earlier event of its agent may be lost with that stream, and with it the start of an item.
#[test]
fn answer_on_an_older_stream_says_nothing() {
    let mut fleet = Fleet::of(1, 0).reported();
    let (id, session) = (fleet.agents["control-1"].id, fleet.agents["control-1"].session.expect("connected"));
    let generation = fleet.row("control-1").assigned.generation;
    fleet.connect("control-1");
    let refused = Some("HashMismatch: versions differ".to_owned());
    fleet.step(Input::Answer { id, session, generation, refused }).expect("known");
    assert_eq!(fleet.row("control-1").assigned.refused, None);
    fleet.answer("control-1", generation, Some("HashMismatch: versions differ"));
    assert!(fleet.row("control-1").assigned.refused.is_some());
}

/// The coordinator was killed before it recorded the event, and the agent's present list lacks the item: its slot was
/// freed while it ran (seed 25898440902422).
#[test]
fn greeting_accepts_nothing_while_something_runs_unheard() {
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    fleet.begin("control-1");
    let accepted = fleet.row("control-1").assigned.accepted;
    release(&mut fleet, &["install"], 1);
    let newest = fleet.row("control-1").assigned.generation;
    assert!(newest > accepted);
    let mut hello = fleet.greeting("control-1");
    let running = hello.statuses.iter_mut().find(|status| status.state == Running).expect("it runs");
    running.attempt += 1;
    let id = fleet.agents["control-1"].id;
    fleet.step(Input::Hello { id, session: 1_000, hello: Box::new(hello) }).expect("welcome");
    assert_eq!(fleet.row("control-1").assigned.accepted, accepted, "its event is yet to come");
    let hello = Box::new(fleet.greeting("control-1"));
    fleet.step(Input::Hello { id, session: 1_001, hello }).expect("welcome");
    assert_eq!(fleet.row("control-1").assigned.accepted, newest);
}

#[test]
fn a_refused_list_is_a_reason_until_the_next() {
    let mut fleet = Fleet::of(1, 0).reported();
    let generation = fleet.row("control-1").assigned.generation;
    let refused = Some("HashMismatch: versions differ");
    fleet.answer("control-1", Generation(99), refused);
    assert_eq!(fleet.why("control-1"), None, "an answer to another list says nothing of this one");
    fleet.answer("control-1", generation, refused);
    assert_eq!(fleet.why("control-1").as_deref(), Some("AssignmentRefused"));
    fleet.accept("control-1");
    assert_eq!(fleet.why("control-1"), None);
}

/// An agent that has just started reports the address that reaches the coordinator, whatever its document asks for.
#[test]
fn nothing_is_given_by_an_address_that_was_not_asked_for() {
    let mut fleet = Fleet::applied(spec(1, 0));
    let document = MachineSpec { cidr: Some("10.77.0.0/16".to_owned()), ..machine_spec(MachineType::Control) };
    fleet.ask(apply(spec(1, 0), &[("control-1", document)])).expect("applies");
    fleet.enroll("control-1", MachineType::Control).expect("enrolls");
    fleet.connect("control-1");
    assert_eq!(fleet.why("control-1").as_deref(), Some("NoInternalIP"));
    assert!(fleet.agents["control-1"].assignment.is_none());

    let (id, mut facts) = (fleet.agents["control-1"].id, fleet.greeting("control-1").facts);
    facts.internal_ip = Some("10.77.0.4".to_owned());
    fleet.report_host(id, facts);
    let given =
        |fleet: &Fleet| fleet.agents["control-1"].assignment.clone().map(|list| (list.generation, list.variables));
    let list = given(&fleet);
    assert!(list.as_ref().is_some_and(|(_, variables)| variables["machine.internalIP"] == "10.77.0.4"), "{list:?}");
    fleet.disconnect("control-1");
    fleet.connect("control-1");
    assert_eq!(given(&fleet), list, "its agent was started anew, and corrects itself in a moment");
}

/// Each Hello shows in its own way that agents know more than the store: decisions stop.
#[test]
fn a_store_older_than_the_fleet_decides_nothing() {
    let check = |case: &str, change: fn(&mut Hello)| {
        let mut fleet = Fleet::of(2, 0).reported().prepared();
        fleet.disconnect("control-1");
        let mut hello = fleet.greeting("control-1");
        change(&mut hello);
        let hello = fleet.proven("control-1", hello);
        fleet.hello("control-1", hello).expect("greeted");
        assert!(fleet.core.facts().live.older_than_fleet().is_some(), "{case}");
        assert_eq!(fleet.why("control-2").as_deref(), Some("StoreOlderThanFleet"), "{case}");
        let others = fleet.greeting("control-2");
        fleet.disconnect("control-2");
        let others = fleet.proven("control-2", Hello { generation: Generation(99), ..others });
        fleet.hello("control-2", others).expect("greeted");
        fleet.agents.get_mut("control-1").expect("an agent").assignment = None;
        fleet.ask(Request::RevokeMachine { machine: machine("control-1"), machine_is_off: false }).expect("revoked");
        assert_eq!(fleet.slots(), Vec::<&str>::new(), "{case}: another says so too");
    };
    check("epoch", |hello| hello.epoch = Epoch(9));
    check("generation", |hello| hello.generation = Generation(99));
    check("acknowledged", |hello| hello.acked_seq = Seq(99));
    check("acknowledged by a ledger that the store does not know", |hello| {
        hello.ledger_id = LedgerId(uuid::Uuid::from_u128(77));
        hello.acked_seq = Seq(1);
    });
}

/// A machine that invents numbers blocks only itself, also with codes that it received earlier and withheld.
#[test]
fn unproven_number_blocks_its_machine_alone() {
    let check = |case: &str, change: fn(&mut Hello)| {
        let mut fleet = Fleet::of(2, 0).reported().prepared();
        fleet.disconnect("control-1");
        let mut hello = fleet.proven("control-1", fleet.greeting("control-1"));
        change(&mut hello);
        fleet.agents.get_mut("control-1").expect("an agent").assignment = None;
        fleet.hello("control-1", hello).expect("greeted");
        assert_eq!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"), "{case}");
        let facts = fleet.core.facts();
        assert_eq!((facts.live.older_than_fleet(), facts.meta.fleet_epoch), (None, Epoch(0)), "{case}");
        assert!(facts.machines[&machine("control-1")].assigned.generation < Generation(99), "{case}");
        assert!(fleet.agents["control-1"].assignment.is_none(), "{case}: it is given nothing");
        assert_ne!(fleet.why("control-2").as_deref(), Some("UnprovenLedger"), "{case}");
        fleet.disconnect("control-1");
        fleet.connect("control-1");
        assert_ne!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"), "{case}: it greets without");
    };
    check("epoch", |hello| hello.epoch = Epoch(u64::MAX));
    check("generation", |hello| hello.generation = Generation(u64::MAX));
    check("another list", |hello| hello.list.as_mut().expect("a list").digest = ItemHash([8; 32]));
    check("acknowledged", |hello| hello.acked_seq = Seq(99));
    check("a ledger of its own", |hello| {
        hello.ledger_id = LedgerId(uuid::Uuid::from_u128(77));
        hello.acked_seq = Seq(1);
    });
}

/// A machine switches from one ledger to another and back, with valid codes for both. Either it lies, or its state
/// directory was restored from a copy. Neither is a proof against the store.
#[test]
fn former_ledger_blocks_its_machine_alone() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    let first = fleet.proven("control-1", fleet.greeting("control-1"));
    let done = fleet.row("control-1").statuses.clone();
    fleet.disconnect("control-1");
    let second = LedgerId(Uuid::from_u128(77));
    fleet
        .hello("control-1", Hello { ledger_id: second, acked_seq: Seq(0), acked: None, ..first.clone() })
        .expect("new");
    let recorded = |fleet: &Fleet| (fleet.row("control-1").ledger, fleet.row("control-1").ledger_ordinal);
    assert_eq!(recorded(&fleet), (Some((second, Seq(0))), LedgerOrdinal(2)));
    fleet.disconnect("control-1");
    for _ in 0..2 {
        fleet.agents.get_mut("control-1").expect("an agent").assignment = None;
        fleet.hello("control-1", first.clone()).expect("greeted");
        assert_eq!(fleet.core.facts().live.older_than_fleet(), None);
        assert_eq!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"));
        let message = fleet.says("control-1");
        assert!(message.contains("begun another ledger since") && message.contains("put back"), "{message}");
        assert_eq!(fleet.slots(), ["control-1"], "it may be at work");
        assert!(fleet.agents["control-1"].assignment.is_none(), "it is given nothing");
        assert_eq!(recorded(&fleet).0, Some((second, Seq(0))), "and is not taken for the newest");
        // Its events belong to the former ledger; its numbers prove nothing here.
        let status = ItemStatus { state: Running, finished_at_ms: None, ..(*done[&item_name("images")]).clone() };
        fleet.event_at("control-1", Seq(1), status).expect("not taken");
        assert_eq!((acked(&fleet), &fleet.row("control-1").statuses), (None, &done));
        fleet.restart();
        fleet.connect("control-2");
    }
    // `muster-agent ledger reset --keep-identity`.
    let third = LedgerId(Uuid::from_u128(78));
    fleet.hello("control-1", Hello { ledger_id: third, acked_seq: Seq(0), acked: None, ..first }).expect("new");
    assert_eq!(recorded(&fleet), (Some((third, Seq(0))), LedgerOrdinal(3)));
    assert_ne!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"));
}

/// The ordinal counts only with its code. A ledger that this store has under another name was begun after it.
#[test]
fn ledgers_that_a_store_lacks_show_that_it_is_old() {
    let claim = |ordinal, told, is_old| {
        let mut fleet = Fleet::of(2, 0).reported().prepared();
        fleet.disconnect("control-1");
        let (id, epoch, ledger) =
            (fleet.agents["control-1"].id, fleet.agents["control-1"].epoch, LedgerId(Uuid::nil()));
        let code = proof_key().code(id, &Told::Acked { ledger, ordinal: LedgerOrdinal(told), epoch, seq: Seq(1) });
        let proof = AckProof { epoch, ordinal: LedgerOrdinal(ordinal), code };
        let hello = Hello { ledger_id: ledger, acked_seq: Seq(1), acked: Some(proof), ..fleet.greeting("control-1") };
        fleet.hello("control-1", hello).expect("greeted");
        assert_eq!(fleet.core.facts().live.older_than_fleet().is_some(), is_old, "{ordinal} {told}");
    };
    claim(2, 2, true);
    claim(1, 1, true);
    claim(0, 0, false);
    claim(9, 1, false);
}

/// The proof that a store is old must stay outside it, so that the next start sees it again.
#[test]
fn greeting_beyond_the_store_is_not_recorded() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    fleet.disconnect("control-1");
    let hello = Hello {
        ledger_id: LedgerId(Uuid::from_u128(77)),
        acked_seq: Seq(1),
        agent_version: "another".to_owned(),
        ..fleet.greeting("control-1")
    };
    let hello = fleet.proven("control-1", hello);
    let before = fleet.row("control-1").clone();
    for _ in 0..2 {
        fleet.hello("control-1", hello.clone()).expect("greeted");
        let message = fleet.look("control-2", |snapshot, _| crate::plan::safety::store_is_current(snapshot));
        let way_out = message.expect_err("it is old").clears_when;
        assert!(way_out.contains("or `musterctl revoke control-1`"), "{way_out}");
        assert_eq!(
            (&fleet.row("control-1").ledger, &fleet.row("control-1").agent_version),
            (&before.ledger, &before.agent_version)
        );
        let status = fleet.agents["control-1"].statuses[&item_name("images")].clone();
        fleet.event_at("control-1", Seq(2), status).expect("not taken");
        assert_eq!(acked(&fleet), None, "it is for the newest store");
        fleet.restart();
    }
}

/// A recovery asks every machine for earlier proofs: if a machine withheld its newest list then, it cannot stop others
/// later.
#[test]
fn proof_from_before_a_recovery_is_none() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    fleet.disconnect("control-1");
    let hello = fleet.proven("control-1", Hello { generation: Generation(99), ..fleet.greeting("control-1") });
    fleet.recover_from(fleet.store.clone());
    fleet.all_report();
    assert!(!fleet.core.facts().meta.recovering);
    fleet.disconnect("control-1");
    fleet.hello("control-1", hello).expect("greeted");
    assert_eq!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"));
    assert_eq!(fleet.core.facts().live.older_than_fleet(), None);
}

/// During a recovery, one proven number makes no other number of the same Hello true.
#[test]
fn proven_number_vouches_for_no_other() {
    let check = |case: &str, change: fn(&mut Hello)| {
        let mut fleet = Fleet::of(2, 0).reported().prepared();
        let hello = Hello { generation: Generation(9), acked_seq: Seq(90), ..fleet.greeting("control-1") };
        let mut hello = fleet.proven("control-1", hello);
        change(&mut hello);
        fleet.recover_from(fleet.store.clone());
        fleet.hello("control-1", hello).expect("greeted");
        let facts = fleet.core.facts();
        assert_eq!((facts.live.older_than_fleet(), facts.meta.fleet_epoch), (None, Epoch(0)), "{case}");
        assert_eq!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"), "{case}");
        assert!(fleet.row("control-1").assigned.generation < Generation(99), "{case}");
        assert!(fleet.row("control-1").ledger.is_none_or(|(_, seq)| seq < Seq(99)), "{case}");
    };
    check("epoch", |hello| hello.epoch = Epoch(u64::MAX));
    check("generation", |hello| hello.generation = Generation(99));
    check("acknowledged", |hello| hello.acked_seq = Seq(99));
}

/// The copy is older by exactly one list: its next list has the number of the agent's list, with other content.
#[test]
fn other_list_of_the_same_number_shows_an_old_store() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    fleet.disconnect("control-1");
    let mut hello = fleet.greeting("control-1");
    let (id, epoch, generation) = (fleet.agents["control-1"].id, hello.epoch, hello.generation);
    let digest = ItemHash([8; 32]);
    let code = proof_key().code(id, &Told::List { epoch, generation, digest });
    hello.list = Some(ListProof { epoch, digest, code });
    fleet.hello("control-1", hello).expect("greeted");
    for name in ["control-1", "control-2"] {
        assert_eq!(fleet.why(name).as_deref(), Some("StoreOlderThanFleet"), "{name}");
    }
}

/// Its Hello did not prove that, so its answer affects only itself.
#[test]
fn refusal_of_a_taken_number_blocks_its_machine_alone() {
    for code in ["GenerationReused", "StaleGeneration"] {
        let mut fleet = Fleet::of(2, 0).reported().prepared();
        let generation = fleet.row("control-1").assigned.generation;
        let refused = format!("{code}: it was accepted with other content");
        fleet.answer("control-1", Generation(99), Some(&refused));
        assert_ne!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"), "an answer to another list");
        fleet.answer("control-1", generation, Some(&refused));
        assert_eq!(fleet.why("control-1").as_deref(), Some("UnprovenLedger"), "{code}");
        assert_ne!(fleet.why("control-2").as_deref(), Some("StoreOlderThanFleet"), "{code}");
    }
}

/// A store that looks old to a single machine continues after an operator revokes that machine.
#[test]
fn what_a_revoked_machine_said_of_the_store_counts_no_more() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    fleet.disconnect("control-1");
    let hello = fleet.proven("control-1", Hello { generation: Generation(99), ..fleet.greeting("control-1") });
    fleet.hello("control-1", hello).expect("greeted");
    assert_eq!(fleet.why("control-2").as_deref(), Some("StoreOlderThanFleet"));
    fleet.ask(Request::RevokeMachine { machine: machine("control-1"), machine_is_off: false }).expect("revoked");
    assert_eq!(fleet.slots(), ["control-2"], "it goes on");
}

/// Messages in flight when an operator revokes a machine are ignored.
#[test]
fn a_revoked_identity_says_nothing_any_more() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    let hello = Hello { epoch: Epoch(9), ..fleet.greeting("control-1") };
    fleet.ask(Request::RevokeMachine { machine: machine("control-1"), machine_is_off: false }).expect("revoked");
    assert_eq!(reason(fleet.hello("control-1", hello)), "Revoked");
    let facts = fleet.core.facts();
    assert!(facts.live.older_than_fleet().is_none() && facts.live.machines[&machine("control-1")].session.is_none());
}

/// Events about invented items are rejected; events about items of earlier lists are recorded.
#[test]
fn events_are_taken_of_items_that_the_machine_was_given() {
    let mut fleet = Fleet::of(1, 1).reported();
    fleet.accept("worker-1");
    fleet.event("worker-1", "images", Running);
    let running = fleet.agents["worker-1"].statuses[&item_name("images")].clone();
    let made_up = ItemStatus { name: item_name("made-up"), ..running.clone() };
    for next in [2, 1] {
        assert_eq!(reason(fleet.event_at("worker-1", Seq(next), made_up.clone())), "ImpossibleTransition");
        assert_eq!(fleet.why("worker-1").as_deref(), Some("EventRefused"));
        // The same if the machine claims a new ledger that has the item.
        let agent = fleet.agents.get_mut("worker-1").expect("an agent");
        (agent.ledger, agent.acked) = (LedgerId(Uuid::from_u128(77)), Seq(0));
        agent.statuses.insert(made_up.name.clone(), made_up.clone());
        fleet.connect("worker-1");
    }
    assert!(!fleet.row("worker-1").statuses.contains_key("made-up"));

    let mut renamed = spec(1, 1);
    for items in renamed.machine_types.values_mut() {
        items[0].name = item_name("pictures");
    }
    fleet.ask(apply(renamed, &[])).expect("applies");
    fleet.restart();
    fleet.connect("worker-1");
    let list = fleet.agents["worker-1"].assignment.clone().expect("a list");
    assert!(list.items.iter().all(|item| item.name.as_str() == "pictures"), "{list:?}");
    let done = ItemStatus { state: Succeeded, finished_at_ms: Some(1), ..running };
    fleet.event_at("worker-1", Seq(1), done).expect("what ran is left to finish");
}

/// A machine of a recovered store for which `with` invents `count` ended items.
fn makes_up(count: u64, with: impl Fn(u64, &ItemStatus) -> ItemStatus) -> Fleet {
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    fleet.accept("control-1");
    fleet.event("control-1", "install", Running);
    let agent = &fleet.agents["control-1"];
    let (known, seq) = (agent.statuses[&item_name("images")].clone(), agent.seq.0);
    // Its lists since the copy was made are unknown.
    fleet.recover_from(fleet.store.clone());
    fleet.connect("control-1");
    for n in 1..=count {
        let ended = ItemStatus { name: item_name(&format!("made-up-{n}")), ..with(n, &known) };
        let begun = ItemStatus { state: Running, finished_at_ms: None, ..ended.clone() };
        fleet.event_at("control-1", Seq(seq + 2 * n - 1), begun).expect("taken");
        fleet.event_at("control-1", Seq(seq + 2 * n), ended).expect("taken");
    }
    fleet
}

/// However many items a machine invents, its quota holds, and the items of its list stay.
#[test]
fn a_machine_fills_no_store_with_statuses() {
    let fleet = makes_up(ITEMS_MAX as u64 + 50, |_, known| known.clone());
    let row = fleet.row("control-1");
    assert_eq!(row.statuses.len(), ITEMS_MAX);
    assert!(row.statuses.contains_key("install"), "its list names it");
}

/// Whatever it prints and however JSON escapes it, the newest output is kept.
#[test]
fn a_machine_fills_no_store_with_output() {
    let fleet = makes_up(100, |n, known| {
        let result_json = Some(format!("\"{}\"", "x".repeat(16 << 10)));
        let output_tail = "\u{1}".repeat(8 << 10);
        ItemStatus { output_tail, result_json, started_at_ms: known.started_at_ms + n, ..known.clone() }
    });
    let statuses = &fleet.row("control-1").statuses;
    let bytes: usize = statuses.values().map(|status| json(&**status).len()).sum();
    assert!((900 << 10..1200 << 10).contains(&bytes), "{bytes}");
    let kept = |item: &str| (!statuses[&item_name(item)].output_tail.is_empty(), statuses[&item_name(item)].attempt);
    assert_eq!((kept("made-up-1"), kept("made-up-100")), ((false, 1), (true, 1)));
}

#[test]
fn a_stranger_with_our_certificate_is_evidence_and_is_not_let_in() {
    let mut fleet = Fleet::of(1, 0);
    let before = fleet.store.clone();
    fleet.enroll("worker-1", muster_proto::model::MachineType::Worker).expect("let in");
    fleet.restart_from(before);
    let hello = fleet.greeting("worker-1");
    assert_eq!(reason(fleet.hello("worker-1", hello)), "UnknownMachine");
    assert!(fleet.core.facts().live.older_than_fleet().is_some());
}

#[test]
fn two_agents_with_one_identity_show_and_one_that_comes_back_is_one() {
    let mut fleet = Fleet::of(1, 0).reported();
    let two = |fleet: &Fleet| {
        let now = fleet.now();
        fleet.look("control-1", |_, view| view.live.expect("connected").has_two_agents(now))
    };
    for _ in 0..5 {
        fleet.disconnect("control-1");
        fleet.connect("control-1");
    }
    assert!(!two(&fleet), "it was gone each time");
    for taken_over in 1..=3 {
        fleet.pass(20_000, &[]);
        fleet.connect("control-1");
        assert_eq!(two(&fleet), taken_over == 3, "{taken_over}");
    }
    let before = fleet.store.clone();
    fleet.ask(Request::RevokeMachine { machine: machine("control-1"), machine_is_off: true }).expect("revoked");
    assert!(!two(&fleet), "neither of them is one any more");
    fleet.restart_from(before);
    fleet.connect("control-1");
    for _ in 1..=3 {
        fleet.pass(20_000, &[]);
        fleet.connect("control-1");
    }
    assert!(two(&fleet));
    fleet.pass(60_000, &[]);
    assert!(!two(&fleet), "one of them has stopped");
    for _ in 1..=3 {
        fleet.pass(60_000, &[]);
        fleet.connect("control-1");
    }
    assert!(!two(&fleet), "now and then, as where a network fails");
}

#[test]
fn a_machine_enrolled_anew_since_the_copy_was_made_says_what_brings_it_back() {
    let mut fleet = Fleet::of(1, 0).reported();
    let before = fleet.store.clone();
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-1", muster_proto::model::MachineType::Control).expect("let in");
    fleet.recover_from(before);
    let hello = fleet.greeting("control-1");
    assert_eq!(reason(fleet.hello("control-1", hello)), "UnknownMachine");
    fleet.pass(60_000, &["control-1"]);
    let blocked = fleet.look("control-1", blocked::of_machine).expect("it is missed");
    assert!(blocked.clears_when.contains("musterctl replace control-1"), "{blocked:?}");
}

#[test]
fn a_ledger_that_knows_no_more_is_no_evidence() {
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    fleet.restart();
    fleet.connect("control-1");
    assert_eq!(fleet.core.facts().live.older_than_fleet(), None);
}

/// An old copy of the store is restored while a machine deploys; `recover` takes over its ledger.
#[test]
fn recover_takes_over_what_the_ledgers_know() {
    let fleet = Fleet::of(2, 0).reported();
    let old = fleet.store.clone();
    let mut fleet = fleet.prepared();
    fleet.begin("control-1");
    let (epoch, generation) = (fleet.core.facts().meta.epoch, fleet.row("control-1").assigned.generation);
    fleet.restart_from(old.clone());
    fleet.connect("control-1");
    assert!(fleet.core.facts().live.older_than_fleet().is_some());

    fleet.recover_from(old);
    assert!(fleet.core.facts().meta.epoch > epoch);
    fleet.connect("control-1");
    assert_eq!(fleet.slot("control-1"), Some(Phase::Deploy), "it must have had one");
    assert!(fleet.row("control-1").assigned.generation >= generation);
    assert!(fleet.core.facts().meta.recovering, "control-2 has not said what it knows");
    fleet.pass(3_600_000, &[]);
    assert_eq!(fleet.slots(), ["control-1"], "however long it takes");
    fleet.connect("control-2");
    assert!(!fleet.core.facts().meta.recovering);
    fleet.event("control-1", "install", Succeeded);
    fleet.accept("control-1");
    assert_eq!(fleet.slots(), ["control-2"]);
}

#[test]
fn recover_leaves_the_slot_to_who_waits_for_an_operator() {
    let fleet = Fleet::of(2, 0).reported();
    let old = fleet.store.clone();
    let mut fleet = fleet.prepared();
    fleet.begin("control-1");
    fleet.event("control-1", "install", Indeterminate);
    fleet.recover_from(old);
    fleet.all_report();
    assert_eq!(fleet.slots(), ["control-1"], "the others may wait for what it began");
}

/// A copy from before an update lacks it, and one from its middle lacks its outcome.
#[test]
fn recover_lets_nothing_go_on_before_somebody_has_looked_at_whoever_may_be_in_an_update() {
    for begun in [false, true] {
        let mut fleet = super::updates::deployed(3, 2);
        super::updates::release(&mut fleet, &["install"], 1);
        let before = fleet.store.clone();
        let mut fleet = fleet.started();
        ["control-1", "control-2", "control-3"].iter().for_each(|control| fleet.upgrade(control));
        assert_eq!(fleet.requests(), ["worker-1"]);
        let middle = fleet.store.clone();
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.begin("worker-1");
        fleet.recover_from(if begun { middle } else { before });
        fleet.all_report();
        fleet.pass(3_600_000, &[]);
        assert_eq!(fleet.why("worker-1").as_deref(), Some("RecoveredInDoubt"), "begun: {begun}");
        assert!(fleet.core.facts().meta.recovering, "and so nobody gets a list");
        let back = |name: &str| Request::LeaveMaintenance { machine: machine(name) };
        assert_eq!(reason(fleet.ask(back("worker-1"))), "ItemRunning", "it is at work");
        fleet.event("worker-1", "install", Succeeded);
        assert_eq!(reason(fleet.ask(back("worker-1"))), "ItemRunning", "its agent may begin the next");
        fleet.pass(90_000, &[]);
        let doubted: Vec<String> = fleet
            .core
            .facts()
            .machines
            .values()
            .filter(|row| row.needs_review)
            .map(|row| row.name.to_string())
            .collect();
        assert!(doubted.contains(&"worker-1".to_owned()));
        for name in &doubted {
            assert!(fleet.part(name).is_none_or(|part| part.permit.is_none()), "{name}");
            fleet.ask(back(name)).expect("an operator has looked");
        }
        assert!(!fleet.core.facts().meta.recovering);
        assert_eq!((fleet.slots(), fleet.requests()), (Vec::<&str>::new(), Vec::<&str>::new()), "begun: {begun}");
        assert_eq!(fleet.due("worker-1"), None, "nothing runs there on what the copy believes");
    }
}

/// The restored copy lacks the revocation of the working `control-1`, and the progress of `control-2`.
#[test]
fn recover_lets_no_two_control_machines_go_on_together() {
    let mut fleet = Fleet::of(3, 0).reported().prepared();
    fleet.begin("control-1");
    let copy = fleet.store.clone();
    let revoke = Request::RevokeMachine { machine: machine("control-1"), machine_is_off: false };
    fleet.ask(revoke.clone()).expect("revoked");
    fleet.begin("control-2");
    fleet.recover_from(copy);
    fleet.all_report();
    let waits_for_inputs = Some((Reason::WaitingForSecret, "asked for".to_owned()));
    let id = fleet.agents["control-1"].id;
    fleet.agent_blocked(id, waits_for_inputs);
    fleet.pass(3_600_000, &[]);
    assert_eq!(fleet.slots(), ["control-1", "control-2"]);
    assert!(fleet.core.facts().meta.recovering, "and so nobody gets a list");
    let waits = ["control-1", "control-2", "control-3"].map(|name| fleet.why(name));
    assert_eq!(waits, [(); 3].map(|()| Some("ControlsAtWork".to_owned())));
    fleet.ask(revoke).expect("revoked again");
    assert!(!fleet.core.facts().meta.recovering);
    assert_eq!(fleet.slots(), ["control-2"]);
    fleet.finish("control-2");
    assert_eq!(fleet.slots(), ["control-3"]);
}

#[test]
fn a_greeting_that_was_overtaken_does_not_take_the_stream_back() {
    let mut fleet = Fleet::of(1, 1).reported();
    let (id, hello) = (fleet.agents["worker-1"].id, fleet.greeting("worker-1"));
    fleet.connect("worker-1");
    let newest = fleet.agents["worker-1"].session.expect("connected");
    let late = Input::Hello { id, session: newest - 1, hello: Box::new(hello) };
    assert_eq!(reason(fleet.step(late)), "Overtaken");
    fleet.accept("worker-1");
    fleet.begin("worker-1");
}

#[test]
fn passing_localhost_changes_no_hostname() {
    let mut fleet = Fleet::of(1, 0).reported();
    let (id, facts) = (fleet.agents["control-1"].id, fleet.greeting("control-1").facts);
    let recorded = |fleet: &Fleet| fleet.row("control-1").host.as_ref().map(|host| host.hostname.clone());
    let own = recorded(&fleet).expect("a hostname");
    for passing in ["localhost", "localhost.localdomain", "10.0.0.9", ""] {
        let facts = HostFacts { hostname: passing.to_owned(), ..facts.clone() };
        fleet.report_host(id, facts.clone());
        assert_eq!(recorded(&fleet).as_deref(), Some(own.as_str()), "{passing:?}");
        fleet.disconnect("control-1");
        let mut hello = fleet.greeting("control-1");
        hello.facts = facts;
        fleet.hello("control-1", hello).expect("greeted");
        assert_eq!(recorded(&fleet).as_deref(), Some(own.as_str()), "{passing:?} in a Hello");
    }
}

#[test]
fn facts_that_are_said_again_cost_no_write() {
    let mut fleet = Fleet::of(1, 0).reported();
    let (id, facts) = (fleet.agents["control-1"].id, fleet.greeting("control-1").facts);
    let (now, session) = (fleet.now(), fleet.agents["control-1"].session.expect("connected"));
    let mut changes = |facts: &HostFacts| {
        let said = Input::HostChanged { id, session, facts: Box::new(facts.clone()) };
        fleet.core.step(vec![said], now).changes.len()
    };
    assert_eq!(changes(&facts), 0);
    assert_eq!(changes(&HostFacts { hostname: "other".to_owned(), ..facts }), 1);
}

/// Seed 6000281: an address was gone for a moment, and that report came after the Hello of the next stream.
#[test]
fn late_facts_of_older_stream_do_not_count() {
    let mut fleet = Fleet::of(1, 0).reported();
    let (id, facts) = (fleet.agents["control-1"].id, fleet.greeting("control-1").facts);
    let older = fleet.agents["control-1"].session.expect("connected");
    fleet.connect("control-1");
    let without = Box::new(HostFacts { internal_ip: None, ..facts });
    fleet.step(Input::HostChanged { id, session: older, facts: without }).expect("known");
    assert_eq!(fleet.why("control-1"), None);
    assert!(fleet.row("control-1").internal_ip().is_some());
}
