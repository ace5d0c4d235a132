//! Why a machine of an update does not move.

use muster_proto::model::Blocked;

use super::{
    around,
    cluster::{cluster_lets, is_ahead, is_open, not_halted},
    targets,
    turn::{Advance, Participant, deciding},
};
use crate::{
    facts::{MachineUpdate, UpdateRow, Wish},
    plan::{
        blocked::in_trouble,
        safety,
        survey::{Position, Survey},
    },
};

/// Why the cluster's update as a whole does not go on.
#[must_use]
pub fn of_cluster(survey: &Survey<'_>, update: &UpdateRow) -> Option<Blocked> {
    if let Err(gone) = around::nobody_is_gone(survey) {
        return Some(gone);
    }
    let ahead = is_ahead(survey);
    if let Err(halt) = not_halted(survey, update) {
        let before = safety::before_update_done(survey).err();
        let cause = before.or_else(|| if ahead { cluster_lets(survey, update).err() } else { None });
        let cause = cause.map(|cause| cause.message).or_else(|| machine_that_was_late(survey));
        let halt = because(halt, cause.as_deref());
        return Some(if update.wish == Wish::Abort { hangs_on(survey, update, halt) } else { halt });
    }
    if let Err(blocked) = safety::may_start_anything(survey) {
        return Some(blocked);
    }
    if ahead { is_open(survey).err() } else { None }
}

/// A halt, and what was waited for in vain.
pub(super) fn because(halt: Blocked, cause: Option<&str>) -> Blocked {
    match cause {
        Some(cause) => Blocked { message: format!("{}; it waited for this: {cause}", halt.message), ..halt },
        None => halt,
    }
}

/// An abort that does not end by itself: whose trouble it waits for, and what ends that.
fn hangs_on(survey: &Survey<'_>, update: &UpdateRow, halt: Blocked) -> Blocked {
    let troubled =
        targets(survey).filter_map(|position| Some((position.row.name.as_str(), in_trouble(survey, position)?)));
    let troubled: Vec<(&str, Blocked)> = troubled.collect();
    let Some((name, trouble)) = troubled.first() else { return halt };
    let others = match troubled.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let kind = update.kind.as_str();
    Blocked {
        message: format!("the {kind} waits for {name} ({}){others}", trouble.reason),
        clears_when: format!("{name}: {}", trouble.clears_when),
        ..halt
    }
}

/// What it waited for when it was late, as that was recorded: what the swarm said then is forgotten.
pub(super) fn late_for(mine: &MachineUpdate) -> Option<&str> {
    mine.stuck.as_ref().map(|stuck| stuck.message.as_str()).filter(|message| !message.is_empty())
}

/// The machine at whose deadline the update was paused, and what it waited for.
fn machine_that_was_late(survey: &Survey<'_>) -> Option<String> {
    targets(survey).find_map(|position| {
        let mine = position.update().filter(|mine| mine.set_aside.is_none())?;
        Some(format!("{}: {}", position.row.name, late_for(mine)?))
    })
}

/// Why this machine does not move; None if it is at work.
#[must_use]
pub fn of_machine(survey: &Survey<'_>, position: &Position<'_>) -> Option<Blocked> {
    match Participant::of(survey, position)?.advance() {
        Advance::Move(_) => Some(deciding()),
        Advance::Working => None,
        Advance::Wait(wait) => Some(wait.reason()),
    }
}
