use serde::{Deserialize, Serialize};

use super::Document;
use crate::{hash::of_json, model::ItemHash};

/// One line of the audit record.
pub type Audit = Document<AuditSpec, AuditStatus>;

/// Who did what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditSpec {
    /// The cluster that it is about; none: it is about the whole fleet.
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
    /// How often it was done: the same thing again soon after makes no line of its own.
    pub times: u32,
    /// When it was done last, Unix milliseconds; first is the document's `creationTimestamp`.
    pub last_ms: u64,
}

/// Its place in its chain. A line's hash covers that of the line before, so a line that is missing shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditStatus {
    /// The chain: a cluster's name, or what has a `+`.
    pub chain: String,
    /// Number in the chain, from 1; the document's name is its number in the whole record.
    pub number: u64,
    /// Hash of the line before; of the first, zeros.
    pub previous: ItemHash,
    /// SHA-256 of [`HashedAudit`].
    pub hash: ItemHash,
}

/// What the hash of an audit line covers: JSON of these, in this order, without blanks.
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
    /// The hash.
    #[must_use]
    pub fn hash(&self) -> ItemHash {
        of_json(self)
    }
}

/// Where the audit record, as somebody got it, is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number} of {chain} is missing, or is not as it was written")]
pub struct AuditFault {
    /// The chain.
    pub chain: String,
    /// The number of the line.
    pub number: u64,
}

/// Is the part of a chain that is here whole, and as it was written? Lines in order of their numbers.
///
/// # Errors
/// [`AuditFault`], the first.
pub fn verify_audit<'a>(lines: impl IntoIterator<Item = &'a Audit>) -> Result<(), AuditFault> {
    let mut before: Option<&AuditStatus> = None;
    for line in lines {
        let Document { metadata, spec, status } = line;
        let fault = |number| AuditFault { chain: status.chain.clone(), number };
        let follows = before.is_none_or(|before| before.number + 1 == status.number);
        if !follows {
            return Err(fault(before.map_or(0, |before| before.number) + 1));
        }
        let hashed = HashedAudit {
            chain: &status.chain,
            number: status.number,
            seq: metadata.name.parse().unwrap_or_default(),
            at_ms: u64::try_from(metadata.creation_timestamp.as_millisecond()).unwrap_or_default(),
            last_ms: spec.last_ms,
            times: spec.times,
            actor: &spec.actor,
            action: &spec.action,
            object: &spec.object,
            message: &spec.message,
            previous: status.previous,
        };
        if before.is_some_and(|before| before.hash != status.previous) || hashed.hash() != status.hash {
            return Err(fault(status.number));
        }
        before = Some(status);
    }
    Ok(())
}
