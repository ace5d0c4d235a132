//! Disk operations of a ledger. The trait lets tests crash at every step and lets the simulator run in memory.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
};

/// A directory with a few files.
pub trait Disk {
    /// Content of a file; None if it is missing.
    ///
    /// # Errors
    /// The file system's error.
    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Truncates a file to `bytes`; creates it if it is missing.
    ///
    /// # Errors
    /// The file system's error.
    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()>;

    /// Appends to a file. After an error, any part of the bytes may be written.
    ///
    /// # Errors
    /// The file system's error.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's content durable.
    ///
    /// # Errors
    /// The file system's error: then it is unknown what is durable, even after a second call.
    fn sync(&mut self, name: &str) -> io::Result<()>;

    /// Renames a file over another.
    ///
    /// # Errors
    /// The file system's error.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Makes renames durable.
    ///
    /// # Errors
    /// As [`Disk::sync`].
    fn sync_dir(&mut self) -> io::Result<()>;

    /// Reserves disk space for a file to grow to `bytes`. False = the disk has too little.
    ///
    /// # Errors
    /// Any other error of the file system.
    fn reserve(&mut self, name: &str, bytes: u64) -> io::Result<bool>;

    /// Path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// A directory of a real file system. Used files stay open.
#[derive(Debug)]
pub struct FileDisk {
    dir: PathBuf,
    open: BTreeMap<String, File>,
}

impl FileDisk {
    /// The files in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), open: BTreeMap::new() }
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        use std::collections::btree_map::Entry;
        match self.open.entry(name.to_owned()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(self.dir.join(name))?;
                Ok(entry.insert(file))
            }
        }
    }
}

impl Disk for FileDisk {
    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.dir.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        self.file(name)?.set_len(bytes)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))?;
        self.open.remove(to);
        if let Some(file) = self.open.remove(from) {
            self.open.insert(to.to_owned(), file);
        }
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn reserve(&mut self, name: &str, bytes: u64) -> io::Result<bool> {
        let length = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match fallocate(&*self.file(name)?, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
            // Go on without a reservation if the file system lacks support.
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(true),
            Err(Errno::ENOSPC | Errno::EDQUOT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}
