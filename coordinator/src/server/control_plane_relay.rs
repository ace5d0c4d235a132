//! Questions under way to agents of control machines, and their answers. Only the caller sees an answer.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_proto::model::{ControlPlaneAnswer, ControlPlaneCall, ControlPlaneOp, ControlPlaneReply, Epoch, MachineId};
use tokio::{sync::oneshot, time::timeout};

/// Bits of a call's id for the count within one epoch. The higher bits hold the epoch, so a late answer matches only a
/// call of its own coordinator.
const COUNT_BITS: u32 = 32;
/// Most calls under way.
const CALLS_MAX: usize = 256;

type Answer = Result<ControlPlaneReply, String>;

/// Calls under way.
#[derive(Default)]
pub(super) struct ControlPlaneRelay(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    made: u64,
    open: BTreeMap<(MachineId, u64), (ControlPlaneOp, oneshot::Sender<Answer>)>,
}

/// A call under way. Dropping it ends the wait.
pub(super) struct Pending<'a> {
    relay: &'a ControlPlaneRelay,
    to: MachineId,
    /// The call to send.
    pub(super) call: ControlPlaneCall,
    answered: oneshot::Receiver<Answer>,
}

impl Pending<'_> {
    /// Wait for the answer; a missing one becomes a failure.
    pub(super) async fn answer(mut self, time_limit: Duration) -> Answer {
        match timeout(time_limit, &mut self.answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err("its agent is not connected".to_owned())),
            Err(_) => {
                // An agent of an earlier version ignores the question.
                Err(format!("its agent does not answer within {} s; is it of this version?", time_limit.as_secs()))
            }
        }
    }

    /// Record that sending the call failed.
    pub(super) fn unsent(&self) {
        self.relay.calls().open.remove(&(self.to, self.call.id));
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.unsent();
    }
}

impl ControlPlaneRelay {
    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open a new call to a machine; the caller sends it.
    pub(super) fn open(&self, to: MachineId, epoch: Epoch, op: ControlPlaneOp) -> Result<Pending<'_>, String> {
        let mut calls = self.calls();
        if calls.open.len() >= CALLS_MAX {
            return Err(format!("{CALLS_MAX} questions are under way already; it is asked again"));
        }
        calls.made += 1;
        let call = ControlPlaneCall { id: (epoch.0 << COUNT_BITS) + calls.made, epoch, op: op.clone() };
        let (caller, answered) = oneshot::channel();
        calls.open.insert((to, call.id), (op, caller));
        Ok(Pending { relay: self, to, call, answered })
    }

    /// Deliver an answer from an agent. An unexpected one is dropped; one to another question becomes a failure.
    pub(super) fn came(&self, id: MachineId, answer: ControlPlaneAnswer) {
        let Some((op, caller)) = self.calls().open.remove(&(id, answer.id)) else { return };
        let result = match answer.result {
            Ok(reply) if !op.is_answered_by(&reply) => Err("its agent answered another question".to_owned()),
            result => result,
        };
        // The caller may have given up.
        drop(caller.send(result));
    }

    /// End the calls on the machine's stream, which is over.
    pub(super) fn end_of_session(&self, id: MachineId) {
        self.calls().open.retain(|(machine, _), _| *machine != id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use muster_proto::{
        model::{EtcdHealth, EtcdProbe},
        wire::coordinator_message::Body,
    };
    use uuid::Uuid;

    use super::{
        super::{authenticator::Caller, sessions::Sessions},
        *,
    };

    const ID: MachineId = MachineId(Uuid::from_u128(1));
    const OTHER: MachineId = MachineId(Uuid::from_u128(2));
    const HEALTHY: ControlPlaneReply = ControlPlaneReply::EtcdHealth(EtcdHealth::Healthy);

    fn op() -> ControlPlaneOp {
        let health = "http://127.0.0.1:2381/health".to_owned();
        ControlPlaneOp::EtcdHealth(EtcdProbe { health, ca_file: None, client: None })
    }

    #[tokio::test]
    async fn control_plane_answer_reaches_its_caller() {
        let sessions = Sessions::default();
        let (_, mut outgoing) = sessions.open(ID, Caller::nobody());
        let called = sessions.call_control_plane((ID, Epoch(3)), op(), Duration::from_secs(20));
        let asked = async {
            let Some(Body::ControlPlaneCall(call)) = outgoing.next().await.expect("sent").expect("a message").body
            else {
                panic!("another message");
            };
            let call = ControlPlaneCall::try_from(call).expect("a call");
            assert_eq!((call.epoch, call.op, call.id >> COUNT_BITS), (Epoch(3), op(), 3));
            let answer = |id, result| ControlPlaneAnswer { id, result };
            sessions.control_plane_answered(OTHER, answer(call.id, Err("of another".to_owned())));
            sessions.control_plane_answered(ID, answer(call.id + 1, Err("to another".to_owned())));
            sessions.control_plane_answered(ID, answer(call.id, Ok(HEALTHY)));
        };
        assert_eq!(tokio::join!(called, asked).0, Ok(HEALTHY));
    }

    #[tokio::test]
    async fn missing_control_plane_answer_is_failure() {
        let sessions = Sessions::default();
        let call = |limit| sessions.call_control_plane((ID, Epoch(3)), op(), limit);
        let gone = call(Duration::from_secs(20)).await.expect_err("nobody is there");
        assert!(gone.contains("not connected"), "{gone}");
        let (number, _outgoing) = sessions.open(ID, Caller::nobody());
        let silent = call(Duration::from_millis(1)).await.expect_err("nobody answers");
        assert!(silent.contains("does not answer"), "{silent}");
        let ends = async { sessions.end(ID, number, tonic::Status::unavailable("gone")) };
        let (gone, ()) = tokio::join!(call(Duration::from_secs(20)), ends);
        assert!(gone.expect_err("its stream is over").contains("not connected"));
    }

    #[tokio::test]
    async fn control_plane_calls_are_bounded() {
        let relay = ControlPlaneRelay::default();
        let mut pending: Vec<_> = (0..CALLS_MAX).map(|_| relay.open(ID, Epoch(1), op()).expect("asked")).collect();
        assert!(relay.open(ID, Epoch(1), op()).is_err());
        pending.pop();
        assert!(relay.open(ID, Epoch(1), op()).is_ok(), "nobody waits for it any more");
    }
}
