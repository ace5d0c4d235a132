//! Documents of the hooks around an update.

use std::collections::BTreeMap;

use muster_proto::{
    model::{MachineName, Standing},
    resource::HookStatus,
};

use crate::{
    facts::{Added, ClusterStage, RolloutRow, UpdateRow},
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
    let all = update.targets.iter().flat_map(|(machine, target)| target.added.iter().map(move |a| (machine, a)));
    let hook = |(machine, added): (&MachineName, &Added)| {
        let (name, when, stage) = match added {
            Added::HookBefore(name) => (name, "before", ClusterStage::HooksBefore),
            Added::HookAfter(name) => (name, "after", ClusterStage::HooksAfter),
        };
        let state = state(survey, row, (update, stage), (machine, added));
        Some(HookStatus { name: name.to_string(), machine: machine.to_string(), when: when.to_owned(), state })
    };
    all.filter_map(hook).collect()
}

fn state(
    survey: &Survey<'_>,
    row: &RolloutRow,
    (update, stage): (&UpdateRow, ClusterStage),
    (machine, added): (&MachineName, &Added),
) -> String {
    let stage = update.stages.get(&stage);
    let position = survey.machines.iter().find(|position| position.row.name == *machine);
    let member = position.filter(|p| p.row.rollout.as_ref() == Some(&row.name) && p.update().is_some());
    let item = |position: &Position<'_>| {
        let items = position.items.unwrap_or_default();
        let item = items.iter().find(|item| item.name.as_str() == added.item_name())?;
        Some(position.standing(item))
    };
    let state = match member.and_then(item) {
        Some(Standing::Done) => "done",
        Some(Standing::Running { .. }) => "running",
        Some(Standing::Failed) => "failed",
        Some(Standing::Held) => "indeterminate",
        Some(Standing::Due { .. }) => "waiting",
        None if stage.is_some_and(|stage| stage.succeeded) => "done",
        None if row.finished_at_ms.is_some() || position.is_none_or(|position| position.row.revoked) => "not run",
        // Whoever leaves the stage before the others is through with it.
        None if stage.is_some() => "done",
        None => "waiting",
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
