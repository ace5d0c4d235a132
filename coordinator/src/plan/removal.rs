//! Removal of a machine: when it may leave the swarm, and what is left to do. With the graceful policy it first goes
//! out of service like a machine in maintenance (`update::maintenance`). Then it departs: a manager is demoted, its
//! engine leaves, a manager removes the node, and its row is dropped. Level-triggered; [`questions`] says what to ask
//! next.

pub mod questions;

use muster_proto::{
    model::{Blocked, MachineName, MachineType, Reason, RemovalPolicy, SwarmLocalState},
    plant::planted,
};

use super::{
    assign, recovery,
    safety::{self, blocked},
    survey::{Position, Survey},
    swarm,
    update::{drain, drain::own, maintenance, waits},
};
use crate::facts::{DepartingNode, RemovalRow};

/// A step to record for a machine under removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The machine.
    pub machine: MachineName,
    /// The step.
    pub what: RemovalStep,
}

/// A step of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// It starts to leave the swarm.
    Depart(DepartingNode),
    /// Its node in the swarm is now known.
    Node(DepartingNode),
    /// Only its rows are left.
    Drop,
    /// Its removal was aborted, and it has released everything.
    Stay,
}

/// The next steps to record. Only one control machine at a time begins to depart.
#[must_use]
pub fn next_steps(survey: &Survey<'_>) -> Vec<Step> {
    if safety::store_is_current(survey).is_err() || survey.facts.meta.recovering {
        return Vec::new();
    }
    let mut steps = Vec::new();
    let mut control_departs = false;
    for position in &survey.machines {
        let Some(what) = position.row.removal.as_ref().and_then(|row| step(survey, position, row)) else { continue };
        let control = position.row.spec.machine_type == MachineType::Control;
        if control && matches!(what, RemovalStep::Depart(_)) && std::mem::replace(&mut control_departs, true) {
            continue;
        }
        steps.push(Step { machine: position.row.name.clone(), what });
    }
    steps
}

fn step(survey: &Survey<'_>, position: &Position<'_>, row: &RemovalRow) -> Option<RemovalStep> {
    if row.aborting {
        return position.update().is_none().then_some(RemovalStep::Stay);
    }
    let Some(departure) = &row.departure else {
        return may_depart(survey, position, row)
            .is_ok()
            .then(|| RemovalStep::Depart(first_node(survey, position, row)));
    };
    match &departure.node {
        DepartingNode::Unknown | DepartingNode::Node(_) if is_alone(survey, position) => Some(RemovalStep::Drop),
        DepartingNode::Unknown => identified(survey, position, row).map(RemovalStep::Node),
        DepartingNode::Absent => Some(RemovalStep::Drop),
        DepartingNode::Node(_) => questions::is_forgotten(survey, position).then_some(RemovalStep::Drop),
    }
}

/// Does it go out of service by the rules of updates, to leave for good?
#[must_use]
pub fn takes_turn(position: &Position<'_>) -> bool {
    position.row.removal.as_ref().is_some_and(|row| row.by_turn && !row.aborting && row.departure.is_none())
}

/// May it leave the swarm now?
///
/// # Errors
/// What it waits for.
pub fn may_depart(survey: &Survey<'_>, position: &Position<'_>, row: &RemovalRow) -> Result<(), Blocked> {
    safety::store_is_current(survey)?;
    let about = || blocked(Reason::Deciding, "it goes out of service first", "the coordinator's next decision");
    if row.policy != RemovalPolicy::Forced && position.row.id.is_some() {
        can_be_asked(position)?;
        // Seeded bug: take a machine out of the swarm while it has workloads.
        let out = position.in_maintenance() || planted("depart-in-service");
        match row.by_turn {
            true if !out => return Err(goes_out(survey, position).unwrap_or_else(about)),
            // It may have been out of service for days, and its workloads may have returned.
            true if planted("depart-in-service") => {}
            true => safety::may_leave(survey, position)?,
            false => is_idle(survey, position)?,
        }
    }
    match position.row.spec.machine_type {
        MachineType::Control => safety::one_control_departs(survey, position),
        MachineType::Worker | MachineType::Unassigned => Ok(()),
    }
}

/// Is its agent available for its part?
fn can_be_asked(position: &Position<'_>) -> Result<(), Blocked> {
    let name = &position.row.name;
    // Its reports are ignored: those of what runs there, and those of what has ended.
    if let Some(refused) = super::blocked::silent(position) {
        let forced = format!("`musterctl remove {name} --policy forced`, without its agent's help; or ");
        return Err(Blocked { clears_when: format!("{forced}{}", refused.clears_when), ..refused });
    }
    let why = match () {
        () if position.row.revoked => "an operator revoked it",
        () if position.lost => "it has not been heard of for longer than the limit",
        () if position.row.host.is_some() && !position.connected() => "it has no connection to the coordinator now",
        () => return Ok(()),
    };
    Err(needs_agent(name, format!("it is removed with its agent's help, and {why}")))
}

fn needs_agent(name: &MachineName, message: impl Into<String>) -> Blocked {
    let clears_when = format!("it connects; or, if it is gone for good, `musterctl remove {name} --policy forced`");
    blocked(Reason::RemovalNeedsAgent, message, clears_when)
}

/// Does a recovered store wait for it? The wait is unlimited: its operator knows what became of it.
fn is_awaited(survey: &Survey<'_>, position: &Position<'_>) -> Option<Blocked> {
    let name = &position.row.name;
    let message = "the store was recovered, and it has not said yet what it knows better";
    survey.facts.live.awaited.contains(name).then(|| needs_agent(name, message))
}

/// What keeps it in service.
fn goes_out(survey: &Survey<'_>, position: &Position<'_>) -> Option<Blocked> {
    let own = super::blocked::unusable(survey, position).or_else(|| super::blocked::refuses(position));
    own.or_else(|| super::blocked::agent_says(position)).or_else(|| waits::of_machine(survey, position))
}

/// Is it idle: has everything ended, and will its list start nothing more?
fn is_idle(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    maintenance::nothing_runs(position)?;
    let row = position.row;
    let told =
        row.reach.is_some() && row.assigned.refused.is_none() && assign::wanted(survey.facts, position).is_some();
    if told && !assign::is_accepted(survey.facts, position) {
        return Err(blocked(
            Reason::Deciding,
            "its agent is told to start nothing more",
            "its agent has accepted that",
        ));
    }
    Ok(())
}

/// Is every other control machine revoked or outside the swarm? Then no machine can take this one out: a revoked
/// machine can never be asked again.
fn is_alone(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let mut others = survey.of_type(MachineType::Control).filter(|other| other.row.name != position.row.name);
    !others.any(|other| !other.row.revoked && swarm::may_be_in(survey.facts, other.row))
}

/// What is known of its node before any question.
fn first_node(survey: &Survey<'_>, position: &Position<'_>, row: &RemovalRow) -> DepartingNode {
    let known = position.row.swarm.as_ref().map(|member| DepartingNode::Node(member.node_id.clone()));
    let asks = row.policy != RemovalPolicy::Forced && position.row.host.is_some();
    match known {
        None if asks && drain::uses_swarm(survey) && swarm::may_have_begun(survey.facts, position.row) => {
            DepartingNode::Unknown
        }
        Some(_) if asks => DepartingNode::Unknown,
        known => known.unwrap_or(DepartingNode::Absent),
    }
}

/// Its node according to its own engine; after a change to the forced policy, according to its swarm-join.
fn identified(survey: &Survey<'_>, position: &Position<'_>, row: &RemovalRow) -> Option<DepartingNode> {
    let joined = position.row.swarm.as_ref().map(|member| member.node_id.clone());
    let joined = joined.map_or(DepartingNode::Absent, DepartingNode::Node);
    if row.policy == RemovalPolicy::Forced {
        return Some(joined);
    }
    let info = drain::fresh(survey, drain::look(position)?.info.as_ref())?;
    match &info.node {
        Some(node) => own::foreign(survey, position, node, None).is_none().then(|| DepartingNode::Node(node.clone())),
        None if info.state == SwarmLocalState::Inactive => Some(joined),
        None => None,
    }
}

/// Deadline of a departure, Unix milliseconds. After it the departure is still retried, and an operator is told.
#[must_use]
pub fn deadline_ms(survey: &Survey<'_>, row: &RemovalRow) -> Option<u64> {
    let begun_ms = row.departure.as_ref()?.since_ms.max(survey.facts.live.started_wall_ms);
    Some(begun_ms.saturating_add(survey.spec.update_deadlines.swarm_drain.after_ms))
}

/// Is its departure past its deadline?
#[must_use]
pub fn is_late(survey: &Survey<'_>, row: &RemovalRow) -> bool {
    deadline_ms(survey, row).is_some_and(|at_ms| survey.now.wall_ms >= at_ms)
}

/// Why a machine under removal is still here. None: it stays, or its removal is being aborted.
#[must_use]
pub fn waits(survey: &Survey<'_>, position: &Position<'_>) -> Option<Blocked> {
    let row = position.row.removal.as_ref().filter(|row| !row.aborting)?;
    let about = || blocked(Reason::Deciding, "its next step is about to be taken", "the coordinator's next decision");
    if let Err(old) = safety::store_is_current(survey) {
        return Some(old);
    }
    if survey.facts.meta.recovering && position.row.in_doubt && !position.row.revoked {
        return super::blocked::silent(position).or_else(|| Some(recovery::in_doubt(position.row)));
    }
    if survey.facts.meta.recovering {
        let others = || safety::gathered(survey).err();
        return Some(is_awaited(survey, position).or_else(others).unwrap_or_else(about));
    }
    let Some(departure) = &row.departure else {
        return Some(may_depart(survey, position, row).err().unwrap_or_else(about));
    };
    let waits = match &departure.node {
        DepartingNode::Absent => about(),
        DepartingNode::Unknown | DepartingNode::Node(_) => questions::waits(survey, position),
    };
    if is_late(survey, row) {
        let Blocked { reason, message, clears_when } = waits;
        let message = format!("{message} (for longer than updateDeadlines.swarmDrain allows)");
        let looser = row.policy != RemovalPolicy::Forced;
        let name = &position.row.name;
        let or = if looser { format!("; or `musterctl remove {name} --policy forced`") } else { String::new() };
        return Some(Blocked { reason, message, clears_when: format!("{clears_when}{or}") });
    }
    Some(waits)
}

/// Does a removal proceed by itself: is its departure within its deadline?
#[must_use]
pub fn is_moving(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    position.row.removal.as_ref().is_some_and(|row| row.departure.is_some() && !is_late(survey, row))
}

/// Phase of a removal (LCM's `prepareDeletionPhase`). None: the machine stays.
#[must_use]
pub fn phase(survey: &Survey<'_>, position: &Position<'_>) -> Option<&'static str> {
    let row = position.row.removal.as_ref()?;
    let refused = position.update().is_some_and(|mine| mine.set_aside.is_some() || mine.stuck.is_some());
    let alone = row.policy != RemovalPolicy::Forced && (position.lost || position.row.revoked);
    Some(match () {
        () if row.aborting => "aborting",
        () if is_late(survey, row) || (row.departure.is_none() && (refused || alone)) => "failed",
        () => "started",
    })
}

/// The next time, Unix milliseconds, at which time alone changes a removal.
#[must_use]
pub fn wakes_at_ms(survey: &Survey<'_>) -> Option<u64> {
    let moments = survey.machines.iter().filter_map(|position| {
        let row = position.row.removal.as_ref()?;
        let asks = questions::wakes_at(survey, position);
        let asks = asks.map(|mono_ms| survey.now.wall_ms + mono_ms.saturating_sub(survey.now.mono_ms));
        deadline_ms(survey, row).into_iter().chain(asks).filter(|at| *at > survey.now.wall_ms).min()
    });
    moments.min()
}
