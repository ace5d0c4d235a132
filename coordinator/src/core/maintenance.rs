//! Commands of application controllers about their own locks, and an operator's release of locks.

use muster_proto::model::{ClusterName, LockState, MachineName, Now};

use super::{
    Refusal, Reply,
    credentials::{self, Renewal},
    operators::{audited, known_cluster, not_found},
};
use crate::facts::{AuditObject, LockKey, LockRow, Transaction, handshake::Subject};

/// Maximum locks of one controller. It fits a cluster of ten thousand machines.
const LOCKS_PER_CONTROLLER_MAX: usize = 20_000;

/// Commands of an application controller. The owner of the locks comes from its certificate.
#[derive(Clone, Debug)]
pub enum LockCommand {
    /// It guards workloads here: missing locks are created, as active.
    Register {
        /// The cluster.
        cluster: ClusterName,
        /// The machines.
        machines: Vec<MachineName>,
        /// Also guard the cluster itself.
        of_cluster: bool,
    },
    /// It stops guarding workloads here.
    Release {
        /// The cluster.
        cluster: ClusterName,
        /// The machine; None: the cluster itself.
        machine: Option<MachineName>,
    },
    /// Set the state of one of its locks.
    Set {
        /// The cluster.
        cluster: ClusterName,
        /// The machine; None: the cluster itself.
        machine: Option<MachineName>,
        /// Lock state.
        state: LockState,
        /// What the controller waits for, in one line.
        message: String,
        /// How far its workloads are moved away, in percent.
        percentage: u32,
        /// Its current activity, in one line.
        description: String,
        /// The last release it worked for; empty: unknown.
        release: String,
    },
    /// It has a stream and sees every request from now on. The rim reports this on its behalf.
    Watch {
        /// The cluster.
        cluster: ClusterName,
        /// Number of the stream, unique in this process.
        stream: u64,
    },
    /// The stream has ended.
    Unwatch {
        /// The cluster.
        cluster: ClusterName,
        /// Number of the stream.
        stream: u64,
    },
    /// It requests a renewed certificate.
    Renew(Renewal),
}

/// Locks that an operator releases because their controller is permanently gone.
#[derive(Clone, Debug)]
pub struct LockRelease {
    /// The cluster.
    pub cluster: ClusterName,
    /// The controller's name, as in its certificate.
    pub controller: String,
    /// Only this machine; None: all of its locks in the cluster.
    pub machine: Option<MachineName>,
}

pub(super) fn take(
    tx: &mut Transaction<'_>,
    controller: String,
    word: LockCommand,
    now: Now,
) -> Result<Reply, Refusal> {
    match word {
        LockCommand::Register { cluster, machines, of_cluster } => {
            register(tx, &controller, &cluster, machines, of_cluster, now)
        }
        LockCommand::Release { cluster, machine } => {
            let key = known_lock(tx, LockKey::registered(cluster, controller, machine))?;
            tx.drop_lock(&key);
            Ok(Reply::Ok)
        }
        LockCommand::Set { cluster, machine, state, message, percentage, description, release } => {
            let key = known_lock(tx, LockKey::registered(cluster, controller, machine))?;
            let news = LockRow {
                key,
                state,
                since_ms: now.wall_ms,
                message,
                percentage: percentage.min(100),
                description,
                release,
                updated_ms: now.wall_ms,
                revision: 0,
                object: None,
            };
            set(tx, news);
            Ok(Reply::Ok)
        }
        LockCommand::Watch { cluster, stream } => {
            known_cluster(tx, &cluster)?;
            tx.begin_watch(cluster, controller, stream, now);
            Ok(Reply::Ok)
        }
        LockCommand::Unwatch { cluster, stream } => {
            tx.end_watch(cluster, controller, stream, now);
            Ok(Reply::Ok)
        }
        LockCommand::Renew(renewal) => credentials::renew(tx, &controller, renewal, now),
    }
}

/// Releases the locks of a controller that is permanently gone. Without locks it is unknown, and all waits for it end.
/// A live controller would create them again.
pub(super) fn release(tx: &mut Transaction<'_>, actor: &str, what: LockRelease, now: Now) -> Result<Reply, Refusal> {
    let LockRelease { cluster, controller, machine } = what;
    known_cluster(tx, &cluster)?;
    let (objects, held): (Vec<LockKey>, Vec<LockKey>) = tx
        .locks
        .keys()
        .filter(|key| key.cluster == cluster && key.controller == controller)
        .cloned()
        .partition(|key| key.uid.is_some());
    if held.is_empty() && !objects.is_empty() {
        return Err(is_object(tx, &controller, &objects));
    }
    if held.is_empty() {
        let known = tx.locks.keys().filter(|key| key.cluster == cluster).map(|key| key.controller.as_str());
        return Err(not_found("lock of", &controller, known));
    }
    if tx.live.watching.contains_key(&(cluster.clone(), controller.clone())) {
        let message = format!(
            "{controller} is connected and would make its locks again; stop it first, or shut it out with `musterctl \
             revoke controller/{controller}`"
        );
        return Err(Refusal::State { reason: "ControllerConnected", message });
    }
    let (gone, left): (Vec<LockKey>, Vec<LockKey>) =
        held.into_iter().partition(|key| machine.is_none() || key.node == machine);
    if let Some(machine) = machine.as_ref().filter(|_| gone.is_empty()) {
        return Err(not_registered(&controller, &format!("machine {machine}")));
    }
    gone.iter().for_each(|key| tx.drop_lock(key));
    let locks = if gone.len() == 1 { "lock" } else { "locks" };
    let mut line = format!("cluster {cluster}: {} {locks} of {controller} removed", gone.len());
    if !left.is_empty() {
        line.push_str(&format!("; it holds {} more, and is waited for as before", left.len()));
    } else if let Some(declared) = declared(tx, &cluster, &controller) {
        line.push_str(&format!("; but {declared}"));
    } else {
        line.push_str("; nothing waits for it any more");
    }
    audited(tx, actor, "release-locks", AuditObject::Cluster(&cluster), vec![line], now)
}

/// Its locks are in the Kubernetes cluster: whoever deletes them there releases them.
fn is_object(tx: &Transaction<'_>, controller: &str, locks: &[LockKey]) -> Refusal {
    let of = |key: &LockKey| tx.locks.get(key)?.object.clone();
    let first = locks.iter().find_map(of);
    let kind = match first.as_ref().map(|object| &object.subject) {
        Some(Subject::Cluster) => "clusterworkloadlock",
        Some(Subject::Node(_) | Subject::Deletion(_)) | None => "nodeworkloadlock",
    };
    let name = first.map(|object| object.name).unwrap_or_default();
    let message = format!(
        "the locks of {controller} are objects in the Kubernetes cluster: `kubectl delete {kind} {name}` releases \
         that one; if its controller is gone for good, a finalizer may hold it (`kubectl patch {kind} {name} \
         --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'`)"
    );
    Refusal::State { reason: "LockIsObject", message }
}

/// Whether a manifest still names the controller, and what to do about it.
fn declared(tx: &Transaction<'_>, cluster: &ClusterName, controller: &str) -> Option<String> {
    let rollout = tx.open_rollout(cluster);
    let frozen = rollout.and_then(|rollout| Some((&rollout.name, rollout.update.as_ref()?.version)));
    let names = |version: u64| {
        let spec = tx.specs.get(&(cluster.clone(), version));
        spec.is_some_and(|spec| spec.workload_controllers.iter().any(|name| name == controller))
    };
    let newest = tx.clusters.get(cluster).is_some_and(|row| names(row.spec_version));
    let way_out = match (newest, frozen.filter(|(_, version)| names(*version))) {
        (false, None) => return None,
        (true, None) => "before a manifest without it is applied".to_owned(),
        (false, Some((rollout, _))) => format!("before the update that has it is over (`musterctl abort {rollout}`)"),
        (true, Some((rollout, _))) => {
            format!("before a manifest without it is applied, after `musterctl abort {rollout}`")
        }
    };
    Some(format!("spec.workloadControllers has it: no machine is disturbed {way_out}"))
}

/// Records a change. A repeated command leaves the row unchanged, including the time of progress.
pub(super) fn set(tx: &mut Transaction<'_>, news: LockRow) {
    let Some(known) = tx.locks.get(&news.key).cloned() else { return };
    let same =
        LockRow { since_ms: known.since_ms, updated_ms: known.updated_ms, revision: known.revision, ..news.clone() };
    if same == *known {
        return;
    }
    let moved = known.state != news.state || news.percentage > known.percentage;
    let updated_ms = if moved { news.updated_ms } else { known.updated_ms };
    let since_ms = if known.state == news.state { known.since_ms } else { news.since_ms };
    let revision = tx.next_revision();
    tx.put_lock(LockRow { since_ms, updated_ms, revision, ..news });
}

fn register(
    tx: &mut Transaction<'_>,
    controller: &str,
    cluster: &ClusterName,
    machines: Vec<MachineName>,
    of_cluster: bool,
    now: Now,
) -> Result<Reply, Refusal> {
    known_cluster(tx, cluster)?;
    for machine in &machines {
        let known = tx.machines.get(machine).is_some_and(|row| row.spec.cluster_name == *cluster);
        if !known {
            return Err(not_found("machine", machine.as_str(), tx.machines.keys().map(MachineName::as_str)));
        }
    }
    let nodes = machines.into_iter().map(Some).chain(of_cluster.then_some(None));
    let keys = nodes.map(|node| LockKey::registered(cluster.clone(), controller.to_owned(), node));
    let new: Vec<LockKey> = keys.filter(|key| !tx.locks.contains_key(key)).collect();
    let held = tx.locks.keys().filter(|key| key.controller == controller).count();
    if held + new.len() > LOCKS_PER_CONTROLLER_MAX {
        let message = format!("{controller} holds {held} locks; {LOCKS_PER_CONTROLLER_MAX} are the most");
        return Err(Refusal::State { reason: "TooManyLocks", message });
    }
    for key in new {
        let revision = tx.next_revision();
        tx.put_lock(LockRow {
            key,
            state: LockState::Active,
            since_ms: now.wall_ms,
            message: String::new(),
            percentage: 0,
            description: String::new(),
            release: String::new(),
            updated_ms: now.wall_ms,
            revision,
            object: None,
        });
    }
    Ok(Reply::Ok)
}

/// A lock must be registered before its state is set: the guards of a machine must be known before they are asked.
fn known_lock(tx: &Transaction<'_>, key: LockKey) -> Result<LockKey, Refusal> {
    if tx.locks.contains_key(&key) {
        return Ok(key);
    }
    let of = key.node.as_ref().map_or_else(|| format!("cluster {}", key.cluster), |node| format!("machine {node}"));
    Err(not_registered(&key.controller, &of))
}

fn not_registered(controller: &str, of: &str) -> Refusal {
    Refusal::State { reason: "NotRegistered", message: format!("{controller} holds no lock of {of}") }
}
