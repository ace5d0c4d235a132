//! The quorum of the control plane: its members, and when one of them may go down.

use muster_proto::model::{LockState, MachineType::Control, Scope};

use super::{fleet::*, reason, updates::*};
use crate::core::{Request, update::Options};

#[test]
fn a_machine_that_was_never_ready_does_not_hinder() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let newest = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    fleet.ask(apply(newest, &[("control-4", machine_spec(Control))])).expect("declared, and not racked yet");
    let fleet = fleet.started();
    assert_eq!(fleet.requests(), ["control-1"]);
}

#[test]
fn a_machine_that_was_replaced_does_not_count_before_it_is_deployed() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.upgrade("control-1");
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-1", Control).expect("enrols");
    fleet.connect("control-1");
    assert_eq!(fleet.why("control-1").as_deref(), Some("UpdateInProgress"));
    fleet.lock("ceph", Some("control-2"), LockState::Inactive);
    assert_eq!(fleet.permit("control-2"), None, "one of the two that are left is no majority of three");
    assert_eq!(fleet.why("control-2").as_deref(), Some("ControlNotDeployed"));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("the way out");
    fleet.lock("ceph", Some("control-2"), LockState::Active);
    fleet.finish_all(Control);
    assert_eq!((fleet.state("control-1"), fleet.state("control-2")), ("Ready", "Ready"));
}

#[test]
fn revoked_machines_count_as_down() {
    let mut fleet = deployed(5, 1);
    release(&mut fleet, &["install"], 1);
    for name in ["control-4", "control-5"] {
        fleet.ask(Request::RevokeMachine { machine: machine(name), machine_is_off: true }).expect("revoked");
    }
    fleet.finish_all(Control);
    assert_eq!(reason(fleet.ask(update())), "Quorum", "two of five would be left");
    let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Drain) };
    let accepted = Request::Update { cluster: cluster(), options };
    fleet.ask(accepted).expect("somebody said that it may be");
}

#[test]
fn nobody_is_reconfigured_while_another_control_machine_is_away() {
    let mut fleet = deployed(3, 1);
    let mut newest = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    newest.machines = Some(muster_proto::model::Counts { control: 4, worker: 1 });
    fleet.ask(apply(newest, &[])).expect("applies");
    fleet.enroll("control-4", Control).expect("enrols");
    fleet.connect("control-4");
    fleet.disconnect("control-2");
    fleet.finish("control-4");
    assert_eq!(fleet.state("control-4"), "Ready");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.slots(), fleet.why("control-3").as_deref()), (Vec::new(), Some("Quorum")));
    fleet.connect("control-2");
    assert_eq!(fleet.requests(), ["control-3"], "the first to whom the new set makes a difference");
}
