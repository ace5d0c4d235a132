//! Freezes the plan of a rollout: its machines, their changes and versions. Later manifests leave it unchanged.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{ClusterName, ItemName, ItemProgress, MachineName, Now, Phase, Scope, SecretName},
    seeded_bug::seeded_bug,
};

use super::Options;
use crate::{
    facts::{
        AddedReboot, ClusterRow, DesiredState, Drains, ItemOverride, MachineRow, MachineUpdate, MaintenanceRow,
        RebootWhy, RolloutRow, Target, Transaction, UpdateKind, UpdateRow,
    },
    plan::{Limits, added, items, reboot, secrets, snapshot::MachineView, update::concerns},
};

/// What to freeze.
pub(super) struct Start<'a> {
    pub(super) kind: UpdateKind,
    pub(super) options: &'a Options,
    /// The only machines to include. None: all that were Ready once.
    pub(super) only: Option<&'a BTreeSet<MachineName>>,
}

/// Work found for one machine.
struct Found {
    target: Target,
    reboot: Option<AddedReboot>,
    /// Failed items of an earlier rollout, to be retried; an unknown outcome stays for an operator.
    afresh: Vec<(ItemName, ItemOverride)>,
}

/// Freezes the plan and returns the report line. A machine that enters maintenance joins others in maintenance.
pub(super) fn freeze(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    start: &Start<'_>,
    actor: &str,
    limits: &Limits,
    now: Now,
) -> String {
    let Some(of_cluster) = tx.clusters.get(cluster).cloned() else { return String::new() };
    let joined = tx.open_rollout(cluster).map(|rollout| rollout.name.clone());
    let rollout = joined.unwrap_or_else(|| format!("{cluster}-{}-{}", start.kind.as_str(), of_cluster.rollout_seq + 1));
    let chosen = |name: &MachineName| start.only.is_none_or(|only| only.contains(name));
    let stays = |row: &MachineRow| row.removal.is_none() || start.kind == UpdateKind::Removal;
    let members = tx.machines_of(cluster).filter(|row| row.ready_at.is_some() && !row.revoked && stays(row));
    let names: Vec<MachineName> = members.filter(|row| chosen(&row.name)).map(|row| row.name.clone()).collect();
    let newest = secrets::newest(tx, cluster);
    let set = items::complete_set(tx, &of_cluster);
    for name in &names {
        let Some(row) = tx.machine_mut(name) else { continue };
        if start.kind == UpdateKind::Reconfigure {
            row.control_sets.insert(Phase::Reconfigure, set.clone());
        }
        let mut part = part(row, start.kind, of_cluster.spec_version, &newest);
        if let Some(maintenance) = &mut part.maintenance {
            maintenance.accept_control_plane_downtime = start.options.accept_control_plane_downtime;
        }
        row.update = Some(part);
    }
    items::refresh(tx);
    let mut targets = BTreeMap::new();
    for name in names {
        let found = look(tx, &of_cluster, start, (&rollout, &name), limits, now);
        let Some(Found { target, reboot, afresh }) = found else { continue };
        let Some(row) = tx.machine_mut(&name) else { continue };
        row.verdicts.extend(afresh);
        row.rollout = Some(rollout.clone());
        row.stages.clear();
        if let Some(update) = &mut row.update {
            update.disruptive = target.disruptive;
            update.reboot = reboot;
        }
        targets.insert(name, target);
    }
    add(tx, cluster, start, (limits, now), &mut targets);
    let line = open(tx, cluster, start, (rollout, targets), actor, now);
    // The additions have the version of the rollout.
    items::refresh(tx);
    line
}

/// Freezes what an update adds to machines' lists. The hooks after it are frozen too, but join the lists at its end.
fn add(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    start: &Start<'_>,
    (limits, now): (&Limits, Now),
    targets: &mut BTreeMap<MachineName, Target>,
) {
    let Some(spec) = tx.spec(cluster).filter(|_| start.kind == UpdateKind::Update) else { return };
    let is_lost = |row: &MachineRow| MachineView::of(tx, row, limits, now).lost;
    for (name, added) in added::due(tx, spec, targets, start.options.skip_backup, is_lost) {
        if let Some(mine) = tx.machine_mut(&name).and_then(|row| row.update.as_mut()) {
            mine.added = added.iter().filter(|added| !added.is_after()).cloned().collect();
        }
        if let Some(target) = targets.get_mut(&name) {
            target.added = added;
        }
    }
}

/// A machine's initial part in a rollout: only its target is known.
pub(super) fn part(
    row: &MachineRow,
    kind: UpdateKind,
    newest: u64,
    secrets: &BTreeMap<SecretName, u64>,
) -> MachineUpdate {
    let (version, overwrites, secrets) = match kind {
        UpdateKind::Update => (newest, row.spec.state_items_overwrites.clone(), secrets.clone()),
        UpdateKind::Reconfigure | UpdateKind::Reboot | UpdateKind::Maintenance | UpdateKind::Removal => {
            (row.follows().unwrap_or(newest), row.overwrites().clone(), secrets::of_machine(secrets, row))
        }
    };
    MachineUpdate {
        version,
        overwrites,
        group: row.spec.update_group.clone(),
        secrets,
        disruptive: false,
        reboot: None,
        added: Vec::new(),
        hooks_only: false,
        request: None,
        standing: None,
        standing_deletion: None,
        ends_before: 0,
        permit: None,
        returned_at_ms: None,
        deferral: None,
        stuck: None,
        drains: Drains::default(),
        forced_pods: Vec::new(),
        maintenance: kind.takes_out().then(MaintenanceRow::default),
        renewal: None,
    }
}

/// The part of a machine that is removed during a rollout. An undisturbed machine keeps its version and what it holds;
/// a disturbed one leaves as it is.
pub(super) fn removal_part(tx: &Transaction<'_>, row: &MachineRow, mine: &MachineUpdate) -> MachineUpdate {
    let (maintenance, mine) = (Some(mine.maintenance.unwrap_or_default()), mine.clone());
    if mine.disturbed() {
        return MachineUpdate { maintenance, deferral: None, stuck: None, ..mine };
    }
    let before = MachineRow { update: None, ..row.clone() };
    let newest = tx.clusters.get(&row.spec.cluster_name).map_or(mine.version, |cluster| cluster.spec_version);
    let kept = part(&before, UpdateKind::Removal, newest, &secrets::newest(tx, &row.spec.cluster_name));
    let MachineUpdate { request, standing, ends_before, returned_at_ms, drains, forced_pods, .. } = mine;
    MachineUpdate {
        disruptive: request.is_some() || row.slot.is_none(),
        request,
        standing,
        ends_before,
        returned_at_ms,
        drains,
        forced_pods,
        maintenance,
        ..kept
    }
}

/// Finds the work for one machine.
fn look(
    tx: &Transaction<'_>,
    cluster: &ClusterRow,
    start: &Start<'_>,
    (rollout, name): (&str, &MachineName),
    limits: &Limits,
    now: Now,
) -> Option<Found> {
    let row = tx.machines.get(name)?;
    let view = MachineView::of(tx, row, limits, now);
    let items = || view.items.unwrap_or_default().iter().filter(|item| concerns(cluster, row, item.phase));
    let stays = start.kind.takes_out();
    let open = || items().filter(|item| !stays && view.standing(item) != ItemProgress::Done);
    let mut disruptive = stays || open().any(|item| view.is_disruptive(item));
    let why = match start.kind {
        UpdateKind::Reboot => Some(RebootWhy::Asked),
        UpdateKind::Update if start.options.scope == Scope::Os || seeded_bug("reboot-in-drain") => {
            reboot::due(tx.spec_of(row)?, row, disruptive)
        }
        UpdateKind::Update | UpdateKind::Reconfigure | UpdateKind::Maintenance | UpdateKind::Removal => None,
    };
    let why = why.filter(|why| !open().any(|item| reboot::is_owner(item, *why)));
    let phase = items().map(|item| item.phase).max().unwrap_or(Phase::Deploy).max(Phase::Deploy);
    let reboot = why.map(|why| AddedReboot { version: added::version(rollout, now.wall_ms), phase, why });
    disruptive |= reboot.is_some();
    let changed = open().map(|item| item.name.clone()).chain(reboot.as_ref().map(|_| ItemName::of_reboot()));
    let given_up = open().filter(|item| view.standing(item) == ItemProgress::Failed);
    let afresh = given_up.filter_map(|item| {
        let cleared_attempts = row.statuses.get(&item.name)?.attempt;
        Some((item.name.clone(), ItemOverride { hash: item.hash, cleared_attempts, left_out: None }))
    });
    let group = row.spec.update_group.clone();
    let (done, ends) = (BTreeSet::new(), BTreeSet::new());
    let target = Target { changed: changed.collect(), group, disruptive, added: Vec::new(), done, ends };
    Some(Found { target, afresh: afresh.collect(), reboot })
}

fn goes_out(kind: UpdateKind, who: &str, rollout: &str) -> String {
    match kind {
        UpdateKind::Removal => format!("machine {who}: is removed when its workloads are away ({rollout})"),
        _ => format!("machine {who}: goes out of service ({rollout})"),
    }
}

fn open(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    start: &Start<'_>,
    (name, targets): (String, BTreeMap<MachineName, Target>),
    actor: &str,
    now: Now,
) -> String {
    let who = targets.keys().map(MachineName::as_str).collect::<Vec<_>>().join(", ");
    if tx.rollouts.contains_key(&name)
        && let Some(update) = tx.update_mut(&name)
    {
        for (machine, target) in targets {
            // A machine that has completed its part may have work at the end.
            update.targets.entry(machine).or_insert(target);
        }
        return goes_out(start.kind, &who, &name);
    }
    let Some(row) = tx.cluster_mut(cluster) else { return String::new() };
    row.rollout_seq += 1;
    let version = row.spec_version;
    let release = tx.specs.get(&(cluster.clone(), version)).map(|spec| spec.release.clone()).unwrap_or_default();
    let changed = targets.values().filter(|target| !target.changed.is_empty()).count();
    let disturbed = targets.values().filter(|target| target.disruptive).count();
    let line = match start.kind {
        UpdateKind::Update | UpdateKind::Reconfigure => format!(
            "cluster {cluster}: {name} started{}; {changed} of {} machines change, {disturbed} of them disturbed",
            if start.options.skip_backup { " without backups (--skip-backup)" } else { "" },
            targets.len()
        ),
        UpdateKind::Reboot => format!("cluster {cluster}: {name} started; machines that reboot: {}", targets.len()),
        UpdateKind::Maintenance | UpdateKind::Removal => goes_out(start.kind, &who, &name),
    };
    tx.put_rollout(RolloutRow {
        name,
        cluster: cluster.clone(),
        started_by: actor.to_owned(),
        started_at_ms: now.wall_ms,
        finished_at_ms: None,
        ended: None,
        update: Some(UpdateRow {
            kind: start.kind,
            scope: start.options.scope,
            version,
            release,
            // A machine that goes out of service has this in its own part, because others may join the rollout later.
            accept_control_plane_downtime: start.options.accept_control_plane_downtime && !start.kind.takes_out(),
            targets,
            desired: DesiredState::Go,
            request: None,
            standing: None,
            moved_at_ms: 0,
            ends: 0,
            resumed_at_ms: 0,
            finished_in_round: 0,
            stages: BTreeMap::new(),
            skip_backup: start.options.skip_backup,
            backups: Vec::new(),
            renewed_sets: BTreeMap::new(),
        }),
    });
    line
}
