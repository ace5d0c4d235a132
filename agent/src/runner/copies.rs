//! Backup directories of runners: readable by root alone, every copy complete or absent, the oldest removed.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};
use muster_proto::model::ItemHash;

use crate::attempt::sync_dir;

/// Default of the param `keep`: number of copies of one sort.
const KEEP_DEFAULT: usize = 5;
/// Maximum of `keep`.
const KEEP_MAX: usize = 100;
/// Extension of an unfinished copy.
const PART: &str = "part";
/// Extension of a copy.
const WHOLE: &str = "tar";

/// File system error.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}", path.display())]
pub(super) struct CopyError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl CopyError {
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { what, path, source }
    }
}

/// Directory and settings of the copies of one sort.
#[derive(Debug)]
pub(super) struct Copies {
    dir: PathBuf,
    keep: usize,
    prefix: String,
}

impl Copies {
    /// From the params `path` and `keep`. The prefix distinguishes these copies from others in the directory.
    ///
    /// # Errors
    /// The invalid param and its fault.
    pub(super) fn new(path: &str, keep: Option<&str>, prefix: String) -> Result<Self, (&'static str, String)> {
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(("path", "is not an absolute path without `..`".to_owned()));
        }
        let keep = match keep {
            None => KEEP_DEFAULT,
            Some(text) => {
                let number = text.parse().ok().filter(|number| (1..=KEEP_MAX).contains(number));
                number.ok_or_else(|| ("keep", format!("expected a number from 1 to {KEEP_MAX}")))?
            }
        };
        Ok(Self { dir: PathBuf::from(path), keep, prefix })
    }

    /// Creates the directory, removes the leftovers of an interrupted attempt of this machine, and names a new copy.
    pub(super) fn begin(&self, taken_at_ms: u64) -> Result<PathBuf, CopyError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(CopyError::file("create", &self.dir))?;
        for name in self.names()?.iter().filter(|name| is_copy(name, &self.prefix, PART)) {
            let path = self.dir.join(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(CopyError::file("remove", &path))?;
        }
        // The new name sorts last even if a clock that was ahead left later names.
        let newest = self.names()?.iter().filter_map(|name| taken_at(name, &self.prefix, WHOLE)).max();
        let taken_at_ms = taken_at_ms.max(newest.map_or(0, |newest| newest.saturating_add(1)));
        // Fixed width, so that the names sort by time.
        Ok(self.dir.join(format!("{}{taken_at_ms:015}.{WHOLE}", self.prefix)))
    }

    fn names(&self) -> Result<Vec<String>, CopyError> {
        let listed = fs::read_dir(&self.dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = listed.map_err(CopyError::file("list", &self.dir))?;
        Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Removes all but the newest of these copies; returns the removed names.
    pub(super) fn remove_old(&self) -> Result<Vec<String>, CopyError> {
        let old = superseded(self.names()?, &self.prefix, self.keep);
        for name in &old {
            let path = self.dir.join(name);
            fs::remove_file(&path).map_err(CopyError::file("remove", &path))?;
        }
        Ok(old)
    }
}

/// Is it one of ours? The directory may contain other files.
fn is_copy(name: &str, prefix: &str, extension: &str) -> bool {
    taken_at(name, prefix, extension).is_some()
}

/// Time in one of our names, in Unix milliseconds.
fn taken_at(name: &str, prefix: &str, extension: &str) -> Option<u64> {
    let time = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(extension)?.strip_suffix('.'))?;
    time.bytes().all(|b| b.is_ascii_digit()).then(|| time.parse().ok()).flatten()
}

/// All but the newest of ours.
fn superseded(mut names: Vec<String>, prefix: &str, keep: usize) -> Vec<String> {
    names.retain(|name| is_copy(name, prefix, WHOLE));
    names.sort_unstable_by_key(|name| taken_at(name, prefix, WHOLE));
    names.truncate(names.len().saturating_sub(keep));
    names
}

/// Path of an unfinished copy.
pub(super) fn part_of(target: &Path) -> PathBuf {
    target.with_extension(PART)
}

/// Makes the finished copy durable and renames it.
pub(super) fn put_in_place(written: &File, part: &Path, target: &Path) -> Result<(), CopyError> {
    written.sync_all().map_err(CopyError::file("sync", target))?;
    fs::rename(part, target).map_err(CopyError::file("put in place", target))?;
    let dir = target.parent().unwrap_or(Path::new("/"));
    sync_dir(dir).map_err(CopyError::file("sync", dir))
}

/// Counts and digests the bytes that pass through.
pub(super) struct Digesting<F> {
    pub(super) inner: F,
    digest: Context,
    bytes: u64,
}

impl<F> Digesting<F> {
    pub(super) fn new(inner: F) -> Self {
        Self { inner, digest: Context::new(&SHA256), bytes: 0 }
    }

    fn took(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Number of bytes, and their SHA-256 in hex.
    pub(super) fn finish(self) -> (u64, String) {
        let mut sum = [0; 32];
        sum.copy_from_slice(self.digest.finish().as_ref());
        (self.bytes, ItemHash(sum).to_string())
    }
}

impl<F: Write> Write for Digesting<F> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.took(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<F: Read> Read for Digesting<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.took(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_are_checked() {
        let of =
            |path, keep| Copies::new(path, keep, String::new()).map(|copies| copies.keep).map_err(|(name, _)| name);
        assert_eq!(of("/b", None), Ok(KEEP_DEFAULT));
        assert_eq!(of("/b", Some("100")), Ok(100));
        for (path, keep, param) in
            [("b", None, "path"), ("/b/../etc", None, "path"), ("/b", Some("0"), "keep"), ("/b", Some("101"), "keep")]
        {
            assert_eq!(of(path, keep), Err(param), "{path} {keep:?}");
        }
    }

    #[test]
    fn only_the_oldest_of_our_own_copies_and_what_is_half_written_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("copies");
        let copies = Copies::new(&path.to_string_lossy(), Some("2"), "c1-hot-".to_owned()).expect("good");
        assert_eq!(copies.begin(7).expect("begun"), path.join("c1-hot-000000000000007.tar"));
        let others = [
            "c1-cold-0.tar",
            "c1-hot-0.tar.gz",
            "c1-hot-x-0.tar",
            "c1-hot-.tar",
            "notes.tar",
            "c2-hot-4.part",
            "movie.part",
        ];
        for name in others.iter().chain(&["c1-hot-3.tar", "c1-hot-1.tar", "c1-hot-2.tar", "c1-hot-4.part"]) {
            fs::write(path.join(name), "").expect("written");
        }
        copies.begin(8).expect("begun");
        assert_eq!(copies.remove_old().expect("removed"), ["c1-hot-1.tar"]);
        let mut left = copies.names().expect("listed");
        left.sort();
        let mut expected: Vec<&str> = others.into_iter().chain(["c1-hot-2.tar", "c1-hot-3.tar"]).collect();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn a_copy_is_the_newest_whatever_the_clock_says() {
        let dir = tempfile::tempdir().expect("a directory");
        let copies = Copies::new(&dir.path().to_string_lossy(), Some("1"), "c1-".to_owned()).expect("good");
        for taken_at_ms in [9_000, 7, 10_000] {
            let target = copies.begin(taken_at_ms).expect("begun");
            fs::write(&target, "").expect("written");
            copies.remove_old().expect("removed");
            assert_eq!(copies.names().expect("listed"), [target.file_name().expect("a name").to_string_lossy()]);
        }
        assert_eq!(copies.names().expect("listed"), ["c1-000000000010000.tar"]);
    }
}
