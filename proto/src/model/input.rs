use std::fmt;

use super::{AssignedItem, RunnerKind, SecretName};
use crate::variables;

/// Largest value of an input, and so of a secret.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;
/// Most inputs of one item: with 64 KiB each they fit into one message of the link.
pub const INPUTS_PER_ITEM_MAX: usize = 12;

/// One input of an item: a value that stays out of assignments and records. It is fetched right before the start,
/// reaches the program as a file, and is removed when the program ends.
#[derive(Clone, PartialEq, Eq)]
pub struct ItemInput {
    /// Name of the secret, or the runner's name for the input.
    pub name: SecretName,
    /// Any bytes.
    pub value: Vec<u8>,
    /// Must every output redact it?
    pub secret: bool,
}

/// Leaves out the value of every input.
impl fmt::Debug for ItemInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemInput").field("name", &self.name).field("secret", &self.secret).finish_non_exhaustive()
    }
}

impl AssignedItem {
    /// The secrets that its params refer to, sorted and unique.
    #[must_use]
    pub fn secrets(&self) -> Vec<SecretName> {
        variables::secrets_of(&self.params)
    }

    /// Does it join the machine to its cluster's swarm?
    #[must_use]
    pub fn joins_swarm(&self) -> bool {
        self.runner == RunnerKind::SwarmJoin.as_str()
    }

    /// Does its start require inputs from the coordinator?
    #[must_use]
    pub fn needs_inputs(&self) -> bool {
        self.joins_swarm() || !self.secrets().is_empty()
    }
}
