//! The application controllers' service. The caller's certificate determines whose locks a call concerns.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{Stream, stream};
use muster_proto::{
    convert::as_line,
    model::{ClusterName, LockState, MachineName},
    wire::{
        self, HeldLock, HeldLocks, MaintenanceDone, MaintenanceRequest, RenewedCertificate, RequestEvent,
        maintenance_server::Maintenance as Service, request_event::Type,
    },
};
use rcgen::PublicKeyData as _;
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status};

use super::{
    authenticator::PeerStatus,
    caller_of,
    fleet::{cluster_name, known, machine_name},
    reader::WATCH_PAUSE,
    sessions::Sessions,
    status::internal,
    watches::{Watches, Watching},
};
use crate::{
    core::{Input, LockCommand, Renewal},
    documents::{self, Requested},
    engine::EngineHandle,
    facts::{Facts, LockRow},
    pki::{Ca, Peer, Role, public_key},
    plan::locks::CONTROLLERS_PREFIX,
    setup::next_certificate,
};

/// Most machines in one call.
const MACHINES_MAX: usize = 10_000;
/// Longest text of a lock; the rest is cut.
const MESSAGE_BYTES_MAX: usize = 512;

/// The service.
pub(super) struct Maintenance {
    pub(super) engine: EngineHandle,
    pub(super) ca: Arc<Ca>,
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
        self.take(&peer, LockCommand::Register { cluster, machines, of_cluster: request.of_cluster }).await
    }

    async fn release(&self, request: Request<wire::ReleaseRequest>) -> Result<Response<MaintenanceDone>, Status> {
        let (peer, request) = known(request)?;
        let (cluster, machine) = (cluster_name(request.cluster)?, some_machine(request.machine)?);
        self.take(&peer, LockCommand::Release { cluster, machine }).await
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
        let word = LockCommand::Set {
            cluster: cluster_name(request.cluster)?,
            machine: some_machine(request.machine)?,
            state,
            message: short(&request.message),
            percentage: request.percentage,
            description: short(&request.description),
            release: short(&request.release),
        };
        self.take(&peer, word).await
    }

    async fn list_locks(&self, request: Request<wire::ListLocksRequest>) -> Result<Response<HeldLocks>, Status> {
        let (peer, request) = known(request)?;
        let (controller, cluster) = (controller(&peer)?, cluster_name(request.cluster)?);
        Ok(Response::new(HeldLocks { locks: held(&self.engine.facts(), &cluster, controller) }))
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
        let controller = controller(&peer)?.to_owned();
        let watch = Watch { watching, _presence: presence, controller, cluster, facts, ending, sent: None, events };
        Ok(Response::new(Box::pin(stream::try_unfold(watch, Watch::next))))
    }

    async fn renew_certificate(
        &self,
        request: Request<wire::RenewCertificateRequest>,
    ) -> Result<Response<RenewedCertificate>, Status> {
        let PeerStatus::Known(shown) = caller_of(&request)?.standing else {
            return Err(Status::unauthenticated("this takes credentials"));
        };
        let (peer, controller) = (&shown.peer, controller(&shown.peer)?);
        let key = public_key(&request.get_ref().csr_der)?;
        if key.subject_public_key_info() == shown.public_key {
            let message = "csr_der: its key is that of the certificate that is renewed; make a new one";
            return Err(Status::invalid_argument(message));
        }
        let lifetime = Duration::from_millis(shown.not_after_ms.saturating_sub(shown.issued_at_ms));
        let (facts, now_ms) = (self.engine.facts(), self.engine.now().wall_ms);
        let known = facts.credentials.get(&peer.to_string()).map(|row| &**row);
        let (validity, certificate) = next_certificate(peer, known, lifetime, now_ms);
        let certificate_pem = self.ca.sign(peer, &key, validity)?;
        // Recorded before it is handed out.
        let renewal =
            Renewal { shown_issued_at_ms: shown.issued_at_ms, shown_expires_at_ms: shown.not_after_ms, certificate };
        self.engine.submit(said(peer, LockCommand::Renew(renewal))?).await?;
        tracing::info!(controller, "certificate renewed");
        let (ca_pem, not_after_ms) = (self.ca.pem().to_owned(), validity.not_after_ms);
        Ok(Response::new(RenewedCertificate { certificate_pem, ca_pem, not_after_ms }))
    }
}

impl Maintenance {
    async fn take(&self, peer: &Peer, word: LockCommand) -> Result<Response<MaintenanceDone>, Status> {
        self.engine.submit(said(peer, word)?).await?;
        Ok(Response::new(MaintenanceDone {}))
    }

    /// Record that a controller watches the requests of a cluster, until the returned sender is dropped.
    async fn announce(&self, peer: &Peer, cluster: &ClusterName) -> Result<oneshot::Sender<()>, Status> {
        let stream = self.last_stream.fetch_add(1, Ordering::Relaxed) + 1;
        let begins = said(peer, LockCommand::Watch { cluster: cluster.clone(), stream })?;
        let ends = said(peer, LockCommand::Unwatch { cluster: cluster.clone(), stream })?;
        let (presence, over) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let engine = self.engine.clone();
        // A task of its own: this call is cancelled when the stream is reset, but every beginning needs its end.
        tokio::spawn(async move {
            let began = engine.submit(begins).await;
            let refused = began.is_err();
            // The caller may be gone.
            drop(tell.send(began.map(drop)));
            if refused {
                return;
            }
            // It completes when the other side is dropped.
            drop(over.await);
            // The engine may have ended.
            drop(engine.notify(ends).await);
        });
        told.await.map_err(|error| internal(&error))??;
        Ok(presence)
    }
}

/// A controller's command as an input.
fn said(peer: &Peer, word: LockCommand) -> Result<Input, Status> {
    Ok(Input::Maintenance { controller: controller(peer)?.to_owned(), word })
}

/// The name in a controller's certificate.
fn controller(peer: &Peer) -> Result<&str, Status> {
    match &peer.role {
        Role::Controller(controller) => Ok(controller),
        _ => Err(Status::permission_denied("these credentials are no controller's")),
    }
}

/// One controller's view of the requests.
struct Watch {
    watching: Watching,
    /// Dropping it ends the controller's presence.
    _presence: oneshot::Sender<()>,
    controller: String,
    cluster: ClusterName,
    facts: watch::Receiver<Arc<Facts>>,
    /// Completes when the coordinator ends.
    ending: Pin<Box<dyn Future<Output = Status> + Send>>,
    /// The requests sent last, once there are any.
    sent: Option<Requests>,
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
            self.look().await?;
        }
    }

    /// Queue the events since the last call.
    async fn look(&mut self) -> Result<(), Status> {
        let (facts, cluster) = (Arc::clone(&self.facts.borrow_and_update()), self.cluster.clone());
        let (before, controller) = (self.sent.take(), self.controller.clone());
        let look = move || {
            let now = requests(&facts, &cluster);
            let mut events = news(&facts, before.as_ref(), &now);
            if before.is_none() {
                let locks = held(&facts, &cluster, &controller);
                events.push(RequestEvent { r#type: Type::Synced.into(), request: None, locks });
            }
            (events, now)
        };
        let (events, now) = self.watching.look(look).await?;
        (self.events, self.sent) = (events.into_iter(), Some(now));
        Ok(())
    }
}

/// Requests by machine; the cluster's own under the empty name.
type Requests = BTreeMap<String, MaintenanceRequest>;

/// The events that turn `before` into `now`. None: these are the first.
fn news(facts: &Facts, before: Option<&Requests>, now: &Requests) -> Vec<RequestEvent> {
    let event = |kind: Type, request: Option<MaintenanceRequest>| RequestEvent {
        r#type: kind.into(),
        request,
        locks: Vec::new(),
    };
    let known = |name: &String| before.and_then(|before| before.get(name));
    let put = now.iter().filter(|(name, request)| known(name) != Some(*request));
    let mut events: Vec<_> = put.map(|(_, request)| event(Type::Put, Some(request.clone()))).collect();
    let gone = before.into_iter().flatten().filter(|(name, _)| !now.contains_key(*name));
    events.extend(gone.map(|(name, request)| {
        // A controller that brings workloads back must distinguish a removed machine from one that stays.
        let removal = !name.is_empty() && facts.machines.get(name.as_str()).is_none_or(|row| row.is_removed());
        event(Type::Deleted, Some(MaintenanceRequest { removal, ..request.clone() }))
    }));
    events
}

/// The locks of a controller in a cluster.
fn held(facts: &Facts, cluster: &ClusterName, controller: &str) -> Vec<HeldLock> {
    let requested = requests(facts, cluster);
    let own = facts.locks.values().filter(|row| row.key.cluster == *cluster && row.key.controller == controller);
    let lock = |row: &Arc<LockRow>| {
        let machine = row.key.node.as_ref().map(ToString::to_string).unwrap_or_default();
        HeldLock {
            state: state(row.state).into(),
            since_ms: row.since_ms,
            message: row.message.clone(),
            percentage: row.percentage,
            description: row.description.clone(),
            release: row.release.clone(),
            requested: requested.contains_key(&machine),
            machine,
        }
    };
    own.map(lock).collect()
}

const fn state(state: LockState) -> wire::LockState {
    match state {
        LockState::Active => wire::LockState::Active,
        LockState::Inactive => wire::LockState::Inactive,
        LockState::Failed => wire::LockState::Failed,
    }
}

fn requests(facts: &Facts, cluster: &ClusterName) -> Requests {
    let requests = documents::requested(facts, cluster).map(|requested| {
        let Requested { machine, row, scope, removal, release } = requested;
        let annotations = machine.map(|machine| &machine.annotations).into_iter().flatten();
        let annotations = annotations.filter(|(name, _)| name.starts_with(CONTROLLERS_PREFIX));
        let request = MaintenanceRequest {
            cluster: cluster.to_string(),
            machine: requested.machine_name().to_owned(),
            scope: scope.to_string(),
            since_ms: row.since_ms,
            annotations: annotations.map(|(name, value)| (name.clone(), value.clone())).collect(),
            removal,
            release: release.to_owned(),
        };
        (request.machine.clone(), request)
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
    use muster_proto::model::{LockState, RemovalPolicy};

    use super::*;
    use crate::core::{
        Request,
        tests::{Fleet, cluster, machine, update_reboots, updates},
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
        // Changed during the wait: the controller is told.
        let set = [(mode.clone(), "skip".to_owned())].into();
        let noted = Request::AnnotateMachine { machine: machine("control-1"), set, remove: Vec::new() };
        fleet.ask(noted).expect("annotated");
        fleet.lock("ceph", Some("control-1"), LockState::Active);
        assert_eq!(requests(fleet.core.facts(), &cluster())["control-1"].annotations[&mode], "skip");
    }

    fn requests_of(fleet: &Fleet) -> Requests {
        requests(fleet.core.facts(), &cluster())
    }

    /// The events for a watcher that knows `before`: machine, kind of event, whether removed.
    fn told(fleet: &Fleet, before: &Requests) -> Vec<(String, Type, bool)> {
        let events = news(fleet.core.facts(), Some(before), &requests_of(fleet)).into_iter();
        events
            .filter_map(|event| Some((event.r#type(), event.request?)))
            .map(|(t, r)| (r.machine, t, r.removal))
            .collect()
    }

    fn of_worker(kind: Type, removal: bool) -> Vec<(String, Type, bool)> {
        vec![("worker-1".to_owned(), kind, removal)]
    }

    fn remove(name: &str) -> Request {
        let policy = RemovalPolicy::Graceful;
        Request::Remove { machine: machine(name), policy, accept_control_plane_downtime: false }
    }

    fn keep(name: &str) -> Request {
        Request::AbortRemoval { machine: machine(name) }
    }

    #[test]
    fn a_removal_is_no_maintenance() {
        let mut fleet = updates::deployed(3, 2);
        fleet.ask(remove("worker-1")).expect("begins");
        fleet.lock("ceph", None, LockState::Inactive);
        let asked = requests_of(&fleet);
        let said: Vec<(&str, bool)> = asked.iter().map(|(name, request)| (name.as_str(), request.removal)).collect();
        assert_eq!(said, [("", false), ("worker-1", true)]);
        fleet.ask(keep("worker-1")).expect("kept");
        let of_cluster = (String::new(), Type::Deleted, false);
        let back = [vec![of_cluster.clone()], of_worker(Type::Deleted, false)].concat();
        assert_eq!(told(&fleet, &asked), back, "it is given back");
        fleet.lock("ceph", Some("worker-1"), LockState::Active);
        fleet.lock("ceph", None, LockState::Active);
        fleet.ask(remove("worker-1")).expect("begins");
        fleet.lock("ceph", None, LockState::Inactive);
        let asked = requests_of(&fleet);
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        let gone = [vec![of_cluster], of_worker(Type::Deleted, true)].concat();
        assert_eq!(told(&fleet, &asked), gone, "it does not come back");
    }

    #[test]
    fn one_that_is_removed_in_an_update_is_told_of_again() {
        let mut fleet = updates::deployed(3, 2);
        updates::release(&mut fleet, &["install"], 1);
        let mut fleet = fleet.started();
        for name in ["control-1", "control-2", "control-3"] {
            fleet.upgrade(name);
        }
        let before = requests_of(&fleet);
        assert!(before.contains_key("worker-1") && told(&fleet, &before).is_empty());
        fleet.ask(remove("worker-1")).expect("begins");
        assert_eq!(told(&fleet, &before), of_worker(Type::Put, true));
    }

    /// It stays in the cluster, still out of service.
    #[test]
    fn one_that_is_removed_from_maintenance_is_told_of_again_and_so_is_that_it_stays() {
        let mut fleet = updates::deployed(3, 2);
        let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
        fleet.ask(enter).expect("begins");
        fleet.lock("ceph", None, LockState::Inactive);
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.accept("worker-1");
        fleet.lock("ceph", Some("worker-1"), LockState::Active);
        let before = requests_of(&fleet);
        fleet.ask(remove("worker-1")).expect("begins");
        assert_eq!(told(&fleet, &before), of_worker(Type::Put, true));
        let removed = requests_of(&fleet);
        fleet.ask(keep("worker-1")).expect("kept");
        assert_eq!(told(&fleet, &removed), of_worker(Type::Put, false));
    }

    #[test]
    fn restarted_controller_sees_locks_without_request() {
        let mut fleet = updates::deployed(3, 1);
        updates::release(&mut fleet, &["install"], 1);
        let mut fleet = fleet.started();
        fleet.lock("ceph", Some("control-1"), LockState::Inactive);
        fleet.lock("ceph", Some("worker-1"), LockState::Inactive);
        fleet.say(
            "nova",
            LockCommand::Register { cluster: cluster(), machines: vec![machine("worker-1")], of_cluster: false },
        );
        let held = held(fleet.core.facts(), &cluster(), "ceph");
        let told: Vec<_> = held.iter().map(|lock| (lock.machine.as_str(), lock.state(), lock.requested)).collect();
        use wire::LockState::{Active, Inactive};
        let expected = [
            ("", Inactive, true),
            ("control-1", Inactive, true),
            ("control-2", Active, false),
            ("control-3", Active, false),
        ];
        assert_eq!(told[..4], expected);
        assert_eq!(told[4], ("worker-1", Inactive, false), "its request is gone, if there was one");
    }

    /// Machines with a request, and the release in it.
    fn coming(fleet: &Fleet) -> Vec<(String, String)> {
        requests_of(fleet).into_values().map(|request| (request.machine, request.release)).collect()
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, release)| ((*name).to_owned(), (*release).to_owned())).collect()
    }

    #[test]
    fn requests_of_an_update_name_the_release_that_is_coming() {
        let mut fleet = updates::deployed(3, 2);
        updates::release(&mut fleet, &["install"], 1);
        let mut fleet = fleet.started();
        assert_eq!(coming(&fleet), pairs(&[("", "1.1"), ("control-1", "1.1")]));
        // A release applied meanwhile belongs to a later update.
        updates::release(&mut fleet, &["install"], 1);
        for name in ["control-1", "control-2", "control-3"] {
            fleet.upgrade(name);
        }
        assert_eq!(coming(&fleet), pairs(&[("", "1.1"), ("worker-1", "1.1")]));
        fleet.ask(remove("worker-1")).expect("begins");
        assert_eq!(coming(&fleet), pairs(&[("", "1.1"), ("worker-1", "")]), "it stays at what it has");
    }

    #[test]
    fn no_release_comes_with_maintenance_a_reboot_or_a_removal() {
        let enter = Request::EnterMaintenance { machine: machine("worker-1"), accept_control_plane_downtime: false };
        for request in [enter, update_reboots::reboot(&["worker-1"]), remove("worker-1")] {
            let mut fleet = updates::deployed(3, 2);
            fleet.ask(request).expect("begins");
            fleet.lock("ceph", None, LockState::Inactive);
            assert_eq!(coming(&fleet), pairs(&[("", ""), ("worker-1", "")]));
        }
    }
}
