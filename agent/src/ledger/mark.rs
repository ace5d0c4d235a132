//! Progress mark of the ledger: `<state-dir>/ledger.mark`. It follows each durable record and is never synced itself,
//! so after any crash it is at most as far as the ledger. A ledger behind its mark was therefore restored from an older
//! copy.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::core::{LedgerState, Mark};

const FILE: &str = "ledger.mark";

/// Keeps the mark file up to date.
#[derive(Debug)]
pub struct MarkFile {
    path: PathBuf,
    file: Option<File>,
    written: Option<Mark>,
}

impl MarkFile {
    /// The mark in a state directory.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE), file: None, written: None }
    }

    /// Reads the mark; None if it is missing or unreadable.
    #[must_use]
    pub fn read(&self) -> Option<Mark> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Writes the ledger's progress once that is durable. The mark is only evidence: if the write fails, the older mark
    /// proves less.
    pub fn follow(&mut self, ledger: &LedgerState) {
        let mark = Mark::of(ledger);
        if self.written.as_ref() != Some(&mark) && self.write(&mark).is_ok() {
            self.written = Some(mark);
        }
    }

    /// Overwrites in place: a mark never gets shorter.
    fn write(&mut self, mark: &Mark) -> io::Result<()> {
        let text = serde_json::to_vec(mark)?;
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)?,
        };
        file.write_all_at(&text, 0)?;
        file.set_len(text.len() as u64)?;
        self.file = Some(file);
        Ok(())
    }

    /// Removes the mark before a new ledger replaces the one it follows.
    ///
    /// # Errors
    /// The file system's error.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{LedgerId, MachineId, Seq};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn mark_follows_and_proves_what_it_saw() {
        let dir = tempfile::tempdir().expect("a directory");
        let fresh = LedgerState::new(LedgerId(Uuid::from_u128(1)), MachineId(Uuid::from_u128(2)));
        let mut mark = MarkFile::new(dir.path());
        assert_eq!(mark.read(), None);
        let later = LedgerState { last_seq: Seq(1_000), ..fresh.clone() };
        for state in [&fresh, &later] {
            mark.follow(state);
            assert_eq!(mark.read(), Some(Mark::of(state)));
        }
        let ahead_of = |state: &LedgerState| mark.read().is_some_and(|mark| mark.is_ahead_of(state));
        assert!(ahead_of(&fresh) && !ahead_of(&later));
        assert!(
            ahead_of(&LedgerState { ledger_id: LedgerId(Uuid::from_u128(3)), ..later.clone() }),
            "a ledger that is gone"
        );
        assert!(
            !ahead_of(&LedgerState { machine_id: MachineId(Uuid::from_u128(3)), ..fresh }),
            "an earlier identity's"
        );
        std::fs::write(dir.path().join(FILE), "{").expect("damaged");
        assert_eq!(mark.read(), None);
        mark.remove().and_then(|()| mark.remove()).expect("gone is as good");
    }
}
