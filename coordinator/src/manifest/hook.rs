//! `updateHooks`: items that run before and after every update.

use std::collections::BTreeMap;

use muster_proto::model::{
    Hook, HookMachines, ItemName, MachineType, RETRIES_DEFAULT, RETRIES_MAX, RunnerKind, StateItem, TIMEOUT_DEFAULT,
    TIMEOUT_MAX, UpdateHooks,
};

use super::{
    fault::{Faults, shown},
    item::{self, whole_ms},
    params::Secrets,
    read::{Fields, Map, Spot, one_of},
};

/// Fields of `updateHooks`.
pub(super) const HOOKS: Fields = Fields { known: &["before", "after"], later: &[], elsewhere: &[] };
/// Fields of one hook.
pub(super) const HOOK: Fields = Fields {
    known: &[
        "name",
        "runner",
        "machine",
        "machineType",
        "params",
        "vars",
        "schema",
        "timeout",
        "retries",
        "onInterrupt",
    ],
    later: &[],
    elsewhere: &[],
};
/// Most hooks before, or after, an update.
const HOOKS_MAX: usize = 32;

type Types = BTreeMap<MachineType, Vec<StateItem>>;

/// Parse `updateHooks`. `types`: the items of the cluster's machines, unless they have faults.
pub(super) fn read_all(
    spot: &Spot<'_>,
    types: Option<&Types>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<UpdateHooks> {
    let before = faults.count();
    let map = spot.map(faults, &HOOKS)?;
    let mut taken: BTreeMap<ItemName, u32> = BTreeMap::new();
    let mut list = |name: &str| -> Option<Vec<Hook>> {
        let Some(spot) = map.get(name) else { return Some(Vec::new()) };
        let spots = spot.list(faults)?;
        if spots.len() > HOOKS_MAX {
            spot.fault(faults, "too many hooks", format!("at most {HOOKS_MAX}"));
            return None;
        }
        let hooks = spots.iter().filter_map(|spot| {
            let hook = read(spot, secrets, faults)?;
            name_is_free(spot, &hook.name, (types, &taken), faults);
            taken.entry(hook.name.clone()).or_insert(spot.child("name").at().line);
            Some(hook)
        });
        Some(hooks.collect())
    };
    let hooks = UpdateHooks { before: list("before")?, after: list("after")? };
    if let Some(types) = types.filter(|_| faults.count() == before) {
        let items: Vec<StateItem> = hooks.all().map(|hook| hook.item("")).collect();
        types.values().for_each(|own| item::fits(spot, own.iter().chain(&items), faults));
    }
    (faults.count() == before).then_some(hooks)
}

fn read(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<Hook> {
    let map = spot.map(faults, &HOOK)?;
    let name = item::name(&map, faults);
    let runner = map.required(faults, "runner").and_then(|spot| runner(&spot, faults));
    let on = machines(&map, faults);
    let params = item::params(spot, &map, (name.as_ref(), runner), secrets, faults);
    let timeout_ms =
        map.or("timeout", whole_ms(TIMEOUT_DEFAULT), |spot| spot.duration_ms(faults, whole_ms(TIMEOUT_MAX)));
    let retries = map.or("retries", RETRIES_DEFAULT, |spot| spot.number(faults, 0..=RETRIES_MAX));
    let on_interrupt = map.or("onInterrupt", None, |spot| spot.word(faults, "answer to an interrupt").map(Some));
    let runner = runner?;
    Some(Hook {
        name: name?,
        runner,
        on: on?,
        params: params?,
        timeout_ms: timeout_ms?,
        retries: retries?,
        on_interrupt: on_interrupt?.unwrap_or(runner.on_interrupt_default()),
    })
}

/// Parse a hook's runner. Machines stay in service during a hook, so the runner must leave workloads alone.
fn runner(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<RunnerKind> {
    let text = spot.text(faults)?;
    let known: Vec<&str> = Hook::RUNNERS.iter().map(|runner| runner.as_str()).collect();
    match text.parse::<RunnerKind>() {
        Ok(runner) if Hook::RUNNERS.contains(&runner) => return Some(runner),
        Ok(runner) => {
            let problem = format!("a hook of runner {runner} could disturb workloads");
            spot.fault(faults, problem, format!("{}; an item of a machine type waits for its turn", one_of(&known)));
        }
        Err(_) => spot.unknown(faults, &format!("unknown runner '{}'", shown(text)), &known),
    }
    None
}

/// Parse exactly one of `machine` and `machineType`.
fn machines(map: &Map<'_>, faults: &mut Faults<'_>) -> Option<HookMachines> {
    match (map.get("machine"), map.get("machineType")) {
        (Some(spot), None) => spot.label(faults).map(HookMachines::Machine),
        (None, Some(spot)) => machine_type(&spot, faults).map(HookMachines::MachineType),
        (None, None) => {
            faults.add(map.at, &map.path, "a hook that runs nowhere", "a field 'machine' or 'machineType'");
            None
        }
        (Some(_), Some(spot)) => {
            spot.fault(faults, "both 'machine' and 'machineType'", "one of them");
            None
        }
    }
}

fn machine_type(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<MachineType> {
    let text = spot.text(faults)?;
    match text.parse() {
        Ok(MachineType::Unassigned) => {
            spot.fault(faults, "unassigned machines have no items", one_of(item::TYPES));
            None
        }
        Ok(machine_type) => Some(machine_type),
        Err(_) => {
            spot.unknown(faults, &format!("unknown machine type '{}'", shown(text)), item::TYPES);
            None
        }
    }
}

/// A hook needs a slot of its own in the status of every machine.
fn name_is_free(
    spot: &Spot<'_>,
    name: &ItemName,
    (types, taken): (Option<&Types>, &BTreeMap<ItemName, u32>),
    faults: &mut Faults<'_>,
) {
    let spot = spot.child("name");
    if let Some(line) = taken.get(name) {
        spot.fault(faults, "two hooks of one name", format!("another name; the first is at line {line}"));
    } else if types.is_some_and(|types| types.values().flatten().any(|item| item.name == *name)) {
        spot.fault(faults, "an item of a machine type has this name", "another name");
    }
}
