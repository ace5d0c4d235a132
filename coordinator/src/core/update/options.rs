//! Options of an update.

use muster_proto::{
    hash,
    model::{ClusterName, MachineName, Scope},
};

use crate::facts::{Facts, Target};

/// Options of an update.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it may do to machines.
    pub scope: Scope,
    /// Skip the majority check: the control plane may be down for a while.
    pub accept_control_plane_downtime: bool,
    /// Skip the backups that come before everything else.
    pub skip_backup: bool,
    /// Start only if the plan still has this [`digest`].
    pub agreed: Option<String>,
}

impl Options {
    /// Options for an update of this scope, with any plan.
    #[must_use]
    pub const fn of(scope: Scope) -> Self {
        Self { scope, accept_control_plane_downtime: false, skip_backup: false, agreed: None }
    }
}

/// Digest of the effects of a frozen update, in hex: equal digests mean the same changes on the same machines. None:
/// there is no frozen update.
#[must_use]
pub fn digest(facts: &Facts, cluster: &ClusterName) -> Option<String> {
    let rollout = facts.open_rollout(cluster)?;
    let update = rollout.update.as_ref()?;
    let of_machine = |(name, target): (&MachineName, &Target)| {
        let mine = facts.machines.get(name).and_then(|row| row.update.as_ref());
        let mine = mine.map(|mine| (mine.overwrites.clone(), mine.secrets.clone(), mine.reboot.is_some()));
        (name.clone(), target.clone(), mine)
    };
    let machines: Vec<_> = update.targets.iter().map(of_machine).collect();
    Some(hash::of_json(&(update.version, update.scope, update.skip_backup, machines)).to_string())
}
