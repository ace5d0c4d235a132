use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Longest DNS-1123 label (RFC 1123, 2.1).
pub const LABEL_BYTES_MAX: usize = 63;

/// Name of the item with which an update reboots a machine.
pub const REBOOT_ITEM: &str = "muster-reboot";
/// Name of the item that copies a manager's swarm state before an update.
pub const SWARM_COPY_ITEM: &str = "muster-backup-swarm";
/// Name of the item that copies the swarm state with Docker stopped, in the machine's own turn.
pub const CONSISTENT_COPY_ITEM: &str = "muster-backup-swarm-consistent";
/// Name of the item that backs up MKE before an update.
pub const MKE_BACKUP_ITEM: &str = "muster-backup-mke";
/// Names of the items that Muster adds by itself. Manifests may not use them.
pub const OWN_ITEMS: &[&str] = &[REBOOT_ITEM, SWARM_COPY_ITEM, CONSISTENT_COPY_ITEM, MKE_BACKUP_ITEM];

/// Is `text` a DNS-1123 label: 1 to 63 of `a-z`, `0-9` and `-`, with a letter or digit at both ends?
#[must_use]
pub fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= LABEL_BYTES_MAX
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

/// A name that is not a DNS-1123 label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 63 of a-z, 0-9 and '-', and begins and ends with a letter or digit")]
pub struct InvalidName;

macro_rules! label {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Create a name from a DNS-1123 label.
            ///
            /// # Errors
            /// [`InvalidName`] for any other text.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
                let text = text.into();
                if is_label(&text) { Ok(Self(text)) } else { Err(InvalidName) }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

label!(
    /// Name of a cluster, unique in a coordinator.
    ClusterName
);
label!(
    /// Name of a machine, unique in a coordinator. Default: its hostname.
    MachineName
);
impl ItemName {
    /// One of [`OWN_ITEMS`].
    #[must_use]
    pub(super) fn own(name: &'static str) -> Self {
        debug_assert!(OWN_ITEMS.contains(&name), "{name} is Muster's own");
        Self(name.to_owned())
    }

    /// [`REBOOT_ITEM`].
    #[must_use]
    pub fn of_reboot() -> Self {
        Self(REBOOT_ITEM.to_owned())
    }
}

label!(
    /// Name of a StateItem, unique among the items of a machine type: its slot in the status.
    ItemName
);
label!(
    /// Name of an update group, unique in a cluster.
    UpdateGroupName
);
label!(
    /// Name of a secret, or of another input that an item gets at its start.
    SecretName
);

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub Uuid);

        impl std::str::FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                Uuid::try_parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

uuid_id!(
    /// Identity of a machine, created at enrolment and named in its certificate. A reinstalled machine gets a new one.
    MachineId
);
uuid_id!(
    /// Identity of one agent ledger. A reset or lost ledger gets a new one, so its events count from the start.
    LedgerId
);

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl $name {
            /// The next number.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

counter!(
    /// Fences old assignments of one machine: the agent accepts only a higher one. 0 = none yet.
    Generation
);
counter!(
    /// Fences old coordinators: each start takes a higher one. 0 = none seen.
    Epoch
);
counter!(
    /// Number of a durable event in one ledger, consecutive from 1. 0 = none.
    Seq
);
counter!(
    /// Ordinal of a ledger: the coordinator counts the ledgers of one machine identity, from 1. 0 = none.
    LedgerOrdinal
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        for good in ["a", "edge-7", "0", &"x".repeat(63)] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "ä", "a b", "a\n", &"x".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }

    #[test]
    fn a_bad_name_does_not_deserialize() {
        assert!(serde_json::from_str::<MachineName>("\"Node_1\"").is_err());
        assert_eq!(serde_json::from_str::<MachineName>("\"node-1\"").ok(), MachineName::new("node-1").ok());
    }
}
