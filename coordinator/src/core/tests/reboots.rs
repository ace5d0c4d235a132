//! Machines that reboot because one of their items requires it.

use muster_proto::model::{
    ItemState::{Running, Succeeded},
    MachineType, Phase, RunnerKind, StateItem,
};

use super::{Fleet, fleet::item, spec};

const TIMEOUT_MS: u64 = 300_000;

/// Two workers after one control machine; the last item of each reboots it.
fn fleet() -> Fleet {
    let mut spec = spec(1, 2);
    let reboot = item("reboot", Phase::Deploy);
    let reboot = StateItem { runner: RunnerKind::Reboot, params: Default::default(), timeout_ms: TIMEOUT_MS, ..reboot };
    for items in spec.machine_types.values_mut() {
        items.insert(2, reboot.clone());
    }
    Fleet::with(spec).reported().prepared()
}

/// control-1 has done all but its reboot, announced the reboot, and disconnected.
fn going() -> Fleet {
    let mut fleet = fleet();
    fleet.accept("control-1");
    assert_eq!(fleet.state("control-1"), "Deploy");
    fleet.event("control-1", "install", Running);
    fleet.event("control-1", "install", Succeeded);
    assert_eq!(fleet.state("control-1"), "Reboot");
    fleet.event("control-1", "reboot", Running);
    fleet.disconnect("control-1");
    fleet
}

#[test]
fn a_machine_that_reboots_is_not_lost_before_it_is_overdue() {
    let mut fleet = going();
    fleet.pass(TIMEOUT_MS - 1, &[]);
    assert_eq!((fleet.state("control-1"), fleet.why("control-1").as_deref()), ("Reboot", Some("Rebooting")));
    fleet.pass(1, &[]);
    assert_eq!(fleet.why("control-1").as_deref(), Some("RebootOverdue"));
    assert_eq!(fleet.slots(), ["control-1"], "time frees no slot");

    fleet.connect("control-1");
    assert_eq!(fleet.why("control-1"), None);
    fleet.event("control-1", "reboot", Succeeded);
    fleet.finish_all(MachineType::Control);
    assert_eq!(fleet.state("control-1"), "Ready");
}

#[test]
fn a_new_coordinator_waits_for_it_as_long_again() {
    let mut fleet = going();
    fleet.pass(TIMEOUT_MS / 2, &[]);
    fleet.restart();
    for name in ["worker-1", "worker-2"] {
        fleet.connect(name);
    }
    fleet.pass(TIMEOUT_MS - 1, &[]);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Rebooting"));
    fleet.pass(1, &[]);
    assert_eq!(fleet.why("control-1").as_deref(), Some("RebootOverdue"));
}

#[test]
fn the_time_of_another_item_is_no_excuse() {
    let mut fleet = fleet();
    fleet.accept("control-1");
    fleet.event("control-1", "install", Running);
    fleet.disconnect("control-1");
    fleet.pass(30_000, &[]);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Lost"));
}
