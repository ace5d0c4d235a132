//! Files that are whole or absent, even after a power cut: temp, fsync, rename, fsync the directory.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    thread,
};

/// Makes the entries of a directory durable: files created in it, renamed into it or removed from it.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Syncs both at once: the journal writes them together, while one after the other takes twice as long.
pub(crate) fn sync_dirs(one: &Path, other: &Path) -> io::Result<()> {
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, || sync_dir(other)) {
        Ok(others) => {
            let one = sync_dir(one);
            let other = others.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
            one.and(other)
        }
        // Creating a thread failed.
        Err(_) => sync_dir(one).and_then(|()| sync_dir(other)),
    })
}

/// Replaces `path` with `bytes`, mode 0600, durably. Readers see either the old content or the new.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = swap_in(path, bytes)?;
    temp.sync_all()?;
    fs::rename(temp_name(path), path)?;
    sync_dir(path.parent().unwrap_or(Path::new("/")))
}

/// Replaces a file atomically but not durably: for best-effort files.
pub(crate) fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    swap_in(path, bytes)?;
    fs::rename(temp_name(path), path)
}

fn swap_in(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut temp = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(temp_name(path))?;
    temp.write_all(bytes)?;
    Ok(temp)
}

/// Temporary path of new content.
pub(super) fn temp_name(path: &Path) -> std::path::PathBuf {
    path.with_extension("new")
}
