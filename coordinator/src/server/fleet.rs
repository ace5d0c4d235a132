//! The operators' service. It checks names and permissions, and submits to the engine; documents come from the last
//! committed facts.

mod kubernetes;
mod manifests;
mod secrets;
mod words;

use std::{pin::Pin, sync::Arc};

use futures_util::Stream;
use muster_proto::{
    VERSION,
    model::{ItemHash, ItemName, MachineName, MachineType, TOKEN_TTL_MAX_MS},
    wire::{self, ActionResponse, fleet_server::Fleet as Service},
};
use tonic::{Request, Response, Status};

use manifests::{known_to, parse, wire_fault};
use words::{
    annotation, is_not_foreign, item_name, lock_release, may_touch, object_name, policy, scope, there_is_no, word,
};
pub(super) use words::{cluster_name, machine_name};

use super::{
    caller_of,
    reader::{self, Reader},
    sessions::Sessions,
    watches::Watches,
};
use crate::{
    core::{Input, Refusal, Reply, Request as DesiredState, update::Options},
    documents,
    engine::{EngineError, EngineHandle},
    facts::{SecretId, kubernetes::PodName},
    orchestrator,
    pki::{Ca, NewToken, Peer, Vault},
};

/// A stream of answers.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service.
pub(super) struct Fleet {
    pub(super) engine: EngineHandle,
    pub(super) sessions: Sessions,
    pub(super) ca: Arc<Ca>,
    pub(super) vault: Arc<Vault>,
    pub(super) watches: Watches,
}

#[tonic::async_trait]
impl Service for Fleet {
    type WatchStream = Answers<wire::WatchEvent>;
    type LogsStream = Answers<wire::LogsResponse>;

    async fn version(&self, request: Request<wire::VersionRequest>) -> Result<Response<wire::VersionResponse>, Status> {
        let (peer, _) = known(request)?;
        Ok(Response::new(wire::VersionResponse {
            version: VERSION.to_owned(),
            epoch: self.engine.facts().meta.epoch.0,
            trust_domain: self.ca.trust_domain().to_string(),
            server_time_ms: self.engine.now().wall_ms,
            caller: peer.to_string(),
            clusters: peer.clusters.iter().flatten().map(ToString::to_string).collect(),
        }))
    }

    async fn get(&self, request: Request<wire::GetRequest>) -> Result<Response<wire::GetResponse>, Status> {
        let (peer, request) = known(request)?;
        let reader = Reader::new(&self.engine, peer, request)?;
        let facts = self.engine.facts();
        let (items, reader) = self.watches.look(move || (reader.read(&facts), reader)).await?;
        let items = items?;
        if let Some(name) = reader.name().filter(|_| items.is_empty()) {
            return Err(Status::not_found(format!("there is no {} {name}", reader.kind())));
        }
        Ok(Response::new(wire::GetResponse { items }))
    }

    async fn watch(&self, request: Request<wire::GetRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (peer, request) = known(request)?;
        let watching = self.watches.begin(&peer.to_string())?;
        let reader = Reader::new(&self.engine, peer, request)?;
        Ok(Response::new(Box::pin(reader::watch(reader, watching, self.engine.watch(), self.sessions.ending()))))
    }

    async fn plan(&self, request: Request<wire::PlanRequest>) -> Result<Response<wire::PlanResponse>, Status> {
        let (peer, request) = known(request)?;
        let cluster = cluster_name(request.cluster)?;
        may_touch(&peer, &cluster)?;
        let facts = self.engine.facts();
        let accept_control_plane_downtime = request.accept_control_plane_downtime;
        let skip_backup = request.skip_backup;
        let options = Options { accept_control_plane_downtime, skip_backup, ..Options::of(scope(&request.scope)?) };
        let (limits, now, of) = (*self.engine.limits(), self.engine.now(), cluster.clone());
        let looked = Arc::clone(&facts);
        let look = move || documents::plan(&looked, &of, &options, &limits, now);
        let plan = self.watches.look(look).await?;
        let mut plan = plan.ok_or_else(|| Status::not_found(format!("there is no cluster {cluster}")))?;
        if documents::kubernetes::disturbs(&plan)
            && let Some(load) =
                orchestrator::kubernetes::cluster_load(&facts, &cluster, (&self.sessions, &self.vault)).await
        {
            documents::kubernetes::warn(&mut plan, &facts, &cluster, &load, &limits, now);
        }
        let plan = serde_json::to_vec(&plan);
        Ok(Response::new(wire::PlanResponse { json: plan.map_err(|error| super::status::internal(&error))? }))
    }

    async fn logs(&self, request: Request<wire::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        let item = item_name(request.item)?.map(String::from).unwrap_or_default();
        let facts = self.engine.facts();
        let id = super::status::keeper_of_logs(facts.machines.get(&machine).map(|row| &**row), &machine)?;
        Ok(Response::new(Box::pin(self.sessions.request_log(&peer.to_string(), id, item, request.follow)?)))
    }

    async fn check_kubernetes(
        &self,
        request: Request<wire::CheckKubernetesRequest>,
    ) -> Result<Response<wire::CheckKubernetesResponse>, Status> {
        let (peer, request) = known(request)?;
        self.check(&peer, request.cluster).await
    }

    async fn apply(&self, request: Request<wire::ApplyRequest>) -> Result<Response<wire::ApplyResponse>, Status> {
        let (peer, request) = known(request)?;
        let facts = self.engine.facts();
        let known = known_to(&peer, &facts);
        let manifest = match self.watches.look(move || parse(&request.files, &request.schemas, &known)).await? {
            Ok(manifest) => manifest,
            Err(faults) => {
                let faults = faults.into_iter().map(wire_fault).collect();
                return Ok(Response::new(wire::ApplyResponse { changes: Vec::new(), faults }));
            }
        };
        for cluster in manifest.clusters.keys().chain(manifest.machines.values().map(|(spec, _)| &spec.cluster_name)) {
            may_touch(&peer, cluster)?;
        }
        let foreign =
            |name: &&MachineName| facts.machines.get(*name).is_some_and(|row| !peer.may_touch(&row.spec.cluster_name));
        if let Some(name) = manifest.machines.keys().find(foreign) {
            let message = format!("NameTaken: another cluster has a machine {name}; names are of the whole fleet");
            return Err(Status::failed_precondition(message));
        }
        let (clusters, machines) = (manifest.clusters, manifest.machines);
        let desired = DesiredState::Apply { clusters, machines, dry_run: request.dry_run };
        let changes = self.act(&peer, desired).await?.into_inner().lines;
        Ok(Response::new(wire::ApplyResponse { changes, faults: Vec::new() }))
    }

    async fn deploy(&self, request: Request<wire::DeployRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let cluster = cluster_name(request.cluster)?;
        may_touch(&peer, &cluster)?;
        self.act(&peer, DesiredState::Deploy { cluster }).await
    }

    async fn update(&self, request: Request<wire::UpdateRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let cluster = cluster_name(request.cluster)?;
        may_touch(&peer, &cluster)?;
        let accept_control_plane_downtime = request.accept_control_plane_downtime;
        let (scope, skip_backup) = (scope(&request.scope)?, request.skip_backup);
        let agreed = (!request.plan_digest.is_empty()).then_some(request.plan_digest);
        let options = Options { scope, accept_control_plane_downtime, skip_backup, agreed };
        self.act(&peer, DesiredState::Update { cluster, options }).await
    }

    async fn reboot(&self, request: Request<wire::RebootRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let cluster = cluster_name(request.cluster)?;
        may_touch(&peer, &cluster)?;
        let machines = request.machines.into_iter().map(machine_name).collect::<Result<_, _>>()?;
        let accept_control_plane_downtime = request.accept_control_plane_downtime;
        self.act(&peer, DesiredState::Reboot { cluster, machines, accept_control_plane_downtime }).await
    }

    async fn enter_maintenance(
        &self,
        request: Request<wire::EnterMaintenanceRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        let accept_control_plane_downtime = request.accept_control_plane_downtime;
        self.act(&peer, DesiredState::EnterMaintenance { machine, accept_control_plane_downtime }).await
    }

    async fn leave_maintenance(
        &self,
        request: Request<wire::LeaveMaintenanceRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        self.act(&peer, DesiredState::LeaveMaintenance { machine }).await
    }

    async fn remove(&self, request: Request<wire::RemoveRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        let accept_control_plane_downtime = request.accept_control_plane_downtime;
        self.act(
            &peer,
            DesiredState::Remove { machine, policy: policy(&request.policy)?, accept_control_plane_downtime },
        )
        .await
    }

    async fn abort_removal(
        &self,
        request: Request<wire::AbortRemovalRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        self.act(&peer, DesiredState::AbortRemoval { machine }).await
    }

    async fn pause(&self, request: Request<wire::RolloutRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, rollout) = self.rollout(request)?;
        self.act(&peer, DesiredState::Pause { rollout }).await
    }

    async fn resume(&self, request: Request<wire::RolloutRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, rollout) = self.rollout(request)?;
        self.act(&peer, DesiredState::Resume { rollout }).await
    }

    async fn abort(&self, request: Request<wire::RolloutRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, rollout) = self.rollout(request)?;
        self.act(&peer, DesiredState::Abort { rollout }).await
    }

    async fn retry(&self, request: Request<wire::ItemRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, machine, item) = self.item(request)?;
        self.act(&peer, DesiredState::Retry { machine, item }).await
    }

    async fn drain_force(&self, request: Request<wire::DrainForceRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        let (namespace, name) = (object_name("namespace", request.namespace)?, object_name("pod", request.pod)?);
        self.act(&peer, DesiredState::DrainForce { machine, pod: PodName { namespace, name } }).await
    }

    async fn skip(&self, request: Request<wire::ItemRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, machine, item) = self.item(request)?;
        self.act(&peer, DesiredState::Skip { machine, item }).await
    }

    async fn accept(&self, request: Request<wire::ItemRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, machine, item) = self.item(request)?;
        self.act(&peer, DesiredState::Accept { machine, item }).await
    }

    async fn rerun(&self, request: Request<wire::ItemRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, machine, item) = self.item(request)?;
        let item = item.ok_or_else(|| Status::invalid_argument("item: missing"))?;
        self.act(&peer, DesiredState::Rerun { machine, item }).await
    }

    async fn annotate(&self, request: Request<wire::AnnotateRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        for (name, value) in &request.set {
            annotation(name, value)?;
        }
        let (set, remove) = (request.set, request.remove);
        let desired = match request.kind.as_str() {
            "machine" => DesiredState::AnnotateMachine { machine: self.machine(&peer, request.name)?, set, remove },
            "cluster" => {
                let cluster = cluster_name(request.name)?;
                may_touch(&peer, &cluster)?;
                DesiredState::AnnotateCluster { cluster, set, remove }
            }
            _ => return Err(Status::invalid_argument("kind: expected cluster or machine")),
        };
        self.act(&peer, desired).await
    }

    async fn create_token(
        &self,
        request: Request<wire::CreateTokenRequest>,
    ) -> Result<Response<wire::CreateTokenResponse>, Status> {
        let (peer, request) = known(request)?;
        let cluster = cluster_name(request.cluster)?;
        may_touch(&peer, &cluster)?;
        let machine_type: MachineType =
            request.machine_type.parse().map_err(|error| Status::invalid_argument(format!("machine type: {error}")))?;
        let machine = (!request.machine.is_empty()).then(|| machine_name(request.machine)).transpose()?;
        if request.ttl_ms > TOKEN_TTL_MAX_MS {
            let days = TOKEN_TTL_MAX_MS / (24 * 3600 * 1000);
            return Err(Status::invalid_argument(format!(
                "ttl: expected at most {days} days (`--ttl {}h`)",
                days * 24
            )));
        }
        let new = NewToken::make(&self.ca.pin())?;
        let desired = DesiredState::CreateToken {
            id: new.id.clone(),
            secret_sha256: ItemHash(new.secret_sha256),
            cluster,
            machine_type,
            machine,
            ttl_ms: Some(request.ttl_ms).filter(|ms| *ms != 0),
            uses: Some(request.uses).filter(|uses| *uses != 0),
        };
        match self.ask(&peer, desired).await? {
            Reply::Token { expires_at_ms, uses } => {
                Ok(Response::new(wire::CreateTokenResponse { token: new.text, id: new.id, expires_at_ms, uses }))
            }
            Reply::Ok | Reply::Done(_) | Reply::Enrolled { .. } | Reply::Inputs { .. } => {
                Err(Status::internal("no token was recorded"))
            }
        }
    }

    async fn revoke_token(
        &self,
        request: Request<wire::RevokeTokenRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let id = word("id", request.id)?;
        let facts = self.engine.facts();
        is_not_foreign(&peer, facts.tokens.get(&id).map(|row| &row.cluster), ("token", id.as_str()))?;
        self.act(&peer, DesiredState::RevokeToken { id, machines: request.machines }).await
    }

    async fn revoke_credentials(
        &self,
        request: Request<wire::CredentialsRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        if peer.clusters.is_some() {
            return Err(Status::permission_denied("credentials: only for those who may see every cluster"));
        }
        self.act(&peer, DesiredState::RevokeCredentials { subject: word("subject", request.subject)? }).await
    }

    async fn revoke_machine(&self, request: Request<wire::MachineRequest>) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        self.act(&peer, DesiredState::RevokeMachine { machine, machine_is_off: request.machine_is_off }).await
    }

    async fn replace_machine(
        &self,
        request: Request<wire::MachineRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        self.act(&peer, DesiredState::ReplaceMachine { machine, machine_is_off: request.machine_is_off }).await
    }

    async fn create_secret(
        &self,
        request: Request<wire::CreateSecretRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, wire::CreateSecretRequest { name, cluster, value, clusters }) = known(request)?;
        let id = secrets::secret_id(&peer, cluster, name)?;
        if id.cluster.is_some() && !clusters.is_empty() {
            return Err(Status::invalid_argument("clusters: a cluster's own secret is shared with no other"));
        }
        self.record_secret(&peer, id, &value, secrets::cluster_names(clusters)?).await
    }

    async fn share_secret(
        &self,
        request: Request<wire::ShareSecretRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, wire::ShareSecretRequest { name, add, remove, in_use }) = known(request)?;
        let SecretId { name, .. } = secrets::secret_id(&peer, String::new(), name)?;
        let (add, remove) = (secrets::cluster_names(add)?, secrets::cluster_names(remove)?);
        self.act(&peer, DesiredState::ShareSecret { name, add, remove, in_use }).await
    }

    async fn delete_secret(
        &self,
        request: Request<wire::DeleteSecretRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, wire::DeleteSecretRequest { name, cluster, in_use }) = known(request)?;
        let id = secrets::secret_id(&peer, cluster, name)?;
        self.act(&peer, DesiredState::DeleteSecret { id, in_use }).await
    }

    async fn release_locks(
        &self,
        request: Request<wire::ReleaseLocksRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        self.act(&peer, DesiredState::ReleaseLocks(lock_release(&peer, request)?)).await
    }

    async fn delete_cluster(
        &self,
        request: Request<wire::DeleteClusterRequest>,
    ) -> Result<Response<ActionResponse>, Status> {
        let (peer, request) = known(request)?;
        let cluster = cluster_name(request.cluster)?;
        may_touch(&peer, &cluster)?;
        self.act(&peer, DesiredState::DeleteCluster { cluster }).await
    }
}

impl Fleet {
    async fn act(&self, peer: &Peer, request: DesiredState) -> Result<Response<ActionResponse>, Status> {
        match self.ask(peer, request).await? {
            Reply::Done(lines) => Ok(Response::new(ActionResponse { lines })),
            Reply::Ok | Reply::Token { .. } | Reply::Enrolled { .. } | Reply::Inputs { .. } => {
                Ok(Response::new(ActionResponse { lines: Vec::new() }))
            }
        }
    }

    /// The engine's answer. Suggestions are removed for a caller limited to clusters: they may be foreign names.
    async fn ask(&self, peer: &Peer, request: DesiredState) -> Result<Reply, Status> {
        let answer = self.engine.submit(Input::Operator { actor: peer.to_string(), request }).await;
        answer.map_err(|error| match error {
            EngineError::Refused(Refusal::NotFound { kind, name, .. }) if peer.clusters.is_some() => {
                there_is_no(kind, &name)
            }
            error => error.into(),
        })
    }

    /// A machine that the peer may touch, or an unknown one: the core then suggests near names.
    fn machine(&self, peer: &Peer, name: String) -> Result<MachineName, Status> {
        let name = machine_name(name)?;
        let facts = self.engine.facts();
        is_not_foreign(peer, facts.machines.get(&name).map(|row| &row.spec.cluster_name), ("machine", name.as_str()))?;
        Ok(name)
    }

    /// A rollout that the peer may touch, or an unknown one: the core then reports that.
    fn rollout(&self, request: Request<wire::RolloutRequest>) -> Result<(Peer, String), Status> {
        let (peer, request) = known(request)?;
        let rollout = word("rollout", request.rollout)?;
        let facts = self.engine.facts();
        is_not_foreign(&peer, facts.rollouts.get(&rollout).map(|row| &row.cluster), ("rollout", rollout.as_str()))?;
        Ok((peer, rollout))
    }

    fn item(&self, request: Request<wire::ItemRequest>) -> Result<(Peer, MachineName, Option<ItemName>), Status> {
        let (peer, request) = known(request)?;
        let machine = self.machine(&peer, request.machine)?;
        Ok((peer, machine, item_name(request.item)?))
    }
}

/// The caller and its request. The table in `authz.rs` lets only known callers through.
pub(super) fn known<T>(request: Request<T>) -> Result<(Peer, T), Status> {
    let caller = caller_of(&request)?;
    let peer = caller.peer().ok_or_else(|| Status::unauthenticated("this takes credentials"))?;
    Ok((peer.clone(), request.into_inner()))
}
