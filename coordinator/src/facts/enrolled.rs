//! Enrolment data of a machine: part of its row. It keeps the token of the enrolment as long as the machine has that
//! identity.

use muster_proto::model::ItemHash;
use serde::{Deserialize, Serialize};

/// Enrolment data of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolledWith {
    /// Id of its token.
    pub token_id: String,
    /// SHA-256 of its public key.
    pub key_sha256: ItemHash,
    /// Was the answer repeated? This is audited once.
    #[serde(default)]
    pub repeated: bool,
    /// Did it take the place of another machine of its name?
    #[serde(default)]
    pub took_place: bool,
}
