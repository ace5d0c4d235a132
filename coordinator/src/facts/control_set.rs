//! The control machines as items see them, and as the record has them.

use std::collections::BTreeMap;

use muster_proto::{
    model::{MachineId, MachineName},
    plant::planted,
};
use serde::{Deserialize, Serialize};

use super::ClusterRow;

/// A control machine of a set: one that takes the place of another has its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The very machine.
    pub id: MachineId,
    /// Its InternalIP then.
    pub address: String,
}

/// The control machines as some items see them: `${cluster.controlPlaneNodes}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlSet {
    /// Who they are, in the order of upgrades.
    pub names: Vec<MachineName>,
    /// Their InternalIPs in that order, separated by commas: the variable's value.
    pub addresses: String,
    /// The very machines. One that is missing here was not recorded.
    #[serde(default)]
    pub members: BTreeMap<MachineName, Member>,
    /// [`ClusterRow::control_version`] of then.
    #[serde(default)]
    pub version: u64,
}

impl ClusterRow {
    /// Records that these are the control machines now.
    pub(crate) fn has_controls(&mut self, names: Vec<MachineName>, members: BTreeMap<MachineName, Member>) {
        self.control_version += 1;
        self.control_set = names;
        self.control_members = members;
    }

    /// Are these the control machines that are recorded, whatever their order and addresses?
    #[must_use]
    pub fn are_controls(&self, names: &[MachineName], members: &BTreeMap<MachineName, Member>) -> bool {
        let ids =
            |members: &BTreeMap<MachineName, Member>| members.values().map(|member| member.id).collect::<Vec<_>>();
        self.has_names(names) && ids(members) == ids(&self.control_members)
    }

    /// Is this set other than the recorded one, for whoever saw it and has to reach its machines? By other names, or
    /// because one took the place of another since then and is reached elsewhere. That one and the same machine has
    /// another address says nothing: it may be gone again in a minute, and nobody is disturbed for that.
    #[must_use]
    pub fn is_other_than(&self, seen: &ControlSet) -> bool {
        // Of two sets without the version nobody could tell which is the newer.
        let older = seen.version < self.control_version && !planted("forget-replaced-control");
        // One that had no successor yet was nowhere.
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
