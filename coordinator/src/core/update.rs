//! The update's beginning, what operators want of it later, and how its steps are recorded.

mod record;

use std::collections::BTreeMap;

use muster_proto::model::{ClusterName, MachineName, MachineType, Now, Phase, RunnerKind, Scope, Standing};

use super::{Refusal, Reply, operators::not_found};
use crate::{
    facts::{Draft, Facts, MachineRow, MachineUpdate, RolloutRow, Target, UpdateRow, Verdict, Wish},
    plan::{
        Limits, items, safety,
        survey::{Position, Survey},
        update::concerns,
    },
};

pub(super) use record::record;

/// What an update is started with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What it may do to machines.
    pub scope: Scope,
    /// With one or two control machines: the control plane may be down for a while.
    pub accept_control_plane_downtime: bool,
}

/// The facts as they would be right after the start: what `plan` shows, and what the start is checked on.
///
/// # Errors
/// [`Refusal`]: why it cannot start.
pub fn planned(facts: &Facts, cluster: &ClusterName, options: Options, now: Now) -> Result<Facts, Refusal> {
    let mut trial = facts.clone();
    let mut draft = Draft::new(&mut trial);
    may_start(&draft, cluster, now)?;
    freeze(&mut draft, cluster, options, "", now);
    fits_scope(&draft, cluster, options.scope)?;
    has_quorum(&draft, cluster, options)?;
    Ok(trial)
}

pub(super) fn start(
    draft: &mut Draft<'_>,
    actor: &str,
    cluster: &ClusterName,
    options: Options,
    now: Now,
) -> Result<Reply, Refusal> {
    planned(draft, cluster, options, now)?;
    let line = freeze(draft, cluster, options, actor, now);
    draft.audit(actor, "update", &format!("cluster/{cluster}"), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

fn refusal(reason: &'static str, message: String) -> Refusal {
    Refusal::State { reason, message }
}

/// Is the cluster deployed, at rest, and is there something to be done?
fn may_start(draft: &Draft<'_>, cluster: &ClusterName, now: Now) -> Result<(), Refusal> {
    let limits = Limits::default();
    let Some(survey) = Survey::of(draft, cluster, &limits, now) else {
        return Err(not_found("cluster", cluster.as_str(), draft.clusters.keys().map(ClusterName::as_str)));
    };
    if let Err(blocked) = safety::store_is_current(&survey) {
        return Err(refusal("StoreOlderThanFleet", blocked.message));
    }
    if let Some(rollout) = survey.rollout {
        let message = format!(
            "{} has not ended; `musterctl get machines --cluster {cluster}` says what it waits for",
            rollout.name
        );
        return Err(refusal("RolloutOpen", message));
    }
    let ready = || survey.machines.iter().filter(|position| position.ready_once() && !position.row.revoked);
    if ready().next().is_none() {
        return Err(refusal(
            "NotDeployed",
            format!("cluster {cluster} is not deployed yet: `musterctl plan {cluster}`"),
        ));
    }
    let newest = survey.cluster.spec_version;
    let current = |position: &Position<'_>| {
        position.row.follows() == Some(newest) && *position.row.overwrites() == position.row.spec.state_items_overwrites
    };
    if ready().all(current) {
        let message = format!("every machine of {cluster} is at the newest manifest; `musterctl apply` a newer one");
        return Err(refusal("NothingToDo", message));
    }
    Ok(())
}

/// An update whose items reboot machines must be allowed to.
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

fn has_quorum(draft: &Draft<'_>, cluster: &ClusterName, options: Options) -> Result<(), Refusal> {
    let controls: Vec<_> = draft
        .machines_of(cluster)
        .filter(|row| row.spec.machine_type == MachineType::Control && row.id.is_some() && !row.revoked)
        .collect();
    let disturbed = controls.iter().any(|row| row.update.as_ref().is_some_and(|update| update.disruptive));
    if controls.len() > 2 || options.accept_control_plane_downtime || !disturbed {
        return Ok(());
    }
    let message = format!(
        "with {} control machines the control plane of {cluster} is down while one of them is; \
         add --accept-control-plane-downtime if that is acceptable",
        controls.len()
    );
    Err(refusal("Quorum", message))
}

/// Freezes the plan: who takes part, what changes there, in which version. Nothing that is applied later changes it.
fn freeze(draft: &mut Draft<'_>, cluster: &ClusterName, options: Options, actor: &str, now: Now) -> String {
    let Some(version) = draft.clusters.get(cluster).map(|row| row.spec_version) else { return String::new() };
    let names: Vec<_> = draft
        .machines_of(cluster)
        .filter(|row| row.ready_at.is_some() && !row.revoked)
        .map(|r| r.name.clone())
        .collect();
    for name in &names {
        let Some(row) = draft.machine_mut(name) else { continue };
        row.update = Some(MachineUpdate {
            version,
            overwrites: row.spec.state_items_overwrites.clone(),
            group: row.spec.update_group.clone(),
            disruptive: false,
            request: None,
            permit: None,
            returned_at_ms: None,
            set_aside: None,
        });
    }
    items::refresh(draft);
    let limits = Limits::default();
    let mut targets = BTreeMap::new();
    let mut verdicts = Vec::new();
    for name in &names {
        let Some(row) = draft.machines.get(name) else { continue };
        let Some(of_cluster) = draft.clusters.get(cluster) else { continue };
        let position = Position::of(draft, row, &limits, now);
        let items = || position.items.unwrap_or_default().iter().filter(|item| concerns(of_cluster, row, item.phase));
        let open = || items().filter(|item| position.standing(item) != Standing::Done);
        let disruptive = open().any(|item| position.is_disruptive(item));
        let (changed, group) = (open().map(|item| item.name.clone()).collect(), row.spec.update_group.clone());
        targets.insert(name.clone(), Target { changed, group, disruptive });
        // What an earlier update gave up is tried afresh; what nobody knows of is not.
        let given_up = open().filter(|item| position.standing(item) == Standing::Failed);
        verdicts.extend(given_up.filter_map(|item| {
            let cleared_attempts = row.statuses.get(&item.name)?.attempt;
            Some((name.clone(), item.name.clone(), Verdict { hash: item.hash, cleared_attempts, left_out: None }))
        }));
    }
    for (machine, item, verdict) in verdicts {
        if let Some(row) = draft.machine_mut(&machine) {
            row.verdicts.insert(item, verdict);
        }
    }
    open(draft, cluster, options, targets, actor, now)
}

fn open(
    draft: &mut Draft<'_>,
    cluster: &ClusterName,
    options: Options,
    targets: BTreeMap<MachineName, Target>,
    actor: &str,
    now: Now,
) -> String {
    let Some(row) = draft.cluster_mut(cluster) else { return String::new() };
    row.rollout_seq += 1;
    let (name, version) = (format!("{cluster}-update-{}", row.rollout_seq), row.spec_version);
    for (machine, target) in &targets {
        let Some(row) = draft.machine_mut(machine) else { continue };
        row.rollout = Some(name.clone());
        row.stages.clear();
        if let Some(update) = &mut row.update {
            update.disruptive = target.disruptive;
        }
    }
    let changed = targets.values().filter(|target| !target.changed.is_empty()).count();
    let disturbed = targets.values().filter(|target| target.disruptive).count();
    let line = format!(
        "cluster {cluster}: {name} started; {changed} of {} machines change, {disturbed} of them are disturbed",
        targets.len()
    );
    draft.put_rollout(RolloutRow {
        name,
        cluster: cluster.clone(),
        started_by: actor.to_owned(),
        started_at_ms: now.wall_ms,
        finished_at_ms: None,
        update: Some(UpdateRow {
            scope: options.scope,
            version,
            accept_control_plane_downtime: options.accept_control_plane_downtime,
            targets,
            wish: Wish::Go,
            request: None,
            moved_at_ms: 0,
            finished_in_round: 0,
            stages: BTreeMap::new(),
        }),
    });
    line
}

/// What an operator says of an update under way.
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
            return Err(refusal("NothingToDo", format!("{rollout} is not an update under way")));
        }
        (Say::Pause, Some(Wish::Go)) => {
            let line = "paused: nothing new starts; machines that are being disturbed come to their end";
            (Wish::Pause { since_ms: now.wall_ms }, "pause", line)
        }
        (Say::Resume, Some(Wish::Pause { .. })) => (Wish::Go, "resume", "goes on"),
        (Say::Abort, Some(Wish::Go | Wish::Pause { .. })) => {
            let line = "aborted: nothing new starts; machines not disturbed yet are given back as they were";
            (Wish::Abort, "abort", line)
        }
        (Say::Pause | Say::Resume | Say::Abort, Some(wish)) => {
            let state = match wish {
                Wish::Go => "under way",
                Wish::Pause { .. } => "paused",
                Wish::Abort => "being aborted",
            };
            return Err(refusal("NothingToDo", format!("{rollout} is {state}")));
        }
    };
    if let Some(update) = draft.update_mut(rollout) {
        update.wish = wish;
        // Deadlines start anew: the time of a pause is nobody's fault.
        update.moved_at_ms = now.wall_ms;
    }
    let line = format!("rollout {rollout}: {line}");
    draft.audit(actor, word, &format!("rollout/{rollout}"), &line, now.wall_ms);
    Ok(Reply::Done(vec![line]))
}

/// Was this machine put aside because its locks were not granted?
pub(super) fn is_set_aside(draft: &Draft<'_>, machine: &MachineName) -> bool {
    let update = draft.machines.get(machine).and_then(|row| row.update.as_ref());
    update.is_some_and(|update| update.set_aside.is_some())
}

/// An operator lets a machine that was put aside be asked for again.
pub(super) fn ask_again(draft: &mut Draft<'_>, machine: &MachineName, now: Now) -> String {
    let row = draft.machine_mut(machine);
    let rollout = row.and_then(|row| {
        row.update.as_mut()?.set_aside = None;
        row.rollout.clone()
    });
    if let Some(update) = rollout.and_then(|rollout| draft.update_mut(&rollout)) {
        update.moved_at_ms = now.wall_ms;
    }
    format!("machine {machine}: its maintenance is requested again when its turn comes")
}

/// Has it leave to start an item, and may it have started it? Then only an operator who knows that it is off may free
/// its slot.
pub(super) fn may_be_at_work(row: &MachineRow) -> bool {
    row.update.as_ref().is_some_and(MachineUpdate::disturbed)
}

/// Is some phase of this machine's list above `prepare`?
const fn at_least_deploy(reach: Option<Phase>) -> Option<Phase> {
    match reach {
        Some(Phase::Reconfigure) => Some(Phase::Reconfigure),
        Some(Phase::Prepare | Phase::Deploy) | None => Some(Phase::Deploy),
    }
}
