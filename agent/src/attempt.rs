//! The agent's side of attempts: creates their directories, starts exec-item on them, and reads the outcome. The
//! directory is the only state, so a restarted agent sees what the old one saw. Only the engine calls this module.
//! exec-item runs the programs, and the core decides when an attempt is over.

mod dir;
pub(crate) mod durable;
pub(crate) mod handlers;
pub(crate) mod inputs;
pub mod record;
mod removal;
mod room;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_proto::model::{ItemInput, MachineId};
use tokio::{
    net::unix::pipe,
    time::{Instant, sleep, timeout},
};

pub(crate) use dir::{AttemptDir, private_dir};
pub(crate) use durable::sync_dir;
pub use record::{AttemptKey, Exit, Found, InvalidKey, Progress, Request, Trace};
pub(crate) use removal::remove_tree;

use crate::{
    disk_space::{self, is_full},
    exec_item::{NO_ROOM, with_sources},
    host::{Host, LaunchError},
    output::OutputReader,
    proxy::Proxies,
    systemd::unit::{Verdict, Wanted},
};

/// Timeout of the claim. exec-item claims within milliseconds; a longer delay means a fault of the machine.
const CLAIM_DEADLINE: Duration = Duration::from_secs(30);
/// Bytes of exec-item's own error output that an error quotes.
const COMPLAINT_BYTES_MAX: u64 = 2048;
/// Timeout for a stale unit to go. systemd drops a unit within milliseconds.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);
/// Interval between two checks whether a running process hangs.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Interval between two launches while a stale unit holds the name.
const LAUNCH_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Delay before a retry: the kernel closes `alive` and frees the lock in any order, microseconds apart.
const LOCK_GRACE: Duration = Duration::from_millis(2);

/// Error in the record of an attempt, as opposed to a failed attempt, which is an [`Exit`].
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// A file system error.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file of the record is invalid JSON for its type.
    #[error("{} is not what muster-agent writes there", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The launch of exec-item failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// exec-item found the disk full and ended before it began.
    #[error("exec-item found no room for attempt {key}: {complaint}")]
    NoRoom {
        /// The attempt.
        key: AttemptKey,
        /// exec-item's error output.
        complaint: String,
    },
    /// exec-item has yet to begin. It may still do so later: see [`Attempts::bar`].
    #[error("exec-item did not begin attempt {key}: {complaint}")]
    NotClaimed {
        /// The attempt.
        key: AttemptKey,
        /// exec-item's error output.
        complaint: String,
    },
}

impl AttemptError {
    /// Is a full disk the cause? Then the attempt has not begun, and it needs a new start.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::File { source, .. } | Self::Launch(LaunchError::Spawn { source, .. }) => is_full(source),
            Self::NoRoom { .. } => true,
            Self::Damaged { .. } | Self::Launch(LaunchError::Unit(_)) | Self::NotClaimed { .. } => false,
        }
    }
}

/// All attempts of this machine, in `<state-dir>/attempts`.
#[derive(Clone, Debug)]
pub struct Attempts {
    root: PathBuf,
    program: PathBuf,
    host: Host,
    /// Directory of the inputs while a program runs. None: each attempt's own directory.
    inputs: Option<PathBuf>,
    proxies: Proxies,
}

impl Attempts {
    /// Opens the directory and creates it if it is missing. `program` is the `muster-agent` to start as exec-item on
    /// `host`.
    ///
    /// # Errors
    /// [`AttemptError::File`] if creating it fails.
    pub fn open(state_dir: &Path, program: PathBuf, host: Host) -> Result<Self, AttemptError> {
        let root = state_dir.join("attempts");
        private_dir(&root).map_err(|source| AttemptError::File { what: "create", path: root.clone(), source })?;
        Ok(Self { root, program, host, inputs: None, proxies: Proxies::default() })
    }

    /// Places inputs below `runtime_dir`, which belongs to this agent and should be on tmpfs.
    ///
    /// # Errors
    /// [`AttemptError::File`] if the directory is unusable.
    pub fn with_runtime_dir(self, runtime_dir: &Path) -> Result<Self, AttemptError> {
        let path = runtime_dir.join("inputs");
        private_dir(&path).map_err(|source| AttemptError::File { what: "create", path: path.clone(), source })?;
        Ok(Self { inputs: Some(path), ..self })
    }

    /// Sets the site's proxies for downloads.
    #[must_use]
    pub fn with_proxies(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// Writes the request and the inputs of an attempt. Each [`Attempts::start`] follows one such call. It may be
    /// repeated for the same key in any state of the attempt.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn create(&self, request: &Request, inputs: &[ItemInput]) -> Result<(), AttemptError> {
        let dir = self.dir(&request.key);
        dir.create(request)?;
        if dir.claimed() {
            return Ok(());
        }
        if !self.proxies.is_empty() {
            dir.write_proxies(&self.proxies)?;
        }
        let runtime = self.runtime_inputs(&request.key);
        inputs::lay_down(&dir.inputs(), runtime.as_deref(), inputs).map_err(|source| AttemptError::File {
            what: "write the inputs in",
            path: dir.inputs(),
            source,
        })
    }

    /// Removes the remaining inputs of an attempt and the site's proxies, which may hold a password. exec-item does
    /// this when the program ends, unless exec-item was killed.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn forget_inputs(&self, key: &AttemptKey) -> Result<(), AttemptError> {
        let link = self.dir(key).inputs();
        for path in std::iter::once(link).chain(self.runtime_inputs(key)) {
            inputs::remove(&path).map_err(|source| AttemptError::File { what: "remove", path, source })?;
        }
        self.dir(key).forget_proxies()
    }

    fn runtime_inputs(&self, key: &AttemptKey) -> Option<PathBuf> {
        Some(self.inputs.as_ref()?.join(key.to_string()))
    }

    /// Attempts that may have inputs or the site's proxies, in order.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn with_inputs(&self) -> Result<Vec<AttemptKey>, AttemptError> {
        let mut keys = self.list()?;
        keys.retain(|key| self.dir(key).inputs().symlink_metadata().is_ok() || self.dir(key).has_proxies());
        if let Some(inputs) = &self.inputs {
            keys.extend(keys_in(inputs)?);
        }
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// Is there disk space to begin another attempt?
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn has_room(&self) -> Result<bool, AttemptError> {
        let path = self.root.clone();
        disk_space::has_room(&path).map_err(|source| AttemptError::File {
            what: "tell the free space of",
            path,
            source,
        })
    }

    /// Starts exec-item and returns once it has claimed the attempt. If the attempt was claimed before, the new
    /// exec-item ends at once, and [`Attempts::inspect`] returns the outcome of the first.
    ///
    /// # Errors
    /// [`AttemptError::NoRoom`], [`AttemptError::NotClaimed`] or [`AttemptError::Launch`] if nothing has begun so far.
    pub async fn start(&self, key: &AttemptKey) -> Result<(), AttemptError> {
        let dir = self.dir(key);
        let file = |source| AttemptError::File { what: "watch", path: dir.begun(), source };
        // Open before exec-item starts, because it may close the pipe at once.
        let begun = pipe::OpenOptions::new().open_receiver(dir.begun()).map_err(file)?;
        let (stdout, stderr) = (dir.begun(), dir.stderr());
        let wanted = Wanted {
            key,
            program: &self.program,
            args: [crate::exec_item::STAGE.as_ref(), dir.path().as_os_str()],
            stdout: &stdout,
            stderr: &stderr,
            // exec-item reports an unreadable request itself.
            timeout: dir.request().map_or(Duration::MAX, |request| Duration::from_millis(request.timeout_ms)),
        };
        if !self.host.launch(&wanted).await? {
            // An agent that died right after the launch left this unit. A second process must not start beside it.
            if !matches!(dir.find()?, Found::NotStarted) {
                return Ok(());
            }
            self.release(key).await?;
            self.take_the_place_of_another(&wanted).await?;
        }
        let in_time = timeout(CLAIM_DEADLINE, begun.readable()).await.is_ok();
        if !matches!(dir.find()?, Found::NotStarted) {
            return Ok(());
        }
        let key = key.clone();
        if !in_time {
            let complaint = format!("nothing for {} s", CLAIM_DEADLINE.as_secs());
            return Err(AttemptError::NotClaimed { key, complaint });
        }
        let complaint = read_start(&stderr).unwrap_or_else(|| "it ended without a word".to_owned());
        let mut said = [0];
        let no_room = matches!(begun.try_read(&mut said), Ok(1)) && said == NO_ROOM;
        Err(if no_room { AttemptError::NoRoom { key, complaint } } else { AttemptError::NotClaimed { key, complaint } })
    }

    /// The host drops the old unit of that name after a delay; retry until then.
    async fn take_the_place_of_another(&self, wanted: &Wanted<'_>) -> Result<(), LaunchError> {
        let until = Instant::now() + GIVEN_UP_WITHIN;
        while !self.host.launch(wanted).await? && Instant::now() < until {
            sleep(LAUNCH_AGAIN_AFTER).await;
        }
        Ok(())
    }

    /// Prevents a failed start from succeeding late, by claiming the attempt: a requested exec-item may still come.
    /// False = it has begun after all.
    ///
    /// # Errors
    /// [`AttemptError::File`]: it may still begin.
    pub fn bar(&self, key: &AttemptKey) -> Result<bool, AttemptError> {
        match self.dir(key).claim() {
            // exec-item needs the directory to begin.
            Err(AttemptError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(true),
            claimed => claimed,
        }
    }

    /// Explains an attempt that ended without an outcome: how its host ended and what exec-item printed. If the host
    /// ended it as a whole, that is its outcome; otherwise its progress is unknown.
    pub async fn explain(&self, key: &AttemptKey, found: Found) -> Found {
        if found != Found::Lost {
            return found;
        }
        let what = match self.host.end_of(key).await.map(|end| end.map(|end| end.verdict())) {
            Ok(Some(Verdict::Ended(message))) => return Found::Exited(Exit::of_lost(message)),
            Ok(Some(Verdict::Unknown(what))) => Some(what),
            Ok(None) => None,
            // An unresponsive host proves nothing.
            Err(error) => Some(with_sources(&error)),
        };
        let handlers = self.dir(key).request().ok().and_then(|request| self.dir(key).handlers_left(&request));
        let why: Vec<String> = what.into_iter().chain(read_start(&self.dir(key).stderr())).chain(handlers).collect();
        if why.is_empty() { Found::Lost } else { Found::Exited(Exit::of_unknown(&why.join(": "))) }
    }

    /// Makes the host drop an attempt whose outcome is recorded elsewhere. Succeeds if the host has dropped it already.
    ///
    /// # Errors
    /// [`AttemptError::Launch`] if the host is unresponsive.
    pub async fn release(&self, key: &AttemptKey) -> Result<(), AttemptError> {
        Ok(self.host.release(key).await.map_err(LaunchError::from)?)
    }

    /// Makes the host drop all attempts except the running one.
    ///
    /// # Errors
    /// [`AttemptError::Launch`] if the host is unresponsive.
    pub async fn release_others(&self, running: Option<&AttemptKey>) -> Result<(), AttemptError> {
        Ok(self.host.release_others(running).await.map_err(LaunchError::from)?)
    }

    /// Does the attempt belong to this machine, rather than to an earlier enrolment on this disk? True if its request
    /// is unreadable. False if its request is missing: the request is durable with the claim, so nothing has begun. Or
    /// a removal was interrupted, and a removed attempt is no evidence.
    #[must_use]
    pub fn is_of(&self, key: &AttemptKey, machine: MachineId) -> bool {
        match self.dir(key).request() {
            Ok(request) => request.machine_id == machine,
            Err(AttemptError::File { source, .. }) => source.kind() != io::ErrorKind::NotFound,
            Err(_) => true,
        }
    }

    /// Evidence of an attempt for a new ledger.
    ///
    /// # Errors
    /// As [`Attempts::inspect`].
    pub fn trace(&self, key: AttemptKey) -> Result<Trace, AttemptError> {
        let hash = self.dir(&key).request().ok().map(|request| request.hash);
        let found = match self.inspect(&key) {
            Err(AttemptError::Damaged { .. }) => Found::Lost,
            found => found?,
        };
        Ok(Trace { key, hash, found })
    }

    /// State of an attempt, as far as its directory proves it.
    ///
    /// # Errors
    /// [`AttemptError::Damaged`] or [`AttemptError::File`].
    pub fn inspect(&self, key: &AttemptKey) -> Result<Found, AttemptError> {
        self.dir(key).find()
    }

    /// Waits until exec-item is gone and returns the attempt's state, which is never `Running`. There is no timeout
    /// here: exec-item enforces the item's time limit, and its death ends the wait too.
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
            // The pipe carries no data: it becomes readable when its last writer closes it. A hanging process keeps it
            // open.
            match timeout(LOOK_AGAIN_AFTER, alive.map_err(file)?.readable()).await {
                Err(_) => continue,
                Ok(gone) => gone.map_err(file)?,
            }
            match dir.find()? {
                Found::Running => sleep(LOCK_GRACE).await,
                found => return Ok(found),
            }
        }
    }

    /// Progress of its transfer, if it is one.
    #[must_use]
    pub fn progress(&self, key: &AttemptKey) -> Option<Progress> {
        self.dir(key).progress()
    }

    /// Output of an attempt, from `tail_bytes` before the end, or everything kept.
    #[must_use]
    pub fn output(&self, key: &AttemptKey, tail_bytes: Option<u64>) -> OutputReader {
        OutputReader::new(self.dir(key), tail_bytes)
    }

    /// Removes an attempt whose outcome is recorded elsewhere. Succeeds if it is missing.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn remove(&self, key: &AttemptKey) -> Result<(), AttemptError> {
        self.forget_inputs(key)?;
        let path = self.dir(key).path().to_owned();
        remove_tree(&path).map_err(|source| AttemptError::File { what: "remove", path, source })
    }

    /// Removes the oldest of these attempts if all of them exceed the disk quota. The first is the newest, which is
    /// under way.
    ///
    /// # Errors
    /// [`AttemptError::File`]; the rest is removed on a later call.
    pub fn make_room(&self, newest_first: &[AttemptKey]) -> Result<(), AttemptError> {
        // A missing directory has size 0.
        let bytes_of = |key: &AttemptKey| room::bytes_of(self.dir(key).path()).unwrap_or(0);
        let attempts = newest_first.iter().map(|key| (key.clone(), bytes_of(key)));
        room::beyond(attempts).iter().try_for_each(|key| self.remove(key))
    }

    /// Directory of its record, for people.
    #[must_use]
    pub fn directory(&self, key: &AttemptKey) -> PathBuf {
        self.dir(key).path().to_owned()
    }

    /// Attempts that have a directory, in order.
    ///
    /// # Errors
    /// [`AttemptError::File`].
    pub fn list(&self) -> Result<Vec<AttemptKey>, AttemptError> {
        keys_in(&self.root)
    }

    fn dir(&self, key: &AttemptKey) -> AttemptDir {
        AttemptDir::new(self.root.join(key.to_string()))
    }
}

/// Attempts with an entry in a directory, in order.
fn keys_in(dir: &Path) -> Result<Vec<AttemptKey>, AttemptError> {
    let failed = |source| AttemptError::File { what: "list", path: dir.to_owned(), source };
    let mut keys = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        keys.extend(name.to_str().and_then(|name| name.parse().ok()));
    }
    keys.sort();
    Ok(keys)
}

fn read_start(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(COMPLAINT_BYTES_MAX).read_to_end(&mut bytes)).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
