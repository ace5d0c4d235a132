//! A state of the model: the simulator's world, and its pending events, which the checker chooses from.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use muster_coordinator::{
    core::{Request, update::Options},
    plan::snapshot::{ClusterSnapshot, State as MachineState},
};
use muster_proto::model::{MachineId, Scope};

use super::{
    Scenario,
    cluster::{self, CONTROLLER},
    digest,
};
use crate::{
    invariants::Violation,
    rng::Rng,
    sim::{Event, LIMITS, Plan, World, fate::Fate, manifest, network::Parcel},
};

/// More moves than the deployment of a small cluster takes.
const DEPLOYMENT_MOVES_MAX: usize = 200;

/// One state.
#[derive(Clone)]
pub struct State {
    pub(super) world: World,
    /// Untaken messages of machines, by machine.
    pub(super) said: Vec<Vec<Parcel>>,
    /// Messages of the coordinator in transit, by machine.
    pub(super) told: Vec<Vec<Parcel>>,
    /// Closed streams that the coordinator still believes open.
    pub(super) gone: Vec<(MachineId, u64)>,
    /// The machine with delayed messages.
    pub(super) late: Option<usize>,
    /// A message to or from this machine that arrives a second time.
    pub(super) again: Option<(usize, Vec<Parcel>)>,
    /// Faults that may still occur.
    pub(super) faults_left: u32,
    /// The broken invariant: the path ends here.
    pub violation: Option<Violation>,
    /// Is every machine Ready, as the coordinator knows it?
    ready: bool,
    /// Digest of the whole state.
    digest: u64,
}

impl State {
    /// All machines are enrolled and up; none is connected.
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
            again: None,
            faults_left: scenario.faults_max,
            violation: None,
            ready: false,
            digest: 0,
        };
        state.violation = state.begin(scenario).err();
        state.sum_up();
        state
    }

    fn begin(&mut self, scenario: &Scenario) -> Result<(), Violation> {
        for index in 0..self.world.machines.len() {
            self.world.happen(Event::StartAgent(index))?;
        }
        self.collect();
        if scenario.update { self.begin_update(scenario) } else { Ok(()) }
    }

    /// Deploys in some order, and starts an update.
    fn begin_update(&mut self, scenario: &Scenario) -> Result<(), Violation> {
        for _ in 0..DEPLOYMENT_MOVES_MAX {
            let mut moves = Vec::new();
            self.moves(&mut moves);
            let Some(next) = moves.first() else { break };
            self.happen(*next)?;
            self.settle()?;
        }
        self.world.add_willing_controller(CONTROLLER)?;
        let cluster = manifest::cluster_name();
        let spec = self.world.facts().and_then(|facts| facts.spec(&cluster)).map(|spec| cluster::next_release(spec));
        let clusters = spec.map(|spec| (cluster.clone(), (spec, BTreeMap::new()))).into_iter().collect();
        let apply = Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false };
        let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Drain) };
        let update = Request::Update { cluster, options };
        for request in [apply, update] {
            let answer = scenario.seeded_bug(|| self.world.operator(request))?;
            answer.map_err(|error| self.world.watcher.violation("sim", error))?;
        }
        self.collect();
        Ok(())
    }

    /// Completes the state after the last event of a move.
    pub(super) fn sum_up(&mut self) {
        self.ready = self.all_ready();
        self.digest = digest::of(self);
    }

    /// May a fault still occur?
    pub(super) const fn may_fault(&self) -> bool {
        self.faults_left > 0
    }

    /// Is every machine Ready, as the coordinator knows it?
    pub(super) const fn is_ready(&self) -> bool {
        self.ready
    }

    fn all_ready(&self) -> bool {
        let Some(facts) = self.world.facts() else { return false };
        if facts.open_rollout(&manifest::cluster_name()).is_some() {
            return false;
        }
        if facts.machines.values().any(|row| row.ready_at.is_none() || row.slot.is_some()) {
            return false; // the snapshot takes its time
        }
        let snapshot = ClusterSnapshot::of(facts, &manifest::cluster_name(), &LIMITS, self.world.now());
        snapshot.is_some_and(|snapshot| snapshot.machines.iter().all(|machine| machine.state() == MachineState::Ready))
    }

    /// Takes the last event's results out of the world's queue: here nothing happens by itself.
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
        // Fields that only the random simulator needs.
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
        self.again = None;
    }

    /// The machine's stream is gone, with all messages in transit.
    pub(super) fn lose_streams_of(&mut self, index: usize) {
        self.collect();
        self.said[index].clear();
        self.told[index].clear();
        self.late = self.late.filter(|late| *late != index);
        self.again.take_if(|(of, _)| *of == index);
    }

    /// After an event: its results become pending. If no further event is possible, every machine must be Ready.
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        self.collect();
        let recovered =
            self.world.facts().is_some_and(|facts| facts.meta.recovered_epoch.0 > 0 && !facts.meta.recovering);
        if recovered {
            self.world.watcher.store_recovered();
        }
        let mut moves = Vec::new();
        self.moves(&mut moves);
        if !moves.is_empty() {
            return Ok(());
        }
        self.world.watcher.settled(&self.world.machines, self.world.coordinator.as_ref())?;
        self.world.everybody_has_a_reason()?;
        match self.all_ready() {
            true => Ok(()),
            // Muster resolves every fault here by itself.
            false => Err(self.world.watcher.violation("10", "nothing more happens, and not everything is Ready")),
        }
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
