//! Power cuts at every write and every sync of the store. What was synced is on the disk; of what was written since,
//! a disk may have kept anything: so the file is opened again with every such remainder. All that was acknowledged must
//! be there, and a batch as a whole or not at all.

use std::{
    collections::BTreeMap,
    fmt, fs, io, mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

use super::{Change, EmbeddedStore, Row, Store, Table, builder};

/// A write that is so long may be torn in between: disks write sectors, not pages.
const SECTOR: usize = 512;

/// Something that was asked of the disk and not yet synced.
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

    /// The first half of it, in whole sectors. None: it is too short to be torn.
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
    /// What a process that runs reads.
    seen: Vec<u8>,
    /// Writes, changes of length and syncs so far.
    operations: usize,
    /// The power is cut before the operation of this number.
    cut_at: Option<usize>,
}

impl Contents {
    fn operate(&mut self) -> io::Result<()> {
        if self.cut_at.is_some_and(|cut_at| self.operations >= cut_at) {
            return Err(io::Error::other("the power is cut"));
        }
        self.operations += 1;
        Ok(())
    }

    fn change(&mut self, change: Unsynced) -> io::Result<()> {
        self.operate()?;
        change.apply(&mut self.seen);
        self.unsynced.push(change);
        Ok(())
    }

    /// Which of the unsynced changes may be on the disk after the power cut: none, all, any one alone, any one missing,
    /// any one torn.
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

    /// The disk with these changes on it.
    fn with(&self, kept: &[Unsynced]) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        kept.iter().for_each(|change| change.apply(&mut bytes));
        bytes
    }
}

/// A disk whose power can be cut.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<Contents>>);

impl Disk {
    fn holding(bytes: &[u8], cut_at: Option<usize>) -> Self {
        let contents = Contents { synced: bytes.to_vec(), seen: bytes.to_vec(), cut_at, ..Contents::default() };
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

/// Batches as a coordinator writes them: new rows, changed rows, rows that go, and one that makes the file grow.
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

/// A new store on `disk`, and the batches one after another. Returns how many were acknowledged.
fn commit_all(disk: &Disk, batches: &[Vec<Change>]) -> usize {
    let Ok(database) = builder().create_with_backend(disk.clone()) else { return 0 };
    let mut store = EmbeddedStore { database: Arc::new(database), path: Path::new("store").into() };
    batches.iter().take_while(|batch| store.commit(batch).is_ok()).count()
}

/// A store as `init` leaves it: there, closed in order, and empty.
fn fresh() -> Vec<u8> {
    let disk = Disk::default();
    assert_eq!(commit_all(&disk, &[vec![]]), 1);
    mem::take(&mut disk.contents().synced)
}

/// Opens a file with these bytes as the coordinator does.
fn opened(path: &Path, bytes: &[u8]) -> Vec<Row> {
    fs::write(path, bytes).expect("write");
    EmbeddedStore::open(path).and_then(|store| store.load()).expect("a power cut is no damage")
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_and_leaves_no_half_batch() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let (fresh, batches) = (fresh(), batches());
    let histories = histories(&batches);
    let whole = Disk::holding(&fresh, None);
    assert_eq!(commit_all(&whole, &batches), batches.len());
    let operations = whole.contents().operations;
    let (mut as_acknowledged, mut with_the_next) = (0, 0);
    for cut_at in 0..=operations {
        let disk = Disk::holding(&fresh, Some(cut_at));
        let acknowledged = commit_all(&disk, &batches);
        let contents = disk.contents();
        for remainder in contents.remainders() {
            let rows = opened(&path, &contents.with(&remainder));
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
