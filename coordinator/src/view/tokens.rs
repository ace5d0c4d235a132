//! Rows of join tokens. Their secrets are in no document.

use muster_proto::resource::Token;

use super::{Look, age, span};

pub(super) const HEADERS: &[&str] = &["NAME", "CLUSTERNAME", "TYPE", "MACHINE", "STATE", "USED", "EXPIRES", "AGE"];

pub(super) fn row(token: &Token, look: Look) -> Vec<String> {
    let left = token.status.expires_at.as_second().saturating_sub(look.now.as_second());
    vec![
        token.metadata.name.clone(),
        token.spec.cluster_name.clone(),
        token.spec.machine_type.to_string(),
        token.spec.machine.clone().unwrap_or_else(|| "any".to_owned()),
        token.status.state.clone(),
        match token.spec.uses {
            Some(uses) => format!("{}/{uses}", token.status.used),
            None => token.status.used.to_string(),
        },
        if left > 0 { format!("in {}", span(left)) } else { format!("{} ago", span(-left)) },
        age(token.metadata.creation_timestamp, look.now),
    ]
}
