//! Small files of a control plane.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;

/// Largest file.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 10;

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

/// Reads a regular file of at most [`FILE_BYTES_MAX`]. A pipe in its place does not stop the reader.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let unfit = |problem: String| FileError::Unfit { path: path.to_owned(), problem };
    if !path.is_absolute() {
        return Err(unfit("is not an absolute path".to_owned()));
    }
    let nonblocking = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(unfit("is not a regular file".to_owned()));
    }
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(unfit(format!("is longer than {} KiB", FILE_BYTES_MAX >> 10)));
    }
    Ok(content)
}
