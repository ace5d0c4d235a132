//! Copies a manager's Docker Swarm state into an archive. A *hot* copy is made while the engine writes to it. A
//! *consistent* one is made with Docker stopped on this manager, while the others keep the majority. The leader is
//! never stopped: it makes a hot copy, which states the reason. The archive is verified before it gets its name, and
//! only then counts.
//!
//! Docker never stays stopped because of a copy: systemd starts it again even if this process dies meanwhile.

mod archive;
mod engine;

use std::{
    fs,
    path::{Path, PathBuf},
};

use muster_proto::model::{ItemState, MachineName, SwarmId, SwarmLocalState, SwarmManager, SwarmNode};
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

/// Default of the param `path`: directory of copies.
const DIR_DEFAULT: &str = "/srv/backup/swarm";
/// Minimum of managers for a consistent copy: it stops one, and fewer than three cannot spare any.
const MANAGERS_MIN: usize = 3;

/// Mode of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// While Docker runs: files may be from different times.
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

/// The checked params.
struct Wanted {
    mode: Mode,
    /// Directories of the copies per mode, distinguished by their names.
    hot: Copies,
    consistent: Copies,
    machine: MachineName,
}

/// The copy that is possible here and now.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    mode: Mode,
    /// Why it is hot although a consistent one was requested.
    hot_because: Option<String>,
}

/// State of the swarm in the engine, before the copy.
#[derive(Debug)]
struct Seen {
    state: SwarmLocalState,
    node: Option<SwarmId>,
    manager: bool,
    swarm_id: String,
    /// The managers are locked: a restore needs the unlock key.
    autolock: bool,
    engine_version: String,
    /// Docker's state directory.
    root_dir: PathBuf,
    nodes: Vec<SwarmNode>,
}

/// Label of a copy: the item's result, and the archive's first entry.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Label<'a> {
    mode: Mode,
    /// Set if a consistent copy was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    hot_because: Option<&'a str>,
    /// Did this manager lead the swarm?
    leader: bool,
    machine: &'a str,
    swarm_id: &'a str,
    node_id: &'a str,
    engine_version: &'a str,
    autolock: bool,
    taken_at_ms: u64,
}

/// Reason why the copy failed.
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
        "QuorumAtRisk: a consistent copy stops Docker on one manager, and {0} cannot be reached; take a hot copy, or \
         try again later"
    )]
    Quorum(String),
}

impl BackupError {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Engine(_) | Self::Archive(_) | Self::Copy(_) | Self::Quorum(_) => true,
            Self::NotManager => false,
        }
    }
}

/// Checks the params and returns the work.
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
        let copies = |mode: Mode| {
            let prefix = format!("swarm-{machine}-{}-", mode.as_str());
            Copies::new(optional("path").unwrap_or(DIR_DEFAULT), optional("keep"), prefix)
                .map_err(|(name, problem)| Refused::param(name, problem))
        };
        Ok(Self { mode, hot: copies(Mode::Hot)?, consistent: copies(Mode::Consistent)?, machine })
    }

    const fn copies(&self, mode: Mode) -> &Copies {
        match mode {
            Mode::Hot => &self.hot,
            Mode::Consistent => &self.consistent,
        }
    }
}

fn bring_about(wanted: &Wanted, report: &Report) -> Result<Outcome, BackupError> {
    engine::start_if_stopped(report)?;
    copy(wanted, &engine::look(Path::new(docker::SOCKET))?, report)
}

/// Makes the copy that is possible in this state.
fn copy(wanted: &Wanted, seen: &Seen, report: &Report) -> Result<Outcome, BackupError> {
    let choice = choose(wanted.mode, seen)?;
    let copies = wanted.copies(choice.mode);
    let taken_at_ms = unix_ms();
    let target = copies.begin(taken_at_ms)?;
    let node_id = seen.node.as_ref().map(SwarmId::to_string).unwrap_or_default();
    let label = Label {
        mode: choice.mode,
        hot_because: choice.hot_because.as_deref(),
        leader: seen.leads(),
        machine: wanted.machine.as_str(),
        swarm_id: &seen.swarm_id,
        node_id: &node_id,
        engine_version: &seen.engine_version,
        autolock: seen.autolock,
        taken_at_ms,
    };
    let source = seen.root_dir.join("swarm");
    let write = || archive::write(&source, &target, &label);
    let archive = match choice.mode {
        Mode::Hot => write()?,
        Mode::Consistent => {
            let written = engine::with_docker_stopped(report, Path::new(docker::SOCKET), write);
            if written.is_err() && target.exists() {
                // Its name already says consistent, which is uncertain.
                fs::remove_file(&target).map_err(CopyError::file("remove", &target))?;
            }
            written??
        }
    };
    let removed = copies.remove_old()?;
    Ok(succeeded(&label, &target, &archive, &removed, report))
}

impl Seen {
    fn managers(&self) -> impl Iterator<Item = (&SwarmNode, &SwarmManager)> {
        self.nodes.iter().filter_map(|node| Some((node, node.manager.as_ref()?)))
    }

    /// Does this manager lead the swarm?
    fn leads(&self) -> bool {
        self.managers().any(|(node, manager)| manager.leader && Some(&node.id) == self.node.as_ref())
    }
}

/// Selects the possible copy. Docker keeps running on the leader, because the others would have to elect a new one, and
/// where no manager can be spared. There a hot copy is better than none.
fn choose(wanted: Mode, seen: &Seen) -> Result<Choice, BackupError> {
    if seen.state != SwarmLocalState::Active || !seen.manager {
        return Err(BackupError::NotManager);
    }
    let hot = |because: Option<String>| Ok(Choice { mode: Mode::Hot, hot_because: because });
    if wanted == Mode::Hot {
        return hot(None);
    }
    if seen.leads() {
        return hot(Some("this manager leads the swarm".to_owned()));
    }
    let count = seen.managers().count();
    if count < MANAGERS_MIN {
        return hot(Some(format!("the swarm has {count} managers; of fewer than {MANAGERS_MIN} none is stopped")));
    }
    let missing: Vec<&str> =
        seen.managers().filter(|(_, manager)| !manager.reachable).map(|(node, _)| node.hostname.as_str()).collect();
    if missing.is_empty() {
        return Ok(Choice { mode: Mode::Consistent, hot_because: None });
    }
    Err(BackupError::Quorum(missing.join(", ")))
}

fn succeeded(label: &Label<'_>, target: &Path, archive: &Archive, removed: &[String], report: &Report) -> Outcome {
    for name in removed {
        report.line(&format!("removed the old copy {name}"));
    }
    let because = label.hot_because.map(|why| format!(", not a consistent one: {why}")).unwrap_or_default();
    let mode = label.mode.as_str();
    let mut message = format!("{mode} copy{because}; {} bytes, in {}", archive.bytes, target.display());
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
