//! Start of an update, later requests of operators about it, and the recording of its steps.

mod around;
pub(super) mod backups;
mod distrust;
pub(super) mod drain;
mod freeze;
mod late;
mod maintenance;
mod options;
mod record;
pub(super) mod removal;
mod versions;

use std::collections::BTreeSet;

use muster_proto::model::{
    Blocked, ClusterName, HookMachines, MachineName, MachineType, Now, Phase, RunnerKind, Scope,
};

use super::{Refusal, Reply, operators::not_found};
use crate::{
    facts::{AuditObject, Draft, Facts, MUSTER, MachineRow, MachineUpdate, Stage, Stuck, UpdateKind, Wish},
    plan::{
        Limits, items, kept_open, safety,
        survey::{Position, Survey},
        update::is_current,
    },
};
use freeze::{Start, freeze};
use versions::Versions;

pub(super) use late::{ask_again, has_its_time_anew, is_set_aside};
pub use options::{Options, digest};

pub(super) use around::left_out;
pub(super) use distrust::distrust;
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
    let mut draft = Draft::new(&mut trial);
    may_start(&draft, cluster, scope, limits, now)?;
    freeze(&mut draft, cluster, &Start { kind: UpdateKind::Update, options, only: None }, "", limits, now);
    resolves(&draft, cluster)?;
    fits_scope(&draft, cluster, scope)?;
    hooks_have_machines(&draft, cluster)?;
    has_quorum(&draft, cluster, limits, now)?;
    Ok(trial)
}

pub(super) fn start(
    draft: &mut Draft<'_>,
    actor: &str,
    cluster: &ClusterName,
    options: &Options,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let plan = planned(draft, cluster, options, limits, now)?;
    if options.agreed.as_ref().is_some_and(|agreed| digest(&plan, cluster).as_ref() != Some(agreed)) {
        let message = "what the update would do is not what was agreed to: a manifest, a secret or a machine has \
                       changed since; look at `musterctl plan` again"
            .to_owned();
        return Err(refusal("PlanChanged", message));
    }
    let line = freeze(draft, cluster, &Start { kind: UpdateKind::Update, options, only: None }, actor, limits, now);
    draft.audit(actor, "update", AuditObject::Cluster(cluster), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Reboots machines, all or some, in the order of an update.
pub(super) fn reboot(
    draft: &mut Draft<'_>,
    actor: &str,
    cluster: &ClusterName,
    (machines, accept_control_plane_downtime): (&BTreeSet<MachineName>, bool),
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let options = Options { accept_control_plane_downtime, ..Options::of(Scope::Os) };
    let start =
        Start { kind: UpdateKind::Reboot, options: &options, only: Some(machines).filter(|only| !only.is_empty()) };
    may_reboot(draft, cluster, machines, limits, now)?;
    let mut trial = (**draft).clone();
    let mut trial = Draft::new(&mut trial);
    freeze(&mut trial, cluster, &start, actor, limits, now);
    has_quorum(&trial, cluster, limits, now)?;
    let line = freeze(draft, cluster, &start, actor, limits, now);
    draft.audit(actor, "reboot", AuditObject::Cluster(cluster), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Starts a rollout because the set of control machines changed. Machines that were Ready run the items that refer to
/// it, as in an update, and keep their version. It starts automatically.
pub(super) fn reconfigure(
    draft: &mut Draft<'_>,
    cluster: &ClusterName,
    machines: &BTreeSet<MachineName>,
    limits: &Limits,
    now: Now,
) {
    let options = &Options::of(Scope::Os);
    let start = Start { kind: UpdateKind::Reconfigure, options, only: Some(machines) };
    let line = freeze(draft, cluster, &start, MUSTER, limits, now);
    draft.audit(MUSTER, "reconfigure", AuditObject::Cluster(cluster), &line, now.wall_ms);
}

fn refusal(reason: &'static str, message: String) -> Refusal {
    Refusal::State { reason, message }
}

/// May this store make new decisions? During recovery its facts may be outdated.
fn decides(survey: &Survey<'_>) -> Result<(), Refusal> {
    if let Err(blocked) = safety::store_is_current(survey) {
        let Blocked { message, clears_when, .. } = blocked;
        return Err(refusal("StoreOlderThanFleet", format!("{message}; it passes when {clears_when}")));
    }
    match safety::gathered(survey) {
        Err(Blocked { message, clears_when, .. }) if survey.facts.meta.recovering => {
            let message = format!("the store is being recovered: {message}; it passes when {clears_when}");
            Err(refusal("RecoveryOpen", message))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Is the cluster known and at rest, and may its store decide?
fn at_rest<'a>(draft: &'a Draft<'_>, cluster: &ClusterName, limits: &Limits, now: Now) -> Result<Survey<'a>, Refusal> {
    let Some(survey) = Survey::of(draft, cluster, limits, now) else {
        return Err(not_found("cluster", cluster.as_str(), draft.clusters.keys().map(ClusterName::as_str)));
    };
    decides(&survey)?;
    if let Some(out) = removal::in_the_way(&survey).or_else(|| maintenance::in_the_way(&survey)) {
        return Err(out);
    }
    if let Some(message) = kept_open::by_whom(&survey) {
        return Err(refusal("RolloutOpen", message));
    }
    if let Some(message) = kept_open::undeployed(&survey) {
        return Err(refusal("NotDeployed", message));
    }
    Ok(survey)
}

/// Is the cluster deployed and at rest, and is there work?
fn may_start(draft: &Draft<'_>, cluster: &ClusterName, scope: Scope, limits: &Limits, now: Now) -> Result<(), Refusal> {
    if has_work(&at_rest(draft, cluster, limits, now)?, scope) {
        return Ok(());
    }
    let message = format!(
        "every machine of {cluster} is at the newest manifest and has the newest secrets; `musterctl apply` a newer one"
    );
    Err(refusal("NothingToDo", message))
}

/// Is there a machine behind the newest manifest, or with unfinished items, or with a requested reboot that an update
/// of this scope performs?
#[must_use]
pub fn has_work(survey: &Survey<'_>, scope: Scope) -> bool {
    let stays = |position: &&Position<'_>| !position.row.revoked && position.row.removal.is_none();
    let mut versions = Versions::default();
    survey.machines.iter().filter(|position| position.ready_once() && stays(position)).any(|position| {
        let asked = position.row.reboot.is_some_and(|asked| !asked.completed);
        let current = is_current(survey, position, versions.ask_the_same(survey, position));
        !current || !position.all_done() || (scope == Scope::Os && asked)
    })
}

/// A reboot on demand requires all machines to be Ready, so that only the reboot can fail.
fn may_reboot(
    draft: &Draft<'_>,
    cluster: &ClusterName,
    machines: &BTreeSet<MachineName>,
    limits: &Limits,
    now: Now,
) -> Result<(), Refusal> {
    let survey = at_rest(draft, cluster, limits, now)?;
    let members = || survey.machines.iter().filter(|p| !p.row.revoked);
    if let Some(unknown) = machines.iter().find(|name| members().all(|position| position.row.name != **name)) {
        let revoked = || refusal("NotReady", format!("{unknown} is revoked: `musterctl replace` or `remove` it"));
        let ours = draft.machines.get(unknown).is_some_and(|row| row.spec.cluster_name == *cluster);
        let names = members().map(|position| position.row.name.as_str());
        return Err(if ours { revoked() } else { not_found("machine", unknown.as_str(), names) });
    }
    let mut named = members().filter(|position| machines.contains(&position.row.name));
    named.try_for_each(|position| maintenance::is_not_removed(position.row))?;
    let stay = members().filter(|position| position.row.removal.is_none());
    let typed = stay.filter(|p| p.row.spec.machine_type != MachineType::Unassigned);
    let unready: Vec<String> = typed
        .filter(|position| !position.is_ready() || position.lost)
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
fn resolves(draft: &Draft<'_>, cluster: &ClusterName) -> Result<(), Refusal> {
    let mut trial = (**draft).clone();
    let mut draft = Draft::new(&mut trial);
    let update = draft.open_rollout(cluster).and_then(|rollout| rollout.update.clone());
    for (name, target) in update.map(|update| update.targets).unwrap_or_default() {
        if let Some(mine) = draft.machine_mut(&name).and_then(|row| row.update.as_mut()) {
            mine.added = target.added;
        }
    }
    items::refresh(&mut draft);
    let fault = draft.machines_of(cluster).filter(|row| row.update.is_some()).find_map(|row| {
        let items = draft.live.machines.get(&row.name)?.items.as_ref()?;
        Some((&row.name, items.resolved.as_ref().err()?))
    });
    match fault {
        Some((machine, fault)) => Err(refusal("VariableWithoutValue", format!("machine {machine}, {fault}"))),
        None => Ok(()),
    }
}

/// Does the scope allow reboots, if items of the update reboot machines?
fn fits_scope(draft: &Draft<'_>, cluster: &ClusterName, scope: Scope) -> Result<(), Refusal> {
    let update = draft.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref());
    let reboots = update.iter().flat_map(|update| &update.targets).find_map(|(name, target)| {
        let row = draft.machines.get(name)?;
        let items = draft.spec_of(row)?.items(row.spec.machine_type);
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
fn hooks_have_machines(draft: &Draft<'_>, cluster: &ClusterName) -> Result<(), Refusal> {
    let (Some(spec), Some(rollout)) = (draft.spec(cluster), draft.open_rollout(cluster)) else { return Ok(()) };
    let targets = || rollout.update.iter().flat_map(|update| update.targets.keys());
    let homeless = spec.update_hooks.all().find_map(|hook| match &hook.on {
        HookMachines::Machine(machine) if !targets().any(|name| name == machine) => Some((&hook.name, machine)),
        HookMachines::Machine(_) | HookMachines::MachineType(_) => None,
    });
    let Some((hook, machine)) = homeless else { return Ok(()) };
    let row = draft.machines.get(machine).filter(|row| row.spec.cluster_name == *cluster);
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
fn has_quorum(draft: &Draft<'_>, cluster: &ClusterName, limits: &Limits, now: Now) -> Result<(), Refusal> {
    let Some(survey) = Survey::of(draft, cluster, limits, now) else { return Ok(()) };
    let controls = survey.of_type(MachineType::Control);
    let mut disturbed = controls.filter(|position| position.update().is_some_and(|mine| mine.disruptive));
    let Some(blocked) = disturbed.find_map(|position| safety::majority_is_kept(&survey, position).err()) else {
        return Ok(());
    };
    let message = format!("{}; add --accept-control-plane-downtime if that is acceptable", blocked.message);
    Err(refusal("Quorum", message))
}

const ABORTED: &str = "aborted: nothing new starts; machines not disturbed yet are given back as they were";
const MAINTENANCE_ABORTED: &str = "aborted: who is out of service for it comes back";

/// An operator's command for an ongoing update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    Pause,
    Resume,
    Abort,
}

pub(super) fn say(draft: &mut Draft<'_>, actor: &str, rollout: &str, say: Say, now: Now) -> Result<Reply, Refusal> {
    let Some(row) = draft.rollouts.get(rollout) else {
        return Err(not_found("rollout", rollout, draft.rollouts.keys().map(String::as_str)));
    };
    let wish = row.update.as_ref().filter(|_| row.finished_at_ms.is_none()).map(|update| update.wish);
    let (wish, word, line) = match (say, wish) {
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
        (Say::Pause, Some(Wish::Go)) => {
            let line = "paused: nothing new starts; machines that are being disturbed come to their end";
            (Wish::Pause { since_ms: now.wall_ms }, "pause", line)
        }
        (Say::Resume, Some(Wish::Pause { .. })) => (Wish::Go, "resume", "goes on"),
        (Say::Abort, Some(Wish::Go | Wish::Pause { .. })) => {
            let maintenance = row.update.as_ref().is_some_and(|update| update.kind == UpdateKind::Maintenance);
            let line = if maintenance { MAINTENANCE_ABORTED } else { ABORTED };
            (Wish::Abort, "abort", line)
        }
        (Say::Pause | Say::Resume | Say::Abort, Some(wish)) => {
            let state = match wish {
                Wish::Go => "under way",
                Wish::Pause { .. } => "paused already, and goes on with `musterctl resume`",
                Wish::Abort => "being aborted, which is not taken back; when it has ended, start another",
            };
            return Err(refusal("NothingToDo", format!("{rollout} is {state}: `musterctl watch {}`", row.cluster)));
        }
    };
    Ok(Reply::Done(wants(draft, actor, rollout, (wish, word, line), now)))
}

/// Records the desired state of an update and its immediate effects, with `word` for the audit. Returns the report
/// lines.
fn wants(
    draft: &mut Draft<'_>,
    actor: &str,
    rollout: &str,
    (wish, word, line): (Wish, &str, &str),
    now: Now,
) -> Vec<String> {
    let Some(row) = draft.rollouts.get(rollout) else { return Vec::new() };
    let by_itself = row.update.as_ref().is_some_and(|update| update.kind == UpdateKind::Reconfigure);
    let later = format!("`musterctl update {}` brings about what is left", row.cluster);
    let stay = if wish == Wish::Abort { maintenance::everybody_leaves(draft, rollout) } else { Vec::new() };
    if let Some(update) = draft.update_mut(rollout) {
        update.wish = wish;
        // Deadlines restart: the time of a pause does not count.
        update.moved_at_ms = now.wall_ms;
        update.resumed_at_ms = now.wall_ms;
    }
    if wish == Wish::Go {
        forgive(draft, rollout);
    }
    let mut lines = vec![format!("rollout {rollout}: {line}")];
    lines.extend(stay);
    lines.extend(left_out(draft, rollout, None).filter(|_| wish == Wish::Abort));
    lines.extend((by_itself && wish == Wish::Abort).then_some(later));
    draft.audit(actor, word, AuditObject::Rollout(rollout), &lines.join("; "), now.wall_ms);
    lines
}

/// Restarts the time of all that was late. A machine waiting for the return of its workloads goes on without them.
fn forgive(draft: &mut Draft<'_>, rollout: &str) {
    let late = draft.machines.values().filter(|row| row.rollout.as_deref() == Some(rollout));
    let has_time = |stuck: &Stuck| !stuck.counts && stuck.stage != Stage::RequestRemoved;
    let late = late.filter(|row| row.update.as_ref().is_some_and(|mine| mine.stuck.as_ref().is_some_and(has_time)));
    for name in late.map(|row| row.name.clone()).collect::<Vec<_>>() {
        if let Some(mine) = draft.machine_mut(&name).and_then(|row| row.update.as_mut()) {
            mine.stuck = None;
        }
    }
}

/// Has the machine a permit, and may it have started an item? Then its slot is freed only by an operator who knows that
/// it is off.
pub(super) fn may_be_at_work(row: &MachineRow) -> bool {
    row.update.as_ref().is_some_and(MachineUpdate::disturbed)
}

/// The end of the list of a machine outside the phases of an update. It includes reconfigure items that are still to
/// run because an update ended before them.
fn at_rest_reach(row: &MachineRow) -> Option<Phase> {
    let reconfigured = row.control_sets.contains_key(&Phase::Reconfigure);
    Some(if reconfigured { Phase::Reconfigure } else { Phase::Deploy }).max(row.reach)
}
