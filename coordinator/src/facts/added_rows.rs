//! Stored rows of what a rollout adds to machines' lists.

use muster_proto::model::{CONSISTENT_COPY_ITEM, ItemName, MKE_BACKUP_ITEM, Phase, SWARM_COPY_ITEM};
use serde::{Deserialize, Serialize};

/// A reboot that a rollout adds at the end of a machine's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedReboot {
    /// Made of the rollout's name and start, so that each of these items is unique.
    pub version: String,
    /// The last phase of the machine's list.
    pub phase: Phase,
    /// Origin of the request.
    pub why: RebootWhy,
}

/// An item that an update adds to a machine's list, beside those of its type. Its version is the rollout's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Added {
    /// A hook of the spec, before anything is requested or disturbed.
    HookBefore(ItemName),
    /// A hook of the spec, after every machine is complete.
    HookAfter(ItemName),
    /// A hot copy of this manager's swarm state, before anything is requested or disturbed.
    SwarmCopy,
    /// A backup of MKE, likewise.
    MkeBackup,
    /// A copy of the swarm state with Docker stopped: the first disturbance in the machine's own turn.
    ConsistentCopy,
}

impl Added {
    /// Does it run before anything is requested or disturbed?
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

    /// Does it run after every machine is complete?
    #[must_use]
    pub const fn is_after(&self) -> bool {
        matches!(self, Self::HookAfter(_))
    }
}

/// Origin of a reboot request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RebootWhy {
    /// An operator.
    Asked,
    /// The release of the update.
    Release,
    /// The host, if it requires a reboot after all other items.
    Host,
}

/// An operator's request to reboot a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootAsked {
    /// Time of the request, in Unix milliseconds.
    pub at_ms: u64,
    /// The machine has since rebooted for it.
    pub completed: bool,
}

/// Result of an update's addition on a machine that left the update, other than plain success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AddedEnd {
    /// An operator skipped it.
    Skipped,
    /// It failed.
    Failed,
    /// It began, and its outcome is unknown.
    Unknown,
}
