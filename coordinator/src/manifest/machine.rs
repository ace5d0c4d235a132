//! `kind: Machine`.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{ClusterName, ClusterSpec, ItemName, MachineSpec, MachineType, StateItem, UpdateGroupName};

use super::{
    Found,
    fault::{Faults, shown},
    group, item,
    params::{self, Secrets},
    read::{Fields, Free, Spot, one_of},
    schema::Schemas,
    shape::{INTERFACE_BYTES_MAX, is_interface},
};
use crate::facts::SecretId;

/// Most clusters that a fault lists by name.
const NAMES_SHOWN_MAX: usize = 10;

/// Fields of a machine's `spec`.
pub(super) const MACHINE: Fields = Fields {
    known: &[
        "clusterName",
        "type",
        "stateItemsOverwrites",
        "interface",
        "cidr",
        "upgradeIndex",
        "updateGroup",
        "rebootRequired",
    ],
    later: &["nodeName", "maintenance", "prepareDeletion"],
    elsewhere: &[],
};

/// The clusters that a machine can belong to.
pub(super) struct Clusters<'c> {
    /// Clusters of the manifest; `None` = with faults, so the check of their machines' items is skipped.
    pub(super) declared: &'c Found<ClusterName, ClusterSpec>,
    /// Recorded clusters.
    pub(super) known: &'c BTreeMap<ClusterName, ClusterSpec>,
    /// Recorded secrets.
    pub(super) secrets: &'c BTreeSet<SecretId>,
    /// Do all documents have a kind, and all clusters a name? Otherwise an unknown cluster may be one whose name is
    /// missing.
    pub(super) complete: bool,
}

/// Parse a machine's `spec`.
pub(super) fn read(spot: &Spot<'_>, clusters: &Clusters<'_>, faults: &mut Faults<'_>) -> Option<MachineSpec> {
    let map = spot.map(faults, &MACHINE)?;
    let cluster_spot = map.required(faults, "clusterName");
    let cluster_name = cluster_spot.as_ref().and_then(|spot| spot.label::<ClusterName>(faults));
    let machine_type = map.required_word::<MachineType>(faults, "type", "machine type");
    let interface = map.or("interface", None, |spot| interface(&spot, faults).map(Some));
    let cidr = map.or("cidr", None, |spot| cidr(&spot, faults).map(Some));
    let upgrade_index = map.or("upgradeIndex", 0, |spot| spot.number(faults, 0..=u32::MAX));
    let reboot = map.or("rebootRequired", false, |spot| spot.boolean(faults));
    let update_group = map.or("updateGroup", None, |spot| spot.label::<UpdateGroupName>(faults).map(Some));
    let cluster = match (&cluster_spot, &cluster_name) {
        (Some(spot), Some(name)) => clusters.find(spot, name, faults),
        _ => None,
    };
    if let (Some(cluster), Some(machine_type), Some(spot)) = (cluster, machine_type, map.get("type"))
        && machine_type != MachineType::Unassigned
        && !cluster.machine_types.contains_key(&machine_type)
    {
        spot.fault(faults, format!("the cluster has no items for type '{machine_type}'"), "a type of its machineTypes");
    }
    if let (Some(Some(name)), Some(spot)) = (&update_group, map.get("updateGroup")) {
        group::fits(&spot, name, cluster, machine_type, faults);
    }
    let items = cluster.zip(machine_type).map(|(cluster, machine_type)| cluster.items(machine_type));
    let secrets =
        Secrets { known: clusters.secrets, cluster: cluster_name.as_ref(), release: None, schemas: &Schemas::new(&[]) };
    let overwrites = map.or("stateItemsOverwrites", BTreeMap::new(), |spot| overwrites(&spot, items, secrets, faults));
    Some(MachineSpec {
        cluster_name: cluster_name?,
        machine_type: machine_type?,
        state_items_overwrites: overwrites?,
        interface: interface?,
        cidr: cidr?,
        upgrade_index: upgrade_index?,
        update_group: update_group?,
        reboot_required: reboot?,
    })
}

impl<'c> Clusters<'c> {
    fn find(&self, spot: &Spot<'_>, name: &ClusterName, faults: &mut Faults<'_>) -> Option<&'c ClusterSpec> {
        if let Some(declared) = self.declared.get(name) {
            return declared.0.as_ref();
        }
        let known = self.known.get(name);
        if known.is_none() && self.complete {
            let names: BTreeSet<&str> =
                self.declared.keys().chain(self.known.keys()).map(ClusterName::as_str).collect();
            let names: Vec<&str> = names.into_iter().collect();
            let expected = match names.len() {
                0 => "a Cluster document of that name beside it, or before it".to_owned(),
                1..=NAMES_SHOWN_MAX => one_of(&names),
                _ => "a cluster's name".to_owned(),
            };
            let problem = format!("unknown cluster '{name}'");
            faults.add_near(spot.at(), &spot.path, problem, expected, (name.as_str(), names));
        }
        known
    }
}

/// Parse a machine's own params of single items. `items`: those of its type, if they are known.
fn overwrites(
    spot: &Spot<'_>,
    items: Option<&[StateItem]>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<BTreeMap<ItemName, BTreeMap<String, String>>> {
    let before = faults.count();
    let mut all = BTreeMap::new();
    for Free { key, key_at, value } in spot.free(faults)? {
        let template = items.and_then(|items| items.iter().find(|item| item.name.as_str() == key));
        if let (Some(items), None) = (items, template) {
            let names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
            let problem = format!("machines of this type have no item '{}'", shown(key));
            faults.add_near(key_at, &value.path, problem, one_of(&names), (key, names));
        }
        let params = params::read(&value, template.map(|item| item.runner), None, secrets, faults);
        if let (Some(template), Some(params)) = (template, &params) {
            let has = |name: &str| params.contains_key(name) || template.params.contains_key(name);
            params::complete(value.at(), &value.path, template.runner, has, faults);
            let merged = template.params.iter().chain(params).map(|(name, value)| (name.clone(), value.clone()));
            let merged = merged.collect();
            // A conflict among the cluster's own params is reported at the cluster.
            if params::quarrel(template.runner, &template.params).is_none() {
                params::agree(|name| value.child(name).at(), &value.path, template.runner, &merged, faults);
            }
            item::leaves_workloads_alone(&value, (template.runner, template.phase), &merged, faults);
        }
        if let (Ok(name), Some(params)) = (ItemName::new(key), params) {
            all.insert(name, params);
        }
    }
    if faults.count() != before {
        return None;
    }
    let merged: Vec<StateItem> = items.unwrap_or_default().iter().map(|item| with_own_params(item, &all)).collect();
    item::fits(spot, merged.iter(), faults);
    (faults.count() == before).then_some(all)
}

fn with_own_params(template: &StateItem, overwrites: &BTreeMap<ItemName, BTreeMap<String, String>>) -> StateItem {
    let mut item = template.clone();
    if let Some(own) = overwrites.get(&item.name) {
        item.params.extend(own.clone());
    }
    item
}

fn interface(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    let good = is_interface(text);
    if !good {
        let expected = format!("1 to {INTERFACE_BYTES_MAX} bytes without '/' and blanks");
        spot.fault(faults, "not the name of a network interface", expected);
    }
    good.then(|| text.to_owned())
}

fn cidr(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    let good = text.split_once('/').is_some_and(|(address, prefix)| {
        let bits = match address.parse() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        prefix.bytes().all(|b| b.is_ascii_digit()) && prefix.parse::<u8>().is_ok_and(|prefix| prefix <= bits)
    });
    if !good {
        spot.fault(faults, "not a network", "an address and a prefix such as 10.20.0.0/16");
    }
    good.then(|| text.to_owned())
}
