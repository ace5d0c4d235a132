//! Secrets from operators: checked, sealed, and submitted to the engine.

use std::collections::BTreeSet;

use muster_proto::{
    model::{ClusterName, INPUT_BYTES_MAX, SecretName},
    wire::ActionResponse,
};
use tonic::{Response, Status};

use super::{Fleet, cluster_name, may_touch};
use crate::{core::Request as DesiredState, facts::SecretId, pki::Peer};

/// Attempts to seal a secret when others are created at the same moment.
const SEAL_TRIES_MAX: usize = 8;

impl Fleet {
    /// Record a value as the next version of its secret.
    pub(super) async fn record_secret(
        &self,
        peer: &Peer,
        id: SecretId,
        value: &[u8],
        clusters: BTreeSet<ClusterName>,
    ) -> Result<Response<ActionResponse>, Status> {
        if value.is_empty() || value.len() > INPUT_BYTES_MAX {
            let message = format!("value: expected 1 to {INPUT_BYTES_MAX} bytes, not {}", value.len());
            return Err(Status::invalid_argument(message));
        }
        let mut tries = 0..SEAL_TRIES_MAX;
        loop {
            let version = self.engine.facts().meta.secret_seq + 1;
            let sealed = self.vault.seal(&id, version, value)?;
            let (id, clusters) = (id.clone(), clusters.clone());
            let wished = self.act(peer, DesiredState::CreateSecret { id, version, sealed, clusters }).await;
            // It was sealed for a version that another secret has taken meanwhile.
            let outrun = self.engine.facts().meta.secret_seq >= version;
            if wished.is_ok() || !outrun || tries.next().is_none() {
                return wished;
            }
        }
    }
}

/// The clusters that share a secret.
pub(super) fn cluster_names(names: Vec<String>) -> Result<BTreeSet<ClusterName>, Status> {
    names.into_iter().map(cluster_name).collect()
}

/// A secret that the peer may touch. Shared ones are forbidden to a caller limited to clusters.
pub(super) fn secret_id(peer: &Peer, cluster: String, name: String) -> Result<SecretId, Status> {
    let name = SecretName::new(name.clone())
        .map_err(|error| Status::invalid_argument(format!("secret: \"{name}\" is no name: {error}")))?;
    let cluster = (!cluster.is_empty()).then(|| cluster_name(cluster)).transpose()?;
    match &cluster {
        Some(cluster) => may_touch(peer, cluster)?,
        None if peer.clusters.is_some() => {
            return Err(Status::permission_denied("these credentials are for some clusters only: say --cluster"));
        }
        None => {}
    }
    Ok(SecretId { cluster, name })
}
