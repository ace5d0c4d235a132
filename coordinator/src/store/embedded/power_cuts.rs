//! Power cuts at every write and every sync of the store and of its mark. Synced data is on the disk; of later writes
//! the disk may have kept any part. The files are reopened with every such remainder. Everything acknowledged must be
//! there, each batch complete or absent, and every remainder must be accepted.

use std::{
    collections::BTreeMap,
    fmt, fs, io, mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

use super::{Change, EmbeddedStore, FileId, Mark, Marking, Row, Store, StoreError, Table, builder};

/// A longer write may be torn: disks write sectors instead of pages.
const SECTOR: usize = 512;

/// An operation that is still to be synced.
#[derive(Clone)]
enum Unsynced {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Unsynced {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => {
                let end = at + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at..end].copy_from_slice(data);
            }
            Self::Length(length) => bytes.resize(*length, 0),
        }
    }

    /// Its first half, in whole sectors. None: it is too short to be torn.
    fn torn(&self) -> Option<Self> {
        match self {
            Self::Write(at, data) if data.len() >= 2 * SECTOR => {
                let kept = data.len() / 2 / SECTOR * SECTOR;
                Some(Self::Write(*at, data[..kept].to_vec()))
            }
            Self::Write(..) | Self::Length(_) => None,
        }
    }
}

#[derive(Default)]
struct Contents {
    synced: Vec<u8>,
    unsynced: Vec<Unsynced>,
    /// Contents as the running process reads them.
    seen: Vec<u8>,
    power: Arc<Mutex<Power>>,
}

/// State shared by all files of one machine.
#[derive(Default)]
struct Power {
    /// Number of writes, changes of length and syncs so far.
    operations: usize,
    /// The power is cut before the operation with this number.
    cut_at: Option<usize>,
}

impl Contents {
    fn operate(&self) -> io::Result<()> {
        let mut power = self.power.lock().unwrap_or_else(PoisonError::into_inner);
        if power.cut_at.is_some_and(|cut_at| power.operations >= cut_at) {
            return Err(io::Error::other("the power is cut"));
        }
        power.operations += 1;
        Ok(())
    }

    fn change(&mut self, change: Unsynced) -> io::Result<()> {
        self.operate()?;
        change.apply(&mut self.seen);
        self.unsynced.push(change);
        Ok(())
    }

    /// Unsynced changes that may be on the disk after the power cut: none, all, any single one, all but any one, any
    /// one torn.
    fn remainders(&self) -> Vec<Vec<Unsynced>> {
        let all = &self.unsynced;
        let mut remainders = vec![Vec::new(), all.clone()];
        for (at, change) in all.iter().enumerate() {
            let (before, after) = (&all[..at], &all[at + 1..]);
            remainders.push(vec![change.clone()]);
            remainders.push([before, after].concat());
            remainders.extend(change.torn().map(|torn| [before, &[torn], after].concat()));
        }
        remainders
    }

    /// Contents of the disk with these changes.
    fn with(&self, kept: &[Unsynced]) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        kept.iter().for_each(|change| change.apply(&mut bytes));
        bytes
    }
}

/// A file on a disk whose power can be cut.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<Contents>>);

impl Disk {
    fn holding(bytes: &[u8], power: &Arc<Mutex<Power>>) -> Self {
        let power = Arc::clone(power);
        let contents = Contents { synced: bytes.to_vec(), seen: bytes.to_vec(), power, ..Contents::default() };
        Self(Arc::new(Mutex::new(contents)))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.contents().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        let contents = self.contents();
        let bytes = contents.seen.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.contents().change(Unsynced::Length(usize::try_from(len).map_err(io::Error::other)?))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut contents = self.contents();
        contents.operate()?;
        contents.unsynced.clear();
        contents.synced = contents.seen.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        self.contents().change(Unsynced::Write(at, data.to_vec()))
    }
}

/// Batches as a coordinator writes them: new, changed and deleted rows, and one that makes the file grow.
fn batches() -> Vec<Vec<Change>> {
    let put = |table, key: &str, value: String| Change::Put { table, key: key.to_owned(), value: value.into_bytes() };
    let gone = |table, key: &str| Change::Delete { table, key: key.to_owned() };
    vec![
        vec![put(Table::Meta, "meta", "epoch 1".to_owned()), put(Table::Clusters, "edge-7", "spec".to_owned())],
        (0..8).map(|n| put(Table::Machines, &format!("worker-{n}"), "facts ".repeat(100))).collect(),
        vec![
            put(Table::Meta, "meta", "epoch 2".to_owned()),
            put(Table::Statuses, "worker-1/deploy", "x".repeat(13 << 10)),
            gone(Table::Machines, "worker-2"),
        ],
        vec![put(Table::Specs, "edge-7/2", "y".repeat(1200 << 10)), put(Table::Audit, "1", "apply".to_owned())],
        vec![gone(Table::Specs, "edge-7/2"), put(Table::Meta, "meta", "epoch 3".to_owned())],
    ]
}

/// The rows after each number of batches.
fn histories(batches: &[Vec<Change>]) -> Vec<Vec<Row>> {
    let mut rows = BTreeMap::new();
    let mut histories = vec![Vec::new()];
    for batch in batches {
        for change in batch {
            match change {
                Change::Put { table, key, value } => rows.insert((*table, key.clone()), value.clone()),
                Change::Delete { table, key } => rows.remove(&(*table, key.clone())),
            };
        }
        histories.push(rows.iter().map(|((table, key), value)| (*table, key.clone(), value.clone())).collect());
    }
    histories
}

/// The two files of a store.
struct Files {
    store: Disk,
    mark: Disk,
    power: Arc<Mutex<Power>>,
}

impl Files {
    fn holding(store: &[u8], mark: &[u8], cut_at: Option<usize>) -> Self {
        let power = Arc::new(Mutex::new(Power { operations: 0, cut_at }));
        Self { store: Disk::holding(store, &power), mark: Disk::holding(mark, &power), power }
    }

    fn operations(&self) -> usize {
        self.power.lock().unwrap_or_else(PoisonError::into_inner).operations
    }

    /// Commit the batches one after another. Return the number acknowledged.
    fn commit_all(&self, batches: &[Vec<Change>]) -> usize {
        let Ok(database) = builder().create_with_backend(self.store.clone()) else { return 0 };
        let marking = Marking::at(Mark::on(self.mark.clone()));
        let (path, file) = (Path::new("store").into(), FileId::default());
        let mut store = EmbeddedStore { database: Arc::new(database), path, file, marking };
        batches.iter().take_while(|batch| store.commit(batch).is_ok()).count()
    }
}

/// Files as `init` leaves them: closed in order, with an empty store.
fn fresh() -> (Vec<u8>, Vec<u8>) {
    let files = Files::holding(&[], &[0; 8192], None);
    assert_eq!(files.commit_all(&[vec![]]), 1);
    (mem::take(&mut files.store.contents().synced), mem::take(&mut files.mark.contents().synced))
}

/// Open files with these bytes as the coordinator does.
fn open(path: &Path, store: &[u8], mark: &[u8]) -> Result<Vec<Row>, StoreError> {
    fs::write(path, store).expect("write");
    fs::write(Mark::path(path), mark).expect("write");
    EmbeddedStore::open(path).and_then(|store| store.load())
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_and_leaves_no_half_batch() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let ((store, mark), batches) = (fresh(), batches());
    let histories = histories(&batches);
    let whole = Files::holding(&store, &mark, None);
    assert_eq!(whole.commit_all(&batches), batches.len());
    let operations = whole.operations();
    let (mut as_acknowledged, mut with_the_next) = (0, 0);
    for cut_at in 0..=operations {
        let files = Files::holding(&store, &mark, Some(cut_at));
        let acknowledged = files.commit_all(&batches);
        let (store, mark) = (files.store.contents(), files.mark.contents());
        for (of_store, of_mark) in store
            .remainders()
            .iter()
            .flat_map(|of_store| mark.remainders().into_iter().map(move |of_mark| (of_store, of_mark)))
        {
            let rows = open(&path, &store.with(of_store), &mark.with(&of_mark)).expect("a power cut is no damage");
            if rows == histories[acknowledged] {
                as_acknowledged += 1;
            } else {
                let next = histories.get(acknowledged + 1);
                assert_eq!(Some(&rows), next, "cut before operation {cut_at}, {acknowledged} batches acknowledged");
                with_the_next += 1;
            }
        }
    }
    println!("{operations} operations: {as_acknowledged} as acknowledged, {with_the_next} with the next batch");
    assert!(as_acknowledged > 100 && with_the_next > 10, "{as_acknowledged} and {with_the_next}: too few to prove it");
}

/// Bits flip in the files of a killed coordinator, after its last acknowledged commit: undoing a commit must raise an
/// error.
#[test]
fn flipped_bit_after_a_kill_undoes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let ((store, mark), batches) = (fresh(), batches());
    let all = Files::holding(&store, &mark, None);
    let before_closing = {
        // The process is killed right after the last commit, before it closes its files.
        let (mut acknowledged, mut cut_at) = (0, 0);
        while acknowledged < batches.len() {
            cut_at += 1;
            acknowledged = Files::holding(&store, &mark, Some(cut_at)).commit_all(&batches);
        }
        cut_at
    };
    assert_eq!(all.commit_all(&batches), batches.len());
    let files = Files::holding(&store, &mark, Some(before_closing));
    assert_eq!(files.commit_all(&batches), batches.len());
    let (store, mark) = (files.store.contents().seen.clone(), files.mark.contents().seen.clone());
    let newest = histories(&batches).pop().expect("a history");
    assert_eq!(open(&path, &store, &mark).expect("whole"), newest);

    // Every bit of the flags, one bit of every byte of the header, which holds both newest commits, and some of the
    // pages.
    let flags = (0..8).map(|bit| (9, bit));
    let header = (0..320).map(|at| (at, at % 8));
    let pages = (0..store.len()).step_by(4099).map(|at| (at, at % 8));
    let (mut refused, mut harmless) = (0, 0);
    for (at, bit) in flags.chain(header).chain(pages) {
        let mut damaged = store.clone();
        damaged[at] ^= 1 << bit;
        match open(&path, &damaged, &mark) {
            Err(StoreError::Damaged { .. } | StoreError::NotNewest { .. } | StoreError::Read(_)) => refused += 1,
            Err(other) => panic!("byte {at}, bit {bit}: {other}"),
            Ok(rows) => {
                assert_eq!(rows, newest, "byte {at}, bit {bit}: something is undone");
                harmless += 1;
            }
        }
    }
    for at in (0..56).chain(4096..4152) {
        let mut damaged = mark.clone();
        damaged[at] ^= 1;
        assert_eq!(open(&path, &store, &damaged).expect("the other slot tells"), newest, "byte {at} of the mark");
    }
    println!("{refused} flips refused, {harmless} harmless");
    assert!(refused > 100, "{refused} refused");
}
