//! Recording of a machine's removal.

mod door;

use std::sync::Arc;

use muster_proto::model::{MachineName, MachineType, Now, RemovalPolicy, Scope};

use super::{Options, around, at_rest_reach, freeze::Start, freeze::freeze, freeze::removal_part, refusal};
use crate::{
    core::{Effect, Refusal, Reply, Request, enroll, operators::known_machine},
    facts::{
        AuditObject, Departure, Draft, LockKey, MUSTER, MachineRow, MaintenanceRow, RemovalRow, Stage, UpdateKind,
    },
    plan::{
        Limits,
        removal::{RemovalStep, Step},
        safety,
        survey::Survey,
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
    draft: &mut Draft<'_>,
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
            remove(draft, effects, actor, removing, now)
        }
        Request::AbortRemoval { machine } => abort(draft, actor, machine, now),
        _ => Ok(Reply::Ok),
    }
}

/// Begins a removal, or loosens an ongoing one.
fn remove(
    draft: &mut Draft<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    removing: Removing<'_>,
    now: Now,
) -> Result<Reply, Refusal> {
    let Removing { machine, policy, limits, .. } = removing;
    let row = known_machine(draft, machine)?;
    if let Some(known) = &row.removal {
        door::may_loosen(machine, known, removing)?;
    } else {
        door::others_are_left(draft, &row)?;
    }
    let by_turn = policy == RemovalPolicy::Graceful && row.ready_at.is_some();
    if policy != RemovalPolicy::Forced && row.id.is_some() {
        door::can_be_asked(draft, &row, limits, now)?;
    }
    if by_turn {
        door::may_take_turn(draft, &row)?;
    }
    let mut trial = (**draft).clone();
    begin(&mut Draft::new(&mut trial), actor, removing, by_turn, now);
    door::majority_is_left(&trial, &row, removing, now)?;
    let mut lines = begin(draft, actor, removing, by_turn, now);
    if policy == RemovalPolicy::Forced
        && let Some(id) = row.id
    {
        if !row.revoked {
            enroll::deny(draft, effects, machine, id, "an operator removed this machine", now);
        }
        if let Some(row) = draft.machine_mut(machine) {
            row.revoked = true;
        }
    }
    lines.extend(still_counted(draft, &row));
    lines.extend(few_controls_left(draft, &row));
    lines.extend(row.rollout.as_ref().and_then(|rollout| around::left_out(draft, rollout, Some(machine))));
    draft.audit(actor, "remove", AuditObject::Machine(machine), &lines.join("; "), now.wall_ms);
    Ok(Reply::Done(lines))
}

/// Records that the removal has begun, and returns the report lines.
fn begin(draft: &mut Draft<'_>, actor: &str, removing: Removing<'_>, by_turn: bool, now: Now) -> Vec<String> {
    let Removing { machine, policy, .. } = removing;
    let Some(row) = draft.machines.get(machine).cloned() else { return Vec::new() };
    let known = row.removal.clone();
    let out = row.update.as_ref().and_then(|mine| mine.maintenance).is_some_and(|known| known.since_ms.is_some());
    let (since_ms, revision) = match &known {
        Some(known) => (known.since_ms, known.revision),
        None => (now.wall_ms, draft.next_revision()),
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
    if let Some(row) = draft.machine_mut(machine) {
        row.removal = Some(removal);
        // Its name is taken until it is gone.
        row.replaceable = false;
    }
    let line = if by_turn {
        take_turn(draft, actor, removing, now)
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
    if !by_turn && let Some(mine) = draft.machine_mut(machine).and_then(|row| row.update.as_mut()) {
        mine.maintenance.get_or_insert_with(MaintenanceRow::default);
        mine.set_aside = None;
    }
    vec![line]
}

/// Takes the machine out of service as for maintenance: as part of the open rollout, or of one of its own.
fn take_turn(draft: &mut Draft<'_>, actor: &str, removing: Removing<'_>, now: Now) -> String {
    let Removing { machine, limits, .. } = removing;
    let Some(row) = draft.machines.get(machine).cloned() else { return String::new() };
    // Its accepted downtime is in its own row, so that other machines of a rollout are unaffected.
    let options = &Options::of(Scope::Os);
    let Some(mine) = &row.update else {
        let only = [machine.clone()].into();
        let start = Start { kind: UpdateKind::Removal, options, only: Some(&only) };
        return freeze(draft, &row.spec.cluster_name, &start, actor, limits, now);
    };
    let rollout = row.rollout.clone().unwrap_or_default();
    let part = removal_part(draft, &row, mine);
    around::keep_ends(draft, machine);
    if let Some(row) = draft.machine_mut(machine) {
        if !mine.disturbed() {
            row.reach = at_rest_reach(row);
            // Its unfinished preparation ends here, together with its deadline.
            row.stages.retain(|stage, known| *stage > Stage::PreviousDeployed || known.succeeded);
        }
        row.update = Some(part);
    }
    format!("machine {machine}: is removed when its workloads are away ({rollout})")
}

/// The manifest's remaining references to a removed machine.
fn still_counted(draft: &Draft<'_>, row: &MachineRow) -> Vec<String> {
    let (name, cluster, machine_type) = (&row.name, &row.spec.cluster_name, row.spec.machine_type);
    let left =
        draft.machines_of(cluster).filter(|other| other.spec.machine_type == machine_type).count().saturating_sub(1);
    let wanted =
        draft.spec(cluster).and_then(|spec| spec.machines).map_or(0, |counts| counts.of(machine_type) as usize);
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
fn few_controls_left(draft: &Draft<'_>, row: &MachineRow) -> Option<String> {
    let stays = |other: &&Arc<MachineRow>| {
        let deployed = other.ready_at.is_some() && !other.revoked && other.removal.is_none();
        other.spec.machine_type == MachineType::Control && other.name != row.name && deployed
    };
    let control = row.spec.machine_type == MachineType::Control && row.ready_at.is_some();
    let left = draft.machines_of(&row.spec.cluster_name).filter(stays).count();
    (control && (1..=2).contains(&left)).then(|| {
        let machines = if left == 1 { "1 control machine" } else { "2 control machines" };
        format!(
            "{machines} will be left: what disturbs one of them, as an update or a reconfiguration may, waits until \
             three are deployed, or for --accept-control-plane-downtime"
        )
    })
}

/// Aborts a removal, unless it has made an irreversible change.
fn abort(draft: &mut Draft<'_>, actor: &str, machine: &MachineName, now: Now) -> Result<Reply, Refusal> {
    let row = known_machine(draft, machine)?;
    let Some(known) = row.removal.as_ref() else {
        return Err(refusal("NothingToDo", format!("{machine} is not being removed")));
    };
    if known.policy == RemovalPolicy::Forced {
        let message = format!("{machine} is revoked already; when it is gone, its name is free for a new one");
        return Err(refusal("TooLate", message));
    }
    if known.departure.is_some() {
        let message = format!("{machine} is being taken out of the swarm already; that is not taken back");
        return Err(refusal("TooLate", message));
    }
    give_up(draft, machine);
    let line = match draft.machines.get(machine).map(|row| (&row.update, &row.removal)) {
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
    draft.audit(actor, "remove-abort", AuditObject::Machine(machine), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Gives up a removal before its departure: the machine returns to its former state.
pub(super) fn give_up(draft: &mut Draft<'_>, machine: &MachineName) {
    let Some(row) = draft.machine_mut(machine) else { return };
    let Some(known) = row.removal.as_mut().filter(|known| known.departure.is_none()) else { return };
    let Some(mine) = &mut row.update else {
        row.removal = None;
        return;
    };
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
pub(super) fn in_the_way(survey: &Survey<'_>) -> Option<Refusal> {
    let removed = members(survey).filter(|position| position.row.removal.is_some());
    let names: Vec<&str> = removed.map(|position| position.row.name.as_str()).collect();
    names.first()?;
    let look = safety::for_each("describe machine", names.iter().copied());
    let message = format!("{} being removed; {look}, says what that waits for", safety::some_names_are(names));
    Some(refusal("RolloutOpen", message))
}

/// Records a step.
pub(in crate::core) fn record(draft: &mut Draft<'_>, effects: &mut Vec<Effect>, step: Step, now: Now) {
    let Step { machine, what } = step;
    if what == RemovalStep::Drop {
        drop_machine(draft, effects, &machine, now);
        return;
    }
    match &what {
        RemovalStep::Depart(_) => {
            let look = &mut draft.live_mut(&machine).swarm;
            look.forget_node();
            look.info = None;
        }
        // Earlier answers concern another node, or none.
        RemovalStep::Node(_) => draft.live_mut(&machine).swarm.forget_node(),
        RemovalStep::Drop | RemovalStep::Stay => {}
    }
    let Some(row) = draft.machine_mut(&machine) else { return };
    match what {
        RemovalStep::Stay => row.removal = None,
        RemovalStep::Depart(node) => {
            if let Some(removal) = &mut row.removal {
                removal.departure = Some(Departure { since_ms: now.wall_ms, node });
            }
        }
        RemovalStep::Node(node) => {
            if let Some(departure) = row.removal.as_mut().and_then(|removal| removal.departure.as_mut()) {
                departure.node = node;
            }
        }
        RemovalStep::Drop => {}
    }
}

/// Deletes a removed machine: its identity is refused from now on, its name is free.
fn drop_machine(draft: &mut Draft<'_>, effects: &mut Vec<Effect>, machine: &MachineName, now: Now) {
    let Some(row) = draft.machines.get(machine).cloned() else { return };
    if let Some(id) = row.id.filter(|_| !row.revoked) {
        enroll::deny(draft, effects, machine, id, "this machine was removed", now);
    }
    let cluster = &row.spec.cluster_name;
    let of_it = |key: &&LockKey| key.cluster == *cluster && key.node.as_ref() == Some(machine);
    for key in draft.locks.keys().filter(of_it).cloned().collect::<Vec<_>>() {
        draft.drop_lock(&key);
    }
    around::keep_ends(draft, machine);
    if let Some(update) = row.rollout.as_ref().and_then(|rollout| draft.update_mut(rollout)) {
        update.moved_at_ms = now.wall_ms;
        update.ends += 1;
        // Machines that it blocked are retried.
        update.finished_in_round += 1;
    }
    let line = format!("machine {machine}: removed; its name is free");
    draft.audit(MUSTER, "removed", AuditObject::Machine(machine), &line, now.wall_ms);
    draft.drop_machine(machine);
    draft.drop_unused_specs(cluster);
}
