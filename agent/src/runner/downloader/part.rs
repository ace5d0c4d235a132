//! The part of a file that is here, `<path>.muster-part`, with its digest so far.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};
use nix::libc::O_NOFOLLOW;

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

/// Digest of a whole file.
pub(super) fn digest_of(path: &Path) -> io::Result<Sha256> {
    let mut digest = Context::new(&SHA256);
    hash_rest(&mut File::open(path)?, &mut digest)?;
    Ok(finished(digest))
}

impl Part {
    /// Goes on with what an earlier attempt left, hashing it first.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).custom_flags(O_NOFOLLOW).open(&path)?;
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

    pub(super) fn append(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.file.write_all(chunk)?;
        self.digest.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
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

    /// Puts it in its place, durably.
    pub(super) fn persist(self, path: &Path, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))?;
        self.file.sync_all()?;
        fs::rename(&self.path, path)?;
        sync_dir(path.parent().unwrap_or(Path::new("/")))
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
