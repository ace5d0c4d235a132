//! Every process that belongs to a fleet, found by the fleet's directory in its arguments or environment: also the
//! programs that exec-items host, and what those have started. Ends them; never touches another's.

use std::{fs, path::Path, process::Child};

use anyhow::Result;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::wait_for;

/// The processes named in the environment or arguments of which the directory stands.
///
/// # Errors
/// `/proc` cannot be read.
pub fn of_dir(dir: &Path) -> Result<Vec<Pid>> {
    let own = Pid::this();
    let wanted = dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let names_it = |file: &str| {
            // It may have ended meanwhile, or be another user's: then it is none of ours.
            fs::read(entry.path().join(file)).is_ok_and(|text| text.windows(wanted.len()).any(|part| part == wanted))
        };
        if Pid::from_raw(pid) != own && (names_it("cmdline") || names_it("environ")) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Kills them all, until none is left.
///
/// # Errors
/// Some do not end.
pub fn end_all(dir: &Path) -> Result<()> {
    wait_for("the end of all processes of the fleet", super::PATIENCE, || {
        let left = of_dir(dir)?;
        for pid in &left {
            let _ = kill(*pid, Signal::SIGKILL); // it may have ended in the meantime
        }
        Ok(left.is_empty().then_some(()))
    })
}

/// The child's process id.
///
/// # Errors
/// A number that is none.
pub fn pid_of(child: &Child) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(child.id())?))
}
