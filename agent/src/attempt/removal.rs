//! Removes directory trees, but never what is mounted in them: a script may have left a file server's directory there.

use std::{
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Removes the tree. Not there is as good.
///
/// # Errors
/// If something is mounted at it or below it: then nothing is removed.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        real => real?,
    };
    let mounts = fs::read("/proc/self/mountinfo")?;
    if let Some(mount) = mounted_below(&mounts, &real) {
        return Err(io::Error::other(format!("{} is mounted there: unmount it first", mount.display())));
    }
    fs::remove_dir_all(path)
}

/// A mount point at the path or below it, from the lines of mountinfo: its fifth field.
fn mounted_below(mountinfo: &[u8], path: &Path) -> Option<PathBuf> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|field| PathBuf::from(std::ffi::OsStr::from_bytes(&unescaped(field))))
        .find(|mount| mount.starts_with(path))
}

/// The kernel writes blank, tab, newline and backslash as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => {
                plain.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_seen_before_anything_is_removed() {
        let mountinfo = b"22 1 253:0 / / rw - ext4 /dev/vda rw\n\
            30 22 0:5 / /proc rw - proc proc rw\n\
            41 22 0:40 / /var/lib/muster/attempts/a.1.1/work/my\\040share rw - nfs4 nas:/ rw\n";
        for (path, expected) in [
            ("/var/lib/muster/attempts/a.1.1", Some("/var/lib/muster/attempts/a.1.1/work/my share")),
            ("/var/lib/muster/attempts/a.1.1/work/my share", Some("/var/lib/muster/attempts/a.1.1/work/my share")),
            ("/var/lib/muster/attempts/a.1.10", None),
            ("/var/lib/muster/attempts/a.1", None),
            ("/opt/app", None),
            ("/proc", Some("/proc")),
        ] {
            assert_eq!(mounted_below(mountinfo, Path::new(path)).as_deref(), expected.map(Path::new), "{path}");
        }
    }

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
