//! Documents of the hooks around an update.

use std::collections::BTreeMap;

use muster_proto::{
    model::{MachineName, Standing},
    resource::HookStatus,
};

use crate::{
    facts::{Added, ClusterStage, RolloutRow, Target, UpdateRow},
    plan::{
        safety,
        survey::{Position, Survey},
        update::around,
    },
};

/// Will an update that is under way come to this stage? One without hooks has no stage for them.
pub(super) fn is_ahead(update: &UpdateRow, stage: ClusterStage) -> bool {
    !matches!(stage, ClusterStage::HooksBefore | ClusterStage::HooksAfter) || around::has(update, stage)
}

/// How far each hook is, on each of its machines.
pub(super) fn statuses(survey: &Survey<'_>, row: &RolloutRow, update: &UpdateRow) -> Vec<HookStatus> {
    let mut all = Vec::new();
    for (machine, target) in &update.targets {
        for added in &target.added {
            let when = match added {
                Added::HookBefore(_) | Added::SwarmCopy | Added::MkeBackup => "before",
                Added::ConsistentCopy => "in its turn",
                Added::HookAfter(_) => "after",
            };
            let state = state(survey, row, (machine, target), added);
            let (name, machine) = (added.item_name().to_owned(), machine.to_string());
            all.push(HookStatus { name, machine, when: when.to_owned(), state });
        }
    }
    all
}

fn state(survey: &Survey<'_>, row: &RolloutRow, (machine, target): (&MachineName, &Target), added: &Added) -> String {
    let position = survey.machines.iter().find(|position| position.row.name == *machine);
    let position = position.filter(|position| position.row.rollout.as_ref() == Some(&row.name));
    let item = |position: &Position<'_>| {
        let items = position.items.unwrap_or_default();
        let item = items.iter().find(|item| item.name.as_str() == added.item_name())?;
        Some(position.standing(item))
    };
    let gone = position.is_none_or(|position| position.row.revoked || position.row.removal.is_some());
    let state = match position.filter(|position| position.update().is_some()).and_then(item) {
        Some(Standing::Done) => "done",
        Some(Standing::Running { .. }) => "running",
        Some(Standing::Failed) => "failed",
        Some(Standing::Held) => "indeterminate",
        Some(Standing::Due { .. }) | None if target.done.contains(added) => "done",
        Some(Standing::Due { .. }) | None if gone || row.finished_at_ms.is_some() => "not run",
        Some(Standing::Due { .. }) | None => "waiting",
    };
    state.to_owned()
}

/// What runs in one of the two stages, in words. None: nothing.
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
