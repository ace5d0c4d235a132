//! Whom a path belongs to. Who may change a directory on the way can lead what root writes there elsewhere, and put
//! something of his own in the place of what was verified.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use nix::unistd::{Uid, User, geteuid};

/// Mode bits: everybody may write; but only the owner of a file may rename or remove it.
const WORLD: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Is every directory on the way to the path root's or our own, and no other's to change? What is not there yet is made
/// by us.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(super) fn is_ours(path: &Path) -> Result<(), String> {
    let there = path.ancestors().skip(1).find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    // A link leads to directories with a way of their own.
    let real = fs::canonicalize(there).unwrap_or_else(|_| there.to_owned());
    match there.ancestors().chain(real.ancestors()).find_map(|dir| Some((dir, others(dir)?))) {
        None => Ok(()),
        Some((dir, who)) => Err(format!(
            "{} can be changed by {who}: choose a place that only root can change, and copy it on from there",
            dir.display()
        )),
    }
}

/// Who else may change the directory. A group may: whoever put somebody into it meant it so.
fn others(dir: &Path) -> Option<String> {
    let found = fs::metadata(dir).ok()?;
    foreign(&found).or_else(|| (found.mode() & (WORLD | STICKY) == WORLD).then(|| "everybody".to_owned()))
}

/// Whose it is, if neither root's nor ours.
fn foreign(found: &fs::Metadata) -> Option<String> {
    let owner = Uid::from_raw(found.uid());
    let name = || User::from_uid(owner).ok().flatten().map_or_else(|| owner.to_string(), |user| user.name);
    (!owner.is_root() && owner != geteuid()).then(|| format!("user {}", name()))
}

/// Who has put there what is at the path, if it was neither root nor we: everybody may do that in `/tmp` and the like.
/// Elsewhere it is there, and whosever it is, because root wanted it so.
pub(super) fn planted_by(path: &Path) -> Option<String> {
    let everybody = fs::metadata(path.parent()?).is_ok_and(|parent| parent.mode() & WORLD != 0);
    // A link's owner counts, not that of what it leads to.
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
        // Only root can give a directory away.
        if geteuid().is_root() {
            chown(&dir, Some(4_000_000), None).expect("given away");
            check(Some(" can be changed by user 4000000"));
        }
    }
}
