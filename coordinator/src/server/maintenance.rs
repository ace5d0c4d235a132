//! The application controllers' service. Whose locks a call is about comes from the caller's certificate.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{Stream, stream};
use muster_proto::{
    convert::as_line,
    model::{ClusterName, LockState, MachineName},
    wire::{self, MaintenanceDone, MaintenanceRequest, RequestEvent, maintenance_server::Maintenance as Service},
};
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status};

use super::{
    fleet::{cluster_name, known, machine_name},
    reader::WATCH_PAUSE,
    sessions::Sessions,
    status::internal,
    watches::{Watches, Watching},
};
use crate::{
    core::{Input, Word},
    documents,
    engine::EngineHandle,
    facts::Facts,
    pki::{Peer, Role},
    plan::locks::CONTROLLERS_PREFIX,
};

/// Machines one call may name.
const MACHINES_MAX: usize = 10_000;
/// Longest message of a lock; the rest is cut.
const MESSAGE_BYTES_MAX: usize = 512;

/// The service.
pub(super) struct Maintenance {
    pub(super) engine: EngineHandle,
    pub(super) sessions: Sessions,
    pub(super) watches: Watches,
    /// Number of the newest stream of requests.
    pub(super) last_stream: AtomicU64,
}

#[tonic::async_trait]
impl Service for Maintenance {
    type WatchRequestsStream = Pin<Box<dyn Stream<Item = Result<RequestEvent, Status>> + Send>>;

    async fn register(&self, request: Request<wire::RegisterRequest>) -> Result<Response<MaintenanceDone>, Status> {
        let (peer, request) = known(request)?;
        if request.machines.len() > MACHINES_MAX {
            return Err(Status::invalid_argument(format!("machines: at most {MACHINES_MAX}")));
        }
        let machines = request.machines.into_iter().map(machine_name).collect::<Result<_, _>>()?;
        let cluster = cluster_name(request.cluster)?;
        self.take(&peer, Word::Register { cluster, machines, of_cluster: request.of_cluster }).await
    }

    async fn release(&self, request: Request<wire::ReleaseRequest>) -> Result<Response<MaintenanceDone>, Status> {
        let (peer, request) = known(request)?;
        let (cluster, machine) = (cluster_name(request.cluster)?, some_machine(request.machine)?);
        self.take(&peer, Word::Release { cluster, machine }).await
    }

    async fn set_lock(&self, request: Request<wire::SetLockRequest>) -> Result<Response<MaintenanceDone>, Status> {
        let (peer, request) = known(request)?;
        let state = match request.state() {
            wire::LockState::Active => LockState::Active,
            wire::LockState::Inactive => LockState::Inactive,
            wire::LockState::Failed => LockState::Failed,
            wire::LockState::Unspecified => {
                return Err(Status::invalid_argument("state: expected active, inactive or failed"));
            }
        };
        if request.percentage > 100 {
            return Err(Status::invalid_argument("percentage: expected 0 to 100"));
        }
        let word = Word::Set {
            cluster: cluster_name(request.cluster)?,
            machine: some_machine(request.machine)?,
            state,
            message: short(&request.message),
            percentage: request.percentage,
            description: short(&request.description),
        };
        self.take(&peer, word).await
    }

    async fn watch_requests(
        &self,
        request: Request<wire::WatchRequestsRequest>,
    ) -> Result<Response<Self::WatchRequestsStream>, Status> {
        let (peer, request) = known(request)?;
        let watching = self.watches.begin(&peer.to_string())?;
        let cluster = cluster_name(request.cluster)?;
        let presence = self.announce(&peer, &cluster).await?;
        let ending = Box::pin(self.sessions.ending());
        let (facts, events) = (self.engine.watch(), Vec::new().into_iter());
        let watch = Watch { _watching: watching, _presence: presence, cluster, facts, ending, sent: None, events };
        Ok(Response::new(Box::pin(stream::try_unfold(watch, Watch::next))))
    }
}

impl Maintenance {
    async fn take(&self, peer: &Peer, word: Word) -> Result<Response<MaintenanceDone>, Status> {
        self.engine.submit(said(peer, word)?).await?;
        Ok(Response::new(MaintenanceDone {}))
    }

    /// Makes known that a controller watches the requests of a cluster, as long as what is returned lives.
    async fn announce(&self, peer: &Peer, cluster: &ClusterName) -> Result<oneshot::Sender<()>, Status> {
        let stream = self.last_stream.fetch_add(1, Ordering::Relaxed) + 1;
        let begins = said(peer, Word::Watch { cluster: cluster.clone(), stream })?;
        let ends = said(peer, Word::Unwatch { cluster: cluster.clone(), stream })?;
        let (presence, over) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let engine = self.engine.clone();
        // Apart from this call, which ends unfinished when the stream is reset: every beginning has its end.
        tokio::spawn(async move {
            let began = engine.submit(begins).await;
            let refused = began.is_err();
            // Nobody is left to be told, perhaps.
            drop(tell.send(began.map(drop)));
            if refused {
                return;
            }
            // Nothing is ever sent: it is over when the other side is dropped.
            drop(over.await);
            // A coordinator that is ending has no use for it.
            drop(engine.notify(ends).await);
        });
        told.await.map_err(|error| internal(&error))??;
        Ok(presence)
    }
}

/// A controller's word as an input.
fn said(peer: &Peer, word: Word) -> Result<Input, Status> {
    match &peer.role {
        Role::Controller(controller) => Ok(Input::Maintenance { controller: controller.clone(), word }),
        _ => Err(Status::permission_denied("these credentials are no controller's")),
    }
}

/// What one controller knows of the requests.
struct Watch {
    _watching: Watching,
    /// With it goes what is known of the controller's presence.
    _presence: oneshot::Sender<()>,
    cluster: ClusterName,
    facts: watch::Receiver<Arc<Facts>>,
    /// Ends when the coordinator does.
    ending: Pin<Box<dyn Future<Output = Status> + Send>>,
    /// By machine; the cluster's own under the empty name. None: nothing was sent yet.
    sent: Option<BTreeMap<String, MaintenanceRequest>>,
    events: std::vec::IntoIter<RequestEvent>,
}

impl Watch {
    async fn next(mut self) -> Result<Option<(RequestEvent, Self)>, Status> {
        loop {
            if let Some(event) = self.events.next() {
                return Ok(Some((event, self)));
            }
            if self.sent.is_some() {
                let change = async {
                    tokio::time::sleep(WATCH_PAUSE).await;
                    self.facts.changed().await
                };
                tokio::select! {
                    status = &mut self.ending => return Err(status),
                    changed = change => {
                        changed.map_err(|_| Status::unavailable("the coordinator has stopped"))?;
                    }
                }
            }
            self.look();
        }
    }

    /// What is new since the last look.
    fn look(&mut self) {
        let now = requests(&self.facts.borrow_and_update(), &self.cluster);
        let first = self.sent.is_none();
        let before = self.sent.take().unwrap_or_default();
        let event = |kind: wire::request_event::Type, request: Option<&MaintenanceRequest>| RequestEvent {
            r#type: kind.into(),
            request: request.cloned(),
        };
        let put = now.iter().filter(|(node, request)| before.get(*node) != Some(*request));
        let mut events: Vec<_> = put.map(|(_, r)| event(wire::request_event::Type::Put, Some(r))).collect();
        let gone = before.iter().filter(|(node, _)| !now.contains_key(*node));
        events.extend(gone.map(|(_, request)| event(wire::request_event::Type::Deleted, Some(request))));
        if first {
            events.push(event(wire::request_event::Type::Synced, None));
        }
        self.sent = Some(now);
        self.events = events.into_iter();
    }
}

fn requests(facts: &Facts, cluster: &ClusterName) -> BTreeMap<String, MaintenanceRequest> {
    let requests = documents::node_requests(facts, cluster).map(|(node, request, scope)| {
        let machine = node.map(ToString::to_string).unwrap_or_default();
        let row = node.and_then(|node| facts.machines.get(node));
        let annotations = row.map(|row| &row.annotations).into_iter().flatten();
        let annotations = annotations.filter(|(name, _)| name.starts_with(CONTROLLERS_PREFIX));
        let request = MaintenanceRequest {
            cluster: cluster.to_string(),
            machine: machine.clone(),
            scope: scope.to_string(),
            since_ms: request.since_ms,
            annotations: annotations.map(|(name, value)| (name.clone(), value.clone())).collect(),
        };
        (machine, request)
    });
    requests.collect()
}

fn some_machine(name: String) -> Result<Option<MachineName>, Status> {
    (!name.is_empty()).then(|| machine_name(name)).transpose()
}

/// One line of at most [`MESSAGE_BYTES_MAX`] bytes.
fn short(text: &str) -> String {
    let mut line = as_line(text);
    line.truncate(line.floor_char_boundary(MESSAGE_BYTES_MAX));
    line
}

#[cfg(test)]
mod tests {
    use muster_proto::model::LockState;

    use super::*;
    use crate::core::{
        Request,
        tests::{cluster, machine, updates},
    };

    #[test]
    fn what_operators_noted_for_controllers_reaches_them() {
        let mut fleet = updates::deployed(3, 1);
        let mode = format!("{CONTROLLERS_PREFIX}instance_migration_mode");
        let set = [(mode.as_str(), "manual"), ("rack", "7")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let noted = Request::AnnotateMachine { machine: machine("control-1"), set: set.into(), remove: Vec::new() };
        fleet.ask(noted).expect("annotated");
        updates::release(&mut fleet, &["install"], 1);
        let mut fleet = fleet.started();
        let told = requests(fleet.core.facts(), &cluster());
        assert_eq!(told.keys().collect::<Vec<_>>(), ["", "control-1"]);
        assert_eq!(told["control-1"].annotations, [(mode.clone(), "manual".to_owned())].into(), "and nothing else");
        assert!(told[""].annotations.is_empty());
        // Changed while it waits: the controller hears of it.
        let set = [(mode.clone(), "skip".to_owned())].into();
        let noted = Request::AnnotateMachine { machine: machine("control-1"), set, remove: Vec::new() };
        fleet.ask(noted).expect("annotated");
        fleet.lock("ceph", Some("control-1"), LockState::Active);
        assert_eq!(requests(fleet.core.facts(), &cluster())["control-1"].annotations[&mode], "skip");
    }
}
