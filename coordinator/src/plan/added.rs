//! Items that an update adds to machines' lists, beside those of their types: on whom, and as which item. Their version
//! is the rollout's name, so that each runs once in every rollout.

use std::collections::BTreeMap;

use muster_proto::model::{ClusterSpec, Hook, MachineName, StateItem};

use crate::facts::{Added, Facts, Target};

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

/// What an operator reads of it: `hook silence`.
#[must_use]
pub fn said(added: &Added) -> String {
    match added {
        Added::HookBefore(name) | Added::HookAfter(name) => format!("hook {name}"),
    }
}
