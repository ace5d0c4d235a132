//! Which machine makes a cluster's swarm, which machines join it, and through which managers. Decided from the record;
//! `joining` asks the swarm itself.

pub mod joining;
pub mod restore;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use muster_proto::{
    model::{AssignedItem, ItemProgress, ItemState, MachineId, MachineName, MachineType, Now, SwarmId},
    seeded_bug::seeded_bug,
};

use super::{Limits, safety::some_names, snapshot::standing};
use crate::facts::{Facts, LeftOut, MachineRow};

/// How a machine enters its cluster's swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It makes the swarm.
    Init,
    /// It joins machines that are in the swarm.
    Join {
        /// Will it be a manager?
        manager: bool,
        /// Machines whose agents are connected and can let it in; at least one.
        managers: Vec<(MachineName, MachineId)>,
        /// Nodes known to belong to other machines.
        others: BTreeMap<SwarmId, MachineName>,
    },
}

/// Why a machine has to wait with its entry. Each reason passes when others have acted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEntry {
    /// The swarm is still missing, and another machine makes it.
    #[error(
        "{maker} makes the cluster's swarm and has not completed its swarm-join; this passes when it has, {or_else}"
    )]
    NotInitialised {
        /// The machine that makes it.
        maker: MachineName,
        /// What else ends the wait.
        or_else: String,
    },
    /// The swarm is missing, and so is a machine that could make it.
    #[error("the cluster has no control machine that could make its swarm; this passes when one enrols")]
    NoControl,
    /// It would make the swarm, but others may have made it.
    #[error(
        "the coordinator has just started, and a control machine that it has not heard of yet may have made the swarm; \
         this passes when {silent} report, or when they count as Lost"
    )]
    Gathering {
        /// Names of the first few of them.
        silent: String,
    },
    /// The machines that could let it in are all disconnected.
    #[error("no manager of the swarm is connected; this passes when the agent of one of {managers} connects")]
    NoManager {
        /// Names of the first few of them.
        managers: String,
    },
}

impl NoEntry {
    /// The name of the reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotInitialised { .. } | Self::NoControl => "SwarmNotInitialised",
            Self::Gathering { .. } => "Gathering",
            Self::NoManager { .. } => "NoManagerReachable",
        }
    }
}

fn join_items<'a>(facts: &'a Facts, row: &MachineRow) -> impl Iterator<Item = &'a AssignedItem> {
    let items = facts.live.machines.get(&row.name).and_then(|live| live.items.as_deref());
    let resolved = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
    resolved.iter().filter(|item| item.joins_swarm())
}

/// Has this machine ever completed a swarm-join? That stays true when the item runs again, such as in another version.
#[must_use]
pub fn is_member(facts: &Facts, row: &MachineRow) -> bool {
    let done = |item: &AssignedItem| {
        let succeeded = row.statuses.get(&item.name).is_some_and(|status| status.state == ItemState::Succeeded);
        let verdict = row.verdicts.get(&item.name).and_then(|verdict| verdict.left_out);
        succeeded || matches!(verdict, Some(LeftOut::Accepted | LeftOut::DoneBefore))
    };
    row.swarm.is_some() || join_items(facts, row).any(done)
}

/// Could this machine be in the swarm? With a swarm-join: once that has succeeded. Otherwise this is unknown, so true.
#[must_use]
pub fn may_be_in(facts: &Facts, row: &MachineRow) -> bool {
    is_member(facts, row) || join_items(facts, row).next().is_none()
}

/// Did an operator skip this machine's swarm-join as it is now?
fn is_left_out(facts: &Facts, row: &MachineRow) -> bool {
    join_items(facts, row).any(|item| {
        let verdict = row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
        verdict.and_then(|verdict| verdict.left_out) == Some(LeftOut::Skipped)
    })
}

/// Did an operator skip this machine's swarm-join, even in an earlier form? Until the item has run, the machine is
/// outside the swarm.
#[must_use]
pub fn was_left_out(facts: &Facts, row: &MachineRow) -> bool {
    let skipped = |item: &AssignedItem| {
        row.verdicts.get(&item.name).and_then(|verdict| verdict.left_out) == Some(LeftOut::Skipped)
    };
    !is_member(facts, row) && join_items(facts, row).any(skipped)
}

/// Was this machine ever told how to enter? A restored store may know that only from the item's status.
fn has_begun(facts: &Facts, row: &MachineRow) -> bool {
    join_items(facts, row).any(|item| row.statuses.contains_key(&item.name))
}

/// Could its engine be in a swarm, as a result of what it was told? With a swarm-join: once that has begun; before that
/// the machine may even lack Docker. Otherwise this is unknown, so true.
#[must_use]
pub fn may_have_begun(facts: &Facts, row: &MachineRow) -> bool {
    may_be_in(facts, row) || has_begun(facts, row)
}

/// Does it belong to the cluster's swarm, now or in future: is it a member, or to become one?
#[must_use]
pub fn counts(facts: &Facts, row: &MachineRow) -> bool {
    is_member(facts, row) || !is_left_out(facts, row)
}

/// How a machine enters. The first control machine that reaches its swarm-join makes the swarm, because two swarms
/// cannot be merged. It does so only if all others have neither completed a swarm-join nor been told to make the swarm.
/// Revoked machines, and those with a skipped swarm-join, do not count.
///
/// # Errors
/// [`NoEntry`]: it has to wait.
pub fn entry(facts: &Facts, machine: &MachineRow, limits: &Limits, now: Now) -> Result<Entry, NoEntry> {
    let others = others(facts, machine);
    let manager = machine.spec.machine_type == MachineType::Control;
    // Seeded bug: every control machine makes its own swarm.
    if manager && seeded_bug("init-twice") {
        return Ok(Entry::Init);
    }
    if others.iter().any(|row| is_member(facts, row)) {
        let managers = managers(facts, &others)?;
        return Ok(Entry::Join { manager, managers, others: nodes_of_others(facts, machine) });
    }
    // A member has no maker to wait for: another machine's attempt has failed.
    let maker = maker(facts, machine, &others).filter(|_| !is_member(facts, machine));
    match maker.or_else(|| others.first().filter(|_| !manager)) {
        Some(maker) => Err(not_initialised(facts, machine, maker)),
        None if manager => nobody_may_have_made_it(facts, &others, limits, now).map(|()| Entry::Init),
        None => Err(NoEntry::NoControl),
    }
}

/// The wait for the machine that makes the swarm. One that enrolled during an update is deployed after it, and the
/// update waits for its own machines (seed 83411583806464).
fn not_initialised(facts: &Facts, machine: &MachineRow, maker: &MachineRow) -> NoEntry {
    let updating = facts.open_rollout(&maker.spec.cluster_name).is_some_and(|rollout| rollout.update.is_some());
    let waits = updating && machine.update.is_some() && maker.ready_at.is_none();
    let (name, maker) = (&machine.name, maker.name.clone());
    let or_else = match join_items(facts, machine).next().filter(|_| waits) {
        Some(AssignedItem { name: item, .. }) => format!(
            "after the update, which waits for {name}: `musterctl skip {name} {item}`, and `musterctl rerun {name} \
             {item}` once {maker} is Ready"
        ),
        None => format!("or when an operator skips that item or revokes {maker}"),
    };
    NoEntry::NotInitialised { maker, or_else }
}

fn nodes_of_others(facts: &Facts, machine: &MachineRow) -> BTreeMap<SwarmId, MachineName> {
    let others = facts.machines.values().filter(|row| row.name != machine.name);
    others.filter_map(|row| Some((row.swarm.as_ref()?.node_id.clone(), row.name.clone()))).collect()
}

/// Other control machines that are in the swarm or to enter it, in order.
fn others<'a>(facts: &'a Facts, machine: &'a MachineRow) -> Vec<&'a MachineRow> {
    let mut others: Vec<&MachineRow> = facts
        .machines_of(&machine.spec.cluster_name)
        .map(|row| &**row)
        .filter(|row| row.spec.machine_type == MachineType::Control && row.name != machine.name)
        .filter(|row| row.id.is_some() && !row.revoked && counts(facts, row))
        .collect();
    others.sort_by_key(|row| (row.spec.upgrade_index, &row.name));
    others
}

/// The machine among these that was told, or may have been told, to make the swarm.
fn maker<'a, 'o>(facts: &Facts, machine: &MachineRow, others: &'o [&'a MachineRow]) -> Option<&'o &'a MachineRow> {
    let told = facts.clusters.get(&machine.spec.cluster_name).and_then(|cluster| cluster.swarm_init);
    others.iter().find(|row| (told.is_some() && row.id == told) || has_begun(facts, row))
}

/// The control machine that has begun to make the swarm, if this one has yet to begin its own swarm-join and would
/// wait. None: it need not wait.
#[must_use]
pub fn waits_for_maker(facts: &Facts, machine: &MachineRow) -> Option<MachineName> {
    let joins = join_items(facts, machine).next().is_some() && counts(facts, machine);
    let others = others(facts, machine);
    if !joins
        || has_begun(facts, machine)
        || is_member(facts, machine)
        || others.iter().any(|row| is_member(facts, row))
    {
        return None;
    }
    maker(facts, machine, &others).map(|row| row.name.clone())
}

/// The control machine to deploy, or to enrol again, before this worker's due swarm-join could end: all others are
/// outside the swarm. None: it need not wait, or a deployment would not help.
#[must_use]
pub fn awaits_deployment(facts: &Facts, worker: &MachineRow) -> Option<MachineName> {
    let mut joins = join_items(facts, worker);
    let due = joins.any(|item| standing(worker, item) != ItemProgress::Done);
    if !due || others(facts, worker).iter().any(|row| is_member(facts, row)) {
        return None;
    }
    let fresh = |row: &MachineRow| row.id.is_some() && !row.revoked && row.ready_at.is_none() && counts(facts, row);
    let mut controls = facts
        .machines_of(&worker.spec.cluster_name)
        .filter(|row| row.spec.machine_type == MachineType::Control && row.removal.is_none());
    controls.find(|row| row.replaceable || fresh(row)).map(|row| row.name.clone())
}

/// After a start of the coordinator: has every other control machine reported what it has done?
fn nobody_may_have_made_it(facts: &Facts, others: &[&MachineRow], limits: &Limits, now: Now) -> Result<(), NoEntry> {
    if now.mono_ms.saturating_sub(facts.live.started_mono_ms) >= limits.lost_after_ms {
        return Ok(());
    }
    let silent: Vec<&str> = others
        .iter()
        .map(|row| &row.name)
        .filter(|name| facts.live.awaited.contains(*name))
        .map(|n| n.as_str())
        .collect();
    if silent.is_empty() { Ok(()) } else { Err(NoEntry::Gathering { silent: some_names(silent) }) }
}

/// Connected machines that can let others in.
fn managers(facts: &Facts, others: &[&MachineRow]) -> Result<Vec<(MachineName, MachineId)>, NoEntry> {
    let members = || others.iter().filter(|row| is_member(facts, row));
    let connected = |row: &MachineRow| facts.live.machines.get(&row.name).is_some_and(|live| live.session.is_some());
    let managers: Vec<_> =
        members().filter(|row| connected(row)).filter_map(|row| Some((row.name.clone(), row.id?))).collect();
    if managers.is_empty() {
        return Err(NoEntry::NoManager { managers: some_names(members().map(|row| row.name.as_str())) });
    }
    Ok(managers)
}
