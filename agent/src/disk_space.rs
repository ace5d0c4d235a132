//! Free space on the disk of the state directory: bytes and files (inodes). If either runs out, new attempts wait.

use std::{io, path::Path};

use nix::sys::statvfs::statvfs;

/// Minimum of free bytes for the agent; below it the disk counts as full.
const FREE_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Minimum of free files; below it the disk counts as full. An attempt takes about 15, besides those of its program.
const FREE_FILES_MIN: u64 = 256;

/// Is there space for another attempt?
///
/// # Errors
/// The file system's error.
pub(crate) fn has_room(dir: &Path) -> io::Result<bool> {
    let space = statvfs(dir)?;
    let free_bytes = space.blocks_available().saturating_mul(space.fragment_size());
    // A file system that allocates inodes on demand (btrfs) reports 0.
    let files = (space.files() > 0).then(|| space.files_available());
    Ok(is_enough(free_bytes, files))
}

fn is_enough(free_bytes: u64, free_files: Option<u64>) -> bool {
    free_bytes >= FREE_BYTES_MIN && free_files.is_none_or(|free| free >= FREE_FILES_MIN)
}

/// Is the disk full, or this user's quota exhausted?
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_files_must_both_be_free() {
        for (bytes, files, enough) in [
            (FREE_BYTES_MIN, None, true),
            (FREE_BYTES_MIN, Some(FREE_FILES_MIN), true),
            (FREE_BYTES_MIN - 1, None, false),
            (u64::MAX, Some(FREE_FILES_MIN - 1), false),
        ] {
            assert_eq!(is_enough(bytes, files), enough, "{bytes} {files:?}");
        }
    }

    #[test]
    fn refusal_for_want_of_space_is_known() {
        for (errno, full) in [(nix::libc::ENOSPC, true), (nix::libc::EDQUOT, true), (nix::libc::EIO, false)] {
            assert_eq!(is_full(&io::Error::from_raw_os_error(errno)), full, "{errno}");
        }
    }
}
