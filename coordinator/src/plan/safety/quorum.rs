//! Rule 1, the quorum: what the control plane can spare.

use muster_proto::{
    model::{Blocked, MachineType, Reason, RemovalPolicy},
    seeded_bug::seeded_bug,
};

use super::{blocked, for_each, some_names};
use crate::{
    facts::{DesiredState, RolloutRow, UpdateKind},
    plan::{
        snapshot::{ClusterSnapshot, MachineView},
        update,
    },
};

/// Control machines that count for the control plane's majority: the recorded set, and all that have been Ready, or
/// whose predecessor has. Any other machine is neutral. A revoked one still counts, as down.
fn voters<'a, 's>(snapshot: &'s ClusterSnapshot<'a>) -> impl Iterator<Item = &'s MachineView<'a>> {
    let in_set = |view: &MachineView<'_>| snapshot.cluster.control_set.contains(&view.row.name);
    let controls = snapshot.of_type(MachineType::Control);
    controls.filter(move |view| view.ready_once() || view.row.predecessor_ready || in_set(view))
}

/// The others of them, except revoked ones.
fn others<'a, 's>(
    snapshot: &'s ClusterSnapshot<'a>,
    view: &'s MachineView<'a>,
) -> impl Iterator<Item = &'s MachineView<'a>> {
    voters(snapshot).filter(|other| other.row.name != view.row.name && !other.row.revoked)
}

/// Rule 1, the quorum: a control machine that has been Ready goes down only while every other is there.
pub fn controls_are_there(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    if !view.ready_once() || seeded_bug("ignore-quorum") {
        return Ok(());
    }
    let away = others(snapshot, view).filter(|p| p.ready_once() && (p.lost || !p.connected()));
    let away: Vec<&str> = away.map(|p| p.row.name.as_str()).collect();
    if away.is_empty() {
        return Ok(());
    }
    let names = some_names(away);
    let message = format!("control machine {names} is not reachable: the control plane could lose its majority");
    Err(blocked(Reason::Quorum, message, format!("{names} is connected again")))
}

/// Rule 1, the quorum, at the beginning of a turn: every other is there and deployed. In an update the others are also
/// a majority, unless an operator has accepted downtime, or the machine stays undisturbed.
pub fn control_quorum(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    if !view.ready_once() || seeded_bug("ignore-quorum") {
        return Ok(());
    }
    controls_are_there(snapshot, view)?;
    let fresh: Vec<&str> = others(snapshot, view).filter(|p| !p.ready_once()).map(|p| p.row.name.as_str()).collect();
    if fresh.is_empty() || seeded_bug("count-undeployed-control") {
        return majority_is_kept(snapshot, view);
    }
    let names = some_names(fresh);
    let message = format!("control machine {names} was replaced and is not deployed: the control plane lacks it");
    let aborted = snapshot.update().is_some_and(|update| update.desired == DesiredState::Abort);
    let clears_when = match snapshot.rollout.filter(|rollout| rollout.update.is_some()) {
        // This removal keeps the update from ending.
        Some(_) if aborted && view.row.removal.is_some() => {
            format!("`musterctl remove {} --abort`: {names} is deployed then; remove it after that", view.row.name)
        }
        Some(update) => {
            format!("`musterctl abort {}`: {names} is deployed then; start the update again after that", update.name)
        }
        None => format!("{names} is Ready"),
    };
    Err(blocked(Reason::ControlNotDeployed, message, clears_when))
}

/// Is every revoked or replaced control machine deployed again, or removed? A rollout that begins by itself would keep
/// it out, and the others would wait for it.
///
/// # Errors
/// The missing machines.
pub fn successor(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    let is_missing = |p: &&MachineView<'_>| (p.row.revoked || !p.ready_once()) && p.row.removal.is_none();
    let missing = snapshot.of_type(MachineType::Control).filter(is_missing);
    let missing: Vec<&str> = missing.map(|view| view.row.name.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let replace = for_each("replace", missing.iter().copied());
    let names = some_names(missing);
    let message = format!("control machine {names} is missing; the others are reconfigured when the set is whole");
    let clears_when = format!("{names} is enrolled anew and Ready ({replace}, says how), or is removed");
    Err(blocked(Reason::WaitingForControl, message, clears_when))
}

/// Rule 1, the majority alone: is one left while this machine is down? This applies only to updates, and only to work
/// that disturbs.
pub fn majority_is_kept(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let asked = snapshot.update().filter(|_| !accepts_downtime(snapshot, view));
    asked.filter(|_| goes_down(snapshot, view)).map_or(Ok(()), |_| majority_without(snapshot, view))
}

/// Does its work take it away from the control plane?
fn goes_down(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    // Seeded bug: apply the rule to harmless work too.
    view.is_let_go()
        || view.update().is_none_or(|mine| mine.request.is_some())
        || update::disturbs(snapshot, view)
        || seeded_bug("quorum-for-harmless")
}

/// Has an operator accepted that the control plane may be down: in the rollout, or for this machine alone, which goes
/// out of service or is removed?
#[must_use]
pub fn accepts_downtime(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let out_of_service = view.update().and_then(|mine| mine.maintenance);
    snapshot.update().is_some_and(|update| update.accept_control_plane_downtime)
        || out_of_service.is_some_and(|row| row.accept_control_plane_downtime)
        || removed_all_the_same(view)
}

fn removed_all_the_same(view: &MachineView<'_>) -> bool {
    view.row.removal.as_ref().is_some_and(|row| row.accept_control_plane_downtime)
}

/// Rule 1, removals: do a majority of the control machines stay after this removal, and all others under way? A machine
/// removed by force is exempt, because it is dead already.
pub fn majority_stays(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let forced = view.row.removal.as_ref().is_some_and(|row| row.policy == RemovalPolicy::Forced);
    if !view.ready_once() || forced || removed_all_the_same(view) {
        return Ok(());
    }
    let name = &view.row.name;
    let going = |other: &&MachineView<'_>| {
        other.row.name != *name && (other.row.revoked || other.row.removal.as_ref().is_some_and(|row| !row.aborting))
    };
    let all = voters(snapshot).count();
    let gone: Vec<&str> = voters(snapshot).filter(going).map(|other| other.row.name.as_str()).collect();
    let left = all.saturating_sub(gone.len() + 1);
    if left * 2 > all {
        return Ok(());
    }
    let besides =
        if gone.is_empty() { String::new() } else { format!(": {} is revoked or being removed", some_names(gone)) };
    let message = format!("{left} of {all} control machines would be left, which is no majority{besides}");
    let accept = format!("`musterctl remove {name} --accept-control-plane-downtime`");
    Err(blocked(Reason::Quorum, message, format!("others are deployed in their place; or {accept}")))
}

/// Is a majority of the control machines left without this one?
///
/// # Errors
/// How many would be left.
pub fn majority_without(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let all = voters(snapshot).count();
    let left = voters(snapshot).filter(|other| other.row.name != view.row.name && !other.row.revoked).count();
    if left * 2 > all {
        return Ok(());
    }
    let revoked: Vec<&str> = voters(snapshot).filter(|p| p.row.revoked).map(|p| p.row.name.as_str()).collect();
    let (message, remedy) = if revoked.is_empty() {
        let machines = if all == 1 { "control machine" } else { "control machines" };
        (format!("with {all} {machines} the control plane is down while one of them is"), String::new())
    } else {
        let names = some_names(revoked);
        let message =
            format!("{left} of {all} control machines would be left, which is no majority: {names} was revoked");
        (message, format!("{names} was replaced and deployed, or "))
    };
    let by_itself = snapshot.rollout.filter(|_| snapshot.update().is_some_and(|u| u.kind == UpdateKind::Reconfigure));
    let name = &view.row.name;
    let enters = view.update().is_some_and(|mine| mine.maintenance.is_some());
    let clears_when = match (&view.row.removal, by_itself) {
        (Some(_), _) => format!("{remedy}`musterctl remove {name} --accept-control-plane-downtime`"),
        (None, _) if enters => format!(
            "{remedy}`musterctl maintenance leave {name}` gives up; `musterctl maintenance enter {name} \
             --accept-control-plane-downtime` begins anew then"
        ),
        (None, None) => format!(
            "{remedy}`musterctl update` is started with --accept-control-plane-downtime (one that is under way is \
             aborted first)"
        ),
        (None, Some(RolloutRow { name, cluster, .. })) => format!(
            "{remedy}`musterctl abort {name}`, then `musterctl update {cluster} --accept-control-plane-downtime`"
        ),
    };
    Err(blocked(Reason::Quorum, message, clears_when))
}
