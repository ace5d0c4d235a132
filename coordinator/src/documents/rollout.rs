//! Documents of rollouts, and of the reboots in them.

use muster_proto::{
    model::{Counts, ItemState, Now, REBOOT_ITEM},
    resource::{Document, Metadata, RebootStatus, Rollout, RolloutSpec, RolloutStatus, UpdateStatus},
};

use super::{at, count, since, update};
use crate::{
    facts::{MachineRow, RolloutRow},
    plan::{
        blocked,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// The document of a rollout.
pub(super) fn document(snapshot: &ClusterSnapshot<'_>, row: &RolloutRow, now: Now) -> Rollout {
    let members: Vec<&MachineView<'_>> = snapshot
        .machines
        .iter()
        .filter(|view| view.row.rollout.as_ref() == Some(&row.name) && !view.row.revoked)
        .collect();
    let open = row.finished_at_ms.is_none();
    // Only open rollouts need this: a cluster has had many more.
    let blocked = open.then(|| blocked::of_cluster(snapshot)).flatten();
    let blocked = since(blocked, snapshot.cluster.blocked_since, now);
    let busy = open && members.iter().any(|view| view.in_flight());
    let state = match (open, busy, &blocked) {
        (false, ..) => "Ready",
        (true, false, Some(_)) => "Blocked",
        (true, ..) => "InProgress",
    };
    let details = row.update.as_ref().map(|details| update::status(snapshot, row, details));
    let state = row.update.as_ref().map_or(state, |details| update::state(snapshot, row, details));
    let done = |view: &&&MachineView<'_>| view.is_ready();
    let through = |of: &UpdateStatus| of.machines.iter().filter(|machine| machine.progress == "done").count();
    let ready = details.as_ref().map_or_else(|| members.iter().filter(done).count(), through);
    let (machines, ready) = row.ended.unwrap_or((count(members.len()), count(ready)));
    Document {
        metadata: Metadata {
            name: row.name.clone(),
            creation_timestamp: at(row.started_at_ms),
            annotations: std::collections::BTreeMap::new(),
        },
        spec: RolloutSpec {
            kind: row.update.as_ref().map_or("deploy", |update| update.kind.as_str()).to_owned(),
            cluster_name: row.cluster.to_string(),
            started_by: row.started_by.clone(),
        },
        status: RolloutStatus {
            state: state.to_owned(),
            finished_at: row.finished_at_ms.map(at),
            machines,
            ready,
            update: details,
            failures: if open { snapshot.failures } else { Counts { control: 0, worker: 0 } },
            blocked,
        },
    }
}

/// Outcome of an operator's request to reboot a machine.
pub(super) fn reboot(row: &MachineRow) -> Option<RebootStatus> {
    let asked = row.reboot?;
    let status = row.statuses.get(REBOOT_ITEM).filter(|_| !asked.completed);
    let failed = status.filter(|status| matches!(status.state, ItemState::Failed { .. }));
    Some(RebootStatus {
        requested_at: at(asked.at_ms),
        completed: asked.completed,
        error_message: failed.map(|status| status.message.clone()).unwrap_or_default(),
    })
}
