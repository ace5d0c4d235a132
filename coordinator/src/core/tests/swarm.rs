//! Creating and joining the swarm: which machine does it through which manager, and what is durable when it learns so.

use muster_proto::model::{
    ItemState,
    MachineType::{Control, Worker},
    Phase, RemovalPolicy, RunnerKind, Scope,
};

use super::{
    fleet::{Fleet, apply, cluster, item, item_name, machine, spec},
    reason,
};
use crate::{
    core::{Input, Refusal, Reply, Request, update::Options},
    plan::{LIMITS, Limits, swarm::Entry},
    store::Store,
};

/// `install`, then `swarm`, on machines with their prepare items done.
fn fleet(control: u32, worker: u32) -> Fleet {
    preparing(control, worker).prepared()
}

/// Such machines, before their first item.
fn preparing(control: u32, worker: u32) -> Fleet {
    let mut spec = spec(control, worker);
    for of in [Control, Worker] {
        let mut join = item("swarm", Phase::Deploy);
        join.runner = RunnerKind::SwarmJoin;
        join.params = [("advertise".to_owned(), "${machine.internalIP}".to_owned())].into();
        spec.machine_types.get_mut(&of).expect("a type").insert(2, join);
    }
    Fleet::with(spec).reported()
}

/// The answer when `swarm` is the machine's next item.
fn turn(fleet: &mut Fleet, name: &str) -> Result<Entry, Refusal> {
    fleet.accept(name);
    if fleet.due(name).as_deref() == Some("install") {
        fleet.event(name, "install", ItemState::Running);
        fleet.event(name, "install", ItemState::Succeeded);
    }
    ask(fleet, name)
}

fn ask(fleet: &mut Fleet, name: &str) -> Result<Entry, Refusal> {
    let agent = &fleet.agents[name];
    let generation = agent.assignment.as_ref().expect("a list").generation;
    let asked = Input::Fetch { id: agent.id, item: item_name("swarm"), generation };
    match fleet.step(asked)? {
        Reply::Inputs { secrets, entry: Some(entry) } if secrets.is_empty() => Ok(entry),
        other => panic!("{other:?}"),
    }
}

fn through(fleet: &mut Fleet, name: &str) -> (bool, Vec<String>) {
    match turn(fleet, name).expect("let in") {
        Entry::Join { manager, managers, .. } => {
            (manager, managers.into_iter().map(|(name, _)| name.to_string()).collect())
        }
        Entry::Init => panic!("{name} makes a swarm"),
    }
}

fn told(fleet: &Fleet) -> Option<muster_proto::model::MachineId> {
    let rows = fleet.store.load().expect("in memory");
    crate::facts::Facts::load(rows).expect("its own rows").clusters[&cluster()].swarm_init
}

#[test]
fn the_first_makes_the_swarm_and_the_others_join_through_who_is_connected() {
    let mut fleet = fleet(3, 1);
    assert_eq!(told(&fleet), None);
    assert_eq!(turn(&mut fleet, "control-1").expect("let in"), Entry::Init);
    assert_eq!(told(&fleet), Some(fleet.agents["control-1"].id), "durable before it is said");
    // After a coordinator crash in the middle, it gets the same answer.
    fleet.restart();
    fleet.all_report();
    assert_eq!(ask(&mut fleet, "control-1").expect("let in"), Entry::Init);
    fleet.finish("control-1");
    assert_eq!(through(&mut fleet, "control-2"), (true, vec!["control-1".to_owned()]));
    fleet.finish("control-2");
    assert_eq!(through(&mut fleet, "control-3"), (true, vec!["control-1".to_owned(), "control-2".to_owned()]));
    fleet.finish_all(Control);
    fleet.disconnect("control-2");
    assert_eq!(through(&mut fleet, "worker-1"), (false, vec!["control-1".to_owned(), "control-3".to_owned()]));
    fleet.disconnect("control-1");
    fleet.disconnect("control-3");
    let refused = ask(&mut fleet, "worker-1").expect_err("nobody is there").to_string();
    let expected = "NoManagerReachable: no manager of the swarm is connected; this passes when the agent of one of \
                    control-1, control-2, control-3 connects";
    assert_eq!(refused, expected);
}

#[test]
fn who_may_have_made_a_swarm_is_waited_for() {
    // Its process was started, so there may be a swarm, whatever the outcome.
    let mut fleet = fleet(2, 0);
    turn(&mut fleet, "control-1").expect("let in");
    fleet.event("control-1", "swarm", ItemState::Running);
    fleet.event("control-1", "swarm", ItemState::Failed { exit_code: 1, retryable: false });
    let control_2 = fleet.row("control-2").clone();
    let entry =
        |fleet: &Fleet, limits: &Limits| crate::plan::swarm::entry(fleet.core.facts(), &control_2, limits, fleet.now());
    let limits = LIMITS;
    let wait = entry(&fleet, &limits).expect_err("two swarms cannot be joined into one").to_string();
    assert!(wait.starts_with("control-1 makes the cluster's swarm and has not completed its swarm-join;"), "{wait}");
    // An operator skips it.
    fleet.ask(Request::Skip { machine: super::fleet::machine("control-1"), item: None }).expect("skipped");
    assert_eq!(entry(&fleet, &limits), Ok(Entry::Init));
}

#[test]
fn after_a_start_nobody_is_told_to_make_a_swarm_before_the_others_have_spoken() {
    let mut fleet = fleet(2, 0);
    let control_2 = fleet.row("control-2").clone();
    let limits = LIMITS;
    let entry =
        |fleet: &Fleet, limits: &Limits| crate::plan::swarm::entry(fleet.core.facts(), &control_2, limits, fleet.now());
    assert_eq!(entry(&fleet, &limits), Ok(Entry::Init));
    fleet.restart();
    fleet.connect("control-2");
    let wait = entry(&fleet, &limits).expect_err("control-1 is silent");
    assert_eq!(wait.reason(), "Gathering");
    fleet.pass(limits.lost_after_ms, &[]);
    assert_eq!(entry(&fleet, &limits), Ok(Entry::Init));
}

#[test]
fn only_an_item_of_the_list_gets_in() {
    let mut fleet = fleet(2, 0);
    turn(&mut fleet, "control-1").expect("let in");
    let generation = fleet.agents["control-1"].assignment.as_ref().expect("a list").generation;
    let before = fleet.core.facts().clone();
    for (name, generation) in [("control-2", generation), ("control-1", generation.next())] {
        let id = fleet.agents[name].id;
        let asked = fleet.step(Input::Fetch { id, item: item_name("swarm"), generation });
        assert_eq!(reason(asked), "NotAssigned", "{name}");
    }
    assert!(before.same_record(fleet.core.facts()), "and nothing is recorded");
}

/// `control-1` may have created the swarm, and an operator accepted that; the restored store lacks this. To continue,
/// it needs only the slot.
#[test]
fn whoever_has_begun_to_make_the_swarm_goes_first_after_recover() {
    let mut fleet = fleet(2, 0);
    let old = fleet.store.clone();
    turn(&mut fleet, "control-1").expect("let in");
    fleet.event("control-1", "swarm", ItemState::Running);
    fleet.event("control-1", "swarm", ItemState::Indeterminate);
    fleet.disconnect("control-2");
    let machine = || super::fleet::machine("control-1");
    fleet.ask(Request::Accept { machine: machine(), item: None }).expect("accepted");
    fleet.accept("control-1");
    fleet.recover_from(old);
    fleet.all_report();
    assert_eq!((fleet.slots(), fleet.why("control-2").as_deref()), (Vec::new(), Some("WaitingForTurn")));
    assert_eq!(fleet.why("control-1").as_deref(), Some("Indeterminate"));
    fleet.ask(Request::Retry { machine: machine(), item: None }).expect("tried again");
    assert_eq!(fleet.slots(), ["control-1"], "{:?}", fleet.why("control-1"));
}

/// The order of control machines must not make it wait for one that waits for it (seed 19043).
#[test]
fn whoever_has_begun_to_make_the_swarm_goes_before_earlier_ones() {
    let mut fleet = preparing(2, 0);
    fleet.disconnect("control-1");
    fleet.accept("control-2");
    fleet.event("control-2", "images", ItemState::Running);
    fleet.event("control-2", "images", ItemState::Succeeded);
    let old = fleet.store.clone();
    turn(&mut fleet, "control-2").expect("let in");
    fleet.event("control-2", "swarm", ItemState::Running);
    fleet.event("control-2", "swarm", ItemState::Indeterminate);
    fleet.connect("control-1");
    fleet.finish("control-1");
    fleet.disconnect("control-1");
    let machine = || super::fleet::machine("control-2");
    fleet.ask(Request::Accept { machine: machine(), item: None }).expect("accepted");
    fleet.accept("control-2");
    fleet.recover_from(old);
    fleet.all_report();
    assert_eq!((fleet.slots(), fleet.why("control-2").as_deref()), (Vec::new(), Some("Indeterminate")));
    fleet.ask(Request::Retry { machine: machine(), item: None }).expect("tried again");
    assert_eq!(fleet.slots(), ["control-2"], "{:?} {:?}", fleet.why("control-1"), fleet.why("control-2"));
}

/// The same in an update that brings the swarm, where the earlier machine was in trouble when the other began.
#[test]
fn whoever_has_begun_to_make_the_swarm_goes_before_earlier_ones_in_an_update() {
    let mut fleet = Fleet::of(3, 0).reported().prepared();
    fleet.finish_all(Control);
    let mut newest = spec(3, 0);
    newest.max_failures.control = 3;
    let of_control = newest.machine_types.get_mut(&Control).expect("a type");
    of_control[0].version.push_str(".1");
    let mut join = item("swarm", Phase::Deploy);
    (join.runner, join.disruptive) = (RunnerKind::SwarmJoin, Some(false));
    of_control.insert(1, join);
    fleet.ask(apply(newest, &[])).expect("applies");
    let update = || Request::Update { cluster: cluster(), options: Options::of(Scope::Drain) };
    fleet.ask(update()).expect("starts");
    fleet.fail("control-1");
    fleet.begin("control-2");
    fleet.event("control-2", "images", ItemState::Succeeded);
    assert_eq!(fleet.slots(), ["control-2"], "{:?} {}", fleet.why("control-2"), fleet.says("control-2"));
    assert_eq!(turn(&mut fleet, "control-2"), Ok(Entry::Init));
    fleet.event("control-2", "swarm", ItemState::Running);
    fleet.event("control-2", "swarm", ItemState::Failed { exit_code: 1, retryable: false });
    fleet.ask(Request::Retry { machine: machine("control-1"), item: None }).expect("tried again");
    fleet.finish("control-1");
    let rollout = fleet.core.facts().open_rollout(&cluster()).expect("a rollout").name.clone();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    assert!(fleet.slots().is_empty(), "{:?}", fleet.slots());
    fleet.ask(update()).expect("starts again");
    ["control-1", "control-2"].iter().for_each(|name| fleet.accept(name));
    assert_eq!(fleet.slots(), ["control-2"], "{} {}", fleet.says("control-1"), fleet.says("control-2"));
}

/// Seed 83411583806464: a control machine replaced during an update is deployed after it, and the update waits for a
/// worker that waits for the swarm.
#[test]
fn maker_after_the_update_names_skip() {
    let mut fleet = fleet(1, 1);
    turn(&mut fleet, "control-1").expect("makes it");
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    let mut newest = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    newest.machine_types.get_mut(&Worker).expect("a type")[2].version.push_str(".1");
    fleet.ask(apply(newest, &[])).expect("applies");
    fleet.ask(Request::Update { cluster: cluster(), options: Options::of(Scope::Drain) }).expect("starts");
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: true }).expect("replaced");
    fleet.enroll("control-1", Control).expect("enrols");
    let entry = |fleet: &Fleet| {
        let worker = fleet.row("worker-1").clone();
        crate::plan::swarm::entry(fleet.core.facts(), &worker, &LIMITS, fleet.now())
    };
    let wait = entry(&fleet).expect_err("there is no swarm").to_string();
    assert!(wait.contains("after the update, which waits for worker-1: `musterctl skip worker-1 swarm`"), "{wait}");
    let update = fleet.core.facts().open_rollout(&cluster()).expect("a rollout").name.clone();
    fleet.ask(Request::Abort { rollout: update }).expect("aborts");
    let wait = entry(&fleet).expect_err("there is no swarm").to_string();
    assert!(wait.ends_with("revokes control-1"), "{wait}");
}

/// Docker comes with the items before it, so its engine may be missing.
#[test]
fn one_that_never_began_its_swarm_join_is_removed_unasked() {
    let mut fleet = fleet(1, 1);
    let policy = RemovalPolicy::Graceful;
    let remove = Request::Remove { machine: machine("worker-1"), policy, accept_control_plane_downtime: false };
    fleet.ask(remove).expect("begins");
    assert!(fleet.questions.is_empty(), "{:?}", fleet.questions);
    assert!(!fleet.core.facts().machines.contains_key("worker-1"), "{:?}", fleet.why("worker-1"));
}

/// Two control machines; an operator kept one of them out of the swarm.
fn one_manager() -> Fleet {
    let mut fleet = fleet(2, 0);
    turn(&mut fleet, "control-1").expect("makes it");
    fleet.event("control-1", "swarm", ItemState::Running);
    fleet.event("control-1", "swarm", ItemState::Succeeded);
    fleet.finish("control-1");
    turn(&mut fleet, "control-2").expect("let in");
    fleet.fail("control-2");
    fleet.ask(Request::Skip { machine: machine("control-2"), item: None }).expect("without it");
    fleet.accept("control-2");
    fleet.finish_all(Control);
    fleet
}

/// The other control machine is outside the swarm, so it could not answer questions about its nodes.
#[test]
fn the_only_manager_is_not_removed() {
    let mut fleet = one_manager();
    let remove = |name, policy| Request::Remove { machine: machine(name), policy, accept_control_plane_downtime: true };
    for policy in RemovalPolicy::ALL.iter().copied() {
        assert_eq!(reason(fleet.ask(remove("control-1", policy))), "LastControl");
    }
    fleet.ask(remove("control-2", RemovalPolicy::Unsafe)).expect("it is in nobody's way");
}

/// Its swarm-join runs again in an update, and so does the other machine's, which an operator once skipped.
#[test]
fn the_only_member_waits_for_nobody() {
    let mut fleet = one_manager();
    let mut newest = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    let joins = newest.machine_types.values_mut().flatten().filter(|item| item.name.as_str() == "swarm");
    joins.for_each(|item| item.version.push_str(".1"));
    fleet.ask(apply(newest, &[])).expect("applies");
    let accepted = Options { accept_control_plane_downtime: true, skip_backup: true, ..Options::of(Scope::Drain) };
    fleet.ask(Request::Update { cluster: cluster(), options: accepted }).expect("starts");
    assert_eq!(turn(&mut fleet, "control-1"), Ok(Entry::Init));
}
