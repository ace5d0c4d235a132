//! Swarm calls under way to agents, and their answers.

use std::time::Duration;

use muster_proto::model::{Epoch, MachineId, SwarmAnswer, SwarmFailure, SwarmFailureCode, SwarmOp, SwarmReply};

use super::relay::{self, CALLS_MAX, NoAnswer, Relay};

/// Share of all calls for machines that want to join: the other half is for drains and removals.
const CALLS_FOR_MACHINES_MAX: usize = CALLS_MAX / 2;
/// Most calls for one such machine. It makes them one after another; the second allows for a retry after a lost stream.
const CALLS_FOR_MACHINE_MAX: usize = 2;
/// Most calls to one agent for machines that want to join. An agent takes 8 at once; the rest is for drains and
/// removals.
const CALLS_TO_AGENT_FOR_MACHINES_MAX: usize = 6;

/// On whose behalf a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The engine: an update or a removal waits for the answer.
    Engine,
    /// A machine that wants to join the swarm. It decides itself how often it asks.
    Machine(MachineId),
}

type Answer = Result<SwarmReply, SwarmFailure>;
type Question = (SwarmOp, Asker);
type Pending<'a> = relay::Pending<'a, Question, Answer>;

/// Calls under way.
#[derive(Default)]
pub(super) struct SwarmRelay(Relay<Question, Answer>);

/// What a missing answer becomes.
pub(super) fn no_answer(why: NoAnswer, time_limit: Duration) -> Answer {
    Err(match why {
        NoAnswer::Late => {
            failure(SwarmFailureCode::Timeout, format!("no answer within {} s", time_limit.as_secs_f32()))
        }
        NoAnswer::NotConnected => failure(SwarmFailureCode::Engine, "the machine is not connected".to_owned()),
    })
}

impl SwarmRelay {
    /// Open a new call to a machine; the caller sends it.
    pub(super) fn open(
        &self,
        to: MachineId,
        epoch: Epoch,
        op: SwarmOp,
        asker: Asker,
    ) -> Result<Pending<'_>, SwarmFailure> {
        self.0.open((to, epoch), (op, asker), |open| too_many(open, to, asker))
    }

    /// Deliver an answer from an agent. One for another operation becomes a failure.
    pub(super) fn came(&self, from: MachineId, answer: SwarmAnswer) {
        self.0.came(from, answer.id, |(op, _)| match answer.result {
            Ok(reply) if !op.is_answered_by(&reply) => {
                Err(failure(SwarmFailureCode::Engine, "the agent answered another question".to_owned()))
            }
            result => result,
        });
    }

    /// End the calls on the machine's stream, which is over.
    pub(super) fn end_of_session(&self, id: MachineId) {
        self.0.end_of_session(id);
    }
}

/// Why a further call to this agent for this asker would exceed a limit.
fn too_many(open: &[(MachineId, &Question)], to: MachineId, asker: Asker) -> Option<SwarmFailure> {
    let count = |counts: &dyn Fn(MachineId, Asker) -> bool| {
        open.iter().filter(|(agent, (_, asker))| counts(*agent, *asker)).count()
    };
    let of_machines = |asker: Asker| asker != Asker::Engine;
    let shares = [
        (open.len(), CALLS_MAX, ""),
        (count(&|_, other| other == asker), CALLS_FOR_MACHINE_MAX, " for this machine"),
        (count(&|_, other| of_machines(other)), CALLS_FOR_MACHINES_MAX, " for machines that join"),
        (
            count(&|agent, other| agent == to && of_machines(other)),
            CALLS_TO_AGENT_FOR_MACHINES_MAX,
            " to this manager for machines that join",
        ),
    ];
    let concern_it = if of_machines(asker) { shares.len() } else { 1 };
    let (_, most, which) = shares.into_iter().take(concern_it).find(|(under_way, most, _)| under_way >= most)?;
    let message = format!("{most} calls{which} are under way already; ask again later");
    Some(failure(SwarmFailureCode::Busy, message))
}

const fn failure(code: SwarmFailureCode, message: String) -> SwarmFailure {
    SwarmFailure { code, message }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use muster_proto::{
        model::{SwarmAvailability, SwarmCall},
        wire::coordinator_message::Body,
    };
    use uuid::Uuid;

    use super::{
        super::{authenticator::Caller, relay::COUNT_BITS, sessions::Sessions},
        *,
    };

    const ID: MachineId = MachineId(Uuid::from_u128(1));
    const OTHER: MachineId = MachineId(Uuid::from_u128(2));
    const TIME_LIMIT: Duration = Duration::from_secs(20);

    async fn call(sessions: &Sessions, op: SwarmOp, time_limit: Duration) -> Result<SwarmReply, SwarmFailureCode> {
        sessions.call_swarm((ID, Epoch(3)), op, Asker::Engine, time_limit).await.map_err(|failure| failure.code)
    }

    /// Make a call; `agent` plays the agent's part.
    async fn called(
        op: SwarmOp,
        time_limit: Duration,
        agent: impl FnOnce(&Sessions, u64, SwarmCall),
    ) -> Result<SwarmReply, SwarmFailureCode> {
        let sessions = Sessions::default();
        let (number, mut outgoing) = sessions.open(ID, Caller::nobody());
        let answered = call(&sessions, op, time_limit);
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
        let got = called(SwarmOp::Nodes, TIME_LIMIT, |sessions, _, call| {
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
        let got = called(op, TIME_LIMIT, |sessions, _, call| {
            sessions.swarm_answered(ID, answer(call.id, SwarmReply::Nodes(Vec::new())));
        });
        assert_eq!(got.await, Err(SwarmFailureCode::Engine));
    }

    #[tokio::test]
    async fn only_so_many_at_once() {
        let relay = SwarmRelay::default();
        let open = || relay.open(ID, Epoch(1), SwarmOp::Info, Asker::Engine).map_err(|failure| failure.code);
        let mut pending: Vec<_> = (0..CALLS_MAX).map(|_| open().expect("called")).collect();
        assert_eq!(open().err(), Some(SwarmFailureCode::Busy));
        pending.pop();
        assert!(open().is_ok(), "nobody waits for it any more");
    }

    /// Drains, removals and other joining machines continue, however many inputs these ask for.
    #[tokio::test]
    async fn machines_that_join_do_not_take_all_calls() {
        let relay = SwarmRelay::default();
        let machine = |n: u128| MachineId(Uuid::from_u128(n));
        let open =
            |to, asker| relay.open(machine(to), Epoch(1), SwarmOp::Info, asker).map_err(|failure| failure.message);
        let all_of =
            |to, by: u128| -> Vec<_> { (0..9).map_while(|_| open(to, Asker::Machine(machine(by))).ok()).collect() };
        let own = all_of(1, 1);
        assert_eq!(own.len(), CALLS_FOR_MACHINE_MAX);
        let refused = open(9, Asker::Machine(machine(1))).err();
        assert_eq!(refused.as_deref(), Some("2 calls for this machine are under way already; ask again later"));

        let to_manager: Vec<_> = (2..20).flat_map(|by| all_of(1_000, by)).collect();
        assert_eq!(to_manager.len(), CALLS_TO_AGENT_FOR_MACHINES_MAX);
        let others: Vec<_> = (100..300).flat_map(|by| all_of(by, by)).collect();
        assert_eq!(own.len() + to_manager.len() + others.len(), CALLS_FOR_MACHINES_MAX);
        assert!(open(1_000, Asker::Engine).is_ok(), "the engine has its own");
        drop(own);
        assert!(open(1, Asker::Machine(machine(1))).is_ok());
    }

    #[tokio::test]
    async fn no_answer_is_a_failure() {
        let silent = called(SwarmOp::Info, Duration::from_millis(1), |_, _, _| {});
        assert_eq!(silent.await, Err(SwarmFailureCode::Timeout));
        let gone = called(SwarmOp::Info, TIME_LIMIT, |sessions, number, _| {
            sessions.end(ID, number, tonic::Status::unavailable("gone"));
        });
        assert_eq!(gone.await, Err(SwarmFailureCode::Engine));
        assert_eq!(call(&Sessions::default(), SwarmOp::Info, TIME_LIMIT).await, Err(SwarmFailureCode::Engine));
    }
}
