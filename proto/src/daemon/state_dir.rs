//! Whether a daemon may trust its state directory. Another user who can change it, or a directory on the way to it, can
//! put something there that the daemon reads, obeys and writes to.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Mode bits: everybody may write; but only the owner of a file may rename or remove it.
const EVERYBODY: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Why a state directory is not to be trusted, and the command that mends it.
#[derive(Debug, thiserror::Error)]
pub enum StateDirFault {
    /// It is another user's.
    #[error(
        "the state directory {} belongs to user {owner}, and this runs as user {us}: run it as that user; or look at \
         what is in it, then `chown -R {us} {}`",
        path.display(), path.display()
    )]
    Foreign {
        /// Its path.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
        /// Our own.
        us: u32,
    },
    /// Everybody can change what is in it, or what is on the way to it.
    #[error("everybody can change what is in {}: look at it, then `chmod o-w {}`", path.display(), path.display())]
    Open {
        /// The directory.
        path: PathBuf,
    },
    /// A directory on the way is another user's.
    #[error(
        "{} on the way to the state directory belongs to user {owner}, who can put another in its place: look at what \
         is in it, then `chown root {}`; or name a place with --state-dir that only root can change",
        path.display(), path.display()
    )]
    ForeignWay {
        /// The directory.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
    },
    /// It is a symbolic link.
    #[error(
        "{} is a symbolic link to {}: name that directory itself with --state-dir, or, if it was not you who made the \
         link, `rm {}`",
        path.display(), target.display(), path.display()
    )]
    Link {
        /// Its path.
        path: PathBuf,
        /// Where it leads to.
        target: PathBuf,
    },
    /// There is another user's symbolic link on the way.
    #[error(
        "{} on the way to the state directory is a symbolic link of user {owner}, who can lead it elsewhere: `rm {}`, \
         and make a directory in its place",
        path.display(), path.display()
    )]
    ForeignLink {
        /// The link.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
    },
    /// It cannot be looked at.
    #[error("cannot look at {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Checks a state directory as far as it is there: it is one of `owners`' (user ids), nobody else can change it, and
/// what is on the way to it is root's or theirs. A group may: whoever put somebody into it meant it so.
///
/// # Errors
/// [`StateDirFault`].
pub fn check(path: &Path, us: u32, owners: &[u32]) -> Result<(), StateDirFault> {
    // Without a slash at its end, behind which a link would be followed.
    let path: PathBuf = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).components().collect();
    let trusted = |uid: u32| uid == 0 || owners.contains(&uid);
    let mut way: Vec<&Path> = path.ancestors().skip(1).collect();
    way.reverse();
    for step in way {
        let Some(found) = look(step)? else { return Ok(()) };
        if found.is_symlink() && !trusted(found.uid()) {
            return Err(StateDirFault::ForeignLink { path: step.to_owned(), owner: found.uid() });
        }
        // Where a link leads to has a way of its own.
        let real = fs::canonicalize(step).map_err(|source| StateDirFault::File { path: step.to_owned(), source })?;
        for dir in real.ancestors() {
            way_is_trusted(dir, trusted)?;
        }
    }
    let Some(found) = look(&path)? else { return Ok(()) };
    if found.is_symlink() {
        let target = fs::canonicalize(&path).or_else(|_| fs::read_link(&path)).unwrap_or_default();
        return Err(StateDirFault::Link { path, target });
    }
    if !owners.contains(&found.uid()) {
        return Err(StateDirFault::Foreign { path, owner: found.uid(), us });
    }
    if found.mode() & EVERYBODY != 0 { Err(StateDirFault::Open { path }) } else { Ok(()) }
}

fn way_is_trusted(dir: &Path, trusted: impl Fn(u32) -> bool) -> Result<(), StateDirFault> {
    let Some(found) = look(dir)? else { return Ok(()) };
    if !trusted(found.uid()) {
        return Err(StateDirFault::ForeignWay { path: dir.to_owned(), owner: found.uid() });
    }
    if found.mode() & (EVERYBODY | STICKY) == EVERYBODY {
        return Err(StateDirFault::Open { path: dir.to_owned() });
    }
    Ok(())
}

/// What is at a path, links not followed. None: nothing.
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

    /// A user that is neither root nor we.
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
        refused(&link, format!("`rm {}`", link.display()));
        refused(
            &site.path().join("link/"),
            format!("--state-dir, or, if it was not you who made the link, `rm {}`", link.display()),
        );
        for bits in [0o777, 0o1777, 0o702] {
            mode(&dir, bits);
            refused(&dir, format!("`chmod o-w {}`", dir.display()));
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
        refused(&link.join("state"), format!("`rm {}`", link.display()));
        chown(&dir, Some(OTHER), None).expect("given away");
        refused(&dir, format!("`chown -R 0 {}`", dir.display()));
        assert!(check(&dir, us, &[us, OTHER]).is_ok(), "root beside the service");
        chown(&dir, Some(us), None).expect("taken back");
        chown(&way, Some(OTHER), None).expect("given away");
        refused(&dir, format!("`chown root {}`", way.display()));
    }
}
