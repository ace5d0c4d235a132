//! Installs, upgrades or backs up MKE by running MKE's own image beside the Docker Engine, as its manual describes.
//! First it determines what already runs: from the tag of `ucp-proxy`, from MKE's service in the swarm, and from a
//! former run, whose container has a fixed name. MKE continues by itself after the run, so this waits until the proxy
//! has the wanted version and the controller answers.
//!
//! MKE rolls back by itself when it is stuck, and an interrupted run leaves a cluster half done. So a run is never
//! stopped from here. If this process ends, the run continues, and the next attempt follows it.

mod backup;
mod health;
pub(crate) mod run;

pub(crate) use run::forget_ended;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use bollard::Docker;
use muster_proto::model::ItemState;
use tokio::time::{Instant, sleep};

use super::{
    BuiltinWork, Outcome, Refused,
    copies::{Copies, CopyError},
};
use crate::{
    attempt::Request,
    docker::{self, DockerError},
    exec_item::{Report, with_sources},
};
use health::Controller;
use run::{LeftOver, Run};

/// Default of the param `image`: MKE's image.
const IMAGE_DEFAULT: &str = "mirantis/ucp";
/// Default of the param `path`: directory of backups.
const DIR_DEFAULT: &str = "/srv/backup/ucp";
/// Default of the param `port`: port of MKE's controller.
const PORT_DEFAULT: u16 = 443;

/// Requested action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Install,
    Upgrade,
    Backup,
}

impl Action {
    /// Command of MKE's image.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Backup => "backup",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The checked params.
struct Wanted {
    action: Action,
    image: String,
    /// For a backup, None is the running version.
    version: Option<String>,
    args: Vec<String>,
    /// Name and password. MKE receives them in the variables of its manual, never on a command line.
    admin: Option<(String, String)>,
    port: u16,
    copies: Copies,
}

/// Reason of a failure.
#[derive(Debug, thiserror::Error)]
enum MkeError {
    #[error(transparent)]
    Docker(#[from] DockerError),
    #[error("cannot start the work")]
    Runtime(#[source] std::io::Error),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("MKE's backup ended well and left {} empty", path.display())]
    EmptyCopy { path: PathBuf },
    #[error("cannot ask MKE for its health")]
    Client(#[source] reqwest::Error),
    #[error("MkeNotInstalled: there is no container {} here; `action: install` comes first", run::PROXY)]
    NotInstalled,
    #[error("MkeOtherVersion: MKE {running} is installed; use `action: upgrade` to get from there to {wanted}")]
    OtherVersion { running: String, wanted: String },
    #[error("MkeBusy: another run of MKE's image, `{what}`, is going on; it is waited for, not ended")]
    Busy { what: String },
    #[error("MkeFailed: `{action}` ended with status {code}; the end of its output says why (`musterctl logs`)")]
    Failed { action: Action, code: i64 },
    #[error("MkeUnhealthy: {url} did not answer 200 within {} s: {said}", health::DEADLINE.as_secs())]
    Unhealthy { url: String, said: String },
    #[error(
        "MkeNotThere: after {} s {PROXY} has version {running}, not {wanted}; is it stuck, or did it roll back?",
        health::DEADLINE.as_secs(), PROXY = run::PROXY
    )]
    NotThere { running: String, wanted: String },
}

impl MkeError {
    fn outcome(&self) -> Outcome {
        let (exit_code, retryable) = match self {
            Self::NotInstalled | Self::OtherVersion { .. } => (-1, false),
            Self::Failed { code, .. } => (i32::try_from(*code).ok().filter(|code| *code != 0).unwrap_or(-1), true),
            Self::Docker(error) => (-1, !matches!(error.status(), Some(400 | 404))),
            Self::Runtime(_)
            | Self::Copy(_)
            | Self::EmptyCopy { .. }
            | Self::Client(_)
            | Self::Busy { .. }
            | Self::Unhealthy { .. }
            | Self::NotThere { .. } => (-1, true),
        };
        Outcome { state: ItemState::Failed { exit_code, retryable }, message: with_sources(self), result_json: None }
    }
}

/// Next step, from the request and the running version.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The wanted version runs, or MKE installs itself here: wait for it.
    Confirm,
    /// Run MKE's image of this version.
    Run { version: String },
}

/// Checks the params and returns the work.
pub(super) fn prepare(request: &Request) -> Result<BuiltinWork, Refused> {
    let wanted = Wanted::of(request)?;
    Ok(Box::new(move |report| {
        let done = docker::block_on(bring_about(&wanted, Path::new(docker::SOCKET), report));
        done.map_err(MkeError::Runtime).and_then(|done| done).unwrap_or_else(|error| {
            report.line(&with_sources(&error));
            error.outcome()
        })
    }))
}

impl Wanted {
    fn of(request: &Request) -> Result<Self, Refused> {
        let optional = |name| request.params.get(name).map(String::as_str);
        let action = match optional("action").ok_or(Refused::Missing("action"))? {
            "install" => Action::Install,
            "upgrade" => Action::Upgrade,
            "backup" => Action::Backup,
            _ => return Err(Refused::param("action", "expected install, upgrade or backup")),
        };
        let version = optional("version").map(str::to_owned);
        if version.is_none() && action != Action::Backup {
            return Err(Refused::Missing("version"));
        }
        let admin = match (optional("admin_user"), optional("admin_password")) {
            (Some(user), Some(password)) => Some((user.to_owned(), password.to_owned())),
            (None, None) => None,
            (Some(_), None) => return Err(Refused::Missing("admin_password")),
            (None, Some(_)) => return Err(Refused::Missing("admin_user")),
        };
        let port = match optional("port") {
            None => PORT_DEFAULT,
            Some(text) => text.parse().map_err(|_| Refused::param("port", "is not a port"))?,
        };
        let prefix = format!("ucp-{}-", request.machine);
        let copies = Copies::new(optional("path").unwrap_or(DIR_DEFAULT), optional("keep"), prefix)
            .map_err(|(name, problem)| Refused::param(name, problem))?;
        Ok(Self {
            action,
            image: optional("image").unwrap_or(IMAGE_DEFAULT).to_owned(),
            version,
            args: optional("args").unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect(),
            admin,
            port,
            copies,
        })
    }
}

/// Existing installation of MKE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct There {
    /// The version on this machine.
    running: Option<String>,
    /// It is installed in this machine's swarm: MKE then installs itself on machines that join it.
    in_swarm: bool,
}

/// Selects the next step.
fn next(action: Action, wanted: Option<&str>, there: &There) -> Result<Step, MkeError> {
    match (action, there.running.as_deref()) {
        (Action::Install, None) if there.in_swarm => Ok(Step::Confirm),
        (Action::Install, None) => Ok(Step::Run { version: wanted.unwrap_or_default().to_owned() }),
        (Action::Install | Action::Upgrade, Some(running)) if Some(running) == wanted => Ok(Step::Confirm),
        (Action::Install, Some(running)) => {
            Err(MkeError::OtherVersion { running: running.to_owned(), wanted: wanted.unwrap_or_default().to_owned() })
        }
        (Action::Upgrade | Action::Backup, None) => Err(MkeError::NotInstalled),
        (Action::Upgrade, Some(_)) => Ok(Step::Run { version: wanted.unwrap_or_default().to_owned() }),
        // A backup uses the image of the running version, unless the item names another.
        (Action::Backup, Some(running)) => Ok(Step::Run { version: wanted.unwrap_or(running).to_owned() }),
    }
}

async fn bring_about(wanted: &Wanted, socket: &Path, report: &Report) -> Result<Outcome, MkeError> {
    let docker = docker::connect(socket, run::REQUEST_DEADLINE)?;
    let left = run::left_over(&docker, wanted).await?;
    let there = run::there(&docker).await?;
    let run = match left {
        LeftOver::Ours(run) => {
            report.line("following the run that an earlier attempt began");
            Some(run)
        }
        LeftOver::Nothing => match next(wanted.action, wanted.version.as_deref(), &there)? {
            Step::Run { version } => Some(run::start(&docker, wanted, &version, report).await?),
            Step::Confirm => {
                let here = if there.running.is_some() { "runs here" } else { "is installed in this swarm" };
                report.line(&format!("MKE {here} already"));
                None
            }
        },
    };
    if let Some(Run { copy }) = run {
        run::to_its_end(&docker, wanted.action, report).await?;
        if let Some(target) = copy {
            return backup::finish(&wanted.copies, &target, there.running.as_deref(), report);
        }
    }
    let running = arrived(&docker, wanted, report).await?;
    Ok(Outcome {
        state: ItemState::Succeeded,
        message: format!("MKE {running} runs and is healthy"),
        result_json: Some(serde_json::json!({ "version": running }).to_string()),
    })
}

/// Waits until the wanted version runs and is healthy; returns that version.
async fn arrived(docker: &Docker, wanted: &Wanted, report: &Report) -> Result<String, MkeError> {
    let controller = Controller::new(wanted.port)?;
    report.line(&format!("waiting for the version of {} and for {}", run::PROXY, controller.url()));
    let until = Instant::now() + health::DEADLINE;
    loop {
        let answer = controller.answer().await;
        // Read it after the answer, which is then from this version or an earlier one.
        let running = run::running_version(docker).await?;
        match judge(wanted, running, answer, &controller) {
            Ok(running) => return Ok(running),
            Err(error @ MkeError::OtherVersion { .. }) => return Err(error),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => sleep(health::ASK_EVERY).await,
        }
    }
}

/// Checks for the wanted version: returns the running version or the problem.
fn judge(
    wanted: &Wanted,
    running: Option<String>,
    answer: Result<(), String>,
    controller: &Controller,
) -> Result<String, MkeError> {
    let wanted_version = || wanted.version.clone().unwrap_or_default();
    let Some(running) = running else {
        return Err(MkeError::NotThere { running: "none".to_owned(), wanted: wanted_version() });
    };
    if wanted.version.as_ref().is_some_and(|version| *version != running) {
        return Err(match wanted.action {
            // Its version stays as it is.
            Action::Install => MkeError::OtherVersion { running, wanted: wanted_version() },
            Action::Upgrade | Action::Backup => MkeError::NotThere { running, wanted: wanted_version() },
        });
    }
    answer.map(|()| running).map_err(|said| MkeError::Unhealthy { url: controller.url().to_owned(), said })
}

#[cfg(test)]
#[path = "mke/tests.rs"]
mod tests;
