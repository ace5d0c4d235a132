//! Rows of the audit record: time, actor, action.

use muster_proto::resource::{Audit, AuditChain};

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

pub(super) const CHAIN_HEADERS: &[&str] = &["NAME", "OLDEST", "NEWEST"];

pub(super) fn chain_row(chain: &AuditChain) -> Vec<String> {
    vec![chain.metadata.name.clone(), chain.status.oldest.to_string(), chain.status.newest.to_string()]
}
