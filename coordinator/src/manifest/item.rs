//! StateItems: each by itself, and the rules for all items of a machine type together.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    MACHINE_ITEMS_BYTES_MAX,
    convert::ITEMS_MAX,
    model::{
        INPUTS_PER_ITEM_MAX, ItemName, MachineType, OWN_ITEMS, Phase, RETRIES_DEFAULT, RETRIES_MAX, RunnerKind,
        StateItem, TIMEOUT_DEFAULT, TIMEOUT_MAX,
    },
    variables,
};

use super::{
    fault::Faults,
    params::{self, Secrets},
    read::{Fields, Map, Spot},
    schema, vars,
};

/// Fields of an item.
pub(super) const ITEM: Fields = Fields {
    known: &[
        "name",
        "runner",
        "version",
        "phase",
        "params",
        "vars",
        "schema",
        "ignoreChanges",
        "timeout",
        "retries",
        "onInterrupt",
        "disruptive",
    ],
    later: &[],
    elsewhere: &[],
};
/// Machine types whose machines have items.
pub(super) const TYPES: &[&str] = &[MachineType::Control.as_str(), MachineType::Worker.as_str()];
/// Size of an item on the wire besides its texts: hash, numbers, and the lengths and tags of the fields.
const ITEM_OVERHEAD_BYTES: usize = 128;
/// The same for a param.
const PARAM_OVERHEAD_BYTES: usize = 16;

/// Parse the items of one machine type.
pub(super) fn read_all(
    of: MachineType,
    spot: &Spot<'_>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<Vec<StateItem>> {
    let before = faults.count();
    let spots = spot.list(faults)?;
    if spots.is_empty() {
        let or = if of == MachineType::Control { "" } else { ", or the machine type left out" };
        spot.fault(faults, "no items", format!("at least one item{or}"));
    }
    if spots.len() > ITEMS_MAX {
        spot.fault(faults, "too many items", format!("at most {ITEMS_MAX}"));
        return None;
    }
    let items: Vec<(&Spot<'_>, StateItem)> =
        spots.iter().filter_map(|spot| read(spot, secrets, faults).map(|item| (spot, item))).collect();
    names_differ(&items, faults);
    reboots_are_last(&items, faults);
    joins_make_sense(&items, faults);
    let items: Vec<StateItem> = items.into_iter().map(|(_, item)| item).collect();
    fits(spot, items.iter(), faults);
    (faults.count() == before).then_some(items)
}

fn read(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<StateItem> {
    let map = spot.map(faults, &ITEM)?;
    let name = name(&map, faults);
    let runner = map.required_word::<RunnerKind>(faults, "runner", "runner");
    let version = map.required(faults, "version").and_then(|spot| spot.line(faults));
    let phase = map.required_word::<Phase>(faults, "phase", "phase");
    let params = params(spot, &map, (name.as_ref(), runner), secrets, faults);
    let ignore_changes = map.or("ignoreChanges", BTreeSet::new(), |spot| vars::ignored(&spot, params.as_ref(), faults));
    let timeout_max_ms = whole_ms(TIMEOUT_MAX);
    let timeout_default = whole_ms(runner.map_or(TIMEOUT_DEFAULT, RunnerKind::timeout_default));
    let timeout_ms = map.or("timeout", timeout_default, |spot| spot.duration_ms(faults, timeout_max_ms));
    let retries = map.or("retries", RETRIES_DEFAULT, |spot| spot.number(faults, 0..=RETRIES_MAX));
    let on_interrupt = map.or("onInterrupt", None, |spot| spot.word(faults, "answer to an interrupt").map(Some));
    let disruptive = map.or("disruptive", None, |spot| spot.boolean(faults).map(Some));
    if let (Some(runner), Some(wanted)) = (runner, disruptive) {
        disruption_makes_sense(spot, runner, phase, wanted, faults);
    }
    if let (Some(runner), Some(phase), Some(params)) = (runner, phase, &params) {
        leaves_workloads_alone(&spot.child("phase"), (runner, phase), params, faults);
    }
    let runner = runner?;
    Some(StateItem {
        name: name?,
        runner,
        version: version?.to_owned(),
        params: params?,
        phase: phase?,
        timeout_ms: timeout_ms?,
        retries: retries?,
        on_interrupt: on_interrupt?.unwrap_or(runner.on_interrupt_default()),
        disruptive: disruptive?,
        ignore_changes: ignore_changes?,
    })
}

/// Parse the name of an item or a hook.
pub(super) fn name(map: &Map<'_>, faults: &mut Faults<'_>) -> Option<ItemName> {
    let spot = map.required(faults, "name")?;
    let name = spot.label::<ItemName>(faults)?;
    if OWN_ITEMS.contains(&name.as_str()) {
        spot.fault(faults, "a name that is Muster's own", "another name: so is called what an update adds");
    }
    Some(name)
}

/// Parse the params of an item or a hook, and check them against its runner. They include `vars`, which must match
/// their schemas.
pub(super) fn params(
    spot: &Spot<'_>,
    map: &Map<'_>,
    (name, runner): (Option<&ItemName>, Option<RunnerKind>),
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<BTreeMap<String, String>> {
    let given = map.get("params");
    let params = map.or("params", BTreeMap::new(), |spot| params::read(&spot, runner, None, secrets, faults));
    if let Some(runner) = runner {
        let (at, path) = given
            .as_ref()
            .map_or_else(|| (spot.at(), format!("{}.params", spot.path)), |at| (at.at(), at.path.clone()));
        let names: Vec<&str> = given.as_ref().map(Spot::keys).unwrap_or_default();
        params::complete(at, &path, runner, |name| names.contains(&name), faults);
        let place = |name: &str| given.as_ref().map_or(at, |given| given.child(name).at());
        params.iter().for_each(|params| params::agree(place, &path, runner, params, faults));
    }
    let params = vars::read(map, runner, params, secrets, faults);
    schema::check(spot, map, (name, runner), params.as_ref(), secrets, faults);
    params
}

pub(super) fn whole_ms(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// An item of phase prepare runs beside workloads, and a reboot always needs a drain: reject contrary settings.
fn disruption_makes_sense(
    spot: &Spot<'_>,
    runner: RunnerKind,
    phase: Option<Phase>,
    disruptive: Option<bool>,
    faults: &mut Faults<'_>,
) {
    let reboot = runner == RunnerKind::Reboot;
    let (problem, expected) = match disruptive {
        Some(false) if reboot => ("a reboot is always disruptive", "it left out"),
        Some(true) if !reboot && phase == Some(Phase::Prepare) => {
            ("items of phase prepare are never disruptive", "phase deploy, or it left out")
        }
        _ => return,
    };
    spot.child("disruptive").fault(faults, problem, expected);
}

/// An item of phase prepare runs beside the workloads of a Ready machine. `at`: the part that its author can change.
pub(super) fn leaves_workloads_alone(
    at: &Spot<'_>,
    (runner, phase): (RunnerKind, Phase),
    params: &BTreeMap<String, String>,
    faults: &mut Faults<'_>,
) {
    if let (Phase::Prepare, Some(what)) = (phase, disturbance(runner, params)) {
        let place = if runner == RunnerKind::Reboot { ", as its last item" } else { "" };
        let expected =
            format!("phase deploy{place}: what runs in prepare runs beside workloads, which nothing moves away before");
        at.fault(faults, format!("runner {runner}{what} in phase prepare"), expected);
    }
}

/// Setting with which this runner disturbs workloads, in words, if it does. Scripts, playbooks and package
/// installations are their author's responsibility. Joins have a rule of their own.
fn disturbance(runner: RunnerKind, params: &BTreeMap<String, String>) -> Option<String> {
    let is = |name: &str, word: &str| params.get(name).is_some_and(|value| value == word);
    let one_of = |name: &str, words: &[&str]| {
        words.iter().find(|word| is(name, word)).map(|word| format!(" with '{name}: {word}'"))
    };
    match runner {
        RunnerKind::Reboot | RunnerKind::VrouterRestart => Some(String::new()),
        RunnerKind::Service => one_of("action", &["stop", "restart", "reload"]),
        RunnerKind::Mke => one_of("action", &["install", "upgrade"]),
        RunnerKind::SwarmBackup => one_of("mode", &["consistent"]),
        RunnerKind::Package => {
            let removes = params.contains_key("remove") && !is("action", "download");
            removes.then(|| " with 'remove'".to_owned())
        }
        RunnerKind::Downloader | RunnerKind::Bash | RunnerKind::Ansible | RunnerKind::SwarmJoin => None,
    }
}

fn names_differ(items: &[(&Spot<'_>, StateItem)], faults: &mut Faults<'_>) {
    let mut seen: BTreeMap<&ItemName, u32> = BTreeMap::new();
    for (spot, item) in items {
        let name = spot.child("name");
        if let Some(line) = seen.get(&item.name) {
            name.fault(faults, "two items of one name", format!("another name; the first is at line {line}"));
        } else {
            seen.insert(&item.name, name.at().line);
        }
    }
}

/// Items after a reboot in its phase would run on a machine that is going down. Phase prepare forbids reboots.
fn reboots_are_last(items: &[(&Spot<'_>, StateItem)], faults: &mut Faults<'_>) {
    for phase in Phase::ALL.iter().filter(|phase| **phase != Phase::Prepare) {
        let of_phase: Vec<_> = items.iter().filter(|(_, item)| item.phase == *phase).collect();
        for (spot, item) in of_phase.iter().rev().skip(1) {
            if item.runner == RunnerKind::Reboot {
                spot.fault(faults, "a reboot that is not last in its phase", format!("it as last item of {phase}"));
            }
        }
    }
}

/// A machine joins the swarm in its turn, with inputs from the coordinator.
fn joins_make_sense(items: &[(&Spot<'_>, StateItem)], faults: &mut Faults<'_>) {
    for (spot, item) in items.iter().filter(|(_, item)| item.runner == RunnerKind::SwarmJoin) {
        if item.phase != Phase::Deploy {
            let expected = "phase deploy: control machines enter the swarm one by one";
            spot.child("phase").fault(faults, format!("a swarm-join in phase {}", item.phase), expected);
        }
    }
}

/// Check that the items of a machine fit into one assignment, and the secrets of each into one answer.
pub(super) fn fits<'i>(spot: &Spot<'_>, items: impl Iterator<Item = &'i StateItem> + Clone, faults: &mut Faults<'_>) {
    for item in items.clone().filter(|item| variables::secrets_of(&item.params).len() > INPUTS_PER_ITEM_MAX) {
        spot.fault(
            faults,
            format!("item '{}' refers to too many secrets", item.name),
            format!("at most {INPUTS_PER_ITEM_MAX}"),
        );
    }
    let bytes: usize = items
        .map(|item| {
            let params = item.params.iter().map(|(key, value)| PARAM_OVERHEAD_BYTES + key.len() + value.len());
            ITEM_OVERHEAD_BYTES + item.name.as_str().len() + item.version.len() + params.sum::<usize>()
        })
        .sum();
    if bytes > MACHINE_ITEMS_BYTES_MAX {
        let expected = format!("at most {} KiB for all items of a machine", MACHINE_ITEMS_BYTES_MAX / 1024);
        spot.fault(faults, format!("the items are too long together: {} KiB", bytes.div_ceil(1024)), expected);
    }
}
