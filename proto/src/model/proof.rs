//! Proofs of numbers that the coordinator gave an agent: the agent stores a proof and presents it with its number.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Epoch, ItemHash, LedgerOrdinal};

/// An authentication code of the coordinator (HMAC-SHA256). Agents only store it; verifying it needs the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AuthCode(ItemHash);

impl AuthCode {
    /// The code when the coordinator gave none. It is invalid under every key.
    pub const NONE: Self = Self(ItemHash([0; 32]));

    /// The code of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(ItemHash(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0.0
    }
}

impl Default for AuthCode {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for AuthCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Proves the generation of an accepted assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListProof {
    /// Epoch of the coordinator that sent the list.
    pub epoch: Epoch,
    /// Digest of the list's content.
    pub digest: ItemHash,
    /// Code over machine, epoch, generation and digest.
    pub code: AuthCode,
}

/// Proves the highest acknowledged event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckProof {
    /// Epoch of the coordinator that acknowledged.
    pub epoch: Epoch,
    /// Ledger of the event.
    pub ordinal: LedgerOrdinal,
    /// Code over machine, ledger, ordinal, epoch and the event's number.
    pub code: AuthCode,
}

impl AckProof {
    /// The proof when the coordinator gave none.
    pub const NONE: Self = Self { epoch: Epoch(0), ordinal: LedgerOrdinal(0), code: AuthCode::NONE };
}
