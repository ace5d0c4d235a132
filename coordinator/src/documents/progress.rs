//! Progress of an update on each of its machines.

use std::collections::BTreeSet;

use muster_proto::resource::{MachineProgress, Waiting};

use crate::{
    facts::{RolloutRow, UpdateRow},
    plan::{
        blocked,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// The machines of a rollout in their order, except those that a later one has taken over.
pub(super) fn machines(
    snapshot: &ClusterSnapshot<'_>,
    row: &RolloutRow,
    update: &UpdateRow,
    waiting: &[Waiting],
) -> Vec<MachineProgress> {
    let waits: BTreeSet<&str> = waiting.iter().map(|wait| wait.machine.as_str()).collect();
    let members = snapshot.machines.iter().filter(|view| view.row.rollout.as_ref() == Some(&row.name));
    let progress = |view: &MachineView<'_>| {
        let name = view.row.name.as_str();
        let (word, item) = match view.update() {
            _ if view.row.revoked => ("revoked", None),
            None if update.is_complete(view.row) => ("done", None),
            None => ("left out", None),
            Some(_) if view.in_maintenance() => ("in maintenance", None),
            Some(_) if view.lost => ("lost", None),
            Some(_) if view.failed() => ("failed", None),
            Some(_) if waits.contains(name) => ("waiting", None),
            Some(_) => ("under way", blocked::activity(view).map(|(item, ..)| item.name.to_string())),
        };
        MachineProgress { machine: name.to_owned(), progress: word.to_owned(), item }
    };
    members.map(progress).collect()
}
