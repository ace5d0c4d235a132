use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Backups, ClusterName, DEFAULT_GROUP, ItemName, MachineType, Phase, StateItem, UpdateDeadlines, UpdateGroup,
    UpdateGroupName, UpdateHooks,
};

/// Ceiling of everything that counts workers at once (LCM's own limit).
pub const WORKERS_AT_ONCE_MAX: u32 = 50;
/// Join tokens live this long unless the cluster says otherwise.
pub const TOKEN_TTL_DEFAULT_MS: u64 = 24 * 3600 * 1000;
/// Longest life of a join token: a year, in milliseconds.
pub const TOKEN_TTL_MAX_MS: u64 = 365 * 24 * 3600 * 1000;

/// What kind of cluster the machines form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LcmType {
    /// Mirantis Kubernetes Engine.
    Mke,
    /// Plain Docker Swarm.
    Swarm,
    /// Whatever the items make of it.
    Generic,
}

/// A number of control and of worker machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Control machines.
    pub control: u32,
    /// Worker machines.
    pub worker: u32,
}

impl Counts {
    /// The number for one type; 0 for `unassigned`.
    #[must_use]
    pub const fn of(self, machine_type: MachineType) -> u32 {
        match machine_type {
            MachineType::Control => self.control,
            MachineType::Worker => self.worker,
            MachineType::Unassigned => 0,
        }
    }
}

/// A cluster as its manifest wants it. Field names are LCM's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// What kind of cluster.
    pub lcm_type: LcmType,
    /// Free text; `status.release` of a machine says which one it was last Ready at.
    pub release: String,
    /// Do control machines run nothing but the control plane?
    pub dedicated_control_plane: bool,
    /// Workers in `prepare` at once.
    pub max_worker_prepare_count: u32,
    /// Workers being deployed at once.
    pub max_worker_deploy_count: u32,
    /// Workers cordoned at once during an update.
    pub max_worker_upgrade_count: u32,
    /// Does this release need every machine to reboot?
    pub nodes_reboot_required: bool,
    /// How long a join token lives, in milliseconds.
    #[serde(rename = "tokenTTL", alias = "tokenTTLMs", with = "super::duration")]
    pub token_ttl_ms: u64,
    /// Deploying starts when they are all there. None: the declared Machine documents, or an operator's `deploy`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub machines: Option<Counts>,
    /// New starts stop at so many failures.
    pub max_failures: Counts,
    /// Application controllers that must answer before anything goes down, though they hold no lock yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workload_controllers: Vec<String>,
    /// How long an update waits for others.
    #[serde(default)]
    pub update_deadlines: UpdateDeadlines,
    /// Workers that go before or after others in an update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_groups: Vec<UpdateGroup>,
    /// What runs before and after every update.
    #[serde(default, skip_serializing_if = "UpdateHooks::is_empty")]
    pub update_hooks: UpdateHooks,
    /// How every update backs up the Swarm and MKE.
    #[serde(default, skip_serializing_if = "Backups::is_default")]
    pub backups: Backups,
    /// The templates, by machine type, in the order they run.
    pub machine_types: BTreeMap<MachineType, Vec<StateItem>>,
}

impl ClusterSpec {
    /// Would an update from the one to the other have nothing to do, neither on a machine of this type nor around it?
    /// How many machines there are, how many go at once and how long they may take is settled without one.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self, of: MachineType) -> bool {
        let Self {
            lcm_type,
            release,
            dedicated_control_plane,
            max_worker_prepare_count: _,
            max_worker_deploy_count: _,
            max_worker_upgrade_count: _,
            nodes_reboot_required,
            token_ttl_ms: _,
            machines: _,
            max_failures: _,
            workload_controllers: _,
            update_deadlines: _,
            update_groups: _,
            update_hooks,
            backups,
            machine_types: _,
        } = self;
        *lcm_type == other.lcm_type
            && *release == other.release
            && *dedicated_control_plane == other.dedicated_control_plane
            && *nodes_reboot_required == other.nodes_reboot_required
            && *update_hooks == other.update_hooks
            && *backups == other.backups
            && self.items(of) == other.items(of)
    }

    /// The templates of one type, in manifest order.
    #[must_use]
    pub fn items(&self, machine_type: MachineType) -> &[StateItem] {
        self.machine_types.get(&machine_type).map_or(&[], Vec::as_slice)
    }

    /// The update group of this name. None: it is the default group, and nothing was said of it.
    #[must_use]
    pub fn update_group(&self, name: Option<&UpdateGroupName>) -> Option<&UpdateGroup> {
        let name = name.map_or(DEFAULT_GROUP, UpdateGroupName::as_str);
        self.update_groups.iter().find(|group| group.name.as_str() == name)
    }

    /// Does this type have an item of this phase?
    #[must_use]
    pub fn has_phase(&self, machine_type: MachineType, phase: Phase) -> bool {
        self.items(machine_type).iter().any(|item| item.phase == phase)
    }
}

/// A machine as its manifest, or the token it enrolled with, wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// The cluster it belongs to.
    pub cluster_name: ClusterName,
    /// What it is to its cluster.
    #[serde(rename = "type")]
    pub machine_type: MachineType,
    /// Params of single items, this machine's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state_items_overwrites: BTreeMap<ItemName, BTreeMap<String, String>>,
    /// The InternalIP is the first address of this interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The InternalIP is the first address in this network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
    /// Lower goes first; equal indexes go by name.
    #[serde(default)]
    pub upgrade_index: u32,
    /// A worker's place among the others in an update. None: the default group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_group: Option<UpdateGroupName>,
    /// An operator wants it to reboot, with the next update that may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reboot_required: bool,
}
