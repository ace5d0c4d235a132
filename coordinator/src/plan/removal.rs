//! Removal of a machine: when it may leave the swarm, and what is left to do. With the graceful policy it first goes
//! out of service like a machine in maintenance (`update::maintenance`). Then it departs: a manager is demoted, its
//! engine leaves, a manager removes the node; its Node object leaves Kubernetes ([`kubernetes`]); and its row is
//! dropped. Level-triggered; [`questions`] says what to ask the swarm next.

pub mod kubernetes;
pub mod questions;

use muster_proto::{
    model::{Blocked, MachineName, MachineType, Reason, RemovalPolicy, SwarmFailureCode, SwarmLocalState},
    seeded_bug::seeded_bug,
};

use super::{
    assign,
    drain::{self, swarm::node_ownership},
    recovery,
    safety::{self, blocked},
    snapshot::{ClusterSnapshot, MachineView},
    swarm,
    update::{maintenance, waits},
};
use crate::facts::{DepartingNode, DepartingObject, RemovalRow};

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
    /// Its node in the swarm is now known, or gone.
    Node(DepartingNode),
    /// Its node in Kubernetes is now known, or gone.
    Object(DepartingObject),
    /// Only its rows are left.
    Drop,
    /// Its removal was aborted, and it has released everything.
    Stay,
}

/// The next steps to record. Only one control machine at a time begins to depart.
#[must_use]
pub fn next_steps(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return Vec::new();
    }
    let mut steps = Vec::new();
    let mut control_departs = false;
    for view in &snapshot.machines {
        let Some(what) = view.row.removal.as_ref().and_then(|row| step(snapshot, view, row)) else { continue };
        let control = view.row.spec.machine_type == MachineType::Control;
        if control && matches!(what, RemovalStep::Depart(_)) && std::mem::replace(&mut control_departs, true) {
            continue;
        }
        steps.push(Step { machine: view.row.name.clone(), what });
    }
    steps
}

fn step(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &RemovalRow) -> Option<RemovalStep> {
    if row.aborting {
        return view.update().is_none().then_some(RemovalStep::Stay);
    }
    let Some(departure) = &row.departure else {
        return may_depart(snapshot, view, row).is_ok().then(|| RemovalStep::Depart(first_node(snapshot, view, row)));
    };
    match &departure.node {
        DepartingNode::Unknown | DepartingNode::Node(_) if is_alone(snapshot, view) => Some(is_out(snapshot)),
        DepartingNode::Unknown => identified(snapshot, view, row).map(RemovalStep::Node),
        DepartingNode::Absent => kubernetes::step(snapshot, view, row),
        DepartingNode::Node(_) => questions::is_forgotten(snapshot, view).then(|| is_out(snapshot)),
    }
}

/// It is out of the swarm. Recorded where something else follows, so that the swarm is asked no more.
fn is_out(snapshot: &ClusterSnapshot<'_>) -> RemovalStep {
    match snapshot.spec.kubernetes {
        Some(_) => RemovalStep::Node(DepartingNode::Absent),
        None => RemovalStep::Drop,
    }
}

/// Does it go out of service by the rules of updates, to leave for good?
#[must_use]
pub fn takes_turn(view: &MachineView<'_>) -> bool {
    view.row.removal.as_ref().is_some_and(|row| row.by_turn && !row.aborting && row.departure.is_none())
}

/// May it leave the swarm now?
///
/// # Errors
/// What it waits for.
pub fn may_depart(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &RemovalRow) -> Result<(), Blocked> {
    safety::store_is_current(snapshot)?;
    let about = || blocked(Reason::Deciding, "it goes out of service first", "the coordinator's next decision");
    if row.policy != RemovalPolicy::Forced && view.row.id.is_some() {
        can_be_asked(view)?;
        // Seeded bug: take a machine out of the swarm while it has workloads.
        let out = view.in_maintenance() || seeded_bug("depart-in-service");
        match row.by_turn {
            true if !out => return Err(goes_out(snapshot, view).unwrap_or_else(about)),
            // It may have been out of service for days, and its workloads may have returned.
            true if seeded_bug("depart-in-service") => {}
            true => safety::may_leave(snapshot, view)?,
            false => is_idle(snapshot, view)?,
        }
    }
    match view.row.spec.machine_type {
        MachineType::Control => safety::one_control_departs(snapshot, view),
        MachineType::Worker | MachineType::Unassigned => Ok(()),
    }
}

/// Is its agent available for its part?
fn can_be_asked(view: &MachineView<'_>) -> Result<(), Blocked> {
    let name = &view.row.name;
    // Its reports are ignored: those of what runs there, and those of what has ended.
    if let Some(refused) = super::blocked::silent(view) {
        let forced = format!("`musterctl remove {name} --policy forced`, without its agent's help; or ");
        return Err(Blocked { clears_when: format!("{forced}{}", refused.clears_when), ..refused });
    }
    let why = match () {
        () if view.row.revoked => "an operator revoked it",
        () if view.lost => "it has not been heard of for longer than the limit",
        () if view.row.host.is_some() && !view.connected() => "it has no connection to the coordinator now",
        () => return Ok(()),
    };
    Err(needs_agent(name, format!("it is removed with its agent's help, and {why}")))
}

fn needs_agent(name: &MachineName, message: impl Into<String>) -> Blocked {
    let clears_when = format!("it connects; or, if it is gone for good, `musterctl remove {name} --policy forced`");
    blocked(Reason::RemovalNeedsAgent, message, clears_when)
}

/// Does a recovered store wait for it? The wait is unlimited: its operator knows what became of it.
fn is_awaited(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let name = &view.row.name;
    let message = "the store was recovered, and it has not said yet what it knows better";
    snapshot.facts.live.awaited.contains(name).then(|| needs_agent(name, message))
}

/// What keeps it in service.
fn goes_out(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let own = super::blocked::unusable(snapshot, view).or_else(|| super::blocked::refuses(view));
    own.or_else(|| super::blocked::agent_says(view)).or_else(|| waits::of_machine(snapshot, view))
}

/// Is it idle: has everything ended, and will its list start nothing more?
fn is_idle(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    maintenance::nothing_runs(view)?;
    let row = view.row;
    let told =
        row.max_phase.is_some() && row.assigned.refused.is_none() && assign::wanted(snapshot.facts, view).is_some();
    if told && !assign::is_accepted(snapshot.facts, view) {
        return Err(blocked(
            Reason::Deciding,
            "its agent is told to start nothing more",
            "its agent has accepted that",
        ));
    }
    Ok(())
}

/// Is every other control machine revoked or outside the swarm? Then no machine can take this one out: a revoked
/// machine can never be asked again. With the forced policy, the engine of a machine that was in the swarm may also
/// report that it is no manager (seed 277170576804949).
fn is_alone(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let forced = view.row.removal.as_ref().is_some_and(|row| row.policy == RemovalPolicy::Forced);
    let failures = drain::swarm::look(view).map(|look| &look.failures);
    let no_manager = |other: &MachineView<'_>| {
        let failure = other.row.id.filter(|_| other.connected()).and_then(|id| failures?.get(&id));
        drain::swarm::fresh(snapshot, failure).is_some_and(|failure| failure.code == SwarmFailureCode::NotManager)
    };
    let mut others = snapshot.of_type(MachineType::Control).filter(|other| other.row.name != view.row.name);
    others
        .all(|other| other.row.revoked || !swarm::may_be_in(snapshot.facts, other.row) || (forced && no_manager(other)))
}

/// What is known of its node before any question.
fn first_node(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &RemovalRow) -> DepartingNode {
    let known = view.row.swarm.as_ref().map(|member| DepartingNode::Node(member.node_id.clone()));
    let asks = row.policy != RemovalPolicy::Forced && view.row.host.is_some();
    match known {
        None if asks && drain::swarm::uses_swarm(snapshot) && swarm::may_have_begun(snapshot.facts, view.row) => {
            DepartingNode::Unknown
        }
        Some(_) if asks => DepartingNode::Unknown,
        known => known.unwrap_or(DepartingNode::Absent),
    }
}

/// Its node according to its own engine; after a change to the forced policy, according to its swarm-join.
fn identified(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &RemovalRow) -> Option<DepartingNode> {
    let joined = view.row.swarm.as_ref().map(|member| member.node_id.clone());
    let joined = joined.map_or(DepartingNode::Absent, DepartingNode::Node);
    if row.policy == RemovalPolicy::Forced {
        return Some(joined);
    }
    let info = drain::swarm::fresh(snapshot, drain::swarm::look(view)?.info.as_ref())?;
    match &info.node {
        Some(node) => {
            node_ownership::foreign(snapshot, view, node, None).is_none().then(|| DepartingNode::Node(node.clone()))
        }
        None if info.state == SwarmLocalState::Inactive => Some(joined),
        None => None,
    }
}

/// Deadline of a departure, Unix milliseconds. After it the departure is still retried, and an operator is told.
#[must_use]
pub fn deadline_ms(snapshot: &ClusterSnapshot<'_>, row: &RemovalRow) -> Option<u64> {
    if let Some(departure) = kubernetes::departure(snapshot, row) {
        return Some(kubernetes::deadline_ms(snapshot, departure));
    }
    let begun_ms = row.departure.as_ref()?.since_ms.max(snapshot.facts.live.started_wall_ms);
    Some(begun_ms.saturating_add(snapshot.spec.update_deadlines.swarm_drain.after_ms))
}

/// Is its departure past its deadline?
#[must_use]
pub fn is_late(snapshot: &ClusterSnapshot<'_>, row: &RemovalRow) -> bool {
    deadline_ms(snapshot, row).is_some_and(|at_ms| snapshot.now.wall_ms >= at_ms)
}

/// Why a machine under removal is still here. None: it stays, or its removal is being aborted.
#[must_use]
pub fn waits(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let row = view.row.removal.as_ref().filter(|row| !row.aborting)?;
    let about = || blocked(Reason::Deciding, "its next step is about to be taken", "the coordinator's next decision");
    if let Err(old) = safety::store_is_current(snapshot) {
        return Some(old);
    }
    if snapshot.facts.meta.recovering && view.row.needs_review && !view.row.revoked {
        return super::blocked::silent(view).or_else(|| Some(recovery::needs_review(view.row)));
    }
    if snapshot.facts.meta.recovering {
        let others = || safety::gathered(snapshot).err();
        return Some(is_awaited(snapshot, view).or_else(others).unwrap_or_else(about));
    }
    let Some(departure) = &row.departure else {
        return Some(may_depart(snapshot, view, row).err().unwrap_or_else(about));
    };
    let waits = match &departure.node {
        DepartingNode::Absent => return Some(kubernetes::waits(snapshot, view, row)),
        DepartingNode::Unknown | DepartingNode::Node(_) => questions::waits(snapshot, view),
    };
    if is_late(snapshot, row) {
        let Blocked { reason, message, clears_when } = waits;
        let message = format!("{message} (for longer than updateDeadlines.swarmDrain allows)");
        let looser = row.policy != RemovalPolicy::Forced;
        let name = &view.row.name;
        let or = if looser { format!("; or `musterctl remove {name} --policy forced`") } else { String::new() };
        return Some(Blocked { reason, message, clears_when: format!("{clears_when}{or}") });
    }
    Some(waits)
}

/// Does a removal proceed by itself: is its departure within its deadline?
#[must_use]
pub fn is_moving(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    view.row.removal.as_ref().is_some_and(|row| row.departure.is_some() && !is_late(snapshot, row))
}

/// Phase of a removal (LCM's `prepareDeletionPhase`). None: the machine stays.
#[must_use]
pub fn phase(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<&'static str> {
    let row = view.row.removal.as_ref()?;
    let refused = view.update().is_some_and(|mine| mine.deferral.is_some() || mine.stuck.is_some());
    let alone = row.policy != RemovalPolicy::Forced && (view.lost || view.row.revoked);
    Some(match () {
        () if row.aborting => "aborting",
        () if is_late(snapshot, row) || (row.departure.is_none() && (refused || alone)) => "failed",
        () => "started",
    })
}

/// The next time, Unix milliseconds, at which time alone changes a removal.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let moments = snapshot.machines.iter().filter_map(|view| {
        let row = view.row.removal.as_ref()?;
        let asks = questions::wakes_at(snapshot, view).into_iter().chain(kubernetes::wakes_at(snapshot, view));
        let asks = asks.map(|mono_ms| snapshot.now.wall_ms + mono_ms.saturating_sub(snapshot.now.mono_ms));
        deadline_ms(snapshot, row).into_iter().chain(asks).filter(|at| *at > snapshot.now.wall_ms).min()
    });
    moments.min()
}
