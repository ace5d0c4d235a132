//! All that descends from exec-item, wherever it forked to. exec-item is the reaper of its orphans, so a process that
//! forked twice or opened a session of its own is still below it, and no child left means that nothing is left.

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

/// Sends the signal to every descendant that is not in `done`, and enters it there. Says how many were there.
pub(super) fn signal(signal: Signal, done: &mut BTreeSet<Pid>) -> usize {
    let all = descendants();
    for pid in &all {
        if done.insert(*pid) {
            // Gone meanwhile: as wanted.
            let _ = kill(*pid, signal);
        }
    }
    all.len()
}

/// Names of all living descendants, as the kernel has them (at most 15 characters each, proc(5)).
pub(super) fn names() -> Vec<String> {
    let name = |pid: Pid| fs::read_to_string(format!("/proc/{pid}/comm"));
    descendants().into_iter().map(|pid| name(pid).map_or_else(|_| "?".to_owned(), |it| it.trim().to_owned())).collect()
}

/// What reaping found.
pub(super) struct Reaped {
    /// How `main` ended, if it did now.
    pub(super) main: Option<WaitStatus>,
    /// No child is left, and so no descendant.
    pub(super) childless: bool,
}

/// Takes leave of every child that ended.
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

/// Living descendants, from one look at /proc. Those forked during the look are found by the next.
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

/// Every process that lives, with its parent.
fn processes() -> io::Result<Vec<(i32, i32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Ended since the listing: nothing to do.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        found.extend(living_parent(&stat).map(|parent| (pid, parent)));
    }
    Ok(found)
}

/// The parent in a line of /proc/PID/stat; None = a zombie, which has nothing to signal and no children.
fn living_parent(stat: &str) -> Option<i32> {
    // The name in parentheses may hold blanks and parentheses itself.
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
