//! The file under the embedded store: locked while it is open, and distrusted while it is being opened.

use std::{
    fmt, fs, io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::StorageBackend;

/// First bytes of every redb file.
pub(super) const MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";
/// redb keeps flags after the magic number. These two say how it was closed.
const RECOVERY_REQUIRED: u8 = 2;
const TWO_PHASE_COMMIT: u8 = 4;

/// A file that only one process has open.
///
/// redb trusts a file that was closed in order, and panics if it is damaged. So, while opening it, present it as one
/// that was left open: then redb checks every page before use.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: fs::File,
    invalidate: Arc<AtomicBool>,
}

/// Ends the invalidate of the file once it is open.
pub(super) struct Distrust(Arc<AtomicBool>);

impl Drop for Distrust {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Distrust")
    }
}

impl LockedFile {
    /// Take the lock. None: another process has it.
    pub(super) fn lock(file: fs::File) -> io::Result<Option<(Self, Distrust)>> {
        match file.try_lock() {
            Ok(()) => {
                let invalidate = Arc::new(AtomicBool::new(true));
                Ok(Some((Self { file, invalidate: Arc::clone(&invalidate) }, Distrust(invalidate))))
            }
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Does it begin as a store, and was it closed in order? None: it is some other file.
    pub(super) fn closed_in_order(&self) -> io::Result<Option<bool>> {
        let mut head = [0; MAGIC.len() + 1];
        match self.file.read_exact_at(&mut head, 0) {
            Ok(()) => Ok(head.strip_prefix(MAGIC).and_then(<[u8]>::first).map(|flags| flags & RECOVERY_REQUIRED == 0)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl StorageBackend for LockedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)?;
        let flags = if offset == 0 { out.get_mut(MAGIC.len()) } else { None };
        if let Some(flags) = flags.filter(|_| self.invalidate.load(Ordering::Relaxed)) {
            *flags = *flags & !TWO_PHASE_COMMIT | RECOVERY_REQUIRED;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// The process that holds the lock on `path`, if the kernel tells. Its lines are `1: FLOCK ADVISORY WRITE PID
/// DEVICE:INODE …`.
pub(super) fn holder(path: &Path) -> Option<u32> {
    let inode = format!(":{}", fs::metadata(path).ok()?.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.get(5).is_some_and(|id| id.ends_with(&inode)))
        .and_then(|words| words.get(4)?.parse().ok())
}
