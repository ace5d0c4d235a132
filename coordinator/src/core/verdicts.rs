//! Operators' decisions about single items: `retry`, `skip`, `accept`.

use muster_proto::model::{AssignedItem, ItemName, ItemProgress, MachineName, Now};

use super::{
    Refusal, Reply,
    operators::{audited, known_machine, not_found},
    update,
};
use crate::{
    facts::{self, AuditObject, ItemOverride, LeftOut, MachineRow, Transaction},
    plan::{Limits, safety, snapshot::MachineView},
};

/// An operator's decision about an item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemCommand {
    Retry,
    Skip,
    Accept,
}

impl ItemCommand {
    const fn word(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Accept => "accept",
        }
    }

    /// Does the decision fit this item in its state? Skipping fits every item except done and running ones. An item
    /// that is recorded as running and waits to begin can be skipped too: what it waits for may wait for this machine.
    fn fits(self, view: &MachineView<'_>, item: &AssignedItem, named: bool) -> bool {
        match (self, view.standing(item)) {
            (Self::Retry | Self::Skip, ItemProgress::Failed | ItemProgress::Held)
            | (Self::Accept, ItemProgress::Held) => true,
            (Self::Skip, ItemProgress::Due { .. }) => named,
            (Self::Skip, ItemProgress::Running { .. }) => named && view.waits_to_begin(item),
            (Self::Retry | Self::Skip | Self::Accept, _) => false,
        }
    }

    const fn fits_what(self) -> &'static str {
        match self {
            Self::Retry => "items that failed for good or are held (Indeterminate)",
            Self::Skip => "items that are neither done nor running",
            Self::Accept => "items that are held (Indeterminate)",
        }
    }
}

/// Records the decision for the named item, or for every item that it fits.
pub(super) fn decide(
    tx: &mut Transaction<'_>,
    actor: &str,
    (desired, machine, item): (ItemCommand, &MachineName, Option<&ItemName>),
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    crate::plan::items::refresh(tx);
    let view = MachineView::of(tx, &row, limits, now);
    let items: &[AssignedItem] = view.items.unwrap_or_default();
    if let Some(item) = item
        && !items.iter().any(|known| known.name == *item)
    {
        return Err(unknown(&row, item, items));
    }
    let chosen: Vec<AssignedItem> = items
        .iter()
        .filter(|known| item.is_none_or(|item| known.name == *item))
        .filter(|known| desired.fits(&view, known, item.is_some()))
        .cloned()
        .collect();
    if chosen.is_empty() {
        return Err(nothing_to_do(desired, (machine, item), &view));
    }
    let unheard = row.update.is_some() && !view.connected();
    let mut lines = Vec::new();
    for item in chosen {
        let attempts = row.statuses.get(&item.name).filter(|status| status.hash == item.hash).map_or(0, |s| s.attempt);
        let (left_out, what) = match desired {
            ItemCommand::Retry => (None, format!("runs again (attempt {})", attempts + 1)),
            ItemCommand::Skip => (Some(LeftOut::Skipped), "is skipped, until the manifest changes it".to_owned()),
            ItemCommand::Accept => (Some(LeftOut::Accepted), "counts as done".to_owned()),
        };
        lines.push(format!("machine {machine}: item {} {what}", item.name));
        if let Some(row) = tx.machine_mut(machine) {
            row.verdicts.insert(item.name, ItemOverride { hash: item.hash, cleared_attempts: attempts, left_out });
        }
    }
    if desired == ItemCommand::Retry {
        update::has_its_time_anew(tx, machine, now);
        lines.extend(as_it_was(tx, &row));
    }
    if desired != ItemCommand::Retry && unheard {
        let gone = format!("`musterctl revoke {machine}` if it is gone for good");
        lines.push(format!(
            "machine {machine}: is not connected; its update goes on when it has confirmed that ({gone})"
        ));
    }
    audited(tx, actor, desired.word(), AuditObject::Machine(machine), lines, now)
}

/// The error for an item that the machine lacks now. It may have had one.
pub(super) fn unknown(row: &MachineRow, item: &ItemName, items: &[AssignedItem]) -> Refusal {
    let machine = &row.name;
    if !row.statuses.contains_key(item) {
        return not_found("item", item.as_str(), items.iter().map(|known| known.name.as_str()));
    }
    let names = safety::some_names(items.iter().map(|known| known.name.as_str()));
    let message = format!(
        "item {item} of {machine} is of an earlier manifest, and nothing waits for it any more; its items are: {names}"
    );
    Refusal::State { reason: "NothingToDo", message }
}

/// The note that an update uses the items as of its start, if a manifest was applied since.
fn as_it_was(tx: &Transaction<'_>, row: &MachineRow) -> Option<String> {
    let (machine, cluster) = (&row.name, &row.spec.cluster_name);
    let newest = tx.clusters.get(cluster)?.spec_version;
    let rollout = row.rollout.as_ref().filter(|_| row.update.is_some() && row.follows() != Some(newest))?;
    let aborting =
        tx.open_rollout(cluster)?.update.as_ref().is_some_and(|update| update.desired == facts::DesiredState::Abort);
    let end = match aborting {
        true => "this one is being aborted: it ends when what it has taken is given back".to_owned(),
        false => format!("`musterctl abort {cluster}` ends this one early"),
    };
    Some(format!(
        "machine {machine}: it runs as it was when {rollout} began; the manifest that was applied since is for the \
         next update ({end})"
    ))
}

/// The error if the decision fits no item, or not the named one. It lists the items that wait for an operator.
fn nothing_to_do(
    desired: ItemCommand,
    (machine, item): (&MachineName, Option<&ItemName>),
    view: &MachineView<'_>,
) -> Refusal {
    let items = view.items.unwrap_or_default();
    let named = items.iter().find(|known| Some(&known.name) == item);
    let which = match named {
        None => format!("no item of {machine} is one"),
        Some(item) => format!("item {} of {machine} {}", item.name, stands(view, item)),
    };
    let waiting = items.iter().find_map(|item| match view.standing(item) {
        ItemProgress::Failed => Some((&item.name, "failed", ["retry", "skip"].as_slice())),
        ItemProgress::Held => Some((&item.name, "is held", &["accept", "retry", "skip"])),
        _ => None,
    });
    let running = named.filter(|item| matches!(view.standing(item), ItemProgress::Running { .. }));
    let next = match (running, waiting) {
        (Some(item), _) => format!("wait until it ends: `musterctl logs {machine} {} -f`", item.name),
        (None, Some((name, is, choices))) => {
            let commands: Vec<String> =
                choices.iter().map(|choice| format!("`musterctl {choice} {machine} {name}`")).collect();
            format!("item {name} {is}: {}", commands.join(" or "))
        }
        (None, None) => format!("its items: `musterctl describe machine {machine}`"),
    };
    let message = format!("{} is for {}; {which}; {next}", desired.word(), desired.fits_what());
    Refusal::State { reason: "NothingToDo", message }
}

/// The state of an item as text.
pub(super) fn stands(view: &MachineView<'_>, item: &AssignedItem) -> &'static str {
    let verdict = view.row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
    match view.standing(item) {
        ItemProgress::Done if verdict.is_some_and(|verdict| verdict.left_out == Some(LeftOut::Skipped)) => {
            "was skipped by an operator, and runs again when a manifest changes it (another `version`)"
        }
        ItemProgress::Due { attempt: 0 | 1 } => "has not begun",
        ItemProgress::Due { .. } => "failed and is tried again by itself",
        ItemProgress::Running { .. } => "is running",
        ItemProgress::Done => "is done",
        ItemProgress::Failed => "has failed for good",
        ItemProgress::Held => "is held (Indeterminate)",
    }
}
