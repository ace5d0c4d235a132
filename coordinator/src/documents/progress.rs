//! Progress of an update on each of its machines.

use std::collections::BTreeSet;

use muster_proto::resource::{MachineProgress, Waiting};

use crate::{
    facts::{RolloutRow, UpdateRow},
    plan::{
        blocked,
        survey::{Position, Survey},
    },
};

/// The machines of a rollout in their order, except those that a later one has taken over.
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
            _ if position.row.revoked => ("revoked", None),
            None if update.is_through(position.row) => ("done", None),
            None => ("left out", None),
            Some(_) if position.in_maintenance() => ("in maintenance", None),
            Some(_) if position.lost => ("lost", None),
            Some(_) if position.failed() => ("failed", None),
            Some(_) if waits.contains(name) => ("waiting", None),
            Some(_) => ("under way", blocked::activity(position).map(|(item, ..)| item.name.to_string())),
        };
        MachineProgress { machine: name.to_owned(), progress: word.to_owned(), item }
    };
    members.map(progress).collect()
}
