//! The check of a cluster's Kubernetes.

use std::sync::Arc;

use muster_proto::wire::CheckKubernetesResponse;
use tonic::{Response, Status};

use super::{Fleet, cluster_name, may_touch, there_is_no};
use crate::{documents::kubernetes::check, orchestrator, pki::Peer, server::status::internal};

impl Fleet {
    /// Asks the cluster's API server, and tells what stands in the way of an update.
    pub(super) async fn check(
        &self,
        peer: &Peer,
        cluster: String,
    ) -> Result<Response<CheckKubernetesResponse>, Status> {
        let cluster = cluster_name(cluster)?;
        may_touch(peer, &cluster)?;
        let (facts, limits, now) = (self.engine.facts(), *self.engine.limits(), self.engine.now());
        if facts.spec(&cluster).is_none() {
            return Err(there_is_no("cluster", cluster.as_str()));
        }
        let (known, of) = (Arc::clone(&facts), cluster.clone());
        let servers = self.watches.look(move || check::servers(&known, &of, &limits, now)).await?;
        let Some(found) =
            orchestrator::kubernetes::inspect(&facts, &cluster, (&self.sessions, &self.vault), servers).await
        else {
            let message = format!("cluster {cluster} has no Kubernetes: its manifest has no spec.kubernetes");
            return Err(Status::failed_precondition(message));
        };
        let of = cluster.clone();
        let report = self.watches.look(move || check::report(&facts, &of, &found, &limits, now)).await?;
        let report = report.ok_or_else(|| there_is_no("cluster", cluster.as_str()))?;
        let json = serde_json::to_vec(&report);
        Ok(Response::new(CheckKubernetesResponse { json: json.map_err(|error| internal(&error))? }))
    }
}
