//! Runs a playbook against this machine, with the machine's own `ansible-playbook` (ansible-core 2.14 or later). Params
//! become extra variables that Ansible never templates. A small callback plugin reports the failed task. Secrets are
//! hidden in the output as everywhere; modules are kept from logging their arguments elsewhere.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Component, Path, PathBuf},
    process::Command,
};

use muster_proto::{
    model::{ItemHash, ItemState},
    variables::{VARS_PARAM, VariableError, vars},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    BuiltinWork, Outcome, Refused, downloader,
    programs::{ProgramError, run},
};
use crate::{
    attempt::{AttemptDir, Request, handlers, inputs::Inputs},
    exec_item::{Report, with_sources},
};

/// Params of the runner; all others are variables of the playbook.
const OWN_PARAMS: [&str; 3] = ["playbook", "url", "sha256"];
/// Playbook in an archive, unless the item names another.
const PLAYBOOK_DEFAULT: &str = "site.yml";
/// Directory in memory that all users may write to.
const SHARED_MEMORY: &str = "/dev/shm";
const PLUGIN: &str = include_str!("ansible/muster_report.py");

/// The checked params.
struct Wanted {
    playbook: Playbook,
    variables: Map<String, Value>,
}

/// Paths of the files, and the hash of the item's content.
struct Files {
    scratch: PathBuf,
    handlers: PathBuf,
    progress: PathBuf,
    hash: ItemHash,
}

enum Playbook {
    /// A file on this machine.
    Here(PathBuf),
    /// A file in an archive that is downloaded first.
    Archive { fetch: BuiltinWork, target: PathBuf, inside: PathBuf },
}

/// Error after the params were checked.
#[derive(Debug, thiserror::Error)]
enum AnsibleError {
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("PlaybookNotFound: there is no {}", .0.display())]
    NoPlaybook(PathBuf),
    #[error("AnsibleMissing: this machine has no ansible-playbook; install ansible-core (runner `package`) before")]
    Missing,
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// One line of the plugin's report.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    task: Option<String>,
    message: String,
    counts: Option<BTreeMap<String, u64>>,
    /// Handlers notified by another content of the item and missing in this playbook: dropped.
    gone: Vec<String>,
    /// Handlers notified by this item and missing in its playbook: still due.
    missing: Vec<String>,
    /// A play was skipped because its `hosts` exclude this machine.
    no_hosts: bool,
}

/// Checks the params and returns the work.
pub(super) fn prepare(request: &Request, inputs: &Inputs, dir: &AttemptDir) -> Result<BuiltinWork, Refused> {
    let wanted = Wanted::of(request, dir)?;
    let scratch = dir.file("ansible");
    let scratch = inputs.scratch(&scratch).map_err(|source| Refused::Write { path: scratch, source })?;
    let (handlers, progress) = (dir.handlers(&request.key.item), dir.progress_file());
    let files = Files { scratch, handlers, progress, hash: request.hash };
    Ok(Box::new(move |report| bring_about(wanted, &files, report)))
}

impl Wanted {
    fn of(request: &Request, dir: &AttemptDir) -> Result<Self, Refused> {
        let own = |name: &str| request.params.get(name);
        let variables = variables(&request.params).map_err(|error| Refused::param("vars", error.to_string()))?;
        let playbook = match (own("url"), own("playbook")) {
            (None, None) => return Err(Refused::Missing("playbook")),
            (None, Some(path)) if is_plain(path, true) => Playbook::Here(PathBuf::from(path)),
            (None, Some(_)) => return Err(Refused::param("playbook", "is not an absolute path without `..`")),
            (Some(url), inside) => {
                let inside = inside.map_or(PLAYBOOK_DEFAULT, String::as_str);
                if !is_plain(inside, false) {
                    return Err(Refused::param("playbook", "is not a path inside the archive, without `..`"));
                }
                let target = dir.file("playbook");
                let sha256 = own("sha256").ok_or(Refused::Missing("sha256"))?;
                let params = [
                    ("url", url.clone()),
                    ("sha256", sha256.clone()),
                    ("path", dir.file("playbook.archive").display().to_string()),
                    ("extract", target.display().to_string()),
                ];
                let params = params.map(|(name, value)| (name.to_owned(), value)).into();
                let fetch = downloader::prepare(&Request { params, ..request.clone() }, dir)?;
                Playbook::Archive { fetch, target, inside: PathBuf::from(inside) }
            }
        };
        Ok(Self { playbook, variables })
    }
}

fn is_plain(text: &str, absolute: bool) -> bool {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    plain && path.is_absolute() == absolute && path.file_name().is_some()
}

fn bring_about(wanted: Wanted, files: &Files, report: &Report) -> Outcome {
    let playbook = match wanted.playbook {
        Playbook::Here(path) => path,
        Playbook::Archive { fetch, target, inside } => {
            let fetched = fetch(report);
            if fetched.state != ItemState::Succeeded {
                return fetched;
            }
            target.join(inside)
        }
    };
    let failed = |error: &AnsibleError| {
        let retryable = match error {
            AnsibleError::Write { .. } | AnsibleError::Program(_) => true,
            AnsibleError::NoPlaybook(_) | AnsibleError::Missing => false,
        };
        Outcome::failed(with_sources(error), retryable)
    };
    if !playbook.is_file() {
        return failed(&AnsibleError::NoPlaybook(playbook));
    }
    let ended = match play(&playbook, &wanted.variables, files, report) {
        Ok(()) => Ok(()),
        Err(AnsibleError::Program(error @ ProgramError::Failed { .. })) => Err(error),
        Err(error) => return failed(&error),
    };
    outcome(ended, &told(&files.scratch.join("report")))
}

/// Writes the files and runs the playbook.
fn play(playbook: &Path, variables: &Map<String, Value>, files: &Files, report: &Report) -> Result<(), AnsibleError> {
    let Files { scratch, handlers, progress, hash } = files;
    let plugins = scratch.join("plugins");
    fs::create_dir_all(&plugins).map_err(|source| AnsibleError::Write { path: plugins.clone(), source })?;
    write(&plugins.join("muster_report.py"), PLUGIN.as_bytes())?;
    let vars = scratch.join("variables.json");
    write(&vars, &muster_proto::json::json(variables))?;
    let told = scratch.join("report");
    write(&told, b"")?;
    handlers::begin(handlers).map_err(|source| AnsibleError::Write { path: handlers.clone(), source })?;
    let mut command = Command::new("ansible-playbook");
    command
        .env("ANSIBLE_NOCOLOR", "1")
        .env("ANSIBLE_RETRY_FILES_ENABLED", "0")
        .env("ANSIBLE_LOCALHOST_WARNING", "0")
        .env("ANSIBLE_CALLBACK_PLUGINS", &plugins)
        .env("ANSIBLE_CALLBACKS_ENABLED", "muster_report")
        .env("MUSTER_ANSIBLE_REPORT", &told)
        .env("MUSTER_ANSIBLE_HANDLERS", handlers)
        .env("MUSTER_ANSIBLE_PROGRESS", progress)
        .env("MUSTER_ANSIBLE_HASH", hash.to_string())
        // Otherwise every module writes its arguments, secrets included, to the machine's journal.
        .env("ANSIBLE_NO_TARGET_SYSLOG", "1")
        // Overrides a site's ansible.cfg, which could write unredacted results to a file.
        .env("ANSIBLE_LOG_PATH", "/dev/null")
        // A task of another user (`become_user`) gets its module through a pipe; necessary files are in memory.
        .env("ANSIBLE_PIPELINING", "1")
        .env("ANSIBLE_SYSTEM_TMPDIRS", SHARED_MEMORY)
        // Arguments of a task pass through files there, which are removed together with the secrets.
        .env("ANSIBLE_LOCAL_TEMP", scratch.join("local"))
        .env("ANSIBLE_REMOTE_TEMP", scratch.join("remote"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Run notified handlers even if a later task fails: the next attempt finds the change made and would skip them.
        .args(["--force-handlers", "--inventory", "localhost,", "--connection", "local", "--extra-vars"])
        .arg(format!("@{}", vars.display()))
        .arg("--")
        .arg(playbook);
    match run(&mut command, report) {
        Err(ProgramError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(AnsibleError::Missing)
        }
        done => Ok(done?),
    }
}

/// `vars` unchanged, plus all params except the runner's own; a machine's own param overrides a variable.
fn variables(params: &BTreeMap<String, String>) -> Result<Map<String, Value>, VariableError> {
    let mut variables = params.get(VARS_PARAM).map(|text| vars(text)).transpose()?.unwrap_or_default();
    let others = params.iter().filter(|(name, _)| !OWN_PARAMS.contains(&name.as_str()) && *name != VARS_PARAM);
    variables.extend(others.map(|(name, value)| (name.clone(), Value::String(value.clone()))));
    variables.values_mut().for_each(as_data);
    Ok(variables)
}

/// Marks texts as literal: Ansible then ignores `{{ }}` in them.
fn as_data(value: &mut Value) {
    match value {
        Value::String(text) => *value = json!({ "__ansible_unsafe": text }),
        Value::Array(all) => all.iter_mut().for_each(as_data),
        Value::Object(all) => all.values_mut().for_each(as_data),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), AnsibleError> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(bytes));
    written.map_err(|source| AnsibleError::Write { path: path.to_owned(), source })
}

/// The plugin's report; invalid lines are skipped.
fn told(path: &Path) -> Vec<Told> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Outcome in one line. A failed but rescued task counts as successful.
fn outcome(ended: Result<(), ProgramError>, told: &[Told]) -> Outcome {
    let counts = told.iter().rev().find_map(|told| told.counts.as_ref());
    let result_json = counts.map(|counts| json!(counts).to_string());
    let count = |what: &str| counts.and_then(|counts| counts.get(what)).copied().unwrap_or_default();
    let failure = told.iter().rev().find_map(|told| Some((told.task.as_ref()?, &told.message)));
    let nothing_ran = told.iter().any(|told| told.no_hosts) && counts.is_none_or(BTreeMap::is_empty);
    match (ended, failure) {
        // Ansible itself reports success.
        (Ok(()), _) if nothing_ran => {
            let message = "NoHostsMatched: no play of the playbook is for this machine, which Ansible knows as \
                           `localhost` only; write `hosts: all` or `hosts: localhost`";
            Outcome::failed(message.to_owned(), false)
        }
        (Ok(()), _) if counts.is_none() => {
            let message = "its callback plugin told nothing, so nobody knows whether notified handlers ran; the output \
                           says why Ansible did not load it";
            Outcome::failed(message.to_owned(), false)
        }
        (Ok(()), _) => {
            let names =
                |of: fn(&Told) -> &Vec<String>| told.iter().flat_map(of).cloned().collect::<Vec<_>>().join(", ");
            let (gone, missing) = (names(|told| &told.gone), names(|told| &told.missing));
            let mut message = format!("{} tasks ok, {} changed something", count("ok"), count("changed"));
            if !gone.is_empty() {
                message += &format!("; it has no handlers that an earlier version notified: {gone}");
            }
            if !missing.is_empty() {
                message += &format!(
                    "; the playbook has no handler of that name any more: {missing}; put it back, or give the item \
                     another version: its next run drops what its playbook does not have"
                );
            }
            Outcome { state: ItemState::Succeeded, message, result_json }
        }
        (Err(error), failure) => {
            let exit_code = match &error {
                ProgramError::Failed { status, .. } => status.code().unwrap_or(-1),
                ProgramError::Start { .. } => -1,
            };
            let message = failure
                .map_or_else(|| with_sources(&error), |(task, message)| format!("task \"{task}\" failed: {message}"));
            Outcome { state: ItemState::Failed { exit_code, retryable: true }, message, result_json }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ansible continues if loading a plugin fails.
    #[test]
    fn success_without_the_plugins_word_is_none() {
        let told = |lines: &[&str]| lines.iter().map(|line| serde_json::from_str(line).expect("a line")).collect();
        let all: Vec<Told> = told(&[r#"{"gone":[],"missing":[]}"#, r#"{"counts":{"ok":2,"changed":1}}"#]);
        let Outcome { state, message, .. } = outcome(Ok(()), &all);
        assert_eq!((state, message.as_str()), (ItemState::Succeeded, "2 tasks ok, 1 changed something"));
        let Outcome { state, message, .. } = outcome(Ok(()), &all[..1]);
        assert_eq!(state, ItemState::Failed { exit_code: -1, retryable: false });
        assert!(message.starts_with("its callback plugin told nothing, so nobody knows whether"), "{message}");
    }
}
