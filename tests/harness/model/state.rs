//! A state of the model: the simulator's world, and what is under way in it, waiting to be chosen.

use std::hash::{Hash, Hasher};

use muster_coordinator::plan::{
    Limits,
    survey::{State as MachineState, Survey},
};
use muster_proto::model::MachineId;

use super::{Scenario, cluster, digest};
use crate::{
    invariants::Violation,
    rng::Rng,
    sim::{Event, Plan, World, fate::Fate, manifest, network::Parcel},
};

/// Invariants that have a property of their own.
const NAMED: &[&str] = &["1", "2", "3", "5", "6", "7", "10", "11", "old-store"];

/// One state.
#[derive(Clone)]
pub struct State {
    pub(super) world: World,
    /// What machines have said and the coordinator has not taken, by machine.
    pub(super) said: Vec<Vec<Parcel>>,
    /// What the coordinator has said and has not arrived, by machine.
    pub(super) told: Vec<Vec<Parcel>>,
    /// Streams that are gone, and the coordinator has not noticed.
    pub(super) gone: Vec<(MachineId, u64)>,
    /// To this machine everything comes late.
    pub(super) late: Option<usize>,
    /// So many faults may yet strike.
    pub(super) faults_left: u32,
    /// What did not hold: here the story ends.
    pub violation: Option<Violation>,
    /// Is every machine Ready, as the coordinator knows it?
    ready: bool,
    /// Of all of it.
    digest: u64,
}

impl State {
    /// Everybody is enrolled and up; nobody is connected.
    pub(super) fn new(scenario: &Scenario) -> Self {
        let fate = Fate { shortest_ms: 0, longest_ms: 0, fail_permille: 0, hopeless_permille: 0, lost_permille: 0 };
        let plan = Plan {
            counts: scenario.counts,
            chaos_ms: 0,
            fault_permille: 0,
            old_store_permille: 0,
            crash_permille: 0,
            fate,
            update: false,
            swarm: false,
        };
        let world = World::with_spec(Rng::new(0), plan, cluster::spec(scenario, plan));
        let world = world.unwrap_or_else(|violation| unreachable!("a world without faults begins: {violation}"));
        let machines = world.machines.len();
        let mut state = Self {
            world,
            said: vec![Vec::new(); machines],
            told: vec![Vec::new(); machines],
            gone: Vec::new(),
            late: None,
            faults_left: scenario.faults_max,
            violation: None,
            ready: false,
            digest: 0,
        };
        for index in 0..machines {
            if let Err(violation) = state.world.happen(Event::StartAgent(index)) {
                state.violation = Some(violation);
            }
        }
        state.collect();
        state.sum_up();
        state
    }

    /// Everything has happened that makes this state.
    pub(super) fn sum_up(&mut self) {
        self.ready = self.all_ready();
        self.digest = digest::of(self);
    }

    /// Does this invariant hold?
    pub(super) fn keeps(&self, invariant: &str) -> bool {
        self.violation.as_ref().is_none_or(|violation| violation.invariant != invariant)
    }

    /// Do those hold that have no property of their own?
    pub(super) fn keeps_others(&self) -> bool {
        self.violation.as_ref().is_none_or(|violation| NAMED.contains(&violation.invariant))
    }

    /// May something yet go wrong?
    pub(super) const fn may_fault(&self) -> bool {
        self.faults_left > 0
    }

    /// Is every machine Ready, as the coordinator knows it?
    pub(super) const fn is_ready(&self) -> bool {
        self.ready
    }

    fn all_ready(&self) -> bool {
        let Some(facts) = self.world.facts() else { return false };
        if facts.machines.values().any(|row| row.ready_at.is_none() || row.slot.is_some()) {
            return false; // the survey takes its time
        }
        let survey = Survey::of(facts, &manifest::cluster_name(), &Limits::default(), self.world.now());
        survey.is_some_and(|survey| survey.machines.iter().all(|machine| machine.state() == MachineState::Ready))
    }

    /// Takes what the last event has brought out of the world's queue: here nothing happens by itself.
    pub(super) fn collect(&mut self) {
        for event in std::mem::take(&mut self.world.queue).into_values() {
            match event {
                Event::Deliver(parcel) if parcel.what.to_coordinator() => self.said[parcel.index].push(parcel),
                Event::Deliver(parcel) if self.world.machines[parcel.index].session == Some(parcel.session) => {
                    self.told[parcel.index].push(parcel);
                }
                Event::NoticeGone(id, session) if self.world.sessions.get(&id) == Some(&session) => {
                    self.gone.push((id, session));
                }
                _ => {}
            }
        }
        let sessions = &self.world.sessions;
        self.gone.retain(|(id, session)| sessions.get(id) == Some(session));
        // What only the dice need.
        self.world.rng = Rng::new(0);
        self.world.timer = None;
        self.world.queued = 0;
        self.world.arrivals.clear();
        self.world.past.clear();
        self.world.reached = Default::default();
    }

    /// The coordinator's process is gone, and every stream with it.
    pub(super) fn lose_everything(&mut self) {
        self.collect();
        self.said.iter_mut().chain(&mut self.told).for_each(Vec::clear);
        self.gone.clear();
        self.late = None;
    }

    /// The machine's stream is gone, with what was on its way.
    pub(super) fn lose_streams_of(&mut self, index: usize) {
        self.collect();
        self.said[index].clear();
        self.told[index].clear();
        self.late = self.late.filter(|late| *late != index);
    }

    /// After an event: what it has brought waits, and if nothing more is to happen, everything must be well.
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        self.collect();
        let recovered = self.world.facts().is_some_and(|facts| facts.meta.recovered && !facts.meta.recovering);
        if recovered {
            self.world.watcher.store_recovered();
        }
        let mut moves = Vec::new();
        self.moves(&mut moves);
        if !moves.is_empty() {
            return Ok(());
        }
        self.world.watcher.settled(&self.world.machines, self.world.coordinator.as_ref())?;
        self.world.everybody_has_a_reason()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, to: &mut H) {
        self.digest.hash(to);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}
