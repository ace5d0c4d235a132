//! Package manager of a machine: apt or dnf.

use std::{collections::BTreeMap, fs, path::Path};

use super::{
    PackageError,
    apt::Apt,
    dnf::Dnf,
    locks::TimeBudget,
    plan::{Plan, Seen, Wanted},
};
use crate::{exec_item::Report, runner::programs::ProgramError};

/// Package manager; see the module.
pub(super) enum Manager {
    Apt(Apt),
    Dnf(Dnf),
}

impl Manager {
    /// Detects the machine's package manager. Each family can have the other's programs installed, but only Debian has
    /// packages in dpkg's record.
    pub(super) fn of_this_machine(budget: TimeBudget) -> Result<Self, PackageError> {
        let root = Path::new("/");
        let has = |program: &str| ["usr/bin", "bin"].iter().any(|dir| root.join(dir).join(program).exists());
        let is_debian = fs::metadata(root.join("var/lib/dpkg/status")).is_ok_and(|record| record.len() > 0);
        if is_debian && has("apt-get") {
            return Ok(Self::Apt(Apt::in_root(root, budget)));
        }
        if !has("dnf") {
            return Err(PackageError::NoManager);
        }
        let dnf = Dnf::in_root(root, budget);
        let version = dnf.version()?;
        if version.starts_with("4.") { Ok(Self::Dnf(dnf)) } else { Err(PackageError::UnknownDnf(version)) }
    }

    /// Finishes the half-installed packages of an interrupted run.
    pub(super) fn repair(&self, report: &Report) -> Result<(), PackageError> {
        match self {
            Self::Apt(apt) => apt.repair(report),
            Self::Dnf(dnf) => dnf.repair(report),
        }
    }

    /// Command with which a person does that.
    pub(super) const fn mend(&self) -> &'static str {
        match self {
            Self::Apt(_) => "dpkg --configure -a",
            Self::Dnf(_) => "dnf remove --duplicates",
        }
    }

    /// Half-installed packages of an interrupted run.
    pub(super) fn unfinished(&self) -> Result<Vec<String>, PackageError> {
        match self {
            Self::Apt(apt) => apt.unfinished(),
            Self::Dnf(dnf) => dnf.unfinished(),
        }
    }

    /// Downloads the indexes of the repositories. Some = a part failed, with the cause.
    pub(super) fn refresh(&self, report: &Report) -> Result<Option<ProgramError>, PackageError> {
        match self {
            Self::Apt(apt) => apt.refresh(report),
            Self::Dnf(dnf) => dnf.refresh(report),
        }
    }

    /// State of the packages that an item names.
    pub(super) fn look(&self, wanted: &Wanted, report: &Report) -> Result<BTreeMap<String, Seen>, PackageError> {
        match self {
            Self::Apt(apt) => {
                let names = wanted.install.iter().map(|want| &want.name).chain(&wanted.remove);
                names.map(|name| Ok((name.clone(), apt.look(name)?))).collect()
            }
            Self::Dnf(dnf) => dnf.look(wanted, report),
        }
    }

    /// The installed version.
    pub(super) fn installed(&self, name: &str) -> Option<String> {
        match self {
            Self::Apt(apt) => apt.installed(name),
            Self::Dnf(dnf) => dnf.installed(name),
        }
    }

    /// Performs the plan that was made from the state `seen`.
    pub(super) fn perform(
        &self,
        plan: &Plan,
        seen: &BTreeMap<String, Seen>,
        wanted: &Wanted,
        report: &Report,
    ) -> Result<(), PackageError> {
        match self {
            Self::Apt(apt) => apt.perform(plan, wanted, report),
            Self::Dnf(dnf) => dnf.perform(plan, seen, wanted, report),
        }
    }
}
