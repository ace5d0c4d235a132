//! The rows of what a rollout adds to machines' lists, as they are stored.

use muster_proto::model::{CONSISTENT_COPY_ITEM, ItemName, MKE_BACKUP_ITEM, Phase, SWARM_COPY_ITEM};
use serde::{Deserialize, Serialize};

/// A reboot that a rollout adds at the end of a machine's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedReboot {
    /// By the rollout's name and its start: no two of these items are the same.
    pub version: String,
    /// The last phase of the machine's list.
    pub phase: Phase,
    /// Who wants it.
    pub why: RebootWhy,
}

/// An item that an update adds to a machine's list, beside those of its type. Its version is the rollout's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Added {
    /// A hook of the spec, before anything is requested or disturbed.
    HookBefore(ItemName),
    /// A hook of the spec, when every machine is through.
    HookAfter(ItemName),
    /// A hot copy of this manager's swarm state, before anything is requested or disturbed.
    SwarmCopy,
    /// A backup of MKE, likewise.
    MkeBackup,
    /// A copy of the swarm state with Docker stopped, first of what disturbs the machine in its own turn.
    ConsistentCopy,
}

impl Added {
    /// Is it done before anything is requested or disturbed?
    #[must_use]
    pub const fn is_before(&self) -> bool {
        matches!(self, Self::HookBefore(_) | Self::SwarmCopy | Self::MkeBackup)
    }

    /// The name of the item.
    #[must_use]
    pub fn item_name(&self) -> &str {
        match self {
            Self::HookBefore(name) | Self::HookAfter(name) => name.as_str(),
            Self::SwarmCopy => SWARM_COPY_ITEM,
            Self::MkeBackup => MKE_BACKUP_ITEM,
            Self::ConsistentCopy => CONSISTENT_COPY_ITEM,
        }
    }

    /// Is it a backup?
    #[must_use]
    pub const fn is_backup(&self) -> bool {
        matches!(self, Self::SwarmCopy | Self::MkeBackup | Self::ConsistentCopy)
    }

    /// Is it done when every machine is through?
    #[must_use]
    pub const fn is_after(&self) -> bool {
        matches!(self, Self::HookAfter(_))
    }
}

/// Who wants a machine to reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RebootWhy {
    /// An operator.
    Asked,
    /// The release it goes to.
    Release,
    /// The host, if it says so when all other items are done.
    Host,
}

/// An operator's wish that a machine reboots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootAsked {
    /// Unix milliseconds.
    pub at_ms: u64,
    /// It has rebooted since, because of it.
    pub completed: bool,
}

/// How something that an update added stood on a machine that left, where it did not simply succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AddedEnd {
    /// An operator did without it.
    Skipped,
    /// It failed.
    Failed,
    /// It had begun, and nobody knows how it ended.
    Unknown,
}
