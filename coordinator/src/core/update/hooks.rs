//! Recording of the hooks before and after an update.

use std::collections::BTreeMap;

use muster_proto::model::{ItemProgress, MachineName, Now, Phase};

use super::{at_rest_phase, freeze};
use crate::{
    facts::{Added, AddedEnd, ClusterStage, MachineUpdate, Transaction, UpdateKind},
    plan::{added, safety, secrets},
};

/// Machines of a rollout with additions of this kind in their lists, and those additions.
fn members(tx: &Transaction<'_>, rollout: &str, of: fn(&Added) -> bool) -> Vec<(MachineName, Vec<Added>)> {
    let update = tx.rollouts.get(rollout).and_then(|row| row.update.as_ref());
    let targets = update.into_iter().flat_map(|update| &update.targets);
    let all = targets.map(|(name, target)| (name.clone(), target.added.iter().filter(|a| of(a)).cloned().collect()));
    all.filter(|(_, added): &(_, Vec<Added>)| !added.is_empty()).collect()
}

/// Begins one of the two hook stages: the lists of its machines contain only the additions.
pub(super) fn begin(tx: &mut Transaction<'_>, rollout: &str, stage: ClusterStage) {
    match stage {
        ClusterStage::HooksBefore => {
            for (name, _) in members(tx, rollout, Added::is_before) {
                let Some(row) = tx.machine_mut(&name) else { continue };
                let Some(mine) = &mut row.update else { continue };
                mine.hooks_only = true;
                row.max_phase = Some(Phase::Prepare);
            }
        }
        ClusterStage::HooksAfter => {
            for (name, added) in members(tx, rollout, Added::is_after) {
                come_back(tx, rollout, &name, added);
            }
        }
        _ => {}
    }
}

/// A machine that completed the update has further work. It keeps its version. A machine whose removal was aborted
/// during the update has another version, which lacks the hooks.
fn come_back(tx: &mut Transaction<'_>, rollout: &str, name: &MachineName, added: Vec<Added>) {
    let Some(row) = tx.machines.get(name) else { return };
    let update = tx.rollouts.get(rollout).and_then(|rollout| rollout.update.as_ref());
    let Some(version) = update.map(|update| update.version).filter(|version| row.follows() == Some(*version)) else {
        return;
    };
    let member = row.rollout.as_deref() == Some(rollout) && row.ready_at.is_some() && row.update.is_none();
    // Hooks are dropped along with a removed machine.
    if !member || row.revoked || row.removal.is_some() {
        return;
    }
    let newest = secrets::newest(tx, &row.spec.cluster_name);
    let part = freeze::part(row, UpdateKind::Reboot, version, &newest);
    let Some(row) = tx.machine_mut(name) else { return };
    row.update = Some(MachineUpdate { added, hooks_only: true, ..part });
    row.max_phase = Some(Phase::Prepare);
}

/// Keeps the results of a machine's hooks before it leaves the update.
pub(super) fn keep_ends(tx: &mut Transaction<'_>, name: &MachineName) {
    let Some(row) = tx.machines.get(name) else { return };
    let all = row.update.iter().flat_map(|mine| &mine.added);
    let known: Vec<_> = all.filter_map(|one| Some((one.clone(), added::stands(tx, row, one)?))).collect();
    let rollout = row.rollout.clone().filter(|_| !known.is_empty());
    let target = rollout.and_then(|rollout| tx.update_mut(&rollout)?.targets.get_mut(name));
    let Some(target) = target else { return };
    for (one, (standing, skipped)) in known {
        let end = match standing {
            ItemProgress::Done => skipped.then_some(AddedEnd::Skipped),
            ItemProgress::Failed => Some(AddedEnd::Failed),
            ItemProgress::Running { .. } | ItemProgress::Held => Some(AddedEnd::Unknown),
            ItemProgress::Due { .. } => None,
        };
        target.ends.extend(end.map(|end| (one.clone(), end)));
        if standing == ItemProgress::Done {
            target.done.insert(one);
        }
    }
}

/// Hooks after an update that an operator's command just cancelled: on all its machines, or on the given one.
pub(in crate::core) fn left_out(tx: &Transaction<'_>, rollout: &str, only: Option<&MachineName>) -> Option<String> {
    let row = tx.rollouts.get(rollout).filter(|row| row.finished_at_ms.is_none())?;
    let mut hooks: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let targets = row.update.iter().flat_map(|update| &update.targets);
    for (name, target) in targets.filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let runs = |added: &Added| {
            let stands = tx.machines.get(name).and_then(|row| added::stands(tx, row, added));
            let stands = stands.is_some_and(|(s, _)| matches!(s, ItemProgress::Done | ItemProgress::Running { .. }));
            stands || target.done.contains(added)
        };
        for added in target.added.iter().filter(|added| added.is_after() && !runs(added)) {
            hooks.entry(added::said(added)).or_default().push(name.as_str());
        }
    }
    let hooks: Vec<String> =
        hooks.into_iter().map(|(hook, names)| format!("{hook} on {}", safety::some_names(names))).collect();
    let what = (!hooks.is_empty()).then(|| hooks.join("; "))?;
    Some(format!("{rollout} leaves out {what}: do by hand what that is for (alerts that are silenced stay so)"))
}

/// Ends the stage before the update: its machines wait for their turn to prepare.
pub(super) fn end(tx: &mut Transaction<'_>, rollout: &str, stage: ClusterStage, now: Now) {
    if stage != ClusterStage::HooksBefore {
        return;
    }
    for (name, _) in members(tx, rollout, Added::is_before) {
        let Some(row) = tx.machine_mut(&name) else { continue };
        if let Some(mine) = row.update.as_mut().filter(|mine| mine.hooks_only) {
            mine.hooks_only = false;
            row.max_phase = at_rest_phase(row);
        }
    }
    if let Some(update) = tx.update_mut(rollout) {
        // Deadlines count from here, because the hooks blocked all machines.
        update.moved_at_ms = now.wall_ms;
    }
}
