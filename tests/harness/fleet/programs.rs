//! The programs under test, and running them to their end. [`super::Fleet`] and the tests of the demo call it.

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

/// Longest run of a command that is waited for.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(600);

/// Where the programs are.
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
    /// Those of the very build that the calling test is of: a test runs from `<build>/deps`, they lie in `<build>`.
    ///
    /// # Errors
    /// They are not built: says how to.
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

/// A command that ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// How it was called.
    pub line: String,
    /// Its exit status; none if a signal ended it.
    pub code: Option<i32>,
    /// Its stdout.
    pub out: String,
    /// Its stderr.
    pub err: String,
}

impl Ran {
    /// What it wrote to stdout, if it went well.
    ///
    /// # Errors
    /// It did not: with all it said.
    pub fn ok(self) -> Result<String> {
        Ok(self.exits(0)?.out)
    }

    /// Itself, if it ended so.
    ///
    /// # Errors
    /// It did not: with all it said.
    pub fn exits(self, code: i32) -> Result<Self> {
        if self.code == Some(code) {
            return Ok(self);
        }
        bail!("{}: exit status {:?}, not {code}\n{}{}", self.line, self.code, self.out, self.err)
    }

    /// Itself, if it complained in these words and of nothing secret.
    ///
    /// # Errors
    /// It said something else.
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
/// It did not start, or did not end.
pub fn run(command: &mut Command) -> Result<Ran> {
    run_with(command, "")
}

/// Runs a command to its end with this on its standard input.
///
/// # Errors
/// It did not start, or did not end.
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

/// Says what a person should see of a test: on failure, or with `--nocapture`.
#[expect(clippy::print_stderr, reason = "the one place where the fleet speaks")]
pub fn complain(text: &str) {
    eprintln!("{text}");
}
