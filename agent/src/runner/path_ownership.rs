//! Ownership of paths. A user with write access to any directory of a path can redirect root's writes, and can replace
//! verified content.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use nix::unistd::{Uid, User, geteuid};

/// Mode bits: all users may write; but only a file's owner may rename or remove it.
const WORLD: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Checks that only root or we can change any directory of the path. Missing directories will be our own.
///
/// # Errors
/// The problem, and what to do.
pub(crate) fn is_ours(path: &Path) -> Result<(), String> {
    let there = path.ancestors().skip(1).find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    // A link leads to directories with their own path.
    let real = fs::canonicalize(there).unwrap_or_else(|_| there.to_owned());
    match there.ancestors().chain(real.ancestors()).find_map(|dir| Some((dir, others(dir)?))) {
        None => Ok(()),
        Some((dir, who)) => Err(format!(
            "{} can be changed by {who}: choose a place that only root can change, and copy it on from there",
            dir.display()
        )),
    }
}

/// Other users that can change the directory. A group may: its members were added on purpose.
fn others(dir: &Path) -> Option<String> {
    let found = fs::metadata(dir).ok()?;
    foreign(&found).or_else(|| (found.mode() & (WORLD | STICKY) == WORLD).then(|| "everybody".to_owned()))
}

/// Owner, if it is a user other than root and us.
fn foreign(found: &fs::Metadata) -> Option<String> {
    let owner = Uid::from_raw(found.uid());
    let name = || User::from_uid(owner).ok().flatten().map_or_else(|| owner.to_string(), |user| user.name);
    (!owner.is_root() && owner != geteuid()).then(|| format!("user {}", name()))
}

/// Owner of a foreign entry in a directory that all users may write to, such as `/tmp`. Elsewhere an entry has its
/// owner by root's intention.
pub(super) fn planted_by(path: &Path) -> Option<String> {
    let everybody = fs::metadata(path.parent()?).is_ok_and(|parent| parent.mode() & WORLD != 0);
    // The owner of the link itself counts.
    fs::symlink_metadata(path).ok().filter(|_| everybody).and_then(|found| foreign(&found))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn a_way_that_others_can_change_is_refused() {
        let site = tempfile::tempdir().expect("a directory");
        let dir = site.path().join("a/b");
        fs::create_dir_all(&dir).expect("directories");
        let link = site.path().join("link");
        symlink(&dir, &link).expect("a link");
        let ways = [dir.join("c/file"), link.join("file")];
        let check = |expected: Option<&str>| {
            for way in &ways {
                let said = is_ours(way).err();
                let as_expected = match (&said, expected) {
                    (None, None) => true,
                    (Some(said), Some(expected)) => said.contains(expected),
                    _ => false,
                };
                assert!(as_expected, "{}: {said:?}, not {expected:?}", way.display());
            }
        };
        let mode = |mode| fs::set_permissions(site.path().join("a"), fs::Permissions::from_mode(mode)).expect("mode");
        check(None);
        mode(0o777);
        check(Some("a can be changed by everybody"));
        mode(0o1777);
        check(None);
        mode(0o775);
        check(None);
        // Only root can change the owner of a directory.
        if geteuid().is_root() {
            chown(&dir, Some(4_000_000), None).expect("given away");
            check(Some(" can be changed by user 4000000"));
        }
    }
}
