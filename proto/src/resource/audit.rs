use serde::{Deserialize, Serialize};

use super::Document;
use crate::{hash::of_json, model::ItemHash};

/// One line of the audit record.
pub type Audit = Document<AuditSpec, AuditStatus>;

/// An action and its actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditSpec {
    /// The cluster that it concerns; none: the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// `operator/anna`.
    pub actor: String,
    /// `retry`.
    pub action: String,
    /// `machine/worker-3`.
    pub object: String,
    /// The rest, in one line.
    pub message: String,
    /// Number of times it was done: a repetition soon after only raises this count.
    pub times: u32,
    /// Time of the last repetition, in Unix milliseconds; the first is the document's `creationTimestamp`.
    pub last_ms: u64,
}

/// Position of a line in its chain. Its hash covers that of the line before, so a missing line is detected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditStatus {
    /// The chain: a cluster's name, or a name with a `+`.
    pub chain: String,
    /// Number in the chain, from 1; the document's name is its number in the whole record.
    pub number: u64,
    /// Hash of the line before; zeros for the first line.
    pub previous: ItemHash,
    /// SHA-256 of [`HashedAudit`].
    pub hash: ItemHash,
}

/// Data that the hash of an audit line covers: compact JSON of these fields, in this order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HashedAudit<'a> {
    /// See [`AuditStatus`].
    pub chain: &'a str,
    /// See [`AuditStatus`].
    pub number: u64,
    /// The document's name.
    pub seq: u64,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Unix milliseconds.
    pub last_ms: u64,
    /// See [`AuditSpec`].
    pub times: u32,
    /// See [`AuditSpec`].
    pub actor: &'a str,
    /// See [`AuditSpec`].
    pub action: &'a str,
    /// See [`AuditSpec`].
    pub object: &'a str,
    /// See [`AuditSpec`].
    pub message: &'a str,
    /// See [`AuditStatus`].
    pub previous: ItemHash,
}

impl HashedAudit<'_> {
    /// Compute the hash.
    #[must_use]
    pub fn hash(&self) -> ItemHash {
        of_json(self)
    }
}

/// One chain of the audit record, with all lines that are kept.
pub type AuditChain = Document<AuditChainSpec, AuditChainStatus>;

/// The subject of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditChainSpec {
    /// The cluster; none: the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
}

/// The recorded ends of a chain, and its lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditChainStatus {
    /// Number of the oldest line that is kept; 0: the record contains only the chain's name.
    pub oldest: u64,
    /// Number of the newest line.
    pub newest: u64,
    /// The newest line's hash.
    pub hash: ItemHash,
    /// The lines, oldest first.
    pub lines: Vec<Audit>,
}

/// Where a copy of the audit record differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number} of {chain} is missing, or is not as it was written")]
pub struct AuditFault {
    /// The chain.
    pub chain: String,
    /// The number of the line.
    pub number: u64,
}

/// Check that a chain is complete and unaltered from its oldest line to its newest.
///
/// # Errors
/// [`AuditFault`], the first.
pub fn verify_audit(chain: &AuditChain) -> Result<(), AuditFault> {
    let AuditChainStatus { oldest, newest, hash, lines } = &chain.status;
    let name = &chain.metadata.name;
    let fault = |number| AuditFault { chain: name.clone(), number };
    let mut expected = (*oldest).max(1);
    // Of the line before the first one, only its hash in the first one is kept.
    let mut before = lines.first().filter(|_| expected > 1).map(|first| first.status.previous);
    for line in lines {
        let Document { metadata, spec, status } = line;
        if status.number > expected {
            return Err(fault(expected));
        }
        let hashed = HashedAudit {
            chain: name,
            number: expected,
            seq: metadata.name.parse().unwrap_or_default(),
            at_ms: u64::try_from(metadata.creation_timestamp.as_millisecond()).unwrap_or_default(),
            last_ms: spec.last_ms,
            times: spec.times,
            actor: &spec.actor,
            action: &spec.action,
            object: &spec.object,
            message: &spec.message,
            previous: before.unwrap_or_default(),
        };
        if hashed.hash() != status.hash {
            return Err(fault(status.number));
        }
        before = Some(status.hash);
        expected += 1;
    }
    if lines.is_empty() || expected <= *newest {
        return Err(fault(expected));
    }
    if expected != *newest + 1 || before != Some(*hash) {
        return Err(fault(expected - 1));
    }
    Ok(())
}
