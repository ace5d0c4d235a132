//! Archive of a copy: written under a temporary name while its digest is computed, made durable, verified, and moved
//! into place.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::Serialize;
use tar::{Builder, EntryType, Header};

use crate::runner::copies::{CopyError, Digesting, part_of, put_in_place};

/// Name of the entry that describes the archive.
const LABEL: &str = "muster-backup.json";
/// Maximum of passes: a hot copy reads changing files, and each change restarts it.
const TRIES: usize = 5;
/// Maximum of entries in a copy. A manager has a few dozen.
const ENTRIES_MAX: usize = 10_000;
/// Maximum depth of directories in a copy.
const DEPTH_MAX: usize = 16;

/// The written archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Archive {
    pub(super) bytes: u64,
    /// Digest in hex.
    pub(super) sha256: String,
    /// Number of regular files.
    pub(super) files: usize,
}

/// Reason why the archive failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("{} changed {TRIES} times while it was copied", .0.display())]
    Changing(PathBuf),
    #[error("{} has more than {ENTRIES_MAX} entries, or is more than {DEPTH_MAX} directories deep", .0.display())]
    TooMany(PathBuf),
    #[error("{} is not what was written: {problem}", path.display())]
    Damaged { path: PathBuf, problem: &'static str },
}

/// Copies a directory into an archive at `target`, with a label first. `target` exists only if it is complete.
pub(super) fn write(source: &Path, target: &Path, label: &impl Serialize) -> Result<Archive, ArchiveError> {
    let part = part_of(target);
    let label = serde_json::to_vec_pretty(label).unwrap_or_default(); // plain data always serializes
    let mut tries = 0;
    let (file, archive) = loop {
        tries += 1;
        match write_once(source, &part, &label)? {
            Some(written) => break written,
            None if tries < TRIES => {}
            None => return Err(ArchiveError::Changing(source.to_owned())),
        }
    };
    take(&file, target, &archive)?;
    Ok(archive)
}

/// Verifies the archive and only then renames it: every visible copy is complete.
fn take(file: &File, target: &Path, archive: &Archive) -> Result<(), ArchiveError> {
    let part = part_of(target);
    file.sync_all().map_err(CopyError::file("sync", &part))?;
    // Forces the read to come from disk. If the kernel keeps its cache anyway, that is read.
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    if let Err(error) = verify(&part, archive) {
        fs::remove_file(&part).map_err(CopyError::file("remove", &part))?;
        return Err(error);
    }
    Ok(put_in_place(file, &part, target)?)
}

/// One pass; None if a file changed its size or disappeared meanwhile.
fn write_once(source: &Path, part: &Path, label: &[u8]) -> Result<Option<(File, Archive)>, ArchiveError> {
    // Always a new file: in a shared directory, an existing one may be another user's, or a link.
    match fs::remove_file(part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.map_err(CopyError::file("remove", part))?,
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part);
    let output = Digesting::new(file.map_err(CopyError::file("create", part))?);
    let mut builder = Builder::new(output);
    let written = CopyError::file("write", part);
    let mut header = Header::new_gnu();
    header.set_mode(0o600);
    header.set_size(label.len() as u64);
    builder.append_data(&mut header, LABEL, label).map_err(written)?;
    let mut files = 0;
    for (path, name) in entries(source)? {
        match append(&mut builder, &path, &name).map_err(CopyError::file("copy", &path))? {
            Appended::File => files += 1,
            Appended::Other => {}
            Appended::Changed => return Ok(None),
        }
    }
    let output = builder.into_inner().map_err(CopyError::file("write", part))?;
    let file = output.inner.try_clone().map_err(CopyError::file("write", part))?;
    let (bytes, sha256) = output.finish();
    Ok(Some((file, Archive { bytes, sha256, files })))
}

/// Everything below a directory, parents first, with the names in the archive.
fn entries(source: &Path) -> Result<Vec<(PathBuf, PathBuf)>, ArchiveError> {
    let mut found = vec![(source.to_owned(), PathBuf::from("swarm"))];
    let mut at = 0;
    while let Some((path, name)) = found.get(at).cloned() {
        at += 1;
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            continue;
        }
        let listed = CopyError::file("list", &path);
        let mut children: Vec<_> = fs::read_dir(&path)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(listed)?
            .into_iter()
            .map(|entry| (entry.path(), name.join(entry.file_name())))
            .collect();
        children.sort();
        found.extend(children);
        if found.len() > ENTRIES_MAX || name.components().count() > DEPTH_MAX {
            return Err(ArchiveError::TooMany(source.to_owned()));
        }
    }
    Ok(found)
}

enum Appended {
    File,
    Other,
    Changed,
}

fn append(builder: &mut Builder<Digesting<File>>, path: &Path, name: &Path) -> io::Result<Appended> {
    let Some(metadata) = unless_gone(path.symlink_metadata())? else { return Ok(Appended::Changed) };
    let mut header = Header::new_gnu();
    header.set_metadata(&metadata);
    if metadata.is_dir() {
        builder.append_data(&mut header, name, io::empty())?;
        return Ok(Appended::Other);
    }
    if metadata.file_type().is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, name, fs::read_link(path)?)?;
        return Ok(Appended::Other);
    }
    if !metadata.is_file() {
        return Ok(Appended::Other); // the control socket: it is made anew
    }
    let Some(mut file) = unless_gone(File::open(path))? else { return Ok(Appended::Changed) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if bytes.len() as u64 != metadata.size() {
        return Ok(Appended::Changed);
    }
    builder.append_data(&mut header, name, bytes.as_slice())?;
    Ok(Appended::File)
}

fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the whole archive back from disk and verifies it.
fn verify(path: &Path, written: &Archive) -> Result<(), ArchiveError> {
    let damaged = |problem| ArchiveError::Damaged { path: path.to_owned(), problem };
    let file = File::open(path).map_err(CopyError::file("read back", path))?;
    let mut reader = Digesting::new(BufReader::new(file));
    let mut files = 0;
    let mut labelled = false;
    let read = (|| {
        for entry in tar::Archive::new(&mut reader).entries()? {
            let mut entry = entry?;
            let is_label = entry.path()?.as_os_str() == LABEL;
            labelled |= is_label;
            files += usize::from(entry.header().entry_type().is_file() && !is_label);
            io::copy(&mut entry, &mut io::sink())?;
        }
        io::copy(&mut reader, &mut io::sink()) // what pads the end
    })();
    read.map_err(CopyError::file("read back", path))?;
    let (bytes, sha256) = reader.finish();
    if bytes != written.bytes || sha256 != written.sha256 {
        return Err(damaged("its digest differs"));
    }
    if !labelled || files != written.files {
        return Err(damaged("files are missing"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(dir: &Path) -> PathBuf {
        let source = dir.join("swarm");
        fs::create_dir_all(source.join("raft/wal-v3")).expect("made");
        fs::write(source.join("docker-state.json"), "{}").expect("written");
        fs::write(source.join("raft/wal-v3/0.wal"), vec![7; 200_000]).expect("written");
        std::os::unix::fs::symlink("raft", source.join("link")).expect("linked");
        source
    }

    #[test]
    fn a_copy_reads_back_and_unpacks_to_what_was_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let target = dir.path().join("copy.tar");
        let archive = write(&source(dir.path()), &target, &"label").expect("written");
        assert_eq!((archive.files, archive.bytes), (2, target.metadata().expect("there").len()));
        verify(&target, &archive).expect("sound");
        assert_eq!(target.metadata().expect("there").mode() & 0o777, 0o600);
        assert!(!part_of(&target).exists());
        let unpacked = dir.path().join("unpacked");
        tar::Archive::new(File::open(&target).expect("there")).unpack(&unpacked).expect("unpacked");
        assert_eq!(fs::read(unpacked.join(LABEL)).expect("labelled"), b"\"label\"");
        assert_eq!(fs::read(unpacked.join("swarm/raft/wal-v3/0.wal")).expect("there"), vec![7; 200_000]);
        assert_eq!(fs::read_link(unpacked.join("swarm/link")).expect("a link"), Path::new("raft"));
    }

    #[test]
    fn damage_is_seen_before_it_counts_as_a_copy() {
        let dir = tempfile::tempdir().expect("a directory");
        let target = dir.path().join("copy.tar");
        let part = part_of(&target);
        let (_, archive) = write_once(&source(dir.path()), &part, b"label").expect("written").expect("unchanged");
        let bytes = fs::read(&part).expect("read");
        let mut flipped = bytes.clone();
        flipped[100_000] ^= 1;
        let short = bytes[..bytes.len() - 100_000].to_vec();
        for damaged in [flipped, short, Vec::new()] {
            fs::write(&part, damaged).expect("written");
            take(&File::open(&part).expect("there"), &target, &archive).expect_err("damaged");
            assert!(!target.exists() && !part.exists());
        }
        fs::write(&part, bytes).expect("written");
        take(&File::open(&part).expect("there"), &target, &archive).expect("sound");
        assert!(target.exists() && !part.exists());
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = write(&dir.path().join("none"), &dir.path().join("copy.tar"), &"label");
        assert!(matches!(missing, Err(ArchiveError::Changing(_))), "{missing:?}");
        assert!(!dir.path().join("copy.tar").exists());
    }
}
