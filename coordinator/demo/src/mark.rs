//! Identity of a demo's directory and processes: a random word in a file of the directory and in the environment of the
//! processes. It ensures that stopping a demo in /tmp spares other processes that name /tmp.

use std::{
    env, fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use musterctl::errors::Failure;
use uuid::Uuid;

/// Name of the environment variable.
pub(super) const VARIABLE: &str = "MUSTER_DEMO";
/// Name of the file.
const FILE: &str = "demo.mark";

/// The word of one demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark(String);

impl Mark {
    /// The mark of the parent shell, so that pasted commands form one demo; else a new one.
    pub(super) fn given_or_new() -> Self {
        env::var(VARIABLE).ok().and_then(|text| Self::parse(&text)).unwrap_or_else(|| Self(Uuid::new_v4().to_string()))
    }

    /// Mark a directory as this demo's.
    pub(super) fn write(&self, dir: &Path) -> Result<(), Failure> {
        let path = file(dir);
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| io::Write::write_all(&mut file, self.0.as_bytes()))
            .map_err(|source| Failure::failed(format!("cannot write {}", path.display())).because(source))
    }

    /// The mark of a directory. None: it belongs to another program.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = file(dir);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Failure::bad_input(format!("cannot read {}", path.display())).because(source)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Uuid::parse_str(text).ok().map(|word| Self(word.to_string()))
    }

    pub(super) fn word(&self) -> &str {
        &self.0
    }

    /// The mark as an assignment in an environment.
    pub(super) fn assignment(&self) -> String {
        format!("{VARIABLE}={}", self.0)
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join(FILE)
}
