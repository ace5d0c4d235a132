//! Errors of the engine as gRPC statuses.

use muster_proto::{
    IDENTITY_REVOKED,
    model::{MachineId, MachineName},
};
use tonic::{Status, metadata::MetadataValue};

use super::authz::NOT_ACCEPTED;
use crate::{
    core::Refusal,
    engine::EngineError,
    facts::MachineRow,
    pki::{PkiError, VaultError},
};

/// The one answer for all unacceptable tokens.
pub(super) const TOKEN_REFUSED: &str = "\
    the join token was refused: it is unknown, expired, used up, revoked, or for another machine; ask an \
    operator which (`musterctl get tokens`) or for a new one (`musterctl token create`)";

/// Reason for closing the older of two streams of one machine. It occurs once after an agent's restart.
pub(super) const SESSION_REPLACED: &str = "\
    SessionReplaced: a newer stream of this machine took over; if that goes on, another machine has its identity too, \
    as from a copied disk: enrol one of them anew (`muster-agent enroll --force`)";

/// The agent that has the logs of a machine's items.
pub(super) fn keeper_of_logs(row: Option<&MachineRow>, machine: &MachineName) -> Result<MachineId, Status> {
    let row = row.ok_or_else(|| Status::not_found(format!("there is no machine {machine}")))?;
    if row.revoked {
        return Err(Status::failed_precondition(format!(
            "Revoked: {machine} is not let in any more; what its items said is on its own disk, in `attempts` of its \
             agent's state directory (/var/lib/muster/agent)"
        )));
    }
    row.id.ok_or_else(|| Status::failed_precondition(format!("NotEnrolled: {machine} has no agent yet")))
}

impl From<EngineError> for Status {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(refusal) => refusal.into(),
            EngineError::Stopped => Self::unavailable("the coordinator is shutting down"),
            EngineError::Store(_) | EngineError::Row(_) | EngineError::Thread(_) | EngineError::Diverged => {
                internal(&error)
            }
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound { .. } => Self::not_found(refusal.to_string()),
            Refusal::State { .. } => Self::failed_precondition(refusal.to_string()),
            Refusal::TooFast { .. } => Self::resource_exhausted(refusal.to_string()),
            Refusal::Token { .. } => Self::unauthenticated(TOKEN_REFUSED),
            Refusal::Protocol { .. } => Self::aborted(refusal.to_string()),
        }
    }
}

impl From<PkiError> for Status {
    fn from(error: PkiError) -> Self {
        internal(&error)
    }
}

impl From<VaultError> for Status {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::Random => internal(&error),
            VaultError::Damaged(_) => {
                tracing::error!(%error, "a secret is damaged");
                Self::failed_precondition(format!("SecretDamaged: {error}"))
            }
        }
    }
}

/// The answer to an agent whose identity was revoked: the usual text for unacceptable credentials, plus a mark.
pub(super) fn revoked() -> Status {
    let mut status = Status::unauthenticated(NOT_ACCEPTED);
    status.metadata_mut().insert(IDENTITY_REVOKED, MetadataValue::from_static("1"));
    status
}

/// The answer for an internal error: it points to the log.
pub(super) fn internal(error: &(dyn std::error::Error + 'static)) -> Status {
    tracing::error!(error, "a request failed");
    Status::internal("the coordinator failed; its log says why")
}
