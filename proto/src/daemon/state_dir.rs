//! Whether a daemon may trust its state directory. Another user who can change it or a parent directory can plant files
//! that the daemon reads, obeys and writes to.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

/// Mode bits: writable for all users; only a file's owner may rename or remove it.
const EVERYBODY: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Most symbolic links the kernel follows on one path (MAXSYMLINKS).
const LINKS_MAX: usize = 40;

/// Why a state directory is untrusted, and the command that fixes it.
#[derive(Debug, thiserror::Error)]
pub enum StateDirFault {
    /// It belongs to another user.
    #[error(
        "the state directory {} belongs to user {owner}, and this runs as user {us}: run it as that user; or look at \
         what is in it, then `chown -R {us} {}`",
        path.display(), path.display()
    )]
    Foreign {
        /// Path of the directory.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
        /// Our own user id.
        us: u32,
    },
    /// It, or a directory on its path, is writable for all users.
    #[error("everybody can change what is in {}: look at it, then `chmod o-w {}`", path.display(), path.display())]
    Open {
        /// The directory.
        path: PathBuf,
    },
    /// A directory on its path belongs to another user.
    #[error(
        "{} on the way to the state directory belongs to user {owner}, who can put another in its place: look at what \
         is in it, then `chown root {}`; or name a place with --state-dir that only root can change (a unit of systemd \
         has to allow it too: ReadWritePaths=)",
        path.display(), path.display()
    )]
    ForeignWay {
        /// The directory.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
    },
    /// It, or a part of its path, is a symbolic link in a directory that is writable for all users.
    #[error(
        "{} is a symbolic link to {}, and everybody can make links there: name that directory itself with --state-dir, \
         or, if it was not you who made the link, `rm {}`",
        path.display(), target.display(), path.display()
    )]
    OpenLink {
        /// Path of the link.
        path: PathBuf,
        /// Target of the link.
        target: PathBuf,
    },
    /// It, or a part of its path, is another user's symbolic link.
    #[error(
        "the state directory is reached by {}, a symbolic link of user {owner}, who can lead it elsewhere: `rm {}`, \
         and make a directory or a link of root's in its place",
        path.display(), path.display()
    )]
    ForeignLink {
        /// The link.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
    },
    /// Examining a path failed.
    #[error("cannot look at {}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// Check a state directory and its path, as far as they exist. All must belong to root or to one of `owners` (user
/// ids), and other users must have no write access. A group may have write access: its members were added on purpose.
/// Symbolic links of these users are followed, and their targets are checked in the same way.
///
/// # Errors
/// [`StateDirFault`].
pub fn check(path: &Path, us: u32, owners: &[u32]) -> Result<(), StateDirFault> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let trusted = |uid: u32| uid == 0 || owners.contains(&uid);
    let Some((path, found)) = follow(&path, trusted)? else { return Ok(()) };
    if !trusted(found.uid()) {
        return Err(StateDirFault::Foreign { path, owner: found.uid(), us });
    }
    if found.mode() & EVERYBODY != 0 { Err(StateDirFault::Open { path }) } else { Ok(()) }
}

/// Walk a path step by step, as the kernel does, and check every step. Return the real path and its metadata, if it
/// exists.
fn follow(path: &Path, trusted: impl Fn(u32) -> bool) -> Result<Option<(PathBuf, fs::Metadata)>, StateDirFault> {
    let mut left = steps(path);
    let mut at = PathBuf::from("/");
    let Some(mut found) = look(&at)? else { return Ok(None) };
    let mut links = 0;
    while let Some(step) = left.pop() {
        way_is_trusted(&at, &found, &trusted)?;
        let next = if step == ".." { at.parent().unwrap_or(&at).to_owned() } else { at.join(step) };
        let Some(found_next) = look(&next)? else { return Ok(None) };
        if !found_next.is_symlink() {
            (at, found) = (next, found_next);
            continue;
        }
        links += 1;
        let failed = |source| StateDirFault::File { path: next.clone(), source };
        let too_many = || Err(io::Error::other("too many symbolic links lead on"));
        let target = if links > LINKS_MAX { too_many() } else { fs::read_link(&next) };
        let target = target.map_err(failed)?;
        if !trusted(found_next.uid()) {
            return Err(StateDirFault::ForeignLink { path: next, owner: found_next.uid() });
        }
        // A link's owner is no proof here: any user can move one of root's own links into place under another name.
        if found.mode() & EVERYBODY != 0 {
            return Err(StateDirFault::OpenLink { path: next, target });
        }
        left.extend(steps(&target));
        if target.is_absolute() {
            at = PathBuf::from("/");
            let Some(root) = look(&at)? else { return Ok(None) };
            found = root;
        }
    }
    Ok(Some((at, found)))
}

/// The components of a path, in reverse order.
fn steps(path: &Path) -> Vec<OsString> {
    let step = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().rev().filter_map(step).collect()
}

fn way_is_trusted(dir: &Path, found: &fs::Metadata, trusted: impl Fn(u32) -> bool) -> Result<(), StateDirFault> {
    if !trusted(found.uid()) {
        return Err(StateDirFault::ForeignWay { path: dir.to_owned(), owner: found.uid() });
    }
    if found.mode() & (EVERYBODY | STICKY) == EVERYBODY {
        return Err(StateDirFault::Open { path: dir.to_owned() });
    }
    Ok(())
}

/// Metadata of a path, if it exists; links are not followed.
fn look(path: &Path) -> Result<Option<fs::Metadata>, StateDirFault> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(StateDirFault::File { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    /// A user other than root and ourselves.
    const OTHER: u32 = 4_000_000;

    #[test]
    fn directory_of_others_is_refused_with_its_remedy() {
        let site = tempfile::tempdir().expect("a directory");
        let us = fs::metadata(site.path()).expect("there").uid();
        let (way, dir, link) = (site.path().join("way"), site.path().join("way/state"), site.path().join("link"));
        fs::create_dir_all(&dir).expect("made");
        symlink(&way, &link).expect("a link");
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
        let said = |path: &Path| check(path, us, &[us]).err().map(|fault| fault.to_string());
        let refused = |path: &Path, command: String| {
            let said = said(path).expect("it is refused");
            assert!(said.contains(&command), "{said}: no {command:?}");
        };
        assert_eq!(said(&dir), None);
        assert_eq!(said(&link.join("state")), None, "a link of our own on the way");
        assert_eq!(said(&way.join("none/yet")), None);
        assert_eq!(said(&link), None, "a link of our own");
        assert_eq!(said(&site.path().join("link/")), None);
        let hop = site.path().join("hop");
        symlink("way/../link/state", &hop).expect("a link");
        assert_eq!(said(&hop), None, "by way of another");
        let (open, trap) = (site.path().join("open"), site.path().join("open/planted"));
        fs::create_dir(&open).expect("made");
        symlink(&dir, &trap).expect("a link");
        mode(&open, 0o1777);
        let remedy = format!("--state-dir, or, if it was not you who made the link, `rm {}`", trap.display());
        refused(&trap, remedy);
        symlink("round", site.path().join("round")).expect("a link");
        refused(&site.path().join("round"), "cannot look at".to_owned());
        for bits in [0o777, 0o1777, 0o702] {
            mode(&dir, bits);
            refused(&dir, format!("`chmod o-w {}`", dir.display()));
            refused(&hop, format!("`chmod o-w {}`", dir.display()));
        }
        mode(&dir, 0o770);
        assert_eq!(said(&dir), None);
        mode(&way, 0o777);
        refused(&dir, format!("`chmod o-w {}`", way.display()));
        refused(&link.join("state"), format!("`chmod o-w {}`", way.display()));
        mode(&way, 0o1777);
        assert_eq!(said(&dir), None, "as /tmp is");
        if us != 0 {
            return; // only root can give things away
        }
        lchown(&link, Some(OTHER), None).expect("given away");
        for path in [&link, &link.join("state"), &hop] {
            refused(path, format!("`rm {}`", link.display()));
        }
        assert!(check(&dir, OTHER, &[OTHER]).is_ok(), "root's, for a service of another user");
        chown(&dir, Some(OTHER), None).expect("given away");
        refused(&dir, format!("`chown -R 0 {}`", dir.display()));
        assert!(check(&dir, us, &[us, OTHER]).is_ok(), "root beside the service");
        chown(&dir, Some(us), None).expect("taken back");
        chown(&way, Some(OTHER), None).expect("given away");
        refused(&dir, format!("`chown root {}`", way.display()));
    }
}
