//! Unpacks an archive into a directory that is its alone. It is unpacked beside the target and swapped in, so nobody
//! ever sees half of it; nothing is written outside, whatever the archive's names and links say.
//!
//! Why links cannot lead out: a link's `..` stand only at its front and never climb above the root, and the
//! directories they climb through are real ones, because nothing is ever written through a link. What follows the
//! `..` only descends, and every link it may pass obeys the same rule.

mod entries;

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, BufReader, Read, Seek},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    unistd::syncfs,
};

use super::way;
use crate::attempt::{remove_tree, sync_dir};

/// Most entries of one archive.
pub(super) const ENTRIES_MAX: u64 = 1_000_000;
/// An archive may grow to this many times its size.
const RATIO_MAX: u64 = 100;
/// A small archive may grow to this, whatever the ratio.
const GROWN_BYTES_MIN: u64 = 64 << 20;
/// Nothing grows beyond this.
const GROWN_BYTES_MAX: u64 = 256 << 30;
/// Largest window of a zstd archive, as a power of two: 128 MiB, what `zstd -d` takes unasked.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// In the unpacked directory: digest of the archive it came from. Only a directory that has it, or an empty one, is
/// ever replaced.
const MARKER: &str = ".muster-unpacked";

/// How an archive is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Tar,
    TarGz,
    TarZst,
}

impl Format {
    pub(super) const WORDS: &[&str] = &["tar", "tar.gz", "tar.zst"];

    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "tar" => Some(Self::Tar),
            "tar.gz" | "tgz" => Some(Self::TarGz),
            "tar.zst" => Some(Self::TarZst),
            _ => None,
        }
    }

    /// By the end of a file's name.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        ["tar", "tar.gz", "tgz", "tar.zst"]
            .iter()
            .find(|word| name.strip_suffix(**word).is_some_and(|rest| rest.ends_with('.')))
            .and_then(|word| Self::named(word))
    }
}

/// Why an archive was not unpacked. Nothing outside the target was touched, and the target is as it was.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    #[error("cannot {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("it does not read as an archive of its format")]
    Unreadable(#[source] io::Error),
    #[error("entry {name:?} {problem}")]
    Entry { name: String, problem: &'static str },
    #[error("it has more than {ENTRIES_MAX} entries")]
    TooMany,
    #[error("it unpacks to more than {0} bytes")]
    Bomb(u64),
    #[error("{} has other content and was not made by muster: remove it, or unpack elsewhere", .0.display())]
    Occupied(PathBuf),
    #[error("{} belongs to {who}, who may want it taken for ours: remove it, or unpack elsewhere", .path.display())]
    Planted { path: PathBuf, who: String },
}

impl ArchiveError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    /// A full disk may be emptied; the archive stays what it is.
    pub(super) const fn is_retryable(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// Unpacks `archive`, whose digest is given, as the directory `target`. False = that is there already.
pub(super) fn unpack(archive: &File, format: Format, target: &Path, digest: &str) -> Result<bool, ArchiveError> {
    let marker = format!("{digest}\n");
    if is_unpacked(target, &marker)? {
        return Ok(false);
    }
    let parent = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(ArchiveError::file("create", parent))?;
    let fresh = beside(target);
    remove(&fresh)?;
    DirBuilder::new().mode(0o700).create(&fresh).map_err(ArchiveError::file("create", &fresh))?;
    let placed = fill(&fresh, archive, format, &marker).and_then(|()| place(&fresh, target));
    // The half that failed, or the old content that was swapped out.
    remove(&fresh)?;
    placed.map(|()| true)
}

fn beside(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".muster-new");
    name.into()
}

/// Is this archive's content at the target? An error if what is there is not ours to replace.
fn is_unpacked(target: &Path, marker: &str) -> Result<bool, ArchiveError> {
    // First of all: the marker proves nothing where others could lay one down.
    if let Some(who) = way::planted_by(target) {
        return Err(ArchiveError::Planted { path: target.to_owned(), who });
    }
    match fs::read(target.join(MARKER)) {
        Ok(found) => return Ok(found == marker.as_bytes()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
        Err(error) => return Err(ArchiveError::file("read the marker in", target)(error)),
    }
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(ArchiveError::file("look at", target)(error)),
        Ok(found) => {
            let empty = found.is_dir() && fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
            if empty { Ok(false) } else { Err(ArchiveError::Occupied(target.to_owned())) }
        }
    }
}

fn remove(fresh: &Path) -> Result<(), ArchiveError> {
    remove_tree(fresh).map_err(ArchiveError::file("remove", fresh))
}

/// Unpacks into the fresh directory, durably.
fn fill(fresh: &Path, mut file: &File, format: Format, marker: &str) -> Result<(), ArchiveError> {
    file.rewind().map_err(ArchiveError::Unreadable)?;
    let packed_bytes = file.metadata().map_err(ArchiveError::Unreadable)?.len();
    let limit = packed_bytes.saturating_mul(RATIO_MAX).clamp(GROWN_BYTES_MIN, GROWN_BYTES_MAX);
    let file = BufReader::with_capacity(1 << 20, file);
    let unpacked: Box<dyn Read + '_> = match format {
        Format::Tar => Box::new(file),
        Format::TarGz => Box::new(MultiGzDecoder::new(file)),
        Format::TarZst => {
            let mut decoder = zstd::Decoder::with_buffer(file).map_err(ArchiveError::Unreadable)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(ArchiveError::Unreadable)?;
            Box::new(decoder)
        }
    };
    entries::unpack(unpacked, fresh, limit)?;
    let marker_path = fresh.join(MARKER);
    fs::write(&marker_path, marker).map_err(ArchiveError::file("write", &marker_path))?;
    fs::set_permissions(fresh, Permissions::from_mode(0o755)).map_err(ArchiveError::file("open up", fresh))?;
    let synced = File::open(fresh).and_then(|dir| Ok(syncfs(dir)?));
    synced.map_err(ArchiveError::file("make durable", fresh))
}

/// Puts the fresh directory at the target, in one step; what was there before is then at `fresh`.
fn place(fresh: &Path, target: &Path) -> Result<(), ArchiveError> {
    let swapped = match renameat2(AT_FDCWD, fresh, AT_FDCWD, target, RenameFlags::RENAME_EXCHANGE) {
        Err(Errno::ENOENT) => fs::rename(fresh, target),
        done => done.map_err(io::Error::from),
    };
    swapped
        .and_then(|()| sync_dir(target.parent().unwrap_or(Path::new("/"))))
        .map_err(ArchiveError::file("put in place", target))
}

#[cfg(test)]
#[path = "archive/tests.rs"]
mod tests;
