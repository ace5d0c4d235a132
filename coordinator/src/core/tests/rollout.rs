//! A deployment from start to end: the control set, machines that reconfigure, and machines that join later.

use muster_proto::model::{
    MachineType::{Control, Worker},
    Phase,
};

use super::fleet::{Fleet, cluster, machine, machine_spec, spec};

/// The last phase of a machine's list.
fn max_phase(fleet: &Fleet, name: &str) -> Option<Phase> {
    fleet.row(name).max_phase
}

#[test]
fn everything_becomes_ready_and_the_rollout_ends() {
    let mut fleet = Fleet::of(3, 2).reported().prepared();
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    for name in fleet.agents.keys() {
        assert_eq!((fleet.state(name), fleet.why(name)), ("Ready", None), "{name}");
    }
    let rollouts: Vec<_> = fleet.core.facts().rollouts.values().collect();
    assert!(matches!(&rollouts[..], [only] if only.finished_at_ms.is_some()), "{rollouts:?}");
}

#[test]
fn who_saw_the_complete_set_at_its_deployment_does_not_reconfigure() {
    let mut fleet = Fleet::of(3, 1).reported().prepared();
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    assert_eq!(fleet.core.facts().clusters[&cluster()].control_set.len(), 3);
    assert_eq!(max_phase(&fleet, "control-1"), Some(Phase::Reconfigure));
    assert_eq!(max_phase(&fleet, "control-2"), Some(Phase::Reconfigure));
    assert_eq!(max_phase(&fleet, "control-3"), Some(Phase::Deploy), "the last one saw all three");
    assert_eq!(max_phase(&fleet, "worker-1"), Some(Phase::Deploy));
}

#[test]
fn reconfigure_goes_one_by_one_too() {
    let mut fleet = Fleet::of(3, 0).reported().prepared();
    for name in ["control-1", "control-2", "control-3"] {
        fleet.finish(name);
    }
    assert_eq!(fleet.slots(), ["control-1"]);
    assert_eq!((fleet.slot("control-1"), fleet.state("control-1")), (Some(Phase::Reconfigure), "Reconfigure"));
    fleet.finish("control-1");
    assert_eq!(fleet.slots(), ["control-2"]);
}

#[test]
fn a_control_machine_that_comes_later_changes_the_set() {
    let mut fleet = Fleet::of(3, 1).reported().prepared();
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    assert_eq!(max_phase(&fleet, "control-3"), Some(Phase::Deploy), "it saw the complete set");
    fleet.enroll("control-4", Control).expect("let in");
    fleet.connect("control-4");
    let mut fleet = fleet.prepared();
    fleet.finish_all(Control);
    assert_eq!(max_phase(&fleet, "control-3"), Some(Phase::Reconfigure));
    assert_eq!(max_phase(&fleet, "control-4"), Some(Phase::Deploy));
    let rollouts: Vec<&str> = fleet.core.facts().rollouts.keys().map(String::as_str).collect();
    assert_eq!(rollouts, ["edge-7-deploy-1", "edge-7-deploy-2", "edge-7-reconfigure-3"]);
    assert!(["control-3", "control-4", "worker-1"].iter().all(|name| fleet.state(name) == "Ready"));
}

#[test]
fn upgrade_index_comes_before_the_name() {
    let mut simple = spec(2, 0);
    simple.machine_types.get_mut(&Control).expect("items").retain(|item| item.phase == Phase::Deploy);
    let mut fleet = Fleet::applied(simple.clone());
    let late = muster_proto::model::MachineSpec { upgrade_index: 7, ..machine_spec(Control) };
    fleet.ask(super::fleet::apply(simple, &[("control-1", late)])).expect("applies");
    fleet.enroll("control-1", Control).expect("let in");
    fleet.enroll("control-2", Control).expect("let in");
    let fleet = fleet.reported();
    assert_eq!(fleet.slots(), ["control-2"]);
}

/// A machine's own values replace the template's, for this machine only.
#[test]
fn overrides_reach_the_one_machine_they_are_for() {
    let mut fleet = Fleet::of(1, 2);
    let mut own = machine_spec(Worker);
    let params = [("script".to_owned(), "own ${machine.name}".to_owned())].into();
    own.state_items_overwrites.insert(super::fleet::item_name("images"), params);
    fleet.ask(super::fleet::apply(spec(1, 2), &[("worker-1", own)])).expect("applies");
    let fleet = fleet.reported();
    let script = |name: &str| {
        let list = fleet.agents[name].assignment.as_ref().expect("a list");
        list.items[0].params["script"].clone()
    };
    assert_eq!((script("worker-1").as_str(), script("worker-2").as_str()), ("own ${machine.name}", "true"));
    let hash = |name: &str| fleet.agents[name].assignment.as_ref().expect("a list").items[0].hash;
    assert_ne!(hash("worker-1"), hash("worker-2"));
    assert!(fleet.row("worker-1").declared && !fleet.row("worker-2").declared);
    assert_eq!(fleet.row("worker-1").name, machine("worker-1"));
}
