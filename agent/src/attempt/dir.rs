//! The directory of one attempt, and what it proves. exec-item writes it, the agent reads it; they never talk.
//!
//! ```text
//! request.json   what is to be done; written by the agent
//! lock           record lock, held by exec-item while it lives; the kernel names the holder
//! begun          FIFO that is exec-item's stdout until it has claimed: its closing wakes whoever started it; a byte
//!                before that: there was no room on the disk, and nothing began
//! alive          FIFO that exec-item keeps open: its closing wakes whoever waits for the end
//! claim          created with O_EXCL by the one exec-item that runs this attempt
//! output.log     newest output; output.log.old the piece before it
//! progress       of a transfer or a playbook; news, not record
//! outcome        what built-in work in a process of its own came to
//! exit           the outcome; durable when exec-item has ended
//! reserve        the exit's file before it has anything to say: its disk space is set aside before the claim
//! outcome.reserve, at-work: the same for the outcome; and that the work was interrupted, and may hang
//! stderr         what exec-item itself complained about
//! inputs         secrets, while the program runs (attempt/inputs.rs)
//! work/          the program's working directory; goes with all else that is not named here when the program has ended
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

/// Name of the file with the site's proxies.
const PROXIES: &str = "proxies.json";

/// Space for `exit`, and for `outcome`.
const RESERVE: &str = "reserve";
const OUTCOME_RESERVE: &str = "outcome.reserve";
/// The outcome is recorded, and the work of this very process was interrupted, not over.
const AT_WORK: &str = "at-work";
/// A process ends within milliseconds, unless it hangs in the kernel.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// What outlives the program. `script` and `result.json` are those of the bash runner.
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
/// The largest exit record: 8 KiB of tail and 16 KiB of result, each byte escaped to six in the worst case.
const RESERVE_BYTES: i64 = 160 * 1024;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct AttemptDir {
    path: PathBuf,
}

/// Held by exec-item while it lives. Dropping it says that the attempt is over.
#[derive(Debug)]
pub(crate) struct Held {
    // Order matters: the lock goes first, so that whoever `alive` wakes finds it free.
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

    /// What the program is given and no record keeps: a directory, or a link to one.
    pub(crate) fn inputs(&self) -> PathBuf {
        self.file("inputs")
    }

    /// Beside this attempt and the others at its item: the handlers of its playbook that are due.
    pub(crate) fn handlers(&self, item: &ItemName) -> PathBuf {
        handlers::file(self.path.parent().unwrap_or(Path::new("/")), item)
    }

    /// The handlers of a playbook that are due, in words. A record that cannot be read is said likewise.
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

    /// Lays the directory down with its request. Not durable: until it is claimed nothing has happened, and whoever
    /// starts it lays it down again first. Doing it again changes nothing once it is claimed.
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
        // The host opens it for exec-item: where there is no room for it, that is known before anything is launched.
        OpenOptions::new().create(true).append(true).mode(0o600).open(self.stderr()).map_err(failed)?;
        if !self.claimed() {
            let path = self.file("request.json");
            let bytes = encode(&path, request)?;
            durable::replace_unsynced(&path, &bytes).map_err(failed)?;
        }
        Ok(())
    }

    /// The site's proxies; they may hold passwords, and go when the attempt has ended.
    pub(crate) fn write_proxies(&self, proxies: &Proxies) -> Result<(), AttemptError> {
        let path = self.file(PROXIES);
        let bytes = encode(&path, proxies)?;
        durable::replace_unsynced(&path, &bytes).map_err(|source| AttemptError::File { what: "write", path, source })
    }

    pub(crate) fn has_proxies(&self) -> bool {
        self.proxies_files().iter().any(|path| path.exists())
    }

    /// Not there is as good.
    pub(crate) fn forget_proxies(&self) -> Result<(), AttemptError> {
        self.proxies_files().into_iter().try_for_each(|path| match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(AttemptError::File { what: "remove", path, source })
            }
            Ok(()) | Err(_) => Ok(()),
        })
    }

    /// The file, and the one that a crash leaves where it is written.
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

    /// Takes the lock, for as long as the process lives. None = another holds it.
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

    /// Was it ever begun?
    pub(crate) fn claimed(&self) -> bool {
        self.file("claim").exists()
    }

    /// Sets disk space aside for the outcome: an attempt whose end could not be recorded is not begun.
    pub(crate) fn reserve(&self) -> Result<(), AttemptError> {
        self.set_aside(RESERVE)
    }

    /// Sets disk space aside for [`Self::write_outcome`]: the work may fill the disk, and that is to be said.
    pub(crate) fn reserve_outcome(&self) -> Result<(), AttemptError> {
        self.set_aside(OUTCOME_RESERVE)
    }

    fn set_aside(&self, name: &str) -> Result<(), AttemptError> {
        let path = self.file(name);
        let failed = |source| AttemptError::File { what: "set space aside in", path: path.clone(), source };
        let mut file = OpenOptions::new();
        let file = file.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(failed)?;
        match fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, RESERVE_BYTES) {
            // A file system that cannot promise: then it is tried without.
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Claims the attempt, durably. False = it was claimed before: whoever asks must not run it.
    pub(crate) fn claim(&self) -> Result<bool, AttemptError> {
        let path = self.file("claim");
        let failed = |source| AttemptError::File { what: "claim", path: path.clone(), source };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => {
                // The claim is its name, and a name is durable when its directory is; likewise ours in its parent.
                let parent = self.path.parent().unwrap_or(Path::new("/"));
                durable::sync_dirs(&self.path, parent).map_err(failed)?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Who holds the lock, as the kernel has it.
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

    /// What the directory proves. The claim is read before the lock: it is made under the lock, so a claim without
    /// a holder means that the holder is gone, and what it wrote is final.
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

    /// The outcome of work that was interrupted, and whose process does not end. Only an operator knows when another
    /// attempt may begin beside it.
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

    /// Says that the work is not over though its outcome is about to be recorded.
    pub(crate) fn mark_at_work(&self) -> io::Result<()> {
        File::create(self.file(AT_WORK)).map(drop)
    }

    /// Records the outcome, for whoever looks. A power cut may take it away yet, and with it all knowledge of the end:
    /// [`AttemptDir::sync_exit`] must follow.
    pub(crate) fn write_exit(&self, exit: &Exit) -> Result<(), AttemptError> {
        self.write_into(RESERVE, "exit", exit)
    }

    /// Into the space that is there, rather than into what a removal of it leaves: somebody waits for this.
    fn write_into(&self, reserve: &str, name: &str, value: &impl Serialize) -> Result<(), AttemptError> {
        let (reserve, path) = (self.file(reserve), self.file(name));
        let bytes = encode(&path, value)?;
        let written = match OpenOptions::new().write(true).open(&reserve) {
            Ok(mut file) => file.write_all(&bytes).and_then(|()| fs::rename(&reserve, &path)),
            // Written before, and to be written again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => durable::replace_unsynced(&path, &bytes),
            Err(error) => Err(error),
        };
        written.map_err(|source| AttemptError::File { what: "write", path, source })
    }

    /// Makes the outcome durable, and gives back what it does not take of its space. Not there any more: it is recorded
    /// elsewhere already.
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

    /// Removes what the program and its runner left besides the record. That can be much, and can be others': the agent
    /// has not the rights to remove it, exec-item has.
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

    /// For the exec-item of this attempt only, which is waiting for it. A power cut that takes it takes its reader too.
    pub(crate) fn write_outcome(&self, outcome: &impl Serialize) -> Result<(), AttemptError> {
        self.write_into(OUTCOME_RESERVE, "outcome", outcome)
    }

    pub(crate) fn outcome<T: DeserializeOwned>(&self) -> Result<Option<T>, AttemptError> {
        self.read("outcome")
    }

    /// News: not durable, and a failure to tell it is no failure.
    pub(crate) fn write_progress(&self, progress: Progress) {
        let bytes = json(&progress);
        let _ = durable::replace_unsynced(&self.progress_file(), &bytes);
    }

    /// Where a program may tell it itself.
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

/// A record lock, not flock: the kernel tells who holds it, and asking does not take it.
#[expect(clippy::cast_possible_truncation, reason = "the constants are 0 and 1")]
fn whole_file() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

/// A directory for root's eyes only; there already is as good.
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
