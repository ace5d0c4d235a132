//! The safety rules (docs/explanation/safety.md): may this machine start now? Each rule is one function, and explains a
//! refusal in words. Only this module grants slots.

mod quorum;
mod slots;

use muster_proto::{
    model::{Blocked, MachineType, Phase, Reason},
    plant::planted,
};

pub use super::names::{for_each, some_names, some_names_are, token_for};
pub use quorum::{
    accepts_downtime, control_quorum, controls_are_there, majority_is_kept, majority_stays, majority_without, successor,
};
pub use slots::{SPREAD_MS, has_worker_slot, within_group_limit, worker_slots_max, workers_within_limit};

use super::{
    locks, recovery,
    survey::{Position, Survey},
    swarm,
    update::{self, groups},
};
use crate::facts::{Facts, UpdateKind};

/// A wait, described in words.
pub(super) fn blocked(reason: Reason, message: impl Into<String>, clears_when: impl Into<String>) -> Blocked {
    Blocked { reason, message: message.into(), clears_when: clears_when.into() }
}

fn holds_slot(position: &Position<'_>) -> bool {
    position.row.slot.is_some()
}

/// Is it being taken out of the swarm?
fn departs(position: &Position<'_>) -> bool {
    position.row.departs()
}

/// Rule 1: at most one control machine of a cluster is between "slot granted" and "outcome recorded".
pub fn one_control_at_a_time(survey: &Survey<'_>) -> Result<(), Blocked> {
    if planted("two-controls") {
        return Ok(());
    }
    let Some(busy) = survey.of_type(MachineType::Control).find(|p| holds_slot(p) || departs(p)) else { return Ok(()) };
    let name = &busy.row.name;
    let (what, until) = if departs(busy) { ("is being removed", "gone") } else { ("holds the slot", "done") };
    let message = format!("control machines go one by one, and {name} {what}");
    Err(blocked(Reason::WaitingForTurn, message, format!("{name} is {until}")))
}

/// A control machine does not take the slot if it would hold it while it waits for the swarm. The machine that has
/// begun to make the swarm may have lost its slot through a recovered store, and then needs it.
pub fn swarm_maker_first(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    let Some(maker) = swarm::waits_for_maker(survey.facts, position.row) else { return Ok(()) };
    Err(blocked(
        Reason::WaitingForTurn,
        format!("{maker} makes the cluster's swarm, has not completed its swarm-join, and goes first"),
        format!("it has (see what {maker} says), or `musterctl skip {maker}`: then the next makes the swarm"),
    ))
}

/// Rule 1, removals: a control machine leaves the swarm only while all others are outside their turns. Unless it is
/// known to be gone, every other must also be there.
pub fn one_control_departs(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    let others = || survey.of_type(MachineType::Control).filter(|other| other.row.name != position.row.name);
    // A dead machine is out of the way: the remaining managers are counted before it is demoted.
    let at_work = |other: &Position<'_>| holds_slot(other) && !other.row.revoked && !position.row.revoked;
    if let Some(busy) = others().find(|other| departs(other) || at_work(other)) {
        let name = &busy.row.name;
        let message = format!("control machines go one by one, and {name} is at its turn");
        return Err(blocked(Reason::WaitingForTurn, message, format!("{name} is done, or removed")));
    }
    if position.row.revoked {
        return Ok(());
    }
    controls_heard(survey, position)?;
    // A machine out of service had its turn while all others were there.
    if !position.in_maintenance() {
        control_quorum(survey, position)?;
    }
    majority_stays(survey, position)
}

/// Rule 1 after a start: only a silent control machine knows what it is doing, because this store may be a copy from
/// before it had its slot. Workers are awaited until all are [`gathered`]. A control machine is awaited until it
/// reports, or until an operator says that it never will: time alone does not prove that it is idle.
pub fn controls_heard(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    let silent = |other: &&Position<'_>| {
        other.row.name != position.row.name && survey.facts.live.awaited.contains(&other.row.name)
    };
    let silent: Vec<&str> =
        survey.of_type(MachineType::Control).filter(silent).map(|other| other.row.name.as_str()).collect();
    if silent.is_empty() || planted("no-gathering") {
        return Ok(());
    }
    let names = some_names(silent);
    Err(blocked(
        Reason::ControlNotHeard,
        format!(
            "control machines go one by one, and {names} has said nothing since the coordinator started: if the store \
             is a restored copy, it may be at work"
        ),
        format!("{names} connects, or `musterctl revoke` says that it never will"),
    ))
}

/// Rule 4: a disruptive item needs its machine's request, every expected lock inactive since then, and a worker free of
/// tasks of Swarm services.
pub fn may_disturb(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    store_is_current(survey)?;
    locks_granted(survey, position)?;
    swarm_drained(survey, position)
}

/// May a machine be disturbed again during its turn? Another control machine may have gone away since. Whether all are
/// deployed was checked at the beginning of the turn: this machine cannot go back, and they could not come before it.
pub fn may_disturb_again(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    may_disturb(survey, position)?;
    let control = position.row.spec.machine_type == MachineType::Control;
    // Seeded bug: check the quorum only at the beginning of a turn.
    if control && !planted("quorum-once") { controls_are_there(survey, position) } else { Ok(()) }
}

/// Rule 4, the Swarm alone.
pub fn swarm_drained(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    // Seeded bug: disturb a worker in spite of its tasks.
    let ignored = position.row.spec.machine_type == MachineType::Worker && planted("ignore-swarm-tasks");
    if ignored { Ok(()) } else { update::drain::reached(survey, position) }
}

/// Rule 4 for a machine that is out of service and leaves for good, which is final as well.
pub fn may_leave(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    store_is_current(survey)?;
    locks_let_leave(survey, position)?;
    swarm_drained(survey, position)
}

/// As [`may_leave`], the locks alone: also those of its cluster, unless it was disturbed before.
pub fn locks_let_leave(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    locks_granted(survey, position)?;
    let disturbed = position.update().is_some_and(|mine| mine.disturbed());
    survey.update().filter(|_| !disturbed).map_or(Ok(()), |row| update::cluster_lets(survey, row))
}

/// Rule 4, the locks alone.
pub fn locks_granted(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    let request = position.update().and_then(|mine| mine.request.as_ref());
    let Some(request) = request else {
        return Err(blocked(Reason::LocksActive, "no maintenance was requested for it", "its turn comes"));
    };
    locks::granted(survey, Some(position.row), request)
}

/// May a machine with inactive locks be disturbed for the first time?
pub fn may_begin(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    may_start_anything(survey)?;
    if position.update().is_some_and(|mine| mine.disruptive) {
        update::is_open(survey)?;
    }
    others_can_spare(survey, position)
}

/// Can the control plane do without this control machine, and could this worker join the swarm again? A pause of the
/// update does not hide what is missing here.
pub fn others_can_spare(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    match position.row.spec.machine_type {
        MachineType::Control => control_quorum(survey, position),
        MachineType::Worker => swarm_before_workers(survey, position),
        MachineType::Unassigned => Ok(()),
    }
}

/// Update groups go in the order of their indexes: a worker waits until all workers of earlier groups have ended, or
/// are out of the way.
pub fn earlier_groups_first(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    let Some(names) = groups::open_before(survey, position).filter(|_| !planted("any-group")) else { return Ok(()) };
    Err(blocked(
        Reason::WaitingForGroup,
        format!("update groups go in order; {names} of an earlier one is not through"),
        format!("{names} is done, or put aside"),
    ))
}

/// Rule 3: workers wait until every control machine of the rollout is Ready.
pub fn controls_before_workers(survey: &Survey<'_>) -> Result<(), Blocked> {
    if planted("workers-first") {
        return Ok(());
    }
    let open: Vec<&str> = survey
        .of_type(MachineType::Control)
        .filter(|position| !position.row.revoked && is_behind(survey, position))
        .map(|position| position.row.name.as_str())
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    let (names, are) = (some_names(open.iter().copied()), some_names_are(open));
    Err(blocked(
        Reason::WaitingForControl,
        format!("workers go when every control machine is Ready; not yet: {names}"),
        format!("{are} Ready"),
    ))
}

/// A worker waits if its swarm-join could not end in this update: the only control machine that could let it in was
/// replaced, and is deployed after the update.
pub fn swarm_before_workers(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    let runs_items = position.update().is_some_and(|mine| mine.maintenance.is_none());
    let Some(rollout) = survey.rollout.filter(|_| runs_items) else { return Ok(()) };
    let Some(control) = swarm::awaits_deployment(survey.facts, position.row) else { return Ok(()) };
    Err(blocked(
        Reason::ControlNotDeployed,
        format!("control machine {control} is not deployed, and nobody else could let this one into the swarm"),
        format!("`musterctl abort {}`: {control} is deployed then; start the update again after that", rollout.name),
    ))
}

/// Is this control machine still unfinished in this rollout?
fn is_behind(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    if !survey.joined(position) {
        // A rollout ends without machines under removal. Work that one of them was told to do may go on until it is
        // gone.
        let leaves = position.row.removal.is_some() && position.row.rollout.is_some();
        return leaves && (!position.ready_once() || holds_slot(position) || position.update().is_some());
    }
    match survey.update() {
        // A machine that was lost when the control set changed is outside this update, and has yet to see the set.
        Some(update) => position.update().is_some() || (update.kind == UpdateKind::Reconfigure && position.lost),
        None => !position.is_ready() || reconfigured_at_once(survey, position),
    }
}

/// The failure budget: once it is used up, new starts stop.
pub fn within_budget(survey: &Survey<'_>) -> Result<(), Blocked> {
    if planted("ignore-budget") {
        return Ok(());
    }
    let (failures, most) = (survey.failures, survey.spec.max_failures);
    let spent = |failed: u32, most: u32| failed >= most.max(1);
    if !spent(failures.control, most.control) && !spent(failures.worker, most.worker) {
        return Ok(());
    }
    let names = some_names(
        survey.machines.iter().filter(|p| survey.joined(p) && p.counts_as_failure()).map(|p| p.row.name.as_str()),
    );
    Err(blocked(
        Reason::FailureBudget,
        format!(
            "{} control and {} worker machines failed or are lost ({names}); new starts stop at {} control \
             or {} worker",
            failures.control, failures.worker, most.control, most.worker
        ),
        "`musterctl retry` or `skip` on them succeeds, or the lost ones return",
    ))
}

/// After a start: new slots wait until every machine that may hold one has reported.
pub fn gathered(survey: &Survey<'_>) -> Result<(), Blocked> {
    if planted("no-gathering") {
        return Ok(());
    }
    if survey.gathering.is_empty() {
        return if survey.facts.meta.recovering { recovery::settled(survey) } else { Ok(()) };
    }
    // A reader may lack access to the names of other clusters.
    let ours = |name: &&str| survey.machines.iter().any(|position| position.row.name.as_str() == *name);
    let ours: Vec<&str> = survey.gathering.iter().map(|name| name.as_str()).filter(ours).collect();
    let names = if ours.is_empty() { "machines of other clusters".to_owned() } else { some_names(ours) };
    let limit = if survey.facts.meta.recovering {
        "they report; or `musterctl replace` or `revoke` says that they never will, as they were"
    } else {
        "they report, or the time after which they count as Lost has passed"
    };
    Err(blocked(Reason::Gathering, format!("the coordinator has just started and waits for {names}"), limit))
}

/// The third remedy if a single machine claims that the store is older than the fleet.
#[must_use]
pub fn instead_of_recovery(facts: &Facts) -> String {
    let revoked = |name| format!("; or `musterctl revoke {name}`: no other machine says so, and the others go on then");
    facts.only_witness().map(revoked).unwrap_or_default()
}

/// A store that is older than the fleet must not decide anything.
pub fn store_is_current(survey: &Survey<'_>) -> Result<(), Blocked> {
    match survey.facts.live.older_than_fleet() {
        Some(evidence) if !planted("trust-old-store") => Err(blocked(
            Reason::StoreOlderThanFleet,
            format!("this coordinator's store is older than the fleet: {evidence}"),
            format!(
                "the newest store is restored, or `muster-coordinator recover` was run{}",
                instead_of_recovery(survey.facts)
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Is there `reconfigure` work for this machine: has the control set changed since it last saw it? A machine that lacks
/// deploy items waits for an update first. They would run there too, and after `recover` perhaps in an obsolete
/// version.
#[must_use]
pub fn needs_reconfigure(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let sets = &position.row.control_sets;
    let seen = sets.get(&Phase::Reconfigure).or_else(|| sets.get(&Phase::Deploy));
    let items = position.items.unwrap_or_default();
    position.ready_once()
        && !survey.cluster.control_set.is_empty()
        && items.iter().any(|item| item.phase == Phase::Reconfigure)
        && seen.is_none_or(|seen| survey.cluster.is_other_than(seen))
        && !position.is_behind(Phase::Deploy)
}

/// Rule 4: is it reconfigured as part of the deployment that made it Ready, rather than by request? Only while the
/// control plane is built up: until the first worker has been Ready, there is nothing to disturb.
#[must_use]
pub fn reconfigured_at_once(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let control = position.row.spec.machine_type == MachineType::Control;
    let built_up = control && !survey.of_type(MachineType::Worker).any(Position::ready_once);
    // Seeded bug: ignore existing workloads.
    let unasked = built_up || planted("reconfigure-unasked");
    survey.update().is_none() && survey.joined(position) && unasked && needs_reconfigure(survey, position)
}

/// Requests and disturbances of an update wait until the hooks before it are done, skipped or accepted.
pub fn before_update_done(survey: &Survey<'_>) -> Result<(), Blocked> {
    // Seeded bug: start the update before its hooks are done.
    if planted("ignore-hooks-before") { Ok(()) } else { update::around::before(survey) }
}

/// Conditions of every start.
pub fn may_start_anything(survey: &Survey<'_>) -> Result<(), Blocked> {
    may_start_hooks(survey)?;
    before_update_done(survey)?;
    within_budget(survey)
}

/// Conditions for a start of hooks. The budget does not apply: before an update nothing can have failed, and after it
/// the update is over.
pub fn may_start_hooks(survey: &Survey<'_>) -> Result<(), Blocked> {
    store_is_current(survey)?;
    gathered(survey)
}

/// May this machine be granted a slot now?
pub fn may_take_slot(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    may_start_anything(survey)?;
    let disturbs = position.update().is_some() && update::disturbs(survey, position);
    if disturbs {
        update::is_open(survey)?;
    }
    match position.row.spec.machine_type {
        MachineType::Control => {
            one_control_at_a_time(survey)?;
            controls_heard(survey, position)?;
            swarm_maker_first(survey, position)?;
            control_quorum(survey, position)?;
        }
        MachineType::Worker => {
            controls_before_workers(survey)?;
            swarm_before_workers(survey, position)?;
            earlier_groups_first(survey, position)?;
            workers_within_limit(survey)?;
            within_group_limit(survey, position)?;
        }
        MachineType::Unassigned => {
            return Err(blocked(
                Reason::Unassigned,
                "a machine of type `unassigned` gets no items",
                "its Machine document gives it the type control or worker",
            ));
        }
    }
    // Last, because its deadline runs from the machine's turn on.
    if disturbs { locks::may_request(survey, Some(&position.row.name)) } else { Ok(()) }
}
