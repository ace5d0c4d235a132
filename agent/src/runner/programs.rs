//! Programs that a runner starts: their output goes to the item's output, and error messages quote from it.

use std::{
    io::{self, PipeReader, Read, pipe},
    os::fd::AsFd,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::exec_item::Report;

/// Maximum length of one output line.
const LINE_BYTES_MAX: usize = 4096;
/// Size of a read.
const READ_BYTES: usize = 8192;
/// Time for output that is still in the pipe when the program has ended.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// A failed program.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("cannot start {program}")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("{program} ended with {status}: {complaint}")]
    Failed { program: String, status: ExitStatus, complaint: String },
}

/// Maximum of error lines quoted from one program.
const COMPLAINTS_MAX: usize = 3;

fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Runs a program to its end and reports its output line by line. Its leftover processes may hold the output open: that
/// is read for a moment more and then closed.
pub(super) fn run(command: &mut Command, report: &Report) -> Result<(), ProgramError> {
    run_and_read(command, report, |_| {})
}

/// As [`run`], and also passes each line to `read`.
pub(super) fn run_and_read(
    command: &mut Command,
    report: &Report,
    mut read: impl FnMut(&str),
) -> Result<(), ProgramError> {
    let program = name_of(command);
    let failed = |source| ProgramError::Start { program: program.clone(), source };
    let (mut output, writer) = pipe().map_err(failed)?;
    let errors = writer.try_clone().map_err(failed)?;
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn().map_err(failed)?;
    // The command holds the pipe's other end, which would keep the reader waiting.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (over, running) = pipe().map_err(failed)?;
    let waiter = thread::spawn(move || {
        let status = child.wait();
        drop(running); // wakes the reader
        status
    });
    let mut complaints = Vec::new();
    let mut lines = Lines::default();
    let mut take = |line: &str| {
        report.line(line);
        read(line);
        if is_complaint(line) && complaints.len() < COMPLAINTS_MAX {
            complaints.push(line.trim().to_owned());
        }
    };
    let mut buffer = [0; READ_BYTES];
    let mut until = None;
    while is_readable(&output, &over, &mut until).map_err(failed)? {
        match output.read(&mut buffer).map_err(failed)? {
            0 => break,
            count => lines.take(buffer.get(..count).unwrap_or_default(), &mut take),
        }
    }
    lines.end(&mut take);
    let status = waiter.join().unwrap_or_else(|_| Err(io::Error::other("the wait for it panicked"))).map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    Err(ProgramError::Failed { program, status, complaint: complaints.join("; ") })
}

/// Waits for output. False: the program has ended, and so has the time for the rest of its output.
fn is_readable(output: &PipeReader, over: &PipeReader, until: &mut Option<Instant>) -> io::Result<bool> {
    let of = |pipe| PollFd::new(AsFd::as_fd(pipe), PollFlags::POLLIN);
    if until.is_none() {
        let mut fds = [of(output), of(over)];
        wait(&mut fds, PollTimeout::NONE)?;
        let [output, over] = fds.map(|fd| fd.any().unwrap_or(false));
        if over {
            *until = Some(Instant::now() + DRAIN_DEADLINE);
        }
        if output {
            return Ok(true);
        }
    }
    let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
    let mut fds = [of(output)];
    wait(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO))?;
    Ok(!left.is_zero() && fds.map(|fd| fd.any().unwrap_or(false)) == [true])
}

fn wait(fds: &mut [PollFd], timeout: PollTimeout) -> io::Result<()> {
    loop {
        match poll(fds, timeout) {
            Err(Errno::EINTR) => {}
            polled => return Ok(polled.map(drop)?),
        }
    }
}

/// Splits output into lines.
#[derive(Default)]
pub(super) struct Lines(Vec<u8>);

impl Lines {
    /// Passes on every line that is complete or exceeds the maximum length.
    pub(super) fn take(&mut self, output: &[u8], mut line: impl FnMut(&str)) {
        for byte in output {
            if *byte == b'\n' || self.0.len() >= LINE_BYTES_MAX {
                line(String::from_utf8_lossy(&self.0).trim_end());
                self.0.clear();
            }
            if *byte != b'\n' {
                self.0.push(*byte);
            }
        }
    }

    /// Passes on the last, unterminated line.
    pub(super) fn end(self, mut line: impl FnMut(&str)) {
        if !self.0.is_empty() {
            line(String::from_utf8_lossy(&self.0).trim_end());
        }
    }
}

/// Is it an error line? These are `E: …` of apt, `dpkg: error …`, `Error: …` of dnf, `error: …` of rpm and `ERROR! …`
/// of Ansible. dnf also prints `metadata already locked by 12` about its locks, and ` Problem: …` with the causes below
/// it about conflicts.
fn is_complaint(line: &str) -> bool {
    let starts = ["E: ", "dpkg: error", "Error: ", "error: ", "ERROR! ", " Problem: ", " Problem 1: ", "  - "].iter();
    line.contains(" already locked by ") || starts.clone().any(|start| line.starts_with(start))
}

/// Runs a program and returns its output.
pub(super) fn output_of(command: &mut Command) -> Result<String, ProgramError> {
    let program = name_of(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| ProgramError::Start { program: program.clone(), source })?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ProgramError::Failed { program, status: output.status, complaint });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Does the program succeed? Its output is ignored.
pub(super) fn succeeds(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    use super::*;
    use crate::attempt::AttemptDir;

    #[test]
    fn a_program_is_over_when_it_ends_though_its_output_is_held_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut said, log) = pipe().expect("a pipe");
        let report = Report::new(log, AttemptDir::new(dir.path().to_owned()));
        let script = "while sleep 0.1; do echo alive; done & echo $!; printf 'E: no end %09000d' 7; exit 3";
        let began = Instant::now();
        let ended = run(Command::new("sh").args(["-c", script]), &report);
        drop(report);
        let mut text = String::new();
        said.read_to_string(&mut text).expect("text");
        let daemon = text.lines().find_map(|pid| pid.parse().ok()).expect("a process id");
        // It may have ended already, because the reader of its output is gone.
        let _ = kill(Pid::from_raw(daemon), Signal::SIGKILL);
        let Err(ProgramError::Failed { status, complaint, .. }) = ended else { panic!("{ended:?}") };
        assert_eq!((status.code(), complaint.len()), (Some(3), LINE_BYTES_MAX));
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
}
