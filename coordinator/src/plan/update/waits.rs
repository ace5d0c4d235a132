//! Why a machine of an update does not move.

use muster_proto::model::{Blocked, MachineType, Phase, Reason};

use super::{
    around,
    cluster::{cluster_lets, is_ahead, is_open, not_halted},
    drain, earlier_on_its_way, is_untouched, machine, maintenance, targets, wants_slot,
};
use crate::{
    facts::{MachineUpdate, UpdateRow, Wish},
    plan::{
        blocked::in_trouble,
        locks,
        safety::{self, blocked},
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
fn because(halt: Blocked, cause: Option<&str>) -> Blocked {
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
fn late_for(mine: &MachineUpdate) -> Option<&str> {
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
    let (update, mine) = (survey.update()?, position.update()?);
    let about = || blocked(Reason::Deciding, "its next step is about to be taken", "the coordinator's next decision");
    let waits = if position.row.slot.is_some() {
        with_slot(survey, position, update, mine)
    } else {
        without_slot(survey, position, update, mine)
    };
    Some(waits.err().unwrap_or_else(about))
}

fn with_slot(
    survey: &Survey<'_>,
    position: &Position<'_>,
    update: &UpdateRow,
    mine: &MachineUpdate,
) -> Result<(), Blocked> {
    if mine.returned_at_ms.is_some() {
        return locks::returned(survey, position.row);
    }
    if machine::gives_back(survey, update, position, mine).is_some() {
        return drain::given_back(survey, position);
    }
    if mine.disturbed() {
        let leaves = mine.maintenance.is_some();
        return if leaves {
            maintenance::may_enter(survey, position)
        } else {
            safety::may_disturb_again(survey, position)
        };
    }
    let locks = safety::locks_granted(survey, position).err().filter(|_| mine.disruptive);
    let control = position.row.spec.machine_type == MachineType::Control;
    let quorum = || safety::control_quorum(survey, position).err().filter(|_| control);
    let waits = locks.or_else(quorum);
    let waited = waits.as_ref().map(|waits| waits.message.as_str());
    not_halted(survey, update).map_err(|halt| because(halt, waited.or_else(|| late_for(mine))))?;
    if mine.disruptive {
        safety::locks_granted(survey, position)?;
    }
    safety::may_begin(survey, position)?;
    if mine.maintenance.is_some() {
        return maintenance::may_enter(survey, position);
    }
    if mine.disruptive { safety::swarm_drained(survey, position) } else { Ok(()) }
}

fn without_slot(
    survey: &Survey<'_>,
    position: &Position<'_>,
    update: &UpdateRow,
    mine: &MachineUpdate,
) -> Result<(), Blocked> {
    let name = &position.row.name;
    if let Some(aside) = &mine.set_aside {
        let retry = format!("`musterctl retry {name}` once what it says has passed");
        let (reason, clears) = if aside.failed() {
            (Reason::Refused, retry)
        } else {
            (Reason::Deferred, format!("it is tried again after the others, or {retry}"))
        };
        return Err(blocked(reason, aside.message.clone(), clears));
    }
    around::nobody_is_gone(survey)?;
    let before = safety::before_update_done(survey);
    let control = position.row.spec.machine_type == MachineType::Control && wants_slot(position);
    let quorum = safety::control_quorum(survey, position).err().filter(|_| control);
    let waited = before.as_ref().err().or(quorum.as_ref()).map(|waited| waited.message.as_str());
    not_halted(survey, update).map_err(|halt| because(halt, late_for(mine).or(waited)))?;
    if mine.only_added {
        return before;
    }
    safety::may_start_anything(survey)?;
    if is_untouched(position) {
        let most = survey.spec.max_worker_prepare_count;
        let message = format!("{most} workers are in prepare (maxWorkerPrepareCount)");
        return Err(blocked(Reason::WaitingForTurn, message, "one of them is through with it"));
    }
    safety::may_take_slot(survey, position)?;
    let control = position.row.spec.machine_type == MachineType::Control;
    if let Some(earlier) = earlier_on_its_way(survey, position).filter(|_| control) {
        let message = format!("control machines go in order (upgradeIndex, then name), and {earlier} comes before it");
        return Err(blocked(Reason::WaitingForTurn, message, format!("{earlier} has had its turn")));
    }
    debug_assert!(wants_slot(position) || position.row.reach == Some(Phase::Prepare));
    Ok(())
}
