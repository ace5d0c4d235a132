//! The Docker Engine, through its command line: whatever the engine is and wherever it runs, nothing else is needed of
//! it. Everything of one fleet has a label, by which it is found and removed.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::fleet::programs::{self, Ran};

/// Runs `docker` with these words.
///
/// # Errors
/// It did not start, or did not end.
pub fn docker(words: &[&str]) -> Result<Ran> {
    docker_with(words, "")
}

/// The same, with this on its standard input.
///
/// # Errors
/// It did not start, or did not end.
pub fn docker_with(words: &[&str], input: &str) -> Result<Ran> {
    programs::run_with(Command::new("docker").args(words), input)
        .context("the tests of nodes need Docker's command line and an engine that answers")
}

/// Removes every container, network and volume of that label.
///
/// # Errors
/// Docker's.
pub fn remove_all(label: &str) -> Result<()> {
    let filter = format!("label={label}");
    for (list, remove) in [
        (&["ps", "--all", "--quiet"][..], &["rm", "--force", "--volumes"][..]),
        (&["network", "ls", "--quiet"], &["network", "rm"]),
        (&["volume", "ls", "--quiet"], &["volume", "rm"]),
    ] {
        let found = docker(&[list, &["--filter", &filter]].concat())?.ok()?;
        let found: Vec<&str> = found.split_whitespace().collect();
        if !found.is_empty() {
            docker(&[remove, &found].concat())?.ok()?;
        }
    }
    Ok(())
}
