//! The request for the end of a removed machine's node, beside that for its maintenance, for the controllers that
//! answer such requests.

use muster_proto::model::Blocked;

use super::{first_seen, is_handled, marks, settles, spec, stands_as};
use crate::{
    facts::{LockRow, MachineRow, handshake::Subject},
    plan::{locks, requests::Requested, snapshot::ClusterSnapshot},
};

/// The end of a machine's node, if it is to be requested.
pub(super) fn wanted(snapshot: &ClusterSnapshot<'_>, requested: &Requested<'_>) -> Option<Subject> {
    let row = requested.machine.filter(|_| requested.removal)?;
    deletes(snapshot, row).then(|| row.kubernetes_node.clone().map(Subject::Deletion))?
}

/// Is the end of this machine's node requested, or about to be? Only after the consent to its maintenance: a controller
/// sets the same lock inactive for either request, and may check its limits for the maintenance alone, as Rockoon does.
/// A removal that waits for no controller requests none.
fn deletes(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> bool {
    let mine = row.update.as_ref();
    let stands = mine.is_some_and(|mine| mine.standing_deletion.is_some());
    let by_turn = row.removal.as_ref().is_some_and(|removal| removal.by_turn && removal.departure.is_none());
    let consents = || {
        let request = mine.and_then(|mine| mine.request);
        request.is_some_and(|request| locks::inactive(snapshot, Some(row), &request).is_ok())
    };
    row.is_removed() && (stands || (by_turn && takers(snapshot, row).next().is_some() && consents()))
}

/// Controllers with a lock for this machine that answer the request for the end of its node.
fn takers<'a>(snapshot: &'a ClusterSnapshot<'_>, row: &'a MachineRow) -> impl Iterator<Item = &'a str> {
    let takes = |lock: &&LockRow| lock.object.as_ref().is_some_and(|object| object.takes_deletion);
    locks::of(snapshot, Some(&row.name)).filter(takes).map(|lock| lock.key.controller.as_str())
}

/// Does the request for the end of this machine's node stand, and have the controllers that answer such requests
/// handled it, as far as they show it? Their locks are asked apart, and before.
///
/// # Errors
/// Why it does not stand yet, or who has not handled it.
pub fn lets_delete(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Result<(), Blocked> {
    let node = row.kubernetes_node.clone().filter(|_| spec(snapshot).is_some() && deletes(snapshot, row));
    let Some(subject) = node.map(Subject::Deletion) else { return Ok(()) };
    let standing = row.update.as_ref().and_then(|mine| mine.standing_deletion.clone());
    let Some((request, _)) = stands_as(snapshot, Some(row), &subject, standing)? else { return Ok(()) };
    takers(snapshot, row).try_for_each(|controller| match marks(snapshot, controller).1 {
        Some(handled) => is_handled(snapshot, controller, request, handled),
        None => settles(snapshot, controller, first_seen(snapshot, request)),
    })
}
