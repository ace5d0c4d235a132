//! What a machine enrolled with: part of its row. It says by which token a machine came, for as long as the machine
//! has that identity.

use muster_proto::model::ItemHash;
use serde::{Deserialize, Serialize};

/// What a machine enrolled with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolledWith {
    /// Of its token.
    pub token_id: String,
    /// SHA-256 of its public key.
    pub key_sha256: ItemHash,
    /// Was it answered a second time? That is audited once.
    #[serde(default)]
    pub repeated: bool,
    /// Did it take the place of another machine of its name?
    #[serde(default)]
    pub took_place: bool,
}
