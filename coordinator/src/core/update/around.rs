//! Recording of the hooks before and after an update.

use std::collections::BTreeMap;

use muster_proto::model::{MachineName, Now, Phase, Standing};

use super::{at_rest_reach, freeze};
use crate::{
    facts::{Added, AddedEnd, ClusterStage, Draft, MachineUpdate, UpdateKind},
    plan::{added, safety, secrets},
};

/// Machines of a rollout with additions of this kind in their lists, and those additions.
fn members(draft: &Draft<'_>, rollout: &str, of: fn(&Added) -> bool) -> Vec<(MachineName, Vec<Added>)> {
    let update = draft.rollouts.get(rollout).and_then(|row| row.update.as_ref());
    let targets = update.into_iter().flat_map(|update| &update.targets);
    let all = targets.map(|(name, target)| (name.clone(), target.added.iter().filter(|a| of(a)).cloned().collect()));
    all.filter(|(_, added): &(_, Vec<Added>)| !added.is_empty()).collect()
}

/// Begins one of the two hook stages: the lists of its machines contain only the additions.
pub(super) fn begin(draft: &mut Draft<'_>, rollout: &str, stage: ClusterStage) {
    match stage {
        ClusterStage::HooksBefore => {
            for (name, _) in members(draft, rollout, Added::is_before) {
                let Some(row) = draft.machine_mut(&name) else { continue };
                let Some(mine) = &mut row.update else { continue };
                mine.only_added = true;
                row.reach = Some(Phase::Prepare);
            }
        }
        ClusterStage::HooksAfter => {
            for (name, added) in members(draft, rollout, Added::is_after) {
                come_back(draft, rollout, &name, added);
            }
        }
        _ => {}
    }
}

/// A machine that completed the update has further work. It keeps its version. A machine whose removal was aborted
/// during the update has another version, which lacks the hooks.
fn come_back(draft: &mut Draft<'_>, rollout: &str, name: &MachineName, added: Vec<Added>) {
    let Some(row) = draft.machines.get(name) else { return };
    let update = draft.rollouts.get(rollout).and_then(|rollout| rollout.update.as_ref());
    let Some(version) = update.map(|update| update.version).filter(|version| row.follows() == Some(*version)) else {
        return;
    };
    let member = row.rollout.as_deref() == Some(rollout) && row.ready_at.is_some() && row.update.is_none();
    // Hooks are dropped along with a removed machine.
    if !member || row.revoked || row.removal.is_some() {
        return;
    }
    let newest = secrets::newest(draft, &row.spec.cluster_name);
    let part = freeze::part(row, UpdateKind::Reboot, version, &newest);
    let Some(row) = draft.machine_mut(name) else { return };
    row.update = Some(MachineUpdate { added, only_added: true, ..part });
    row.reach = Some(Phase::Prepare);
}

/// Keeps the results of a machine's hooks before it leaves the update.
pub(super) fn keep_ends(draft: &mut Draft<'_>, name: &MachineName) {
    let Some(row) = draft.machines.get(name) else { return };
    let all = row.update.iter().flat_map(|mine| &mine.added);
    let known: Vec<_> = all.filter_map(|one| Some((one.clone(), added::stands(draft, row, one)?))).collect();
    let rollout = row.rollout.clone().filter(|_| !known.is_empty());
    let target = rollout.and_then(|rollout| draft.update_mut(&rollout)?.targets.get_mut(name));
    let Some(target) = target else { return };
    for (one, (standing, skipped)) in known {
        let end = match standing {
            Standing::Done => skipped.then_some(AddedEnd::Skipped),
            Standing::Failed => Some(AddedEnd::Failed),
            Standing::Running { .. } | Standing::Held => Some(AddedEnd::Unknown),
            Standing::Due { .. } => None,
        };
        target.ends.extend(end.map(|end| (one.clone(), end)));
        if standing == Standing::Done {
            target.done.insert(one);
        }
    }
}

/// Hooks after an update that an operator's command just cancelled: on all its machines, or on the given one.
pub(in crate::core) fn left_out(draft: &Draft<'_>, rollout: &str, only: Option<&MachineName>) -> Option<String> {
    let row = draft.rollouts.get(rollout).filter(|row| row.finished_at_ms.is_none())?;
    let mut hooks: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let targets = row.update.iter().flat_map(|update| &update.targets);
    for (name, target) in targets.filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let runs = |added: &Added| {
            let stands = draft.machines.get(name).and_then(|row| added::stands(draft, row, added));
            let stands = stands.is_some_and(|(s, _)| matches!(s, Standing::Done | Standing::Running { .. }));
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
pub(super) fn end(draft: &mut Draft<'_>, rollout: &str, stage: ClusterStage, now: Now) {
    if stage != ClusterStage::HooksBefore {
        return;
    }
    for (name, _) in members(draft, rollout, Added::is_before) {
        let Some(row) = draft.machine_mut(&name) else { continue };
        if let Some(mine) = row.update.as_mut().filter(|mine| mine.only_added) {
            mine.only_added = false;
            row.reach = at_rest_reach(row);
        }
    }
    if let Some(update) = draft.update_mut(rollout) {
        // Deadlines count from here, because the hooks blocked all machines.
        update.moved_at_ms = now.wall_ms;
    }
}
