//! Documents of an update: its progress, and the plan of one.

use std::collections::BTreeMap;

use muster_proto::{
    model::{
        AssignedItem, Blocked, DEFAULT_GROUP, DEFAULT_GROUP_INDEX, ItemProgress, MachineType, Phase, REBOOT_ITEM,
        Reason, Scope, Severity, UpdateGroupName,
    },
    resource::{
        ChangedMachine, GroupStatus, MaintenanceStatus, StuckStage, UpdatePhase, UpdatePlan, UpdateStatus, Waiting,
    },
};

use super::{at, backups, count, hooks, progress, stage_status};
use crate::{
    core::update::{Options, digest, has_work, planned as started},
    facts::{ClusterStage, DesiredState, MachineRow, RebootWhy, RolloutRow, UpdateRow},
    plan::{
        Limits, addons, blocked, containers, drain, locks, reboot, recovery, removal, safety,
        snapshot::{ClusterSnapshot, MachineView},
        update::{
            are_locks_late, groups, is_cluster_moving, is_waiting_for_others, maintenance, overdue_stage,
            paused_too_long, renewal, targets, waits,
        },
    },
};

/// Time in milliseconds in which inputs arrive by themselves, if at all. A rebooting control machine is back by then,
/// and the agent has asked several times.
const INPUTS_COME_MS: u64 = 2 * 60_000;

/// The phase of a plan in which pods of DaemonSets are renewed.
pub(super) const RENEWAL: &str = "renewal of pods";

/// The word for an update's state.
pub(super) fn state(snapshot: &ClusterSnapshot<'_>, row: &RolloutRow, update: &UpdateRow) -> &'static str {
    match (row.finished_at_ms, update.desired) {
        (None, _) if maintenance::rests(snapshot) => "InMaintenance",
        (Some(_), DesiredState::Abort) => "Aborted",
        (Some(_), DesiredState::Go | DesiredState::Pause { .. }) => "Ready",
        (None, DesiredState::Abort) => "Aborting",
        (None, DesiredState::Pause { .. }) => "Paused",
        (None, DesiredState::Go) if needs_operator(snapshot) => "Blocked",
        (None, DesiredState::Go) => "InProgress",
    }
}

/// Does all progress depend on a person? Then every incomplete machine waits for a person, or for a machine that does.
pub(super) fn needs_operator(snapshot: &ClusterSnapshot<'_>) -> bool {
    let running = |view: &MachineView<'_>| view.connected() && view.running().next().is_some();
    // A machine whose ledger is behind starts and reports nothing, and reports of an unheeded one are ignored. A
    // machine that refuses its list continues only with what already runs.
    let stands = |view: &MachineView<'_>| {
        blocked::silent(view).is_some() || (blocked::refuses(view).is_some() && !running(view))
    };
    let works = |view: &MachineView<'_>| view.in_flight() && !waits_long_for_inputs(snapshot, view) && !stands(view);
    // After `recover` only a person knows the outcome on these machines, and everything waits for that decision.
    let doubted = |view: &MachineView<'_>| view.row.needs_review && !view.row.revoked;
    let heard = |view: &MachineView<'_>| view.connected() && blocked::silent(view).is_none();
    let at_work = |view: &MachineView<'_>| heard(view) && recovery::running(view).is_some();
    if snapshot.facts.meta.recovering && snapshot.machines.iter().any(doubted) && !targets(snapshot).any(at_work) {
        return true;
    }
    // No machine has a part in the stage at which it was paused.
    let paused = |update: &&UpdateRow| matches!(update.desired, DesiredState::Pause { .. });
    let halted = snapshot.update().filter(paused).and_then(|update| waits::of_stages(snapshot, update));
    if halted.is_some() && targets(snapshot).next().is_none() {
        return true;
    }
    let moves = |view: &MachineView<'_>| works(view) || is_waiting_for_others(snapshot, view);
    // A complete machine may be disconnected only for a moment; later it counts as lost.
    let returns = |p: &MachineView<'_>| p.ready_once() && !p.row.revoked && !p.connected() && !p.lost;
    if maintenance::rests(snapshot)
        || is_cluster_moving(snapshot)
        || targets(snapshot).any(moves)
        || snapshot.of_type(MachineType::Control).any(returns)
    {
        return false;
    }
    let waits: Vec<_> = targets(snapshot).filter_map(|p| Some((p, blocked::of_machine(snapshot, p)?.reason))).collect();
    // All other reasons need a person, or pass when another machine ends: once progress stops, both are the same.
    let passes = |(view, reason): &(&MachineView<'_>, Reason)| {
        // After `recover`, a person must decide about missing machines. The same goes for a controller that disconnects
        // again and again.
        let for_a_person = match reason {
            Reason::Gathering => snapshot.facts.meta.recovering,
            Reason::LocksSettling => are_locks_late(snapshot, view),
            _ => false,
        };
        reason.severity() == Severity::Passing && !for_a_person
    };
    !waits.is_empty() && !waits.iter().any(passes)
}

/// An agent that waits for inputs retries by itself. A rebooting manager answers soon, but a deleted secret comes back
/// only when a person creates it.
fn waits_long_for_inputs(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let since = view.live.and_then(|live| live.inputs_wanted_ms).max(view.row.slot.map(|slot| slot.granted_at_ms));
    view.waits_for_inputs()
        && since.is_some_and(|since_ms| snapshot.now.wall_ms.saturating_sub(since_ms) >= INPUTS_COME_MS)
}

pub(super) fn status(snapshot: &ClusterSnapshot<'_>, row: &RolloutRow, update: &UpdateRow) -> UpdateStatus {
    let open = row.finished_at_ms.is_none();
    let waiting = targets(snapshot).filter(|_| open).filter_map(|view| {
        let Blocked { reason, message, clears_when } = blocked::of_machine(snapshot, view)?;
        Some(Waiting { machine: view.row.name.to_string(), reason, message, clears_when })
    });
    let waiting: Vec<Waiting> = waiting.collect();
    let paused_ms = match update.desired {
        DesiredState::Pause { since_ms } => Some(since_ms),
        DesiredState::Go | DesiredState::Abort => None,
    };
    UpdateStatus {
        scope: update.scope,
        release: update.release.clone(),
        stages: ClusterStage::ALL
            .iter()
            .filter(|stage| update.stages.contains_key(stage) || (open && hooks::is_ahead(snapshot, update, **stage)))
            .map(|stage| stage_status(stage.name(update.kind), update.stages.get(stage)))
            .collect(),
        hooks: hooks::statuses(snapshot, row, update),
        backups: backups::made(update),
        skip_backup: update.skip_backup,
        groups: group_statuses(snapshot, row, update),
        needs_operator: open && needs_operator(snapshot),
        machines: progress::machines(snapshot, row, update, &waiting),
        waiting,
        paused_since: paused_ms.map(at),
        paused_too_long: paused_too_long(snapshot, update),
    }
}

/// Status of a machine that is in maintenance, or on the way there or back.
pub(super) fn maintenance(row: &MachineRow) -> Option<MaintenanceStatus> {
    let known = row.update.as_ref()?.maintenance?;
    Some(MaintenanceStatus { since: known.since_ms.map(at), leaving: known.leaving })
}

/// Phase of a machine's removal. It counts as failed while its rollout waits for a person.
pub(super) fn deletion_phase(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<String> {
    let row = view.row.removal.as_ref()?;
    let halted = row.by_turn && row.departure.is_none() && snapshot.update().is_some() && needs_operator(snapshot);
    let phase = removal::phase(snapshot, view)?;
    Some(if halted && phase == "started" { "failed" } else { phase }.to_owned())
}

/// Progress of each update group, in their order.
fn group_statuses(snapshot: &ClusterSnapshot<'_>, row: &RolloutRow, update: &UpdateRow) -> Vec<GroupStatus> {
    let spec = snapshot.facts.specs.get(&(row.cluster.clone(), update.version));
    let Some(spec) = spec.filter(|spec| !spec.update_groups.is_empty()) else { return Vec::new() };
    let mut groups = BTreeMap::new();
    for view in snapshot.of_type(MachineType::Worker) {
        let Some(target) = update.targets.get(&view.row.name) else { continue };
        let group = spec.update_group(target.group.as_ref());
        let index = group.map_or(DEFAULT_GROUP_INDEX, |group| group.index);
        let name = target.group.as_ref().map_or(DEFAULT_GROUP, UpdateGroupName::as_str).to_owned();
        let known = groups.entry((index, name.clone()));
        let status = known.or_insert(GroupStatus { name, index, total: 0, done: 0 });
        status.total += 1;
        status.done += u32::from(row.finished_at_ms.is_some() || view.update().is_none());
    }
    groups.into_values().collect()
}

/// The stage past its deadline in the rollout under way: the cluster's own, else the oldest of a machine.
pub(super) fn cluster_stuck(snapshot: &ClusterSnapshot<'_>) -> Option<StuckStage> {
    if let Some(((stage, since_ms), update)) = overdue_stage(snapshot).zip(snapshot.update()) {
        return Some(StuckStage { stage: stage.name(update.kind).to_owned(), since: at(since_ms), machine: None });
    }
    let oldest = targets(snapshot).filter_map(|view| Some((stuck(view)?, view.row))).min_by_key(|(s, _)| s.since);
    oldest.map(|(stuck, row)| StuckStage { machine: Some(row.name.to_string()), ..stuck })
}

/// The stage of a machine past its deadline.
pub(super) fn stuck(view: &MachineView<'_>) -> Option<StuckStage> {
    let stuck = view.update()?.stuck.as_ref()?;
    Some(StuckStage { stage: stuck.stage.as_str().to_owned(), since: at(stuck.since_ms), machine: None })
}

/// The plan of an update. None: the cluster is still to be deployed, is at work, or is at its newest manifest.
pub(super) fn planned(snapshot: &ClusterSnapshot<'_>, options: &Options, limits: &Limits) -> Option<UpdatePlan> {
    let name = &snapshot.cluster.name;
    let deployed = snapshot.rollout.is_none() && snapshot.machines.iter().any(MachineView::ready_once);
    if !deployed || !has_work(snapshot, options.scope) {
        return None;
    }
    let empty = |refused| UpdatePlan {
        release: snapshot.spec.release.clone(),
        scope: options.scope,
        refused,
        digest: None,
        warnings: Vec::new(),
        notes: Vec::new(),
        phases: Vec::new(),
        machines: Vec::new(),
        unchanged: 0,
    };
    let facts = match started(snapshot.facts, name, options, limits, snapshot.now) {
        Ok(facts) => facts,
        Err(refusal) => return Some(empty(Some(refusal.to_string()))),
    };
    let digest = digest(&facts, name);
    let snapshot = ClusterSnapshot::of(&facts, name, limits, snapshot.now)?;
    let update = snapshot.update()?;
    let machines = changed(&snapshot, update);
    let unchanged = count(update.targets.len().saturating_sub(machines.len()));
    let (phases, warnings) = (phases(&snapshot, update, &machines), warnings(&snapshot));
    Some(UpdatePlan { phases, warnings, notes: notes(&snapshot, update), machines, unchanged, digest, ..empty(None) })
}

/// Gaps of its backups, and due reboots that an update of this scope leaves out.
fn notes(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Vec<String> {
    let mut notes = backups::notes(snapshot, update);
    notes.extend(staying(snapshot));
    let due = targets(snapshot).filter(|view| {
        let disruptive = view.update().is_some_and(|mine| mine.disruptive);
        let why = reboot::due(snapshot.spec, view.row, disruptive);
        why.is_some_and(|why| why != RebootWhy::Host || view.row.host.as_ref().is_some_and(|h| h.reboot_required))
    });
    let names: Vec<&str> = due.map(|view| view.row.name.as_str()).collect();
    if update.scope == Scope::Os || names.is_empty() {
        return notes;
    }
    let count = names.len();
    let who = if count == 1 { "1 machine is".to_owned() } else { format!("{count} machines are") };
    let names = safety::some_names(names);
    notes.push(format!("{who} due to reboot ({names}); this update does not reboot, one with --scope os does"));
    notes
}

/// Containers outside services that stay on disturbed machines.
fn staying(snapshot: &ClusterSnapshot<'_>) -> Option<String> {
    let disturbed = targets(snapshot).filter(|view| view.update().is_some_and(|mine| mine.disruptive));
    let named: Vec<String> =
        disturbed.filter_map(|p| Some(format!("{}: {}", p.row.name, containers::left(p.row)?))).collect();
    let machines = safety::some_names(named.iter().map(String::as_str));
    (!named.is_empty()).then(|| {
        format!(
            "these containers are of no service, so nobody moves them before their machine is disturbed: {machines}"
        )
    })
}

/// The group of a worker. None: a control machine, or an ungrouped cluster.
fn group_of<'a>(snapshot: &ClusterSnapshot<'a>, view: &MachineView<'a>) -> Option<groups::Group<'a>> {
    let grouped = view.row.spec.machine_type == MachineType::Worker && !snapshot.spec.update_groups.is_empty();
    grouped.then(|| groups::of(snapshot, view))
}

/// Machines that change, in the order in which they go.
fn changed(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Vec<ChangedMachine> {
    let mut views: Vec<&MachineView<'_>> = targets(snapshot).collect();
    views.sort_by_key(|view| (view.row.spec.machine_type, group_of(snapshot, view).map(|g| (g.index, g.name))));
    let machine = |view: &MachineView<'_>| {
        let target = update.targets.get(&view.row.name).filter(|target| !target.changed.is_empty())?;
        Some(ChangedMachine {
            name: view.row.name.to_string(),
            machine_type: view.row.spec.machine_type,
            group: group_of(snapshot, view).map(|group| group.name.to_owned()),
            items: target.changed.iter().map(ToString::to_string).collect(),
            disruptive: target.disruptive,
        })
    };
    views.into_iter().filter_map(machine).collect()
}

/// Obstacles that would delay it if it started now.
fn warnings(snapshot: &ClusterSnapshot<'_>) -> Vec<String> {
    let of_cluster = locks::may_request(snapshot, None).err().map(|blocked| blocked.message);
    let failed = locks::failed(snapshot, None).map(|failed| format!("{}: {failed}", snapshot.cluster.name));
    let of_machines = targets(snapshot).filter_map(|view| {
        let name = &view.row.name;
        if view.lost || !view.connected() {
            return Some(format!("{name} is not connected"));
        }
        let disruptive = view.update().is_some_and(|mine| mine.disruptive);
        // Its node is looked for before its turn.
        let stale = locks::may_request(snapshot, Some(name)).err();
        let stale = stale.filter(|blocked| blocked.reason != Reason::KubernetesNodeUnclear);
        let stale = stale.map(|blocked| blocked.message);
        let why = stale.or_else(|| locks::failed(snapshot, Some(name))).filter(|_| disruptive)?;
        Some(format!("{name}: {why}"))
    });
    let disturbs = targets(snapshot).any(|view| view.update().is_some_and(|mine| mine.disruptive));
    let gone = locks::disconnected(snapshot).into_iter().filter(|_| disturbs);
    let gone = gone.map(|name| format!("application controller {name} is not connected: it sees no request"));
    of_cluster.into_iter().chain(failed).chain(gone).chain(of_machines).collect()
}

/// Does it have prepare items to run, besides those that the update adds?
fn prepares(view: &MachineView<'_>) -> bool {
    let open = |item: &AssignedItem| {
        let added = view.update().is_some_and(|mine| mine.adds(&item.name));
        item.phase == Phase::Prepare && !added && view.standing(item) != ItemProgress::Done
    };
    view.items.map_or(true, |items| items.iter().any(open))
}

fn phase(name: &str, what: String, impact: &str, pause: &str) -> UpdatePhase {
    UpdatePhase { name: name.to_owned(), what, impact: impact.to_owned(), pause: pause.to_owned() }
}

fn phases(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow, machines: &[ChangedMachine]) -> Vec<UpdatePhase> {
    let down = |of: MachineType| machines.iter().filter(|m| m.machine_type == of && m.disruptive).count();
    let mut phases = Vec::new();
    if let Some(what) = hooks::planned(update, ClusterStage::HooksBefore) {
        phases.push(phase("hooks before", what, "none", "no, they end"));
    }
    phases.extend(backups::first(update));
    if targets(snapshot).any(prepares) {
        let most = snapshot.spec.max_worker_prepare_count;
        let what = format!("prepare items, at most {most} workers at once");
        phases.push(phase("prepare", what, "none", "yes"));
    }
    let (controls, workers) = (down(MachineType::Control), down(MachineType::Worker));
    if controls + workers > 0 {
        let what = "every ClusterWorkloadLock becomes inactive".to_owned();
        phases.push(phase("cluster locks", what, "users keep from changes", "yes"));
    }
    if controls > 0 {
        let what = match controls {
            1 => "1 control machine".to_owned(),
            _ => format!("{controls} control machines one by one"),
        };
        let what = what + &reboots(machines.iter().filter(|m| m.machine_type == MachineType::Control));
        let disturbed = |view: &&MachineView<'_>| view.update().is_some_and(|mine| mine.disruptive);
        let mut going = snapshot.of_type(MachineType::Control).filter(disturbed);
        let carry_on = going.all(|view| safety::majority_without(snapshot, view).is_ok());
        let impact = if carry_on { "the others carry on" } else { "the control plane is down meanwhile" };
        phases.push(phase("control machines", what, impact, if controls > 1 { "yes, between two" } else { "no" }));
        phases.extend(backups::in_turn(update));
    }
    let leave =
        if drain::swarm::uses_swarm(snapshot) { "workloads, tasks leave first" } else { "workloads move away first" };
    if workers > 0 && snapshot.spec.update_groups.is_empty() {
        let of_workers = machines.iter().filter(|m| m.machine_type == MachineType::Worker);
        let what = workers_at_once(workers, safety::worker_slots_max(snapshot)) + &reboots(of_workers);
        phases.push(phase("workers", what, leave, "yes, those begun end"));
    }
    for group in groups_of(snapshot) {
        let of_group = |m: &&ChangedMachine| m.disruptive && m.group.as_deref() == Some(group.name);
        let what = workers_at_once(machines.iter().filter(of_group).count(), group.at_once);
        let reboots = reboots(machines.iter().filter(of_group));
        let what = format!("{} (index {}): {what}{reboots}", group.name, group.index);
        phases.push(phase("workers", what, leave, "yes, those begun end"));
    }
    let quiet = machines.iter().filter(|machine| !machine.disruptive).count();
    if controls + workers == 0 && quiet > 0 {
        let what = format!("{quiet} {}", if quiet == 1 { "machine" } else { "machines, in their order" });
        phases.push(phase("items", what, "none, they disturb nothing", "yes"));
    }
    phases.extend(after_machines(snapshot, update));
    if controls + workers > 0 {
        let what = "the maintenance request is removed".to_owned();
        phases.push(phase("finalization", what, "none", "no"));
    }
    phases
}

/// The phases between the machines and the end.
fn after_machines(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Vec<UpdatePhase> {
    let mut phases = Vec::new();
    if addons::has(snapshot, update) {
        let what = format!("{}, those that differ are applied", addons::names(snapshot));
        phases.push(phase("add-ons", what, "none", "yes"));
    }
    if let Some(what) = hooks::planned(update, ClusterStage::HooksAfter) {
        phases.push(phase("hooks after", what, "none", "no, they end"));
    }
    if renewal::has(snapshot, update) {
        let what = "pods of OnDelete DaemonSets, one node at a time".to_owned();
        phases.push(phase(RENEWAL, what, "their nodes' network may be cut", "yes, between two"));
    }
    phases
}

/// Groups with disturbed workers, in their order.
fn groups_of<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<groups::Group<'a>> {
    let disturbed = targets(snapshot).filter(|view| view.update().is_some_and(|mine| mine.disruptive));
    let mut all: Vec<_> = disturbed.filter_map(|view| group_of(snapshot, view)).collect();
    all.sort_by_key(|group| (group.index, group.name));
    all.dedup();
    all
}

/// Number of these machines that reboot, provided their hosts still ask for it, as the end of a sentence.
fn reboots<'a>(machines: impl Iterator<Item = &'a ChangedMachine>) -> String {
    let disturbed: Vec<&ChangedMachine> = machines.filter(|machine| machine.disruptive).collect();
    let reboots = |machine: &&&ChangedMachine| machine.items.iter().any(|item| item == REBOOT_ITEM);
    match disturbed.iter().filter(reboots).count() {
        0 => String::new(),
        1 if disturbed.len() == 1 => ", which may reboot".to_owned(),
        all if all == disturbed.len() => ", each may reboot".to_owned(),
        some => format!(", {some} of them may reboot"),
    }
}

fn workers_at_once(workers: usize, most: usize) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers, at most {most} at once") }
}
