//! Documents of clusters.

use std::collections::BTreeMap;

use muster_proto::{
    model::{Now, Phase, Scope},
    resource::{Cluster, ClusterStatus, Document, Metadata, PhaseProgress},
};

use super::{at, count, is_indeterminate, is_lost, since, update};
use crate::{
    core::update::has_work,
    plan::{
        addons, blocked, safety,
        snapshot::{ClusterSnapshot, MachineView, Progress},
    },
};

/// The document of a cluster.
pub(super) fn document(snapshot: &ClusterSnapshot<'_>, now: Now) -> Cluster {
    let row = snapshot.cluster;
    let members: Vec<&MachineView<'_>> = snapshot.machines.iter().filter(|p| !p.row.revoked).collect();
    let wanted = snapshot.spec.machines.map_or(0, |counts| counts.control.saturating_add(counts.worker));
    let ready = members.iter().filter(|view| view.is_ready()).count();
    let all_ready = !members.is_empty() && ready == members.len();
    let out = members.iter().filter(|view| view.in_maintenance()).count();
    let releases = releases(&members);
    let is = |of: fn(&MachineView<'_>) -> bool| -> Vec<String> {
        members.iter().filter(|view| of(view)).map(|view| view.row.name.to_string()).collect()
    };
    let revoked = snapshot.machines.iter().filter(|view| view.row.revoked);
    Document {
        metadata: Metadata {
            name: row.name.to_string(),
            creation_timestamp: at(row.created_at_ms),
            annotations: row.annotations.clone(),
        },
        spec: snapshot.spec.clone(),
        status: ClusterStatus {
            requested_nodes: wanted.max(count(members.len())),
            nodes: count(members.iter().filter(|view| view.row.id.is_some()).count()),
            ready_nodes: count(ready.saturating_sub(out)),
            release: releases.first().filter(|_| all_ready && releases.len() == 1).cloned(),
            releases,
            update_due: update_due(snapshot),
            needs_operator: snapshot.update().is_some() && update::needs_operator(snapshot),
            lost_nodes: is(is_lost),
            revoked_nodes: revoked.map(|view| view.row.name.to_string()).collect(),
            failed_nodes: is(|view| view.failed()),
            indeterminate_nodes: is(is_indeterminate),
            lcm_operation_stuck: update::cluster_stuck(snapshot),
            helm_controller_deployed: addons::helm_settled(snapshot),
            rollout: snapshot.rollout.map(|rollout| rollout.name.clone()),
            phases: Phase::ALL.iter().map(|phase| phase_progress(snapshot, *phase)).collect(),
            blocked: since(blocked::of_cluster(snapshot), row.blocked_since, now),
        },
    }
}

/// The releases at which these machines were last Ready, in the order in which they were applied.
fn releases(members: &[&MachineView<'_>]) -> Vec<String> {
    let ready_at = members.iter().filter_map(|view| view.row.ready_at.as_ref());
    let by_version: BTreeMap<u64, &String> = ready_at.map(|(release, version)| (*version, release)).collect();
    let mut releases: Vec<String> = Vec::new();
    for release in by_version.into_values() {
        if !releases.contains(release) {
            releases.push(release.clone());
        }
    }
    releases
}

/// Would an update change something, and is no rollout under way?
fn update_due(snapshot: &ClusterSnapshot<'_>) -> bool {
    snapshot.rollout.is_none() && !snapshot.facts.meta.recovering && has_work(snapshot, Scope::Drain)
}

fn phase_progress(snapshot: &ClusterSnapshot<'_>, phase: Phase) -> PhaseProgress {
    let mut progress = PhaseProgress { phase, total: 0, done: 0, running: 0, failed: 0 };
    for view in snapshot.machines.iter().filter(|view| !view.row.revoked) {
        let items = view.items.unwrap_or_default();
        let declared = snapshot.spec.has_phase(view.row.spec.machine_type, phase);
        if !items.iter().any(|item| item.phase == phase) && !declared {
            continue;
        }
        let reached = view.row.max_phase >= Some(phase);
        let here = view.row.max_phase == Some(phase) && view.in_flight();
        // Reconfigure applies only to machines that know another control set.
        let has_it = phase != Phase::Reconfigure || reached || safety::needs_reconfigure(snapshot, view);
        if !has_it {
            continue;
        }
        progress.total += 1;
        match view.progress(phase) {
            Progress::Failed(_) | Progress::Held(_) => progress.failed += 1,
            // A machine that was Ready once has its previous list, and a rollout may leave this phase out.
            Progress::Done if reached || view.ready_once() => progress.done += 1,
            Progress::Open if here => progress.running += 1,
            Progress::Done | Progress::Open => {}
        }
    }
    progress
}
