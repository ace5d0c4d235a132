//! apt and dpkg: parsing of their output, and their commands. They run directly rather than in a shell; names follow
//! `--`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    PackageError,
    locks::{Locks, TimeBudget},
    plan::{Plan, Seen, Wanted},
};
use crate::{
    exec_item::Report,
    runner::programs::{ProgramError, output_of, run, run_and_read, succeeds},
};

/// Timeout of apt for a lock that another process takes between our check and apt's.
const LOCK_RACE_SECONDS: u32 = 60;
/// Locks of apt and dpkg, relative to the root.
const LOCKS: [&str; 4] =
    ["var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/lib/apt/lists/lock", "var/cache/apt/archives/lock"];
/// dpkg's directory, relative to the root, for changes that its record lacks. It is empty unless dpkg was interrupted.
const UPDATES: &str = "var/lib/dpkg/updates";

/// apt of one root.
pub(super) struct Apt {
    /// `/`, except in tests.
    root: PathBuf,
    locks: Locks,
}

impl Apt {
    pub(super) fn in_root(root: &Path, budget: TimeBudget) -> Self {
        Self { root: root.to_owned(), locks: Locks::below(root, &LOCKS, budget) }
    }

    /// `apt-get`, `apt-cache` or `apt-mark`.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if self.root != Path::new("/") {
            let root = self.root.display();
            for option in [
                format!("Dir={root}"),
                format!("Dir::State::status={root}/var/lib/dpkg/status"),
                format!("DPkg::Options::=--root={root}"),
                "DPkg::Options::=--log=/dev/null".to_owned(),
            ] {
                command.arg("-o").arg(option);
            }
        }
        command
    }

    fn apt_get(&self) -> Command {
        let mut command = self.apt("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("APT_LISTCHANGES_FRONTEND", "none")
            // A restart of services is a separate item.
            .env("NEEDRESTART_MODE", "l")
            .arg("-y")
            .args(["-o", "APT::Update::Error-Mode=any", "-o", "Dpkg::Use-Pty=0"])
            .args(["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"])
            .args(["-o", &format!("DPkg::Lock::Timeout={LOCK_RACE_SECONDS}")]);
        command
    }

    fn dpkg(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if self.root != Path::new("/") {
            let of_query = program == "dpkg-query";
            let (option, path) =
                if of_query { ("--admindir", self.root.join("var/lib/dpkg")) } else { ("--root", self.root.clone()) };
            command.arg(format!("{option}={}", path.display()));
        }
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Finishes the half-installed packages of an interrupted run, or names those that remain.
    pub(super) fn repair(&self, report: &Report) -> Result<(), PackageError> {
        if self.unfinished()?.is_empty() {
            return Ok(());
        }
        self.locks.wait(report)?;
        report.line("an earlier run was interrupted: finishing it");
        let configured =
            run(self.dpkg("dpkg").args(["--force-confdef", "--force-confold", "--configure", "-a"]), report);
        let left = self.unfinished()?;
        if left.is_empty() {
            return Ok(());
        }
        // A repair that needs a removal is left to a person.
        let fixed = run(self.apt_get().args(["--no-remove", "--fix-broken", "install"]), report);
        let left = self.unfinished()?;
        let cause = configured.and(fixed).err();
        if left.is_empty() {
            return Ok(());
        }
        Err(PackageError::Broken { names: left.join(", "), source: cause })
    }

    /// Half-installed and half-removed packages, and dpkg's record if it is incomplete.
    pub(super) fn unfinished(&self) -> Result<Vec<String>, PackageError> {
        let text = output_of(self.dpkg("dpkg-query").args(["-W", "-f", "${db:Status-Status} ${binary:Package}\n"]))?;
        let unfinished = |line: &str| {
            let (status, name) = line.split_once(' ')?;
            is_unfinished(status).then(|| name.to_owned())
        };
        // apt refuses to work while a file with a number as its name exists.
        let updates = std::fs::read_dir(self.root.join(UPDATES)).into_iter().flatten().flatten();
        let is_number = |name: OsString| name.to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        let record = updates.map(|file| file.file_name()).any(is_number).then(|| format!("/{UPDATES}"));
        Ok(text.lines().filter_map(unfinished).chain(record).collect())
    }

    /// Refreshes the indexes. apt keeps the former index of each repository that fails.
    pub(super) fn refresh(&self, report: &Report) -> Result<Option<ProgramError>, PackageError> {
        self.locks.wait(report)?;
        match run(self.apt_get().arg("update"), report) {
            Ok(()) => Ok(None),
            Err(error @ ProgramError::Failed { .. }) => Ok(Some(error)),
            Err(error @ ProgramError::Start { .. }) => Err(error.into()),
        }
    }

    /// The installed version.
    pub(super) fn installed(&self, name: &str) -> Option<String> {
        self.status(name).0
    }

    /// Version and hold of a package in dpkg's record.
    fn status(&self, name: &str) -> (Option<String>, bool) {
        // For an unknown name it fails with empty output.
        let format = "${db:Status-Want} ${db:Status-Status} ${Version}\n";
        let status = output_of(self.dpkg("dpkg-query").args(["-W", "-f", format, "--", name]));
        status.ok().as_deref().map(status_of).unwrap_or_default()
    }

    /// State of a package from dpkg's record and apt's index.
    pub(super) fn look(&self, name: &str) -> Result<Seen, PackageError> {
        let (installed, held) = self.status(name);
        let policy = output_of(self.apt("apt-cache").args(["policy", "--", name]))?;
        let available = versions_of(&output_of(self.apt("apt-cache").args(["madison", "--", name]))?);
        let older = match &installed {
            None => Vec::new(),
            Some(installed) => {
                let is_older = |version: &&String| {
                    succeeds(Command::new("dpkg").args(["--compare-versions", version, "lt", installed]))
                };
                available.iter().filter(is_older).cloned().collect()
            }
        };
        let candidate = candidate_of(&policy);
        let providers = if candidate.is_none() && installed.is_none() {
            providers_of(&output_of(self.apt("apt-cache").args(["showpkg", "--", name]))?)
        } else {
            Vec::new()
        };
        Ok(Seen { installed, held, candidate, available, older, providers })
    }

    /// Performs the plan in one transaction, which removes packages only after everything is downloaded.
    pub(super) fn perform(&self, plan: &Plan, wanted: &Wanted, report: &Report) -> Result<(), PackageError> {
        self.locks.wait(report)?;
        if !plan.install.is_empty() || !plan.remove.is_empty() {
            self.refuse_other_removals(plan, wanted, report)?;
            let mut change = self.apt_get();
            // Another process may have changed the state since the check.
            change.args(plan.remove.is_empty().then_some("--no-remove"));
            change.args(wanted.download_only.then_some("--download-only"));
            run(change.args(transaction(plan, wanted)), report)?;
        }
        if wanted.download_only {
            return Ok(());
        }
        // apt releases a held package that it was told to change.
        let again = plan.install.iter().filter(|_| plan.change_held && wanted.hold == Some(true));
        let held: Vec<&String> = plan.hold.iter().chain(again.map(|(name, _)| name)).collect();
        for (mark, names) in [("hold", held), ("unhold", plan.release.iter().collect())] {
            if !names.is_empty() {
                run(self.apt("apt-mark").args([mark, "--"]).args(names), report)?;
            }
        }
        Ok(())
    }

    /// Refuses to remove packages other than those the item names, such as dependencies and dependents.
    fn refuse_other_removals(&self, plan: &Plan, wanted: &Wanted, report: &Report) -> Result<(), PackageError> {
        let mut others = Vec::new();
        let native = output_of(Command::new("dpkg").arg("--print-architecture"))?;
        report.line("what apt would do:");
        run_and_read(self.apt_get().arg("--simulate").args(transaction(plan, wanted)), report, |line| {
            others.extend(
                removed_by(line).filter(|name| !is_named(&plan.remove, name, native.trim())).map(str::to_owned),
            );
        })?;
        if others.is_empty() { Ok(()) } else { Err(PackageError::OtherRemovals { names: others.join(", ") }) }
    }
}

/// Arguments of apt-get for the changes. A `-` after a name means removal.
fn transaction(plan: &Plan, wanted: &Wanted) -> Vec<String> {
    let held = plan.change_held.then_some("--allow-change-held-packages");
    let older = wanted.allow_downgrade.then_some("--allow-downgrades");
    let options = held.into_iter().chain(older).chain(["install", "--"]).map(str::to_owned);
    let come = plan.install.iter().map(|(name, version)| format!("{name}={version}"));
    options.chain(come).chain(plan.remove.iter().map(|name| format!("{name}-"))).collect()
}

/// Package removed by a line of a simulation: `Remv tool [1.0]`, or `Purg`.
fn removed_by(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("Remv ").or_else(|| line.strip_prefix("Purg "))?;
    rest.split(' ').next()
}

/// Is it among these names? apt omits the machine's own architecture (`tool` for `tool:amd64`). A package of a foreign
/// architecture is a different one, even with the same name.
fn is_named(names: &[String], name: &str, native: &str) -> bool {
    let exact = |name| -> (&str, &str) { str::split_once(name, ':').unwrap_or((name, native)) };
    names.iter().any(|named| exact(named) == exact(name))
}

/// Is it one of dpkg's states that an interrupted run leaves (dpkg(1), "Package states")?
fn is_unfinished(status: &str) -> bool {
    matches!(status, "half-installed" | "unpacked" | "half-configured" | "triggers-awaited" | "triggers-pending")
}

/// Installed version and hold. A package that only waits for a trigger is installed.
fn status_of(text: &str) -> (Option<String>, bool) {
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let (want, status, version) = (words.next(), words.next(), words.next());
    let is_there = matches!(status, Some("installed" | "triggers-awaited" | "triggers-pending"));
    let installed = version.filter(|version| is_there && !version.is_empty());
    (installed.map(str::to_owned), want == Some("hold"))
}

/// Parses `  Candidate: 1.2-3`, or `(none)`.
fn candidate_of(policy: &str) -> Option<String> {
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (candidate != "(none)").then(|| candidate.to_owned())
}

/// Parses the lines after `Reverse Provides:` of `apt-cache showpkg`: `name version (= provided)`.
fn providers_of(showpkg: &str) -> Vec<String> {
    let lines = showpkg.lines().skip_while(|line| !line.starts_with("Reverse Provides:")).skip(1);
    let mut names: Vec<String> = lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect();
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    names
}

/// Parses `name | version | source`, newest first; each version once.
fn versions_of(madison: &str) -> Vec<String> {
    let mut versions: Vec<String> = Vec::new();
    for version in madison.lines().filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned())) {
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions
}

#[cfg(test)]
#[path = "apt_tests.rs"]
mod tests;
