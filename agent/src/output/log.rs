//! Output log of exec-item: on disk the whole output up to a cap, then the newest part; in memory its end for the
//! status. The program runs on despite disk errors: output that the disk rejects is dropped, counted, and reported.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
};

use muster_proto::OUTPUT_TAIL_BYTES_MAX;

use super::{Hidden, Redactor};
use crate::attempt::{AttemptDir, AttemptError};

/// Maximum size of each of the two files; an attempt's output on disk is at most twice as large.
pub(crate) const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Maximum output of one attempt on disk.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 2 * FILE_BYTES_MAX;

/// Output log; see the module.
pub(crate) struct OutputLog {
    dir: AttemptDir,
    file: File,
    file_bytes: u64,
    /// Size of the previous file, which the next rotation drops.
    old_bytes: u64,
    shed_bytes: u64,
    /// Bytes that the disk rejected.
    lost_bytes: u64,
    tail: Vec<u8>,
    redactor: Redactor,
}

impl OutputLog {
    /// Creates an empty log that hides these values.
    pub(crate) fn create(dir: &AttemptDir, hidden: Hidden) -> Result<Self, AttemptError> {
        let file = open(dir).map_err(|source| AttemptError::File { what: "create", path: dir.output(), source })?;
        Ok(Self {
            dir: dir.clone(),
            file,
            file_bytes: 0,
            old_bytes: 0,
            shed_bytes: 0,
            lost_bytes: 0,
            tail: Vec::new(),
            redactor: Redactor::new(hidden),
        })
    }

    /// Appends a piece of output.
    pub(crate) fn write(&mut self, chunk: &[u8]) {
        let shown = self.redactor.push(chunk);
        self.append(&shown);
    }

    /// Ends the log and returns the end of the output: text of at most 8 KiB.
    pub(crate) fn finish(mut self) -> String {
        let shown = self.redactor.finish();
        self.append(&shown);
        if self.lost_bytes > 0 {
            // A formerly full disk may have space for this short note.
            let lost = format!("\n… {} bytes of output were lost: the disk did not take them …\n", self.lost_bytes);
            self.append(lost.as_bytes());
        }
        let text = String::from_utf8_lossy(&self.tail);
        let mut from = text.len().saturating_sub(OUTPUT_TAIL_BYTES_MAX);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.get(from..).unwrap_or_default().to_owned()
    }

    fn append(&mut self, shown: &[u8]) {
        self.tail.extend_from_slice(shown);
        let excess = self.tail.len().saturating_sub(OUTPUT_TAIL_BYTES_MAX);
        self.tail.drain(..excess);
        if self.file_bytes + shown.len() as u64 > FILE_BYTES_MAX {
            // The rotation failed: this file must stop growing too.
            if self.rotate().is_err() {
                self.lost_bytes += shown.len() as u64;
                return;
            }
        }
        match self.file.write_all(shown) {
            Ok(()) => self.file_bytes += shown.len() as u64,
            Err(_) => self.lost_bytes += shown.len() as u64,
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        fs::rename(self.dir.output(), self.dir.output_old())?;
        self.file = open(&self.dir)?;
        self.shed_bytes += self.old_bytes;
        self.old_bytes = self.file_bytes;
        self.file_bytes = 0;
        if self.shed_bytes > 0 {
            let marker =
                format!("… {} bytes of output before the last {} were shed …\n", self.shed_bytes, self.old_bytes);
            self.file.write_all(marker.as_bytes())?;
        }
        Ok(())
    }
}

fn open(dir: &AttemptDir) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(dir.output())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_does_not_take_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let attempt = AttemptDir::new(dir.path().to_owned());
        std::os::unix::fs::symlink("/dev/full", attempt.output()).expect("a full disk");
        let mut log = OutputLog::create(&attempt, Hidden::of([])).expect("a log");
        log.write(b"hello\n");
        let tail = log.finish();
        assert_eq!(tail, "hello\n\n… 6 bytes of output were lost: the disk did not take them …\n");
    }
}
