//! The key file: 32 random bytes that seal the CA's key. It is outside the state directory, so that the CA stays safe
//! if a copy of the store or a backup leaks.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

use serde::{Deserialize, Serialize};

use super::random;

/// Length of the key file.
const KEY_BYTES: usize = 32;
/// Only its owner may read it.
const FILE_MODE: u32 = 0o600;
/// Mode bits that give others access.
const OTHERS_MASK: u32 = 0o077;
/// Why a key file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Reading it failed.
    #[error(
        "cannot read the key file {}, which `muster-coordinator init` made; if it lies elsewhere, say where with \
         --key-file",
        path.display()
    )]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Creating it failed.
    #[error("cannot make the key file {}", path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Others can read it.
    #[error("others may read the key file {}: run `chmod 600 {}`", path.display(), path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
    },
    /// Its content is no key.
    #[error(
        "the key file {} does not hold exactly {KEY_BYTES} bytes: it is no key, or damaged; name the right one with \
         --key-file (`init` makes one that is not there), or put the copy of it in its place that was kept",
        path.display()
    )]
    Length {
        /// Path of the file.
        path: PathBuf,
    },
    /// It is the wrong key.
    #[error("the key file {} is not the one this record was made with", path.display())]
    Other {
        /// Path of the file.
        path: PathBuf,
    },
    /// The system lacks randomness, or the cipher rejects the key.
    #[error("no key can be made")]
    Key,
}

/// Purpose of a sealed key check.
const CHECK_PURPOSE: &[u8] = b"muster key check v1";

/// An empty text, sealed: it identifies the record's key but keeps it secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyCheck(Vec<u8>);

impl KeyCheck {
    /// Is this the key?
    #[must_use]
    pub fn opens_with(&self, key: &StateKey) -> bool {
        key.open(CHECK_PURPOSE, &self.0).is_some()
    }

    /// A key check that no key opens.
    #[cfg(test)]
    pub(crate) const fn of_test() -> Self {
        Self(Vec::new())
    }
}

/// The key that seals the secrets in the store.
pub struct StateKey(RandomizedNonceKey);

impl StateKey {
    /// Create a new key file; `path` must be free.
    ///
    /// # Errors
    /// [`KeyFileError::Create`], [`KeyFileError::Key`].
    pub fn create(path: &Path) -> Result<Self, KeyFileError> {
        let error = |source| KeyFileError::Create { path: path.to_owned(), source };
        let bytes: [u8; KEY_BYTES] = random().map_err(|_| KeyFileError::Key)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path).map_err(error)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(|source| {
            let _ = fs::remove_file(path); // half a key opens nothing, and would be in the way of a whole one
            error(source)
        })?;
        Self::new(&bytes)
    }

    /// Read the key from its file.
    ///
    /// # Errors
    /// [`KeyFileError`] if the file is unreadable, open to others, or no key.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let error = |source| KeyFileError::Read { path: path.to_owned(), source };
        let file = fs::File::open(path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if metadata.is_dir() {
            return Err(error(io::ErrorKind::IsADirectory.into()));
        }
        let mut bytes = Vec::new();
        file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(error)?;
        if bytes.len() != KEY_BYTES {
            return Err(KeyFileError::Length { path: path.to_owned() });
        }
        // Checked last: the advice to chmod is wrong for other files, as /dev/null.
        if metadata.permissions().mode() & OTHERS_MASK != 0 {
            return Err(KeyFileError::Exposed { path: path.to_owned() });
        }
        Self::new(&bytes)
    }

    /// The key of these 32 bytes.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, KeyFileError> {
        RandomizedNonceKey::new(&AES_256_GCM, bytes).map(Self).map_err(|_| KeyFileError::Key)
    }

    /// A text that identifies this key. None: the system lacks randomness.
    #[must_use]
    pub fn check(&self) -> Option<KeyCheck> {
        self.seal(CHECK_PURPOSE, &[]).map(KeyCheck)
    }

    /// Encrypt, with the nonce in front. `purpose` binds the result to its use and format. None: the system lacks
    /// randomness.
    pub(super) fn seal(&self, purpose: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = plain.to_vec();
        let nonce = self.0.seal_in_place_append_tag(Aad::from(purpose), &mut sealed).ok()?;
        Some([nonce.as_ref().as_slice(), sealed.as_slice()].concat())
    }

    /// Decrypt what was sealed for the same purpose. None: wrong key or purpose, or damaged data.
    pub(super) fn open(&self, purpose: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut rest = rest.to_vec();
        let plain = self.0.open_in_place(nonce, Aad::from(purpose), &mut rest).ok()?;
        Some(plain.to_vec())
    }
}
