//! Rows of clusters.

use jiff::Timestamp;
use muster_proto::model::Reason;
use muster_proto::resource::{Cluster, PhaseProgress};

use super::{Look, age, machines::stuck_text};

pub(super) const HEADERS: &[&str] = &["NAME", "READY", "RELEASE", "ROLLOUT", "NOTE", "AGE"];
pub(super) const HEADERS_WIDE: &[&str] =
    &["NAME", "READY", "RELEASE", "WANTED", "PREPARE", "DEPLOY", "RECONFIGURE", "ROLLOUT", "NOTE", "AGE"];

/// Most machines in trouble that are named.
const NAMED_MAX: usize = 3;

pub(super) fn row(cluster: &Cluster, look: Look) -> Vec<String> {
    let status = &cluster.status;
    let mut row = vec![
        cluster.metadata.name.clone(),
        format!("{}/{}", status.ready_nodes, status.nodes),
        status.releases.join(", "),
    ];
    if look.wide {
        let progress = |phase: &PhaseProgress| match phase.total {
            0 => String::new(),
            total => format!("{}/{total}", phase.done),
        };
        row.push(cluster.spec.release.clone());
        row.extend(status.phases.iter().map(progress));
    }
    row.extend([
        status.rollout.clone().unwrap_or_default(),
        note(cluster, look.now),
        age(cluster.metadata.creation_timestamp, look.now),
    ]);
    row
}

/// Machines in trouble, late stages, the reason of a block; else the progress of incomplete phases. Also whether a
/// person is needed.
fn note(cluster: &Cluster, now: Timestamp) -> String {
    let status = &cluster.status;
    let stuck = status.lcm_operation_stuck.as_ref().map(|stuck| stuck_text(stuck, now));
    let open = || {
        let open = status.phases.iter().filter(|phase| phase.done < phase.total);
        let said: Vec<String> = open.map(|phase| format!("{} {}/{}", phase.phase, phase.done, phase.total)).collect();
        (!said.is_empty()).then(|| said.join(", "))
    };
    let blocked = status.blocked.as_ref().map(|wait| format!("{}: {}", wait.blocked.reason, wait.blocked.message));
    let stands = status
        .blocked
        .as_ref()
        .is_some_and(|wait| matches!(wait.blocked.reason, Reason::RecoveryOpen | Reason::StoreOlderThanFleet));
    let person = status.needs_operator || stands;
    let person = person.then(|| format!("needs a person: musterctl watch {}", cluster.metadata.name));
    let parts = [missing(cluster), troubles(cluster), stuck, blocked.or_else(open), person, due(cluster)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// `6 of 7 machines are there`. None: all machines that the manifest asks for have enrolled.
pub(super) fn missing(cluster: &Cluster) -> Option<String> {
    let (there, asked) = (cluster.status.nodes, cluster.status.requested_nodes);
    (there < asked).then(|| format!("{there} of {asked} machines are there"))
}

/// `1 Lost: worker-1; 2 Failed: worker-2, worker-3`. None: all machines are well.
pub(super) fn troubles(cluster: &Cluster) -> Option<String> {
    let status = &cluster.status;
    let all = [
        ("Lost", &status.lost_nodes),
        ("Revoked", &status.revoked_nodes),
        ("Failed", &status.failed_nodes),
        ("Indeterminate", &status.indeterminate_nodes),
    ];
    let said: Vec<String> = all
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(word, names)| {
            let named = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if names.len() > NAMED_MAX { ", …" } else { "" };
            format!("{} {word}: {named}{more}", names.len())
        })
        .collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// `update due: 1.2 -> 1.3`. None: nothing is due, or an update is under way.
pub(super) fn due(cluster: &Cluster) -> Option<String> {
    let (has, wanted) = (&cluster.status.releases, &cluster.spec.release);
    let same = has.iter().all(|release| release == wanted);
    let way = if same { String::new() } else { format!(": {} -> {wanted}", has.join(", ")) };
    cluster.status.update_due.then(|| format!("update due{way}"))
}

/// `5 of 6 machines Ready`, with missing machines and those in trouble.
#[must_use]
pub fn ready_line(cluster: &Cluster) -> String {
    let status = &cluster.status;
    let troubles = troubles(cluster).map(|said| format!("; {said}")).unwrap_or_default();
    let missing = missing(cluster).map(|said| format!("; {said}")).unwrap_or_default();
    format!("{} of {} machines Ready{missing}{troubles}", status.ready_nodes, status.nodes)
}
