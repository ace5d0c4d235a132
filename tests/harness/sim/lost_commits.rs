//! A disk that loses commits: after a crash the newest commits of the store are gone, although others were told of
//! them. The mark beside the store shows it, and operators recover the store. Where the mark is lost too, the fleet
//! must show it.

use std::collections::{BTreeMap, VecDeque};

use muster_coordinator::store::{Change, Table};

use super::World;
use crate::{invariants::Violation, rng::Rng};

/// Permille of faults that lose commits. Rare, because in a world with a restored store many checks are off.
const LOST_PERMILLE: u64 = 4;
/// Most commits lost at once.
const LOST_MAX: usize = 8;
/// Separates these random numbers from others with the same source.
const DICE: u64 = 0x10f7_c033;

type Disk = BTreeMap<(Table, String), Vec<u8>>;
/// A row, and its value before; None: it is new.
type Before = ((Table, String), Option<Vec<u8>>);

/// Former values of the rows that each commit changed, the newest commit last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Undo(VecDeque<Vec<Before>>);

impl Undo {
    /// Records these changes before they are made.
    pub(crate) fn note(&mut self, changes: &[Change], disk: &Disk) {
        let key = |change: &Change| match change {
            Change::Put { table, key, .. } | Change::Delete { table, key } => (*table, key.clone()),
        };
        self.0.push_back(changes.iter().map(key).map(|key| (key.clone(), disk.get(&key).cloned())).collect());
        if self.0.len() > LOST_MAX {
            self.0.pop_front();
        }
    }

    /// The disk was replaced: earlier records do not apply to it.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// Reverts the newest commit. Returns whether there was a record of one.
    fn take_back(&mut self, disk: &mut Disk) -> bool {
        let Some(rows) = self.0.pop_back() else { return false };
        for (key, before) in rows.into_iter().rev() {
            match before {
                Some(value) => disk.insert(key, value),
                None => disk.remove(&key),
            };
        }
        true
    }
}

impl World {
    /// Loses commits. Uses separate random numbers.
    pub(crate) fn lose_commits(&mut self) -> Result<(), Violation> {
        let mut dice = Rng::new(self.rng.clone().next() ^ DICE);
        if !dice.permille(LOST_PERMILLE) {
            return Ok(());
        }
        self.crash_coordinator();
        let most = dice.between(1, LOST_MAX as u64);
        let lost = (0..most).take_while(|_| self.undo.take_back(&mut self.disk)).count();
        if lost == 0 {
            return Ok(());
        }
        self.count("the newest commits were lost");
        self.store_went_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Change {
        Change::Put { table: Table::Machines, key: key.to_owned(), value: value.as_bytes().to_vec() }
    }

    fn commit(disk: &mut Disk, undo: &mut Undo, changes: &[Change]) {
        undo.note(changes, disk);
        for change in changes {
            match change {
                Change::Put { table, key, value } => disk.insert((*table, key.clone()), value.clone()),
                Change::Delete { table, key } => disk.remove(&(*table, key.clone())),
            };
        }
    }

    #[test]
    fn commits_are_taken_back_one_by_one() {
        let (mut disk, mut undo) = (Disk::new(), Undo::default());
        commit(&mut disk, &mut undo, &[put("a", "1")]);
        let first = disk.clone();
        let gone = Change::Delete { table: Table::Machines, key: "a".to_owned() };
        commit(&mut disk, &mut undo, &[put("a", "2"), put("b", "2"), gone]);
        assert_ne!(disk, first);
        assert!(undo.take_back(&mut disk));
        assert_eq!(disk, first);
        assert!(undo.take_back(&mut disk) && disk.is_empty());
        assert!(!undo.take_back(&mut disk));
    }
}
