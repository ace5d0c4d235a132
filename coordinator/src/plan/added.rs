//! Items that an update adds to machines' lists, beside those of their types: on whom, in which version, and as which
//! item. Each runs once in every rollout.

use std::collections::BTreeMap;

use muster_proto::model::{AssignedItem, ClusterSpec, Hook, MachineName, Standing, StateItem};

use super::survey::standing;
use crate::facts::{Added, Facts, LeftOut, MachineRow, Target};

/// The version of what a rollout adds: no other rollout ever has the same. Its name alone comes again when a store is
/// put back that knows fewer rollouts, and the agents' ledgers say what was done in the one that had it first.
#[must_use]
pub fn version(rollout: &str, started_at_ms: u64) -> String {
    format!("{rollout}@{started_at_ms}")
}

/// What an update of these machines adds, in the order it runs.
#[must_use]
pub fn due(
    facts: &Facts,
    spec: &ClusterSpec,
    targets: &BTreeMap<MachineName, Target>,
) -> BTreeMap<MachineName, Vec<Added>> {
    let of_machine = |name: &MachineName| -> Option<Vec<Added>> {
        let machine_type = facts.machines.get(name)?.spec.machine_type;
        let here = |hook: &&Hook| hook.runs_on(name, machine_type);
        let before = spec.update_hooks.before.iter().filter(here).map(|hook| Added::HookBefore(hook.name.clone()));
        let after = spec.update_hooks.after.iter().filter(here).map(|hook| Added::HookAfter(hook.name.clone()));
        Some(before.chain(after).collect())
    };
    targets.keys().filter_map(|name| Some((name.clone(), of_machine(name)?))).collect()
}

/// The items themselves, in this version. All of them are resolved and hashed like those of the machine's type.
pub fn items<'a>(spec: &'a ClusterSpec, added: &'a [Added], version: &'a str) -> impl Iterator<Item = StateItem> + 'a {
    added.iter().filter_map(move |added| match added {
        Added::HookBefore(name) | Added::HookAfter(name) => {
            spec.update_hooks.all().find(|hook| hook.name == *name).map(|hook| hook.item(version))
        }
    })
}

/// It among the items of a machine.
#[must_use]
pub fn find<'a>(items: &'a [AssignedItem], added: &Added) -> Option<&'a AssignedItem> {
    items.iter().find(|item| item.name.as_str() == added.item_name())
}

/// How far it is on this machine, as long as that is part of the update, and whether an operator does without it.
#[must_use]
pub fn stands(facts: &Facts, row: &MachineRow, added: &Added) -> Option<(Standing, bool)> {
    row.update.as_ref().filter(|mine| mine.added.contains(added))?;
    let items = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref())?;
    let item = find(items.resolved.as_deref().ok()?, added)?;
    let verdict = row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
    let skipped = verdict.is_some_and(|verdict| verdict.left_out == Some(LeftOut::Skipped));
    Some((standing(row, item), skipped))
}

/// What an operator reads of it: `hook silence`.
#[must_use]
pub fn said(added: &Added) -> String {
    match added {
        Added::HookBefore(name) | Added::HookAfter(name) => format!("hook {name}"),
    }
}
