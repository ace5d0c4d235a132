//! Backups of an update, told as stories.

use muster_proto::model::{
    Backups, CONSISTENT_COPY_ITEM, ItemState, LcmType, LockState, MKE_BACKUP_ITEM, MachineType::Control, Phase,
    RemovalPolicy, RunnerKind, SWARM_COPY_ITEM, Scope, StateItem,
};

use super::{fleet::*, reason, updates::*};
use crate::{
    core::{Request, update::Options},
    documents,
    facts::{Added, UpdateRow},
};

const RESULT: &str = r#"{"path":"/srv/backup/swarm/x","bytes":42,"sha256":"ab","files":3}"#;
const CONTROLS: [&str; 3] = ["control-1", "control-2", "control-3"];

/// `count` control machines with these additional items, deployed and guarded, with the next release applied.
fn controls(count: u32, more: &[RunnerKind]) -> Fleet {
    let mut spec = spec(count, 0);
    let items = more.iter().map(|runner| StateItem { runner: *runner, ..item(runner.as_str(), Phase::Deploy) });
    spec.machine_types.get_mut(&Control).expect("items").extend(items);
    let mut fleet = guarded(Fleet::with(spec));
    release(&mut fleet, &["images", "install"], 1);
    fleet
}

const SWARM: &[RunnerKind] = &[RunnerKind::SwarmJoin];
const SWARM_AND_MKE: &[RunnerKind] = &[RunnerKind::SwarmJoin, RunnerKind::Mke];

fn options(skip_backup: bool) -> Options {
    Options { accept_control_plane_downtime: true, skip_backup, ..Options::of(Scope::Drain) }
}

fn start(skip_backup: bool) -> Request {
    Request::Update { cluster: cluster(), options: options(skip_backup) }
}

fn update_row(fleet: &Fleet) -> &UpdateRow {
    let rollout = fleet.core.facts().rollouts.values().filter_map(|rollout| rollout.update.as_ref()).next_back();
    rollout.expect("an update")
}

fn added(fleet: &Fleet, name: &str) -> Vec<Added> {
    update_row(fleet).targets[&machine(name)].added.clone()
}

/// The running item succeeds, and leaves a result.
fn succeed(fleet: &mut Fleet, name: &str, item: &str) {
    let now = fleet.now().wall_ms;
    let agent = fleet.agents.get_mut(name).expect("an agent");
    let mut status = agent.statuses[&item_name(item)].clone();
    (status.state, status.finished_at_ms) = (ItemState::Succeeded, Some(now));
    status.result_json = Some(RESULT.to_owned());
    agent.statuses.insert(status.name.clone(), status.clone());
    agent.seq = agent.seq.next();
    let seq = agent.seq;
    fleet.event_at(name, seq, status).expect("the next event");
    fleet.agents.get_mut(name).expect("an agent").acked = seq;
}

fn begin(fleet: &mut Fleet, name: &str, item: &str) {
    assert_eq!(fleet.begin(name), item, "{name}");
}

#[test]
fn hot_copies_come_first_and_consistent_ones_in_each_managers_turn() {
    let mut fleet = controls(3, SWARM_AND_MKE);
    fleet.ask(start(false)).expect("starts");
    for name in ["control-2", "control-3", "control-1"] {
        assert!(update_row(&fleet).request.is_none() && fleet.slots().is_empty(), "one copy is not made");
        begin(&mut fleet, name, SWARM_COPY_ITEM);
        succeed(&mut fleet, name, SWARM_COPY_ITEM);
    }
    assert!(update_row(&fleet).request.is_none(), "MKE's is not made");
    begin(&mut fleet, "control-1", MKE_BACKUP_ITEM);
    succeed(&mut fleet, "control-1", MKE_BACKUP_ITEM);
    assert!(update_row(&fleet).request.is_some());
    let made = &update_row(&fleet).backups;
    assert_eq!(made.len(), 4);
    assert!(made.iter().all(|made| (made.bytes, made.sha256.as_str()) == (42, "ab")), "{made:?}");

    CONTROLS.iter().for_each(|name| fleet.finish(name));
    fleet.lock("ceph", None, LockState::Inactive);
    for name in CONTROLS {
        assert_eq!(fleet.due(name), None, "its turn has come, and its locks are active");
        fleet.lock("ceph", Some(name), LockState::Inactive);
        begin(&mut fleet, name, CONSISTENT_COPY_ITEM);
        assert_eq!(fleet.slots(), [name], "one at a time");
        succeed(&mut fleet, name, CONSISTENT_COPY_ITEM);
        fleet.finish(name);
        fleet.lock("ceph", Some(name), LockState::Active);
    }
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert_eq!(update_row(&fleet).backups.len(), 7);

    // Once in every update: the next makes its own.
    release(&mut fleet, &["images"], 1);
    fleet.ask(start(false)).expect("starts");
    begin(&mut fleet, "control-1", SWARM_COPY_ITEM);
    assert!(!added(&fleet, "control-1").contains(&Added::ConsistentCopy), "nobody is disturbed");
}

#[test]
fn a_failed_backup_stops_the_update_until_somebody_does_without() {
    let mut fleet = controls(3, SWARM);
    fleet.ask(start(false)).expect("starts");
    fleet.finish("control-2");
    fleet.finish("control-3");
    fleet.fail("control-1");
    fleet.pass(60_000, &[]);
    let why = |fleet: &Fleet, name| fleet.why(name).unwrap_or_default();
    assert_eq!((why(&fleet, "control-1"), why(&fleet, "control-2")), ("Failed".into(), "BeforeUpdate".into()));
    assert!(update_row(&fleet).request.is_none());
    let item = Some(item_name(SWARM_COPY_ITEM));
    fleet.ask(Request::Skip { machine: machine("control-1"), item }).expect("without it");
    fleet.accept("control-1");
    assert!(update_row(&fleet).request.is_some());
    assert_eq!(update_row(&fleet).backups.len(), 2, "what was made is known");
}

#[test]
fn nothing_is_touched_before_every_manager_is_copied_whoever_is_lost_or_goes() {
    let mut fleet = controls(3, SWARM);
    fleet.ask(start(false)).expect("starts");
    fleet.finish("control-1");
    fleet.finish("control-2");
    fleet.disconnect("control-3");
    fleet.pass(60_000, &["control-3"]);
    assert_eq!(
        (fleet.why("control-3").as_deref(), fleet.why("control-1").as_deref()),
        (Some("Lost"), Some("BeforeUpdate"))
    );

    let remove =
        |policy| Request::Remove { machine: machine("control-3"), policy, accept_control_plane_downtime: true };
    assert_eq!(reason(fleet.ask(remove(RemovalPolicy::Graceful))), "RemovalNeedsAgent");
    fleet.connect("control-3");
    assert_eq!(reason(fleet.ask(remove(RemovalPolicy::Graceful))), "RolloutOpen");
    fleet.ask(remove(RemovalPolicy::Forced)).expect("begins");
    fleet.pass(1_000, &["control-3"]);
    assert!(update_row(&fleet).request.is_none() && fleet.slots().is_empty());
    assert_eq!(fleet.why("control-1").as_deref(), Some("BeforeUpdate"));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout: rollout.clone() }).expect("ends");
    ["control-1", "control-2"].iter().for_each(|name| fleet.accept(name));
    assert!(fleet.core.facts().rollouts[&rollout].finished_at_ms.is_some(), "nothing was taken");
    assert_eq!(update_row(&fleet).backups.len(), 2, "what was made is known");
}

/// Additions to the first control machine, and the notes of `plan`.
fn planned(fleet: &Fleet, skip_backup: bool) -> Vec<String> {
    let plan = documents::plan(fleet.core.facts(), &cluster(), &options(skip_backup), fleet.core.limits(), fleet.now());
    plan.expect("a plan").update.expect("something to do").notes
}

/// The plan stays the same after a short loss of a machine's stream.
#[test]
fn what_was_agreed_to_depends_on_no_connection() {
    let mut fleet = controls(3, SWARM_AND_MKE);
    let planned = |fleet: &Fleet| {
        let facts = fleet.core.facts();
        let plan = documents::plan(facts, &cluster(), &options(false), fleet.core.limits(), fleet.now());
        plan.expect("a plan").update.expect("something to do").digest
    };
    let agreed = planned(&fleet);
    fleet.disconnect("control-1");
    let options = Options { agreed, ..options(false) };
    fleet.ask(Request::Update { cluster: cluster(), options }).expect("it is the same");
    assert!(added(&fleet, "control-1").contains(&Added::MkeBackup), "it is about to be back");

    let mut fleet = controls(3, SWARM_AND_MKE);
    fleet.disconnect("control-1");
    fleet.pass(60_000, &["control-1"]);
    fleet.ask(start(false)).expect("starts");
    assert!(added(&fleet, "control-2").contains(&Added::MkeBackup), "who is lost is spared it");
}

#[test]
fn what_is_backed_up_and_where() {
    let mut fleet = controls(2, SWARM_AND_MKE);
    let [note] = &planned(&fleet, false)[..] else { panic!("one note") };
    assert!(note.contains("hot only"), "{note}");
    fleet.ask(start(false)).expect("starts");
    assert_eq!(added(&fleet, "control-1"), [Added::SwarmCopy, Added::MkeBackup]);
    assert_eq!(added(&fleet, "control-2"), [Added::SwarmCopy], "of two none is stopped");

    let mut fleet = controls(3, SWARM);
    assert!(planned(&fleet, false).is_empty());
    assert_eq!(planned(&fleet, true), ["nothing is backed up (--skip-backup)"]);
    fleet.ask(start(true)).expect("starts");
    assert!(added(&fleet, "control-1").is_empty() && update_row(&fleet).skip_backup);
    let said = fleet.core.facts().audit_lines().pop().expect("a line").message.clone();
    assert!(said.contains("without backups"), "{said}");

    // A swarm that Muster cannot join.
    let mut fleet = controls(3, &[]);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.lcm_type = LcmType::Swarm;
    fleet.ask(apply(spec, &[])).expect("applies");
    let [note] = &planned(&fleet, false)[..] else { panic!("one note") };
    assert!(
        note.starts_with("the Swarm is not backed up, for its control machines have no `swarm-join` item"),
        "{note}"
    );

    // Neither a swarm nor MKE; then no swarm yet, because the next release creates it.
    let mut fleet = controls(3, &[]);
    assert!(planned(&fleet, false).is_empty() && planned(&fleet, true).is_empty());
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    let join = StateItem { runner: RunnerKind::SwarmJoin, ..item("swarm", Phase::Deploy) };
    spec.machine_types.get_mut(&Control).expect("items").push(join);
    fleet.ask(apply(spec, &[])).expect("applies");
    fleet.ask(start(false)).expect("starts");
    assert!(added(&fleet, "control-1").is_empty());
}

/// An operator skipped its swarm-join at its deployment.
#[test]
fn whoever_is_in_no_swarm_is_not_copied() {
    let mut spec = spec(3, 0);
    let join = StateItem { runner: RunnerKind::SwarmJoin, ..item("swarm", Phase::Deploy) };
    spec.machine_types.get_mut(&Control).expect("items").push(join);
    let mut fleet = Fleet::with(spec).reported().prepared();
    ["control-1", "control-2"].iter().for_each(|name| fleet.finish(name));
    fleet.begin("control-3");
    fleet.event("control-3", "install", ItemState::Succeeded);
    fleet.fail("control-3");
    fleet.ask(Request::Skip { machine: machine("control-3"), item: None }).expect("without it");
    let mut fleet = guarded(fleet);
    // The next release brings it in: until then it lacks the state to copy.
    for changed in ["install", "swarm"] {
        release(&mut fleet, &[changed], 1);
        fleet.ask(start(false)).expect("starts");
        assert_eq!(CONTROLS.map(|name| added(&fleet, name).len()), [1, 1, 0], "of two managers none is stopped");
        let rollout = fleet.rollout();
        fleet.ask(Request::Abort { rollout }).expect("ends");
        CONTROLS.iter().for_each(|name| fleet.accept(name));
    }
}

#[test]
fn a_backup_knows_how_mke_is_reached() {
    let mut install = StateItem { runner: RunnerKind::Mke, ..item("mke", Phase::Deploy) };
    let params = [("action", "install"), ("version", "3.7"), ("admin_user", "a"), ("port", "6443")];
    install.params = params.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let backups = Backups { mke: [("port".to_owned(), "443".to_owned())].into(), ..Backups::default() };
    let params = backups.of_mke(&[install], "1").params;
    let params: Vec<(&str, &str)> = params.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(params, [("action", "backup"), ("admin_user", "a"), ("args", "--no-passphrase"), ("port", "443")]);
}

#[test]
fn a_row_from_before_backups_reads() {
    let mut fleet = controls(3, SWARM);
    fleet.ask(start(false)).expect("starts");
    let row = update_row(&fleet);
    let mut old = serde_json::to_value(row).expect("JSON");
    let fields = old.as_object_mut().expect("a row");
    assert!(fields.remove("skip_backup").is_some());
    assert_eq!(serde_json::from_value::<UpdateRow>(old).expect("reads"), *row);
}
