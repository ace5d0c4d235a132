//! Configuration files of both daemons: small TOML files. Every field must be valid.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

/// Longest configuration file accepted; a longer one is some other file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Why a configuration file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// Reading the file failed.
    #[error("cannot read the configuration {} (--config names another)", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The file is too long to be a configuration.
    #[error("the configuration {} is longer than {} KiB; is it the right file?", path.display(), FILE_BYTES_MAX / 1024)]
    TooLong {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is invalid.
    #[error("the configuration {} is not right", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Position and cause.
        #[source]
        source: Box<toml::de::Error>,
    },
}

impl ConfigFileError {
    /// Is the file missing?
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Read a configuration file.
///
/// # Errors
/// [`ConfigFileError`].
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigFileError> {
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|source| ConfigFileError::Read { path: path.to_owned(), source })?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigFileError::TooLong { path: path.to_owned() });
    }
    toml::from_str(&text).map_err(|source| ConfigFileError::Parse { path: path.to_owned(), source: Box::new(source) })
}
