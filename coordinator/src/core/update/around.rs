//! How the hooks before and after an update are recorded.

use muster_proto::model::{MachineName, Now, Phase};

use super::{at_rest_reach, freeze};
use crate::{
    facts::{Added, ClusterStage, Draft, MachineUpdate, UpdateKind},
    plan::{added, secrets},
};

/// Machines of a rollout to whose lists something of this sort is added, and that.
fn members(draft: &Draft<'_>, rollout: &str, of: fn(&Added) -> bool) -> Vec<(MachineName, Vec<Added>)> {
    let update = draft.rollouts.get(rollout).and_then(|row| row.update.as_ref());
    let targets = update.into_iter().flat_map(|update| &update.targets);
    let all = targets.map(|(name, target)| (name.clone(), target.added.iter().filter(|a| of(a)).cloned().collect()));
    all.filter(|(_, added): &(_, Vec<Added>)| !added.is_empty()).collect()
}

/// One of the two stages has begun: the machines' lists are what was added, and nothing else.
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

/// A machine that is through with the update has something to do once more. It stays at the version that it has.
fn come_back(draft: &mut Draft<'_>, rollout: &str, name: &MachineName, added: Vec<Added>) {
    let Some(row) = draft.machines.get(name) else { return };
    let member = row.rollout.as_deref() == Some(rollout) && row.ready_at.is_some() && row.update.is_none();
    // Who is removed takes its hook along.
    if !member || row.revoked || row.removal.is_some() {
        return;
    }
    let newest = secrets::newest(draft, &row.spec.cluster_name);
    let version = row.follows().unwrap_or_default();
    let part = freeze::part(row, UpdateKind::Reboot, version, &newest);
    let Some(row) = draft.machine_mut(name) else { return };
    row.update = Some(MachineUpdate { added, only_added: true, ..part });
    row.reach = Some(Phase::Prepare);
}

/// A machine is about to be no part of the update any more: what of its hooks is done stays known.
pub(super) fn keep_done(draft: &mut Draft<'_>, name: &MachineName) {
    let Some(row) = draft.machines.get(name) else { return };
    let (done, rollout) = (added::done(draft, row), row.rollout.clone());
    if done.is_empty() {
        return;
    }
    let target = rollout.and_then(|rollout| draft.update_mut(&rollout)?.targets.get_mut(name));
    if let Some(target) = target {
        target.done.extend(done);
    }
}

/// What comes before the update is done: the machines wait for their turn to prepare.
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
        // Nobody had his turn while the hooks ran.
        update.moved_at_ms = now.wall_ms;
    }
}
