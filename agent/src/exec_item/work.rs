//! Built-in work that starts other programs: `muster-agent exec-work DIR`, hosted by exec-item like any program. So the
//! time limit and a cancel end all its programs, TERM first. It writes its outcome to a file of the attempt.

use std::{ffi::OsString, io::PipeWriter, os::fd::AsFd, path::Path, process::ExitCode};

use muster_proto::model::ItemState;

use super::{HostError, Report, complain, redacted, with_sources};
use crate::{
    attempt::{AttemptDir, inputs::Inputs},
    runner::{self, Outcome, Work},
};

/// First argument of the process.
pub(super) const STAGE: &str = "exec-work";

/// Arguments that make this program run the stage.
pub(crate) fn args(dir: &AttemptDir) -> Vec<OsString> {
    vec![STAGE.into(), dir.path().into()]
}

pub(super) fn run(args: &[OsString]) -> ExitCode {
    let [dir] = args else { return complain("usage: muster-agent exec-work DIR") };
    let dir = AttemptDir::new(Path::new(dir).to_owned());
    match perform(&dir).and_then(|outcome| Ok(dir.write_outcome(&outcome)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&with_sources(&error)),
    }
}

fn perform(dir: &AttemptDir) -> Result<Outcome, HostError> {
    let request = dir.request()?;
    let inputs = Inputs::read(&dir.inputs()).map_err(HostError::system("read the inputs"))?;
    let output = std::io::stdout().as_fd().try_clone_to_owned().map_err(HostError::system("write output"))?;
    let report = Report::new(PipeWriter::from(output), dir.clone());
    let outcome = match runner::work(&request, &inputs, dir) {
        Ok(Work::Hosted(work) | Work::Builtin(work)) => work(&report),
        Ok(Work::Program(_)) => return Err(HostError::NoWork(request.runner)),
        Err(refused) => Outcome::refused(&refused),
    };
    Ok(redacted(outcome, &inputs.to_hide()))
}

/// Outcome that the process wrote, or else the end of the process itself.
pub(super) fn outcome(ended: Outcome, dir: &AttemptDir) -> Outcome {
    if ended.state != ItemState::Succeeded {
        return ended;
    }
    match dir.outcome() {
        Ok(Some(outcome)) => outcome,
        Ok(None) => Outcome::failed("it ended without an outcome; this is a bug in muster-agent".to_owned(), false),
        Err(error) => Outcome::failed(with_sources(&error), true),
    }
}
