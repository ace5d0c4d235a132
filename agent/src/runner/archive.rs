//! Unpacks an archive into a directory of its own. It unpacks beside the target and swaps the result in, so that
//! readers see it only as a whole. It writes only there, regardless of names and links in the archive. A former
//! directory is replaced only while its content is exactly that of its archive. Beside workloads, it must also be
//! unused: a process in it would stay in the old one.
//!
//! Every entry comes out as it was packed, or the archive is refused by the entry's name: see the list in
//! docs/reference/manifest.md. GNU tar, bsdtar and others make archives, each with its own extra headers beyond ustar.

mod attributes;
mod entries;
mod in_use;
mod inventory;
mod links;
mod members;
mod pax;
mod sparse;
mod xattrs;

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, BufReader, Read, Seek},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use nix::{
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    unistd::syncfs,
};

use super::path_ownership;
use crate::{
    attempt::{remove_tree, sync_dir},
    mounts::Mounts,
};
use attributes::AttributeError;
use in_use::User;
use inventory::{Inventory, Moment};

/// Maximum of entries in one archive.
pub(super) const ENTRIES_MAX: u64 = 1_000_000;
/// Maximum ratio of unpacked to packed size.
const RATIO_MAX: u64 = 100;
/// Unpacked size that is allowed at any ratio.
const GROWN_BYTES_MIN: u64 = 64 << 20;
/// Maximum of the unpacked size.
const GROWN_BYTES_MAX: u64 = 256 << 30;
/// Maximum length of all files of one archive, including the holes of sparse ones. Holes are free on disk, but a
/// fingerprint reads each file, which takes a few minutes at this length.
const LENGTH_BYTES_MAX: u64 = 1 << 40;
/// Largest window of a zstd archive, as a power of two: 128 MiB, the default limit of `zstd -d`.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Maximum of entries that an error names.
const NAMED_MAX: usize = 5;

/// Format of an archive.
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

    /// Format from a file name's extension.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        ["tar", "tar.gz", "tgz", "tar.zst"]
            .iter()
            .find(|word| name.strip_suffix(**word).is_some_and(|rest| rest.ends_with('.')))
            .and_then(|word| Self::named(word))
    }
}

/// Reason why unpacking failed. The target is unchanged, and so is everything outside it.
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
    Entry { name: String, problem: String },
    #[error("it has more than {ENTRIES_MAX} entries")]
    TooMany,
    #[error("it unpacks to more than {0} bytes")]
    Bomb(u64),
    #[error("its files are longer than {LENGTH_BYTES_MAX} bytes in all, with the holes in them")]
    TooLong,
    #[error("{} has other content and was not made by muster: remove it, or unpack elsewhere", .0.display())]
    Occupied(PathBuf),
    #[error(
        "{} is replaced as a whole, and this in it is not from its archive or was changed since: {}; move that \
         elsewhere or remove it, then retry, or unpack into another directory",
        dir.display(), named(names)
    )]
    Foreign { dir: PathBuf, names: Vec<String> },
    /// The former content was swapped out and may be at either place.
    #[error(
        "{error}; what was there before could not be put back, and nothing is removed: look into {} too", dir.display()
    )]
    Stranded {
        dir: PathBuf,
        error: Box<ArchiveError>,
        #[source]
        source: io::Error,
    },
    #[error("{} is mounted there: unmount it first", .0.display())]
    Mounted(PathBuf),
    #[error(
        "{} is in use: {user}; what is in it stays in the old one, and nothing moves workloads away before an item of \
         phase prepare or a hook: put it into phase deploy, or unpack each version into a directory of its own",
        dir.display()
    )]
    InUse { dir: PathBuf, user: User },
    #[error("{} belongs to {who}, who may want it taken for ours: remove it, or unpack elsewhere", .path.display())]
    Planted { path: PathBuf, who: String },
}

impl ArchiveError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    /// A full disk may be cleared and a process may end; the archive itself stays the same.
    pub(super) const fn is_retryable(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Stranded { .. } | Self::InUse { .. })
    }
}

fn named(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let named = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// May workloads run on the machine while an archive is unpacked?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surroundings {
    /// Workloads are still here: phase prepare, and hooks.
    Workloads,
    /// Movable workloads have been moved away, or the item's author declared it harmless.
    Cleared,
}

/// Owner of the unpacked entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owners {
    /// Root, or the agent's own user if that is another.
    Root,
    /// The users and groups in the archive, by number.
    Archive,
}

impl Owners {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "root" => Some(Self::Root),
            "archive" => Some(Self::Archive),
            _ => None,
        }
    }
}

/// Result of unpacking.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unpacked {
    /// It was there already.
    Before,
    Now {
        /// Number of entries with another owner than in the archive.
        disowned: u64,
    },
}

/// Target of an archive with its settings.
pub(super) struct Place<'a> {
    pub(super) target: &'a Path,
    pub(super) owners: Owners,
    /// Digest of the archive.
    pub(super) digest: &'a str,
    pub(super) surroundings: Surroundings,
}

/// Current state of the target.
enum Present {
    /// This archive's content.
    Wanted,
    Nothing,
    /// An empty directory.
    Empty,
    /// Content of another archive.
    Former(Inventory),
}

impl Place<'_> {
    /// Checks whether the current content permits unpacking, before anything is downloaded.
    pub(super) fn check(&self) -> Result<(), ArchiveError> {
        self.replaceable(&self.present()?)
    }

    fn present(&self) -> Result<Present, ArchiveError> {
        let target = self.target;
        // First of all: where other users could have created the marker, it is worthless.
        if let Some(who) = path_ownership::planted_by(target) {
            return Err(ArchiveError::Planted { path: target.to_owned(), who });
        }
        match Inventory::read(target).map_err(ArchiveError::file("read the marker in", target))? {
            Some(found) if found.archive == self.digest => return Ok(Present::Wanted),
            Some(found) => return Ok(Present::Former(found)),
            None => {}
        }
        match fs::symlink_metadata(target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Present::Nothing),
            Err(error) => Err(ArchiveError::file("look at", target)(error)),
            Ok(found) => {
                let empty = found.is_dir() && fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
                if empty { Ok(Present::Empty) } else { Err(ArchiveError::Occupied(target.to_owned())) }
            }
        }
    }

    /// May the current content be replaced?
    fn replaceable(&self, present: &Present) -> Result<(), ArchiveError> {
        let (target, look) = (self.target, ArchiveError::file("look at", self.target));
        match present {
            Present::Wanted | Present::Nothing => return Ok(()),
            Present::Empty => {}
            Present::Former(former) => only_its_own(former, target)?,
        }
        let real = fs::canonicalize(target);
        let mounted = real.and_then(|real| Ok(Mounts::of("self")?.below(&real).map(Path::to_owned)));
        if let Some(mount) = mounted.map_err(look)? {
            return Err(ArchiveError::Mounted(mount));
        }
        if self.surroundings == Surroundings::Cleared {
            return Ok(());
        }
        let user = in_use::user_of(target).map_err(ArchiveError::file("tell who uses", target))?;
        user.map_or(Ok(()), |user| Err(ArchiveError::InUse { dir: target.to_owned(), user }))
    }
}

/// Is the directory's content exactly that of its archive?
fn only_its_own(listed: &Inventory, dir: &Path) -> Result<(), ArchiveError> {
    let names = listed.foreign(dir).map_err(ArchiveError::file("look through", dir))?;
    if names.is_empty() { Ok(()) } else { Err(ArchiveError::Foreign { dir: dir.to_owned(), names }) }
}

/// Unpacks the archive as the directory `place.target`.
pub(super) fn unpack(archive: &File, format: Format, place: &Place<'_>) -> Result<Unpacked, ArchiveError> {
    unpack_with(&sync_dir, archive, format, place)
}

/// As [`unpack`]; `sync` makes the entries of a directory durable.
fn unpack_with(
    sync: &dyn Fn(&Path) -> io::Result<()>,
    archive: &File,
    format: Format,
    place: &Place<'_>,
) -> Result<Unpacked, ArchiveError> {
    let target = place.target;
    if matches!(place.present()?, Present::Wanted) {
        return Ok(Unpacked::Before);
    }
    let parent = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(ArchiveError::file("create", parent))?;
    let fresh = beside(target);
    // A kill between swap and removal leaves the former content there, and a process may have written to it meanwhile.
    if let Some(left) = Inventory::read(&fresh).map_err(ArchiveError::file("read the marker in", &fresh))? {
        only_its_own(&left, &fresh)?;
    }
    remove(&fresh)?;
    DirBuilder::new().mode(0o700).create(&fresh).map_err(ArchiveError::file("create", &fresh))?;
    let filled = fill(&fresh, archive, format, place);
    match filled.and_then(|disowned| put(&fresh, place, sync).map(|()| Unpacked::Now { disowned })) {
        Err(stranded @ ArchiveError::Stranded { .. }) => Err(stranded),
        // The failed partial result, or the old content that was swapped out and checked.
        done => {
            remove(&fresh)?;
            done
        }
    }
}

fn beside(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".muster-new");
    name.into()
}

fn remove(fresh: &Path) -> Result<(), ArchiveError> {
    remove_tree(fresh).map_err(ArchiveError::file("remove", fresh))
}

/// Unpacks into the fresh directory, durably. Returns the number of entries with another owner than in the archive.
fn fill(fresh: &Path, mut file: &File, format: Format, place: &Place<'_>) -> Result<u64, ArchiveError> {
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
    let placed = entries::unpack(unpacked, fresh, limit, place.owners)?;
    let listed = Inventory::take(fresh, place.digest).and_then(|inventory| inventory.write(fresh));
    listed.map_err(ArchiveError::file("write the marker in", fresh))?;
    match placed.root {
        Some(attributes) => attributes.set(fresh, place.owners).map_err(|error| match error {
            AttributeError::Refused(problem) => ArchiveError::Entry { name: ".".to_owned(), problem },
            AttributeError::File(what, path, source) => ArchiveError::File { what, path, source },
        })?,
        None => fs::set_permissions(fresh, Permissions::from_mode(entries::DIRECTORY_MODE))
            .map_err(ArchiveError::file("open up", fresh))?,
    }
    let synced = File::open(fresh).and_then(|dir| Ok(syncfs(dir)?));
    synced.map_err(ArchiveError::file("make durable", fresh))?;
    Ok(placed.disowned)
}

/// Moves the fresh directory to the target in one step. The former content is then at `fresh` and may be removed.
fn put(fresh: &Path, place: &Place<'_>, sync: &dyn Fn(&Path) -> io::Result<()>) -> Result<(), ArchiveError> {
    let target = place.target;
    let failed = || ArchiveError::file("put in place", target);
    let sync = || sync(target.parent().unwrap_or(Path::new("/")));
    // The target may have changed while unpacking.
    let present = place.present()?;
    if matches!(present, Present::Nothing) {
        fs::rename(fresh, target).map_err(failed())?;
        return sync().map_err(failed());
    }
    let before = Moment::of(target).map_err(failed())?;
    place.replaceable(&present)?;
    let swap = || renameat2(AT_FDCWD, fresh, AT_FDCWD, target, RenameFlags::RENAME_EXCHANGE).map_err(io::Error::from);
    swap().map_err(failed())?;
    // A write between the check and the swap went to the content that is about to be removed.
    let names = sync().and_then(|()| Ok(Moment::of(fresh)?.since(&before))).map_err(failed());
    let error = match names {
        Ok(names) if names.is_empty() => return Ok(()),
        Ok(names) => ArchiveError::Foreign { dir: target.to_owned(), names },
        Err(error) => error,
    };
    // The content may have changed: swap it back.
    match swap().and_then(|()| sync()) {
        Ok(()) => Err(error),
        Err(source) => Err(ArchiveError::Stranded { dir: fresh.to_owned(), error: Box::new(error), source }),
    }
}

#[cfg(test)]
#[path = "archive/tests.rs"]
mod tests;
