//! Stored credentials and join tokens: subject, purpose and validity. Keys stay outside.

use std::collections::BTreeSet;

use muster_proto::model::{ClusterName, Generation, ItemHash, MachineId, MachineName, MachineType};
use serde::{Deserialize, Serialize};

/// Credentials of a person or a program, one row for each name. A revocation covers all earlier certificates of the
/// name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialRow {
    /// Role and name, as in the audit record: `operator/anna`.
    pub subject: String,
    /// Its certificates, oldest first. Expired ones are dropped, and those revoked before the newest was issued.
    pub certificates: Vec<CertificateRow>,
    /// Certificates issued up to this time are refused, Unix milliseconds. None: never revoked.
    pub revoked_at_ms: Option<u64>,
}

/// One certificate of a person or a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRow {
    /// Issue time in Unix milliseconds.
    pub issued_at_ms: u64,
    /// Expiry in Unix milliseconds.
    pub expires_at_ms: u64,
    /// The only clusters it is for; empty: all.
    pub clusters: BTreeSet<ClusterName>,
}

impl CredentialRow {
    /// Is a certificate of this name refused that was issued then? An unrecorded one is refused too: it belongs to a
    /// later record that this one replaced, and may have been revoked there.
    #[must_use]
    pub fn refuses(&self, issued_at_ms: u64) -> bool {
        // A certificate has whole seconds.
        let known = self.certificates.iter().any(|known| known.issued_at_ms / 1000 == issued_at_ms / 1000);
        !known || self.revoked_at_ms.is_some_and(|at_ms| issued_at_ms <= at_ms)
    }

    /// Is this certificate, compared in whole seconds, among the revoked?
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

/// An identity with a refused, unexpired certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedRow {
    /// The identity.
    pub id: MachineId,
    /// Its name, for people.
    pub machine: MachineName,
    /// Time of the refusal, in Unix milliseconds.
    pub at_ms: u64,
    /// Its newest list's generation, if its row was dropped: generations under its name continue from here.
    #[serde(default)]
    pub generation: Generation,
    /// The cluster of its ongoing drain: the drain may have been ordered at the last moment.
    #[serde(default)]
    pub in_drain_of: Option<ClusterName>,
}

/// A join token. Its secret is kept only as a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// First part of the token.
    pub id: String,
    /// SHA-256 of the second part.
    pub secret_sha256: ItemHash,
    /// The cluster of its machines.
    pub cluster: ClusterName,
    /// The type of its machines.
    pub machine_type: MachineType,
    /// The only machine that may use it.
    pub machine: Option<MachineName>,
    /// Maximum number of uses.
    pub uses: u32,
    /// Number of uses so far.
    pub used: u32,
    /// Creation in Unix milliseconds.
    pub created_at_ms: u64,
    /// Expiry in Unix milliseconds.
    pub expires_at_ms: u64,
    /// An operator revoked it.
    pub revoked: bool,
}
