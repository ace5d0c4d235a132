//! The directory of one attempt, and what it proves. exec-item writes it and the agent reads it; they communicate only
//! through it.
//!
//! ```text
//! request.json   the request; written by the agent
//! lock           record lock, held by exec-item while it lives; the kernel names the holder
//! begun          FIFO that is exec-item's stdout until it has claimed: its closing wakes the starter; a byte
//!                before that: the disk was full, and nothing began
//! alive          FIFO that exec-item keeps open: its closing wakes all waiters for the end
//! claim          created with O_EXCL by the one exec-item that runs this attempt
//! output.log     newest output; output.log.old the piece before it
//! progress       of a transfer or a playbook; best effort
//! outcome        outcome of built-in work in a separate process
//! exit           the outcome; durable when exec-item has ended
//! reserve        the future exit file: its disk space is reserved before the claim
//! outcome.reserve, at-work: the same for the outcome; and a mark that the work was interrupted and may hang
//! stderr         exec-item's own error output
//! inputs         secrets, while the program runs (attempt/inputs.rs)
//! work/          the program's working directory; removed at its end, with all other unlisted entries
//! ```

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use muster_proto::{
    json::json,
    model::{ItemName, ItemState, RunnerKind},
};
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl},
    libc,
    sys::stat::Mode,
    unistd::{Pid, mkfifo},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    AttemptError, durable, handlers,
    record::{Exit, Found, NO_EXIT_CODE, Progress, Request},
    removal::remove_tree,
};
use crate::proxy::Proxies;

/// File name of the site's proxies.
const PROXIES: &str = "proxies.json";

/// Names of the files that reserve space for `exit` and for `outcome`.
const RESERVE: &str = "reserve";
const OUTCOME_RESERVE: &str = "outcome.reserve";
/// Marker: the outcome is recorded, but the interrupted work of this process goes on.
const AT_WORK: &str = "at-work";
/// A process ends within milliseconds, unless it hangs in the kernel.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Files that outlive the program. `script` and `result.json` are those of the bash runner.
const RECORD: [&str; 15] = [
    "request.json",
    "lock",
    "begun",
    "alive",
    "claim",
    "output.log",
    "output.log.old",
    "progress",
    "outcome",
    AT_WORK,
    "exit",
    "stderr",
    "inputs",
    "script",
    "result.json",
];
/// Largest exit record: 8 KiB of tail and 16 KiB of result, each byte escaped to six in the worst case.
const RESERVE_BYTES: i64 = 160 * 1024;

/// The directory of one attempt; see the module.
#[derive(Clone, Debug)]
pub(crate) struct AttemptDir {
    path: PathBuf,
}

/// The lock that exec-item holds while it lives. Dropping it ends the attempt.
#[derive(Debug)]
pub(crate) struct Held {
    // Order matters: the lock is released first, so that a reader woken by `alive` finds it free.
    _lock: File,
    _alive: File,
}

impl AttemptDir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn alive(&self) -> PathBuf {
        self.file("alive")
    }

    pub(crate) fn begun(&self) -> PathBuf {
        self.file("begun")
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.file("output.log")
    }

    pub(crate) fn output_old(&self) -> PathBuf {
        self.file("output.log.old")
    }

    /// Inputs of the program, excluded from all records: a directory, or a link to one.
    pub(crate) fn inputs(&self) -> PathBuf {
        self.file("inputs")
    }

    /// Record of the playbook's due handlers. It lies beside this attempt and the other attempts of its item.
    pub(crate) fn handlers(&self, item: &ItemName) -> PathBuf {
        handlers::file(self.path.parent().unwrap_or(Path::new("/")), item)
    }

    /// The due handlers of a playbook as text, or the error if their record is unreadable.
    pub(crate) fn handlers_left(&self, request: &Request) -> Option<String> {
        if request.runner != RunnerKind::Ansible.as_str() {
            return None;
        }
        let file = self.handlers(&request.key.item);
        let unread =
            |error| Some(format!("cannot tell which notified handlers did not run: {}: {error}", file.display()));
        handlers::left(&file).unwrap_or_else(unread)
    }

    pub(crate) fn stderr(&self) -> PathBuf {
        self.file("stderr")
    }

    /// Creates the directory with its request. It need not be durable: the attempt begins with the claim, and the
    /// starter calls this again first. After the claim, repeating it has no effect.
    pub(crate) fn create(&self, request: &Request) -> Result<(), AttemptError> {
        let failed = |source| AttemptError::File { what: "create", path: self.path.clone(), source };
        private_dir(&self.path).map_err(failed)?;
        private_dir(&self.file("work")).map_err(failed)?;
        for fifo in [self.alive(), self.begun()] {
            match mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        // The host opens this file for exec-item. Creating it now reports a full disk before the launch.
        OpenOptions::new().create(true).append(true).mode(0o600).open(self.stderr()).map_err(failed)?;
        if !self.claimed() {
            let path = self.file("request.json");
            let bytes = encode(&path, request)?;
            durable::replace_unsynced(&path, &bytes).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the site's proxies. They may hold passwords, so they are removed when the attempt has ended.
    pub(crate) fn write_proxies(&self, proxies: &Proxies) -> Result<(), AttemptError> {
        let path = self.file(PROXIES);
        let bytes = encode(&path, proxies)?;
        durable::replace_unsynced(&path, &bytes).map_err(|source| AttemptError::File { what: "write", path, source })
    }

    pub(crate) fn has_proxies(&self) -> bool {
        self.proxies_files().iter().any(|path| path.exists())
    }

    /// Removes the site's proxies. Succeeds if they are missing.
    pub(crate) fn forget_proxies(&self) -> Result<(), AttemptError> {
        self.proxies_files().into_iter().try_for_each(|path| match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(AttemptError::File { what: "remove", path, source })
            }
            Ok(()) | Err(_) => Ok(()),
        })
    }

    /// The proxies file, and the temporary file that a crash may leave.
    fn proxies_files(&self) -> [PathBuf; 2] {
        let path = self.file(PROXIES);
        [durable::temp_name(&path), path]
    }

    pub(crate) fn proxies(&self) -> Result<Proxies, AttemptError> {
        Ok(self.read(PROXIES)?.unwrap_or_default())
    }

    pub(crate) fn request(&self) -> Result<Request, AttemptError> {
        let path = self.file("request.json");
        self.read("request.json")?.ok_or(AttemptError::File {
            what: "read",
            path,
            source: io::ErrorKind::NotFound.into(),
        })
    }

    /// Takes the lock for the life of the process. None = another process holds it.
    pub(crate) fn hold(&self) -> Result<Option<Held>, AttemptError> {
        let failed = |source| AttemptError::File { what: "lock", path: self.file("lock"), source };
        let open =
            |name| OpenOptions::new().read(true).write(true).mode(0o600).create(name == "lock").open(self.file(name));
        let held = Held { _lock: open("lock").map_err(failed)?, _alive: open("alive").map_err(failed)? };
        match fcntl(&held._lock, FcntlArg::F_SETLK(&whole_file())) {
            Ok(_) => Ok(Some(held)),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Has it ever begun?
    pub(crate) fn claimed(&self) -> bool {
        self.file("claim").exists()
    }

    /// Reserves disk space for the outcome: an attempt begins only if its end can be recorded.
    pub(crate) fn reserve(&self) -> Result<(), AttemptError> {
        self.move_aside(RESERVE)
    }

    /// Reserves disk space for [`Self::write_outcome`]: the work may fill the disk, and that must be reported.
    pub(crate) fn reserve_outcome(&self) -> Result<(), AttemptError> {
        self.move_aside(OUTCOME_RESERVE)
    }

    fn move_aside(&self, name: &str) -> Result<(), AttemptError> {
        let path = self.file(name);
        let failed = |source| AttemptError::File { what: "set space aside in", path: path.clone(), source };
        let mut file = OpenOptions::new();
        let file = file.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(failed)?;
        match fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, RESERVE_BYTES) {
            // Go on without a reservation if the file system lacks support.
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Claims the attempt durably. False = it was claimed before, and the caller must not run it.
    pub(crate) fn claim(&self) -> Result<bool, AttemptError> {
        let path = self.file("claim");
        let failed = |source| AttemptError::File { what: "claim", path: path.clone(), source };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => {
                // The claim is a file name, and a name is durable once its directory is synced. The same holds for this
                // directory in its parent.
                let parent = self.path.parent().unwrap_or(Path::new("/"));
                durable::sync_dirs(&self.path, parent).map_err(failed)?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Holder of the lock, as the kernel reports it.
    pub(crate) fn holder(&self) -> Result<Option<Pid>, AttemptError> {
        let failed = |source| AttemptError::File { what: "query the lock", path: self.file("lock"), source };
        let file = match OpenOptions::new().read(true).write(true).open(self.file("lock")) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut lock = whole_file();
        fcntl(&file, FcntlArg::F_GETLK(&mut lock)).map_err(|errno| failed(errno.into()))?;
        Ok((i32::from(lock.l_type) != libc::F_UNLCK).then(|| Pid::from_raw(lock.l_pid)))
    }

    /// State that the directory proves. Read the claim before the lock: the claim is made under the lock. If the claim
    /// exists but the lock is free, the holder is gone and its record is final.
    pub(crate) fn find(&self) -> Result<Found, AttemptError> {
        let claimed = self.claimed();
        if self.holder()?.is_some() {
            return Ok(self.hanging()?.map_or(Found::Running, Found::Exited));
        }
        if !claimed {
            return Ok(Found::NotStarted);
        }
        Ok(self.read::<Exit>("exit")?.map_or(Found::Lost, Found::Exited))
    }

    /// Outcome of interrupted work whose process hangs. Only an operator can decide when another attempt may begin
    /// beside it.
    fn hanging(&self) -> Result<Option<Exit>, AttemptError> {
        let since = fs::metadata(self.file(AT_WORK)).and_then(|marker| marker.modified());
        let hangs = since.is_ok_and(|since| since.elapsed().is_ok_and(|elapsed| elapsed >= ENDS_WITHIN));
        let exit = if hangs { self.read::<Exit>("exit")? } else { None };
        Ok(exit.map(|exit| Exit {
            state: ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: false },
            message: format!(
                "{}; it hangs in the kernel (a dead disk or file server?), and may go on yet",
                exit.message
            ),
            ..exit
        }))
    }

    /// Marks that the work goes on although its outcome is about to be recorded.
    pub(crate) fn mark_at_work(&self) -> io::Result<()> {
        File::create(self.file(AT_WORK)).map(drop)
    }

    /// Records the outcome for readers. A power cut may still lose it, and with it all knowledge of the end:
    /// [`AttemptDir::sync_exit`] must follow.
    pub(crate) fn write_exit(&self, exit: &Exit) -> Result<(), AttemptError> {
        self.write_into(RESERVE, "exit", exit)
    }

    /// Writes into the reserved space. Freeing it first and writing a new file would be slower, and readers wait for
    /// this.
    fn write_into(&self, reserve: &str, name: &str, value: &impl Serialize) -> Result<(), AttemptError> {
        let (reserve, path) = (self.file(reserve), self.file(name));
        let bytes = encode(&path, value)?;
        let written = match OpenOptions::new().write(true).open(&reserve) {
            Ok(mut file) => file.write_all(&bytes).and_then(|()| fs::rename(&reserve, &path)),
            // It was written before and is written again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => durable::replace_unsynced(&path, &bytes),
            Err(error) => Err(error),
        };
        written.map_err(|source| AttemptError::File { what: "write", path, source })
    }

    /// Makes the outcome durable and frees the unused part of its reserved space. A missing file was recorded elsewhere
    /// already.
    pub(crate) fn sync_exit(&self) -> Result<(), AttemptError> {
        let path = self.file("exit");
        let sync = |exit: File| exit.set_len(exit.metadata()?.len()).and_then(|()| exit.sync_all());
        let exit = OpenOptions::new().write(true).open(&path);
        match exit.and_then(sync).and_then(|()| durable::sync_dir(&self.path)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(AttemptError::File { what: "sync", path, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes what the program and its runner left besides the record. It may be large and owned by other users. Only
    /// exec-item has the rights to remove it.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if RECORD.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if entry.file_type()?.is_dir() { remove_tree(&entry.path())? } else { fs::remove_file(entry.path())? }
        }
        Ok(())
    }

    /// Writes the outcome for the waiting exec-item of this attempt only. A power cut that loses it ends its reader
    /// too.
    pub(crate) fn write_outcome(&self, outcome: &impl Serialize) -> Result<(), AttemptError> {
        self.write_into(OUTCOME_RESERVE, "outcome", outcome)
    }

    pub(crate) fn outcome<T: DeserializeOwned>(&self) -> Result<Option<T>, AttemptError> {
        self.read("outcome")
    }

    /// Writes the progress, best effort: unsynced, and a failure is ignored.
    pub(crate) fn write_progress(&self, progress: Progress) {
        let bytes = json(&progress);
        let _ = durable::replace_unsynced(&self.progress_file(), &bytes);
    }

    /// Path where a program may write its own progress.
    pub(crate) fn progress_file(&self) -> PathBuf {
        self.file("progress")
    }

    pub(crate) fn progress(&self) -> Option<Progress> {
        self.read("progress").ok().flatten()
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, AttemptError> {
        let path = self.file(name);
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|source| AttemptError::Damaged { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(AttemptError::File { what: "read", path, source }),
        }
    }
}

fn encode(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, AttemptError> {
    serde_json::to_vec(value).map_err(|source| AttemptError::Damaged { path: path.to_owned(), source })
}

/// A record lock instead of flock: the kernel names its holder, and a query leaves it free.
#[expect(clippy::cast_possible_truncation, reason = "the constants are 0 and 1")]
fn whole_file() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Creates a directory that only its owner can read. Succeeds if it exists.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::{fs::FileTimes, os::unix::fs::MetadataExt, time::SystemTime};

    use super::*;

    fn dir() -> (tempfile::TempDir, AttemptDir) {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = AttemptDir::new(temp.path().to_owned());
        (temp, dir)
    }

    #[test]
    fn work_that_hangs_is_told_from_work_that_is_about_to_end() {
        let (_temp, dir) = dir();
        let exit = Exit {
            state: ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: true },
            message: "timed out after 30 s".to_owned(),
            output_tail: String::new(),
            result_json: None,
            started_at_ms: 1,
            finished_at_ms: 2,
        };
        dir.write_exit(&exit).expect("written");
        assert_eq!(dir.hanging().expect("read"), None, "its work is over");
        dir.mark_at_work().expect("marked");
        assert_eq!(dir.hanging().expect("read"), None, "only just");
        let long_ago = FileTimes::new().set_modified(SystemTime::now() - ENDS_WITHIN);
        let marker = OpenOptions::new().write(true).open(dir.file(AT_WORK)).expect("the marker");
        marker.set_times(long_ago).expect("set back");
        let hangs = dir.hanging().expect("read").expect("an outcome");
        assert_eq!(hangs.state, ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: false }, "not by itself again");
        assert!(hangs.message.starts_with("timed out after 30 s; it hangs in the kernel"), "{}", hangs.message);
    }

    #[test]
    fn an_outcome_takes_the_space_that_was_set_aside() {
        let (_temp, dir) = dir();
        dir.reserve_outcome().expect("room");
        let inode = |name| fs::metadata(dir.file(name)).expect("a file").ino();
        let reserved = inode(OUTCOME_RESERVE);
        dir.write_outcome(&"done").expect("written");
        assert_eq!(inode("outcome"), reserved);
        assert_eq!(dir.outcome::<String>().expect("read"), Some("done".to_owned()));
        assert!(!dir.file(OUTCOME_RESERVE).exists());
    }
}
