//! Decisions: record all steps that follow, send lists, note waits.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{AssignedItem, Assignment, ClusterName, ItemName, MachineName, Now, Phase, SecretName},
    resource::rollout_number,
};

use super::{Effect, Rules, quota::note_given};
use crate::{
    facts::{Items, MachineRow, RolloutRow, Slot, Stage, StageRow, Transaction},
    plan::{
        Limits, assign, blocked,
        deploy::{self, Step as Next},
        items, recovery, removal, snapshot, update,
    },
};

/// Maximum rounds of decisions in one step. More means that a decision undoes itself.
const ROUNDS_MAX: usize = 64;

/// Maximum ended rollouts kept for each cluster. The oldest are dropped, unless they were the last one of a machine.
const ROLLOUTS_KEPT_MAX: usize = 100;

/// Records decisions until nothing new follows. False: they did not converge, a bug.
#[must_use]
pub(super) fn decide(tx: &mut Transaction<'_>, limits: &Limits, now: Now, effects: &mut Vec<Effect>) -> bool {
    // Every machine has reported or was given up by an operator, and the reports are consistent.
    if tx.meta.recovering && tx.live.awaited.is_empty() && recovery::is_settled(tx) {
        tx.meta_mut().recovering = false;
    }
    for _ in 0..ROUNDS_MAX {
        items::refresh(tx);
        super::update::kubernetes::clear_given_back(tx, limits, now);
        let snapshots = snapshot::all(tx, limits, now);
        let removals: Vec<_> = snapshots.values().flat_map(removal::next_steps).collect();
        if !removals.is_empty() {
            removals.into_iter().for_each(|step| super::update::removal::record(tx, effects, step, now));
            continue;
        }
        let (updating, others): (Vec<_>, Vec<_>) = snapshots.values().partition(|snapshot| snapshot.update().is_some());
        let updates: Vec<_> = updating.into_iter().flat_map(update::next_steps).collect();
        let deployments: Vec<_> = others.into_iter().flat_map(deploy::next_steps).collect();
        if updates.is_empty() && deployments.is_empty() {
            return true;
        }
        for step in deployments {
            record(tx, step, limits, now);
        }
        for step in updates {
            super::update::record(tx, step, limits, now);
        }
    }
    false
}

fn record(tx: &mut Transaction<'_>, step: Next, limits: &Limits, now: Now) {
    match step {
        Next::OpenRollout { cluster } => open_rollout(tx, &cluster, now),
        Next::OpenReconfigure { cluster, machines } => {
            super::update::reconfigure(tx, &cluster, &machines, limits, now);
        }
        Next::Join { machine, rollout } => {
            if let Some(row) = tx.machine_mut(&machine) {
                row.rollout = Some(rollout);
                row.stages.clear();
            }
        }
        Next::Ready { machine } => ready(tx, &machine, now),
        Next::FreeSlot { machine } => {
            if let Some(row) = tx.machine_mut(&machine) {
                let reconfigured = row.slot.take().is_some_and(|slot| slot.phase == Phase::Reconfigure);
                let stage = if reconfigured { Stage::ReconfigureDone } else { Stage::DeployDone };
                end_stage(row, stage, false, now);
            }
        }
        Next::ControlSet { cluster, names, members } => {
            if let Some(row) = tx.cluster_mut(&cluster) {
                row.has_controls(names, members);
            }
        }
        Next::Prepared { machine } => {
            if let Some(row) = tx.machine_mut(&machine) {
                end_stage(row, Stage::PrepareDone, true, now);
                begin_stage(row, Stage::PreviousDeployed, now);
            }
        }
        Next::Grant { machine, phase, set } => {
            let Some(row) = tx.machine_mut(&machine) else { return };
            row.max_phase = row.max_phase.max(Some(phase));
            row.control_sets.insert(phase, set);
            match phase {
                Phase::Prepare => begin_stage(row, Stage::PrepareDone, now),
                Phase::Deploy => {
                    row.slot = Some(Slot { phase, granted_at_ms: now.wall_ms });
                    end_stage(row, Stage::PrepareDone, true, now);
                    end_stage(row, Stage::PreviousDeployed, true, now);
                    begin_stage(row, Stage::DeployDone, now);
                }
                Phase::Reconfigure => {
                    row.slot = Some(Slot { phase, granted_at_ms: now.wall_ms });
                    begin_stage(row, Stage::ReconfigureDone, now);
                }
            }
        }
        Next::CloseRollout { rollout } => end_rollout(tx, &rollout, now),
    }
}

fn open_rollout(tx: &mut Transaction<'_>, cluster: &ClusterName, now: Now) {
    let Some(row) = tx.cluster_mut(cluster) else { return };
    row.rollout_seq += 1;
    let by_hand = row.deploy_requested && row.rollout_seq == 1;
    let rollout = RolloutRow {
        name: format!("{cluster}-deploy-{}", row.rollout_seq),
        cluster: cluster.clone(),
        started_by: if by_hand { "operator" } else { "muster" }.to_owned(),
        started_at_ms: now.wall_ms,
        finished_at_ms: None,
        update: None,
        ended: None,
    };
    tx.put_rollout(rollout);
}

/// Ends a rollout. The number of its machines is recorded, because later rollouts take them over.
pub(super) fn end_rollout(tx: &mut Transaction<'_>, rollout: &str, now: Now) {
    let Some(row) = tx.rollouts.get(rollout).cloned() else { return };
    let members = || {
        let all = tx.machines_of(&row.cluster).filter(|machine| !machine.revoked);
        all.filter(|machine| machine.rollout.as_deref() == Some(rollout))
    };
    let is_complete = |machine: &MachineRow| row.update.as_ref().is_none_or(|update| update.is_complete(machine));
    let through = members().filter(|machine| is_complete(machine)).count();
    let counted = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let ended = Some((counted(members().count()), counted(through)));
    tx.put_rollout(RolloutRow { finished_at_ms: Some(now.wall_ms), ended, ..(*row).clone() });
    let ended = tx.rollouts.values().filter(|known| known.cluster == row.cluster && known.finished_at_ms.is_some());
    let mut ended: Vec<_> =
        ended.map(|known| (known.started_at_ms, rollout_number(&known.name), known.name.clone())).collect();
    ended.sort_unstable();
    ended.truncate(ended.len().saturating_sub(ROLLOUTS_KEPT_MAX));
    let last_turns: BTreeSet<String> = tx.machines.values().filter_map(|row| row.rollout.clone()).collect();
    ended.iter().filter(|(.., name)| !last_turns.contains(name)).for_each(|(.., name)| tx.drop_rollout(name));
}

fn ready(tx: &mut Transaction<'_>, machine: &MachineName, now: Now) {
    let Some((version, release)) = tx.machines.get(machine).and_then(|row| {
        let version = row.ready_at.as_ref().map(|(_, version)| *version);
        let version = version.or_else(|| tx.clusters.get(&row.spec.cluster_name).map(|c| c.spec_version))?;
        Some((version, tx.specs.get(&(row.spec.cluster_name.clone(), version))?.release.clone()))
    }) else {
        return;
    };
    let (ready_secrets, items) = (secrets_in_use(tx, machine), item_names(tx, machine));
    let Some(row) = tx.machine_mut(machine) else { return };
    let is_new = row.ready_at.replace((release, version)).is_none();
    items.into_iter().for_each(|items| row.drop_others(|item| items.contains(item)));
    row.ready_overwrites = Some(row.overwrites().clone());
    row.ready_secrets = ready_secrets;
    match row.slot.take().map(|slot| slot.phase) {
        Some(Phase::Reconfigure) => end_stage(row, Stage::ReconfigureDone, true, now),
        Some(Phase::Prepare | Phase::Deploy) | None => end_stage(row, Stage::DeployDone, true, now),
    }
    let cluster = row.spec.cluster_name.clone();
    if is_new {
        tx.may_lack_cordons(&cluster);
    }
    tx.drop_unused_specs(&cluster);
}

/// The secrets that a machine's items refer to, in the versions that its hashes contain. Items that its update added
/// are excluded: they end with it, and the next update uses the newest versions.
pub(super) fn secrets_in_use(tx: &Transaction<'_>, machine: &MachineName) -> BTreeMap<SecretName, u64> {
    let items = tx.live.machines.get(machine).and_then(|live| live.items.as_deref());
    let mine = tx.machines.get(machine).and_then(|row| row.update.as_ref());
    let stays = |item: &&AssignedItem| mine.is_none_or(|mine| !mine.adds(&item.name));
    let of = |items: &Items| -> BTreeMap<SecretName, u64> {
        let names = items.resolved.iter().flatten().filter(stays).flat_map(AssignedItem::secrets);
        names.filter_map(|name| items.secrets.get(&name).map(|version| (name.clone(), *version))).collect()
    };
    items.map(of).unwrap_or_default()
}

/// The names of a machine's items, including those beyond the current end of its list. None: they cannot be resolved.
pub(super) fn item_names(tx: &Transaction<'_>, machine: &MachineName) -> Option<BTreeSet<ItemName>> {
    let items = tx.live.machines.get(machine)?.items.as_ref()?;
    Some(items.resolved.as_ref().ok()?.iter().map(|item| item.name.clone()).collect())
}

pub(super) fn begin_stage(row: &mut MachineRow, stage: Stage, now: Now) {
    let fresh = StageRow { started_at_ms: now.wall_ms, finished_at_ms: None, succeeded: false };
    let kept = row.stages.get(&stage).is_some_and(|stage| stage.succeeded);
    if !kept {
        row.stages.insert(stage, fresh);
    }
}

pub(super) fn end_stage(row: &mut MachineRow, stage: Stage, succeeded: bool, now: Now) {
    let fresh = StageRow { started_at_ms: now.wall_ms, finished_at_ms: None, succeeded: false };
    let known = row.stages.entry(stage).or_insert(fresh);
    if !known.succeeded {
        known.finished_at_ms = Some(now.wall_ms);
        known.succeeded = succeeded;
    }
    if let Some(update) = row.update.as_mut().filter(|_| succeeded) {
        update.stuck.take_if(|stuck| stuck.stage == stage);
    }
}

/// Ends unfinished stages: the machine stops in its rollout.
pub(super) fn end_stages(row: &mut MachineRow, now: Now) {
    for stage in row.stages.values_mut().filter(|stage| stage.finished_at_ms.is_none()) {
        stage.finished_at_ms = Some(now.wall_ms);
    }
}

/// Gives the next generation to every machine with a changed list, and sends it.
pub(super) fn assign_all(tx: &mut Transaction<'_>, rules: &Rules<'_>, now: Now, effects: &mut Vec<Effect>) {
    let limits = rules.limits;
    let epoch = tx.meta.epoch;
    let mut changed = Vec::new();
    // Cached per cluster, because the search reads every machine.
    let mut first_controls: BTreeMap<&ClusterName, Option<&str>> = BTreeMap::new();
    for machine in tx.machines.values() {
        let view = snapshot::MachineView::of(tx, machine, limits, now);
        let cluster = &machine.spec.cluster_name;
        let first = || *first_controls.entry(cluster).or_insert_with(|| items::first_control(tx, cluster));
        let Some(content) = assign::wanted_beside(tx, &view, first) else { continue };
        let digest = content.digest();
        let is_same = machine.assigned.digest == Some(digest);
        if is_same && !is_unsent(&view) {
            continue;
        }
        let known = machine.assigned.generation;
        let generation = if is_same { known } else { known.next() };
        let send = machine.id.filter(|_| view.connected());
        let assignment = content.into_assignment(&view, epoch, generation, rules.proof_key);
        changed.push((machine.name.clone(), digest, send, assignment));
    }
    for (name, digest, send, assignment) in changed {
        if send.is_some() {
            tx.live_mut(&name).told = assignment.generation;
        }
        if tx.machines.get(&name).is_some_and(|row| row.assigned.generation == assignment.generation) {
            effects.extend(send.map(|id| Effect::Assign { id, assignment }));
            continue;
        }
        // A machine that was Ready may yet return to its former list.
        let items = tx.machines.get(&name).filter(|row| row.ready_at.is_none());
        let items = items.and_then(|_| item_names(tx, &name));
        if let Some(row) = tx.machine_mut(&name) {
            items.into_iter().for_each(|items| row.drop_others(|item| items.contains(item)));
            row.assigned.generation = assignment.generation;
            row.assigned.digest = Some(digest);
            row.assigned.refused = None;
            note_given(row, &assignment);
            let shows = |number: u64| {
                assignment.items.iter().any(|item| item.permit.is_some_and(|permit| permit.number == number))
            };
            if let Some(permit) = row.update.as_mut().and_then(|update| update.permit.as_mut())
                && permit.listed.is_none()
                && shows(permit.number)
            {
                permit.listed = Some(assignment.generation);
            }
        }
        effects.extend(send.map(|id| Effect::Assign { id, assignment }));
    }
}

/// Is the newest list still unsent on this stream? A machine that keeps its list receives no list when it connects, and
/// its list may have been lost with an earlier stream.
fn is_unsent(view: &snapshot::MachineView<'_>) -> bool {
    let assigned = &view.row.assigned;
    let told = view.live.map(|live| live.told).unwrap_or_default();
    view.connected() && assigned.accepted < assigned.generation && told < assigned.generation
}

/// The machine's current assignment, to be sent again. None: it lacks one, or keeps its list.
pub(super) fn current_assignment(
    tx: &Transaction<'_>,
    machine: &MachineName,
    rules: &Rules<'_>,
    now: Now,
) -> Option<Assignment> {
    let row = tx.machines.get(machine)?;
    let view = snapshot::MachineView::of(tx, row, rules.limits, now);
    let content = assign::wanted(tx, &view)?;
    let same = row.assigned.digest == Some(content.digest());
    same.then(|| content.into_assignment(&view, tx.meta.epoch, row.assigned.generation, rules.proof_key))
}

/// Records what each cluster and machine waits for, and since when.
pub(super) fn note_waits(tx: &mut Transaction<'_>, limits: &Limits, now: Now) {
    let mut clusters = Vec::new();
    let mut machines = Vec::new();
    for (name, snapshot) in snapshot::all(tx, limits, now) {
        let reason = blocked::of_cluster(&snapshot).map(|blocked| blocked.reason);
        if reason != snapshot.cluster.blocked_since.map(|(reason, _)| reason) {
            clusters.push((name.clone(), reason));
        }
        for view in &snapshot.machines {
            let reason = blocked::of_machine(&snapshot, view).map(|blocked| blocked.reason);
            if reason != view.row.blocked_since.map(|(reason, _)| reason) {
                machines.push((view.row.name.clone(), reason));
            }
        }
    }
    for (name, reason) in clusters {
        if let Some(row) = tx.cluster_mut(&name) {
            row.blocked_since = reason.map(|reason| (reason, now.wall_ms));
        }
    }
    for (name, reason) in machines {
        if let Some(row) = tx.machine_mut(&name) {
            row.blocked_since = reason.map(|reason| (reason, now.wall_ms));
        }
    }
}
