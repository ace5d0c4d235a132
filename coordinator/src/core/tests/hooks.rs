//! Hooks around an update, told as stories.

use muster_proto::model::{
    Hook, HookMachines, ItemState, LockState,
    MachineType::{self, Worker},
    OnInterrupt, RemovalPolicy, RunnerKind,
};

use super::{done, fleet::*, reason, updates::*};
use crate::{
    core::Request,
    documents,
    facts::{ClusterStage, Wish},
};

const HOOKS_MS: u64 = 4 * 3600 * 1000;

fn hook(name: &str, on: HookMachines) -> Hook {
    Hook {
        name: item_name(name),
        runner: RunnerKind::Bash,
        on,
        params: [("script".to_owned(), "true".to_owned())].into(),
        timeout_ms: 60_000,
        retries: 0,
        on_interrupt: OnInterrupt::Rerun,
    }
}

fn on(name: &str) -> HookMachines {
    HookMachines::Machine(machine(name))
}

/// A newer manifest with these hooks.
fn with_hooks(fleet: &mut Fleet, before: Vec<Hook>, after: Vec<Hook>) {
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_hooks.before = before;
    spec.update_hooks.after = after;
    fleet.ask(apply(spec, &[])).expect("applies");
    release(fleet, &["images", "install"], 1);
}

/// A guarded cluster of 3 and 2; `silence` and `check` run on worker-2 before its updates, `check` on the other, too.
fn hooked() -> Fleet {
    let mut fleet = deployed(3, 2);
    let before = vec![hook("silence", on("worker-2")), hook("check", HookMachines::MachineType(Worker))];
    with_hooks(&mut fleet, before, vec![hook("unsilence", on("worker-2"))]);
    fleet
}

fn update_row(fleet: &Fleet) -> &crate::facts::UpdateRow {
    let rollout = fleet.core.facts().rollouts.values().filter_map(|rollout| rollout.update.as_ref()).next_back();
    rollout.expect("an update")
}

fn has_begun(fleet: &Fleet) -> bool {
    let prepares = |name: &String| {
        let items = fleet.agents[name].assignment.as_ref().map(|list| &list.items);
        items.is_some_and(|items| items.iter().any(|item| item.version == "1.1"))
    };
    update_row(fleet).request.is_some() || !fleet.slots().is_empty() || fleet.agents.keys().any(prepares)
}

fn skip(name: &str, item: &str) -> Request {
    Request::Skip { machine: machine(name), item: Some(item_name(item)) }
}

#[test]
fn hooks_before_come_before_everything_and_those_after_before_the_end() {
    let mut fleet = hooked();
    fleet.ask(update()).expect("starts");
    let rollout = fleet.rollout();
    for name in ["control-1", "worker-1", "worker-2"] {
        assert_eq!(fleet.state(name), "Ready", "nothing is done to it yet");
    }
    assert_eq!(fleet.why("control-1").as_deref(), Some("BeforeUpdate"));
    assert_eq!(fleet.begin("worker-2"), "silence");
    fleet.event("worker-2", "silence", ItemState::Succeeded);
    fleet.finish("worker-1");
    assert!(!has_begun(&fleet), "slots free, agents connected, items ready, and one hook runs yet");
    assert_eq!(fleet.begin("worker-2"), "check");
    assert_eq!(fleet.agents["worker-2"].assignment.as_ref().expect("a list").items[0].version, rollout);
    fleet.event("worker-2", "check", ItemState::Succeeded);
    assert!(has_begun(&fleet) && update_row(&fleet).stages[&ClusterStage::HooksBefore].succeeded);

    let names: Vec<String> = fleet.agents.keys().cloned().collect();
    names.iter().for_each(|name| fleet.finish(name));
    fleet.lock("ceph", None, LockState::Inactive);
    for name in ["control-1", "control-2", "control-3", "worker-1", "worker-2"] {
        assert!(!update_row(&fleet).stages.contains_key(&ClusterStage::HooksAfter));
        fleet.lock("ceph", Some(name), LockState::Inactive);
        fleet.finish(name);
        fleet.lock("ceph", Some(name), LockState::Active);
        assert_eq!(fleet.slot(name), None, "{name}");
    }
    assert_eq!((fleet.due("worker-2").as_deref(), fleet.state("worker-2")), (Some("unsilence"), "Ready"));
    assert!(update_row(&fleet).request.is_some(), "the cluster stays in maintenance for it");
    fleet.finish("worker-2");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none() && update_row(&fleet).request.is_none());
    assert!(update_row(&fleet).stages.values().all(|stage| stage.succeeded));
    assert_eq!(fleet.row("worker-2").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1.1"));

    // Once in every update, and deciding again after a restart brings nothing new.
    fleet.restart();
    fleet.all_report();
    assert_eq!(reason(fleet.ask(update())), "NothingToDo");
    release(&mut fleet, &["images"], 1);
    fleet.ask(update()).expect("starts");
    assert_eq!(fleet.begin("worker-2"), "silence");
}

#[test]
fn a_failed_hook_before_stops_the_update_before_anything_was_disturbed() {
    for way_out in ["retry", "skip", "abort"] {
        let mut fleet = hooked();
        fleet.ask(update()).expect("starts");
        fleet.finish("worker-1");
        fleet.fail("worker-2");
        fleet.pass(60_000, &[]);
        assert_eq!((has_begun(&fleet), fleet.why("worker-2").as_deref()), (false, Some("Failed")), "{way_out}");
        assert_eq!(fleet.why("worker-1").as_deref(), Some("BeforeUpdate"), "its own are done");
        let rollout = fleet.rollout();
        match way_out {
            "retry" => {
                drop(fleet.ask(Request::Retry { machine: machine("worker-2"), item: None }).expect("runs again"))
            }
            "skip" => drop(fleet.ask(skip("worker-2", "silence")).expect("without it")),
            _ => {
                fleet.ask(Request::Abort { rollout }).expect("ends");
                assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "nothing was taken");
                assert_eq!(fleet.row("worker-2").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1"));
                continue;
            }
        }
        assert!(!has_begun(&fleet), "{way_out}: `check` is due");
        fleet.finish("worker-2");
        assert!(has_begun(&fleet), "{way_out}");
    }
}

#[test]
fn hooks_that_never_end_pause_the_update() {
    let mut fleet = hooked();
    fleet.ask(update()).expect("starts");
    fleet.finish("worker-1");
    fleet.begin("worker-2");
    fleet.disconnect("worker-2");
    fleet.pass(40_000, &["worker-2"]);
    assert_eq!(fleet.why("worker-2").as_deref(), Some("Lost"));
    fleet.pass(HOOKS_MS - 40_001, &["worker-2"]);
    assert_eq!(update_row(&fleet).wish, Wish::Go);
    fleet.pass(1, &["worker-2"]);
    assert!(matches!(update_row(&fleet).wish, Wish::Pause { .. }));
    assert_eq!((fleet.why("control-1").as_deref(), has_begun(&fleet)), (Some("Paused"), false));
    fleet.connect("worker-2");
    fleet.event("worker-2", "silence", ItemState::Succeeded);
    fleet.finish("worker-2");
    assert!(!has_begun(&fleet), "paused");
    let rollout = fleet.rollout();
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    assert!(has_begun(&fleet));
}

#[test]
fn a_machine_that_is_gone_takes_its_hook_with_it() {
    let mut fleet = hooked();
    fleet.ask(update()).expect("starts");
    fleet.ask(Request::RevokeMachine { machine: machine("worker-2"), machine_is_off: true }).expect("revoked");
    fleet.finish("worker-1");
    fleet.pass(1_000, &["worker-2"]);
    assert_eq!((has_begun(&fleet), fleet.why("worker-1").as_deref()), (false, Some("BeforeUpdate")));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("ends");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert_eq!(reason(fleet.ask(update())), "HookMachine", "and the next update says so first");
}

#[test]
fn a_failed_hook_after_undoes_nothing_and_waits_for_a_person() {
    let mut fleet = deployed(1, 1);
    with_hooks(&mut fleet, Vec::new(), vec![hook("smoke", HookMachines::MachineType(MachineType::Control))]);
    let start = Request::Update {
        cluster: cluster(),
        scope: muster_proto::model::Scope::Drain,
        accept_control_plane_downtime: true,
        skip_backup: false,
    };
    fleet.ask(start).expect("starts");
    for name in ["control-1", "worker-1"] {
        fleet.finish(name);
    }
    fleet.lock("ceph", None, LockState::Inactive);
    for name in ["control-1", "worker-1"] {
        fleet.lock("ceph", Some(name), LockState::Inactive);
        fleet.finish(name);
        fleet.lock("ceph", Some(name), LockState::Active);
    }
    fleet.fail("control-1");
    assert_eq!(fleet.why("control-1").as_deref(), Some("Failed"));
    assert_eq!(fleet.row("control-1").ready_at.as_ref().map(|(release, _)| release.as_str()), Some("1.1"));
    assert!(fleet.core.facts().open_rollout(&cluster()).is_some());
    let said = done(fleet.ask(skip("control-1", "smoke")));
    assert!(said.contains("skipped"), "{said}");
    fleet.accept("control-1");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "{:?}", fleet.row("control-1"));
}

#[test]
fn a_pause_does_not_hold_up_the_hooks_after() {
    let mut fleet = deployed(3, 0);
    with_hooks(&mut fleet, Vec::new(), vec![hook("smoke", on("control-1"))]);
    let mut fleet = fleet.started();
    for name in ["control-1", "control-2"] {
        fleet.upgrade(name);
    }
    fleet.lock("ceph", Some("control-3"), LockState::Inactive);
    fleet.begin("control-3");
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout }).expect("paused");
    fleet.event("control-3", "install", ItemState::Succeeded);
    fleet.finish("control-3");
    fleet.lock("ceph", Some("control-3"), LockState::Active);
    fleet.finish("control-1");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "nobody is left for the pause");
}

fn remove(name: &str, policy: RemovalPolicy) -> Request {
    Request::Remove { machine: machine(name), policy, accept_control_plane_downtime: false }
}

fn is_gone(fleet: &Fleet, name: &str) -> bool {
    !fleet.core.facts().machines.contains_key(name)
}

/// A machine is removed while this item runs there, which its list has no more then; its agent lets it end.
fn removed_while_it_runs(fleet: &mut Fleet, name: &str, item: &str, policy: RemovalPolicy) {
    assert_eq!(fleet.begin(name), item);
    let before = fleet.agents[name].assignment.clone();
    fleet.ask(remove(name, policy)).expect("begins");
    if policy == RemovalPolicy::Graceful {
        fleet.lock("ceph", Some(name), LockState::Inactive);
    }
    fleet.accept(name);
    assert!(!is_gone(fleet, name), "{item} still runs there");
    assert_eq!(fleet.due(name), None, "it is told to start nothing more");
    fleet.agents.get_mut(name).expect("an agent").assignment = before;
    fleet.event(name, item, ItemState::Succeeded);
    if !is_gone(fleet, name) {
        fleet.accept(name);
    }
    assert!(is_gone(fleet, name), "{:?}", fleet.why(name));
    fleet.agents.remove(name);
}

/// Where the hooks of the newest update stand, as operators are told.
fn told(fleet: &Fleet) -> Vec<String> {
    let rollouts = documents::rollouts(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    let hooks = rollouts.into_iter().filter_map(|rollout| rollout.status.update).flat_map(|update| update.hooks);
    hooks.map(|hook| format!("{} {} {}", hook.machine, hook.name, hook.state)).collect()
}

#[test]
fn a_machine_that_is_removed_takes_its_hook_before_with_it() {
    let mut fleet = hooked();
    fleet.ask(update()).expect("starts");
    assert_eq!(reason(fleet.ask(remove("worker-1", RemovalPolicy::Graceful))), "RolloutOpen");
    removed_while_it_runs(&mut fleet, "worker-2", "silence", RemovalPolicy::Unsafe);
    fleet.finish("worker-1");
    fleet.pass(1_000, &[]);
    assert_eq!((has_begun(&fleet), fleet.why("worker-1").as_deref()), (false, Some("BeforeUpdate")));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("ends");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    let known =
        ["worker-1 check done", "worker-2 silence done", "worker-2 check not run", "worker-2 unsilence not run"];
    assert_eq!(told(&fleet), known);
}

#[test]
fn a_machine_that_is_removed_has_no_hook_after() {
    let mut fleet = deployed(3, 3);
    with_hooks(&mut fleet, Vec::new(), vec![hook("smoke", HookMachines::MachineType(Worker))]);
    let mut fleet = fleet.started();
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.upgrade(name);
    }
    // One that is through itself, in the middle of the update.
    fleet.ask(remove("worker-1", RemovalPolicy::Graceful)).expect("begins");
    fleet.upgrade("worker-2");
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert!(is_gone(&fleet, "worker-1"), "{:?}", fleet.why("worker-1"));
    fleet.agents.remove("worker-1");
    fleet.lock("ceph", Some("worker-3"), LockState::Inactive);
    fleet.finish("worker-3");
    fleet.lock("ceph", Some("worker-3"), LockState::Active);
    // One while its hook runs.
    removed_while_it_runs(&mut fleet, "worker-2", "smoke", RemovalPolicy::Graceful);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_some(), "the last hook is open");
    fleet.finish("worker-3");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}
