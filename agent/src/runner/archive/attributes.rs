//! Attributes of an entry besides its content: owner, permissions, extended attributes and modification time. They are
//! set in this order, because each may reset an earlier one.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, lchown},
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, XattrFlags, lsetxattr, utimensat};

use super::{Owners, members::Member};

/// Attributes of one entry.
pub(super) struct Attributes {
    mode: u32,
    owner: (u32, u32),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    mtime: (i64, i64),
}

/// Failed attribute, with the reason.
pub(super) enum AttributeError {
    /// The archive requires something that this machine lacks.
    Refused(String),
    File(&'static str, PathBuf, io::Error),
}

impl Attributes {
    /// Reads the attributes. Err: a number outside Linux's range of users.
    pub(super) fn of(member: &Member) -> Result<Self, &'static str> {
        let id =
            |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or("has an owner that is none of Linux");
        let Member { mode, uid, gid, mtime, ref xattrs, .. } = *member;
        Ok(Self { mode, owner: (id(uid)?, id(gid)?), xattrs: xattrs.clone(), mtime })
    }

    pub(super) fn is_roots(&self) -> bool {
        self.owner == (0, 0)
    }

    /// Sets them; for a link, on the link itself.
    pub(super) fn set(&self, path: &Path, owners: Owners) -> Result<(), AttributeError> {
        let failed = |what| move |error: io::Error| AttributeError::File(what, path.to_owned(), error);
        let kind = fs::symlink_metadata(path).map_err(failed("look at"))?.file_type();
        if owners == Owners::Archive {
            let (uid, gid) = self.owner;
            lchown(path, Some(uid), Some(gid)).map_err(failed("set the owner of"))?;
        }
        // A link has no permissions of its own.
        if !kind.is_symlink() {
            // A non-root agent needs write access to a directory to empty it later.
            let own = if kind.is_dir() && !geteuid().is_root() { 0o700 } else { 0 };
            let mode = self.mode | own;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("set the mode of"))?;
        }
        for (name, value) in &self.xattrs {
            lsetxattr(path, name.as_slice(), value, XattrFlags::empty()).map_err(|error| {
                let name = String::from_utf8_lossy(name);
                AttributeError::Refused(format!("has the attribute {name:?}, which cannot be set here: {error}"))
            })?;
        }
        let (tv_sec, tv_nsec) = self.mtime;
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omitted, last_modification: Timespec { tv_sec, tv_nsec } };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failed("set the time of")(error.into()))
    }
}
