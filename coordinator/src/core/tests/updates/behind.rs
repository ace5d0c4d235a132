//! Machines that were Ready and lack something that disturbs workloads: only an update brings it about.

use super::*;

/// A deployed cluster whose `install` knows the hostname, and whose `join` the control machines.
fn knows_hostnames() -> Fleet {
    let mut spec = spec(3, 1);
    for item in spec.machine_types.values_mut().flatten() {
        let knows = match item.name.as_str() {
            "install" => "${machine.hostname}",
            "join" => "${cluster.controlPlaneNodes}",
            _ => continue,
        };
        item.params.insert("knows".to_owned(), knows.to_owned());
    }
    guarded(Fleet::with(spec))
}

fn rename_host(fleet: &mut Fleet, name: &str) {
    let mut facts = fleet.greeting(name).facts;
    facts.hostname.push_str("-renamed");
    let id = fleet.agents[name].id;
    fleet.step(Input::HostChanged { id, facts: Box::new(facts) }).expect("known");
}

/// The set of control machines changes: the others are to be reconfigured.
fn add_control(fleet: &mut Fleet) {
    fleet.enroll("control-4", Control).expect("enrols");
    fleet.connect("control-4");
    fleet.finish("control-4");
}

#[test]
fn a_machine_that_lacks_deploy_items_is_reconfigured_after_its_update() {
    let mut fleet = knows_hostnames();
    rename_host(&mut fleet, "control-1");
    assert_eq!((fleet.state("control-1"), fleet.why("control-1").as_deref()), ("Ready", Some("NotUpToDate")));
    add_control(&mut fleet);
    assert_eq!(fleet.slots(), ["control-2"], "what control-1 lacks would run there with its workloads in place");
    fleet.finish_all(Control);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "nobody waits for control-1");
    assert_eq!((fleet.due("control-1"), fleet.why("control-1").as_deref()), (None, Some("NotUpToDate")));
    let mut fleet = fleet.started();
    assert_eq!(fleet.requests(), ["control-1"]);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!(fleet.slot("control-1"), Some(Phase::Reconfigure), "{:?}", fleet.why("control-1"));
    fleet.finish("control-1");
    assert_eq!((fleet.state("control-1"), fleet.why("control-1")), ("Ready", None));
}

#[test]
fn what_becomes_due_in_a_slot_for_reconfigure_items_does_not_run_there() {
    let mut fleet = knows_hostnames();
    add_control(&mut fleet);
    assert_eq!((fleet.slots(), fleet.due("control-1").as_deref()), (vec!["control-1"], Some("join")));
    rename_host(&mut fleet, "control-1");
    assert_eq!(fleet.due("control-1"), None, "neither that nor what comes after it");
    assert_eq!(fleet.slots(), ["control-1"], "its agent may begin with the list it had");
    fleet.accept("control-1");
    assert_eq!((fleet.slots(), fleet.why("control-1").as_deref()), (vec!["control-2"], Some("NotUpToDate")));
}
