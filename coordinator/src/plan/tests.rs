//! `musterctl plan` as an operator reads it, at several points of a deployment of 3 control and 60 worker machines. The
//! transcripts are `tests/golden/plan/*.txt`; `MUSTER_GOLDEN=update` rewrites them.

use std::{fs, path::PathBuf};

use muster_proto::model::{
    ItemName, ItemState, LockState, MachineSpec,
    MachineType::{Control, Worker},
    Phase, RunnerKind, Scope, StateItem, UpdateGroup, UpdateGroupName,
};
use musterctl::view;

use crate::{
    core::{
        Request,
        tests::{Fleet, apply, cluster, machine, machine_spec, updates},
        update::Options,
    },
    documents,
};

fn transcript(fleet: &Fleet) -> String {
    let options = Options::of(Scope::Drain);
    let (facts, limits) = (fleet.core.facts(), fleet.core.limits());
    let plan = documents::plan(facts, &cluster(), &options, limits, fleet.now()).expect("a cluster");
    let mut text = view::plan_lines(&plan).join("\n");
    text.push('\n');
    text
}

fn check(moment: &str, fleet: &Fleet) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/golden/plan/{moment}.txt"));
    let text = transcript(fleet);
    let wide = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(wide <= 120 || !moment.starts_with("update"), "{moment}: {wide} characters fit no terminal\n{text}");
    if std::env::var("MUSTER_GOLDEN").is_ok_and(|value| value == "update") {
        fs::write(&path, &text).expect("the golden file can be written");
    }
    let golden = fs::read_to_string(&path).expect("a golden file");
    assert!(text == golden, "{} differs; the plan says now:\n{text}", path.display());
}

/// All machines are prepared, and the control machines are Ready.
fn fleet_at_work() -> Fleet {
    let mut fleet = Fleet::of(3, 60).reported().prepared();
    fleet.finish_all(Control);
    fleet
}

#[test]
fn before_anyone_enrolled() {
    check("nobody-enrolled", &Fleet::applied(crate::core::tests::spec(3, 60)));
}

#[test]
fn before_anyone_reported() {
    check("nobody-reported", &Fleet::of(3, 60));
}

#[test]
fn half_reported() {
    let mut fleet = Fleet::of(3, 60);
    let switched_on =
        |name: &String| name.as_str() < "control-3" || ("worker-01".."worker-31").contains(&name.as_str());
    for name in fleet.agents.keys().filter(|name| switched_on(name)).cloned().collect::<Vec<_>>() {
        fleet.connect(&name);
    }
    check("half-reported", &fleet);
}

#[test]
fn all_reported() {
    check("all-reported", &Fleet::of(3, 60).reported());
}

#[test]
fn the_first_control_machine_deploys() {
    let mut fleet = Fleet::of(3, 60).reported().prepared();
    fleet.begin("control-1");
    check("first-control", &fleet);
}

#[test]
fn the_second_control_machine_deploys() {
    let mut fleet = Fleet::of(3, 60).reported().prepared();
    fleet.finish("control-1");
    fleet.begin("control-2");
    check("second-control", &fleet);
}

#[test]
fn workers_in_flight() {
    let mut fleet = fleet_at_work();
    fleet.finish("worker-01");
    check("workers-in-flight", &fleet);
}

#[test]
fn one_failed() {
    let mut fleet = fleet_at_work();
    fleet.fail("worker-03");
    check("one-failed", &fleet);
}

#[test]
fn the_budget_is_used_up() {
    let mut fleet = fleet_at_work();
    fleet.fail("worker-03");
    fleet.fail("worker-04");
    check("budget-used-up", &fleet);
}

#[test]
fn one_is_lost() {
    let mut fleet = fleet_at_work();
    fleet.begin("worker-05");
    fleet.disconnect("worker-05");
    fleet.pass(45_000, &["worker-05"]);
    check("one-lost", &fleet);
}

#[test]
fn after_a_restart() {
    let mut fleet = fleet_at_work();
    fleet.restart();
    fleet.connect("control-1");
    check("gathering", &fleet);
}

#[test]
fn all_ready() {
    let mut fleet = fleet_at_work();
    fleet.finish_all(Worker);
    check("all-ready", &fleet);
}

#[test]
fn an_update_is_planned() {
    let mut fleet = fleet_at_work();
    fleet.finish_all(Worker);
    let mut newer = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    newer.release = "2".to_owned();
    newer.max_worker_upgrade_count = 4;
    let of_type = |items: &mut Vec<StateItem>, name: &str| {
        items.iter_mut().filter(|item| item.name.as_str() == name).for_each(|item| item.version.push_str(".1"));
    };
    newer.machine_types.values_mut().for_each(|items| of_type(items, "images"));
    newer.machine_types.get_mut(&Worker).into_iter().for_each(|items| of_type(items, "install"));
    fleet.ask(apply(newer.clone(), &[])).expect("applies");
    check("update", &fleet);
    let group = |name: &str, index, concurrent_updates| UpdateGroup {
        name: UpdateGroupName::new(name).expect("a name"),
        index,
        concurrent_updates,
        reboot_if_update_requires: false,
    };
    newer.update_groups = vec![group("canary", 0, 1), group("storage", 5, 2)];
    let member = |name: &str| MachineSpec {
        update_group: Some(UpdateGroupName::new(name).expect("a name")),
        ..machine_spec(Worker)
    };
    let members = [("worker-07", "canary"), ("worker-10", "storage"), ("worker-11", "storage")];
    fleet.ask(apply(newer, &members.map(|(name, group)| (name, member(group))))).expect("applies");
    check("update-groups", &fleet);
}

/// The phases and the warnings of the plan for the next release.
fn planned(fleet: &Fleet) -> (Vec<(String, String)>, Vec<String>) {
    let (facts, limits) = (fleet.core.facts(), fleet.core.limits());
    let plan = documents::plan(facts, &cluster(), &Options::of(Scope::Drain), limits, fleet.now()).expect("a cluster");
    let update = plan.update.expect("an update");
    (update.phases.into_iter().map(|phase| (phase.name, phase.what)).collect(), update.warnings)
}

#[test]
fn locks_that_are_failed_are_warned_of() {
    let mut fleet = updates::deployed(3, 2);
    updates::release(&mut fleet, &["install"], 1);
    assert_eq!(planned(&fleet).1, Vec::<String>::new());
    fleet.lock("ceph", Some("worker-2"), LockState::Failed);
    fleet.lock("ceph", None, LockState::Failed);
    let of_cluster = "edge-7: its ClusterWorkloadLock is failed - ceph: failed";
    assert_eq!(planned(&fleet).1, [of_cluster, "worker-2: its NodeWorkloadLock is failed - ceph: failed"]);
}

#[test]
fn an_update_that_disturbs_nothing_says_so() {
    let mut fleet = updates::deployed(3, 2);
    let mut newer = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    for item in newer.machine_types.values_mut().flatten().filter(|item| item.name.as_str() == "install") {
        item.version.push_str(".1");
        item.disruptive = Some(false);
    }
    fleet.ask(apply(newer, &[])).expect("applies");
    let what = "5 machines, in their order".to_owned();
    assert_eq!(planned(&fleet).0, [("items".to_owned(), what)]);
}

/// Impact and pause that the plan shows for control machines, if their operator accepts any downtime.
fn of_controls(fleet: &mut Fleet) -> (String, String) {
    updates::release(fleet, &["install"], 1);
    let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Drain) };
    let (facts, limits) = (fleet.core.facts(), fleet.core.limits());
    let plan = documents::plan(facts, &cluster(), &options, limits, fleet.now()).expect("a cluster");
    let update = plan.update.expect("an update");
    let control = update.phases.into_iter().find(|phase| phase.name == "control machines").expect("a phase");
    (control.impact, control.pause)
}

/// Without the only control machine the control plane is down. Of three, two carry on only if both are there.
#[test]
fn what_an_update_costs_depends_on_who_carries_on() {
    let (down, pause) = ("the control plane is down meanwhile".to_owned(), "yes, between two".to_owned());
    assert_eq!(of_controls(&mut updates::deployed(1, 1)), (down.clone(), "no".to_owned()));
    let mut fleet = updates::deployed(3, 1);
    assert_eq!(of_controls(&mut fleet), ("the others carry on".to_owned(), pause.clone()));
    fleet.ask(Request::RevokeMachine { machine: machine("control-3"), machine_is_off: true }).expect("revoked");
    assert_eq!(of_controls(&mut fleet), (down, pause));
}

#[test]
fn an_update_under_way_is_shown() {
    let mut fleet = updates::deployed(3, 12);
    updates::release(&mut fleet, &["images", "install"], 2);
    let mut fleet = fleet.started();
    fleet.upgrade("control-1");
    fleet.lock("ceph", Some("control-2"), LockState::Inactive);
    fleet.begin("control-2");
    check("update-under-way", &fleet);
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("pauses");
    check("update-paused", &fleet);
    fleet.enroll("worker-13", Worker).expect("enrols");
    fleet.connect("worker-13");
    check("update-newcomer", &fleet);
    let failed = ItemState::Failed { exit_code: 3, retryable: false };
    fleet.event("control-2", "install", failed);
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    check("update-aborting", &fleet);
}

#[test]
fn an_update_with_backups_is_planned() {
    let mut spec = crate::core::tests::spec(3, 2);
    let items = spec.machine_types.entry(Control).or_default();
    for (item, runner) in items.clone().iter().zip([RunnerKind::SwarmJoin, RunnerKind::Mke]) {
        let name = ItemName::new(runner.as_str()).expect("a label");
        items.push(StateItem { name, runner, phase: Phase::Deploy, ..item.clone() });
    }
    let mut fleet = Fleet::with(spec.clone()).reported().prepared();
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    spec.release = "2".to_owned();
    let all = spec.machine_types.values_mut().flatten();
    let changed = all.filter(|item| ["images", "install"].contains(&item.name.as_str()));
    changed.for_each(|item| item.version.push_str(".1"));
    fleet.ask(apply(spec, &[])).expect("applies");
    check("update-backups", &fleet);
}
