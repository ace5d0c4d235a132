//! Taking a single machine out of service and bringing it back: preconditions and records.

use muster_proto::model::{Blocked, MachineName, MachineType, Now, RemovalPolicy, Scope};

use super::{Options, at_rest, decides, freeze::Start, freeze::freeze, has_quorum, invalidate::settle, refusal};
use crate::{
    core::{Refusal, Reply, operators::known_machine},
    facts::{AuditObject, DesiredState, MachineRow, OwedCordon, Transaction, UpdateKind},
    plan::{
        Limits, safety,
        snapshot::{ClusterSnapshot, MachineView},
        update::maintenance::members,
    },
};

/// Takes a machine out of service, alone or together with others.
pub(in crate::core) fn enter(
    tx: &mut Transaction<'_>,
    actor: &str,
    machine: &MachineName,
    accept_control_plane_downtime: bool,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    let (cluster, only) = (row.spec.cluster_name.clone(), [machine.clone()].into());
    may_enter(tx, &row, limits, now)?;
    let options = &Options { accept_control_plane_downtime, ..Options::of(Scope::Os) };
    let start = Start { kind: UpdateKind::Maintenance, options, only: Some(&only) };
    let mut trial = (**tx).clone();
    let mut trial = Transaction::new(&mut trial);
    freeze(&mut trial, &cluster, &start, actor, limits, now);
    has_quorum(&trial, &cluster, limits, now)?;
    has_room(&trial, machine, limits, now)?;
    let line = freeze(tx, &cluster, &start, actor, limits, now);
    tx.audit(actor, "maintenance-enter", AuditObject::Machine(machine), &line, now.wall_ms);
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
fn may_enter(tx: &Transaction<'_>, row: &MachineRow, limits: &Limits, now: Now) -> Result<(), Refusal> {
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
    let snapshot = ClusterSnapshot::of(tx, cluster, limits, now);
    snapshot.as_ref().map_or(Ok(()), decides)?;
    let joins = snapshot.as_ref().is_some_and(|snapshot| {
        // An update with a machine that is being removed still counts as an update.
        let open =
            snapshot.update().is_some_and(|update| update.kind.takes_out() && update.desired != DesiredState::Abort);
        members(snapshot).next().is_some() && open
    });
    if !joins {
        at_rest(tx, cluster, limits, now)?;
    }
    let view = MachineView::of(tx, row, limits, now);
    let problem = if row.revoked {
        "is revoked, and no certificate of its agent is good any more"
    } else if row.spec.machine_type == MachineType::Unassigned {
        "is of type `unassigned`, and carries no workloads"
    } else if view.lost || !view.connected() {
        "is not connected: nobody can see to it that nothing runs there"
    } else if !view.is_ready() {
        "is not Ready"
    } else {
        return Ok(());
    };
    Err(refusal("NotReady", format!("{name} {problem}; `musterctl describe machine {name}` says more")))
}

/// Would it get a slot beside those that are out of service?
fn has_room(tx: &Transaction<'_>, machine: &MachineName, limits: &Limits, now: Now) -> Result<(), Refusal> {
    let Some(row) = tx.machines.get(machine) else { return Ok(()) };
    let Some(snapshot) = ClusterSnapshot::of(tx, &row.spec.cluster_name, limits, now) else { return Ok(()) };
    let others: Vec<&str> =
        members(&snapshot).map(|other| other.row.name.as_str()).filter(|name| *name != machine.as_str()).collect();
    let Some(view) = snapshot.machines.iter().find(|view| view.row.name == *machine) else { return Ok(()) };
    let room = match row.spec.machine_type {
        MachineType::Control => safety::one_control_at_a_time(&snapshot),
        MachineType::Worker => safety::controls_before_workers(&snapshot)
            .and_then(|()| safety::workers_within_limit(&snapshot))
            .and_then(|()| safety::within_group_limit(&snapshot, view)),
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
    tx: &mut Transaction<'_>,
    actor: &str,
    machine: &MachineName,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    if row.needs_review {
        return settle(tx, actor, &row, limits, now);
    }
    is_not_removed(&row)?;
    let Some(known) = row.update.as_ref().and_then(|mine| mine.maintenance) else {
        return give_back_node(tx, actor, machine, now);
    };
    let line = format!("machine {machine}: comes back into service");
    if !known.leaving {
        let maintenance = tx.machine_mut(machine).and_then(|row| row.update.as_mut()?.maintenance.as_mut());
        if let Some(maintenance) = maintenance {
            maintenance.leaving = true;
        }
        tx.audit(actor, "maintenance-leave", AuditObject::Machine(machine), &line, now.wall_ms);
    }
    Ok(Reply::Done(vec![line]))
}

/// A Kubernetes node with a cordon that the record does not explain: its operator has looked at it.
fn give_back_node(tx: &mut Transaction<'_>, actor: &str, machine: &MachineName, now: Now) -> Result<Reply, Refusal> {
    let row = tx.machines.get(machine).filter(|row| !row.revoked);
    let Some(owed) = row.and_then(|row| row.owed_cordon.clone()).filter(|owed| owed.needs_review) else {
        return Err(refusal("NothingToDo", format!("{machine} is not in maintenance")));
    };
    let line = format!("machine {machine}: its Kubernetes node {} is given back once its kubelet is Ready", owed.name);
    if let Some(row) = tx.machine_mut(machine) {
        row.owed_cordon = Some(OwedCordon { needs_review: false, ..owed });
    }
    tx.audit(actor, "maintenance-leave", AuditObject::Machine(machine), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// After an operator aborted a rollout, returns the machines that are out of service for it. Reports the removals that
/// this takes back: a removal may wait for the very thing that the abort brings about.
pub(super) fn everybody_leaves(tx: &mut Transaction<'_>, rollout: &str) -> Vec<String> {
    let mut stay = Vec::new();
    let of_this = |row: &MachineRow| {
        row.rollout.as_deref() == Some(rollout) && row.update.as_ref().is_some_and(|mine| mine.maintenance.is_some())
    };
    let names: Vec<MachineName> = tx.machines.values().filter(|row| of_this(row)).map(|row| row.name.clone()).collect();
    for name in names {
        let Some(row) = tx.machines.get(&name) else { continue };
        if let Some(removal) = &row.removal {
            // A dead machine holds up no others, and a disturbed one departs from its present state.
            let departs = row.departs() || removal.policy == RemovalPolicy::Forced || super::may_be_at_work(row);
            if departs {
                continue;
            }
            if !removal.aborting {
                stay.push(format!("machine {name}: stays; its removal is taken back"));
            }
            super::removal::give_up(tx, &name);
        }
        if let Some(row) = tx.machine_mut(&name).and_then(|row| row.update.as_mut()?.maintenance.as_mut()) {
            row.leaving = true;
        }
    }
    stay
}

/// Machines in maintenance block every other rollout.
pub(super) fn in_the_way(snapshot: &ClusterSnapshot<'_>) -> Option<Refusal> {
    let out: Vec<&str> = members(snapshot).map(|view| view.row.name.as_str()).collect();
    out.first()?;
    let leave = safety::for_each("maintenance leave", out.iter().copied());
    let message = format!("{} in maintenance; {leave} ends that", safety::some_names_are(out));
    Some(refusal("RolloutOpen", message))
}
