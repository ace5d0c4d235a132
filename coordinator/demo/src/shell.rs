//! Commands as they are run and printed. Both forms are equal: a pasted line does what the demo did.

use std::{
    borrow::Cow,
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use musterctl::errors::Failure;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::mark::{Mark, VARIABLE};

/// Timeout of a command in the foreground.
const FOREGROUND_MAX: Duration = Duration::from_secs(60);

/// One command.
pub(super) struct Line {
    words: Vec<String>,
    kind: Kind,
    /// Timeout of a foreground command.
    most: Duration,
    /// Mark of its demo; a person who pastes the line has it in the environment.
    mark: Option<Mark>,
}

enum Kind {
    /// The demo waits for it.
    Foreground,
    /// Runs in a session of its own; output is appended to this file.
    Background(PathBuf),
}

impl Line {
    pub(super) fn new(program: &Path) -> Self {
        Self { words: vec![program.display().to_string()], kind: Kind::Foreground, most: FOREGROUND_MAX, mark: None }
    }

    pub(super) fn marked(mut self, mark: &Mark) -> Self {
        self.mark = Some(mark.clone());
        self
    }

    pub(super) fn arg(mut self, arg: &str) -> Self {
        self.words.push(arg.to_owned());
        self
    }

    pub(super) fn pair(self, option: &str, value: &str) -> Self {
        self.arg(option).arg(value)
    }

    pub(super) fn arg_path(self, path: &Path) -> Self {
        self.arg(&path.display().to_string())
    }

    pub(super) fn path(self, option: &str, path: &Path) -> Self {
        self.arg(option).arg_path(path)
    }

    /// Set a timeout longer than the default.
    pub(super) fn within(mut self, most: Duration) -> Self {
        self.most = most;
        self
    }

    pub(super) fn into_background(mut self, log: &Path) -> Self {
        self.kind = Kind::Background(log.to_owned());
        self
    }

    /// The command line, for people and their shells.
    pub(super) fn line(&self) -> String {
        let words: Vec<Cow<'_, str>> = self.words.iter().map(|word| quote(word)).collect();
        let words = words.join(" ");
        match &self.kind {
            Kind::Foreground => words,
            Kind::Background(log) => format!("setsid {words} </dev/null >>{} 2>&1 &", quote_path(log)),
        }
    }

    /// Run it to its end; return its stdout.
    pub(super) async fn output(&self) -> Result<Vec<u8>, Failure> {
        let cannot = |source| Failure::failed(format!("cannot run: {}", self.line())).because(source);
        let mut command = self.command(None);
        command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = command.spawn().map_err(cannot)?.wait_with_output();
        let output = timeout(self.most, output)
            .await
            .map_err(|_| Failure::failed(format!("no end within {} s: {}", self.most.as_secs(), self.line())))?
            .map_err(cannot)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Failure::failed(format!("{}: {}", output.status, self.line())).next(said.trim_end()))
    }

    /// Start it in a session of its own. It outlives this process unless it is ended.
    pub(super) fn start(&self) -> Result<Child, Failure> {
        let cannot = |source: io::Error| {
            let failure = Failure::failed(format!("cannot start: {}", self.line()));
            let no_setsid = source.kind() == io::ErrorKind::NotFound;
            let failure = failure.because(source);
            if no_setsid {
                failure.next("setsid(1) is part of util-linux: apt-get install util-linux")
            } else {
                failure
            }
        };
        let log = match &self.kind {
            Kind::Background(log) => OpenOptions::new().append(true).create(true).open(log),
            Kind::Foreground => File::open("/dev/null"),
        };
        let log = log.map_err(cannot)?;
        let again = log.try_clone().map_err(cannot)?;
        // setsid forks only as the leader of a process group. The child is no leader, so its id is the program's.
        self.command(Some("setsid")).stdin(Stdio::null()).stdout(again).stderr(log).spawn().map_err(cannot)
    }

    fn command(&self, wrapper: Option<&str>) -> Command {
        let mut words = wrapper.into_iter().chain(self.words.iter().map(String::as_str));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).envs(self.mark.iter().map(|mark| (VARIABLE, mark.word())));
        command
    }
}

/// A path as one word for a shell.
pub(super) fn quote_path(path: &Path) -> String {
    quote(&path.display().to_string()).into_owned()
}

fn quote(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pasted_word_is_the_same_word() {
        for word in ["plain-1/x:y", "", "a b", "it's", "$HOME `id` \\ \"x\" !", "*?[]{}~#&|;<>()"] {
            let line = format!("printf %s {}", quote(word));
            let output = std::process::Command::new("bash").args(["-c", &line]).output().expect("bash runs");
            assert_eq!(String::from_utf8(output.stdout).as_deref(), Ok(word), "{line}");
        }
    }

    #[test]
    fn lines_are_whole_commands() {
        let line = Line::new(Path::new("/b/x")).arg("run").path("--dir", Path::new("/a b"));
        assert_eq!(line.line(), "/b/x run --dir '/a b'");
        let line = line.into_background(Path::new("/l"));
        assert_eq!(line.line(), "setsid /b/x run --dir '/a b' </dev/null >>/l 2>&1 &");
    }
}
