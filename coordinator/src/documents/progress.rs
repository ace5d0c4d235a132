//! How far an update is on each of its machines.

use std::collections::BTreeSet;

use muster_proto::resource::{MachineProgress, Waiting};

use crate::{
    facts::{RolloutRow, Stage, UpdateRow, Wish},
    plan::{
        blocked,
        survey::{Position, Survey},
    },
};

/// The machines of a rollout in the order in which they go. Those that a later one has taken over are not among them.
pub(super) fn machines(
    survey: &Survey<'_>,
    row: &RolloutRow,
    update: &UpdateRow,
    waiting: &[Waiting],
) -> Vec<MachineProgress> {
    let waits: BTreeSet<&str> = waiting.iter().map(|wait| wait.machine.as_str()).collect();
    let members = survey.machines.iter().filter(|position| position.row.rollout.as_ref() == Some(&row.name));
    let progress = |position: &Position<'_>| {
        let name = position.row.name.as_str();
        let (word, item) = match position.update() {
            None if is_through(update, position) => ("done", None),
            None => ("left out", None),
            Some(_) if position.in_maintenance() => ("in maintenance", None),
            Some(_) if waits.contains(name) => ("waiting", None),
            Some(_) => ("under way", blocked::activity(position).map(|(item, ..)| item.name.to_string())),
        };
        MachineProgress { machine: name.to_owned(), progress: word.to_owned(), item }
    };
    members.map(progress).collect()
}

/// Has a machine that is no part of it any more come to its end in it? Out of maintenance it is when it is back.
fn is_through(update: &UpdateRow, position: &Position<'_>) -> bool {
    let upgraded = position.row.stages.get(&Stage::Upgraded).is_some_and(|stage| stage.succeeded);
    upgraded || (update.kind.takes_out() && update.wish != Wish::Abort && !position.row.revoked)
}
