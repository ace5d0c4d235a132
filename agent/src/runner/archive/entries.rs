//! Unpacks the members of an archive, one by one, into a directory that only we write to.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use tar::EntryType;

use super::{
    ArchiveError, ENTRIES_MAX, LENGTH_BYTES_MAX, Owners,
    attributes::{AttributeError, Attributes},
    inventory::MARKER,
    links,
    members::{Member, MemberError, Members},
};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
/// Mode of a directory that is absent from the archive.
pub(super) const DIRECTORY_MODE: u32 = 0o755;
/// Size of the copy buffer.
const COPY_BYTES: usize = 256 * 1024;

/// Remaining work and results when all members are unpacked.
pub(super) struct Placed {
    /// Attributes of the directory itself, if the archive has them.
    pub(super) root: Option<Attributes>,
    /// Number of entries with another owner than in the archive.
    pub(super) disowned: u64,
}

/// Unpacks all members below `root`.
pub(super) fn unpack(
    archive: impl Read,
    root: &Path,
    grown_bytes_max: u64,
    owners: Owners,
) -> Result<Placed, ArchiveError> {
    let mut members = Members::new(Limited { inner: archive, left: grown_bytes_max });
    let mut unpacking = Unpacking {
        root,
        owners,
        length_left: LENGTH_BYTES_MAX,
        directories: BTreeMap::new(),
        disowned: 0,
        buffer: vec![0; COPY_BYTES],
    };
    let of = |problem: Problem| problem.of(grown_bytes_max);
    let mut count = 0;
    while let Some(member) = members.next().map_err(Problem::from).map_err(of)? {
        count += 1;
        if count > ENTRIES_MAX {
            return Err(ArchiveError::TooMany);
        }
        unpacking.place(member, &mut members).map_err(of)?;
    }
    unpacking.finish().map_err(of)
}

/// Fault in one member.
enum Problem {
    Entry(String, String),
    File(&'static str, PathBuf, io::Error),
    Read(io::Error),
    TooLong,
}

impl Problem {
    fn entry(name: &Path, problem: impl Into<String>) -> Self {
        Self::Entry(name.display().to_string(), problem.into())
    }

    fn attribute(name: &Path, error: AttributeError) -> Self {
        match error {
            AttributeError::Refused(problem) => Self::entry(name, problem),
            AttributeError::File(what, path, error) => Self::File(what, path, error),
        }
    }

    fn of(self, grown_bytes_max: u64) -> ArchiveError {
        match self {
            Self::Entry(name, problem) => ArchiveError::Entry { name, problem },
            Self::File(what, path, source) => ArchiveError::File { what, path, source },
            Self::Read(error) if error.kind() == io::ErrorKind::FileTooLarge => ArchiveError::Bomb(grown_bytes_max),
            Self::Read(error) => ArchiveError::Unreadable(error),
            Self::TooLong => ArchiveError::TooLong,
        }
    }
}

impl From<MemberError> for Problem {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::Read(error) => Self::Read(error),
            MemberError::Member(name, problem) => Self::Entry(name, problem),
        }
    }
}

/// State of unpacking.
struct Unpacking<'a> {
    root: &'a Path,
    owners: Owners,
    /// Remaining total length of files, including holes; stored bytes are counted by the reader.
    length_left: u64,
    /// Directory attributes, set after the last write to the directory.
    directories: BTreeMap<PathBuf, Attributes>,
    disowned: u64,
    buffer: Vec<u8>,
}

impl Unpacking<'_> {
    /// Unpacks one member.
    fn place(&mut self, member: Member, content: &mut impl Read) -> Result<(), Problem> {
        let bad = |problem: &str| Problem::entry(&member.name, problem);
        let attributes = Attributes::of(&member).map_err(bad)?;
        let inside = below(&member.name).ok_or_else(|| bad("leads out of the archive"))?;
        if inside == Path::new(MARKER) {
            return Err(bad("has a name that is Muster's own"));
        }
        self.disowned += u64::from(self.owners == Owners::Root && !attributes.is_roots());
        if member.kind == EntryType::Directory {
            let in_the_way = || bad("is there as no directory");
            real_directory(self.root, &inside).map_err(|problem| problem.unwrap_or_else(in_the_way))?;
            self.directories.insert(inside, attributes);
            return Ok(());
        }
        let Some(directory) = inside.parent() else { return Err(bad("has no name")) };
        let through = || bad("goes through a link or a file");
        real_directory(self.root, directory).map_err(|problem| problem.unwrap_or_else(through))?;
        let path = self.root.join(&inside);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Err(bad("is there as a directory"));
        }
        let failed = |error| Problem::File("create", path.clone(), error);
        match member.kind {
            EntryType::Regular | EntryType::GNUSparse if member.mode & SET_ID != 0 => {
                return Err(bad("is set-user-id or set-group-id"));
            }
            EntryType::Regular | EntryType::GNUSparse => self.place_file(&member, content, &path)?,
            EntryType::Symlink => {
                let target = member.link.as_ref().ok_or_else(|| bad("is a link to nothing"))?;
                replace_file(&path).and_then(|()| symlink(target, &path)).map_err(failed)?;
            }
            // A hard link shares its target's attributes.
            EntryType::Link => {
                let target = member.link.as_ref().ok_or_else(|| bad("is a link to nothing"))?;
                return self.place_link(target, &path).map_err(|problem| problem.map_or_else(failed, bad));
            }
            EntryType::Char | EntryType::Block => return Err(bad("is a device")),
            EntryType::Fifo => return Err(bad("is a fifo")),
            _ => return Err(bad("is of a kind that is not unpacked")),
        }
        attributes.set(&path, self.owners).map_err(|error| Problem::attribute(&member.name, error))
    }

    fn place_file(&mut self, member: &Member, content: &mut impl Read, path: &Path) -> Result<(), Problem> {
        self.length_left = self.length_left.checked_sub(member.extents.size).ok_or(Problem::TooLong)?;
        let failed = |what| move |error| Problem::File(what, path.to_owned(), error);
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = replace_file(path).and_then(|()| create()).map_err(failed("create"))?;
        for extent in &member.extents.list {
            file.seek(SeekFrom::Start(extent.at)).map_err(failed("write"))?;
            copy((&mut *content).take(extent.bytes), &mut file, path, &mut self.buffer)?;
        }
        file.set_len(member.extents.size).map_err(failed("write"))
    }

    /// Creates a hard link. Ok in the error: a fault in the archive.
    fn place_link(&self, target: &Path, path: &Path) -> Result<(), Result<&'static str, io::Error>> {
        let inside = below(target).ok_or(Ok("is a hard link that leads out of the archive"))?;
        let through_real = is_real_directory(self.root, inside.parent().unwrap_or(Path::new("")));
        let source = self.root.join(inside);
        if !through_real || !fs::symlink_metadata(&source).is_ok_and(|found| found.is_file()) {
            return Err(Ok("is a hard link to no file of the archive"));
        }
        if source == path {
            return Ok(());
        }
        replace_file(path).and_then(|()| fs::hard_link(&source, path)).map_err(Err)
    }

    /// Final steps that need all members in place.
    fn finish(mut self) -> Result<Placed, Problem> {
        let out = links::first_that_leads_out(self.root);
        if let Some(link) = out.map_err(|error| Problem::File("look through", self.root.to_owned(), error))? {
            return Err(Problem::entry(&link, "is a link that leads out of the archive"));
        }
        let root = self.directories.remove(Path::new(""));
        // Deepest first: a directory's mode may block access to the ones below it.
        for (inside, attributes) in self.directories.iter().rev() {
            let set = attributes.set(&self.root.join(inside), self.owners);
            set.map_err(|error| Problem::attribute(inside, error))?;
        }
        Ok(Placed { root, disowned: self.disowned })
    }
}

/// The name as a path below the root, empty for the root itself. None: it leads outside.
fn below(name: &Path) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => inside.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(inside)
}

/// Is every component a real directory, as opposed to a link?
fn is_real_directory(root: &Path, inside: &Path) -> bool {
    let mut path = root.to_owned();
    inside.components().all(|part| {
        path.push(part);
        fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir())
    })
}

/// Creates missing directories. `Err(None)` = something else is in the way.
fn real_directory(root: &Path, inside: &Path) -> Result<(), Option<Problem>> {
    let mut path = root.to_owned();
    for part in inside.components() {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(&path);
                made.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(DIRECTORY_MODE)))
                    .map_err(|source| Some(Problem::File("create", path.clone(), source)))?;
            }
            Err(source) => return Err(Some(Problem::File("look at", path, source))),
        }
    }
    Ok(())
}

/// Like tar: a later entry of the same name wins.
fn replace_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Copies, and distinguishes which side failed.
fn copy(mut from: impl Read, to: &mut File, path: &Path, buffer: &mut [u8]) -> Result<(), Problem> {
    loop {
        let count = match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(Problem::Read)?,
        };
        if count == 0 {
            return Ok(());
        }
        to.write_all(buffer.get(..count).unwrap_or_default())
            .map_err(|source| Problem::File("write", path.to_owned(), source))?;
    }
}

/// Limits the number of bytes read; an excess is an error rather than an end of file.
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
