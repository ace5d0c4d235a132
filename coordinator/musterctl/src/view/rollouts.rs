//! Rows of rollouts.

use muster_proto::resource::Rollout;

use super::{Look, age, durations::moment};

pub(super) const HEADERS: &[&str] = &["NAME", "CLUSTERNAME", "KIND", "STATE", "READY", "NOTE", "AGE"];
pub(super) const HEADERS_WIDE: &[&str] = &[
    "NAME",
    "CLUSTERNAME",
    "KIND",
    "STATE",
    "READY",
    "RELEASE",
    "SCOPE",
    "FAILURES",
    "STARTEDBY",
    "STARTED",
    "FINISHED",
    "NOTE",
    "AGE",
];

pub(super) fn row(rollout: &Rollout, look: Look) -> Vec<String> {
    let status = &rollout.status;
    let begun = rollout.metadata.creation_timestamp;
    let mut row = vec![
        rollout.metadata.name.clone(),
        rollout.spec.cluster_name.clone(),
        rollout.spec.kind.clone(),
        status.state.clone(),
        format!("{}/{}", status.ready, status.machines),
    ];
    if look.wide {
        let update = status.update.as_ref();
        row.extend([
            update.map(|update| update.release.clone()).unwrap_or_default(),
            update.map(|update| update.scope.to_string()).unwrap_or_default(),
            failures(rollout).to_string(),
            rollout.spec.started_by.clone(),
            moment(begun),
            status.finished_at.map(moment).unwrap_or_default(),
        ]);
    }
    row.extend([note(rollout), age(begun, look.now)]);
    row
}

fn failures(rollout: &Rollout) -> u32 {
    rollout.status.failures.control + rollout.status.failures.worker
}

/// Why it is blocked, or how long it took.
fn note(rollout: &Rollout) -> String {
    let status = &rollout.status;
    let kind = rollout.spec.kind.as_str();
    let too_long = status.update.as_ref().is_some_and(|update| update.paused_too_long);
    match (&status.blocked, status.finished_at, failures(rollout)) {
        _ if too_long && kind == "update" => {
            "paused for over a day: a cluster between two releases is a risk".to_owned()
        }
        _ if too_long => "paused for over a day".to_owned(),
        (Some(wait), ..) => format!("{}: {}", wait.blocked.reason, wait.blocked.message),
        (None, Some(end), _) => format!("took {}", age(rollout.metadata.creation_timestamp, end)),
        (None, None, 0) => String::new(),
        (None, None, 1) => "1 failure".to_owned(),
        (None, None, count) => format!("{count} failures"),
    }
}
