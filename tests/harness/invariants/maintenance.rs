//! Invariants of machines out of service: no item runs there, and they return to service when an operator wants it and
//! they are connected.

use std::collections::{BTreeMap, BTreeSet};

use muster_coordinator::{
    core::Request,
    facts::{Facts, MachineRow},
};
use muster_proto::model::{MachineId, MachineName, Now};

use super::{Checked, Watcher};
use crate::sim::{controllers::Guards, machine::Machine};

/// Observations about maintenance.
#[derive(Clone, Default, Hash)]
pub(super) struct Seen {
    /// Machines out of service, with their identities.
    out: BTreeMap<MachineName, Option<MachineId>>,
    /// Machines that an operator wanted back since.
    wanted: BTreeSet<MachineName>,
}

impl Seen {
    /// A coordinator restarts: uncommitted state is gone.
    pub(super) fn forget(&mut self, facts: &Facts) {
        self.out = out(facts).map(|row| (row.name.clone(), row.id)).collect();
    }
}

/// Is it out of service? True until its workloads are back.
fn is_out(row: &MachineRow) -> bool {
    row.update.as_ref().and_then(|part| part.maintenance).is_some_and(|known| known.since_ms.is_some())
}

/// Machines with workloads away.
fn out(facts: &Facts) -> impl Iterator<Item = &MachineRow> {
    let requested = |row: &MachineRow| row.update.as_ref().is_some_and(|part| part.request.is_some());
    facts.machines.values().map(|row| &**row).filter(move |row| is_out(row) && requested(row))
}

/// Has an operator accepted control plane downtime for the maintenance or removal of this machine?
pub(crate) fn accepts(row: &MachineRow) -> bool {
    let maintenance = row.update.as_ref().and_then(|mine| mine.maintenance);
    maintenance.is_some_and(|row| row.accept_control_plane_downtime)
        || row.removal.as_ref().is_some_and(|row| row.accept_control_plane_downtime)
}

/// A machine that had a permit in a rollout.
pub(crate) type Forgotten = (MachineName, Option<String>);

impl Watcher {
    /// Records an operator's command before it is sent. Returns what it makes the watcher forget.
    pub fn operator_wishes(&mut self, request: &Request) -> Option<Forgotten> {
        let known = &mut self.seen.maintenance;
        match request {
            Request::LeaveMaintenance { machine } => {
                known.wanted.insert(machine.clone());
                // After a recovery, this is the operator's assurance that all items are complete.
                return self.seen.permitted.remove_entry(machine);
            }
            Request::Abort { .. } => known.wanted.extend(known.out.keys().cloned()),
            _ => {}
        }
        None
    }

    /// The command was refused: what [`Watcher::operator_wishes`] forgot for its sake is as it was.
    pub fn operator_was_refused(&mut self, forgotten: Option<Forgotten>) {
        self.seen.permitted.extend(forgotten);
    }

    /// Rules 4 and 9: a machine goes out of service under the same conditions as a disturbance. Its request ends when
    /// the machine is wanted back and is connected.
    pub(super) fn out_of_service(&mut self, facts: &Facts, guards: &Guards, now: Now) -> Checked {
        let still: BTreeMap<_, _> = out(facts).map(|row| (row.name.clone(), row.id)).collect();
        let known = &self.seen.maintenance;
        for (name, id) in known.out.iter().filter(|(name, _)| !still.contains_key(*name)) {
            let same = facts.machines.get(name).filter(|row| row.id == *id && !row.revoked);
            let Some(row) = same else { continue };
            if !known.wanted.contains(name) {
                return Err(self.violation("9", format!("{name} came back into service, and nobody wanted it")));
            }
            if facts.live.machines.get(&row.name).is_none_or(|live| live.session.is_none()) {
                return Err(self.violation("9", format!("{name} came back into service, and is not there")));
            }
        }
        for row in out(facts).filter(|row| !self.seen.maintenance.out.contains_key(&row.name)) {
            self.permit_is_right(facts, row, guards, now)?;
        }
        let known = &mut self.seen.maintenance;
        let before = std::mem::replace(&mut known.out, still);
        known.wanted.retain(|name| before.contains_key(name) == known.out.contains_key(name));
        Ok(())
    }

    /// No item runs on a machine out of service.
    pub(super) fn nothing_runs_in_maintenance(&self, machine: &Machine, facts: Option<&Facts>) -> Checked {
        let row = facts.and_then(|facts| facts.by_id(machine.id)).filter(|row| is_out(row) && !row.revoked);
        let running = machine.attempts.values().find(|attempt| attempt.ends_at.is_some());
        match running.filter(|_| row.is_some() && !self.restored) {
            Some(running) => {
                let detail = format!("{}: {} runs while it is out of service", machine.name, running.request.key);
                Err(self.violation("maintenance", detail))
            }
            None => Ok(()),
        }
    }
}
