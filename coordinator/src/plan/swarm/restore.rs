//! What a machine's node gets back from the node of its former identity. If it is the same node: the availability that
//! our drain took. If the entry was removed: its labels and availability.

use muster_proto::model::{Blocked, Reason, SwarmAvailability, SwarmId, SwarmOp};

use crate::{
    facts::{FormerNode, MachineRow, NodeObservation},
    plan::{
        drain::swarm::{
            FRESH_MS, SETTLE_MS, fresh, look, node_ownership,
            questions::{Question, RETRY_MS, known, manager, own_engine, question, set},
            unanswered,
        },
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// What it gets back now: once it is in the swarm, and free of an update, which asks the swarm for itself.
#[must_use]
pub fn owed(row: &MachineRow) -> Option<&FormerNode> {
    let there = row.swarm.is_some() || row.ready_at.is_some();
    let free = row.update.is_none() && !row.revoked && row.removal.is_none();
    let former = row.former_node.as_ref().filter(|_| there && free)?;
    (former.availability.is_some() || !former.labels.is_empty()).then_some(former)
}

/// The availability that a node of this id gets back, and its availability until then.
#[must_use]
pub fn availability_of(former: &FormerNode, id: &SwarmId) -> Option<(SwarmAvailability, SwarmAvailability)> {
    let until = if former.id == *id { SwarmAvailability::Drain } else { SwarmAvailability::Active };
    let wanted = former.availability.filter(|wanted| *wanted != until && *wanted != SwarmAvailability::Drain)?;
    Some((wanted, until))
}

/// Its node according to its swarm-join; otherwise according to its own engine.
fn node(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, look: &NodeObservation) -> Option<SwarmId> {
    let joined = view.row.swarm.as_ref().map(|member| &member.node_id);
    joined.or_else(|| fresh(snapshot, look.info.as_ref())?.node.as_ref()).cloned()
}

/// When a drain ordered by the former identity's update can be carried out no longer, monotonic milliseconds. This
/// coordinator or its predecessor may have ordered it at the last moment.
fn settled_at(snapshot: &ClusterSnapshot<'_>, former: &FormerNode, id: &SwarmId) -> u64 {
    let live = &snapshot.facts.live;
    let let_go = live.drains_let_go_mono_ms.get(&snapshot.cluster.name).copied().unwrap_or_default();
    if former.id == *id { let_go.max(live.started_mono_ms).saturating_add(SETTLE_MS) } else { 0 }
}

/// The next question. None: an answer is pending, all machines are unreachable, or the work is done.
#[must_use]
pub fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Question> {
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    let former = owed(view.row)?;
    let look = look(view).filter(|look| look.asked.is_none())?;
    let Some(id) = node(snapshot, view, look) else { return own_engine(snapshot, view, look) };
    let manager = manager(snapshot, view)?;
    let Some(found) = known(snapshot, view, look) else { return Some(question(manager, SwarmOp::Nodes)) };
    let found = found.as_ref().filter(|found| found.id == id)?;
    if node_ownership::foreign(snapshot, view, &id, Some(found)).is_some() {
        return None;
    }
    if !former.labels.is_empty() {
        return Some(question(manager, SwarmOp::AddLabels { node: id, labels: former.labels.clone() }));
    }
    let (wanted, until) = availability_of(former, &id)?;
    let due = found.availability == until && settled_at(snapshot, former, &id) <= snapshot.now.mono_ms;
    due.then(|| set(manager, &id, wanted))
}

/// Does its node have all it gets back, or a value that an operator has set since?
#[must_use]
pub fn is_done(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let found = || {
        let (former, look) = (owed(view.row)?, look(view).filter(|look| look.asked.is_none())?);
        let id = node(snapshot, view, look)?;
        let found = known(snapshot, view, look)?.as_ref().filter(|found| found.id == id)?;
        let settled = settled_at(snapshot, former, &id) <= snapshot.now.mono_ms;
        let has = availability_of(former, &id).is_none_or(|(_, until)| settled && found.availability != until);
        Some(former.labels.is_empty() && has)
    };
    found().unwrap_or(false)
}

/// Why its node differs from its former one. None: it is the same, or the machine has other reasons first.
#[must_use]
pub fn waits(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let former = owed(view.row).filter(|_| view.ready_once())?;
    let nothing = NodeObservation::default();
    let why = unanswered(snapshot, view, look(view).unwrap_or(&nothing));
    if why.reason == Reason::SwarmNoManager {
        return Some(why);
    }
    let availability = former.availability.map(|was| format!("availability {was}"));
    let labels = (!former.labels.is_empty()).then(|| format!("{} labels", former.labels.len()));
    let what: Vec<String> = [availability, labels].into_iter().flatten().collect();
    let message = format!("its Swarm node gets back what its former one had: {}", what.join(", "));
    Some(blocked(Reason::SwarmNodeNotRestored, message, "a manager has confirmed it"))
}

/// The next time, Unix milliseconds, at which time alone brings a question.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let moments = snapshot.machines.iter().filter_map(|view| {
        let former = owed(view.row)?;
        let look = look(view).filter(|look| look.asked.is_none())?;
        let later = |at_mono_ms: u64, by_ms: u64| at_mono_ms.saturating_add(by_ms);
        let failures = look.failures.values().map(|failure| later(failure.at_mono_ms, RETRY_MS));
        let info = look.info.iter().map(|seen| later(seen.at_mono_ms, FRESH_MS));
        let found = look.node.iter().map(|seen| later(seen.at_mono_ms, FRESH_MS));
        let settled = [settled_at(snapshot, former, &former.id)];
        failures.chain(info).chain(found).chain(settled).filter(|at| *at > snapshot.now.mono_ms).min()
    });
    moments.min().map(|mono_ms| snapshot.now.wall_ms + mono_ms.saturating_sub(snapshot.now.mono_ms))
}
