//! The simulator: one coordinator and many agents, all of them production cores, in one thread with one seed. It
//! replaces clock, network, disk and processes. No rule of Muster is implemented a second time here.
//!
//! A world first runs under chaos. Then the faults stop, and every rollout must end with a reason. Then an operator
//! resolves what needs a person, and every machine must become Ready.

mod act;
pub(crate) mod chaos;
pub(crate) mod controllers;
mod copies;
pub mod coverage;
mod ending;
pub mod fate;
mod interventions;
mod joining;
pub(crate) mod kubernetes;
mod liars;
mod life;
mod loads;
mod lost_commits;
pub mod machine;
pub mod manifest;
pub(crate) mod network;
mod plan;
mod removing;
mod resolving;
mod secrets;
pub mod swarm;
mod talks;
mod targeted_faults;
mod tasks;
mod updating;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};

use muster_agent::attempt::record::AttemptKey;
use muster_coordinator::{
    core::{Act, Core, Effect, Input, Reply, Request},
    facts::Facts,
    plan::Limits,
    proof::ProofKey,
    store::{Change, Row, Table},
};
use muster_proto::model::{Assignment, ClusterSpec, Generation, MachineId, MachineName, MachineType, Now, SwarmOp};

use crate::{
    invariants::{Violation, Watcher},
    rng::Rng,
};
use controllers::Controller;
use coverage::Reached;
pub use life::{run, run_plan, run_with_kubernetes};
use machine::{Machine, uuid_of};
use network::Parcel;
pub use plan::Plan;
use swarm::Swarm;
use talks::Talk;

/// Limits of the coordinator.
pub(crate) const LIMITS: Limits = Limits { lost_after_ms: 30_000 };
/// Bytes of the key of the proof codes, the same for every coordinator.
const PROOF_KEY: [u8; 32] = [7; 32];
/// Most events before a world comes to rest: more means a bug in Muster or in the simulator.
const EVENTS_MAX: u64 = 150_000;

/// A scheduled event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A message arrives.
    Deliver(Parcel),
    /// A machine's own timer: processes end, retries are due.
    Wake(usize),
    /// An agent tries to connect.
    Connect(usize),
    /// An agent's process restarts.
    StartAgent(usize),
    /// A machine boots.
    PowerOn(usize),
    /// The power of a machine is cut for this long.
    CutPower(usize, u64),
    /// A machine goes down, because an attempt asked for it.
    GoDown(usize, AttemptKey),
    /// The coordinator's process restarts.
    StartCoordinator,
    /// The coordinator processes its inbox.
    Decide,
    /// An operator acts.
    Operate,
    /// An application controller reads the requests.
    Controller(usize),
    /// An application controller in Kubernetes looks there.
    ObjectController(usize),
    /// The coordinator notices that a session is gone.
    NoticeGone(MachineId, u64),
    /// This swarm call, made for this machine, has timed out.
    SwarmSilent(MachineId, u64),
    /// This query of a drain has timed out.
    QuestionSilent(u64),
    /// An engine performs an operation after its caller's timeout.
    LateChange(usize, SwarmOp),
    /// A question reaches the Kubernetes API server.
    KubernetesAsked(u64),
    /// Its answer reaches the coordinator, or it has timed out.
    KubernetesAnswered(u64),
}

/// The whole simulated state.
#[derive(Clone)]
pub struct World {
    pub(crate) rng: Rng,
    pub(crate) plan: Plan,
    pub(crate) at: u64,
    pub(crate) queue: BTreeMap<(u64, u64), Event>,
    pub(crate) queued: u64,
    pub(crate) machines: Vec<Machine>,
    /// The coordinator's disk.
    pub(crate) disk: BTreeMap<(Table, String), Vec<u8>>,
    /// An older copy of the disk.
    pub(crate) old_disk: Option<BTreeMap<(Table, String), Vec<u8>>>,
    /// The rows before each of its newest commits.
    pub(crate) undo: lost_commits::Undo,
    /// Number of commits to the disk.
    pub(crate) commits: u64,
    pub(crate) coordinator: Option<Core>,
    pub(crate) inbox: Vec<Input>,
    /// When the coordinator's timer fires next.
    pub(crate) timer: Option<u64>,
    pub(crate) sessions: BTreeMap<MachineId, u64>,
    pub(crate) last_session: u64,
    /// When the last message of each session and direction arrives: streams keep their order.
    pub(crate) arrivals: BTreeMap<(u64, bool), u64>,
    pub(crate) chaos: bool,
    /// A process certainly crashes after this many effects.
    pub(crate) crash_in: Option<u64>,
    pub(crate) watcher: Watcher,
    /// How often each fault fired and each coverage goal was reached.
    pub reached: Reached,
    pub(crate) tokens: BTreeMap<MachineType, String>,
    /// Application controllers.
    pub(crate) controllers: Vec<Controller>,
    /// Every assignment ever sent.
    pub(crate) past: Vec<(MachineId, Assignment)>,
    /// The swarms: one, unless something went wrong.
    pub(crate) swarms: Vec<Swarm>,
    /// Number of the newest node in any swarm.
    pub(crate) last_node: u64,
    /// Pending swarm queries, by the machine they are made for.
    pub(crate) talks: BTreeMap<MachineId, Talk>,
    /// Number of the newest call.
    pub(crate) last_call: u64,
    /// Queries of drains by call: the machine whose agent was asked, the machine concerned, and the number of the
    /// query.
    pub(crate) questions: BTreeMap<u64, (MachineId, MachineName, u64)>,
    /// State of machine removals.
    pub(crate) removals: removing::Removals,
    /// The newest manifest's cluster.
    pub(crate) manifest: Option<ClusterSpec>,
    /// Machines outside of every swarm.
    pub(crate) outsiders: copies::Outsiders,
    /// The machines' Kubernetes. None: they have none.
    pub(crate) kubernetes: Option<kubernetes::SimKubernetes>,
    /// Random numbers of a seed's later runs.
    pub(crate) second_life: Option<Rng>,
    /// When an operator pauses or aborts the update.
    pub(crate) intervention: Option<interventions::Intervention>,
    /// The other targeted fault of this run.
    pub(crate) targeted_fault: Option<targeted_faults::TargetedFault>,
    /// Streams with made-up numbers in their Hello.
    pub(crate) lies: BTreeSet<u64>,
    /// Another build runs since the newest upgrade.
    pub(crate) other_build: bool,
    /// Which of the two builds made each list.
    pub(crate) built: BTreeMap<(MachineId, Generation), bool>,
    /// An older copy of the store has replaced it once.
    pub(crate) was_restored: bool,
    /// Agents now send to a coordinator that should be gone.
    pub(crate) ghostly: bool,
    /// Trace every event on standard error.
    trace: bool,
}

impl World {
    /// Creates a cluster with its manifest applied and its machines enrolled; none is connected yet.
    ///
    /// # Errors
    /// A [`Violation`] during the setup.
    pub fn new(mut rng: Rng, plan: Plan) -> Result<Self, Violation> {
        let spec = manifest::spec(&mut rng, plan);
        let mut world = Self::with_spec(rng, plan, spec)?;
        world.chaos = true;
        Ok(world)
    }

    /// As [`World::new`], with this cluster spec, and with chaos off.
    ///
    /// # Errors
    /// A [`Violation`] during the setup.
    pub fn with_spec(rng: Rng, plan: Plan, spec: ClusterSpec) -> Result<Self, Violation> {
        let mut world = Self {
            rng,
            plan,
            at: 1_000,
            queue: BTreeMap::new(),
            queued: 0,
            machines: Vec::new(),
            disk: BTreeMap::new(),
            old_disk: None,
            undo: lost_commits::Undo::default(),
            commits: 0,
            coordinator: None,
            inbox: Vec::new(),
            timer: None,
            sessions: BTreeMap::new(),
            last_session: 0,
            arrivals: BTreeMap::new(),
            chaos: false,
            crash_in: None,
            watcher: Watcher::default(),
            reached: Reached::default(),
            tokens: BTreeMap::new(),
            controllers: Vec::new(),
            past: Vec::new(),
            swarms: Vec::new(),
            last_node: 0,
            talks: BTreeMap::new(),
            last_call: 0,
            questions: BTreeMap::new(),
            removals: removing::Removals::default(),
            manifest: None,
            outsiders: copies::Outsiders::default(),
            kubernetes: None,
            second_life: None,
            intervention: None,
            targeted_fault: None,
            lies: BTreeSet::new(),
            other_build: false,
            built: BTreeMap::new(),
            was_restored: false,
            ghostly: false,
            trace: std::env::var_os("MUSTER_SIM_TRACE").is_some(),
        };
        world.start_coordinator()?;
        let clusters = BTreeMap::from([(manifest::cluster_name(), (spec, BTreeMap::new()))]);
        let applied = world.operator(Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false })?;
        applied.map_err(|error| world.watcher.violation("sim", error))?;
        for machine_type in [MachineType::Control, MachineType::Worker] {
            world.create_secret(machine_type)?;
            world.create_token(machine_type)?;
            for n in 1..=plan.counts.of(machine_type) {
                let name = manifest::machine_name(machine_type, n);
                let id = MachineId(uuid_of(&mut world.rng));
                let machine = Machine::new(name, machine_type, id, &mut world.rng);
                world.machines.push(machine);
                world.enroll(world.machines.len() - 1, id)?;
            }
        }
        for index in 0..world.machines.len() {
            let delay = world.rng.between(0, 2_000);
            world.later(delay, Event::StartAgent(index));
        }
        Ok(world)
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        self.reached.count(what);
    }

    pub(crate) fn later(&mut self, delay_ms: u64, event: Event) {
        self.queued += 1;
        self.queue.insert((self.at + delay_ms, self.queued), event);
    }

    pub(crate) const fn now(&self) -> Now {
        Now { wall_ms: 1_700_000_000_000 + self.at, mono_ms: self.at }
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        self.disk.iter().map(|((table, key), value)| (*table, key.clone(), value.clone())).collect()
    }

    pub(crate) fn commit(&mut self, changes: &[Change]) {
        self.commits += 1;
        if self.trace {
            changes.iter().for_each(tell);
        }
        self.undo.note(changes, &self.disk);
        for change in changes {
            match change {
                Change::Put { table, key, value } => {
                    self.disk.insert((*table, key.clone()), value.clone());
                }
                Change::Delete { table, key } => {
                    self.disk.remove(&(*table, key.clone()));
                }
            }
        }
    }

    /// Facts of the running coordinator.
    pub(crate) fn facts(&self) -> Option<&Facts> {
        self.coordinator.as_ref().map(Core::facts)
    }

    pub(crate) fn start_coordinator(&mut self) -> Result<(), Violation> {
        let started = Core::start(self.rows(), LIMITS, proof_key(), self.now());
        let (core, changes) = started.map_err(|error| self.watcher.violation("codec", error.to_string()))?;
        self.commit(&changes);
        self.watcher.coordinator_started(core.facts().meta.epoch)?;
        self.coordinator = Some(core);
        self.watcher.forget_slots(self.coordinator.as_ref().map(Core::facts));
        self.kubernetes_decided_before();
        self.later(0, Event::Decide);
        Ok(())
    }

    pub(crate) fn crash_coordinator(&mut self) {
        if let Some(core) = self.coordinator.take() {
            drop(core);
            self.inbox.clear();
            self.sessions.clear();
            self.talks.clear();
            self.questions.clear();
            self.streams_of_controllers_end();
            (0..self.machines.len()).for_each(|index| self.drop_session(index));
            let delay = self.rng.between(10, 5_000);
            self.later(delay, Event::StartCoordinator);
        }
    }

    /// Gives the coordinator one input at once, outside of any chaos: for operators and enrolment.
    pub(crate) fn ask(&mut self, input: Input) -> Result<Result<Reply, String>, Violation> {
        let now = self.now();
        let Some(core) = &mut self.coordinator else { return Ok(Err("the coordinator is down".to_owned())) };
        let (answers, acts) = core.step(vec![input], now).into_acts();
        for act in acts {
            match act {
                Act::Commit(changes) => self.commit(&changes),
                Act::Perform(effect) => self.perform(effect)?,
            }
        }
        self.after_step()?;
        self.schedule_decision();
        let answer = answers.into_iter().next().unwrap_or(Ok(Reply::Ok));
        Ok(answer.map_err(|refusal| refusal.to_string()))
    }

    pub(crate) fn operator(&mut self, request: Request) -> Result<Result<Reply, String>, Violation> {
        if self.trace {
            eprintln!("{} {request:?}", self.at);
        }
        let forgotten = self.watcher.operator_wishes(&request);
        let applied = match &request {
            Request::Apply { clusters, dry_run: false, .. } => {
                clusters.get(&manifest::cluster_name()).map(|(spec, _)| spec.clone())
            }
            _ => None,
        };
        let answer = self.ask(Input::Operator { actor: "operator/sim".to_owned(), request })?;
        match &answer {
            Ok(_) => self.manifest = applied.or(self.manifest.take()),
            Err(refusal) => {
                self.watcher.operator_was_refused(forgotten);
                if self.trace {
                    eprintln!("{} refused: {refusal}", self.at);
                }
            }
        }
        Ok(answer)
    }

    /// Runs the next event. False: none is due before `until`.
    pub(crate) fn next_event(&mut self, until: u64) -> Result<bool, Violation> {
        let Some((key, _)) = self.queue.first_key_value().filter(|((at, _), _)| *at <= until) else {
            return Ok(false);
        };
        let key = *key;
        self.at = self.at.max(key.0);
        let Some(event) = self.queue.remove(&key) else { return Ok(false) };
        if self.queued > EVENTS_MAX {
            return Err(self.watcher.violation("rest", format!("no rest after {EVENTS_MAX} events; next: {event:?}")));
        }
        if self.trace {
            eprintln!("{} {event:?}", self.at);
        }
        self.happen(event)?;
        Ok(true)
    }

    pub(crate) fn schedule_decision(&mut self) {
        let wake = self.coordinator.as_ref().map(Core::decide_by_mono_ms);
        let sooner = |at: &u64| self.timer.is_none_or(|timer| *at < timer || timer < self.at);
        if let Some(at) = wake.filter(sooner) {
            self.timer = Some(at);
            self.later(at.saturating_sub(self.at), Event::Decide);
        }
    }

    pub(crate) fn perform(&mut self, effect: Effect) -> Result<(), Violation> {
        match effect {
            Effect::Assign { id, assignment } => {
                self.watcher.assigned(id, &assignment, self.coordinator.as_ref().map(Core::facts))?;
                self.past.push((id, assignment.clone()));
                self.note_build(id, &assignment);
                self.carry_assignment(id, assignment);
            }
            Effect::Ack { id, session, seq, proof } => {
                self.watcher.acked(id, seq, &self.disk, &self.machines)?;
                self.carry_ack(id, session, (seq, proof));
            }
            Effect::AskSwarm(question) => self.ask_swarm(question)?,
            Effect::AskKubernetes(question) => self.ask_kubernetes(question)?,
            Effect::Close { id, .. } => {
                if let Some(session) = self.sessions.remove(&id) {
                    self.carry_end(id, session);
                }
            }
        }
        Ok(())
    }

    /// Checks the invariants after every step of the coordinator.
    pub(crate) fn after_step(&mut self) -> Result<(), Violation> {
        let (now, guards) = (self.now(), self.guards());
        if let Some(core) = &mut self.coordinator {
            self.watcher.after_step(core, &self.machines, now)?;
            self.reached.look_at(core.facts());
            self.watcher.updates_are_right(core.facts(), &guards, now)?;
        }
        self.no_liar_is_believed()?;
        self.see_removals()?;
        self.nodes_are_given_back()?;
        self.kubernetes_is_right()?;
        self.nobody_left_with_tasks()
    }
}

/// The key of the proof codes.
pub(crate) fn proof_key() -> ProofKey {
    ProofKey::new(&PROOF_KEY)
}

/// One line of the trace: a committed change.
fn tell(change: &Change) {
    match change {
        Change::Put { table, key, value } => {
            eprintln!("    {} {key} {}", table.name(), String::from_utf8_lossy(value));
        }
        Change::Delete { table, key } => eprintln!("    {} {key} deleted", table.name()),
    }
}
