//! Clusters' Kubernetes API servers: performs the engine's questions and returns the answers. It decides nothing and
//! repeats nothing: both belong to `plan::drain::kubernetes`.

mod answers;
mod check;
pub mod client;
mod etcd;
pub mod kubeconfig;
mod list;
mod load;
mod objects;
mod selector;
mod text;
mod transport;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use muster_proto::model::{ClusterName, Epoch};
use tokio::time::timeout;

use crate::{
    core::{Input, KubernetesQuestion},
    engine::EngineHandle,
    facts::{
        Facts, SecretId, SecretRow,
        kubernetes::{ClusterLoad, ControlServer, KubernetesFailure, KubernetesOp, KubernetesReply, check::Inspection},
    },
    pki::Vault,
    plan::secrets,
    server::Sessions,
};
use client::KubernetesClient;
use kubeconfig::Kubeconfig;

/// Time for an operation, all its requests together. The core gives up on an answer a little later.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Clients by secret, each with the secret's version: a new value makes a new client.
type Clients = BTreeMap<SecretId, (u64, Arc<KubernetesClient>)>;

/// Ask the engine's questions and return the answers, until the coordinator ends.
pub async fn ask(engine: EngineHandle, sessions: Sessions, vault: Arc<Vault>) {
    let Some(mut questions) = sessions.kubernetes_questions() else {
        tracing::error!("the Kubernetes questions are taken already: no drain goes on");
        return;
    };
    let epoch = engine.facts().meta.epoch;
    let mut clients = Clients::new();
    while let Some(KubernetesQuestion { number, about, kubeconfig, op, fallbacks }) = questions.recv().await {
        let client = client_of(&mut clients, &kubeconfig, &vault);
        let (engine, sessions) = (engine.clone(), sessions.clone());
        tokio::spawn(async move {
            let result = match client {
                Ok(client) => {
                    let asked = perform(&client, (&sessions, epoch), &op, &fallbacks);
                    timeout(ANSWER_MAX, asked).await.unwrap_or_else(|_| {
                        Err(KubernetesFailure::Unreachable(format!("no answer within {} s", ANSWER_MAX.as_secs())))
                    })
                }
                Err(failure) => Err(failure),
            };
            // The engine may have ended.
            drop(engine.notify(Input::KubernetesAnswered { about, number, result }).await);
        });
    }
}

/// Performs an operation, with what the agents of control machines have to say.
async fn perform(
    client: &KubernetesClient,
    (sessions, epoch): (&Sessions, Epoch),
    op: &KubernetesOp,
    fallbacks: &[IpAddr],
) -> Result<KubernetesReply, KubernetesFailure> {
    let KubernetesOp::ControlPlane { servers } = op else { return client.perform(op, fallbacks).await };
    let (reply, states) = tokio::join!(client.perform(op, fallbacks), etcd::states(sessions, epoch, servers));
    let mut reply = reply?;
    if let KubernetesReply::ControlPlane { servers, .. } = &mut reply {
        etcd::add(servers, states);
    }
    Ok(reply)
}

/// A look at everything that could keep a cluster's machines from being drained. None: it has no Kubernetes.
pub async fn cluster_load(
    facts: &Facts,
    cluster: &ClusterName,
    vault: &Vault,
) -> Option<Result<ClusterLoad, KubernetesFailure>> {
    Some(match client_for(facts, cluster, vault)? {
        Ok(client) => client.cluster_load().await,
        Err(failure) => Err(failure),
    })
}

/// Everything that a check needs of a cluster. None: it has no Kubernetes.
pub async fn inspect(
    facts: &Facts,
    cluster: &ClusterName,
    (sessions, vault): (&Sessions, &Vault),
    servers: Vec<ControlServer>,
) -> Option<Result<Inspection, KubernetesFailure>> {
    let known = facts.clusters.get(cluster)?.kubernetes_uid.as_deref();
    let agents = (sessions, facts.meta.epoch);
    Some(match client_for(facts, cluster, vault)? {
        Ok(client) => check::inspect((&client, agents), known, servers).await,
        Err(failure) => Err(failure),
    })
}

/// A client of its own for a caller outside the engine. None: the cluster has no Kubernetes.
fn client_for(
    facts: &Facts,
    cluster: &ClusterName,
    vault: &Vault,
) -> Option<Result<Arc<KubernetesClient>, KubernetesFailure>> {
    let spec = facts.spec(cluster)?.kubernetes.as_ref()?;
    let secret = secrets::find(facts, cluster, &spec.kubeconfig);
    let secret = secret.ok_or_else(|| KubernetesFailure::Other(format!("there is no secret {}", spec.kubeconfig)));
    Some(secret.and_then(|secret| client_of(&mut Clients::new(), secret, vault)))
}

fn client_of(
    clients: &mut Clients,
    secret: &SecretRow,
    vault: &Vault,
) -> Result<Arc<KubernetesClient>, KubernetesFailure> {
    if let Some((_, client)) = clients.get(&secret.id).filter(|(version, _)| *version == secret.version) {
        return Ok(Arc::clone(client));
    }
    let other = |error: &dyn std::fmt::Display| KubernetesFailure::Other(format!("secret {}: {error}", secret.id));
    let value = vault.open(secret).map_err(|error| other(&error))?;
    let text = String::from_utf8(value).map_err(|_| other(&"it is not text, so it is no kubeconfig"))?;
    let kubeconfig = Kubeconfig::parse(&text).map_err(|error| other(&error))?;
    let client = Arc::new(KubernetesClient::new(&kubeconfig)?);
    clients.insert(secret.id.clone(), (secret.version, Arc::clone(&client)));
    Ok(client)
}
