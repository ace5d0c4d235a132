//! Random clusters, as simulated operators request them.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{
    Backups, ClusterName, ClusterSpec, Counts, Deadline, DeadlineOutcome, Hook, HookMachines, ItemName, LcmType,
    MachineName, MachineType, OnInterrupt, Phase, RunnerKind, SecretName, StateItem, UpdateDeadlines, UpdateGroup,
    UpdateGroupName, UpdateHooks,
};

use super::Plan;
use crate::rng::Rng;

/// Name prefix of hooks before an update.
pub const HOOK_BEFORE: &str = "before-";
/// Name prefix of hooks after an update.
pub const HOOK_AFTER: &str = "after-";

/// The one cluster of a simulated world.
#[must_use]
pub fn cluster_name() -> ClusterName {
    label(ClusterName::new("sim"))
}

/// The n-th machine of a type.
#[must_use]
pub fn machine_name(machine_type: MachineType, n: u32) -> MachineName {
    label(MachineName::new(format!("{machine_type}-{n}")))
}

/// The secret that items of machines of a type refer to.
#[must_use]
pub fn secret_name(machine_type: MachineType) -> SecretName {
    label(SecretName::new(format!("{machine_type}-key")))
}

/// The item that joins a machine to the swarm.
#[must_use]
pub fn join_name() -> ItemName {
    label(ItemName::new("swarm"))
}

/// Names made here are always valid labels.
fn label<T, E>(name: Result<T, E>) -> T {
    match name {
        Ok(name) => name,
        Err(_) => unreachable!("made here, and a label"),
    }
}

/// The release of the first deployment.
pub(crate) const FIRST_RELEASE: &str = "1";

/// A random cluster.
pub fn spec(rng: &mut Rng, plan: Plan) -> ClusterSpec {
    let Plan { counts, swarm, .. } = plan;
    let worker_limit = u32::try_from(rng.between(1, 4)).unwrap_or(1);
    ClusterSpec {
        lcm_type: LcmType::Generic,
        release: FIRST_RELEASE.to_owned(),
        dedicated_control_plane: true,
        max_worker_prepare_count: u32::try_from(rng.between(1, 4)).unwrap_or(1),
        max_worker_deploy_count: worker_limit,
        max_worker_upgrade_count: u32::try_from(rng.between(1, 4)).unwrap_or(1),
        nodes_reboot_required: false,
        token_ttl_ms: 24 * 3600 * 1000,
        machines: Some(counts),
        max_failures: Counts {
            control: u32::try_from(rng.between(1, 2)).unwrap_or(1),
            worker: u32::try_from(rng.between(1, 3)).unwrap_or(1),
        },
        workload_controllers: Vec::new(),
        update_deadlines: deadlines(rng),
        update_groups: Vec::new(),
        update_hooks: UpdateHooks::default(),
        backups: Backups::default(),
        kubernetes: None,
        machine_types: BTreeMap::from([
            (MachineType::Control, items(rng, MachineType::Control, swarm)),
            (MachineType::Worker, items(rng, MachineType::Worker, swarm)),
        ]),
    }
}

/// Shorter than the time after which a simulated world counts as at rest.
fn deadlines(rng: &mut Rng) -> UpdateDeadlines {
    // Separate random numbers.
    let mut dice = Rng::new(rng.clone().next());
    let mut halts = || match dice.permille(300) {
        true => DeadlineOutcome::Fail,
        false => DeadlineOutcome::Pause,
    };
    let (hooks, cluster_locks) = (halts(), halts());
    let returned = if halts() == DeadlineOutcome::Fail { DeadlineOutcome::Pause } else { DeadlineOutcome::Defer };
    let refused = Deadline { after_ms: 20_000, outcome: deadline_outcome(rng) };
    UpdateDeadlines {
        hooks: Deadline { after_ms: 60_000, outcome: hooks },
        prepare: Deadline { after_ms: 30_000, outcome: deadline_outcome(rng) },
        turn_ms: 60_000,
        cluster_locks: Deadline { after_ms: 40_000, outcome: cluster_locks },
        node_locks: refused,
        swarm_drain: refused,
        kubernetes_drain: refused,
        items: Deadline { after_ms: 40_000, outcome: late_outcome(rng) },
        reboot: Deadline { after_ms: 50_000, outcome: late_outcome(rng) },
        locks_returned: Deadline { after_ms: 20_000, outcome: returned },
        // No simulated cluster has add-ons.
        addons: UpdateDeadlines::default().addons,
    }
}

fn deadline_outcome(rng: &mut Rng) -> DeadlineOutcome {
    match rng.between(0, 9) {
        0 => DeadlineOutcome::Fail,
        1 => DeadlineOutcome::Pause,
        _ => DeadlineOutcome::Defer,
    }
}

/// Outcome of a stage that begins when the machine was disturbed.
fn late_outcome(rng: &mut Rng) -> DeadlineOutcome {
    if rng.permille(300) { DeadlineOutcome::Pause } else { DeadlineOutcome::Fail }
}

fn items(rng: &mut Rng, of: MachineType, swarm: bool) -> Vec<StateItem> {
    let mut items = Vec::new();
    for n in 0..rng.between(0, 2) {
        items.push(item(rng, &format!("prepare-{n}"), Phase::Prepare, of));
    }
    if swarm && rng.permille(700) {
        items.push(item(rng, "engine", Phase::Deploy, of));
    }
    if swarm {
        let join = item(rng, "swarm", Phase::Deploy, of);
        let params = [("advertise".to_owned(), "${machine.internalIP}".to_owned())].into();
        items.push(StateItem { runner: RunnerKind::SwarmJoin, params, ..join });
    }
    for n in 0..rng.between(u64::from(!swarm), 3) {
        items.push(item(rng, &format!("deploy-{n}"), Phase::Deploy, of));
    }
    if rng.permille(400) {
        let reboot = item(rng, "reboot", Phase::Deploy, of);
        items.push(StateItem { runner: RunnerKind::Reboot, params: BTreeMap::new(), ..reboot });
    }
    if rng.permille(if of == MachineType::Control { 600 } else { 300 }) {
        items.push(item(rng, "reconfigure", Phase::Reconfigure, of));
    }
    items
}

fn item(rng: &mut Rng, name: &str, phase: Phase, of: MachineType) -> StateItem {
    let secret = rng.permille(250).then(|| ("password".to_owned(), format!("${{secret.{}}}", secret_name(of))));
    StateItem {
        name: label(ItemName::new(name)),
        runner: RunnerKind::Bash,
        version: "1".to_owned(),
        params: [
            ("script".to_owned(), "true".to_owned()),
            ("managers".to_owned(), "${cluster.controlPlaneNodes} ${machine.internalIP}".to_owned()),
        ]
        .into_iter()
        .chain(secret)
        .collect(),
        phase,
        timeout_ms: 60_000,
        retries: u32::try_from(rng.between(0, 2)).unwrap_or(0),
        on_interrupt: if rng.permille(500) { OnInterrupt::Rerun } else { OnInterrupt::Hold },
        disruptive: (phase != Phase::Prepare && rng.permille(200)).then_some(false),
        ignore_changes: BTreeSet::new(),
    }
}

/// Update groups for a release, two or three, or none. Machines name them by number.
pub fn update_groups(rng: &mut Rng, spec: &mut ClusterSpec) {
    let count = if rng.permille(500) { rng.between(2, 3) } else { 0 };
    let group = |n: u64, rng: &mut Rng| UpdateGroup {
        name: label(UpdateGroupName::new(format!("group-{n}"))),
        index: u32::try_from(rng.between(0, 2)).unwrap_or(1),
        concurrent_updates: u32::try_from(rng.between(1, 3)).unwrap_or(1),
        reboot_if_update_requires: rng.permille(500),
    };
    spec.update_groups = (0..count).map(|n| group(n, rng)).collect();
}

/// Hooks around the updates of a cluster, or none.
pub fn update_hooks(rng: &mut Rng, counts: Counts) -> UpdateHooks {
    let mut some = |prefix: &str, most| -> Vec<Hook> {
        let count = if rng.permille(400) { rng.between(1, most) } else { 0 };
        (0..count).map(|n| hook(rng, &format!("{prefix}{n}"), counts)).collect()
    };
    UpdateHooks { before: some(HOOK_BEFORE, 3), after: some(HOOK_AFTER, 2) }
}

fn hook(rng: &mut Rng, name: &str, counts: Counts) -> Hook {
    let worker = counts.worker > 0 && rng.permille(600);
    let machine_type = if worker { MachineType::Worker } else { MachineType::Control };
    let n = u32::try_from(rng.between(1, u64::from(counts.of(machine_type)))).unwrap_or(1);
    let every = rng.permille(300);
    let StateItem { name, runner, params, timeout_ms, retries, on_interrupt, .. } =
        item(rng, name, Phase::Prepare, machine_type);
    let on = if every {
        HookMachines::MachineType(machine_type)
    } else {
        HookMachines::Machine(machine_name(machine_type, n))
    };
    Hook { name, runner, on, params, timeout_ms, retries, on_interrupt }
}

/// Removes one item of each type that has several.
pub fn drop_items(dice: &mut Rng, spec: &ClusterSpec) -> ClusterSpec {
    let mut spec = spec.clone();
    for items in spec.machine_types.values_mut() {
        let others = items.iter().enumerate().filter(|(_, item)| item.runner != RunnerKind::SwarmJoin);
        let at: Vec<usize> = others.map(|(at, _)| at).collect();
        if let Some(at) = dice.pick(&at).copied().filter(|_| items.len() > 1) {
            items.remove(at);
        }
    }
    spec
}

/// Restores the items of an earlier manifest that this one lacks, in their places.
pub fn put_back(spec: &mut ClusterSpec, earlier: &ClusterSpec) {
    for (of, items) in &mut spec.machine_types {
        let before = earlier.items(*of).iter();
        *items = before.map(|old| items.iter().find(|item| item.name == old.name).unwrap_or(old).clone()).collect();
    }
}

/// A random edit: another version of one item, one item less, or another limit.
pub fn edit(rng: &mut Rng, spec: &ClusterSpec) -> ClusterSpec {
    let mut spec = spec.clone();
    let types = [MachineType::Control, MachineType::Worker];
    let Some(items) = rng.pick(&types).and_then(|of| spec.machine_types.get_mut(of)) else { return spec };
    let at = usize::try_from(rng.between(0, 7)).unwrap_or(0) % items.len().max(1);
    match rng.between(0, 2) {
        0 => {
            if let Some(item) = items.get_mut(at) {
                item.version.push_str("-edited");
            }
        }
        1 if items.len() > 1 && items.get(at).is_some_and(|item| item.runner != RunnerKind::SwarmJoin) => {
            items.remove(at);
        }
        _ => spec.max_worker_deploy_count = u32::try_from(rng.between(1, 4)).unwrap_or(1),
    }
    spec
}
