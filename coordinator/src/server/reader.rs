//! Documents that one caller may read: once, or again after every change of the facts.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use aws_lc_rs::digest;
use futures_util::{Stream, stream};
use muster_proto::{
    model::ClusterName,
    resource::{Document, Kind, LockSpec, RequestSpec},
    wire::{GetRequest, Resource, WatchEvent, watch_event::Type},
};
use serde::Serialize;
use tokio::sync::watch;
use tonic::Status;

use super::watches::Watching;
use crate::{documents, engine::EngineHandle, facts::Facts, pki::Peer, plan::Limits};

/// Shortest interval between two updates of a watcher: changes within it are merged.
pub(super) const WATCH_PAUSE: Duration = Duration::from_millis(100);
/// Delay after a change: its consequences usually follow at once and are sent together. It also keeps the reading of
/// every machine away from the fleet's next step, such as the start of a machine that waited for a slot.
const WATCH_SETTLE: Duration = Duration::from_millis(30);
/// Longest interval between two reads of a watcher, for changes by time alone (Lost, last seen).
const WATCH_AGAIN: Duration = Duration::from_secs(5);

/// Parse the requested kind.
fn kind_named(word: &str) -> Result<Kind, Status> {
    Kind::named(word).ok_or_else(|| {
        let known = Kind::ALL.map(Kind::word).join(", ");
        Status::invalid_argument(format!("kind: expected one of {known}"))
    })
}

/// What one caller asked for and may see.
pub(super) struct Reader {
    engine: EngineHandle,
    peer: Peer,
    kind: Kind,
    name: Option<String>,
    cluster: Option<ClusterName>,
}

impl Reader {
    /// Check a request.
    pub(super) fn new(engine: &EngineHandle, peer: Peer, request: GetRequest) -> Result<Self, Status> {
        let kind = kind_named(&request.kind)?;
        if matches!(kind, Kind::Audit | Kind::AuditChains | Kind::Credentials) && peer.clusters.is_some() {
            return Err(Status::permission_denied(format!(
                "{}: only for those who may see every cluster",
                kind.word()
            )));
        }
        let some = |text: String| (!text.is_empty()).then_some(text);
        let cluster = some(request.cluster)
            .map(ClusterName::new)
            .transpose()
            .map_err(|error| Status::invalid_argument(format!("cluster: {error}")))?;
        Ok(Self { engine: engine.clone(), peer, kind, name: some(request.name), cluster })
    }

    /// The one requested name.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The requested kind, in the singular.
    pub(super) fn kind(&self) -> &'static str {
        self.kind.singular()
    }

    /// The documents, in order.
    pub(super) fn read(&self, facts: &Facts) -> Result<Vec<Resource>, Status> {
        let (limits, now): (&Limits, _) = (self.engine.limits(), self.engine.now());
        let wanted =
            |name: &ClusterName| self.peer.may_touch(name) && self.cluster.as_ref().is_none_or(|only| only == name);
        match self.kind {
            Kind::Clusters => self.resources(documents::clusters(facts, wanted, limits, now)),
            Kind::Machines => self.resources(match self.name() {
                Some(name) => documents::machine_named(facts, name, wanted, limits, now).into_iter().collect(),
                None => documents::machines(facts, wanted, limits, now),
            }),
            Kind::Rollouts => self.resources(documents::rollouts(facts, wanted, limits, now)),
            Kind::Locks(of) => {
                let mut locks = documents::locks(facts, wanted);
                locks.retain(|lock| of.has(lock.spec.node_name.as_deref()));
                self.keyed(locks, |lock| {
                    let LockSpec { cluster_name, controller_name, node_name, .. } = &lock.spec;
                    format!("{cluster_name}/{controller_name}/{}", node_name.as_deref().unwrap_or_default())
                })
            }
            Kind::Requests(of) => {
                let mut requests = documents::requests(facts, wanted, limits, now);
                requests.retain(|request| of.has(request.spec.node_name.as_deref()));
                self.keyed(requests, |request| {
                    let RequestSpec { cluster_name, node_name, .. } = &request.spec;
                    format!("{cluster_name}/{}", node_name.as_deref().unwrap_or_default())
                })
            }
            Kind::ClusterStates => self.resources(documents::cluster_states(facts, wanted, limits, now)),
            Kind::Tokens => self.resources(documents::tokens(facts, wanted, now)),
            Kind::Credentials => self.keyed(documents::credentials(facts, now), |credential| {
                format!("{}/{}", credential.metadata.name, credential.metadata.creation_timestamp)
            }),
            Kind::Secrets => {
                let all = self.peer.clusters.is_none() && self.cluster.is_none();
                self.resources(documents::secrets(facts, wanted, all))
            }
            // The name of a line changes when its count rises.
            Kind::Audit => self.keyed(documents::audit(facts, self.cluster.as_ref()), |line| {
                format!("{}/{}", line.status.chain, line.status.number)
            }),
            Kind::AuditChains => self.resources(documents::audit_chains(facts)),
        }
    }

    fn resources<Spec: Serialize, Status_: Serialize>(
        &self,
        documents: Vec<Document<Spec, Status_>>,
    ) -> Result<Vec<Resource>, Status> {
        self.keyed(documents, |document| document.metadata.name.clone())
    }

    /// Documents with possibly ambiguous names get a separate key: the controller ceph on node osd-1 and ceph-osd on
    /// node 1 give the same name, and a person may have several certificates. A `/` never occurs in labels.
    fn keyed<Spec: Serialize, Status_: Serialize>(
        &self,
        documents: Vec<Document<Spec, Status_>>,
        key: impl Fn(&Document<Spec, Status_>) -> String,
    ) -> Result<Vec<Resource>, Status> {
        documents
            .into_iter()
            .filter(|document| self.name.as_ref().is_none_or(|name| *name == document.metadata.name))
            .map(|document| {
                let json = serde_json::to_vec(&document).map_err(|error| super::status::internal(&error))?;
                let key = key(&document);
                Ok(Resource { kind: self.kind.word().to_owned(), name: document.metadata.name, json, key })
            })
            .collect()
    }
}

/// All documents, then `SYNCED`, then changes.
pub(super) fn watch(
    reader: Reader,
    watching: Watching,
    facts: watch::Receiver<Arc<Facts>>,
    ending: impl Future<Output = Status> + Send + 'static,
) -> impl Stream<Item = Result<WatchEvent, Status>> {
    let (reader, ending, events) = (Arc::new(reader), Box::pin(ending), Vec::new().into_iter());
    let state = Watch { reader, watching, facts, ending, sent: None, events };
    stream::try_unfold(state, |mut state| async move {
        loop {
            if let Some(event) = state.events.next() {
                return Ok(Some((event, state)));
            }
            if state.sent.is_some() {
                state.changed().await?;
            }
            state.look().await?;
        }
    })
}

struct Watch {
    reader: Arc<Reader>,
    watching: Watching,
    facts: watch::Receiver<Arc<Facts>>,
    /// Completes when the coordinator ends.
    ending: Pin<Box<dyn Future<Output = Status> + Send>>,
    /// Names and digests of what the watcher knows, by key, after the first send.
    sent: Option<BTreeMap<String, (String, Vec<u8>)>>,
    events: std::vec::IntoIter<WatchEvent>,
}

impl Watch {
    /// Wait for a reason to read again, or for the end.
    async fn changed(&mut self) -> Result<(), Status> {
        let change = async {
            tokio::time::sleep(WATCH_PAUSE).await;
            let changed = tokio::time::timeout(WATCH_AGAIN, self.facts.changed()).await;
            tokio::time::sleep(WATCH_SETTLE).await;
            changed
        };
        tokio::select! {
            status = &mut self.ending => Err(status),
            changed = change => match changed {
                Ok(Err(_)) => Err(Status::unavailable("the coordinator has stopped")),
                Ok(Ok(())) | Err(_) => Ok(()),
            },
        }
    }

    async fn look(&mut self) -> Result<(), Status> {
        let (facts, reader) = (Arc::clone(&self.facts.borrow_and_update()), Arc::clone(&self.reader));
        let resources = self.watching.look(move || reader.read(&facts)).await??;
        let event = |kind: Type, resource| WatchEvent { r#type: kind.into(), resource };
        let before = self.sent.take();
        let first = before.is_none();
        let mut before = before.unwrap_or_default();
        let mut events = Vec::new();
        let mut sent = BTreeMap::new();
        for resource in resources {
            let known = before.remove(&resource.key);
            let digest = digest::digest(&digest::SHA256, &resource.json).as_ref().to_vec();
            let changed = known.is_none_or(|(_, known)| known != digest);
            sent.insert(resource.key.clone(), (resource.name.clone(), digest));
            if changed {
                events.push(event(Type::Put, Some(resource)));
            }
        }
        for (key, (name, _)) in before {
            let gone = Resource { kind: self.reader.kind.word().to_owned(), name, json: Vec::new(), key };
            events.push(event(Type::Deleted, Some(gone)));
        }
        if first {
            events.push(event(Type::Synced, None));
        }
        self.sent = Some(sent);
        self.events = events.into_iter();
        Ok(())
    }
}
