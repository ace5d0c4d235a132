//! What the core is told and what it says: the whole of its interface with engine and simulator.

use std::{borrow::Cow, sync::Arc};

use muster_proto::model::{
    AckProof, Assignment, AuthCode, Epoch, Generation, ItemStatus, Reason, Seq, SwarmAnswer, SwarmCall,
};

use crate::{
    attempt::record::{AttemptKey, Found, Request},
    core::{Mark, Record, Refusal},
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The process started and its ledger is open. Comes first, once.
    Started {
        /// Of this boot of the machine.
        boot_id: String,
    },
    /// What lies beside the ledger, before anything is started or removed. Comes once, before [`Input::Started`].
    TracesFound {
        /// This machine's attempts that have a directory.
        attempts: Vec<AttemptKey>,
        /// How far the ledger has been; None: that was not written down.
        mark: Option<Mark>,
    },
    /// A coordinator welcomed us on a new session; what was sent on an older one may be lost.
    LinkUp {
        /// Of that coordinator.
        epoch: Epoch,
        /// Proves that it was told.
        code: AuthCode,
    },
    /// The session ended.
    LinkDown,
    /// The coordinator says which items this machine should have.
    Received(Assignment),
    /// The coordinator has recorded every event up to this one; the code proves that it was told.
    Acked(Seq, AckProof),
    /// What [`Effect::Inspect`] found.
    Inspected {
        /// The attempt inspected.
        key: AttemptKey,
        /// What became of it.
        found: Found,
    },
    /// A followed attempt ended.
    Ended {
        /// The attempt followed.
        key: AttemptKey,
        /// What became of it.
        found: Found,
    },
    /// An attempt could not be started, and is sure never to run.
    StartFailed {
        /// The attempt.
        key: AttemptKey,
        /// Why, in one line.
        message: String,
    },
    /// The disk had no room to begin an attempt. Nothing of it has begun: it is begun when there is room again.
    NoRoom {
        /// The attempt.
        key: AttemptKey,
        /// What there was no room for, in one line.
        message: String,
    },
    /// The coordinator asks something of this machine's swarm.
    SwarmCalled(SwarmCall),
    /// What [`Effect::Fetch`] came to. Whoever drives the core holds the values; the core never sees one.
    Fetched {
        /// The attempt they are for.
        key: AttemptKey,
        /// They were asked for under this generation.
        generation: Generation,
        /// They are at hand for an [`Effect::Start`] of this very step; or why not, in one line.
        outcome: Result<(), String>,
    },
    /// The state directory's disk is out of space, or it is not. Said again from time to time: after
    /// [`Input::NoRoom`] it is tried again then.
    DiskFull(bool),
    /// Time passed.
    Tick,
}

/// Something to do. Effects are performed in order; each is idempotent, so one that a crash cut off is derived again
/// from the ledger at the next [`Input::Started`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make these durable before the effects that follow. At most one per step, and the first.
    Record(Vec<Record>),
    /// Send, if there is a session; what matters is sent again on the next one.
    Send(ToCoordinator),
    /// Find out what became of an attempt; answered by [`Input::Inspected`].
    Inspect(AttemptKey),
    /// Ask the coordinator for the inputs of an attempt: secrets, the way into the swarm. Answered by
    /// [`Input::Fetched`]; one that is lost is not waited for longer than [`super::FETCH_DEADLINE_MS`].
    Fetch {
        /// The attempt they are for.
        key: AttemptKey,
        /// Of the accepted assignment.
        generation: Generation,
    },
    /// Create the attempt's directory unless it is there, start its process, then follow it. Answered by
    /// [`Input::Ended`], [`Input::StartFailed`] or [`Input::NoRoom`].
    Start(Box<Request>),
    /// Wait for the end of an attempt that runs already; answered by [`Input::Ended`].
    Follow(AttemptKey),
    /// The outcome of an attempt is durable: the host need keep nothing of it any more.
    Release(AttemptKey),
    /// Delete the directory of an attempt that is over and superseded.
    Remove(AttemptKey),
    /// Ask the machine's swarm, beside whatever runs, and send the answer if there is a session.
    CallSwarm(SwarmCall),
}

/// What the core has to say to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToCoordinator {
    /// A durable event. Sent again on every session until it is acknowledged.
    Event {
        /// Its number.
        seq: Seq,
        /// What it says.
        status: Arc<ItemStatus>,
    },
    /// The answer to an assignment.
    Answer {
        /// Of the assignment.
        generation: Generation,
        /// None = accepted.
        refusal: Option<Refusal>,
    },
    /// The answer to a call of the coordinator's. Lost with the session: the coordinator's deadline sees to that.
    Swarm(SwarmAnswer),
    /// The permit of this number counts no more: nothing will be started under it.
    PermitWanted(u64),
    /// Why nothing new is started here; none takes it back.
    Blocked(Option<AgentBlocked>),
}

/// Why the agent itself starts nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentBlocked {
    /// A named reason, `DiskFull`.
    pub reason: Reason,
    /// What is the matter and what clears it, in one sentence.
    pub message: Cow<'static, str>,
}
