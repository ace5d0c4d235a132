//! Rows of clusters.

use jiff::Timestamp;
use muster_proto::resource::Cluster;

use super::{
    Look, age,
    machines::{NOTE_CHARS_MAX, stuck_text},
    text::cut,
};

pub(super) const HEADERS: &[&str] = &["NAME", "READY", "RELEASE", "ROLLOUT", "NOTE", "AGE"];

pub(super) fn row(cluster: &Cluster, look: Look) -> Vec<String> {
    let status = &cluster.status;
    let mut note = note(cluster, look.now);
    if !look.wide {
        note = cut(&note, NOTE_CHARS_MAX);
    }
    vec![
        cluster.metadata.name.clone(),
        format!("{}/{}", status.ready_nodes, status.requested_nodes),
        status.release.clone().unwrap_or_default(),
        status.rollout.clone().unwrap_or_default(),
        note,
        age(cluster.metadata.creation_timestamp, look.now),
    ]
}

/// Why nothing starts, else how far the phases that are not through are.
fn note(cluster: &Cluster, now: Timestamp) -> String {
    let status = &cluster.status;
    let stuck = status.lcm_operation_stuck.as_ref().map(|stuck| format!("{}; ", stuck_text(stuck, now)));
    let stuck = stuck.unwrap_or_default();
    let said = match &status.blocked {
        Some(wait) => format!("{}: {}", wait.blocked.reason, wait.blocked.message),
        None => {
            let open = status.phases.iter().filter(|phase| phase.done < phase.total);
            let said: Vec<String> =
                open.map(|phase| format!("{} {}/{}", phase.phase, phase.done, phase.total)).collect();
            said.join(", ")
        }
    };
    format!("{stuck}{said}")
}
