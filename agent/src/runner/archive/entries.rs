//! The entries of an archive, one by one, into a directory that nobody else writes to.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use tar::{Archive, Entry, EntryType};

use super::{ArchiveError, ENTRIES_MAX, inventory::MARKER};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// Unpacks all entries below `root`.
pub(super) fn unpack(archive: impl Read, root: &Path, grown_bytes_max: u64) -> Result<(), ArchiveError> {
    let mut archive = Archive::new(Limited { inner: archive, left: grown_bytes_max });
    let mut written_bytes = 0;
    let readable = |error| unreadable(error, grown_bytes_max);
    for (count, entry) in (1..).zip(archive.entries().map_err(readable)?) {
        if count > ENTRIES_MAX {
            return Err(ArchiveError::TooMany);
        }
        let entry = entry.map_err(readable)?;
        // A sparse file is larger than its entry.
        let left = grown_bytes_max.saturating_sub(written_bytes);
        written_bytes += place(entry, root, left).map_err(|problem| problem.of(grown_bytes_max))?;
    }
    Ok(())
}

/// What is wrong with one entry.
enum Problem {
    Entry(String, &'static str),
    File(&'static str, PathBuf, io::Error),
    Read(io::Error),
    TooLong,
}

impl Problem {
    fn of(self, grown_bytes_max: u64) -> ArchiveError {
        match self {
            Self::Entry(name, problem) => ArchiveError::Entry { name, problem },
            Self::File(what, path, source) => ArchiveError::File { what, path, source },
            Self::Read(error) => unreadable(error, grown_bytes_max),
            Self::TooLong => ArchiveError::Bomb(grown_bytes_max),
        }
    }
}

fn unreadable(error: io::Error, grown_bytes_max: u64) -> ArchiveError {
    if error.kind() == io::ErrorKind::FileTooLarge {
        ArchiveError::Bomb(grown_bytes_max)
    } else {
        ArchiveError::Unreadable(error)
    }
}

/// Puts one entry where it belongs and says how many bytes it took.
fn place<R: Read>(mut entry: Entry<'_, R>, root: &Path, left: u64) -> Result<u64, Problem> {
    let name = entry.path().map_err(Problem::Read)?.into_owned();
    let bad = |problem| Problem::Entry(name.display().to_string(), problem);
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(0);
    }
    let Some(inside) = below(&name).ok_or_else(|| bad("leads out of the archive"))? else {
        return if kind.is_dir() { Ok(0) } else { Err(bad("has no name")) };
    };
    if inside == Path::new(MARKER) {
        return Err(bad("has a name that is Muster's own"));
    }
    let mode = entry.header().mode().map_err(Problem::Read)?;
    let spot = Spot { root, path: root.join(&inside), directory: inside.parent().unwrap_or(Path::new("")) };
    let through = || bad("goes through a link or a file");
    real_directory(root, spot.directory).map_err(|problem| problem.unwrap_or_else(through))?;
    match kind {
        EntryType::Directory => {
            let in_the_way = || bad("is there as no directory");
            real_directory(root, &inside).map_err(|problem| problem.unwrap_or_else(in_the_way))?;
            set_mode(&spot.path, (mode & 0o777) | 0o700).map_err(|error| spot.failed(error))?;
            Ok(0)
        }
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse if mode & SET_ID != 0 => {
            Err(bad("is set-user-id or set-group-id"))
        }
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => place_file(&mut entry, &spot, mode, left),
        EntryType::Symlink | EntryType::Link => {
            let target = entry.link_name().map_err(Problem::Read)?.ok_or_else(|| bad("is a link to nothing"))?;
            let placed = if kind.is_symlink() { place_symlink(&target, &spot) } else { place_link(&target, &spot) };
            placed.map_err(|problem| match problem {
                Ok(words) => bad(words),
                Err(error) => spot.failed(error),
            })?;
            Ok(0)
        }
        EntryType::Char | EntryType::Block => Err(bad("is a device")),
        EntryType::Fifo => Err(bad("is a fifo")),
        _ => Err(bad("is of a kind that is not unpacked")),
    }
}

/// Where an entry goes.
struct Spot<'a> {
    root: &'a Path,
    path: PathBuf,
    /// Of the entry, below the root; real all the way.
    directory: &'a Path,
}

impl Spot<'_> {
    fn failed(&self, error: io::Error) -> Problem {
        Problem::File("create", self.path.clone(), error)
    }
}

fn place_file(from: &mut impl Read, spot: &Spot<'_>, mode: u32, left: u64) -> Result<u64, Problem> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&spot.path);
    let mut file = replace_file(&spot.path).and_then(|()| create()).map_err(|error| spot.failed(error))?;
    let bytes = copy(from, &mut file, left, &spot.path)?;
    set_mode(&spot.path, mode & 0o777).map_err(|error| spot.failed(error))?;
    Ok(bytes)
}

/// Ok in the error: what is wrong with the archive.
fn place_symlink(target: &Path, spot: &Spot<'_>) -> Result<(), Result<&'static str, io::Error>> {
    if !stays_inside(target, spot.directory) {
        return Err(Ok("is a link that leads out of the archive"));
    }
    replace_file(&spot.path).and_then(|()| symlink(target, &spot.path)).map_err(Err)
}

/// As [`place_symlink`].
fn place_link(target: &Path, spot: &Spot<'_>) -> Result<(), Result<&'static str, io::Error>> {
    let inside = below(target).flatten().ok_or(Ok("is a hard link that leads out of the archive"))?;
    let through_real = is_real_directory(spot.root, inside.parent().unwrap_or(Path::new("")));
    let source = spot.root.join(inside);
    if !through_real || !fs::symlink_metadata(&source).is_ok_and(|found| found.is_file()) {
        return Err(Ok("is a hard link to no file of the archive"));
    }
    if source == spot.path {
        return Ok(());
    }
    replace_file(&spot.path).and_then(|()| fs::hard_link(&source, &spot.path)).map_err(Err)
}

/// The name as a path below the root. None = it leads out; `Some(None)` = it is the root itself.
#[expect(clippy::option_option, reason = "three answers, each used once")]
fn below(name: &Path) -> Option<Option<PathBuf>> {
    let mut inside = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => inside.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(Some(inside).filter(|inside| !inside.as_os_str().is_empty()))
}

/// The rule for links; see the head of archive.rs.
fn stays_inside(target: &Path, directory: &Path) -> bool {
    let climbs = target.components().take_while(|part| *part == Component::ParentDir).count();
    climbs <= directory.components().count()
        && target.components().skip(climbs).all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Is every step of the way, and its end, a directory and no link?
fn is_real_directory(root: &Path, inside: &Path) -> bool {
    let mut path = root.to_owned();
    inside.components().all(|part| {
        path.push(part);
        fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir())
    })
}

/// Makes it one, where nothing is yet. `Err(None)` = something else is in the way.
fn real_directory(root: &Path, inside: &Path) -> Result<(), Option<Problem>> {
    let mut path = root.to_owned();
    for part in inside.components() {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = fs::DirBuilder::new().mode(0o755).create(&path);
                made.map_err(|source| Some(Problem::File("create", path.clone(), source)))?;
            }
            Err(source) => return Err(Some(Problem::File("look at", path, source))),
        }
    }
    Ok(())
}

/// Like tar: a later entry of the same name counts. A directory is not replaced by a file.
fn replace_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}

/// Copies, telling apart which side failed.
fn copy(from: &mut impl Read, to: &mut File, left: u64, path: &Path) -> Result<u64, Problem> {
    let mut buffer = vec![0; 256 * 1024];
    let mut bytes = 0;
    loop {
        let count = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(Problem::Read)?,
        };
        if count == 0 {
            return Ok(bytes);
        }
        bytes += count as u64;
        if bytes > left {
            return Err(Problem::TooLong);
        }
        io::Write::write_all(to, buffer.get(..count).unwrap_or_default())
            .map_err(|source| Problem::File("write", path.to_owned(), source))?;
    }
}

/// Reads at most so many bytes; more is an error, not an end.
struct Limited<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(count)
    }
}
