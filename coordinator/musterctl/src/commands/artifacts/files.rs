//! What is served: the regular files below one directory, whatever links and other things lie there.

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
    /// Opens it.
    ///
    /// # Errors
    /// What the kernel says: before Linux 5.6 it cannot keep a way below a directory.
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        let dir = open(dir, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let files = Self { dir };
        files.beneath(Path::new("."))?;
        Ok(files)
    }

    /// Opens the file of this path below the directory. None: there is none, it leads out, or it is no regular file.
    ///
    /// # Errors
    /// What the kernel says, permissions for example.
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
        // To open a FIFO would wait for its writer, and to open a device may do something; this is neither.
        File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).map(Some)
    }

    /// Finds what is at the path, and opens nothing yet.
    fn beneath(&self, path: &Path) -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&self.dir, path, how)
    }
}
