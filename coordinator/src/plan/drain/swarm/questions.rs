//! The next questions to the swarm about machines' drains, and their addressees: one at a time per machine.

use muster_proto::{
    model::{MachineId, MachineName, MachineType, SwarmAvailability, SwarmId, SwarmNode, SwarmOp},
    seeded_bug::seeded_bug,
};

use super::{Aim, FRESH_MS, SETTLE_MS, aim, back, fresh, look, managers, node, services, unsettled_until};
use crate::{
    facts::{NodeObservation, SwarmTarget},
    plan::{
        snapshot::{ClusterSnapshot, MachineView},
        swarm,
        update::targets,
    },
};

/// Interval between two checks of the tasks of a node that is being drained, in milliseconds.
pub(in crate::plan) const LOOK_EVERY_MS: u64 = 2_000;
/// Delay before a machine that could not answer is asked again, in milliseconds.
pub(in crate::plan) const RETRY_MS: u64 = 5_000;
/// Timeout of an answer, in milliseconds; there may be another manager to ask.
pub(super) const ANSWER_MS: u64 = 12_000;

/// A question to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The machine of the agent.
    pub agent: MachineId,
    /// The operation.
    pub op: SwarmOp,
    /// Timeout after which the question counts as failed, in milliseconds.
    pub timeout_ms: u64,
}

/// The next questions, by the machine that each is about. Only one drain is ordered at a time: what it takes away has
/// to be seen before the next.
#[must_use]
pub fn all<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<(&'a MachineName, Question)> {
    let drains = |question: &Question| {
        let to_drain = matches!(question.op, SwarmOp::SetAvailability { availability: SwarmAvailability::Drain, .. });
        to_drain && !seeded_bug("drain-degraded-service")
    };
    let mut ordered = false;
    let questions = targets(snapshot).filter_map(|view| Some((view, next(snapshot, view)?)));
    let questions = questions.filter(|(_, question)| !drains(question) || !std::mem::replace(&mut ordered, true));
    questions.map(|(view, question)| (&view.row.name, question)).collect()
}

/// The next question. None: an answer is pending, all machines to ask are unreachable, or the work is done.
fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Question> {
    let aim = aim(snapshot, view)?;
    let look = look(view).filter(|look| look.asked.is_none())?;
    if aim == Aim::Counted {
        return managers::next(snapshot, view, look);
    }
    let row = view.update()?.drains.swarm.as_ref()?;
    match (&row.target, aim) {
        (SwarmTarget::Absent, _) | (_, Aim::Counted) | (SwarmTarget::Unknown, Aim::GivenBack) => None,
        (SwarmTarget::Unknown, Aim::Drained) => identify(snapshot, view, look),
        (SwarmTarget::Node { id, .. }, Aim::Drained) => drain(snapshot, view, look, id),
        (SwarmTarget::Node { id, was }, Aim::GivenBack) => {
            let was = back(*was);
            let settled = unsettled_until(snapshot, look, Some(was)).is_none();
            if settled && was != SwarmAvailability::Drain { give_back(snapshot, view, look, id, was) } else { None }
        }
    }
}

/// Ask its own engine which node it is, and a manager how that node is.
fn identify(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &NodeObservation) -> Option<Question> {
    let Some(info) = fresh(snapshot, look.info.as_ref()) else { return own_engine(snapshot, view, look) };
    info.node.as_ref()?;
    match known(snapshot, view, look) {
        None => Some(question(manager(snapshot, view)?, SwarmOp::Nodes)),
        Some(_) => None,
    }
}

/// Ask its own engine, unless it was asked a moment ago. If all managers are unreachable, only this engine knows
/// whether the swarm still exists.
pub(in crate::plan) fn own_engine(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &NodeObservation,
) -> Option<Question> {
    let own = view.row.id.filter(|id| view.connected() && may_ask(snapshot, look, *id))?;
    fresh(snapshot, look.info.as_ref()).is_none().then(|| question(own, SwarmOp::Info))
}

fn drain(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &NodeObservation,
    id: &SwarmId,
) -> Option<Question> {
    let Some(manager) = manager(snapshot, view) else { return own_engine(snapshot, view, look) };
    let Some(known) = known(snapshot, view, look) else { return Some(question(manager, SwarmOp::Nodes)) };
    // It may have joined again, as another node.
    let Some(known) = known else { return own_engine(snapshot, view, look) };
    let old = |at_mono_ms: u64| snapshot.now.mono_ms.saturating_sub(at_mono_ms) >= LOOK_EVERY_MS;
    if known.availability != SwarmAvailability::Drain {
        if services::spared(snapshot, view).is_ok() {
            return Some(set(manager, id, SwarmAvailability::Drain));
        }
        let due = look
            .services
            .as_ref()
            .is_none_or(|seen| old(seen.at_mono_ms) && services::under_way(snapshot, view, &seen.what).is_none());
        return due.then(|| question(manager, SwarmOp::Services { node: id.clone() }));
    }
    let due = match &look.tasks {
        Some(seen) if !seen.what.is_empty() => old(seen.at_mono_ms),
        tasks => fresh(snapshot, tasks.as_ref()).is_none(),
    };
    due.then(|| question(manager, SwarmOp::Tasks { node: id.clone() }))
}

fn give_back(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &NodeObservation,
    id: &SwarmId,
    was: SwarmAvailability,
) -> Option<Question> {
    let Some(manager) = manager(snapshot, view) else { return own_engine(snapshot, view, look) };
    let Some(known) = known(snapshot, view, look) else { return Some(question(manager, SwarmOp::Nodes)) };
    let ours = known.as_ref()?.availability == SwarmAvailability::Drain;
    ours.then(|| set(manager, id, was))
}

/// The node as shown a moment ago by a manager that can be asked again.
pub(in crate::plan) fn known<'a>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &'a NodeObservation,
) -> Option<&'a Option<SwarmNode>> {
    node(snapshot, look).filter(|_| look.manager.is_some() && look.manager == manager(snapshot, view))
}

pub(in crate::plan) const fn question(agent: MachineId, op: SwarmOp) -> Question {
    Question { agent, op, timeout_ms: ANSWER_MS }
}

/// A change of the node. The next question waits until the change is certain to be over.
pub(in crate::plan) fn set(agent: MachineId, id: &SwarmId, availability: SwarmAvailability) -> Question {
    let op = SwarmOp::SetAvailability { node: id.clone(), availability };
    Question { agent, op, timeout_ms: SETTLE_MS }
}

pub(in crate::plan) fn may_ask(snapshot: &ClusterSnapshot<'_>, look: &NodeObservation, id: MachineId) -> bool {
    look.failures.get(&id).is_none_or(|failure| snapshot.now.mono_ms.saturating_sub(failure.at_mono_ms) >= RETRY_MS)
}

/// The control machines that may know the machine's node. This excludes those that an operator left out of the swarm,
/// and one that leaves it.
pub(super) fn controls<'a>(snapshot: &'a ClusterSnapshot<'a>) -> impl Iterator<Item = &'a MachineView<'a>> {
    let counts = |control: &&MachineView<'_>| {
        !control.row.revoked && !control.row.departs() && swarm::counts(snapshot.facts, control.row)
    };
    snapshot.of_type(MachineType::Control).filter(counts)
}

/// The control machine to ask about this machine's node: the last one, or the first that is available. Those that
/// failed to answer come last, in turn.
#[must_use]
pub fn manager(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<MachineId> {
    let look = look(view)?;
    // About itself it knows least when it leaves.
    let others = controls(snapshot).filter(|control| control.row.name != view.row.name);
    let controls = others.filter(|control| control.connected());
    let usable: Vec<MachineId> =
        controls.filter_map(|control| control.row.id).filter(|id| may_ask(snapshot, look, *id)).collect();
    let failed_at = |id: &&MachineId| look.failures.get(*id).map(|failure| failure.at_mono_ms);
    look.manager.filter(|id| usable.contains(id)).or_else(|| usable.iter().min_by_key(failed_at).copied())
}

/// When time alone brings the next question or another reason, monotonic milliseconds. This includes the time of an
/// open question, because another wait may end before its answer.
#[must_use]
pub fn wakes_at(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64> {
    let aim = aim(snapshot, view)?;
    let look = look(view)?;
    let later = |at_mono_ms: u64, by_ms: u64| at_mono_ms.saturating_add(by_ms);
    let failures = look.failures.values().map(|failure| later(failure.at_mono_ms, RETRY_MS));
    if aim == Aim::Counted {
        let peers = look.peers.iter();
        let peers = peers.flat_map(|seen| [LOOK_EVERY_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms)));
        let unknown = managers::wakes_at(snapshot, view, look);
        return failures.chain(peers).chain(unknown).filter(|at| *at > snapshot.now.mono_ms).min();
    }
    let row = view.update()?.drains.swarm.as_ref()?;
    let harmless = match (&row.target, aim) {
        (SwarmTarget::Node { was, .. }, Aim::GivenBack) => vec![None, Some(back(*was))],
        (SwarmTarget::Node { .. } | SwarmTarget::Unknown | SwarmTarget::Absent, _) => {
            vec![Some(SwarmAvailability::Drain)]
        }
    };
    let info = look.info.iter().map(|seen| later(seen.at_mono_ms, FRESH_MS));
    let node = look.node.iter().map(|seen| later(seen.at_mono_ms, FRESH_MS));
    let tasks = look.tasks.iter().flat_map(|seen| [LOOK_EVERY_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms)));
    let counted = look.services.iter();
    let counted = counted.flat_map(|seen| [LOOK_EVERY_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms)));
    let unsettled = harmless.into_iter().filter_map(|wanted| unsettled_until(snapshot, look, wanted));
    let others = services::clears_at(snapshot, view);
    let moments = failures.chain(info).chain(node).chain(tasks).chain(counted).chain(unsettled).chain(others);
    moments.filter(|at| *at > snapshot.now.mono_ms).min()
}
