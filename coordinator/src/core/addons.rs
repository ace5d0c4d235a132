//! Add-ons of clusters: the questions about them, the answers, and what is recorded of each.

use std::collections::BTreeSet;

use muster_proto::model::{ClusterName, Now};

use super::{About, Effect, KubernetesQuestion, update::kubernetes::is_same_cluster};
use crate::{
    facts::{
        AddonRow, AuditObject, Facts, KubernetesAsked, MUSTER, Seen, Transaction,
        kubernetes::{KubernetesFailure, KubernetesOp, KubernetesReply, addons::AddonToApply},
    },
    plan::{
        Limits, addons,
        drain::kubernetes::{access, control_plane},
        snapshot::ClusterSnapshot,
    },
};

/// Clusters with add-ons.
pub(super) fn having(facts: &Facts) -> impl Iterator<Item = &ClusterName> {
    let has_addons = |cluster: &&ClusterName| {
        let specs = facts.specs.iter().filter(|((of, _), _)| of == *cluster);
        specs.filter_map(|(_, spec)| spec.kubernetes.as_ref()).any(|kubernetes| kubernetes.has_addons())
    };
    facts.clusters.keys().filter(has_addons)
}

/// Asks the next questions, one for each cluster at a time.
pub(super) fn ask(tx: &mut Transaction<'_>, limits: &Limits, now: Now, effects: &mut Vec<Effect>) {
    let clusters: Vec<ClusterName> = having(tx).cloned().collect();
    for cluster in clusters {
        note_due(tx, &cluster, limits, now);
        let facts: &Facts = tx;
        let Some(snapshot) = ClusterSnapshot::of(facts, &cluster, limits, now) else { continue };
        let (Some(spec), Some(op)) = (&snapshot.spec.kubernetes, addons::question(&snapshot)) else { continue };
        let access = access::of(facts, &cluster, spec).map(|access| (access, control_plane::fallbacks(&snapshot)));
        let number = tx.next_question();
        let look = tx.addons_mut(&cluster);
        let (access, fallbacks) = match access {
            Ok(access) => access,
            Err(what) => {
                (look.asked, look.failure) = (None, Some(Seen { what, at_mono_ms: now.mono_ms }));
                continue;
            }
        };
        look.asked = Some(KubernetesAsked { number, op: op.clone(), at_mono_ms: now.mono_ms });
        let about = About::Addons(cluster);
        effects.push(Effect::AskKubernetes(KubernetesQuestion { number, about, access, op, fallbacks }));
    }
}

/// Notes since when an add-on is due: its deadline runs from there until it is applied. Notes also since when the
/// update under way looks at them, by the clock that does not step back.
fn note_due(tx: &mut Transaction<'_>, cluster: &ClusterName, limits: &Limits, now: Now) {
    let Some(snapshot) = ClusterSnapshot::of(tx, cluster, limits, now) else { return };
    let (due, verifies) = (addons::due(&snapshot), addons::verifies_from_ms(&snapshot));
    let noted = tx.live.addons.get(cluster).and_then(|look| look.verified_from).map(|(recorded_ms, _)| recorded_ms);
    if verifies != noted {
        tx.addons_mut(cluster).verified_from = verifies.map(|recorded_ms| (recorded_ms, now.mono_ms));
    }
    let known = tx.live.addons.get(cluster).and_then(|look| look.due.as_ref()).map(|(name, _)| name.clone());
    if due != known {
        tx.addons_mut(cluster).due = due.map(|name| (name, now.wall_ms));
    }
}

/// Handles an answer, and ignores an obsolete one.
pub(super) fn answered(
    tx: &mut Transaction<'_>,
    (cluster, number): (&ClusterName, u64),
    result: Result<KubernetesReply, KubernetesFailure>,
    limits: &Limits,
    now: Now,
) {
    if !tx.live.addons.contains_key(cluster) {
        return;
    }
    let Some(asked) = tx.addons_mut(cluster).asked.take_if(|asked| asked.number == number) else { return };
    let result = result.and_then(|reply| is_same_cluster(tx, (cluster, true), reply, now));
    match (asked.op, result) {
        (KubernetesOp::Apply { cluster_uid, addon }, Ok(KubernetesReply::Applied(objects))) => {
            // The manifest may have another cluster, or other add-ons, by now.
            let is_pinned =
                tx.clusters.get(cluster).is_some_and(|row| row.kubernetes_uid.as_ref() == Some(&cluster_uid));
            if is_pinned && named(tx, cluster).contains(&addon.name) {
                applied(tx, cluster, *addon, objects, now);
            }
        }
        (KubernetesOp::Apply { addon, .. }, result) => {
            let unexpected = || KubernetesFailure::Other("the answer is to another question".to_owned());
            let what = result.err().unwrap_or_else(unexpected);
            tx.addons_mut(cluster).refused = Some((addon.name, Seen { what, at_mono_ms: now.mono_ms }));
        }
        (_, Ok(KubernetesReply::Addons { found, .. })) => {
            let look = tx.addons_mut(cluster);
            look.failure = None;
            look.seen = Some(Seen { what: found, at_mono_ms: asked.at_mono_ms });
        }
        (_, Ok(_)) => {}
        (_, Err(what)) => tx.addons_mut(cluster).failure = Some(Seen { what, at_mono_ms: now.mono_ms }),
    }
    note_settled(tx, cluster, limits, now);
}

fn applied(tx: &mut Transaction<'_>, cluster: &ClusterName, addon: AddonToApply, objects: usize, now: Now) {
    let AddonToApply { name, version, content, .. } = addon;
    let look = tx.addons_mut(cluster);
    (look.failure, look.refused) = (None, None);
    look.applied.insert(name.clone(), now.mono_ms);
    let said = version.as_ref().map_or_else(|| name.clone(), |version| format!("{name} {version}"));
    let is_installing = tx.open_rollout(cluster).is_none_or(|rollout| rollout.update.is_none());
    let Some(row) = tx.cluster_mut(cluster) else { return };
    let before = row.addons.remove(&name);
    let is_new = before.is_none();
    let applications = before.as_ref().map_or(0, |before| before.applications).saturating_add(1);
    let installed = before.as_ref().is_some_and(|before| before.installed);
    let same = before.as_ref().filter(|before| before.content == content);
    let since_ms = same.map_or(now.wall_ms, |before| before.since_ms);
    // An installation is tried every 30 s, and counted.
    let is_repeated = is_installing && same.is_some();
    row.addons.insert(
        name,
        AddonRow {
            content,
            version,
            applied_at_ms: now.wall_ms,
            since_ms,
            applications,
            installed,
            settled_at_ms: None,
            verified_in: None,
        },
    );
    if is_repeated {
        return;
    }
    let again = if is_new { "" } else { " again" };
    let line = format!("cluster {cluster}: add-on {said} is applied{again} ({objects} objects)");
    tx.audit(MUSTER, "kubernetes", AuditObject::Cluster(cluster), &line, now.wall_ms);
}

/// Names of the add-ons in the newest manifest, and in that of the open rollout.
fn named(tx: &Transaction<'_>, cluster: &ClusterName) -> BTreeSet<String> {
    let update = tx.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref());
    let frozen = update.and_then(|update| tx.specs.get(&(cluster.clone(), update.version)));
    let kubernetes = tx.spec(cluster).into_iter().chain(frozen).filter_map(|spec| spec.kubernetes.as_ref());
    kubernetes.flat_map(|spec| spec.all_addons()).map(|addon| addon.name).collect()
}

/// Forgets the add-ons that left the manifest: they stay in the cluster, and are nobody's any more. One that returns is
/// installed again.
pub(super) fn forget_unnamed(tx: &mut Transaction<'_>, cluster: &ClusterName) {
    let named = named(tx, cluster);
    let Some(row) = tx.clusters.get(cluster) else { return };
    if row.addons.keys().all(|name| named.contains(name)) {
        return;
    }
    if let Some(row) = tx.cluster_mut(cluster) {
        row.addons.retain(|name, _| named.contains(name));
    }
}

/// What an abort leaves unverified of the add-ons, as it was seen last.
pub(super) fn left_out(tx: &Transaction<'_>, rollout: &str, limits: &Limits, now: Now) -> Option<String> {
    let row = tx.rollouts.get(rollout)?;
    let unverified = addons::unverified(&ClusterSnapshot::of(tx, &row.cluster, limits, now)?);
    (!unverified.is_empty()).then(|| format!("{rollout} leaves add-ons unverified: {}", unverified.join("; ")))
}

/// Records the add-ons that the last look shows to be as they should be.
fn note_settled(tx: &mut Transaction<'_>, cluster: &ClusterName, limits: &Limits, now: Now) {
    loop {
        let facts: &Facts = tx;
        let Some(snapshot) = ClusterSnapshot::of(facts, cluster, limits, now) else { return };
        let Some(addon) = addons::proved(&snapshot) else { return };
        let rollout = addons::verifying(&snapshot).map(str::to_owned);
        let Some(row) = tx.cluster_mut(cluster).and_then(|row| row.addons.get_mut(&addon.name)) else { return };
        let was_awaited = row.settled_at_ms.is_none();
        row.installed = true;
        row.settled_at_ms = Some(now.wall_ms);
        row.verified_in = rollout.or_else(|| row.verified_in.take());
        if was_awaited {
            let line = format!("cluster {cluster}: add-on {addon} is available");
            tx.audit(MUSTER, "kubernetes", AuditObject::Cluster(cluster), &line, now.wall_ms);
        }
    }
}
