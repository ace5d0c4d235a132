//! The loop around the core, and the only writer of the store: drain the inbox, step once, commit once, perform. It
//! runs in its own thread, because a commit waits for the disk.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use muster_proto::{
    daemon::service_manager::Watchdog,
    model::{ItemState, Now},
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    core::{Act, Core, Effect, Input, Refusal, Reply},
    facts::{Facts, RowError},
    journal,
    plan::{Limits, safety},
    proof::ProofKey,
    store::{Store, StoreError},
};

/// Most inputs of one step, and so of one commit.
const INPUTS_PER_STEP_MAX: usize = 1024;
/// Most inputs queued; further senders wait.
const INBOX_MAX: usize = 8192;
/// Longest delay of inputs that no caller waits for. When fifty machines start at once, their reports then take a few
/// steps instead of a hundred, beside those that free a slot.
const GATHER: Duration = Duration::from_millis(10);
/// Longest delay until readers see heartbeats. A thousand machines send a hundred a second, and each publication copies
/// the facts and wakes every reader.
const PUBLISH_QUIET_AFTER: Duration = Duration::from_secs(1);
/// Debug builds compare memory and store after this many steps.
#[cfg(debug_assertions)]
const STEPS_PER_CHECK: u64 = 64;

/// Why the engine stopped, or an input failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The core refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The engine has ended, and so will the process.
    #[error("the coordinator is shutting down")]
    Stopped,
    /// The store failed. The process must end: only a fresh load shows what is durable.
    #[error("the store failed, which ends the coordinator; start it again once this is mended")]
    Store(#[from] StoreError),
    /// The store contains unreadable rows.
    #[error("the store cannot be read")]
    Row(#[from] RowError),
    /// The system refused a thread or runtime.
    #[error("cannot start the engine's thread")]
    Thread(#[source] std::io::Error),
    /// Memory and store differ: a bug.
    #[error("memory and store differ")]
    Diverged,
}

/// Performs effects: the sessions. Must not block.
pub trait Outbox: Send + 'static {
    /// Perform one effect.
    fn perform(&self, effect: Effect);
}

struct Envelope {
    input: Input,
    answer: Option<oneshot::Sender<Result<Reply, Refusal>>>,
}

/// A handle on the engine, cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    inbox: mpsc::Sender<Envelope>,
    facts: watch::Receiver<Arc<Facts>>,
    limits: Limits,
    proof_key: ProofKey,
    clock: Clock,
}

impl EngineHandle {
    /// Submit an input, and return its answer once everything it changed is durable.
    ///
    /// # Errors
    /// [`EngineError::Refused`] with the reason; [`EngineError::Stopped`].
    pub async fn submit(&self, input: Input) -> Result<Reply, EngineError> {
        let (answer, answered) = oneshot::channel();
        let envelope = Envelope { input, answer: Some(answer) };
        self.inbox.send(envelope).await.map_err(|_| EngineError::Stopped)?;
        Ok(answered.await.map_err(|_| EngineError::Stopped)??)
    }

    /// Submit an input; ignore its answer.
    ///
    /// # Errors
    /// [`EngineError::Stopped`].
    pub async fn notify(&self, input: Input) -> Result<(), EngineError> {
        self.inbox.send(Envelope { input, answer: None }).await.map_err(|_| EngineError::Stopped)
    }

    /// The last committed facts.
    #[must_use]
    pub fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.facts.borrow())
    }

    /// The facts, with a notification of every change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Facts>> {
        self.facts.clone()
    }

    /// The configured limits.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The key that proves what agents were told.
    #[must_use]
    pub const fn proof_key(&self) -> &ProofKey {
        &self.proof_key
    }

    /// The engine's time, which views of the facts must also use.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }
}

/// The clocks of this process.
#[derive(Clone, Copy, Debug)]
struct Clock {
    zero: Instant,
}

impl Clock {
    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Now { wall_ms: millis(wall), mono_ms: millis(self.zero.elapsed()) }
    }
}

/// Load the record, take the next epoch, and start the loop. The loop ends when every handle is dropped, or with an
/// error, after which the process must end too.
///
/// # Errors
/// [`EngineError`] if loading the record or committing the start fails.
pub fn start(
    mut store: impl Store + 'static,
    outbox: impl Outbox,
    limits: Limits,
    proof_key: ProofKey,
) -> Result<(EngineHandle, JoinHandle<Result<(), EngineError>>), EngineError> {
    let clock = Clock { zero: Instant::now() };
    let (core, changes) = Core::start(store.load()?, limits, proof_key.clone(), clock.now())?;
    store.commit(&changes)?;
    journal::audit_goes_on(core.facts());
    let (inbox, inputs) = mpsc::channel(INBOX_MAX);
    let (publish, facts) = watch::channel(Arc::new(core.facts().clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(EngineError::Thread)?;
    let watchdog = Watchdog::from_environment();
    let mut engine = Engine { core, store, outbox, publish, publish_at: None, clock, watchdog, steps: 0 };
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || runtime.block_on(engine.run(inputs)))
        .map_err(EngineError::Thread)?;
    Ok((EngineHandle { inbox, facts, limits, proof_key, clock }, thread))
}

/// Add inputs while the batch contains only patient ones, until a step becomes due by time.
async fn gather(inputs: &mut mpsc::Receiver<Envelope>, batch: &mut Vec<Envelope>, due: Instant) {
    let until = (Instant::now() + GATHER).min(due).into();
    let mut looked_at = 0;
    while batch.len() < INPUTS_PER_STEP_MAX && batch.iter().skip(looked_at).all(|envelope| may_wait(&envelope.input)) {
        looked_at = batch.len();
        let more = inputs.recv_many(batch, INPUTS_PER_STEP_MAX - looked_at);
        if tokio::time::timeout_at(until, more).await.is_ok_and(|count| count > 0) {
            continue;
        }
        return;
    }
}

/// May this input wait? True if it neither starts nor frees anything, and delays only its sender.
fn may_wait(input: &Input) -> bool {
    match input {
        Input::Heard { .. } | Input::Progress { .. } | Input::Answer { refused: None, .. } => true,
        Input::Status { status, .. } => status.state == ItemState::Running,
        _ => false,
    }
}

struct Engine<S, O> {
    core: Core,
    store: S,
    outbox: O,
    publish: watch::Sender<Arc<Facts>>,
    /// Time at which readers get the changes of quiet steps. None: they are up to date.
    publish_at: Option<Instant>,
    clock: Clock,
    watchdog: Watchdog,
    steps: u64,
}

impl<S: Store, O: Outbox> Engine<S, O> {
    async fn run(&mut self, mut inputs: mpsc::Receiver<Envelope>) -> Result<(), EngineError> {
        let mut batch = Vec::new();
        loop {
            self.watchdog.feed();
            let now = self.clock.now();
            let due = Duration::from_millis(self.core.decide_by_mono_ms().saturating_sub(now.mono_ms));
            let due_at = Instant::now() + due;
            let publish_in = self.publish_at.map(|at| at.saturating_duration_since(Instant::now()));
            let wait = [self.watchdog.time_limit(), publish_in].into_iter().flatten().fold(due, Duration::min);
            match tokio::time::timeout(wait, inputs.recv_many(&mut batch, INPUTS_PER_STEP_MAX)).await {
                Ok(0) => return Ok(()),
                Ok(_) => gather(&mut inputs, &mut batch, due_at).await,
                Err(_) if publish_in == Some(wait) => {
                    self.publish();
                    continue;
                }
                Err(_) => batch.push(Envelope { input: Input::Tick, answer: None }),
            }
            self.step(std::mem::take(&mut batch))?;
        }
    }

    fn step(&mut self, batch: Vec<Envelope>) -> Result<(), EngineError> {
        let (inputs, answers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|envelope| (envelope.input, envelope.answer)).unzip();
        let was_old = self.core.facts().live.older_than_fleet().is_some();
        let mut step = self.core.step(inputs, self.clock.now());
        if let Some(evidence) = self.core.facts().live.older_than_fleet().filter(|_| !was_old) {
            tracing::warn!(
                "this store is older than the fleet, and nothing is started ({evidence}): stop the coordinator and put \
                 the newest copy in its place, or `muster-coordinator recover`{}",
                safety::instead_of_recovery(self.core.facts())
            );
        }
        if step.unsettled {
            tracing::error!(
                "decisions undo one another; what is recorded so far holds, and the next step goes on from there. This \
                 is a bug: please report it with `muster-coordinator backup`"
            );
        }
        let decided = step.decided;
        let audited = std::mem::take(&mut step.audited);
        let (results, acts) = step.into_acts();
        for act in acts {
            match act {
                Act::Commit(changes) => {
                    self.store.commit(&changes)?;
                    audited.iter().for_each(|line| journal::audit(line));
                }
                Act::Perform(effect) => self.outbox.perform(effect),
            }
        }
        self.steps += 1;
        self.check()?;
        let publish_at = *self.publish_at.get_or_insert_with(|| Instant::now() + PUBLISH_QUIET_AFTER);
        if decided || Instant::now() >= publish_at {
            self.publish();
        }
        for (answer, result) in answers.into_iter().zip(results) {
            if let Some(answer) = answer {
                // The caller disconnected; the request was applied.
                drop(answer.send(result));
            }
        }
        Ok(())
    }

    /// Publish the current facts to readers.
    fn publish(&mut self) {
        self.publish.send_replace(Arc::new(self.core.facts().clone()));
        self.publish_at = None;
    }

    #[cfg(debug_assertions)]
    fn check(&self) -> Result<(), EngineError> {
        if !self.steps.is_multiple_of(STEPS_PER_CHECK) {
            return Ok(());
        }
        let fresh = Facts::load(self.store.load()?)?;
        if fresh.same_record(self.core.facts()) { Ok(()) } else { Err(EngineError::Diverged) }
    }

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "the debug build's check can fail")]
    const fn check(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::{address::Addresses, model::MachineId};

    use super::*;
    use crate::{
        core::{Request, tests::proof_key},
        journal::tests::told_by,
        store::MemoryStore,
    };

    struct Nowhere;

    impl Outbox for Nowhere {
        fn perform(&self, _: Effect) {}
    }

    #[test]
    fn audit_lines_are_told_to_the_journal() {
        let clock = Clock { zero: Instant::now() };
        let mut store = MemoryStore::default();
        let (core, changes) = Core::start(Vec::new(), Limits { lost_after_ms: 60_000 }, proof_key(), clock.now())
            .expect("an empty store");
        store.commit(&changes).expect("in memory");
        let (publish, facts) = watch::channel(Arc::new(core.facts().clone()));
        let watchdog = Watchdog::from_environment();
        let mut engine = Engine { core, store, outbox: Nowhere, publish, publish_at: None, clock, watchdog, steps: 0 };
        let (answer, mut answered) = oneshot::channel();
        let request = Request::SetAddress(Addresses::parse("a:1").expect("one"));
        let input = Input::Operator { actor: "operator/anna".to_owned(), request };
        let (stepped, told) = told_by(|| engine.step(vec![Envelope { input, answer: Some(answer) }]));
        stepped.expect("in memory");
        assert!(matches!(answered.try_recv(), Ok(Ok(Reply::Ok | Reply::Done(_)))));
        assert_eq!(facts.borrow().audit_lines().len(), 1);
        assert_eq!(told, ["1 audit: a:1"]);
    }

    fn envelope(input: Input) -> Envelope {
        Envelope { input, answer: None }
    }

    fn heard() -> Envelope {
        envelope(Input::Heard { id: MachineId(uuid::Uuid::nil()) })
    }

    #[tokio::test]
    async fn what_is_in_a_hurry_waits_for_nothing() {
        let (inbox, mut inputs) = mpsc::channel(INBOX_MAX);
        let later = Instant::now() + Duration::from_secs(3600);
        for input in [heard(), envelope(Input::Tick), heard()] {
            inbox.try_send(input).expect("room");
        }
        let mut hurried = vec![heard(), envelope(Input::Tick)];
        gather(&mut inputs, &mut hurried, later).await;
        assert_eq!((hurried.len(), inputs.len()), (2, 3), "a step of its own, at once");
        let mut patient = vec![heard()];
        gather(&mut inputs, &mut patient, later).await;
        assert_eq!((patient.len(), inputs.len()), (4, 0), "what came with it");
        let mut alone = vec![heard()];
        gather(&mut inputs, &mut alone, later).await;
        assert_eq!(alone.len(), 1, "nothing came, and it went on");
        drop(inbox);
        gather(&mut inputs, &mut alone, later).await;
        assert_eq!(alone.len(), 1, "nothing can come");
    }
}
