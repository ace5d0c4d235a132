//! Rule 1, the swarm's own view: a manager is disturbed only while the others are a majority without it, as one of them
//! reports. The connection of a control machine's agent proves nothing about its Docker Engine.

use muster_proto::{
    model::{Blocked, ItemProgress, MachineType, Reason, SwarmId, SwarmOp},
    seeded_bug::seeded_bug,
};

use super::{
    FRESH_MS, fresh, look,
    questions::{ANSWER_MS, LOOK_EVERY_MS, Question, controls, manager, question},
    unanswered,
};
use crate::{
    facts::{Added, NodeObservation, Peers, UpdateKind},
    plan::{
        added,
        safety::{accepts_downtime, blocked, some_names},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Are the other managers counted before this machine is disturbed? True if its swarm-join made it a manager, unless
/// downtime of the control plane is accepted. A machine under removal has a count of its own.
pub(super) fn is_asked(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let row = view.row;
    let control = row.spec.machine_type == MachineType::Control && row.removal.is_none();
    let manager = row.swarm.as_ref().is_some_and(|member| member.manager);
    let disruptive = view.update().is_some_and(|mine| mine.disruptive);
    let accepted = snapshot.update().is_none() || accepts_downtime(snapshot, view);
    // Seeded bug: trust the agents alone.
    control && manager && disruptive && !accepted && !seeded_bug("ignore-swarm-quorum")
}

/// Are there enough managers without this one? In a turn that has begun, also true if no more can come before its end:
/// a replaced machine is deployed after the update, and a turn has to end before that.
fn is_enough(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, peers: &Peers) -> bool {
    let disturbed = view.update().is_some_and(|mine| mine.disturbed());
    let comes_back = |id: &SwarmId| owner(snapshot, id).is_some_and(|p| p.ready_once() && !p.row.revoked);
    let enough = has_majority(peers) && (peers.away.is_empty() || !copies_consistently(view, peers));
    enough || (disturbed && !peers.away.iter().any(comes_back))
}

const fn has_majority(peers: &Peers) -> bool {
    peers.reachable() * 2 > peers.managers + 1
}

/// Is its copy with Docker stopped still open? Its runner makes the copy only while every other manager is reachable,
/// and a permit for it is final.
fn copies_consistently(view: &MachineView<'_>, peers: &Peers) -> bool {
    let in_turn = view.update().is_some_and(|mine| mine.maintenance.is_none());
    let items = view.items.unwrap_or_default();
    let copy = added::find(items, &Added::ConsistentCopy).filter(|_| in_turn);
    let open = copy.is_some_and(|item| view.standing(item) != ItemProgress::Done);
    // Seeded bug: accept a majority for the copy as well.
    open && peers.managers + 1 >= added::MANAGERS_MIN && !seeded_bug("majority-for-copy")
}

/// The machine that owns this node, as far as is known.
fn owner<'a, 's>(snapshot: &'s ClusterSnapshot<'a>, id: &SwarmId) -> Option<&'s MachineView<'a>> {
    snapshot.machines.iter().find(|p| p.row.swarm.as_ref().is_some_and(|member| member.node_id == *id))
}

/// The next question. None: an answer is at hand, or all managers are unreachable.
pub(super) fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &NodeObservation) -> Option<Question> {
    let of = manager(snapshot, view)?;
    let seen =
        look.peers.as_ref().filter(|_| look.manager == Some(of) && fresh(snapshot, look.peers.as_ref()).is_some());
    let old = |at_mono_ms: u64| snapshot.now.mono_ms.saturating_sub(at_mono_ms) >= LOOK_EVERY_MS;
    let due = seen.is_none_or(|seen| !is_enough(snapshot, view, &seen.what) && old(seen.at_mono_ms));
    due.then(|| question(of, SwarmOp::Nodes))
}

/// Rule 1, the swarm's own quorum: the others are a majority of all its managers, as one of them reported a moment ago.
/// While a consistent copy is open here, all of them are reachable.
///
/// # Errors
/// Their number, or that none of them answers.
pub(super) fn majority(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let nothing = NodeObservation::default();
    let look = look(view).unwrap_or(&nothing);
    // A turn that has begun must end; and if all fail to count the managers, the majority is lost already.
    let disturbed = view.update().is_some_and(|mine| mine.disturbed());
    if disturbed && nobody_can_count(snapshot, view, look) {
        return Ok(());
    }
    let being_counted = || {
        let why = unanswered(snapshot, view, look);
        let what = "the other managers of its swarm are being counted";
        if why.reason == Reason::SwarmNoManager {
            why
        } else {
            blocked(Reason::Quorum, what, "one of them has answered")
        }
    };
    let Some(peers) = look.peers.as_ref().map(|seen| &seen.what) else { return Err(being_counted()) };
    if !is_enough(snapshot, view, peers) {
        return Err(too_few(snapshot, view, peers));
    }
    fresh(snapshot, look.peers.as_ref()).map(|_| ()).ok_or_else(being_counted)
}

/// Are all managers that could count disconnected, or did they all fail when they were asked in turn just now?
fn nobody_can_count(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &NodeObservation) -> bool {
    let failed = failures_of_others(snapshot, view, look);
    failed.is_some_and(|failed| failed.is_empty() || failed_until(&failed).is_some_and(|at| at > snapshot.now.mono_ms))
}

/// When failures of all other managers no longer prove that none of them can count, monotonic milliseconds. None: one
/// of them has not failed, or none is connected.
pub(super) fn wakes_at(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &NodeObservation) -> Option<u64> {
    failed_until(&failures_of_others(snapshot, view, look)?)
}

/// The last failure of each other manager that is connected, monotonic milliseconds. None: one of them has not failed.
fn failures_of_others(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &NodeObservation,
) -> Option<Vec<u64>> {
    let others = controls(snapshot).filter(|control| control.row.name != view.row.name);
    let connected = others.filter(|control| control.connected());
    connected.map(|control| Some(look.failures.get(&control.row.id?)?.at_mono_ms)).collect()
}

/// How long these failures count together, monotonic milliseconds: the swarm may have its majority back after that.
fn failed_until(failed: &[u64]) -> Option<u64> {
    let round_ms = failed.iter().fold(FRESH_MS, |sum_ms, _| sum_ms.saturating_add(ANSWER_MS));
    Some(failed.iter().min()?.saturating_add(round_ms).min(failed.iter().max()?.saturating_add(FRESH_MS)))
}

/// Why the others are too few, and the remedy.
fn too_few(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, peers: &Peers) -> Blocked {
    let name = &view.row.name;
    let look_there = "`docker node ls` on a manager; is their Docker Engine up?";
    if peers.managers < 2 {
        let count = if peers.managers == 0 { "1 manager" } else { "2 managers" };
        let message = format!("Error: its swarm has only {count}: without {name} it has no majority");
        return blocked(Reason::Quorum, message, accept(snapshot));
    }
    if has_majority(peers) {
        let name_of = |id: &SwarmId| owner(snapshot, id).map_or_else(|| id.to_string(), |p| p.row.name.to_string());
        let away: Vec<String> = peers.away.iter().map(name_of).collect();
        let away = some_names(away.iter().map(String::as_str));
        let message =
            format!("Error: manager {away} of its swarm cannot be reached, and its consistent copy needs all of them");
        let clears_when = format!(
            "they are reachable ({look_there}), or no managers any more (`docker node demote`, `docker node rm`)"
        );
        return blocked(Reason::Quorum, message, clears_when);
    }
    let others = format!("{} of the {} other managers of its swarm", peers.reachable(), peers.managers);
    let message = format!("Error: {others} are reachable: without {name} it has no majority");
    blocked(Reason::Quorum, message, format!("enough of them are reachable ({look_there})"))
}

/// How an operator accepts that the control plane is down for a while.
fn accept(snapshot: &ClusterSnapshot<'_>) -> String {
    let rollout = snapshot.rollout.map_or("", |rollout| rollout.name.as_str());
    let again = match snapshot.update().map(|update| update.kind) {
        Some(UpdateKind::Reconfigure) => format!("`musterctl update {}`", snapshot.cluster.name),
        _ => "start it again".to_owned(),
    };
    format!("`musterctl abort {rollout}`, then {again} with --accept-control-plane-downtime")
}
