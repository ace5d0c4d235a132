//! Kubeconfigs on control machines, read by their agents. They are kept in memory alone: the file is on the machines
//! whose API servers it leads to, so a restarted coordinator reads it again, and no copy of it can be stolen. A copy is
//! used for as long as it serves, and as its machine may have the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest;
use muster_proto::model::{AdminConf, ClusterName, ControlPlaneOp, ControlPlaneReply, Epoch, MachineId, MachineName};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, timeout_at},
};
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

/// Time from a question on, for what goes before its request.
#[derive(Clone, Copy)]
struct Limits {
    /// For reading the file. The rest of the question's time is the API server's.
    reading: Duration,
    /// For anything: a later change would be made on evidence that is outdated.
    change: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reading: Duration::from_secs(25), change: Duration::from_secs(1) }
    }
}

/// The clients made from such files, by cluster.
#[derive(Default)]
pub(super) struct AdminConfs {
    files: Mutex<BTreeMap<ClusterName, Arc<File>>>,
    limits: Limits,
}

/// One cluster's file.
#[derive(Default)]
struct File {
    /// One question at a time reads it.
    reading: AsyncMutex<()>,
    known: Mutex<Known>,
}

/// What was read of the file with this path, for the cluster with this UID.
#[derive(Default)]
struct Known {
    path: String,
    kubernetes_uid: Option<String>,
    held: Option<Arc<Held>>,
    /// Must it be read again? The last question failed in a way that another file may mend.
    doubtful: bool,
    /// Files that were rejected. Another one goes first.
    rejected: BTreeSet<Fingerprint>,
    /// When it could not be read, and why.
    failed: Option<(Instant, KubernetesFailure)>,
}

/// Hash of a file's content.
type Fingerprint = Vec<u8>;

/// A file as it was read.
pub(super) struct Held {
    holder: (MachineName, MachineId),
    path: String,
    fingerprint: Fingerprint,
    pub(super) client: KubernetesClient,
}

impl Held {
    /// Which file it is.
    pub(super) fn name(&self) -> String {
        format!("kubeconfig: {} of {}", self.path, self.holder.0)
    }
}

impl AdminConfs {
    /// Forgets the files of all clusters but these.
    pub(super) fn retain(&self, is_used: impl Fn(&ClusterName) -> bool) {
        self.files().retain(|cluster, _| is_used(cluster));
    }

    /// Performs an operation. If the file is rejected, that of the next control machine is tried: such a request was
    /// not carried out.
    pub(super) async fn perform(
        &self,
        file: &AdminConfFile,
        agents: Agents<'_>,
        op: &KubernetesOp,
        fallbacks: &[IpAddr],
    ) -> Result<KubernetesReply, KubernetesFailure> {
        let asked_at = Instant::now();
        let of_cluster = Arc::clone(self.files().entry(file.cluster.clone()).or_default());
        let mut rejected: Option<KubernetesFailure> = None;
        // Each holder's file once, and the one that was held before.
        for _ in 0..=file.holders.len() {
            let held = match self.held(&of_cluster, file, agents, asked_at).await {
                Ok(held) if is_change(op) && asked_at.elapsed() > self.limits.change => Err(outdated(&held)),
                held => held,
            };
            let held = match held {
                Ok(held) => held,
                Err(why) => return Err(rejected.map_or_else(|| why.clone(), |first| first.with(&why.to_string()))),
            };
            let result = perform(&held.client, agents, op, fallbacks).await;
            let result = result.and_then(|reply| is_of_cluster(file, reply)).map_err(|why| why.with(&held.name()));
            of_cluster.note(file, &held, &result);
            match result {
                Err(failure) if is_rejection(&failure) => rejected = Some(failure),
                result => return result,
            }
        }
        Err(rejected.unwrap_or_else(|| KubernetesFailure::NoKubeconfig(format!("no machine has {}", file.path))))
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<ClusterName, Arc<File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, read if that is due, and if there is still time for it.
    async fn held(
        &self,
        of_cluster: &File,
        file: &AdminConfFile,
        agents: Agents<'_>,
        asked_at: Instant,
    ) -> Result<Arc<Held>, KubernetesFailure> {
        let limit = self.limits.reading;
        timeout_at(asked_at + limit, of_cluster.held(file, agents, asked_at)).await.unwrap_or_else(|_| {
            let why = format!("cannot read {} on a control machine within {} s", file.path, limit.as_secs());
            Err(KubernetesFailure::NoKubeconfig(why))
        })
    }
}

impl File {
    /// What is known of this file. Anything of another one is dropped: of another path, of a cluster with another UID,
    /// and of a machine that may not have the file any more.
    fn known(&self, file: &AdminConfFile) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.path != file.path || known.kubernetes_uid != file.kubernetes_uid {
            let (path, kubernetes_uid) = (file.path.clone(), file.kubernetes_uid.clone());
            *known = Known { path, kubernetes_uid, ..Known::default() };
        }
        known.held.take_if(|held| !file.holders.iter().any(|(_, id)| *id == held.holder.1));
        known
    }

    async fn held(
        &self,
        file: &AdminConfFile,
        agents: Agents<'_>,
        asked_at: Instant,
    ) -> Result<Arc<Held>, KubernetesFailure> {
        if let Some(held) = self.known(file).good() {
            return Ok(held);
        }
        let _turn = self.reading.lock().await;
        let rejected = {
            let known = self.known(file);
            // Those in line share what the first of them got.
            if let Some(held) = known.good() {
                return Ok(held);
            }
            if let Some((_, failure)) = known.failed.as_ref().filter(|(at, _)| *at >= asked_at) {
                return known.held.clone().ok_or_else(|| failure.clone());
            }
            known.rejected.clone()
        };
        let read = read(file, agents, &rejected).await;
        self.known(file).keep(read)
    }

    /// Remembers what a result says of the file.
    fn note(&self, file: &AdminConfFile, used: &Arc<Held>, result: &Result<KubernetesReply, KubernetesFailure>) {
        let mut known = self.known(file);
        if !known.held.as_ref().is_some_and(|held| Arc::ptr_eq(held, used)) {
            return;
        }
        let failures: Vec<&KubernetesFailure> = match result {
            Err(failure) => vec![failure],
            Ok(KubernetesReply::Evicted(answers)) => answers.iter().filter_map(|(_, it)| it.as_ref().err()).collect(),
            Ok(_) => Vec::new(),
        };
        known.doubtful = failures.iter().any(|failure| is_doubt(failure));
        if failures.into_iter().any(is_rejection) {
            known.held = None;
            known.rejected.insert(used.fingerprint.clone());
        }
    }
}

impl Known {
    fn good(&self) -> Option<Arc<Held>> {
        self.held.clone().filter(|_| !self.doubtful)
    }

    /// Keeps what was read. What is held is used further if there is nothing better.
    fn keep(&mut self, read: Result<Held, KubernetesFailure>) -> Result<Arc<Held>, KubernetesFailure> {
        match read {
            Ok(new) => {
                (self.doubtful, self.failed) = (false, None);
                // The same as before: the client keeps what it knows of its server.
                let same = self.held.take_if(|held| held.fingerprint == new.fingerprint);
                Ok(Arc::clone(self.held.insert(same.unwrap_or_else(|| Arc::new(new)))))
            }
            Err(failure) => {
                // An API server may take tomorrow what it rejected today.
                self.rejected.clear();
                self.failed = Some((Instant::now(), failure.clone()));
                self.held.clone().ok_or(failure)
            }
        }
    }
}

/// Does it take pods away, or keep them away? Whatever speaks for that must have been seen a moment ago.
const fn is_change(op: &KubernetesOp) -> bool {
    matches!(
        op,
        KubernetesOp::Cordon { .. }
            | KubernetesOp::Evict { .. }
            | KubernetesOp::Delete { .. }
            | KubernetesOp::Requests { .. }
    )
}

fn outdated(held: &Held) -> KubernetesFailure {
    let why = format!("not sent, for reading {} on {} took too long; it is decided anew", held.path, held.holder.0);
    KubernetesFailure::NoKubeconfig(why)
}

/// The reply, if it is of the cluster that was there first.
fn is_of_cluster(file: &AdminConfFile, reply: KubernetesReply) -> Result<KubernetesReply, KubernetesFailure> {
    match (&file.kubernetes_uid, reply.cluster_uid()) {
        (Some(known), Some(found)) if known != found => Err(KubernetesFailure::another_cluster(known, found)),
        _ => Ok(reply),
    }
}

/// Was nothing done because of the file, which leads to another cluster or has credentials that are not accepted?
const fn is_rejection(failure: &KubernetesFailure) -> bool {
    matches!(failure, KubernetesFailure::Unauthorized(_) | KubernetesFailure::AnotherCluster { .. })
}

/// May it be due to the file: its address, its CA, or the rights of its user?
const fn is_doubt(failure: &KubernetesFailure) -> bool {
    matches!(failure, KubernetesFailure::Unreachable(_) | KubernetesFailure::Forbidden(_) | KubernetesFailure::Other(_))
}

/// Reads the file on the first control machine that has a usable one, and makes a client from it.
pub(super) async fn read(
    file: &AdminConfFile,
    agents: Agents<'_>,
    rejected: &BTreeSet<Fingerprint>,
) -> Result<Held, KubernetesFailure> {
    let mut failures = Vec::new();
    for holder in &file.holders {
        match read_on(holder, &file.path, agents).await {
            Ok(held) if rejected.contains(&held.fingerprint) => {
                failures.push(format!("{}: it has a file that was rejected", holder.0));
            }
            Ok(held) => return Ok(held),
            Err(why) => failures.push(format!("{}: {why}", holder.0)),
        }
    }
    let why = format!("cannot read a usable {} on a control machine - {}", file.path, failures.join("; "));
    Err(KubernetesFailure::NoKubeconfig(why))
}

async fn read_on(holder: &(MachineName, MachineId), path: &str, (sessions, epoch): Agents<'_>) -> Result<Held, String> {
    let op = ControlPlaneOp::AdminConf { path: path.to_owned() };
    let content = match sessions.call_control_plane((holder.1, epoch), op, ANSWER_MAX).await? {
        ControlPlaneReply::AdminConf(AdminConf(content)) => Zeroizing::new(content),
        ControlPlaneReply::EtcdHealth(_) => return Err("its agent answered another question".to_owned()),
    };
    let text = std::str::from_utf8(&content).map_err(|_| "the kubeconfig is not text".to_owned())?;
    let kubeconfig = Kubeconfig::parse(text).map_err(|error| error.to_string())?;
    let client = KubernetesClient::new(&kubeconfig).map_err(|failure| failure.to_string())?;
    let fingerprint = digest::digest(&digest::SHA256, &content).as_ref().to_vec();
    Ok(Held { holder: holder.clone(), path: path.to_owned(), fingerprint, client })
}

#[cfg(test)]
mod tests;
