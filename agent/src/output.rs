//! Output of a program: written by exec-item, capped and redacted; read for `musterctl logs`, live or afterwards.

mod log;
mod redact;
mod spelling;

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    time::Duration,
};

use crate::attempt::{AttemptDir, AttemptError};

pub(crate) use log::{OUTPUT_BYTES_MAX, OutputLog};
pub(crate) use redact::{Hidden, Redactor};

/// Largest chunk of a reader.
pub const CHUNK_BYTES_MAX: usize = 32 * 1024;
/// Polling interval of a followed file.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// Reads the output of one attempt across rotations.
#[derive(Debug)]
pub struct OutputReader {
    dir: AttemptDir,
    tail_bytes: Option<u64>,
    /// Open files, the older piece first.
    files: std::collections::VecDeque<File>,
    opened: bool,
}

impl OutputReader {
    pub(crate) fn new(dir: AttemptDir, tail_bytes: Option<u64>) -> Self {
        Self { dir, tail_bytes, files: std::collections::VecDeque::new(), opened: false }
    }

    /// The next piece, at most 32 KiB. Waits for it while the attempt runs; None = it has ended and all is read.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, AttemptError> {
        loop {
            // Check this before the read: the read then sees everything that was written before the end.
            let running = matches!(self.dir.find()?, crate::attempt::Found::Running);
            let chunk = self.next_now()?;
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
            if !running {
                return Ok(None);
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// The next available piece, at most 32 KiB. Empty = nothing new.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn next_now(&mut self) -> Result<Vec<u8>, AttemptError> {
        let path = self.dir.output();
        self.read_some().map_err(|source| AttemptError::File { what: "read", path, source })
    }

    fn read_some(&mut self) -> io::Result<Vec<u8>> {
        if !self.opened {
            self.open_first()?;
        }
        let mut chunk = vec![0; CHUNK_BYTES_MAX];
        while let Some(file) = self.files.front_mut() {
            let count = file.read(&mut chunk)?;
            if count > 0 {
                chunk.truncate(count);
                return Ok(chunk);
            }
            if self.files.len() == 1 && !self.rotated()? {
                break;
            }
            self.files.pop_front();
        }
        Ok(Vec::new())
    }

    /// Was the current file rotated? Then queue the newer one behind it.
    fn rotated(&mut self) -> io::Result<bool> {
        let (Some(current), Some(newest)) = (self.files.back(), open_if_there(&self.dir.output())?) else {
            return Ok(false);
        };
        if current.metadata()?.ino() == newest.metadata()?.ino() {
            return Ok(false);
        }
        self.files.push_back(newest);
        Ok(true)
    }

    fn open_first(&mut self) -> io::Result<()> {
        // Open the newest first: after a rotation in between, the older one is read twice rather than skipped.
        let Some(mut newest) = open_if_there(&self.dir.output())? else { return Ok(()) };
        let mut older = open_if_there(&self.dir.output_old())?;
        if let Some(tail) = self.tail_bytes {
            let newest_bytes = newest.metadata()?.len();
            newest.seek(SeekFrom::Start(newest_bytes.saturating_sub(tail)))?;
            if let Some(older) = &mut older {
                let older_bytes = older.metadata()?.len();
                older.seek(SeekFrom::Start(older_bytes.saturating_sub(tail.saturating_sub(newest_bytes))))?;
            }
        }
        self.files.extend(older);
        self.files.push_back(newest);
        self.opened = true;
        Ok(())
    }
}

fn open_if_there(path: &std::path::Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
