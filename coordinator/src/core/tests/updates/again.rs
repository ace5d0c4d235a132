//! Items that succeeded and run again: after they left the manifest, or on an operator's request.

use muster_proto::model::{Generation, LedgerId, Seq};
use uuid::Uuid;

use super::{super::done, *};

/// Worker `worker-1` with these deploy items.
fn with(items: &[&str], release: &str) -> ClusterSpec {
    let mut spec = spec(1, 1);
    let of_worker = items.iter().map(|name| item(name, Phase::Deploy));
    spec.machine_types.insert(Worker, [item("images", Phase::Prepare)].into_iter().chain(of_worker).collect());
    ClusterSpec { release: release.to_owned(), ..spec }
}

/// An update that disturbs the worker, until its end.
pub(super) fn updated(fleet: Fleet) -> Fleet {
    let mut fleet = fleet.started();
    fleet.upgrade("worker-1");
    fleet.lock("ceph", None, LockState::Active);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "it has ended");
    fleet
}

/// Generation of the list with the newest attempt at this item.
pub(super) fn last_run(fleet: &Fleet, item: &str) -> u64 {
    fleet.agents["worker-1"].statuses[&item_name(item)].generation.0
}

#[test]
fn dropped_item_runs_again() {
    let mut fleet = guarded(Fleet::with(with(&["tool", "kept"], "1")));
    let (tool, kept) = (last_run(&fleet, "tool"), last_run(&fleet, "kept"));
    fleet.ask(apply(with(&["no-tool", "kept"], "2"), &[])).expect("applies");
    let mut fleet = updated(fleet);
    assert!(!fleet.row("worker-1").counts(&fleet.row("worker-1").statuses[&item_name("tool")]));
    fleet.ask(apply(with(&["tool", "kept"], "1"), &[])).expect("applies");
    let mut fleet = updated(fleet);
    let again = last_run(&fleet, "tool");
    assert!(again > tool, "it was out of the list, and runs again");
    assert_eq!(last_run(&fleet, "kept"), kept, "it stayed in the list, and never runs again");
    assert_eq!(reason(fleet.ask(update())), "NothingToDo");
    // The repeated item stays done under the next release with it.
    fleet.ask(apply(with(&["tool", "kept", "more"], "3"), &[])).expect("applies");
    let fleet = updated(fleet);
    assert_eq!((last_run(&fleet, "tool"), last_run(&fleet, "kept")), (again, kept));
}

#[test]
fn item_dropped_in_first_deployment_runs_again() {
    let mut fleet = Fleet::with(with(&["tool", "last"], "1")).reported().prepared();
    fleet.finish_all(Control);
    fleet.accept("worker-1");
    fleet.event("worker-1", "tool", ItemState::Running);
    fleet.event("worker-1", "tool", ItemState::Succeeded);
    for items in [&["no-tool", "last"], &["tool", "last"]] {
        fleet.ask(apply(with(items, "1"), &[])).expect("applies");
        fleet.accept("worker-1");
        assert_eq!(fleet.due("worker-1").as_deref(), Some(items[0]));
        fleet.event("worker-1", items[0], ItemState::Running);
        fleet.event("worker-1", items[0], ItemState::Succeeded);
    }
    fleet.finish("worker-1");
    assert_eq!(fleet.state("worker-1"), "Ready");
}

/// It was running when another manifest dropped it; an update's end would record that, but this is a deployment.
#[test]
fn late_success_in_first_deployment_runs_again() {
    let mut fleet = Fleet::with(with(&["tool", "last"], "1")).reported().prepared();
    fleet.finish_all(Control);
    fleet.accept("worker-1");
    fleet.event("worker-1", "tool", ItemState::Running);
    fleet.ask(apply(with(&["no-tool", "last"], "1"), &[])).expect("applies");
    let agent = fleet.agents.get_mut("worker-1").expect("an agent");
    let status = agent.statuses.get_mut(&item_name("tool")).expect("it runs");
    (status.state, status.finished_at_ms) = (ItemState::Succeeded, Some(1));
    agent.seq = agent.seq.next();
    let (seq, ended) = (agent.seq, status.clone());
    fleet.event_at("worker-1", seq, ended).expect("what ran is left to finish");
    let row = fleet.row("worker-1");
    assert!(!row.counts(&row.statuses[&item_name("tool")]), "it was out of the list when it ended");
    fleet.ask(apply(with(&["tool", "last"], "1"), &[])).expect("applies");
    fleet.accept("worker-1");
    assert_eq!(fleet.due("worker-1").as_deref(), Some("tool"));
}

/// Seed 40955: it was running when its update was aborted, and ends when the machine is at rest again.
#[test]
fn late_success_of_dropped_item_runs_again() {
    let mut fleet = guarded(Fleet::with(with(&["tool"], "1")));
    let mut next = with(&["tool"], "2");
    next.machine_types.get_mut(&Worker).expect("items").insert(1, item("more", Phase::Prepare));
    fleet.ask(apply(next, &[])).expect("applies");
    fleet.ask(update()).expect("starts");
    fleet.accept("worker-1");
    fleet.event("worker-1", "more", ItemState::Running);
    let rollout = fleet.core.facts().open_rollout(&cluster()).expect("an update").name.clone();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.lock("ceph", None, LockState::Active);
    assert!(fleet.row("worker-1").update.is_none(), "it has left the update");
    fleet.event("worker-1", "more", ItemState::Succeeded);
    let row = fleet.row("worker-1");
    assert!(!row.counts(&row.statuses[&item_name("more")]), "it was out of the list when it ended");
}

/// Seed 122398733986528: it was running when its update was aborted, and its success arrives in the next update.
#[test]
fn success_heard_in_next_update_runs_again() {
    let mut fleet = guarded(Fleet::with(with(&["tool"], "1")));
    let mut next = with(&["tool"], "2");
    next.machine_types.get_mut(&Worker).expect("items").insert(1, item("more", Phase::Prepare));
    fleet.ask(apply(next, &[])).expect("applies");
    fleet.ask(update()).expect("starts");
    fleet.accept("worker-1");
    fleet.event("worker-1", "more", ItemState::Running);
    let begun = last_run(&fleet, "more");
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.lock("ceph", None, LockState::Active);
    assert!(fleet.row("worker-1").update.is_none(), "it has left the update");
    fleet.ask(update()).expect("starts again");
    fleet.event("worker-1", "more", ItemState::Succeeded);
    fleet.accept("worker-1");
    assert_eq!(fleet.due("worker-1").as_deref(), Some("more"), "it was out of the list after it began");
    fleet.finish("worker-1");
    assert!(last_run(&fleet, "more") > begun);
}

/// An item is dropped before its success arrives. It must still run again after another item is dropped.
#[test]
fn unheard_redo_survives_next_drop() {
    let fleet = guarded(Fleet::with(with(&["tool"], "1")));
    let mut row = fleet.row("worker-1").clone();
    let (more, newest) = (item_name("more"), row.assigned.generation);
    row.assigned_items.as_mut().expect("noted").insert(more.clone());
    row.redo.insert(more.clone(), newest);
    row.drop_others(|_| true);
    assert_eq!(row.redo_up_to(&more), newest);
    row.assigned_items.as_mut().expect("noted").remove(&more);
    row.drop_others(|_| true);
    assert_eq!(row.redo_up_to(&more), Generation(0), "it was never given such an item");
}

fn rerun(item: &str) -> Request {
    Request::Rerun { machine: machine("worker-1"), item: item_name(item) }
}

#[test]
fn done_item_runs_again_in_next_update() {
    let mut fleet = guarded(Fleet::with(with(&["tool", "kept"], "1")));
    let (tool, kept) = (last_run(&fleet, "tool"), last_run(&fleet, "kept"));
    let line = done(fleet.ask(rerun("tool")));
    let when = "in the next update, when its workloads are away: `musterctl update edge-7`";
    assert_eq!(line, format!("machine worker-1: item tool runs again {when}"));
    assert_eq!((fleet.state("worker-1"), fleet.why("worker-1").as_deref()), ("Ready", Some("NotUpToDate")));
    assert_eq!(reason(fleet.ask(rerun("tool"))), "NothingToDo");
    fleet.pass(60_000, &[]);
    assert_eq!(fleet.due("worker-1"), None, "nothing disturbs it outside of an update");
    let mut fleet = updated(fleet);
    assert!(last_run(&fleet, "tool") > tool);
    assert_eq!(last_run(&fleet, "kept"), kept);
    assert_eq!((fleet.why("worker-1"), reason(fleet.ask(update()))), (None, "NothingToDo"));
    assert!(fleet.core.facts().audit_lines().iter().any(|line| line.action == "rerun"), "it is audited");
}

/// Its machine has lost its ledger, so it is done only by the coordinator's record.
#[test]
fn item_of_a_lost_ledger_runs_again() {
    let mut fleet = guarded(Fleet::with(with(&["tool", "kept"], "1")));
    let agent = fleet.agents.get_mut("worker-1").expect("an agent");
    (agent.ledger, agent.acked, agent.seq) = (LedgerId(Uuid::from_u128(77)), Seq(0), Seq(0));
    agent.statuses.remove(&item_name("tool"));
    fleet.connect("worker-1");
    assert_eq!((fleet.state("worker-1"), fleet.why("worker-1")), ("Ready", None));
    fleet.ask(rerun("tool")).expect("done");
    assert_eq!(fleet.why("worker-1").as_deref(), Some("NotUpToDate"));
    assert_eq!(reason(fleet.ask(rerun("tool"))), "NothingToDo", "it is due");
    fleet.ask(update()).expect("starts");
}

#[test]
fn rerun_is_refused_where_it_makes_no_sense() {
    let mut fleet = guarded(Fleet::with(with(&["tool", "kept"], "1")));
    let answer = fleet.ask(rerun("tol")).expect_err("no such item").to_string();
    assert!(answer.contains("did you mean tool?"), "{answer}");
    fleet.ask(apply(with(&["tool", "kept", "more"], "2"), &[])).expect("applies");
    let mut fleet = fleet.started();
    assert_eq!(reason(fleet.ask(rerun("tool"))), "RolloutOpen");
    fleet.upgrade("worker-1");
    let mut fleet = Fleet::with(with(&["tool"], "1")).reported().prepared();
    assert_eq!(reason(fleet.ask(rerun("tool"))), "NothingToDo");
}

#[test]
fn accepted_item_runs_again() {
    let mut fleet = Fleet::with(with(&["tool"], "1")).reported().prepared();
    fleet.finish_all(Control);
    fleet.accept("worker-1");
    fleet.event("worker-1", "tool", ItemState::Running);
    fleet.event("worker-1", "tool", ItemState::Indeterminate);
    let (machine, item) = (machine("worker-1"), Some(item_name("tool")));
    fleet.ask(Request::Accept { machine, item }).expect("held");
    fleet.accept("worker-1");
    assert_eq!(fleet.state("worker-1"), "Ready");
    fleet.ask(rerun("tool")).expect("done");
    fleet.ask(update()).expect("starts");
    fleet.finish("worker-1");
    assert_eq!(fleet.agents["worker-1"].statuses[&item_name("tool")].state, ItemState::Succeeded);
    assert_eq!((fleet.state("worker-1"), fleet.why("worker-1")), ("Ready", None));
}
