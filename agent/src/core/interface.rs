//! Inputs and outputs of the core: its whole interface with engine and simulator.

use std::{borrow::Cow, sync::Arc};

use muster_proto::model::{
    AckProof, Assignment, AuthCode, ControlPlaneAnswer, ControlPlaneCall, Epoch, Generation, ItemStatus, Reason, Seq,
    SwarmAnswer, SwarmCall,
};

use crate::{
    attempt::record::{AttemptKey, Found, Request},
    core::{Mark, Record, Refusal},
};

/// An event for the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The process started and its ledger is open. Comes first, once.
    Started {
        /// Boot ID of the machine.
        boot_id: String,
    },
    /// Evidence beside the ledger, read before anything is started or removed. Comes once, before [`Input::Started`].
    TracesFound {
        /// This machine's attempts that have a directory.
        attempts: Vec<AttemptKey>,
        /// How far the ledger has been; None: unrecorded.
        mark: Option<Mark>,
    },
    /// A coordinator accepted us on a new session; what was sent on an older one may be lost.
    LinkUp {
        /// Epoch of that coordinator.
        epoch: Epoch,
        /// Proof that it was told.
        code: AuthCode,
    },
    /// The session ended.
    LinkDown,
    /// The coordinator sent the items that this machine should have.
    Received(Assignment),
    /// The coordinator has recorded every event up to this one; the code proves that it was told.
    Acked(Seq, AckProof),
    /// Result of [`Effect::Inspect`].
    Inspected {
        /// The attempt inspected.
        key: AttemptKey,
        /// Its state.
        found: Found,
    },
    /// A followed attempt ended.
    Ended {
        /// The attempt followed.
        key: AttemptKey,
        /// Its state.
        found: Found,
    },
    /// The start of an attempt failed for good.
    StartFailed {
        /// The attempt.
        key: AttemptKey,
        /// Reason in one line.
        message: String,
    },
    /// The disk was too full to begin an attempt. It begins when there is space again.
    NoRoom {
        /// The attempt.
        key: AttemptKey,
        /// What the space was for, in one line.
        message: String,
    },
    /// The coordinator calls this machine's swarm.
    SwarmCalled(SwarmCall),
    /// The coordinator asks about this machine's part of a control plane.
    ControlPlaneCalled(ControlPlaneCall),
    /// Result of [`Effect::Fetch`]. Only the driver of the core holds the values.
    Fetched {
        /// The attempt that needs them.
        key: AttemptKey,
        /// Generation under which they were requested.
        generation: Generation,
        /// Ok: they are present for an [`Effect::Start`] of this step. Err: the reason in one line.
        outcome: Result<(), String>,
    },
    /// Is the state directory's disk full? Repeated from time to time: each one triggers a retry after
    /// [`Input::NoRoom`].
    DiskFull(bool),
    /// Time passed.
    Tick,
}

/// An action to perform. Effects are performed in order and are idempotent: an effect lost in a crash is derived again
/// from the ledger at the next [`Input::Started`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make these durable before the effects that follow. At most one per step, and the first.
    Record(Vec<Record>),
    /// Send if there is a session; important messages are sent again on the next one.
    Send(ToCoordinator),
    /// Read the state of an attempt; answered by [`Input::Inspected`].
    Inspect(AttemptKey),
    /// Ask the coordinator for the inputs of an attempt: secrets or the swarm join token. Answered by
    /// [`Input::Fetched`]; the timeout is [`super::FETCH_DEADLINE_MS`].
    Fetch {
        /// The attempt that needs them.
        key: AttemptKey,
        /// Generation of the accepted assignment.
        generation: Generation,
    },
    /// Create the attempt's directory if it is missing, start its process, then follow it. Answered by
    /// [`Input::Ended`], [`Input::StartFailed`] or [`Input::NoRoom`].
    Start(Box<Request>),
    /// Wait for the end of a running attempt; answered by [`Input::Ended`].
    Follow(AttemptKey),
    /// The outcome of an attempt is durable: the host may drop the attempt.
    Release(AttemptKey),
    /// Delete the directory of an attempt that is over and superseded.
    Remove(AttemptKey),
    /// Call the machine's swarm, in parallel with a running attempt, and send the answer if there is a session.
    CallSwarm(SwarmCall),
    /// Answer a question about the machine's part of a control plane, as for [`Effect::CallSwarm`].
    AskControlPlane(ControlPlaneCall),
}

/// A message to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToCoordinator {
    /// A durable event. Sent again on every session until it is acknowledged.
    Event {
        /// Number of the event.
        seq: Seq,
        /// Status that it reports.
        status: Arc<ItemStatus>,
    },
    /// The answer to an assignment.
    Answer {
        /// Generation of the assignment.
        generation: Generation,
        /// None = accepted.
        refusal: Option<Refusal>,
    },
    /// Answer to a call of the coordinator. A lost session loses it; the coordinator's deadline covers that.
    Swarm(SwarmAnswer),
    /// Answer to a question about the machine's part of a control plane; lost like that.
    ControlPlane(ControlPlaneAnswer),
    /// The permit of this number is void: nothing will start under it.
    PermitWanted(u64),
    /// Why the agent is blocked; None clears it.
    Blocked(Option<AgentBlocked>),
}

/// Reason why the agent itself is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentBlocked {
    /// The named reason, such as `DiskFull`.
    pub reason: Reason,
    /// The problem and its fix, in one sentence.
    pub message: Cow<'static, str>,
}
