//! Preconditions of a removal.

use muster_proto::model::{Blocked, MachineName, MachineType, Now, RemovalPolicy};

use super::{Removing, refusal};
use crate::{
    core::{Refusal, update},
    facts::{DesiredState, MachineRow, RemovalRow, Transaction},
    plan::{Limits, safety, snapshot::ClusterSnapshot, swarm, update::hooks::is_before_open},
};

/// Policies can only be loosened. A removal that is being aborted can only be forced: the machine may be lost before
/// it has given back what it holds.
pub(super) fn may_loosen(machine: &MachineName, known: &RemovalRow, removing: Removing<'_>) -> Result<(), Refusal> {
    let Removing { policy, accept_control_plane_downtime, .. } = removing;
    if known.aborting && policy == RemovalPolicy::Forced {
        return Ok(());
    }
    if known.aborting {
        let message = format!(
            "the removal of {machine} is being aborted; it can be removed when that has ended; if the machine is gone \
             for good: `musterctl remove {machine} --policy forced`"
        );
        return Err(refusal("RemovalAborting", message));
    }
    let accepts_more = accept_control_plane_downtime && !known.accept_control_plane_downtime;
    if policy > known.policy || (policy == known.policy && accepts_more) {
        return Ok(());
    }
    let looser: Vec<&str> =
        RemovalPolicy::ALL.iter().filter(|other| **other > known.policy).map(|p| p.as_str()).collect();
    let rest = match looser.as_slice() {
        [] => "nothing is looser".to_owned(),
        looser => format!("only {} is looser", looser.join(" or ")),
    };
    let message = format!("{machine} is being removed by the policy {} already, and {rest}", known.policy);
    Err(refusal("RemovalUnderWay", message))
}

/// The last control machine must stay in its cluster and swarm: no other machine could take it out, or answer questions
/// about the rest.
pub(super) fn others_are_left(tx: &Transaction<'_>, row: &MachineRow) -> Result<(), Refusal> {
    let member = swarm::is_member(tx, row);
    let mut controls = tx
        .machines_of(&row.spec.cluster_name)
        .filter(|other| other.spec.machine_type == MachineType::Control && other.name != row.name && other.reported())
        .filter(|other| other.removal.is_none() && (!member || swarm::counts(tx, other)));
    let last = row.spec.machine_type == MachineType::Control && row.ready_at.is_some() && controls.next().is_none();
    let (name, cluster, of) = (&row.name, &row.spec.cluster_name, if member { "'s swarm" } else { "" });
    let others: Vec<&str> = tx
        .machines_of(cluster)
        .filter(|other| other.name != *name && other.may_live())
        .map(|other| other.name.as_str())
        .collect();
    let first = if others.is_empty() {
        String::new()
    } else {
        format!("remove the others ({}), then ", safety::some_names(others))
    };
    let message = format!(
        "{name} would be the last control machine of {cluster}{of} to go; `musterctl replace {name}` lets another take \
         its place; to give up the whole cluster: {first}switch {name} off, `musterctl revoke {name} \
         --machine-is-off`, `musterctl delete cluster {cluster}`"
    );
    if last { Err(refusal("LastControl", message)) } else { Ok(()) }
}

pub(super) fn can_be_asked(tx: &Transaction<'_>, row: &MachineRow, limits: &Limits, now: Now) -> Result<(), Refusal> {
    let view = crate::plan::snapshot::MachineView::of(tx, row, limits, now);
    let name = &row.name;
    let problem = match () {
        () if row.revoked => "is revoked",
        () if row.host.is_some() && (view.lost || !view.connected()) => "is not connected",
        () => return Ok(()),
    };
    let message = format!(
        "{name} {problem}, and its agent has to do its part; if the machine is gone for good: \
         `musterctl remove {name} --policy forced`"
    );
    Err(refusal("RemovalNeedsAgent", message))
}

/// Do the rules of updates allow it to go out of service?
pub(super) fn may_take_turn(tx: &Transaction<'_>, row: &MachineRow) -> Result<(), Refusal> {
    let (name, cluster) = (&row.name, &row.spec.cluster_name);
    if row.spec.machine_type == MachineType::Unassigned {
        return Ok(());
    }
    if row.update.as_ref().and_then(|mine| mine.maintenance).is_some_and(|known| known.leaving) {
        return Err(refusal("InMaintenance", format!("{name} is on its way back; it can be removed when it is")));
    }
    let Some(rollout) = tx.open_rollout(cluster) else { return Ok(()) };
    let returns = row.update.as_ref().is_some_and(|mine| mine.returned_at_ms.is_some());
    let disturbed = !returns && update::may_be_at_work(row);
    let problem = match &rollout.update {
        None => "is a deployment that has not ended",
        // A machine whose workloads are returning first completes its part, at its new version.
        Some(_) if returns && row.removal.is_none() => "is giving it its workloads back",
        Some(update) if update.desired == DesiredState::Abort && !disturbed => "is being aborted",
        // Hooks and backups come before any disturbance, and this machine could no longer do its own.
        Some(update) if is_before_open(update) => "has not done its hooks and backups before the update yet",
        Some(_) => return Ok(()),
    };
    let message = format!(
        "{} {problem}: wait until that has passed (`musterctl watch {cluster}`), or `musterctl remove {name} --policy \
         unsafe`",
        rollout.name
    );
    Err(refusal("RolloutOpen", message))
}

/// Would a majority of the control machines be left?
pub(super) fn majority_is_left(
    trial: &crate::facts::Facts,
    row: &MachineRow,
    removing: Removing<'_>,
    now: Now,
) -> Result<(), Refusal> {
    let counts = row.spec.machine_type == MachineType::Control && row.ready_at.is_some();
    let forced = removing.policy == RemovalPolicy::Forced || removing.accept_control_plane_downtime;
    let Some(snapshot) =
        ClusterSnapshot::of(trial, &row.spec.cluster_name, removing.limits, now).filter(|_| counts && !forced)
    else {
        return Ok(());
    };
    let Some(view) = snapshot.machines.iter().find(|view| view.row.name == row.name) else { return Ok(()) };
    safety::majority_stays(&snapshot, view).map_err(|Blocked { message, .. }| {
        refusal("Quorum", format!("{message}; add --accept-control-plane-downtime if that is acceptable"))
    })
}
