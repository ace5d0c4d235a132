//! `muster-agent exec-item DIR`: the small process that hosts one program.

use std::{ffi::OsString, process::ExitCode};

/// First argument of the process that hosts one program: `muster-agent exec-item DIR`.
pub const STAGE: &str = "exec-item";

/// If the arguments (without the program's own name) are those of a hidden stage, runs it to its end.
/// `main` asks this before anything else: a stage sets up neither runtime nor log.
#[must_use]
pub fn stage(_args: &[OsString]) -> Option<ExitCode> {
    None
}
