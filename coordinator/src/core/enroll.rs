//! Enrolment. Every refused peer gets the same constant text; the detail is only logged.

use std::collections::BTreeSet;

use muster_proto::model::{
    ClusterName, Generation, LedgerOrdinal, MachineId, MachineName, MachineSpec, MachineType, Now,
};

use super::{Effect, Enroll, Refusal, Reply};
use crate::{
    facts::{AuditObject, AuditRow, EnrolledWith, MachineRow, NodeObservation, Rate, TokenRow, Transaction},
    plan::{
        enrolment::{self, CLUSTER_MACHINES_MAX},
        safety::token_for,
    },
};

/// Enrolments of one cluster, over all tokens. A whole fleet that is switched on comes at 300 a second.
pub(super) const RATE: Rate = Rate { burst: 1_000, per_second: 500 };
/// Repeated answers to one machine, which asks again after seconds.
pub(super) const REPEATS: Rate = Rate { burst: 20, per_second: 1 };

pub(super) fn enroll(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    enroll: &Enroll,
    now: Now,
) -> Result<Reply, Refusal> {
    let token = valid_token(tx, enroll, now).map_err(|detail| Refusal::Token { detail })?;
    let actor = AuditRow::token(&enroll.token_id);
    let (cluster, machine_type) = (token.cluster.clone(), token.machine_type);
    let name = &enroll.name;
    // Only the machine itself can repeat its request, so this is exempt from the limit below.
    if let Some(id) = enrolled_before(tx, enroll) {
        tx.count(&format!("machine/{name}"), REPEATS, now).map_err(|again_in_ms| Refusal::TooFast {
            what: format!("machine {name} may ask {} times a second for the answer that it had", REPEATS.per_second),
            again_in_ms,
        })?;
        note_repeated(tx, name, &actor, id, now);
        return Ok(Reply::Enrolled { id, cluster, machine_type });
    }
    may_take_place(tx, name, &token)?;
    // Only admitted machines count. A holder of a token's secret can thus delay others only as long as it has uses.
    tx.count(&format!("cluster/{cluster}"), RATE, now).map_err(|again_in_ms| Refusal::TooFast {
        what: format!("cluster {cluster} lets {} machines a second enrol", RATE.per_second),
        again_in_ms,
    })?;
    let took_place = take_place(tx, effects, name, &token, now);
    tx.identify(name, Some(enroll.new_id));
    if let Some(row) = tx.machine_mut(name) {
        row.replaceable = false;
        row.revoked = false;
        row.enrolled_with = Some(with(enroll, took_place));
        // A new ledger begins with the identity.
        row.assigned_items = Some(BTreeSet::new());
        row.agent_version.clone_from(&enroll.agent_version);
    }
    if let Some(token) = tx.token_mut(&enroll.token_id) {
        token.used += 1;
    }
    tx.audit(
        &actor,
        "enroll",
        AuditObject::Machine(name),
        &format!("as {machine_type} of {cluster}, id {}", enroll.new_id),
        now.wall_ms,
    );
    Ok(Reply::Enrolled { id: enroll.new_id, cluster, machine_type })
}

/// May the machine come under this name? A machine with a row, for example from a Machine document, has its place.
fn may_take_place(tx: &Transaction<'_>, name: &MachineName, token: &TokenRow) -> Result<(), Refusal> {
    match tx.machines.get(name) {
        Some(row) => may_take_name(row, token),
        None => has_room(tx, &token.cluster),
    }
}

/// Makes a machine's row, or clears the one whose place it takes. True: it takes the place of another machine.
fn take_place(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    name: &MachineName,
    token: &TokenRow,
    now: Now,
) -> bool {
    let (cluster, machine_type) = (&token.cluster, token.machine_type);
    let old = tx.machines.get(name).cloned();
    match &old {
        None => {
            let spec = MachineSpec {
                cluster_name: cluster.clone(),
                machine_type,
                state_items_overwrites: std::collections::BTreeMap::new(),
                interface: None,
                cidr: None,
                upgrade_index: 0,
                update_group: None,
                reboot_required: false,
            };
            let mut row = MachineRow::new(name.clone(), spec, false, now.wall_ms);
            row.assigned.generation = last_generation(tx, name);
            tx.put_machine(row);
        }
        Some(row) if row.id.is_none() => {
            let generation = last_generation(tx, name).max(row.assigned.generation);
            if let Some(row) = tx.machine_mut(name) {
                row.assigned.generation = generation;
            }
        }
        Some(row) => {
            if let Some(id) = row.id {
                deny(tx, effects, name, id, "replaced by a new machine", now);
            }
            void(tx, name);
        }
    }
    old.is_some_and(|row| row.id.is_some())
}

fn with(enroll: &Enroll, took_place: bool) -> EnrolledWith {
    EnrolledWith { token_id: enroll.token_id.clone(), key_sha256: enroll.key_sha256, repeated: false, took_place }
}

/// Audits the first repeated answer only. Repeating is free for the caller, and the record keeps a limited number of
/// lines.
fn note_repeated(tx: &mut Transaction<'_>, name: &MachineName, actor: &str, id: MachineId, now: Now) {
    let with = tx.machines.get(name).and_then(|row| row.enrolled_with.as_ref());
    if with.is_none_or(|with| with.repeated) {
        return;
    }
    if let Some(with) = tx.machine_mut(name).and_then(|row| row.enrolled_with.as_mut()) {
        with.repeated = true;
    }
    let message = format!("as id {id}, once more: it asks with the same key and has not greeted yet");
    tx.audit(actor, "enroll", AuditObject::Machine(name), &message, now.wall_ms);
}

/// The identity that the machine got on its first request, if the answer was lost. Requires the token's secret and the
/// same key, and gives only what was given before. An identity in use, or a revoked one, is excluded.
fn enrolled_before(tx: &Transaction<'_>, enroll: &Enroll) -> Option<MachineId> {
    let row = tx.machines.get(&enroll.name).filter(|row| !row.revoked && !row.replaceable)?;
    let asks_again = |with: &EnrolledWith| with.token_id == enroll.token_id && with.key_sha256 == enroll.key_sha256;
    row.id.filter(|_| row.ledger.is_none() && row.enrolled_with.as_ref().is_some_and(asks_again))
}

/// Has the cluster room for one more machine?
fn has_room(tx: &Transaction<'_>, cluster: &ClusterName) -> Result<(), Refusal> {
    let (count, most) = (enrolment::machines_count(tx, cluster), enrolment::machines_max(tx, cluster));
    if count >= most {
        let message = format!(
            "cluster {cluster} has {count} machines, and its manifest lets it have {most}: an operator applies one \
             that names more (`machines`), or takes back those that never reported (`musterctl get tokens`, `musterctl \
             token revoke ID --machines`)"
        );
        return Err(Refusal::State { reason: "ClusterFull", message });
    }
    may_have(cluster, tx.machines_of(cluster).count() + 1)
}

/// May the record have this many machines of the cluster?
pub(super) fn may_have(cluster: &ClusterName, count: usize) -> Result<(), Refusal> {
    if count <= CLUSTER_MACHINES_MAX {
        return Ok(());
    }
    let message = format!(
        "cluster {cluster} would have {count} machines on record, and one cluster has at most {CLUSTER_MACHINES_MAX}, \
         revoked ones too: `musterctl remove` those that are gone"
    );
    Err(Refusal::State { reason: "TooManyMachines", message })
}

/// Revokes the enrolment of a machine that never reported: its identity is refused, and its name is as before.
pub(super) fn take_back(tx: &mut Transaction<'_>, effects: &mut Vec<Effect>, name: &MachineName, now: Now) {
    let Some(row) = tx.machines.get(name).cloned() else { return };
    if let Some(id) = row.id.filter(|_| !row.revoked) {
        deny(tx, effects, name, id, "its enrolment was taken back", now);
    }
    let took_a_place = row.enrolled_with.as_ref().is_some_and(|with| with.took_place);
    if !row.declared && !took_a_place {
        tx.drop_machine(name);
        return;
    }
    if !took_a_place {
        tx.identify(name, None);
    }
    let Some(row) = tx.machine_mut(name) else { return };
    // The state after `musterctl replace`: another machine may take this name.
    row.revoked = took_a_place;
    row.replaceable = took_a_place;
    row.enrolled_with = None;
    row.assigned_items = None;
    row.agent_version.clear();
}

/// The newest list that a removed machine of this name may have: its ledger may still exist.
fn last_generation(tx: &Transaction<'_>, name: &MachineName) -> Generation {
    let of_it = tx.denied.values().filter(|row| row.machine == *name).map(|row| row.generation);
    of_it.max().unwrap_or_default()
}

/// The token, if it is valid for this machine now; otherwise the reason, for the log.
fn valid_token(tx: &Transaction<'_>, enroll: &Enroll, now: Now) -> Result<TokenRow, String> {
    let token = tx.tokens.get(&enroll.token_id).ok_or("unknown token id")?;
    // The comparison is of digests, so its timing is useless for finding a preimage.
    if token.secret_sha256 != enroll.secret_sha256 {
        return Err(format!("token {}: wrong secret", token.id));
    }
    if token.revoked {
        return Err(format!("token {}: revoked", token.id));
    }
    if now.wall_ms >= token.expires_at_ms {
        return Err(format!("token {}: expired", token.id));
    }
    if token.used >= token.uses && enrolled_before(tx, enroll).is_none() {
        return Err(format!("token {}: used up", token.id));
    }
    if token.machine.as_ref().is_some_and(|machine| *machine != enroll.name) {
        return Err(format!("token {}: for another machine than {}", token.id, enroll.name));
    }
    if !tx.clusters.contains_key(&token.cluster) {
        return Err(format!("token {}: its cluster {} is gone", token.id, token.cluster));
    }
    Ok((**token).clone())
}

fn may_take_name(row: &MachineRow, token: &TokenRow) -> Result<(), Refusal> {
    let name = &row.name;
    if row.id.is_some() && !row.replaceable {
        return Err(Refusal::State {
            reason: "NameTaken",
            message: format!(
                "a machine named {name} is enrolled already; if this one takes its place, an operator runs \
                 `musterctl replace {name}` first, else enrol with another --name"
            ),
        });
    }
    fits_role(row, &token.cluster, token.machine_type)
}

/// Does a token for this type and cluster fit this machine?
pub(super) fn fits_role(row: &MachineRow, cluster: &ClusterName, machine_type: MachineType) -> Result<(), Refusal> {
    let (declared, own) = (row.spec.machine_type, &row.spec.cluster_name);
    if (own, declared) == (cluster, machine_type) {
        return Ok(());
    }
    if own != cluster {
        let message =
            format!("another cluster than {cluster} has a machine {}; names are of the whole fleet", row.name);
        return Err(Refusal::State { reason: "NameTaken", message });
    }
    let mut way = token_for(own, declared);
    if declared != MachineType::Unassigned {
        way.push_str("; if it is to be what the token says, apply a Machine document of that type first");
    }
    let message = format!(
        "{} is declared as {declared} of {own}, the token is for a {machine_type} of {cluster}; {way}",
        row.name
    );
    Err(Refusal::State { reason: "OtherRole", message })
}

/// Refuses an identity from now on and closes its streams.
pub(super) fn deny(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    name: &MachineName,
    id: MachineId,
    reason: &str,
    now: Now,
) {
    tx.deny(id, name, now);
    tx.live_mut(name).is_shut_out();
    tx.stop_awaiting(name);
    effects.push(Effect::Close { id, reason: reason.to_owned() });
}

/// Forgets the history of the machine's former identity. Its generation continues to count.
pub(super) fn void(tx: &mut Transaction<'_>, name: &MachineName) {
    tx.drop_statuses(name);
    if let Some(row) = tx.machine_mut(name) {
        row.ledger = None;
        row.ledger_ordinal = LedgerOrdinal(0);
        row.inherited.clear();
        row.host = None;
        row.max_phase = None;
        row.slot = None;
        row.verdicts.clear();
        row.redo.clear();
        row.control_sets.clear();
        row.predecessor_ready |= row.ready_at.take().is_some();
        row.leave_nodes_behind();
        row.swarm = None;
        row.ready_overwrites = None;
        row.update = None;
        row.removal = None;
        row.needs_review = false;
        row.rollout = None;
        row.stages.clear();
        row.assigned.digest = None;
        row.assigned.refused = None;
    }
    let live = tx.live_mut(name);
    live.heard_mono_ms = None;
    live.wants_permit = false;
    live.busy_mono_ms = None;
    live.items = None;
    live.swarm = NodeObservation::default();
    live.event_refused = None;
}
