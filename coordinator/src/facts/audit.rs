use serde::{Deserialize, Serialize};

/// One line of who did what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// From 1.
    pub seq: u64,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// `operator/anna`.
    pub actor: String,
    /// `retry`.
    pub action: String,
    /// `machine/worker-3`.
    pub object: String,
    /// The rest, in one line.
    pub message: String,
}

/// Who enrols is known by its join token: `token/` and the token's id.
const TOKEN: &str = "token/";

impl AuditRow {
    /// The actor of what is done with this join token.
    #[must_use]
    pub fn token(id: &str) -> String {
        format!("{TOKEN}{id}")
    }

    /// Was it done with a join token, not by a person or by the coordinator?
    #[must_use]
    pub fn is_of_token(&self) -> bool {
        self.actor.starts_with(TOKEN)
    }
}
