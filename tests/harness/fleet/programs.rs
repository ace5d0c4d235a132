//! The programs under test, and commands run to their end. Used by [`super::Fleet`] and the tests of the demo.

use std::{
    env,
    io::{Seek as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};

use super::processes::pid_of;

/// Timeout of a command.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(600);

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `muster-agent`.
    pub agent: PathBuf,
    /// `muster-coordinator`.
    pub coordinator: PathBuf,
    /// `musterctl`.
    pub musterctl: PathBuf,
}

impl Programs {
    /// Finds the programs of the calling test's own build: a test runs from `<build>/deps`, they are in `<build>`.
    ///
    /// # Errors
    /// Fails if one is missing, and says how to build it.
    pub fn find() -> Result<Self> {
        let test = env::current_exe().context("which program is this")?;
        let build = test.parent().and_then(Path::parent).context("a test lies in a build directory")?;
        let program = |name: &str| {
            let path = build.join(name);
            if !path.is_file() {
                bail!("there is no {}: build the whole workspace, as `make test` does", path.display());
            }
            Ok(path)
        };
        Ok(Self {
            agent: program("muster-agent")?,
            coordinator: program("muster-coordinator")?,
            musterctl: program("musterctl")?,
        })
    }
}

/// A completed command.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its command line.
    pub line: String,
    /// Its exit status; None if a signal ended it.
    pub code: Option<i32>,
    /// Its stdout.
    pub out: String,
    /// Its stderr.
    pub err: String,
}

impl Ran {
    /// Its stdout, if it succeeded.
    ///
    /// # Errors
    /// Fails on any other exit status, with its whole output.
    pub fn ok(self) -> Result<String> {
        Ok(self.exits(0)?.out)
    }

    /// Itself, if it ended with this exit status.
    ///
    /// # Errors
    /// Fails on any other exit status, with its whole output.
    pub fn exits(self, code: i32) -> Result<Self> {
        if self.code == Some(code) {
            return Ok(self);
        }
        bail!("{}: exit status {:?}, not {code}\n{}{}", self.line, self.code, self.out, self.err)
    }

    /// Itself, if its output contains all these words.
    ///
    /// # Errors
    /// Fails if a word is missing.
    pub fn says(self, words: &[&str]) -> Result<Self> {
        for word in words {
            if !format!("{}{}", self.out, self.err).contains(word) {
                bail!("{}: it does not say {word:?}\n{}{}", self.line, self.out, self.err);
            }
        }
        Ok(self)
    }
}

/// Runs a command to its end.
///
/// # Errors
/// Fails on a start error or a timeout.
pub fn run(command: &mut Command) -> Result<Ran> {
    run_with(command, "")
}

/// Runs a command to its end with this standard input.
///
/// # Errors
/// Fails on a start error or a timeout.
pub fn run_with(command: &mut Command, input: &str) -> Result<Ran> {
    let line = format!("{command:?}");
    let mut stdin = tempfile::tempfile()?;
    stdin.write_all(input.as_bytes())?;
    stdin.rewind()?;
    let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("cannot start {line}"))?;
    let pid = pid_of(&child)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = receiver.recv_timeout(COMMAND_MAX) else {
        kill(pid, Signal::SIGKILL)?;
        bail!("no end within {} s: {line}", COMMAND_MAX.as_secs());
    };
    let output = output?;
    Ok(Ran {
        line,
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Prints a message of a test, visible on failure or with `--nocapture`.
#[expect(clippy::print_stderr, reason = "the one place where the fleet speaks")]
pub fn complain(text: &str) {
    eprintln!("{text}");
}
