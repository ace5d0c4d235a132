//! Questions under way to agents of control machines, and their answers.

use std::time::Duration;

use muster_proto::model::{ControlPlaneAnswer, ControlPlaneOp, ControlPlaneReply, Epoch, MachineId};

use super::relay::{self, CALLS_MAX, NoAnswer, Relay};

type Answer = Result<ControlPlaneReply, String>;
type Pending<'a> = relay::Pending<'a, ControlPlaneOp, Answer>;

/// Calls under way.
#[derive(Default)]
pub(super) struct ControlPlaneRelay(Relay<ControlPlaneOp, Answer>);

/// What a missing answer becomes.
pub(super) fn no_answer(why: NoAnswer, time_limit: Duration) -> Answer {
    Err(match why {
        // An agent of an earlier version ignores the question.
        NoAnswer::Late => {
            format!("its agent does not answer within {} s; is it of this version?", time_limit.as_secs())
        }
        NoAnswer::NotConnected => "its agent is not connected".to_owned(),
    })
}

impl ControlPlaneRelay {
    /// Open a new call to a machine; the caller sends it.
    pub(super) fn open(&self, to: MachineId, epoch: Epoch, op: ControlPlaneOp) -> Result<Pending<'_>, String> {
        let refusal = || format!("{CALLS_MAX} questions are under way already; it is asked again");
        self.0.open((to, epoch), op, |open| (open.len() >= CALLS_MAX).then(refusal))
    }

    /// Deliver an answer from an agent. One to another question becomes a failure.
    pub(super) fn came(&self, from: MachineId, answer: ControlPlaneAnswer) {
        self.0.came(from, answer.id, |op| match answer.result {
            Ok(reply) if !op.is_answered_by(&reply) => Err("its agent answered another question".to_owned()),
            result => result,
        });
    }

    /// End the calls on the machine's stream, which is over.
    pub(super) fn end_of_session(&self, id: MachineId) {
        self.0.end_of_session(id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use muster_proto::{
        model::{ControlPlaneCall, EtcdHealth, EtcdProbe},
        wire::coordinator_message::Body,
    };
    use uuid::Uuid;

    use super::{
        super::{authenticator::Caller, relay::COUNT_BITS, sessions::Sessions},
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
