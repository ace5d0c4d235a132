//! Installs and removes packages with the machine's own package manager. It checks the state first and changes only
//! what differs. It finishes the half-installed packages of an interrupted run first. It removes only packages that the
//! item names.

mod apt;
mod dnf;
mod going;
mod locks;
mod manager;
mod plan;
#[cfg(test)]
mod trial;

use std::time::Duration;

use muster_proto::model::{ItemState, package_and_version};

use super::{BuiltinWork, Outcome, Refused, programs::ProgramError};
use crate::{
    attempt::Request,
    exec_item::{Report, with_sources},
};
use locks::TimeBudget;
use manager::Manager;
use plan::{Obstacle, Plan, Want, Wanted};

/// Maximum of packages per item.
const PACKAGES_MAX: usize = 256;

/// Note on a partly failed refresh of the indexes.
const NOT_ALL_ANSWERED: &str = "not every repository answered";

/// Error after the params were checked.
#[derive(Debug, thiserror::Error)]
enum PackageError {
    #[error(
        "NoPackageManager: this machine has neither apt-get nor dnf, and no other is known here; install with runner \
         `bash`"
    )]
    NoManager,
    #[error("NoPackageManager: version 4 of dnf is known here, this machine has {0}; install with runner `bash`")]
    UnknownDnf(String),
    #[error(
        "HoldsNotSupported: dnf has no `versionlock` here; install its plugin before (python3-dnf-plugin-versionlock)"
    )]
    NoHolds {
        #[source]
        source: ProgramError,
    },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("PackagesLocked: {holder} has held {what} for {seconds} s")]
    Locked { what: String, holder: String, seconds: u64 },
    #[error("HalfInstalled: an earlier run left {names} half-installed, and finishing it did not help")]
    Broken {
        names: String,
        #[source]
        source: Option<ProgramError>,
    },
    #[error(
        "HalfInstalled: an earlier run left {names} half-installed, which a download does not touch; finish it with \
         `{mend}`"
    )]
    DownloadBroken {
        names: String,
        /// Command that finishes it.
        mend: &'static str,
        #[source]
        source: ProgramError,
    },
    #[error(
        "RemovalRefused: {names} would be removed too; name it in `remove`, or leave what it needs or conflicts with"
    )]
    OtherRemovals { names: String },
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    #[error("{obstacle}; {NOT_ALL_ANSWERED}")]
    NotRefreshed {
        obstacle: Box<Obstacle>,
        #[source]
        source: ProgramError,
    },
    #[error("{name} is still {found} after it was installed as {wanted}")]
    NotBroughtAbout { name: String, found: String, wanted: String },
}

impl PackageError {
    /// May another attempt help by itself?
    const fn is_retryable(&self) -> bool {
        match self {
            Self::Program(_)
            | Self::Locked { .. }
            | Self::Broken { .. }
            | Self::DownloadBroken { .. }
            | Self::NotRefreshed { .. }
            | Self::NotBroughtAbout { .. } => true,
            Self::NoManager
            | Self::UnknownDnf(_)
            | Self::NoHolds { .. }
            | Self::Obstacle(_)
            | Self::OtherRemovals { .. } => false,
        }
    }
}

/// Checks the params and returns the work.
pub(super) fn prepare(request: &Request) -> Result<BuiltinWork, Refused> {
    let wanted = Wanted::of(request)?;
    let limit = Duration::from_millis(request.timeout_ms);
    Ok(Box::new(move |report| {
        let done =
            Manager::of_this_machine(TimeBudget::of(limit)).and_then(|manager| bring_about(&manager, &wanted, report));
        done.map_or_else(
            |error| Outcome::failed(with_sources(&error), error.is_retryable()),
            |message| Outcome { state: ItemState::Succeeded, message, result_json: None },
        )
    }))
}

/// Does the work and summarizes it in one line.
fn bring_about(manager: &Manager, wanted: &Wanted, report: &Report) -> Result<String, PackageError> {
    if wanted.download_only {
        // Finishing runs maintainer scripts, which restart services: that must wait for the machine's turn.
        return bring_about_now(manager, wanted, report).map_err(|error| match error {
            // Unfinished packages may explain a failed program; other errors have their own cause.
            PackageError::Program(source) => match manager.unfinished().unwrap_or_default().join(", ") {
                names if names.is_empty() => source.into(),
                names => PackageError::DownloadBroken { names, mend: manager.mend(), source },
            },
            error => error,
        });
    }
    manager.repair(report)?;
    bring_about_now(manager, wanted, report)
}

/// Does the work after a former run was finished.
fn bring_about_now(manager: &Manager, wanted: &Wanted, report: &Report) -> Result<String, PackageError> {
    // A dead repository must not block the packages of another.
    let unanswered = if wanted.update { manager.refresh(report)? } else { None };
    let seen = manager.look(wanted, report)?;
    let (plan, unanswered) = match (plan::plan(wanted, &seen), unanswered) {
        (Err(obstacle), Some(source)) if obstacle.is_of_index() => {
            return Err(PackageError::NotRefreshed { obstacle: Box::new(obstacle), source });
        }
        (plan, unanswered) => (plan?, unanswered),
    };
    if !plan.is_nothing() {
        manager.perform(&plan, &seen, wanted, report)?;
    }
    if !wanted.download_only {
        verify(manager, &plan)?;
    }
    let mut summary = plan.summary(wanted.download_only);
    if let Some(error) = unanswered {
        summary += &format!("; {NOT_ALL_ANSWERED}: {error}");
    }
    report.line(&summary);
    Ok(summary)
}

/// Verifies the result that a program reported.
fn verify(manager: &Manager, plan: &Plan) -> Result<(), PackageError> {
    let expected = plan.install.iter().map(|(name, version)| (name, Some(version.as_str())));
    for (name, wanted) in expected.chain(plan.remove.iter().map(|name| (name, None))) {
        let found = manager.installed(name);
        if found.as_deref() != wanted {
            let text = |version: Option<&str>| version.unwrap_or("not installed").to_owned();
            let (found, wanted) = (text(found.as_deref()), text(wanted));
            return Err(PackageError::NotBroughtAbout { name: name.clone(), found, wanted });
        }
    }
    Ok(())
}

impl Wanted {
    fn of(request: &Request) -> Result<Self, Refused> {
        let text = |name: &str| request.params.get(name).map(String::as_str);
        let flag = |name: &'static str| match text(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(Refused::param(name, "is neither `true` nor `false`")),
        };
        let install = words("install", text("install"))?.map(want).collect::<Result<Vec<_>, _>>()?;
        let remove = words("remove", text("remove"))?
            .map(|word| match package_and_version(word) {
                Some((name, None)) => Ok(name.to_owned()),
                _ => Err(not_a_package("remove")),
            })
            .collect::<Result<Vec<_>, _>>()?;
        if install.is_empty() && remove.is_empty() {
            return Err(Refused::Missing("install"));
        }
        if let Some(both) = install.iter().find(|want| remove.contains(&want.name)) {
            return Err(Refused::param("remove", format!("names {}, and so does `install`", both.name)));
        }
        let download_only = match text("action") {
            None | Some("install") => false,
            Some("download") => true,
            Some(_) => return Err(Refused::param("action", "is neither `install` nor `download`")),
        };
        Ok(Self {
            install,
            remove,
            update: flag("update")?.unwrap_or(false),
            hold: flag("hold")?,
            allow_downgrade: flag("allow_downgrade")?.unwrap_or(false),
            download_only,
        })
    }
}

fn words<'a>(name: &str, text: Option<&'a str>) -> Result<impl Iterator<Item = &'a str>, Refused> {
    let words = text.unwrap_or_default().split_ascii_whitespace();
    if words.clone().count() > PACKAGES_MAX {
        return Err(Refused::param(name, format!("names more than {PACKAGES_MAX} packages")));
    }
    Ok(words)
}

fn want(word: &str) -> Result<Want, Refused> {
    let (name, version) = package_and_version(word).ok_or_else(|| not_a_package("install"))?;
    Ok(Want { name: name.to_owned(), version: version.map(str::to_owned) })
}

fn not_a_package(param: &str) -> Refused {
    Refused::param(param, "holds a word that is neither NAME nor NAME=VERSION")
}
