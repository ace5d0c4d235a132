//! Invariants of the machines' swarm.

use std::collections::{BTreeMap, BTreeSet};

use muster_coordinator::{
    facts::{Added, ClusterRow, Facts, MachineRow},
    store::Table,
};
use muster_proto::model::{
    CONSISTENT_COPY_ITEM, Epoch, MachineId, MachineName, MachineType, Now, SwarmAvailability, SwarmCall, SwarmId,
};

use super::{Checked, Violation, Watcher, maintenance::accepts};
use crate::sim::{machine::Machine, manifest};

/// Maximum age of a manager count that the coordinator relies on.
const COUNTED_AGO_MS: u64 = 10_500;

/// Result of listing all managers except one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Listed {
    /// They have a majority.
    Majority,
    /// They have a majority, and one can be spared for a consistent copy: all are up, or too few for such a copy.
    Whole,
    /// No answer.
    Unanswered,
}

/// Can one of these nodes come back before an update ends? Its machine is deployed, as far as is known now: it may have
/// been denied since the node was listed.
fn any_comes_back(facts: &Facts, nodes: &BTreeSet<SwarmId>) -> bool {
    let is_one = |row: &MachineRow| row.swarm.as_ref().is_some_and(|member| nodes.contains(&member.node_id));
    facts.machines.values().any(|row| is_one(row) && row.ready_at.is_some() && !row.revoked)
}

impl Watcher {
    /// Rule 6: a swarm call of a coordinator that this machine knows to be superseded is not performed.
    pub fn swarm_asked(&self, machine: &Machine, call: &SwarmCall) -> Checked {
        let seen = self.ledgers.get(&machine.id).map_or(Epoch(0), |(epoch, ..)| *epoch);
        if call.epoch < seen.max(machine.disk.epoch) || call.epoch > machine.disk.epoch {
            let detail = format!("{}: its swarm was asked for epoch {}, seen {seen}", machine.name, call.epoch);
            return Err(self.violation("6", detail));
        }
        Ok(())
    }

    /// A manager is admitted only if the majority holds even when it never comes up. The step from one manager to two
    /// cannot satisfy that, and is allowed. `counted`: the number of managers, and of those up, as listed for this
    /// machine.
    pub fn let_in(&self, id: MachineId, manager: bool, counted: Option<(usize, usize)>) -> Checked {
        let holds = counted.is_some_and(|(managers, up)| (managers, up) == (1, 1) || 2 * up > managers + 1);
        if manager && !holds {
            let detail = format!("{id} was let in as one more manager; managers there were, and up: {counted:?}");
            return Err(self.violation("quorum", detail));
        }
        Ok(())
    }

    /// Records the list of all managers except this machine's node, made for this machine.
    pub fn managers_listed(&mut self, name: &MachineName, what: &[Listed], at: u64) {
        self.seen.majorities.extend(what.iter().map(|what| ((name.clone(), *what), at)));
    }

    /// Records the managers among them that were down.
    pub fn managers_away(&mut self, name: &MachineName, away: BTreeSet<SwarmId>, at: u64) {
        self.seen.away.insert(name.clone(), (at, away));
    }

    /// Rule 1, the swarm's answer: an update may disturb a manager only if the other managers had a majority a moment
    /// ago, or an operator accepts that they have none.
    pub(super) fn managers_were_counted(&self, facts: &Facts, row: &MachineRow, now: Now) -> Checked {
        let rollout = row.rollout.as_ref().and_then(|name| facts.rollouts.get(name));
        let accepted = rollout.and_then(|row| row.update.as_ref()).is_none_or(|row| row.accept_control_plane_downtime)
            || accepts(row);
        let manager = row.swarm.as_ref().is_some_and(|member| member.manager);
        // In the middle of its turn it continues if all other machines are unreachable.
        let cannot_count = |other: &MachineRow| {
            let connected = facts.live.machines.get(&other.name).is_some_and(|live| live.session.is_some());
            other.name == row.name || other.spec.machine_type != MachineType::Control || other.revoked || !connected
        };
        let nobody = self.seen.permitted.contains_key(&row.name) && facts.machines.values().all(|o| cannot_count(o));
        if accepted || nobody || !manager || row.removal.is_some() || row.spec.machine_type != MachineType::Control {
            return Ok(());
        }
        // Before the first permit of a turn its copy is still to come. In the middle of a turn it does not wait for
        // machines that cannot come back before the end of the turn.
        let part = row.update.as_ref();
        let copied = part.is_some_and(|mine| mine.maintenance.is_none() && mine.added.contains(&Added::ConsistentCopy));
        let copied = copied && row.verdicts.get(CONSISTENT_COPY_ITEM).is_none_or(|verdict| verdict.left_out.is_none());
        let begun = self.seen.permitted.contains_key(&row.name);
        let enough: &[Listed] = match (begun, copied) {
            (true, _) => &[Listed::Majority, Listed::Unanswered],
            (false, true) => &[Listed::Whole],
            (false, false) => &[Listed::Majority],
        };
        let listed = enough.iter().filter_map(|enough| self.seen.majorities.get(&(row.name.clone(), *enough)));
        let away = self.seen.away.get(&row.name).filter(|(_, away)| begun && !any_comes_back(facts, away));
        let counted = listed.chain(away.map(|(at, _)| at)).max();
        let counted = counted.map(|at| now.mono_ms.saturating_sub(*at));
        if counted.is_some_and(|ago| ago <= COUNTED_AGO_MS) {
            return Ok(());
        }
        let detail = format!("{} may be disturbed, and the other managers were enough {counted:?} ms ago", row.name);
        Err(self.violation("quorum", detail))
    }

    /// The choice of the machine that creates the swarm is durable before that machine learns of it.
    pub fn told_to_make_swarm(&self, id: MachineId, disk: &BTreeMap<(Table, String), Vec<u8>>) -> Checked {
        let row = disk.get(&(Table::Clusters, manifest::cluster_name().to_string()));
        let row = row.and_then(|row| serde_json::from_slice::<ClusterRow>(row).ok());
        if row.and_then(|row| row.swarm_init) == Some(id) {
            return Ok(());
        }
        Err(self.violation("swarm-init", format!("{id} was told to make the swarm, and the store does not say so")))
    }

    /// The cluster never relies on two swarms. A restored store may not know of the first.
    pub fn second_swarm(&self, machine: &MachineName, rival: &MachineName) -> Checked {
        if self.restored {
            return Ok(());
        }
        Err(self.violation("quorum", format!("{machine} made a swarm, and {rival} is a manager of another")))
    }

    /// Rule 4: no disruptive item starts on a worker while a task of a service runs there.
    pub fn no_task_is_hurt(&self, name: &MachineName, running: usize) -> Checked {
        match running {
            0 => Ok(()),
            running => Err(self.violation("4", format!("{name} is disturbed while {running} tasks run there"))),
        }
    }

    /// Rule 4, its services: no drain takes a task from a service that has run too few tasks for this long.
    pub fn drains_degraded_service(&self, node: &SwarmId, service: &str, since_ms: u64) -> Violation {
        self.violation("service", format!("{node} is drained; {service} has lost a task {since_ms} ms ago"))
    }

    /// Rule 9: a node gets back exactly the availability it had.
    pub fn is_as_it_was(&self, name: &MachineName, was: SwarmAvailability, is: SwarmAvailability) -> Checked {
        if was == is {
            return Ok(());
        }
        Err(self.violation("9", format!("{name} is in nobody's hands; its operator said {was}, and it is {is}")))
    }
}

#[cfg(test)]
mod tests {
    use muster_coordinator::core::Request;
    use muster_proto::model::Counts;

    use super::*;
    use crate::{
        rng::Rng,
        sim::{Plan, World},
    };

    /// Seed 1009743: it was listed as down, and replaced right after.
    #[test]
    fn shut_out_manager_does_not_come_back() {
        let mut rng = Rng::new(1);
        let plan = Plan { counts: Counts { control: 2, worker: 0 }, swarm: true, ..Plan::of(&mut rng) };
        let spec = manifest::spec(&mut rng, plan);
        let mut world = World::with_spec(rng, plan, spec).expect("a world");
        world.rest().expect("deployed");
        let machine = manifest::machine_name(MachineType::Control, 2);
        let row = world.facts().expect("it runs").machines[&machine].clone();
        let away = BTreeSet::from([row.swarm.as_ref().expect("joined").node_id.clone()]);
        let comes_back = |world: &World| any_comes_back(world.facts().expect("it runs"), &away);
        assert!(comes_back(&world));
        let revoke = Request::RevokeMachine { machine, machine_is_off: true };
        world.operator(revoke).expect("no violation").expect("revoked");
        assert!(!comes_back(&world));
    }
}
