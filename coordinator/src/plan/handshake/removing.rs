//! Which request objects of Muster's are removed: those that stand for no request any more, as far as that is certain.

use muster_proto::{
    model::{Blocked, Reason},
    seeded_bug::seeded_bug,
};

use super::{CHANGES_MAX, SETTLE_MS, facts, is_about, is_for, is_ours, kind, look, wanted};
use crate::{
    facts::handshake::{OldRequest, RequestObject, Subject},
    plan::{
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Requests to remove: ours that stand for none any more. That of a machine whose state is in doubt stays.
pub(super) fn to_remove(snapshot: &ClusterSnapshot<'_>, requests: &[RequestObject]) -> Vec<OldRequest> {
    let wanted = wanted(snapshot);
    let wants_review = |request: &RequestObject| {
        let mut rows = snapshot.machines.iter().map(|view| view.row);
        rows.any(|row| row.needs_review && is_about(request, row))
    };
    let is_over = |request: &&RequestObject| {
        (is_ours(snapshot, request) || seeded_bug("remove-foreign-request"))
            && !seeded_bug("leave-request-objects")
            && !request.deleting
            && !wants_review(request)
            && may_be_removed(snapshot, request).is_ok()
            && !outlasts_deletion(snapshot, request)
            && (!wanted.iter().any(|new| is_for(snapshot, new, request)) || seeded_bug("remove-request-early"))
    };
    let old = |request: &RequestObject| OldRequest {
        subject: request.subject.clone(),
        name: request.name.clone(),
        uid: if seeded_bug("delete-request-without-uid") { String::new() } else { request.uid.clone() },
    };
    requests.iter().filter(is_over).map(old).take(CHANGES_MAX).collect()
}

/// May this request of ours be removed, which the record does not want? One that the record does not know may be newer
/// than this copy of the store, and its machine may be disturbed. Only the agents can tell.
///
/// # Errors
/// Who has not reported yet.
pub(super) fn may_be_removed(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> Result<(), Blocked> {
    if was_ended(snapshot, request) {
        return Ok(());
    }
    let what = format!("{} {} is unknown to this store", kind(&request.subject), request.name);
    if snapshot.now.mono_ms < snapshot.facts.live.started_mono_ms.saturating_add(SETTLE_MS) {
        let message = format!("{what}, and the coordinator has just started");
        return Err(blocked(Reason::Gathering, message, format!("{} s have passed since then", SETTLE_MS / 1_000)));
    }
    safety::gathered(snapshot)?;
    let may_be_its = |view: &&MachineView<'_>| match (request.subject.node(), view.row.kubernetes_node.as_deref()) {
        (Some(node), Some(known)) => node == known,
        _ => true,
    };
    let is_silent = |view: &&MachineView<'_>| snapshot.facts.live.awaited.contains(&view.row.name);
    let silent = snapshot.machines.iter().filter(is_silent).filter(may_be_its);
    let silent: Vec<&str> = silent.map(|view| view.row.name.as_str()).collect();
    if silent.is_empty() {
        return Ok(());
    }
    let message =
        format!("{what}, and {} has said nothing since the coordinator started", safety::some_names(silent.clone()));
    let revoke = safety::for_each("revoke", silent);
    Err(blocked(Reason::Gathering, message, format!("it connects; or, if it never will, {revoke}")))
}

/// Has the record seen this very object stand for a request that ended?
fn was_ended(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> bool {
    let of_machines = snapshot.machines.iter().filter_map(|view| view.update());
    let of_machines = of_machines.flat_map(|mine| mine.standing.iter().chain(&mine.standing_deletion));
    let rollouts = snapshot.facts.rollouts.values().filter(|row| row.cluster == snapshot.cluster.name);
    let of_cluster = rollouts.filter_map(|row| row.update.as_ref()?.standing.as_ref());
    of_machines.chain(of_cluster).any(|standing| standing.uid == request.uid)
}

/// Has a machine that stays to keep its request for a while: was the request for the end of its node there a moment
/// ago? A controller at work on that one lets the machine go at its end. Only the other request's end brings it back.
fn outlasts_deletion(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> bool {
    let Subject::Node(node) = &request.subject else { return false };
    let mut rows = snapshot.machines.iter().map(|view| view.row);
    let stays = rows.any(|row| is_about(request, row) && !row.has_left_kubernetes());
    let seen = look(snapshot).and_then(|look| look.deletions.get(node));
    stays && seen.is_some_and(|at| snapshot.now.mono_ms < at.saturating_add(facts::SETTLE_MS))
}
