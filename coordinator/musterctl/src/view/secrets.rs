//! Rows of secrets. Documents exclude their values.

use muster_proto::resource::Secret;

use super::{Look, age};

pub(super) const HEADERS: &[&str] = &["NAME", "CLUSTERNAME", "VERSION", "USED BY", "AGE"];

/// Most users named in a row; `-o wide` names all.
const USERS_SHOWN_MAX: usize = 3;

pub(super) fn row(secret: &Secret, look: Look) -> Vec<String> {
    let users = &secret.status.used_by;
    let shown = if look.wide { users.len() } else { USERS_SHOWN_MAX };
    let mut used_by = users.iter().take(shown).cloned().collect::<Vec<_>>().join(", ");
    match users.len().saturating_sub(shown) {
        0 => {}
        more => used_by.push_str(&format!(" and {more} more")),
    }
    vec![
        secret.metadata.name.clone(),
        match (&secret.spec.cluster_name, secret.spec.clusters.as_slice()) {
            (Some(own), _) => own.clone(),
            (None, []) => "none".to_owned(),
            (None, shared) => shared.join(","),
        },
        secret.status.version.to_string(),
        if used_by.is_empty() { "-".to_owned() } else { used_by },
        age(secret.metadata.creation_timestamp, look.now),
    ]
}
