//! A fleet of simulated agents around a core, for tests: `Fleet::of(3, 2).reported()` is where a deployment begins.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    convert::Hello,
    model::{
        AckProof, Assignment, AuthCode, Backups, ClusterName, ClusterSpec, Counts, Epoch, Generation, HostFacts,
        ItemHash, ItemName, ItemState, ItemStatus, LcmType, LedgerId, ListProof, MachineId, MachineName, MachineSpec,
        MachineType, Now, OnInterrupt, Phase, Reason, RunnerKind, Seq, StateItem, UpdateDeadlines, UpdateHooks,
    },
};
use uuid::Uuid;

use crate::{
    core::{Core, Effect, Enroll, Input, KubernetesQuestion, Refusal, Reply, Request, SwarmQuestion, recover},
    facts::{MachineRow, Slot},
    plan::{
        LIMITS, blocked, deploy, safety,
        snapshot::{self, ClusterSnapshot, MachineView},
        update,
    },
    proof::{PROOF_KEY_BYTES, ProofKey, Told},
    store::{MemoryStore, Store},
};

pub(crate) const CLUSTER: &str = "edge-7";
pub(crate) const SECRET: ItemHash = ItemHash([7; 32]);

/// State of one simulated agent.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub id: MachineId,
    pub ledger: LedgerId,
    pub ip: String,
    pub epoch: Epoch,
    pub acked: Seq,
    pub seq: Seq,
    pub session: Option<u64>,
    /// The last list that it received.
    pub assignment: Option<Assignment>,
    pub statuses: BTreeMap<ItemName, ItemStatus>,
}

/// A coordinator's core, its store, and agents that follow their lists.
pub(crate) struct Fleet {
    pub core: Core,
    pub store: MemoryStore,
    pub agents: BTreeMap<String, Agent>,
    /// Effects of the newest step.
    pub effects: Vec<Effect>,
    /// Open questions to swarms.
    pub questions: Vec<SwarmQuestion>,
    /// Open questions to Kubernetes API servers.
    pub kubernetes: Vec<KubernetesQuestion>,
    at_ms: u64,
    /// By how much its wall clock was set, in milliseconds.
    pub clock_ms: i64,
    last_session: u64,
    /// The newest key; tests choose others, from the end on.
    last_key: u8,
}

pub(crate) fn cluster() -> ClusterName {
    ClusterName::new(CLUSTER).expect("a label")
}

pub(crate) fn machine(name: &str) -> MachineName {
    MachineName::new(name).expect("a label")
}

pub(crate) fn item_name(name: &str) -> ItemName {
    ItemName::new(name).expect("a label")
}

pub(crate) fn item(name: &str, phase: Phase) -> StateItem {
    StateItem {
        name: item_name(name),
        runner: RunnerKind::Bash,
        version: "1".to_owned(),
        params: BTreeMap::from([("script".to_owned(), "true".to_owned())]),
        phase,
        timeout_ms: 60_000,
        retries: 0,
        on_interrupt: OnInterrupt::Hold,
        disruptive: None,
        ignore_changes: BTreeSet::new(),
    }
}

/// `images` and `install` on every machine; control machines `join` once their set is complete.
pub(crate) fn spec(control: u32, worker: u32) -> ClusterSpec {
    let of_all = || vec![item("images", Phase::Prepare), item("install", Phase::Deploy)];
    let mut of_control = of_all();
    of_control.push(item("join", Phase::Reconfigure));
    ClusterSpec {
        lcm_type: LcmType::Generic,
        release: "1".to_owned(),
        dedicated_control_plane: true,
        max_worker_prepare_count: 20,
        max_worker_deploy_count: 10,
        max_worker_upgrade_count: 1,
        nodes_reboot_required: false,
        token_ttl_ms: 24 * 3600 * 1000,
        machines: Some(Counts { control, worker }),
        max_failures: Counts { control: 1, worker: 2 },
        workload_controllers: Vec::new(),
        update_deadlines: UpdateDeadlines::default(),
        update_groups: Vec::new(),
        update_hooks: UpdateHooks::default(),
        backups: Backups::default(),
        kubernetes: None,
        machine_types: BTreeMap::from([(MachineType::Control, of_control), (MachineType::Worker, of_all())]),
    }
}

pub(crate) fn apply(spec: ClusterSpec, machines: &[(&str, MachineSpec)]) -> Request {
    Request::Apply {
        clusters: BTreeMap::from([(cluster(), (spec, BTreeMap::new()))]),
        machines: machines.iter().map(|(name, spec)| (machine(name), (spec.clone(), BTreeMap::new()))).collect(),
        dry_run: false,
    }
}

pub(crate) fn machine_spec(machine_type: MachineType) -> MachineSpec {
    MachineSpec {
        cluster_name: cluster(),
        machine_type,
        state_items_overwrites: BTreeMap::new(),
        interface: None,
        cidr: None,
        upgrade_index: 0,
        update_group: None,
        reboot_required: false,
    }
}

/// The key of the codes in tests.
pub(crate) fn proof_key() -> ProofKey {
    ProofKey::new(&[7; PROOF_KEY_BYTES])
}

impl Fleet {
    /// `spec(control, worker)` applied and its machines enrolled, before any connection.
    pub(crate) fn of(control: u32, worker: u32) -> Self {
        Self::with(spec(control, worker))
    }

    /// A cluster applied, with the specified number of machines enrolled.
    pub(crate) fn with(spec: ClusterSpec) -> Self {
        let counts = spec.machines.expect("a test says how many");
        let mut fleet = Self::applied(spec);
        for machine_type in [MachineType::Control, MachineType::Worker] {
            for n in 1..=counts.of(machine_type) {
                fleet.enroll(&name_of(machine_type, n, counts.of(machine_type)), machine_type).expect("enrolls");
            }
        }
        fleet
    }

    /// A cluster applied, without enrolled machines.
    pub(crate) fn applied(spec: ClusterSpec) -> Self {
        let mut store = MemoryStore::default();
        let now = Now { wall_ms: 1_700_000_000_000, mono_ms: 1_000 };
        let (core, changes) = Core::start(Vec::new(), LIMITS, proof_key(), now).expect("an empty store");
        store.commit(&changes).expect("in memory");
        let agents = BTreeMap::new();
        let (effects, questions) = (Vec::new(), Vec::new());
        let kubernetes = Vec::new();
        let (at_ms, clock_ms, last_session, last_key) = (1_000, 0, 0, 0);
        let mut fleet =
            Self { core, store, agents, effects, questions, kubernetes, at_ms, clock_ms, last_session, last_key };
        fleet.ask(apply(spec, &[])).expect("applies");
        for machine_type in [MachineType::Control, MachineType::Worker] {
            fleet.ask(token(machine_type.as_str(), machine_type)).expect("a token");
        }
        fleet
    }

    pub(crate) fn now(&self) -> Now {
        let wall_ms = (1_700_000_000_000 + self.at_ms).saturating_add_signed(self.clock_ms);
        Now { wall_ms, mono_ms: self.at_ms }
    }

    /// A step, and the following ones that grant further slots a little later.
    pub(crate) fn step(&mut self, input: Input) -> Result<Reply, Refusal> {
        let answer = self.one_step(input);
        let mut effects = std::mem::take(&mut self.effects);
        while self.spreads() {
            self.at_ms = self.core.decide_by_mono_ms();
            self.one_step(Input::Tick).expect("time passes");
            effects.append(&mut self.effects);
        }
        self.effects = effects;
        answer
    }

    /// Does a worker wait only because others have just been granted a slot?
    fn spreads(&self) -> bool {
        let snapshots = snapshot::all(self.core.facts(), self.core.limits(), self.now());
        snapshots.values().any(|snapshot| {
            let wants = |view: &MachineView<'_>| match snapshot.update() {
                Some(_) => update::wants_slot(view),
                None => deploy::wants_slot(snapshot, view).is_some(),
            };
            let mut workers = snapshot.of_type(MachineType::Worker);
            !safety::has_worker_slot(snapshot)
                && workers.any(|it| wants(it) && it.available() && safety::may_take_slot(snapshot, it).is_ok())
        })
    }

    /// One step, made durable, its assignments received.
    pub(crate) fn one_step(&mut self, input: Input) -> Result<Reply, Refusal> {
        let step = self.core.step(vec![input], self.now());
        self.store.commit(&step.changes).expect("in memory");
        for effect in &step.effects {
            let Effect::Assign { id, assignment } = effect else { continue };
            let agent = self.agents.values_mut().find(|agent| agent.id == *id && agent.session.is_some());
            agent.expect("only who is connected is sent a list").assignment = Some(assignment.clone());
        }
        self.kubernetes.extend(step.effects.iter().filter_map(|effect| match effect {
            Effect::AskKubernetes(question) => Some(question.clone()),
            Effect::Assign { .. } | Effect::Ack { .. } | Effect::AskSwarm(_) | Effect::Close { .. } => None,
        }));
        let asked = step.effects.iter().filter_map(|effect| match effect {
            Effect::AskSwarm(question) => Some(question.clone()),
            Effect::Assign { .. } | Effect::Ack { .. } | Effect::AskKubernetes(_) | Effect::Close { .. } => None,
        });
        self.questions.extend(asked);
        self.effects = step.effects;
        step.answers.into_iter().next().expect("an answer")
    }

    pub(crate) fn ask(&mut self, request: Request) -> Result<Reply, Refusal> {
        self.ask_as("operator/anna", request)
    }

    /// Another operator's request.
    pub(crate) fn ask_as(&mut self, actor: &str, request: Request) -> Result<Reply, Refusal> {
        self.step(Input::Operator { actor: actor.to_owned(), request })
    }

    /// Enrols a machine with the token of its type.
    pub(crate) fn enroll(&mut self, name: &str, machine_type: MachineType) -> Result<Reply, Refusal> {
        self.enroll_with(machine_type.as_str(), name)
    }

    /// Enrols a machine with this token.
    pub(crate) fn enroll_with(&mut self, token: &str, name: &str) -> Result<Reply, Refusal> {
        self.enroll_by(token, name, None)
    }

    /// The same with this key; None: with a new one.
    pub(crate) fn enroll_by(&mut self, token: &str, name: &str, key: Option<u8>) -> Result<Reply, Refusal> {
        let key = key.unwrap_or_else(|| {
            self.last_key += 1;
            self.last_key
        });
        let n = 1 + self.agents.len() as u128 + 1_000 * u128::from(self.last_session);
        let agent = Agent {
            id: MachineId(Uuid::from_u128(n)),
            ledger: LedgerId(Uuid::from_u128(n)),
            ip: format!("10.0.0.{n}"),
            epoch: Epoch(0),
            acked: Seq(0),
            seq: Seq(0),
            session: None,
            assignment: None,
            statuses: BTreeMap::new(),
        };
        let reply = self.step(Input::Enroll(Enroll {
            token_id: token.to_owned(),
            secret_sha256: SECRET,
            key_sha256: ItemHash([key; 32]),
            name: machine(name),
            new_id: agent.id,
            agent_version: "test".to_owned(),
        }))?;
        self.agents.insert(name.to_owned(), agent);
        Ok(reply)
    }

    /// Every agent connects.
    pub(crate) fn reported(mut self) -> Self {
        self.all_report();
        self
    }

    pub(crate) fn all_report(&mut self) {
        for name in self.agents.keys().cloned().collect::<Vec<_>>() {
            self.connect(&name);
        }
    }

    /// The first Hello of a machine's agent.
    pub(crate) fn greeting(&self, name: &str) -> Hello {
        let agent = &self.agents[name];
        Hello {
            name: machine(name),
            ledger_id: agent.ledger,
            agent_version: "test".to_owned(),
            epoch: agent.epoch,
            generation: agent.assignment.as_ref().map_or(Generation(0), |assignment| assignment.generation),
            acked_seq: agent.acked,
            max_phase: agent.assignment.as_ref().and_then(Assignment::max_phase),
            statuses: agent.statuses.values().cloned().collect(),
            busy: self.due(name).is_some(),
            facts: HostFacts { hostname: name.to_owned(), internal_ip: Some(agent.ip.clone()), ..HostFacts::default() },
            epoch_code: AuthCode::NONE,
            list: agent.assignment.as_ref().map(Assignment::proof),
            acked: None,
        }
    }

    /// The same with valid codes for all its numbers, as coordinators of this fleet issue them.
    pub(crate) fn proven(&self, name: &str, hello: Hello) -> Hello {
        let (id, ledger, epoch) = (self.agents[name].id, hello.ledger_id, hello.epoch);
        let (generation, seq) = (hello.generation, hello.acked_seq);
        let known = hello.list.filter(|_| generation == self.greeting(name).generation);
        let digest = known.map_or(ItemHash([9; 32]), |list| list.digest);
        let row = self.core.facts().by_id(id);
        let newest = row.map(|row| row.ledger_ordinal).unwrap_or_default();
        let is_known = row.and_then(|row| row.ledger).is_some_and(|(known, _)| known == ledger);
        let ordinal = if is_known { newest } else { newest.next() };
        let code = |told: Told| proof_key().code(id, &told);
        Hello {
            epoch_code: code(Told::Epoch(epoch)),
            list: Some(ListProof { epoch, digest, code: code(Told::List { epoch, generation, digest }) }),
            acked: Some(AckProof { epoch, ordinal, code: code(Told::Acked { ledger, ordinal, epoch, seq }) }),
            ..hello
        }
    }

    pub(crate) fn connect(&mut self, name: &str) {
        let hello = self.proven(name, self.greeting(name));
        self.hello(name, hello).expect("greeted");
    }

    pub(crate) fn hello(&mut self, name: &str, hello: Hello) -> Result<Reply, Refusal> {
        self.last_session += 1;
        let session = self.last_session;
        let epoch = self.core.facts().meta.epoch;
        let agent = self.agents.get_mut(name).expect("an agent");
        agent.session = Some(session);
        agent.epoch = agent.epoch.max(epoch);
        let id = agent.id;
        self.step(Input::Hello { id, session, hello: Box::new(hello) })
    }

    /// A machine's facts change, and its agent reports that.
    pub(crate) fn report_host(&mut self, id: MachineId, facts: HostFacts) {
        let agent = self.agents.values().find(|agent| agent.id == id).expect("known");
        let session = agent.session.expect("connected");
        self.step(Input::HostChanged { id, session, facts: Box::new(facts) }).expect("known");
    }

    pub(crate) fn disconnect(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).expect("an agent");
        let (id, session) = (agent.id, agent.session.take().expect("connected"));
        self.step(Input::Gone { id, session }).expect("known");
    }

    /// The agent accepts its last received list.
    pub(crate) fn accept(&mut self, name: &str) {
        let agent = &self.agents[name];
        let Some(generation) = agent.assignment.as_ref().map(|assignment| assignment.generation) else { return };
        self.answer(name, generation, None);
    }

    /// The agent accepts a list, or refuses it with a reason.
    pub(crate) fn answer(&mut self, name: &str, generation: Generation, refused: Option<&str>) {
        let (id, session) = (self.agents[name].id, self.agents[name].session.expect("connected"));
        let refused = refused.map(str::to_owned);
        self.step(Input::Answer { id, session, generation, refused }).expect("known");
    }

    /// The next event of an agent: an item of its list is in this state now.
    pub(crate) fn event(&mut self, name: &str, item: &str, state: ItemState) {
        let agent = self.agents.get_mut(name).expect("an agent");
        let assignment = agent.assignment.as_ref().expect("a list");
        let assigned = assignment.items.iter().find(|known| known.name.as_str() == item).expect("an item of the list");
        let before = agent.statuses.get(&assigned.name);
        // The end belongs to the attempt that began, whatever the current list.
        let ends = before.filter(|status| status.state == ItemState::Running && state != ItemState::Running);
        let (hash, generation, attempt) = match (ends, before.filter(|status| status.hash == assigned.hash)) {
            (Some(status), _) => (status.hash, status.generation, status.attempt),
            (None, Some(status)) => (assigned.hash, assignment.generation, status.attempt + 1),
            (None, None) => (assigned.hash, assignment.generation, 1),
        };
        let finished_at_ms = (state != ItemState::Running).then_some(1_700_000_000_000 + self.at_ms);
        let status = ItemStatus {
            name: assigned.name.clone(),
            hash,
            attempt,
            generation,
            message: if matches!(state, ItemState::Failed { .. }) { "exit status 3".to_owned() } else { String::new() },
            state,
            output_tail: String::new(),
            result_json: None,
            started_at_ms: 1_700_000_000_000 + self.at_ms,
            finished_at_ms,
        };
        agent.statuses.insert(status.name.clone(), status.clone());
        agent.seq = agent.seq.next();
        let (id, seq) = (agent.id, agent.seq);
        self.event_at(name, seq, status).expect("the next event");
        // Only a machine removed by this step gets no acknowledgement.
        let acked = self.effects.iter().any(|effect| matches!(effect, Effect::Ack { id: of, .. } if *of == id));
        assert!(acked || !self.core.facts().machines.contains_key(&machine(name)));
        self.agents.get_mut(name).expect("an agent").acked = seq;
    }

    pub(crate) fn event_at(&mut self, name: &str, seq: Seq, status: ItemStatus) -> Result<Reply, Refusal> {
        let agent = &self.agents[name];
        let (id, session) = (agent.id, agent.session.expect("connected"));
        self.step(Input::Status { id, session, seq, status: Box::new(status) })
    }

    /// The agent accepts its list and begins its first unfinished item.
    pub(crate) fn begin(&mut self, name: &str) -> String {
        self.accept(name);
        let item = self.due(name).expect("something to do");
        self.event(name, &item, ItemState::Running);
        item
    }

    /// The agent accepts its list and begins an item, which fails permanently.
    pub(crate) fn fail(&mut self, name: &str) {
        let item = self.begin(name);
        self.event(name, &item, ItemState::Failed { exit_code: 3, retryable: false });
    }

    /// The agent does all items of its list.
    pub(crate) fn finish(&mut self, name: &str) {
        self.accept(name);
        while let Some(item) = self.due(name) {
            self.event(name, &item, ItemState::Running);
            self.event(name, &item, ItemState::Succeeded);
            self.accept(name);
        }
    }

    /// The machines of a type do their lists until all are done.
    pub(crate) fn finish_all(&mut self, machine_type: MachineType) {
        let of_type = |name: &String| name.starts_with(machine_type.as_str());
        let names: Vec<String> = self.agents.keys().filter(|name| of_type(name)).cloned().collect();
        while let Some(busy) =
            names.iter().find(|name| self.agents[*name].session.is_some() && self.due(name).is_some())
        {
            self.finish(busy);
        }
    }

    /// The prepare items of all machines are done. As many control machines as possible have their deploy items.
    pub(crate) fn prepared(mut self) -> Self {
        let images = item_name("images");
        let open = |fleet: &Self, name: &String| {
            fleet.agents[name].assignment.is_some() && !fleet.agents[name].statuses.contains_key(&images)
        };
        while let Some(name) = self.agents.keys().find(|name| open(&self, name)).cloned() {
            self.accept(&name);
            self.event(&name, "images", ItemState::Running);
            self.event(&name, "images", ItemState::Succeeded);
        }
        self
    }

    /// The first item of a machine's list that must still succeed.
    pub(crate) fn due(&self, name: &str) -> Option<String> {
        let agent = &self.agents[name];
        let done = |item: &muster_proto::model::AssignedItem| {
            let status = agent.statuses.get(&item.name).filter(|status| status.hash == item.hash);
            status.is_some_and(|status| {
                let counts = status.generation > item.redo_up_to && status.attempt > item.cleared_attempts;
                status.state != ItemState::Running && counts
            })
        };
        let items = &agent.assignment.as_ref()?.items;
        items.iter().find(|item| !done(item)).map(|item| item.name.to_string())
    }

    /// Time passes. Connected agents send signs of life, except the silent.
    pub(crate) fn pass(&mut self, ms: u64, silent: &[&str]) {
        self.heartbeats(ms, silent);
        self.step(Input::Tick).expect("time passes");
    }

    /// An agent reports why it is blocked, or that the block is over.
    pub(crate) fn agent_blocked(&mut self, id: MachineId, blocked: Option<(Reason, String)>) {
        let agent = self.agents.values().find(|agent| agent.id == id).expect("known");
        let session = agent.session.expect("connected");
        self.step(Input::AgentBlocked { id, session, blocked }).expect("known");
    }

    /// Time passes with signs of life only: of connected agents, except the silent.
    pub(crate) fn heartbeats(&mut self, ms: u64, silent: &[&str]) {
        self.at_ms += ms;
        let silent: BTreeSet<&str> = silent.iter().copied().collect();
        let heard: Vec<MachineId> = self
            .agents
            .iter()
            .filter(|(name, agent)| agent.session.is_some() && !silent.contains(name.as_str()))
            .map(|(_, agent)| agent.id)
            .collect();
        for id in heard {
            self.step(Input::Heard { id }).expect("known");
        }
    }

    /// The coordinator dies and starts again from its store.
    pub(crate) fn restart(&mut self) {
        self.restart_from(self.store.clone());
    }

    /// The coordinator dies, and starts again after this time.
    pub(crate) fn restart_after(&mut self, ms: u64) {
        self.at_ms += ms;
        self.restart();
    }

    /// The coordinator dies and starts again from this store.
    pub(crate) fn restart_from(&mut self, store: MemoryStore) {
        self.store = store;
        let rows = self.store.load().expect("in memory");
        let (core, changes) = Core::start(rows, LIMITS, proof_key(), self.now()).expect("its own rows");
        self.store.commit(&changes).expect("in memory");
        self.core = core;
        self.agents.values_mut().for_each(|agent| agent.session = None);
        self.questions.clear();
    }

    /// Runs `muster-coordinator recover` on this store, and starts from it.
    pub(crate) fn recover_from(&mut self, mut store: MemoryStore) {
        let rows = store.load().expect("in memory");
        let (_, changes) = recover(rows, Epoch(0), "coordinator", self.now()).expect("its own rows");
        store.commit(&changes).expect("in memory");
        self.restart_from(store);
    }

    pub(crate) fn row(&self, name: &str) -> &MachineRow {
        &self.core.facts().machines[&machine(name)]
    }

    pub(crate) fn slot(&self, name: &str) -> Option<Phase> {
        self.row(name).slot.map(|slot: Slot| slot.phase)
    }

    /// Machines with a slot.
    pub(crate) fn slots(&self) -> Vec<&str> {
        let machines = self.core.facts().machines.values();
        machines.filter(|machine| machine.slot.is_some()).map(|machine| machine.name.as_str()).collect()
    }

    /// The state of a machine, as operators see it.
    pub(crate) fn state(&self, name: &str) -> &'static str {
        self.look(name, |_, view| view.state().as_str())
    }

    /// Why a machine is blocked: the reason's name.
    pub(crate) fn why(&self, name: &str) -> Option<String> {
        self.look(name, |snapshot, view| blocked::of_machine(snapshot, view).map(|blocked| blocked.reason.to_string()))
    }

    /// Why a machine is blocked, as text.
    pub(crate) fn clears_when(&self, name: &str) -> String {
        self.look(name, blocked::of_machine).map(|blocked| blocked.clears_when).unwrap_or_default()
    }

    pub(crate) fn says(&self, name: &str) -> String {
        let message = self.look(name, blocked::of_machine);
        message.map(|blocked| blocked.message).unwrap_or_default()
    }

    pub(crate) fn look<T>(
        &self,
        name: &str,
        at: impl Fn(&ClusterSnapshot<'_>, &crate::plan::snapshot::MachineView<'_>) -> T,
    ) -> T {
        let snapshot =
            ClusterSnapshot::of(self.core.facts(), &cluster(), self.core.limits(), self.now()).expect("the cluster");
        let view = snapshot.machines.iter().find(|view| view.row.name.as_str() == name).expect("a machine");
        at(&snapshot, view)
    }
}

/// Names that sort by number.
fn name_of(machine_type: MachineType, n: u32, count: u32) -> String {
    if count < 10 { format!("{machine_type}-{n}") } else { format!("{machine_type}-{n:02}") }
}

/// A token for any machine of a type, with this id.
pub(crate) fn token(id: &str, machine_type: MachineType) -> Request {
    Request::CreateToken {
        id: id.to_owned(),
        secret_sha256: SECRET,
        cluster: cluster(),
        machine_type,
        machine: None,
        ttl_ms: None,
        uses: Some(u32::MAX),
    }
}
