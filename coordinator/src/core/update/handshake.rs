//! The maintenance handshake as custom resources: what a list of a cluster's requests and locks shows is recorded.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{ClusterName, MachineName, Now};

use super::kubernetes::{self, is_same_cluster};
use crate::{
    core::{About, Effect},
    facts::{
        Facts, HandshakeObservation, LockKey, LockOf, LockRow, PutAnnotations, SETTLE_MS, Seen, StandingRequest,
        Transaction,
        handshake::{HandshakeObjects, LockObject, NewRequest, NodeAnnotations, RequestObject, Subject},
        kubernetes::{KubernetesFailure, KubernetesOp, KubernetesReply},
    },
    plan::{
        Limits, handshake,
        requests::{Requested, requested},
        snapshot::ClusterSnapshot,
    },
};

/// Maximum locks of a cluster. It fits ten controllers on each of ten thousand machines. A longer list is a failure: a
/// lock that is left out would count as absent.
const LOCKS_MAX: usize = 100_000;
/// Most controllers with a vanished lock that are recorded with a request.
const LOST_MAX: usize = 64;
/// Longest name of a controller that is recorded, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Clusters whose requests and locks are listed.
pub(in crate::core) fn asking(facts: &Facts) -> impl Iterator<Item = &ClusterName> {
    facts.clusters.keys().filter(|cluster| handshake::asks(facts, cluster))
}

/// Forgets what no section `maintenance` holds for any more: locks are left to their controllers. Without access to the
/// cluster its operators also have what Muster left there.
pub(in crate::core) fn forget_unwanted(tx: &mut Transaction<'_>, cluster: &ClusterName) {
    if handshake::section(tx, cluster).is_some() {
        return;
    }
    forget_locks(tx, cluster, &BTreeSet::new());
    let has_access = tx.spec_in_force(cluster).is_some_and(|spec| spec.kubernetes.is_some());
    if !has_access && let Some(row) = tx.cluster_mut(cluster) {
        row.kubernetes_requests = false;
        row.kubernetes_annotations.clear();
    }
}

/// Forgets the locks that are objects, except these.
fn forget_locks(tx: &mut Transaction<'_>, cluster: &ClusterName, except: &BTreeSet<LockKey>) {
    let of_it = |key: &&LockKey| key.cluster == *cluster && key.uid.is_some();
    let gone: Vec<LockKey> = tx.locks.keys().filter(of_it).filter(|key| !except.contains(*key)).cloned().collect();
    gone.iter().for_each(|key| tx.drop_lock(key));
}

/// Asks the next questions, one for each cluster at a time.
pub(in crate::core) fn ask(tx: &mut Transaction<'_>, limits: &Limits, now: Now, effects: &mut Vec<Effect>) {
    let facts: &Facts = tx;
    let mut due = Vec::new();
    for cluster in asking(facts) {
        let Some(snapshot) = ClusterSnapshot::of(facts, cluster, limits, now) else { continue };
        let (Some(spec), Some(op)) = (&snapshot.spec.kubernetes, handshake::next(&snapshot)) else { continue };
        due.push((cluster.clone(), op, kubernetes::way(&snapshot, spec)));
    }
    for (cluster, op, way) in due {
        let number = tx.next_question();
        let (makes, annotate) = match &op {
            KubernetesOp::Requests { make, annotate, .. } => (!make.is_empty(), annotate.clone()),
            _ => (false, Vec::new()),
        };
        let look = tx.handshake_mut(&cluster);
        let places = (&mut look.asked, &mut look.failure);
        if !kubernetes::put((number, About::Cluster(cluster.clone()), op), way, places, now, effects) {
            continue;
        }
        if makes {
            look.unsettled_mono_ms = Some(now.mono_ms);
        }
        // Recorded before anything is sent: a coordinator that dies meanwhile takes them back all the same.
        note_left(tx, &cluster, |left| left || makes);
        note_annotations(tx, &cluster, &annotate);
    }
}

/// Handles the result of a question, and ignores an obsolete one.
pub(in crate::core) fn answered(
    tx: &mut Transaction<'_>,
    (cluster, number): (&ClusterName, u64),
    result: Result<KubernetesReply, KubernetesFailure>,
    now: Now,
) {
    if !tx.clusters.contains_key(cluster) {
        return;
    }
    let Some(asked) = tx.handshake_mut(cluster).asked.take_if(|asked| asked.number == number) else { return };
    let pins = tx.open_rollout(cluster).is_some_and(|rollout| rollout.update.is_some());
    let result = result.and_then(|reply| is_same_cluster(tx, (cluster, pins), reply, now));
    let result = result.or_else(|failure| without_definitions(tx, cluster, &asked.op, failure)).and_then(within_limit);
    let look = tx.handshake_mut(cluster);
    match result {
        Ok(KubernetesReply::Handshake { cluster_uid, objects }) => {
            (look.failure, look.cluster_uid) = (None, cluster_uid);
            listed(tx, cluster, objects, (asked.at_mono_ms, now));
        }
        Ok(reply) => {
            look.failure = None;
            if let KubernetesOp::Requests { make, remove, annotate, .. } = &asked.op {
                let (failure, not_annotated) = match reply {
                    KubernetesReply::Changed { failure, not_annotated } => (failure, not_annotated),
                    _ => (None, Vec::new()),
                };
                // What it has changed is listed next.
                look.is_outdated = !make.is_empty() || !remove.is_empty();
                note_change(look, make, failure, now);
                confirm_annotations(tx, cluster, annotate, not_annotated, now);
            }
        }
        Err(failure) => {
            if let KubernetesOp::Requests { make, .. } = &asked.op {
                look.is_outdated = true;
                note_change(look, make, Some(failure.clone()), now);
            }
            look.failure = Some(Seen { what: failure, at_mono_ms: now.mono_ms });
        }
    }
}

fn within_limit(reply: KubernetesReply) -> Result<KubernetesReply, KubernetesFailure> {
    match &reply {
        KubernetesReply::Handshake { objects, .. } if objects.locks.len() > LOCKS_MAX => {
            let count = objects.locks.len();
            Err(KubernetesFailure::Other(format!("it has {count} workload locks, and {LOCKS_MAX} is the limit")))
        }
        _ => Ok(reply),
    }
}

/// Notes whether requests were created and deleted.
fn note_change(look: &mut HandshakeObservation, make: &[NewRequest], failure: Option<KubernetesFailure>, now: Now) {
    let is_uncertain = matches!(failure, Some(KubernetesFailure::Unreachable(_) | KubernetesFailure::Other(_)));
    if !make.is_empty() {
        look.unsettled_mono_ms = is_uncertain.then_some(now.mono_ms);
    }
    look.failure = failure.clone().map(|what| Seen { what, at_mono_ms: now.mono_ms });
    look.change_failure = failure;
}

/// Where no section holds any more, definitions that are gone took everything with them.
fn without_definitions(
    tx: &Transaction<'_>,
    cluster: &ClusterName,
    op: &KubernetesOp,
    failure: KubernetesFailure,
) -> Result<KubernetesReply, KubernetesFailure> {
    let lists = matches!(op, KubernetesOp::Handshake { define: false });
    let cluster_uid = tx.live.handshakes.get(cluster).map(|look| look.cluster_uid.clone()).unwrap_or_default();
    match failure {
        KubernetesFailure::NotFound(_) if lists && handshake::section(tx, cluster).is_none() => {
            Ok(KubernetesReply::Handshake { cluster_uid, objects: HandshakeObjects::default() })
        }
        failure => Err(failure),
    }
}

/// Records whether requests of ours may be in the cluster.
fn note_left(tx: &mut Transaction<'_>, cluster: &ClusterName, is_left: impl FnOnce(bool) -> bool) {
    let Some(known) = tx.clusters.get(cluster).map(|row| row.kubernetes_requests) else { return };
    let is_left = is_left(known);
    if is_left != known
        && let Some(row) = tx.cluster_mut(cluster)
    {
        row.kubernetes_requests = is_left;
    }
}

/// Records what is about to be put on nodes, or taken back there.
fn note_annotations(tx: &mut Transaction<'_>, cluster: &ClusterName, wanted: &[NodeAnnotations]) {
    if wanted.is_empty() {
        return;
    }
    let Some(row) = tx.cluster_mut(cluster) else { return };
    for NodeAnnotations { node, values } in wanted {
        let put = PutAnnotations { values: values.clone(), confirmed: false };
        row.kubernetes_annotations.insert(node.clone(), put);
    }
}

/// Records which of these nodes have their annotations, or have given them back.
fn confirm_annotations(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    wanted: &[NodeAnnotations],
    failures: Vec<(String, KubernetesFailure)>,
    now: Now,
) {
    let failed: BTreeSet<&String> = failures.iter().map(|(node, _)| node).collect();
    let done: Vec<&NodeAnnotations> = wanted.iter().filter(|wanted| !failed.contains(&wanted.node)).collect();
    if !done.is_empty()
        && let Some(row) = tx.cluster_mut(cluster)
    {
        for NodeAnnotations { node, values } in &done {
            let is_known = row.kubernetes_annotations.get(node).is_some_and(|noted| noted.values == *values);
            if is_known && values.is_empty() {
                row.kubernetes_annotations.remove(node);
            } else if is_known {
                let put = PutAnnotations { values: values.clone(), confirmed: true };
                row.kubernetes_annotations.insert(node.clone(), put);
            }
        }
    }
    let look = tx.handshake_mut(cluster);
    for NodeAnnotations { node, .. } in done {
        look.annotation_failures.remove(node);
    }
    let failures = failures.into_iter().map(|(node, what)| (node, Seen { what, at_mono_ms: now.mono_ms }));
    look.annotation_failures.extend(failures);
}

fn listed(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    HandshakeObjects { requests, locks }: HandshakeObjects,
    (at_mono_ms, now): (u64, Now),
) {
    note_standing(tx, cluster, &requests, now);
    let locks = if handshake::section(tx, cluster).is_some() { locks } else { Vec::new() };
    let gone = note_locks(tx, cluster, locks, now);
    note_lost(tx, cluster, gone, now);
    let facts: &Facts = tx;
    let is_there = requests.iter().any(|request| handshake::is_of_cluster(facts, cluster, request));
    let may_come =
        requested(facts, cluster).next().is_some() || handshake::unsettled_until(facts, cluster) > Some(now.mono_ms);
    note_left(tx, cluster, |left| is_there || (left && may_come));
    let is_ours = |request: &&RequestObject| request.requested_by.as_deref() == Some(cluster.as_str());
    let look = tx.handshake_mut(cluster);
    for request in requests.iter().filter(is_ours) {
        if let Subject::Deletion(node) = &request.subject {
            look.deletions.insert(node.clone(), now.mono_ms);
        }
    }
    look.deletions.retain(|_, at| now.mono_ms < at.saturating_add(SETTLE_MS));
    let known = std::mem::take(&mut look.finalizers);
    let borne = requests
        .iter()
        .flat_map(|request| request.finalizers.iter().map(|finalizer| (request.uid.clone(), finalizer.clone())));
    look.finalizers =
        borne.map(|key| (known.get(&key).copied().unwrap_or(now.mono_ms), key)).map(|(at, key)| (key, at)).collect();
    let known = std::mem::take(&mut look.first_seen);
    let since = |uid: &String| known.get(uid).copied().unwrap_or(now.mono_ms);
    look.first_seen = requests.iter().map(|request| (request.uid.clone(), since(&request.uid))).collect();
    look.requests = Some(Seen { what: requests, at_mono_ms });
    look.is_outdated = false;
}

/// Records which object stands for each request. One that was made anew has to be answered anew.
fn note_standing(tx: &mut Transaction<'_>, cluster: &ClusterName, requests: &[RequestObject], now: Now) {
    let facts: &Facts = tx;
    let mut standing: BTreeMap<&Subject, &RequestObject> = BTreeMap::new();
    let ours = requests.iter().filter(|request| handshake::is_of_cluster(facts, cluster, request));
    standing.extend(ours.filter(|request| !request.deleting).map(|request| (&request.subject, request)));
    let mut news: Vec<(Option<MachineName>, &RequestObject)> = Vec::new();
    for requested in requested(facts, cluster) {
        let update = facts.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref());
        let known = match (requested.machine, requested.machine.and_then(|row| row.kubernetes_node.clone())) {
            (None, _) => vec![(Subject::Cluster, update.and_then(|update| update.standing.as_ref()))],
            (Some(_), None) => Vec::new(),
            (Some(row), Some(node)) => {
                let mine = row.update.as_ref();
                let deletion = (Subject::Deletion(node.clone()), mine.and_then(|mine| mine.standing_deletion.as_ref()));
                let own = (Subject::Node(node), mine.and_then(|mine| mine.standing.as_ref()));
                [Some(own), Some(deletion).filter(|_| requested.removal)].into_iter().flatten().collect()
            }
        };
        let mark = handshake::mark(facts, &requested);
        for (subject, known) in known {
            let Some(object) = standing.get(&subject).copied() else { continue };
            let is_new = known.is_none_or(|known| known.uid != object.uid);
            // One that was made for an earlier request has its answers from then.
            if is_new && object.mark.is_some_and(|known| known.is_about_same(&mark)) {
                news.push((requested.machine.map(|row| row.name.clone()), object));
            }
        }
    }
    let rollout = facts.open_rollout(cluster).map(|rollout| rollout.name.clone());
    for (machine, object) in news {
        let (uid, since_ms) = (object.uid.clone(), now.wall_ms);
        let standing = Some(StandingRequest { uid, since_ms, revision: tx.next_revision(), lost: BTreeSet::new() });
        match machine {
            Some(machine) => {
                if let Some(mine) = tx.machine_mut(&machine).and_then(|row| row.update.as_mut()) {
                    match object.subject {
                        Subject::Deletion(_) => mine.standing_deletion = standing,
                        Subject::Cluster | Subject::Node(_) => mine.standing = standing,
                    }
                }
            }
            None => {
                if let Some(update) = rollout.as_ref().and_then(|rollout| tx.update_mut(rollout)) {
                    update.standing = standing;
                }
            }
        }
    }
}

/// Records the locks as they are now. Only another state raises the revision that an answer is measured by. What the
/// vanished ones were about, and whose they were, is the result.
fn note_locks(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    locks: Vec<LockObject>,
    now: Now,
) -> Vec<(Subject, String)> {
    let mut there = BTreeSet::new();
    for lock in locks {
        let LockObject { subject, name, uid, controller, takes_deletion, .. } = lock;
        let LockObject { state, message, percentage, description, release, .. } = lock;
        let key = LockKey { cluster: cluster.clone(), controller: short(&controller), node: None, uid: Some(uid) };
        there.insert(key.clone());
        let known = tx.locks.get(&key).cloned();
        let moved = known.as_ref().is_none_or(|known| known.state != state);
        let progress = moved || known.as_ref().is_some_and(|known| percentage > known.percentage);
        let since_ms = known.as_ref().filter(|_| !moved).map_or(now.wall_ms, |known| known.since_ms);
        let updated_ms = known.as_ref().filter(|_| !progress).map_or(now.wall_ms, |known| known.updated_ms);
        let revision = match &known {
            Some(known) if !moved => known.revision,
            _ => tx.next_revision(),
        };
        let object = Some(LockOf { name, subject, takes_deletion });
        let row =
            LockRow { key, state, since_ms, message, percentage, description, release, updated_ms, revision, object };
        if known.is_none_or(|known| *known != row) {
            tx.put_lock(row);
        }
    }
    let of_it = |key: &&LockKey| key.cluster == *cluster && key.uid.is_some();
    let gone: Vec<LockKey> = tx.locks.keys().filter(of_it).filter(|key| !there.contains(*key)).cloned().collect();
    let whose = |key: &LockKey| Some((tx.locks.get(key)?.object.as_ref()?.subject.clone(), key.controller.clone()));
    let vanished = gone.iter().filter_map(whose).collect();
    gone.iter().for_each(|key| tx.drop_lock(key));
    vanished
}

/// Records with each request that stands whose locks have vanished: their controllers may make them anew. The times are
/// lost with the process, and begin again.
fn note_lost(tx: &mut Transaction<'_>, cluster: &ClusterName, gone: Vec<(Subject, String)>, now: Now) {
    let mut lost = std::mem::take(&mut tx.handshake_mut(cluster).lost);
    for (subject, controller) in gone {
        lost.entry(subject).or_default().insert(controller, now.mono_ms);
    }
    let facts: &Facts = tx;
    let stands = |requested: Requested<'_>| {
        let (subject, standing) = match requested.machine {
            None => (Subject::Cluster, facts.open_rollout(cluster)?.update.as_ref()?.standing.as_ref()?),
            Some(row) => (Subject::Node(row.kubernetes_node.clone()?), row.update.as_ref()?.standing.as_ref()?),
        };
        Some((requested.machine.map(|row| row.name.clone()), subject, standing.lost.clone()))
    };
    let mut standing = BTreeSet::new();
    for (machine, subject, known) in requested(facts, cluster).filter_map(stands).collect::<Vec<_>>() {
        for controller in &known {
            lost.entry(subject.clone()).or_default().entry(controller.clone()).or_insert(now.mono_ms);
        }
        let all: BTreeSet<String> = lost.get(&subject).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        let all: BTreeSet<String> = known.iter().cloned().chain(all).take(LOST_MAX).collect();
        if all != known
            && let Some(standing) = standing_mut(tx, cluster, machine.as_ref())
        {
            standing.lost = all;
        }
        standing.insert(subject);
    }
    let lately = |at: &u64| now.mono_ms.saturating_sub(*at) < SETTLE_MS;
    lost.retain(|subject, at| standing.contains(subject) || at.values().any(lately));
    tx.handshake_mut(cluster).lost = lost;
}

/// What stands for the request about this machine, or about the cluster.
fn standing_mut<'t>(
    tx: &'t mut Transaction<'_>,
    cluster: &ClusterName,
    machine: Option<&MachineName>,
) -> Option<&'t mut StandingRequest> {
    match machine {
        Some(machine) => tx.machine_mut(machine)?.update.as_mut()?.standing.as_mut(),
        None => {
            let rollout = tx.open_rollout(cluster)?.name.clone();
            tx.update_mut(&rollout)?.standing.as_mut()
        }
    }
}

/// A controller's name as a part of a key.
fn short(name: &str) -> String {
    let mut short = name.replace('/', "_");
    while short.len() > NAME_BYTES_MAX {
        short.pop();
    }
    short
}
