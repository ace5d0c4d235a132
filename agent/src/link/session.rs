//! One session: a connection, its stream, and the messages in both directions.

use std::{sync::Arc, time::Duration};

use muster_proto::{
    IDENTITY_REVOKED, LINK_MESSAGE_BYTES_MAX,
    address::Addresses,
    convert::{Hello, WireError, as_line, code},
    model::{
        AckProof, Assignment, AuthCode, ControlPlaneCall, Epoch, Generation, HostFacts, ItemInput, ItemName, Seq,
        SwarmCall,
    },
    tls,
    wire::{
        AgentBlocked, AgentMessage, AssignmentAnswer, CoordinatorMessage, FetchSecretsRequest, Heartbeat, PermitWanted,
        Progress, StatusEvent, Welcome, agent_link_client::AgentLinkClient, agent_message::Body as Out,
        coordinator_message::Body as In,
    },
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Streaming, transport::Channel};

use crate::{
    attempt::record,
    core::{EVENTS_IN_FLIGHT_MAX, ToCoordinator},
    facts::{self, AddressChoice, containers::Containers},
    identity::Identity,
    link::{FromLink, LinkError, logs::LOG_QUEUE_MAX},
};

/// Timeout from the connection to the coordinator's welcome.
pub(super) const WELCOME_TIMEOUT: Duration = Duration::from_secs(20);
/// Capacity of the queue to the coordinator, output excluded: the events in flight, and the same number again.
const QUEUE_MAX: usize = EVENTS_IN_FLIGHT_MAX * 2;
/// Timeout of a request for inputs: a little shorter than the core's.
const FETCH_TIMEOUT: Duration = Duration::from_secs(40);
/// Valid range of the coordinator's heartbeat interval.
const HEARTBEAT_MS: std::ops::RangeInclusive<u64> = 100..=300_000;
/// Default heartbeat interval.
const HEARTBEAT_MS_DEFAULT: u64 = 10_000;

/// The engine's handle of a session. Dropping it closes the session.
#[derive(Debug)]
pub struct SessionHandle {
    out: mpsc::Sender<AgentMessage>,
    logs: mpsc::Sender<AgentMessage>,
    client: AgentLinkClient<Channel>,
    #[expect(dead_code, reason = "its drop is the message")]
    open: oneshot::Sender<()>,
}

impl SessionHandle {
    /// Queues a message of the core. False = the queue is full because the coordinator has stopped reading: close the
    /// session.
    #[must_use]
    pub fn send(&self, message: &ToCoordinator) -> bool {
        let body = match message {
            ToCoordinator::Event { seq, status } => {
                Out::Status(StatusEvent { seq: seq.0, status: Some((&**status).into()) })
            }
            ToCoordinator::Answer { generation, refusal } => Out::Answer(AssignmentAnswer {
                generation: generation.0,
                accepted: refusal.is_none(),
                code: refusal.as_ref().map(|refusal| refusal.code.to_string()).unwrap_or_default(),
                message: refusal.as_ref().map(|refusal| refusal.message.clone()).unwrap_or_default(),
            }),
            ToCoordinator::Swarm(answer) => Out::SwarmAnswer(answer.into()),
            ToCoordinator::ControlPlane(answer) => Out::ControlPlaneAnswer(answer.into()),
            ToCoordinator::PermitWanted(permit) => Out::PermitWanted(PermitWanted { permit: *permit }),
            ToCoordinator::Blocked(blocked) => Out::Blocked(AgentBlocked {
                reason: blocked.as_ref().map(|blocked| blocked.reason.to_string()).unwrap_or_default(),
                message: blocked.as_ref().map(|blocked| blocked.message.to_string()).unwrap_or_default(),
            }),
        };
        self.out.try_send(message_of(body)).is_ok()
    }

    /// Queues the progress of a transfer or playbook. A full queue drops it, because the next one comes soon.
    pub fn send_progress(&self, item: &ItemName, progress: record::Progress) {
        let body = Out::Progress(Progress {
            item: item.to_string(),
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
            bytes_per_second: progress.bytes_per_second,
            task: progress.task.unwrap_or_default(),
        });
        self.out.try_send(message_of(body)).ok();
    }

    /// Requests the inputs of an item on this session's connection. An error is one line.
    pub fn fetch(
        &self,
        item: &ItemName,
        generation: Generation,
    ) -> impl Future<Output = Result<Vec<ItemInput>, String>> + Send + use<> {
        let mut client = self.client.clone();
        let request = FetchSecretsRequest { item: item.to_string(), generation: generation.0 };
        async move {
            match tokio::time::timeout(FETCH_TIMEOUT, client.fetch_secrets(request)).await {
                Ok(Ok(answer)) => answer.into_inner().try_into().map_err(|error: WireError| error.to_string()),
                Ok(Err(status)) => Err(as_line(status.message())),
                Err(_) => Err(format!("it did not answer for {} s", FETCH_TIMEOUT.as_secs())),
            }
        }
    }

    /// Queue for output, separate so that it never delays an event.
    #[must_use]
    pub fn logs(&self) -> mpsc::Sender<AgentMessage> {
        self.logs.clone()
    }
}

pub(super) const fn message_of(body: Out) -> AgentMessage {
    AgentMessage { body: Some(body) }
}

/// Where a session's facts come from.
pub(super) struct Source {
    /// Facts to report instead of this machine's.
    pub(super) given: Option<Arc<HostFacts>>,
    /// Known containers of this machine. None for an agent that reports no containers.
    pub(super) containers: Option<Containers>,
}

impl Source {
    /// Collects the facts in a separate thread, because some kernel files are slow to read.
    async fn collect(&mut self, choice: &AddressChoice) -> HostFacts {
        if let Some(given) = &self.given {
            return HostFacts::clone(given);
        }
        let choice = choice.clone();
        let facts = tokio::task::spawn_blocking(move || facts::collect(&choice)).await.unwrap_or_default();
        let containers = match &mut self.containers {
            Some(containers) => containers.names().await,
            None => Vec::new(),
        };
        HostFacts { containers, ..facts }
    }
}

/// State that the link lends to a session.
pub(super) struct Lent<'a> {
    /// Setting for choosing the InternalIP.
    pub(super) choice: &'a AddressChoice,
    /// Interval of reading the facts.
    pub(super) facts_every: Duration,
    /// Where the facts come from.
    pub(super) source: Source,
    /// Addresses that the coordinator reports for itself.
    pub(super) told: &'a watch::Sender<Option<Addresses>>,
    /// The engine.
    pub(super) engine: &'a mpsc::Sender<FromLink>,
}

/// A session that the coordinator accepted.
pub(super) struct Session {
    /// Address of the coordinator, `HOST:PORT`.
    address: String,
    told: watch::Sender<Option<Addresses>>,
    inbound: Streaming<CoordinatorMessage>,
    out: mpsc::Sender<AgentMessage>,
    epoch: Epoch,
    /// Proof that the epoch was told.
    code: AuthCode,
    heartbeat_ms: u64,
    choice: AddressChoice,
    facts: HostFacts,
    /// Interval of reading the facts.
    facts_every: Duration,
    /// Delay of the next reading of facts: zero if the welcome selects another address than the hello gave.
    first_look: Duration,
    /// Where the facts come from.
    source: Source,
    /// The engine's handle, until it is passed on.
    handle: Option<SessionHandle>,
    closed: oneshot::Receiver<()>,
}

impl Session {
    /// Connects to the coordinator at this address, sends the hello, and waits for the welcome.
    pub(super) async fn open(identity: &Identity, address: &str, lent: Lent<'_>) -> Result<Self, LinkError> {
        let Lent { choice, facts_every, mut source, told, engine } = lent;
        let connection = tls::connect(address, identity.tls()?).await?;
        let choice = AddressChoice { reaches_coordinator: Some(connection.local.ip()), ..choice.clone() };
        let facts = source.collect(&choice).await;
        let hello = ask_hello(facts.clone(), engine).await?;

        let (out, out_queue) = mpsc::channel(QUEUE_MAX);
        let (logs, log_queue) = mpsc::channel(LOG_QUEUE_MAX);
        out.try_send(message_of(Out::Hello((&hello).into()))).map_err(|_| LinkError::Full)?;
        let mut client = AgentLinkClient::new(connection.channel)
            .max_decoding_message_size(LINK_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(LINK_MESSAGE_BYTES_MAX);
        let welcomed = async {
            let outbound = ReceiverStream::new(out_queue).merge(ReceiverStream::new(log_queue));
            let mut inbound = client.connect(outbound).await.map_err(refused)?.into_inner();
            match inbound.message().await.map_err(refused)?.ok_or(LinkError::Closed)?.body {
                Some(In::Welcome(welcome)) => Ok((inbound, welcome)),
                _ => Err(LinkError::NoWelcome),
            }
        };
        let (inbound, welcome) =
            tokio::time::timeout(WELCOME_TIMEOUT, welcomed).await.map_err(|_| LinkError::Silent)??;
        let place = (address.to_owned(), told.clone());
        Self::welcomed(inbound, &welcome, (out, logs, client), place, (choice, facts, facts_every, source))
    }

    fn welcomed(
        inbound: Streaming<CoordinatorMessage>,
        welcome: &Welcome,
        (out, logs, client): (mpsc::Sender<AgentMessage>, mpsc::Sender<AgentMessage>, AgentLinkClient<Channel>),
        (address, told): (String, watch::Sender<Option<Addresses>>),
        (choice, facts, facts_every, source): (AddressChoice, HostFacts, Duration, Source),
    ) -> Result<Self, LinkError> {
        if welcome.epoch == 0 {
            return Err(LinkError::NoWelcome);
        }
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let wanted =
            AddressChoice { interface: given(&welcome.interface), cidr: given(&welcome.cidr), ..choice.clone() };
        let first_look = if wanted == choice { facts_every } else { Duration::ZERO };
        let heartbeat_ms = match welcome.heartbeat_interval_ms {
            0 => HEARTBEAT_MS_DEFAULT,
            ms => ms.clamp(*HEARTBEAT_MS.start(), *HEARTBEAT_MS.end()),
        };
        let (open, closed) = oneshot::channel();
        let handle = Some(SessionHandle { out: out.clone(), logs, client, open });
        Ok(Self {
            address,
            told,
            inbound,
            out,
            epoch: Epoch(welcome.epoch),
            code: code("welcome.code", &welcome.code)?,
            heartbeat_ms,
            choice: wanted,
            facts,
            facts_every,
            first_look,
            source,
            handle,
            closed,
        })
    }

    /// Address of the coordinator, `HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Setting for choosing the InternalIP.
    pub(super) const fn choice(&self) -> &AddressChoice {
        &self.choice
    }

    /// Passes the handle to the engine.
    pub(super) async fn announce(&mut self, engine: &mpsc::Sender<FromLink>) -> Result<(), LinkError> {
        let session = self.handle.take().ok_or(LinkError::Stopping)?;
        tell(engine, FromLink::Up { epoch: self.epoch, code: self.code, session }).await
    }

    /// Runs the session until it ends.
    pub(super) async fn run(&mut self, engine: &mpsc::Sender<FromLink>) -> LinkError {
        let beat = Duration::from_millis(self.heartbeat_ms);
        let mut heartbeat = every(beat, beat);
        let mut look = every(self.first_look, self.facts_every);
        loop {
            let outcome = tokio::select! {
                message = self.inbound.message() => match message {
                    Ok(Some(CoordinatorMessage { body: Some(In::Addresses(told)) })) => {
                        self.hear(told.addresses);
                        Ok(())
                    }
                    Ok(Some(message)) => pass(message, engine).await,
                    Ok(None) => Err(LinkError::Closed),
                    Err(status) => Err(refused(status)),
                },
                _ = heartbeat.tick() => self.put(Out::Heartbeat(Heartbeat {})),
                _ = look.tick() => self.look().await,
                () = have_changed(self.source.containers.as_mut()) => self.look().await,
                _ = &mut self.closed => Err(LinkError::Full),
            };
            if let Err(error) = outcome {
                return error;
            }
        }
    }

    /// Stores the coordinator's reported addresses for the link.
    fn hear(&self, addresses: Vec<String>) {
        match Addresses::try_from(addresses) {
            Ok(addresses) => drop(self.told.send_replace(Some(addresses))),
            Err(fault) => tracing::warn!(%fault, "the coordinator names addresses that are none"),
        }
    }

    async fn look(&mut self) -> Result<(), LinkError> {
        let facts = self.source.collect(&self.choice).await;
        if facts == self.facts {
            return Ok(());
        }
        self.put(Out::Facts((&facts).into()))?;
        self.facts = facts;
        Ok(())
    }

    fn put(&self, body: Out) -> Result<(), LinkError> {
        self.out.try_send(message_of(body)).map_err(|_| LinkError::Full)
    }
}

fn every(first: Duration, period: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(Instant::now() + first, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Forwards a message to the engine.
async fn pass(message: CoordinatorMessage, engine: &mpsc::Sender<FromLink>) -> Result<(), LinkError> {
    let message = match message.body {
        Some(In::Assignment(assignment)) => FromLink::Assigned(Assignment::try_from(assignment)?),
        Some(In::Ack(ack)) => {
            let proof = ack.proof.map(AckProof::try_from).transpose()?;
            FromLink::Acked(Seq(ack.seq), proof.unwrap_or(AckProof::NONE))
        }
        Some(In::LogRequest(wanted)) => FromLink::LogWanted {
            request_id: wanted.request_id,
            item: match wanted.item.as_str() {
                "" => None,
                name => Some(
                    ItemName::new(name)
                        .map_err(|_| WireError { field: "log_request.item", problem: "not a DNS-1123 label" })?,
                ),
            },
            follow: wanted.follow,
        },
        Some(In::SwarmCall(call)) => FromLink::SwarmCalled(SwarmCall::try_from(call)?),
        Some(In::ControlPlaneCall(call)) => FromLink::ControlPlaneCalled(ControlPlaneCall::try_from(call)?),
        Some(In::LogCancel(cancel)) => FromLink::LogCanceled { request_id: cancel.request_id },
        Some(In::Welcome(_)) => return Err(LinkError::NoWelcome),
        // Ignore unknown messages of a newer coordinator.
        Some(In::Addresses(_)) | None => return Ok(()),
    };
    tell(engine, message).await
}

async fn tell(engine: &mpsc::Sender<FromLink>, message: FromLink) -> Result<(), LinkError> {
    engine.send(message).await.map_err(|_| LinkError::Stopping)
}

async fn ask_hello(facts: HostFacts, engine: &mpsc::Sender<FromLink>) -> Result<Hello, LinkError> {
    let (answer, hello) = oneshot::channel();
    tell(engine, FromLink::HelloWanted { facts: Box::new(facts), answer }).await?;
    hello.await.map_err(|_| LinkError::Stopping)
}

async fn have_changed(containers: Option<&mut Containers>) {
    match containers {
        Some(containers) => containers.changed().await,
        None => std::future::pending().await,
    }
}

fn refused(status: tonic::Status) -> LinkError {
    use std::error::Error as _;
    match (status.message(), status.source()) {
        _ if status.metadata().contains_key(IDENTITY_REVOKED) => LinkError::Revoked,
        _ if status.code() == tonic::Code::Unauthenticated => LinkError::NotAccepted,
        (message, Some(source)) => LinkError::Refused(format!("{message}: {}", super::chain(source))),
        (message, None) => LinkError::Refused(message.to_owned()),
    }
}
