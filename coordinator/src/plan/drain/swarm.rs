//! The Swarm drain of a worker: its node is drained between its locks and its items, and restored after them.
//! Level-triggered: decided from the record and from the swarm's last answers; [`questions`] says what to ask next. The
//! only criterion for a completed drain is a node free of service tasks.

mod managers;
pub mod node_ownership;
pub mod questions;
mod services;

use std::collections::BTreeMap;

use muster_proto::{
    model::{
        Blocked, LcmType, MachineType, Phase, Reason, RunnerKind, SwarmAvailability, SwarmId, SwarmLocalState,
        SwarmNode, SwarmNodeState,
    },
    seeded_bug::seeded_bug,
};

use super::{DrainStep, Goal, Orchestrator, goal};
use crate::{
    facts::{DesiredState, DrainKind, MachineUpdate, NodeObservation, Seen, Stage, SwarmTarget},
    plan::{
        containers,
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
        swarm,
    },
};

/// Message if all control machines are outside the swarm, as far as the fleet knows.
pub const NOBODY_TO_ASK: &str = "every control machine is revoked, leaves, or was left out of the swarm";
/// Validity of the swarm's answers, in milliseconds; then it is asked again.
pub const FRESH_MS: u64 = 10_000;
/// Time after its request in which an unconfirmed change of a node may still be carried out, in milliseconds. A stalled
/// connection is closed after 30 s (`muster_proto::tls`), an agent answers a call within 30 s, and 5 s.
pub const SETTLE_MS: u64 = 65_000;
/// Services named in one sentence; the others are counted.
const SERVICES_SHOWN_MAX: usize = 4;

/// The goal for a machine's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// It is drained.
    Drained,
    /// It is as it was before.
    GivenBack,
    /// Of a manager: the others are counted.
    Counted,
}

/// Does the cluster use Swarm: is its `lcmType` `swarm` or `mke`, or does a type of machines have a `swarm-join`?
#[must_use]
pub fn uses_swarm(snapshot: &ClusterSnapshot<'_>) -> bool {
    let joins = |items: &Vec<muster_proto::model::StateItem>| items.iter().any(|i| i.runner == RunnerKind::SwarmJoin);
    matches!(snapshot.spec.lcm_type, LcmType::Swarm | LcmType::Mke) || snapshot.spec.machine_types.values().any(joins)
}

/// Must the machine be drained before it is disturbed? True for workers of clusters that use Swarm.
#[must_use]
pub fn is_wanted(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let disruptive = view.update().is_some_and(MachineUpdate::drains_nodes);
    let worker = view.row.spec.machine_type == MachineType::Worker;
    disruptive && worker && (view.row.swarm.is_some() || uses_swarm(snapshot))
}

/// The goal for the machine's node now, if it has one and its drain has begun.
#[must_use]
pub fn aim(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Aim> {
    let counted = managers::is_asked(snapshot, view);
    let mine = view.update()?;
    if !counted && (mine.drains.swarm.is_none() || view.is_let_go()) {
        return None;
    }
    match goal(snapshot, view)? {
        Goal::Restored => (!counted).then_some(Aim::GivenBack),
        Goal::Drained if counted => Some(Aim::Counted),
        Goal::Drained => Some(Aim::Drained),
    }
}

/// Does the deadline of its node's drain, or of the count of the others, run? It stands still while another machine's
/// drain is awaited, which has a deadline of its own.
#[must_use]
pub fn is_awaited(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    match aim(snapshot, view) {
        Some(Aim::Drained) => !services::waits_for_another(snapshot, view),
        Some(Aim::Counted) => true,
        Some(Aim::GivenBack) | None => false,
    }
}

/// Docker Swarm.
pub struct Swarm;

impl Orchestrator for Swarm {
    fn kind(&self) -> DrainKind {
        DrainKind::Swarm
    }

    fn is_wanted(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
        is_wanted(snapshot, view)
    }

    fn target(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<DrainStep> {
        target(snapshot, view).map(DrainStep::SwarmTarget)
    }

    fn drained(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
        // Seeded bug: disturb a worker in spite of its tasks.
        let ignored = view.row.spec.machine_type == MachineType::Worker && seeded_bug("ignore-swarm-tasks");
        if ignored { Ok(()) } else { reached(snapshot, view) }
    }

    fn restored(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
        given_back(snapshot, view)
    }

    fn is_at_it(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
        matches!(aim(snapshot, view), Some(Aim::Drained | Aim::Counted))
    }

    fn awaited_since_ms(&self, _snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64> {
        let look = look(view)?;
        Some(look.awaited_since_ms?.max(look.fewer_at_ms.unwrap_or(0)))
    }
}

/// What to record next about the machine's node. None: nothing has changed.
fn target(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<SwarmTarget> {
    let row = view.update()?.drains.swarm.as_ref()?;
    let look = look(view)?;
    match &row.target {
        SwarmTarget::Unknown => identified(snapshot, view, look),
        SwarmTarget::Absent => None,
        SwarmTarget::Node { .. } if has_left(snapshot, look) => Some(SwarmTarget::Absent),
        SwarmTarget::Node { id, .. } if is_another(snapshot, look, id) => Some(SwarmTarget::Unknown),
        // It was changed by others meanwhile: it gets back their value.
        SwarmTarget::Node { id, was } => {
            let found = node(snapshot, look)?.as_ref().filter(|found| found.id == *id)?.availability;
            let foreign = found != SwarmAvailability::Drain && found != *was;
            foreign.then(|| SwarmTarget::Node { id: id.clone(), was: found })
        }
    }
}

/// The machine's node in the swarm, if its own engine and a manager agree.
fn identified(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &NodeObservation) -> Option<SwarmTarget> {
    let info = fresh(snapshot, look.info.as_ref())?;
    let Some(id) = &info.node else {
        return (info.state == SwarmLocalState::Inactive).then_some(SwarmTarget::Absent);
    };
    let found = node(snapshot, look)?.as_ref().filter(|found| found.id == *id && found.hostname == info.hostname)?;
    if node_ownership::foreign(snapshot, view, id, Some(found)).is_some() {
        return None;
    }
    // It gets back what a drain took from its former identity.
    let owed = view.row.former_node.as_ref().and_then(|former| swarm::restore::availability_of(former, id));
    let was = owed.filter(|(_, until)| found.availability == *until).map_or(found.availability, |(wanted, _)| wanted);
    Some(SwarmTarget::Node { id: id.clone(), was })
}

/// Does its own engine report that it is out of the swarm? Then it is free of tasks, and there is no node to restore.
fn has_left(snapshot: &ClusterSnapshot<'_>, look: &NodeObservation) -> bool {
    let info = fresh(snapshot, look.info.as_ref());
    info.is_some_and(|info| info.state == SwarmLocalState::Inactive && info.node.is_none())
}

/// Does its own engine report another node than this? Then it has left the swarm and joined it again.
fn is_another(snapshot: &ClusterSnapshot<'_>, look: &NodeObservation, id: &SwarmId) -> bool {
    fresh(snapshot, look.info.as_ref()).and_then(|info| info.node.as_ref()).is_some_and(|own| own != id)
}

/// What is known of the machine's node.
pub(in crate::plan) fn look<'a>(view: &MachineView<'a>) -> Option<&'a NodeObservation> {
    view.live.map(|live| &live.swarm)
}

pub(in crate::plan) fn fresh<'a, T>(snapshot: &ClusterSnapshot<'_>, seen: Option<&'a Seen<T>>) -> Option<&'a T> {
    seen.filter(|seen| snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms) < FRESH_MS).map(|seen| &seen.what)
}

/// The node as a manager showed it a moment ago; None in it: the node does not exist.
fn node<'a>(snapshot: &ClusterSnapshot<'_>, look: &'a NodeObservation) -> Option<&'a Option<SwarmNode>> {
    fresh(snapshot, look.node.as_ref())
}

/// Rule 4, its Swarm: was the node drained a moment ago? What keeps it is taken from the last answers, however old. A
/// manager stays undrained; there the question is whether the others are a majority.
///
/// # Errors
/// The services that still have tasks there, or the machines that have yet to answer.
pub fn reached(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    is_reached(snapshot, view).map_err(|why| match why.reason {
        Reason::SwarmDraining => Blocked { message: format!("{}{}", why.message, containers::stay(view.row)), ..why },
        _ => why,
    })
}

fn is_reached(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    if managers::is_asked(snapshot, view) {
        return managers::majority(snapshot, view);
    }
    if !is_wanted(snapshot, view) {
        return Ok(());
    }
    let about = |what: &str| blocked(Reason::SwarmDraining, what, "the swarm has answered");
    let row = view.update().and_then(|mine| mine.drains.swarm.as_ref());
    let (Some(row), Some(look)) = (row, look(view)) else { return Err(about("its Swarm drain is about to begin")) };
    let id = match &row.target {
        SwarmTarget::Absent => return Ok(()),
        SwarmTarget::Unknown => return Err(unidentified(snapshot, view, look)),
        SwarmTarget::Node { id, .. } => id,
    };
    let Some(seen) = &look.node else { return Err(unanswered(snapshot, view, look)) };
    let Some(found) = &seen.what else { return Err(unknown_node(view, id)) };
    if found.availability != SwarmAvailability::Drain {
        services::spared(snapshot, view)?;
        return Err(about("the availability of its Swarm node is about to become drain"));
    }
    if unsettled_until(snapshot, look, Some(SwarmAvailability::Drain)).is_some() {
        return Err(about("a change of its Swarm node that nobody has confirmed may still be carried out"));
    }
    match &look.tasks {
        Some(seen) if !seen.what.is_empty() && found.state != SwarmNodeState::Ready => Err(blocked(
            Reason::SwarmDraining,
            format!(
                "Error: the managers see swarm node {} {}, and count its tasks until it is back - {}",
                found.hostname,
                found.state,
                tasks_left(&seen.what)
            ),
            "its Docker Engine runs and reaches the managers again (`docker node ls` says Ready)",
        )),
        Some(seen) if !seen.what.is_empty() => Err(blocked(
            Reason::SwarmDraining,
            format!(
                "Error: waiting for swarm node {} to be drained first - {}",
                found.hostname,
                tasks_left(&seen.what)
            ),
            "its tasks have moved (`docker node ps` on a manager names them; is there room for them elsewhere?)",
        )),
        tasks if fresh(snapshot, tasks.as_ref()).is_some() && node(snapshot, look).is_some() => Ok(()),
        Some(_) | None => Err(unanswered(snapshot, view, look)),
    }
}

/// The first few services, with the number of tasks of each.
fn tasks_left(tasks: &BTreeMap<String, u32>) -> String {
    let named = tasks.iter().map(|(service, count)| match count {
        1 => format!("{service}: 1 task"),
        count => format!("{service}: {count} tasks"),
    });
    list(&named.collect::<Vec<_>>())
}

/// The first few services, and the number of the others.
fn list(services: &[String]) -> String {
    let shown = services.iter().take(SERVICES_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match services.len().saturating_sub(SERVICES_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more services"),
    }
}

fn unknown_node(view: &MachineView<'_>, id: &SwarmId) -> Blocked {
    blocked(
        Reason::SwarmNodeUnknown,
        format!("Error: {} is node {id} of a swarm that its cluster's managers do not know", view.row.name),
        "its engine is in the cluster's swarm (`docker info` there, `docker node ls` on a manager)",
    )
}

/// Why its node is still unknown, from the last answers, however old: the cause, rather than the question that happens
/// to be under way.
fn unidentified(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &NodeObservation) -> Blocked {
    if let Some(failure) = view.row.id.and_then(|id| look.failures.get(&id)) {
        let message = format!("Error: its Docker Engine cannot be asked for its Swarm node: {}", failure.what);
        return blocked(Reason::SwarmDraining, message, "its Docker Engine has answered");
    }
    let Some(info) = look.info.as_ref().map(|seen| &seen.what) else {
        let message = "its Docker Engine is being asked for its Swarm node";
        return blocked(Reason::SwarmDraining, message, "its Docker Engine has answered");
    };
    let Some(id) = &info.node else {
        let message =
            format!("Error: its Docker Engine is on its way into a swarm, or cannot enter it: {}", info.error);
        return blocked(Reason::SwarmDraining, message, "its Docker Engine is in the swarm, or in none");
    };
    let found = look.node.as_ref().map(|seen| &seen.what);
    if let Some(why) = node_ownership::foreign(snapshot, view, id, found.and_then(Option::as_ref)) {
        return why;
    }
    match found {
        None => unanswered(snapshot, view, look),
        Some(None) => unknown_node(view, id),
        Some(Some(found)) if found.hostname != info.hostname => blocked(
            Reason::SwarmNodeUnknown,
            format!("Error: node {id} is {} for the managers, and {} for itself", found.hostname, info.hostname),
            "both say the same",
        ),
        // The manager that said so cannot be asked any more.
        Some(Some(_)) if node(snapshot, look).is_none() => unanswered(snapshot, view, look),
        Some(Some(_)) => blocked(Reason::SwarmDraining, "its Swarm node is being looked at", "the swarm has answered"),
    }
}

/// The managers' answers are all outdated: one is being asked, or all of them failed to answer the last time.
pub(in crate::plan) fn unanswered(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &NodeObservation,
) -> Blocked {
    let others = questions::controls(snapshot).filter(|control| control.row.name != view.row.name);
    let said = others.map(|control| match control.row.id.and_then(|id| look.failures.get(&id)) {
        _ if !control.connected() => Some(format!("{} is not connected", control.row.name)),
        Some(failure) => Some(format!("{}: {}", control.row.name, failure.what)),
        None => None,
    });
    let Some(said) = said.collect::<Option<Vec<_>>>() else {
        return blocked(
            Reason::SwarmDraining,
            "the tasks on its Swarm node are being looked at",
            "a manager has answered",
        );
    };
    let said = if said.is_empty() { NOBODY_TO_ASK.to_owned() } else { said.join("; ") };
    let message = format!("Error: no manager of the swarm can be asked - {said}");
    let mut clears_when = "one of them answers; it is tried again every few seconds".to_owned();
    // A replaced manager may be the only one, and it is deployed after the update.
    let waiting = questions::controls(snapshot).filter(|control| !control.ready_once());
    let waiting: Vec<&str> = waiting.map(|control| control.row.name.as_str()).collect();
    let goes_on = snapshot.update().is_some_and(|update| update.desired != DesiredState::Abort);
    if let Some(update) = snapshot.rollout.filter(|_| goes_on && !waiting.is_empty()) {
        let names = safety::some_names(waiting);
        clears_when = format!("{clears_when}; or `musterctl abort {}`: {names} is deployed then", update.name);
    }
    blocked(Reason::SwarmNoManager, message, clears_when)
}

/// The availability that a node gets back if it had this one.
fn back(was: SwarmAvailability) -> SwarmAvailability {
    // Seeded bug: activate a node that an operator had drained.
    if seeded_bug("activate-operators-drain") { SwarmAvailability::Active } else { was }
}

/// Until when an unconfirmed change of the node may still be carried out, monotonic milliseconds. `wanted`: a change to
/// this availability does no harm. None: every change is confirmed or too old.
fn unsettled_until(
    snapshot: &ClusterSnapshot<'_>,
    look: &NodeObservation,
    wanted: Option<SwarmAvailability>,
) -> Option<u64> {
    // Seeded bug: a change that nobody confirmed was not carried out.
    if seeded_bug("no-settle-after-change") {
        return None;
    }
    let others = look.unsettled.values().filter(|seen| Some(seen.what) != wanted).map(|seen| seen.at_mono_ms);
    // The previous coordinator may have ordered the drain at its last moment.
    let inherited = !look.begun_here && wanted != Some(SwarmAvailability::Drain);
    let asked = others.chain(inherited.then_some(snapshot.facts.live.started_mono_ms));
    asked.map(|at_mono_ms| at_mono_ms.saturating_add(SETTLE_MS)).filter(|until| *until > snapshot.now.mono_ms).max()
}

/// Rule 9, its Swarm: is the node as it was? A node that was drained before us stays drained, and changes that others
/// have made meanwhile stay too. A change of ours that may still be carried out is waited for, even to the right
/// availability: it would overwrite what an operator sets after the machine is given back.
///
/// # Errors
/// What it waits for.
pub fn given_back(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let Some(row) = view.update().and_then(|mine| mine.drains.swarm.as_ref()) else { return Ok(()) };
    let SwarmTarget::Node { was, .. } = &row.target else { return Ok(()) };
    let was = back(*was);
    let waits = |message: String| {
        let why = unanswered(snapshot, view, look(view).unwrap_or(&NodeObservation::default()));
        match why.reason {
            Reason::SwarmNoManager => why,
            _ => blocked(Reason::SwarmUncordoning, message, "a manager has confirmed it"),
        }
    };
    if was == SwarmAvailability::Drain || look(view).is_some_and(|look| has_left(snapshot, look)) {
        return Ok(());
    }
    let unsettled = look(view).and_then(|look| unsettled_until(snapshot, look, None));
    if unsettled.is_some() {
        return Err(waits("a change of its Swarm node that nobody has confirmed may still be carried out".to_owned()));
    }
    match look(view).and_then(|look| node(snapshot, look)) {
        Some(None) => Ok(()),
        Some(Some(found)) if found.availability != SwarmAvailability::Drain => Ok(()),
        Some(Some(_)) | None => Err(waits(format!("its Swarm node gets its availability {was} back"))),
    }
}

/// Was the drain completed in this turn? Later it is checked again before each permit.
#[must_use]
pub fn was_reached(view: &MachineView<'_>) -> bool {
    view.row.max_phase > Some(Phase::Prepare)
        && view.row.stages.get(&Stage::SwarmDrained).is_some_and(|stage| stage.succeeded)
}
