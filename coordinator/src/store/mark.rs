//! The store's high-water mark: a small file beside it that names the newest commit. It becomes durable after the
//! commit and before the acknowledgement. It detects a store that has lost its newest commit, by damage or by an older
//! copy in its place.

use std::{
    fs, io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{SHA256, digest};
use nix::unistd::geteuid;
use redb::StorageBackend;
use uuid::Uuid;

use super::embedded::{FILE_MODE, FileId, is_gone, sync_directory};

/// Length of a commit's number and id.
const COMMIT_BYTES: usize = 24;
/// Length of a commit's row, which also has the id of the commit before.
const ROW_BYTES: usize = 40;
/// Length of a SHA-256.
const SUM_BYTES: usize = 32;
/// Distance between the slots: a torn write affects only one.
const SLOT_BYTES: u64 = 4096;
const SLOTS: u64 = 2;
/// Length of the file from the beginning: writing a mark keeps it.
const FILE_BYTES: usize = 8192;

/// A commit of a store. The id is random: histories that diverge have different commits of one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Commit {
    /// Number from 1.
    pub(super) number: u64,
    id: [u8; 16],
}

/// A commit as stored in its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CommitRow {
    pub(super) commit: Commit,
    /// Id of the previous commit.
    before: [u8; 16],
}

impl CommitRow {
    /// The next commit after this one.
    pub(super) fn next(self) -> Self {
        let commit = Commit { number: self.commit.number + 1, id: Uuid::new_v4().into_bytes() };
        Self { commit, before: self.commit.id }
    }

    pub(super) fn to_bytes(self) -> [u8; ROW_BYTES] {
        let mut bytes = [0; ROW_BYTES];
        bytes[..COMMIT_BYTES].copy_from_slice(&self.commit.to_bytes());
        bytes[COMMIT_BYTES..].copy_from_slice(&self.before);
        bytes
    }

    /// None: the bytes are invalid.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (commit, before) = bytes.split_at_checked(COMMIT_BYTES)?;
        Some(Self { commit: Commit::from_bytes(commit)?, before: before.try_into().ok()? })
    }

    /// Is this the commit right after `marked`?
    pub(super) fn follows(&self, marked: &Commit) -> bool {
        self.commit.number == marked.number + 1 && self.before == marked.id
    }
}

impl Commit {
    fn to_bytes(self) -> [u8; COMMIT_BYTES] {
        let mut bytes = [0; COMMIT_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..].copy_from_slice(&self.id);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, id) = bytes.split_at_checked(8)?;
        Some(Self { number: u64::from_be_bytes(number.try_into().ok()?), id: id.try_into().ok()? })
    }

    /// Odd and even numbers have separate slots: only the newer one can be torn.
    const fn offset(&self) -> u64 {
        self.number % SLOTS * SLOT_BYTES
    }
}

/// An open mark.
pub(super) struct Mark {
    file: Box<dyn StorageBackend>,
    /// Path and identity of the file, if it has a path.
    place: Option<(PathBuf, FileId)>,
}

impl Mark {
    /// Path of the mark for the store at `store`.
    pub(super) fn path(store: &Path) -> PathBuf {
        let mut path = store.as_os_str().to_owned();
        path.push(".mark");
        path.into()
    }

    /// Open the mark of the store at `store`, if it exists.
    pub(super) fn open(store: &Path) -> io::Result<Option<Self>> {
        let path = Self::path(store);
        match fs::OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Ok(Some(Self::at(path, file)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Create the mark of the store at `store`, replacing any other. It appears with this commit, and has the store's
    /// owner.
    pub(super) fn create(store: &Path, commit: Commit) -> io::Result<Self> {
        let path = Self::path(store);
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        // Left over from an earlier attempt.
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(FILE_MODE).open(&part)?;
        file.write_all_at(&[0; FILE_BYTES], 0)?;
        // Root may run this for the service's user, who needs access to the file.
        if let Ok(owner) = fs::metadata(store)
            && geteuid().is_root()
        {
            fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        file.sync_all()?;
        let mark = Self::at(path.clone(), file)?;
        mark.write(commit)?;
        fs::rename(&part, &path)?;
        sync_directory(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        Ok(mark)
    }

    fn at(path: PathBuf, file: fs::File) -> io::Result<Self> {
        let id = FileId::of(&file.metadata()?);
        Ok(Self { place: Some((path, id)), ..Self::on(File(file)) })
    }

    /// A mark in this file.
    pub(super) fn on(file: impl StorageBackend) -> Self {
        Self { file: Box::new(file), place: None }
    }

    /// Is the file gone from its path, or replaced? False while that is unknown.
    pub(super) fn is_lost(&self) -> bool {
        self.place.as_ref().is_some_and(|(path, id)| is_gone(&fs::metadata(path), *id).unwrap_or(false))
    }

    /// The newest marked commit. None: both slots are invalid.
    pub(super) fn read(&self) -> io::Result<Option<Commit>> {
        let mut newest: Option<Commit> = None;
        for slot in 0..SLOTS {
            let mut bytes = [0; COMMIT_BYTES + SUM_BYTES];
            match self.file.read(slot * SLOT_BYTES, &mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
                outcome => outcome?,
            }
            let (commit, sum) = bytes.split_at(COMMIT_BYTES);
            let whole = digest(&SHA256, commit).as_ref() == sum;
            let commit = Commit::from_bytes(commit).filter(|commit| whole && commit.offset() == slot * SLOT_BYTES);
            newest = newest.into_iter().chain(commit).max_by_key(|commit| commit.number);
        }
        Ok(newest)
    }

    /// Mark a commit; durable on return.
    pub(super) fn write(&self, commit: Commit) -> io::Result<()> {
        let bytes = commit.to_bytes();
        let record = [&bytes[..], digest(&SHA256, &bytes).as_ref()].concat();
        self.file.write(commit.offset(), &record)?;
        self.file.sync_data()
    }
}

/// A file whose writes leave the metadata alone and cost one flush.
#[derive(Debug)]
struct File(fs::File);

impl StorageBackend for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}
