//! Reboots in updates and on demand, told as stories.

use muster_proto::model::{
    HostFacts, ItemState, LockState, MachineSpec, MachineType::Worker, Permit, REBOOT_ITEM, Scope, UpdateGroup,
    UpdateGroupName,
};

use super::{fleet::*, reason, updates::*};
use crate::{
    core::{Request, update::Options},
    documents,
    facts::{RebootWhy, Stage},
};

fn update_os() -> Request {
    Request::Update { cluster: cluster(), options: Options::of(Scope::Os) }
}

pub(crate) fn reboot(machines: &[&str]) -> Request {
    let machines = machines.iter().map(|name| machine(name)).collect();
    Request::Reboot { cluster: cluster(), machines, accept_control_plane_downtime: false }
}

fn why(fleet: &Fleet, name: &str) -> Option<RebootWhy> {
    fleet.part(name)?.reboot.as_ref().map(|reboot| reboot.why)
}

/// Requests a reboot of `worker-1`, and puts it in a group that respects its host's reboot requests.
fn asked(fleet: &mut Fleet, reboot_required: bool) {
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    let name = UpdateGroupName::new("storage").expect("a name");
    spec.update_groups =
        vec![UpdateGroup { name: name.clone(), index: 1, concurrent_updates: 5, reboot_if_update_requires: true }];
    let document = MachineSpec { update_group: Some(name), reboot_required, ..machine_spec(Worker) };
    fleet.ask(apply(spec, &[("worker-1", document)])).expect("applies");
}

fn host_wants(fleet: &mut Fleet, name: &str) {
    let facts = HostFacts { reboot_required: true, ..fleet.row(name).host.clone().expect("reported") };
    let id = fleet.agents[name].id;
    fleet.report_host(id, facts);
}

#[test]
fn a_revoked_machine_is_not_said_to_be_none() {
    let mut fleet = deployed(1, 2);
    fleet.ask(Request::RevokeMachine { machine: machine("worker-1"), machine_is_off: true }).expect("revoked");
    let refused = fleet.ask(reboot(&["worker-1"])).expect_err("nobody is there to reboot it").to_string();
    assert!(refused.contains("worker-1 is revoked"), "{refused}");
    let refused = fleet.ask(reboot(&["worker-7"])).expect_err("there is none").to_string();
    assert!(refused.contains("there is no machine worker-7"), "{refused}");
}

#[test]
fn the_reboot_is_one_item_at_the_end_and_needs_leave_of_its_own() {
    let mut fleet = deployed(3, 1);
    asked(&mut fleet, true);
    release(&mut fleet, &["install"], 1);
    fleet.ask(update_os()).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    for control in ["control-1", "control-2", "control-3"] {
        assert_eq!(why(&fleet, control), None);
        fleet.upgrade(control);
    }
    assert_eq!(why(&fleet, "worker-1"), Some(RebootWhy::Asked));
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert_eq!(fleet.begin("worker-1"), "install");
    fleet.event("worker-1", "install", ItemState::Succeeded);
    assert_eq!(fleet.permit("worker-1"), Some(Permit { number: 2, start_within_ms: 30_000 }));
    assert_eq!(fleet.begin("worker-1"), REBOOT_ITEM);
    assert_eq!(fleet.state("worker-1"), "Reboot");
    fleet.event("worker-1", REBOOT_ITEM, ItemState::Succeeded);
    fleet.accept("worker-1");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    let row = fleet.row("worker-1");
    assert!(row.reboot.is_some_and(|asked| asked.completed) && row.stages[&Stage::RebootDone].succeeded);
    // One request causes one reboot.
    release(&mut fleet, &["install"], 1);
    fleet.ask(update_os()).expect("starts");
    assert_eq!(why(&fleet, "worker-1"), Some(RebootWhy::Host), "only if the host says so in the end");
}

#[test]
fn who_may_want_a_reboot() {
    let mut fleet = deployed(3, 2);
    asked(&mut fleet, false);
    host_wants(&mut fleet, "worker-1");
    host_wants(&mut fleet, "worker-2");
    release(&mut fleet, &["images"], 1);
    fleet.ask(update_os()).expect("starts");
    assert_eq!(why(&fleet, "worker-1"), Some(RebootWhy::Host));
    assert_eq!(why(&fleet, "worker-2"), None, "its group does not allow it");
    assert_eq!(fleet.part("worker-1").map(|part| part.disruptive), Some(true));

    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    (spec.release, spec.nodes_reboot_required) = ("2".to_owned(), true);
    fleet.ask(apply(spec, &[])).expect("applies");
    fleet.ask(update_os()).expect("starts");
    assert_eq!(why(&fleet, "control-1"), Some(RebootWhy::Release));
}

#[test]
fn an_update_of_scope_drain_reboots_nobody() {
    let mut fleet = deployed(3, 1);
    assert_eq!(reason(fleet.ask(update_os())), "NothingToDo");
    asked(&mut fleet, true);
    assert_eq!(reason(fleet.ask(update())), "NothingToDo", "the group is new, and asks nothing of machines");
    assert_eq!(why(&fleet, "worker-1"), None);
    fleet.ask(update_os()).expect("it was asked for");
    assert_eq!(why(&fleet, "worker-1"), Some(RebootWhy::Asked));
}

#[test]
fn reboots_on_demand_go_in_the_order_of_an_update() {
    let mut fleet = deployed(3, 2);
    release(&mut fleet, &["install"], 1);
    assert_eq!(reason(fleet.ask(reboot(&["worker-9"]))), "NotFound");
    fleet.ask(reboot(&["worker-2", "control-3"])).expect("starts");
    assert_eq!(fleet.rollout(), "sim-reboot-2".replace("sim", cluster().as_str()));
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["control-3"]);
    fleet.lock("ceph", Some("control-3"), LockState::Inactive);
    assert_eq!(fleet.begin("control-3"), REBOOT_ITEM, "the newer manifest is not its business");
    fleet.event("control-3", REBOOT_ITEM, ItemState::Succeeded);
    fleet.accept("control-3");
    fleet.lock("ceph", Some("control-3"), LockState::Active);
    assert_eq!(fleet.requests(), ["worker-2"]);
    fleet.upgrade("worker-2");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert_eq!(fleet.row("worker-2").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1"));
    fleet.disconnect("worker-1");
    fleet.pass(40_000, &[]);
    assert_eq!(reason(fleet.ask(reboot(&[]))), "NotReady");
}

/// An operator who approves an update of scope `os` has read which machines go down.
#[test]
fn a_plan_says_who_may_reboot() {
    let mut fleet = deployed(3, 2);
    asked(&mut fleet, true);
    release(&mut fleet, &["images", "install"], 5);
    let phases = |scope| {
        let options = Options::of(scope);
        let plan = documents::plan(fleet.core.facts(), &cluster(), &options, fleet.core.limits(), fleet.now());
        let update = plan.expect("a cluster").update.expect("an update is due");
        update.phases.into_iter().map(|phase| phase.what).collect::<Vec<_>>()
    };
    let (os, drain) = (phases(Scope::Os), phases(Scope::Drain));
    assert!(os.iter().any(|what| what.contains("1 worker, which may reboot")), "{os:?}");
    assert!(!drain.iter().any(|what| what.contains("reboot")), "{drain:?}");
}
