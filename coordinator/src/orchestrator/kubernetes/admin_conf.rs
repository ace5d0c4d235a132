//! Kubeconfigs on control machines, read by their agents. They are kept in memory alone: the file is on the machines
//! whose API servers it leads to, so a restarted coordinator reads it again, and no copy of it can be stolen or outlive
//! its credentials.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_proto::model::{AdminConf, ClusterName, ControlPlaneOp, ControlPlaneReply, Epoch};
use tokio::sync::Mutex as AsyncMutex;
use zeroize::Zeroizing;

use super::{client::KubernetesClient, kubeconfig::Kubeconfig, perform};
use crate::{
    facts::kubernetes::{AdminConfFile, KubernetesFailure, KubernetesOp, KubernetesReply},
    server::Sessions,
};

/// Time for an agent's answer. The agent itself gives up after 5 s.
const ANSWER_MAX: Duration = Duration::from_secs(8);

/// Agents, and the epoch in which they are asked.
pub(super) type Agents<'a> = (&'a Sessions, Epoch);

/// The clients made from such files, by cluster.
#[derive(Default)]
pub(super) struct AdminConfs(Mutex<BTreeMap<ClusterName, Arc<AsyncMutex<Option<Held>>>>>);

/// A file as it was read.
#[derive(Clone)]
struct Held {
    path: String,
    content: Arc<Zeroizing<Vec<u8>>>,
    client: Arc<KubernetesClient>,
    state: State,
}

/// Does the file have to be read again?
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It served.
    Good,
    /// The API server cannot be reached with it: its address or CA may have changed.
    Silent,
    /// The API server does not accept it.
    Rejected,
}

impl AdminConfs {
    /// Forgets the files of all clusters but these.
    pub(super) fn retain(&self, is_used: impl Fn(&ClusterName) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|cluster, _| is_used(cluster));
    }

    /// Performs an operation. Credentials that are not accepted are read once more, and tried if they are others: such
    /// a request was not carried out.
    pub(super) async fn perform(
        &self,
        file: &AdminConfFile,
        agents: Agents<'_>,
        op: &KubernetesOp,
        fallbacks: &[IpAddr],
    ) -> Result<KubernetesReply, KubernetesFailure> {
        let held = self.held(file, agents).await?;
        let result = perform(&held.client, agents, op, fallbacks).await;
        self.note(file, &held, state_after(&result)).await;
        if !matches!(result, Err(KubernetesFailure::Unauthorized(_))) {
            return result;
        }
        let again = self.held(file, agents).await?;
        if again.content == held.content {
            return result;
        }
        let result = perform(&again.client, agents, op, fallbacks).await;
        self.note(file, &again, state_after(&result)).await;
        result
    }

    fn place(&self, cluster: &ClusterName) -> Arc<AsyncMutex<Option<Held>>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(places.entry(cluster.clone()).or_default())
    }

    /// The file of a cluster, read if that is due. One question at a time reads it.
    async fn held(&self, file: &AdminConfFile, agents: Agents<'_>) -> Result<Held, KubernetesFailure> {
        let place = self.place(&file.cluster);
        let mut held = place.lock().await;
        if let Some(held) = held.as_ref().filter(|held| held.path == file.path && held.state == State::Good) {
            return Ok(held.clone());
        }
        match (read(file, agents).await, held.as_mut().filter(|held| held.path == file.path)) {
            // The same as before: the client keeps its connections.
            (Ok((content, _)), Some(known)) if known.content == content => {
                known.state = State::Good;
                Ok(known.clone())
            }
            (Ok((content, client)), _) => {
                let new = Held { path: file.path.clone(), content, client: Arc::new(client), state: State::Good };
                Ok(held.insert(new).clone())
            }
            (Err(_), Some(known)) if known.state == State::Silent => Ok(known.clone()),
            (Err(failure), _) => Err(failure),
        }
    }

    async fn note(&self, file: &AdminConfFile, used: &Held, state: State) {
        let place = self.place(&file.cluster);
        let mut held = place.lock().await;
        if let Some(held) = held.as_mut().filter(|held| Arc::ptr_eq(&held.client, &used.client)) {
            held.state = state;
        }
    }
}

/// What a result says of the credentials.
fn state_after(result: &Result<KubernetesReply, KubernetesFailure>) -> State {
    let is_rejected = |failure: &KubernetesFailure| matches!(failure, KubernetesFailure::Unauthorized(_));
    match result {
        Err(failure) if is_rejected(failure) => State::Rejected,
        Err(KubernetesFailure::Unreachable(_)) => State::Silent,
        Ok(KubernetesReply::Evicted(answers))
            if answers.iter().any(|(_, answer)| answer.as_ref().is_err_and(is_rejected)) =>
        {
            State::Rejected
        }
        _ => State::Good,
    }
}

/// Reads the file on the first control machine whose agent can, and makes a client from it.
pub(super) async fn read(
    file: &AdminConfFile,
    (sessions, epoch): Agents<'_>,
) -> Result<(Arc<Zeroizing<Vec<u8>>>, KubernetesClient), KubernetesFailure> {
    let mut failures = Vec::new();
    for (machine, agent) in &file.holders {
        let op = ControlPlaneOp::AdminConf { path: file.path.clone() };
        match sessions.call_control_plane((*agent, epoch), op, ANSWER_MAX).await {
            Ok(ControlPlaneReply::AdminConf(AdminConf(content))) => {
                let content = Zeroizing::new(content);
                let unfit = |why: String| KubernetesFailure::NoKubeconfig(format!("{} on {machine}: {why}", file.path));
                let text = std::str::from_utf8(&content).map_err(|_| unfit("it is not text".to_owned()))?;
                let kubeconfig = Kubeconfig::parse(text).map_err(|error| unfit(error.to_string()))?;
                let client = KubernetesClient::new(&kubeconfig).map_err(|failure| unfit(failure.to_string()))?;
                return Ok((Arc::new(content), client));
            }
            Ok(ControlPlaneReply::EtcdHealth(_)) => failures.push(format!("{machine}: it answered another question")),
            Err(why) => failures.push(format!("{machine}: {why}")),
        }
    }
    let why = format!("cannot read {} on a control machine - {}", file.path, failures.join("; "));
    Err(KubernetesFailure::NoKubeconfig(why))
}
