//! The renewal of pods of `OnDelete` DaemonSets in the record, the lists of DaemonSets, and what an abort leaves.

use muster_proto::model::{ClusterName, MachineName, Now};

use super::{
    freeze,
    kubernetes::{self, changed_node, is_same_cluster, note},
};
use crate::{
    core::{
        About, Effect,
        decide::{begin_stage, end_stage},
    },
    facts::{
        AuditObject, ClusterStage, DesiredState, Facts, KubernetesAsked, MUSTER, MachineUpdate, RenewalObservation,
        RenewalRow, RenewedSet, Seen, Stage, Transaction, UpdateKind,
        kubernetes::{KubernetesFailure, KubernetesOp, KubernetesReply, daemon_sets::DaemonSets},
    },
    plan::{
        Limits,
        drain::kubernetes::eviction,
        handshake, secrets,
        snapshot::ClusterSnapshot,
        update::renewal::{self, RenewalStep},
    },
};

/// Most DaemonSets whose templates are recorded in an update.
const SETS_MAX: usize = 256;

/// What an operator mended is seen at once.
pub(super) fn look_again(tx: &mut Transaction<'_>, rollout: &str) {
    let Some(cluster) = tx.rollouts.get(rollout).map(|row| row.cluster.clone()) else { return };
    if tx.live.renewals.contains_key(&cluster) {
        tx.renewal_mut(&cluster).seen = None;
    }
}

/// Begins the cluster's stage: what was listed in an earlier update says nothing.
pub(super) fn begin(tx: &mut Transaction<'_>, rollout: &str, stage: ClusterStage) {
    let Some(cluster) = tx.rollouts.get(rollout).map(|row| row.cluster.clone()) else { return };
    if stage == ClusterStage::PodsRenewed {
        *tx.renewal_mut(&cluster) = RenewalObservation::default();
    }
}

pub(super) fn record(tx: &mut Transaction<'_>, machine: &MachineName, step: RenewalStep, now: Now) {
    match step {
        RenewalStep::Join => join(tx, machine),
        RenewalStep::Begin => {
            let Some(row) = tx.machine_mut(machine) else { return };
            end_stage(row, Stage::LocksInactive, true, now);
            begin_stage(row, Stage::PodsRenewed, now);
        }
        RenewalStep::Evict(pod) => {
            let (name, set) = (eviction::name_of(&pod.pod), &pod.daemon_set);
            let line = format!("machine {machine}: pod {name} (UID {}) of DaemonSet {set} is renewed", pod.pod.uid);
            if let Some(row) = tx.machine_mut(machine).and_then(|row| row.update.as_mut()?.renewal.as_mut()) {
                row.evicted = Some(pod);
            }
            tx.audit(MUSTER, "kubernetes", AuditObject::Machine(machine), &line, now.wall_ms);
        }
        RenewalStep::Renewed => {
            if let Some(row) = tx.machine_mut(machine).and_then(|row| row.update.as_mut()?.renewal.as_mut()) {
                row.evicted = None;
            }
        }
    }
}

/// A machine that completed the update takes part again. It keeps its version and its list.
fn join(tx: &mut Transaction<'_>, name: &MachineName) {
    let Some(row) = tx.machines.get(name).filter(|row| row.update.is_none()) else { return };
    let Some(version) = row.follows() else { return };
    let newest = secrets::newest(tx, &row.spec.cluster_name);
    let part = freeze::part(row, UpdateKind::Reboot, version, &newest);
    let Some(row) = tx.machine_mut(name) else { return };
    row.update = Some(MachineUpdate { disruptive: true, renewal: Some(RenewalRow::default()), ..part });
}

/// Lists the DaemonSets of clusters that renew pods, one list for each at a time.
pub(in crate::core) fn ask(tx: &mut Transaction<'_>, limits: &Limits, now: Now, effects: &mut Vec<Effect>) {
    let facts: &Facts = tx;
    let open = facts.rollouts.values().filter(|row| row.finished_at_ms.is_none());
    let renewing = open.filter(|row| row.update.as_ref().is_some_and(renewal::is_under_way));
    let mut due = Vec::new();
    for cluster in renewing.map(|row| &row.cluster) {
        let Some(snapshot) = ClusterSnapshot::of(facts, cluster, limits, now) else { continue };
        let (Some(spec), Some(op)) = (&snapshot.spec.kubernetes, renewal::question(&snapshot)) else { continue };
        due.push((cluster.clone(), op, kubernetes::way(&snapshot, spec)));
    }
    for (cluster, op, way) in due {
        let number = tx.next_question();
        let look = tx.renewal_mut(&cluster);
        let places = (&mut look.asked, &mut look.failure);
        kubernetes::put((number, About::DaemonSets(cluster), op), way, places, now, effects);
    }
}

/// Handles a list, and ignores an obsolete one.
pub(in crate::core) fn answered(
    tx: &mut Transaction<'_>,
    (cluster, number): (&ClusterName, u64),
    result: Result<KubernetesReply, KubernetesFailure>,
    limits: &Limits,
    now: Now,
) {
    if !tx.live.renewals.contains_key(cluster) {
        return;
    }
    let Some(asked) = tx.renewal_mut(cluster).asked.take_if(|asked| asked.number == number) else { return };
    let result = result.and_then(|reply| is_same_cluster(tx, (cluster, true), reply, now));
    match result {
        Ok(KubernetesReply::DaemonSets { found, .. }) => {
            note_templates(tx, cluster, &found);
            let look = tx.renewal_mut(cluster);
            (look.failure, look.number, look.listed_mono_ms) = (None, number, now.mono_ms);
            listed(look, found, &asked, now);
            let all = matches!(asked.op, KubernetesOp::DaemonSets { node: None, .. });
            note_nodes(tx, cluster, all, limits, now);
        }
        Ok(_) => {}
        Err(what) => tx.renewal_mut(cluster).failure = Some(Seen { what, at_mono_ms: now.mono_ms }),
    }
}

/// A new list. One that asked for a single node leaves the others as they were.
fn listed(look: &mut RenewalObservation, mut found: DaemonSets, asked: &KubernetesAsked, now: Now) {
    if let (KubernetesOp::DaemonSets { node: Some(name), .. }, Some(known)) = (&asked.op, look.seen.take()) {
        found.nodes.extend(known.what.nodes.into_iter().filter(|node| node.object.name != *name));
    }
    let pods = found.sets.iter().flat_map(|set| &set.pods).filter(|pod| pod.ready);
    let ready = pods.map(|pod| {
        let uid = &pod.pod.object.uid;
        (uid.clone(), look.ready.get(uid).copied().unwrap_or(now.mono_ms))
    });
    look.ready = ready.collect();
    look.seen = Some(Seen { what: found, at_mono_ms: asked.at_mono_ms });
}

/// Notes the newest templates, and that one has changed.
fn note_templates(tx: &mut Transaction<'_>, cluster: &ClusterName, found: &DaemonSets) {
    let Some(rollout) = tx.open_rollout(cluster) else { return };
    let Some(update) = rollout.update.as_ref().filter(|update| renewal::is_under_way(update)) else { return };
    let newest = found.sets.iter().take(SETS_MAX).filter_map(|set| Some((&set.name, set.newest.as_ref()?)));
    let changed = newest.filter(|(name, hash)| update.renewed_sets.get(*name).is_none_or(|set| set.newest != **hash));
    let changed: Vec<(String, String)> = changed.map(|(name, hash)| (name.clone(), hash.clone())).collect();
    let name = rollout.name.clone();
    let Some(update) = (if changed.is_empty() { None } else { tx.update_mut(&name) }) else { return };
    for (set, newest) in changed {
        let changes = update.renewed_sets.get(&set).map_or(0, |known| known.changes + 1);
        update.renewed_sets.insert(set, RenewedSet { newest, changes });
    }
}

/// Records the names of nodes that were listed: the requests of machines that take part are about them. `all`: false
/// for that of the machine at its turn alone.
fn note_nodes(tx: &mut Transaction<'_>, cluster: &ClusterName, all: bool, limits: &Limits, now: Now) {
    let facts: &Facts = tx;
    let Some(snapshot) = ClusterSnapshot::of(facts, cluster, limits, now) else { return };
    let seen = facts.live.renewals.get(cluster).and_then(|look| look.seen.as_ref());
    let Some(seen) = seen.filter(|_| handshake::spec(&snapshot).is_some()) else { return };
    let listed = snapshot.machines.iter().filter(|view| all || view.row.slot.is_some());
    let changed = listed.filter(|view| renewal::is_member(&snapshot, view));
    let changed =
        changed.filter_map(|view| Some((view.row.name.clone(), changed_node(&snapshot, view, &seen.what.nodes)?)));
    for (machine, node) in changed.collect::<Vec<_>>() {
        note(tx, &machine, node);
    }
}

/// Pauses an update whose DaemonSets' templates change again and again.
pub(super) fn pause(tx: &mut Transaction<'_>, rollout: &str, now: Now) {
    let Some(update) = tx.update_mut(rollout) else { return };
    let Some(unsteady) = renewal::unsteady(update) else { return };
    update.desired = DesiredState::Pause { since_ms: now.wall_ms };
    let line = format!("rollout {rollout}: paused, for {}", unsteady.message);
    tx.audit(MUSTER, "pause", AuditObject::Rollout(rollout), &line, now.wall_ms);
}

/// What an abort leaves of the renewal, as it was seen last.
pub(super) fn left_out(tx: &Transaction<'_>, rollout: &str) -> Option<String> {
    let row = tx.rollouts.get(rollout)?;
    row.update.as_ref().filter(|update| renewal::is_under_way(update))?;
    let seen = tx.live.renewals.get(&row.cluster)?.seen.as_ref()?;
    let behind = seen.what.sets.iter().filter(|set| set.updated != set.current);
    let behind: Vec<String> =
        behind.map(|set| format!("{} ({} of {} pods)", set.name, set.updated, set.current)).collect();
    (!behind.is_empty()).then(|| {
        format!(
            "{rollout} leaves DaemonSets that are not up to date: {}; the next update renews their pods, or \
             `kubectl delete pod` on one node after another",
            behind.join(", ")
        )
    })
}
