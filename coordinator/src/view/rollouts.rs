//! Rows of rollouts.

use muster_proto::resource::Rollout;

use super::{Look, age, machines::NOTE_CHARS_MAX, text::cut};

pub(super) const HEADERS: &[&str] =
    &["NAME", "CLUSTERNAME", "KIND", "STATE", "READY", "FAILURES", "STARTEDBY", "NOTE", "AGE"];

pub(super) fn row(rollout: &Rollout, look: Look) -> Vec<String> {
    let status = &rollout.status;
    let too_long = status.update.as_ref().is_some_and(|update| update.paused_too_long);
    let note = match (&status.blocked, status.finished_at) {
        _ if too_long => "paused for over a day: a cluster between two releases is a risk".to_owned(),
        (Some(wait), _) => format!("{}: {}", wait.blocked.reason, wait.blocked.message),
        (None, Some(end)) => format!("took {}", age(rollout.metadata.creation_timestamp, end)),
        (None, None) => String::new(),
    };
    vec![
        rollout.metadata.name.clone(),
        rollout.spec.cluster_name.clone(),
        rollout.spec.kind.clone(),
        status.state.clone(),
        format!("{}/{}", status.ready, status.machines),
        (status.failures.control + status.failures.worker).to_string(),
        rollout.spec.started_by.clone(),
        if look.wide { note } else { cut(&note, NOTE_CHARS_MAX) },
        age(rollout.metadata.creation_timestamp, look.now),
    ]
}
