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
        blocked, safety,
        survey::{Position, Progress, Survey},
    },
};

/// The document of a cluster.
pub(super) fn document(survey: &Survey<'_>, now: Now) -> Cluster {
    let row = survey.cluster;
    let members: Vec<&Position<'_>> = survey.machines.iter().filter(|p| !p.row.revoked).collect();
    let wanted = survey.spec.machines.map_or(0, |counts| counts.control.saturating_add(counts.worker));
    let ready = members.iter().filter(|position| position.is_ready()).count();
    let all_ready = !members.is_empty() && ready == members.len();
    let out = members.iter().filter(|position| position.in_maintenance()).count();
    let releases = releases(&members);
    let is = |of: fn(&Position<'_>) -> bool| -> Vec<String> {
        members.iter().filter(|position| of(position)).map(|position| position.row.name.to_string()).collect()
    };
    let revoked = survey.machines.iter().filter(|position| position.row.revoked);
    Document {
        metadata: Metadata {
            name: row.name.to_string(),
            creation_timestamp: at(row.created_at_ms),
            annotations: row.annotations.clone(),
        },
        spec: survey.spec.clone(),
        status: ClusterStatus {
            requested_nodes: wanted.max(count(members.len())),
            nodes: count(members.iter().filter(|position| position.row.id.is_some()).count()),
            ready_nodes: count(ready.saturating_sub(out)),
            release: releases.first().filter(|_| all_ready && releases.len() == 1).cloned(),
            releases,
            update_due: update_due(survey),
            needs_operator: survey.update().is_some() && update::needs_operator(survey),
            lost_nodes: is(is_lost),
            revoked_nodes: revoked.map(|position| position.row.name.to_string()).collect(),
            failed_nodes: is(|position| position.failed()),
            indeterminate_nodes: is(is_indeterminate),
            lcm_operation_stuck: update::cluster_stuck(survey),
            rollout: survey.rollout.map(|rollout| rollout.name.clone()),
            phases: Phase::ALL.iter().map(|phase| phase_progress(survey, *phase)).collect(),
            blocked: since(blocked::of_cluster(survey), row.blocked_since, now),
        },
    }
}

/// The releases at which these machines were last Ready, in the order in which they were applied.
fn releases(members: &[&Position<'_>]) -> Vec<String> {
    let ready_at = members.iter().filter_map(|position| position.row.ready_at.as_ref());
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
fn update_due(survey: &Survey<'_>) -> bool {
    survey.rollout.is_none() && !survey.facts.meta.recovering && has_work(survey, Scope::Drain)
}

fn phase_progress(survey: &Survey<'_>, phase: Phase) -> PhaseProgress {
    let mut progress = PhaseProgress { phase, total: 0, done: 0, running: 0, failed: 0 };
    for position in survey.machines.iter().filter(|position| !position.row.revoked) {
        let items = position.items.unwrap_or_default();
        let declared = survey.spec.has_phase(position.row.spec.machine_type, phase);
        if !items.iter().any(|item| item.phase == phase) && !declared {
            continue;
        }
        let reached = position.row.reach >= Some(phase);
        let here = position.row.reach == Some(phase) && position.in_flight();
        // Reconfigure applies only to machines that know another control set.
        let has_it = phase != Phase::Reconfigure || reached || safety::needs_reconfigure(survey, position);
        if !has_it {
            continue;
        }
        progress.total += 1;
        match position.progress(phase) {
            Progress::Failed(_) | Progress::Held(_) => progress.failed += 1,
            // A machine that was Ready once has its previous list, and a rollout may leave this phase out.
            Progress::Done if reached || position.ready_once() => progress.done += 1,
            Progress::Open if here => progress.running += 1,
            Progress::Done | Progress::Open => {}
        }
    }
    progress
}
