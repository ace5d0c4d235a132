//! The cluster that a model deploys.

use std::collections::BTreeMap;

use muster_proto::model::{
    ClusterSpec, Counts, ItemName, MachineType, OnInterrupt, Phase, RunnerKind, StateItem, UpdateDeadlines,
};

use super::Scenario;
use crate::{
    rng::Rng,
    sim::{Plan, manifest},
};

/// The application controller that guards every machine of an update.
pub(super) const CONTROLLER: &str = "controller";

/// The cluster: one item a phase, one worker at a time. Fields that a deployment does not use keep arbitrary values.
pub(super) fn spec(scenario: &Scenario, plan: Plan) -> ClusterSpec {
    let items = |of: MachineType| {
        let reconfigure = scenario.reconfigure && of == MachineType::Control;
        let prepare = scenario.prepare && of == MachineType::Worker;
        let phases = [(Phase::Prepare, prepare), (Phase::Deploy, true), (Phase::Reconfigure, reconfigure)];
        phases.into_iter().filter(|(_, wanted)| *wanted).map(|(phase, _)| item(phase)).collect()
    };
    ClusterSpec {
        max_worker_prepare_count: 1,
        max_worker_deploy_count: scenario.workers_at_once,
        max_worker_upgrade_count: scenario.workers_at_once,
        // Longer than any silence: no deadline passes here, because that would need an operator.
        update_deadlines: UpdateDeadlines::default(),
        max_failures: Counts { control: 1, worker: 1 },
        machine_types: BTreeMap::from([
            (MachineType::Control, items(MachineType::Control)),
            (MachineType::Worker, items(MachineType::Worker)),
        ]),
        ..manifest::spec(&mut Rng::new(0), plan)
    }
}

fn item(phase: Phase) -> StateItem {
    let Ok(name) = ItemName::new(phase.as_str()) else { unreachable!("a phase's name is a label") };
    StateItem {
        name,
        runner: RunnerKind::Bash,
        version: "1".to_owned(),
        params: BTreeMap::from([
            ("script".to_owned(), "true".to_owned()),
            ("managers".to_owned(), "${cluster.controlPlaneNodes}".to_owned()),
        ]),
        phase,
        timeout_ms: 60_000,
        retries: 3,
        on_interrupt: OnInterrupt::Rerun,
        disruptive: None,
        ignore_changes: Default::default(),
    }
}

/// The cluster's next release: every machine must be disturbed for it.
pub(super) fn next_release(spec: &ClusterSpec) -> ClusterSpec {
    let mut next = spec.clone();
    next.release.push_str(".1");
    next.workload_controllers = vec![CONTROLLER.to_owned()];
    for item in next.machine_types.values_mut().flatten() {
        item.version.push_str(".1");
    }
    next
}
