use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Backups, ClusterName, DEFAULT_GROUP, ItemName, KubernetesSpec, MachineType, Phase, StateItem, UpdateDeadlines,
    UpdateGroup, UpdateGroupName, UpdateHooks,
};

/// Upper bound of every limit on concurrent workers (LCM's own limit).
pub const WORKERS_AT_ONCE_MAX: u32 = 50;
/// Default lifetime of join tokens.
pub const TOKEN_TTL_DEFAULT_MS: u64 = 24 * 3600 * 1000;
/// Longest lifetime of a join token: a year, in milliseconds.
pub const TOKEN_TTL_MAX_MS: u64 = 365 * 24 * 3600 * 1000;

/// What kind of cluster the machines form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LcmType {
    /// Mirantis Kubernetes Engine.
    Mke,
    /// Plain Docker Swarm.
    Swarm,
    /// Defined by the items alone.
    Generic,
}

/// Numbers of control and worker machines.
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

/// A cluster as its manifest describes it. Field names are LCM's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// What kind of cluster.
    pub lcm_type: LcmType,
    /// Free text; `status.release` of a machine shows the one at which it was last Ready.
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
    /// Lifetime of a join token, in milliseconds.
    #[serde(rename = "tokenTTL", alias = "tokenTTLMs", with = "super::duration")]
    pub token_ttl_ms: u64,
    /// Deployment starts when this many machines exist. None: when the declared Machine documents exist, or on an
    /// operator's `deploy`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub machines: Option<Counts>,
    /// Numbers of failures at which new starts stop.
    pub max_failures: Counts,
    /// Application controllers that must answer before anything goes down, even before they hold a lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workload_controllers: Vec<String>,
    /// How long an update waits for other parties.
    #[serde(default)]
    pub update_deadlines: UpdateDeadlines,
    /// Groups that order workers in an update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_groups: Vec<UpdateGroup>,
    /// Hooks before and after every update.
    #[serde(default, skip_serializing_if = "UpdateHooks::is_empty")]
    pub update_hooks: UpdateHooks,
    /// The Kubernetes cluster on the machines, which is drained before they are disturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesSpec>,
    /// How every update backs up the Swarm and MKE.
    #[serde(default, skip_serializing_if = "Backups::is_default")]
    pub backups: Backups,
    /// The templates, by machine type, in the order they run.
    pub machine_types: BTreeMap<MachineType, Vec<StateItem>>,
}

impl ClusterSpec {
    /// Would an update from one spec to the other be empty, both on a machine of this type and around it? Changed
    /// numbers of machines, concurrency limits and deadlines take effect without an update.
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
            kubernetes: _,
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

    /// The update group of this name. None: it is the default group, and the manifest leaves it at its defaults.
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

/// A machine as its manifest, or its enrolment token, describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// The cluster it belongs to.
    pub cluster_name: ClusterName,
    /// Its role in the cluster.
    #[serde(rename = "type")]
    pub machine_type: MachineType,
    /// This machine's own params of single items.
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
    /// Group of a worker in an update. None: the default group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_group: Option<UpdateGroupName>,
    /// An operator wants it to reboot with the next update that may reboot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reboot_required: bool,
}
