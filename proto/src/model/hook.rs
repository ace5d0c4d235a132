//! Hooks around the updates of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ItemName, MachineName, MachineType, OnInterrupt, Phase, RunnerKind, StateItem};

/// Items that run once in every update, on the machines they name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateHooks {
    /// Run before the update requests or disturbs anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Hook>,
    /// Run after every machine is complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Hook>,
}

impl UpdateHooks {
    /// Is it empty?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    /// All hooks.
    pub fn all(&self) -> impl Iterator<Item = &Hook> {
        self.before.iter().chain(&self.after)
    }
}

/// One item that runs before or after an update. It must leave workloads alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Its slot in the status; items of the cluster have other names.
    pub name: ItemName,
    /// Its runner: one of [`Hook::RUNNERS`].
    pub runner: RunnerKind,
    /// The machines it runs on.
    #[serde(flatten)]
    pub on: HookMachines,
    /// The runner's inputs.
    pub params: BTreeMap<String, String>,
    /// Time limit of one attempt, in milliseconds.
    #[serde(rename = "timeout", alias = "timeoutMs", with = "super::duration")]
    pub timeout_ms: u64,
    /// Attempts after the first.
    pub retries: u32,
    /// What to do when its process is lost.
    pub on_interrupt: OnInterrupt,
}

/// The machines that a hook runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookMachines {
    /// This one machine.
    Machine(MachineName),
    /// Every machine of this type.
    MachineType(MachineType),
}

impl Hook {
    /// Runners that leave workloads alone.
    pub const RUNNERS: &'static [RunnerKind] = &[RunnerKind::Bash, RunnerKind::Ansible, RunnerKind::Downloader];

    /// Does it run on this machine?
    #[must_use]
    pub fn runs_on(&self, name: &MachineName, machine_type: MachineType) -> bool {
        match &self.on {
            HookMachines::Machine(machine) => machine == name,
            HookMachines::MachineType(of) => *of == machine_type,
        }
    }

    /// The hook as an item of this version.
    #[must_use]
    pub fn item(&self, version: &str) -> StateItem {
        StateItem {
            name: self.name.clone(),
            runner: self.runner,
            version: version.to_owned(),
            params: self.params.clone(),
            phase: Phase::Prepare,
            timeout_ms: self.timeout_ms,
            retries: self.retries,
            on_interrupt: self.on_interrupt,
            disruptive: None,
            ignore_changes: BTreeSet::new(),
        }
    }
}
