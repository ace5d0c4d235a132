//! The agent's core: its reaction to every event. PURE and sans-IO: an [`Input`] and the time go in, [`Effect`]s come
//! out in the order of execution. The engine executes them on a real machine, the simulator on a simulated one; both
//! drive this code. It must never read a clock, a file or a socket.

mod accept;
mod decide;
mod inputs;
mod interface;
mod outcome;
mod permit;
mod reboot;
mod record;
mod report;
mod start;
mod summary;

#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod tests;

use std::{borrow::Cow, cmp::Reverse, sync::Arc};

use muster_proto::{
    convert::as_line,
    model::{
        AckProof, Assignment, AuthCode, ControlPlaneAnswer, ControlPlaneCall, Epoch, MachineName, Now, Reason, Seq,
        SwarmCall,
    },
    seeded_bug::seeded_bug,
};

pub use accept::{Refusal, RefusalCode};
pub use decide::{BACKOFF_MS_MAX, BACKOFF_MS_MIN};
pub use inputs::FETCH_DEADLINE_MS;
pub use interface::{AgentBlocked, Effect, Input, ToCoordinator};
pub(crate) use outcome::status as outcome_of;
pub use reboot::GOODBYE_MS_MAX;
pub use record::{LedgerState, Mark, Misfit, Record, Slot};

use crate::attempt::record::{AttemptKey, Exit, Found};
use accept::Verdict;
use decide::Next;
use inputs::Fetch;
use permit::Permits;
use reboot::Waiting;

/// Maximum of events in flight to the coordinator. It bounds the link's queue to this many statuses of about 13 KiB.
pub const EVENTS_IN_FLIGHT_MAX: usize = 64;
/// Maximum size of unacknowledged statuses. Above it the agent starts nothing new, because events are never dropped.
pub const OUTBOX_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Number of newest attempts whose directories are kept for their output, within the disk quota of all of them.
pub const ATTEMPTS_KEPT: usize = 256;

const DISK_FULL: AgentBlocked = AgentBlocked {
    reason: Reason::DiskFull,
    message: Cow::Borrowed(
        "the disk of the agent's state directory (/var/lib/muster/agent, unless it was told another) has less than \
         16 MiB free, or fewer than 256 files (inodes); nothing new is started until there is space again",
    ),
};
const OUTBOX_FULL: AgentBlocked = AgentBlocked {
    reason: Reason::OutboxFull,
    message: Cow::Borrowed("too many results wait for the coordinator; nothing new is started until it has taken them"),
};

/// The coordinator has an event that the ledger lacks.
const BEHIND_REPORTS: AgentBlocked = AgentBlocked {
    reason: Reason::LedgerBehind,
    message: Cow::Borrowed(
        "it has reported more than its ledger holds, as where a disk was restored from a copy: what has run since is \
         not known there, and nothing new is started; if only the agent's directory was restored: stop the agent, \
         `muster-agent ledger reset --keep-identity` takes over what attempts/ proves, start it; if the whole disk \
         was: `musterctl replace MACHINE`, then `muster-agent enroll --force` there with a new token, and every item \
         runs again",
    ),
};

/// The ledger's mark is ahead of the ledger.
const BEHIND_MARK: AgentBlocked = AgentBlocked {
    reason: Reason::LedgerBehind,
    message: Cow::Borrowed(
        "its ledger has been further than it is (ledger.mark), as where the ledger was restored from a copy or \
         deleted: what has run since is not known there, and nothing is started or removed; stop the agent, \
         `muster-agent ledger reset --keep-identity` takes over what attempts/ proves, start it",
    ),
};

/// An attempt has a directory, but the ledger lacks its start.
fn behind_attempt(key: &AttemptKey) -> AgentBlocked {
    let message = format!(
        "attempts/{key} is newer than anything its ledger holds of that item, as where the ledger was restored from a \
         copy: what has run since is not known there, and nothing is started or removed; stop the agent, \
         `muster-agent ledger reset --keep-identity` takes over what attempts/ proves, start it"
    );
    AgentBlocked { reason: Reason::LedgerBehind, message: message.into() }
}

/// Configuration of the core.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the machine at enrolment.
    pub machine: MachineName,
    /// Does this build have the runner of that name?
    pub supports: fn(&str) -> bool,
}

/// The agent's decisions and their basis: the durable ledger, and the volatile state, which a restart loses.
#[derive(Clone, Debug)]
pub struct Core {
    config: Config,
    ledger: LedgerState,
    /// None until [`Input::Started`].
    boot_id: Option<String>,
    /// There is a session with a coordinator whose epoch is at least the highest seen.
    link_up: bool,
    /// Highest event sent on this session.
    sent: Seq,
    /// The blocked reason that the coordinator of this session knows.
    told_blocked: Option<AgentBlocked>,
    disk_full: bool,
    /// What needed the disk space that was missing for a due attempt. Independent of `disk_full`.
    no_room: Option<String>,
    /// The ledger is older than it once was: the proof.
    behind: Option<AgentBlocked>,
    permits: Permits,
    /// Inputs that are awaited now.
    fetch: Option<Fetch>,
    /// When the last attempt ended, as far as this process knows: the start of a retry's backoff.
    ended_mono_ms: u64,
    /// Wait of the reboot item that is recorded as running.
    waiting: Option<Waiting>,
}

/// Results of one step, in the order of execution.
#[derive(Default)]
struct Step {
    records: Vec<Record>,
    sends: Vec<ToCoordinator>,
    acts: Vec<Effect>,
}

impl Core {
    /// A core on top of the ledger's content. It is idle before [`Input::Started`].
    #[must_use]
    pub const fn new(config: Config, ledger: LedgerState) -> Self {
        Self {
            config,
            ledger,
            boot_id: None,
            link_up: false,
            sent: Seq(0),
            told_blocked: None,
            disk_full: false,
            no_room: None,
            behind: None,
            permits: Permits::new(),
            fetch: None,
            ended_mono_ms: 0,
            waiting: None,
        }
    }

    /// Current state of the durable record.
    #[must_use]
    pub const fn ledger(&self) -> &LedgerState {
        &self.ledger
    }

    /// Processes one input and returns the effects in order. A step without changes returns an empty list.
    #[must_use]
    pub fn step(&mut self, input: Input, now: Now) -> Vec<Effect> {
        let mut step = Step::default();
        match input {
            Input::TracesFound { attempts, mark } => self.traces_found(&attempts, mark.as_ref()),
            Input::Started { boot_id } => self.started(boot_id, now, &mut step),
            Input::LinkUp { epoch, code } => self.link_up(epoch, code, &mut step),
            Input::LinkDown => self.link_up = false,
            Input::Received(assignment) => self.received(assignment, now, &mut step),
            Input::Acked(seq, proof) => self.acked(seq, proof, &mut step),
            Input::Inspected { key, found } => self.inspected(&key, found, now, &mut step),
            Input::Ended { key, found } => self.ended(&key, found, now, &mut step),
            Input::StartFailed { key, message } => {
                if self.is_running(&key) {
                    self.finish(&key, outcome::start_failed(message), now, &mut step);
                }
            }
            Input::SwarmCalled(call) => self.swarm_called(call, &mut step),
            Input::ControlPlaneCalled(call) => self.control_plane_called(call, &mut step),
            Input::Fetched { key, generation, outcome } => self.fetched(&key, generation, outcome, now),
            Input::NoRoom { key, message } => self.no_room(key, &message),
            Input::DiskFull(full) => {
                self.disk_full = full;
                self.no_room = None;
            }
            Input::Tick => {}
        }
        self.go_on(now, &mut step);
        self.advance(now, &mut step);
        self.tell(&mut step);
        step.into_effects()
    }

    /// Monotonic time of the next useful [`Input::Tick`]: the end of a retry's backoff or of a wait.
    #[must_use]
    pub fn wake_at(&self) -> Option<u64> {
        if self.waiting.is_some() {
            return self.waits_until();
        }
        if let Some(fetch) = &self.fetch {
            return fetch.wake_at(self.link_up);
        }
        if self.boot_id.is_none() || self.stopped().is_some() || self.permits.is_wanted() {
            return None;
        }
        match decide::next(&self.ledger, &self.config.machine, self.ended_mono_ms) {
            Next::Start { not_before_mono_ms, .. } => Some(not_before_mono_ms),
            Next::Nothing | Next::Running => None,
        }
    }

    /// Is the ledger older than it once was? Then keep everything that attempts left: it is the proof, and the only
    /// knowledge of what ran.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.behind.is_some()
    }

    /// Attempts whose directories are kept: the running one first, then newest first. All others may be deleted.
    #[must_use]
    pub fn kept_attempts(&self) -> Vec<AttemptKey> {
        let mut slots: Vec<&Slot> = self.ledger.slots.values().collect();
        slots.sort_unstable_by_key(|slot| (!slot.is_running(), Reverse(slot.seq)));
        slots.into_iter().take(ATTEMPTS_KEPT).map(Slot::key).collect()
    }

    /// Reason why the agent or the due item is blocked.
    #[must_use]
    pub fn blocked(&self) -> Option<AgentBlocked> {
        self.stopped().or_else(|| self.fetch.as_ref()?.blocked(self.link_up))
    }

    /// Reason why the agent is blocked.
    fn stopped(&self) -> Option<AgentBlocked> {
        if self.behind.is_some() {
            self.behind.clone()
        } else if self.disk_full {
            Some(DISK_FULL)
        } else if let Some(why) = &self.no_room {
            let message = format!("no room to begin what is due, which is tried again every half minute: {why}");
            Some(AgentBlocked { reason: DISK_FULL.reason, message: message.into() })
        } else if self.ledger.outbox_bytes() > OUTBOX_BYTES_MAX {
            Some(OUTBOX_FULL)
        } else {
            None
        }
    }

    fn is_running(&self, key: &AttemptKey) -> bool {
        self.ledger.running().is_some_and(|slot| slot.key() == *key)
    }

    fn record(&mut self, record: Record, step: &mut Step) {
        self.ledger.apply(&record);
        step.records.push(record);
    }

    fn traces_found(&mut self, attempts: &[AttemptKey], mark: Option<&Mark>) {
        // Seeded bug: ignore the evidence beside the ledger.
        if seeded_bug("agent-trust-old-ledger") {
            return;
        }
        let further = mark.is_some_and(|mark| mark.is_ahead_of(&self.ledger)).then_some(BEHIND_MARK);
        let attempt = attempts.iter().find(|key| self.ledger.lacks(key));
        self.behind = attempt.map(behind_attempt).or(further);
    }

    fn started(&mut self, boot_id: String, now: Now, step: &mut Step) {
        self.boot_id = Some(boot_id);
        self.ended_mono_ms = now.mono_ms;
        if self.is_behind() {
            return; // what it says is running may have ended, and others may have run since
        }
        step.acts.extend(self.ledger.running().map(|slot| Effect::Inspect(slot.key())));
    }

    fn link_up(&mut self, epoch: Epoch, code: AuthCode, step: &mut Step) {
        self.saw(epoch, code, step);
        // An older coordinator must not acknowledge what its successor has to know.
        self.link_up = epoch >= self.ledger.epoch;
        self.sent = self.ledger.acked;
        self.told_blocked = None;
        self.permits.new_session();
        // Requests of the previous session may be lost.
        if let Some(fetch) = &mut self.fetch {
            fetch.ask_at_once();
        }
    }

    fn saw(&mut self, epoch: Epoch, code: AuthCode, step: &mut Step) {
        // Seeded bug: a crash loses the fence against older coordinators.
        if epoch > self.ledger.epoch && !seeded_bug("agent-forget-epoch") {
            self.record(Record::EpochSeen(epoch, code), step);
        }
    }

    /// Keeps the attempt recorded as the next to begin; it counts once.
    fn no_room(&mut self, key: AttemptKey, message: &str) {
        if self.is_running(&key) {
            self.no_room = Some(as_line(message));
            self.permits.not_started(key);
        }
    }

    fn received(&mut self, assignment: Assignment, now: Now, step: &mut Step) {
        // The ledger's number range is uncertain: keep the proof that it is behind.
        if self.is_behind() {
            return;
        }
        let generation = assignment.generation;
        let verdict = accept::verdict(&self.ledger, &assignment);
        self.saw(assignment.epoch, AuthCode::NONE, step);
        let refusal = match verdict {
            Verdict::Same => None,
            Verdict::Refused(refusal) => Some(refusal),
            Verdict::Accepted => {
                self.permits.received(self.ledger.assignment.as_deref(), &assignment, now);
                self.record(Record::Accepted(Arc::new(assignment)), step);
                None
            }
        };
        step.sends.push(ToCoordinator::Answer { generation, refusal });
    }

    fn acked(&mut self, seq: Seq, proof: AckProof, step: &mut Step) {
        // Permanent while this process runs, because the missing part is lost.
        if self.link_up && seq > self.ledger.last_seq && self.behind.is_none() {
            self.behind = Some(BEHIND_REPORTS);
        }
        let outbox = &self.ledger.outbox;
        // Ignore an acknowledgement beyond what this session has sent.
        if self.link_up && seq <= self.sent && outbox.first_key_value().is_some_and(|(first, _)| *first <= seq) {
            self.record(Record::Acked(seq, proof), step);
        }
    }

    fn swarm_called(&mut self, call: SwarmCall, step: &mut Step) {
        match accept::refused_call(&self.ledger, &call) {
            Some(answer) => step.sends.push(ToCoordinator::Swarm(answer)),
            None => {
                self.saw(call.epoch, AuthCode::NONE, step);
                step.acts.push(Effect::CallSwarm(call));
            }
        }
    }

    fn control_plane_called(&mut self, call: ControlPlaneCall, step: &mut Step) {
        match accept::over(&self.ledger, call.epoch) {
            Some(why) => {
                step.sends.push(ToCoordinator::ControlPlane(ControlPlaneAnswer { id: call.id, result: Err(why) }));
            }
            None => {
                self.saw(call.epoch, AuthCode::NONE, step);
                step.acts.push(Effect::AskControlPlane(call));
            }
        }
    }

    fn inspected(&mut self, key: &AttemptKey, found: Found, now: Now, step: &mut Step) {
        // Seeded bug: start a lost attempt once more under the same number.
        let restart = seeded_bug("agent-restart-lost") && found == Found::Lost;
        match self.ledger.running().filter(|slot| slot.key() == *key) {
            None => {}
            Some(slot)
                if (found == Found::NotStarted || restart)
                    && !(self.has_rebooted_since(slot) && self.is_reboot(&key.item)) =>
            {
                self.permits.not_started(slot.key());
            }
            Some(_) => self.ended(key, found, now, step),
        }
    }

    fn ended(&mut self, key: &AttemptKey, found: Found, now: Now, step: &mut Step) {
        let found = if self.is_reboot(&key.item) {
            let Some(found) = self.reboot_ended(key, found, now, step) else { return };
            found
        } else {
            found
        };
        let Some(slot) = self.ledger.running().filter(|slot| slot.key() == *key) else { return };
        let rebooted = self.has_rebooted_since(slot);
        let exit = match found {
            Found::Running => return step.acts.push(Effect::Follow(key.clone())),
            Found::Exited(exit) => exit,
            // It was followed, so a missing start means that its directory was deleted.
            Found::Lost | Found::NotStarted => outcome::lost(rebooted),
        };
        self.finish(key, exit, now, step);
    }

    /// Records the outcome of the running attempt.
    fn finish(&mut self, key: &AttemptKey, exit: Exit, now: Now, step: &mut Step) {
        let Some(slot) = self.ledger.slots.get(&key.item) else { return };
        let status = Arc::new(outcome::status(&slot.status, exit, now));
        self.ended_mono_ms = now.mono_ms;
        self.waiting = None;
        self.record(Record::Finished { seq: self.ledger.last_seq.next(), status }, step);
        step.acts.push(Effect::Release(key.clone()));
    }
}

impl Step {
    fn into_effects(self) -> Vec<Effect> {
        let record = (!self.records.is_empty()).then_some(Effect::Record(self.records));
        let sends = self.sends.into_iter().map(Effect::Send);
        // Seeded bug: start the process before its start is durable.
        if seeded_bug("agent-start-before-record") {
            return self.acts.into_iter().chain(record).chain(sends).collect();
        }
        // Seeded bug: send an event that a crash can still undo.
        if seeded_bug("agent-send-before-record") {
            return sends.chain(record).chain(self.acts).collect();
        }
        record.into_iter().chain(sends).chain(self.acts).collect()
    }
}
