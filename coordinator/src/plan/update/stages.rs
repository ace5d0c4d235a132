//! How long the stages of a machine may take, and what then.

use muster_proto::{model::DeadlineOutcome, plant::planted};

use super::{MachineStep, targets, turn::Participant};
use crate::{
    facts::{MachineRow, Stage, UpdateRow, Wish},
    plan::{
        locks, safety,
        survey::{Position, Survey},
    },
};

/// A machine that waits is overtaken when so many times the workers that may be away at once have come to their end
/// since its request. A controller that grants in the order of requests never lets that come to one.
const OVERTAKEN_WIDTHS: usize = 2;

/// The stage a machine is at, and since when, Unix milliseconds.
#[must_use]
pub fn current(row: &MachineRow) -> Option<(Stage, u64)> {
    let under_way = |stage: Stage| row.stages.get(&stage).filter(|row| row.finished_at_ms.is_none());
    Stage::ALL.iter().rev().find_map(|stage| under_way(*stage).map(|row| (*stage, row.started_at_ms)))
}

/// When the stage a machine is at has had its time, and what then. None: it waits for nothing that could be late, or
/// its deadline is judged elsewhere (its locks and its drain, which start it anew).
fn deadline(survey: &Survey<'_>, update: &UpdateRow, position: &Position<'_>) -> Option<(Stage, u64, DeadlineOutcome)> {
    // Who has given its slot back may have left something behind that has not come to its end.
    let held = position.row.slot.is_some();
    let (stage, since_ms) = current(position.row).filter(|(stage, _)| held || *stage <= Stage::PreviousDeployed)?;
    let deadlines = survey.spec.update_deadlines;
    let since_ms = since_ms.max(update.resumed_at_ms);
    let (since_ms, after_ms, outcome) = match stage {
        Stage::PrepareDone => (since_ms, deadlines.prepare.after_ms, deadlines.prepare.outcome),
        // A cluster of a thousand takes days: it is late only when nobody came to an end for so long.
        Stage::PreviousDeployed => (since_ms.max(update.moved_at_ms), deadlines.turn_ms, DeadlineOutcome::Pause),
        Stage::DeployDone | Stage::ReconfigureDone => (since_ms, deadlines.items.after_ms, deadlines.items.outcome),
        Stage::RebootDone => (since_ms, deadlines.reboot.after_ms, deadlines.reboot.outcome),
        // It is tried on and on, and keeps its slot: there is nothing else to be done with it.
        Stage::SwarmUncordoned => (since_ms, deadlines.swarm_drain.after_ms, DeadlineOutcome::Defer),
        Stage::NodeRequested | Stage::LocksInactive | Stage::SwarmDrained | Stage::Upgraded | Stage::RequestRemoved => {
            return None;
        }
    };
    Some((stage, since_ms.saturating_add(after_ms), outcome))
}

/// When something last happened elsewhere in the update that gives this machine its time anew, Unix milliseconds: one
/// came to its end, for a controller that grants one at a time is at work all the while. What others do is no reason to
/// wait for one that is refused (its lock is failed), or that all of them overtake: it would keep its slot, and the
/// update that much narrower, to the end.
pub(super) fn others_moved_ms(survey: &Survey<'_>, update: &UpdateRow, position: &Position<'_>) -> u64 {
    let overtook = position.update().map_or(0, |mine| update.ends.saturating_sub(mine.ends_before));
    let overtaken = overtook as usize >= safety::worker_slots_max(survey).saturating_mul(OVERTAKEN_WIDTHS);
    let refused = locks::is_refused(survey, &position.row.name);
    if overtaken || refused { update.resumed_at_ms } else { update.moved_at_ms }
}

/// A stage past its deadline.
pub(super) struct Overdue {
    stage: Stage,
    outcome: DeadlineOutcome,
}

impl Overdue {
    /// The step that records it. `waited`: what the machine waits for now; a pause would hide that.
    pub(super) fn stuck(self, waited: impl FnOnce() -> String) -> MachineStep {
        let Self { stage, outcome } = self;
        let message = if stage == Stage::PreviousDeployed { waited() } else { String::new() };
        MachineStep::Stuck { stage, outcome, message }
    }
}

/// The stage that is past its deadline, which is not recorded yet.
pub(super) fn overdue(Participant { survey, update, position, mine }: Participant<'_, '_>) -> Option<Overdue> {
    let (stage, at_ms, outcome) = deadline(survey, update, position)?;
    let known = mine.stuck.as_ref().is_some_and(|stuck| stuck.stage == stage);
    let late = update.wish == Wish::Go && survey.now.wall_ms >= at_ms && mine.set_aside.is_none();
    // Planted: whatever a stage takes, nobody is told.
    (late && !known && !planted("no-stage-deadline")).then_some(Overdue { stage, outcome })
}

/// The next moments, Unix milliseconds, at which a stage has had its time.
pub(super) fn wakes_at_ms<'s>(survey: &'s Survey<'_>, update: &'s UpdateRow) -> impl Iterator<Item = u64> + 's {
    targets(survey).filter_map(move |position| deadline(survey, update, position).map(|(_, at_ms, _)| at_ms))
}
