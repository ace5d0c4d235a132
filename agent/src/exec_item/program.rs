//! Life of one program: started in its own session, watched, and ended with all its processes.

use std::{
    collections::BTreeSet,
    env::set_current_dir,
    fs::File,
    io::pipe,
    os::unix::process::CommandExt,
    process::{Command, exit},
    time::{Duration, Instant},
};

use fork::Fork;

use muster_proto::model::ItemState;
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal},
        wait::WaitStatus,
    },
    unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpid, getppid, setsid},
};

use super::{Cause, HostError, Limit, complain, events::Events, memory, tree};
use crate::{
    output::OutputLog,
    runner::{Outcome, ProgramSpec},
};

/// Exit status of the forked child when exec failed.
const NOT_STARTED: i32 = 1;
/// Delay between TERM and KILL.
const GRACE: Duration = Duration::from_secs(10);
/// Time for processes that the main program left to end by themselves, such as the `tee` of a redirection.
const LINGER: Duration = Duration::from_secs(2);
/// Interval of signals while the process tree is being ended.
const PRESS_EVERY: Duration = Duration::from_millis(50);
/// Timeout after KILL: a process still alive hangs in the kernel. The message names it, and it is left alone.
const KILL_DEADLINE: Duration = Duration::from_secs(60);
/// Output may still be in the pipe, and a process outside the tree may hold it open.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// Stage of the program's life.
enum Course {
    Running,
    /// The main program ended; others may still run.
    Lingering {
        until: Instant,
    },
    /// Everything is being ended.
    Ending {
        since: Instant,
        told: BTreeSet<Pid>,
    },
}

/// End of a program.
pub(super) struct ProgramEnd {
    /// From its exit status, or from the reason for its early end.
    outcome: Outcome,
    /// Observations of the host: leftover processes, OOM kills.
    notes: Vec<String>,
}

impl ProgramEnd {
    /// Maps the program's outcome and appends the notes to its message.
    pub(super) fn map(self, outcome: impl FnOnce(Outcome) -> Outcome) -> Outcome {
        let mut outcome = outcome(self.outcome);
        for note in self.notes {
            outcome.message += "; ";
            outcome.message += &note;
        }
        outcome
    }
}

struct Program {
    main: Pid,
    limit: Limit,
    course: Course,
    status: Option<WaitStatus>,
    cause: Option<Cause>,
    /// Names of processes that outlived the main program and were ended.
    left_behind: Vec<String>,
    /// Since when all possible writers of output are gone.
    childless: Option<Instant>,
    unkillable: usize,
}

/// Starts the program and watches it to its end.
pub(super) fn run(
    spec: ProgramSpec,
    mut events: Events,
    limit: Limit,
    log: &mut OutputLog,
) -> Result<ProgramEnd, HostError> {
    let oom_kills = memory::oom_kills();
    let main = spawn(spec, &mut events)?;
    let mut program = Program {
        main,
        limit,
        course: Course::Running,
        status: None,
        cause: None,
        left_behind: Vec::new(),
        childless: None,
        unkillable: 0,
    };
    while !program.over(Instant::now(), events.output_closed()) {
        let happened = events.wait(program.wake_at(), log)?;
        if happened.child {
            program.reap();
        }
        if let Some(cause) = happened.cancel {
            program.interrupt(cause);
        }
        program.advance(Instant::now());
    }
    let mut end = program.end();
    let oom_kills = memory::oom_kills().saturating_sub(oom_kills);
    if oom_kills > 0 {
        end.notes.push(format!("out of memory: the kernel killed {oom_kills} process(es)"));
    }
    Ok(end)
}

/// Forks directly instead of a spawn by the standard library. The program needs steps between fork and exec, which that
/// library supports only with `unsafe` code. An intermediate executable would take a fourth of the time between two
/// items. A fork is sound in a process with one thread, as here: runners with threads host no program, and the thread
/// of `AttemptDir::claim` is over.
#[expect(clippy::disallowed_methods, reason = "what could not become the program must not go on as exec-item")]
fn spawn(spec: ProgramSpec, events: &mut Events) -> Result<Pid, HostError> {
    let failed = HostError::system("start the program");
    let (reader, writer) = pipe().map_err(&failed)?;
    let nothing = File::open("/dev/null").map_err(&failed)?;
    let (parent, score) = (getpid(), memory::outlive_program());
    match fork::fork().map_err(&failed)? {
        Fork::Parent(pid) => {
            drop(writer);
            events.watch(reader)?;
            Ok(Pid::from_raw(pid))
        }
        Fork::Child => {
            let opened = dup2_stdin(&nothing).and_then(|()| dup2_stdout(&writer)).and_then(|()| dup2_stderr(&writer));
            let problem = match opened {
                Ok(()) => become_program(spec, parent, score),
                Err(error) => format!("cannot give the program its input and output: {error}"),
            };
            complain(&problem);
            exit(NOT_STARTED)
        }
    }
}

/// Becomes the program, in a new session that dies with exec-item. Returns the reason on failure only.
fn become_program(spec: ProgramSpec, parent: Pid, score: i32) -> String {
    // Best effort: the program runs even if this fails.
    let _ = memory::set_score(score);
    // Always succeeds: a freshly forked process leads no group.
    let _ = setsid();
    let bound = prctl::set_pdeathsig(Signal::SIGKILL);
    if bound.is_err() || parent != getppid() {
        return "exec-item is gone".to_owned();
    }
    // exec-item reads its signals from a file; the program gets them the usual way.
    let _ = SigSet::all().thread_unblock();
    let ProgramSpec { program, args, environment, directory } = spec;
    if let Err(error) = set_current_dir(&directory) {
        return format!("cannot go to {}: {error}", directory.display());
    }
    let error = Command::new(&program).args(args).env_clear().envs(environment).exec();
    format!("cannot execute {}: {error}", program.display())
}

impl Program {
    fn over(&self, now: Instant, output_closed: bool) -> bool {
        let drained = |since| output_closed || now >= since + DRAIN_DEADLINE;
        self.unkillable > 0 || (self.status.is_some() && self.childless.is_some_and(drained))
    }

    fn wake_at(&self) -> Option<Instant> {
        match (&self.course, self.childless) {
            (_, Some(since)) => Some(since + DRAIN_DEADLINE),
            (Course::Running, None) => self.limit.at,
            (Course::Lingering { until }, None) => Some(*until),
            (Course::Ending { .. }, None) => Some(Instant::now() + PRESS_EVERY),
        }
    }

    fn reap(&mut self) {
        let reaped = tree::reap(self.main);
        self.status = self.status.or(reaped.main);
        if reaped.childless && self.childless.is_none() {
            self.childless = Some(Instant::now());
        }
    }

    /// Ends the program early; one that has ended already keeps its outcome.
    fn interrupt(&mut self, cause: Cause) {
        if matches!(self.course, Course::Running) && self.status.is_none() {
            self.cause = Some(cause);
            self.course = Course::Ending { since: Instant::now(), told: BTreeSet::new() };
        }
    }

    fn advance(&mut self, now: Instant) {
        if self.childless.is_some() {
            return;
        }
        match &mut self.course {
            Course::Running if self.status.is_some() => self.course = Course::Lingering { until: now + LINGER },
            Course::Running if self.limit.reached(now) => {
                self.interrupt(Cause::TimedOut(self.limit.time));
                self.advance(now);
            }
            Course::Lingering { until } if now >= *until => {
                let mut told = BTreeSet::new();
                self.left_behind = tree::names();
                tree::signal(Signal::SIGTERM, &mut told);
                self.course = Course::Ending { since: now, told };
            }
            Course::Running | Course::Lingering { .. } => {}
            Course::Ending { since, told } if now < *since + GRACE => {
                tree::signal(Signal::SIGTERM, told);
            }
            Course::Ending { since, .. } => {
                let alive = tree::signal(Signal::SIGKILL, &mut BTreeSet::new());
                if now >= *since + GRACE + KILL_DEADLINE {
                    self.unkillable = alive;
                }
            }
        }
    }

    fn end(&self) -> ProgramEnd {
        let outcome = match (self.cause, self.status) {
            (Some(cause), _) => cause.outcome(),
            (None, status) => ended(status),
        };
        let mut notes = Vec::new();
        if let Some((first, rest)) = self.left_behind.split_first() {
            let more = if rest.is_empty() { "" } else { ", …" };
            let count = self.left_behind.len();
            notes.push(format!("{count} process(es) it left behind were ended ({first}{more}): a daemon needs a unit"));
        }
        if self.unkillable > 0 {
            notes.push(format!("{} process(es) hang in the kernel and outlived KILL", self.unkillable));
        }
        ProgramEnd { outcome, notes }
    }
}

fn ended(status: Option<WaitStatus>) -> Outcome {
    let (exit_code, message) = match status {
        Some(WaitStatus::Exited(_, code)) => (code, format!("exit status {code}")),
        Some(WaitStatus::Signaled(_, signal, _)) => (-1, format!("killed by {signal}")),
        _ => (-1, "ended, but how is unknown".to_owned()),
    };
    let state = if exit_code == 0 { ItemState::Succeeded } else { ItemState::Failed { exit_code, retryable: true } };
    Outcome { state, message, result_json: None }
}
