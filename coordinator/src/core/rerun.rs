//! `rerun`: run an item again that is done. On a Ready machine this needs an update, like any other change: earlier
//! successes are discarded, so the item is due in the next update.

use muster_proto::model::{AssignedItem, ItemName, ItemProgress, ItemState, MachineName, Now, RunnerKind};

use super::{
    Refusal, Reply,
    operators::{audited, known_machine},
    verdicts::{stands, unknown},
};
use crate::{
    facts::{AuditObject, ItemOverride, LeftOut, Transaction},
    plan::{Limits, items, snapshot::MachineView},
};

pub(super) fn item(
    tx: &mut Transaction<'_>,
    actor: &str,
    (machine, item): (&MachineName, &ItemName),
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    items::refresh(tx);
    let view = MachineView::of(tx, &row, limits, now);
    let items = view.items.unwrap_or_default();
    let Some(known) = items.iter().find(|known| known.name == *item) else {
        return Err(unknown(&row, item, items));
    };
    may_run_again(tx, &view, known)?;
    let cluster = &row.spec.cluster_name;
    let when = match view.ready_once() {
        true if view.is_disruptive(known) => {
            format!("in the next update, when its workloads are away: `musterctl update {cluster}`")
        }
        true => format!("in the next update: `musterctl update {cluster}`"),
        false => "in its deployment".to_owned(),
    };
    // An item that an operator accepted with an unknown outcome needs permission for another attempt.
    let unsettled = |state: &ItemState| matches!(state, ItemState::Failed { .. } | ItemState::Indeterminate);
    let status = row.statuses.get(item).filter(|status| status.hash == known.hash && unsettled(&status.state));
    let cleared =
        status.map(|status| ItemOverride { hash: known.hash, cleared_attempts: status.attempt, left_out: None });
    let newest = row.assigned.generation;
    if let Some(row) = tx.machine_mut(machine) {
        row.redo.insert(item.clone(), newest);
        row.verdicts.remove(item);
        row.verdicts.extend(cleared.map(|cleared| (item.clone(), cleared)));
    }
    let line = format!("machine {machine}: item {item} runs again {when}");
    audited(tx, actor, "rerun", AuditObject::Machine(machine), vec![line], now)
}

fn may_run_again(tx: &Transaction<'_>, view: &MachineView<'_>, item: &AssignedItem) -> Result<(), Refusal> {
    let (row, name) = (view.row, &item.name);
    let (machine, cluster) = (&row.name, &row.spec.cluster_name);
    let refused = |reason, message| Err(Refusal::State { reason, message });
    if tx.meta.recovering || row.needs_review || tx.live.older_than_fleet().is_some() {
        let message = format!(
            "the store does not know for certain what was done on {machine}: `musterctl describe machine {machine}`"
        );
        return refused("RecoveryOpen", message);
    }
    if row.update.is_some() || row.removal.is_some() {
        let rollout = row.rollout.as_deref().unwrap_or("a rollout");
        let message = format!("{machine} is in {rollout}, whose plan stays as it began: ask again when it has ended");
        return refused("RolloutOpen", message);
    }
    if item.runner == RunnerKind::Reboot.as_str() {
        let message = format!("item {name} reboots: `musterctl reboot {cluster} --machine {machine}` does it again");
        return refused("NotForReboots", message);
    }
    let verdict = row.verdicts.get(name).filter(|verdict| verdict.hash == item.hash);
    let skipped = verdict.is_some_and(|verdict| verdict.left_out == Some(LeftOut::Skipped));
    if skipped || view.standing(item) != ItemProgress::Done {
        let message = format!("rerun is for items that are done; item {name} of {machine} {}", stands(view, item));
        return refused("NothingToDo", message);
    }
    Ok(())
}
