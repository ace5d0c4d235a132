//! Words in requests, checked here before the engine is asked.

use muster_proto::{
    model::{ClusterName, ItemName, MachineName, RemovalPolicy, Scope},
    wire::ReleaseLocksRequest,
};
use tonic::Status;

use crate::{
    core::LockRelease,
    manifest::{ANNOTATION_KEY, is_annotation_key},
    pki::Peer,
};

/// Longest name of a token, a kind, or a controller.
const WORD_BYTES_MAX: usize = 253;
/// Longest value of an annotation.
const ANNOTATION_BYTES_MAX: usize = 4096;

pub(super) fn may_touch(peer: &Peer, cluster: &ClusterName) -> Result<(), Status> {
    if peer.may_touch(cluster) {
        return Ok(());
    }
    Err(Status::permission_denied(format!("these credentials are not for cluster {cluster}")))
}

/// The answer for an unknown name, and for a hidden one.
pub(super) fn there_is_no(kind: &str, name: &str) -> Status {
    Status::not_found(format!("there is no {kind} {name}"))
}

/// Check that an object belongs to a cluster of the peer, or that it is unknown. For a caller limited to clusters, a
/// foreign object gets the same answer as an unknown one: a refusal would reveal its owner.
pub(super) fn is_not_foreign(peer: &Peer, of: Option<&ClusterName>, (kind, name): (&str, &str)) -> Result<(), Status> {
    let known = of.map_or(peer.clusters.is_none(), |cluster| peer.may_touch(cluster));
    if known { Ok(()) } else { Err(there_is_no(kind, name)) }
}

pub(in crate::server) fn cluster_name(name: String) -> Result<ClusterName, Status> {
    ClusterName::new(name).map_err(|error| Status::invalid_argument(format!("cluster: {error}")))
}

pub(in crate::server) fn machine_name(name: String) -> Result<MachineName, Status> {
    MachineName::new(name).map_err(|error| Status::invalid_argument(format!("machine: {error}")))
}

pub(super) fn scope(word: &str) -> Result<Scope, Status> {
    if word.is_empty() {
        return Ok(Scope::Drain);
    }
    word.parse().map_err(|error| Status::invalid_argument(format!("scope: {error}")))
}

pub(super) fn policy(word: &str) -> Result<RemovalPolicy, Status> {
    word.parse().map_err(|error| Status::invalid_argument(format!("policy: {error}")))
}

pub(super) fn item_name(name: String) -> Result<Option<ItemName>, Status> {
    let named = (!name.is_empty()).then(|| ItemName::new(name)).transpose();
    named.map_err(|error| Status::invalid_argument(format!("item: {error}")))
}

/// Parse which locks to remove, in a cluster that the peer may touch.
pub(super) fn lock_release(peer: &Peer, request: ReleaseLocksRequest) -> Result<LockRelease, Status> {
    let cluster = cluster_name(request.cluster)?;
    may_touch(peer, &cluster)?;
    let machine = (!request.machine.is_empty()).then(|| machine_name(request.machine)).transpose()?;
    Ok(LockRelease { cluster, controller: word("controller", request.controller)?, machine })
}

/// Name of a Kubernetes object: it becomes a segment of a path.
pub(super) fn object_name(what: &'static str, text: String) -> Result<String, Status> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if text.is_empty() || text.len() > WORD_BYTES_MAX || !text.bytes().all(is_safe) || text.starts_with('.') {
        return Err(Status::invalid_argument(format!("{what}: expected the name of a Kubernetes object")));
    }
    Ok(text)
}

pub(super) fn word(what: &'static str, text: String) -> Result<String, Status> {
    if text.len() > WORD_BYTES_MAX || text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        let expected = format!("expected a word without blanks of at most {WORD_BYTES_MAX} bytes");
        return Err(Status::invalid_argument(format!("{what}: {expected}")));
    }
    Ok(text)
}

pub(super) fn annotation(name: &str, value: &str) -> Result<(), Status> {
    if !is_annotation_key(name) {
        return Err(Status::invalid_argument(format!("annotation {name:.80}: expected {ANNOTATION_KEY}")));
    }
    if value.len() > ANNOTATION_BYTES_MAX {
        let message = format!("annotation {name}: a value has at most {ANNOTATION_BYTES_MAX} bytes");
        return Err(Status::invalid_argument(message));
    }
    if value.chars().any(char::is_control) {
        let message =
            format!("annotation {name}: a value is one line of plain text, without tabs or control characters");
        return Err(Status::invalid_argument(message));
    }
    Ok(())
}
