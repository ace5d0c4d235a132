//! Shared code of the package manager tests: items, and their outcome in a separate root.

use std::{
    fs,
    io::{Read, pipe},
    path::Path,
    time::{Duration, Instant},
};

use super::{
    bring_about,
    locks::TimeBudget,
    manager::Manager,
    plan::{Want, Wanted},
};
use crate::{attempt::AttemptDir, exec_item::Report};

/// An empty root with a repository beside it.
pub(super) struct Trial {
    pub(super) dir: tempfile::TempDir,
    pub(super) manager: Manager,
}

/// Short waits for other processes.
pub(super) fn budget() -> TimeBudget {
    TimeBudget { wait_max: Duration::from_millis(600), until: Instant::now() + Duration::from_secs(3600) }
}

pub(super) fn wants(text: &str) -> Wanted {
    let want = |word: &str| {
        let (name, version) = word.split_once('=').map_or((word, None), |(name, version)| (name, Some(version)));
        Want { name: name.to_owned(), version: version.map(str::to_owned) }
    };
    Wanted { install: text.split(' ').map(want).collect(), ..Wanted::default() }
}

pub(super) fn removes(names: &[&str]) -> Wanted {
    Wanted { remove: names.iter().map(|name| (*name).to_owned()).collect(), ..Wanted::default() }
}

/// Creates these directories below a root.
pub(super) fn make_dirs(root: &Path, dirs: &[&str]) {
    for dir in dirs {
        fs::create_dir_all(root.join(dir)).expect("a directory");
    }
}

impl Trial {
    /// Outcome of an item, and its output.
    pub(super) fn bring_about(&self, wanted: &Wanted) -> (Result<String, String>, String) {
        let (mut reader, writer) = pipe().expect("a pipe");
        let text = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).expect("text");
            text
        });
        let report = Report::new(writer, AttemptDir::new(self.dir.path().join("attempt")));
        let done = bring_about(&self.manager, wanted, &report).map_err(|error| crate::exec_item::with_sources(&error));
        drop(report);
        (done, text.join().expect("text"))
    }

    pub(super) fn done(&self, wanted: &Wanted) -> String {
        let (done, text) = self.bring_about(wanted);
        done.unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    pub(super) fn refused(&self, wanted: &Wanted) -> String {
        let (done, text) = self.bring_about(wanted);
        done.map(|done| panic!("{done}\n{text}")).expect_err("refused")
    }

    /// Content of a package's file below `/opt`.
    pub(super) fn file(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.dir.path().join("root/opt").join(name)).ok()?;
        Some(text.trim_end().to_owned())
    }
}
