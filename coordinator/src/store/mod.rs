//! Durable storage of the coordinator's record. The engine is the only writer while it runs. To a store, rows are
//! opaque bytes (`row.rs`).

mod embedded;
mod file;
mod mark;
mod memory;
pub mod row;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use embedded::{EmbeddedStore, Place};
pub use memory::MemoryStore;
pub use row::{Change, Row, Table};

/// A durable set of rows.
pub trait Store: Send {
    /// Load every row, in the order of tables and keys.
    ///
    /// # Errors
    /// [`StoreError`] if reading fails anywhere; an answer is always complete.
    fn load(&self) -> Result<Vec<Row>, StoreError>;

    /// Make a batch durable before returning, all or nothing.
    ///
    /// # Errors
    /// [`StoreError`]. Then it is unknown whether the batch is durable: the process must end and load again.
    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError>;

    /// Write a copy of the last committed state to a new file, which can replace the original.
    ///
    /// # Errors
    /// [`StoreError`] if writing the file fails; then `to` stays free.
    fn backup(&self, to: &Path) -> Result<(), StoreError>;
}

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process holds the store.
    #[error(
        "the store {} is in use by {}: a coordinator runs on it already; stop that one, or give this one a state \
         directory of its own", path.display(), holder.map_or("a process".to_owned(), |id| format!("process {id}"))
    )]
    InUse {
        /// The store's file.
        path: PathBuf,
        /// The process, if known.
        holder: Option<u32>,
    },
    /// The file differs from what was written.
    #[error(
        "the store {} is damaged; keep the file for inspection, put the newest backup in its place (a file made by \
         `muster-coordinator backup`), then run `muster-coordinator recover`", path.display()
    )]
    Damaged {
        /// The store's file.
        path: PathBuf,
        /// The database's error.
        #[source]
        source: Box<redb::Error>,
    },
    /// It lacks a commit number, which every store of a release has.
    #[error(
        "the store {} is of another format, of a build of Muster before its first release; this one does not read it. \
         It is whole: the build that wrote it can still run on it. For this one make a new record (`muster-coordinator \
         init` with another --state-dir) and enrol the machines anew", path.display()
    )]
    OtherFormat {
        /// The store's file.
        path: PathBuf,
    },
    /// The newest commit of the file differs from the last one acknowledged.
    #[error(
        "the store {} ends with commit {commit}, and {}: its newest commits are damaged, or another copy is in its \
         place, and it would undo what was acknowledged since. Keep the file for inspection, put the newest backup in \
         its place unless the file itself is the newest copy there is, then run `muster-coordinator recover`",
        path.display(),
        marked.map_or_else(
            || format!("{}, which names the newest one, is missing or damaged", mark.display()),
            |number| format!("commit {number} was acknowledged ({})", mark.display())
        )
    )]
    NotNewest {
        /// The store's file.
        path: PathBuf,
        /// Number of its newest commit.
        commit: u64,
        /// The mark's file, which names the newest commit.
        mark: PathBuf,
        /// Number of the marked commit, if there is one.
        marked: Option<u64>,
    },
    /// The open file has left its path.
    #[error(
        "the store {} was moved, removed or replaced while this coordinator ran on it: what it acknowledged since \
         then is in the file that is gone from there. Put that file back (if only an older copy is left, \
         `muster-coordinator recover`), then start the coordinator", path.display()
    )]
    Moved {
        /// Path at which it was opened.
        path: PathBuf,
    },
    /// The mark is lost, and creating it again failed.
    #[error(
        "{}, which names the newest commit of the store, is lost or damaged, and cannot be made again; until it is, \
         the next start is refused: see to that directory and its disk", mark.display()
    )]
    Mark {
        /// The mark's file.
        mark: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The file belongs to another user.
    #[error(
        "user {us} may not open the store {}: it belongs to user {owner} (mode {mode:o}). If it is a copy that root \
         put there, `muster-coordinator recover` as root makes it over to the owner of the state directory; so does \
         `chown --reference={} {}`", path.display(), path.parent().unwrap_or(path).display(), path.display()
    )]
    Closed {
        /// The store's file.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// Our own user id.
        us: u32,
    },
    /// Opening or creating the file failed.
    #[error("cannot open the store {}", path.display())]
    Open {
        /// The store's file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Box<redb::Error>,
    },
    /// Reading a row failed.
    #[error("cannot read the store")]
    Read(#[source] Box<redb::Error>),
    /// The disk, or our user's quota, is full. It is unknown whether the batch is durable.
    #[error("no space left for {}: make room on its disk", path.display())]
    Full {
        /// The file of the store, or of its copy.
        path: PathBuf,
    },
    /// It is unknown whether a batch is durable.
    #[error("cannot make a change durable in the store {}", path.display())]
    Commit {
        /// The store's file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Box<redb::Error>,
    },
    /// Writing a copy failed.
    #[error("cannot write a copy of the store to {}", path.display())]
    Backup {
        /// Path of the copy.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
