//! `musterctl completion`: a completion script for the shell; and the manual pages, from the same definitions.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{cli::Cli, errors::Failure, terminal};

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "Example:\n  musterctl completion bash > /etc/bash_completion.d/musterctl")]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "musterctl", &mut script);
    terminal::write(&script)
}

pub(crate) fn man(dir: &Path) -> Result<(), Failure> {
    let written = clap_mangen::generate_to(Cli::command(), dir);
    written.map_err(|error| Failure::failed(format!("cannot write to {}", dir.display())).because(error))
}
