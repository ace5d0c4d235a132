//! `musterctl plan`: the order of machines, and why each one waits.

use muster_proto::{
    model::{Blocked, MachineType, Phase, Reason, WORKERS_AT_ONCE_MAX},
    resource::{Plan, PlannedMachine, Wave},
};

use super::{
    blocked,
    safety::{self, worker_slots_max},
    snapshot::{ClusterSnapshot, MachineView, Progress},
};
use crate::facts::UpdateKind;

/// All remaining work in a cluster, in execution order.
#[must_use]
pub fn plan(snapshot: &ClusterSnapshot<'_>) -> Plan {
    let mut waves = Vec::new();
    for (phase, machine_type) in [
        (Phase::Prepare, MachineType::Control),
        (Phase::Prepare, MachineType::Worker),
        (Phase::Deploy, MachineType::Control),
        (Phase::Reconfigure, MachineType::Control),
        (Phase::Deploy, MachineType::Worker),
        (Phase::Reconfigure, MachineType::Worker),
    ] {
        let machines: Vec<PlannedMachine> =
            snapshot.of_type(machine_type).filter_map(|view| planned(snapshot, view, phase)).collect();
        if machines.is_empty() {
            continue;
        }
        let number = u32::try_from(waves.len()).unwrap_or(u32::MAX).saturating_add(1);
        waves.push(Wave { number, phase, machine_type, at_once: at_once(snapshot, phase, machine_type), machines });
    }
    Plan {
        cluster: snapshot.cluster.name.to_string(),
        blocked: blocked::of_cluster(snapshot),
        waves,
        rollout: None,
        update: None,
    }
}

fn at_once(snapshot: &ClusterSnapshot<'_>, phase: Phase, machine_type: MachineType) -> u32 {
    match (machine_type, phase) {
        (MachineType::Control, Phase::Prepare) => {
            u32::try_from(snapshot.of_type(MachineType::Control).count()).unwrap_or(u32::MAX)
        }
        (MachineType::Worker, Phase::Prepare) => snapshot.spec.max_worker_prepare_count,
        (MachineType::Worker, Phase::Deploy) => u32::try_from(worker_slots_max(snapshot)).unwrap_or(u32::MAX),
        // As in an update.
        (MachineType::Worker, Phase::Reconfigure) => snapshot.spec.max_worker_upgrade_count.min(WORKERS_AT_ONCE_MAX),
        (MachineType::Control | MachineType::Unassigned, _) => 1,
    }
}

fn planned(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, phase: Phase) -> Option<PlannedMachine> {
    let items = view.items.ok()?;
    let through = match phase {
        Phase::Reconfigure => !reconfigure_ahead(snapshot, view),
        Phase::Prepare | Phase::Deploy => view.ready_once() || view.progress(phase) == Progress::Done,
    };
    let items: Vec<String> =
        items.iter().filter(|item| item.phase == phase).map(|item| item.name.to_string()).collect();
    if through || items.is_empty() || view.row.revoked {
        return None;
    }
    Some(PlannedMachine {
        name: view.row.name.to_string(),
        state: view.state().as_str().to_owned(),
        items,
        blocked: blocked::of_machine(snapshot, view).or_else(|| not_so_far(view, phase)),
    })
}

/// Why a machine that needs no help does not begin this phase now: it is at work on an earlier phase, or it is Ready
/// before the last control machine is.
fn not_so_far(view: &MachineView<'_>, phase: Phase) -> Option<Blocked> {
    let at_work_on = view.row.max_phase.filter(|max_phase| *max_phase < phase && view.update().is_none())?;
    if view.ready_once() {
        let message = "not every control machine is Ready yet: the set of them is not complete";
        return Some(safety::blocked(Reason::WaitingForControl, message, "the last control machine is Ready"));
    }
    Some(safety::blocked(
        Reason::WaitingForTurn,
        format!("its {at_work_on} items are not done yet"),
        format!("they are, and it has its turn for {phase}"),
    ))
}

/// Will the complete control set differ from the one that a machine saw at its deployment? True for every control
/// machine except the last; workers start only when the set is complete.
fn reconfigure_ahead(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    // The set that these see was frozen with the rollout.
    if snapshot.update().is_some_and(|update| update.kind == UpdateKind::Reconfigure) && view.update().is_some() {
        return true;
    }
    if !snapshot.cluster.control_set.is_empty() && view.ready_once() {
        return super::safety::needs_reconfigure(snapshot, view);
    }
    let last = snapshot.of_type(MachineType::Control).filter(|other| !other.row.revoked).last();
    view.row.spec.machine_type == MachineType::Control && last.is_some_and(|last| last.row.name != view.row.name)
}
