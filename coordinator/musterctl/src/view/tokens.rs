//! Rows of join tokens. Documents exclude their secrets.

use muster_proto::resource::Token;

use super::{Look, age, durations::until};

pub(super) const HEADERS: &[&str] = &["NAME", "CLUSTERNAME", "TYPE", "MACHINE", "STATE", "USED", "EXPIRES", "AGE"];

pub(super) fn row(token: &Token, look: Look) -> Vec<String> {
    vec![
        token.metadata.name.clone(),
        token.spec.cluster_name.clone(),
        token.spec.machine_type.to_string(),
        token.spec.machine.clone().unwrap_or_else(|| "any".to_owned()),
        token.status.state.clone(),
        format!("{}/{}", token.status.used, token.spec.uses),
        until(token.status.expires_at, look.now),
        age(token.metadata.creation_timestamp, look.now),
    ]
}
