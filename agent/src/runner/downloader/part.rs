//! The part of a file that is here, `<path>.muster-part`, with its digest so far.

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

/// Read at a time when hashing what is on disk.
const READ_BYTES: usize = 1 << 20;
/// Looked at to tell a web page from a file.
const HEAD_BYTES: u64 = 64;

/// See the module.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    digest: Context,
    bytes: u64,
}

/// Where the part of a file lies: beside it, so that the rename stays on one file system.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".muster-part");
    name.into()
}

/// Digest of a whole file, from its beginning.
pub(super) fn digest_of(file: &mut File) -> io::Result<Sha256> {
    let mut digest = Context::new(&SHA256);
    hash_rest(file, &mut digest)?;
    Ok(finished(digest))
}

/// A file of our own. None: there is nothing, or something of others', which they could change after we looked.
pub(super) fn own(path: &Path) -> io::Result<Option<File>> {
    opened(OpenOptions::new().read(true), path, |found| found.is_file() && found.uid() == geteuid().as_raw())
}

/// Opens the very thing at the path, neither what a link leads to nor a FIFO that waits, if it is as it should be.
fn opened(options: &mut OpenOptions, path: &Path, good: impl Fn(&Metadata) -> bool) -> io::Result<Option<File>> {
    match options.custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path) {
        Ok(file) => Ok(good(&file.metadata()?).then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ELOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an earlier attempt made, and nobody else can have written or linked.
fn is_left_over(found: &Metadata) -> bool {
    found.is_file() && found.uid() == geteuid().as_raw() && found.nlink() == 1 && found.mode() & 0o022 == 0
}

impl Part {
    /// Goes on with what an earlier attempt left, hashing it first. Anything else in its place is removed.
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

    /// After an error the part is as it was before, or [`Self::persist`] refuses it.
    pub(super) fn append(&mut self, chunk: &[u8]) -> io::Result<()> {
        // A full disk takes the beginning of a chunk: the next one would be written behind bytes that nobody hashed.
        self.file.write_all(chunk).inspect_err(|_| drop(self.file.set_len(self.bytes)))?;
        self.digest.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
    }

    /// Bytes that there is room for besides. None: the file system does not say.
    pub(super) fn room(&self) -> io::Result<Option<u64>> {
        let space = fstatvfs(&self.file)?;
        Ok((space.blocks() > 0).then(|| space.blocks_available().saturating_mul(space.fragment_size())))
    }

    /// Back to nothing.
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

    /// Puts it in its place, durably. What is not as long as what was hashed is something else.
    pub(super) fn persist(self, path: &Path, mode: u32) -> io::Result<File> {
        let found = self.file.metadata()?.len();
        if found != self.bytes {
            let message = format!("{} bytes were received, and {found} are in {}", self.bytes, self.path.display());
            fs::remove_file(&self.path)?;
            return Err(io::Error::other(message));
        }
        let placed = self.file.set_permissions(Permissions::from_mode(mode));
        let placed = placed.and_then(|()| self.file.sync_all()).and_then(|()| fs::rename(&self.path, path));
        // After a failed sync the cache still shows what the disk has not: the next attempt would take it for whole.
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
