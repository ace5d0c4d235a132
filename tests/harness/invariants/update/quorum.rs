//! Rule 1, the quorum of the control plane, as far as the record shows it.

use std::{collections::BTreeSet, sync::Arc};

use muster_coordinator::facts::{Added, Facts, MachineRow};
use muster_proto::model::{MachineId, MachineName, MachineType, Phase, Reason};

use super::{Checked, Watcher, is_disruptive};
use crate::invariants::maintenance::accepts;

impl Watcher {
    /// Rule 1: no voting control machine begins its turn while another is away, or, with three or more, while the rest
    /// has no majority. A voter is any machine that was Ready once, under the identity it had then, whatever became of
    /// it since.
    pub(super) fn quorum_is_kept(&mut self, facts: &Facts) -> Checked {
        let controls = || facts.machines.values().filter(|row| row.spec.machine_type == MachineType::Control);
        for row in controls().filter(|row| row.ready_at.is_some()) {
            self.seen.voters.insert(row.name.clone(), row.id);
        }
        // A removed machine loses its vote.
        self.seen.voters.retain(|name, _| facts.machines.contains_key(name));
        let connected = |name: &MachineName| facts.live.machines.get(name).is_some_and(|live| live.session.is_some());
        let up = |(name, id): &(&MachineName, &Option<MachineId>)| {
            let row = facts.machines.get(*name).filter(|row| !row.revoked && row.id == **id);
            row.is_some() && connected(name)
        };
        let holding: BTreeSet<MachineName> =
            controls().filter(|row| row.slot.is_some()).map(|row| row.name.clone()).collect();
        for name in holding.difference(&self.seen.controls) {
            // In a recovered store, the turn of a machine that needs review began long ago.
            let began = |row: &&Arc<MachineRow>| row.ready_at.is_some() && !row.needs_review;
            let Some(row) = facts.machines.get(name).filter(began) else { continue };
            self.asked_or_alone(facts, row)?;
            let others = || self.seen.voters.iter().filter(|(other, _)| *other != name);
            let away = others().find(|other| {
                !up(other) && facts.machines.get(other.0).is_some_and(|row| !row.revoked && row.ready_at.is_some())
            });
            if let Some((away, _)) = away {
                return Err(self.violation("1", format!("{name} began its turn while {away} was away")));
            }
            let (all, left) = (self.seen.voters.len(), others().filter(up).count());
            // An operator may accept a lost majority; and an undisturbed machine stays part of it.
            let disturbed = row.update.as_ref().is_some_and(|mine| mine.request.is_some());
            let rollout = row.rollout.as_ref().filter(|_| disturbed);
            let update = rollout.and_then(|name| facts.rollouts.get(name)?.update.as_ref());
            let asked = update.is_some_and(|update| !update.accept_control_plane_downtime && !accepts(row));
            if asked && all > 2 && left * 2 <= all {
                return Err(self.violation("1", format!("{name} began its turn: {left} of {all} voters are left")));
            }
        }
        self.seen.controls = holding;
        Ok(())
    }

    /// Rule 1, between the items of a turn: no control machine gets a permit while another deployed one is away.
    pub(super) fn controls_are_there(&self, facts: &Facts, row: &MachineRow) -> Checked {
        let connected = |name: &MachineName| facts.live.machines.get(name).is_some_and(|live| live.session.is_some());
        let away = |other: &&Arc<MachineRow>| {
            let votes =
                other.spec.machine_type == MachineType::Control && other.spec.cluster_name == row.spec.cluster_name;
            votes && other.name != row.name && other.ready_at.is_some() && !other.revoked && !connected(&other.name)
        };
        match facts.machines.values().find(away).filter(|_| row.spec.machine_type == MachineType::Control) {
            Some(away) => Err(self.violation("1", format!("{} got a permit while {} was away", row.name, away.name))),
            None => Ok(()),
        }
    }

    /// Rule 1 has a limit too: a control machine with nothing to disturb does not wait for a majority.
    pub(super) fn majority_is_for_the_disturbed(&self, facts: &Facts) -> Checked {
        let controls = || facts.machines.values().filter(|row| row.spec.machine_type == MachineType::Control);
        let connected =
            |row: &Arc<MachineRow>| facts.live.machines.get(&row.name).is_some_and(|live| live.session.is_some());
        if controls().any(|row| row.ready_at.is_some() && !row.revoked && !connected(row)) {
            return Ok(());
        }
        let waits = |row: &&Arc<MachineRow>| {
            let quorum = row.blocked_since.as_ref().is_some_and(|(reason, _)| *reason == Reason::Quorum);
            let unasked = row.update.as_ref().is_some_and(|mine| mine.maintenance.is_none() && mine.reboot.is_none());
            quorum && unasked && row.slot.is_none() && row.removal.is_none()
        };
        match controls().filter(waits).find(|row| !is_to_be_disturbed(facts, row)) {
            Some(row) => {
                Err(self.violation("reason", format!("{} disturbs nothing, and waits for a majority", row.name)))
            }
            None => Ok(()),
        }
    }
}

/// Does its list contain an item that disturbs workloads and has not succeeded?
fn is_to_be_disturbed(facts: &Facts, row: &MachineRow) -> bool {
    let items = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref());
    let Some(Ok(items)) = items.map(|items| &items.resolved) else { return true };
    let stopped = row.update.as_ref().is_some_and(|mine| mine.added.contains(&Added::ConsistentCopy));
    stopped
        || items.iter().any(|item| {
            let status = row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
            let done = status.is_some_and(|status| row.counts(status));
            item.phase > Phase::Prepare && !done && is_disruptive(facts, row, &item.name)
        })
}
