//! Rows of locks, requests and cluster states.

use muster_proto::resource::{ClusterState, Lock, Request};

use super::{Look, age};

pub(super) const LOCKS: &[&str] =
    &["NAME", "CLUSTERNAME", "KIND", "HOLDER", "NODE", "STATE", "SINCE", "PROGRESS", "MESSAGE"];
pub(super) const LOCKS_WIDE: &[&str] =
    &["NAME", "CLUSTERNAME", "KIND", "HOLDER", "NODE", "STATE", "SINCE", "PROGRESS", "RELEASE", "UID", "MESSAGE"];
pub(super) const REQUESTS: &[&str] = &["NAME", "CLUSTERNAME", "KIND", "SCOPE", "STATE", "AGE", "MESSAGE"];
pub(super) const REQUESTS_WIDE: &[&str] =
    &["NAME", "CLUSTERNAME", "KIND", "SCOPE", "RELEASE", "REMOVAL", "UID", "STATE", "AGE", "MESSAGE"];
pub(super) const CLUSTER_STATES: &[&str] =
    &["NAME", "CLUSTERNAME", "TYPE", "ARG", "VALUE", "ACTUALVALUE", "ATTEMPT", "MESSAGE"];

pub(super) fn lock(lock: &Lock, look: Look) -> Vec<String> {
    let status = &lock.status;
    let message = if status.error_message.is_empty() { &status.description } else { &status.error_message };
    let mut row = vec![
        lock.metadata.name.clone(),
        lock.spec.cluster_name.clone(),
        lock.spec.kind.clone(),
        lock.spec.controller_name.clone(),
        lock.spec.node_name.clone().unwrap_or_default(),
        status.state.to_string(),
        age(status.since, look.now),
        format!("{}%", status.percentage),
    ];
    if look.wide {
        row.push(status.release.clone());
        row.push(lock.spec.uid.clone().unwrap_or_default());
    }
    let gone = format!("{} is not connected", lock.spec.controller_name);
    let words = [Some(message.as_str()), (!status.connected).then_some(gone.as_str())];
    row.push(words.into_iter().flatten().filter(|words| !words.is_empty()).collect::<Vec<_>>().join("; "));
    row
}

pub(super) fn request(request: &Request, look: Look) -> Vec<String> {
    let spec = &request.spec;
    let mut row =
        vec![request.metadata.name.clone(), spec.cluster_name.clone(), spec.kind.clone(), spec.scope.to_string()];
    if look.wide {
        row.push(spec.release.clone());
        row.push(if spec.removal { "yes" } else { "" }.to_owned());
        row.push(spec.uid.clone().unwrap_or_default());
    }
    row.extend([
        request.status.state.clone(),
        age(request.metadata.creation_timestamp, look.now),
        request.status.message.clone(),
    ]);
    row
}

pub(super) fn cluster_state(state: &ClusterState) -> Vec<String> {
    vec![
        state.metadata.name.clone(),
        state.spec.cluster_name.clone(),
        state.spec.kind.clone(),
        state.spec.arg.clone(),
        state.spec.value.clone(),
        state.status.actual_value.clone(),
        state.status.attempt.to_string(),
        state.status.message.clone(),
    ]
}
