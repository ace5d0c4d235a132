//! The control machines as items see them, and as the record has them.

use std::collections::BTreeMap;

use muster_proto::{
    model::{MachineId, MachineName},
    seeded_bug::seeded_bug,
};
use serde::{Deserialize, Serialize};

use super::ClusterRow;

/// A control machine of a set. A replacement has the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Identity of the machine.
    pub id: MachineId,
    /// Its InternalIP at that time.
    pub address: String,
}

/// The control machines as some items see them: `${cluster.controlPlaneNodes}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlSet {
    /// Their names, in the order of upgrades.
    pub names: Vec<MachineName>,
    /// Their InternalIPs in that order, separated by commas: the variable's value.
    pub addresses: String,
    /// The machines' identities. A missing one is unknown.
    #[serde(default)]
    pub members: BTreeMap<MachineName, Member>,
    /// [`ClusterRow::control_version`] at that time.
    #[serde(default)]
    pub version: u64,
}

impl ClusterRow {
    /// Records these as the current control machines.
    pub(crate) fn has_controls(&mut self, names: Vec<MachineName>, members: BTreeMap<MachineName, Member>) {
        self.control_version += 1;
        self.control_set = names;
        self.control_members = members;
    }

    /// Are these the recorded control machines, regardless of order and addresses?
    #[must_use]
    pub fn are_controls(&self, names: &[MachineName], members: &BTreeMap<MachineName, Member>) -> bool {
        let ids =
            |members: &BTreeMap<MachineName, Member>| members.values().map(|member| member.id).collect::<Vec<_>>();
        self.has_names(names) && ids(members) == ids(&self.control_members)
    }

    /// Does the recorded set differ from `seen`, for a machine that must reach its members? Yes if the names differ, or
    /// if a replacement has another address. A new address of the same machine is ignored: it may be gone again in a
    /// minute, so it must not disturb machines.
    #[must_use]
    pub fn is_other_than(&self, seen: &ControlSet) -> bool {
        // Without the version, the newer of two sets is unknown.
        let older = seen.version < self.control_version && !seeded_bug("forget-replaced-control");
        // A member without a successor had no address yet.
        let unseen = !seen.members.is_empty();
        let is_elsewhere = |(name, now): (&MachineName, &Member)| {
            seen.members.get(name).map_or(unseen, |then| then.id != now.id && then.address != now.address)
        };
        !self.has_names(&seen.names) || (older && self.control_members.iter().any(is_elsewhere))
    }

    fn has_names(&self, names: &[MachineName]) -> bool {
        names.len() == self.control_set.len() && names.iter().all(|name| self.control_set.contains(name))
    }
}
