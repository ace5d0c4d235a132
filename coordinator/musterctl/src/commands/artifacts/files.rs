//! The served files: regular files below one directory, safe against links and special files.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

/// The directory.
pub(super) struct Files {
    dir: OwnedFd,
}

impl Files {
    /// Open the directory.
    ///
    /// # Errors
    /// The kernel's error: Linux before 5.6 is unable to confine a path to a directory.
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        let dir = open(dir, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let files = Self { dir };
        files.beneath(Path::new("."))?;
        Ok(files)
    }

    /// Open the file of this path below the directory. None: it is missing, leads out, or is of another type.
    ///
    /// # Errors
    /// The kernel's error, permissions for example.
    pub(super) fn open(&self, path: &Path) -> io::Result<Option<File>> {
        let found = match self.beneath(path) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EXDEV | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::EINVAL) => {
                return Ok(None);
            }
            found => File::from(found?),
        };
        if !found.metadata()?.is_file() {
            return Ok(None);
        }
        // This is a regular file, so opening it is safe: a FIFO would wait for its writer, and a device may have
        // effects.
        File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).map(Some)
    }

    /// Resolve the path; do not open the file for reading yet.
    fn beneath(&self, path: &Path) -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&self.dir, path, how)
    }
}
