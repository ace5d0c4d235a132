//! Hooks around an update, told as stories.

use muster_proto::model::{
    Counts, DeadlineOutcome, Hook, HookMachines, ItemState, LockState,
    MachineType::{self, Worker},
    OnInterrupt, RemovalPolicy, RunnerKind, Scope, SecretName,
};

use super::{done, fleet::*, reason, updates::*};
use crate::{
    core::{Request, update::Options},
    documents,
    facts::{ClusterStage, DesiredState, Sealed, SecretId},
    plan::update::hooks,
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

/// A guarded cluster of 3 and 2; `silence` and `check` run on worker-2 before its updates, `check` on worker-1 too.
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
    let version = &fleet.agents["worker-2"].assignment.as_ref().expect("a list").items[0].version;
    assert!(version.starts_with(&format!("{rollout}@")), "{version}");
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

    // Once in every update: deciding again after a restart adds nothing.
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
            "skip" => {
                fleet.ask(skip("worker-2", "silence")).expect("without it");
                assert!(told(&fleet).contains(&"worker-2 silence skipped".to_owned()), "{:?}", told(&fleet));
            }
            _ => {
                fleet.ask(Request::Abort { rollout }).expect("ends");
                let ends =
                    ["silence failed", "check not run", "unsilence not run"].map(|end| format!("worker-2 {end}"));
                assert_eq!(told(&fleet)[1..], ends, "it is being aborted");
                ["worker-1", "worker-2"].into_iter().for_each(|name| fleet.accept(name));
                assert_eq!(told(&fleet)[1..], ends);
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
    let said = done(fleet.ask(skip("worker-2", "check")));
    assert!(said.contains("worker-2: is not connected") && said.contains("musterctl revoke worker-2"), "{said}");
    fleet.pass(HOOKS_MS - 40_001, &["worker-2"]);
    assert_eq!(update_row(&fleet).desired, DesiredState::Go);
    fleet.pass(1, &["worker-2"]);
    assert!(matches!(update_row(&fleet).desired, DesiredState::Pause { .. }));
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
    fleet.accept("worker-1");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert_eq!(reason(fleet.ask(update())), "HookMachine", "and the next update says so first");
}

#[test]
fn a_failed_hook_after_undoes_nothing_and_waits_for_a_person() {
    let mut fleet = deployed(1, 1);
    with_hooks(&mut fleet, Vec::new(), vec![hook("smoke", HookMachines::MachineType(MachineType::Control))]);
    let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Drain) };
    let start = Request::Update { cluster: cluster(), options };
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

/// A machine is removed while this item runs there. Its list then lacks the item, and its agent lets it end.
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

/// The last machine ends, and hooks after begin.
fn through(fleet: &mut Fleet, name: &str) {
    fleet.lock("ceph", Some(name), LockState::Inactive);
    fleet.finish(name);
    fleet.lock("ceph", Some(name), LockState::Active);
    assert!(update_row(fleet).stages.contains_key(&ClusterStage::HooksAfter));
}

/// The hook states of the newest update, as operators see them.
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
    fleet.accept("worker-1");
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
    // A machine that is complete, in the middle of the update.
    fleet.ask(remove("worker-1", RemovalPolicy::Graceful)).expect("begins");
    fleet.upgrade("worker-2");
    fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
    assert!(is_gone(&fleet, "worker-1"), "{:?}", fleet.why("worker-1"));
    fleet.agents.remove("worker-1");
    fleet.lock("ceph", Some("worker-3"), LockState::Inactive);
    fleet.finish("worker-3");
    fleet.lock("ceph", Some("worker-3"), LockState::Active);
    // A machine while its hook runs.
    removed_while_it_runs(&mut fleet, "worker-2", "smoke", RemovalPolicy::Graceful);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_some(), "the last hook is open");
    fleet.finish("worker-3");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

/// A copy from before an update uses its name again, and the agents know what was done the first time.
#[test]
fn an_update_that_the_store_forgot_takes_nothing_from_the_next_of_its_name() {
    let mut fleet = hooked();
    let copy = fleet.store.clone();
    fleet.ask(update()).expect("starts");
    let forgotten = fleet.rollout();
    assert_eq!(fleet.begin("worker-2"), "silence");
    fleet.event("worker-2", "silence", ItemState::Succeeded);
    fleet.recover_from(copy);
    fleet.all_report();
    fleet.pass(90_000, &[]);
    for name in ["worker-1", "worker-2"] {
        fleet.ask(Request::LeaveMaintenance { machine: machine(name) }).expect("an operator has looked");
    }
    fleet.ask(update()).expect("starts");
    assert_eq!(fleet.rollout(), forgotten);
    assert_eq!(fleet.begin("worker-2"), "silence");
}

fn keep(name: &str) -> Request {
    Request::AbortRemoval { machine: machine(name) }
}

/// Its removal took it out of the update at its former version, which lacks this hook.
#[test]
fn a_machine_that_was_to_be_removed_and_stays_has_no_hook_after() {
    let mut fleet = deployed(3, 2);
    with_hooks(&mut fleet, Vec::new(), vec![hook("unsilence", HookMachines::MachineType(Worker))]);
    let mut fleet = fleet.started();
    let said = done(fleet.ask(remove("worker-1", RemovalPolicy::Graceful)));
    assert!(said.contains("leaves out hook unsilence on worker-1"), "{said}");
    fleet.ask(keep("worker-1")).expect("kept");
    assert_eq!((fleet.part("worker-1"), fleet.row("worker-1").follows()), (None, Some(1)));
    for name in ["control-1", "control-2", "control-3"] {
        fleet.upgrade(name);
    }
    through(&mut fleet, "worker-2");
    assert_eq!(fleet.part("worker-1"), None);
    fleet.finish("worker-2");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "{:?}", fleet.why("worker-1"));
}

/// Its part of the update is known throughout its removal.
#[test]
fn a_machine_that_was_through_when_its_removal_began_keeps_its_hook_after() {
    let mut fleet = deployed(3, 2);
    with_hooks(&mut fleet, vec![hook("silence", on("worker-1"))], vec![hook("unsilence", on("worker-1"))]);
    fleet.ask(update()).expect("starts");
    fleet.finish("worker-1");
    let names: Vec<String> = fleet.agents.keys().cloned().collect();
    names.iter().for_each(|name| fleet.finish(name));
    fleet.lock("ceph", None, LockState::Inactive);
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.upgrade(name);
    }
    fleet.ask(remove("worker-1", RemovalPolicy::Graceful)).expect("begins");
    assert_eq!(told(&fleet), ["worker-1 silence done", "worker-1 unsilence not run"]);
    fleet.ask(keep("worker-1")).expect("kept");
    through(&mut fleet, "worker-2");
    assert_eq!(fleet.due("worker-1").as_deref(), Some("unsilence"));
    fleet.finish("worker-1");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    assert_eq!(told(&fleet), ["worker-1 silence done", "worker-1 unsilence done"]);
}

#[test]
fn an_abort_while_hooks_run_lets_no_other_begin() {
    let mut fleet = hooked();
    fleet.ask(update()).expect("starts");
    let rollout = fleet.rollout();
    assert_eq!(fleet.begin("worker-2"), "silence");
    let before = fleet.agents["worker-2"].assignment.clone();
    let said = done(fleet.ask(Request::Abort { rollout }));
    assert!(said.contains("leaves out hook unsilence on worker-2: do by hand"), "{said}");
    assert_eq!((fleet.due("worker-1"), fleet.due("worker-2")), (None, None), "`check` is open on both");
    fleet.accept("worker-1");
    fleet.accept("worker-2");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_some(), "one runs yet");
    fleet.agents.get_mut("worker-2").expect("an agent").assignment = before;
    fleet.event("worker-2", "silence", ItemState::Succeeded);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

#[test]
fn what_a_machine_did_before_it_left_is_done() {
    let mut fleet = hooked();
    fleet.ask(update()).expect("starts");
    for item in ["silence", "check"] {
        assert_eq!(fleet.begin("worker-2"), item);
        fleet.event("worker-2", item, ItemState::Succeeded);
    }
    let revoke = Request::RevokeMachine { machine: machine("worker-2"), machine_is_off: true };
    let said = done(fleet.ask(revoke));
    assert!(said.contains("leaves out hook unsilence on worker-2"), "{said}");
    fleet.finish("worker-1");
    assert!(has_begun(&fleet), "{:?}", fleet.why("worker-1"));
    assert_eq!(told(&fleet)[1..], ["worker-2 silence done", "worker-2 check done", "worker-2 unsilence not run"]);
}

#[test]
fn a_plan_tells_hooks_from_what_machines_prepare() {
    let mut fleet = deployed(3, 1);
    with_hooks(&mut fleet, vec![hook("silence", on("worker-1"))], Vec::new());
    let phases = |fleet: &Fleet| -> Vec<String> {
        let options = Options::of(Scope::Drain);
        let (facts, limits) = (fleet.core.facts(), fleet.core.limits());
        let plan = documents::plan(facts, &cluster(), &options, limits, fleet.now()).expect("a cluster");
        plan.update.expect("an update").phases.into_iter().map(|phase| phase.name).collect()
    };
    assert_eq!(phases(&fleet)[..2], ["hooks before", "prepare"]);
    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_hooks.before = vec![hook("silence", on("worker-1"))];
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 1);
    assert_eq!(phases(&fleet)[..2], ["hooks before", "cluster locks"]);
}

#[test]
fn a_renewed_secret_of_hooks_alone_is_no_reason_for_an_update() {
    let mut fleet = deployed(3, 1);
    let renew = |fleet: &mut Fleet| {
        let id = SecretId { cluster: None, name: SecretName::new("pager").expect("a name") };
        let version = fleet.core.facts().meta.secret_seq + 1;
        let clusters = [cluster()].into();
        fleet.ask(Request::CreateSecret { id, version, sealed: Sealed(vec![1]), clusters }).expect("made");
    };
    renew(&mut fleet);
    let mut silence = hook("silence", on("worker-1"));
    silence.params.insert("password".to_owned(), "${secret.pager}".to_owned());
    with_hooks(&mut fleet, vec![silence], Vec::new());
    fleet.ask(update()).expect("starts");
    fleet.finish("worker-1");
    let names: Vec<String> = fleet.agents.keys().cloned().collect();
    names.iter().for_each(|name| fleet.finish(name));
    fleet.lock("ceph", None, LockState::Inactive);
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.upgrade(name);
    }
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
    renew(&mut fleet);
    assert_eq!(reason(fleet.ask(update())), "NothingToDo");
}

#[test]
fn hooks_that_never_end_may_abort_the_update() {
    let mut fleet = hooked();
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_deadlines.hooks.outcome = DeadlineOutcome::Fail;
    fleet.ask(apply(spec, &[])).expect("applies");
    fleet.ask(update()).expect("starts");
    fleet.finish("worker-1");
    fleet.begin("worker-2");
    fleet.pass(HOOKS_MS, &[]);
    assert_eq!(update_row(&fleet).desired, DesiredState::Abort, "what runs comes to its end");
    let line = fleet.core.facts().audit_lines().pop().expect("a line");
    let what = "\"Hooks and backups before the update done\" took longer than updateDeadlines allows";
    assert!(line.actor == "muster" && line.message.contains(what), "{line:?}");
}

#[test]
fn hooks_are_not_late_for_an_operators_pause() {
    let is_late = |fleet: &Fleet| fleet.look("worker-2", |snapshot, _| hooks::overdue(snapshot).is_some());
    let mut fleet = hooked();
    fleet.ask(update()).expect("starts");
    let rollout = fleet.rollout();
    fleet.ask(Request::Pause { rollout: rollout.clone() }).expect("paused");
    fleet.pass(2 * HOOKS_MS, &[]);
    assert!(!is_late(&fleet));
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    fleet.pass(HOOKS_MS, &[]);
    assert!(is_late(&fleet) && matches!(update_row(&fleet).desired, DesiredState::Pause { .. }));
}

#[test]
fn what_a_hook_after_lacks_is_said_before_the_update_starts() {
    let mut fleet = deployed(3, 1);
    let mut smoke = hook("smoke", on("worker-1"));
    smoke.params.insert("password".to_owned(), "${secret.pager}".to_owned());
    with_hooks(&mut fleet, Vec::new(), vec![smoke]);
    assert_eq!(reason(fleet.ask(update())), "VariableWithoutValue");
}

#[test]
fn a_hook_for_machines_that_there_are_none_of_is_told_when_it_is_applied() {
    let mut fleet = deployed(3, 0);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_hooks.after = vec![hook("smoke", HookMachines::MachineType(Worker))];
    let said = done(fleet.ask(apply(spec.clone(), &[])));
    assert!(said.contains("hook smoke runs nowhere, for it has no worker machines"), "{said}");
    spec.machines = Some(Counts { control: 3, worker: 1 });
    let said = done(fleet.ask(apply(spec, &[])));
    assert!(!said.contains("smoke"), "one is to come: {said}");
}

#[test]
fn a_hook_for_a_machine_that_nobody_has_is_told_when_it_is_applied() {
    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_hooks.after = vec![hook("smoke", on("wroker-1"))];
    let said = done(fleet.ask(apply(spec.clone(), &[])));
    let expected = "hook smoke runs nowhere, for it has no machine wroker-1; `musterctl get machines` lists them";
    assert!(said.contains(expected), "{said}");
    spec.machines = Some(Counts { control: 3, worker: 2 });
    let said = done(fleet.ask(apply(spec.clone(), &[])));
    assert!(!said.contains("smoke"), "it may be the one to come: {said}");
    spec.machines = None;
    let said = done(fleet.ask(apply(spec, &[("wroker-1", machine_spec(Worker))])));
    assert!(!said.contains("smoke"), "it comes with it: {said}");
}

/// Work done without a coordinator is first reported to the next one.
#[test]
fn hooks_that_were_done_without_a_coordinator_abort_nothing() {
    let mut fleet = hooked();
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_deadlines.hooks.outcome = DeadlineOutcome::Fail;
    fleet.ask(apply(spec, &[])).expect("applies");
    fleet.ask(update()).expect("starts");
    fleet.restart_after(HOOKS_MS + 1);
    fleet.pass(1, &[]);
    assert_eq!(update_row(&fleet).desired, DesiredState::Go);
    fleet.all_report();
    fleet.pass(HOOKS_MS, &[]);
    assert_eq!(update_row(&fleet).desired, DesiredState::Abort, "it is late for this coordinator too");
}
