//! `kind: Cluster`.

use std::collections::BTreeMap;

use muster_proto::model::{
    Backups, ClusterSpec, Counts, LcmType, MachineType, RunnerKind, StateItem, TOKEN_TTL_DEFAULT_MS, TOKEN_TTL_MAX_MS,
    UpdateDeadlines, UpdateHooks, WORKERS_AT_ONCE_MAX,
};

use super::{
    backup,
    fault::{Faults, shown},
    group, hook, item, kubernetes,
    params::Secrets,
    read::{Fields, Free, Map, Spot, one_of},
    update,
};

/// Fields of a cluster's `spec`.
pub(super) const CLUSTER: Fields = Fields {
    known: &[
        "lcmType",
        "release",
        "dedicatedControlPlane",
        "maxWorkerPrepareCount",
        "maxWorkerDeployCount",
        "maxWorkerUpgradeCount",
        "nodesRebootRequired",
        "tokenTTL",
        "machines",
        "maxFailures",
        "workloadControllers",
        "updateDeadlines",
        "updateGroups",
        "updateHooks",
        "backups",
        "kubernetes",
        "machineTypes",
    ],
    later: &["agentConfig", "mkeUpgradeAttempts"],
    elsewhere: &[
        ("maintenance", "it in `kubernetes`: `kubernetes.maintenance`"),
        ("helmController", "it in `kubernetes`: `kubernetes.helmController`"),
    ],
};
/// Fields of `machines` and `maxFailures`.
pub(super) const COUNTS: Fields = Fields { known: &["control", "worker"], later: &[], elsewhere: &[] };

/// Most machines of one type a cluster may declare.
pub const MACHINES_MAX: u32 = 10_000;
/// Default number of workers that may be down at once: LCM's default.
const UPGRADE_COUNT_DEFAULT: u32 = 1;
/// Default failure budget (architecture.md, "Failure budget").
const MAX_FAILURES_DEFAULT: Counts = Counts { control: 1, worker: 2 };

/// Parse a cluster's `spec`.
pub(super) fn read(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<ClusterSpec> {
    let map = spot.map(faults, &CLUSTER)?;
    let at_once = 1..=WORKERS_AT_ONCE_MAX;
    let lcm_type = map.required_of(faults, "lcmType", LCM_TYPES).and_then(|spot| lcm_type(&spot, faults));
    let release = map.required(faults, "release").and_then(|spot| spot.line(faults));
    let secrets = Secrets { release, ..secrets };
    let dedicated = map.or("dedicatedControlPlane", true, |spot| spot.boolean(faults));
    let prepare = map.or("maxWorkerPrepareCount", WORKERS_AT_ONCE_MAX, |spot| spot.number(faults, at_once.clone()));
    let deploy = map.or("maxWorkerDeployCount", WORKERS_AT_ONCE_MAX, |spot| spot.number(faults, at_once.clone()));
    let upgrade = map.or("maxWorkerUpgradeCount", UPGRADE_COUNT_DEFAULT, |spot| spot.number(faults, at_once.clone()));
    let reboot = map.or("nodesRebootRequired", false, |spot| spot.boolean(faults));
    let token_ttl_ms = map.or("tokenTTL", TOKEN_TTL_DEFAULT_MS, |spot| spot.duration_ms(faults, TOKEN_TTL_MAX_MS));
    let machines = map.or("machines", None, |spot| machines(&spot, faults).map(Some));
    let max_failures = map.or("maxFailures", MAX_FAILURES_DEFAULT, |spot| max_failures(&spot, faults));
    let controllers = map.or("workloadControllers", Vec::new(), |spot| update::controllers(&spot, faults));
    let deadlines = map.or("updateDeadlines", UpdateDeadlines::default(), |spot| update::deadlines(&spot, faults));
    let groups = map.or("updateGroups", Vec::new(), |spot| group::read_all(&spot, upgrade, faults));
    let machine_types = map.required(faults, "machineTypes").and_then(|spot| machine_types(&spot, secrets, faults));
    let hooks = map.or("updateHooks", UpdateHooks::default(), |spot| {
        hook::read_all(&spot, machine_types.as_ref(), secrets, faults)
    });
    let backups = map.or("backups", Backups::default(), |spot| {
        backup::read(&spot, machine_types.as_ref().zip(hooks.as_ref()), secrets, faults)
    });
    let kubernetes = map.or("kubernetes", None, |spot| kubernetes::read(&spot, secrets, faults).map(Some));
    if let (Some(Some(machines)), Some(types)) = (machines, &machine_types) {
        declared_types_exist(&map, machines, types, faults);
    }
    if let (Some(types), Some(spot)) = (&machine_types, map.get("machineTypes")) {
        somebody_makes_the_swarm(&spot, types, faults);
    }
    Some(ClusterSpec {
        lcm_type: lcm_type?,
        release: release?.to_owned(),
        dedicated_control_plane: dedicated?,
        max_worker_prepare_count: prepare?,
        max_worker_deploy_count: deploy?,
        max_worker_upgrade_count: upgrade?,
        nodes_reboot_required: reboot?,
        token_ttl_ms: token_ttl_ms?,
        machines: machines?,
        max_failures: max_failures?,
        workload_controllers: controllers?,
        update_deadlines: deadlines?,
        update_groups: groups?,
        update_hooks: hooks?,
        backups: backups?,
        kubernetes: kubernetes?,
        machine_types: machine_types?,
    })
}

const LCM_TYPES: &[&str] = &["mke", "swarm", "generic"];

fn lcm_type(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<LcmType> {
    match spot.text(faults)? {
        "mke" => Some(LcmType::Mke),
        "swarm" => Some(LcmType::Swarm),
        "generic" => Some(LcmType::Generic),
        other => {
            spot.unknown(faults, &format!("unknown lcmType '{}'", shown(other)), LCM_TYPES);
            None
        }
    }
}

fn machines(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Counts> {
    let map = spot.map(faults, &COUNTS)?;
    let control = map.required(faults, "control").and_then(|spot| spot.number(faults, 1..=MACHINES_MAX));
    let worker = map.required(faults, "worker").and_then(|spot| spot.number(faults, 0..=MACHINES_MAX));
    Some(Counts { control: control?, worker: worker? })
}

fn max_failures(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Counts> {
    let map = spot.map(faults, &COUNTS)?;
    let control = map.or("control", MAX_FAILURES_DEFAULT.control, |spot| spot.number(faults, 1..=MACHINES_MAX));
    let worker = map.or("worker", MAX_FAILURES_DEFAULT.worker, |spot| spot.number(faults, 1..=MACHINES_MAX));
    Some(Counts { control: control?, worker: worker? })
}

fn machine_types(
    spot: &Spot<'_>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<BTreeMap<MachineType, Vec<StateItem>>> {
    let before = faults.count();
    let mut types = BTreeMap::new();
    let entries = spot.free(faults)?;
    if !entries.iter().any(|entry| entry.key == MachineType::Control.as_str()) {
        spot.fault(
            faults,
            "no control machine type",
            "items for 'control': a cluster begins with its control machines",
        );
    }
    for Free { key, key_at, value } in entries {
        match key.parse() {
            Ok(MachineType::Unassigned) => {
                faults.add(key_at, &value.path, "unassigned machines have no items", one_of(item::TYPES));
            }
            Ok(machine_type) => {
                types.insert(machine_type, item::read_all(machine_type, &value, secrets, faults).unwrap_or_default());
            }
            Err(_) => {
                let problem = format!("unknown machine type '{}'", shown(key));
                faults.add_near(key_at, &value.path, problem, one_of(item::TYPES), (key, item::TYPES.iter().copied()));
            }
        }
    }
    (faults.count() == before).then_some(types)
}

/// Workers can join only a swarm that a control machine creates.
fn somebody_makes_the_swarm(spot: &Spot<'_>, types: &BTreeMap<MachineType, Vec<StateItem>>, faults: &mut Faults<'_>) {
    let joins = |of| types.get(&of).is_some_and(|items| items.iter().any(|item| item.runner == RunnerKind::SwarmJoin));
    if joins(MachineType::Worker) && !joins(MachineType::Control) {
        spot.child("worker").fault(faults, "a swarm-join that nobody makes a swarm for", "one in 'control' as well");
    }
}

/// Machines that deployment waits for must have items.
fn declared_types_exist(
    map: &Map<'_>,
    machines: Counts,
    types: &BTreeMap<MachineType, Vec<StateItem>>,
    faults: &mut Faults<'_>,
) {
    if machines.worker > 0
        && !types.contains_key(&MachineType::Worker)
        && let Some(spot) = map.get("machines")
    {
        spot.child("worker").fault(faults, "workers without items", "'worker' in machineTypes, or 0");
    }
}
