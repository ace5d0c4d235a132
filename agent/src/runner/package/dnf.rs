//! dnf (version 4) and rpm: parsing of their output, and their commands. Versions are `[EPOCH:]VERSION-RELEASE`. Holds
//! are those of dnf's plugin versionlock. rpm knows only complete packages; an interrupted transaction leaves two
//! versions of a package.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use rpm_version::rpm_evr_compare;

use super::{
    PackageError,
    going::Going,
    locks::{Locks, TimeBudget},
    plan::{Plan, Seen, Want, Wanted},
};
use crate::{
    exec_item::Report,
    runner::programs::{ProgramError, output_of, run, run_and_read},
};

/// Locks of rpm, relative to the root: on RHEL and on Fedora. dnf finds its own locks.
const LOCKS: [&str; 2] = ["var/lib/rpm/.rpm.lock", "usr/lib/sysimage/rpm/.rpm.lock"];
/// Possible suffixes of a name, as in `glibc.x86_64`.
const ARCHITECTURES: [&str; 6] = ["noarch", "x86_64", "i686", "aarch64", "ppc64le", "s390x"];
/// Query format with one line per package. dnf 4 adds an empty line.
const QUERY_FORMAT: &str = "%{name} %{arch} %{evr}\n";

/// Keeps downloads until they are installed; otherwise the next transaction of any kind deletes them.
const KEEP: &str = "--setopt=keepcache=1";
/// Exit status of dnf when another process has one of its locks. Its message is: `metadata already locked by 12`.
const LOCKED_STATUS: i32 = 200;
const LOCKED_BY: &str = " already locked by ";
/// Part of rpm's message: `lib is needed by (installed) user-1-1.noarch`.
const NEEDED_BY: &str = " is needed by (installed) ";

/// dnf of one root.
pub(super) struct Dnf {
    /// `/`, except in tests.
    root: PathBuf,
    locks: Locks,
    /// A repository is down: make dnf, which by default then refuses to work, use the others.
    skips_unavailable: Cell<bool>,
}

impl Dnf {
    pub(super) fn in_root(root: &Path, budget: TimeBudget) -> Self {
        Self { root: root.to_owned(), locks: Locks::below(root, &LOCKS, budget), skips_unavailable: Cell::new(false) }
    }

    /// Version of dnf, such as `4.14.0`.
    pub(super) fn version(&self) -> Result<String, PackageError> {
        Ok(output_of(self.dnf().arg("--version"))?.lines().next().unwrap_or_default().to_owned())
    }

    fn dnf(&self) -> Command {
        let mut command = self.dnf_in_root();
        // Suppresses progress output; important messages still appear.
        command.args(["--assumeyes", "--quiet"]);
        command
    }

    fn dnf_in_root(&self) -> Command {
        let mut command = Command::new("dnf");
        if self.root != Path::new("/") {
            let root = self.root.display();
            command.arg(format!("--installroot={root}")).arg("--releasever=1");
            // The plugin `local` offers packages that other roots installed.
            command.arg(format!("--config={root}/etc/dnf/dnf.conf")).arg("--disableplugin=local");
            for (setting, path) in [
                ("reposdir", "etc/yum.repos.d"),
                ("pluginconfpath", "etc/dnf/plugins"),
                ("cachedir", "var/cache/dnf"),
                ("persistdir", "var/lib/dnf"),
                ("logdir", "var/log"),
            ] {
                command.arg(format!("--setopt={setting}={root}/{path}"));
            }
        }
        command.args(self.skips_unavailable.get().then_some("--setopt=*.skip_if_unavailable=1"));
        // Otherwise dnf would wait for another process indefinitely.
        command.env("LC_ALL", "C").arg("--setopt=exit_on_lock=True");
        command
    }

    fn run(&self, command: &mut Command, report: &Report) -> Result<(), PackageError> {
        self.locks.outwait(report, || run(command, report), lock_of)
    }

    fn output_of(&self, command: &mut Command, report: &Report) -> Result<String, PackageError> {
        self.locks.outwait(report, || output_of(command), lock_of)
    }

    fn rpm(&self) -> Command {
        let mut command = Command::new("rpm");
        if self.root != Path::new("/") {
            command.arg("--root").arg(&self.root);
        }
        command.env("LC_ALL", "C");
        command
    }

    pub(super) fn refresh(&self, report: &Report) -> Result<Option<ProgramError>, PackageError> {
        let refresh = || self.run(self.dnf().args(["--refresh", "makecache"]), report);
        self.skips_unavailable.set(false);
        match refresh() {
            Ok(()) => Ok(None),
            Err(PackageError::Program(error @ ProgramError::Failed { .. })) => {
                self.skips_unavailable.set(true);
                refresh().map(|()| Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Finishes transactions that were interrupted between the install of a new version and the removal of the old one.
    pub(super) fn repair(&self, report: &Report) -> Result<(), PackageError> {
        if self.unfinished()?.is_empty() {
            return Ok(());
        }
        self.locks.wait(report)?;
        report.line("an earlier run was interrupted: finishing it");
        let source = match self.run(self.dnf().args(["remove", "--duplicates", "--noautoremove"]), report) {
            Ok(()) => None,
            Err(PackageError::Program(source)) => Some(source),
            Err(error) => return Err(error),
        };
        let left = self.unfinished()?;
        if left.is_empty() { Ok(()) } else { Err(PackageError::Broken { names: left.join(", "), source }) }
    }

    /// Packages with several installed versions, except those that allow it, such as kernels.
    pub(super) fn unfinished(&self) -> Result<Vec<String>, PackageError> {
        let all = output_of(self.rpm().args(["--query", "--all", "--queryformat", "%{NAME}.%{ARCH}\n"]))?;
        let mut seen = BTreeSet::new();
        if all.lines().all(|name| seen.insert(name)) {
            return Ok(Vec::new());
        }
        // dnf knows which packages allow it, even offline.
        let mut query = self.dnf();
        query.args(["--disablerepo=*", "repoquery", "--duplicates", "--queryformat", "%{name}.%{arch}"]);
        let names: BTreeSet<String> =
            output_of(&mut query)?.lines().filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Ok(names.into_iter().collect())
    }

    /// The installed version; the newest one if there are several, as of kernels.
    pub(super) fn installed(&self, name: &str) -> Option<String> {
        // Fails for a missing package.
        let text = output_of(self.rpm().args(["--query", "--queryformat", "%{EVR}\n", name])).ok()?;
        text.lines().max_by(|one, other| rpm_evr_compare(one, other)).map(str::to_owned)
    }

    /// State of an item's packages, from rpm's record and the repositories' indexes. Each dnf query takes a second or
    /// more, so only packages that must change are queried.
    pub(super) fn look(&self, wanted: &Wanted, report: &Report) -> Result<BTreeMap<String, Seen>, PackageError> {
        let names = wanted.install.iter().map(|want| &want.name).chain(&wanted.remove);
        let installed: BTreeMap<&str, Option<String>> =
            names.map(|name| (name.as_str(), self.installed(name))).collect();
        let is_there = |name: &str| installed.get(name).is_some_and(Option::is_some);
        let will_do = |want: &&Want| match &want.version {
            None => is_there(&want.name),
            Some(version) => installed.get(want.name.as_str()).is_some_and(|found| found.as_ref() == Some(version)),
        };
        let changes: Vec<&str> =
            wanted.install.iter().filter(|want| !will_do(want)).map(|want| split(&want.name).0).collect();
        let mut offered = String::new();
        if !changes.is_empty() {
            let mut query = self.dnf();
            // Held packages are installed too.
            query.args(["--disableplugin=versionlock", "repoquery", "--available", "--showduplicates"]);
            offered = self.output_of(query.args(["--queryformat", QUERY_FORMAT]).args(&changes), report)?;
        }
        let removes = wanted.remove.iter().any(|name| is_there(name));
        let locked = if changes.is_empty() && !removes && wanted.hold.is_none() {
            String::new()
        } else {
            self.locked(wanted.hold.is_some(), report)?
        };
        let seen = |(name, installed): (&str, Option<String>)| {
            let mut seen = seen(name, installed, &offered, &locked);
            if changes.contains(&split(name).0) && seen.installed.is_none() && seen.available.is_empty() {
                seen.providers = self.providers(name, report)?;
            }
            Ok((name.to_owned(), seen))
        };
        installed.into_iter().map(seen).collect()
    }

    /// Packages that provide a purely virtual name.
    fn providers(&self, name: &str, report: &Report) -> Result<Vec<String>, PackageError> {
        let mut query = self.dnf();
        query.args(["repoquery", "--available", "--whatprovides", name, "--queryformat", "%{name}"]);
        let names: BTreeSet<String> =
            self.output_of(&mut query, report)?.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        Ok(names.into_iter().collect())
    }

    /// The versionlock entries, one per line; empty if dnf lacks the plugin and the item can do without it.
    fn locked(&self, is_needed: bool, report: &Report) -> Result<String, PackageError> {
        match self.output_of(self.dnf().args(["versionlock", "list"]), report) {
            Err(PackageError::Program(source)) if is_needed => Err(PackageError::NoHolds { source }),
            Err(PackageError::Program(_)) => Ok(String::new()),
            told => told,
        }
    }

    /// Performs the plan. A package is removed only after its replacement is downloaded.
    pub(super) fn perform(
        &self,
        plan: &Plan,
        seen: &BTreeMap<String, Seen>,
        wanted: &Wanted,
        report: &Report,
    ) -> Result<(), PackageError> {
        self.locks.wait(report)?;
        // A conflicting package is removed only if the item names it.
        let download = ["--downloadonly", "--allowerasing", KEEP];
        if wanted.download_only {
            return self.install(plan, seen, &download, report);
        }
        let going = self.going(plan, seen, report)?;
        if let Some(names) = going.unnamed(&plan.remove) {
            return Err(PackageError::OtherRemovals { names });
        }
        // A replaced package goes in the transaction that replaces it, because others may need either of them.
        let first: Vec<&String> = plan.remove.iter().filter(|name| !going.replaces(name)).collect();
        if !first.is_empty() {
            self.refuse_other_removals(&first)?;
            self.install(plan, seen, &download, report)?;
            let mut remove = self.dnf();
            remove.args(plan.change_held.then_some("--disableplugin=versionlock"));
            self.run(remove.args(["remove", "--noautoremove", KEEP]).args(first), report)?;
        }
        self.install(plan, seen, &[], report)?;
        self.hold(plan, wanted, report)
    }

    /// Packages that the installation would remove, from dnf's preview.
    fn going(&self, plan: &Plan, seen: &BTreeMap<String, Seen>, report: &Report) -> Result<Going, PackageError> {
        let mut all = Going::default();
        let options: &[&str] = if plan.remove.is_empty() { &[] } else { &["--allowerasing"] };
        for (verb, packages) in changes(plan, seen) {
            let mut preview = self.dnf_in_root();
            preview.arg("--assumeno").args(plan.change_held.then_some("--disableplugin=versionlock"));
            preview.arg(verb).args(options).args(packages);
            report.line("what dnf would do:");
            let mut going = Going::default();
            let told =
                self.locks.outwait(report, || run_and_read(&mut preview, report, |line| going.take(line)), lock_of);
            if !going.is_told {
                told?;
            }
            all.removed.extend(going.removed);
            all.replaced.extend(going.replaced);
        }
        Ok(all)
    }

    /// Refuses to remove dependents of a package; rpm names them.
    fn refuse_other_removals(&self, removed: &[&String]) -> Result<(), PackageError> {
        match output_of(self.rpm().args(["--erase", "--test"]).args(removed)) {
            Ok(_) => Ok(()),
            Err(ProgramError::Failed { complaint, .. }) if complaint.contains(NEEDED_BY) => {
                let others: BTreeSet<_> =
                    complaint.lines().filter_map(|line| Some(line.split_once(NEEDED_BY)?.1)).collect();
                Err(PackageError::OtherRemovals { names: others.into_iter().collect::<Vec<_>>().join(", ") })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn install(
        &self,
        plan: &Plan,
        seen: &BTreeMap<String, Seen>,
        options: &[&str],
        report: &Report,
    ) -> Result<(), PackageError> {
        for (verb, packages) in changes(plan, seen) {
            let mut command = self.dnf();
            command.args(plan.change_held.then_some("--disableplugin=versionlock")).arg(verb).args(options);
            self.run(command.args(packages), report)?;
        }
        Ok(())
    }

    /// Updates the holds. A lock applies to one version, so a changed held package is locked again.
    fn hold(&self, plan: &Plan, wanted: &Wanted, report: &Report) -> Result<(), PackageError> {
        let installed = || plan.install.iter().map(|(name, _)| name);
        let changed = plan.change_held.then(|| installed().chain(&plan.remove)).into_iter().flatten();
        for name in plan.release.iter().chain(changed) {
            match self.output_of(self.dnf().args(["versionlock", "delete", name]), report) {
                // It fails if the lock is missing.
                Ok(_) | Err(PackageError::Program(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let again = (plan.change_held && wanted.hold == Some(true)).then(installed).into_iter().flatten();
        let held: Vec<&String> = plan.hold.iter().chain(again).collect();
        if !held.is_empty() {
            self.run(self.dnf().args(["versionlock", "add"]).args(held), report)?;
        }
        Ok(())
    }
}

/// Packages to install, by dnf command: a downgrade has its own.
fn changes(plan: &Plan, seen: &BTreeMap<String, Seen>) -> impl Iterator<Item = (&'static str, Vec<String>)> {
    let is_older = |(name, version): &&(String, String)| seen.get(name).is_some_and(|s| s.older.contains(version));
    let (older, other): (Vec<_>, Vec<_>) = plan.install.iter().partition(is_older);
    let exact =
        |packages: Vec<&(String, String)>| packages.iter().map(|(name, version)| exact(name, version)).collect();
    let all: [(_, Vec<String>); 2] = [("downgrade", exact(older)), ("install", exact(other))];
    all.into_iter().filter(|(_, packages)| !packages.is_empty())
}

/// The dnf lock that made a command fail, and its holder's process id.
fn lock_of(error: &ProgramError) -> Option<(String, u32)> {
    let ProgramError::Failed { status, complaint, .. } = error else { return None };
    let (lock, rest) = complaint.split_once(LOCKED_BY).filter(|_| status.code() == Some(LOCKED_STATUS))?;
    let process: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let lock = lock.rsplit(['\n', ' ']).next().unwrap_or_default();
    Some((format!("dnf's lock `{lock}`"), process.parse().ok()?))
}

/// Splits off the architecture: `glibc.x86_64` is the package `glibc`; `python3.11` is a name.
pub(super) fn split(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once('.') {
        Some((bare, architecture)) if ARCHITECTURES.contains(&architecture) => (bare, Some(architecture)),
        Some(_) | None => (name, None),
    }
}

/// A package of exactly this version, in dnf's syntax.
fn exact(name: &str, version: &str) -> String {
    match split(name) {
        (bare, Some(architecture)) => format!("{bare}-{version}.{architecture}"),
        (bare, None) => format!("{bare}-{version}"),
    }
}

/// State of one package, from the programs' output.
fn seen(name: &str, installed: Option<String>, offered: &str, locked: &str) -> Seen {
    let (bare, architecture) = split(name);
    let mut available: Vec<String> = Vec::new();
    for line in offered.lines() {
        let mut words = line.split(' ');
        let (Some(its_name), Some(its_architecture), Some(version)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let is_it = its_name == bare && architecture.is_none_or(|wanted| wanted == its_architecture);
        if is_it && !available.iter().any(|known| known == version) {
            available.push(version.to_owned());
        }
    }
    available.sort_by(|one, other| rpm_evr_compare(other, one));
    let is_older = |version: &&String| installed.as_ref().is_some_and(|i| rpm_evr_compare(version, i).is_lt());
    let older = available.iter().filter(is_older).cloned().collect();
    // `NAME-EPOCH:VERSION-RELEASE.*`
    let is_its_lock = |line: &str| {
        let rest = line.strip_prefix(bare).and_then(|rest| rest.strip_prefix('-'));
        rest.and_then(|rest| rest.split_once(':')).is_some_and(|(epoch, _)| epoch.bytes().all(|b| b.is_ascii_digit()))
    };
    let held = locked.lines().any(is_its_lock);
    Seen { installed, held, candidate: available.first().cloned(), available, older, providers: Vec::new() }
}

#[cfg(test)]
#[path = "dnf_tests.rs"]
mod tests;
