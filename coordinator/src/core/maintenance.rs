//! What application controllers say of their own locks.

use muster_proto::model::{ClusterName, LockState, MachineName, Now};

use super::{Refusal, Reply, operators::not_found};
use crate::facts::{Draft, LockKey, LockRow};

/// Locks of one controller; a cluster of ten thousand machines fits.
const LOCKS_PER_CONTROLLER_MAX: usize = 20_000;

/// What an application controller may say. Whose locks they are comes from its certificate.
#[derive(Clone, Debug)]
pub enum Word {
    /// It guards workloads here: locks that it does not hold yet are made, active.
    Register {
        /// Of this cluster.
        cluster: ClusterName,
        /// On these machines.
        machines: Vec<MachineName>,
        /// Of the cluster itself as well.
        of_cluster: bool,
    },
    /// It guards nothing here any more.
    Release {
        /// Of this cluster.
        cluster: ClusterName,
        /// On this machine; None: of the cluster itself.
        machine: Option<MachineName>,
    },
    /// The state of one of its locks.
    Set {
        /// Of this cluster.
        cluster: ClusterName,
        /// On this machine; None: of the cluster itself.
        machine: Option<MachineName>,
        /// May it be touched?
        state: LockState,
        /// What keeps it, in one line.
        message: String,
        /// How far its workloads are out of the way.
        percentage: u32,
        /// What it is doing, in one line.
        description: String,
    },
}

pub(super) fn take(draft: &mut Draft<'_>, controller: String, word: Word, now: Now) -> Result<Reply, Refusal> {
    match word {
        Word::Register { cluster, machines, of_cluster } => {
            register(draft, &controller, &cluster, machines, of_cluster, now)
        }
        Word::Release { cluster, machine } => {
            let key = known_lock(draft, LockKey { cluster, controller, node: machine })?;
            draft.drop_lock(&key);
            Ok(Reply::Ok)
        }
        Word::Set { cluster, machine, state, message, percentage, description } => {
            let key = known_lock(draft, LockKey { cluster, controller, node: machine })?;
            let news = LockRow {
                key,
                state,
                since_ms: now.wall_ms,
                message,
                percentage: percentage.min(100),
                description,
                updated_ms: now.wall_ms,
                revision: 0,
            };
            set(draft, news);
            Ok(Reply::Ok)
        }
    }
}

/// Records what is new. The same word said again is no news, and no progress.
fn set(draft: &mut Draft<'_>, news: LockRow) {
    let Some(known) = draft.locks.get(&news.key).cloned() else { return };
    let same =
        LockRow { since_ms: known.since_ms, updated_ms: known.updated_ms, revision: known.revision, ..news.clone() };
    if same == *known {
        return;
    }
    let moved = known.state != news.state || news.percentage > known.percentage;
    let updated_ms = if moved { news.updated_ms } else { known.updated_ms };
    let since_ms = if known.state == news.state { known.since_ms } else { news.since_ms };
    let revision = draft.next_revision();
    draft.put_lock(LockRow { since_ms, updated_ms, revision, ..news });
}

fn register(
    draft: &mut Draft<'_>,
    controller: &str,
    cluster: &ClusterName,
    machines: Vec<MachineName>,
    of_cluster: bool,
    now: Now,
) -> Result<Reply, Refusal> {
    if !draft.clusters.contains_key(cluster) {
        return Err(not_found("cluster", cluster.as_str(), draft.clusters.keys().map(ClusterName::as_str)));
    }
    for machine in &machines {
        let known = draft.machines.get(machine).is_some_and(|row| row.spec.cluster_name == *cluster);
        if !known {
            return Err(not_found("machine", machine.as_str(), draft.machines.keys().map(MachineName::as_str)));
        }
    }
    let nodes = machines.into_iter().map(Some).chain(of_cluster.then_some(None));
    let keys = nodes.map(|node| LockKey { cluster: cluster.clone(), controller: controller.to_owned(), node });
    let new: Vec<LockKey> = keys.filter(|key| !draft.locks.contains_key(key)).collect();
    let held = draft.locks.keys().filter(|key| key.controller == controller).count();
    if held + new.len() > LOCKS_PER_CONTROLLER_MAX {
        let message = format!("{controller} holds {held} locks; {LOCKS_PER_CONTROLLER_MAX} are the most");
        return Err(Refusal::State { reason: "TooManyLocks", message });
    }
    for key in new {
        let revision = draft.next_revision();
        draft.put_lock(LockRow {
            key,
            state: LockState::Active,
            since_ms: now.wall_ms,
            message: String::new(),
            percentage: 0,
            description: String::new(),
            updated_ms: now.wall_ms,
            revision,
        });
    }
    Ok(Reply::Ok)
}

/// A lock is registered before anything is said of it: who guards a machine must be known before it is asked.
fn known_lock(draft: &Draft<'_>, key: LockKey) -> Result<LockKey, Refusal> {
    if draft.locks.contains_key(&key) {
        return Ok(key);
    }
    let of = key.node.as_ref().map_or_else(|| format!("cluster {}", key.cluster), |node| format!("machine {node}"));
    Err(Refusal::State { reason: "NotRegistered", message: format!("{} holds no lock of {of}", key.controller) })
}
