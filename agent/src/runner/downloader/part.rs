//! The partial file, `<path>.muster-part`, with its digest so far.

use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};
use nix::{
    libc::{ELOOP, O_NOFOLLOW, O_NONBLOCK},
    sys::statvfs::fstatvfs,
    unistd::geteuid,
};

use super::Sha256;
use crate::attempt::sync_dir;

/// Size of a read when hashing a file on disk.
const READ_BYTES: usize = 1 << 20;
/// Bytes that are checked to recognize a web page.
const HEAD_BYTES: u64 = 64;

/// Partial file; see the module.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    digest: Context,
    bytes: u64,
}

/// Path of the partial file: beside the target, so that the rename stays on one file system.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".muster-part");
    name.into()
}

/// Digest of a whole file from its start.
pub(super) fn digest_of(file: &mut File) -> io::Result<Sha256> {
    let mut digest = Context::new(&SHA256);
    hash_rest(file, &mut digest)?;
    Ok(finished(digest))
}

/// Opens a file of our own. None: it is missing, or belongs to another user and could change after the check.
pub(super) fn own(path: &Path) -> io::Result<Option<File>> {
    opened(OpenOptions::new().read(true), path, |found| found.is_file() && found.uid() == geteuid().as_raw())
}

/// Opens the file at the path itself if it passes the check. It rejects links and avoids waiting on a FIFO.
fn opened(options: &mut OpenOptions, path: &Path, good: impl Fn(&Metadata) -> bool) -> io::Result<Option<File>> {
    match options.custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path) {
        Ok(file) => Ok(good(&file.metadata()?).then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ELOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Is it an earlier attempt's file that only we can write and link?
fn is_left_over(found: &Metadata) -> bool {
    found.is_file() && found.uid() == geteuid().as_raw() && found.nlink() == 1 && found.mode() & 0o022 == 0
}

impl Part {
    /// Continues an earlier attempt's partial file, which it hashes first. Anything else at the path is removed.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).mode(0o600);
        let mut file = match opened(&mut options.clone(), &path, is_left_over)? {
            Some(file) => file,
            None => {
                if path.symlink_metadata().is_ok() {
                    fs::remove_file(&path)?;
                }
                options.create_new(true).open(&path)?
            }
        };
        let mut digest = Context::new(&SHA256);
        let bytes = hash_rest(&mut file, &mut digest)?;
        Ok(Self { path, file, digest, bytes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn digest(&self) -> Sha256 {
        finished(self.digest.clone())
    }

    /// Appends a chunk. After an error the file is unchanged, or [`Self::persist`] refuses it.
    pub(super) fn append(&mut self, chunk: &[u8]) -> io::Result<()> {
        // A full disk may store the start of a chunk: the next chunk would then follow unhashed bytes.
        self.file.write_all(chunk).inspect_err(|_| drop(self.file.set_len(self.bytes)))?;
        self.digest.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
    }

    /// Free space in bytes. None: the file system omits it.
    pub(super) fn room(&self) -> io::Result<Option<u64>> {
        let space = fstatvfs(&self.file)?;
        Ok((space.blocks() > 0).then(|| space.blocks_available().saturating_mul(space.fragment_size())))
    }

    /// Empties the file.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.digest = Context::new(&SHA256);
        self.bytes = 0;
        Ok(())
    }

    /// Is this a web page rather than a file?
    pub(super) fn looks_like_html(&mut self) -> bool {
        let mut head = Vec::new();
        let read = self.file.rewind().and_then(|()| (&self.file).take(HEAD_BYTES).read_to_end(&mut head));
        let head = String::from_utf8_lossy(&head).trim_start().to_ascii_lowercase();
        read.is_ok() && (head.starts_with("<!doctype html") || head.starts_with("<html"))
    }

    /// Moves it into place, durably. A length that differs from the hashed length means other content.
    pub(super) fn persist(self, path: &Path, mode: u32) -> io::Result<File> {
        let found = self.file.metadata()?.len();
        if found != self.bytes {
            let message = format!("{} bytes were received, and {found} are in {}", self.bytes, self.path.display());
            fs::remove_file(&self.path)?;
            return Err(io::Error::other(message));
        }
        let placed = self.file.set_permissions(Permissions::from_mode(mode));
        let placed = placed.and_then(|()| self.file.sync_all()).and_then(|()| fs::rename(&self.path, path));
        // After a failed sync, the cache still shows data that the disk lacks: the next attempt would accept it as
        // complete.
        placed.inspect_err(|_| drop(fs::remove_file(&self.path)))?;
        sync_dir(path.parent().unwrap_or(Path::new("/")))?;
        Ok(self.file)
    }
}

fn hash_rest(file: &mut File, digest: &mut Context) -> io::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        let count = match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if count == 0 {
            return Ok(bytes);
        }
        digest.update(buffer.get(..count).unwrap_or_default());
        bytes += count as u64;
    }
}

fn finished(digest: Context) -> Sha256 {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.finish().as_ref());
    Sha256(bytes)
}
