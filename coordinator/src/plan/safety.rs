//! The safety rules (docs/explanation/safety.md): may this machine start now? Each rule is one function, and explains a
//! refusal in words. Only this module grants slots.

mod quorum;
mod slots;

use muster_proto::{
    model::{Blocked, MachineType, Phase, Reason},
    seeded_bug::seeded_bug,
};

pub use super::names::{for_each, some_names, some_names_are, token_for};
pub use quorum::{
    accepts_downtime, control_quorum, controls_are_there, majority_is_kept, majority_stays, majority_without, successor,
};
pub use slots::{SPREAD_MS, has_worker_slot, within_group_limit, worker_slots_max, workers_within_limit};

use super::{
    drain, locks, recovery,
    snapshot::{ClusterSnapshot, MachineView},
    swarm,
    update::{self, groups},
};
use crate::facts::{Facts, UpdateKind};

/// A wait, described in words.
pub(super) fn blocked(reason: Reason, message: impl Into<String>, clears_when: impl Into<String>) -> Blocked {
    Blocked { reason, message: message.into(), clears_when: clears_when.into() }
}

fn holds_slot(view: &MachineView<'_>) -> bool {
    view.row.slot.is_some()
}

/// Is it being taken out of the swarm?
fn departs(view: &MachineView<'_>) -> bool {
    view.row.departs()
}

/// Rule 1: at most one control machine of a cluster is between "slot granted" and "outcome recorded".
pub fn one_control_at_a_time(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    if seeded_bug("two-controls") {
        return Ok(());
    }
    let Some(busy) = snapshot.of_type(MachineType::Control).find(|p| holds_slot(p) || departs(p)) else {
        return Ok(());
    };
    let name = &busy.row.name;
    let (what, until) = if departs(busy) { ("is being removed", "gone") } else { ("holds the slot", "done") };
    let message = format!("control machines go one by one, and {name} {what}");
    Err(blocked(Reason::WaitingForTurn, message, format!("{name} is {until}")))
}

/// Pods of `OnDelete` DaemonSets are renewed on one node of the cluster at a time: that may cut the node's network.
pub fn one_renewal_at_a_time(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    if view.update().is_none_or(|mine| mine.renewal.is_none()) {
        return Ok(());
    }
    let Some(busy) = snapshot.machines.iter().find(|other| holds_slot(other)) else { return Ok(()) };
    let name = &busy.row.name;
    let message = format!("pods are renewed on one node at a time, and {name} has its turn");
    Err(blocked(Reason::WaitingForTurn, message, format!("{name} is done")))
}

/// A control machine does not take the slot if it would hold it while it waits for the swarm. The machine that has
/// begun to make the swarm may have lost its slot through a recovered store, and then needs it.
pub fn swarm_maker_first(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let Some(maker) = swarm::waits_for_maker(snapshot.facts, view.row) else { return Ok(()) };
    Err(blocked(
        Reason::WaitingForTurn,
        format!("{maker} makes the cluster's swarm, has not completed its swarm-join, and goes first"),
        format!("it has (see what {maker} says), or `musterctl skip {maker}`: then the next makes the swarm"),
    ))
}

/// Rule 1, removals: a control machine leaves the swarm only while all others are outside their turns. Unless it is
/// known to be gone, every other must also be there.
pub fn one_control_departs(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let others = || snapshot.of_type(MachineType::Control).filter(|other| other.row.name != view.row.name);
    // A dead machine is out of the way: the remaining managers are counted before it is demoted.
    let at_work = |other: &MachineView<'_>| holds_slot(other) && !other.row.revoked && !view.row.revoked;
    if let Some(busy) = others().find(|other| departs(other) || at_work(other)) {
        let name = &busy.row.name;
        let message = format!("control machines go one by one, and {name} is at its turn");
        return Err(blocked(Reason::WaitingForTurn, message, format!("{name} is done, or removed")));
    }
    if view.row.revoked {
        return Ok(());
    }
    controls_heard(snapshot, view)?;
    // A machine out of service had its turn while all others were there.
    if !view.in_maintenance() {
        control_quorum(snapshot, view)?;
    }
    majority_stays(snapshot, view)
}

/// Rule 1 after a start: only a silent control machine knows what it is doing, because this store may be a copy from
/// before it had its slot. Workers are awaited until all are [`gathered`]. A control machine is awaited until it
/// reports, or until an operator says that it never will: time alone does not prove that it is idle.
pub fn controls_heard(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let silent = |other: &&MachineView<'_>| {
        other.row.name != view.row.name && snapshot.facts.live.awaited.contains(&other.row.name)
    };
    let silent: Vec<&str> =
        snapshot.of_type(MachineType::Control).filter(silent).map(|other| other.row.name.as_str()).collect();
    if silent.is_empty() || seeded_bug("no-gathering") {
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
pub fn may_disturb(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    store_is_current(snapshot)?;
    locks_granted(snapshot, view)?;
    drained(snapshot, view)
}

/// May a machine be disturbed again during its turn? Another control machine may have gone away since. Whether all are
/// deployed was checked at the beginning of the turn: this machine cannot go back, and they could not come before it.
pub fn may_disturb_again(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    may_disturb(snapshot, view)?;
    let control = view.row.spec.machine_type == MachineType::Control;
    // Seeded bug: check the quorum only at the beginning of a turn.
    if control && !seeded_bug("quorum-once") { controls_are_there(snapshot, view) } else { Ok(()) }
}

/// Rule 4, the drains alone.
pub fn drained(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    drain::drained(snapshot, view)
}

/// Rule 4 for a machine that is out of service and leaves for good, which is final as well.
pub fn may_leave(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    store_is_current(snapshot)?;
    locks_let_leave(snapshot, view)?;
    drained(snapshot, view)
}

/// As [`may_leave`], the locks alone: also those of its cluster, unless it was disturbed before.
pub fn locks_let_leave(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    locks_granted(snapshot, view)?;
    let disturbed = view.update().is_some_and(|mine| mine.disturbed());
    snapshot.update().filter(|_| !disturbed).map_or(Ok(()), |row| update::cluster_lets(snapshot, row))
}

/// Rule 4, the locks alone.
pub fn locks_granted(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let request = view.update().and_then(|mine| mine.request.as_ref());
    let Some(request) = request else {
        return Err(blocked(Reason::LocksActive, "no maintenance was requested for it", "its turn comes"));
    };
    locks::granted(snapshot, Some(view.row), request)
}

/// May a machine with inactive locks be disturbed for the first time?
pub fn may_begin(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    may_start_anything(snapshot)?;
    if view.update().is_some_and(|mine| mine.disruptive) {
        update::is_open(snapshot)?;
    }
    others_can_spare(snapshot, view)
}

/// Can the control plane do without this control machine, and could this worker join the swarm again? A pause of the
/// update does not hide what is missing here.
pub fn others_can_spare(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    match view.row.spec.machine_type {
        MachineType::Control => control_quorum(snapshot, view),
        MachineType::Worker => swarm_before_workers(snapshot, view),
        MachineType::Unassigned => Ok(()),
    }
}

/// Update groups go in the order of their indexes: a worker waits until all workers of earlier groups have ended, or
/// are out of the way.
pub fn earlier_groups_first(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let Some(names) = groups::open_before(snapshot, view).filter(|_| !seeded_bug("any-group")) else { return Ok(()) };
    Err(blocked(
        Reason::WaitingForGroup,
        format!("update groups go in order; {names} of an earlier one is not through"),
        format!("{names} is done, or put aside"),
    ))
}

/// Rule 3: workers wait until every control machine of the rollout is Ready.
pub fn controls_before_workers(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    if seeded_bug("workers-first") {
        return Ok(());
    }
    let open: Vec<&str> = snapshot
        .of_type(MachineType::Control)
        .filter(|view| !view.row.revoked && is_behind(snapshot, view))
        .map(|view| view.row.name.as_str())
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
pub fn swarm_before_workers(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    let runs_items = view.update().is_some_and(|mine| mine.maintenance.is_none());
    let Some(rollout) = snapshot.rollout.filter(|_| runs_items) else { return Ok(()) };
    let Some(control) = swarm::awaits_deployment(snapshot.facts, view.row) else { return Ok(()) };
    Err(blocked(
        Reason::ControlNotDeployed,
        format!("control machine {control} is not deployed, and nobody else could let this one into the swarm"),
        format!("`musterctl abort {}`: {control} is deployed then; start the update again after that", rollout.name),
    ))
}

/// Is this control machine still unfinished in this rollout?
fn is_behind(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    if !snapshot.joined(view) {
        // A rollout ends without machines under removal. Work that one of them was told to do may go on until it is
        // gone.
        let leaves = view.row.removal.is_some() && view.row.rollout.is_some();
        return leaves && (!view.ready_once() || holds_slot(view) || view.update().is_some());
    }
    match snapshot.update() {
        // A machine that was lost when the control set changed is outside this update, and has yet to see the set.
        Some(update) => view.update().is_some() || (update.kind == UpdateKind::Reconfigure && view.lost),
        None => !view.is_ready() || reconfigured_at_once(snapshot, view),
    }
}

/// The failure budget: once it is used up, new starts stop.
pub fn within_budget(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    if seeded_bug("ignore-budget") {
        return Ok(());
    }
    let (failures, most) = (snapshot.failures, snapshot.spec.max_failures);
    let spent = |failed: u32, most: u32| failed >= most.max(1);
    if !spent(failures.control, most.control) && !spent(failures.worker, most.worker) {
        return Ok(());
    }
    let names = some_names(
        snapshot.machines.iter().filter(|p| snapshot.joined(p) && p.counts_as_failure()).map(|p| p.row.name.as_str()),
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
pub fn gathered(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    if seeded_bug("no-gathering") {
        return Ok(());
    }
    if snapshot.gathering.is_empty() {
        return if snapshot.facts.meta.recovering { recovery::settled(snapshot) } else { Ok(()) };
    }
    // A reader may lack access to the names of other clusters.
    let ours = |name: &&str| snapshot.machines.iter().any(|view| view.row.name.as_str() == *name);
    let ours: Vec<&str> = snapshot.gathering.iter().map(|name| name.as_str()).filter(ours).collect();
    let names = if ours.is_empty() { "machines of other clusters".to_owned() } else { some_names(ours) };
    let limit = if snapshot.facts.meta.recovering {
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
pub fn store_is_current(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    match snapshot.facts.live.older_than_fleet() {
        Some(evidence) if !seeded_bug("trust-old-store") => Err(blocked(
            Reason::StoreOlderThanFleet,
            format!("this coordinator's store is older than the fleet: {evidence}"),
            format!(
                "the newest store is restored, or `muster-coordinator recover` was run{}",
                instead_of_recovery(snapshot.facts)
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Is there `reconfigure` work for this machine: has the control set changed since it last saw it? A machine that lacks
/// deploy items waits for an update first. They would run there too, and after `recover` perhaps in an obsolete
/// version.
#[must_use]
pub fn needs_reconfigure(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let sets = &view.row.control_sets;
    let seen = sets.get(&Phase::Reconfigure).or_else(|| sets.get(&Phase::Deploy));
    let items = view.items.unwrap_or_default();
    view.ready_once()
        && !snapshot.cluster.control_set.is_empty()
        && items.iter().any(|item| item.phase == Phase::Reconfigure)
        && seen.is_none_or(|seen| snapshot.cluster.is_other_than(seen))
        && !view.is_behind(Phase::Deploy)
}

/// Rule 4: is it reconfigured as part of the deployment that made it Ready, rather than by request? Only while the
/// control plane is built up: until the first worker has been Ready, there is nothing to disturb.
#[must_use]
pub fn reconfigured_at_once(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let control = view.row.spec.machine_type == MachineType::Control;
    let built_up = control && !snapshot.of_type(MachineType::Worker).any(MachineView::ready_once);
    // Seeded bug: ignore existing workloads.
    let unasked = built_up || seeded_bug("reconfigure-unasked");
    snapshot.update().is_none() && snapshot.joined(view) && unasked && needs_reconfigure(snapshot, view)
}

/// Requests and disturbances of an update wait until the hooks before it are done, skipped or accepted.
pub fn before_update_done(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    // Seeded bug: start the update before its hooks are done.
    if seeded_bug("ignore-hooks-before") { Ok(()) } else { update::hooks::before(snapshot) }
}

/// Conditions of every start.
pub fn may_start_anything(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    may_start_hooks(snapshot)?;
    before_update_done(snapshot)?;
    within_budget(snapshot)
}

/// Conditions for a start of hooks. The budget does not apply: before an update nothing can have failed, and after it
/// the update is over.
pub fn may_start_hooks(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    store_is_current(snapshot)?;
    gathered(snapshot)
}

/// May this machine be granted a slot now?
pub fn may_take_slot(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    before_preflight(snapshot, view)?;
    if view.update().is_none() || !update::disturbs(snapshot, view) {
        return Ok(());
    }
    match view.update().and_then(|mine| mine.renewal.as_ref()) {
        None => drain::kubernetes::preflight(snapshot, view)?,
        Some(_) => update::renewal::preflight(snapshot, view)?,
    }
    // Last, because its deadline runs from the machine's turn on.
    locks::may_request(snapshot, Some(&view.row.name))
}

/// May this machine be granted a slot now, as far as its cluster and the other machines are concerned? What has to be
/// asked about the machine itself is asked only then.
pub fn before_preflight(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), Blocked> {
    may_start_anything(snapshot)?;
    let disturbs = view.update().is_some() && update::disturbs(snapshot, view);
    if disturbs {
        update::is_open(snapshot)?;
    }
    one_renewal_at_a_time(snapshot, view)?;
    match view.row.spec.machine_type {
        MachineType::Control => {
            one_control_at_a_time(snapshot)?;
            controls_heard(snapshot, view)?;
            swarm_maker_first(snapshot, view)?;
            control_quorum(snapshot, view)?;
        }
        MachineType::Worker => {
            // Pods are renewed when all machines are done: a deferred control machine, or an earlier group, holds no
            // worker.
            let updates = view.update().is_none_or(|mine| mine.renewal.is_none());
            if updates {
                controls_before_workers(snapshot)?;
            }
            swarm_before_workers(snapshot, view)?;
            if updates {
                earlier_groups_first(snapshot, view)?;
            }
            workers_within_limit(snapshot)?;
            within_group_limit(snapshot, view)?;
        }
        MachineType::Unassigned => {
            return Err(blocked(
                Reason::Unassigned,
                "a machine of type `unassigned` gets no items",
                "its Machine document gives it the type control or worker",
            ));
        }
    }
    Ok(())
}
