//! Cost of a thousand machines for the coordinator: its pure core, driven through a deployment, a restart, heartbeats
//! and an update in which most machines wait while three application controllers hold a lock on each:
//!
//!     make bench
//!
//! Prints the time of each kind of step. Fails if a step takes so long that the coordinator could not keep up with the
//! agents' heartbeats. `MACHINES` in the environment sets the size of the fleet.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a bench fails by panicking and prints its result")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use muster_coordinator::{
    core::{Core, Effect, Enroll, Input, LockCommand, Request, update::Options},
    plan::Limits,
    proof::ProofKey,
    store::{Change, EmbeddedStore, MemoryStore, Store},
};
use muster_proto::{
    convert::Hello,
    model::{
        Assignment, AuthCode, ClusterSpec, Counts, Epoch, Generation, HostFacts, ItemHash, ItemName, ItemState,
        ItemStatus, LedgerId, LockState, MachineId, MachineName, MachineType, Now, Scope, Seq,
    },
};
use muster_tests::{
    rng::Rng,
    sim::{Plan, manifest},
};
use uuid::Uuid;

const LIMITS: Limits = Limits { lost_after_ms: 30_000 };
const TOKEN_SECRET: ItemHash = ItemHash([7; 32]);
const CONTROLLERS: [&str; 3] = ["ceph", "openstack", "stacklight"];
/// Limit of a step in which a lock changes while a thousand machines wait: a few such steps come each second.
const STEP_MAX: Duration = Duration::from_millis(100);
/// Most inputs that an engine takes into one step.
const BATCH: usize = 1_024;

fn main() {
    let workers = std::env::var("MACHINES").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000) - 3;
    let mut fleet = Fleet::new(workers);
    let took = measure(|| fleet.deploy());
    println!("{} machines, {} steps", fleet.agents.len(), fleet.steps);
    println!("the deployment as a whole:                {:9.1} ms", millis(took));
    fleet.restart();
    let hellos = fleet.hellos();
    let each = measure(|| hellos.into_iter().for_each(|hello| fleet.step(vec![hello])));
    fleet.tell("greeting, each in a step of its own", each, fleet.agents.len());
    fleet.restart();
    let hellos = fleet.hellos();
    let all = measure(|| fleet.step_in_batches(hellos));
    fleet.tell("greeting, together", all, fleet.agents.len());
    let beats: Vec<Input> = fleet.agents.values().map(|agent| Input::Heard { id: agent.id }).collect();
    let beats = measure(|| beats.into_iter().for_each(|beat| fleet.step(vec![beat])));
    fleet.tell("heartbeat", beats, fleet.agents.len());
    let idle = median((0..20).map(|_| measure(|| fleet.step(vec![Input::Tick]))));
    fleet.tell("decision, everybody Ready", idle, 1);
    fleet.begin_update();
    let waiting = median((0..20).map(|_| measure(|| fleet.step(vec![Input::Tick]))));
    fleet.tell("decision, an update that waits", waiting, 1);
    let moved = median((0..20).map(|n| {
        let word = fleet.lock_says(n);
        measure(|| fleet.step(vec![word]))
    }));
    fleet.tell("a lock moves in it", moved, 1);
    let (write, rows) = fleet.write_all();
    fleet.tell("row written to the store, all in one batch", write, rows);
    assert!(moved <= STEP_MAX * u32::try_from(fleet.agents.len().div_ceil(1_000)).expect("few"), "too slow");
}

struct Agent {
    id: MachineId,
    ledger: LedgerId,
    ip: String,
    session: u64,
    seq: Seq,
    assignment: Option<Assignment>,
    statuses: BTreeMap<ItemName, ItemStatus>,
}

struct Fleet {
    core: Core,
    store: MemoryStore,
    agents: BTreeMap<MachineName, Agent>,
    names: BTreeMap<MachineId, MachineName>,
    at_ms: u64,
    steps: u64,
    sessions: u64,
    /// Machines with an unfinished list.
    busy: BTreeSet<MachineName>,
}

impl Fleet {
    fn new(workers: u32) -> Self {
        let now = Now { wall_ms: 1_700_000_000_000, mono_ms: 1_000 };
        let (core, changes) = Core::start(Vec::new(), LIMITS, ProofKey::new(&[1; 32]), now).expect("an empty store");
        let mut store = MemoryStore::default();
        store.commit(&changes).expect("in memory");
        let (agents, names, busy) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut fleet = Self { core, store, agents, names, at_ms: 1_000, steps: 0, sessions: 0, busy };
        fleet.apply(spec(workers, "1"));
        for (machine_type, count) in [(MachineType::Control, 3), (MachineType::Worker, workers)] {
            fleet.operator(Request::CreateToken {
                id: machine_type.to_string(),
                secret_sha256: TOKEN_SECRET,
                cluster: manifest::cluster_name(),
                machine_type,
                machine: None,
                ttl_ms: None,
                uses: Some(u32::MAX),
            });
            (1..=count).for_each(|n| fleet.enroll(machine_type, n));
        }
        fleet
    }

    fn names(&self) -> Vec<MachineName> {
        self.agents.keys().cloned().collect()
    }

    fn now(&self) -> Now {
        Now { wall_ms: 1_700_000_000_000 + self.at_ms, mono_ms: self.at_ms }
    }

    fn step(&mut self, inputs: Vec<Input>) {
        self.at_ms += 1;
        self.steps += 1;
        let step = self.core.step(inputs, self.now());
        for answer in step.answers {
            answer.expect("taken");
        }
        self.store.commit(&step.changes).expect("in memory");
        for effect in step.effects {
            let Effect::Assign { id, assignment } = effect else { continue };
            let name = self.names[&id].clone();
            let agent = self.agents.get_mut(&name).expect("an agent");
            if agent.assignment.as_ref() != Some(&assignment) {
                agent.assignment = Some(assignment);
                self.busy.insert(name);
            }
        }
    }

    fn step_in_batches(&mut self, mut inputs: Vec<Input>) {
        while !inputs.is_empty() {
            let rest = inputs.split_off(inputs.len().min(BATCH));
            self.step(std::mem::replace(&mut inputs, rest));
        }
    }

    fn operator(&mut self, request: Request) {
        self.step(vec![Input::Operator { actor: "operator/bench".to_owned(), request }]);
    }

    fn apply(&mut self, spec: ClusterSpec) {
        let clusters = BTreeMap::from([(manifest::cluster_name(), (spec, BTreeMap::new()))]);
        self.operator(Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false });
    }

    fn enroll(&mut self, machine_type: MachineType, n: u32) {
        let name = manifest::machine_name(machine_type, n);
        let number = 1 + self.agents.len();
        let id = MachineId(Uuid::from_u128(number as u128));
        let agent = Agent {
            id,
            ledger: LedgerId(id.0),
            ip: format!("10.0.{}.{}", number / 250, number % 250),
            session: 0,
            seq: Seq(0),
            assignment: None,
            statuses: BTreeMap::new(),
        };
        self.names.insert(id, name.clone());
        self.agents.insert(name.clone(), agent);
        self.step(vec![Input::Enroll(Enroll {
            token_id: machine_type.to_string(),
            secret_sha256: TOKEN_SECRET,
            key_sha256: TOKEN_SECRET,
            name,
            new_id: id,
            agent_version: "bench".to_owned(),
        })]);
    }

    fn hellos(&mut self) -> Vec<Input> {
        self.names().iter().map(|name| self.hello(name)).collect()
    }

    fn hello(&mut self, name: &MachineName) -> Input {
        self.sessions += 1;
        let agent = self.agents.get_mut(name).expect("an agent");
        agent.session = self.sessions;
        let hello = Hello {
            name: name.clone(),
            ledger_id: agent.ledger,
            agent_version: "bench".to_owned(),
            epoch: Epoch(1),
            generation: agent.assignment.as_ref().map_or(Generation(0), |assignment| assignment.generation),
            acked_seq: agent.seq,
            max_phase: agent.assignment.as_ref().and_then(Assignment::max_phase),
            statuses: agent.statuses.values().cloned().collect(),
            busy: false,
            epoch_code: AuthCode::NONE,
            list: agent.assignment.as_ref().map(Assignment::proof),
            acked: None,
            facts: HostFacts {
                hostname: name.to_string(),
                internal_ip: Some(agent.ip.clone()),
                ..HostFacts::default()
            },
        };
        Input::Hello { id: agent.id, session: agent.session, hello: Box::new(hello) }
    }

    /// All agents connect, and complete their lists.
    fn deploy(&mut self) {
        let hellos = self.hellos();
        self.step_in_batches(hellos);
        self.work_off();
    }

    /// All agents complete their lists, until all lists are done.
    fn work_off(&mut self) {
        while !self.busy.is_empty() {
            let busy = std::mem::take(&mut self.busy);
            let said = busy.iter().flat_map(|name| self.work(name)).collect();
            self.step_in_batches(said);
        }
    }

    /// Messages of an agent that completes everything in its list.
    fn work(&mut self, name: &MachineName) -> Vec<Input> {
        let agent = self.agents.get_mut(name).expect("an agent");
        let Some(assignment) = agent.assignment.clone() else { return Vec::new() };
        let mut said = vec![Input::Answer {
            id: agent.id,
            session: agent.session,
            generation: assignment.generation,
            refused: None,
        }];
        for item in assignment.items {
            if agent.statuses.get(&item.name).is_some_and(|status| status.hash == item.hash) {
                continue;
            }
            for state in [ItemState::Running, ItemState::Succeeded] {
                let finished_at_ms = (state != ItemState::Running).then_some(2);
                let status = ItemStatus {
                    name: item.name.clone(),
                    hash: item.hash,
                    attempt: 1,
                    generation: assignment.generation,
                    message: String::new(),
                    state,
                    output_tail: String::new(),
                    result_json: None,
                    started_at_ms: 1,
                    finished_at_ms,
                };
                agent.seq = agent.seq.next();
                agent.statuses.insert(item.name.clone(), status.clone());
                let (id, session, seq) = (agent.id, agent.session, agent.seq);
                said.push(Input::Status { id, session, seq, status: Box::new(status) });
            }
        }
        said
    }

    /// The coordinator restarts from its store.
    fn restart(&mut self) {
        let rows = self.store.load().expect("in memory");
        let (core, changes) = Core::start(rows, LIMITS, ProofKey::new(&[1; 32]), self.now()).expect("its own rows");
        self.store.commit(&changes).expect("in memory");
        self.core = core;
    }

    /// Starts an update in which each controller keeps its lock on every machine, so that all machines wait.
    fn begin_update(&mut self) {
        let cluster = manifest::cluster_name();
        for controller in CONTROLLERS {
            let word = LockCommand::Register { cluster: cluster.clone(), machines: self.names(), of_cluster: true };
            self.step(vec![Input::Maintenance { controller: controller.to_owned(), word }]);
        }
        let workers = u32::try_from(self.agents.len()).expect("few") - 3;
        self.apply(spec(workers, "2"));
        self.operator(Request::Update { cluster, options: Options::of(Scope::Os) });
        self.work_off();
    }

    fn lock_says(&self, percentage: u32) -> Input {
        let word = LockCommand::Set {
            cluster: manifest::cluster_name(),
            machine: Some(manifest::machine_name(MachineType::Control, 1)),
            state: LockState::Active,
            message: String::new(),
            percentage,
            description: "moving".to_owned(),
            release: "2".to_owned(),
        };
        Input::Maintenance { controller: CONTROLLERS[0].to_owned(), word }
    }

    /// Writes all rows to a store on disk in one batch. Returns the time, and the number of rows.
    fn write_all(&self) -> (Duration, usize) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = EmbeddedStore::create(&dir.path().join("store")).expect("a store");
        let rows = self.store.load().expect("in memory");
        let batch: Vec<Change> =
            rows.into_iter().map(|(table, key, value)| Change::Put { table, key, value }).collect();
        (measure(|| store.commit(&batch).expect("written")), batch.len())
    }

    fn tell(&self, what: &str, took: Duration, of: usize) {
        println!("{what:<42}{:9.1} µs", took.as_secs_f64() * 1e6 / f64::from(u32::try_from(of).expect("few")));
    }
}

/// A cluster of three control machines and this many workers, with items of this release.
fn spec(workers: u32, release: &str) -> ClusterSpec {
    let mut rng = Rng::new(1);
    let counts = Counts { control: 3, worker: workers };
    let plan = Plan { counts, update: false, swarm: false, ..Plan::of(&mut rng) };
    let mut spec = manifest::spec(&mut Rng::new(3), plan);
    spec.release = release.to_owned();
    spec.max_worker_prepare_count = workers.max(1);
    spec.max_worker_deploy_count = 50;
    spec.max_worker_upgrade_count = 50;
    spec.workload_controllers = CONTROLLERS.map(str::to_owned).to_vec();
    for item in spec.machine_types.values_mut().flatten() {
        item.version = release.to_owned();
        item.params = BTreeMap::from([("text".to_owned(), "x".repeat(400))]);
    }
    spec
}

fn measure(what: impl FnOnce()) -> Duration {
    let began = Instant::now();
    what();
    began.elapsed()
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
