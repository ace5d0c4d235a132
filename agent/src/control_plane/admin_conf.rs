//! Reads the kubeconfig of the cluster's administrator on this machine.

use std::{
    fs::Metadata,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Component, Path},
};

use super::file::{self, FileError};
use crate::runner::path_ownership;
use muster_proto::model::AdminConf;
use nix::{fcntl::OFlag, unistd::geteuid};

/// Mode bits: group or all users may write.
const OTHERS_WRITE: u32 = 0o022;

/// Reads it, if root alone can change it: whoever can, chooses which cluster is drained.
pub(super) fn read(path: &Path) -> Result<AdminConf, FileError> {
    let unfit = |problem: String| FileError::Unfit { path: path.to_owned(), problem };
    if !path.is_absolute() {
        return Err(unfit("is not an absolute path".to_owned()));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(unfit("has '..' in its path".to_owned()));
    }
    path_ownership::is_ours(path).map_err(unfit)?;
    let content = file::read_if(path, OFlag::O_NOFOLLOW, is_ours)?;
    Ok(AdminConf(content))
}

fn is_ours(found: &Metadata) -> Result<(), String> {
    let owner = found.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(format!("belongs to user {owner}, not to root"));
    }
    match found.permissions().mode() & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err("can be changed by others than root: chmod 600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{chown, symlink},
    };

    use super::*;
    use crate::exec_item::with_sources;

    #[test]
    fn only_roots_regular_file_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("admin.conf");
        let mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        let said = |path: &Path| read(path).map_err(|error| with_sources(&error));
        fs::write(&path, "canary").expect("written");
        mode(0o600);
        assert_eq!(said(&path).expect("read").0.as_slice(), b"canary");
        mode(0o620);
        assert!(said(&path).expect_err("refused").contains("can be changed by others"));
        mode(0o600);
        if geteuid().is_root() {
            chown(&path, Some(4_000_000), None).expect("given away");
            assert!(said(&path).expect_err("refused").contains("belongs to user 4000000"));
            chown(&path, Some(0), None).expect("taken back");
        }
        fs::write(&path, vec![b'x'; 64 << 10]).expect("written");
        assert!(said(&path).is_ok());
        fs::write(&path, vec![b'x'; (64 << 10) + 1]).expect("written");
        assert!(said(&path).expect_err("refused").contains("longer than 64 KiB"));
        let link = dir.path().join("link");
        symlink(&path, &link).expect("a link");
        for (path, problem) in [
            (link.as_path(), "cannot read"),
            (dir.path(), "is not a regular file"),
            (Path::new("/dev/zero"), "is not a regular file"),
            (&dir.path().join("none"), "cannot read"),
            (&dir.path().join("../admin.conf"), "has '..' in its path"),
            (Path::new("admin.conf"), "is not an absolute path"),
        ] {
            let said = said(path).expect_err("refused");
            assert!(said.contains(problem) && !said.contains("canary"), "{said}");
        }
    }
}
