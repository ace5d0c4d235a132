//! Removes directory trees, but keeps mounted file systems in them: a script may have left a file server mounted there.

use std::{fs, io, path::Path};

use crate::mounts::Mounts;

/// Removes the tree. Succeeds if it is missing.
///
/// # Errors
/// If a file system is mounted at it or below it. The tree is then kept.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        real => real?,
    };
    if let Some(mount) = Mounts::of("self")?.below(&real) {
        return Err(io::Error::other(format!("{} is mounted there: unmount it first", mount.display())));
    }
    fs::remove_dir_all(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_not_removed_and_a_plain_tree_is() {
        let error = remove_tree(Path::new("/proc")).expect_err("a mount");
        assert_eq!(error.to_string(), "/proc is mounted there: unmount it first");
        let dir = tempfile::tempdir().expect("a directory");
        let tree = dir.path().join("a/b");
        fs::create_dir_all(&tree).expect("a tree");
        remove_tree(&dir.path().join("a")).expect("removed");
        remove_tree(&dir.path().join("a")).expect("gone is as good");
        assert!(!tree.exists() && dir.path().exists());
    }
}
