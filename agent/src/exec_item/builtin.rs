//! Built-in work: a thread of exec-item with the same time limit, cancel and log.

use std::{
    io::{PipeWriter, Write, pipe},
    sync::Mutex,
    thread,
    time::Instant,
};

use super::{Cause, HostError, Limit, events::Events};
use crate::{
    attempt::{AttemptDir, Progress},
    output::OutputLog,
    runner::{BuiltinWork, Outcome},
};

/// Output and progress of built-in work.
pub(crate) struct Report {
    log: Mutex<PipeWriter>,
    dir: AttemptDir,
}

impl Report {
    pub(crate) fn new(log: PipeWriter, dir: AttemptDir) -> Self {
        Self { log: Mutex::new(log), dir }
    }

    /// Writes one line of output.
    pub(crate) fn line(&self, text: &str) {
        let mut log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = writeln!(log, "{text}");
    }

    /// Writes the progress. The caller limits the rate: once a second is enough.
    pub(crate) fn progress(&self, progress: Progress) {
        self.dir.write_progress(progress);
    }
}

/// End of the work. `at_work`: its thread may continue until the process ends.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) at_work: bool,
}

/// Runs the work to its end. Interrupted work keeps running until the process ends right after; its unfinished files
/// have temporary names.
pub(super) fn run(
    work: BuiltinWork,
    dir: &AttemptDir,
    mut events: Events,
    limit: Limit,
    log: &mut OutputLog,
) -> Result<Ended, HostError> {
    let failed = HostError::system("start the work");
    let (reader, writer) = pipe().map_err(&failed)?;
    events.watch(reader)?;
    let report = Report::new(writer, dir.clone());
    // The pipe closes when the thread is done with it, and that ends the wait.
    let worker = thread::Builder::new().name("builtin".to_owned()).spawn(move || work(&report)).map_err(&failed)?;
    while !events.output_closed() {
        let happened = events.wait(limit.at, log)?;
        if let Some(cause) = happened.cancel {
            return Ok(Ended { outcome: cause.outcome(), at_work: true });
        }
        if limit.reached(Instant::now()) {
            return Ok(Ended { outcome: Cause::TimedOut(limit.time).outcome(), at_work: true });
        }
    }
    // A panic has aborted the process, or is reported here as a bug.
    let outcome = worker.join();
    let outcome =
        outcome.map_err(|_| failed(std::io::Error::other("the work panicked; this is a bug in muster-agent")))?;
    Ok(Ended { outcome, at_work: false })
}
