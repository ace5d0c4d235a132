//! Content of an unpacked directory. Its marker lists a fingerprint of each entry from the archive, which reveals later
//! additions and changes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Write as _},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};
use muster_proto::model::ItemHash;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use super::xattrs;

/// Marker in the unpacked directory: the digest of its archive, then its entries. Only a directory that has it, or an
/// empty one, is ever replaced.
pub(super) const MARKER: &str = ".muster-unpacked";
/// Maximum size of a marker: a million entries with paths of 400 bytes.
const MARKER_BYTES_MAX: u64 = 512 << 20;
/// Size of the read buffer.
const READ_BYTES: usize = 256 * 1024;

/// Content of a directory according to its marker. Paths are stored with escapes, as they are shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inventory {
    /// Digest of the archive.
    pub(super) archive: String,
    entries: BTreeMap<String, ItemHash>,
}

/// Inode and last change of every entry of a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Moment(BTreeMap<String, (u64, i64, i64)>);

impl Inventory {
    /// Reads the marker in the directory. None: it is missing, or it is something else of that name.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Self>> {
        let path = dir.join(MARKER);
        let mut options = OpenOptions::new();
        let file = match options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            opened => opened?,
        };
        let found = file.metadata()?;
        if !found.is_file() || found.len() > MARKER_BYTES_MAX {
            return Ok(None);
        }
        let mut text = String::new();
        file.take(MARKER_BYTES_MAX).read_to_string(&mut text)?;
        let mut lines = text.lines();
        let Some(archive) = lines.next() else { return Ok(None) };
        let entry = |line: &str| {
            let (fingerprint, path) = line.split_once(' ')?;
            Some((path.to_owned(), ItemHash::try_from(fingerprint.to_owned()).ok()?))
        };
        // An unlisted entry counts as foreign.
        Ok(Some(Self { archive: archive.to_owned(), entries: lines.filter_map(entry).collect() }))
    }

    /// Lists the directory's current content.
    pub(super) fn take(dir: &Path, archive: &str) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        walk(dir, &mut |name, path, found| {
            entries.insert(name, fingerprint(path, found)?);
            Ok(true)
        })?;
        Ok(Self { archive: archive.to_owned(), entries })
    }

    /// Writes the marker.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let mut text = format!("{}\n", self.archive);
        for (path, fingerprint) in &self.entries {
            let _ = writeln!(text, "{fingerprint} {path}");
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o644).open(dir.join(MARKER))?;
        file.write_all(text.as_bytes())
    }

    /// Entries that are unlisted or differ from the list: they would be lost with the directory. The content of an
    /// unlisted directory is omitted.
    pub(super) fn foreign(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut foreign = Vec::new();
        walk(dir, &mut |name, path, found| {
            let listed = self.entries.get(&name);
            let as_listed = match listed {
                Some(listed) => fingerprint(path, found)? == *listed,
                None => false,
            };
            if !as_listed {
                foreign.push(name);
            }
            Ok(listed.is_some())
        })?;
        Ok(foreign)
    }
}

impl Moment {
    /// Reads the directory's current content.
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        walk(dir, &mut |name, _, found| {
            entries.insert(name, (found.ino(), found.ctime(), found.ctime_nsec()));
            Ok(true)
        })?;
        Ok(Self(entries))
    }

    /// Entries that are new or changed since `before`.
    pub(super) fn since(&self, before: &Self) -> Vec<String> {
        let changed = self.0.iter().filter(|(name, state)| before.0.get(*name) != Some(*state));
        changed.map(|(name, _)| name.clone()).collect()
    }
}

/// Calls `visit` for everything below the directory except its marker. If it returns false, that directory's content is
/// skipped.
fn walk(dir: &Path, visit: &mut dyn FnMut(String, &Path, &Metadata) -> io::Result<bool>) -> io::Result<()> {
    let mut left = vec![PathBuf::new()];
    while let Some(inside) = left.pop() {
        let mut names: Vec<_> =
            fs::read_dir(dir.join(&inside))?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        names.sort_unstable();
        for name in names {
            let inside = inside.join(name);
            if inside == Path::new(MARKER) {
                continue;
            }
            let path = dir.join(&inside);
            let found = fs::symlink_metadata(&path)?;
            if visit(shown(&inside), &path, &found)? && found.is_dir() {
                left.push(inside);
            }
        }
    }
    Ok(())
}

/// Unique text of a path in one line, with escapes for anything beyond plain text.
fn shown(path: &Path) -> String {
    let plain = path.to_str().filter(|text| !text.contains(|c: char| c == '\\' || c.is_control()));
    plain.map_or_else(|| path.as_os_str().as_bytes().escape_ascii().to_string(), str::to_owned)
}

/// Fingerprint of an entry, times excluded.
fn fingerprint(path: &Path, found: &Metadata) -> io::Result<ItemHash> {
    let mut digest = Context::new(&SHA256);
    // The mode includes the file type.
    for number in [found.mode(), found.uid(), found.gid()] {
        digest.update(&number.to_be_bytes());
    }
    let xattrs = xattrs::all(path)?;
    digest.update(&xattrs.len().to_be_bytes());
    for bytes in xattrs.iter().flat_map(|(name, value)| [name, value]) {
        digest.update(&bytes.len().to_be_bytes());
        digest.update(bytes);
    }
    if found.is_symlink() {
        digest.update(fs::read_link(path)?.as_os_str().as_bytes());
    } else if found.is_file() {
        let mut options = OpenOptions::new();
        hash_rest(options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?, &mut digest)?;
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.finish().as_ref());
    Ok(ItemHash(bytes))
}

fn hash_rest(mut file: File, digest: &mut Context) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Ok(()),
            read => digest.update(buffer.get(..read?).unwrap_or_default()),
        }
    }
}
