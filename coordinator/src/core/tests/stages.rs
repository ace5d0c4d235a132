//! Deadlines of the stages of an update.

use muster_proto::model::{DeadlineOutcome, ItemState, LockState, UpdateDeadlines};

use super::{fleet::*, updates::*};
use crate::{
    core::{Input, Request},
    facts::{ClusterStage, Stage},
    plan::{blocked, update::overdue_stage},
};

/// In small steps, because a machine without messages for long is Lost.
fn hours(fleet: &mut Fleet, hours: u64) {
    (0..hours * 180).for_each(|_| fleet.pass(20_000, &[]));
}

/// An update has begun, and machines with an image to load are about to prepare.
fn preparing(workers: u32) -> Fleet {
    let mut fleet = deployed(3, workers);
    release(&mut fleet, &["images", "install"], 1);
    fleet.ask(update()).expect("starts");
    fleet.lock("ceph", None, LockState::Inactive);
    fleet
}

#[test]
fn a_machine_that_prepares_for_too_long_is_put_aside() {
    let mut fleet = preparing(2);
    hours(&mut fleet, 3);
    assert_eq!(fleet.stuck("worker-2"), None);
    hours(&mut fleet, 1);
    assert_eq!(fleet.stuck("worker-2"), Some(Stage::PrepareDone));
    assert!(fleet.part("worker-2").is_some_and(|part| part.deferral.is_some()));
    fleet.ask(Request::Retry { machine: machine("worker-2"), item: None }).expect("asks again");
    assert_eq!(fleet.stuck("worker-2"), None, "it has its time anew");
    hours(&mut fleet, 4);
    assert_eq!(fleet.stuck("worker-2"), Some(Stage::PrepareDone));
}

#[test]
fn items_past_their_deadline_count_until_they_are_done() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    hours(&mut fleet, 4);
    assert_eq!(fleet.stuck("control-1"), Some(Stage::DeployDone));
    assert_eq!((fleet.slots(), fleet.requests()), (vec!["control-1"], vec!["control-1"]), "no slot is freed by time");
    assert_eq!(fleet.why("control-2").as_deref(), Some("FailureBudget"));
    fleet.event("control-1", "install", ItemState::Succeeded);
    fleet.accept("control-1");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!((fleet.part("control-1"), fleet.requests()), (None, vec!["control-2"]));
}

#[test]
fn what_is_retried_has_its_time_anew() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.fail("control-1");
    let retry = || Request::Retry { machine: machine("control-1"), item: None };
    hours(&mut fleet, 3);
    fleet.ask(retry()).expect("runs again");
    hours(&mut fleet, 3);
    assert_eq!(fleet.stuck("control-1"), None);
    hours(&mut fleet, 1);
    assert_eq!(fleet.stuck("control-1"), Some(Stage::DeployDone));
    fleet.begin("control-1");
    fleet.event("control-1", "install", ItemState::Failed { exit_code: 3, retryable: false });
    fleet.ask(retry()).expect("runs again");
    assert_eq!(fleet.stuck("control-1"), None, "and nobody is told of the time that is over");
}

/// An update that changes an item of each phase: `control-1` has done the first, and has a permit for the second.
fn reconfigures() -> Fleet {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install", "join"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    hours(&mut fleet, 2);
    assert!(!fleet.row("control-1").stages.contains_key(&Stage::ReconfigureDone));
    fleet.event("control-1", "install", ItemState::Succeeded);
    let stages = &fleet.row("control-1").stages;
    assert!(stages[&Stage::DeployDone].succeeded && stages[&Stage::ReconfigureDone].finished_at_ms.is_none());
    fleet
}

#[test]
fn reconfigure_items_are_a_stage_of_their_own() {
    let mut fleet = reconfigures();
    assert_eq!(fleet.begin("control-1"), "join");
    hours(&mut fleet, 3);
    assert_eq!(fleet.stuck("control-1"), None, "it has its time from its own begin");
    hours(&mut fleet, 1);
    assert_eq!(fleet.stuck("control-1"), Some(Stage::ReconfigureDone));
    fleet.event("control-1", "join", ItemState::Succeeded);
    fleet.accept("control-1");
    assert!(fleet.row("control-1").stages[&Stage::ReconfigureDone].succeeded);
}

#[test]
fn permits_that_run_out_give_a_stage_no_more_time() {
    let mut fleet = reconfigures();
    let id = fleet.agents["control-1"].id;
    for _ in 0..4 * 180 {
        assert_eq!(fleet.stuck("control-1"), None);
        fleet.pass(20_000, &[]);
        let permit = fleet.permit("control-1").expect("it has leave").number;
        fleet.step(Input::PermitWanted { id, permit }).expect("known");
    }
    assert_eq!(fleet.stuck("control-1"), Some(Stage::ReconfigureDone));
}

#[test]
fn items_past_their_deadline_may_pause_the_update() {
    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_deadlines.items.outcome = DeadlineOutcome::Pause;
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.begin("control-1");
    hours(&mut fleet, 4);
    assert_eq!(fleet.stuck("control-1"), Some(Stage::DeployDone));
    assert_eq!(fleet.why("control-2").as_deref(), Some("Paused"));
    let rollout = fleet.rollout();
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    assert_eq!(fleet.stuck("control-1"), None, "it has its time anew");
    hours(&mut fleet, 3);
    assert_eq!(fleet.stuck("control-1"), None);
}

/// The cluster's own stage that is past its deadline.
fn overdue(fleet: &Fleet) -> Option<ClusterStage> {
    fleet.look("worker-1", |snapshot, _| overdue_stage(snapshot).map(|(stage, _)| stage))
}

#[test]
fn locks_of_the_cluster_that_stay_active_are_told() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    fleet.ask(update()).expect("starts");
    hours(&mut fleet, 1);
    assert_eq!(overdue(&fleet), None);
    hours(&mut fleet, 1);
    assert_eq!(overdue(&fleet), Some(ClusterStage::LocksInactive));
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    assert_eq!(overdue(&fleet), None);
}

#[test]
fn locks_of_the_cluster_that_never_came_back_are_told() {
    let mut fleet = deployed(3, 1);
    fleet.lock("ceph", None, LockState::Inactive);
    release(&mut fleet, &["install"], 1);
    fleet.ask(update()).expect("starts");
    hours(&mut fleet, 1);
    assert_eq!(overdue(&fleet), None);
    hours(&mut fleet, 1);
    assert_eq!(overdue(&fleet), Some(ClusterStage::Requested));
    fleet.lock("ceph", None, LockState::Active);
    fleet.pass(20_000, &[]);
    assert_eq!(overdue(&fleet), None);
}

#[test]
fn nobody_whose_turn_comes_for_a_day_pauses_the_update() {
    let mut fleet = preparing(1);
    fleet.finish("worker-1");
    assert!(!fleet.row("worker-1").stages[&Stage::PreviousDeployed].succeeded);
    let turn_ms = fleet.core.facts().spec(&cluster()).expect("applied").update_deadlines.turn_ms;
    hours(&mut fleet, turn_ms / 3_600_000);
    assert_eq!(fleet.stuck("worker-1"), Some(Stage::PreviousDeployed));
    assert_eq!(fleet.why("worker-1").as_deref(), Some("Paused"));
}

#[test]
fn a_rollout_that_ended_keeps_its_numbers() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["images"], 1);
    let fleet = fleet.started();
    let ended: Vec<_> = fleet.core.facts().rollouts.values().map(|rollout| rollout.ended).collect();
    assert_eq!(ended, [Some((4, 4)), Some((4, 4))], "the update has taken over the machines of the deployment");
}

#[test]
fn an_aborted_rollout_has_no_stage_in_progress() {
    let mut fleet = deployed(3, 1);
    release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout: rollout.clone() }).expect("aborts");
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    let row = &fleet.core.facts().rollouts[&rollout];
    assert!(row.finished_at_ms.is_some());
    let stages = row.update.iter().flat_map(|update| update.stages.iter());
    let open: Vec<_> = stages.filter(|(_, stage)| stage.finished_at_ms.is_none()).collect();
    assert!(open.is_empty(), "{open:?}");
    let open: Vec<_> = fleet.row("worker-1").stages.iter().filter(|(_, row)| row.finished_at_ms.is_none()).collect();
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_finished_maintenance_counts_who_is_back() {
    let mut fleet = deployed(3, 2);
    let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
    fleet.ask(enter).expect("goes out of service");
    let rollout = fleet.rollout();
    fleet.ask(Request::LeaveMaintenance { machine: machine("worker-1") }).expect("comes back");
    fleet.lock("ceph", Some("worker-1"), LockState::Active);
    assert_eq!(fleet.core.facts().rollouts[&rollout].ended, Some((1, 1)));
}

#[test]
fn the_time_of_preparing_is_not_that_of_waiting() {
    let mut fleet = Fleet::of(1, 1).reported();
    fleet.finish("worker-1");
    let done_ms = fleet.now().wall_ms;
    fleet.pass(20_000, &[]);
    fleet.finish("control-1");
    let stages = &fleet.row("worker-1").stages;
    let (prepared, waited) = (&stages[&Stage::PrepareDone], &stages[&Stage::PreviousDeployed]);
    assert_eq!((prepared.succeeded, prepared.finished_at_ms), (true, Some(done_ms)), "{stages:?}");
    assert_eq!((waited.started_at_ms, waited.finished_at_ms), (done_ms, Some(fleet.now().wall_ms)), "{stages:?}");
}

/// A cluster with a new release to go to, under these deadlines.
fn under(deadlines: impl Fn(&mut UpdateDeadlines)) -> Fleet {
    let mut fleet = deployed(3, 1);
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    deadlines(&mut spec.update_deadlines);
    fleet.ask(apply(spec, &[])).expect("applies");
    release(&mut fleet, &["install"], 1);
    fleet
}

/// The actor and message of its last audit line.
fn last_word(fleet: &Fleet) -> (String, String) {
    let line = fleet.core.facts().audit_lines().pop().expect("a line");
    (line.actor.clone(), line.message.clone())
}

#[test]
fn the_cluster_s_own_locks_may_abort_the_update() {
    let fail = |deadlines: &mut UpdateDeadlines| deadlines.cluster_locks.outcome = DeadlineOutcome::Fail;
    let mut fleet = under(fail);
    fleet.ask(update()).expect("starts");
    hours(&mut fleet, 1);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_some(), "they have their time");
    hours(&mut fleet, 1);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "nothing was disturbed, so it is over");
    let (actor, said) = last_word(&fleet);
    assert!(actor == "muster" && said.contains("\"Cluster workload locks are inactive\" took longer"), "{said}");
    let release = |name: &str| fleet.row(name).ready_at.as_ref().map(|(release, _)| release.clone());
    assert_eq!((release("control-1"), fleet.requests()), (Some("1".to_owned()), Vec::<&str>::new()));
}

#[test]
fn locks_that_do_not_come_back_may_pause_the_update() {
    let pause = |deadlines: &mut UpdateDeadlines| deadlines.locks_returned.outcome = DeadlineOutcome::Pause;
    let mut fleet = under(pause).started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    hours(&mut fleet, 1);
    assert_eq!((fleet.stuck("control-1"), fleet.slots()), (Some(Stage::RequestRemoved), vec!["control-1"]));
    assert_eq!((fleet.why("control-2").as_deref(), fleet.requests()), (Some("Paused"), Vec::<&str>::new()));
    let said = fleet.look("control-1", |snapshot, _| blocked::of_cluster(snapshot)).expect("it waits").message;
    assert!(
        said.contains("it waited for this: control-1: the request is gone; workloads are not back yet - ceph"),
        "{said}"
    );
    assert!(fleet.wants_a_person());
    let rollout = fleet.rollout();
    fleet.ask(Request::Resume { rollout }).expect("goes on");
    assert_eq!((fleet.part("control-1"), fleet.requests()), (None, vec!["control-2"]), "without them");
    assert!(!fleet.row("control-1").stages[&Stage::RequestRemoved].succeeded);
    assert_eq!(fleet.why("control-1").as_deref(), Some("LocksReturning"), "and it stays to be seen");
}

#[test]
fn locks_that_come_back_in_a_pause_end_the_wait() {
    let pause = |deadlines: &mut UpdateDeadlines| deadlines.locks_returned.outcome = DeadlineOutcome::Pause;
    let mut fleet = under(pause).started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.finish("control-1");
    hours(&mut fleet, 1);
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    assert_eq!((fleet.part("control-1"), fleet.why("control-1")), (None, None));
    assert!(fleet.row("control-1").stages[&Stage::RequestRemoved].succeeded);
    assert_eq!(fleet.why("control-2").as_deref(), Some("Paused"), "an operator has not looked yet");
}
