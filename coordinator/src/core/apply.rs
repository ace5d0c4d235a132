//! Applies a parsed and checked manifest. If any part conflicts with the current state, the whole is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use muster_proto::model::{
    Addon, ClusterName, ClusterSpec, DEFAULT_GROUP, HookMachines, ItemName, KubernetesSpec, MachineId, MachineName,
    MachineSpec, MachineType, Now, RunnerKind,
};

use super::{Effect, Refusal, Reply, addons, enroll, update};
use crate::facts::{AuditObject, ClusterRow, MachineRow, RebootAsked, Transaction};

/// Maximum text of one `apply` in one cluster's audit record, in bytes.
const AUDITED_MAX: usize = 4 * 1024;

/// Clusters of a manifest, with their annotations.
type Clusters = BTreeMap<ClusterName, (ClusterSpec, BTreeMap<String, String>)>;
/// Machines of a manifest, with their annotations.
type Machines = BTreeMap<MachineName, (MachineSpec, BTreeMap<String, String>)>;

/// Result for one document, in one line.
struct Applied {
    line: String,
    /// Did the record change?
    changed: bool,
}

impl Applied {
    const fn changed(line: String) -> Self {
        Self { line, changed: true }
    }
}

pub(super) fn apply(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    (clusters, machines): (Clusters, Machines),
    dry_run: bool,
    now: Now,
) -> Result<Reply, Refusal> {
    for (name, (spec, _)) in &machines {
        may_declare(tx, name, spec, clusters.contains_key(&spec.cluster_name))?;
    }
    machines_fit(tx, &machines)?;
    overrides_fit(tx, &clusters, &machines)?;
    let mut lines: Vec<(ClusterName, Applied)> = Vec::new();
    for (name, (spec, annotations)) in clusters {
        let mut warned = idle_hooks(tx, &name, &spec, &machines);
        warned.extend(more_than_awaited(tx, &name, &spec, &machines));
        warned.extend(missing_runners(&name, &spec));
        warned.extend(variables_in_scripts(&name, &spec));
        let applied = apply_cluster(tx, &name, spec, annotations, dry_run, now);
        let warned = warned.into_iter().filter(|_| applied.changed).map(Applied::changed);
        let warned: Vec<Applied> = warned.collect();
        lines.extend(iter::once(applied).chain(warned).map(|applied| (name.clone(), applied)));
    }
    for (name, (spec, annotations)) in machines {
        let moved = moved(tx, &name, &spec).filter(|_| !dry_run);
        let cluster = spec.cluster_name.clone();
        lines.push((cluster, apply_machine(tx, &name, spec, annotations, dry_run, now)));
        if let Some(id) = moved {
            let reason = "its Machine document has another interface or cidr: the next greeting says which".to_owned();
            tx.live_mut(&name).session = None;
            effects.push(Effect::Close { id, reason });
        }
    }
    if !dry_run {
        for (cluster, message) in changes(&lines) {
            tx.audit(actor, "apply", AuditObject::Manifest(cluster), &message, now.wall_ms);
        }
    }
    Ok(Reply::Done(lines.into_iter().map(|(_, applied)| applied.line).collect()))
}

/// Changes of each cluster for the audit record. Of a thousand machines, it names as many as fit a line.
fn changes(lines: &[(ClusterName, Applied)]) -> BTreeMap<&ClusterName, String> {
    let mut changed: BTreeMap<&ClusterName, Vec<&str>> = BTreeMap::new();
    for (cluster, applied) in lines.iter().filter(|(_, applied)| applied.changed) {
        changed.entry(cluster).or_default().push(&applied.line);
    }
    changed.into_iter().map(|(cluster, lines)| (cluster, joined(&lines))).collect()
}

fn joined(lines: &[&str]) -> String {
    let mut message = String::new();
    for (at, line) in lines.iter().enumerate() {
        if message.len() + line.len() > AUDITED_MAX {
            return format!("{message}; and {} more", lines.len() - at);
        }
        message = if message.is_empty() { (*line).to_owned() } else { format!("{message}; {line}") };
    }
    message
}

fn may_declare(tx: &Transaction<'_>, name: &MachineName, spec: &MachineSpec, in_manifest: bool) -> Result<(), Refusal> {
    if !in_manifest && !tx.clusters.contains_key(&spec.cluster_name) {
        let names = tx.clusters.keys().map(ClusterName::as_str);
        return Err(super::operators::not_found("cluster", spec.cluster_name.as_str(), names));
    }
    // A replaceable name is for another machine, which may differ in everything.
    let Some(row) = tx.machines.get(name).filter(|row| row.id.is_some() && !row.replaceable) else { return Ok(()) };
    if row.spec.machine_type != spec.machine_type || row.spec.cluster_name != spec.cluster_name {
        let then = match spec.machine_type {
            MachineType::Control | MachineType::Worker => "apply again, then enrol it with a token of the new role",
            MachineType::Unassigned => "then apply again (no machine enrols as that)",
        };
        return Err(Refusal::State {
            reason: "RoleChange",
            message: format!(
                "{name} is a {} machine of {}, and enrolled; to make it {} of {}: `musterctl replace {name}`, {then}",
                row.spec.machine_type, row.spec.cluster_name, spec.machine_type, spec.cluster_name
            ),
        });
    }
    Ok(())
}

/// Has every cluster room for its declared machines?
fn machines_fit(tx: &Transaction<'_>, machines: &Machines) -> Result<(), Refusal> {
    let clusters: BTreeSet<&ClusterName> = machines.values().map(|(spec, _)| &spec.cluster_name).collect();
    clusters.into_iter().try_for_each(|cluster| {
        let recorded = tx.machines_of(cluster).filter(|row| !machines.contains_key(&row.name)).count();
        enroll::may_have(cluster, recorded + brought(cluster, machines).count())
    })
}

/// Do the items that a Machine overrides, and its update group, exist in its Cluster, as both will be? A manifest may
/// have only one of the two, so the parser cannot check this.
fn overrides_fit(tx: &Transaction<'_>, clusters: &Clusters, machines: &Machines) -> Result<(), Refusal> {
    let brought = machines.iter().map(|(name, (spec, _))| (name, spec));
    let recorded = tx.machines.values().filter(|row| !machines.contains_key(&row.name));
    for (name, machine) in brought.chain(recorded.map(|row| (&row.name, &row.spec))) {
        let cluster = &machine.cluster_name;
        let unchanged = !clusters.contains_key(cluster) && !machines.contains_key(name);
        let newest = clusters.get(cluster).map(|(spec, _)| spec).or_else(|| tx.spec(cluster).map(|spec| &**spec));
        let Some(spec) = newest.filter(|_| !unchanged) else { continue };
        let items = spec.items(machine.machine_type);
        group_exists(name, machine, spec)?;
        let missing = machine.state_items_overwrites.keys().find(|own| items.iter().all(|item| item.name != **own));
        if let Some(missing) = missing {
            return Err(Refusal::State {
                reason: "OverrideWithoutItem",
                message: format!(
                    "machine {name} overrides params of item {missing}, which {} machines of {cluster} do not have; \
                     take the override out of its Machine document (in the same manifest), or keep the item",
                    machine.machine_type
                ),
            });
        }
    }
    Ok(())
}

fn group_exists(name: &MachineName, machine: &MachineSpec, spec: &ClusterSpec) -> Result<(), Refusal> {
    let named = machine.update_group.as_ref().filter(|group| group.as_str() != DEFAULT_GROUP);
    let Some(group) = named.filter(|group| spec.update_group(Some(group)).is_none()) else { return Ok(()) };
    let message = format!(
        "machine {name} is in update group {group}, which {} does not have; give it another in its Machine document \
         (in the same manifest), or keep the group",
        machine.cluster_name
    );
    Err(Refusal::State { reason: "GroupWithoutCluster", message })
}

/// Idle hooks: their machine or type is absent from the cluster and unexpected, so updates skip them.
fn idle_hooks(tx: &Transaction<'_>, cluster: &ClusterName, spec: &ClusterSpec, machines: &Machines) -> Vec<String> {
    let recorded = tx.machines_of(cluster).map(|row| (&row.name, row.spec.machine_type));
    let there: BTreeMap<&MachineName, MachineType> = recorded.chain(brought(cluster, machines)).collect();
    let count = |of| there.values().filter(|machine_type| **machine_type == of).count();
    // Expected machines may be unknown yet.
    let awaited = |of| spec.machines.map_or(there.is_empty(), |counts| counts.of(of) > 0);
    let more = |of| spec.machines.map_or(there.is_empty(), |counts| count(of) < counts.of(of) as usize);
    let idle = spec.update_hooks.all().filter_map(|hook| match &hook.on {
        HookMachines::MachineType(of) => {
            (count(*of) == 0 && !awaited(*of)).then(|| (&hook.name, format!("{of} machines")))
        }
        HookMachines::Machine(name) => {
            let unknown = !there.contains_key(name) && !MachineType::ALL.iter().any(|of| more(*of));
            unknown.then(|| (&hook.name, format!("machine {name}; `musterctl get machines` lists them")))
        }
    });
    idle.map(|(hook, what)| format!("cluster {cluster}: hook {hook} runs nowhere, for it has no {what}")).collect()
}

/// The machines of a cluster in the manifest.
fn brought<'m>(cluster: &ClusterName, machines: &'m Machines) -> impl Iterator<Item = (&'m MachineName, MachineType)> {
    let of_cluster = machines.iter().filter(move |(_, (machine, _))| machine.cluster_name == *cluster);
    of_cluster.map(|(name, (machine, _))| (name, machine.machine_type))
}

/// Warns if more machines are declared than the cluster waits for: its deployment may start without the others.
fn more_than_awaited(
    tx: &Transaction<'_>,
    cluster: &ClusterName,
    spec: &ClusterSpec,
    machines: &Machines,
) -> Vec<String> {
    let begun = tx.machines_of(cluster).any(|row| row.ready_at.is_some());
    let Some(counts) = spec.machines.filter(|_| !begun) else { return Vec::new() };
    let more = [MachineType::Control, MachineType::Worker].into_iter().filter_map(|of| {
        let declared = brought(cluster, machines).filter(|(_, machine_type)| *machine_type == of).count();
        (declared > counts.of(of) as usize).then(|| {
            format!(
                "cluster {cluster}: the manifest declares {declared} {of} machines, and `machines` waits for {}: \
                 deploying may start before the others are there",
                counts.of(of)
            )
        })
    });
    more.collect()
}

/// Items that stand for a renewal of pods in a cluster without a Kubernetes that Muster reaches.
fn missing_runners(cluster: &ClusterName, spec: &ClusterSpec) -> Vec<String> {
    if spec.kubernetes.is_some() {
        return Vec::new();
    }
    let items = spec.machine_types.values().flatten().filter(|item| item.runner == RunnerKind::VrouterRestart);
    let names: BTreeSet<&ItemName> = items.map(|item| &item.name).collect();
    let line = |item| {
        format!(
            "cluster {cluster}: item {item} does nothing: {} renews pods, and spec.kubernetes is not set",
            RunnerKind::VrouterRestart
        )
    };
    names.into_iter().map(line).collect()
}

/// Scripts with variables in their text, which the shell would report as its own kind of error.
fn variables_in_scripts(cluster: &ClusterName, spec: &ClusterSpec) -> Vec<String> {
    let items = spec.machine_types.values().flatten().filter(|item| item.runner == RunnerKind::Bash);
    let found = items.filter_map(|item| {
        let script = item.params.get("script")?;
        let variable = ["${machine.", "${cluster.", "${secret."].into_iter().find(|start| script.contains(start))?;
        Some((&item.name, variable))
    });
    let found: BTreeMap<&ItemName, &str> = found.collect();
    let line = |(item, variable)| {
        format!(
            "cluster {cluster}: item {item} has {variable} in its script, where variables are not replaced: give it a \
             param with that value, and read $MUSTER_PARAM_NAME there (of a secret the file $MUSTER_PARAM_NAME_FILE)"
        )
    };
    found.into_iter().map(line).collect()
}

/// What a changed spec means for a deployed cluster.
fn what_follows(tx: &Transaction<'_>, name: &ClusterName, spec: &ClusterSpec) -> String {
    let deployed = tx.machines_of(name).filter(|machine| machine.ready_at.is_some()).count();
    if deployed == 0 {
        return String::new();
    }
    let known = tx.spec(name);
    let counts = known.and_then(|known| known.machines) != spec.machines;
    let more = to_enrol(tx, name, spec).filter(|_| counts).map(|more| format!("; {more}")).unwrap_or_default();
    if known.is_some_and(|known| MachineType::ALL.iter().all(|of| known.asks_the_same(spec, *of))) {
        return changed_addons(tx, name, spec) + &more;
    }
    let who = match deployed {
        1 => "its deployed machine keeps what it has".to_owned(),
        count => format!("its {count} deployed machines keep what they have"),
    };
    let after = tx.open_rollout(name).map(|open| format!(", when {} has ended", open.name)).unwrap_or_default();
    let begun = tx.machines_of(name).filter(|row| row.ready_at.is_none() && row.id.is_some() && !row.revoked);
    let at_once = match begun.count() {
        0 => String::new(),
        1 => "; the one that is not deployed yet goes by it at once".to_owned(),
        count => format!("; the {count} that are not deployed yet go by it at once"),
    };
    format!(
        "; {who} until an update is started{after}: `musterctl plan {name}` shows it, `musterctl update {name}` starts \
         it{at_once}{more}"
    )
}

/// What changed add-ons wait for. Empty: none of those that are installed changed.
fn changed_addons(tx: &Transaction<'_>, name: &ClusterName, spec: &ClusterSpec) -> String {
    let of = |spec: &ClusterSpec| spec.kubernetes.as_ref().map(KubernetesSpec::all_addons).unwrap_or_default();
    let known = tx.spec(name).map(|known| of(known)).unwrap_or_default();
    let is_installed = |addon: &Addon| {
        tx.clusters.get(name).and_then(|row| row.addons.get(&addon.name)).is_some_and(|row| row.installed)
    };
    let changed = of(spec).into_iter().filter(|addon| is_installed(addon) && !known.contains(addon));
    let changed: Vec<String> = changed.map(|addon| addon.name).collect();
    match changed.is_empty() {
        true => String::new(),
        false => format!("; add-ons {} are applied again by `musterctl update {name}`", changed.join(", ")),
    }
}

/// Machines that the manifest wants and that have yet to enrol. None: all are there.
fn to_enrol(tx: &Transaction<'_>, name: &ClusterName, spec: &ClusterSpec) -> Option<String> {
    let wanted = spec.machines?;
    let missing = [(MachineType::Control, wanted.control), (MachineType::Worker, wanted.worker)].map(|(of, wanted)| {
        let there = tx.machines_of(name).filter(|row| row.spec.machine_type == of && !row.revoked).count();
        (of, (wanted as usize).saturating_sub(there))
    });
    let missing: Vec<_> = missing.into_iter().filter(|(_, count)| *count > 0).collect();
    let machines = if let [(_, 1)] = missing[..] { "machine" } else { "machines" };
    let missing: Vec<String> = missing.iter().map(|(of, count)| format!("{count} {of}")).collect();
    (!missing.is_empty()).then(|| {
        let missing = missing.join(" and ");
        format!("{missing} {machines} more may enrol: `musterctl token create --cluster {name} --type …`")
    })
}

fn apply_cluster(
    tx: &mut Transaction<'_>,
    name: &ClusterName,
    spec: ClusterSpec,
    annotations: BTreeMap<String, String>,
    dry_run: bool,
    now: Now,
) -> Applied {
    let Some(row) = tx.clusters.get(name).cloned() else {
        if !dry_run {
            tx.put_spec(name, 1, Arc::new(spec));
            tx.put_cluster(ClusterRow {
                name: name.clone(),
                created_at_ms: now.wall_ms,
                annotations,
                spec_version: 1,
                deploy_requested: false,
                rollout_seq: 0,
                control_set: Vec::new(),
                control_members: BTreeMap::new(),
                control_version: 0,
                swarm_init: None,
                kubernetes_uid: None,
                kubernetes_requests: false,
                kubernetes_annotations: BTreeMap::new(),
                addons: BTreeMap::new(),
                blocked_since: None,
            });
        }
        return Applied::changed(format!("cluster {name} created"));
    };
    let same_spec = tx.spec(name).is_some_and(|known| **known == spec);
    let missing = annotations.iter().any(|(key, value)| row.annotations.get(key) != Some(value));
    if same_spec && !missing {
        return Applied { line: format!("cluster {name} unchanged"), changed: false };
    }
    let follows = if same_spec { String::new() } else { what_follows(tx, name, &spec) };
    if !dry_run {
        let version = row.spec_version + u64::from(!same_spec);
        let without_kubernetes = spec.kubernetes.is_none();
        if !same_spec {
            tx.put_spec(name, version, Arc::new(spec));
        }
        if let Some(row) = tx.cluster_mut(name) {
            row.spec_version = version;
            row.annotations.extend(annotations);
            // A manifest without it is how an operator gives the machines to another Kubernetes cluster.
            if without_kubernetes {
                row.kubernetes_uid = None;
                row.addons.clear();
            }
        }
        if without_kubernetes {
            forget_cordons(tx, name);
        }
        addons::forget_unnamed(tx, name);
        update::handshake::forget_unwanted(tx, name);
        tx.drop_unused_specs(name);
    }
    Applied::changed(format!("cluster {name} configured{follows}"))
}

/// What the nodes of a former Kubernetes cluster got is left to its operators.
fn forget_cordons(tx: &mut Transaction<'_>, cluster: &ClusterName) {
    let owing = tx.machines_of(cluster).filter(|row| row.owed_cordon.is_some()).map(|row| row.name.clone());
    for machine in owing.collect::<Vec<_>>() {
        if let Some(row) = tx.machine_mut(&machine) {
            row.owed_cordon = None;
        }
    }
    tx.may_lack_cordons(cluster);
}

/// The connected agent with a changed selection of its InternalIP: it learns the new one in its next welcome.
fn moved(tx: &Transaction<'_>, name: &MachineName, spec: &MachineSpec) -> Option<MachineId> {
    let row = tx.machines.get(name)?;
    let connected = tx.live.machines.get(name).is_some_and(|live| live.session.is_some());
    let elsewhere = (&row.spec.interface, &row.spec.cidr) != (&spec.interface, &spec.cidr);
    row.id.filter(|_| connected && elsewhere)
}

fn apply_machine(
    tx: &mut Transaction<'_>,
    name: &MachineName,
    spec: MachineSpec,
    annotations: BTreeMap<String, String>,
    dry_run: bool,
    now: Now,
) -> Applied {
    let Some(row) = tx.machines.get(name).cloned() else {
        if !dry_run {
            let mut row = MachineRow::new(name.clone(), spec, true, now.wall_ms);
            row.annotations = annotations;
            tx.put_machine(row);
        }
        return Applied::changed(format!("machine {name} created"));
    };
    let missing = annotations.iter().any(|(key, value)| row.annotations.get(key) != Some(value));
    if row.spec == spec && row.declared && !missing {
        return Applied { line: format!("machine {name} unchanged"), changed: false };
    }
    let asked = spec.reboot_required && !row.spec.reboot_required;
    if !dry_run && let Some(row) = tx.machine_mut(name) {
        if asked {
            row.reboot = Some(RebootAsked { at_ms: now.wall_ms, completed: false });
        } else if !spec.reboot_required {
            row.reboot = None;
        }
        row.spec = spec;
        row.declared = true;
        row.annotations.extend(annotations);
    }
    let reboots = if asked { "; it reboots in the next update of scope os, or by `musterctl reboot`" } else { "" };
    Applied::changed(format!("machine {name} configured{reboots}"))
}
