//! Backups of an update, told as stories.

use muster_proto::model::{
    CONSISTENT_COPY_ITEM, ItemState, LcmType, LockState, MKE_BACKUP_ITEM, MachineType::Control, Phase, RunnerKind,
    SWARM_COPY_ITEM, Scope, StateItem,
};

use super::{fleet::*, updates::*};
use crate::{
    core::Request,
    facts::{Added, UpdateRow},
};

const RESULT: &str = r#"{"path":"/srv/backup/swarm/x","bytes":42,"sha256":"ab"}"#;

/// Managers of a swarm, deployed and guarded, with the next release applied.
fn managers(count: u32, lcm_type: LcmType) -> Fleet {
    let mut spec = spec(count, 0);
    spec.lcm_type = lcm_type;
    let join = StateItem { runner: RunnerKind::SwarmJoin, ..item("swarm", Phase::Deploy) };
    spec.machine_types.get_mut(&Control).expect("items").push(join);
    let mut fleet = guarded(Fleet::with(spec));
    release(&mut fleet, &["images", "install"], 1);
    fleet
}

fn start(skip_backup: bool) -> Request {
    Request::Update { cluster: cluster(), scope: Scope::Drain, accept_control_plane_downtime: true, skip_backup }
}

fn update_row(fleet: &Fleet) -> &UpdateRow {
    let rollout = fleet.core.facts().rollouts.values().filter_map(|rollout| rollout.update.as_ref()).next_back();
    rollout.expect("an update")
}

fn added(fleet: &Fleet, name: &str) -> Vec<Added> {
    update_row(fleet).targets[&machine(name)].added.clone()
}

/// The item that runs succeeds, and leaves this result.
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

#[test]
fn hot_copies_come_first_and_consistent_ones_in_each_managers_turn() {
    let mut fleet = managers(3, LcmType::Mke);
    fleet.ask(start(false)).expect("starts");
    for name in ["control-2", "control-3", "control-1"] {
        assert!(update_row(&fleet).request.is_none() && fleet.slots().is_empty(), "one copy is not made");
        assert_eq!(fleet.begin(name), SWARM_COPY_ITEM);
        succeed(&mut fleet, name, SWARM_COPY_ITEM);
    }
    assert!(update_row(&fleet).request.is_none(), "MKE's is not made");
    assert_eq!(fleet.begin("control-1"), MKE_BACKUP_ITEM);
    succeed(&mut fleet, "control-1", MKE_BACKUP_ITEM);
    assert!(update_row(&fleet).request.is_some());
    let made = &update_row(&fleet).backups;
    assert_eq!(made.len(), 4);
    assert!(made.iter().all(|made| (made.bytes, made.sha256.as_str()) == (42, "ab")), "{made:?}");

    for name in ["control-1", "control-2", "control-3"] {
        fleet.finish(name);
    }
    fleet.lock("ceph", None, LockState::Inactive);
    for name in ["control-1", "control-2", "control-3"] {
        assert_eq!(fleet.due(name), None, "its turn has come, and its locks are active");
        fleet.lock("ceph", Some(name), LockState::Inactive);
        assert_eq!(fleet.begin(name), CONSISTENT_COPY_ITEM);
        assert_eq!(fleet.slots(), [name], "one at a time");
        succeed(&mut fleet, name, CONSISTENT_COPY_ITEM);
        fleet.finish(name);
        fleet.lock("ceph", Some(name), LockState::Active);
    }
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert_eq!(update_row(&fleet).backups.len(), 7);
}

#[test]
fn a_failed_backup_stops_the_update_until_somebody_does_without() {
    let mut fleet = managers(3, LcmType::Swarm);
    fleet.ask(start(false)).expect("starts");
    fleet.finish("control-2");
    fleet.finish("control-3");
    fleet.fail("control-1");
    fleet.pass(60_000, &[]);
    assert_eq!((fleet.why("control-1").as_deref(), fleet.why("control-2").as_deref()), (Some("Failed"), Some("BeforeUpdate")));
    assert!(update_row(&fleet).request.is_none());
    let item = Some(item_name(SWARM_COPY_ITEM));
    fleet.ask(Request::Skip { machine: machine("control-1"), item }).expect("without it");
    fleet.accept("control-1");
    assert!(update_row(&fleet).request.is_some());
    assert_eq!(update_row(&fleet).backups.len(), 2, "what was made is known");
}

#[test]
fn what_is_backed_up_and_where() {
    let mut fleet = managers(2, LcmType::Mke);
    fleet.ask(start(false)).expect("starts");
    assert_eq!(added(&fleet, "control-1"), [Added::SwarmCopy, Added::MkeBackup]);
    assert_eq!(added(&fleet, "control-2"), [Added::SwarmCopy], "of two none is stopped");

    let mut fleet = managers(3, LcmType::Swarm);
    fleet.ask(start(true)).expect("starts");
    assert!(added(&fleet, "control-1").is_empty() && update_row(&fleet).skip_backup);
    let said = fleet.core.facts().audit.values().next_back().expect("a line").message.clone();
    assert!(said.contains("without backups"), "{said}");

    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    fleet.ask(start(false)).expect("starts");
    assert!(added(&fleet, "control-1").is_empty(), "no swarm, no MKE");
}
