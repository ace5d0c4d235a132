//! The safety rules (docs/ARCHITECTURE.md, "Safety rules"): may this machine start now? Every rule is one function, and
//! says in words why not. Nothing else in Muster grants a slot.

use muster_proto::{
    model::{Blocked, MachineType, Phase, WORKERS_AT_ONCE_MAX},
    plant::planted,
};

use super::survey::{Position, Survey};

/// Names shown in one sentence; the rest is counted.
const NAMES_SHOWN_MAX: usize = 4;

/// A wait in words.
pub(super) fn blocked(reason: &str, message: impl Into<String>, clears_when: impl Into<String>) -> Blocked {
    Blocked { reason: reason.to_owned(), message: message.into(), clears_when: clears_when.into() }
}

/// The first few names, and how many more there are.
pub(super) fn some_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let shown = names.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Does the machine hold a slot?
fn holds_slot(position: &Position<'_>) -> bool {
    position.row.slot.is_some()
}

/// Slots of workers that are in use.
#[must_use]
pub fn worker_slots_used(survey: &Survey<'_>) -> usize {
    survey.of_type(MachineType::Worker).filter(|position| holds_slot(position)).count()
}

/// Slots of workers that may be in use at once: what is configured, and never more than 50.
#[must_use]
pub fn worker_slots_max(survey: &Survey<'_>) -> usize {
    let configured = survey.spec.max_worker_deploy_count;
    if planted("grant-51") {
        return configured as usize + 1;
    }
    configured.min(WORKERS_AT_ONCE_MAX) as usize
}

/// Rule 1: at most one control machine of a cluster is between "slot granted" and "outcome recorded".
pub fn one_control_at_a_time(survey: &Survey<'_>) -> Result<(), Blocked> {
    if planted("two-controls") {
        return Ok(());
    }
    match survey.of_type(MachineType::Control).find(|position| holds_slot(position)) {
        None => Ok(()),
        Some(busy) => Err(blocked(
            "WaitingForTurn",
            format!("control machines go one by one, and {} holds the slot", busy.row.name),
            format!("{} is done", busy.row.name),
        )),
    }
}

/// Rule 2: at most min(configured, 50) workers hold a slot together.
pub fn workers_within_limit(survey: &Survey<'_>) -> Result<(), Blocked> {
    let (used, most) = (worker_slots_used(survey), worker_slots_max(survey));
    if used < most {
        return Ok(());
    }
    Err(blocked("WaitingForTurn", format!("{used} of {most} worker slots are in use"), "a worker is done"))
}

/// Rule 3: no worker goes before every control machine of the rollout is Ready.
pub fn controls_before_workers(survey: &Survey<'_>) -> Result<(), Blocked> {
    if planted("workers-first") {
        return Ok(());
    }
    let open: Vec<&str> = survey
        .of_type(MachineType::Control)
        .filter(|position| survey.joined(position) && !position.row.revoked)
        .filter(|position| !position.is_ready() || needs_reconfigure(survey, position))
        .map(|position| position.row.name.as_str())
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    let names = some_names(open);
    Err(blocked(
        "WaitingForControl",
        format!("workers go when every control machine is Ready; not yet: {names}"),
        format!("{names} Ready"),
    ))
}

/// The failure budget: new starts stop when it is used up.
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
        survey
            .machines
            .iter()
            .filter(|p| survey.joined(p) && (p.failed() || (p.lost && holds_slot(p))))
            .map(|p| p.row.name.as_str()),
    );
    Err(blocked(
        "FailureBudget",
        format!(
            "{} control and {} worker machines failed or are lost ({names}); new starts stop at {} control \
             or {} worker",
            failures.control, failures.worker, most.control, most.worker
        ),
        "`musterctl retry` or `skip` on them succeeds, or the lost ones return",
    ))
}

/// After a start: no new slot until every machine that may hold one has said so.
pub fn gathered(survey: &Survey<'_>) -> Result<(), Blocked> {
    if planted("no-gathering") || survey.gathering.is_empty() {
        return Ok(());
    }
    let names = some_names(survey.gathering.iter().map(|name| name.as_str()));
    let limit = if survey.facts.meta.recovering {
        "they report, or `musterctl revoke` says that they never will"
    } else {
        "they report, or the time after which they count as Lost has passed"
    };
    Err(blocked("Gathering", format!("the coordinator has just started and waits for {names}"), limit))
}

/// A store that is older than the fleet may not decide anything.
pub fn store_is_current(survey: &Survey<'_>) -> Result<(), Blocked> {
    match &survey.facts.live.older_than_fleet {
        Some(evidence) if !planted("trust-old-store") => Err(blocked(
            "StoreOlderThanFleet",
            format!("this coordinator's store is older than the fleet: {evidence}"),
            "the newest store is restored, or `muster-coordinator recover` was run; or, if that machine lies, it is \
             revoked and the coordinator restarted",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Is there work of the phase `reconfigure` for this machine: did the control set change since it last saw it?
#[must_use]
pub fn needs_reconfigure(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let sets = &position.row.control_sets;
    let seen = sets.get(&Phase::Reconfigure).or_else(|| sets.get(&Phase::Deploy));
    let items = position.items.unwrap_or_default();
    position.ready_once()
        && !survey.cluster.control_set.is_empty()
        && items.iter().any(|item| item.phase == Phase::Reconfigure)
        && seen.is_none_or(|seen| seen.names != survey.cluster.control_set)
}

/// What every start has to pass, whoever and whatever it is.
pub fn may_start_anything(survey: &Survey<'_>) -> Result<(), Blocked> {
    store_is_current(survey)?;
    gathered(survey)?;
    within_budget(survey)
}

/// May this machine be granted a slot now?
pub fn may_take_slot(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    may_start_anything(survey)?;
    match position.row.spec.machine_type {
        MachineType::Control => one_control_at_a_time(survey),
        MachineType::Worker => {
            controls_before_workers(survey)?;
            workers_within_limit(survey)
        }
        MachineType::Unassigned => Err(blocked(
            "Unassigned",
            "a machine of type `unassigned` gets no items",
            "its Machine document gives it the type control or worker",
        )),
    }
}
