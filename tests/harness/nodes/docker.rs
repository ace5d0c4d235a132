//! The Docker Engine, through its command line only: the engine may be of any kind and run anywhere. All objects of one
//! fleet carry a label, by which they are found and removed.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};

use crate::fleet::{
    pause,
    programs::{self, Ran},
};

/// Attempts to remove objects that Docker may still be removing or using, and the pause between two.
const REMOVALS_MAX: usize = 5;
const REMOVE_EVERY: Duration = Duration::from_secs(2);

/// Runs `docker` with these arguments.
///
/// # Errors
/// Fails on a start error or a timeout.
pub fn docker(words: &[&str]) -> Result<Ran> {
    docker_with(words, "")
}

/// As [`docker`], with this standard input.
///
/// # Errors
/// Fails on a start error or a timeout.
pub fn docker_with(words: &[&str], input: &str) -> Result<Ran> {
    programs::run_with(Command::new("docker").args(words), input)
        .context("the tests of nodes need Docker's command line and an engine that answers")
}

/// Removes every container, network and volume of that label, and its untagged images.
///
/// # Errors
/// Fails if Docker does.
pub fn remove_all(label: &str) -> Result<()> {
    let filter = format!("label={label}");
    for _ in 1..REMOVALS_MAX {
        if try_remove_all(&filter).is_ok() {
            return Ok(());
        }
        pause(REMOVE_EVERY);
    }
    try_remove_all(&filter)
}

fn try_remove_all(filter: &str) -> Result<()> {
    for (list, remove) in [
        (&["ps", "--all", "--quiet"][..], &["rm", "--force", "--volumes"][..]),
        (&["network", "ls", "--quiet"], &["network", "rm"]),
        (&["volume", "ls", "--quiet"], &["volume", "rm"]),
    ] {
        let found = docker(&[list, &["--filter", filter]].concat())?.ok()?;
        let found: Vec<&str> = found.split_whitespace().collect();
        if !found.is_empty() {
            docker(&[remove, &found].concat())?.ok()?;
        }
    }
    docker(&["image", "prune", "--force", "--filter", filter])?.ok()?;
    Ok(())
}
