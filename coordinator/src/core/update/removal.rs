//! Recording of a machine's removal.

mod preconditions;

use std::sync::Arc;

use muster_proto::model::{MachineName, MachineType, Now, RemovalPolicy, Scope};

use super::{Options, at_rest_phase, freeze::Start, freeze::freeze, freeze::removal_part, hooks, refusal};
use crate::{
    core::{Effect, Refusal, Reply, Request, enroll, operators::known_machine},
    facts::{
        AuditObject, DepartingObject, Departure, LockKey, MUSTER, MachineRow, MaintenanceRow, RemovalRow, Stage,
        Transaction, UpdateKind,
    },
    plan::{
        Limits,
        removal::{RemovalStep, Step, kubernetes},
        safety,
        snapshot::ClusterSnapshot,
        update::maintenance::members,
    },
};

/// Parameters of a removal.
#[derive(Clone, Copy, Debug)]
struct Removing<'a> {
    /// The machine.
    machine: &'a MachineName,
    /// The policy.
    policy: RemovalPolicy,
    /// Skip the majority check: the control plane may be down for a while.
    accept_control_plane_downtime: bool,
    /// The limits for judging machines.
    limits: &'a Limits,
}

/// Handles an operator's request about a removal.
pub(in crate::core) fn take(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    request: &Request,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    match request {
        Request::Remove { machine, policy, accept_control_plane_downtime } => {
            let accept_control_plane_downtime = *accept_control_plane_downtime;
            let removing = Removing { machine, policy: *policy, accept_control_plane_downtime, limits };
            remove(tx, effects, actor, removing, now)
        }
        Request::AbortRemoval { machine } => abort(tx, actor, machine, now),
        _ => Ok(Reply::Ok),
    }
}

/// Begins a removal, or loosens an ongoing one.
fn remove(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    removing: Removing<'_>,
    now: Now,
) -> Result<Reply, Refusal> {
    let Removing { machine, policy, limits, .. } = removing;
    let row = known_machine(tx, machine)?;
    if let Some(known) = &row.removal {
        preconditions::may_loosen(machine, known, removing)?;
    } else {
        preconditions::others_are_left(tx, &row)?;
    }
    let by_turn = policy == RemovalPolicy::Graceful && row.ready_at.is_some();
    if policy != RemovalPolicy::Forced && row.id.is_some() {
        preconditions::can_be_asked(tx, &row, limits, now)?;
    }
    if by_turn {
        preconditions::may_take_turn(tx, &row)?;
    }
    let mut trial = (**tx).clone();
    begin(&mut Transaction::new(&mut trial), actor, removing, by_turn, now);
    preconditions::majority_is_left(&trial, &row, removing, now)?;
    let mut lines = begin(tx, actor, removing, by_turn, now);
    if policy == RemovalPolicy::Forced
        && let Some(id) = row.id
    {
        if !row.revoked {
            enroll::deny(tx, effects, machine, id, "an operator removed this machine", now);
        }
        if let Some(row) = tx.machine_mut(machine) {
            row.revoked = true;
        }
    }
    lines.extend(node_may_be_left(tx, &row, policy));
    lines.extend(still_counted(tx, &row));
    lines.extend(few_controls_left(tx, &row));
    lines.extend(row.rollout.as_ref().and_then(|rollout| hooks::left_out(tx, rollout, Some(machine))));
    tx.audit(actor, "remove", AuditObject::Machine(machine), &lines.join("; "), now.wall_ms);
    Ok(Reply::Done(lines))
}

/// Records that the removal has begun, and returns the report lines.
fn begin(tx: &mut Transaction<'_>, actor: &str, removing: Removing<'_>, by_turn: bool, now: Now) -> Vec<String> {
    let Removing { machine, policy, .. } = removing;
    let Some(row) = tx.machines.get(machine).cloned() else { return Vec::new() };
    let known = row.removal.clone();
    let out = row.update.as_ref().and_then(|mine| mine.maintenance).is_some_and(|known| known.since_ms.is_some());
    let (since_ms, revision) = match &known {
        Some(known) => (known.since_ms, known.revision),
        None => (now.wall_ms, tx.next_revision()),
    };
    let removal = RemovalRow {
        since_ms,
        revision,
        policy,
        by_turn,
        accept_control_plane_downtime: removing.accept_control_plane_downtime
            || known.as_ref().is_some_and(|known| known.accept_control_plane_downtime),
        from_maintenance: known.as_ref().map_or(out, |known| known.from_maintenance),
        aborting: false,
        departure: known.and_then(|known| known.departure),
    };
    if let Some(row) = tx.machine_mut(machine) {
        row.removal = Some(removal);
        // Its name is taken until it is gone.
        row.replaceable = false;
    }
    let line = if by_turn {
        take_turn(tx, actor, removing, now)
    } else {
        match policy {
            RemovalPolicy::Graceful => {
                format!("machine {machine}: is removed; it was never Ready, and has no workloads")
            }
            RemovalPolicy::Unsafe => {
                format!("machine {machine}: is removed without waiting for its workloads: what runs there is cut off")
            }
            RemovalPolicy::Forced => format!(
                "machine {machine}: revoked, and removed without being asked; if it is not off, what runs there goes on"
            ),
        }
    };
    if !by_turn && let Some(mine) = tx.machine_mut(machine).and_then(|row| row.update.as_mut()) {
        mine.maintenance.get_or_insert_with(MaintenanceRow::default);
        mine.deferral = None;
    }
    vec![line]
}

/// Takes the machine out of service as for maintenance: as part of the open rollout, or of one of its own.
fn take_turn(tx: &mut Transaction<'_>, actor: &str, removing: Removing<'_>, now: Now) -> String {
    let Removing { machine, limits, .. } = removing;
    let Some(row) = tx.machines.get(machine).cloned() else { return String::new() };
    // Its accepted downtime is in its own row, so that other machines of a rollout are unaffected.
    let options = &Options::of(Scope::Os);
    let Some(mine) = &row.update else {
        let only = [machine.clone()].into();
        let start = Start { kind: UpdateKind::Removal, options, only: Some(&only) };
        return freeze(tx, &row.spec.cluster_name, &start, actor, limits, now);
    };
    let rollout = row.rollout.clone().unwrap_or_default();
    let part = removal_part(tx, &row, mine);
    hooks::keep_ends(tx, machine);
    if let Some(row) = tx.machine_mut(machine) {
        if !mine.disturbed() {
            row.max_phase = at_rest_phase(row);
            // Its unfinished preparation ends here, together with its deadline.
            row.stages.retain(|stage, known| *stage > Stage::PreviousDeployed || known.succeeded);
        }
        row.update = Some(part);
    }
    format!("machine {machine}: is removed when its workloads are away ({rollout})")
}

/// What becomes of its node in Kubernetes if nobody there answers.
fn node_may_be_left(tx: &Transaction<'_>, row: &MachineRow, policy: RemovalPolicy) -> Option<String> {
    let has_kubernetes = tx.spec(&row.spec.cluster_name).is_some_and(|spec| spec.kubernetes.is_some());
    (has_kubernetes && policy == RemovalPolicy::Forced).then(|| {
        format!(
            "its Kubernetes node is deleted; if that takes longer than {} min, it is left behind, and \
             `musterctl get audit` says so",
            kubernetes::NODE_GONE_MS / 60_000
        )
    })
}

/// The manifest's remaining references to a removed machine.
fn still_counted(tx: &Transaction<'_>, row: &MachineRow) -> Vec<String> {
    let (name, cluster, machine_type) = (&row.name, &row.spec.cluster_name, row.spec.machine_type);
    let left =
        tx.machines_of(cluster).filter(|other| other.spec.machine_type == machine_type).count().saturating_sub(1);
    let wanted = tx.spec(cluster).and_then(|spec| spec.machines).map_or(0, |counts| counts.of(machine_type) as usize);
    let counted = (wanted > left).then(|| {
        format!(
            "spec.machines of {cluster} says {wanted} {machine_type} machines, and {left} will be left: apply a \
             manifest that says so, or let another machine enrol"
        )
    });
    let declared = row.declared.then(|| {
        format!(
            "its Machine document goes with it: take {name} out of the manifest too, or the next `musterctl apply` \
             declares it anew"
        )
    });
    counted.into_iter().chain(declared).collect()
}

/// What follows for the remaining control machines: with two of them, both are needed for a majority.
fn few_controls_left(tx: &Transaction<'_>, row: &MachineRow) -> Option<String> {
    let stays = |other: &&Arc<MachineRow>| {
        let deployed = other.ready_at.is_some() && !other.revoked && other.removal.is_none();
        other.spec.machine_type == MachineType::Control && other.name != row.name && deployed
    };
    let control = row.spec.machine_type == MachineType::Control && row.ready_at.is_some();
    let left = tx.machines_of(&row.spec.cluster_name).filter(stays).count();
    (control && (1..=2).contains(&left)).then(|| {
        let machines = if left == 1 { "1 control machine" } else { "2 control machines" };
        format!(
            "{machines} will be left: what disturbs one of them, as an update or a reconfiguration may, waits until \
             three are deployed, or for --accept-control-plane-downtime"
        )
    })
}

/// Aborts a removal, unless it has made an irreversible change.
fn abort(tx: &mut Transaction<'_>, actor: &str, machine: &MachineName, now: Now) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    let Some(known) = row.removal.as_ref() else {
        return Err(refusal("NothingToDo", format!("{machine} is not being removed")));
    };
    if known.policy == RemovalPolicy::Forced {
        let message = format!("{machine} is revoked already; when it is gone, its name is free for a new one");
        return Err(refusal("TooLate", message));
    }
    if known.departure.is_some() {
        let message = format!("{machine} is being taken out of its cluster already; that is not taken back");
        return Err(refusal("TooLate", message));
    }
    give_up(tx, machine);
    let line = match tx.machines.get(machine).map(|row| (&row.update, &row.removal)) {
        // It has left the update for good.
        Some((Some(_), Some(_))) => {
            let cluster = &row.spec.cluster_name;
            format!(
                "machine {machine}: stays; what it holds is given back. Of an update that is under way it is no part \
                 any more: `musterctl update {cluster}` after its end brings it to the newest manifest"
            )
        }
        Some((Some(_), None)) => format!("machine {machine}: stays, and goes on where it was"),
        Some((None, _)) | None => format!("machine {machine}: stays"),
    };
    tx.audit(actor, "remove-abort", AuditObject::Machine(machine), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Gives up a removal before its departure: the machine returns to its former state.
pub(super) fn give_up(tx: &mut Transaction<'_>, machine: &MachineName) {
    let Some(row) = tx.machine_mut(machine) else { return };
    let Some(known) = row.removal.as_mut().filter(|known| known.departure.is_none()) else { return };
    let Some(mine) = &mut row.update else {
        row.removal = None;
        return;
    };
    mine.standing_deletion = None;
    if known.from_maintenance {
        // It was out of service before, and stays so.
        mine.stuck = None;
        row.removal = None;
    } else if mine.disturbed() {
        mine.maintenance = None;
        row.removal = None;
    } else {
        known.aborting = true;
        mine.maintenance.get_or_insert_with(MaintenanceRow::default).leaving = true;
    }
}

/// While machines that are being removed are part of a rollout, they block every other rollout.
pub(super) fn in_the_way(snapshot: &ClusterSnapshot<'_>) -> Option<Refusal> {
    let removed = members(snapshot).filter(|view| view.row.removal.is_some());
    let names: Vec<&str> = removed.map(|view| view.row.name.as_str()).collect();
    names.first()?;
    let look = safety::for_each("describe machine", names.iter().copied());
    let message = format!("{} being removed; {look}, says what that waits for", safety::some_names_are(names));
    Some(refusal("RolloutOpen", message))
}

/// Records a step.
pub(in crate::core) fn record(tx: &mut Transaction<'_>, effects: &mut Vec<Effect>, step: Step, now: Now) {
    let Step { machine, what } = step;
    if what == RemovalStep::Drop {
        drop_machine(tx, effects, &machine, now);
        return;
    }
    match &what {
        RemovalStep::Depart(_) => {
            let look = &mut tx.live_mut(&machine).swarm;
            look.forget_node();
            look.info = None;
            tx.live_mut(&machine).kubernetes.forget_nodes();
        }
        // Earlier answers concern another node, or none.
        RemovalStep::Node(_) => {
            let live = tx.live_mut(&machine);
            live.swarm.forget_node();
            live.kubernetes.forget_nodes();
        }
        RemovalStep::Object(_) | RemovalStep::Drop | RemovalStep::Stay => {}
    }
    let Some(row) = tx.machine_mut(&machine) else { return };
    match what {
        RemovalStep::Stay => row.removal = None,
        RemovalStep::Depart(node) => {
            if let Some(removal) = &mut row.removal {
                let (since_ms, object) = (now.wall_ms, DepartingObject::Unknown);
                removal.departure = Some(Departure { since_ms, node, object, object_since_ms: since_ms });
            }
        }
        RemovalStep::Node(node) => {
            if let Some(departure) = row.removal.as_mut().and_then(|removal| removal.departure.as_mut()) {
                (departure.node, departure.object_since_ms) = (node, now.wall_ms);
            }
        }
        RemovalStep::Object(object) => {
            if let Some(departure) = row.removal.as_mut().and_then(|removal| removal.departure.as_mut()) {
                (departure.object, departure.object_since_ms) = (object, now.wall_ms);
            }
        }
        RemovalStep::Drop => {}
    }
}

/// Deletes a removed machine: its identity is refused from now on, its name is free.
fn drop_machine(tx: &mut Transaction<'_>, effects: &mut Vec<Effect>, machine: &MachineName, now: Now) {
    let Some(row) = tx.machines.get(machine).cloned() else { return };
    if let Some(id) = row.id.filter(|_| !row.revoked) {
        enroll::deny(tx, effects, machine, id, "this machine was removed", now);
    }
    let cluster = &row.spec.cluster_name;
    let of_it = |key: &&LockKey| key.cluster == *cluster && key.node.as_ref() == Some(machine);
    for key in tx.locks.keys().filter(of_it).cloned().collect::<Vec<_>>() {
        tx.drop_lock(&key);
    }
    hooks::keep_ends(tx, machine);
    if let Some(update) = row.rollout.as_ref().and_then(|rollout| tx.update_mut(rollout)) {
        update.moved_at_ms = now.wall_ms;
        update.ends += 1;
        // Machines that it blocked are retried.
        update.finished_in_round += 1;
    }
    let left = kubernetes::left_behind(tx, &row);
    let left = left.map(|left| format!("; {left}")).unwrap_or_default();
    let line = format!("machine {machine}: removed; its name is free{left}");
    tx.audit(MUSTER, "removed", AuditObject::Machine(machine), &line, now.wall_ms);
    tx.drop_machine(machine);
    tx.drop_unused_specs(cluster);
}
