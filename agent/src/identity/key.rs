//! The key of an enrolment request. It is on disk before the request is sent. If the answer is lost, the retry uses the
//! same key and gets the same identity.

use std::{
    io,
    path::{Path, PathBuf},
};

use rcgen::KeyPair;

use super::IdentityError;
use crate::attempt::durable;

/// A key, and the file that holds it until there is an identity.
pub struct EnrolmentKey {
    path: PathBuf,
    pair: KeyPair,
}

impl EnrolmentKey {
    /// The key that an earlier try left at `path`, or else a new one, durable and readable by its owner only. An
    /// invalid file is replaced: it cannot belong to an identity.
    ///
    /// # Errors
    /// [`IdentityError::File`] or [`IdentityError::Crypto`].
    pub fn kept_at(path: &Path) -> Result<Self, IdentityError> {
        let path = path.to_owned();
        let failed = |what| {
            let path = path.clone();
            move |source| IdentityError::File { what, path, source }
        };
        let left = match std::fs::read_to_string(&path) {
            Ok(pem) => KeyPair::from_pem(&pem).ok(),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => None,
            Err(error) => return Err(failed("read")(error)),
        };
        let pair = match left {
            Some(pair) => pair,
            None => {
                let pair = KeyPair::generate().map_err(|_| IdentityError::Crypto { what: "key" })?;
                durable::replace(&path, pair.serialize_pem().as_bytes()).map_err(failed("write"))?;
                pair
            }
        };
        Ok(Self { path, pair })
    }

    /// The key itself.
    pub(super) const fn pair(&self) -> &KeyPair {
        &self.pair
    }

    /// Removes the file: the requested identity is durable.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn remove(self) -> Result<(), IdentityError> {
        std::fs::remove_file(&self.path).map_err(|source| IdentityError::File {
            what: "remove",
            path: self.path,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_try_asks_with_the_key_of_the_one_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("enrolment.key");
        let key = || EnrolmentKey::kept_at(&path).expect("a key");
        let first = key().pair.serialize_pem();
        assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(key().pair.serialize_pem(), first);
        std::fs::write(&path, [0xff]).expect("damaged");
        assert_ne!(key().pair.serialize_pem(), first);
        key().remove().expect("removed");
        assert!(!path.exists());
    }
}
