//! Taking a single machine out of service and bringing it back: preconditions and records.

use muster_proto::model::{Blocked, MachineName, MachineType, Now, RemovalPolicy, Scope};

use super::{Options, at_rest, decides, distrust::settle, freeze::Start, freeze::freeze, has_quorum, refusal};
use crate::{
    core::{Refusal, Reply, operators::known_machine},
    facts::{AuditObject, Draft, MachineRow, UpdateKind, Wish},
    plan::{
        Limits, safety,
        survey::{Position, Survey},
        update::maintenance::members,
    },
};

/// Takes a machine out of service, alone or together with others.
pub(in crate::core) fn enter(
    draft: &mut Draft<'_>,
    actor: &str,
    machine: &MachineName,
    accept_control_plane_downtime: bool,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(draft, machine)?;
    let (cluster, only) = (row.spec.cluster_name.clone(), [machine.clone()].into());
    may_enter(draft, &row, limits, now)?;
    let options = &Options { accept_control_plane_downtime, ..Options::of(Scope::Os) };
    let start = Start { kind: UpdateKind::Maintenance, options, only: Some(&only) };
    let mut trial = (**draft).clone();
    let mut trial = Draft::new(&mut trial);
    freeze(&mut trial, &cluster, &start, actor, limits, now);
    has_quorum(&trial, &cluster, limits, now)?;
    has_room(&trial, machine, limits, now)?;
    let line = freeze(draft, &cluster, &start, actor, limits, now);
    draft.audit(actor, "maintenance-enter", AuditObject::Machine(machine), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// A machine that is being removed already goes out of service, permanently.
pub(super) fn is_not_removed(row: &MachineRow) -> Result<(), Refusal> {
    let name = &row.name;
    match row.removal {
        Some(_) => Err(refusal(
            "RemovalUnderWay",
            format!("{name} is being removed; `musterctl remove {name} --abort` takes that back, as long as it can be"),
        )),
        None => Ok(()),
    }
}

/// Is the cluster at rest apart from others in maintenance, and is the machine Ready and connected?
fn may_enter(draft: &Draft<'_>, row: &MachineRow, limits: &Limits, now: Now) -> Result<(), Refusal> {
    let (cluster, name) = (&row.spec.cluster_name, &row.name);
    is_not_removed(row)?;
    if let Some(mine) = row.update.as_ref().and_then(|update| update.maintenance) {
        let message = match (mine.leaving, mine.since_ms) {
            (true, _) => format!("{name} is on its way back; it can go again when it is (`musterctl watch {cluster}`)"),
            (false, Some(_)) => {
                format!("{name} is in maintenance already; `musterctl maintenance leave {name}` ends it")
            }
            (false, None) => format!("{name} is on its way into maintenance already; `musterctl watch {cluster}`"),
        };
        return Err(refusal("InMaintenance", message));
    }
    let survey = Survey::of(draft, cluster, limits, now);
    survey.as_ref().map_or(Ok(()), decides)?;
    let joins = survey.as_ref().is_some_and(|survey| {
        // An update with a machine that is being removed still counts as an update.
        let open = survey.update().is_some_and(|update| update.kind.takes_out() && update.wish != Wish::Abort);
        members(survey).next().is_some() && open
    });
    if !joins {
        at_rest(draft, cluster, limits, now)?;
    }
    let position = Position::of(draft, row, limits, now);
    let problem = if row.revoked {
        "is revoked, and no certificate of its agent is good any more"
    } else if row.spec.machine_type == MachineType::Unassigned {
        "is of type `unassigned`, and carries no workloads"
    } else if position.lost || !position.connected() {
        "is not connected: nobody can see to it that nothing runs there"
    } else if !position.is_ready() {
        "is not Ready"
    } else {
        return Ok(());
    };
    Err(refusal("NotReady", format!("{name} {problem}; `musterctl describe machine {name}` says more")))
}

/// Would it get a slot beside those that are out of service?
fn has_room(draft: &Draft<'_>, machine: &MachineName, limits: &Limits, now: Now) -> Result<(), Refusal> {
    let Some(row) = draft.machines.get(machine) else { return Ok(()) };
    let Some(survey) = Survey::of(draft, &row.spec.cluster_name, limits, now) else { return Ok(()) };
    let others: Vec<&str> =
        members(&survey).map(|other| other.row.name.as_str()).filter(|name| *name != machine.as_str()).collect();
    let Some(position) = survey.machines.iter().find(|position| position.row.name == *machine) else { return Ok(()) };
    let room = match row.spec.machine_type {
        MachineType::Control => safety::one_control_at_a_time(&survey),
        MachineType::Worker => safety::controls_before_workers(&survey)
            .and_then(|()| safety::workers_within_limit(&survey))
            .and_then(|()| safety::within_group_limit(&survey, position)),
        MachineType::Unassigned => Ok(()),
    };
    room.map_err(|Blocked { message, .. }| {
        let leave = safety::for_each("maintenance leave", others.iter().copied());
        let names = safety::some_names_are(others);
        let message = format!("{names} in maintenance, and {message}; {leave} makes room");
        refusal("NoRoom", message)
    })
}

/// Returns a machine to service. Idempotent.
pub(in crate::core) fn leave(
    draft: &mut Draft<'_>,
    actor: &str,
    machine: &MachineName,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(draft, machine)?;
    if row.in_doubt {
        return settle(draft, actor, &row, limits, now);
    }
    is_not_removed(&row)?;
    let Some(known) = row.update.as_ref().and_then(|mine| mine.maintenance) else {
        return Err(refusal("NothingToDo", format!("{machine} is not in maintenance")));
    };
    let line = format!("machine {machine}: comes back into service");
    if !known.leaving {
        let maintenance = draft.machine_mut(machine).and_then(|row| row.update.as_mut()?.maintenance.as_mut());
        if let Some(maintenance) = maintenance {
            maintenance.leaving = true;
        }
        draft.audit(actor, "maintenance-leave", AuditObject::Machine(machine), &line, now.wall_ms);
    }
    Ok(Reply::Done(vec![line]))
}

/// After an operator aborted a rollout, returns the machines that are out of service for it. Reports the removals that
/// this takes back: a removal may wait for the very thing that the abort brings about.
pub(super) fn everybody_leaves(draft: &mut Draft<'_>, rollout: &str) -> Vec<String> {
    let mut stay = Vec::new();
    let of_this = |row: &MachineRow| {
        row.rollout.as_deref() == Some(rollout) && row.update.as_ref().is_some_and(|mine| mine.maintenance.is_some())
    };
    let names: Vec<MachineName> =
        draft.machines.values().filter(|row| of_this(row)).map(|row| row.name.clone()).collect();
    for name in names {
        let Some(row) = draft.machines.get(&name) else { continue };
        if let Some(removal) = &row.removal {
            // A dead machine holds up no others, and a disturbed one departs from its present state.
            let departs = row.departs() || removal.policy == RemovalPolicy::Forced || super::may_be_at_work(row);
            if departs {
                continue;
            }
            if !removal.aborting {
                stay.push(format!("machine {name}: stays; its removal is taken back"));
            }
            super::removal::give_up(draft, &name);
        }
        if let Some(row) = draft.machine_mut(&name).and_then(|row| row.update.as_mut()?.maintenance.as_mut()) {
            row.leaving = true;
        }
    }
    stay
}

/// Machines in maintenance block every other rollout.
pub(super) fn in_the_way(survey: &Survey<'_>) -> Option<Refusal> {
    let out: Vec<&str> = members(survey).map(|position| position.row.name.as_str()).collect();
    out.first()?;
    let leave = safety::for_each("maintenance leave", out.iter().copied());
    let message = format!("{} in maintenance; {leave} ends that", safety::some_names_are(out));
    Some(refusal("RolloutOpen", message))
}
