//! Start of an update, later requests of operators about it, and the recording of its steps.

pub(super) mod backups;
mod deadlines;
pub(super) mod drain;
mod forcing;
mod freeze;
pub(super) mod handshake;
mod hooks;
mod invalidate;
pub(super) mod kubernetes;
mod maintenance;
mod options;
mod record;
pub(super) mod removal;
pub(super) mod renewal;
mod versions;

use std::collections::BTreeSet;

use muster_proto::model::{
    Blocked, ClusterName, HookMachines, MachineName, MachineType, Now, Phase, RunnerKind, Scope,
};

use super::{Refusal, Reply, addons as core_addons, operators::not_found};
use crate::{
    facts::{
        AuditObject, DesiredState, Facts, MUSTER, MachineRow, MachineUpdate, Stage, Stuck, Transaction, UpdateKind,
    },
    plan::{
        Limits, addons, items, rollout_blockers, safety,
        snapshot::{ClusterSnapshot, MachineView},
        update::is_current,
    },
};
use freeze::{Start, freeze};
use versions::Versions;

pub(super) use deadlines::{ask_again, has_its_time_anew, is_deferred};
pub use options::{Options, digest};

pub(super) use forcing::force_pod;
pub(super) use hooks::left_out;
pub(super) use invalidate::invalidate;
pub(super) use maintenance::{enter, leave};
pub(super) use record::record;

/// The facts as they would be right after the start. `plan` shows them, and the start is checked against them.
///
/// # Errors
/// [`Refusal`]: why it cannot start.
pub fn planned(
    facts: &Facts,
    cluster: &ClusterName,
    options: &Options,
    limits: &Limits,
    now: Now,
) -> Result<Facts, Refusal> {
    let scope = options.scope;
    let mut trial = facts.clone();
    let mut tx = Transaction::new(&mut trial);
    may_start(&tx, cluster, scope, limits, now)?;
    freeze(&mut tx, cluster, &Start { kind: UpdateKind::Update, options, only: None }, "", limits, now);
    resolves(&tx, cluster)?;
    fits_scope(&tx, cluster, scope)?;
    hooks_have_machines(&tx, cluster)?;
    has_quorum(&tx, cluster, limits, now)?;
    Ok(trial)
}

pub(super) fn start(
    tx: &mut Transaction<'_>,
    actor: &str,
    cluster: &ClusterName,
    options: &Options,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let plan = planned(tx, cluster, options, limits, now)?;
    if options.agreed.as_ref().is_some_and(|agreed| digest(&plan, cluster).as_ref() != Some(agreed)) {
        let message = "what the update would do is not what was agreed to: a manifest, a secret or a machine has \
                       changed since; look at `musterctl plan` again"
            .to_owned();
        return Err(refusal("PlanChanged", message));
    }
    let line = freeze(tx, cluster, &Start { kind: UpdateKind::Update, options, only: None }, actor, limits, now);
    tx.audit(actor, "update", AuditObject::Cluster(cluster), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Reboots machines, all or some, in the order of an update.
pub(super) fn reboot(
    tx: &mut Transaction<'_>,
    actor: &str,
    cluster: &ClusterName,
    (machines, accept_control_plane_downtime): (&BTreeSet<MachineName>, bool),
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let options = Options { accept_control_plane_downtime, ..Options::of(Scope::Os) };
    let start =
        Start { kind: UpdateKind::Reboot, options: &options, only: Some(machines).filter(|only| !only.is_empty()) };
    may_reboot(tx, cluster, machines, limits, now)?;
    let mut trial = (**tx).clone();
    let mut trial = Transaction::new(&mut trial);
    freeze(&mut trial, cluster, &start, actor, limits, now);
    has_quorum(&trial, cluster, limits, now)?;
    let line = freeze(tx, cluster, &start, actor, limits, now);
    tx.audit(actor, "reboot", AuditObject::Cluster(cluster), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Starts a rollout because the set of control machines changed. Machines that were Ready run the items that refer to
/// it, as in an update, and keep their version. It starts automatically.
pub(super) fn reconfigure(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    machines: &BTreeSet<MachineName>,
    limits: &Limits,
    now: Now,
) {
    let options = &Options::of(Scope::Os);
    let start = Start { kind: UpdateKind::Reconfigure, options, only: Some(machines) };
    let line = freeze(tx, cluster, &start, MUSTER, limits, now);
    tx.audit(MUSTER, "reconfigure", AuditObject::Cluster(cluster), &line, now.wall_ms);
}

fn refusal(reason: &'static str, message: String) -> Refusal {
    Refusal::State { reason, message }
}

/// May this store make new decisions? During recovery its facts may be outdated.
fn decides(snapshot: &ClusterSnapshot<'_>) -> Result<(), Refusal> {
    if let Err(blocked) = safety::store_is_current(snapshot) {
        let Blocked { message, clears_when, .. } = blocked;
        return Err(refusal("StoreOlderThanFleet", format!("{message}; it passes when {clears_when}")));
    }
    match safety::gathered(snapshot) {
        Err(Blocked { message, clears_when, .. }) if snapshot.facts.meta.recovering => {
            let message = format!("the store is being recovered: {message}; it passes when {clears_when}");
            Err(refusal("RecoveryOpen", message))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Is the cluster known and at rest, and may its store decide?
fn at_rest<'a>(
    tx: &'a Transaction<'_>,
    cluster: &ClusterName,
    limits: &Limits,
    now: Now,
) -> Result<ClusterSnapshot<'a>, Refusal> {
    let Some(snapshot) = ClusterSnapshot::of(tx, cluster, limits, now) else {
        return Err(not_found("cluster", cluster.as_str(), tx.clusters.keys().map(ClusterName::as_str)));
    };
    decides(&snapshot)?;
    if let Some(out) = removal::in_the_way(&snapshot).or_else(|| maintenance::in_the_way(&snapshot)) {
        return Err(out);
    }
    if let Some(message) = rollout_blockers::by_whom(&snapshot) {
        return Err(refusal("RolloutOpen", message));
    }
    if let Some(message) = rollout_blockers::undeployed(&snapshot) {
        return Err(refusal("NotDeployed", message));
    }
    Ok(snapshot)
}

/// Is the cluster deployed and at rest, and is there work?
fn may_start(
    tx: &Transaction<'_>,
    cluster: &ClusterName,
    scope: Scope,
    limits: &Limits,
    now: Now,
) -> Result<(), Refusal> {
    let snapshot = at_rest(tx, cluster, limits, now)?;
    if has_work(&snapshot, scope) {
        return Ok(());
    }
    let looked = addons::looked(&snapshot).map(|looked| format!("{looked}; ")).unwrap_or_default();
    let message = format!(
        "every machine of {cluster} is at the newest manifest and has the newest secrets; {looked}`musterctl apply` a \
         newer one"
    );
    Err(refusal("NothingToDo", message))
}

/// Is there a machine behind the newest manifest, or with unfinished items, or with a requested reboot that an update
/// of this scope performs; or an add-on that it applies?
#[must_use]
pub fn has_work(snapshot: &ClusterSnapshot<'_>, scope: Scope) -> bool {
    let stays = |view: &&MachineView<'_>| !view.row.revoked && view.row.removal.is_none();
    let mut versions = Versions::default();
    snapshot.machines.iter().filter(|view| view.ready_once() && stays(view)).any(|view| {
        let asked = view.row.reboot.is_some_and(|asked| !asked.completed);
        let current = is_current(snapshot, view, versions.ask_the_same(snapshot, view));
        !current || !view.all_done() || (scope == Scope::Os && asked)
    }) || addons::has_work(snapshot)
}

/// A reboot on demand requires all machines to be Ready, so that only the reboot can fail.
fn may_reboot(
    tx: &Transaction<'_>,
    cluster: &ClusterName,
    machines: &BTreeSet<MachineName>,
    limits: &Limits,
    now: Now,
) -> Result<(), Refusal> {
    let snapshot = at_rest(tx, cluster, limits, now)?;
    let members = || snapshot.machines.iter().filter(|p| !p.row.revoked);
    if let Some(unknown) = machines.iter().find(|name| members().all(|view| view.row.name != **name)) {
        let revoked = || refusal("NotReady", format!("{unknown} is revoked: `musterctl replace` or `remove` it"));
        let ours = tx.machines.get(unknown).is_some_and(|row| row.spec.cluster_name == *cluster);
        let names = members().map(|view| view.row.name.as_str());
        return Err(if ours { revoked() } else { not_found("machine", unknown.as_str(), names) });
    }
    let mut named = members().filter(|view| machines.contains(&view.row.name));
    named.try_for_each(|view| maintenance::is_not_removed(view.row))?;
    let stay = members().filter(|view| view.row.removal.is_none());
    let typed = stay.filter(|p| p.row.spec.machine_type != MachineType::Unassigned);
    let unready: Vec<String> = typed
        .filter(|view| !view.is_ready() || view.lost)
        .map(|p| format!("{} is not {}", p.row.name, if p.lost { "connected" } else { "Ready" }))
        .collect();
    if unready.is_empty() {
        return Ok(());
    }
    let names = safety::some_names(unready.iter().map(String::as_str));
    let message = format!(
        "every machine of {cluster} must be Ready and connected for a reboot, and {names}; \
         `musterctl get machines --cluster {cluster}` says why"
    );
    Err(refusal("NotReady", message))
}

/// Has every variable a value? Otherwise an item fails in the middle of the update, or a hook at its end.
fn resolves(tx: &Transaction<'_>, cluster: &ClusterName) -> Result<(), Refusal> {
    let mut trial = (**tx).clone();
    let mut tx = Transaction::new(&mut trial);
    let update = tx.open_rollout(cluster).and_then(|rollout| rollout.update.clone());
    for (name, target) in update.map(|update| update.targets).unwrap_or_default() {
        if let Some(mine) = tx.machine_mut(&name).and_then(|row| row.update.as_mut()) {
            mine.added = target.added;
        }
    }
    items::refresh(&mut tx);
    let fault = tx.machines_of(cluster).filter(|row| row.update.is_some()).find_map(|row| {
        let items = tx.live.machines.get(&row.name)?.items.as_ref()?;
        Some((&row.name, items.resolved.as_ref().err()?))
    });
    match fault {
        Some((machine, fault)) => Err(refusal("VariableWithoutValue", format!("machine {machine}, {fault}"))),
        None => Ok(()),
    }
}

/// Does the scope allow reboots, if items of the update reboot machines?
fn fits_scope(tx: &Transaction<'_>, cluster: &ClusterName, scope: Scope) -> Result<(), Refusal> {
    let update = tx.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref());
    let reboots = update.iter().flat_map(|update| &update.targets).find_map(|(name, target)| {
        let row = tx.machines.get(name)?;
        let items = tx.spec_of(row)?.items(row.spec.machine_type);
        let reboot = items.iter().find(|item| item.runner == RunnerKind::Reboot && target.changed.contains(&item.name));
        reboot.map(|item| (name, &item.name))
    });
    match reboots {
        Some((machine, item)) if scope == Scope::Drain => Err(refusal(
            "ScopeTooSmall",
            format!("item {item} reboots {machine}; `musterctl update {cluster} --scope os` allows that"),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Is the machine that a hook names part of the update?
fn hooks_have_machines(tx: &Transaction<'_>, cluster: &ClusterName) -> Result<(), Refusal> {
    let (Some(spec), Some(rollout)) = (tx.spec(cluster), tx.open_rollout(cluster)) else { return Ok(()) };
    let targets = || rollout.update.iter().flat_map(|update| update.targets.keys());
    let homeless = spec.update_hooks.all().find_map(|hook| match &hook.on {
        HookMachines::Machine(machine) if !targets().any(|name| name == machine) => Some((&hook.name, machine)),
        HookMachines::Machine(_) | HookMachines::MachineType(_) => None,
    });
    let Some((hook, machine)) = homeless else { return Ok(()) };
    let row = tx.machines.get(machine).filter(|row| row.spec.cluster_name == *cluster);
    let (problem, way) = match row {
        None => (format!("is no machine of {cluster}"), "let one of that name enrol there".to_owned()),
        Some(row) if row.removal.is_some() => {
            ("is being removed".to_owned(), format!("`musterctl remove {machine} --abort` while that can be"))
        }
        Some(row) if row.revoked => ("is revoked".to_owned(), format!("`musterctl replace {machine}`, enrol it anew")),
        Some(_) => ("was never Ready".to_owned(), "wait until it is".to_owned()),
    };
    let message = format!(
        "hook {hook} runs on {machine}, which {problem}: {way}, or `musterctl apply` a manifest whose hook names \
         another"
    );
    Err(refusal("HookMachine", message))
}

/// Would a majority of the control plane stay up at every moment?
fn has_quorum(tx: &Transaction<'_>, cluster: &ClusterName, limits: &Limits, now: Now) -> Result<(), Refusal> {
    let Some(snapshot) = ClusterSnapshot::of(tx, cluster, limits, now) else { return Ok(()) };
    let controls = snapshot.of_type(MachineType::Control);
    let mut disturbed = controls.filter(|view| view.update().is_some_and(|mine| mine.disruptive));
    let Some(blocked) = disturbed.find_map(|view| safety::majority_is_kept(&snapshot, view).err()) else {
        return Ok(());
    };
    let message = format!("{}; add --accept-control-plane-downtime if that is acceptable", blocked.message);
    Err(refusal("Quorum", message))
}

const ABORTED: &str = "aborted: nothing new starts; machines not disturbed yet are given back as they were";
const MAINTENANCE_ABORTED: &str = "aborted: who is out of service for it comes back";

/// An operator's command for an ongoing update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RolloutCommand {
    Pause,
    Resume,
    Abort,
}

pub(super) fn say(
    tx: &mut Transaction<'_>,
    actor: &str,
    rollout: &str,
    say: RolloutCommand,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let Some(row) = tx.rollouts.get(rollout) else {
        return Err(not_found("rollout", rollout, tx.rollouts.keys().map(String::as_str)));
    };
    let desired = row.update.as_ref().filter(|_| row.finished_at_ms.is_none()).map(|update| update.desired);
    let (desired, word, line) = match (say, desired) {
        (_, None) => {
            let ended = row.finished_at_ms.is_some();
            let why = match ended {
                true => "has ended".to_owned(),
                false => {
                    format!(
                        "is a deployment: it goes on to its end; what holds it up: `musterctl plan {}`",
                        row.cluster
                    )
                }
            };
            return Err(refusal("NothingToDo", format!("{rollout} {why}")));
        }
        (RolloutCommand::Pause, Some(DesiredState::Go)) => {
            let line = "paused: nothing new starts; machines that are being disturbed come to their end";
            (DesiredState::Pause { since_ms: now.wall_ms }, "pause", line)
        }
        (RolloutCommand::Resume, Some(DesiredState::Pause { .. })) => (DesiredState::Go, "resume", "goes on"),
        (RolloutCommand::Abort, Some(DesiredState::Go | DesiredState::Pause { .. })) => {
            let maintenance = row.update.as_ref().is_some_and(|update| update.kind == UpdateKind::Maintenance);
            let line = if maintenance { MAINTENANCE_ABORTED } else { ABORTED };
            (DesiredState::Abort, "abort", line)
        }
        (RolloutCommand::Pause | RolloutCommand::Resume | RolloutCommand::Abort, Some(desired)) => {
            let state = match desired {
                DesiredState::Go => "under way",
                DesiredState::Pause { .. } => "paused already, and goes on with `musterctl resume`",
                DesiredState::Abort => "being aborted, which is not taken back; when it has ended, start another",
            };
            return Err(refusal("NothingToDo", format!("{rollout} is {state}: `musterctl watch {}`", row.cluster)));
        }
    };
    Ok(Reply::Done(wants(tx, actor, rollout, (desired, word, line), limits, now)))
}

/// Records the desired state of an update and its immediate effects, with `word` for the audit. Returns the report
/// lines.
fn wants(
    tx: &mut Transaction<'_>,
    actor: &str,
    rollout: &str,
    (desired, word, line): (DesiredState, &str, &str),
    limits: &Limits,
    now: Now,
) -> Vec<String> {
    let Some(row) = tx.rollouts.get(rollout) else { return Vec::new() };
    let by_itself = row.update.as_ref().is_some_and(|update| update.kind == UpdateKind::Reconfigure);
    let later = format!("`musterctl update {}` brings about what is left", row.cluster);
    // Of an aborted update nothing is awaited any more.
    let unverified = core_addons::left_out(tx, rollout, limits, now).filter(|_| desired == DesiredState::Abort);
    let stay = if desired == DesiredState::Abort { maintenance::everybody_leaves(tx, rollout) } else { Vec::new() };
    if let Some(update) = tx.update_mut(rollout) {
        update.desired = desired;
        // Deadlines restart: the time of a pause does not count.
        update.moved_at_ms = now.wall_ms;
        update.resumed_at_ms = now.wall_ms;
        update.renewed_sets.values_mut().for_each(|set| set.changes = 0);
    }
    if desired == DesiredState::Go {
        forgive(tx, rollout);
        renewal::look_again(tx, rollout);
    }
    let mut lines = vec![format!("rollout {rollout}: {line}")];
    lines.extend(stay);
    lines.extend(left_out(tx, rollout, None).filter(|_| desired == DesiredState::Abort));
    lines.extend(renewal::left_out(tx, rollout).filter(|_| desired == DesiredState::Abort));
    lines.extend(unverified);
    lines.extend((by_itself && desired == DesiredState::Abort).then_some(later));
    tx.audit(actor, word, AuditObject::Rollout(rollout), &lines.join("; "), now.wall_ms);
    lines
}

/// Restarts the time of all that was late. A machine waiting for the return of its workloads goes on without them.
fn forgive(tx: &mut Transaction<'_>, rollout: &str) {
    let members = tx.machines.values().filter(|row| row.rollout.as_deref() == Some(rollout));
    let has_time = |stuck: &Stuck| !stuck.counts && stuck.stage != Stage::RequestRemoved;
    let is_late = |row: &MachineRow| row.update.as_ref()?.stuck.as_ref().map(has_time);
    let members: Vec<_> = members.map(|row| (row.name.clone(), is_late(row) == Some(true))).collect();
    for (name, is_late) in members {
        if let Some(mine) = tx.machine_mut(&name).filter(|_| is_late).and_then(|row| row.update.as_mut()) {
            mine.stuck = None;
        }
        // An operator may have cordoned its node again: an older look would pause the update at once.
        tx.live_mut(&name).kubernetes.forget_nodes();
    }
}

/// Has the machine a permit, and may it have started an item? Then its slot is freed only by an operator who knows that
/// it is off.
pub(super) fn may_be_at_work(row: &MachineRow) -> bool {
    row.update.as_ref().is_some_and(MachineUpdate::disturbed)
}

/// The end of the list of a machine outside the phases of an update. It includes reconfigure items that are still to
/// run because an update ended before them.
fn at_rest_phase(row: &MachineRow) -> Option<Phase> {
    let reconfigured = row.control_sets.contains_key(&Phase::Reconfigure);
    Some(if reconfigured { Phase::Reconfigure } else { Phase::Deploy }).max(row.max_phase)
}
