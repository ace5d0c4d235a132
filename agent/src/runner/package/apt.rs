//! apt and dpkg: what they say of packages, and how they are told. Nothing goes through a shell; names stand after
//! `--`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    PackageError,
    locks::{Locks, Patience},
    plan::{Plan, Seen, Wanted},
};
use crate::{
    exec_item::Report,
    runner::programs::{ProgramError, output_of, run, run_and_read, succeeds},
};

/// Between our look and apt's own taking of the lock another may come first.
const LOCK_RACE_SECONDS: u32 = 60;
/// What apt and dpkg lock, below the root.
const LOCKS: [&str; 4] =
    ["var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/lib/apt/lists/lock", "var/cache/apt/archives/lock"];
/// Where dpkg keeps, below the root, what it has not yet put into its record: nothing, unless it was interrupted.
const UPDATES: &str = "var/lib/dpkg/updates";

/// The apt of one root.
pub(super) struct Apt {
    /// `/`, but in tests.
    root: PathBuf,
    locks: Locks,
}

impl Apt {
    pub(super) fn in_root(root: &Path, patience: Patience) -> Self {
        Self { root: root.to_owned(), locks: Locks::below(root, &LOCKS, patience) }
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
            // A restart of services is an item of its own.
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

    /// Brings half-installed packages of an interrupted run to an end, or says which cannot be.
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
        // What only a removal would mend is for a person.
        let fixed = run(self.apt_get().args(["--no-remove", "--fix-broken", "install"]), report);
        let left = self.unfinished()?;
        let cause = configured.and(fixed).err();
        if left.is_empty() {
            return Ok(());
        }
        Err(PackageError::Broken { names: left.join(", "), source: cause })
    }

    /// Packages that are neither wholly there nor wholly gone, and dpkg's own record if it is not.
    pub(super) fn unfinished(&self) -> Result<Vec<String>, PackageError> {
        let text = output_of(self.dpkg("dpkg-query").args(["-W", "-f", "${db:Status-Status} ${binary:Package}\n"]))?;
        let unfinished = |line: &str| {
            let (status, name) = line.split_once(' ')?;
            is_unfinished(status).then(|| name.to_owned())
        };
        // apt refuses to work while there is one whose name is a number.
        let updates = std::fs::read_dir(self.root.join(UPDATES)).into_iter().flatten().flatten();
        let is_number = |name: OsString| name.to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        let record = updates.map(|file| file.file_name()).any(is_number).then(|| format!("/{UPDATES}"));
        Ok(text.lines().filter_map(unfinished).chain(record).collect())
    }

    /// What apt could fetch it keeps, and of the others the former index.
    pub(super) fn refresh(&self, report: &Report) -> Result<Option<ProgramError>, PackageError> {
        self.locks.wait(report)?;
        match run(self.apt_get().arg("update"), report) {
            Ok(()) => Ok(None),
            Err(error @ ProgramError::Failed { .. }) => Ok(Some(error)),
            Err(error @ ProgramError::Start { .. }) => Err(error.into()),
        }
    }

    /// The version that is installed.
    pub(super) fn installed(&self, name: &str) -> Option<String> {
        self.status(name).0
    }

    /// What dpkg's record has of a package: its version, and whether it is held.
    fn status(&self, name: &str) -> (Option<String>, bool) {
        // Fails for a name that dpkg has never met; then it prints nothing.
        let format = "${db:Status-Want} ${db:Status-Status} ${Version}\n";
        let status = output_of(self.dpkg("dpkg-query").args(["-W", "-f", format, "--", name]));
        status.ok().as_deref().map(status_of).unwrap_or_default()
    }

    /// What is known of a package, from dpkg's record and apt's index.
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

    /// Does what the plan says: all of it in one transaction, which removes nothing before everything is fetched.
    pub(super) fn perform(&self, plan: &Plan, wanted: &Wanted, report: &Report) -> Result<(), PackageError> {
        self.locks.wait(report)?;
        if !plan.install.is_empty() || !plan.remove.is_empty() {
            self.refuse_other_removals(plan, wanted, report)?;
            let mut change = self.apt_get();
            // Should another have changed something since that was looked at.
            change.args(plan.remove.is_empty().then_some("--no-remove"));
            change.args(wanted.download_only.then_some("--download-only"));
            run(change.args(transaction(plan, wanted)), report)?;
        }
        if wanted.download_only {
            return Ok(());
        }
        // apt lets a held package go that it was told to change.
        let again = plan.install.iter().filter(|_| plan.change_held && wanted.hold == Some(true));
        let held: Vec<&String> = plan.hold.iter().chain(again.map(|(name, _)| name)).collect();
        for (mark, names) in [("hold", held), ("unhold", plan.release.iter().collect())] {
            if !names.is_empty() {
                run(self.apt("apt-mark").args([mark, "--"]).args(names), report)?;
            }
        }
        Ok(())
    }

    /// What another package needs is not taken away silently, nor is a package that needs what goes.
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

/// The arguments of apt-get for what changes. A `-` after a name means that it goes.
fn transaction(plan: &Plan, wanted: &Wanted) -> Vec<String> {
    let held = plan.change_held.then_some("--allow-change-held-packages");
    let older = wanted.allow_downgrade.then_some("--allow-downgrades");
    let options = held.into_iter().chain(older).chain(["install", "--"]).map(str::to_owned);
    let come = plan.install.iter().map(|(name, version)| format!("{name}={version}"));
    options.chain(come).chain(plan.remove.iter().map(|name| format!("{name}-"))).collect()
}

/// The package that goes, of a line of a simulation: `Remv tool [1.0]`, or `Purg`.
fn removed_by(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("Remv ").or_else(|| line.strip_prefix("Purg "))?;
    rest.split(' ').next()
}

/// Is it among these? apt leaves the machine's own architecture away (`tool`, where `tool:amd64` was asked for); a
/// package of a foreign one is another package, though it has the same name.
fn is_named(names: &[String], name: &str, native: &str) -> bool {
    let exact = |name| -> (&str, &str) { str::split_once(name, ':').unwrap_or((name, native)) };
    names.iter().any(|named| exact(named) == exact(name))
}

/// Of dpkg's states, those that an interrupted run leaves (dpkg(1), "Package states").
fn is_unfinished(status: &str) -> bool {
    matches!(status, "half-installed" | "unpacked" | "half-configured" | "triggers-awaited" | "triggers-pending")
}

/// The installed version, and whether it is held. What only waits for a trigger is installed.
fn status_of(text: &str) -> (Option<String>, bool) {
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let (want, status, version) = (words.next(), words.next(), words.next());
    let is_there = matches!(status, Some("installed" | "triggers-awaited" | "triggers-pending"));
    let installed = version.filter(|version| is_there && !version.is_empty());
    (installed.map(str::to_owned), want == Some("hold"))
}

/// `  Candidate: 1.2-3`, or `(none)`.
fn candidate_of(policy: &str) -> Option<String> {
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (candidate != "(none)").then(|| candidate.to_owned())
}

/// Of `apt-cache showpkg`, what stands behind `Reverse Provides:`, a line each: `name version (= provided)`.
fn providers_of(showpkg: &str) -> Vec<String> {
    let lines = showpkg.lines().skip_while(|line| !line.starts_with("Reverse Provides:")).skip(1);
    let mut names: Vec<String> = lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect();
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    names
}

/// `name | version | where it is from`, newest first; each version once.
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
