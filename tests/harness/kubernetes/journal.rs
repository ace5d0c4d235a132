//! What a run made, in a file: written before an object is made and once its UID is known, so that a run that was
//! killed can be cleaned up by UID. The run, or whoever cleans up after it, holds a lock on the file (flock), which
//! ends with the process.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::text;

const EXTENSION: &str = "jsonl";

/// An object that the run made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    /// Path of the object.
    pub(super) path: String,
    /// Its UID. None: whether it was made is unknown, for the run ended before the answer came.
    pub(super) uid: Option<String>,
}

#[derive(Debug)]
struct Content {
    file: File,
    made: Vec<Made>,
}

/// A run's journal. Each line is on the disk before the next step.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    run: String,
    /// UID of the cluster's kube-system.
    cluster: String,
    /// Was it locked by somebody else when it was opened?
    in_use: bool,
    content: Mutex<Content>,
}

impl Journal {
    /// Start the journal of a new run.
    pub(super) fn start(directory: &Path, run: &str, cluster: &str) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path = directory.join(format!("{run}.{EXTENSION}"));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        file.try_lock().with_context(|| format!("cannot lock {}", path.display()))?;
        let content = Mutex::new(Content { file, made: Vec::new() });
        let journal = Self { path, run: run.to_owned(), cluster: cluster.to_owned(), in_use: false, content };
        write(&mut journal.content().file, &json!({"run": run, "cluster": cluster}))?;
        Ok(journal)
    }

    /// The journals in a directory, locked where nobody else has the lock. A journal without its first line is of a run
    /// that made nothing.
    pub(super) fn all(directory: &Path) -> Result<Vec<Self>> {
        let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
        let mut journals = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                journals.extend(Self::open(path)?);
            }
        }
        Ok(journals)
    }

    fn open(path: PathBuf) -> Result<Option<Self>> {
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let in_use = match file.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock {}", path.display())),
        };
        let content = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // The last line may be torn.
        let mut lines = content.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let Some(first) = lines.next() else { return Ok(None) };
        let mut made = Vec::new();
        for line in lines {
            replay(&mut made, &line);
        }
        let content = Mutex::new(Content { file, made });
        let (run, cluster) = (text(&first, "/run").to_owned(), text(&first, "/cluster").to_owned());
        Ok(Some(Self { path, run, cluster, in_use, content }))
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, line: &Value) -> Result<()> {
        let mut content = self.content();
        write(&mut content.file, line).with_context(|| format!("cannot write {}", self.path.display()))?;
        replay(&mut content.made, line);
        Ok(())
    }

    /// An object is about to be made.
    pub(super) fn intend(&self, path: &str) -> Result<()> {
        self.record(&json!({"intended": path}))
    }

    /// An object was made.
    pub(super) fn made(&self, path: &str, uid: &str) -> Result<()> {
        self.record(&json!({"made": path, "uid": uid}))
    }

    /// An object that was about to be made was refused.
    pub(super) fn not_made(&self, path: &str) -> Result<()> {
        self.record(&json!({"refused": path}))
    }

    /// An object is gone.
    pub(super) fn gone(&self, path: &str) -> Result<()> {
        self.record(&json!({"gone": path}))
    }

    /// Everything that may exist, in the order in which it was made.
    pub(super) fn all_made(&self) -> Vec<Made> {
        self.content().made.clone()
    }

    /// Name of the run.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// UID of the cluster.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Does its run live, or does somebody clean up after it?
    pub(super) fn in_use(&self) -> bool {
        self.in_use
    }

    /// Let go of the lock, as the end of the process does.
    #[cfg(test)]
    pub(super) fn unlock(&self) -> Result<()> {
        Ok(self.content().file.unlock()?)
    }

    /// Where the journal is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Remove the journal: nothing is left of its run.
    pub(super) fn end(&self) -> Result<()> {
        fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

fn write(file: &mut File, line: &Value) -> Result<()> {
    file.write_all(format!("{line}\n").as_bytes())?;
    Ok(file.sync_data()?)
}

fn replay(made: &mut Vec<Made>, line: &Value) {
    let at = |field: &str| line.get(field).and_then(Value::as_str);
    if let Some(path) = at("intended") {
        made.push(Made { path: path.to_owned(), uid: None });
    } else if let (Some(path), Some(uid)) = (at("made"), at("uid")) {
        for known in made.iter_mut().filter(|known| known.path == path && known.uid.is_none()) {
            known.uid = Some(uid.to_owned());
        }
    } else if let Some(path) = at("refused") {
        made.retain(|known| known.path != path || known.uid.is_some());
    } else if let Some(path) = at("gone") {
        made.retain(|known| known.path != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_survives_its_run() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let journal = Journal::start(directory.path(), "muster-test-1", "cluster")?;
        for path in ["/a", "/b", "/c"] {
            journal.intend(path)?;
        }
        journal.made("/a", "1")?;
        journal.made("/b", "2")?;
        journal.gone("/a")?;
        journal.intend("/b")?;
        journal.not_made("/b")?;
        write(&mut journal.content().file, &json!("torn"))?;
        let read = Journal::all(directory.path())?;
        let [read] = &read[..] else { panic!("{read:?}") };
        let made = |path: &str, uid: Option<&str>| Made { path: path.to_owned(), uid: uid.map(str::to_owned) };
        assert_eq!((read.run(), read.cluster(), read.in_use()), ("muster-test-1", "cluster", true));
        assert_eq!(read.all_made(), [made("/b", Some("2")), made("/c", None)]);
        assert_eq!(read.all_made(), journal.all_made());
        drop(journal);
        let free = Journal::all(directory.path())?;
        assert!(matches!(&free[..], [one] if !one.in_use()));
        assert!(Journal::all(directory.path())?.iter().all(Journal::in_use), "it is locked while it is open");
        read.end()?;
        assert!(Journal::all(directory.path())?.is_empty());
        Ok(())
    }
}
