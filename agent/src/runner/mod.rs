//! The runners: each performs one kind of item. They run inside exec-item only.

mod ansible;
mod archive;
mod bash;
mod copies;
mod downloader;
pub(crate) mod mke;
mod package;
pub(crate) mod path_ownership;
mod programs;
mod reboot;
mod service;
mod swarm_backup;
mod swarm_join;

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use muster_proto::model::{ItemState, RunnerKind};
use serde::{Deserialize, Serialize};

use crate::{
    attempt::{
        AttemptDir, Request,
        inputs::{InputError, Inputs},
        record::NO_EXIT_CODE,
    },
    exec_item::{Report, with_sources, work_args},
};

/// Does this agent have the runner of this name?
#[must_use]
pub fn supported(name: &str) -> bool {
    name.parse().is_ok_and(has)
}

const fn has(kind: RunnerKind) -> bool {
    matches!(
        kind,
        RunnerKind::Ansible
            | RunnerKind::Bash
            | RunnerKind::Downloader
            | RunnerKind::Mke
            | RunnerKind::Package
            | RunnerKind::Reboot
            | RunnerKind::Service
            | RunnerKind::SwarmBackup
            | RunnerKind::SwarmJoin
    )
}

/// Work that a runner prepares for a request.
pub(crate) enum Work {
    /// A hosted program.
    Program(ProgramSpec),
    /// Built-in code.
    Builtin(BuiltinWork),
    /// Built-in code that starts programs: runs in its own process.
    Hosted(BuiltinWork),
}

/// Built-in code that runs in a thread of exec-item.
pub(crate) type BuiltinWork = Box<dyn FnOnce(&Report) -> Outcome + Send>;

/// A program with its whole environment.
pub(crate) struct ProgramSpec {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) environment: BTreeMap<String, OsString>,
    pub(crate) directory: PathBuf,
}

/// Outcome of the work.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) state: ItemState,
    pub(crate) message: String,
    pub(crate) result_json: Option<String>,
}

impl Outcome {
    /// A refusal before anything ran.
    pub(crate) fn refused(refused: &Refused) -> Self {
        Self::failed(with_sources(refused), refused.is_retryable())
    }

    /// A failure that has no exit code.
    pub(crate) fn failed(message: String, retryable: bool) -> Self {
        Self { state: ItemState::Failed { exit_code: -1, retryable }, message, result_json: None }
    }
}

/// Reason why a request was refused before anything ran.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("RunnerNotSupported: this agent has no runner `{0}`; a newer agent may")]
    RunnerNotSupported(String),
    #[error("param `{0}` is missing")]
    Missing(&'static str),
    #[error("param `{name}`: {problem}")]
    Param { name: String, problem: String },
    #[error(
        "NotAService: this agent is no service of systemd, so it does not reboot the machine it runs on; run it as one \
         (systemctl enable --now muster-agent)"
    )]
    NotAService,
    #[error("param `{name}`")]
    Input {
        name: String,
        #[source]
        source: InputError,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Refused {
    pub(crate) fn param(name: &str, problem: impl Into<String>) -> Self {
        Self::Param { name: name.to_owned(), problem: problem.into() }
    }

    /// May another attempt help? The params stay the same.
    pub(crate) const fn is_retryable(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

/// Prepares the work of a request: the only place that maps names to runners.
pub(crate) fn work(request: &Request, inputs: &Inputs, dir: &AttemptDir) -> Result<Work, Refused> {
    let unsupported = || Refused::RunnerNotSupported(request.runner.clone());
    let kind = request.runner.parse().map_err(|_| unsupported())?;
    let secret_params = resolved(request, inputs)?;
    let all = request.params.iter().chain(&secret_params);
    if let Some((name, _)) = all.clone().find(|(_, value)| value.contains('\0')) {
        return Err(Refused::param(name, "holds a NUL byte"));
    }
    // Only a script gets its secrets as files: other users can read its environment.
    if kind == RunnerKind::Bash {
        return bash::prepare(request, inputs, &secret_params, dir).map(Work::Program);
    }
    let params = all.map(|(name, value)| (name.clone(), value.clone())).collect();
    let request = &Request { params, secret_params: BTreeMap::new(), ..request.clone() };
    match kind {
        RunnerKind::Downloader => downloader::prepare(request, dir).map(Work::Builtin),
        RunnerKind::Mke => mke::prepare(request).map(Work::Builtin),
        RunnerKind::Ansible => ansible::prepare(request, inputs, dir).map(Work::Hosted),
        RunnerKind::Package => package::prepare(request).map(Work::Hosted),
        RunnerKind::SwarmBackup => swarm_backup::prepare(request).map(Work::Builtin),
        RunnerKind::SwarmJoin => swarm_join::prepare(request, dir).map(Work::Builtin),
        RunnerKind::Service => service::prepare(request).map(Work::Builtin),
        RunnerKind::Reboot => reboot::prepare(request).map(Work::Builtin),
        RunnerKind::Bash | RunnerKind::VrouterRestart => Err(unsupported()),
    }
}

/// Command of the process of [`Work::Hosted`].
pub(crate) fn hosted(dir: &AttemptDir) -> ProgramSpec {
    let (program, args) = (PathBuf::from("/proc/self/exe"), work_args(dir));
    ProgramSpec { program, args, environment: bash::surroundings(), directory: dir.file("work") }
}

/// Params that refer to secrets, with their values. They stay in this process's memory.
fn resolved(request: &Request, inputs: &Inputs) -> Result<BTreeMap<String, String>, Refused> {
    let value = |(name, text): (&String, &String)| match inputs.resolve(name, text) {
        Ok(value) => Ok((name.clone(), value)),
        Err(source) => Err(Refused::Input { name: name.clone(), source }),
    };
    request.secret_params.iter().map(value).collect()
}

/// Marks an incomplete result: a success becomes a retryable failure.
pub(crate) fn is_not_done(outcome: &mut Outcome, what: &str) {
    if outcome.state == ItemState::Succeeded {
        outcome.state = ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: true };
        outcome.message = format!("{what} ({})", outcome.message);
    } else {
        outcome.message += &format!("; {what}");
    }
}

/// Removes a program's result file.
pub(crate) fn forget_result(dir: &AttemptDir) {
    bash::forget_result(dir);
}

/// Adds the result that a program may have written.
pub(crate) fn with_result(outcome: Outcome, dir: &AttemptDir) -> Outcome {
    bash::with_result(outcome, dir)
}
