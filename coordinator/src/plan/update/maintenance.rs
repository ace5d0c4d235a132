//! One machine out of service until an operator gives it back. It takes a slot, its request and its drain like a
//! machine of an update. After that it runs no items, and what it does (reboots, silence) is its operator's affair.

use muster_proto::{
    model::{Blocked, Reason},
    seeded_bug::seeded_bug,
};

use super::targets;
use crate::{
    facts::{MachineUpdate, MaintenanceRow},
    plan::{
        assign, containers, drain, locks,
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Machines of the open update that are out of service, or on their way.
pub fn members<'a, 's>(snapshot: &'s ClusterSnapshot<'a>) -> impl Iterator<Item = &'s MachineView<'a>> {
    targets(snapshot).filter(|view| view.update().is_some_and(|mine| mine.maintenance.is_some()))
}

/// Are all intended machines out of service? Then the work is over until an operator wants one back.
#[must_use]
pub fn rests(snapshot: &ClusterSnapshot<'_>) -> bool {
    let mut members = targets(snapshot).peekable();
    members.peek().is_some() && members.all(|view| view.in_maintenance() && view.row.removal.is_none())
}

/// May it go out of service now: is rule 4 met, has everything ended there, and will its list start nothing more?
///
/// # Errors
/// What it waits for.
pub fn may_enter(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    // While an item runs, the swarm is not asked, so its answer becomes old by time alone.
    nothing_runs(view)?;
    safety::may_disturb(snapshot, view)?;
    will_run_nothing(snapshot, view)
}

/// Has everything ended there, and will its list start nothing more?
///
/// # Errors
/// What it waits for.
pub(super) fn will_run_nothing(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    nothing_runs(view)?;
    if assign::is_accepted(snapshot.facts, view) {
        return Ok(());
    }
    Err(blocked(Reason::Deciding, "its agent is told to start nothing more", "its agent has accepted that"))
}

/// Have all items ended there, as far as is known?
///
/// # Errors
/// The running item.
pub fn nothing_runs(view: &MachineView<'_>) -> Result<(), Blocked> {
    // A permit cannot be withdrawn: it is used, or the agent reports that it is over.
    if let Some(item) = view.next_open().filter(|item| view.live_permit(item).is_some()) {
        let message = format!("item {} has leave to start on it", item.name);
        return Err(blocked(Reason::ItemRunning, message, "it has ended, or its leave is over"));
    }
    // Seeded bug: let running items go on.
    match view.running().next().filter(|_| !seeded_bug("run-in-maintenance")) {
        Some(status) => {
            Err(blocked(Reason::ItemRunning, format!("item {} still runs on it", status.name), "it has ended"))
        }
        None => Ok(()),
    }
}

/// Rule 9: is it given back now? Before it is out of service this is immediate; after that, once it is there again.
pub(super) fn gives_back(view: &MachineView<'_>, mine: &MachineUpdate, row: &MaintenanceRow) -> bool {
    if row.since_ms.is_none() {
        // A machine that was taken out of an update for its removal may have begun something harmless.
        let told = view.row.assigned.accepted == view.row.assigned.generation;
        let idle = view.row.removal.is_none() || (told && nothing_runs(view).is_ok());
        return idle && (row.leaving || mine.deferral.is_some());
    }
    // Seeded bug: bring workloads back to a machine that may be in pieces.
    let there = (view.connected() && !view.lost) || seeded_bug("give-back-unreachable");
    there && is_wanted_back(row)
}

/// Does an operator want it back?
pub(super) fn is_wanted_back(row: &MaintenanceRow) -> bool {
    // Seeded bug: give it back at once, because it has no work.
    row.leaving || (row.since_ms.is_some() && seeded_bug("leave-by-itself"))
}

/// Why a machine that is out of service does not move. None: it is in service, or on its way.
#[must_use]
pub fn out_of_service(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let known = view.in_maintenance() && !view.row.revoked && !view.row.needs_review;
    let mine = view.update().filter(|_| known)?;
    let name = &view.row.name;
    let moved =
        !locks::nobody_moves(snapshot) || drain::swarm::uses_swarm(snapshot) || snapshot.spec.kubernetes.is_some();
    let workloads = if moved { "its workloads were moved away" } else { "nobody moves workloads here" };
    let stay = containers::stay(view.row);
    let mut message = format!("out of service: {workloads} and no item is run on it{stay}");
    if !view.connected() {
        message.push_str("; it is not connected now");
    }
    if let Some(taken_back) = mine.request.and_then(|request| locks::inactive(snapshot, Some(view.row), &request).err())
    {
        message = format!("{message}; its workloads may be back: {}", taken_back.message);
    }
    Some(blocked(Reason::InMaintenance, message, format!("`musterctl maintenance leave {name}` brings it back")))
}
