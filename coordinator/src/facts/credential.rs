//! Credentials and join tokens as they are recorded: whose, for what, until when. Never their keys.

use std::collections::BTreeSet;

use muster_proto::model::{ClusterName, Generation, ItemHash, MachineId, MachineName, MachineType};
use serde::{Deserialize, Serialize};

/// Credentials of a person or a program. One row a name: what is revoked is every certificate of that name so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialRow {
    /// Role and name, as the audit record has them: `operator/anna`.
    pub subject: String,
    /// Its certificates, oldest first. Those that have expired, or were revoked before the newest was issued, are gone.
    pub certificates: Vec<CertificateRow>,
    /// Certificates that were issued until then are refused, Unix milliseconds. None: none was ever revoked.
    pub revoked_at_ms: Option<u64>,
}

/// One certificate of a person or a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRow {
    /// Unix milliseconds.
    pub issued_at_ms: u64,
    /// Unix milliseconds.
    pub expires_at_ms: u64,
    /// The only clusters it is for; empty: all.
    pub clusters: BTreeSet<ClusterName>,
}

impl CredentialRow {
    /// Is a certificate of this name refused that was issued then? Also one that is not in the record: it is of a later
    /// record, in whose place this one was put, and may have been revoked there.
    #[must_use]
    pub fn refuses(&self, issued_at_ms: u64) -> bool {
        // A certificate counts in seconds.
        let known = self.certificates.iter().any(|known| known.issued_at_ms / 1000 == issued_at_ms / 1000);
        !known || self.revoked_at_ms.is_some_and(|at_ms| issued_at_ms <= at_ms)
    }

    /// Is this certificate, in whole seconds as it says itself, among those that are refused?
    #[must_use]
    pub fn has_revoked(&self, certificate: &CertificateRow) -> bool {
        self.revoked_at_ms.is_some_and(|at_ms| certificate.issued_at_ms / 1000 <= at_ms / 1000)
    }

    /// Are all its certificates revoked?
    #[must_use]
    pub fn revoked(&self) -> bool {
        self.certificates.iter().all(|certificate| self.has_revoked(certificate))
    }

    /// Have all its certificates expired?
    #[must_use]
    pub fn expired(&self, now_ms: u64) -> bool {
        self.certificates.iter().all(|certificate| certificate.expires_at_ms <= now_ms)
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
