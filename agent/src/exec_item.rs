//! `muster-agent exec-item DIR`: the small process that hosts one program. It claims the attempt in DIR, runs its
//! runner, enforces the time limit, and records the outcome. The agent starts it and may die meanwhile; the two share
//! only DIR. It must never run an attempt that was claimed before.

mod builtin;
mod events;
mod memory;
mod program;
mod tree;
mod work;

use std::{
    ffi::OsString,
    io::Write,
    mem,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use muster_proto::model::ItemState;
use nix::{
    libc::STDERR_FILENO,
    sys::prctl,
    unistd::{dup2_stdout, setsid},
};

use crate::{
    attempt::{
        AttemptDir, AttemptError, Exit, Request,
        inputs::{self, Inputs},
    },
    disk_space::is_full,
    host::unix_ms,
    output::{Hidden, OutputLog, Redactor},
    runner::{self, Outcome, Work},
};
use builtin::Ended;
pub(crate) use builtin::Report;
use events::Events;
pub(crate) use work::args as work_args;

/// First argument of the process that hosts one program: `muster-agent exec-item DIR`.
pub const STAGE: &str = "exec-item";
/// Output of an exec-item that ended before it began because the disk is full. Writing it works on a full disk.
pub(crate) const NO_ROOM: [u8; 1] = [b'F'];
/// Exit status of an exec-item that found the attempt claimed.
pub const CLAIMED_BEFORE: u8 = 3;
/// Maximum length of a program's last output line in a failure message.
const LAST_WORDS_CHARS_MAX: usize = 200;

/// Error in hosting, as opposed to the program.
#[derive(Debug, thiserror::Error)]
enum HostError {
    #[error(transparent)]
    Attempt(#[from] AttemptError),
    #[error("runner {0} has no built-in work; this is a bug in muster-agent")]
    NoWork(String),
    #[error("cannot {what}")]
    System {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
}

impl HostError {
    /// Is the cause a lack of disk space?
    fn is_full(&self) -> bool {
        match self {
            Self::Attempt(error) => error.is_full(),
            Self::System { source, .. } => is_full(source),
            Self::NoWork(_) => false,
        }
    }

    fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

/// Runs a hidden stage to its end if the arguments (after the program's own name) name one. `main` calls this first,
/// before it sets up runtime and log.
#[must_use]
pub fn stage(args: &[OsString]) -> Option<ExitCode> {
    let (name, rest) = args.split_first()?;
    let run: fn(&[OsString]) -> ExitCode = match name.to_str()? {
        STAGE => host,
        work::STAGE => work::run,
        _ => return None,
    };
    close_inherited();
    Some(run(rest))
}

/// Closes inherited file descriptors.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > STDERR_FILENO) {
        // The descriptor of the listing itself is closed by now.
        let _ = nix::unistd::close(fd);
    }
}

fn host(args: &[OsString]) -> ExitCode {
    let [dir] = args else { return complain("usage: muster-agent exec-item DIR") };
    match host_attempt(&AttemptDir::new(Path::new(dir).to_owned())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(CLAIMED_BEFORE),
        Err(error) => {
            let failure = complain(&with_sources(&error));
            if error.is_full() {
                // After the claim, this output goes to /dev/null.
                let _ = std::io::stdout().write_all(&NO_ROOM).and_then(|()| std::io::stdout().flush());
            }
            failure
        }
    }
}

/// Prints to stderr: a file of the attempt, or a terminal in a manual run.
fn complain(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::FAILURE
}

/// The error and all its causes in one line.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Hosts the attempt. False = it was claimed before.
fn host_attempt(dir: &AttemptDir) -> Result<bool, HostError> {
    // First of all: a cancel that comes before the program runs must be kept.
    let events = Events::new()?;
    // Fails where a service manager made this process a session leader already, which is equally good.
    let _ = setsid();
    prctl::set_child_subreaper(true).map_err(HostError::system("become the reaper of orphans"))?;
    let Some(held) = dir.hold()? else { return Ok(false) };
    if dir.claimed() {
        return Ok(false);
    }
    let request = dir.request()?;
    dir.reserve()?;
    let inputs = Inputs::read(&dir.inputs()).map_err(HostError::system("read the inputs"))?;
    let hidden = inputs.to_hide();
    let log = OutputLog::create(dir, hidden.clone())?;
    if !dir.claim()? {
        return Ok(false);
    }
    let started_at_ms = unix_ms();
    release_starter();
    let (Ended { outcome, at_work }, output_tail) = run(dir, &request, &inputs, events, log);
    if !hidden.is_empty() {
        runner::forget_result(dir);
    }
    // The agent repeats this now and at each of its starts, so a failure here is harmless.
    let _ = inputs::remove(&dir.inputs());
    let Outcome { state, message, result_json } = redacted(outcome, &hidden);
    let mut exit = Exit { state, message, output_tail, result_json, started_at_ms, finished_at_ms: unix_ms() };
    if at_work {
        // This mark reveals a later hang.
        let _ = dir.mark_at_work();
    }
    dir.write_exit(&exit)?;
    if let Err(error) = dir.clear() {
        exit.message += &format!("; what it left in {} could not be removed: {error}", dir.path().display());
        dir.write_exit(&exit)?;
    }
    // A waiting agent writes the outcome durably to its ledger before it reports it, so it can skip this sync. An
    // absent agent may read it much later. Interrupted work ends only with this process: keep the lock until then,
    // because the next attempt would write into the same files.
    if at_work {
        mem::forget(held);
    } else {
        drop(held);
    }
    dir.sync_exit()?;
    Ok(true)
}

/// Runs the attempt to its end, also a failed one.
fn run(dir: &AttemptDir, request: &Request, inputs: &Inputs, events: Events, mut log: OutputLog) -> (Ended, String) {
    let limit = Limit::starting_now(Duration::from_millis(request.timeout_ms));
    let over = |outcome| Ended { outcome, at_work: false };
    let mut speaks = false;
    let ended = match runner::work(request, inputs, dir) {
        Err(refused) => Ok(over(Outcome::refused(&refused))),
        Ok(Work::Program(command)) => {
            speaks = true;
            let ended = program::run(command, events, limit, &mut log);
            ended.map(|end| over(end.map(|outcome| runner::with_result(outcome, dir))))
        }
        // Checked already; the hosted process builds it again.
        Ok(Work::Hosted(_)) => {
            let reserved = dir.reserve_outcome().map_err(HostError::from);
            let ended = reserved.and_then(|()| program::run(runner::hosted(dir), events, limit, &mut log));
            ended.map(|end| over(end.map(|outcome| work::outcome(outcome, dir))))
        }
        Ok(Work::Builtin(work)) => builtin::run(work, dir, events, limit, &mut log),
    };
    let failed = |error: HostError| Ended { outcome: Outcome::failed(with_sources(&error), true), at_work: true };
    let mut ended = ended.unwrap_or_else(failed);
    if let Some(handlers) = dir.handlers_left(request) {
        runner::is_not_done(&mut ended.outcome, &handlers);
    }
    let output_tail = log.finish();
    if speaks
        && matches!(ended.outcome.state, ItemState::Failed { .. })
        && let Some(words) = last_words(&output_tail)
    {
        ended.outcome.message += &format!("; last output: {words}");
    }
    (ended, output_tail)
}

/// Last non-empty output line, which usually names the cause of a failure.
fn last_words(output: &str) -> Option<String> {
    // Text that a progress bar has overwritten is invisible on a terminal too.
    let shown = |line: &str| line.trim_end().rsplit('\r').next().unwrap_or_default().trim().to_owned();
    let words = output.lines().rev().map(shown).find(|line| !line.is_empty())?;
    Some(match words.char_indices().nth(LAST_WORDS_CHARS_MAX) {
        Some((end, _)) => format!("{}…", words.get(..end).unwrap_or_default()),
        None => words,
    })
}

/// The outcome with secrets redacted: a program's result and message may repeat them too.
fn redacted(outcome: Outcome, hidden: &Hidden) -> Outcome {
    let text = |text: &str| Redactor::new(hidden.clone()).all_of(text);
    let result = |json: String| {
        // Only valid JSON is recorded.
        let mut value: serde_json::Value = serde_json::from_str(&json).ok()?;
        hide(&mut value, &text);
        Some(value.to_string())
    };
    Outcome {
        message: text(&outcome.message),
        result_json: if hidden.is_empty() { outcome.result_json } else { outcome.result_json.and_then(result) },
        ..outcome
    }
}

fn hide(value: &mut serde_json::Value, text: &impl Fn(&str) -> String) {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match value {
        String(string) => *string = text(string),
        Array(all) => all.iter_mut().for_each(|value| hide(value, text)),
        Object(all) => {
            let shown = std::mem::take(all).into_iter().map(|(key, mut value)| {
                hide(&mut value, text);
                (text(&key), value)
            });
            *all = shown.collect();
        }
        // A number may be a secret too; a redacted one becomes a string.
        Number(number) => {
            let shown = text(&number.to_string());
            if shown != number.to_string() {
                *value = String(shown);
            }
        }
        Null | Bool(_) => {}
    }
}

/// Closes stdout: the agent waits for that as the sign of the claim. The program gets its own pipe.
fn release_starter() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = dup2_stdout(null);
    }
}

/// Time limit of the attempt.
#[derive(Clone, Copy, Debug)]
struct Limit {
    time: Duration,
    /// None = beyond the range of the clock.
    at: Option<Instant>,
}

impl Limit {
    fn starting_now(time: Duration) -> Self {
        Self { time, at: Instant::now().checked_add(time) }
    }

    fn reached(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now >= at)
    }
}

/// Reason for an early end of the attempt.
#[derive(Clone, Copy, Debug)]
enum Cause {
    TimedOut(Duration),
    Cancelled,
    /// The machine shuts down, or the unit was stopped.
    Stopped,
}

impl Cause {
    fn outcome(self) -> Outcome {
        let message = match self {
            Self::TimedOut(limit) if limit.subsec_millis() == 0 => format!("timed out after {} s", limit.as_secs()),
            Self::TimedOut(limit) => format!("timed out after {} ms", limit.as_millis()),
            Self::Cancelled => "cancelled".to_owned(),
            Self::Stopped => {
                let message = "systemd ended it: the machine went down, or somebody stopped its unit".to_owned();
                // Its progress is unknown: the item's settings decide whether a person must look.
                return Outcome { state: ItemState::Indeterminate, message, result_json: None };
            }
        };
        Outcome::failed(message, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_says_something_is_found() {
        for (output, expected) in [
            ("", None),
            (" \n\t\n", None),
            ("one\ntwo\n\n", Some("two")),
            ("one\n 10 %\r 20 %\r no space left \r\n", Some("no space left")),
        ] {
            assert_eq!(last_words(output).as_deref(), expected, "{output:?}");
        }
        let long = last_words(&"ü".repeat(LAST_WORDS_CHARS_MAX + 1)).expect("a line");
        assert_eq!(long, format!("{}…", "ü".repeat(LAST_WORDS_CHARS_MAX)));
    }

    #[test]
    fn a_secret_is_hidden_in_a_result_whatever_it_is_there() {
        let hidden = Hidden::of([b"48151623".as_slice()]);
        let result_json = Some(r#"{"48151623":[48151623,"a 48151623",7,true]}"#.to_owned());
        let outcome = Outcome { state: ItemState::Succeeded, message: String::new(), result_json };
        let shown = redacted(outcome, &hidden).result_json.expect("a result");
        assert!(!shown.contains("48151623") && shown.contains(",7,true]"), "{shown}");
    }
}
