//! The store in one file (redb). One batch is one transaction, on disk before `commit` returns. The file is locked
//! while a handle lives, so only one coordinator can write a record.
//!
//! After a crash, redb falls back to the previous commit if the newest one fails verification, because it may be half
//! written. An acknowledged commit must not be lost that way. So each commit is numbered, and a mark beside the file
//! names the newest (`mark.rs`): a file that ends with another commit is refused.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::unistd::geteuid;
use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError, TableDefinition};

use super::{
    Change, Row, Store, StoreError, Table,
    file::{LockedFile, holder},
    mark::{Commit, CommitRow, Mark},
};

/// The database's page cache. The facts are in memory anyway; the cache is for writing.
const CACHE_BYTES: usize = 8 * 1024 * 1024;
/// Mode of the file and of its copies: they contain digests of join tokens and the sealed CA key.
pub(super) const FILE_MODE: u32 = 0o600;
/// Progress values that redb's repair reports: the newest commit failed verification, or one passed.
const NEWEST_IS_BAD: f64 = 0.2;
const NEWEST_IS_GOOD: f64 = 0.5;
/// The permission bits of a file's mode.
const PERMISSION_MASK: u32 = 0o7777;

type Definition = TableDefinition<'static, &'static str, &'static [u8]>;

const fn definition(table: Table) -> Definition {
    TableDefinition::new(table.name())
}

/// The row that numbers commits, in a table of its own because it is outside the record.
const COMMITS: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("commit");
const NEWEST_KEY: &str = "newest";

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(file: &fs::Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino() }
    }
}

/// Result of checking the paths of a store and of its mark.
#[derive(Debug)]
pub enum Place {
    /// Both are unchanged.
    Kept,
    /// The mark was lost or damaged, and has been created again.
    MarkMade {
        /// Path of the mark.
        mark: PathBuf,
    },
    /// The file system returned an error.
    Unknown {
        /// The error.
        source: io::Error,
    },
}

/// A handle on the store's file. Clones share it: the engine writes, while a backup reads.
#[derive(Clone)]
pub struct EmbeddedStore {
    database: Arc<Database>,
    path: Arc<Path>,
    /// Identity of the open file.
    file: FileId,
    marking: Marking,
}

/// Where the newest commit is marked.
#[derive(Clone)]
enum Marking {
    /// Nowhere: no coordinator continues from this copy.
    Never,
    /// Beside the store, from the next commit on. Until then the mark there is another store's.
    FromNextCommit,
    /// In this mark.
    At(Arc<Mutex<Mark>>),
}

impl EmbeddedStore {
    /// Open the store at `path`, which must exist. Check every page, and that its newest commit is the last one
    /// acknowledged.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Damaged`], [`StoreError::OtherFormat`], [`StoreError::NotNewest`] or
    /// [`StoreError::Open`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let store = Self::open_copy(path)?;
        let marking = Marking::at(store.checked_mark()?);
        Ok(Self { marking, ..store })
    }

    /// Open the store at `path`, which may be an older copy. Its first commit makes it the current store.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Damaged`], [`StoreError::OtherFormat`] or [`StoreError::Open`].
    pub fn open_copy(path: &Path) -> Result<Self, StoreError> {
        let open_error = |error: io::Error| opening(path, error.into());
        let file = fs::OpenOptions::new().read(true).write(true).open(path).map_err(open_error)?;
        let opened = FileId::of(&file.metadata().map_err(open_error)?);
        let (file, invalidate) = LockedFile::lock(file).map_err(open_error)?.ok_or_else(|| in_use(path))?;
        let Some(closed_in_order) = file.closed_in_order().map_err(open_error)? else {
            return Err(damaged(path, redb::Error::Corrupted("it does not begin as a store does".to_owned())));
        };
        let mut builder = builder();
        builder.set_repair_callback(move |repair| {
            // The newest commit is damaged, and redb would fall back to the one before. After a crash that is right: a
            // half-written commit was never acknowledged. In a file that was closed in order, it was.
            if closed_in_order && (NEWEST_IS_BAD..NEWEST_IS_GOOD).contains(&repair.progress()) {
                repair.abort();
            }
        });
        let database = builder.create_with_backend(file).map_err(|error| opening(path, error))?;
        drop(invalidate);
        let marking = Marking::FromNextCommit;
        let store = Self { database: Arc::new(database), path: path.into(), file: opened, marking };
        if store.numbers_no_commits().map_err(|error| damaged(path, error))? {
            return Err(StoreError::OtherFormat { path: path.to_owned() });
        }
        Ok(store)
    }

    /// Does this store have a record but lack a commit number? Every build since the first release numbers commits.
    fn numbers_no_commits(&self) -> Result<bool, redb::Error> {
        let transaction = self.database.begin_read()?;
        let has = |found: Result<_, redb::TableError>| match found {
            Ok(_) => Ok(true),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(false),
            Err(error) => Err(error),
        };
        Ok(has(transaction.open_table(definition(Table::Meta)))? && !has(transaction.open_table(COMMITS))?)
    }

    /// Check that the file and its mark are where they were opened. A lost mark is created again: otherwise the next
    /// start would refuse an intact store.
    ///
    /// # Errors
    /// [`StoreError::Moved`]: the store was moved or removed, or another is in its place. [`StoreError::Mark`]: the
    /// mark is lost, and creating it again failed.
    pub fn check_place(&self) -> Result<Place, StoreError> {
        match is_gone(&fs::metadata(&self.path), self.file) {
            Ok(false) => {}
            Ok(true) => return Err(StoreError::Moved { path: self.path.to_path_buf() }),
            Err(source) => return Ok(Place::Unknown { source }),
        }
        let Marking::At(mark) = &self.marking else { return Ok(Place::Kept) };
        let (mut mark, path) = (locked(mark), Mark::path(&self.path));
        let error = |source| StoreError::Mark { mark: path.clone(), source };
        // Read under the lock, so that the mark stays as it is meanwhile. A durable commit counts even before it is
        // marked.
        let newest = self.newest().map_err(|source| error(io::Error::other(source)))?;
        let names_it = |marked: Commit| marked == newest.commit || newest.follows(&marked);
        if !mark.is_lost() && mark.read().map_err(error)?.is_some_and(names_it) {
            return Ok(Place::Kept);
        }
        *mark = Mark::create(&self.path, newest.commit).map_err(error)?;
        Ok(Place::MarkMade { mark: path })
    }

    /// The mark, if it names the newest commit.
    fn checked_mark(&self) -> Result<Mark, StoreError> {
        let error = |error: io::Error| opening(&Mark::path(&self.path), error.into());
        let newest = self.newest().map_err(|error| StoreError::Read(Box::new(error)))?;
        let mark = Mark::open(&self.path).map_err(error)?;
        let marked = mark.as_ref().map(Mark::read).transpose().map_err(error)?.flatten();
        match (mark, marked) {
            (Some(mark), Some(marked)) if marked == newest.commit => Ok(mark),
            // The power was cut between the two, before the commit was acknowledged.
            (Some(mark), Some(marked)) if newest.follows(&marked) => {
                mark.write(newest.commit).map_err(error)?;
                Ok(mark)
            }
            (_, marked) => Err(StoreError::NotNewest {
                path: self.path.to_path_buf(),
                commit: newest.commit.number,
                mark: Mark::path(&self.path),
                marked: marked.map(|marked| marked.number),
            }),
        }
    }

    /// The newest commit according to the file.
    fn newest(&self) -> Result<CommitRow, redb::Error> {
        let transaction = self.database.begin_read()?;
        match transaction.open_table(COMMITS) {
            Ok(table) => newest_in(&table),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(CommitRow::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Create a new store at `path`, which must be free.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let mut store = Self { marking: Marking::FromNextCommit, ..Self::create_copy(path)? };
        store.commit(&[])?;
        Ok(store)
    }

    /// Create a new, unmarked store.
    fn create_copy(path: &Path) -> Result<Self, StoreError> {
        let open_error = |error: io::Error| opening(path, error.into());
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(FILE_MODE).open(path).map_err(open_error)?;
        let opened = FileId::of(&file.metadata().map_err(open_error)?);
        let (file, _) = LockedFile::lock(file).map_err(open_error)?.ok_or_else(|| in_use(path))?;
        let database = builder().create_with_backend(file).map_err(|error| opening(path, error))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_directory(parent).map_err(open_error)?;
        Ok(Self { database: Arc::new(database), path: path.into(), file: opened, marking: Marking::Never })
    }

    /// Create a new store at `path`, which must be free. It appears there complete, with these rows.
    ///
    /// # Errors
    /// [`StoreError::Open`], [`StoreError::Full`], [`StoreError::Commit`]; then `path` stays free.
    pub fn create_with(path: &Path, rows: &[Change]) -> Result<(), StoreError> {
        Self::place(path, rows, |made| {
            let error = |error: io::Error| opening(path, error.into());
            let newest = made.newest().map_err(|error| StoreError::Read(Box::new(error)))?;
            Mark::create(path, newest.commit).map(drop).map_err(error)
        })
        // A mark is useless if its store is missing.
        .inspect_err(|_| drop(fs::remove_file(Mark::path(path))))
    }

    /// The same; `ready` is called when everything but the file's name exists.
    fn place(
        path: &Path,
        rows: &[Change],
        ready: impl FnOnce(&Self) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let open_error = |error: io::Error| opening(path, error.into());
        // Left over from an earlier attempt.
        if part.exists() {
            fs::remove_file(&part).map_err(open_error)?;
        }
        let made = Self::create_copy(&part).and_then(|mut store| {
            store.commit(rows)?;
            ready(&store)
        });
        let placed = made.and_then(|()| fs::rename(&part, path).map_err(open_error));
        // A partial store is useless, and may be what filled the disk.
        placed.inspect_err(|_| drop(fs::remove_file(&part))).map_err(|error| match error {
            StoreError::Full { .. } => StoreError::Full { path: path.to_owned() },
            error => error,
        })?;
        sync_directory(path.parent().unwrap_or(path)).map_err(open_error)
    }

    fn rows(&self) -> Result<Vec<Row>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let mut rows = Vec::new();
        for table in Table::ALL {
            let open = match transaction.open_table(definition(*table)) {
                Ok(open) => open,
                Err(redb::TableError::TableDoesNotExist(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            for row in open.iter()? {
                let (key, value) = row?;
                rows.push((*table, key.value().to_owned(), value.value().to_vec()));
            }
        }
        Ok(rows)
    }

    fn write(&self, batch: &[Change]) -> Result<CommitRow, redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        let newest = newest_in(&transaction.open_table(COMMITS)?)?.next();
        transaction.open_table(COMMITS)?.insert(NEWEST_KEY, newest.to_bytes().as_slice())?;
        for change in batch {
            match change {
                Change::Put { table, key, value } => {
                    transaction.open_table(definition(*table))?.insert(key.as_str(), value.as_slice())?;
                }
                Change::Delete { table, key } => {
                    transaction.open_table(definition(*table))?.remove(key.as_str())?;
                }
            }
        }
        transaction.commit()?;
        Ok(newest)
    }

    /// Mark a commit as the newest. Must happen before the commit is acknowledged.
    fn write_mark(&mut self, newest: CommitRow) -> io::Result<()> {
        match &self.marking {
            Marking::Never => {}
            Marking::FromNextCommit => self.marking = Marking::at(Mark::create(&self.path, newest.commit)?),
            Marking::At(mark) => {
                let mut mark = locked(mark);
                if mark.is_lost() {
                    *mark = Mark::create(&self.path, newest.commit)?;
                } else {
                    mark.write(newest.commit)?;
                }
            }
        }
        Ok(())
    }
}

impl Marking {
    fn at(mark: Mark) -> Self {
        Self::At(Arc::new(Mutex::new(mark)))
    }
}

fn locked(mark: &Mutex<Mark>) -> MutexGuard<'_, Mark> {
    mark.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is the file with this id gone from its path, or replaced?
///
/// # Errors
/// Unknown: the file system returned another error, as for a broken disk or an unreachable server.
pub(super) fn is_gone(found: &io::Result<fs::Metadata>, id: FileId) -> io::Result<bool> {
    match found {
        Ok(found) => Ok(FileId::of(found) != id),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(true),
        Err(error) => Err(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)),
    }
}

fn newest_in(table: &impl ReadableTable<&'static str, &'static [u8]>) -> Result<CommitRow, redb::Error> {
    let row = table.get(NEWEST_KEY)?;
    row.map_or(Ok(CommitRow::default()), |row| {
        let damaged = || redb::Error::Corrupted("its newest commit has no number".to_owned());
        CommitRow::from_bytes(row.value()).ok_or_else(damaged)
    })
}

impl Store for EmbeddedStore {
    fn load(&self) -> Result<Vec<Row>, StoreError> {
        self.rows().map_err(|error| StoreError::Read(Box::new(error)))
    }

    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        let written = self.write(batch).and_then(|newest| Ok(self.write_mark(newest)?));
        written.map_err(|error| match error {
            redb::Error::Io(io) if is_full(&io) => StoreError::Full { path: self.path.to_path_buf() },
            error => StoreError::Commit { path: self.path.to_path_buf(), source: Box::new(error) },
        })
    }

    fn backup(&self, to: &Path) -> Result<(), StoreError> {
        let error = |source| StoreError::Backup { path: to.to_owned(), source };
        let to = std::path::absolute(to).map_err(|source| error(source.into()))?;
        if to.symlink_metadata().is_ok() {
            return Err(error("there is a file already; name one that does not exist".into()));
        }
        let put = |(table, key, value)| Change::Put { table, key, value };
        let rows: Vec<_> = self.load()?.into_iter().map(put).collect();
        Self::place(&to, &rows, |_| Ok(())).map_err(|source| error(source.into()))
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn opening(path: &Path, error: DatabaseError) -> StoreError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => in_use(path),
        DatabaseError::Storage(StorageError::Corrupted(_) | StorageError::LockPoisoned(_))
        | DatabaseError::RepairAborted
        | DatabaseError::UpgradeRequired(_) => damaged(path, error.into()),
        // redb's error for a file that ends too early.
        DatabaseError::Storage(StorageError::Io(ref io)) if io.kind() == io::ErrorKind::UnexpectedEof => {
            damaged(path, error.into())
        }
        DatabaseError::Storage(StorageError::Io(ref io)) if io.kind() == io::ErrorKind::PermissionDenied => {
            closed(path).unwrap_or_else(|| StoreError::Open { path: path.to_owned(), source: Box::new(error.into()) })
        }
        DatabaseError::Storage(StorageError::Io(ref io)) if is_full(io) => StoreError::Full { path: path.to_owned() },
        other => StoreError::Open { path: path.to_owned(), source: Box::new(other.into()) },
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn in_use(path: &Path) -> StoreError {
    StoreError::InUse { path: path.to_owned(), holder: holder(path) }
}

/// None: the file is missing because the directory itself is closed.
fn closed(path: &Path) -> Option<StoreError> {
    let file = fs::metadata(path).ok()?;
    let (owner, mode, us) = (file.uid(), file.mode() & PERMISSION_MASK, geteuid().as_raw());
    Some(StoreError::Closed { path: path.to_owned(), owner, mode, us })
}

fn damaged(path: &Path, error: redb::Error) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), source: Box::new(error) }
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

#[cfg(test)]
mod power_cuts;
#[cfg(test)]
mod tests;
