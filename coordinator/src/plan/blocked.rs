//! Why a machine does not move. Every machine that is neither Ready nor at work has an answer here.

use muster_proto::model::{AssignedItem, Blocked, Counts, ItemProgress, MachineName, MachineType, Phase, Reason};

use super::{
    addons,
    deploy::{earlier_on_its_way, wants_slot},
    drain, items, locks, recovery, removal,
    safety::{self, blocked, token_for},
    snapshot::{ClusterSnapshot, MachineView, Progress},
    swarm,
    update::{concerns, maintenance, waits},
};
use crate::facts::{DesiredState, MachineRow, RolloutRow, UnprovenClaim, UpdateKind};

/// Why the deployment has yet to begin. None: it may begin, or has begun.
#[must_use]
pub fn why_not_started(snapshot: &ClusterSnapshot<'_>) -> Option<Blocked> {
    if snapshot.cluster.rollout_seq > 0 || snapshot.cluster.deploy_requested {
        return None;
    }
    let (reported, declared) = (snapshot.reported(), snapshot.declared());
    let wanted = snapshot.spec.machines.unwrap_or(declared);
    let name = &snapshot.cluster.name;
    if wanted == (Counts { control: 0, worker: 0 }) {
        return Some(blocked(
            Reason::DeployNotStarted,
            "the manifest says neither how many machines there will be (spec.machines) nor which (Machine documents)",
            format!("`musterctl deploy {name}` starts with the machines that have reported"),
        ));
    }
    if reported.control >= wanted.control.max(1) && reported.worker >= wanted.worker {
        return None;
    }
    Some(blocked(
        Reason::WaitingForMachines,
        format!(
            "{} of {} control and {} of {} worker machines have reported",
            reported.control, wanted.control, reported.worker, wanted.worker
        ),
        format!("the others enrol (`musterctl token create --cluster {name} --type …`), or `musterctl deploy {name}`"),
    ))
}

/// What keeps new starts back in a cluster. None: something may start, or all is done.
#[must_use]
pub fn of_cluster(snapshot: &ClusterSnapshot<'_>) -> Option<Blocked> {
    if let Err(blocked) = safety::store_is_current(snapshot) {
        return Some(blocked);
    }
    match snapshot.rollout {
        // A recovered copy starts only after the machines' reports have come and are settled.
        None if snapshot.facts.meta.recovering => {
            safety::gathered(snapshot).err().or_else(|| why_not_started(snapshot))
        }
        None if snapshot.cluster.rollout_seq > 0 => addons::of_cluster(snapshot),
        None => why_not_started(snapshot),
        Some(_) => match snapshot.update() {
            Some(update) => waits::of_cluster(snapshot, update),
            None => safety::may_start_anything(snapshot).err().or_else(|| addons::of_cluster(snapshot)),
        },
    }
}

/// Why a machine does not move. None: it is Ready or at work.
#[must_use]
pub fn of_machine(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let out = removal::waits(snapshot, view).or_else(|| maintenance::out_of_service(snapshot, view));
    out.or_else(|| unusable(snapshot, view))
        .or_else(|| in_trouble(snapshot, view))
        .or_else(|| waits_for_reconfigure(snapshot, view))
        .or_else(|| waiting(snapshot, view))
        .or_else(|| locks::left_away(snapshot, view.row))
        .or_else(|| swarm::restore::waits(snapshot, view))
        .or_else(|| drain::kubernetes::owed::waits(snapshot, view))
}

/// A revoked machine stays silent: if it was disturbed in an update, a person says when it is off.
fn revoked(row: &MachineRow) -> Blocked {
    let (name, message) = (&row.name, "an operator revoked this machine's certificate");
    if row.slot.is_none() && row.replaceable {
        let (cluster, machine_type) = (&row.spec.cluster_name, row.spec.machine_type);
        let token = format!("musterctl token create --cluster {cluster} --type {machine_type} --machine {name}");
        let message = format!("{message}; its name is free for the machine that takes its place");
        return blocked(Reason::Revoked, message, format!("one enrols as {name}, with a token of `{token}`"));
    }
    if row.slot.is_none() {
        return blocked(Reason::Revoked, message, format!("`musterctl replace {name}`, and it enrols again"));
    }
    let message = format!("{message}; it may be at work, and keeps its slot");
    let off = "--machine-is-off";
    let clears_when = format!("it is off: `musterctl revoke {name} {off}`, or `replace {name} {off}`");
    blocked(Reason::Revoked, message, clears_when)
}

/// Reasons that lie in the machine itself.
pub(super) fn unusable(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let row = view.row;
    if row.revoked {
        return Some(revoked(row));
    }
    if row.id.is_none() {
        let way = format!("it enrols; {}", token_for(&row.spec.cluster_name, row.spec.machine_type));
        return Some(blocked(Reason::NotEnrolled, "declared, but it has not enrolled", way));
    }
    if row.spec.machine_type == MachineType::Unassigned {
        return Some(blocked(
            Reason::Unassigned,
            "its type is `unassigned`",
            "its Machine document gives it another type",
        ));
    }
    if row.host.is_none() {
        return Some(blocked(
            Reason::NotReported,
            "enrolled, but its agent has not connected yet",
            "its agent connects",
        ));
    }
    // The last address report of a lost machine is outdated: it has to come back first.
    if row.internal_ip().is_none() && !view.lost {
        return Some(blocked(
            Reason::NoInternalIP,
            "it reported no address that fits `interface` and `cidr` of its Machine document",
            "it has such an address, or the document names another",
        ));
    }
    safety::store_is_current(snapshot).err()
}

/// It has been away for too long.
fn is_away(view: &MachineView<'_>) -> Option<Blocked> {
    match view.rebooting.filter(|_| view.lost) {
        Some(item) => Some(blocked(
            Reason::RebootOverdue,
            format!(
                "item {} took it down {} s ago or more, and it has not come back",
                item.name,
                item.timeout_ms / 1_000
            ),
            format!(
                "it comes back (look at its console), or `musterctl replace {}` after it was installed anew",
                view.row.name
            ),
        )),
        None if view.lost && view.live.is_some_and(|live| live.stranger) => Some(blocked(
            Reason::Lost,
            "an agent calls itself by its name, with an identity that this record does not know: it was enrolled anew \
             since the copy was made that the coordinator was recovered from",
            format!("`musterctl replace {}`, and `muster-agent enroll --force` there with a new token", view.row.name),
        )),
        None if view.lost => Some(blocked(
            Reason::Lost,
            "not heard of for longer than the limit",
            match view.ready_once() {
                true => "its agent connects again (is the machine up, and `muster-agent` running?)".to_owned(),
                // The deployment waits for it.
                false => {
                    format!("its agent connects again, or `musterctl remove {} --policy forced`", view.row.name)
                }
            },
        )),
        None => None,
    }
}

/// Reasons that need a person.
pub(super) fn in_trouble(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let row = view.row;
    let name = &row.name;
    match is_away(view) {
        Some(away) if row.needs_review => return Some(recovery::away_needs_review(row, away)),
        // Its ledger comes first: the machine needs a whole one to report on itself.
        None if row.needs_review => return silent(view).or_else(|| Some(recovery::needs_review(row))),
        Some(away) => return Some(away),
        None => {}
    }
    if let Some(blocked) = refuses(view) {
        return Some(blocked);
    }
    match view.trouble()? {
        Progress::Failed(item) => {
            let status = row.statuses.get(&item.name);
            let (message, attempt) = status.map_or(("", 0), |status| (status.message.as_str(), status.attempt));
            Some(blocked(
                Reason::Failed,
                format!("item {}: {message} (attempt {attempt})", item.name),
                retry_or_skip(snapshot, view, item),
            ))
        }
        Progress::Held(item) => Some(blocked(
            Reason::Indeterminate,
            format!("item {} was started and nobody knows how it ended", item.name),
            format!(
                "somebody has looked at the machine: `musterctl retry {name} {0}` (run it again) or \
                 `musterctl accept {name} {0}` (it is done)",
                item.name
            ),
        )),
        Progress::Done | Progress::Open => None,
    }
}

/// An update keeps its items as they were when it began: a manifest applied since leaves them unchanged. Skipping a
/// wrong item lets the next machine begin with it.
fn retry_or_skip(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, item: &AssignedItem) -> String {
    let (name, item, cluster) = (&view.row.name, &item.name, &snapshot.cluster.name);
    let text = format!("`musterctl retry {name}`, or `musterctl skip {name} {item}`");
    match view.update() {
        Some(_) if snapshot.update().is_some_and(|update| update.desired == DesiredState::Abort) => text,
        None => format!("{text}; a wrong item: `musterctl apply` a mended manifest, and it runs anew"),
        Some(_) => format!("{text}; a wrong item: first `musterctl abort {cluster}`, or the next one fails too"),
    }
}

/// Its claim goes beyond the record, without proof that the record is old.
fn unproven(name: &MachineName, claim: &UnprovenClaim) -> Blocked {
    let (why, clears_when) = match claim {
        UnprovenClaim::NoCode(_) => (
            "its ledger was changed, or the machine lies",
            format!(
                "it greets without that claim: `musterctl replace {name}`, and `muster-agent enroll --force` there \
                 (every item runs again); if nobody changed its ledger, `musterctl revoke {name}` and look who has \
                 been there"
            ),
        ),
        UnprovenClaim::FormerLedger(_) => (
            "its state directory was put back from a copy, or the machine lies",
            format!(
                "a new ledger begins: stop its agent, `muster-agent ledger reset --keep-identity`, start it; was the \
                 whole disk put back, `musterctl replace {name}` and `muster-agent enroll --force`, and every item \
                 runs again; if nobody put anything back, `musterctl revoke {name}` and look who has been there"
            ),
        ),
    };
    blocked(Reason::UnprovenLedger, format!("{claim}: {why}"), clears_when)
}

/// Its list, or what it reports, is refused.
pub(crate) fn refuses(view: &MachineView<'_>) -> Option<Blocked> {
    let row = view.row;
    let name = &row.name;
    if let Some(claim) = view.unproven() {
        return Some(unproven(name, claim));
    }
    if let Some(refused) = &row.assigned.refused {
        return Some(blocked(
            Reason::AssignmentRefused,
            format!("its agent refused generation {}: {refused}", row.assigned.generation),
            "agent and coordinator are of versions that fit each other",
        ));
    }
    if let Some(event) = view.live.and_then(|live| live.event_refused.as_ref()) {
        return Some(blocked(
            Reason::EventRefused,
            format!("its agent reports what cannot be, so nothing it reports is taken: {event}"),
            format!(
                "its ledger is begun anew (`muster-agent ledger reset --keep-identity` there), or \
                 `musterctl replace {name}`"
            ),
        ));
    }
    if let Some(blocked) = ledger_behind(view) {
        return Some(blocked);
    }
    if let Err(unresolved) = view.items {
        let clears_when = items::gives_value(&row.spec.cluster_name, &unresolved.fault);
        return Some(blocked(Reason::VariableWithoutValue, unresolved.to_string(), clears_when));
    }
    None
}

/// Its further reports are ignored: they are refused or distrusted, or its ledger is behind.
#[must_use]
pub fn silent(view: &MachineView<'_>) -> Option<Blocked> {
    let refused = refuses(view).filter(|_| view.is_unheeded());
    refused.or_else(|| ledger_behind(view))
}

/// Its own record is older than its earlier reports: time alone does not fix that.
fn ledger_behind(view: &MachineView<'_>) -> Option<Blocked> {
    let says = view.live?.agent_blocked.as_ref();
    says.filter(|(reason, _)| *reason == Reason::LedgerBehind)
        .map(|(_, message)| recovery::ledger_behind(&view.row.name, message))
}

/// Is there work left here?
fn has_work(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let updating = snapshot.update().is_some();
    view.update().is_some() || (!updating && safety::needs_reconfigure(snapshot, view))
}

/// Has it been Ready, and is there work outside the scope of a deployment? This happens after `recover`, when its
/// hostname has changed, and when its reconfigure items were aborted.
fn is_behind(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let settled = view.ready_once() && view.row.slot.is_none() && !snapshot.facts.meta.recovering;
    // Work counts as missing only if an update would run it there.
    let lacks = |phase: &Phase| concerns(snapshot.cluster, view.row, *phase) && view.is_behind(*phase);
    let lacks = || Phase::ALL.iter().any(lacks);
    let behind = settled && view.update().is_none() && !has_work(snapshot, view) && lacks();
    let clears_when = format!(
        "`musterctl update {}` brings them about, its workloads moved away first (after `recover`: apply the newest \
         manifest before that)",
        snapshot.cluster.name
    );
    let message = "it was Ready, and not all of the items that it should have are done";
    behind.then(|| blocked(Reason::NotUpToDate, message, clears_when))
}

/// It was Ready before the control set changed. A rollout reconfigures it once all others have ended.
fn waits_for_reconfigure(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let idle = view.update().is_none() && view.row.slot.is_none();
    if !idle || !safety::needs_reconfigure(snapshot, view) || safety::reconfigured_at_once(snapshot, view) {
        return None;
    }
    if let Err(blocked) = safety::may_start_hooks(snapshot) {
        return Some(blocked);
    }
    if let Some(blocked) = safety::successor(snapshot).err().filter(|_| snapshot.rollout.is_none()) {
        return Some(blocked);
    }
    let changed = "the set of control machines changed; it is reconfigured as in an update";
    Some(match snapshot.rollout {
        Some(RolloutRow { name, .. }) => {
            blocked(Reason::WaitingForTurn, format!("{changed} when {name} has ended"), format!("{name} has ended"))
        }
        None => blocked(Reason::WaitingForTurn, changed, "the coordinator's next decision"),
    })
}

/// A machine outside the open update waits for its end.
fn waits_for_update(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let update = snapshot.update().filter(|_| view.update().is_none())?;
    let out: Vec<&str> = maintenance::members(snapshot).map(|other| other.row.name.as_str()).collect();
    if update.kind == UpdateKind::Maintenance && !out.is_empty() {
        let leave = safety::for_each("maintenance leave", out.iter().copied());
        let message = format!("{} in maintenance; machines that come meanwhile wait", safety::some_names_are(out));
        let clears_when = format!("{leave} has ended that");
        return Some(blocked(Reason::MaintenanceInProgress, message, clears_when));
    }
    Some(blocked(
        Reason::UpdateInProgress,
        "the cluster is being updated; machines that come meanwhile wait",
        "the update has ended",
    ))
}

/// Its agent's own reason, unless the agent waits in vain.
pub(super) fn agent_says(view: &MachineView<'_>) -> Option<Blocked> {
    let (reason, message) = view.live?.agent_blocked.as_ref().filter(|_| !view.waits_in_vain())?;
    let clears_when = if view.waits_for_inputs() {
        "it gets what it asks for: it asks again by itself"
    } else {
        "the cause is gone from the machine"
    };
    Some(blocked(*reason, message.as_str(), clears_when))
}

/// Reasons that pass by themselves.
fn waiting(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    let behind = is_behind(snapshot, view);
    if view.is_ready() && !has_work(snapshot, view) && behind.is_none() {
        return None;
    }
    if let Some(blocked) = waits_for_update(snapshot, view).or(behind) {
        return Some(blocked);
    }
    if !snapshot.joined(view) {
        return Some(why_not_started(snapshot).unwrap_or_else(|| {
            blocked(Reason::WaitingForTurn, "it joins the deployment", "the coordinator's next decision")
        }));
    }
    // While a store is recovered, lists are held back. What an agent was given before goes on; all else waits, even the
    // inputs that its agent asks for.
    if snapshot.facts.meta.recovering
        && let Err(blocked) = safety::gathered(snapshot)
    {
        return Some(blocked);
    }
    if let Some(blocked) = agent_says(view) {
        return Some(blocked);
    }
    if let (false, Some(item)) = (view.connected(), view.rebooting) {
        let message = format!("item {} takes it down; it is missed {} s after", item.name, item.timeout_ms / 1_000);
        return Some(blocked(Reason::Rebooting, message, "its agent connects again"));
    }
    if !view.connected() {
        let message = if view.in_flight() {
            "it was at work and goes on, but it has no connection to the coordinator now to say how far it is"
        } else {
            "it has no connection to the coordinator now"
        };
        return Some(blocked(Reason::Disconnected, message, "its agent connects again"));
    }
    if view.in_flight() {
        return None;
    }
    if view.update().is_some() {
        return waits::of_machine(snapshot, view);
    }
    if let Err(blocked) = safety::may_start_anything(snapshot) {
        return Some(blocked);
    }
    if view.row.max_phase.is_none() {
        let most = snapshot.spec.max_worker_prepare_count;
        return Some(blocked(
            Reason::WaitingForTurn,
            format!("{most} workers are in prepare (maxWorkerPrepareCount)"),
            "one of them is through with it",
        ));
    }
    match safety::may_take_slot(snapshot, view) {
        Err(blocked) => Some(blocked),
        Ok(()) if view.row.spec.machine_type == MachineType::Control && earlier_on_its_way(snapshot, view) => {
            Some(blocked(
                Reason::WaitingForTurn,
                "control machines go in order (upgradeIndex, then name), and one before it is still preparing",
                "that one is Ready",
            ))
        }
        Ok(()) if wants_slot(snapshot, view).is_some() => {
            Some(blocked(Reason::WaitingForTurn, "its slot is about to be granted", "the coordinator's next decision"))
        }
        Ok(()) => None,
    }
}

/// What the machine is busy with: the first item of its list that is running, or due and about to start. An agent that
/// reports a reason of its own waits instead.
#[must_use]
pub fn activity<'a>(view: &MachineView<'a>) -> Option<(&'a AssignedItem, u32, bool)> {
    let max_phase = view.row.max_phase?;
    if view.is_unheeded() || !view.in_flight() {
        return None;
    }
    let items = view.items.ok()?;
    let kept = view.live.is_some_and(|live| live.agent_blocked.is_some());
    items.iter().filter(|item| item.phase <= max_phase && item.phase >= Phase::Prepare).find_map(|item| {
        match view.standing(item) {
            ItemProgress::Running { attempt } => Some((item, attempt, true)),
            ItemProgress::Due { attempt } if !kept => Some((item, attempt, false)),
            ItemProgress::Due { .. } | ItemProgress::Done | ItemProgress::Failed | ItemProgress::Held => None,
        }
    })
}
