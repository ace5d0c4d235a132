//! Backups that every update makes before it changes anything.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    CONSISTENT_COPY_ITEM, ItemName, MKE_BACKUP_ITEM, OnInterrupt, Phase, RETRIES_DEFAULT, RunnerKind, SWARM_COPY_ITEM,
    StateItem,
};

/// Time limit of one attempt at a backup, in milliseconds.
const BACKUP_MS: u64 = 2 * 3600 * 1000;
/// Argument that disables the passphrase of MKE's backup; only root can read the backup.
const MKE_ARGS: (&str, &str) = ("args", "--no-passphrase");
/// Access to MKE: params that a backup takes from the item that installs MKE.
const MKE_ACCESS: &[&str] = &["image", "admin_user", "admin_password", "port"];

/// How an update backs up Swarm and MKE: params of the runners, in addition to those that the update sets itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backups {
    /// Params of `swarm-backup`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub swarm: BTreeMap<String, String>,
    /// Params of `mke`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mke: BTreeMap<String, String>,
}

impl Backups {
    /// Are both sets of params empty?
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The item that copies a manager's swarm state while Docker runs.
    #[must_use]
    pub fn hot_copy(&self, version: &str) -> StateItem {
        let params = with(self.swarm.clone(), "mode", "hot");
        item((SWARM_COPY_ITEM, version), RunnerKind::SwarmBackup, Phase::Prepare, params)
    }

    /// The item that copies the swarm state with Docker stopped; it is disruptive.
    #[must_use]
    pub fn consistent_copy(&self, version: &str) -> StateItem {
        let params = with(self.swarm.clone(), "mode", "consistent");
        item((CONSISTENT_COPY_ITEM, version), RunnerKind::SwarmBackup, Phase::Deploy, params)
    }

    /// The item that backs up MKE. `control` holds the item that installs or upgrades it.
    #[must_use]
    pub fn of_mke(&self, control: &[StateItem], version: &str) -> StateItem {
        let install = control.iter().find(|item| item.runner == RunnerKind::Mke);
        let access = install.into_iter().flat_map(|item| &item.params);
        let access = access.filter(|(name, _)| MKE_ACCESS.contains(&name.as_str()));
        let given = access.chain(&self.mke).map(|(name, value)| (name.clone(), value.clone()));
        let args = (MKE_ARGS.0.to_owned(), MKE_ARGS.1.to_owned());
        let params = std::iter::once(args).chain(given).collect();
        item((MKE_BACKUP_ITEM, version), RunnerKind::Mke, Phase::Prepare, with(params, "action", "backup"))
    }
}

fn with(mut params: BTreeMap<String, String>, name: &str, value: &str) -> BTreeMap<String, String> {
    params.insert(name.to_owned(), value.to_owned());
    params
}

fn item(
    (name, version): (&'static str, &str),
    runner: RunnerKind,
    phase: Phase,
    params: BTreeMap<String, String>,
) -> StateItem {
    StateItem {
        name: ItemName::own(name),
        runner,
        version: version.to_owned(),
        params,
        phase,
        timeout_ms: BACKUP_MS,
        retries: RETRIES_DEFAULT,
        // A second backup is harmless, and the runner follows an MKE run that outlived its item.
        on_interrupt: OnInterrupt::Rerun,
        disruptive: None,
        ignore_changes: BTreeSet::new(),
    }
}
