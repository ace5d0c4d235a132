//! Operators who remove machines, relax a removal and abort it; and machines that return under their old names.

use std::collections::{BTreeMap, BTreeSet};

use muster_coordinator::{
    core::Request,
    facts::{DepartingNode, Facts},
};
use muster_proto::model::{
    MachineId, MachineName, RemovalPolicy, SwarmFailure, SwarmFailureCode, SwarmId, SwarmOp, SwarmReply,
};

use super::{
    Event, World, copies,
    machine::uuid_of,
    manifest,
    swarm::{Node, Place, failure},
};
use crate::invariants::{Violation, swarm::Listed};

/// State of machine removals.
#[derive(Clone, Default)]
pub(crate) struct Removals {
    /// The managers that stay, and those of them that are up, as last listed for a machine.
    counted: BTreeMap<MachineName, (usize, usize)>,
    /// Removed machines.
    removed: BTreeSet<MachineId>,
}

impl World {
    /// An operator removes a machine, relaxes its removal, or aborts it.
    pub(crate) fn operate_removal(&mut self, index: usize) -> Result<(), Violation> {
        let Some(machine) = self.machines.get(index).map(|machine| machine.name.clone()) else { return Ok(()) };
        let Some(row) = self.facts().and_then(|facts| facts.machines.get(&machine).cloned()) else {
            return self.come_again(index);
        };
        if row.removal.is_some() && self.rng.permille(300) {
            if self.operator(Request::AbortRemoval { machine })?.is_ok() {
                self.count("a removal was taken back");
            }
            return Ok(());
        }
        let policy = match self.rng.between(0, 9) {
            0..=5 => RemovalPolicy::Graceful,
            6 | 7 => RemovalPolicy::Unsafe,
            _ => RemovalPolicy::Forced,
        };
        self.remove(index, policy)
    }

    /// An operator removes a machine. One that is removed by force is dead.
    pub(crate) fn remove(&mut self, index: usize, policy: RemovalPolicy) -> Result<(), Violation> {
        let Some(machine) = self.machines.get(index).map(|machine| machine.name.clone()) else { return Ok(()) };
        let accept_control_plane_downtime = self.accepts_downtime();
        let request = Request::Remove { machine, policy, accept_control_plane_downtime };
        if self.operator(request)?.is_err() {
            return Ok(());
        }
        self.count(match policy {
            RemovalPolicy::Graceful => "removed gracefully",
            RemovalPolicy::Unsafe => "removed unsafely",
            RemovalPolicy::Forced => "removed by force",
        });
        if policy == RemovalPolicy::Forced {
            self.drop_session(index);
            if let Some(machine) = self.machines.get_mut(index) {
                machine.power_off();
            }
        }
        Ok(())
    }

    /// A removed machine is reinstalled, and enrols under its old name.
    pub(crate) fn come_again(&mut self, index: usize) -> Result<(), Violation> {
        // A store from before the manifest was applied takes nobody.
        let is_known = |facts: &Facts| facts.clusters.contains_key(&manifest::cluster_name());
        if !self.facts().is_some_and(is_known) {
            return Ok(());
        }
        let id = MachineId(uuid_of(&mut self.rng));
        let Some(machine) = self.machines.get_mut(index) else { return Ok(()) };
        machine.power_off();
        machine.reinstall(id, self.at, &mut self.rng);
        let machine_type = machine.machine_type;
        self.create_token(machine_type)?;
        if self.enroll(index, id)? {
            self.count("a removed machine came again");
        }
        self.later(100, Event::StartAgent(index));
        Ok(())
    }

    /// Checks that removed machines are forgotten everywhere.
    pub(crate) fn see_removals(&mut self) -> Result<(), Violation> {
        let nodes = self.nodes_with_managers();
        let Some(facts) = self.coordinator.as_ref().map(muster_coordinator::core::Core::facts) else { return Ok(()) };
        let engine = |machine: &super::Machine| Some((machine.name.clone(), machine.engine.as_ref()?.node.clone()));
        let engines = self.machines.iter().filter_map(engine).collect();
        self.watcher.removals_are_right(facts, &nodes, &engines)?;
        let gone = |machine: &super::Machine| {
            facts.denied.contains_key(&machine.id) && !facts.machines.contains_key(&machine.name)
        };
        let gone: Vec<MachineId> = self.machines.iter().filter(|m| gone(m)).map(|machine| machine.id).collect();
        for id in gone {
            if self.removals.removed.insert(id) {
                self.count("a removed machine is gone");
            }
        }
        Ok(())
    }

    /// Nodes of swarms with another manager that the coordinator knows and may ask: it can have them removed.
    fn nodes_with_managers(&self) -> BTreeSet<SwarmId> {
        let known = |index: usize| {
            let machine = self.machines.get(index)?;
            let row = self.facts()?.by_id(machine.id).filter(|row| !row.revoked)?;
            Some(row.swarm.as_ref()?.node_id.clone())
        };
        let mut nodes = BTreeSet::new();
        for swarm in &self.swarms {
            let managers: Vec<SwarmId> = swarm.nodes.iter().filter_map(|node| known(node.index)).collect();
            let others = |node: &SwarmId| {
                let of_this = swarm.nodes.iter().filter(|other| other.manager && other.id != *node);
                of_this.filter(|other| managers.contains(&other.id)).count()
            };
            nodes.extend(swarm.nodes.iter().map(|node| node.id.clone()).filter(|node| others(node) > 0));
        }
        nodes
    }

    /// Records the list of all managers except this machine's node, as listed for this machine.
    pub(crate) fn list_for(&mut self, call: u64, swarm: usize) {
        let Some((_, about, _)) = self.questions.get(&call).cloned() else { return };
        if let Some(node) = self.leaving(&about) {
            let counted = self.count_managers_but(swarm, &node);
            self.removals.counted.insert(about, counted);
            return;
        }
        let row = self.facts().and_then(|facts| facts.machines.get(&about));
        let Some(member) = row.and_then(|row| row.swarm.clone()).filter(|member| member.manager) else { return };
        let (others, up) = self.count_managers_but(swarm, &member.node_id);
        let majority = 2 * up > others + 1;
        let is_down = |node: &&Node| node.id != member.node_id && !self.is_up(node);
        let away = self.managers(swarm).filter(is_down).map(|node| node.id.clone()).collect();
        let what = if majority { "managers were counted for an update" } else { "managers were too few for an update" };
        self.count(what);
        let whole = majority && (up == others || others + 1 < copies::MANAGERS_MIN);
        let all = [(majority, Listed::Majority), (whole, Listed::Whole)];
        let listed: Vec<Listed> = all.into_iter().filter(|(holds, _)| *holds).map(|(_, listed)| listed).collect();
        self.watcher.managers_listed(&about, &listed, self.at);
        self.watcher.managers_away(&about, away, self.at);
    }

    fn leaving(&self, machine: &MachineName) -> Option<SwarmId> {
        match &self.facts()?.machines.get(machine)?.removal.as_ref()?.departure.as_ref()?.node {
            DepartingNode::Node(id) => Some(id.clone()),
            DepartingNode::Unknown | DepartingNode::Absent => None,
        }
    }

    /// Rule 1: the coordinator is about to demote a manager.
    pub(crate) fn may_demote(&self, about: &MachineName, op: &SwarmOp) -> Result<(), Violation> {
        match op {
            SwarmOp::Demote { .. } => self.watcher.may_be_demoted(about, self.removals.counted.get(about).copied()),
            _ => Ok(()),
        }
    }

    /// An engine leaves its swarm, if it is this node and no longer a manager.
    pub(crate) fn leave_for_good(
        &mut self,
        index: usize,
        place: Option<&Place>,
        id: &SwarmId,
    ) -> Result<SwarmReply, SwarmFailure> {
        let Some(place) = place else { return Ok(SwarmReply::Done) };
        let manager = self.managers(place.swarm).any(|node| node.id == place.node);
        if place.node != *id || manager {
            return Err(failure(SwarmFailureCode::NotAllowed));
        }
        if let Some(machine) = self.machines.get_mut(index) {
            machine.engine = None;
        }
        self.count("a removed machine left its swarm");
        Ok(SwarmReply::Done)
    }

    /// As `count_managers`, except one node.
    fn count_managers_but(&self, swarm: usize, but: &SwarmId) -> (usize, usize) {
        let others = || self.managers(swarm).filter(|node| node.id != *but);
        (others().count(), others().filter(|node| self.is_up(node)).count())
    }
}
