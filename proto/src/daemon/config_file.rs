//! Configuration files of both daemons: TOML, small, and right in every field.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

/// A longer configuration file is no configuration file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A configuration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It cannot be read.
    #[error("cannot read the configuration {} (--config names another)", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("the configuration {} is longer than {} KiB; is it the right file?", path.display(), FILE_BYTES_MAX / 1024)]
    TooLong {
        /// Its path.
        path: PathBuf,
    },
    /// It is not what it should be.
    #[error("the configuration {} is not right", path.display())]
    Parse {
        /// Its path.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: Box<toml::de::Error>,
    },
}

impl ConfigFileError {
    /// Is there no such file?
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What the file says.
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
