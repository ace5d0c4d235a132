//! All descendants of exec-item. exec-item is the reaper of its orphans, so a process that forked twice or opened its
//! own session still descends from it. When its last child is gone, so is the last descendant.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpid},
};

/// Sends the signal to every descendant that is missing in `done`, and adds it there. Returns the number of
/// descendants.
pub(super) fn signal(signal: Signal, done: &mut BTreeSet<Pid>) -> usize {
    let all = descendants();
    for pid in &all {
        if done.insert(*pid) {
            // It may have ended meanwhile, which is fine.
            let _ = kill(*pid, signal);
        }
    }
    all.len()
}

/// Names of all living descendants from the kernel (at most 15 characters each, proc(5)).
pub(super) fn names() -> Vec<String> {
    let name = |pid: Pid| fs::read_to_string(format!("/proc/{pid}/comm"));
    descendants().into_iter().map(|pid| name(pid).map_or_else(|_| "?".to_owned(), |it| it.trim().to_owned())).collect()
}

/// Result of reaping.
pub(super) struct Reaped {
    /// Exit status of `main`, if it ended now.
    pub(super) main: Option<WaitStatus>,
    /// The last child is gone, and so is the last descendant.
    pub(super) childless: bool,
}

/// Reaps every child that ended.
pub(super) fn reap(main: Pid) -> Reaped {
    let mut reaped = Reaped { main: None, childless: false };
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return reaped,
            Ok(status) if status.pid() == Some(main) => reaped.main = Some(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => {
                reaped.childless = true;
                return reaped;
            }
        }
    }
}

/// Living descendants, from one scan of /proc. A process forked during the scan is found by the next one.
fn descendants() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, parent) in processes().unwrap_or_default() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw()];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.push(Pid::from_raw(child));
            parents.push(child);
        }
    }
    found
}

/// Every living process with its parent.
fn processes() -> io::Result<Vec<(i32, i32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It ended after the listing: skip it.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        found.extend(living_parent(&stat).map(|parent| (pid, parent)));
    }
    Ok(found)
}

/// Parent PID from a line of /proc/PID/stat. None = a zombie, which is childless and ignores signals.
fn living_parent(stat: &str) -> Option<i32> {
    // The name in parentheses may itself contain blanks and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if fields.next()? == "Z" { None } else { fields.next()?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_past_any_name() {
        assert_eq!(living_parent("12 (bash) S 7 12 12 0"), Some(7));
        assert_eq!(living_parent("12 (a) S 9 (b) R 8 12"), Some(8));
        assert_eq!(living_parent("12 (bash) Z 7 12 12 0"), None);
        assert_eq!(living_parent(""), None);
    }
}
