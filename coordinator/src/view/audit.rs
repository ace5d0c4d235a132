//! Rows of the audit record: who did what, when.

use muster_proto::resource::Audit;

use super::durations::moment;

pub(super) const HEADERS: &[&str] = &["TIME", "ACTOR", "ACTION", "OBJECT", "MESSAGE"];

pub(super) fn row(audit: &Audit) -> Vec<String> {
    vec![
        moment(audit.metadata.creation_timestamp),
        audit.spec.actor.clone(),
        audit.spec.action.clone(),
        audit.spec.object.clone(),
        match audit.spec.times {
            0 | 1 => audit.spec.message.clone(),
            times => format!("{} ({times} times)", audit.spec.message),
        },
    ]
}
