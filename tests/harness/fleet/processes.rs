//! Every process of a fleet, found by the fleet's directory in its arguments or environment. This includes the programs
//! that exec-items host, and their children. Kills them, and only them.

use std::{fs, path::Path, process::Child};

use anyhow::Result;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::wait_for;

/// Processes with the directory in their environment or arguments.
///
/// # Errors
/// Fails on a read error of `/proc`.
pub fn of_dir(dir: &Path) -> Result<Vec<Pid>> {
    let own = Pid::this();
    let wanted = dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let names_it = |file: &str| {
            // The process may have ended, or belong to another user: then it is not the fleet's.
            fs::read(entry.path().join(file)).is_ok_and(|text| text.windows(wanted.len()).any(|part| part == wanted))
        };
        if Pid::from_raw(pid) != own && (names_it("cmdline") || names_it("environ")) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Kills all processes of the fleet, and waits until none is left.
///
/// # Errors
/// Fails if a process survives.
pub fn end_all(dir: &Path) -> Result<()> {
    wait_for("the end of all processes of the fleet", super::TIME_LIMIT, || {
        let left = of_dir(dir)?;
        for pid in &left {
            let _ = kill(*pid, Signal::SIGKILL); // it may have ended in the meantime
        }
        Ok(left.is_empty().then_some(()))
    })
}

/// Process id of a child.
///
/// # Errors
/// Fails if the id is out of range.
pub fn pid_of(child: &Child) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(child.id())?))
}
