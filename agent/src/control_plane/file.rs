//! Small files of a control plane.

use std::{
    fs::{Metadata, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use muster_proto::model::KUBECONFIG_BYTES_MAX;
use nix::fcntl::OFlag;

/// Largest file.
pub(super) const FILE_BYTES_MAX: u64 = KUBECONFIG_BYTES_MAX as u64;

/// Why a file cannot be used. Without its content.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// Opening or reading it failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is something else than was asked for.
    #[error("{}: {problem}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Reads a regular file of at most [`FILE_BYTES_MAX`].
pub(super) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    read_if(path, OFlag::empty(), |_| Ok(()))
}

/// Reads such a file, opened with more flags, if it is acceptable. A pipe in its place does not stop the reader.
pub(super) fn read_if(
    path: &Path,
    flags: OFlag,
    is_acceptable: impl Fn(&Metadata) -> Result<(), String>,
) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let unfit = |problem: String| FileError::Unfit { path: path.to_owned(), problem };
    if !path.is_absolute() {
        return Err(unfit("is not an absolute path".to_owned()));
    }
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY | flags).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(unfit("is not a regular file".to_owned()));
    }
    is_acceptable(&found).map_err(unfit)?;
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(unfit(format!("is longer than {} KiB", FILE_BYTES_MAX >> 10)));
    }
    Ok(content)
}
