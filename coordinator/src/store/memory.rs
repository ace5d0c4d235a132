//! A diskless store, for the simulator and tests. Cloning copies its rows, which also serves as its backup.

use std::{collections::BTreeMap, path::Path};

use super::{Change, Row, Store, StoreError, Table};

/// Rows in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStore {
    rows: BTreeMap<(Table, String), Vec<u8>>,
}

impl Store for MemoryStore {
    fn load(&self) -> Result<Vec<Row>, StoreError> {
        Ok(self.rows.iter().map(|((table, key), value)| (*table, key.clone(), value.clone())).collect())
    }

    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        for change in batch {
            match change {
                Change::Put { table, key, value } => {
                    self.rows.insert((*table, key.clone()), value.clone());
                }
                Change::Delete { table, key } => {
                    self.rows.remove(&(*table, key.clone()));
                }
            }
        }
        Ok(())
    }

    fn backup(&self, to: &Path) -> Result<(), StoreError> {
        let source = "this store is in memory only".into();
        Err(StoreError::Backup { path: to.to_owned(), source })
    }
}
