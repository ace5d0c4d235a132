//! Which secret an item means, and which items use a secret. A cluster's own secret precedes a shared one.

use std::{collections::BTreeMap, fmt, sync::Arc};

use muster_proto::{
    model::{ClusterName, ClusterSpec, KubernetesSpec, MKE_BACKUP_ITEM, MachineName, SWARM_COPY_ITEM, SecretName},
    variables,
};

use crate::facts::{Facts, MachineRow, Overwrites, SecretId, SecretRow};

/// The secret that a name means in the items of a cluster.
#[must_use]
pub fn find<'a>(facts: &'a Facts, cluster: &ClusterName, name: &SecretName) -> Option<&'a Arc<SecretRow>> {
    let own = SecretId { cluster: Some(cluster.clone()), name: name.clone() };
    let shared = SecretId { cluster: None, name: name.clone() };
    facts.secrets.get(&own).or_else(|| facts.secrets.get(&shared).filter(|row| row.is_for(cluster)))
}

/// Newest versions of the secrets that items of a cluster can refer to.
#[must_use]
pub fn newest(facts: &Facts, cluster: &ClusterName) -> BTreeMap<SecretName, u64> {
    let of = |own: bool| {
        let rows = facts.secrets.values().filter(move |row| row.is_for(cluster) && row.id.cluster.is_some() == own);
        rows.map(|row| (row.id.name.clone(), row.version)).collect::<BTreeMap<_, _>>()
    };
    let mut versions = of(false);
    versions.extend(of(true));
    versions
}

/// The secret versions of a machine's items: those frozen by its update, then those it became Ready with, else the
/// newest.
#[must_use]
pub fn of_machine(newest: &BTreeMap<SecretName, u64>, machine: &MachineRow) -> BTreeMap<SecretName, u64> {
    let mut versions = newest.clone();
    if machine.ready_at.is_some() {
        versions.extend(machine.ready_secrets.clone());
    }
    versions.extend(machine.update.iter().flat_map(|update| update.secrets.clone()));
    versions
}

/// Is there a newer version of a secret than the machine's items had when it was last Ready?
#[must_use]
pub fn has_newer(facts: &Facts, machine: &MachineRow) -> bool {
    let newest = newest(facts, &machine.spec.cluster_name);
    machine.ready_secrets.iter().any(|(name, version)| newest.get(name).is_some_and(|newest| newest != version))
}

/// An item that refers to a secret: `edge-7/install`, with the machine if it is an override.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretUser {
    /// The item's cluster.
    pub cluster: ClusterName,
    item: String,
    machine: Option<MachineName>,
}

impl fmt::Display for SecretUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.item)?;
        self.machine.as_ref().map_or(Ok(()), |machine| write!(f, " ({machine})"))
    }
}

/// The items that refer to a secret, in order.
#[must_use]
pub fn used_by(facts: &Facts, id: &SecretId) -> Vec<SecretUser> {
    let mut users = Vec::new();
    for ((cluster, _), spec) in &facts.specs {
        let meant = find(facts, cluster, &id.name).is_some_and(|row| row.id == *id);
        if meant {
            users.extend(users_in(cluster, spec, &id.name));
        }
    }
    for machine in facts.machines.values() {
        let cluster = &machine.spec.cluster_name;
        let meant = find(facts, cluster, &id.name).is_some_and(|row| row.id == *id);
        if meant {
            let frozen = machine.update.iter().map(|update| &update.overwrites).chain(&machine.ready_overwrites);
            let overwrites = frozen.chain([&machine.spec.state_items_overwrites]);
            users.extend(overwrites.flat_map(|own| overrides_of(&machine.name, cluster, own, &id.name)));
        }
    }
    users.sort();
    users.dedup();
    users
}

fn users_in(cluster: &ClusterName, spec: &ClusterSpec, name: &SecretName) -> Vec<SecretUser> {
    let items = spec.machine_types.values().flatten().map(|item| (&item.name, &item.params));
    let hooks = spec.update_hooks.all().map(|hook| (&hook.name, &hook.params));
    let backups = [(SWARM_COPY_ITEM, &spec.backups.swarm), (MKE_BACKUP_ITEM, &spec.backups.mke)];
    let named = items.chain(hooks).map(|(item, params)| (item.as_str(), params)).chain(backups);
    let using = named.filter(|(_, params)| variables::secrets_of(params).contains(name));
    let of_kubernetes = spec.kubernetes.iter().flat_map(KubernetesSpec::secrets).filter(|(secret, _)| *secret == name);
    let using = using.map(|(item, _)| item).chain(of_kubernetes.map(|(_, field)| field));
    using.map(|item| SecretUser { cluster: cluster.clone(), item: item.to_owned(), machine: None }).collect()
}

fn overrides_of(machine: &MachineName, cluster: &ClusterName, own: &Overwrites, name: &SecretName) -> Vec<SecretUser> {
    let using = own.iter().filter(|(_, params)| variables::secrets_of(params).contains(name));
    let user = |item: String| SecretUser { cluster: cluster.clone(), item, machine: Some(machine.clone()) };
    using.map(|(item, _)| user(item.to_string())).collect()
}
