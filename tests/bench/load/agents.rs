//! The agents of the load: identity, link and core are those of production. Ledger and items are stand-ins: records
//! stay in memory, and an item only waits.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use muster_agent::{
    attempt::{AttemptKey, Exit, Found},
    config::StateDir,
    core::{Config, Core, Effect, Input, LedgerState, Record},
    facts::{self, AddressChoice},
    host::{Clock, unix_ms},
    identity::{self, EnrolmentKey, Identity, JoinToken},
    link::{ENGINE_QUEUE_MAX, FACTS_EVERY_MS, FromLink, Link, SessionHandle},
};
use muster_proto::{
    address::Addresses,
    model::{Epoch, HostFacts, ItemState, LedgerId, MachineName},
    tls::spread,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep_until},
};
use uuid::Uuid;

/// A directory that is never there: the link keeps its identity and report in memory then, and goes on.
const NO_STATE_DIR: &str = "/nonexistent/muster-load";
/// Enrolments under way at once: as many as a provisioning tool may have.
const ENROLMENTS_AT_ONCE: usize = 64;
/// Delay before a failed enrolment is tried again.
const ENROL_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What the agents have done together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Times at which machines had their identity, in order.
    pub(crate) enrolled: Vec<Instant>,
    /// Enrolments that failed and were tried again.
    pub(crate) enrolments_failed: usize,
    /// The newest epoch that any agent has heard of.
    pub(crate) epoch: Epoch,
    /// Agents with a session of that epoch.
    pub(crate) linked: usize,
    /// Sessions ever opened.
    pub(crate) sessions: usize,
    /// Items that ended.
    pub(crate) ended: usize,
    /// Start of the first item.
    pub(crate) first_start: Option<Instant>,
    /// End of the last item so far.
    pub(crate) last_end: Option<Instant>,
}

/// The tally, and a notification of every change.
#[derive(Debug, Default)]
pub(crate) struct Board(watch::Sender<Tally>);

impl Board {
    /// The present tally.
    pub(crate) fn read(&self) -> Tally {
        self.0.borrow().clone()
    }

    /// Waits until the tally satisfies a condition. False: it did not in time.
    pub(crate) async fn wait(&self, time_limit: Duration, wanted: impl FnMut(&Tally) -> bool) -> bool {
        let mut tally = self.0.subscribe();
        tokio::time::timeout(time_limit, tally.wait_for(wanted)).await.is_ok_and(|seen| seen.is_ok())
    }

    fn note(&self, change: impl FnOnce(&mut Tally)) {
        self.0.send_modify(change);
    }

    fn note_session(&self, epoch: Epoch) {
        self.note(|tally| {
            if epoch > tally.epoch {
                (tally.epoch, tally.linked) = (epoch, 0);
            }
            tally.linked += usize::from(epoch == tally.epoch);
            tally.sessions += 1;
        });
    }

    fn note_session_end(&self, epoch: Epoch) {
        self.note(|tally| tally.linked -= usize::from(epoch == tally.epoch));
    }
}

/// A machine to be.
pub(crate) struct Newcomer {
    /// Its name.
    pub(crate) name: MachineName,
    /// Its number in the fleet, from 0.
    pub(crate) number: usize,
    /// The token with which it joins.
    pub(crate) token: Arc<JoinToken>,
}

/// What all agents share.
pub(crate) struct Shared {
    /// The coordinator.
    pub(crate) address: Addresses,
    /// Time that an item takes.
    pub(crate) item_time: Duration,
    /// Where keys lie until their machine is enrolled: in memory, for the disk is the coordinator's.
    pub(crate) keys: PathBuf,
    /// Where the agents tell what they did.
    pub(crate) board: Board,
    /// Facts about this computer, for all machines.
    facts: HostFacts,
    enrolments: Semaphore,
}

impl Shared {
    /// For agents of this coordinator.
    pub(crate) fn new(address: Addresses, item_time: Duration, keys: PathBuf) -> Self {
        let facts = facts::collect(&AddressChoice::default());
        let enrolments = Semaphore::new(ENROLMENTS_AT_ONCE);
        Self { address, item_time, keys, board: Board::default(), facts, enrolments }
    }

    /// Facts as a computer of its own would have them.
    fn facts_of(&self, newcomer: &Newcomer) -> HostFacts {
        let [.., a, b, c] = newcomer.number.to_be_bytes();
        HostFacts {
            hostname: newcomer.name.to_string(),
            internal_ip: Some(format!("10.{a}.{b}.{c}")),
            boot_id: Uuid::new_v4().to_string(),
            ..self.facts.clone()
        }
    }
}

/// Enrols a machine and is its agent from then on.
pub(crate) async fn live(newcomer: Newcomer, shared: Arc<Shared>) -> Result<()> {
    let identity = {
        let _turn = shared.enrolments.acquire().await?;
        enrol(&newcomer, &shared).await?
    };
    shared.board.note(|tally| tally.enrolled.push(Instant::now()));
    let (to_engine, from_link) = mpsc::channel(ENGINE_QUEUE_MAX);
    let fresh = LedgerState::new(LedgerId(Uuid::new_v4()), identity.machine_id);
    let config = Config { machine: identity.name.clone(), supports: |_| true };
    let facts = shared.facts_of(&newcomer);
    let boot_id = facts.boot_id.clone();
    let facts_every = Duration::from_millis(FACTS_EVERY_MS);
    let link = Link::new(identity, StateDir::new(Path::new(NO_STATE_DIR)), facts_every, to_engine).reporting(facts);
    tokio::spawn(link.run());
    let core = Core::new(config, fresh);
    let engine = StandIn { core, clock: Clock::default(), session: None, epoch: None, running: None, shared };
    engine.run(boot_id, from_link).await
}

/// Asks until the coordinator has enrolled the machine; the fleet's own deadline ends it.
async fn enrol(newcomer: &Newcomer, shared: &Shared) -> Result<Identity> {
    loop {
        let key = EnrolmentKey::kept_at(&shared.keys.join(newcomer.name.to_string()))?;
        match identity::enroll(&shared.address, &newcomer.token, newcomer.name.clone(), &key).await {
            Ok(identity) => {
                key.remove()?;
                return Ok(identity);
            }
            Err(error) if error.is_unreachable() => shared.board.note(|tally| tally.enrolments_failed += 1),
            Err(error) => return Err(error).with_context(|| newcomer.name.to_string()),
        }
        tokio::time::sleep(spread(ENROL_AGAIN_AFTER)).await;
    }
}

/// An attempt that waits for its end.
struct Running {
    key: AttemptKey,
    started_at_ms: u64,
    ends: Instant,
}

/// Stands in for the engine: the production core with a ledger in memory and items that only wait.
struct StandIn {
    core: Core,
    clock: Clock,
    session: Option<SessionHandle>,
    /// Epoch of the session that the board counts.
    epoch: Option<Epoch>,
    running: Option<Running>,
    shared: Arc<Shared>,
}

impl StandIn {
    async fn run(mut self, boot_id: String, mut link: mpsc::Receiver<FromLink>) -> Result<()> {
        self.step(Input::Started { boot_id });
        loop {
            let ends = self.running.as_ref().map(|running| running.ends);
            let wake_at = self.core.wake_at().map(|mono_ms| self.clock.instant(mono_ms));
            tokio::select! {
                message = link.recv() => self.hear(message.context("the link has ended")?),
                () = sleep_until(ends.unwrap_or_else(Instant::now)), if ends.is_some() => self.end(),
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => self.step(Input::Tick),
            }
        }
    }

    fn hear(&mut self, message: FromLink) {
        match message {
            // The link may have stopped waiting for the answer.
            FromLink::HelloWanted { facts, answer } => drop(answer.send(self.core.hello(*facts))),
            FromLink::Up { epoch, code, session } => {
                self.leave();
                self.session = Some(session);
                self.epoch = Some(epoch);
                self.shared.board.note_session(epoch);
                self.step(Input::LinkUp { epoch, code });
            }
            FromLink::Down => {
                self.session = None;
                self.leave();
                self.step(Input::LinkDown);
            }
            FromLink::Assigned(assignment) => self.step(Input::Received(assignment)),
            FromLink::Acked(seq, proof) => self.step(Input::Acked(seq, proof)),
            FromLink::SwarmCalled(call) => self.step(Input::SwarmCalled(call)),
            FromLink::ControlPlaneCalled(call) => self.step(Input::ControlPlaneCalled(call)),
            // Nobody reads output here.
            FromLink::LogWanted { .. } | FromLink::LogCanceled { .. } => {}
        }
    }

    fn leave(&mut self) {
        if let Some(epoch) = self.epoch.take() {
            self.shared.board.note_session_end(epoch);
        }
    }

    /// Steps the core, and again with what its effects bring at once.
    fn step(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for effect in self.core.step(input, self.clock.now()) {
                inputs.extend(self.perform(effect));
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Record(records) => self.count(&records),
            Effect::Send(message) => {
                if self.session.as_ref().is_some_and(|session| !session.send(&message)) {
                    self.session = None; // closes it, as the engine does
                }
            }
            Effect::Start(request) => self.begin(request.key),
            Effect::Follow(key) => self.begin(key),
            Effect::Inspect(key) => return Some(Input::Inspected { key, found: Found::Lost }),
            Effect::Fetch { key, generation } => {
                let outcome = Err("the load has no secrets".to_owned());
                return Some(Input::Fetched { key, generation, outcome });
            }
            Effect::Release(_) | Effect::Remove(_) | Effect::CallSwarm(_) | Effect::AskControlPlane(_) => {}
        }
        None
    }

    fn begin(&mut self, key: AttemptKey) {
        let now = Instant::now();
        self.running = Some(Running { key, started_at_ms: unix_ms(), ends: now + self.shared.item_time });
        self.shared.board.note(|tally| {
            tally.first_start.get_or_insert(now);
        });
    }

    fn end(&mut self) {
        let Some(Running { key, started_at_ms, .. }) = self.running.take() else { return };
        let found = Found::Exited(Exit {
            state: ItemState::Succeeded,
            message: "exit status 0".to_owned(),
            output_tail: String::new(),
            result_json: None,
            started_at_ms,
            finished_at_ms: unix_ms(),
        });
        self.step(Input::Ended { key, found });
    }

    fn count(&self, records: &[Record]) {
        let ended = records.iter().filter(|record| matches!(record, Record::Finished { .. })).count();
        if ended > 0 {
            self.shared.board.note(|tally| {
                tally.ended += ended;
                tally.last_end = Some(Instant::now());
            });
        }
    }
}
