//! The agent's side of attempts: lays their directories down, starts exec-item on them, and reads what became of them.
//! The directory is the whole truth: this remembers nothing, so a restarted agent sees what the old one saw. Only the
//! engine calls it. It never runs a program itself and never decides that an attempt is over.

mod dir;
pub(crate) mod durable;
pub mod record;
mod removal;

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::sys::signal::{Signal, kill};
use tokio::{io::AsyncReadExt, net::unix::pipe, process::Command, time::timeout};

pub(crate) use dir::{AttemptDir, private_dir};
pub(crate) use durable::sync_dir;
pub use record::{AttemptKey, Exit, Found, InvalidKey, Progress, Request};
pub(crate) use removal::remove_tree;

use crate::output::OutputReader;

/// exec-item claims within milliseconds; after this long something is wrong with the machine.
const CLAIM_DEADLINE: Duration = Duration::from_secs(30);
/// Of exec-item's own complaint, what an error quotes.
const COMPLAINT_BYTES_MAX: u64 = 2048;
/// The kernel closes `alive` and frees the lock in no promised order; the gap is microseconds.
const LOCK_GRACE: Duration = Duration::from_millis(2);

/// What can go wrong with the record of an attempt. An attempt that fails is none of these, but an [`Exit`].
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The file system refused.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What we were doing.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file of the record is not JSON of its kind.
    #[error("{} is not what muster-agent writes there", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The agent's own program could not be executed.
    #[error("cannot execute {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// exec-item did not begin, so the attempt may be started again.
    #[error("exec-item did not begin attempt {key}: {complaint}")]
    NotClaimed {
        /// Which attempt.
        key: AttemptKey,
        /// What exec-item said.
        complaint: String,
    },
    /// The signal that cancels could not be sent.
    #[error("cannot signal the exec-item of attempt {key}")]
    Signal {
        /// Which attempt.
        key: AttemptKey,
        /// Why not.
        #[source]
        source: nix::Error,
    },
}

/// All attempts of this machine, in `<state-dir>/attempts`.
#[derive(Clone, Debug)]
pub struct Attempts {
    root: PathBuf,
    program: PathBuf,
}

impl Attempts {
    /// Opens the directory, creates it if it is missing. `program` is the `muster-agent` to start as exec-item.
    ///
    /// # Errors
    /// [`AttemptError::File`] if it cannot be created.
    pub fn open(state_dir: &Path, program: PathBuf) -> Result<Self, AttemptError> {
        let root = state_dir.join("attempts");
        private_dir(&root).map_err(|source| AttemptError::File { what: "create", path: root.clone(), source })?;
        Ok(Self { root, program })
    }

    /// Writes down what is to be done; each [`Attempts::start`] follows one of these. Again for the same key is
    /// harmless, whatever became of it.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn create(&self, request: &Request) -> Result<(), AttemptError> {
        self.dir(&request.key).create(request)
    }

    /// Starts exec-item and returns once it has claimed the attempt, or found it claimed before: then it has done
    /// nothing, and [`Attempts::inspect`] tells what became of the first.
    ///
    /// # Errors
    /// [`AttemptError::NotClaimed`] or [`AttemptError::Spawn`] if nothing was started.
    pub async fn start(&self, key: &AttemptKey) -> Result<(), AttemptError> {
        let dir = self.dir(key);
        let complaint = dir.stderr();
        let stderr = std::fs::File::create(&complaint).map_err(|source| AttemptError::File {
            what: "create",
            path: complaint.clone(),
            source,
        })?;
        let spawn = |source| AttemptError::Spawn { program: self.program.clone(), source };
        let mut child = Command::new(&self.program)
            .arg(crate::exec_item::STAGE)
            .arg(dir.path())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(spawn)?;
        // exec-item closes its stdout once it has claimed; its end closes it too.
        let closed = async {
            match child.stdout.take() {
                Some(mut stdout) => stdout.read_to_end(&mut Vec::new()).await,
                None => Ok(0),
            }
        };
        let in_time = timeout(CLAIM_DEADLINE, closed).await.is_ok();
        if !matches!(dir.find()?, Found::NotStarted) {
            return Ok(());
        }
        let text = if in_time { read_start(&complaint) } else { format!("nothing for {} s", CLAIM_DEADLINE.as_secs()) };
        Err(AttemptError::NotClaimed { key: key.clone(), complaint: text })
    }

    /// What became of it, as far as its directory proves.
    ///
    /// # Errors
    /// [`AttemptError::Damaged`] or [`AttemptError::File`].
    pub fn inspect(&self, key: &AttemptKey) -> Result<Found, AttemptError> {
        self.dir(key).find()
    }

    /// Waits until no exec-item runs it, and says what became of it: never `Running`. No deadline of its own:
    /// exec-item holds the item's time limit, and its death ends the wait too.
    ///
    /// # Errors
    /// As [`Attempts::inspect`].
    pub async fn ended(&self, key: &AttemptKey) -> Result<Found, AttemptError> {
        let dir = self.dir(key);
        loop {
            let alive = pipe::OpenOptions::new().open_receiver(dir.alive());
            match dir.find()? {
                Found::Running => {}
                found => return Ok(found),
            }
            let file = |source| AttemptError::File { what: "watch", path: dir.alive(), source };
            // Nobody writes to it: it becomes readable when its last writer is gone.
            alive.map_err(file)?.readable().await.map_err(file)?;
            match dir.find()? {
                Found::Running => tokio::time::sleep(LOCK_GRACE).await,
                found => return Ok(found),
            }
        }
    }

    /// Asks exec-item to end the program: TERM, then KILL, to all of its tree. The outcome is recorded as for any
    /// other end. Not running: nothing happens.
    ///
    /// # Errors
    /// [`AttemptError::Signal`].
    pub fn cancel(&self, key: &AttemptKey) -> Result<(), AttemptError> {
        match self.dir(key).holder()? {
            Some(pid) => kill(pid, Signal::SIGTERM).map_err(|source| AttemptError::Signal { key: key.clone(), source }),
            None => Ok(()),
        }
    }

    /// How far its transfer has come, if it is one.
    #[must_use]
    pub fn progress(&self, key: &AttemptKey) -> Option<Progress> {
        self.dir(key).progress()
    }

    /// Its output, from `tail_bytes` before the end, or all that is kept.
    #[must_use]
    pub fn output(&self, key: &AttemptKey, tail_bytes: Option<u64>) -> OutputReader {
        OutputReader::new(self.dir(key), tail_bytes)
    }

    /// Forgets an attempt whose outcome is recorded elsewhere. Not there is as good.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn remove(&self, key: &AttemptKey) -> Result<(), AttemptError> {
        let path = self.dir(key).path().to_owned();
        remove_tree(&path).map_err(|source| AttemptError::File { what: "remove", path, source })
    }

    /// Where its record is; for people.
    #[must_use]
    pub fn directory(&self, key: &AttemptKey) -> PathBuf {
        self.dir(key).path().to_owned()
    }

    /// Every attempt that has a directory, in order.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn list(&self) -> Result<Vec<AttemptKey>, AttemptError> {
        let failed = |source| AttemptError::File { what: "list", path: self.root.clone(), source };
        let mut keys = Vec::new();
        for entry in std::fs::read_dir(&self.root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            keys.extend(name.to_str().and_then(|name| name.parse().ok()));
        }
        keys.sort();
        Ok(keys)
    }

    fn dir(&self, key: &AttemptKey) -> AttemptDir {
        AttemptDir::new(self.root.join(key.to_string()))
    }
}

fn read_start(path: &Path) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(COMPLAINT_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(0) | Err(_) => "it ended without a word".to_owned(),
        Ok(_) => String::from_utf8_lossy(&bytes).trim().to_owned(),
    }
}
