//! The drain of a machine: every orchestrator of its cluster moves the workloads away before the machine is disturbed,
//! and gets its node back afterwards, in reverse order. Decided from the record and from the orchestrators' last
//! answers.

pub mod kubernetes;
pub mod swarm;

use muster_proto::{
    model::{Blocked, Deadline, DeadlineOutcome, UpdateDeadlines},
    seeded_bug::seeded_bug,
};

use super::{
    removal, safety,
    snapshot::{ClusterSnapshot, MachineView},
    update::{
        is_at_work, not_halted, stages,
        turn::{Participant, top},
    },
};
use crate::facts::{DesiredState, DrainKind, KubernetesTarget, Stage, SwarmTarget, UpdateRow};
use kubernetes::Kubernetes;
use swarm::Swarm;

/// An orchestrator's part in drains.
pub trait Orchestrator: Sync {
    /// Which one.
    fn kind(&self) -> DrainKind;

    /// Must the machine's node be drained before the machine is disturbed?
    fn is_wanted(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool;

    /// What to record next about the drained node, once the drain has begun. None: nothing has changed.
    fn target(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<DrainStep>;

    /// Rule 4: do the last answers show that the workloads have moved?
    ///
    /// # Errors
    /// What keeps them.
    fn drained(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked>;

    /// Rule 9: is the node as it was before the drain?
    ///
    /// # Errors
    /// What it waits for.
    fn restored(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked>;

    /// Is the orchestrator at this machine's drain, or at a condition that it checks instead of one?
    fn is_at_it(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool;

    /// Start of the wait for the drain, or its last progress, Unix milliseconds. None: it waits for something that has
    /// a deadline of its own.
    fn awaited_since_ms(&self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64>;
}

/// Every orchestrator, in the order in which they drain. They restore in reverse.
pub const ORCHESTRATORS: [&dyn Orchestrator; 2] = [&Kubernetes, &Swarm];

/// A step of the drain of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// The drain by this orchestrator begins.
    Begin(DrainKind),
    /// The drained Kubernetes node, and what it gets back.
    KubernetesTarget(KubernetesTarget),
    /// The drained Swarm node, and what it gets back.
    SwarmTarget(SwarmTarget),
    /// The node gets back what the drain took.
    Uncordon {
        /// The orchestrator.
        of: DrainKind,
        /// Is the machine at the new version now?
        upgraded: bool,
    },
    /// The node is as it was.
    Uncordoned(DrainKind),
}

/// The goal for a machine's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// They are drained.
    Drained,
    /// They are as they were before.
    Restored,
}

/// The goal now. None: the machine is not at its turn, or waits for something else.
#[must_use]
pub fn goal(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Goal> {
    // An outdated store would change nodes that the fleet has long finished with.
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    let (update, mine) = (snapshot.update()?, view.update()?);
    if view.row.slot.is_none() || mine.returned_at_ms.is_some() {
        return None;
    }
    if Participant::of(snapshot, view).and_then(Participant::gives_back).is_some() {
        return Some(Goal::Restored);
    }
    let begins = || {
        let refused = mine.deferral.is_some() || not_halted(snapshot, update).is_err();
        !refused && safety::may_begin(snapshot, view).is_ok()
    };
    let next = match &mine.maintenance {
        // Days may have passed: check again before it leaves for good.
        Some(row) => row.since_ms.is_none() || removal::takes_turn(view),
        None => view.row.max_phase < Some(top(snapshot, view)) || view.awaits_permit(),
    };
    let goes_on = next && !is_at_work(view) && safety::locks_granted(snapshot, view).is_ok();
    let begun = mine.disturbed() || mine.in_maintenance();
    (goes_on && if begun { view.available() } else { begins() }).then_some(Goal::Drained)
}

/// The next step of the drain to record before anything disruptive may start. An orchestrator begins when those before
/// it have drained.
#[must_use]
pub fn step(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<DrainStep> {
    let mine = view.update()?;
    let mut orchestrators = ORCHESTRATORS;
    // Seeded bug: drain the Swarm node first.
    if seeded_bug("swarm-before-kubernetes") {
        orchestrators.reverse();
    }
    for orchestrator in orchestrators.iter().filter(|orchestrator| orchestrator.is_wanted(snapshot, view)) {
        if !mine.drains.has_begun(orchestrator.kind()) {
            return Some(DrainStep::Begin(orchestrator.kind()));
        }
        if let Some(step) = orchestrator.target(snapshot, view) {
            return Some(step);
        }
        if orchestrator.drained(snapshot, view).is_err() {
            return None;
        }
    }
    None
}

/// Rule 4, the drains: have all orchestrators moved the workloads?
///
/// # Errors
/// What keeps them.
pub fn drained(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    ORCHESTRATORS.iter().try_for_each(|orchestrator| orchestrator.drained(snapshot, view))
}

/// The orchestrator to restore next.
#[must_use]
pub fn to_restore(view: &MachineView<'_>) -> Option<&'static dyn Orchestrator> {
    let drains = &view.update()?.drains;
    ORCHESTRATORS.into_iter().rev().find(|orchestrator| drains.has_begun(orchestrator.kind()))
}

/// The orchestrator that is at the machine's drain: the first that has not drained it, or else the last.
#[must_use]
pub fn at_it(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<&'static dyn Orchestrator> {
    let at_it = || ORCHESTRATORS.into_iter().filter(|orchestrator| orchestrator.is_at_it(snapshot, view));
    at_it().find(|orchestrator| orchestrator.drained(snapshot, view).is_err()).or_else(|| at_it().last())
}

/// Deadline of the drain, or of the restored node, Unix milliseconds. For a drain it restarts when something has left
/// the node, after a wait for another machine's drain, and when another machine ends. It also restarts with the
/// coordinator, which has to look first. None: the wait is absent, for another machine's drain, or halted by an
/// operator.
#[must_use]
pub fn deadline_ms(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, view: &MachineView<'_>) -> Option<u64> {
    let (kind, begun_ms) = match goal(snapshot, view)? {
        Goal::Restored => {
            let kind = to_restore(view)?.kind();
            let begun_ms = view.row.stages.get(&restored_stage(kind))?.started_at_ms;
            (kind, begun_ms.max(snapshot.facts.live.started_wall_ms))
        }
        Goal::Drained if update.desired != DesiredState::Go => return None,
        Goal::Drained => {
            let orchestrator = at_it(snapshot, view)?;
            let awaited_ms = orchestrator.awaited_since_ms(snapshot, view)?;
            (orchestrator.kind(), awaited_ms.max(stages::others_moved_ms(snapshot, update, view)))
        }
    };
    Some(begun_ms.saturating_add(deadline_of(kind, &snapshot.spec.update_deadlines).after_ms))
}

/// The stage that ends when this orchestrator has drained the machine, and the outcome of its deadline.
#[must_use]
pub const fn stage_of(kind: DrainKind, deadlines: &UpdateDeadlines) -> (Stage, DeadlineOutcome) {
    (drained_stage(kind), deadline_of(kind, deadlines).outcome)
}

/// The stage that ends when the node is drained.
#[must_use]
pub const fn drained_stage(kind: DrainKind) -> Stage {
    match kind {
        DrainKind::Kubernetes => Stage::KubernetesDrained,
        DrainKind::Swarm => Stage::SwarmDrained,
    }
}

/// The stage that ends when the node is restored.
#[must_use]
pub const fn restored_stage(kind: DrainKind) -> Stage {
    match kind {
        DrainKind::Kubernetes => Stage::KubernetesUncordoned,
        DrainKind::Swarm => Stage::SwarmUncordoned,
    }
}

const fn deadline_of(kind: DrainKind, deadlines: &UpdateDeadlines) -> Deadline {
    match kind {
        DrainKind::Kubernetes => deadlines.kubernetes_drain,
        DrainKind::Swarm => deadlines.swarm_drain,
    }
}
