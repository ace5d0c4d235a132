//! The ledger: the agent's durable record, `<state-dir>/ledger.log`. A log of JSON lines that begins with a snapshot;
//! [`LedgerState`] is what it comes to. Each line is one batch of records, its checksum covers all lines up to it, and
//! it is only written after the one before it is on the disk: so nothing but a last line without its end can be torn,
//! and any other damage, or a line that is missing, is an error, never silence. Whoever calls
//! [`Ledger::append`] may act on what it recorded; after an error nothing is certain and the process must end.

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

/// The log, in the state directory.
pub const LOG: &str = "ledger.log";
/// Held while an agent uses the ledger.
pub const LOCK: &str = "ledger.lock";
/// Tries to take the lock while somebody only looks at it, which is a matter of microseconds.
const LOCK_TRIES: u32 = 10_000;
/// The next log, while it is written.
const NEXT: &str = "ledger.new";
/// The one act that may fail for want of space without harm.
const WRITE: &str = "write to";
/// A log smaller than this is never compacted.
pub const COMPACT_BYTES_MIN: u64 = 256 * 1024;
/// A log is compacted when it is so many times as long as its snapshot.
pub const COMPACT_RATIO: u64 = 4;
/// Disk space kept ahead of the log's end, so that outcomes can be recorded when the disk is full.
pub const RESERVE_BYTES: u64 = 1024 * 1024;

/// What can go wrong with the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file system refused.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What we were doing.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It holds something that this program did not write.
    #[error(
        "LedgerCorrupt: {}, line {line}: {problem}. Nothing was changed. {} begins a new ledger; items whose outcome \
         cannot be read become Indeterminate",
        path.display(),
        command("ledger reset --keep-identity", path.parent())
    )]
    Corrupt {
        /// The log.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Another process uses it.
    #[error("another muster-agent uses {}; stop it first (systemctl stop muster-agent)", dir.display())]
    InUse {
        /// The state directory.
        dir: PathBuf,
    },
}

/// Keeps other agents off a state directory; free again when it is dropped.
#[derive(Debug)]
pub struct LedgerLock(#[expect(dead_code, reason = "held for its Drop")] Flock<std::fs::File>);

/// Claims a state directory for this process.
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
            // Somebody who only looks: gone in a moment.
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

/// What a ledger comes to, changing nothing: for `muster-agent status`, beside a running agent. None = there is none.
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
    /// End of the space set aside for the log.
    reserved_bytes: u64,
    /// Of the last line.
    chain: Chain,
    /// Records that need not be durable yet; they go with the next batch.
    lazy: Vec<Record>,
}

impl<D: Disk> Ledger<D> {
    /// Opens the ledger, cuts off a torn tail. Begins a new one as `fresh` where there is none, or where the one there
    /// belongs to another machine id: that one is kept aside.
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
                    set_aside(&mut disk, &format!("{LOG}.{}", other.state.machine_id))?;
                }
                let (bytes, chain) = write_whole(&mut disk, &fresh)?;
                let (log_bytes, snapshot_bytes) = (bytes, bytes);
                Ok((Self { disk, log_bytes, snapshot_bytes, reserved_bytes: 0, chain, lazy: Vec::new() }, fresh))
            }
        }
    }

    /// Records a batch, all or nothing. When this returns it survives a power cut, unless no record in it
    /// [must](Record::must_be_synced): then it goes with the next batch, or with [`Ledger::flush`].
    ///
    /// # Errors
    /// [`LedgerError::File`]: the process must end, what the disk holds is unknown.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LedgerError> {
        for record in records {
            if let (Record::Acked(..), Some(Record::Acked(..))) = (record, self.lazy.last()) {
                self.lazy.pop(); // the later one says it all
            }
            self.lazy.push(record.clone());
        }
        if records.iter().any(Record::must_be_synced) { self.flush() } else { Ok(()) }
    }

    /// Writes out what [`Ledger::append`] put off. Nothing put off: nothing is done.
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

    /// Is anything put off?
    #[must_use]
    pub const fn has_lazy(&self) -> bool {
        !self.lazy.is_empty()
    }

    /// Replaces a log that has grown long by a snapshot of `state`: what all appended records come to.
    ///
    /// # Errors
    /// [`LedgerError::File`], as [`Ledger::append`]. A disk too full for a snapshot is no error: the log grows on.
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
                // What was written of the next log takes the space that this one needs.
                act(&mut self.disk, "truncate", NEXT, |disk| disk.truncate(NEXT, 0))
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps at least half of [`RESERVE_BYTES`] of the disk for the log. False = the disk is too full for that.
    ///
    /// # Errors
    /// [`LedgerError::File`] for any other fault than a full disk.
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

/// Puts a snapshot in the log's place. Returns its length and its checksum, from which that of the next line goes on.
fn write_whole(disk: &mut impl Disk, state: &LedgerState) -> Result<(u64, Chain), LedgerError> {
    let (line, chain) = line::encode(Chain::default(), &[Record::Snapshot(Box::new(state.clone()))]);
    write_durably(disk, NEXT, &line)?;
    act(disk, "rename", NEXT, |disk| disk.rename(NEXT, LOG))?;
    act(disk, "sync the directory of", LOG, Disk::sync_dir)?;
    Ok((line.len() as u64, chain))
}

/// Copies the log, so that the log itself is there at every moment.
fn set_aside(disk: &mut impl Disk, name: &str) -> Result<(), LedgerError> {
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
