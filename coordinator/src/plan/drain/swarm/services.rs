//! What the drain of a worker's node may take from replicated services: one at a time of the nodes with tasks of a
//! service loses them. So a service lacks one of the tasks that it wants, or as many as it has on one node.

use std::collections::BTreeMap;

use muster_proto::{
    model::{Blocked, Reason, SwarmAvailability, SwarmService},
    seeded_bug::seeded_bug,
};

use super::{SETTLE_MS, aim, fresh, list, look, node, unanswered, was_reached};
use crate::{
    facts::{MachineUpdate, NodeObservation, Seen, SwarmTarget},
    plan::{
        safety::blocked,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Services by name.
pub(super) type Services = BTreeMap<String, SwarmService>;

/// Rule 4, its services: may the drain of this machine's node be ordered? Every replicated service with tasks there ran
/// as many as it wants when a manager counted a moment ago. By then, the count included as missing what other drains
/// take away.
///
/// # Errors
/// The services that run too few, the machine with a drain that takes their tasks away, or that they are still
/// uncounted.
pub(super) fn spared(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    // Seeded bug: drain a node although its services lack tasks.
    if seeded_bug("drain-degraded-service") {
        return Ok(());
    }
    let uncounted = || {
        let why = look(view).map(|look| unanswered(snapshot, view, look));
        why.filter(|why| why.reason == Reason::SwarmNoManager).unwrap_or_else(|| {
            let message = "the tasks of the services on its Swarm node are being counted";
            blocked(Reason::SwarmDraining, message, "a manager has answered")
        })
    };
    let counted = look(view).and_then(|look| look.services.as_ref()).ok_or_else(uncounted)?;
    let missing = counted.what.values().filter(|service| service.running < service.wanted);
    let missing: Vec<String> =
        missing.map(|service| format!("{}: {} of {}", service.name, service.running, service.wanted)).collect();
    if !missing.is_empty() {
        let message = format!("Error: waiting for services to run all their tasks first - {}", list(&missing));
        return Err(blocked(
            Reason::ServiceDegraded,
            message,
            "they do (`docker service ps` on a manager says what keeps them)",
        ));
    }
    if let_go_until(snapshot).is_some() {
        let message =
            "Error: waiting for the swarm to count what it loses with a machine that was revoked in its drain";
        return Err(blocked(
            Reason::ServiceDegraded,
            message,
            "65 s have passed since; its tasks run elsewhere by then",
        ));
    }
    if let Some(other) = under_way(snapshot, view, &counted.what) {
        return Err(blocked(
            Reason::ServiceDegraded,
            format!("Error: waiting for swarm node {} to be drained first: they share services", other.row.name),
            "the tasks that it loses run elsewhere",
        ));
    }
    let overtaken = others(snapshot, view).any(|other| has_overtaken(counted, other));
    if overtaken || fresh(snapshot, Some(counted)).is_none() { Err(uncounted()) } else { Ok(()) }
}

/// Another machine with a drain under way that takes tasks of these services, perhaps before a manager counts them as
/// missing. From the order until its tasks are checked, the drain may take them from any service.
pub(super) fn under_way<'s, 'a>(
    snapshot: &'s ClusterSnapshot<'a>,
    view: &MachineView<'_>,
    services: &Services,
) -> Option<&'s MachineView<'a>> {
    others(snapshot, view).find(|other| {
        let Some(look) = look(other) else { return false };
        let leaving = || {
            let here = match &look.tasks {
                Some(seen) => seen.what.keys().any(|name| services.contains_key(name)),
                // Ordered, and unchecked since: the swarm may take away any task that is there by now.
                None => look.ordered,
            };
            let takes = node(snapshot, look)
                .is_none_or(|found| found.as_ref().is_none_or(|found| found.availability == SwarmAvailability::Drain));
            // A node that is restored before its drain is complete goes on losing tasks until then.
            here && takes && aim(snapshot, other).is_some()
        };
        may_begin_until(snapshot, other, look).is_some_and(|until| until > snapshot.now.mono_ms) || leaving()
    })
}

/// Does it wait for what another machine's drain takes from its services? A machine out of service does not count: the
/// length of its absence is unknown.
pub(super) fn waits_for_another(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let waits = look(view).filter(|look| !is_drained(look)).and_then(|look| look.services.as_ref());
    let Some(counted) = waits else { return false };
    let missing = counted.what.iter().filter(|(_, service)| service.running < service.wanted);
    let missing: Services = missing.map(|(name, service)| (name.clone(), service.clone())).collect();
    let takes = |other: &MachineView<'_>| {
        let ours = other.update().is_some_and(MachineUpdate::takes_tasks) && !other.in_maintenance();
        ours && look(other).is_some_and(|look| is_drained(look) && shares(&missing, look))
    };
    let taken = under_way(snapshot, view, &counted.what).is_some() || let_go_until(snapshot).is_some();
    taken || (!missing.is_empty() && others(snapshot, view).any(takes))
}

/// Is its node drained, or is a drain ordered?
fn is_drained(look: &NodeObservation) -> bool {
    let found = look.node.as_ref().and_then(|seen| seen.what.as_ref());
    look.ordered || found.is_some_and(|found| found.availability == SwarmAvailability::Drain)
}

/// Have the losses of this other machine changed since these services were counted?
fn has_overtaken(counted: &Seen<Services>, other: &MachineView<'_>) -> bool {
    look(other).is_some_and(|look| {
        look.moved_mono_ms.is_some_and(|at_mono_ms| at_mono_ms >= counted.at_mono_ms) && shares(&counted.what, look)
    })
}

/// Does the other node have tasks of one of these services, or did it when it was drained? True if it was drained
/// before the coordinator's start, because that is unknown.
fn shares(services: &Services, other: &NodeObservation) -> bool {
    let Some(counted) = &other.services else { return true };
    counted.what.keys().chain(&other.losing).any(|name| services.contains_key(name))
}

/// Until when the effect of another drain is uncertain, monotonic milliseconds. It may still begin if its order is
/// unconfirmed, by this coordinator or by its predecessor at the last moment. It may take uncounted tasks if its locks
/// were withdrawn in the middle, because that ends the checks of its tasks.
fn may_begin_until(snapshot: &ClusterSnapshot<'_>, other: &MachineView<'_>, look: &NodeObservation) -> Option<u64> {
    other.update()?.drains.swarm.as_ref().filter(|row| matches!(row.target, SwarmTarget::Node { .. }))?;
    let ordered = look.unsettled.values().filter(|seen| seen.what == SwarmAvailability::Drain);
    let inherited = !look.begun_here && look.tasks.is_none() && !was_reached(other);
    let inherited = inherited.then_some(snapshot.facts.live.started_mono_ms);
    let left = || look.tasks.as_ref().is_none_or(|seen| !seen.what.is_empty());
    let under_way = look.ordered && left() && !was_reached(other) && !other.in_maintenance();
    let interrupted = under_way && aim(snapshot, other).is_none();
    let interrupted = look.moved_mono_ms.filter(|_| interrupted);
    let asked = ordered.map(|seen| seen.at_mono_ms).chain(inherited).chain(interrupted);
    asked.max().map(|at_mono_ms| at_mono_ms.saturating_add(SETTLE_MS))
}

/// Until when the losses by the drain of a machine revoked in the middle are unknown, monotonic milliseconds. The drain
/// may have been ordered at the last moment, and the checks of its tasks have ended.
fn let_go_until(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    // Seeded bug: forget the drain of a revoked machine.
    let let_go = snapshot.facts.live.drains_let_go_mono_ms.get(&snapshot.cluster.name);
    let let_go = let_go.filter(|_| !seeded_bug("forget-drain-of-revoked"));
    let_go.map(|at_mono_ms| at_mono_ms.saturating_add(SETTLE_MS)).filter(|until| *until > snapshot.now.mono_ms)
}

/// When possible effects of other drains are over, monotonic milliseconds.
pub(super) fn clears_at(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> impl Iterator<Item = u64> {
    let ordered = others(snapshot, view).filter_map(|other| may_begin_until(snapshot, other, look(other)?));
    ordered.chain(let_go_until(snapshot))
}

/// All other machines, including those that have ended: what they lost may still be uncounted.
fn others<'s, 'a>(
    snapshot: &'s ClusterSnapshot<'a>,
    view: &MachineView<'_>,
) -> impl Iterator<Item = &'s MachineView<'a>> {
    snapshot.machines.iter().filter(|other| other.row.name != view.row.name)
}
