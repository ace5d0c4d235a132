//! What an update is started with.

use muster_proto::{
    hash,
    model::{ClusterName, MachineName, Scope},
};

use crate::facts::{Facts, Target};

/// What an update is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it may do to machines.
    pub scope: Scope,
    /// The control plane may be down for a while: no majority is asked for.
    pub accept_control_plane_downtime: bool,
    /// Without the backups that come before everything else.
    pub skip_backup: bool,
    /// Only if the plan is still the one with this [`digest`].
    pub agreed: Option<String>,
}

impl Options {
    /// Such an update, whatever its plan is now.
    #[must_use]
    pub const fn of(scope: Scope) -> Self {
        Self { scope, accept_control_plane_downtime: false, skip_backup: false, agreed: None }
    }
}

/// Names what a frozen update does, in hex: two with the same digest do the same to the same machines. None: nothing is
/// frozen.
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
