//! What the drain of a worker's node may take from replicated services: of the nodes with tasks of one service, one at
//! a time loses them. So a service runs one task fewer than it wants, or as many fewer as it has on one node.

use std::collections::BTreeMap;

use muster_proto::{
    model::{Blocked, Reason, SwarmAvailability, SwarmService},
    plant::planted,
};

use super::{SETTLE_MS, aim, fresh, list, look, node, unanswered, was_reached};
use crate::{
    facts::{DrainTarget, MachineUpdate, Seen, SwarmLook},
    plan::{
        safety::blocked,
        survey::{Position, Survey},
    },
};

/// Services by their names.
pub(super) type Services = BTreeMap<String, SwarmService>;

/// Rule 4, its services: may the drain of this machine's node be ordered? Every replicated service with tasks there
/// runs as many as it wants, as a manager counted a moment ago, and whatever other drains take away had been counted as
/// missing by then.
///
/// # Errors
/// Which services run too few, whose drain takes tasks of theirs away, or that nobody has counted them yet.
pub(super) fn spared(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    // Planted: a node is drained whatever its services have lost.
    if planted("drain-degraded-service") {
        return Ok(());
    }
    let uncounted = || {
        let why = look(position).map(|look| unanswered(survey, position, look));
        why.filter(|why| why.reason == Reason::SwarmNoManager).unwrap_or_else(|| {
            let message = "the tasks of the services on its Swarm node are being counted";
            blocked(Reason::SwarmDraining, message, "a manager has answered")
        })
    };
    let counted = look(position).and_then(|look| look.services.as_ref()).ok_or_else(uncounted)?;
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
    if let_go_until(survey).is_some() {
        let message =
            "Error: waiting for the swarm to count what it loses with a machine that was revoked in its drain";
        return Err(blocked(
            Reason::ServiceDegraded,
            message,
            "65 s have passed since; its tasks run elsewhere by then",
        ));
    }
    if let Some(other) = under_way(survey, position, &counted.what) {
        return Err(blocked(
            Reason::ServiceDegraded,
            format!("Error: waiting for swarm node {} to be drained first: they share services", other.row.name),
            "the tasks that it loses run elsewhere",
        ));
    }
    let overtaken = others(survey, position).any(|other| has_overtaken(counted, other));
    if overtaken || fresh(survey, Some(counted)).is_none() { Err(uncounted()) } else { Ok(()) }
}

/// Another machine whose drain is under way and takes tasks of these services away, which a manager may not count as
/// missing yet. From its order until its tasks are looked at it may take from any.
pub(super) fn under_way<'s, 'a>(
    survey: &'s Survey<'a>,
    position: &Position<'_>,
    services: &Services,
) -> Option<&'s Position<'a>> {
    others(survey, position).find(|other| {
        let Some(look) = look(other) else { return false };
        let leaving = || {
            let here = match &look.tasks {
                Some(seen) => seen.what.keys().any(|name| services.contains_key(name)),
                // Ordered, and not looked at since: the swarm may take away whatever is there by now.
                None => look.ordered,
            };
            let takes = node(survey, look)
                .is_none_or(|found| found.as_ref().is_none_or(|found| found.availability == SwarmAvailability::Drain));
            // One that is given back before all has left goes on losing tasks until it is.
            here && takes && aim(survey, other).is_some()
        };
        may_begin_until(survey, other, look).is_some_and(|until| until > survey.now.mono_ms) || leaving()
    })
}

/// Does it wait for what the drain of another machine takes from its services? Not for that of one that is out of
/// service: nobody knows how long that stays away.
pub(super) fn waits_for_another(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let waits = look(position).filter(|look| !is_drained(look)).and_then(|look| look.services.as_ref());
    let Some(counted) = waits else { return false };
    let missing = counted.what.iter().filter(|(_, service)| service.running < service.wanted);
    let missing: Services = missing.map(|(name, service)| (name.clone(), service.clone())).collect();
    let takes = |other: &Position<'_>| {
        let ours = other.update().is_some_and(MachineUpdate::takes_tasks) && !other.in_maintenance();
        ours && look(other).is_some_and(|look| is_drained(look) && shares(&missing, look))
    };
    let taken = under_way(survey, position, &counted.what).is_some() || let_go_until(survey).is_some();
    taken || (!missing.is_empty() && others(survey, position).any(takes))
}

/// Is its node drained, or was that ordered?
fn is_drained(look: &SwarmLook) -> bool {
    let found = look.node.as_ref().and_then(|seen| seen.what.as_ref());
    look.ordered || found.is_some_and(|found| found.availability == SwarmAvailability::Drain)
}

/// Has what this other machine lost changed since these services were counted?
fn has_overtaken(counted: &Seen<Services>, other: &Position<'_>) -> bool {
    look(other).is_some_and(|look| {
        look.moved_mono_ms.is_some_and(|at_mono_ms| at_mono_ms >= counted.at_mono_ms) && shares(&counted.what, look)
    })
}

/// Has the other node tasks of one of these services, or had when it was drained? Of one drained before the
/// coordinator's start nobody knows.
fn shares(services: &Services, other: &SwarmLook) -> bool {
    let Some(counted) = &other.services else { return true };
    counted.what.keys().chain(&other.losing).any(|name| services.contains_key(name))
}

/// Until when a drain may begin that was ordered and not confirmed, by this coordinator or by the one before it at the
/// last moment; or may take away what is not counted as missing yet, because its tasks are not looked at any more: its
/// locks were taken back in its middle. Monotonic milliseconds.
fn may_begin_until(survey: &Survey<'_>, other: &Position<'_>, look: &SwarmLook) -> Option<u64> {
    other.update()?.drain.as_ref().filter(|row| matches!(row.target, DrainTarget::Node { .. }))?;
    let ordered = look.unsettled.values().filter(|seen| seen.what == SwarmAvailability::Drain);
    let inherited = !look.begun_here && look.tasks.is_none() && !was_reached(other);
    let inherited = inherited.then_some(survey.facts.live.started_mono_ms);
    let left = || look.tasks.as_ref().is_none_or(|seen| !seen.what.is_empty());
    let under_way = look.ordered && left() && !was_reached(other) && !other.in_maintenance();
    let interrupted = under_way && aim(survey, other).is_none();
    let interrupted = look.moved_mono_ms.filter(|_| interrupted);
    let asked = ordered.map(|seen| seen.at_mono_ms).chain(inherited).chain(interrupted);
    asked.max().map(|at_mono_ms| at_mono_ms.saturating_add(SETTLE_MS))
}

/// Until when nobody knows what is taken away by the drain of a machine that was shut out in its middle, monotonic
/// milliseconds: it may have been ordered at the last moment, and nobody looks at its tasks any more.
fn let_go_until(survey: &Survey<'_>) -> Option<u64> {
    // Planted: who is shut out takes nothing with him.
    let let_go = survey.facts.live.drains_let_go_mono_ms.get(&survey.cluster.name);
    let let_go = let_go.filter(|_| !planted("forget-drain-of-revoked"));
    let_go.map(|at_mono_ms| at_mono_ms.saturating_add(SETTLE_MS)).filter(|until| *until > survey.now.mono_ms)
}

/// When what other drains may yet do is over, monotonic milliseconds.
pub(super) fn clears_at(survey: &Survey<'_>, position: &Position<'_>) -> impl Iterator<Item = u64> {
    let ordered = others(survey, position).filter_map(|other| may_begin_until(survey, other, look(other)?));
    ordered.chain(let_go_until(survey))
}

/// Also those that have come to their end: what they lost may not be counted yet.
fn others<'s, 'a>(survey: &'s Survey<'a>, position: &Position<'_>) -> impl Iterator<Item = &'s Position<'a>> {
    survey.machines.iter().filter(|other| other.row.name != position.row.name)
}
