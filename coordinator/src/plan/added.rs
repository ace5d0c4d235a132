//! Items that an update adds to machines' lists, besides those of their types: on which machines, in which version, and
//! as which item. Each runs once per rollout.

use std::collections::BTreeMap;

use muster_proto::{
    model::{AssignedItem, ClusterSpec, Hook, ItemProgress, MachineName, MachineType, RunnerKind, StateItem},
    seeded_bug::seeded_bug,
};

use super::{snapshot::standing, swarm};
use crate::facts::{Added, Facts, LeftOut, MachineRow, Target};

/// Version of a rollout's added items, unique to that rollout. The rollout's name alone may recur if a restored store
/// knows fewer rollouts, and the agents' ledgers record what was done under the first of that name.
#[must_use]
pub fn version(rollout: &str, started_at_ms: u64) -> String {
    format!("{rollout}@{started_at_ms}")
}

/// Minimum of managers for stopping one for a consistent copy.
pub const MANAGERS_MIN: usize = 3;

type Targets = BTreeMap<MachineName, Target>;

/// What an update of these machines adds, in execution order. Lost machines are spared work that any other can do.
#[must_use]
pub fn due(
    facts: &Facts,
    spec: &ClusterSpec,
    targets: &Targets,
    skip_backup: bool,
    is_lost: impl Fn(&MachineRow) -> bool,
) -> BTreeMap<MachineName, Vec<Added>> {
    let mut backups = if skip_backup { BTreeMap::new() } else { backups(facts, targets, is_lost) };
    let mut of_machine = |name: &MachineName| -> Option<Vec<Added>> {
        let machine_type = facts.machines.get(name)?.spec.machine_type;
        let here = |hook: &&Hook| hook.runs_on(name, machine_type);
        let before = spec.update_hooks.before.iter().filter(here).map(|hook| Added::HookBefore(hook.name.clone()));
        let after = spec.update_hooks.after.iter().filter(here).map(|hook| Added::HookAfter(hook.name.clone()));
        Some(before.chain(backups.remove(name).unwrap_or_default()).chain(after).collect())
    };
    targets.keys().filter_map(|name| Some((name.clone(), of_machine(name)?))).collect()
}

/// Backups of the Swarm and of MKE, before and in an update that changes something.
fn backups(
    facts: &Facts,
    targets: &Targets,
    is_lost: impl Fn(&MachineRow) -> bool,
) -> BTreeMap<MachineName, Vec<Added>> {
    let changes = targets.values().any(|target| target.disruptive || !target.changed.is_empty());
    // Seeded bug: skip the backups unasked.
    if !changes || seeded_bug("no-backup") {
        return BTreeMap::new();
    }
    let rows = targets.iter().filter_map(|(name, target)| Some((&**facts.machines.get(name)?, target)));
    let mut controls: Vec<(&MachineRow, &Target)> =
        rows.filter(|(row, _)| row.spec.machine_type == MachineType::Control).collect();
    controls.sort_by_key(|(row, _)| (row.spec.upgrade_index, &row.name));
    let managers = controls.iter().filter(|(row, _)| is_manager(facts, row)).count();
    // Seeded bug: stop one of two managers, which costs the swarm its majority meanwhile.
    let spares_one = managers >= MANAGERS_MIN || seeded_bug("consistent-copy-of-two");
    let with_mke = || controls.iter().map(|(row, _)| *row).filter(|row| has(facts, row, RunnerKind::Mke));
    let for_mke = with_mke().find(|row| !is_lost(row)).or(with_mke().next()).map(|row| &row.name);
    let of = |(row, target): &(&MachineRow, &Target)| {
        let manager = is_manager(facts, row);
        let all = [
            (manager, Added::SwarmCopy),
            (for_mke == Some(&row.name), Added::MkeBackup),
            (manager && spares_one && target.disruptive, Added::ConsistentCopy),
        ];
        (row.name.clone(), all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, added)| added).collect())
    };
    controls.iter().map(of).collect()
}

/// Is this control machine a manager of the swarm, as far as is known?
fn is_manager(facts: &Facts, row: &MachineRow) -> bool {
    // Seeded bug: count every machine with a swarm-join.
    let outside = swarm::was_left_out(facts, row) && !seeded_bug("copy-outside-swarm");
    has(facts, row, RunnerKind::SwarmJoin) && !outside
}

/// Does this control machine have such items at its current version? Those that its update brings are still missing.
#[must_use]
pub fn has(facts: &Facts, row: &MachineRow, runner: RunnerKind) -> bool {
    let version = row.ready_at.as_ref().map(|(_, version)| *version);
    let spec = version.and_then(|version| facts.specs.get(&(row.spec.cluster_name.clone(), version)));
    spec.is_some_and(|spec| spec.items(MachineType::Control).iter().any(|item| item.runner == runner))
}

/// The items themselves, in this version. They are resolved and hashed like those of the machine's type.
pub fn items<'a>(spec: &'a ClusterSpec, added: &'a [Added], version: &'a str) -> impl Iterator<Item = StateItem> + 'a {
    added.iter().filter_map(move |added| match added {
        Added::HookBefore(name) | Added::HookAfter(name) => {
            spec.update_hooks.all().find(|hook| hook.name == *name).map(|hook| hook.item(version))
        }
        Added::SwarmCopy => Some(spec.backups.hot_copy(version)),
        Added::ConsistentCopy => Some(spec.backups.consistent_copy(version)),
        Added::MkeBackup => Some(spec.backups.of_mke(spec.items(MachineType::Control), version)),
    })
}

/// The added item among the items of a machine.
#[must_use]
pub fn find<'a>(items: &'a [AssignedItem], added: &Added) -> Option<&'a AssignedItem> {
    items.iter().find(|item| item.name.as_str() == added.item_name())
}

/// Its progress on this machine while that is part of the update, and whether an operator skipped it.
#[must_use]
pub fn stands(facts: &Facts, row: &MachineRow, added: &Added) -> Option<(ItemProgress, bool)> {
    row.update.as_ref().filter(|mine| mine.added.contains(added))?;
    let items = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref())?;
    let item = find(items.resolved.as_deref().ok()?, added)?;
    let verdict = row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
    let skipped = verdict.is_some_and(|verdict| verdict.left_out == Some(LeftOut::Skipped));
    Some((standing(row, item), skipped))
}

/// Its name for operators: `hook silence`, or the item's name.
#[must_use]
pub fn said(added: &Added) -> String {
    match added {
        Added::HookBefore(name) | Added::HookAfter(name) => format!("hook {name}"),
        Added::SwarmCopy | Added::MkeBackup | Added::ConsistentCopy => added.item_name().to_owned(),
    }
}
