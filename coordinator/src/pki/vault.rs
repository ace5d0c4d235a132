//! Values of secrets, sealed with the key file that protects the CA's key. A value is bound to its name and version: it
//! opens only under these, so a row cannot be moved to another name or restored from an old store.

use super::StateKey;
use crate::facts::{Sealed, SecretId, SecretRow};

/// Why sealing or opening a value failed.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The system lacks randomness.
    #[error("no random bytes from the system")]
    Random,
    /// The key file does not open it.
    #[error("secret {} does not open: its row is damaged; `musterctl {}` makes it again", .0, .0.create_command())]
    Damaged(SecretId),
}

/// Seals and opens the values of secrets.
pub struct Vault(StateKey);

impl Vault {
    /// Create a vault with the key of the key file.
    #[must_use]
    pub const fn new(key: StateKey) -> Self {
        Self(key)
    }

    /// A vault with a fixed key, for one test.
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        Self(StateKey::new(&[7; 32]).expect("a key"))
    }

    /// Seal a value, to be recorded under this name and version.
    ///
    /// # Errors
    /// [`VaultError::Random`].
    pub fn seal(&self, id: &SecretId, version: u64, value: &[u8]) -> Result<Sealed, VaultError> {
        self.0.seal(&purpose(id, version), value).map(Sealed).ok_or(VaultError::Random)
    }

    /// Open the value of a recorded secret.
    ///
    /// # Errors
    /// [`VaultError::Damaged`].
    pub fn open(&self, row: &SecretRow) -> Result<Vec<u8>, VaultError> {
        let opened = self.0.open(&purpose(&row.id, row.version), &row.sealed.0);
        opened.ok_or_else(|| VaultError::Damaged(row.id.clone()))
    }
}

/// Names are free of blanks, so different purposes always have different texts.
fn purpose(id: &SecretId, version: u64) -> Vec<u8> {
    format!("muster secret v1 {id} {version}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_opens_under_its_own_name_and_version_only() {
        let vault = Vault::of_test();
        let id: SecretId = "edge/db".parse().expect("an id");
        let sealed = vault.seal(&id, 3, b"hunter2").expect("sealed");
        assert!(!sealed.0.windows(7).any(|seven| seven == b"hunter2"));
        let row = SecretRow { id, version: 3, created_at_ms: 0, sealed, clusters: std::collections::BTreeSet::new() };
        assert_eq!(vault.open(&row).ok().as_deref(), Some(&b"hunter2"[..]));
        let mut bytes = row.sealed.clone();
        bytes.0[20] ^= 1;
        for moved in [
            SecretRow { id: "db".parse().expect("an id"), ..row.clone() },
            SecretRow { version: 4, ..row.clone() },
            SecretRow { sealed: bytes, ..row.clone() },
            SecretRow { sealed: Sealed(Vec::new()), ..row },
        ] {
            assert!(vault.open(&moved).is_err(), "{moved:?}");
        }
    }
}
