//! The main loop: receives events, asks the core, and performs the effects in order. It is the only user of the ledger
//! and the only starter of attempts. All decisions are the core's.

mod attempts;

use std::{path::Path, time::Duration};

use muster_proto::{
    daemon::service_manager,
    model::{
        ControlPlaneAnswer, ControlPlaneCall, Generation, ItemInput, MachineName, RunnerKind, Seq, SwarmAnswer,
        SwarmCall,
    },
};
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    attempt::{AttemptError, AttemptKey, Attempts, record::Progress},
    config::StateDir,
    control_plane::ControlPlane,
    core::{Config, Core, Effect, Input, LedgerState, Record, Slot, ToCoordinator},
    disk_space, docker,
    host::Clock,
    ledger::{FileDisk, Ledger, LedgerError, MarkFile},
    link::{ENGINE_QUEUE_MAX, FromLink, SessionHandle, chain, logs::LogStreams},
    notifier::Notifier,
    runner,
    status_file::StatusFile,
    swarm::SwarmCalls,
};
use attempts::{follow, forget_ended_runs, forget_inputs, inspect, release, remove, start};

/// Interval of the disk space check.
const DISK_EVERY: Duration = Duration::from_secs(30);
/// Longest delay before an acknowledgement is written.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// Error that ends the engine. The end by a signal is a success.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The ledger failed: the disk's content is unknown, so the process ends and reads it again.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The attempts are unreadable.
    #[error(transparent)]
    Attempts(#[from] AttemptError),
    /// The link's task ended, which only a bug can cause.
    #[error("the link to the coordinator has ended by itself")]
    LinkGone,
    /// A file of the machine is unreadable.
    #[error("cannot read the machine's {what}")]
    Host {
        /// Name of the file.
        what: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// Messages to the engine from the tasks that follow attempts and answer calls.
#[derive(Debug)]
enum FromAttempt {
    Input(Input),
    Progress(AttemptKey, Progress),
    Swarm(SwarmAnswer),
    ControlPlane(ControlPlaneAnswer),
    Fetched { key: AttemptKey, generation: Generation, outcome: Result<Vec<ItemInput>, String> },
}

/// The running agent.
pub struct Engine {
    core: Core,
    ledger: Ledger<FileDisk>,
    mark: MarkFile,
    attempts: Attempts,
    clock: Clock,
    dir: StateDir,
    session: Option<SessionHandle>,
    /// Fetched inputs, while the core decides whether to start the attempt.
    inputs: Vec<ItemInput>,
    blocked: StatusFile,
    logs: LogStreams,
    notifier: Notifier,
    swarm: SwarmCalls,
    control_plane: ControlPlane,
    from_attempts: mpsc::Receiver<FromAttempt>,
    to_engine: mpsc::Sender<FromAttempt>,
}

impl Engine {
    /// An engine on an open ledger.
    #[must_use]
    pub fn new(
        machine: MachineName,
        dir: StateDir,
        (ledger, state): (Ledger<FileDisk>, LedgerState),
        attempts: Attempts,
    ) -> Self {
        let (to_engine, from_attempts) = mpsc::channel(ENGINE_QUEUE_MAX);
        let core = Core::new(Config { machine, supports: runner::supported }, state);
        Self {
            core,
            ledger,
            mark: MarkFile::new(dir.path()),
            attempts,
            clock: Clock::default(),
            blocked: StatusFile::new(&dir),
            dir,
            session: None,
            inputs: Vec::new(),
            logs: LogStreams::default(),
            notifier: Notifier::default(),
            swarm: SwarmCalls::new(Path::new(docker::SOCKET)),
            control_plane: ControlPlane::default(),
            from_attempts,
            to_engine,
        }
    }

    /// Runs until `stop` completes; running attempts continue.
    ///
    /// # Errors
    /// [`EngineError`]: end the process.
    pub async fn run(
        mut self,
        boot_id: String,
        mut link: mpsc::Receiver<FromLink>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), EngineError> {
        self.find_attempts()?;
        if !self.core.is_behind() {
            self.sweep().await?;
        }
        self.look_at_disk()?;
        self.step(Input::Started { boot_id })?;
        let mut disk = tokio::time::interval_at(Instant::now() + DISK_EVERY, DISK_EVERY);
        disk.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        let mut flush_at = None;
        service_manager::ready();
        loop {
            flush_at = flush_at_or(flush_at, self.ledger.has_lazy(), Instant::now());
            self.notifier.turn(&self.core.summary());
            let time_limit = self.notifier.time_limit();
            let wake_at = self.core.wake_at().map(|mono_ms| self.clock.instant(mono_ms));
            tokio::select! {
                biased;
                () = &mut stop => break,
                message = self.from_attempts.recv() => self.hear_attempt(message)?,
                message = link.recv() => self.hear_link(message)?,
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => self.step(Input::Tick)?,
                _ = disk.tick() => {
                    self.look_at_disk()?;
                    self.look_for_ended_runs();
                }
                () = sleep_until(flush_at.unwrap_or_else(Instant::now)), if flush_at.is_some() => self.ledger.flush()?,
                () = sleep(time_limit.unwrap_or_default()), if time_limit.is_some() => {}
            }
        }
        service_manager::stopping();
        self.ledger.flush()?;
        Ok(())
    }

    fn hear_attempt(&mut self, message: Option<FromAttempt>) -> Result<(), EngineError> {
        match message {
            Some(FromAttempt::Input(input)) => {
                if matches!(input, Input::StartFailed { .. }) {
                    self.look_at_disk()?; // a full disk is the likeliest cause, and must be known before the retry
                }
                self.step(input)
            }
            Some(FromAttempt::Fetched { key, generation, outcome }) => {
                let outcome = outcome.map(|inputs| self.inputs = inputs);
                let stepped = self.step(Input::Fetched { key, generation, outcome });
                self.inputs.clear(); // nobody waited for them
                stepped
            }
            Some(FromAttempt::Progress(key, progress)) => {
                if let Some(session) = &self.session {
                    session.send_progress(&key.item, progress);
                }
                Ok(())
            }
            Some(FromAttempt::Swarm(answer)) => {
                self.send(&ToCoordinator::Swarm(answer));
                Ok(())
            }
            Some(FromAttempt::ControlPlane(answer)) => {
                self.send(&ToCoordinator::ControlPlane(answer));
                Ok(())
            }
            None => Ok(()), // we hold a sender ourselves
        }
    }

    fn hear_link(&mut self, message: Option<FromLink>) -> Result<(), EngineError> {
        match message {
            Some(FromLink::HelloWanted { facts, answer }) => {
                // The link may have stopped waiting for the answer.
                answer.send(self.core.hello(*facts)).ok();
                Ok(())
            }
            Some(FromLink::Up { epoch, code, session }) => {
                self.logs.cancel_all();
                self.session = Some(session);
                self.notifier.link(true);
                self.step(Input::LinkUp { epoch, code })
            }
            None => Err(EngineError::LinkGone),
            Some(FromLink::Down) => {
                self.logs.cancel_all();
                self.session = None;
                self.notifier.link(false);
                self.step(Input::LinkDown)
            }
            Some(FromLink::Assigned(assignment)) => self.step(Input::Received(assignment)),
            Some(FromLink::Acked(seq, proof)) => self.step(Input::Acked(seq, proof)),
            Some(FromLink::SwarmCalled(call)) => self.step(Input::SwarmCalled(call)),
            Some(FromLink::ControlPlaneCalled(call)) => self.step(Input::ControlPlaneCalled(call)),
            Some(FromLink::LogWanted { request_id, item, follow }) => {
                if let Some(session) = &self.session {
                    let key = self.core.newest_attempt(item.as_ref());
                    // Only the running attempt is followed.
                    let follow = follow && key.as_ref() == self.core.ledger().running().map(Slot::key).as_ref();
                    let attempt = key.map(|key| (self.attempts.clone(), key));
                    self.logs.start(request_id, attempt, follow, session.logs());
                }
                Ok(())
            }
            Some(FromLink::LogCanceled { request_id }) => {
                self.logs.cancel(request_id);
                Ok(())
            }
        }
    }

    fn step(&mut self, input: Input) -> Result<(), EngineError> {
        debug!(?input, "step");
        for effect in self.core.step(input, self.clock.now()) {
            match effect {
                Effect::Record(records) => self.record(&records)?,
                Effect::Send(message) => self.send(&message),
                Effect::Inspect(key) => {
                    tokio::spawn(inspect(self.attempts.clone(), key, self.to_engine.clone()));
                }
                Effect::Fetch { key, generation } => self.fetch(key, generation),
                Effect::Start(request) => {
                    let inputs = std::mem::take(&mut self.inputs);
                    let what = (request, inputs, self.core.kept_attempts());
                    tokio::spawn(start(self.attempts.clone(), what, self.to_engine.clone()));
                }
                Effect::Follow(key) => {
                    tokio::spawn(follow(self.attempts.clone(), key, self.to_engine.clone()));
                }
                Effect::Release(key) => {
                    tokio::spawn(release(self.attempts.clone(), key));
                }
                Effect::Remove(key) => {
                    // In a separate thread: the directory may be large.
                    let attempts = self.attempts.clone();
                    spawn_blocking(move || remove(&attempts, &key));
                }
                Effect::CallSwarm(call) => {
                    tokio::spawn(ask_swarm(self.swarm.clone(), call, self.to_engine.clone()));
                }
                Effect::AskControlPlane(call) => {
                    tokio::spawn(ask_control_plane(self.control_plane.clone(), call, self.to_engine.clone()));
                }
            }
        }
        self.blocked.tell(self.core.blocked().as_ref());
        Ok(())
    }

    fn send(&mut self, message: &ToCoordinator) {
        if self.session.as_ref().is_some_and(|session| !session.send(message)) {
            self.session = None; // closes it; what was not sent is sent on the next one
        }
    }

    fn fetch(&self, key: AttemptKey, generation: Generation) {
        let asked = self.session.as_ref().map(|session| session.fetch(&key.item, generation));
        let engine = self.to_engine.clone();
        tokio::spawn(async move {
            let outcome = match asked {
                Some(asked) => asked.await,
                None => Err("the session has just ended".to_owned()),
            };
            engine.send(FromAttempt::Fetched { key, generation, outcome }).await.ok();
        });
    }

    fn record(&mut self, records: &[Record]) -> Result<(), EngineError> {
        self.ledger.append(records)?;
        // While the ledger is behind its mark, the mark is the evidence: it must outlive this process.
        if !self.core.is_behind() {
            self.mark.follow(self.core.ledger());
        }
        records.iter().for_each(log);
        self.ledger.compact(self.core.ledger())?;
        Ok(())
    }

    /// Shows the core the evidence beside the ledger, before anything is changed. Leftovers of an earlier identity of
    /// this machine are irrelevant and are removed.
    fn find_attempts(&mut self) -> Result<(), EngineError> {
        let ledger = self.core.ledger();
        let mut keys = self.attempts.list()?;
        // Only attempts that the ledger lacks must be read.
        keys.retain(|key| !ledger.lacks(key) || self.attempts.is_of(key, ledger.machine_id));
        self.step(Input::TracesFound { attempts: keys, mark: self.mark.read() })
    }

    /// Releases and deletes what a crash left behind. This runs before anything new is started, so that only old data
    /// is deleted.
    async fn sweep(&self) -> Result<(), EngineError> {
        let running = self.core.ledger().running().map(Slot::key);
        if let Err(error) = self.attempts.release_others(running.as_ref()).await {
            warn!(error = %chain(&error), "units of items that ended stay until the next start");
        }
        let kept = self.core.kept_attempts();
        let mut superseded = self.attempts.list()?;
        superseded.retain(|key| !kept.contains(key));
        let attempts = self.attempts.clone();
        // A panic has ended the process.
        drop(spawn_blocking(move || superseded.iter().for_each(|key| remove(&attempts, key))).await);
        // The inputs of the running attempt are in use by its program.
        for key in self.attempts.with_inputs()?.into_iter().filter(|key| Some(key) != running.as_ref()) {
            forget_inputs(&self.attempts, &key);
        }
        Ok(())
    }

    fn look_for_ended_runs(&self) {
        if self.core.is_behind() {
            return; // one that the ledger does not know may be under way
        }
        let ledger = self.core.ledger();
        let items = ledger.assignment.iter().flat_map(|assignment| &assignment.items);
        if ledger.running().is_none() && items.into_iter().any(|item| item.runner == RunnerKind::Mke.as_str()) {
            tokio::spawn(forget_ended_runs());
        }
    }

    fn look_at_disk(&mut self) -> Result<(), EngineError> {
        let reserved = self.ledger.reserve()?;
        let room = disk_space::has_room(self.dir.path())
            .map_err(|source| EngineError::Host { what: "free disk space", source })?;
        self.step(Input::DiskFull(!reserved || !room))
    }
}

/// Time of the next write of deferred records: a fixed delay after the first deferral.
fn flush_at_or(known: Option<Instant>, lazy: bool, now: Instant) -> Option<Instant> {
    lazy.then(|| known.unwrap_or(now + FLUSH_AFTER))
}

/// Logs every record; the record itself is the ledger.
fn log(record: &Record) {
    match record {
        Record::EpochSeen(epoch, _) => debug!(epoch = epoch.0, "a coordinator with a higher epoch"),
        Record::Accepted(assignment) => {
            info!(generation = assignment.generation.0, items = assignment.items.len(), "assignment accepted");
        }
        Record::Started { status, .. } => {
            info!(item = %status.name, attempt = status.attempt, generation = status.generation.0, "started");
        }
        Record::Finished { status, .. } => {
            info!(item = %status.name, attempt = status.attempt, state = ?status.state, "{}", status.message);
        }
        Record::Acked(Seq(seq), _) => debug!(seq, "acknowledged"),
        Record::Snapshot(_) => {}
    }
}

async fn ask_swarm(swarm: SwarmCalls, call: SwarmCall, engine: mpsc::Sender<FromAttempt>) {
    let answer = swarm.answer(call).await;
    engine.send(FromAttempt::Swarm(answer)).await.ok();
}

async fn ask_control_plane(control_plane: ControlPlane, call: ControlPlaneCall, engine: mpsc::Sender<FromAttempt>) {
    let answer = control_plane.answer(call).await;
    engine.send(FromAttempt::ControlPlane(answer)).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_between_does_not_put_a_flush_off() {
        let now = Instant::now();
        let due = flush_at_or(None, true, now);
        assert_eq!(due, Some(now + FLUSH_AFTER));
        assert_eq!(flush_at_or(due, true, now + FLUSH_AFTER / 2), due);
        assert_eq!(flush_at_or(due, false, now + FLUSH_AFTER), None);
    }
}
