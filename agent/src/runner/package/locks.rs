//! Locks of package managers: their holders, and waiting for their release. File locks are record locks, so that the
//! kernel names the holder; for others the failed program reports it.

use std::{
    fmt::Display,
    fs::File,
    path::{Path, PathBuf},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};

use super::PackageError;
use crate::{exec_item::Report, runner::programs::ProgramError};

/// Longest wait for another package manager: unattended upgrades take minutes.
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);
/// Fraction of the item's time limit that is kept for the report on the holder.
const REPORT_PART: u32 = 10;
/// Delay between two tries of a program that takes its locks by itself.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Timeouts for waiting on others.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBudget {
    /// Longest single wait.
    pub(super) wait_max: Duration,
    /// Deadline of all waits.
    pub(super) until: Instant,
}

impl TimeBudget {
    /// Timeouts of an item that begins now with this time limit.
    pub(super) fn of(limit: Duration) -> Self {
        Self { wait_max: WAIT_MAX, until: Instant::now() + (limit - limit / REPORT_PART) }
    }

    /// Longest wait that begins now.
    fn left(self, now: Instant) -> Duration {
        self.until.saturating_duration_since(now).min(self.wait_max)
    }
}

/// Lock files of a package manager.
pub(super) struct Locks {
    files: Vec<PathBuf>,
    budget: TimeBudget,
}

impl Locks {
    /// These files below a root.
    pub(super) fn below(root: &Path, files: &[&str], budget: TimeBudget) -> Self {
        Self { files: files.iter().map(|file| root.join(file)).collect(), budget }
    }

    /// Waits until all locks are free, and reports their holders.
    pub(super) fn wait(&self, report: &Report) -> Result<(), PackageError> {
        let began = Instant::now();
        let deadline = began + self.budget.left(began);
        while let Some((lock, holder)) = self.files.iter().find_map(|lock| holder(lock)) {
            report.line(&format!("waiting for {holder}, which has locked {}", lock.display()));
            let left = deadline.saturating_duration_since(Instant::now());
            if !freed(lock.clone(), left) {
                let seconds = began.elapsed().as_secs();
                return Err(PackageError::Locked { what: lock.display().to_string(), holder, seconds });
            }
        }
        Ok(())
    }

    /// Runs an operation and retries it while another process blocks it. `holder` gives the lock and its process id if
    /// that is why a try failed.
    pub(super) fn outwait<T>(
        &self,
        report: &Report,
        mut once: impl FnMut() -> Result<T, ProgramError>,
        holder: impl Fn(&ProgramError) -> Option<(String, u32)>,
    ) -> Result<T, PackageError> {
        let began = Instant::now();
        let deadline = began + self.budget.left(began);
        loop {
            let error = match once() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let Some((what, process)) = holder(&error) else { return Err(error.into()) };
            let holder = process_name(process);
            if Instant::now() >= deadline {
                return Err(PackageError::Locked { what, holder, seconds: began.elapsed().as_secs() });
            }
            report.line(&format!("waiting for {holder}, which has locked {what}"));
            wait_a_moment(AGAIN_AFTER.min(deadline.saturating_duration_since(Instant::now())));
        }
    }
}

/// dnf's locks are files with a process id: their release is invisible without polling.
#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
fn wait_a_moment(moment: Duration) {
    thread::sleep(moment);
}

/// Holder of a lock, as "apt-get (process 12)". None: it is free, or the file is missing.
fn holder(path: &Path) -> Option<(PathBuf, String)> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    let mut lock = write_lock();
    match fcntl(&file, FcntlArg::F_GETLK(&mut lock)) {
        Ok(_) | Err(Errno::EACCES | Errno::EAGAIN) => {}
        Err(_) => return None,
    }
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return None;
    }
    Some((path.to_owned(), process_name(lock.l_pid)))
}

/// "apt-get (process 12)".
fn process_name(process: impl Display) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("{} (process {process})", name.trim())
}

/// Waits until a lock is free, up to a timeout. After it, the waiting thread ends with this process, which is soon.
fn freed(path: PathBuf, at_most: Duration) -> bool {
    let (tell, told) = channel();
    thread::spawn(move || {
        // Take it and release it at once. apt itself reports a faulty lock file.
        if let Ok(file) = File::options().read(true).write(true).open(path) {
            let _ = fcntl(&file, FcntlArg::F_SETLKW(&write_lock()));
        }
        tell.send(())
    });
    told.recv_timeout(at_most).is_ok()
}

#[expect(clippy::cast_possible_truncation, reason = "the constants are 0 and 1")]
fn write_lock() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_before_the_time_of_its_item() {
        for (limit_s, at_most_s) in [(20, 18), (10 * 60, 9 * 60), (30 * 60, 15 * 60)] {
            let budget = TimeBudget::of(Duration::from_secs(limit_s));
            // A short time has passed since.
            let now = Instant::now();
            let left = budget.left(now).as_secs_f64();
            assert!(left <= f64::from(at_most_s) && left > f64::from(at_most_s) - 5.0, "{left} s of {limit_s} s");
            assert_eq!(budget.left(now + Duration::from_secs(limit_s)), Duration::ZERO, "all of it has passed");
        }
    }
}
