//! `muster-agent`: the daemon on every machine.

use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    muster_agent::exec_item::stage(&args).unwrap_or(ExitCode::SUCCESS)
}
