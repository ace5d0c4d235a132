//! Recording of the steps of an update.

use std::{collections::BTreeSet, sync::Arc};

use muster_proto::{
    model::{DeadlineOutcome, ItemName, ItemState, MachineName, Now, Phase, REBOOT_ITEM},
    seeded_bug::seeded_bug,
};

use super::{
    at_rest_phase,
    deadlines::{defer, locks_were_inactive, looks_again, stuck},
    drain, handshake as handshake_objects, hooks, renewal, wants,
};
use crate::{
    core::{
        addons::forget_unnamed,
        decide::{begin_stage, end_rollout, end_stage, end_stages, item_names, secrets_in_use},
    },
    facts::{
        AddedReboot, AuditObject, ClusterStage, ControlSet, Deferral, DesiredState, LockRow, MUSTER, MachineRow,
        MachineUpdate, PermitRow, RebootWhy, RequestRow, Slot, Stage, StageRow, Transaction, UpdateRow,
        handshake::Subject,
    },
    plan::{
        Limits, addons, handshake, locks, reboot,
        snapshot::ClusterSnapshot,
        update::{ClusterStep, MachineStep, Step, transitions, turn::TurnState},
    },
};

pub(in crate::core) fn record(tx: &mut Transaction<'_>, step: Step, limits: &Limits, now: Now) {
    match step {
        Step::Cluster { rollout, step } => of_cluster(tx, &rollout, step, limits, now),
        Step::Machine { machine, step } => {
            let state = |tx: &Transaction<'_>| TurnState::of(tx, &machine, limits, now);
            let (name, before) = (step.name(), cfg!(debug_assertions).then(|| state(tx)));
            of_machine(tx, &machine, step, now);
            if let Some(before) = before {
                let after = state(tx);
                debug_assert!(transitions::allows(before, name, after), "{machine}: {before:?} {name} {after:?}");
            }
        }
    }
}

/// Aborts at the end of a stage's time, as its policy demands.
fn abort(tx: &mut Transaction<'_>, rollout: &str, stage: ClusterStage, limits: &Limits, now: Now) {
    let kind = tx.update_mut(rollout).map(|update| update.kind).unwrap_or_default();
    let line = format!(
        "aborted, for \"{}\" took longer than updateDeadlines allows: nothing new starts; machines not disturbed yet \
         are given back as they were",
        stage.name(kind)
    );
    wants(tx, MUSTER, rollout, (DesiredState::Abort, "abort", &line), limits, now);
}

/// Pauses at a deadline that leaves the decision to an operator. `what`: what took too long.
pub(super) fn pause(tx: &mut Transaction<'_>, rollout: &str, what: &str, now: Now) {
    let Some(update) = tx.update_mut(rollout) else { return };
    update.desired = DesiredState::Pause { since_ms: now.wall_ms };
    let line = format!(
        "rollout {rollout}: paused, for {what} took longer than updateDeadlines allows: nothing new starts; machines \
         that are being disturbed come to their end"
    );
    tx.audit(MUSTER, "pause", AuditObject::Rollout(rollout), &line, now.wall_ms);
}

/// A stage that took too long, in words: of the add-ons also what it waits for.
fn late_stage(tx: &Transaction<'_>, rollout: &str, stage: ClusterStage, limits: &Limits, now: Now) -> Option<String> {
    let row = tx.rollouts.get(rollout)?;
    let update = row.update.as_ref()?;
    let named = format!("\"{}\"", stage.name(update.kind));
    let waits = ClusterSnapshot::of(tx, &row.cluster, limits, now)
        .filter(|_| stage == ClusterStage::AddonsVerified)
        .and_then(|snapshot| addons::of_update(&snapshot, update));
    Some(waits.map_or_else(|| named.clone(), |waits| format!("{named} ({})", waits.message)))
}

pub(super) fn of_cluster(tx: &mut Transaction<'_>, rollout: &str, step: ClusterStep, limits: &Limits, now: Now) {
    let revision = tx.meta.revision + 1;
    let Some(update) = tx.update_mut(rollout) else { return };
    match step {
        ClusterStep::Request => {
            update.request = Some(RequestRow { since_ms: now.wall_ms, revision });
            set_stage(update, ClusterStage::Requested, true, now);
            set_stage(update, ClusterStage::LocksInactive, false, now);
            tx.next_revision();
        }
        ClusterStep::Begin(stage) => {
            set_stage(update, stage, false, now);
            hooks::begin(tx, rollout, stage);
            renewal::begin(tx, rollout, stage);
        }
        ClusterStep::End(stage) => {
            set_stage(update, stage, true, now);
            hooks::end(tx, rollout, stage, now);
        }
        ClusterStep::Pause(stage) => {
            let what = late_stage(tx, rollout, stage, limits, now).unwrap_or_default();
            pause(tx, rollout, &what, now);
        }
        ClusterStep::PauseUnsteady => renewal::pause(tx, rollout, now),
        ClusterStep::Abort(stage) => abort(tx, rollout, stage, limits, now),
        ClusterStep::TryAgain => try_again(tx, rollout, now),
        ClusterStep::Close => close(tx, rollout, now),
    }
}

fn set_stage(update: &mut UpdateRow, stage: ClusterStage, succeeded: bool, now: Now) {
    let fresh = StageRow { started_at_ms: now.wall_ms, finished_at_ms: None, succeeded: false };
    let row = update.stages.entry(stage).or_insert(fresh);
    if succeeded && !row.succeeded {
        row.finished_at_ms = Some(now.wall_ms);
        row.succeeded = true;
    }
}

/// Asks again for a deferred machine, and restarts the time of what was late.
pub(super) fn take_back(row: &mut MachineRow, now: Now) {
    if let Some(mine) = &mut row.update {
        mine.deferral = None;
        mine.stuck = None;
    }
    if row.stages.get(&Stage::PrepareDone).is_some_and(|stage| !stage.succeeded) {
        begin_stage(row, Stage::PrepareDone, now);
    }
}

fn try_again(tx: &mut Transaction<'_>, rollout: &str, now: Now) {
    let aside: Vec<MachineName> = tx
        .machines
        .values()
        .filter(|row| row.rollout.as_deref() == Some(rollout))
        .filter(|row| {
            row.update.as_ref().and_then(|mine| mine.deferral.as_ref()).is_some_and(|aside| aside.is_tried_again())
        })
        .map(|row| row.name.clone())
        .collect();
    for name in aside {
        looks_again(tx, &name);
        if let Some(row) = tx.machine_mut(&name) {
            take_back(row, now);
        }
    }
    if let Some(update) = tx.update_mut(rollout) {
        update.finished_in_round = 0;
    }
}

fn close(tx: &mut Transaction<'_>, rollout: &str, now: Now) {
    if let Some(update) = tx.update_mut(rollout) {
        if update.request.take().is_some() {
            set_stage(update, ClusterStage::RequestRemoved, true, now);
        }
        // An abort cut these stages off.
        for stage in update.stages.values_mut().filter(|stage| stage.finished_at_ms.is_none()) {
            stage.finished_at_ms = Some(now.wall_ms);
        }
    }
    let Some(row) = tx.rollouts.get(rollout) else { return };
    let cluster = row.cluster.clone();
    end_rollout(tx, rollout, now);
    // The newest spec holds again.
    handshake_objects::forget_unwanted(tx, &cluster);
    forget_unnamed(tx, &cluster);
    tx.drop_unused_specs(&cluster);
}

fn of_machine(tx: &mut Transaction<'_>, machine: &MachineName, step: MachineStep, now: Now) {
    match step {
        MachineStep::Prepare(set) => {
            let Some(row) = tx.machine_mut(machine) else { return };
            row.max_phase = Some(Phase::Prepare);
            row.control_sets.entry(Phase::Prepare).or_insert(set);
            begin_stage(row, Stage::PrepareDone, now);
        }
        MachineStep::Prepared => {
            let Some(row) = tx.machine_mut(machine) else { return };
            end_stage(row, Stage::PrepareDone, true, now);
            begin_stage(row, Stage::PreviousDeployed, now);
            // It was late, and has arrived now.
            if let Some(mine) = &mut row.update {
                mine.deferral.take_if(|aside| !aside.failed());
            }
        }
        MachineStep::Stuck { stage, outcome, message } => stuck(tx, machine, (stage, outcome, message), now),
        MachineStep::TakeSlot { disruptive } => take_slot(tx, machine, disruptive, now),
        MachineStep::Enter(phase, set) => {
            let Some(row) = tx.machine_mut(machine) else { return };
            enter(row, phase, set, now);
        }
        MachineStep::Drain(step) => drain::record(tx, machine, step, now),
        MachineStep::Renew(step) => renewal::record(tx, machine, step, now),
        MachineStep::Permit { item, attempt, phase } => permit(tx, machine, (item, attempt, phase), now),
        MachineStep::Defer { stage, message, cause } => {
            defer(tx, machine, (stage, Deferral { message, cause }), now);
        }
        MachineStep::OutOfService => out_of_service(tx, machine, now),
        MachineStep::PauseAll { stage, message } => {
            locks_were_inactive(tx, machine, stage, now);
            stuck(tx, machine, (stage, DeadlineOutcome::Pause, message), now);
        }
        MachineStep::GiveBack { upgraded } => {
            let Some(row) = tx.machine_mut(machine) else { return };
            if upgraded {
                upgraded_stages(row, now);
            }
            if let Some(mine) = &mut row.update {
                mine.request = None;
                mine.returned_at_ms = Some(now.wall_ms);
                let of_all = mine.renewal.as_ref().is_some_and(|row| row.evicted.is_none()) && mine.deferral.is_none();
                if row.stages.contains_key(&Stage::PodsRenewed) {
                    end_stage(row, Stage::PodsRenewed, of_all, now);
                }
            }
            begin_stage(row, Stage::RequestRemoved, now);
        }
        MachineStep::Finish => finish(tx, machine, now),
        MachineStep::FreeSlot => {
            let back = locks_are_back(tx, machine);
            let Some(row) = tx.machine_mut(machine) else { return };
            row.slot = None;
            end_stage(row, Stage::RequestRemoved, back, now);
            if let Some(mine) = &mut row.update {
                mine.returned_at_ms = None;
                mine.forced_pods.clear();
            }
        }
        MachineStep::Leave => leave(tx, machine, now),
        MachineStep::LeaveOut => leave_out(tx, machine, now),
        MachineStep::IsBack => {
            if let Some(mine) = tx.machine_mut(machine).and_then(|row| row.update.as_mut()) {
                (mine.deferral, mine.stuck) = (None, None);
            }
        }
    }
}

/// Removes the machine from the update, at its former version.
fn leave(tx: &mut Transaction<'_>, machine: &MachineName, now: Now) {
    hooks::keep_ends(tx, machine);
    let listed = item_names(tx, machine).unwrap_or_default();
    let Some(row) = tx.machine_mut(machine) else { return };
    row.slot = None;
    let mine = row.update.take();
    row.max_phase = at_rest_phase(row);
    end_stages(row, now);
    has_its_own_items(tx, machine, mine.as_ref(), listed);
}

/// Restores the items of its former version. Other results of its update are discarded. This includes items of the
/// update's list that its agent may have run without a recorded report.
pub(super) fn has_its_own_items(
    tx: &mut Transaction<'_>,
    machine: &MachineName,
    mine: Option<&MachineUpdate>,
    listed: BTreeSet<ItemName>,
) {
    let Some(row) = tx.machines.get(machine) else { return };
    let (spec, of) = (tx.spec_of(row).cloned(), row.spec.machine_type);
    let (Some(spec), Some(row)) = (spec, tx.machine_mut(machine)) else { return };
    let added = |item: &ItemName| mine.is_some_and(|mine| mine.adds(item));
    let is_own = |item: &ItemName| added(item) || spec.items(of).iter().any(|own| own.name == *item);
    row.drop_others(is_own);
    let newest = row.assigned.generation;
    // An item that failed, or whose outcome is unknown, stays as it is, for an operator.
    let may_succeed = |item: &ItemName| {
        let known = row.statuses.get(item).map(|known| &known.state);
        matches!(known, None | Some(ItemState::Succeeded | ItemState::Running))
    };
    let unheard = listed.into_iter().filter(|item| !is_own(item) && may_succeed(item));
    let unheard: Vec<ItemName> = unheard.filter(|_| !seeded_bug("keep-dropped-done")).collect();
    row.redo.extend(unheard.into_iter().map(|item| (item, newest)));
}

/// Leaves a lost machine out of its rollout. Another rollout begins when it is back, because it still needs the new set
/// of control machines.
fn leave_out(tx: &mut Transaction<'_>, machine: &MachineName, now: Now) {
    let Some(row) = tx.machine_mut(machine) else { return };
    row.update = None;
    row.max_phase = at_rest_phase(row);
    end_stages(row, now);
    if let Some(set) = row.control_sets.get_mut(&Phase::Reconfigure) {
        set.names.clear();
    }
    let rollout = row.rollout.clone().unwrap_or_default();
    let line = format!("machine {machine}: lost, and left out of {rollout}; it is reconfigured when it is back");
    tx.audit(MUSTER, "reconfigure", AuditObject::Machine(machine), &line, now.wall_ms);
}

fn out_of_service(tx: &mut Transaction<'_>, machine: &MachineName, now: Now) {
    let Some(row) = tx.machine_mut(machine) else { return };
    end_stage(row, Stage::LocksInactive, true, now);
    drains_are_done(row, now);
    if let Some(maintenance) = row.update.as_mut().and_then(|mine| mine.maintenance.as_mut()) {
        maintenance.since_ms = Some(now.wall_ms);
    }
}

/// The machine may be disturbed: its list extends to this phase.
fn enter(row: &mut MachineRow, phase: Phase, set: ControlSet, now: Now) {
    row.max_phase = Some(phase);
    if phase == Phase::Reconfigure {
        row.control_sets.entry(phase).or_insert(set);
    }
    if row.update.as_ref().is_some_and(|mine| mine.disruptive) {
        end_stage(row, Stage::LocksInactive, true, now);
    }
    drains_are_done(row, now);
    begin_stage(row, Stage::DeployDone, now);
}

fn permit(tx: &mut Transaction<'_>, machine: &MachineName, (item, attempt, phase): (ItemName, u32, Phase), now: Now) {
    let Some(row) = tx.machine_mut(machine) else { return };
    row.permit_seq += 1;
    let number = row.permit_seq;
    if item.as_str() == REBOOT_ITEM {
        goes_on_to(row, Stage::RebootDone, now);
    } else if phase == Phase::Reconfigure {
        goes_on_to(row, Stage::ReconfigureDone, now);
    }
    if let Some(mine) = &mut row.update {
        mine.permit = Some(PermitRow { number, item, attempt, expired: false, listed: None });
    }
}

/// Stages of items follow one another. A permit after an expired one must not restart a stage: its deadline would never
/// pass.
fn goes_on_to(row: &mut MachineRow, stage: Stage, now: Now) {
    let is_under_way = |row: &MachineRow, at| row.stages.get(&at).is_some_and(|known| known.finished_at_ms.is_none());
    for before in [Stage::DeployDone, Stage::ReconfigureDone] {
        if before < stage && is_under_way(row, before) {
            end_stage(row, before, true, now);
        }
    }
    if !is_under_way(row, stage) {
        begin_stage(row, stage, now);
    }
}

/// Its nodes are drained, or there are enough other managers.
fn drains_are_done(row: &mut MachineRow, now: Now) {
    for stage in [Stage::KubernetesDrained, Stage::SwarmDrained] {
        if row.stages.contains_key(&stage) {
            end_stage(row, stage, true, now);
        }
    }
}

fn take_slot(tx: &mut Transaction<'_>, machine: &MachineName, disruptive: bool, now: Now) {
    let revision = tx.next_revision();
    let rollout = tx.machines.get(machine).and_then(|row| row.rollout.as_ref());
    let ends = rollout.and_then(|name| tx.rollouts.get(name)?.update.as_ref()).map_or(0, |update| update.ends);
    let Some(row) = tx.machine_mut(machine) else { return };
    row.slot = Some(Slot { phase: Phase::Deploy, granted_at_ms: now.wall_ms });
    end_stage(row, Stage::PrepareDone, true, now);
    end_stage(row, Stage::PreviousDeployed, true, now);
    let Some(mine) = &mut row.update else { return };
    mine.stuck = None;
    mine.disruptive = disruptive;
    if !disruptive {
        return;
    }
    mine.request = Some(RequestRow { since_ms: now.wall_ms, revision });
    // That of an earlier turn.
    mine.standing = None;
    mine.ends_before = ends;
    if let Some(maintenance) = &mut mine.maintenance {
        maintenance.since_ms = None;
    }
    // A new attempt: discard the results of the last one.
    let renews = row.update.as_ref().is_some_and(|mine| mine.renewal.is_some());
    let stays = |stage: Stage| match renews {
        // Those of its own update tell that it is complete.
        true => {
            let anew = [Stage::NodeRequested, Stage::LocksInactive, Stage::PodsRenewed, Stage::RequestRemoved];
            !anew.contains(&stage)
        }
        false => stage < Stage::NodeRequested,
    };
    row.stages.retain(|stage, _| stays(*stage));
    end_stage(row, Stage::NodeRequested, true, now);
    begin_stage(row, Stage::LocksInactive, now);
}

pub(super) fn upgraded_stages(row: &mut MachineRow, now: Now) {
    end_stage(row, Stage::DeployDone, true, now);
    if row.max_phase == Some(Phase::Reconfigure) {
        end_stage(row, Stage::ReconfigureDone, true, now);
    }
    if row.stages.contains_key(&Stage::RebootDone) {
        end_stage(row, Stage::RebootDone, true, now);
    }
    end_stage(row, Stage::Upgraded, true, now);
}

/// An operator's request is done if the machine has rebooted since. A skipped reboot stays requested.
fn reboot_done(row: &mut MachineRow, added: &AddedReboot) {
    let item = reboot::item(added);
    let of_this = row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
    let rebooted = of_this.is_some_and(|status| status.state == ItemState::Succeeded);
    if let Some(asked) = row.reboot.as_mut().filter(|_| rebooted) {
        asked.completed = true;
    }
}

/// Are its locks active again after its request, or is the time for that over? The last stage records which.
fn locks_are_back(tx: &Transaction<'_>, machine: &MachineName) -> bool {
    let returned = |row: &&Arc<MachineRow>| row.update.as_ref().is_some_and(|mine| mine.returned_at_ms.is_some());
    let Some(row) = tx.machines.get(machine).filter(returned) else { return true };
    let of_it = |lock: &LockRow| {
        let its = match lock.object.as_ref().map(|object| &object.subject) {
            None => lock.key.node.as_ref() == Some(machine),
            Some(Subject::Node(node) | Subject::Deletion(node)) => row.kubernetes_node.as_ref() == Some(node),
            Some(Subject::Cluster) => false,
        };
        its && lock.key.cluster == row.spec.cluster_name
    };
    let is_held = handshake::may_be_left(tx, row);
    !is_held && !tx.locks.values().any(|lock| of_it(lock) && locks::is_away(row, lock))
}

/// The machine is at the new version and has given everything back.
fn finish(tx: &mut Transaction<'_>, machine: &MachineName, now: Now) {
    let Some(row) = tx.machines.get(machine) else { return };
    let release = tx.spec_of(row).map(|spec| spec.release.clone()).unwrap_or_default();
    let (ready_secrets, items) = (secrets_in_use(tx, machine), item_names(tx, machine));
    hooks::keep_ends(tx, machine);
    let back = locks_are_back(tx, machine);
    let Some(row) = tx.machine_mut(machine) else { return };
    let Some(mine) = row.update.take() else { return };
    if let Some(added) = mine.reboot.as_ref().filter(|added| added.why == RebootWhy::Asked) {
        reboot_done(row, added);
    }
    let worked = row.slot.take().is_some();
    row.ready_at = Some((release, mine.version));
    items.into_iter().for_each(|items| row.drop_others(|item| items.contains(item)));
    row.ready_overwrites = Some(mine.overwrites);
    // Seeded bug: the machine does not keep its update's secret versions.
    if !seeded_bug("float-secrets") {
        row.ready_secrets = ready_secrets;
    }
    row.max_phase = at_rest_phase(row);
    if mine.returned_at_ms.is_some() {
        end_stage(row, Stage::RequestRemoved, back, now);
    } else if worked {
        upgraded_stages(row, now);
    } else {
        if row.stages.contains_key(&Stage::PrepareDone) {
            end_stage(row, Stage::PrepareDone, true, now);
        }
        end_stage(row, Stage::Upgraded, true, now);
        end_stages(row, now);
    }
    if let Some(update) = row.rollout.clone().and_then(|rollout| tx.update_mut(&rollout)).filter(|_| worked) {
        update.moved_at_ms = now.wall_ms;
        update.ends += 1;
        update.finished_in_round += 1;
    }
}
