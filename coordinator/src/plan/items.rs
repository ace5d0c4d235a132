//! The items of one machine: the templates of its type, what its update adds, and its own overwrites. Early variables
//! are replaced, and the items are hashed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_proto::{
    hash::{item_hash, of_json},
    model::{
        AssignedItem, ClusterName, ClusterSpec, Generation, MachineId, MachineType, Phase, RunnerKind, SecretName,
        StateItem,
    },
    variables::{SECRET_PREFIX, VariableError, replace_early, replace_in_param, secret_of},
};

use super::{added, reboot, secrets};
use crate::facts::{
    Added, AddedReboot, ClusterRow, ControlSet, Facts, ItemInputs, Items, MachineRow, Member, Transaction, Unresolved,
};

/// Variable for the hostname that a machine's agent reports.
const HOSTNAME: &str = "machine.hostname";

/// Resolve the items of every machine with inputs that changed since the last time. This runs in every step for every
/// machine; nearly all are unchanged, and detecting that is fast.
pub fn refresh(tx: &mut Transaction<'_>) {
    let inputs: BTreeMap<&ClusterName, Arc<ItemInputs>> =
        tx.clusters.keys().map(|name| (name, shared_inputs(tx, name))).collect();
    let looked_at = tx.machines.values().filter_map(|machine| {
        let inputs = inputs.get(&machine.spec.cluster_name)?;
        let changed = !follow_still(tx, machine, inputs);
        debug_assert!(changed || resolved_anew(tx, machine, inputs).is_none(), "{} is not as it was", machine.name);
        changed.then(|| (Arc::clone(machine), Arc::clone(inputs), resolved_anew(tx, machine, inputs)))
    });
    let looked_at: Vec<(Arc<MachineRow>, Arc<ItemInputs>, Option<Items>)> = looked_at.collect();
    for (machine, inputs, items) in looked_at {
        let live = tx.live_mut(&machine.name);
        if let Some(items) = items {
            live.items = Some(Arc::new(items));
        }
        live.items_follow = Some((machine, inputs));
    }
}

/// Resolve the items of one machine.
pub fn refresh_one(tx: &mut Transaction<'_>, machine: &MachineRow) {
    let Some(row) = tx.machines.get(&machine.name) else { return };
    if let Some(items) = resolved_anew(tx, row, &inputs_of(tx, &row.spec.cluster_name)) {
        let live = tx.live_mut(&machine.name);
        live.items = Some(Arc::new(items));
        live.items_follow = None;
    }
}

/// Inputs that all machines of a cluster share. Unchanged inputs are the same shared value as before.
fn shared_inputs(facts: &Facts, cluster: &ClusterName) -> Arc<ItemInputs> {
    let now = inputs_of(facts, cluster);
    let mut known = facts.machines_of(cluster).filter_map(|machine| facts.live.machines.get(&machine.name));
    let known = known.find_map(|live| live.items_follow.as_ref()).map(|(_, inputs)| inputs);
    known.filter(|known| ***known == now).map_or_else(|| Arc::new(now), Arc::clone)
}

fn inputs_of(facts: &Facts, cluster: &ClusterName) -> ItemInputs {
    let provisional = control_set(facts, cluster, |_| true);
    ItemInputs { provisional, secrets: secrets::newest(facts, cluster) }
}

/// Are the inputs of this machine's items the very same as the last time?
fn follow_still(facts: &Facts, machine: &Arc<MachineRow>, inputs: &Arc<ItemInputs>) -> bool {
    let Some(live) = facts.live.machines.get(&machine.name) else { return false };
    let (Some(items), Some((row, with))) = (&live.items, &live.items_follow) else { return false };
    // Items that an update adds also depend on the row of its rollout.
    let adds = machine.update.as_ref().is_some_and(|update| !update.added.is_empty());
    let same_spec = || facts.spec_of(machine).is_some_and(|spec| Arc::ptr_eq(spec, &items.spec));
    Arc::ptr_eq(row, machine) && Arc::ptr_eq(with, inputs) && !adds && same_spec()
}

/// The items of a machine, if they differ from the known ones.
fn resolved_anew(facts: &Facts, machine: &MachineRow, inputs: &ItemInputs) -> Option<Items> {
    let spec = facts.spec_of(machine)?;
    let secrets = secrets::of_machine(&inputs.secrets, machine);
    let added = added_items(facts, machine);
    let known = facts.live.machines.get(&machine.name).and_then(|live| live.items.as_deref());
    let known = known.filter(|known| known.secrets == secrets && known.added == added);
    if known.is_some_and(|known| is_fresh(known, spec, machine, &inputs.provisional)) {
        return None;
    }
    let control_sets = sets_of(machine, &inputs.provisional).map(|(phase, set)| (phase, set.clone())).collect();
    Some(resolve_all(spec, machine, Inputs { control_sets, secrets, added }))
}

/// The value of `${cluster.controlPlaneNodes}` for a phase granted now: every control machine that has reported, in
/// upgrade order.
#[must_use]
pub fn control_set(facts: &Facts, cluster: &ClusterName, only: impl Fn(&MachineRow) -> bool) -> ControlSet {
    let row = facts.clusters.get(cluster);
    let mut controls: Vec<(&MachineRow, Member)> = facts
        .machines_of(cluster)
        .map(|machine| &**machine)
        .filter(|machine| machine.spec.machine_type == MachineType::Control && only(machine))
        .filter_map(|machine| Some((machine, member(row.map(|row| &**row), machine)?)))
        .collect();
    controls.sort_by_key(|(machine, _)| (machine.spec.upgrade_index, &machine.name));
    ControlSet {
        addresses: controls.iter().map(|(_, member)| member.address.as_str()).collect::<Vec<_>>().join(","),
        names: controls.iter().map(|(machine, _)| machine.name.clone()).collect(),
        members: controls.into_iter().map(|(machine, member)| (machine.name.clone(), member)).collect(),
        version: row.map_or(0, |row| row.control_version),
    }
}

/// Address of the first machine of that set.
#[must_use]
pub fn first_control<'a>(facts: &'a Facts, cluster: &'a ClusterName) -> Option<&'a str> {
    let row = facts.clusters.get(cluster).map(|row| &**row);
    let controls = facts.machines_of(cluster).filter(|machine| machine.spec.machine_type == MachineType::Control);
    let members = controls.filter_map(|machine| Some((machine, place(row, machine)?)));
    let first = members.min_by_key(|(machine, _)| (machine.spec.upgrade_index, &machine.name));
    first.map(|(_, (_, address))| address)
}

/// A machine as a member of the set.
pub(super) fn member(cluster: Option<&ClusterRow>, machine: &MachineRow) -> Option<Member> {
    place(cluster, machine).map(|(id, address)| Member { id, address: address.to_owned() })
}

/// Identity and address of a machine in the set. While it lacks an address, its last one counts.
fn place<'a>(cluster: Option<&'a ClusterRow>, machine: &'a MachineRow) -> Option<(MachineId, &'a str)> {
    let id = machine.id.filter(|_| !machine.revoked)?;
    let known = cluster.and_then(|row| row.control_members.get(&machine.name)).filter(|known| known.id == id);
    let address = machine.internal_ip().or(known.map(|known| known.address.as_str())).filter(|ip| !ip.is_empty())?;
    Some((id, address))
}

/// The control machines as reconfigure items see them. The names are exactly the recorded ones, even if one was revoked
/// since: what was seen is compared with the set.
#[must_use]
pub fn complete_set(facts: &Facts, cluster: &ClusterRow) -> ControlSet {
    let set = control_set(facts, &cluster.name, |row| cluster.control_set.contains(&row.name));
    ControlSet { names: cluster.control_set.clone(), ..set }
}

/// The set that each phase sees: the frozen one, or the current one.
fn sets_of<'a>(machine: &'a MachineRow, provisional: &'a ControlSet) -> impl Iterator<Item = (Phase, &'a ControlSet)> {
    Phase::ALL.iter().map(|phase| (*phase, machine.control_sets.get(phase).unwrap_or(provisional)))
}

/// What gives a variable its value.
pub(super) fn gives_value(cluster: &ClusterName, fault: &VariableError) -> String {
    match fault {
        VariableError::NoValue(variable) => match secret_of(variable) {
            Some(secret) => {
                format!(
                    "the secret is there: `musterctl secret create {secret} --cluster {cluster} --from-file FILE`, or \
                     `musterctl secret share {secret} --clusters {cluster}` of one that others have"
                )
            }
            None if variable == HOSTNAME => {
                "the machine has a hostname of its own (`hostnamectl hostname NAME`)".to_owned()
            }
            None => "its agent reports".to_owned(),
        },
        _ => "the manifest is corrected and applied again".to_owned(),
    }
}

/// Inputs of the items, besides the spec and the machine.
struct Inputs {
    control_sets: BTreeMap<Phase, ControlSet>,
    secrets: BTreeMap<SecretName, u64>,
    added: Option<(String, Vec<Added>)>,
}

fn hostname(machine: &MachineRow) -> &str {
    machine.host.as_ref().map_or("", |host| host.hostname.as_str())
}

fn is_fresh(known: &Items, spec: &Arc<ClusterSpec>, machine: &MachineRow, provisional: &ControlSet) -> bool {
    Arc::ptr_eq(&known.spec, spec)
        && known.machine_type == machine.spec.machine_type
        && known.overwrites == *machine.overwrites()
        && known.hostname == hostname(machine)
        && sets_of(machine, provisional).all(|(phase, set)| known.control_sets.get(&phase) == Some(set))
        && known.reboot.as_ref() == added_reboot(machine)
}

fn added_reboot(machine: &MachineRow) -> Option<&AddedReboot> {
    machine.update.as_ref().and_then(|update| update.reboot.as_ref())
}

/// Other items that its update adds, and their version.
fn added_items(facts: &Facts, machine: &MachineRow) -> Option<(String, Vec<Added>)> {
    let update = machine.update.as_ref().filter(|update| !update.added.is_empty())?;
    let rollout = facts.rollouts.get(machine.rollout.as_ref()?)?;
    Some((added::version(&rollout.name, rollout.started_at_ms), update.added.clone()))
}

fn resolve_all(spec: &Arc<ClusterSpec>, machine: &MachineRow, inputs: Inputs) -> Items {
    let Inputs { control_sets, secrets, added } = inputs;
    let variables: Vec<(String, String)> =
        secrets.iter().map(|(name, version)| (format!("{SECRET_PREFIX}{name}"), version.to_string())).collect();
    let mut values = BTreeMap::from([
        ("machine.name", machine.name.to_string()),
        ("cluster.name", machine.spec.cluster_name.to_string()),
        ("cluster.release", spec.release.clone()),
    ]);
    values.extend(variables.iter().map(|(name, version)| (name.as_str(), version.clone())));
    if !hostname(machine).is_empty() {
        values.insert(HOSTNAME, hostname(machine).to_owned());
    }
    let of_update: Vec<StateItem> = added.iter().flat_map(|(version, all)| added::items(spec, all, version)).collect();
    let mut templates: Vec<&StateItem> = of_update.iter().chain(spec.items(machine.spec.machine_type)).collect();
    // It is the coordinator's: see `update::renewal`.
    templates.retain(|item| item.runner != RunnerKind::VrouterRestart);
    templates.sort_by_key(|item| item.phase);
    let mut resolved: Result<Vec<AssignedItem>, Unresolved> = templates
        .into_iter()
        .map(|template| {
            let set = control_sets.get(&template.phase).map(|set| set.addresses.clone()).unwrap_or_default();
            values.insert("cluster.controlPlaneNodes", set);
            resolve(template, machine, &values)
        })
        .collect();
    let reboot = added_reboot(machine).cloned();
    if let (Ok(items), Some(reboot)) = (&mut resolved, &reboot) {
        let end = items.iter().take_while(|item| item.phase <= reboot.phase).count();
        items.insert(end, reboot::item(reboot));
    }
    Items {
        digests: resolved.iter().flatten().map(of_json).collect(),
        spec: Arc::clone(spec),
        machine_type: machine.spec.machine_type,
        overwrites: machine.overwrites().clone(),
        hostname: hostname(machine).to_owned(),
        control_sets,
        secrets,
        reboot,
        added,
        resolved,
    }
}

fn resolve(
    template: &StateItem,
    machine: &MachineRow,
    values: &BTreeMap<&str, String>,
) -> Result<AssignedItem, Unresolved> {
    let overwrites = machine.overwrites().get(&template.name);
    let names: BTreeSet<&String> =
        template.params.keys().chain(overwrites.into_iter().flat_map(BTreeMap::keys)).collect();
    let mut params = BTreeMap::new();
    for name in names {
        let text = overwrites.and_then(|own| own.get(name)).or_else(|| template.params.get(name));
        let text = text.map(String::as_str).unwrap_or_default();
        let unresolved = |fault| Unresolved { item: template.name.clone(), param: name.clone(), fault };
        let value = replace_in_param(name, text, |text| replace_early(text, values)).map_err(unresolved)?;
        params.insert(name.clone(), value);
    }
    let runner = template.runner.as_str();
    Ok(AssignedItem {
        hash: item_hash(&template.name, runner, &template.version, &params, template.phase, &template.ignore_changes),
        name: template.name.clone(),
        runner: runner.to_owned(),
        version: template.version.clone(),
        params,
        phase: template.phase,
        timeout_ms: template.timeout_ms,
        retries: template.retries,
        on_interrupt: template.on_interrupt,
        cleared_attempts: 0,
        redo_up_to: Generation(0),
        ignore_changes: template.ignore_changes.clone(),
        permit: None,
    })
}
