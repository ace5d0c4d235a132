//! Copies a manager's part of the Docker Swarm into an archive: *hot*, while the engine writes to it, or *consistent*,
//! with Docker stopped on this one manager while the others keep the majority. The archive is read back before it
//! counts.
//!
//! Docker never stays stopped for our sake: systemd starts it again even if this process dies meanwhile.

mod archive;
mod engine;

use std::path::{Path, PathBuf};

use muster_proto::model::{ItemState, MachineName, SwarmId, SwarmLocalState, SwarmNode};
use serde::Serialize;

use super::{
    BuiltinWork, Outcome, Refused,
    copies::{Copies, CopyError},
};
use crate::{
    attempt::Request,
    docker,
    exec_item::{Report, with_sources},
    host::unix_ms,
};
use archive::{Archive, ArchiveError};
use engine::EngineError;

/// Where copies go unless the item says `path`.
const DIR_DEFAULT: &str = "/srv/backup/swarm";
/// A consistent copy takes a manager away; of fewer than three none can be spared.
const MANAGERS_MIN: usize = 3;

/// How the copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// While Docker runs: files may be of different moments.
    Hot,
    /// With Docker stopped.
    Consistent,
}

impl Mode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Consistent => "consistent",
        }
    }
}

/// The params, checked.
struct Wanted {
    mode: Mode,
    copies: Copies,
    machine: MachineName,
}

/// What the engine says of the swarm before anything is done.
#[derive(Debug)]
struct Seen {
    state: SwarmLocalState,
    node: Option<SwarmId>,
    manager: bool,
    swarm_id: String,
    /// The managers are locked: a restore needs the unlock key.
    autolock: bool,
    engine_version: String,
    /// Where Docker keeps its state.
    root_dir: PathBuf,
    nodes: Vec<SwarmNode>,
}

/// What is left as the item's result, and at the head of the archive.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Label<'a> {
    mode: Mode,
    machine: &'a str,
    swarm_id: &'a str,
    node_id: &'a str,
    engine_version: &'a str,
    autolock: bool,
    taken_at_ms: u64,
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
enum BackupError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("NotManager: this machine is no manager of a swarm, so it has nothing to copy")]
    NotManager,
    #[error(
        "SwarmLeader: this manager leads the swarm; a consistent copy is taken on one that does not, or a hot copy here"
    )]
    Leader,
    #[error("QuorumAtRisk: a consistent copy stops Docker on one manager: {0}; take a hot copy, or try again later")]
    Quorum(String),
}

impl BackupError {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Engine(_) | Self::Archive(_) | Self::Copy(_) | Self::Quorum(_) => true,
            Self::NotManager | Self::Leader => false,
        }
    }
}

/// Checks the params and says what is to be done.
pub(super) fn prepare(request: &Request) -> Result<BuiltinWork, Refused> {
    let wanted = Wanted::of(request)?;
    Ok(Box::new(move |report| {
        bring_about(&wanted, report).unwrap_or_else(|error| {
            let message = with_sources(&error);
            report.line(&message);
            Outcome::failed(message, error.is_retryable())
        })
    }))
}

impl Wanted {
    fn of(request: &Request) -> Result<Self, Refused> {
        let optional = |name| request.params.get(name).map(String::as_str);
        let mode = match optional("mode").ok_or(Refused::Missing("mode"))? {
            "hot" => Mode::Hot,
            "consistent" => Mode::Consistent,
            _ => return Err(Refused::param("mode", "expected hot or consistent")),
        };
        let machine = request.machine.clone();
        let prefix = format!("swarm-{machine}-{}-", mode.as_str());
        let copies = Copies::new(optional("path").unwrap_or(DIR_DEFAULT), optional("keep"), prefix)
            .map_err(|(name, problem)| Refused::param(name, problem))?;
        Ok(Self { mode, copies, machine })
    }
}

fn bring_about(wanted: &Wanted, report: &Report) -> Result<Outcome, BackupError> {
    engine::start_if_stopped(report)?;
    let seen = engine::look(Path::new(docker::SOCKET))?;
    may_copy(wanted.mode, &seen)?;
    let taken_at_ms = unix_ms();
    let target = wanted.copies.begin(taken_at_ms)?;
    let node_id = seen.node.as_ref().map(SwarmId::to_string).unwrap_or_default();
    let label = Label {
        mode: wanted.mode,
        machine: wanted.machine.as_str(),
        swarm_id: &seen.swarm_id,
        node_id: &node_id,
        engine_version: &seen.engine_version,
        autolock: seen.autolock,
        taken_at_ms,
    };
    let source = seen.root_dir.join("swarm");
    let copy = || archive::write(&source, &target, &label);
    let archive = match wanted.mode {
        Mode::Hot => copy()?,
        Mode::Consistent => engine::with_docker_stopped(report, Path::new(docker::SOCKET), copy)??,
    };
    archive::verify(&target, &archive)?;
    let removed = wanted.copies.remove_old()?;
    Ok(succeeded(&label, &target, &archive, &removed, report))
}

/// May a copy be made here and now?
fn may_copy(mode: Mode, seen: &Seen) -> Result<(), BackupError> {
    if seen.state != SwarmLocalState::Active || !seen.manager {
        return Err(BackupError::NotManager);
    }
    if mode == Mode::Hot {
        return Ok(());
    }
    let managers: Vec<_> = seen.nodes.iter().filter_map(|node| Some((node, node.manager.as_ref()?))).collect();
    if managers.iter().any(|(node, manager)| manager.leader && Some(&node.id) == seen.node.as_ref()) {
        return Err(BackupError::Leader);
    }
    if managers.len() < MANAGERS_MIN {
        return Err(BackupError::Quorum(format!(
            "the swarm has {} managers, {MANAGERS_MIN} are needed",
            managers.len()
        )));
    }
    let missing: Vec<&str> =
        managers.iter().filter(|(_, manager)| !manager.reachable).map(|(node, _)| node.hostname.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(BackupError::Quorum(format!("not reachable: {}", missing.join(", "))))
}

fn succeeded(label: &Label<'_>, target: &Path, archive: &Archive, removed: &[String], report: &Report) -> Outcome {
    for name in removed {
        report.line(&format!("removed the old copy {name}"));
    }
    let mut message = format!("{} copy, {} bytes, in {}", label.mode.as_str(), archive.bytes, target.display());
    if label.autolock {
        message += "; the swarm is autolocked: restoring it needs the unlock key (`docker swarm unlock-key`), which is \
                    not in the copy";
    }
    report.line(&message);
    let result = serde_json::json!({
        "label": label,
        "path": target,
        "bytes": archive.bytes,
        "sha256": archive.sha256,
        "files": archive.files,
    });
    Outcome { state: ItemState::Succeeded, message, result_json: Some(result.to_string()) }
}

#[cfg(test)]
#[path = "swarm_backup/tests.rs"]
mod tests;
