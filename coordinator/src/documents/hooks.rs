//! Documents of the hooks around an update.

use std::collections::BTreeMap;

use muster_proto::{
    model::{ItemProgress, MachineName},
    resource::HookStatus,
};

use crate::{
    facts::{Added, AddedEnd, ClusterStage, DesiredState, MachineRow, RolloutRow, Target, UpdateRow},
    plan::{
        added, addons, safety,
        snapshot::ClusterSnapshot,
        update::{hooks, renewal},
    },
};

/// Is this stage still to come in an update under way? Stages of hooks exist only if there are hooks, that of
/// renewals only if there are such DaemonSets, and that of add-ons only if there are some.
pub(super) fn is_ahead(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, stage: ClusterStage) -> bool {
    if stage == ClusterStage::PodsRenewed {
        return renewal::has(snapshot, update);
    }
    if stage == ClusterStage::AddonsVerified {
        return addons::has(snapshot, update);
    }
    !matches!(stage, ClusterStage::HooksBefore | ClusterStage::HooksAfter) || hooks::has(update, stage)
}

/// Progress of each hook on each of its machines.
pub(super) fn statuses(snapshot: &ClusterSnapshot<'_>, row: &RolloutRow, update: &UpdateRow) -> Vec<HookStatus> {
    let mut all = Vec::new();
    for (machine, target) in &update.targets {
        for added in &target.added {
            let when = match added {
                Added::HookBefore(_) | Added::SwarmCopy | Added::MkeBackup => "before",
                Added::ConsistentCopy => "in its turn",
                Added::HookAfter(_) => "after",
            };
            let state = state(snapshot, (row, update), (machine, target), added).to_owned();
            let (name, machine) = (added.item_name().to_owned(), machine.to_string());
            all.push(HookStatus { name, machine, when: when.to_owned(), state });
        }
    }
    all
}

fn state(
    snapshot: &ClusterSnapshot<'_>,
    (rollout, update): (&RolloutRow, &UpdateRow),
    (machine, target): (&MachineName, &Target),
    added: &Added,
) -> &'static str {
    let row = snapshot.facts.machines.get(machine).filter(|row| row.rollout.as_ref() == Some(&rollout.name));
    match row.and_then(|row| added::stands(snapshot.facts, row, added)) {
        Some((ItemProgress::Done, true)) => return "skipped",
        Some((ItemProgress::Done, false)) => return "done",
        Some((ItemProgress::Running { .. }, _)) => return "running",
        Some((ItemProgress::Failed, _)) => return "failed",
        Some((ItemProgress::Held, _)) => return "indeterminate",
        Some((ItemProgress::Due { .. }, _)) | None => {}
    }
    match target.ends.iter().find(|(of, _)| of == added).map(|(_, end)| *end) {
        Some(AddedEnd::Skipped) => return "skipped",
        Some(AddedEnd::Failed) => return "failed",
        Some(AddedEnd::Unknown) => return "indeterminate",
        None if target.done.contains(added) => return "done",
        None => {}
    }
    let over = rollout.finished_at_ms.is_some() || update.desired == DesiredState::Abort;
    let never = row.is_none_or(|row| has_left(update, row, added));
    if over || never { "not run" } else { "waiting" }
}

/// Has this machine left the update, as far as this hook is concerned? A machine that is complete comes back when the
/// stage of a hook after the update begins, unless it is at another version.
fn has_left(update: &UpdateRow, row: &MachineRow, added: &Added) -> bool {
    let too_late = !added.is_after() || update.stages.contains_key(&ClusterStage::HooksAfter);
    let out = row.update.is_none() && (too_late || row.follows() != Some(update.version));
    row.revoked || row.removal.is_some() || out
}

/// Description of the hooks in one of the two stages, if it has any.
pub(super) fn planned(update: &UpdateRow, stage: ClusterStage) -> Option<String> {
    let mut machines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (machine, target) in &update.targets {
        for added in &target.added {
            let here = match added {
                Added::HookBefore(_) => stage == ClusterStage::HooksBefore,
                Added::HookAfter(_) => stage == ClusterStage::HooksAfter,
                Added::SwarmCopy | Added::MkeBackup | Added::ConsistentCopy => false,
            };
            if here {
                machines.entry(added.item_name()).or_default().push(machine.as_str());
            }
        }
    }
    let said = machines.into_iter().map(|(hook, names)| format!("{hook} on {}", safety::some_names(names)));
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| said.join("; "))
}
