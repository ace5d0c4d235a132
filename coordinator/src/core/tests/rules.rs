//! For each safety rule: its grant is withheld *while everything else would allow it*, and made as soon as the rule
//! allows it. A test of withholding alone would pass for a coordinator that never grants anything.

use std::collections::BTreeMap;

use muster_proto::model::{
    ClusterName,
    ItemState::{Failed, Indeterminate, Running, Succeeded},
    MachineType::{Control, Worker},
    Now, Phase, Reason,
};

use super::fleet::{Fleet, SECRET, cluster, item, machine, spec};
use crate::{
    core::{Effect, Input, Request},
    plan::{safety, snapshot::ClusterSnapshot},
};

const FAILED: muster_proto::model::ItemState = Failed { exit_code: 3, retryable: false };

/// The machine could take a slot now: connected, reported, prepared, without one, in the rollout. Only a rule of the
/// fleet blocks it.
fn withheld(fleet: &Fleet, name: &str) -> String {
    let snapshot =
        ClusterSnapshot::of(fleet.core.facts(), &cluster(), fleet.core.limits(), fleet.now()).expect("a cluster");
    let view = snapshot.machines.iter().find(|p| p.row.name == machine(name)).expect("a machine");
    assert!(view.available(), "{name} is available");
    assert!(crate::plan::deploy::wants_slot(&snapshot, view).is_some(), "{name} is ready for a slot");
    assert_eq!(fleet.slot(name), None, "{name}");
    safety::may_take_slot(&snapshot, view).expect_err("withheld").reason.to_string()
}

#[test]
fn rule_1_one_control_machine_at_a_time() {
    let mut fleet = Fleet::of(3, 0).reported().prepared();
    assert_eq!(fleet.slots(), ["control-1"]);
    assert_eq!(withheld(&fleet, "control-2"), "WaitingForTurn");
    fleet.begin("control-1");
    fleet.pass(3_600_000, &[]);
    assert_eq!(withheld(&fleet, "control-2"), "WaitingForTurn");
    fleet.event("control-1", "install", Succeeded);
    assert_eq!(fleet.slots(), ["control-2"]);
}

#[test]
fn rule_2_no_more_workers_than_configured() {
    let mut small = spec(1, 4);
    small.max_worker_deploy_count = 2;
    let mut fleet = Fleet::with(small).reported().prepared();
    fleet.finish_all(Control);
    assert_eq!(fleet.slots(), ["worker-1", "worker-2"]);
    assert_eq!(withheld(&fleet, "worker-3"), "WaitingForTurn");
    fleet.finish("worker-2");
    assert_eq!(fleet.slots(), ["worker-1", "worker-3"]);
}

#[test]
fn rule_2_never_more_than_fifty() {
    let mut huge = spec(1, 52);
    (huge.max_worker_deploy_count, huge.max_worker_prepare_count) = (1_000, 1_000);
    let mut fleet = Fleet::with(huge).reported().prepared();
    fleet.finish_all(Control);
    assert_eq!(fleet.slots().len(), 50);
    assert_eq!(withheld(&fleet, "worker-51"), "WaitingForTurn");
    fleet.finish("worker-07");
    assert_eq!((fleet.slots().len(), fleet.slot("worker-51")), (50, Some(Phase::Deploy)));
}

#[test]
fn workers_do_not_start_in_one_instant() {
    let mut fleet = Fleet::of(1, 5).reported().prepared();
    fleet.finish_all(Control);
    let granted_ms = |n: u32| fleet.row(&format!("worker-{n}")).slot.expect("it has its turn").granted_at_ms;
    let after_first: Vec<u64> = (1..=5).map(|n| granted_ms(n) - granted_ms(1)).collect();
    assert_eq!(after_first, [0, 30, 60, 90, 120]);
    let may_go = |now: Now| {
        let snapshot =
            ClusterSnapshot::of(fleet.core.facts(), &cluster(), fleet.core.limits(), now).expect("a cluster");
        safety::has_worker_slot(&snapshot)
    };
    let now = fleet.now();
    assert!(!may_go(Now { wall_ms: granted_ms(5) + 29, ..now }));
    assert!(may_go(Now { wall_ms: granted_ms(5) + 30, ..now }));
    assert!(may_go(Now { wall_ms: granted_ms(1) - 1, ..now }), "a clock that was set back makes nobody wait");
}

#[test]
fn whoever_follows_a_worker_that_ended_does_not_wait() {
    let mut limited = spec(1, 9);
    limited.max_worker_deploy_count = 6;
    let mut fleet = Fleet::with(limited).reported().prepared();
    fleet.finish_all(Control);
    let granted_ms = |fleet: &Fleet, n: u32| fleet.row(&format!("worker-{n}")).slot.expect("granted").granted_at_ms;
    let after_first: Vec<u64> = (1..=6).map(|n| granted_ms(&fleet, n) - granted_ms(&fleet, 1)).collect();
    assert_eq!(after_first, [0, 30, 30, 30, 30, 30], "of the last four free slots nobody is kept");
    for ended in ["worker-1", "worker-2", "worker-3"] {
        fleet.finish(ended);
    }
    let ended_ms = fleet.now().wall_ms;
    assert_eq!((7..=9).map(|n| granted_ms(&fleet, n)).collect::<Vec<_>>(), [ended_ms; 3]);
}

#[test]
fn rule_2_a_lower_limit_counts_at_once() {
    let mut limited = spec(1, 4);
    limited.max_worker_deploy_count = 3;
    let mut fleet = Fleet::with(limited.clone()).reported().prepared();
    fleet.finish_all(Control);
    limited.max_worker_deploy_count = 1;
    fleet.ask(super::fleet::apply(limited, &[])).expect("applies");
    fleet.finish("worker-1");
    assert_eq!(fleet.slots(), ["worker-2", "worker-3"], "no slot is taken away");
    assert_eq!(withheld(&fleet, "worker-4"), "WaitingForTurn");
}

#[test]
fn rule_3_workers_after_every_control_machine() {
    let mut fleet = Fleet::of(2, 1).reported().prepared();
    assert_eq!(withheld(&fleet, "worker-1"), "WaitingForControl");
    fleet.finish("control-1");
    assert_eq!(withheld(&fleet, "worker-1"), "WaitingForControl");
    fleet.finish("control-2");
    assert_eq!(fleet.slots(), ["control-1"], "it has yet to see the complete set");
    assert_eq!(withheld(&fleet, "worker-1"), "WaitingForControl");
    fleet.finish("control-1");
    assert_eq!(fleet.slots(), ["worker-1"]);
}

#[test]
fn rule_5_a_slot_has_no_timeout() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    fleet.begin("control-1");
    fleet.disconnect("control-1");
    fleet.pass(30 * 24 * 3_600_000, &[]);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Lost"));
    assert_eq!(fleet.slots(), ["control-1"]);
    fleet.restart();
    fleet.connect("control-2");
    fleet.pass(3_600_000, &[]);
    assert_eq!(fleet.slots(), ["control-1"]);
    fleet.connect("control-1");
    fleet.event("control-1", "install", Succeeded);
    assert_eq!(fleet.slots(), ["control-2"]);
}

#[test]
fn rule_5_what_nobody_knows_frees_no_slot() {
    for (state, why) in [(Indeterminate, "Indeterminate"), (FAILED, "Failed")] {
        let mut fleet = Fleet::of(2, 0).reported().prepared();
        fleet.begin("control-1");
        fleet.event("control-1", "install", state);
        assert_eq!((fleet.slots(), fleet.why("control-1").as_deref()), (vec!["control-1"], Some(why)));
    }
}

#[test]
fn rule_5_a_workers_first_failure_frees_its_slot() {
    let mut limited = spec(1, 2);
    limited.max_worker_deploy_count = 1;
    let mut fleet = Fleet::with(limited).reported().prepared();
    fleet.finish_all(Control);
    assert_eq!(fleet.slots(), ["worker-1"]);
    fleet.fail("worker-1");
    assert_eq!(fleet.slots(), ["worker-2"]);
}

/// With its former list, the machine may have begun an item that was removed since; the report may still come.
#[test]
fn rule_5_no_outcome_before_the_newest_list_is_accepted() {
    let mut edited = spec(2, 0);
    edited.machine_types.get_mut(&Control).expect("items").insert(2, item("more", Phase::Deploy));
    let mut fleet = Fleet::with(edited.clone()).reported().prepared();
    fleet.begin("control-1");
    fleet.event("control-1", "install", Succeeded);
    edited.machine_types.get_mut(&Control).expect("items").remove(2);
    fleet.ask(super::fleet::apply(edited, &[])).expect("applies");
    assert_eq!(fleet.slots(), ["control-1"], "it may have begun `more`");
    fleet.accept("control-1");
    assert_eq!(fleet.slots(), ["control-2"]);
}

#[test]
fn rule_5_what_was_taken_out_keeps_the_slot_while_it_runs() {
    let mut edited = spec(2, 0);
    let mut fleet = Fleet::with(edited.clone()).reported().prepared();
    fleet.begin("control-1");
    for items in edited.machine_types.values_mut() {
        items.retain(|item| item.phase == Phase::Prepare);
    }
    fleet.ask(super::fleet::apply(edited, &[])).expect("applies");
    fleet.accept("control-1");
    assert_eq!(fleet.slots(), ["control-1"]);
}

#[test]
fn rule_6_epoch_and_generation_only_grow() {
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    let generation = |fleet: &Fleet| fleet.row("control-1").assigned.generation;
    let (epoch, before) = (fleet.core.facts().meta.epoch, generation(&fleet));
    fleet.restart();
    fleet.connect("control-1");
    assert_eq!(fleet.core.facts().meta.epoch, epoch.next());
    assert_eq!(generation(&fleet), before, "the same content is the same generation");
    let sent = fleet.agents["control-1"].assignment.as_ref().expect("sent again");
    assert_eq!((sent.epoch, sent.generation), (epoch.next(), before));
    let mut edited = spec(1, 0);
    edited.machine_types.get_mut(&Control).expect("items").push(item("more", Phase::Deploy));
    fleet.ask(super::fleet::apply(edited, &[])).expect("applies");
    assert_eq!(generation(&fleet), before.next());
}

#[test]
fn rule_7_what_succeeded_is_left_out_of_a_new_ledger() {
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    fleet.begin("control-1");
    let agent = fleet.agents.get_mut("control-1").expect("an agent");
    agent.ledger = muster_proto::model::LedgerId(uuid::Uuid::from_u128(99));
    agent.assignment = None;
    agent.statuses.clear();
    (agent.seq, agent.acked) = Default::default();
    fleet.connect("control-1");
    let list = fleet.agents["control-1"].assignment.as_ref().expect("a list");
    let names: Vec<&str> = list.items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(names, ["install"], "`images` is not given to it again");
    assert_eq!(fleet.why("control-1").as_deref(), Some("Indeterminate"), "`install` ran when the ledger was lost");
}

#[test]
fn the_failure_budget_withholds_every_grant() {
    let mut fleet = Fleet::of(1, 12).reported().prepared();
    fleet.finish_all(Control);
    fleet.fail("worker-03");
    assert_eq!(fleet.slots().len(), 10, "one failure is within the budget of two");
    fleet.fail("worker-04");
    fleet.finish("worker-01");
    assert_eq!(withheld(&fleet, "worker-12"), "FailureBudget");
    fleet.ask(Request::Retry { machine: machine("worker-03"), item: None }).expect("fits");
    assert_eq!(fleet.slot("worker-12"), Some(Phase::Deploy));
}

#[test]
fn the_lost_count_while_they_hold_a_slot() {
    let mut limited = spec(1, 4);
    limited.max_worker_deploy_count = 2;
    limited.max_failures.worker = 1;
    let mut fleet = Fleet::with(limited).reported().prepared();
    fleet.finish_all(Control);
    fleet.begin("worker-1");
    fleet.disconnect("worker-1");
    fleet.pass(30_000, &[]);
    fleet.finish("worker-2");
    assert_eq!(withheld(&fleet, "worker-3"), "FailureBudget");
    fleet.connect("worker-1");
    assert_eq!(fleet.slots(), ["worker-1", "worker-3"]);
}

/// `control-1` was deploying when the coordinator died; it is done now, and `control-2` is ready. `control-3` is
/// silent.
fn gathering() -> Fleet {
    let mut fleet = Fleet::of(3, 0).reported().prepared();
    fleet.begin("control-1");
    fleet.restart();
    fleet.connect("control-1");
    fleet.connect("control-2");
    fleet.event("control-1", "install", Succeeded);
    assert_eq!(withheld(&fleet, "control-2"), "Gathering");
    fleet
}

#[test]
fn gathering_ends_when_everybody_has_said_hello() {
    let mut fleet = gathering();
    fleet.connect("control-3");
    assert_eq!(fleet.slots(), ["control-2"]);
}

/// One worker at a time may go. The coordinator restarted while worker-1 worked, and worker-1 has finished since;
/// worker-3 is silent.
fn gathering_workers() -> Fleet {
    let mut limited = spec(1, 3);
    limited.max_worker_deploy_count = 1;
    let mut fleet = Fleet::with(limited).reported().prepared();
    fleet.finish_all(Control);
    fleet.begin("worker-1");
    fleet.restart();
    for name in ["control-1", "worker-1", "worker-2"] {
        fleet.connect(name);
    }
    fleet.event("worker-1", "install", Succeeded);
    fleet
}

#[test]
fn gathering_ends_when_the_silent_count_as_lost() {
    let mut fleet = gathering_workers();
    fleet.pass(29_999, &[]);
    assert_eq!(withheld(&fleet, "worker-2"), "Gathering");
    fleet.pass(1, &[]);
    assert_eq!((fleet.slots(), fleet.why("worker-3").as_deref()), (vec!["worker-2"], Some("Lost")));
}

#[test]
fn a_deadline_that_passes_among_heartbeats_is_not_lost() {
    let mut fleet = gathering_workers();
    for ms in [9_000, 9_000, 9_000, 2_999] {
        fleet.heartbeats(ms, &[]);
        assert_eq!(withheld(&fleet, "worker-2"), "Gathering");
    }
    fleet.heartbeats(1, &[]);
    assert_eq!(fleet.slots(), ["worker-2"]);
}

/// Each cluster waits for its own machines. While a copy is recovered it waits for all, and names its own.
#[test]
fn gathering_is_of_one_cluster() {
    let mut fleet = Fleet::of(1, 1).reported().prepared();
    fleet.finish_all(Control);
    let other = ClusterName::new("other").expect("a label");
    let clusters = BTreeMap::from([(other.clone(), (spec(1, 0), BTreeMap::new()))]);
    fleet.ask(Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false }).expect("applies");
    let theirs = Request::CreateToken {
        id: "theirs".to_owned(),
        secret_sha256: SECRET,
        cluster: other,
        machine_type: Control,
        machine: None,
        ttl_ms: None,
        uses: Some(1),
    };
    fleet.ask(theirs).expect("a token");
    fleet.enroll_with("theirs", "silent").expect("enrols");
    let copy = fleet.store.clone();
    fleet.restart();
    for name in ["control-1", "worker-1"] {
        fleet.connect(name);
    }
    assert_eq!(fleet.slots(), ["worker-1"]);
    fleet.recover_from(copy);
    fleet.connect("worker-1");
    let gathering = |fleet: &Fleet| {
        fleet.look("worker-1", |snapshot, _| crate::plan::safety::gathered(snapshot).expect_err("waits").message)
    };
    assert!(gathering(&fleet).ends_with("waits for control-1"), "{}", gathering(&fleet));
    fleet.connect("control-1");
    assert!(gathering(&fleet).ends_with("waits for machines of other clusters"), "{}", gathering(&fleet));
}

#[test]
fn no_time_makes_a_silent_control_machine_idle() {
    let mut fleet = gathering();
    fleet.pass(3_600_000, &[]);
    assert_eq!(withheld(&fleet, "control-2"), "ControlNotHeard");
    fleet.ask(Request::RevokeMachine { machine: machine("control-3"), machine_is_off: true }).expect("it is gone");
    assert_eq!(fleet.slots(), ["control-2"]);
}

/// The copy lacks the slot of `control-2`, and the machines heard since its restoration cannot know of it.
#[test]
fn rule_1_holds_on_a_restored_copy() {
    let mut fleet = Fleet::of(3, 0).reported().prepared();
    for name in ["control-2", "control-3"] {
        fleet.disconnect(name);
    }
    fleet.finish("control-1");
    let copy = fleet.store.clone();
    fleet.connect("control-2");
    fleet.begin("control-2");
    fleet.disconnect("control-2");
    fleet.restart_from(copy);
    for name in ["control-1", "control-3"] {
        fleet.connect(name);
    }
    fleet.pass(3_600_000, &[]);
    assert_eq!(withheld(&fleet, "control-3"), "ControlNotHeard", "`control-2` is at work");
    fleet.connect("control-2");
    assert_eq!(fleet.why("control-3").as_deref(), Some("StoreOlderThanFleet"));
}

#[test]
fn prepare_has_a_limit_of_its_own() {
    let mut limited = spec(1, 4);
    limited.max_worker_prepare_count = 2;
    let mut fleet = Fleet::with(limited).reported();
    let preparing = |fleet: &Fleet| {
        let names = ["worker-1", "worker-2", "worker-3", "worker-4"];
        names.map(|name| fleet.row(name).max_phase.is_some())
    };
    assert_eq!(preparing(&fleet), [true, true, false, false]);
    fleet.accept("worker-2");
    fleet.event("worker-2", "images", Running);
    assert_eq!(preparing(&fleet), [true, true, false, false]);
    fleet.event("worker-2", "images", Succeeded);
    assert_eq!(preparing(&fleet), [true, true, true, false]);
    fleet.accept("worker-1");
    fleet.event("worker-1", "images", Running);
    fleet.event("worker-1", "images", FAILED);
    assert_eq!(preparing(&fleet), [true, true, true, true], "who has failed prepares no more");
}

#[test]
fn only_who_is_connected_and_able_is_granted() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    let id = fleet.agents["control-2"].id;
    let full = Some((Reason::DiskFull, "full".to_owned()));
    fleet.agent_blocked(id, full);
    fleet.finish("control-1");
    assert_eq!((fleet.slots(), fleet.why("control-2").as_deref()), (Vec::new(), Some("DiskFull")));
    fleet.agent_blocked(id, None);
    assert!(fleet.effects.iter().any(|effect| matches!(effect, Effect::Assign { id: to, .. } if *to == id)));
    assert_eq!(fleet.slots(), ["control-2"]);
}

#[test]
fn unassigned_machines_get_nothing() {
    let mut fleet = Fleet::of(1, 0);
    fleet.ask(super::fleet::token("unassigned", muster_proto::model::MachineType::Unassigned)).expect("a token");
    fleet.enroll_with("unassigned", "spare-1").expect("enrolls");
    let mut fleet = fleet.reported().prepared();
    fleet.finish_all(Control);
    assert!(fleet.agents["spare-1"].assignment.is_none());
    assert_eq!((fleet.state("spare-1"), fleet.why("spare-1").as_deref()), ("Uninitialized", Some("Unassigned")));
    assert_eq!(fleet.state("control-1"), "Ready", "it holds up nobody");
    fleet.ask(super::fleet::apply(spec(1, 0), &[("worker-9", super::fleet::machine_spec(Worker))])).expect("applies");
    assert_eq!(fleet.why("worker-9").as_deref(), Some("NotEnrolled"));
}

#[test]
fn a_failure_behind_an_item_that_was_changed_is_no_end() {
    let mut wanted = spec(1, 1);
    let items = wanted.machine_types.get_mut(&Worker).expect("items");
    items.insert(2, item("check", Phase::Deploy));
    let mut fleet = Fleet::with(wanted.clone()).reported().prepared();
    fleet.finish_all(Control);
    fleet.accept("worker-1");
    fleet.event("worker-1", "install", Running);
    fleet.event("worker-1", "install", Succeeded);
    fleet.event("worker-1", "check", Running);
    wanted.machine_types.get_mut(&Worker).expect("items")[1].version = "2".to_owned();
    fleet.ask(super::fleet::apply(wanted, &[])).expect("applies");
    fleet.event("worker-1", "check", FAILED);
    fleet.accept("worker-1");
    assert_eq!((fleet.due("worker-1").as_deref(), fleet.slots()), (Some("install"), vec!["worker-1"]));
    fleet.event("worker-1", "install", Running);
    assert_eq!(fleet.slots(), ["worker-1"]);
    fleet.event("worker-1", "install", Succeeded);
    assert_eq!(fleet.slots(), Vec::<&str>::new(), "now it has stopped at what failed");
}

#[test]
fn a_revoked_machine_takes_no_place_in_prepare() {
    let mut spec = spec(1, 2);
    spec.max_worker_prepare_count = 1;
    let mut fleet = Fleet::with(spec).reported();
    assert_eq!((fleet.state("worker-1"), fleet.state("worker-2")), ("Prepare", "Pending"));
    fleet.ask(Request::RevokeMachine { machine: machine("worker-1"), machine_is_off: false }).expect("revoked");
    assert_eq!(fleet.state("worker-2"), "Prepare");
}

/// An agent was blocked and reconnected unblocked; a message of its former stream comes last.
#[test]
fn what_comes_late_on_an_older_stream_blocks_nobody() {
    let mut fleet = Fleet::of(1, 0).reported();
    let agent = &fleet.agents["control-1"];
    let (id, session) = (agent.id, agent.session.expect("connected"));
    fleet.connect("control-1");
    let blocked = Some((Reason::DiskFull, "full".to_owned()));
    fleet.step(Input::AgentBlocked { id, session, blocked }).expect("known");
    let fleet = fleet.prepared();
    assert_eq!(fleet.slots(), ["control-1"]);
}
