//! Deadlines of a machine's stages, and what happens then.

use muster_proto::{model::DeadlineOutcome, seeded_bug::seeded_bug};

use super::{MachineStep, targets, turn::Participant};
use crate::{
    facts::{DesiredState, MachineRow, Stage, UpdateRow},
    plan::{
        locks, safety,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// A waiting machine counts as overtaken after this many times the maximum of concurrent workers have ended since its
/// request. With a controller that grants in the order of requests, this never happens.
const OVERTAKEN_WIDTHS: usize = 2;

/// The stage that a machine is at, and its start, Unix milliseconds.
#[must_use]
pub fn current(row: &MachineRow) -> Option<(Stage, u64)> {
    let under_way = |stage: Stage| row.stages.get(&stage).filter(|row| row.finished_at_ms.is_none());
    Stage::ALL.iter().rev().find_map(|stage| under_way(*stage).map(|row| (*stage, row.started_at_ms)))
}

/// Deadline of a machine's stage, and what happens then. None: its wait is unlimited, or the deadline is kept elsewhere
/// (that of its locks and of its drain, which restart it).
fn deadline(
    snapshot: &ClusterSnapshot<'_>,
    update: &UpdateRow,
    view: &MachineView<'_>,
) -> Option<(Stage, u64, DeadlineOutcome)> {
    // A machine that has given its slot back may have left an unfinished stage behind.
    let held = view.row.slot.is_some();
    let (stage, since_ms) = current(view.row).filter(|(stage, _)| held || *stage <= Stage::PreviousDeployed)?;
    let deadlines = snapshot.spec.update_deadlines;
    let since_ms = since_ms.max(update.resumed_at_ms);
    let (since_ms, after_ms, outcome) = match stage {
        Stage::PrepareDone => (since_ms, deadlines.prepare.after_ms, deadlines.prepare.outcome),
        // A cluster of a thousand takes days: it is late only if all machines stayed unfinished for this long.
        Stage::PreviousDeployed => (since_ms.max(update.moved_at_ms), deadlines.turn_ms, DeadlineOutcome::Pause),
        Stage::DeployDone | Stage::ReconfigureDone => (since_ms, deadlines.items.after_ms, deadlines.items.outcome),
        Stage::RebootDone => (since_ms, deadlines.reboot.after_ms, deadlines.reboot.outcome),
        // It is retried until it succeeds, and keeps its slot, which is all that can be done.
        Stage::SwarmUncordoned => (since_ms, deadlines.swarm_drain.after_ms, DeadlineOutcome::Defer),
        Stage::KubernetesUncordoned => (since_ms, deadlines.kubernetes_drain.after_ms, DeadlineOutcome::Defer),
        // Nothing more is renewed while a node's network may be down: an operator decides.
        Stage::PodsRenewed => (since_ms, deadlines.kubernetes_drain.after_ms, DeadlineOutcome::Pause),
        Stage::NodeRequested
        | Stage::LocksInactive
        | Stage::KubernetesDrained
        | Stage::SwarmDrained
        | Stage::Upgraded
        | Stage::RequestRemoved => {
            return None;
        }
    };
    Some((stage, since_ms.saturating_add(after_ms), outcome))
}

/// The last event elsewhere in the update that restarts this machine's deadline, Unix milliseconds. It is the end of
/// another machine, because a controller that grants one at a time is at work all the while. This excludes a machine
/// that is refused (its lock is failed), and one that all others overtake: it would keep its slot, and so narrow the
/// update, to the end.
pub(in crate::plan) fn others_moved_ms(
    snapshot: &ClusterSnapshot<'_>,
    update: &UpdateRow,
    view: &MachineView<'_>,
) -> u64 {
    let overtook = view.update().map_or(0, |mine| update.ends.saturating_sub(mine.ends_before));
    let overtaken = overtook as usize >= safety::worker_slots_max(snapshot).saturating_mul(OVERTAKEN_WIDTHS);
    let refused = locks::is_refused(snapshot, &view.row.name);
    if overtaken || refused { update.resumed_at_ms } else { update.moved_at_ms }
}

/// A stage past its deadline.
pub(super) struct Overdue {
    stage: Stage,
    outcome: DeadlineOutcome,
}

impl Overdue {
    /// The step that records it. `waited`: what the machine waits for now, which a pause would hide.
    pub(super) fn stuck(self, waited: impl FnOnce() -> String) -> MachineStep {
        let Self { stage, outcome } = self;
        let message =
            if matches!(stage, Stage::PreviousDeployed | Stage::PodsRenewed) { waited() } else { String::new() };
        MachineStep::Stuck { stage, outcome, message }
    }
}

/// The stage that is past its deadline and has yet to be recorded as such.
pub(super) fn overdue(Participant { snapshot, update, view, mine }: Participant<'_, '_>) -> Option<Overdue> {
    let (stage, at_ms, outcome) = deadline(snapshot, update, view)?;
    let known = mine.stuck.as_ref().is_some_and(|stuck| stuck.stage == stage);
    let late = update.desired == DesiredState::Go && snapshot.now.wall_ms >= at_ms && mine.deferral.is_none();
    // Seeded bug: hide late stages.
    (late && !known && !seeded_bug("no-stage-deadline")).then_some(Overdue { stage, outcome })
}

/// The deadline of the stage that it is at, Unix milliseconds.
pub(super) fn late_at_ms(Participant { snapshot, update, view, .. }: Participant<'_, '_>) -> Option<u64> {
    deadline(snapshot, update, view).map(|(_, at_ms, _)| at_ms)
}

/// The next deadlines of stages, Unix milliseconds.
pub(super) fn wakes_at_ms<'s>(
    snapshot: &'s ClusterSnapshot<'_>,
    update: &'s UpdateRow,
) -> impl Iterator<Item = u64> + 's {
    targets(snapshot).filter_map(move |view| deadline(snapshot, update, view).map(|(_, at_ms, _)| at_ms))
}
