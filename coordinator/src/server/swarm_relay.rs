//! Calls about a swarm that are under way to agents, and their answers on the way back. What is called nobody but the
//! caller sees; nothing of it is stored.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_proto::model::{
    Epoch, MachineId, SwarmAnswer, SwarmCall, SwarmFailure, SwarmFailureCode, SwarmOp, SwarmReply,
};
use tokio::{sync::oneshot, time::timeout};

/// Bits of a call's id that count the calls of one epoch. The epoch stands above them: an answer that comes late is
/// never taken for one to a later coordinator's call.
const COUNT_BITS: u32 = 32;

/// Calls under way at one time, of all machines together.
const CALLS_MAX: usize = 256;

type Answer = Result<SwarmReply, SwarmFailure>;

/// The calls under way.
#[derive(Default)]
pub(super) struct SwarmRelay(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    made: u64,
    open: BTreeMap<(MachineId, u64), (SwarmOp, oneshot::Sender<Answer>)>,
}

impl SwarmRelay {
    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new call to a machine, to be sent, and what comes of it.
    pub(super) fn open(
        &self,
        id: MachineId,
        epoch: Epoch,
        op: SwarmOp,
    ) -> Result<(SwarmCall, oneshot::Receiver<Answer>), SwarmFailure> {
        let mut calls = self.calls();
        if calls.open.len() >= CALLS_MAX {
            let message = format!("{CALLS_MAX} calls are under way already; ask again later");
            return Err(failure(SwarmFailureCode::Busy, message));
        }
        calls.made += 1;
        let call = SwarmCall { id: (epoch.0 << COUNT_BITS) + calls.made, epoch, op: op.clone() };
        let (answer, answered) = oneshot::channel();
        calls.open.insert((id, call.id), (op, answer));
        Ok((call, answered))
    }

    /// Waits for the answer; a failure stands for none.
    pub(super) async fn answer(
        &self,
        id: MachineId,
        call: u64,
        answered: oneshot::Receiver<Answer>,
        patience: Duration,
    ) -> Answer {
        let late = || failure(SwarmFailureCode::Timeout, format!("no answer within {} s", patience.as_secs_f32()));
        let gone = || failure(SwarmFailureCode::Engine, "the machine is not connected".to_owned());
        let answer = match timeout(patience, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(late()),
        };
        self.forget(id, call);
        answer
    }

    /// Waits for this answer no longer.
    pub(super) fn forget(&self, id: MachineId, call: u64) {
        self.calls().open.remove(&(id, call));
    }

    /// An answer from an agent. What nobody waits for is dropped, and so is what does not answer the question.
    pub(super) fn came(&self, id: MachineId, answer: SwarmAnswer) {
        let Some((op, caller)) = self.calls().open.remove(&(id, answer.id)) else { return };
        let result = match answer.result {
            Ok(reply) if !op.is_answered_by(&reply) => {
                Err(failure(SwarmFailureCode::Engine, "the agent answered another question".to_owned()))
            }
            result => result,
        };
        // A caller that has given up needs no answer.
        drop(caller.send(result));
    }

    /// The machine's stream is over, and with it what was asked on it.
    pub(super) fn end_of_session(&self, id: MachineId) {
        self.calls().open.retain(|(machine, _), _| *machine != id);
    }
}

const fn failure(code: SwarmFailureCode, message: String) -> SwarmFailure {
    SwarmFailure { code, message }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use muster_proto::{model::SwarmAvailability, wire::coordinator_message::Body};
    use uuid::Uuid;

    use super::{
        super::{judge::Caller, sessions::Sessions},
        *,
    };

    const ID: MachineId = MachineId(Uuid::from_u128(1));
    const OTHER: MachineId = MachineId(Uuid::from_u128(2));
    const PATIENCE: Duration = Duration::from_secs(20);

    async fn call(sessions: &Sessions, op: SwarmOp, patience: Duration) -> Result<SwarmReply, SwarmFailureCode> {
        sessions.call_swarm(ID, Epoch(3), op, patience).await.map_err(|failure| failure.code)
    }

    /// Makes a call; `agent` says what the agent does about it.
    async fn called(
        op: SwarmOp,
        patience: Duration,
        agent: impl FnOnce(&Sessions, u64, SwarmCall),
    ) -> Result<SwarmReply, SwarmFailureCode> {
        let sessions = Sessions::default();
        let (number, mut outgoing) = sessions.open(ID, Caller::nobody());
        let answered = call(&sessions, op, patience);
        let asked = async {
            match outgoing.next().await.expect("sent").expect("a message").body {
                Some(Body::SwarmCall(call)) => agent(&sessions, number, SwarmCall::try_from(call).expect("a call")),
                other => panic!("{other:?}"),
            }
        };
        tokio::join!(answered, asked).0
    }

    fn answer(id: u64, reply: SwarmReply) -> SwarmAnswer {
        SwarmAnswer { id, result: Ok(reply) }
    }

    #[tokio::test]
    async fn an_answer_reaches_its_caller() {
        let got = called(SwarmOp::Nodes, PATIENCE, |sessions, _, call| {
            assert_eq!((call.epoch, call.op), (Epoch(3), SwarmOp::Nodes));
            assert_eq!(call.id >> COUNT_BITS, 3, "no later coordinator gives the same id");
            sessions.swarm_answered(OTHER, answer(call.id, SwarmReply::Done));
            sessions.swarm_answered(ID, answer(call.id + 1, SwarmReply::Done));
            sessions.swarm_answered(ID, answer(call.id, SwarmReply::Nodes(Vec::new())));
            sessions.swarm_answered(ID, answer(call.id, SwarmReply::Done));
        });
        assert_eq!(got.await, Ok(SwarmReply::Nodes(Vec::new())));
    }

    #[tokio::test]
    async fn what_does_not_answer_the_question_is_a_failure() {
        let node = muster_proto::model::SwarmId::new("n1").expect("an id");
        let op = SwarmOp::SetAvailability { node, availability: SwarmAvailability::Drain };
        let got = called(op, PATIENCE, |sessions, _, call| {
            sessions.swarm_answered(ID, answer(call.id, SwarmReply::Nodes(Vec::new())));
        });
        assert_eq!(got.await, Err(SwarmFailureCode::Engine));
    }

    #[tokio::test]
    async fn only_so_many_at_once() {
        let relay = SwarmRelay::default();
        let open = || relay.open(ID, Epoch(1), SwarmOp::Info).map(|(call, _)| call.id).map_err(|failure| failure.code);
        let first = open().expect("called");
        assert_eq!((1..CALLS_MAX).filter(|_| open().is_ok()).count(), CALLS_MAX - 1);
        assert_eq!(open(), Err(SwarmFailureCode::Busy));
        relay.forget(ID, first);
        assert!(open().is_ok());
    }

    #[tokio::test]
    async fn no_answer_is_a_failure() {
        let silent = called(SwarmOp::Info, Duration::from_millis(1), |_, _, _| {});
        assert_eq!(silent.await, Err(SwarmFailureCode::Timeout));
        let gone = called(SwarmOp::Info, PATIENCE, |sessions, number, _| {
            sessions.end(ID, number, tonic::Status::unavailable("gone"));
        });
        assert_eq!(gone.await, Err(SwarmFailureCode::Engine));
        assert_eq!(call(&Sessions::default(), SwarmOp::Info, PATIENCE).await, Err(SwarmFailureCode::Engine));
    }
}
