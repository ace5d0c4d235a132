//! The agents' service: one stream per machine. The certificate alone identifies the agent. Its messages become inputs
//! of the engine, one after another; the answers return through the sessions.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::Stream;
use muster_proto::{
    convert::{Hello, WireError, as_line, count},
    model::{
        ControlPlaneAnswer, Generation, HostFacts, ItemInput, ItemName, ItemStatus, MachineId, Reason, Seq, SwarmAnswer,
    },
    wire::{
        self, AgentMessage, CoordinatorMessage, agent_link_server::AgentLink, agent_message::Body,
        coordinator_message::Body as Outbound,
    },
};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

use super::{
    authenticator::Caller,
    caller_of,
    sessions::{Sessions, addresses_told},
    status::internal,
};
use crate::{
    core::{Input, Reply},
    engine::{EngineError, EngineHandle},
    facts::{ItemActivity, SecretRow},
    orchestrator::swarm,
    pki::{Role, Vault},
    plan::swarm::Entry,
    proof::Told,
};

/// Timeout for an agent's first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of unreadable messages at which a stream is closed.
const MALFORMED_MAX: u32 = 3;
/// Longest code and message of a refused assignment or of an agent's own block.
const REASON_BYTES_MAX: usize = 512;

/// The service.
pub(super) struct Link {
    pub(super) engine: EngineHandle,
    pub(super) sessions: Sessions,
    pub(super) vault: Arc<Vault>,
    /// Interval of an agent's heartbeats.
    pub(super) heartbeat: Duration,
}

#[tonic::async_trait]
impl AgentLink for Link {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let (caller, id) = agent_of(&request)?;
        let mut inbound = request.into_inner();
        let hello = tokio::time::timeout(HELLO_TIMEOUT, inbound.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no Hello came"))??;
        let Some(AgentMessage { body: Some(Body::Hello(hello)) }) = hello else {
            return Err(Status::invalid_argument("the first message must be Hello"));
        };
        let hello = Box::new(Hello::try_from(hello)?);
        let welcome = self.welcome(id)?;
        let (session, outgoing) = self.sessions.open(id, caller);
        self.sessions.send(id, Some(session), Outbound::Welcome(welcome));
        // Read now: later changes are sent to the session as to all others.
        if let Some(addresses) = &self.engine.facts().meta.advertised {
            self.sessions.send(id, Some(session), addresses_told(addresses));
        }
        let name = hello.name.clone();
        let talk = AgentStream { engine: self.engine.clone(), sessions: self.sessions.clone(), id, session };
        // A task of its own: this call is cancelled when the stream is reset, but a greeted session must still end
        // properly.
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(error) = talk.engine.submit(Input::Hello { id, session, hello }).await {
                let status = Status::from(error);
                tracing::warn!(machine = %name, %id, %status, "refused a Hello");
                talk.sessions.end(id, session, status.clone());
                // The caller may be gone.
                drop(tell.send(Err(status)));
                return;
            }
            tracing::info!(machine = %name, %id, session, "connected");
            talk.warn_of_unproven();
            drop(tell.send(Ok(())));
            let end = talk.listen(inbound).await;
            tracing::info!(machine = %name, %id, session, reason = end.message(), "stream ended");
            talk.sessions.end(id, session, end);
            // The engine may have ended.
            drop(talk.engine.notify(Input::Gone { id, session }).await);
        });
        told.await.map_err(|error| internal(&error))??;
        Ok(Response::new(Box::pin(outgoing)))
    }

    async fn fetch_secrets(
        &self,
        request: Request<wire::FetchSecretsRequest>,
    ) -> Result<Response<wire::FetchSecretsResponse>, Status> {
        let (_, id) = agent_of(&request)?;
        let wire::FetchSecretsRequest { item, generation } = request.into_inner();
        let item = ItemName::new(item).map_err(|_| WireError { field: "item", problem: "not a DNS-1123 label" })?;
        let asked = Input::Fetch { id, item: item.clone(), generation: Generation(generation) };
        let (rows, entry) = self.granted(asked.clone()).await?;
        let open = |row: &Arc<SecretRow>| {
            let value = self.vault.open(row)?;
            Ok(ItemInput { name: row.id.name.clone(), value, secret: true })
        };
        let mut inputs = rows.iter().map(open).collect::<Result<Vec<_>, Status>>()?;
        if let Some(entry) = entry {
            inputs.extend(self.way_into_swarm(id, asked, entry).await?);
        }
        tracing::info!(machine = %id, %item, generation, inputs = inputs.len(), "inputs of an item handed out");
        Ok(Response::new(wire::FetchSecretsResponse { inputs: inputs.into_iter().map(Into::into).collect() }))
    }
}

impl Link {
    /// What the record holds for an item that is about to start.
    async fn granted(&self, asked: Input) -> Result<(Vec<Arc<SecretRow>>, Option<Entry>), Status> {
        match self.engine.submit(asked).await? {
            Reply::Inputs { secrets, entry } => Ok((secrets, entry)),
            Reply::Ok | Reply::Done(_) | Reply::Token { .. } | Reply::Enrolled { .. } => Ok((Vec::new(), None)),
        }
    }

    /// Get what the machine needs to join the swarm from its managers, if there is a swarm.
    async fn way_into_swarm(&self, id: MachineId, asked: Input, entry: Entry) -> Result<Vec<ItemInput>, Status> {
        let joins = matches!(entry, Entry::Join { .. });
        let entered = swarm::enter(&self.sessions, &self.engine, id, entry).await;
        let (join, token) = entered.map_err(|refused| {
            tracing::info!(machine = %id, %refused, "no way into the swarm yet");
            Status::failed_precondition(refused.to_string())
        })?;
        // That took a while: check again that the record still grants a token.
        if joins && !matches!(self.granted(asked).await?, (_, Some(Entry::Join { .. }))) {
            return Err(Status::failed_precondition("NotAssigned: the machine does not join any more"));
        }
        Ok(swarm::inputs(&join, token))
    }
}

/// The calling agent.
fn agent_of<T>(request: &Request<T>) -> Result<(Caller, MachineId), Status> {
    let caller = caller_of(request)?;
    let Some(Role::Agent(id)) = caller.peer().map(|peer| peer.role.clone()) else {
        return Err(Status::permission_denied("only an agent has a link"));
    };
    Ok((caller, id))
}

impl Link {
    fn welcome(&self, id: MachineId) -> Result<wire::Welcome, Status> {
        let facts = self.engine.facts();
        let spec = facts.by_id(id).map(|row| row.spec.clone());
        let (cluster, machine_type, interface, cidr) = match spec {
            Some(spec) => (
                spec.cluster_name.to_string(),
                spec.machine_type.to_string(),
                spec.interface.unwrap_or_default(),
                spec.cidr.unwrap_or_default(),
            ),
            // The core handles this case: the store is older than the fleet.
            None => Default::default(),
        };
        let heartbeat_interval_ms =
            u64::try_from(self.heartbeat.as_millis()).map_err(|_| Status::internal("the heartbeat is out of range"))?;
        let epoch = facts.meta.epoch;
        let code = self.engine.proof_key().code(id, &Told::Epoch(epoch)).bytes().to_vec();
        Ok(wire::Welcome { epoch: epoch.0, heartbeat_interval_ms, cluster, machine_type, interface, cidr, code })
    }
}

/// One stream after its Hello.
struct AgentStream {
    engine: EngineHandle,
    sessions: Sessions,
    id: MachineId,
    session: u64,
}

impl AgentStream {
    /// Receive until the stream ends or is replaced; return the reason. Partial messages of a replaced stream are
    /// discarded.
    async fn listen(&self, mut inbound: Streaming<AgentMessage>) -> Status {
        let mut malformed = 0;
        let mut over = pin!(self.sessions.over(self.id, self.session));
        loop {
            let said = tokio::select! {
                biased;
                end = &mut over => return end,
                said = inbound.message() => said,
            };
            let message = match said {
                Ok(Some(message)) => message,
                Ok(None) => return Status::ok("the agent closed it"),
                Err(status) => return status,
            };
            match self.take(message).await {
                Ok(()) => {}
                Err(Trouble::Malformed(error)) => {
                    malformed += 1;
                    tracing::warn!(machine = %self.id, %error, "a message cannot be read");
                    if malformed >= MALFORMED_MAX {
                        return error.into();
                    }
                }
                Err(Trouble::Engine(error)) => return error.into(),
            }
        }
    }

    /// Log the machine's unproven claims.
    fn warn_of_unproven(&self) {
        let facts = self.engine.facts();
        let live = facts.by_id(self.id).and_then(|row| facts.live.machines.get(&row.name));
        if let Some(claim) = live.and_then(|live| live.unproven.as_ref()) {
            tracing::warn!(
                machine = %self.id,
                "{claim}: it gets nothing more, and the others go on (UnprovenLedger); \
                 `musterctl describe machine` says what to do"
            );
        }
    }

    async fn take(&self, message: AgentMessage) -> Result<(), Trouble> {
        let (id, session) = (self.id, self.session);
        let body = message.body.ok_or(WireError { field: "message.body", problem: "missing or unknown" })?;
        match body {
            Body::Hello(_) => {
                return Err(WireError { field: "hello", problem: "a stream has one Hello, its first message" }.into());
            }
            Body::Heartbeat(_) => self.engine.notify(Input::Heard { id }).await?,
            Body::Status(event) => {
                let status = event.status.ok_or(WireError { field: "status.status", problem: "missing" })?;
                let status = Box::new(ItemStatus::try_from(status)?);
                let seq = Seq(count("status.seq", event.seq)?);
                self.engine.submit(Input::Status { id, session, seq, status }).await?;
            }
            Body::Facts(facts) => {
                let facts = Box::new(HostFacts::try_from(facts)?);
                self.engine.submit(Input::HostChanged { id, session, facts }).await?;
            }
            Body::Answer(answer) => {
                if answer.accepted != answer.code.is_empty() {
                    return Err(WireError { field: "answer.code", problem: "does not fit `accepted`" }.into());
                }
                let refused = (!answer.accepted).then(|| reason(&answer.code, &answer.message));
                let generation = Generation(count("answer.generation", answer.generation)?);
                self.engine.submit(Input::Answer { id, session, generation, refused }).await?;
                self.warn_of_unproven();
            }
            Body::Log(chunk) => self.sessions.log_came(id, chunk),
            Body::SwarmAnswer(answer) => self.sessions.swarm_answered(id, SwarmAnswer::try_from(answer)?),
            Body::ControlPlaneAnswer(answer) => {
                self.sessions.control_plane_answered(id, ControlPlaneAnswer::try_from(answer)?);
            }
            Body::Progress(progress) => {
                let item = ItemName::new(progress.item)
                    .map_err(|_| WireError { field: "progress.item", problem: "not a DNS-1123 label" })?;
                let task = Some(as_line(&progress.task)).filter(|task| !task.is_empty());
                let (done, total, per_second) = (progress.done_bytes, progress.total_bytes, progress.bytes_per_second);
                let progress = ItemActivity { item, done, total, per_second, task };
                self.engine.notify(Input::Progress { id, progress }).await?;
            }
            Body::PermitWanted(wire::PermitWanted { permit: 0 }) => {
                return Err(WireError { field: "permit_wanted.permit", problem: "counts from 1" }.into());
            }
            Body::PermitWanted(wanted) => {
                self.engine.submit(Input::PermitWanted { id, permit: wanted.permit }).await?;
            }
            Body::Blocked(blocked) if blocked.reason.is_empty() && !blocked.message.is_empty() => {
                return Err(WireError { field: "blocked.reason", problem: "missing" }.into());
            }
            Body::Blocked(blocked) => {
                let some = !blocked.reason.is_empty();
                let blocked = some.then(|| named(&blocked.reason, &blocked.message));
                self.engine.submit(Input::AgentBlocked { id, session, blocked }).await?;
            }
        }
        Ok(())
    }
}

enum Trouble {
    Malformed(WireError),
    Engine(EngineError),
}

impl From<WireError> for Trouble {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// The reason that an agent gives. A reason known only to newer agents is kept in the message.
fn named(reason: &str, message: &str) -> (Reason, String) {
    match Reason::named(reason) {
        Reason::Unknown => (Reason::Unknown, self::reason(reason, message)),
        known => (known, short(message)),
    }
}

fn reason(code: &str, message: &str) -> String {
    format!("{}: {}", short(code), short(message))
}

/// One line of at most [`REASON_BYTES_MAX`] bytes.
fn short(text: &str) -> String {
    let mut line = as_line(text);
    while line.len() > REASON_BYTES_MAX {
        line.pop();
    }
    line
}
