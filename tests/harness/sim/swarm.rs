//! The Docker Swarm of a simulated fleet: its nodes and managers, the answers of their engines, and the results of
//! swarm-joins. Also what operators do about a swarm with docker itself.

use muster_agent::attempt::record::AttemptKey;
use muster_coordinator::{
    facts::{LeftOut, MachineRow},
    store::Table,
};
use muster_proto::model::{
    ItemState, MachineId, MachineName, SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo, SwarmJoin, SwarmLabels,
    SwarmLocalState, SwarmManager, SwarmMember, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply, SwarmTokens, SwarmWay,
};

use super::{
    Event, World,
    loads::{Load, Lost},
    manifest::join_name,
};
use crate::invariants::Violation;

/// Time until the swarm notices that a reinstalled machine's former node is gone.
const NOTICED_AFTER_MS: u64 = 15_000;
/// Permille of swarm-joins with a power cut while there are faults.
const CUT_PERMILLE: u64 = 100;

/// A swarm.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    pub(crate) id: SwarmId,
    pub(crate) nodes: Vec<Node>,
    /// Tasks that its services have lost.
    pub(crate) lost: Vec<Lost>,
}

/// A node as the managers know it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: SwarmId,
    /// Index of its machine; the machine's name is the hostname.
    pub(crate) index: usize,
    pub(crate) manager: bool,
    /// Its availability and tasks.
    pub(crate) load: Load,
}

/// Swarm membership on the disk of a machine's engine.
#[derive(Clone, Debug)]
pub struct Place {
    pub(crate) swarm: usize,
    pub(crate) node: SwarmId,
    pub(crate) manager: bool,
}

/// The coordinator's answer to a swarm-join.
#[derive(Clone, Debug)]
pub struct Way {
    /// The way in.
    pub join: SwarmJoin,
    /// For machines that join.
    pub token: Option<String>,
}

/// Result of a swarm-join.
pub type Entered = Result<SwarmMember, NotEntered>;

/// Why a join failed.
#[derive(Clone, Debug)]
pub struct NotEntered {
    /// The runner's message.
    pub message: &'static str,
    /// May a retry help?
    pub retryable: bool,
}

const CHANGED: NotEntered = NotEntered { message: "Changed", retryable: true };
pub(crate) const FOREIGN: NotEntered = NotEntered { message: "ForeignSwarm", retryable: false };
const NO_MANAGER: NotEntered = NotEntered { message: "NoManagerReachable", retryable: true };

pub(crate) fn swarm_id(text: String) -> SwarmId {
    match SwarmId::new(text) {
        Ok(id) => id,
        Err(_) => unreachable!("made here, of letters and digits"),
    }
}

pub(crate) fn failure(code: SwarmFailureCode) -> SwarmFailure {
    SwarmFailure { code, message: "said the engine".to_owned() }
}

impl World {
    pub(crate) fn is_up(&self, node: &Node) -> bool {
        self.machines.get(node.index).is_some_and(|machine| {
            let at_home = machine.engine.as_ref().is_some_and(|place| place.node == node.id);
            at_home && machine.powered && machine.cut_off_until.max(machine.engine_down_until) <= self.at
        })
    }

    pub(crate) fn managers(&self, swarm: usize) -> impl Iterator<Item = &Node> {
        self.swarms.get(swarm).into_iter().flat_map(|swarm| &swarm.nodes).filter(|node| node.manager)
    }

    /// Number of a swarm's managers, and of those up.
    fn count_managers(&self, swarm: usize) -> (usize, usize) {
        (self.managers(swarm).count(), self.managers(swarm).filter(|node| self.is_up(node)).count())
    }

    /// Does the swarm have a leader?
    pub(crate) fn works(&self, swarm: usize) -> bool {
        let (managers, up) = self.count_managers(swarm);
        up > managers / 2
    }

    /// The answer of a machine's engine. A list of nodes comes with the number of managers, and of those up.
    pub(crate) fn engine_answers(
        &mut self,
        index: usize,
        op: &SwarmOp,
    ) -> (Result<SwarmReply, SwarmFailure>, Option<(usize, usize)>) {
        let Some(machine) = self.machines.get(index).filter(|machine| machine.engine_down_until <= self.at) else {
            return (Err(failure(SwarmFailureCode::Engine)), None);
        };
        let place = machine.engine.clone();
        if *op == SwarmOp::Info {
            let state = if place.is_some() { SwarmLocalState::Active } else { SwarmLocalState::Inactive };
            let manager = place.as_ref().is_some_and(|place| place.manager);
            let (hostname, node) = (machine.name.to_string(), place.map(|place| place.node));
            return (Ok(SwarmReply::Info(SwarmInfo { state, node, manager, hostname, error: String::new() })), None);
        }
        if let SwarmOp::Leave { node } = op {
            return (self.leave_for_good(index, place.as_ref(), node), None);
        }
        let Some(place) = place.filter(|place| place.manager) else {
            return (Err(failure(SwarmFailureCode::NotManager)), None);
        };
        if !self.works(place.swarm) {
            self.count("a swarm without quorum was asked");
            return (Err(failure(SwarmFailureCode::NoQuorum)), None);
        }
        let counted = (*op == SwarmOp::Nodes).then(|| self.count_managers(place.swarm));
        (self.manager_answers(place.swarm, op), counted)
    }

    fn manager_answers(&mut self, at: usize, op: &SwarmOp) -> Result<SwarmReply, SwarmFailure> {
        let nodes: Vec<SwarmNode> =
            self.swarms.get(at).into_iter().flat_map(|swarm| &swarm.nodes).map(|node| self.shown(node)).collect();
        let Some(swarm) = self.swarms.get_mut(at) else { return Err(failure(SwarmFailureCode::Engine)) };
        match op {
            SwarmOp::Info | SwarmOp::Leave { .. } | SwarmOp::Nodes => Ok(SwarmReply::Nodes(nodes)),
            SwarmOp::Tokens => Ok(SwarmReply::Tokens(SwarmTokens {
                swarm: swarm.id.clone(),
                manager: token(&swarm.id, true),
                worker: token(&swarm.id, false),
            })),
            SwarmOp::Tasks { .. } | SwarmOp::Services { .. } | SwarmOp::SetAvailability { .. } => {
                self.load_answers(at, op)
            }
            SwarmOp::Labels { .. } => Ok(SwarmReply::Labels(SwarmLabels::new())),
            SwarmOp::AddLabels { .. } => Ok(SwarmReply::Done),
            SwarmOp::Demote { node } => {
                let found = swarm.nodes.iter_mut().find(|known| known.id == *node);
                found.map_or(Err(failure(SwarmFailureCode::NoSuchNode)), |node| {
                    node.manager = false;
                    Ok(SwarmReply::Done)
                })
            }
            SwarmOp::Remove { node, hostname, force } => {
                let sound = |known: &SwarmNode| {
                    let gone = *force || known.state == SwarmNodeState::Down;
                    gone && known.manager.is_none() && known.hostname == *hostname
                };
                if nodes.iter().any(|known| known.id == *node && !sound(known)) {
                    return Err(failure(SwarmFailureCode::NotAllowed));
                }
                swarm.nodes.retain(|known| known.id != *node);
                self.count("what a reinstalled machine left in the swarm was removed");
                Ok(SwarmReply::Done)
            }
        }
    }

    fn shown(&self, node: &Node) -> SwarmNode {
        let (hostname, installed_at) = self
            .machines
            .get(node.index)
            .map_or((String::new(), 0), |machine| (machine.name.to_string(), machine.installed_at));
        let up = self.is_up(node);
        let noticed = self.at >= installed_at + NOTICED_AFTER_MS;
        let state = match (up, noticed) {
            (true, _) => SwarmNodeState::Ready,
            (false, true) => SwarmNodeState::Down,
            (false, false) => SwarmNodeState::Disconnected,
        };
        let manager =
            node.manager.then(|| SwarmManager { leader: false, reachable: up, address: format!("{hostname}:2377") });
        SwarmNode { id: node.id.clone(), hostname, state, availability: node.load.availability, manager }
    }

    /// A swarm-join does its work, as the runner does: it inspects its engine first.
    pub(crate) fn enter_swarm(&mut self, index: usize, way: &Way) -> Result<Entered, Violation> {
        let Some(machine) = self.machines.get(index) else { return Ok(Err(CHANGED)) };
        let manager = way.join.manager;
        if let Some(place) = &machine.engine {
            let swarm_id = self.swarms.get(place.swarm).map(|swarm| swarm.id.clone());
            let meant = match &way.join.way {
                SwarmWay::Member { node, .. } if *node == place.node => Ok(()),
                SwarmWay::Join { swarm, .. } if place.manager && Some(swarm) == swarm_id.as_ref() => Ok(()),
                SwarmWay::Join { .. } if !place.manager => Err(CHANGED),
                SwarmWay::Init if place.manager => Ok(()),
                SwarmWay::Foreign { node } if *node != place.node => Err(CHANGED),
                SwarmWay::Init | SwarmWay::Join { .. } | SwarmWay::Member { .. } | SwarmWay::Foreign { .. } => {
                    Err(FOREIGN)
                }
            };
            let member = |swarm_id| SwarmMember { swarm_id, node_id: place.node.clone(), manager: place.manager };
            return Ok(meant.and_then(|()| swarm_id.map(member).ok_or(CHANGED)));
        }
        let swarm = match &way.join.way {
            SwarmWay::Init => self.make_swarm(index)?,
            SwarmWay::Join { swarm, .. } => {
                let known = self.swarms.iter().position(|known| known.id == *swarm);
                match known.filter(|at| self.works(*at) && way.token == Some(token(swarm, manager))) {
                    Some(at) => at,
                    None => return Ok(Err(NO_MANAGER)),
                }
            }
            SwarmWay::Member { .. } | SwarmWay::Foreign { .. } => return Ok(Err(CHANGED)),
        };
        let (node_id, swarm_id) = self.new_node(swarm, index, manager);
        if let Some(machine) = self.machines.get_mut(index) {
            machine.engine = Some(Place { swarm, node: node_id.clone(), manager });
        }
        Ok(Ok(SwarmMember { swarm_id, node_id, manager }))
    }

    fn new_node(&mut self, at: usize, index: usize, manager: bool) -> (SwarmId, SwarmId) {
        self.last_node += 1;
        let id = swarm_id(format!("node{}", self.last_node));
        let load = Load::new(self.at, &mut self.rng);
        let Some(swarm) = self.swarms.get_mut(at) else { return (id.clone(), id) };
        swarm.nodes.push(Node { id: id.clone(), index, manager, load });
        (id, swarm.id.clone())
    }

    /// Creates a swarm. There must be no other.
    fn make_swarm(&mut self, index: usize) -> Result<usize, Violation> {
        let id = swarm_id(format!("swarm{}", self.swarms.len()));
        let others = self.swarms.iter().flat_map(|swarm| &swarm.nodes);
        let others = others.filter(|node| node.manager && self.counts_in_swarm(node.index));
        let at_home = |node: &&Node| {
            let machine = self.machines.get(node.index);
            machine.and_then(|machine| machine.engine.as_ref()).is_some_and(|place| place.node == node.id)
        };
        let rival = others.filter(at_home).filter_map(|node| self.machines.get(node.index)).next();
        if let (Some(rival), Some(machine), true) = (rival, self.machines.get(index), self.counts_in_swarm(index)) {
            self.watcher.second_swarm(&machine.name, &rival.name)?;
        }
        self.swarms.push(Swarm { id, nodes: Vec::new(), lost: Vec::new() });
        Ok(self.swarms.len() - 1)
    }

    /// Does the cluster rely on this machine for its swarm? True unless an operator denied it, or skipped its join. The
    /// store lists denied machines, even while the coordinator is down.
    fn counts_in_swarm(&self, index: usize) -> bool {
        self.machines.get(index).is_some_and(|machine| {
            let denied = self.disk.contains_key(&(Table::Denied, machine.id.to_string()));
            !denied && !self.outsiders.skipped.contains(&machine.id)
        })
    }

    /// Swarm-joins that are due do their work, independent of their processes' outcomes.
    pub(crate) fn end_joins(&mut self, index: usize) -> Result<(), Violation> {
        let due = |machine: &super::Machine, at: u64| {
            let mut ending =
                machine.attempts.iter().filter(|(_, attempt)| attempt.ends_at.is_some_and(|end| end <= at));
            ending.find_map(|(key, attempt)| Some((key.clone(), attempt.way.clone()?)))
        };
        let Some((key, way)) = self.machines.get(index).and_then(|machine| due(machine, self.at)) else {
            return Ok(());
        };
        let outside = self.machines.get(index).is_some_and(|machine| Some(machine.id) == self.outsiders.chosen);
        let entered = if outside { Err(FOREIGN) } else { self.enter_swarm(index, &way)? };
        if let Some(attempt) = self.machines.get_mut(index).and_then(|machine| machine.attempts.get_mut(&key)) {
            attempt.entered = Some(entered);
        }
        Ok(())
    }

    /// Swarm-joins are short, and a power cut is worst there: some are chosen for one.
    pub(crate) fn endanger_join(&mut self, index: usize, key: &AttemptKey) {
        let attempt = self.machines.get(index).and_then(|machine| machine.attempts.get(key));
        let Some(ends_at) = attempt.filter(|attempt| attempt.way.is_some()).and_then(|attempt| attempt.ends_at) else {
            return;
        };
        if self.chaos && self.rng.permille(CUT_PERMILLE) {
            let delay_ms = self.rng.between(0, ends_at.saturating_sub(self.at));
            let off_ms = self.rng.between(500, 40_000);
            self.later(delay_ms, Event::CutPower(index, off_ms));
        }
    }

    /// The power is cut in the middle of a swarm-join: it may have done nothing, everything, or only what the managers
    /// know.
    pub(crate) fn break_join(&mut self, index: usize) -> Result<(), Violation> {
        let Some(machine) = self.machines.get(index) else { return Ok(()) };
        let running = machine.attempts.values().find(|attempt| attempt.ends_at.is_some());
        let Some(way) = running.and_then(|attempt| attempt.way.clone()) else { return Ok(()) };
        let inactive = machine.engine.is_none();
        self.count("power cut during a swarm-join");
        match (self.rng.between(0, 2), &way.join.way) {
            (0, _) => {}
            (1, SwarmWay::Join { swarm, .. }) if inactive => {
                let known = self.swarms.iter().position(|known| known.id == *swarm);
                if let Some(at) = known.filter(|at| self.works(*at)) {
                    self.new_node(at, index, way.join.manager);
                    self.count("a join that only the managers know of");
                }
            }
            _ => drop(self.enter_swarm(index, &way)?),
        }
        Ok(())
    }

    /// An operator repairs a swarm with docker itself: removes managers that will not come back, by force if the
    /// majority is lost. False: there was nothing to repair.
    pub(crate) fn mend_swarms(&mut self) -> bool {
        let mut mended = false;
        for at in 0..self.swarms.len() {
            let (managers, up) = self.count_managers(at);
            if up == 0 || up == managers {
                continue;
            }
            let up: Vec<SwarmId> = self.managers(at).filter(|node| self.is_up(node)).map(|n| n.id.clone()).collect();
            if let Some(swarm) = self.swarms.get_mut(at) {
                swarm.nodes.retain(|node| !node.manager || up.contains(&node.id));
            }
            self.count("a swarm was mended by hand");
            mended = true;
        }
        mended
    }

    /// Is there a swarm that a machine could join?
    pub(crate) fn has_swarm(&self) -> bool {
        (0..self.swarms.len()).any(|at| self.is_managed(at))
    }

    /// Does this swarm work, with a manager that belongs to the fleet?
    pub(crate) fn is_managed(&self, swarm: usize) -> bool {
        self.works(swarm) && self.managers(swarm).any(|node| self.is_up(node) && self.counts_in_swarm(node.index))
    }

    /// An operator makes a machine leave a foreign swarm.
    pub(crate) fn leave_swarm(&mut self, name: &MachineName) {
        if let Some(machine) = self.machines.iter_mut().find(|machine| machine.name == *name) {
            machine.engine = None;
            self.count("a foreign swarm was left");
        }
    }

    /// Would an operator find the machine outside, although its swarm-join may have run?
    pub(crate) fn is_outside(&self, index: usize) -> bool {
        let Some(machine) = self.machines.get(index).filter(|machine| machine.engine.is_none()) else { return false };
        let status = self.facts().and_then(|facts| facts.by_id(machine.id)?.statuses.get(&join_name()));
        status.is_some_and(|status| status.state == ItemState::Indeterminate)
    }

    /// Records the machines with a skipped join.
    pub(crate) fn note_skips(&mut self) {
        let Some(facts) = self.facts() else { return };
        let skipped = |row: &MachineRow| {
            row.verdicts.get(&join_name()).is_some_and(|verdict| verdict.left_out == Some(LeftOut::Skipped))
        };
        let ids: Vec<MachineId> = facts.machines.values().filter(|row| skipped(row)).filter_map(|row| row.id).collect();
        self.outsiders.skipped.extend(ids);
    }
}

fn token(swarm: &SwarmId, manager: bool) -> String {
    format!("token of {swarm} for {}", if manager { "managers" } else { "workers" })
}

#[cfg(test)]
mod tests {
    use muster_coordinator::core::Request;
    use muster_proto::model::{Counts, MachineType};

    use super::*;
    use crate::{
        rng::Rng,
        sim::{Plan, manifest},
    };

    #[test]
    fn who_was_shut_out_counts_in_no_swarm_though_the_coordinator_is_down() {
        let mut rng = Rng::new(1);
        let plan = Plan { counts: Counts { control: 2, worker: 0 }, swarm: true, ..Plan::of(&mut rng) };
        let spec = manifest::spec(&mut rng, plan);
        let mut world = World::with_spec(rng, plan, spec).expect("a world");
        let machine = manifest::machine_name(MachineType::Control, 1);
        let revoke = Request::RevokeMachine { machine, machine_is_off: true };
        world.operator(revoke).expect("no violation").expect("revoked");
        assert_eq!([0, 1].map(|index| world.counts_in_swarm(index)), [false, true]);
        world.crash_coordinator();
        assert_eq!([0, 1].map(|index| world.counts_in_swarm(index)), [false, true]);
    }
}
