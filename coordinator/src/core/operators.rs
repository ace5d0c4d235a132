//! Requests of operators. Every request that changes something is audited with the operator's name.

use std::{collections::BTreeMap, sync::Arc};

use muster_proto::{
    model::{ClusterName, MachineName, MachineSpec, Now},
    suggestions::nearest,
};

use super::{
    Effect, Refusal, Reply, Request, apply, credentials, delete, deploy, enroll, maintenance, rerun, secrets, tokens,
    update::{self, removal},
    verdicts::{self, ItemCommand},
};
use crate::{
    facts::{AuditObject, MachineRow, Rate, Transaction},
    plan::Limits,
};

/// Requests of one operator. It fits a script over a thousand machines, and keeps the audit record from flooding.
pub(super) const RATE: Rate = Rate { burst: 1_000, per_second: 20 };
/// Why a slot stays taken: rule 5.
const STILL_AT_WORK: &str =
    " keeps its slot: it has leave to start an item and may be at work; once it is off, say so with --machine-is-off";
/// Annotations of one object.
const ANNOTATIONS_MAX: usize = 64;

pub(super) fn take(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    request: Request,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    may_ask(tx, actor, now)?;
    match request {
        Request::Apply { clusters, machines, dry_run } => {
            apply::apply(tx, effects, actor, (clusters, machines), dry_run, now)
        }
        Request::Deploy { cluster } => deploy::cluster(tx, actor, &cluster, limits, now),
        Request::Update { cluster, options } => update::start(tx, actor, &cluster, &options, limits, now),
        Request::Reboot { cluster, machines, accept_control_plane_downtime } => {
            update::reboot(tx, actor, &cluster, (&machines, accept_control_plane_downtime), limits, now)
        }
        Request::EnterMaintenance { machine, accept_control_plane_downtime } => {
            update::enter(tx, actor, &machine, accept_control_plane_downtime, limits, now)
        }
        request @ (Request::Remove { .. } | Request::AbortRemoval { .. }) => {
            removal::take(tx, effects, actor, &request, limits, now)
        }
        Request::LeaveMaintenance { machine } => update::leave(tx, actor, &machine, limits, now),
        Request::Pause { rollout } => update::say(tx, actor, &rollout, update::RolloutCommand::Pause, limits, now),
        Request::Resume { rollout } => update::say(tx, actor, &rollout, update::RolloutCommand::Resume, limits, now),
        Request::Abort { rollout } => update::say(tx, actor, &rollout, update::RolloutCommand::Abort, limits, now),
        Request::Retry { machine, item: None } if update::is_deferred(tx, &machine) => {
            update::ask_again(tx, actor, &machine, now)
        }
        Request::Retry { machine, item } => {
            verdicts::decide(tx, actor, (ItemCommand::Retry, &machine, item.as_ref()), limits, now)
        }
        Request::DrainForce { machine, pod } => update::force_pod(tx, actor, (&machine, &pod), limits, now),
        Request::Skip { machine, item } => {
            verdicts::decide(tx, actor, (ItemCommand::Skip, &machine, item.as_ref()), limits, now)
        }
        Request::Accept { machine, item } => {
            verdicts::decide(tx, actor, (ItemCommand::Accept, &machine, item.as_ref()), limits, now)
        }
        Request::Rerun { machine, item } => rerun::item(tx, actor, (&machine, &item), limits, now),
        Request::AnnotateMachine { machine, set, remove } => {
            known_machine(tx, &machine)?;
            let lines = tx.machine_mut(&machine).map(|row| annotate(&mut row.annotations, set, &remove)).transpose()?;
            audited(tx, actor, "annotate", AuditObject::Machine(&machine), lines.unwrap_or_default(), now)
        }
        Request::AnnotateCluster { cluster, set, remove } => {
            known_cluster(tx, &cluster)?;
            let lines = tx.cluster_mut(&cluster).map(|row| annotate(&mut row.annotations, set, &remove)).transpose()?;
            audited(tx, actor, "annotate", AuditObject::Cluster(&cluster), lines.unwrap_or_default(), now)
        }
        Request::SetAddress(addresses) => Ok(credentials::set_address(tx, actor, addresses, now)),
        Request::CreateToken { .. } => tokens::create(tx, actor, request, now),
        Request::RevokeToken { id, machines } => tokens::revoke(tx, effects, actor, (&id, machines), now),
        Request::RecordCredentials(row) => credentials::record(tx, actor, row, now),
        Request::RevokeCredentials { subject } => credentials::revoke(tx, actor, &subject, now),
        request @ (Request::CreateSecret { .. } | Request::ShareSecret { .. } | Request::DeleteSecret { .. }) => {
            secrets::take(tx, actor, request, now)
        }
        Request::ReleaseLocks(what) => maintenance::release(tx, actor, what, now),
        Request::DeleteCluster { cluster } => delete::cluster(tx, effects, actor, &cluster, now),
        Request::RevokeMachine { machine, machine_is_off } => {
            revoke(tx, effects, actor, (&machine, machine_is_off), now)
        }
        Request::ReplaceMachine { machine, machine_is_off } => {
            replace(tx, effects, actor, (&machine, machine_is_off), now)
        }
    }
}

fn may_ask(tx: &mut Transaction<'_>, actor: &str, now: Now) -> Result<(), Refusal> {
    tx.count(actor, RATE, now).map_err(|again_in_ms| Refusal::TooFast {
        what: format!("{actor} may make {} requests a second that change something", RATE.per_second),
        again_in_ms,
    })
}

pub(super) fn audited(
    tx: &mut Transaction<'_>,
    actor: &str,
    action: &str,
    object: AuditObject<'_>,
    lines: Vec<String>,
    now: Now,
) -> Result<Reply, Refusal> {
    tx.audit(actor, action, object, &lines.join("; "), now.wall_ms);
    Ok(Reply::Done(lines))
}

/// The error for a missing object, with the nearest existing name.
pub(super) fn not_found<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> Refusal {
    Refusal::NotFound { kind, name: name.to_owned(), nearest: nearest(name, known).map(str::to_owned) }
}

pub(super) fn known_machine(tx: &Transaction<'_>, name: &MachineName) -> Result<Arc<MachineRow>, Refusal> {
    let names = || tx.machines.keys().map(MachineName::as_str);
    tx.machines.get(name).cloned().ok_or_else(|| not_found("machine", name.as_str(), names()))
}

pub(super) fn known_cluster(tx: &Transaction<'_>, name: &ClusterName) -> Result<(), Refusal> {
    let names = || tx.clusters.keys().map(ClusterName::as_str);
    if tx.clusters.contains_key(name) { Ok(()) } else { Err(not_found("cluster", name.as_str(), names())) }
}

fn annotate(
    annotations: &mut BTreeMap<String, String>,
    set: BTreeMap<String, String>,
    remove: &[String],
) -> Result<Vec<String>, Refusal> {
    let mut lines = Vec::new();
    let mut changed = annotations.clone();
    for name in remove {
        let word = if changed.remove(name).is_some() { "removed" } else { "was not set" };
        lines.push(format!("{name} {word}"));
    }
    for (name, value) in set {
        lines.push(format!("{name} set"));
        changed.insert(name, value);
    }
    if changed.len() > ANNOTATIONS_MAX {
        let message = format!("an object has at most {ANNOTATIONS_MAX} annotations");
        return Err(Refusal::State { reason: "TooManyAnnotations", message });
    }
    *annotations = changed;
    Ok(lines)
}

fn revoke(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    (machine, machine_is_off): (&MachineName, bool),
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    let keeps_slot = row.slot.is_some() && update::may_be_at_work(&row) && !machine_is_off;
    let Some(id) = row.id.filter(|_| !row.revoked || (row.slot.is_some() && !keeps_slot)) else {
        let message = match row.revoked {
            true => format!("{machine} is revoked already; `musterctl replace {machine}` lets another take its name"),
            false => format!("{machine} has not enrolled: it has no certificate that could be revoked"),
        };
        return Err(Refusal::State { reason: "NothingToDo", message });
    };
    let left_out = row.rollout.as_ref().and_then(|rollout| update::left_out(tx, rollout, Some(machine)));
    if !row.revoked {
        enroll::deny(tx, effects, machine, id, "an operator revoked this machine", now);
    }
    let mut line = format!("machine {machine} revoked: its streams are closed and it cannot renew");
    if let Some(row) = tx.machine_mut(machine) {
        row.revoked = true;
        if keeps_slot {
            line = format!("{line}; {machine}{STILL_AT_WORK}");
        } else if row.slot.take().is_some() {
            line.push_str("; its slot is free, but what it was told to do goes on there until it is off");
        }
    }
    let lines = std::iter::once(line).chain(left_out).collect();
    audited(tx, actor, "revoke", AuditObject::Machine(machine), lines, now)
}

fn replace(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    (machine, machine_is_off): (&MachineName, bool),
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    if row.slot.is_some() && update::may_be_at_work(&row) && !machine_is_off {
        return Err(Refusal::State { reason: "PermitOutstanding", message: format!("{machine}{STILL_AT_WORK}") });
    }
    if row.removal.is_some() {
        let message = format!("{machine} is being removed; its name is free when it is gone");
        return Err(Refusal::State { reason: "RemovalUnderWay", message });
    }
    let Some(id) = row.id else {
        return Err(Refusal::State {
            reason: "NothingToDo",
            message: format!("{machine} is not enrolled; a machine can enrol under this name at once"),
        });
    };
    let left_out = row.rollout.as_ref().and_then(|rollout| update::left_out(tx, rollout, Some(machine)));
    if !row.revoked {
        enroll::deny(tx, effects, machine, id, "an operator replaces this machine", now);
    }
    if let Some(row) = tx.machine_mut(machine) {
        row.revoked = true;
        row.replaceable = true;
        row.slot = None;
    }
    let line = format!(
        "machine {machine}: the old one is revoked; a new one may enrol under this name (statuses start anew then)"
    );
    let MachineSpec { cluster_name, machine_type, .. } = &row.spec;
    let next = format!(
        "its token: `musterctl token create --cluster {cluster_name} --type {machine_type} --machine {machine}`; then, \
         there: the `muster-agent enroll …` that it prints (with --force where the old one's state is still there)"
    );
    let lines = [line].into_iter().chain(left_out).chain([next]).collect();
    audited(tx, actor, "replace", AuditObject::Machine(machine), lines, now)
}
