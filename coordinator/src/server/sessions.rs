//! Connected agents and their outgoing messages. Each machine has one session, the newest. Queues are bounded: an agent
//! that stops reading is cut off, and asks again after it reconnects.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use muster_proto::{
    Message as _,
    address::Addresses,
    model::{
        ControlPlaneAnswer, ControlPlaneCall, ControlPlaneOp, ControlPlaneReply, Epoch, MachineId, SwarmAnswer,
        SwarmCall, SwarmFailure, SwarmOp, SwarmReply,
    },
    wire::{self, CoordinatorMessage, coordinator_message::Body},
};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use super::{
    authenticator::Caller,
    control_plane_relay::{self, ControlPlaneRelay},
    log_relay::{LogRelay, LogStream},
    status::SESSION_REPLACED,
    swarm_relay::{self, Asker, SwarmRelay},
};
use crate::{
    core::{Effect, KubernetesQuestion, SwarmQuestion},
    engine::Outbox,
};

/// Most bytes queued for one agent.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;
/// Upper bound of a message's overhead.
const MESSAGE_BYTES: usize = 256;

/// The agents' streams.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Inner>);

#[derive(Default)]
struct Inner {
    live: Mutex<BTreeMap<MachineId, Session>>,
    last_number: AtomicU64,
    logs: LogRelay,
    swarm: SwarmRelay,
    control_plane: ControlPlaneRelay,
    ending: watch::Sender<bool>,
    questions: Questions<SwarmQuestion>,
    kubernetes: Questions<KubernetesQuestion>,
}

/// Questions from the engine to the task that asks them. At most one per machine is under way.
struct Questions<T> {
    ask: mpsc::UnboundedSender<T>,
    asked: Mutex<Option<mpsc::UnboundedReceiver<T>>>,
}

impl<T> Default for Questions<T> {
    fn default() -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        Self { ask, asked: Mutex::new(Some(asked)) }
    }
}

impl Inner {
    /// End the requests on a machine's stream, which is over.
    fn end_of_session(&self, id: MachineId) {
        self.logs.end_of_session(id);
        self.swarm.end_of_session(id);
        self.control_plane.end_of_session(id);
    }
}

struct Session {
    number: u64,
    caller: Caller,
    queue: mpsc::UnboundedSender<CoordinatorMessage>,
    queued_bytes: Arc<AtomicUsize>,
    end: Option<oneshot::Sender<Status>>,
    /// Why it was closed: the task that reads from its agent stops.
    closed: watch::Sender<Option<Status>>,
}

impl Session {
    /// End the stream, with a status for a peer that reads.
    fn close(mut self, status: Status) {
        self.closed.send_replace(Some(status.clone()));
        if let Some(end) = self.end.take() {
            // The stream may have ended by itself.
            drop(end.send(status));
        }
    }
}

/// Messages for one agent: the response of its stream.
pub(super) struct Outgoing {
    queue: mpsc::UnboundedReceiver<CoordinatorMessage>,
    queued_bytes: Arc<AtomicUsize>,
    end: oneshot::Receiver<Status>,
    ended: bool,
}

impl Stream for Outgoing {
    type Item = Result<CoordinatorMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(end) = Pin::new(&mut self.end).poll(context) {
            self.ended = true;
            return Poll::Ready(end.ok().map(Err));
        }
        let next = std::task::ready!(self.queue.poll_recv(context));
        if let Some(message) = &next {
            self.queued_bytes.fetch_sub(message.encoded_len() + MESSAGE_BYTES, Ordering::Relaxed);
        }
        Poll::Ready(next.map(Ok))
    }
}

impl Sessions {
    fn live(&self) -> std::sync::MutexGuard<'_, BTreeMap<MachineId, Session>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open a machine's session, replacing an older one. Return its number and its outgoing messages.
    pub(super) fn open(&self, id: MachineId, caller: Caller) -> (u64, Outgoing) {
        let number = self.0.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let to = caller.address;
        let (queue, outgoing) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let (end, closed) = (Some(end), watch::Sender::new(None));
        let session = Session { number, caller, queue, queued_bytes: Arc::clone(&queued_bytes), end, closed };
        let old = self.live().insert(id, session);
        if let Some(old) = old {
            self.0.end_of_session(id);
            tracing::info!(machine = %id, from = %old.caller.address, to = %to, "a newer stream took this one's place");
            old.close(Status::aborted(SESSION_REPLACED));
        }
        (number, Outgoing { queue: outgoing, queued_bytes, end: ended, ended: false })
    }

    /// Completes when the session is closed or replaced, with the reason.
    pub(super) fn over(&self, id: MachineId, number: u64) -> impl Future<Output = Status> + Send + use<> {
        let live = self.live();
        let session = live.get(&id).filter(|session| session.number == number);
        let closed = session.map(|session| session.closed.subscribe());
        async move {
            let said = match closed {
                Some(mut closed) => closed.wait_for(Option::is_some).await.ok().and_then(|said| said.clone()),
                None => None,
            };
            said.unwrap_or_else(|| Status::aborted(SESSION_REPLACED))
        }
    }

    /// End a session with a status for its peer, if it is still the machine's.
    pub(super) fn end(&self, id: MachineId, number: u64, status: Status) {
        let session = {
            let mut live = self.live();
            live.get(&id).is_some_and(|session| session.number == number).then(|| live.remove(&id)).flatten()
        };
        if let Some(session) = session {
            self.0.end_of_session(id);
            session.close(status);
        }
    }

    /// End every session, and complete [`Self::ending`]: the coordinator is ending.
    pub fn end_all(&self) {
        self.0.ending.send_replace(true);
        let live = std::mem::take(&mut *self.live());
        for (id, session) in live {
            self.0.end_of_session(id);
            session.close(going());
        }
    }

    /// Completes when the coordinator ends.
    pub(super) fn ending(&self) -> impl Future<Output = Status> + Send + use<> {
        let mut ending = self.0.ending.subscribe();
        async move {
            // If the sessions are gone, so is the coordinator.
            drop(ending.wait_for(|ending| *ending).await);
            going()
        }
    }

    /// Send to the machine's session; `number` restricts it to that session. False: the session is gone.
    pub(super) fn send(&self, id: MachineId, number: Option<u64>, body: Body) -> bool {
        let message = CoordinatorMessage { body: Some(body) };
        let bytes = message.encoded_len() + MESSAGE_BYTES;
        let mut live = self.live();
        let Some(session) = live.get(&id).filter(|session| number.is_none_or(|number| session.number == number)) else {
            return false;
        };
        if session.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES_MAX {
            return session.queue.send(message).is_ok();
        }
        let session = live.remove(&id);
        drop(live);
        if let Some(session) = session {
            tracing::warn!(machine = %id, "cut off: it does not read what it is sent");
            self.0.end_of_session(id);
            session.caller.hang_up();
            session.close(Status::resource_exhausted("QueueFull: the agent does not read"));
        }
        false
    }

    /// Tell every agent the coordinator's addresses.
    pub(super) fn tell_addresses(&self, addresses: Option<&Addresses>) {
        let Some(addresses) = addresses else { return };
        let ids: Vec<MachineId> = self.live().keys().copied().collect();
        for id in ids {
            // An agent that has gone meanwhile is told when it comes back.
            self.send(id, None, addresses_told(addresses));
        }
    }

    /// Ask a machine for an item's output, for `peer`.
    pub(super) fn request_log(
        &self,
        peer: &str,
        id: MachineId,
        item: String,
        follow: bool,
    ) -> Result<LogStream, Status> {
        let (request_id, log) = self.0.logs.open(peer, id, self.clone())?;
        if self.send(id, None, Body::LogRequest(wire::LogRequest { request_id, item, follow })) {
            return Ok(log);
        }
        Err(Status::failed_precondition(
            "NotConnected: the machine is not connected, and its output is on its own disk; it can be read when its \
             agent connects again",
        ))
    }

    /// Deliver a piece of output.
    pub(super) fn log_came(&self, id: MachineId, chunk: wire::LogChunk) {
        self.0.logs.came(id, chunk);
    }

    /// Ask a machine's agent about its swarm, for this asker, and return the answer.
    ///
    /// # Errors
    /// [`SwarmFailure`] of the agent, or one for a missing answer after `patience`.
    pub async fn call_swarm(
        &self,
        (id, epoch): (MachineId, Epoch),
        op: SwarmOp,
        asker: Asker,
        time_limit: Duration,
    ) -> Result<SwarmReply, SwarmFailure> {
        let pending = self.0.swarm.open(id, epoch, op.clone(), asker)?;
        if !self.send(id, None, Body::SwarmCall((&SwarmCall { id: pending.id, epoch, op }).into())) {
            pending.unsent();
        }
        pending.answer(time_limit, swarm_relay::no_answer).await
    }

    /// Ask a control machine's agent about its part of the control plane, and return the answer.
    ///
    /// # Errors
    /// Why there is none, in one line.
    pub async fn call_control_plane(
        &self,
        (id, epoch): (MachineId, Epoch),
        op: ControlPlaneOp,
        time_limit: Duration,
    ) -> Result<ControlPlaneReply, String> {
        let pending = self.0.control_plane.open(id, epoch, op.clone())?;
        if !self.send(id, None, Body::ControlPlaneCall((&ControlPlaneCall { id: pending.id, epoch, op }).into())) {
            pending.unsent();
        }
        pending.answer(time_limit, control_plane_relay::no_answer).await
    }

    /// Deliver an answer about a control plane.
    pub(super) fn control_plane_answered(&self, id: MachineId, answer: ControlPlaneAnswer) {
        self.0.control_plane.came(id, answer);
    }

    /// Questions about swarms, for the task that asks them. None: they are already taken.
    pub fn questions(&self) -> Option<mpsc::UnboundedReceiver<SwarmQuestion>> {
        self.0.questions.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Questions to Kubernetes API servers, for the task that asks them. None: they are already taken.
    pub fn kubernetes_questions(&self) -> Option<mpsc::UnboundedReceiver<KubernetesQuestion>> {
        self.0.kubernetes.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Deliver an answer about a swarm.
    pub(super) fn swarm_answered(&self, id: MachineId, answer: SwarmAnswer) {
        self.0.swarm.came(id, answer);
    }

    /// End a request whose reader is gone.
    pub(super) fn cancel_log(&self, id: MachineId, request_id: u64) {
        self.0.logs.forget(id, request_id);
        self.send(id, None, Body::LogCancel(wire::LogCancel { request_id }));
    }
}

#[cfg(test)]
impl Sessions {
    /// Connect an agent that answers questions about its control plane like this.
    pub(crate) fn connect_agent<T>(&self, id: MachineId, answer: impl Fn(ControlPlaneOp) -> T + Send + 'static)
    where
        T: Future<Output = Result<ControlPlaneReply, String>> + Send,
    {
        use futures_util::StreamExt as _;

        let (_, mut outgoing) = self.open(id, Caller::nobody());
        let sessions = self.clone();
        tokio::spawn(async move {
            while let Some(Ok(CoordinatorMessage { body: Some(Body::ControlPlaneCall(call)) })) = outgoing.next().await
            {
                let call = ControlPlaneCall::try_from(call).unwrap();
                let result = answer(call.op).await;
                sessions.control_plane_answered(id, ControlPlaneAnswer { id: call.id, result });
            }
        });
    }
}

/// The coordinator's addresses as a message to an agent.
pub(super) fn addresses_told(addresses: &Addresses) -> Body {
    Body::Addresses(wire::CoordinatorAddresses { addresses: addresses.clone().into() })
}

fn going() -> Status {
    Status::unavailable("the coordinator is shutting down")
}

impl Outbox for Sessions {
    fn perform(&self, effect: Effect) {
        match effect {
            Effect::Assign { id, assignment } => {
                self.send(id, None, Body::Assignment((&assignment).into()));
            }
            Effect::Ack { id, session, seq, proof } => {
                self.send(id, Some(session), Body::Ack(wire::Ack { seq: seq.0, proof: Some(proof.into()) }));
            }
            // If the receiver is gone, the coordinator is ending and the question is obsolete.
            Effect::AskSwarm(question) => drop(self.0.questions.ask.send(question)),
            Effect::AskKubernetes(question) => drop(self.0.kubernetes.ask.send(question)),
            Effect::Close { id, reason } => {
                let session = self.live().remove(&id);
                if let Some(session) = session {
                    tracing::info!(machine = %id, reason, "stream closed");
                    self.0.end_of_session(id);
                    session.close(Status::permission_denied(reason));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};
    use muster_proto::model::{AckProof, Seq};
    use tonic::Code;
    use uuid::Uuid;

    use super::*;

    const ID: MachineId = MachineId(Uuid::from_u128(1));

    fn ack(seq: u64) -> Body {
        Body::Ack(wire::Ack { seq, proof: Some(AckProof::NONE.into()) })
    }

    async fn drain(mut outgoing: Outgoing) -> (Vec<u64>, Option<Code>) {
        let mut seqs = Vec::new();
        while let Some(next) = outgoing.next().await {
            match next.map(|message| message.body) {
                Ok(Some(Body::Ack(ack))) => seqs.push(ack.seq),
                Ok(other) => panic!("{other:?}"),
                Err(status) => return (seqs, Some(status.code())),
            }
        }
        (seqs, None)
    }

    #[tokio::test]
    async fn the_newest_stream_wins() {
        let sessions = Sessions::default();
        assert!(!sessions.send(ID, None, ack(0)), "nobody is there");
        let (first, old) = sessions.open(ID, Caller::nobody());
        assert!(sessions.send(ID, None, ack(1)));
        let over = sessions.over(ID, first);
        let (second, new) = sessions.open(ID, Caller::nobody());
        assert_eq!(over.await.message(), SESSION_REPLACED);
        assert!(!sessions.send(ID, Some(first), ack(2)), "not to a stream that is gone");
        assert!(sessions.send(ID, Some(second), ack(3)));
        sessions.end(ID, first, Status::ok("late"));
        assert!(sessions.over(ID, second).now_or_never().is_none(), "the end of the old one ends not the new one");
        sessions.end(ID, second, Status::unavailable("over"));
        assert!(!sessions.send(ID, None, ack(4)));
        assert_eq!(drain(old).await.1, Some(Code::Aborted));
        assert_eq!(drain(new).await.1, Some(Code::Unavailable));
    }

    #[tokio::test]
    async fn who_does_not_read_is_cut_off() {
        let sessions = Sessions::default();
        let (_, outgoing) = sessions.open(ID, Caller::nobody());
        let big = || Body::LogRequest(wire::LogRequest { item: "x".repeat(300_000), ..Default::default() });
        assert!(sessions.send(ID, None, big()) && sessions.send(ID, None, big()) && sessions.send(ID, None, big()));
        assert!(!sessions.send(ID, None, big()), "1 MiB is the limit");
        assert!(!sessions.send(ID, None, ack(1)), "and the session is over");
        assert_eq!(drain(outgoing).await.1, Some(Code::ResourceExhausted));
    }

    #[tokio::test]
    async fn who_reads_may_be_sent_any_amount() {
        let sessions = Sessions::default();
        let (_, mut outgoing) = sessions.open(ID, Caller::nobody());
        for _ in 0..20 {
            let big = Body::LogRequest(wire::LogRequest { item: "x".repeat(300_000), ..Default::default() });
            assert!(sessions.send(ID, None, big));
            outgoing.next().await.expect("sent").expect("a message");
        }
    }

    #[tokio::test]
    async fn effects_reach_their_stream() {
        let sessions = Sessions::default();
        let (number, mut outgoing) = sessions.open(ID, Caller::nobody());
        sessions.perform(Effect::Ack { id: ID, session: number + 1, seq: Seq(8), proof: AckProof::NONE });
        sessions.perform(Effect::Ack { id: ID, session: number, seq: Seq(7), proof: AckProof::NONE });
        let sent = outgoing.next().await.expect("sent").expect("a message");
        assert_eq!(sent.body, Some(ack(7)), "what is for another stream is not sent");
        let over = sessions.over(ID, number);
        sessions.perform(Effect::Close { id: ID, reason: "revoked".to_owned() });
        assert_eq!(over.await.message(), "revoked", "nobody took its place");
        assert_eq!(drain(outgoing).await, (vec![], Some(Code::PermissionDenied)));
    }
}
