//! Invariants of machine removals.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_coordinator::facts::{DepartingNode, Facts, LockRow, MachineRow};
use muster_proto::model::{MachineId, MachineName, MachineType, Now, RemovalPolicy, SwarmId};

use super::{Checked, Watcher};

/// Time that a controller has to answer a request it can see, in milliseconds.
const HEARD_MS: u64 = 35_000;

/// Observations about removals.
#[derive(Clone, Default, Hash)]
pub(super) struct Seen {
    /// Machines leaving the swarm, and their nodes.
    departing: BTreeMap<MachineName, Departing>,
}

/// The node of a machine that leaves the swarm.
#[derive(Clone, Hash)]
enum Departing {
    As(SwarmId),
    /// The machine's engine is asked for it.
    Unknown,
    /// No node to remove.
    Nothing,
}

impl Departing {
    /// Is it one of these nodes?
    fn is_in(&self, nodes: &BTreeSet<SwarmId>) -> bool {
        matches!(self, Self::As(node) if nodes.contains(node))
    }
}

fn departing(facts: &Facts) -> impl Iterator<Item = (&MachineRow, Departing)> {
    facts.machines.values().filter_map(|row| {
        let removal = row.removal.as_ref()?;
        let departing = match &removal.departure.as_ref()?.node {
            DepartingNode::Node(id) => Departing::As(id.clone()),
            DepartingNode::Unknown if removal.policy != RemovalPolicy::Forced => Departing::Unknown,
            DepartingNode::Unknown | DepartingNode::Absent => Departing::Nothing,
        };
        Some((&**row, departing))
    })
}

impl Watcher {
    /// Machines that go out of service first, and begin to depart in this step. Rule 4 must hold at this time, even if
    /// they went out of service long ago.
    pub(super) fn begins_to_depart<'a>(&self, facts: &'a Facts) -> Vec<&'a MachineRow> {
        let known = &self.seen.removals.departing;
        let by_turn = |row: &MachineRow| row.removal.as_ref().is_some_and(|removal| removal.by_turn);
        let begins = departing(facts).map(|(row, _)| row).filter(|row| !known.contains_key(&row.name));
        begins.filter(|row| by_turn(row)).collect()
    }

    /// Rule 4, its locks: a machine whose removal came after its maintenance request departs only when every controller
    /// had its time to revoke an earlier consent.
    pub(super) fn removal_was_heard_of(&self, facts: &Facts, row: &MachineRow, now: Now) -> Checked {
        let asked = row.update.as_ref().and_then(|part| part.request).map_or(0, |request| request.revision);
        let Some(removal) = row.removal.as_ref().filter(|removal| removal.revision > asked) else { return Ok(()) };
        let of_it = |lock: &&Arc<LockRow>| {
            lock.key.cluster == row.spec.cluster_name && lock.key.node.as_ref() == Some(&row.name)
        };
        for lock in facts.locks.values().filter(of_it) {
            let watcher = (lock.key.cluster.clone(), lock.key.controller.clone());
            let streams = facts.live.watching.get(&watcher);
            let came_ms = streams.and_then(|streams| streams.values().min()).copied();
            let could_see = came_ms.is_some_and(|came_ms| now.mono_ms >= came_ms + HEARD_MS);
            if now.wall_ms < removal.since_ms + HEARD_MS || !could_see {
                let message = format!("{} departs, and {} has not heard of it", row.name, lock.key.controller);
                return Err(self.violation("removal", message));
            }
        }
        Ok(())
    }

    /// A machine departs when its policy allows it, control machines one by one. Its row is deleted when no swarm knows
    /// its node any more. `engines`: the node of each machine's own engine. An unknown node was found and removed in
    /// one step, unless the machine's engine is no longer asked.
    pub fn removals_are_right(
        &mut self,
        facts: &Facts,
        nodes: &BTreeSet<SwarmId>,
        engines: &BTreeMap<MachineName, SwarmId>,
    ) -> Checked {
        let controls = departing(facts).filter(|(row, _)| row.spec.machine_type == MachineType::Control).count();
        if controls > 1 {
            return Err(self.violation("removal", format!("{controls} control machines depart at once")));
        }
        let known = &self.seen.removals.departing;
        for (row, _) in departing(facts).filter(|(row, _)| !known.contains_key(&row.name)) {
            let by_turn = row.removal.as_ref().is_some_and(|removal| removal.by_turn);
            let out = row.update.as_ref().and_then(|part| part.maintenance?.since_ms);
            if by_turn && out.is_none() {
                return Err(self.violation("removal", format!("{} departs, and is in service", row.name)));
            }
        }
        for (name, node) in known.iter().filter(|(name, _)| !facts.machines.contains_key(*name)) {
            let node = match node {
                Departing::As(node) => Some(node),
                Departing::Unknown => engines.get(name),
                Departing::Nothing => None,
            };
            if let Some(node) = node.filter(|node| nodes.contains(*node)) {
                return Err(self.violation("removal", format!("{name} is gone, and its swarm knows node {node}")));
            }
        }
        // Out of the swarm, it has yet to leave Kubernetes.
        for (row, _) in departing(facts).filter(|(_, node)| matches!(node, Departing::Nothing)) {
            if let Some(Departing::As(node)) = known.get(&row.name).filter(|node| node.is_in(nodes)) {
                let message = format!("{} is out of the swarm, which knows its node {node}", row.name);
                return Err(self.violation("removal", message));
            }
        }
        self.seen.removals.departing = departing(facts).map(|(row, node)| (row.name.clone(), node)).collect();
        Ok(())
    }

    /// After a start, the departing machines are those of the store.
    pub(super) fn forget_removals(&mut self, facts: &Facts) {
        self.seen.removals.departing = departing(facts).map(|(row, node)| (row.name.clone(), node)).collect();
    }

    /// Rejected machines get no assignment.
    pub(super) fn refused_get_nothing(&self, id: MachineId, facts: Option<&Facts>) -> Checked {
        match facts.is_some_and(|facts| facts.denied.contains_key(&id)) {
            true => Err(self.violation("removal", format!("{id} is refused, and was assigned something"))),
            false => Ok(()),
        }
    }

    /// A manager under removal is demoted only while the others have a majority among themselves. `counted`: the
    /// others, and those of them that were up, as last listed for this machine.
    pub fn may_be_demoted(&self, name: &MachineName, counted: Option<(usize, usize)>) -> Checked {
        let holds = counted.is_some_and(|(others, up)| others > 0 && 2 * up > others);
        if holds {
            return Ok(());
        }
        Err(self.violation("quorum", format!("{name} is to be demoted; other managers, and up: {counted:?}")))
    }
}
