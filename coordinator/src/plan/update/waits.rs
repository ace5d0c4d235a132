//! Why a machine of an update does not move.

use muster_proto::model::Blocked;

use super::{
    cluster::{cluster_lets, is_ahead, is_open, not_halted},
    hooks, renewal, targets,
    turn::{Advance, Participant, deciding},
};
use crate::{
    facts::{DesiredState, MachineUpdate, UpdateRow},
    plan::{
        addons,
        blocked::in_trouble,
        safety,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Why the cluster's update as a whole does not go on.
#[must_use]
pub fn of_cluster(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<Blocked> {
    if let Err(gone) = hooks::nobody_is_gone(snapshot) {
        return Some(gone);
    }
    let ahead = is_ahead(snapshot);
    if let Err(halt) = not_halted(snapshot, update) {
        let before = safety::before_update_done(snapshot).err();
        let cause = before.or_else(|| if ahead { cluster_lets(snapshot, update).err() } else { None });
        let cause = cause.or_else(|| of_stages(snapshot, update));
        let cause = cause.map(|cause| cause.message).or_else(|| machine_that_was_late(snapshot));
        let halt = because(halt, cause.as_deref());
        return Some(if update.desired == DesiredState::Abort { hangs_on(snapshot, update, halt) } else { halt });
    }
    if let Err(blocked) = safety::may_start_anything(snapshot) {
        return Some(blocked);
    }
    let held = if ahead { is_open(snapshot).err() } else { None };
    held.or_else(|| of_stages(snapshot, update))
}

/// What the stages after the machines wait for, while no machine has a part in them.
#[must_use]
pub fn of_stages(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<Blocked> {
    addons::of_update(snapshot, update).or_else(|| renewal::of_cluster(snapshot, update))
}

/// A halt, and what was waited for in vain.
pub(super) fn because(halt: Blocked, cause: Option<&str>) -> Blocked {
    match cause {
        Some(cause) => Blocked { message: format!("{}; it waited for this: {cause}", halt.message), ..halt },
        None => halt,
    }
}

/// An abort that does not end by itself: whose trouble it waits for, and what ends that.
fn hangs_on(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, halt: Blocked) -> Blocked {
    let troubled = targets(snapshot).filter_map(|view| Some((view.row.name.as_str(), in_trouble(snapshot, view)?)));
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
fn machine_that_was_late(snapshot: &ClusterSnapshot<'_>) -> Option<String> {
    targets(snapshot).find_map(|view| {
        let mine = view.update().filter(|mine| mine.deferral.is_none())?;
        Some(format!("{}: {}", view.row.name, late_for(mine)?))
    })
}

/// Why this machine does not move; None if it is at work.
#[must_use]
pub fn of_machine(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    match Participant::of(snapshot, view)?.advance() {
        Advance::Move(_) => Some(deciding()),
        Advance::Working => None,
        Advance::Wait(wait) => Some(wait.reason()),
    }
}
