//! The renewal of pods of `OnDelete` DaemonSets in the record, the lists of DaemonSets, and what an abort leaves.

use muster_proto::model::{ClusterName, MachineName, Now};

use super::{
    freeze,
    kubernetes::{self, is_same_cluster},
};
use crate::{
    core::{
        About, Effect,
        decide::{begin_stage, end_stage},
    },
    facts::{
        AuditObject, ClusterStage, Facts, MUSTER, MachineUpdate, RenewalObservation, RenewalRow, Seen, Stage,
        Transaction, UpdateKind,
        kubernetes::{KubernetesFailure, KubernetesReply},
    },
    plan::{
        Limits,
        drain::kubernetes::eviction,
        secrets,
        snapshot::ClusterSnapshot,
        update::renewal::{self, RenewalStep},
    },
};

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
    now: Now,
) {
    if !tx.live.renewals.contains_key(cluster) {
        return;
    }
    let Some(asked) = tx.renewal_mut(cluster).asked.take_if(|asked| asked.number == number) else { return };
    let result = result.and_then(|reply| is_same_cluster(tx, (cluster, true), reply, now));
    let look = tx.renewal_mut(cluster);
    match result {
        Ok(KubernetesReply::DaemonSets { found, .. }) => {
            (look.failure, look.number, look.listed_mono_ms) = (None, number, now.mono_ms);
            look.seen = Some(Seen { what: found, at_mono_ms: asked.at_mono_ms });
        }
        Ok(_) => {}
        Err(what) => look.failure = Some(Seen { what, at_mono_ms: now.mono_ms }),
    }
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
