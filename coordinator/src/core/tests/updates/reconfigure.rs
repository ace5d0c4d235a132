//! Changes of the set of control machines: machines that were Ready are reconfigured as in an update.

use std::collections::BTreeMap;

use muster_proto::model::MachineSpec;

use super::*;

/// A deployed cluster with the control machines in `join`.
pub(crate) fn knows_controls(control: u32, worker: u32) -> Fleet {
    guarded(Fleet::with(knows_controls_of(control, worker)))
}

/// Its spec.
pub(crate) fn knows_controls_of(control: u32, worker: u32) -> ClusterSpec {
    let mut spec = spec(control, worker);
    for join in spec.machine_types.values_mut().flatten().filter(|item| item.name.as_str() == "join") {
        join.params.insert("controls".to_owned(), "${cluster.controlPlaneNodes}".to_owned());
    }
    spec
}

impl Fleet {
    /// Deploys one more control machine.
    pub(crate) fn add_control(&mut self, name: &str) {
        self.enroll(name, Control).expect("enrols");
        self.connect(name);
        self.finish(name);
        assert_eq!(self.state(name), "Ready");
    }
}

#[test]
fn the_others_are_reconfigured_as_in_an_update() {
    let mut fleet = knows_controls(3, 1);
    fleet.add_control("control-4");
    assert_eq!((fleet.slots(), fleet.requests()), (Vec::new(), Vec::new()), "the cluster's own lock is active");
    let row = fleet.core.facts().open_rollout(&cluster()).expect("it begins by itself");
    assert_eq!((row.name.as_str(), row.started_by.as_str()), ("edge-7-reconfigure-3", "muster"));
    let targets = &row.update.as_ref().expect("like an update").targets;
    assert_eq!(targets.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["control-1", "control-2", "control-3"]);
    let audited =
        fleet.core.facts().audit_lines().into_iter().any(|line| line.actor == "muster" && line.action == "reconfigure");
    assert!(audited, "it began by itself, and that is recorded");
    let waves = |fleet: &Fleet| fleet.look("control-1", |snapshot, _| crate::plan::waves::plan(snapshot)).waves;
    let wave = &waves(&fleet)[0];
    let ahead: Vec<(&str, bool)> = wave.machines.iter().map(|m| (m.name.as_str(), m.blocked.is_some())).collect();
    assert_eq!((wave.phase, wave.at_once), (Phase::Reconfigure, 1));
    assert_eq!(ahead, [("control-1", true), ("control-2", true), ("control-3", true)]);
    fleet.lock("ceph", None, LockState::Inactive);
    for control in ["control-1", "control-2", "control-3"] {
        assert_eq!((fleet.requests(), fleet.due(control)), (vec![control], None), "its workloads are there");
        assert_eq!(waves(&fleet)[0].machines[0].name, control);
        fleet.upgrade(control);
        assert_eq!(fleet.agents[control].statuses[&item_name("join")].attempt, 1);
    }
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none() && waves(&fleet).is_empty());
    assert_eq!(fleet.row("control-1").ready_at.as_ref().map(|(_, version)| *version), Some(1), "its version stays");
    assert!(["control-1", "control-4", "worker-1"].iter().all(|name| fleet.why(name).is_none()));
}

#[test]
fn whoever_is_lost_is_reconfigured_when_it_is_back() {
    let mut fleet = knows_controls(3, 1);
    fleet.disconnect("control-3");
    fleet.pass(60_000, &["control-3"]);
    fleet.add_control("control-4");
    let targets = |fleet: &Fleet| -> Vec<String> {
        let row = fleet.core.facts().open_rollout(&cluster()).expect("a rollout");
        row.update.as_ref().expect("like an update").targets.keys().map(ToString::to_string).collect()
    };
    assert_eq!(targets(&fleet), ["control-1", "control-2"]);
    assert_eq!(fleet.why("control-3").as_deref(), Some("Lost"));
    fleet.connect("control-3");
    fleet.lock("ceph", None, LockState::Inactive);
    ["control-1", "control-2"].iter().for_each(|name| fleet.upgrade(name));
    assert_eq!(targets(&fleet), ["control-3"], "one of its own");
}

/// Another machine replaces a control machine: deployed, with its own address or with the former one.
fn take_its_place(fleet: &mut Fleet, name: &str, keeps_address: bool) {
    let ip = fleet.agents[name].ip.clone();
    fleet.ask(Request::ReplaceMachine { machine: machine(name), machine_is_off: true }).expect("replaced");
    fleet.enroll(name, Control).expect("enrols");
    if keeps_address {
        fleet.agents.get_mut(name).expect("an agent").ip = ip;
    }
    fleet.connect(name);
    fleet.finish(name);
    assert_eq!(fleet.state(name), "Ready");
}

#[test]
fn the_others_hear_where_a_replaced_control_machine_is() {
    let mut fleet = knows_controls(3, 1);
    take_its_place(&mut fleet, "control-2", false);
    let row = fleet.core.facts().open_rollout(&cluster()).expect("it begins by itself");
    let targets = &row.update.as_ref().expect("like an update").targets;
    assert_eq!(targets.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["control-1", "control-3"]);
    fleet.lock("ceph", None, LockState::Inactive);
    ["control-1", "control-3"].iter().for_each(|name| fleet.upgrade(name));
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "and that is all");
    let ip = &fleet.agents["control-2"].ip;
    let seen = |name: &str| fleet.row(name).control_sets[&Phase::Reconfigure].addresses.clone();
    assert!(["control-1", "control-3"].iter().all(|name| seen(name).contains(ip)), "{ip}: {}", seen("control-1"));
}

#[test]
fn a_control_machine_with_the_address_of_the_one_before_disturbs_nobody() {
    let mut fleet = knows_controls(3, 1);
    take_its_place(&mut fleet, "control-2", true);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert!(["control-1", "control-2", "control-3", "worker-1"].iter().all(|name| fleet.why(name).is_none()));
}

#[test]
fn a_control_machine_that_says_another_address_disturbs_nobody_unasked() {
    let mut fleet = knows_controls(3, 1);
    fleet.disconnect("control-2");
    fleet.agents.get_mut("control-2").expect("an agent").ip = "10.9.9.9".to_owned();
    fleet.connect("control-2");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    take_its_place(&mut fleet, "control-3", true);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "nor when another takes the place of a third");
    assert!(fleet.why("control-1").is_none());
}

#[test]
fn a_control_machine_without_an_address_for_a_moment_is_still_one() {
    let mut fleet = knows_controls(3, 1);
    fleet.ask(Request::Deploy { cluster: cluster() }).expect("with those that are there");
    let mut facts = fleet.row("control-2").host.clone().expect("it has reported");
    facts.internal_ip = None;
    let id = fleet.agents["control-2"].id;
    fleet.report_host(id, facts);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    let facts = fleet.core.facts();
    let set = crate::plan::items::complete_set(facts, &facts.clusters[&cluster()]);
    assert!(set.addresses.contains(&fleet.agents["control-2"].ip), "it is where it was: {set:?}");
}

#[test]
fn another_order_of_control_machines_disturbs_nobody() {
    let mut fleet = knows_controls(3, 1);
    let row = fleet.row("control-3");
    let spec = MachineSpec { upgrade_index: 0, ..row.spec.clone() };
    let last = MachineSpec { upgrade_index: 9, ..fleet.row("control-1").spec.clone() };
    let machines = [(machine("control-3"), (spec, BTreeMap::new())), (machine("control-1"), (last, BTreeMap::new()))];
    fleet
        .ask(Request::Apply { clusters: BTreeMap::new(), machines: machines.into(), dry_run: false })
        .expect("applies");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert!(fleet.why("worker-1").is_none());
}

/// A rollout caused by a fourth control machine: it has reached its two workers.
fn at_workers() -> Fleet {
    let mut spec = knows_controls_of(3, 2);
    let join = spec.items(Control).iter().find(|item| item.name.as_str() == "join").cloned().expect("an item");
    spec.machine_types.get_mut(&Worker).expect("items").push(join);
    let mut fleet = guarded(Fleet::with(spec));
    fleet.add_control("control-4");
    fleet.lock("ceph", None, LockState::Inactive);
    ["control-1", "control-2", "control-3"].iter().for_each(|name| fleet.upgrade(name));
    assert_eq!(fleet.requests(), ["worker-1"]);
    fleet
}

/// It is silent for a minute.
fn lose(fleet: &mut Fleet, name: &str) {
    fleet.disconnect(name);
    (0..6).for_each(|_| fleet.pass(10_000, &[name]));
    assert_eq!(fleet.why(name).as_deref(), Some("Lost"));
}

#[test]
fn whoever_is_lost_in_the_middle_is_left_out() {
    for (lost, other) in [("worker-1", "worker-2"), ("worker-2", "worker-1")] {
        let mut fleet = at_workers();
        let first = fleet.rollout();
        lose(&mut fleet, lost);
        assert_eq!((fleet.part(lost), fleet.slots()), (None, vec![other]), "whatever was requested is given back");
        let said = fleet.core.facts().audit_lines().pop().expect("a line").message.clone();
        assert_eq!(said, format!("machine {lost}: lost, and left out of {first}; it is reconfigured when it is back"));
        fleet.upgrade(other);
        assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "nobody is waited for");
        fleet.lock("ceph", None, LockState::Active);
        fleet.connect(lost);
        assert_eq!(fleet.rollout(), "edge-7-reconfigure-4", "it has one of its own");
        fleet.lock("ceph", None, LockState::Inactive);
        fleet.upgrade(lost);
        assert!(fleet.core.facts().open_rollout(&cluster()).is_none() && fleet.why(lost).is_none());
    }
}

/// Only an operator can decide about it.
#[test]
fn whoever_is_lost_disturbed_keeps_the_rollout_open() {
    let mut fleet = at_workers();
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.begin("worker-1");
    lose(&mut fleet, "worker-1");
    assert_eq!(fleet.slots(), ["worker-1"]);
}

/// Its successor would wait for the automatic rollout, and that one for its majority.
#[test]
fn nobody_is_reconfigured_while_a_control_machine_is_revoked() {
    let mut fleet = knows_controls(3, 1);
    let any_number = ClusterSpec { machines: None, ..knows_controls_of(3, 1) };
    fleet.ask(apply(any_number, &[])).expect("applies");
    fleet.ask(Request::RevokeMachine { machine: machine("control-3"), machine_is_off: true }).expect("revoked");
    fleet.pass(1_000, &["control-3"]);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    fleet.ask(Request::ReplaceMachine { machine: machine("control-3"), machine_is_off: true }).expect("replaced");
    fleet.add_control("control-3");
    let open = fleet.core.facts().open_rollout(&cluster()).and_then(|row| row.update.as_ref());
    assert!(open.is_some(), "it is elsewhere than the one before");
}

/// A deployed cluster; `control-4` joined and is Ready, and these machines came with it.
fn with_newcomers(others: &[&str]) -> Fleet {
    let mut fleet = knows_controls(3, 1);
    fleet.enroll("control-4", Control).expect("enrols");
    fleet.connect("control-4");
    for name in others {
        fleet.enroll_with(name.split('-').next().expect("a type"), name).expect("enrols");
        fleet.connect(name);
        fleet.finish(name);
    }
    fleet.finish("control-4");
    assert_eq!(fleet.state("control-4"), "Ready");
    fleet
}

#[test]
fn a_deployment_ends_before_anybody_is_reconfigured() {
    let mut fleet = with_newcomers(&["worker-2"]);
    assert_eq!((fleet.slots(), fleet.why("control-1").as_deref()), (vec!["worker-2"], Some("WaitingForTurn")));
    let told = fleet.look("control-1", crate::plan::blocked::of_machine).expect("a reason");
    assert!(told.message.ends_with("when edge-7-deploy-2 has ended"), "{told:?}");
    fleet.finish("worker-2");
    assert_eq!(fleet.rollout(), "edge-7-reconfigure-3");
}

/// A machine that becomes Ready in the deployment has no priority in it once workloads may be present.
#[test]
fn workers_that_are_ready_make_control_machines_wait() {
    let mut fleet = with_newcomers(&["control-5", "worker-2"]);
    assert_eq!((fleet.slots(), fleet.due("control-4")), (vec!["control-5"], None));
    fleet.finish("control-5");
    assert_eq!(fleet.slots(), ["worker-2"], "control-4 was Ready before control-5 was, and has its turn later");
    fleet.finish("worker-2");
    let row = fleet.core.facts().open_rollout(&cluster()).expect("it begins by itself");
    let targets = &row.update.as_ref().expect("like an update").targets;
    assert_eq!(targets.len(), 4, "control-5 has seen them all: {targets:?}");
}

#[test]
fn what_an_abort_leaves_is_brought_about_by_the_next_update() {
    let mut fleet = knows_controls(3, 1);
    fleet.add_control("control-4");
    fleet.lock("ceph", None, LockState::Inactive);
    let rollout = fleet.rollout();
    let Ok(Reply::Done(lines)) = fleet.ask(Request::Abort { rollout }) else { panic!("it is aborted") };
    assert_eq!(lines.last().map(String::as_str), Some("`musterctl update edge-7` brings about what is left"));
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "an abort is no invitation to begin again");
    assert_eq!((fleet.state("control-1"), fleet.why("control-1").as_deref()), ("Ready", Some("NotUpToDate")));
    assert_eq!(fleet.why("control-4"), None);
    fleet.lock("ceph", None, LockState::Active);
    let mut fleet = fleet.started();
    for control in ["control-1", "control-2", "control-3"] {
        assert_eq!(fleet.requests(), [control]);
        fleet.upgrade(control);
    }
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none() && fleet.why("control-1").is_none());
}

#[test]
fn two_control_machines_need_somebody_who_accepts_the_downtime() {
    let mut fleet = knows_controls(1, 1);
    fleet.add_control("control-2");
    fleet.lock("ceph", None, LockState::Inactive);
    let told = fleet.look("control-1", crate::plan::blocked::of_machine).expect("a reason");
    let way_out =
        "`musterctl abort edge-7-reconfigure-3`, then `musterctl update edge-7 --accept-control-plane-downtime`";
    assert_eq!((told.reason.as_str(), told.clears_when.as_str()), ("Quorum", way_out));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.lock("ceph", None, LockState::Active);
    let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Drain) };
    fleet.ask(Request::Update { cluster: cluster(), options }).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet.upgrade("control-1");
    assert_eq!(fleet.why("control-1"), None);
}

/// A number of control machines and a worker, with a non-disruptive `join`, and one more control machine.
fn harmless(control: u32, newcomer: &str) -> Fleet {
    let mut spec = knows_controls_of(control, 1);
    for join in spec.machine_types.values_mut().flatten().filter(|item| item.name.as_str() == "join") {
        join.disruptive = Some(false);
    }
    let mut fleet = guarded(Fleet::with(spec));
    fleet.add_control(newcomer);
    fleet
}

#[test]
fn harmless_items_ask_nobody() {
    let mut fleet = harmless(3, "control-4");
    assert_eq!((fleet.requests(), fleet.slots()), (Vec::new(), vec!["control-1"]));
    fleet.finish_all(Control);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none() && fleet.why("control-3").is_none());
}

/// Of two control machines none can be spared, and none is taken away.
#[test]
fn harmless_items_need_no_majority() {
    let mut fleet = harmless(1, "control-2");
    assert_eq!((fleet.why("control-1"), fleet.slots()), (None, vec!["control-1"]));
    fleet.finish_all(Control);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none() && fleet.why("control-1").is_none());
}

/// Workers stay undisturbed while a control machine is missing, whether it was lost before the rollout or during it.
#[test]
fn a_lost_control_machine_holds_workers_back() {
    let mut fleet = at_workers();
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    fleet.finish("worker-1");
    lose(&mut fleet, "control-3");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!((fleet.requests(), fleet.why("worker-2").as_deref()), (Vec::new(), Some("WaitingForControl")));
    fleet.connect("control-3");
    assert_eq!(fleet.requests(), ["worker-2"]);
}

/// It was deferred to be left out, and is back before its rollout could continue without it.
#[test]
fn whoever_is_back_before_it_is_left_out_goes_on() {
    let mut fleet = at_workers();
    fleet.say(
        "nova",
        LockCommand::Register { cluster: cluster(), machines: vec![machine("worker-1")], of_cluster: false },
    );
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    lose(&mut fleet, "worker-1");
    assert!(fleet.part("worker-1").is_some_and(|part| part.deferral.is_some()), "its workloads are on their way back");
    fleet.connect("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert!(fleet.part("worker-1").is_some_and(|part| part.deferral.is_none()), "{:?}", fleet.part("worker-1"));
    fleet.lock("nova", Some("worker-1"), LockState::Active);
    assert_ne!(fleet.why("worker-1").as_deref(), Some("Deferred"));
}
