//! Persistent shells in a container. To start a process there with `docker exec` costs sixty milliseconds of CPU time
//! (measured on the build machine), too much for three polls a second. A line to a running shell costs next to nothing.

use std::{
    io::{BufRead, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use uuid::Uuid;

use crate::fleet::{
    processes::pid_of,
    programs::{COMMAND_MAX, Ran},
};

/// Runs each line of its standard input, with an empty standard input of its own. The line's stdout is followed by the
/// mark (the script's argument) and the exit status, its stderr by the mark again.
const SERVE: &str = r#"err=$(mktemp)
while read -r line; do
    (eval "$line") 2>"$err" </dev/null
    printf '\n%s %s\n' "$0" "$?"
    [ ! -s "$err" ] || cat "$err"
    printf '\n%s\n' "$0"
done"#;

/// The shells of one container, as many as are used at the same time. They end when the container goes down.
#[derive(Debug)]
pub(super) struct Shells {
    container: String,
    idle: Mutex<Vec<Shell>>,
}

#[derive(Debug)]
struct Shell {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    mark: String,
}

impl Shells {
    pub(super) fn of(container: String) -> Self {
        Self { container, idle: Mutex::default() }
    }

    /// Runs a program with these arguments to its end, in the container.
    ///
    /// # Errors
    /// Fails if the container is down, or on timeout.
    pub(super) fn run(&self, words: &[&str]) -> Result<Ran> {
        let line = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        ensure!(!line.contains('\n'), "one line at a time: {line}");
        let mut shell = self.idle().map_or_else(|| Shell::start(&self.container), Ok)?;
        let pid = pid_of(&shell.child)?;
        let (sender, receiver) = mpsc::channel();
        let asked = line.clone();
        thread::spawn(move || {
            let ran = shell.run(asked);
            // After a timeout the receiver is gone, and has killed the shell.
            drop(sender.send((shell, ran)));
        });
        let Ok((shell, ran)) = receiver.recv_timeout(COMMAND_MAX) else {
            kill(pid, Signal::SIGKILL)?;
            bail!("no end within {} s in {}: {line}", COMMAND_MAX.as_secs(), self.container);
        };
        let ran = ran.with_context(|| format!("in {}: {line}", self.container))?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(shell);
        Ok(ran)
    }

    /// An idle shell that is still running.
    fn idle(&self) -> Option<Shell> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain_mut(|shell| matches!(shell.child.try_wait(), Ok(None)));
        idle.pop()
    }
}

impl Shell {
    fn start(container: &str) -> Result<Self> {
        let mark = Uuid::new_v4().to_string();
        let mut command = Command::new("docker");
        command.args(["exec", "--interactive", container, "sh", "-c", SERVE, &mark]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("docker does not start")?;
        let asks = child.stdin.take().context("its standard input")?;
        let answers = BufReader::new(child.stdout.take().context("its standard output")?);
        Ok(Self { child, asks, answers, mark })
    }

    fn run(&mut self, line: String) -> Result<Ran> {
        writeln!(self.asks, "{line}")?;
        let (out, code) = until(&self.mark, &mut self.answers)?;
        let (err, _) = until(&self.mark, &mut self.answers)?;
        Ok(Ran { line, code: Some(code.trim().parse().context("an exit status")?), out, err })
    }
}

/// The text before the mark, and the rest of the mark's line.
fn until(mark: &str, answers: &mut impl BufRead) -> Result<(String, String)> {
    let mut said = Vec::new();
    loop {
        let start = said.len();
        if answers.read_until(b'\n', &mut said)? == 0 {
            bail!("the shell has ended");
        }
        if let Some(rest) = said.get(start..).and_then(|line| line.strip_prefix(mark.as_bytes())) {
            let rest = String::from_utf8_lossy(rest).into_owned();
            // The newline that the shell itself printed before the mark.
            said.truncate(start.saturating_sub(1));
            return Ok((String::from_utf8_lossy(&said).into_owned(), rest));
        }
    }
}

impl Drop for Shell {
    /// The shell is idle: it can be killed.
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            crate::fleet::programs::complain(&format!("a shell is left in a container: {error}"));
        }
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_what_they_are() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }

    #[test]
    fn what_stands_before_the_mark_is_an_answer() -> Result<()> {
        let mut answers = &b"\nMARK0\none\n\ntwo MARK\nMARK 12\nhalf a li"[..];
        assert_eq!(until("MARK", &mut answers)?, (String::new(), "0\n".to_owned()));
        assert_eq!(until("MARK", &mut answers)?, ("one\n\ntwo MARK".to_owned(), " 12\n".to_owned()));
        assert!(until("MARK", &mut answers).is_err());
        Ok(())
    }
}
