//! The ledger: the agent's durable record, `<state-dir>/ledger.log`. It is a log of JSON lines that starts with a
//! snapshot; [`LedgerState`] is its result. Each line is one batch of records, and its checksum covers all lines up to
//! it. A line is written only after the previous one is on disk, so only the last line can be torn and lack its
//! newline. Any other damage, or a missing line, is reported as an error. After [`Ledger::append`] returns, the caller
//! may act on the record. After an error the state is uncertain, and the process must end.

mod disk;
pub mod line;
mod mark;
mod reset;

#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

pub use disk::{Disk, FileDisk};
use line::Chain;
pub use mark::MarkFile;
pub use reset::{Reset, reset};

use crate::{
    config::command,
    core::{LedgerState, Record},
    disk_space::is_full,
};

/// Name of the log in the state directory.
pub const LOG: &str = "ledger.log";
/// Name of the lock that an agent holds while it uses the ledger.
pub const LOCK: &str = "ledger.lock";
/// Maximum of tries to take the lock while a reader holds it, which takes microseconds.
const LOCK_TRIES: u32 = 10_000;
/// Name of the next log while it is written.
const NEXT: &str = "ledger.new";
/// The one operation that may harmlessly fail on a full disk.
const WRITE: &str = "write to";
/// Minimum size of a log for compaction.
pub const COMPACT_BYTES_MIN: u64 = 256 * 1024;
/// A log is compacted when it is this many times as long as its snapshot.
pub const COMPACT_RATIO: u64 = 4;
/// Disk space reserved beyond the log's end, so that outcomes can be recorded when the disk is full.
pub const RESERVE_BYTES: u64 = 1024 * 1024;

/// Error of the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A file system error.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Its content is foreign or damaged.
    #[error(
        "LedgerCorrupt: {}, line {line}: {problem}. Nothing was changed. {} begins a new ledger; items whose outcome \
         cannot be read become Indeterminate",
        path.display(),
        command("ledger reset --keep-identity", path.parent())
    )]
    Corrupt {
        /// The log.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The problem.
        problem: &'static str,
    },
    /// Another process uses it.
    #[error("another muster-agent uses {}; stop it first (systemctl stop muster-agent)", dir.display())]
    InUse {
        /// The state directory.
        dir: PathBuf,
    },
}

/// Keeps other agents off a state directory until it is dropped.
#[derive(Debug)]
pub struct LedgerLock(#[expect(dead_code, reason = "held for its Drop")] Flock<std::fs::File>);

/// Locks a state directory for this process.
///
/// # Errors
/// [`LedgerError::InUse`] if another process has it.
pub fn lock(dir: &Path) -> Result<LedgerLock, LedgerError> {
    let path = dir.join(LOCK);
    let failed = |source| LedgerError::File { what: "lock", path: path.clone(), source };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
    for _ in 0..LOCK_TRIES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(LedgerLock(lock)),
            // A short reader's lock: retry.
            Err((same, Errno::EWOULDBLOCK)) if !in_use(dir) => file = same,
            Err((_, Errno::EWOULDBLOCK)) => break,
            Err((_, errno)) => return Err(failed(errno.into())),
        }
    }
    Err(LedgerError::InUse { dir: dir.to_owned() })
}

/// Does an agent use the state directory?
#[must_use]
pub fn in_use(dir: &Path) -> bool {
    let Ok(file) = std::fs::File::open(dir.join(LOCK)) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

/// Reads the state of a ledger, read-only: for `muster-agent status`, beside a running agent. None = it is missing.
///
/// # Errors
/// [`LedgerError::Corrupt`], or [`LedgerError::File`].
pub fn read(disk: &mut impl Disk) -> Result<Option<LedgerState>, LedgerError> {
    Ok(load(disk)?.map(|loaded| loaded.state))
}

/// An open ledger. Lock the state directory first.
#[derive(Debug)]
pub struct Ledger<D> {
    disk: D,
    log_bytes: u64,
    snapshot_bytes: u64,
    /// End of the space reserved for the log.
    reserved_bytes: u64,
    /// Checksum of the last line.
    chain: Chain,
    /// Deferred records, which may become durable later; they are written with the next batch.
    lazy: Vec<Record>,
}

impl<D: Disk> Ledger<D> {
    /// Opens the ledger and truncates a torn tail. Starts a new one from `fresh` if it is missing, or if the existing
    /// one belongs to another machine id; that one is kept as a copy.
    ///
    /// # Errors
    /// [`LedgerError::Corrupt`], or [`LedgerError::File`].
    pub fn open(mut disk: D, fresh: LedgerState) -> Result<(Self, LedgerState), LedgerError> {
        match load(&mut disk)? {
            Some(loaded) if loaded.state.machine_id == fresh.machine_id => {
                if loaded.torn {
                    act(&mut disk, "truncate", LOG, |disk| disk.truncate(LOG, loaded.log_bytes))?;
                    act(&mut disk, "sync", LOG, |disk| disk.sync(LOG))?;
                }
                let Loaded { state, log_bytes, snapshot_bytes, chain, .. } = loaded;
                Ok((Self { disk, log_bytes, snapshot_bytes, reserved_bytes: 0, chain, lazy: Vec::new() }, state))
            }
            loaded => {
                if let Some(other) = loaded {
                    move_aside(&mut disk, &format!("{LOG}.{}", other.state.machine_id))?;
                }
                let (bytes, chain) = write_whole(&mut disk, &fresh)?;
                let (log_bytes, snapshot_bytes) = (bytes, bytes);
                Ok((Self { disk, log_bytes, snapshot_bytes, reserved_bytes: 0, chain, lazy: Vec::new() }, fresh))
            }
        }
    }

    /// Records a batch atomically. On return it survives a power cut if any of its records
    /// [must](Record::must_be_synced); otherwise it is written with the next batch or by [`Ledger::flush`].
    ///
    /// # Errors
    /// [`LedgerError::File`]: the process must end, because the disk's content is unknown.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LedgerError> {
        for record in records {
            if let (Record::Acked(..), Some(Record::Acked(..))) = (record, self.lazy.last()) {
                self.lazy.pop(); // the later one says it all
            }
            self.lazy.push(record.clone());
        }
        if records.iter().any(Record::must_be_synced) { self.flush() } else { Ok(()) }
    }

    /// Writes the records that [`Ledger::append`] deferred, if any.
    ///
    /// # Errors
    /// As [`Ledger::append`].
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        if self.lazy.is_empty() {
            return Ok(());
        }
        let (line, chain) = line::encode(self.chain, &self.lazy);
        act(&mut self.disk, WRITE, LOG, |disk| disk.append(LOG, &line))?;
        act(&mut self.disk, "sync", LOG, |disk| disk.sync(LOG))?;
        self.lazy.clear();
        self.chain = chain;
        self.log_bytes += line.len() as u64;
        Ok(())
    }

    /// Are any records deferred?
    #[must_use]
    pub const fn has_lazy(&self) -> bool {
        !self.lazy.is_empty()
    }

    /// Replaces a long log by a snapshot of `state`, the result of all appended records.
    ///
    /// # Errors
    /// [`LedgerError::File`], as [`Ledger::append`]. If the disk is too full for a snapshot, it succeeds and the log
    /// grows on.
    pub fn compact(&mut self, state: &LedgerState) -> Result<(), LedgerError> {
        if self.log_bytes <= COMPACT_BYTES_MIN || self.log_bytes <= self.snapshot_bytes * COMPACT_RATIO {
            return Ok(());
        }
        match write_whole(&mut self.disk, state) {
            Ok((bytes, chain)) => {
                self.chain = chain;
                self.log_bytes = bytes;
                self.snapshot_bytes = bytes;
                self.reserved_bytes = 0;
                self.lazy.clear();
                Ok(())
            }
            Err(LedgerError::File { what: WRITE, source, .. }) if is_full(&source) => {
                self.snapshot_bytes = self.log_bytes; // not again before the log has grown much longer
                // The partial next log takes up space that this one needs.
                act(&mut self.disk, "truncate", NEXT, |disk| disk.truncate(NEXT, 0))
            }
            Err(error) => Err(error),
        }
    }

    /// Reserves at least half of [`RESERVE_BYTES`] of disk space for the log. False = the disk is too full.
    ///
    /// # Errors
    /// [`LedgerError::File`] for any fault other than a full disk.
    pub fn reserve(&mut self) -> Result<bool, LedgerError> {
        if self.reserved_bytes >= self.log_bytes + RESERVE_BYTES / 2 {
            return Ok(true);
        }
        let end = self.log_bytes + RESERVE_BYTES;
        let reserved = act(&mut self.disk, "reserve space for", LOG, |disk| disk.reserve(LOG, end))?;
        if reserved {
            self.reserved_bytes = end;
        }
        Ok(reserved)
    }
}

struct Loaded {
    state: LedgerState,
    log_bytes: u64,
    snapshot_bytes: u64,
    torn: bool,
    chain: Chain,
}

fn load(disk: &mut impl Disk) -> Result<Option<Loaded>, LedgerError> {
    let Some(bytes) = act(disk, "read", LOG, |disk| disk.read(LOG))? else { return Ok(None) };
    let corrupt = |line, problem| LedgerError::Corrupt { path: disk.path(LOG), line, problem };
    let parsed = line::parse(&bytes).map_err(|bad| corrupt(bad.line, bad.problem))?;
    let mut batches = parsed.batches.into_iter();
    let first = batches.next().unwrap_or_default();
    let [Record::Snapshot(state)] = first.as_slice() else {
        return Err(corrupt(1, "it does not begin with a snapshot"));
    };
    let mut state = LedgerState::clone(state);
    for (at, batch) in batches.enumerate() {
        for record in &batch {
            state.apply_read(record).map_err(|_| corrupt(at + 2, "it does not follow on the lines before it"))?;
        }
    }
    let (snapshot_bytes, log_bytes) = (parsed.first_line_bytes, parsed.whole_bytes);
    Ok(Some(Loaded { state, log_bytes, snapshot_bytes, torn: parsed.torn, chain: parsed.chain }))
}

/// Replaces the log by a snapshot. Returns its length and its checksum, on which the next line's is based.
fn write_whole(disk: &mut impl Disk, state: &LedgerState) -> Result<(u64, Chain), LedgerError> {
    let (line, chain) = line::encode(Chain::default(), &[Record::Snapshot(Box::new(state.clone()))]);
    write_durably(disk, NEXT, &line)?;
    act(disk, "rename", NEXT, |disk| disk.rename(NEXT, LOG))?;
    act(disk, "sync the directory of", LOG, Disk::sync_dir)?;
    Ok((line.len() as u64, chain))
}

/// Copies the log, so that the log itself exists at every moment.
fn move_aside(disk: &mut impl Disk, name: &str) -> Result<(), LedgerError> {
    let Some(bytes) = act(disk, "read", LOG, |disk| disk.read(LOG))? else { return Ok(()) };
    write_durably(disk, name, &bytes)
}

fn write_durably(disk: &mut impl Disk, name: &str, bytes: &[u8]) -> Result<(), LedgerError> {
    act(disk, "create", name, |disk| disk.truncate(name, 0))?;
    act(disk, WRITE, name, |disk| disk.append(name, bytes))?;
    act(disk, "sync", name, |disk| disk.sync(name))
}

fn act<D: Disk, T>(
    disk: &mut D,
    what: &'static str,
    name: &str,
    action: impl FnOnce(&mut D) -> io::Result<T>,
) -> Result<T, LedgerError> {
    action(disk).map_err(|source| LedgerError::File { what, path: disk.path(name), source })
}
