//! dnf (version 4) and rpm: what they say of packages, and how they are told. Versions are `[EPOCH:]VERSION-RELEASE`.
//! Holds are those of dnf's plugin versionlock. rpm knows no half-installed packages, so nothing is repaired.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use rpm_version::rpm_evr_compare;

use super::{
    PackageError,
    locks::{Locks, Patience},
    plan::{Plan, Seen, Want, Wanted},
};
use crate::{
    exec_item::Report,
    runner::programs::{ProgramError, output_of, run, succeeds},
};

/// What rpm locks, below the root: of RHEL and of Fedora. dnf's own lock dnf itself waits for, and says so.
const LOCKS: [&str; 2] = ["var/lib/rpm/.rpm.lock", "usr/lib/sysimage/rpm/.rpm.lock"];
/// What may stand behind a name, as in `glibc.x86_64`.
const ARCHITECTURES: [&str; 6] = ["noarch", "x86_64", "i686", "aarch64", "ppc64le", "s390x"];
/// A line for each package of a query. dnf 4 adds an empty one.
const QUERY_FORMAT: &str = "%{name} %{arch} %{evr}\n";

/// What was fetched stays until it is installed; else the next transaction, whichever, clears it away.
const KEEP: &str = "--setopt=keepcache=1";
/// Of rpm's complaint: `lib is needed by (installed) user-1-1.noarch`.
const NEEDED_BY: &str = " is needed by (installed) ";

/// The dnf of one root.
pub(super) struct Dnf {
    /// `/`, but in tests.
    root: PathBuf,
    locks: Locks,
}

impl Dnf {
    pub(super) fn in_root(root: &Path, patience: Patience) -> Self {
        Self { root: root.to_owned(), locks: Locks::below(root, &LOCKS, patience) }
    }

    /// `4.14.0`.
    pub(super) fn version(&self) -> Result<String, PackageError> {
        Ok(output_of(self.dnf().arg("--version"))?.lines().next().unwrap_or_default().to_owned())
    }

    fn dnf(&self) -> Command {
        let mut command = Command::new("dnf");
        if self.root != Path::new("/") {
            let root = self.root.display();
            command.arg(format!("--installroot={root}")).arg("--releasever=1");
            // The plugin `local` offers what other roots had installed.
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
        // Without a word of its own on every command: what matters comes anyway.
        command.env("LC_ALL", "C").arg("--assumeyes").arg("--quiet");
        command
    }

    fn rpm(&self) -> Command {
        let mut command = Command::new("rpm");
        if self.root != Path::new("/") {
            command.arg("--root").arg(&self.root);
        }
        command.env("LC_ALL", "C");
        command
    }

    pub(super) fn refresh(&self, report: &Report) -> Result<(), PackageError> {
        Ok(run(self.dnf().args(["--refresh", "makecache"]), report)?)
    }

    /// The version that is installed; the newest, where several are, as of kernels.
    pub(super) fn installed(&self, name: &str) -> Option<String> {
        // Fails for a name that is not installed.
        let text = output_of(self.rpm().args(["--query", "--queryformat", "%{EVR}\n", name])).ok()?;
        text.lines().max_by(|one, other| rpm_evr_compare(one, other)).map(str::to_owned)
    }

    /// What is known of the packages of an item, from rpm's record and the repositories' indexes. Each question to dnf
    /// takes a second or more: what is as wanted needs none.
    pub(super) fn look(&self, wanted: &Wanted) -> Result<BTreeMap<String, Seen>, PackageError> {
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
            // What is held is there all the same.
            query.args(["--disableplugin=versionlock", "repoquery", "--available", "--showduplicates"]);
            offered = output_of(query.args(["--queryformat", QUERY_FORMAT]).args(&changes))?;
        }
        let removes = wanted.remove.iter().any(|name| is_there(name));
        let locked = if changes.is_empty() && !removes && wanted.hold.is_none() {
            String::new()
        } else {
            self.locked(wanted.hold.is_some())?
        };
        let seen =
            |(name, installed): (&str, Option<String>)| (name.to_owned(), seen(name, installed, &offered, &locked));
        Ok(installed.into_iter().map(seen).collect())
    }

    /// The locks on versions, a line each; none where dnf has no such plugin and the item wants nothing of it.
    fn locked(&self, is_needed: bool) -> Result<String, PackageError> {
        match output_of(self.dnf().args(["versionlock", "list"])) {
            Ok(locked) => Ok(locked),
            Err(source) if is_needed => Err(PackageError::NoHolds { source }),
            Err(_) => Ok(String::new()),
        }
    }

    /// Does what the plan says. Nothing goes before what comes instead is there.
    pub(super) fn perform(
        &self,
        plan: &Plan,
        seen: &BTreeMap<String, Seen>,
        wanted: &Wanted,
        report: &Report,
    ) -> Result<(), PackageError> {
        self.locks.wait(report)?;
        if !wanted.download_only {
            self.refuse_other_removals(plan)?;
        }
        if wanted.download_only || !plan.remove.is_empty() {
            // What it conflicts with goes only if the item names it.
            self.install(plan, seen, &["--downloadonly", "--allowerasing", KEEP], report)?;
        }
        if wanted.download_only {
            return Ok(());
        }
        if !plan.remove.is_empty() {
            let mut remove = self.dnf();
            remove.args(plan.change_held.then_some("--disableplugin=versionlock"));
            run(remove.args(["remove", "--noautoremove", KEEP]).args(&plan.remove), report)?;
        }
        self.install(plan, seen, &[], report)?;
        self.hold(plan, wanted, report)
    }

    /// What needs a package is not taken away with it: rpm says what that is.
    fn refuse_other_removals(&self, plan: &Plan) -> Result<(), PackageError> {
        if plan.remove.is_empty() {
            return Ok(());
        }
        match output_of(self.rpm().args(["--erase", "--test"]).args(&plan.remove)) {
            Ok(_) => Ok(()),
            Err(ProgramError::Failed { complaint, .. }) if complaint.contains(NEEDED_BY) => {
                let others: BTreeSet<_> =
                    complaint.lines().filter_map(|line| Some(line.split_once(NEEDED_BY)?.1)).collect();
                Err(PackageError::OtherRemovals { names: others.into_iter().collect::<Vec<_>>().join(", ") })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// dnf has a verb of its own for what gets older.
    fn install(
        &self,
        plan: &Plan,
        seen: &BTreeMap<String, Seen>,
        options: &[&str],
        report: &Report,
    ) -> Result<(), PackageError> {
        let is_older = |(name, version): &&(String, String)| seen.get(name).is_some_and(|s| s.older.contains(version));
        let (older, other): (Vec<_>, Vec<_>) = plan.install.iter().partition(is_older);
        for (verb, packages) in [("downgrade", older), ("install", other)] {
            if packages.is_empty() {
                continue;
            }
            let mut command = self.dnf();
            command.args(plan.change_held.then_some("--disableplugin=versionlock")).arg(verb).args(options);
            run(command.args(packages.iter().map(|(name, version)| exact(name, version))), report)?;
        }
        Ok(())
    }

    /// A lock is one on a version: a held package that was changed is locked anew.
    fn hold(&self, plan: &Plan, wanted: &Wanted, report: &Report) -> Result<(), PackageError> {
        let installed = || plan.install.iter().map(|(name, _)| name);
        let changed = plan.change_held.then(|| installed().chain(&plan.remove)).into_iter().flatten();
        for name in plan.release.iter().chain(changed) {
            // It fails where there is none.
            succeeds(self.dnf().args(["versionlock", "delete", name]));
        }
        let again = (plan.change_held && wanted.hold == Some(true)).then(installed).into_iter().flatten();
        let held: Vec<&String> = plan.hold.iter().chain(again).collect();
        if !held.is_empty() {
            run(self.dnf().args(["versionlock", "add"]).args(held), report)?;
        }
        Ok(())
    }
}

/// `glibc.x86_64` is the package `glibc` of one architecture; `python3.11` is a name.
fn split(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once('.') {
        Some((bare, architecture)) if ARCHITECTURES.contains(&architecture) => (bare, Some(architecture)),
        Some(_) | None => (name, None),
    }
}

/// A package of exactly that version, as dnf has it in commands.
fn exact(name: &str, version: &str) -> String {
    match split(name) {
        (bare, Some(architecture)) => format!("{bare}-{version}.{architecture}"),
        (bare, None) => format!("{bare}-{version}"),
    }
}

/// What the programs' answers say of one package.
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
    Seen { installed, held, candidate: available.first().cloned(), available, older }
}

#[cfg(test)]
#[path = "dnf_tests.rs"]
mod tests;
