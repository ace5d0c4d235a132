//! Rows of credentials: people and programs that may call the coordinator, besides agents.

use muster_proto::resource::Credential;

use super::{Look, age, durations::until};

pub(super) const HEADERS: &[&str] = &["NAME", "CLUSTERS", "STATE", "EXPIRES", "AGE"];

pub(super) fn row(credential: &Credential, look: Look) -> Vec<String> {
    let clusters = &credential.spec.clusters;
    vec![
        credential.metadata.name.clone(),
        if clusters.is_empty() { "all".to_owned() } else { clusters.join(",") },
        credential.status.state.clone(),
        until(credential.status.expires_at, look.now),
        age(credential.metadata.creation_timestamp, look.now),
    ]
}
