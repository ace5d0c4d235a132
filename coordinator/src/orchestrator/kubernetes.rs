//! Clusters' Kubernetes API servers: performs the engine's questions and returns the answers. It decides nothing and
//! repeats nothing: both belong to `plan::drain::kubernetes`.

mod addons;
mod admin_conf;
mod answers;
mod check;
pub mod client;
mod daemon_sets;
mod etcd;
mod handshake;
pub mod kubeconfig;
mod list;
mod load;
pub mod node_annotations;
mod objects;
mod selector;
#[cfg(test)]
mod test_server;
mod text;
mod transport;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use muster_proto::model::ClusterName;
use tokio::time::timeout;

use crate::{
    core::{Input, KubernetesQuestion},
    engine::EngineHandle,
    facts::{
        Facts, SecretId, SecretRow,
        kubernetes::{
            AdminConfFile, ClusterLoad, ControlServer, KubernetesAccess, KubernetesFailure, KubernetesOp,
            KubernetesReply, check::Inspection,
        },
    },
    pki::Vault,
    plan::{drain::kubernetes::access, update::renewal},
    server::Sessions,
};
use admin_conf::{AdminConfs, Agents};
use client::KubernetesClient;
use kubeconfig::Kubeconfig;

/// Time for an operation, all its requests together. The core gives up on an answer a little later.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Clients by secret, each with the secret's version: a new value makes a new client.
type Clients = BTreeMap<SecretId, (u64, Arc<KubernetesClient>)>;

/// How a question reaches its API server.
enum Way {
    Client(Result<Arc<KubernetesClient>, KubernetesFailure>),
    File(Arc<AdminConfFile>),
}

/// Ask the engine's questions and return the answers, until the coordinator ends.
pub async fn ask(engine: EngineHandle, sessions: Sessions, vault: Arc<Vault>) {
    let Some(mut questions) = sessions.kubernetes_questions() else {
        tracing::error!("the Kubernetes questions are taken already: no drain goes on");
        return;
    };
    let epoch = engine.facts().meta.epoch;
    let mut clients = Clients::new();
    let confs = Arc::new(AdminConfs::default());
    while let Some(KubernetesQuestion { number, about, access, op, fallbacks }) = questions.recv().await {
        let way = match access {
            KubernetesAccess::Secret(secret) => Way::Client(client_of(&mut clients, &secret, &vault)),
            KubernetesAccess::AdminConf(file) => Way::File(file),
        };
        let facts = engine.facts();
        confs.retain(|cluster| facts.spec(cluster).is_some_and(|spec| spec.kubernetes.is_some()));
        let (engine, sessions, confs) = (engine.clone(), sessions.clone(), Arc::clone(&confs));
        let vault = Arc::clone(&vault);
        tokio::spawn(async move {
            let agents = (&sessions, epoch);
            let asked = async {
                let op = addons::prepared(op, &vault).await?;
                match way {
                    Way::Client(client) => perform(&*client?, agents, &op, &fallbacks).await,
                    Way::File(file) => confs.perform(&file, agents, &op, &fallbacks).await,
                }
            };
            let result = timeout(ANSWER_MAX, asked).await.unwrap_or_else(|_| {
                Err(KubernetesFailure::Unreachable(format!("no answer within {} s", ANSWER_MAX.as_secs())))
            });
            // The engine may have ended.
            drop(engine.notify(Input::KubernetesAnswered { about, number, result }).await);
        });
    }
}

/// Performs an operation, with what the agents of control machines have to say.
async fn perform(
    client: &KubernetesClient,
    (sessions, epoch): Agents<'_>,
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
    (sessions, vault): (&Sessions, &Vault),
) -> Option<Result<ClusterLoad, KubernetesFailure>> {
    let wanted = facts.spec(cluster).map(|spec| renewal::wanted(spec)).unwrap_or_default();
    Some(match client_for(facts, cluster, (sessions, vault)).await? {
        Ok((client, name)) => client.cluster_load(&wanted).await.map_err(|failure| failure.with(&name)),
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
    let maintenance = facts.spec(cluster)?.kubernetes.as_ref()?.maintenance.is_some();
    let agents = (sessions, facts.meta.epoch);
    Some(match client_for(facts, cluster, (sessions, vault)).await? {
        Ok((client, name)) => check::inspect((&client, agents), (known, maintenance), servers)
            .await
            .map_err(|failure| failure.with(&name)),
        Err(failure) => Err(failure),
    })
}

/// A client of its own for a caller outside the engine, and the name of its kubeconfig where there may be several.
/// None: the cluster has no Kubernetes.
async fn client_for(
    facts: &Facts,
    cluster: &ClusterName,
    (sessions, vault): (&Sessions, &Vault),
) -> Option<Result<(Arc<KubernetesClient>, String), KubernetesFailure>> {
    let spec = facts.spec(cluster)?.kubernetes.as_ref()?;
    Some(match access::of(facts, cluster, spec) {
        Err(failure) => Err(failure),
        Ok(KubernetesAccess::Secret(secret)) => {
            client_of(&mut Clients::new(), &secret, vault).map(|client| (client, String::new()))
        }
        Ok(KubernetesAccess::AdminConf(file)) => {
            let read = admin_conf::read(&file, (sessions, facts.meta.epoch), &BTreeSet::new()).await;
            read.map(|held| {
                let name = held.name();
                // Its address may be one of the control machine itself.
                (Arc::new(held.client.with_fallbacks(access::addresses(facts, cluster))), name)
            })
        }
    })
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
