//! Machines that were Ready and lack something that disturbs workloads: only an update adds it.

use super::{reconfigure::knows_controls_of, *};

/// A cluster with the hostname in `install`, and the control machines in `join`.
fn knows_hostnames(control: u32, worker: u32) -> Fleet {
    let mut spec = knows_controls_of(control, worker);
    for install in spec.machine_types.values_mut().flatten().filter(|item| item.name.as_str() == "install") {
        install.params.insert("knows".to_owned(), "${machine.hostname}".to_owned());
    }
    Fleet::with(spec)
}

fn rename_host(fleet: &mut Fleet, name: &str) {
    let mut facts = fleet.greeting(name).facts;
    facts.hostname.push_str("-renamed");
    let id = fleet.agents[name].id;
    fleet.report_host(id, facts);
}

#[test]
fn a_machine_that_lacks_deploy_items_is_reconfigured_after_its_update() {
    let mut fleet = guarded(knows_hostnames(3, 1));
    rename_host(&mut fleet, "control-1");
    assert_eq!((fleet.state("control-1"), fleet.why("control-1").as_deref()), ("Ready", Some("NotUpToDate")));
    fleet.add_control("control-4");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!(fleet.requests(), ["control-2"], "what control-1 lacks is not for a rollout that begins by itself");
    fleet.upgrade("control-2");
    fleet.upgrade("control-3");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "nobody waits for control-1");
    assert_eq!((fleet.due("control-1"), fleet.why("control-1").as_deref()), (None, Some("NotUpToDate")));
    fleet.lock("ceph", None, LockState::Active);
    let mut fleet = fleet.started();
    assert_eq!(fleet.requests(), ["control-1"]);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    assert_eq!(fleet.rollout(), "edge-7-update-4");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    fleet.lock("ceph", None, LockState::Active);
    assert_eq!(fleet.rollout(), "edge-7-reconfigure-5", "what it lacked before is done");
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests(), fleet.due("control-1")), (vec!["control-1"], None));
    fleet.upgrade("control-1");
    assert_eq!((fleet.state("control-1"), fleet.why("control-1")), ("Ready", None));
}

#[test]
fn what_becomes_due_in_a_slot_for_reconfigure_items_does_not_run_there() {
    let mut fleet = knows_hostnames(3, 0).reported().prepared();
    for control in ["control-1", "control-2", "control-3"] {
        fleet.finish(control);
    }
    assert_eq!((fleet.slots(), fleet.due("control-1").as_deref()), (vec!["control-1"], Some("join")));
    rename_host(&mut fleet, "control-1");
    assert_eq!(fleet.due("control-1"), None, "neither that nor what comes after it");
    assert_eq!(fleet.slots(), ["control-1"], "its agent may begin with the list it had");
    fleet.accept("control-1");
    assert_eq!((fleet.slots(), fleet.why("control-1").as_deref()), (vec!["control-2"], Some("NotUpToDate")));
}
