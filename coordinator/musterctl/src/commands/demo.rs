//! `musterctl demo`: executes `muster-demo`, which is installed in the same directory.

use std::{env, ffi::OsString, fs, os::unix::process::CommandExt as _, process::Command};

use crate::errors::Failure;

/// Name of the demo program.
const PROGRAM: &str = "muster-demo";

/// See a fleet deploy itself, on this computer alone
///
/// Starts a coordinator and one agent per machine as separate processes. No root, no Docker, loopback only. All about
/// it: musterctl demo --help
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Options of the demo
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let own = env::current_exe().and_then(fs::canonicalize);
    let own = own.map_err(|source| Failure::failed("cannot find this program's own file").because(source))?;
    let program = own.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&args.options).exec();
    Err(Failure::failed(format!("cannot start {}", program.display()))
        .because(error)
        .next("The demo is beside musterctl, where the package of musterctl and `make build` put it."))
}
