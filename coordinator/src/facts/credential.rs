//! Credentials and join tokens as they are recorded: whose, for what, until when. Never their keys.

use std::collections::BTreeSet;

use muster_proto::model::{ClusterName, Generation, ItemHash, MachineId, MachineName, MachineType};
use serde::{Deserialize, Serialize};

/// Credentials of a person or a program. One row a name: what is revoked is every certificate of that name so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialRow {
    /// Role and name, as the audit record has them: `operator/anna`.
    pub subject: String,
    /// The only clusters that certificates of this name are for, taken together; empty: all.
    pub clusters: BTreeSet<ClusterName>,
    /// Of the newest certificate, Unix milliseconds.
    pub issued_at_ms: u64,
    /// Of the newest certificate, Unix milliseconds.
    pub expires_at_ms: u64,
    /// When the older certificates were issued that are good beside the newest, Unix milliseconds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub older_ms: BTreeSet<u64>,
    /// Certificates that were issued until then are refused, Unix milliseconds. None: none was ever revoked.
    pub revoked_at_ms: Option<u64>,
}

impl CredentialRow {
    /// Is a certificate of this name refused that was issued then? Also one that is not in the record: it is of a later
    /// record, in whose place this one was put, and may have been revoked there.
    #[must_use]
    pub fn refuses(&self, issued_at_ms: u64) -> bool {
        // A certificate counts in seconds.
        let is_it = |at_ms: &u64| at_ms / 1000 == issued_at_ms / 1000;
        let known = is_it(&self.issued_at_ms) || self.older_ms.iter().any(is_it);
        !known || self.revoked_at_ms.is_some_and(|at_ms| issued_at_ms <= at_ms)
    }

    /// Is the newest certificate among those that are refused?
    #[must_use]
    pub fn revoked(&self) -> bool {
        // A certificate counts in seconds.
        self.revoked_at_ms.is_some_and(|at_ms| self.issued_at_ms / 1000 <= at_ms / 1000)
    }
}

/// An identity whose certificate is refused though it has not expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedRow {
    /// Whose.
    pub id: MachineId,
    /// Its name, for people.
    pub machine: MachineName,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Of its newest list, if its row was dropped: under its name generations go on from here.
    #[serde(default)]
    pub generation: Generation,
    /// The cluster that it was being drained in: the drain may have been ordered at the last moment.
    #[serde(default)]
    pub in_drain_of: Option<ClusterName>,
}

/// A join token. Of its secret only a digest is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// The first part of the token.
    pub id: String,
    /// SHA-256 of the second part.
    pub secret_sha256: ItemHash,
    /// For machines of this cluster.
    pub cluster: ClusterName,
    /// For machines of this type.
    pub machine_type: MachineType,
    /// For this machine only.
    pub machine: Option<MachineName>,
    /// How often it may be used.
    pub uses: u32,
    /// How often it was.
    pub used: u32,
    /// Unix milliseconds.
    pub created_at_ms: u64,
    /// Unix milliseconds.
    pub expires_at_ms: u64,
    /// An operator took it back.
    pub revoked: bool,
}
