//! Messages of agents. Only the certificate identifies the sender.

use std::{collections::BTreeMap, sync::Arc};

use muster_proto::{
    convert::{Hello, ITEMS_MAX},
    model::{
        AckProof, Generation, HostFacts, ItemHash, ItemName, ItemState, ItemStatus, LedgerId, MachineId, MachineName,
        Now, Phase, Reason, Seq,
    },
    seeded_bug::seeded_bug,
};

use super::{
    Effect, Refusal, Reply, Rules,
    decide::{self, current_assignment},
    event_validation::impossible,
    evidence,
    quota::{is_given, put_status},
    swarm, update,
};
use crate::{
    facts::{ItemActivity, ItemOverride, LeftOut, MachineRow, Slot, Transaction, UnprovenClaim},
    plan::items,
    proof::{ProofKey, Told},
};

/// Reasons for refusing the newest list because its generation belongs to another list (agent_link.proto). The Hello of
/// such a machine proves it; without that proof, the claim counts as unproven.
const GIVEN_BY_ANOTHER: [&str; 2] = ["GenerationReused", "StaleGeneration"];

/// How far a Hello is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Belief {
    /// All of it.
    Whole,
    /// All but its claims beyond this store, which stay unrecorded.
    Less(UnprovenClaim),
    /// It proves that this store is older than the fleet. Keep it unrecorded: otherwise the next start would find the
    /// proof in its own store.
    BeyondStore,
}

/// The machine of an identity, marked as alive.
pub(super) fn heard(tx: &mut Transaction<'_>, id: MachineId, now: Now) -> Result<MachineName, Refusal> {
    let name = tx.names.get(&id).cloned().ok_or_else(|| Refusal::unknown_machine(id))?;
    let live = tx.live_mut(&name);
    live.heard_mono_ms = Some(now.mono_ms);
    live.heard_wall_ms = Some(now.wall_ms);
    Ok(name)
}

pub(super) fn hello(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    (id, session): (MachineId, u64),
    mut hello: Hello,
    rules: &Rules<'_>,
    now: Now,
) -> Result<Reply, Refusal> {
    if let Some(row) = tx.by_id(id).filter(|row| row.name != hello.name) {
        let message = format!("this certificate is of machine {}, not of {}", row.name, hello.name);
        return Err(Refusal::Protocol { code: "ForeignMachine", message });
    }
    let present = tx.by_id(id).and_then(|row| tx.live.machines.get(&row.name)?.session);
    if present.is_some_and(|present| present > session) {
        let message = format!("stream {session} was followed by another before its Hello came");
        return Err(Refusal::Protocol { code: "Overtaken", message });
    }
    let belief = weigh(tx, id, &mut hello, rules.proof_key);
    let known = tx.by_id(id).and_then(|row| row.ledger);
    let is_known = known.is_some_and(|(ledger, _)| ledger == hello.ledger_id);
    let takes_ledger = match belief {
        Belief::Whole => true,
        Belief::Less(_) => is_known,
        Belief::BeyondStore => false,
    };
    if tx.meta.recovering && belief != Belief::BeyondStore {
        adopt(tx, id, (&hello, takes_ledger), rules.proof_key, now);
    }
    if tx.by_id(id).is_none() && tx.machines.contains_key(&hello.name) {
        tx.live_mut(&hello.name).stranger = true;
    }
    let name = heard(tx, id, now)?;
    let live = tx.live_mut(&name);
    live.has_stream(session, now);
    live.ledger_left_out = !takes_ledger;
    live.busy_mono_ms = hello.busy.then_some(now.mono_ms);
    live.unproven = match &belief {
        Belief::Less(claim) => Some(claim.clone()),
        Belief::Whole | Belief::BeyondStore => None,
    };
    tx.stop_awaiting(&name);
    let Some(row) = tx.machines.get(&name).filter(|_| belief != Belief::BeyondStore).cloned() else {
        return Ok(Reply::Ok);
    };
    let new_ledger = takes_ledger && known.is_some() && !is_known;
    if new_ledger {
        carry_over(tx, &row, &hello.statuses, now);
        mark_carried(tx, &name, &hello.statuses);
        tx.live_mut(&name).event_refused = None;
    }
    if present.is_none() {
        drop_undelivered(tx, &name, hello.generation);
    }
    note_greeting(tx, &row, &hello, takes_ledger && !is_known);
    items::refresh_one(tx, &row);
    // Send this before the list: an agent with an outdated ledger learns it here, and stops.
    if let Some((_, seq)) = tx.machines.get(&name).and_then(|row| row.ledger)
        && seq > hello.acked_seq
        && takes_ledger
    {
        effects.push(ack(tx, (id, session), (hello.ledger_id, seq), rules.proof_key));
    }
    if hello.generation <= row.assigned.generation
        && let Some(assignment) = current_assignment(tx, &name, rules, now)
    {
        tx.live_mut(&name).told = assignment.generation;
        effects.push(Effect::Assign { id, assignment });
    }
    Ok(Reply::Ok)
}

/// Records what a Hello proves beyond this store, and removes its unproven claims.
fn weigh(tx: &mut Transaction<'_>, id: MachineId, hello: &mut Hello, key: &ProofKey) -> Belief {
    let beyond = evidence::beyond(tx, id, hello, key);
    if beyond.proves_epoch && hello.epoch > tx.meta.fleet_epoch {
        tx.meta_mut().fleet_epoch = hello.epoch;
    }
    // During recovery, the newer facts of the machines are what the store needs.
    let adopts = tx.meta.recovering && !beyond.proves_epoch;
    match (beyond.proven, beyond.unproven) {
        (Some(evidence), _) if !adopts => {
            tx.older_than_fleet(id, evidence);
            Belief::BeyondStore
        }
        (_, Some(claim)) => Belief::Less(claim),
        (_, None) => Belief::Whole,
    }
}

/// Acknowledges an agent's events up to this one, with a proof.
fn ack(
    tx: &Transaction<'_>,
    (id, session): (MachineId, u64),
    (ledger, seq): (LedgerId, Seq),
    key: &ProofKey,
) -> Effect {
    let (epoch, ordinal) = (tx.meta.epoch, tx.by_id(id).map(|row| row.ledger_ordinal).unwrap_or_default());
    let code = key.code(id, &Told::Acked { ledger, ordinal, epoch, seq });
    Effect::Ack { id, session, seq, proof: AckProof { epoch, ordinal, code } }
}

/// Expires an undelivered permit, unless it may still arrive on another stream. Its time would begin with a new
/// delivery, long after the conditions that allowed it. The next permit is decided on current facts.
fn drop_undelivered(tx: &mut Transaction<'_>, machine: &MachineName, has: Generation) {
    let permit = |row: &MachineRow| row.update.as_ref()?.permit.clone();
    // Seeded bug: send the permit again when its machine is back.
    let known = tx.machines.get(machine).and_then(|row| permit(row)).filter(|_| !seeded_bug("late-permit"));
    if known.is_some_and(|permit| !permit.expired && permit.listed.is_some_and(|listed| has < listed))
        && let Some(row) = tx.machine_mut(machine)
        && let Some(permit) = row.update.as_mut().and_then(|update| update.permit.as_mut())
    {
        permit.expired = true;
    }
}

/// Does an attempt run without a recorded start?
fn runs_unheard(row: &MachineRow, hello: &Hello) -> bool {
    let heard = |status: &ItemStatus| {
        let known = row.statuses.get(&status.name);
        known.is_some_and(|known| (known.generation, known.attempt) == (status.generation, status.attempt))
    };
    hello.statuses.iter().any(|status| status.state == ItemState::Running && !heard(status))
}

/// Records the facts of a Hello, if they are new.
fn note_greeting(tx: &mut Transaction<'_>, row: &MachineRow, hello: &Hello, other_ledger: bool) {
    // A recorded acceptance implies that all earlier starts are recorded. While an unrecorded attempt runs, its event
    // is yet to come. The list is then sent again, and its answer follows that event.
    let newest = if runs_unheard(row, hello) { row.assigned.accepted } else { row.assigned.generation };
    let (accepted, host) = (hello.generation.min(newest), row.as_greeted(&hello.facts));
    if accepted == row.assigned.accepted
        && !other_ledger
        && row.host.as_ref() == Some(&host)
        && row.agent_version == hello.agent_version
    {
        return;
    }
    let Some(row) = tx.machine_mut(&row.name) else { return };
    if other_ledger {
        row.take_ledger(hello.ledger_id, hello.acked_seq);
    }
    row.assigned.accepted = accepted;
    row.host = Some(host);
    row.agent_version.clone_from(&hello.agent_version);
}

/// After `recover`: takes over the agent's newer facts. The machines themselves show which of them holds a slot. One
/// that runs deploy or reconfigure items, or waits there for an operator, must have one; all others lack one. A Ready
/// machine without a slot and without need for review stays without one, because this store lacks work for it. Of a
/// rejected ledger, only facts count that keep the machine from working unseen.
fn adopt(tx: &mut Transaction<'_>, id: MachineId, (hello, takes_ledger): (&Hello, bool), key: &ProofKey, now: Now) {
    let Some(name) = tx.names.get(&id).cloned() else { return };
    for status in hello.statuses.iter().filter(|_| takes_ledger) {
        let newer = tx.machines.get(&name).and_then(|row| row.statuses.get(&status.name).cloned()).is_none_or(|ours| {
            (ours.generation, ours.attempt, ours.state == ItemState::Running)
                != (status.generation, status.attempt, status.state == ItemState::Running)
        });
        if newer {
            put_status(tx, &name, status.clone());
        }
    }
    if takes_ledger {
        mark_carried(tx, &name, &hello.statuses);
    }
    let Some(row) = tx.machine_mut(&name) else { return };
    let known = row.ledger;
    if takes_ledger {
        row.take_ledger(hello.ledger_id, hello.acked_seq);
        // In this copy it may be an earlier one.
        row.ledger_ordinal = row.ledger_ordinal.max(evidence::proven_ordinal(id, hello, key));
    }
    // Its list is the same as when the copy was made: it is out of service, and holds a slot for that.
    let maintained = row.update.as_ref().is_some_and(|mine| mine.maintenance.is_some());
    let stays = maintained && row.assigned.generation == hello.generation;
    // This copy lacks any update since then, and all that the machine's new ledger has lost.
    let another_ledger = known.is_some_and(|(ledger, _)| ledger != hello.ledger_id);
    let given_more = hello.generation > row.assigned.generation || another_ledger;
    row.needs_review |= given_more && (row.ready_at.is_some() || row.update.is_some()) && !row.departs();
    // Each permit has its own list, so permit numbers are at most the newest list's number.
    row.permit_seq = row.permit_seq.max(hello.generation.0);
    // Its next list is always new, because its current one may be unknown to this copy.
    row.assigned_items = None;
    row.assigned.generation = row.assigned.generation.max(hello.generation);
    row.assigned.digest = None;
    // It refused a list of this copy, and all its next lists are new.
    row.assigned.refused = None;
    row.max_phase = row.max_phase.max(hello.max_phase);
    if stays {
        return;
    }
    let kept = row.slot.take();
    // An operator has reviewed it: the rest of its update's list is for the next update.
    if kept.is_none() && row.ready_at.is_some() && !row.needs_review {
        return;
    }
    let held = |status: &ItemStatus| status.state == ItemState::Indeterminate && status.generation == hello.generation;
    let holds = hello.busy || hello.statuses.iter().any(held);
    if let Some(phase) = hello.max_phase.filter(|phase| holds && *phase > Phase::Prepare) {
        row.slot = kept.or(Some(Slot { phase, granted_at_ms: now.wall_ms }));
    }
}

/// Handles a lost ledger: earlier successes count as done, a running attempt becomes unknown.
fn carry_over(tx: &mut Transaction<'_>, row: &Arc<MachineRow>, known: &[ItemStatus], now: Now) {
    let known: BTreeMap<&ItemName, ItemHash> = known.iter().map(|status| (&status.name, status.hash)).collect();
    for (item, status) in row.statuses.iter().filter(|(item, status)| known.get(item) != Some(&status.hash)) {
        match status.state {
            // It must run again anyway.
            ItemState::Succeeded if !row.counts(status) => {}
            ItemState::Succeeded => {
                let Some(row) = tx.machine_mut(&row.name) else { return };
                let left_out = Some(LeftOut::DoneBefore);
                row.verdicts.insert(item.clone(), ItemOverride { hash: status.hash, cleared_attempts: 0, left_out });
            }
            ItemState::Running => {
                let lost = ItemStatus {
                    state: ItemState::Indeterminate,
                    message: "the machine lost its ledger while it ran".to_owned(),
                    finished_at_ms: Some(now.wall_ms),
                    ..(**status).clone()
                };
                tx.put_status(&row.name, lost);
            }
            ItemState::Failed { .. } | ItemState::Indeterminate => {}
        }
    }
}

/// Marks the current statuses of these items as reported by another source than the new ledger.
fn mark_carried(tx: &mut Transaction<'_>, machine: &MachineName, told: &[ItemStatus]) {
    let Some(row) = tx.machine_mut(machine) else { return };
    let names = row.statuses.keys().chain(told.iter().map(|status| &status.name));
    row.inherited = names.cloned().collect();
}

pub(super) fn gone(tx: &mut Transaction<'_>, id: MachineId, session: u64) -> Result<Reply, Refusal> {
    if let Some(name) = tx.names.get(&id).cloned() {
        let live = tx.live_mut(&name);
        if live.session == Some(session) {
            live.session = None;
            live.progress = None;
        }
    }
    Ok(Reply::Ok)
}

pub(super) fn status(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    (id, session): (MachineId, u64),
    (seq, status): (Seq, ItemStatus),
    key: &ProofKey,
    now: Now,
) -> Result<Reply, Refusal> {
    let name = heard(tx, id, now)?;
    let live = tx.live.machines.get(&name).filter(|live| live.session == Some(session));
    if live.is_some_and(|live| live.ledger_left_out) {
        // The event stays on the machine until its ledger or the store is replaced.
        return Ok(Reply::Ok);
    }
    let current = live.is_some();
    let Some((ledger, recorded)) = tx.machines.get(&name).and_then(|row| row.ledger).filter(|_| current) else {
        return Err(Refusal::Protocol { code: "NotGreeted", message: "an event before Hello".to_owned() });
    };
    if seq > recorded.next() {
        let message = format!("event {seq} after {recorded}");
        return Err(Refusal::Protocol { code: "SequenceGap", message });
    }
    if seq == recorded.next() {
        if let Some(problem) = contradiction(tx, &name, &status) {
            let message = format!("event {seq}, item {}: {problem}", status.name);
            tx.live_mut(&name).event_refused = Some(message.clone());
            return Err(Refusal::Protocol { code: "ImpossibleTransition", message });
        }
        tx.live_mut(&name).event_refused = None;
        record_status(tx, &name, status, now);
        if let Some(row) = tx.machine_mut(&name) {
            row.ledger = Some((ledger, seq));
        }
    }
    let seq = tx.machines.get(&name).and_then(|row| row.ledger).map_or(seq, |(_, recorded)| recorded.max(seq));
    effects.push(ack(tx, (id, session), (ledger, seq), key));
    Ok(Reply::Ok)
}

/// Why this event is impossible after the earlier events of its ledger. Exceptions are statuses carried over from
/// another ledger or a Hello, and those dropped to make room.
fn contradiction(tx: &Transaction<'_>, machine: &MachineName, status: &ItemStatus) -> Option<String> {
    let row = tx.machines.get(machine)?;
    if !is_given(row, &status.name) {
        let problem =
            "no list that it was given has such an item (is the store an old copy? `muster-coordinator recover`)";
        return Some(problem.to_owned());
    }
    let known = row.statuses.get(&status.name).map(|known| &**known);
    let unsure = row.inherited.contains(&status.name) || (known.is_none() && row.statuses.len() >= ITEMS_MAX);
    impossible(known, row.redo_up_to(&status.name), status).filter(|_| !unsure)
}

/// Records a status, unless it would undo a success from another ledger: the same content is done.
fn record_status(tx: &mut Transaction<'_>, machine: &MachineName, status: ItemStatus, now: Now) {
    if seeded_bug("drop-failed-status") && matches!(status.state, ItemState::Failed { .. }) {
        return;
    }
    let row = tx.machines.get(machine);
    let known = row.and_then(|row| row.statuses.get(&status.name).filter(|known| row.counts(known)));
    let done = known.is_some_and(|known| known.hash == status.hash);
    if !done {
        swarm::note_member(tx, machine, &status);
        update::backups::note(tx, machine, &status);
        if let Some(row) = tx.machine_mut(machine) {
            row.inherited.remove(&status.name);
        }
        let name = status.name.clone();
        put_status(tx, machine, status);
        note_late_success(tx, machine, &name);
    }
    let live = tx.live_mut(machine);
    live.progress = None;
    live.wants_permit = false;
    live.inputs_wanted_ms = None;
    live.busy_mono_ms = Some(now.mono_ms);
}

/// An item that ended after it left the list of a machine at rest is due when it returns, like those that ended earlier
/// (`MachineRow::drop_others`). During an update its success may yet count: the machine may return to its former list.
fn note_late_success(tx: &mut Transaction<'_>, machine: &MachineName, item: &ItemName) {
    let Some(items) = decide::item_names(tx, machine) else { return };
    let is_late = |row: &&Arc<MachineRow>| {
        row.update.is_none() && !items.contains(item) && row.statuses.get(item).is_some_and(|status| row.counts(status))
    };
    // Seeded bug: treat an item as done forever.
    if seeded_bug("keep-dropped-done") || tx.machines.get(machine).filter(is_late).is_none() {
        return;
    }
    if let Some(row) = tx.machine_mut(machine) {
        row.redo.insert(item.clone(), row.assigned.generation);
    }
}

pub(super) fn host_changed(
    tx: &mut Transaction<'_>,
    (id, session): (MachineId, u64),
    facts: HostFacts,
    now: Now,
) -> Result<Reply, Refusal> {
    let name = heard(tx, id, now)?;
    if tx.live.machines.get(&name).and_then(|live| live.session) != Some(session) {
        return Ok(Reply::Ok);
    }
    let Some(row) = tx.machines.get(&name) else { return Ok(Reply::Ok) };
    let facts = row.with_own_hostname(facts);
    // Write only changes.
    if row.host.as_ref() != Some(&facts)
        && let Some(row) = tx.machine_mut(&name)
    {
        row.host = Some(facts);
    }
    Ok(Reply::Ok)
}

pub(super) fn answer(
    tx: &mut Transaction<'_>,
    (id, session): (MachineId, u64),
    generation: Generation,
    refused: Option<String>,
    now: Now,
) -> Result<Reply, Refusal> {
    let name = heard(tx, id, now)?;
    if tx.live_mut(&name).session != Some(session) {
        return Ok(Reply::Ok);
    }
    let Some(assigned) = tx.machines.get(&name).map(|row| row.assigned.clone()) else { return Ok(Reply::Ok) };
    let accepted = if refused.is_none() { generation } else { assigned.accepted };
    let outdated = assigned.generation != generation || (assigned.refused == refused && assigned.accepted == accepted);
    let refusal = refused.as_deref().unwrap_or_default();
    if !outdated && !tx.meta.recovering && GIVEN_BY_ANOTHER.iter().any(|code| refusal.starts_with(code)) {
        let claim = format!("{name} was given another list under the same number ({refusal})");
        tx.live_mut(&name).unproven = Some(UnprovenClaim::NoCode(claim));
    }
    if !outdated && let Some(row) = tx.machine_mut(&name) {
        row.assigned.refused = refused;
        row.assigned.accepted = accepted;
    }
    Ok(Reply::Ok)
}

/// The agent starts nothing under this permit. The next permit is decided on the facts of that time.
pub(super) fn permit_wanted(tx: &mut Transaction<'_>, id: MachineId, number: u64, now: Now) -> Result<Reply, Refusal> {
    let name = heard(tx, id, now)?;
    tx.live_mut(&name).wants_permit = true;
    let permit = tx.machines.get(&name).and_then(|row| row.update.as_ref()?.permit.as_ref());
    let news = permit.is_some_and(|permit| permit.number == number && !permit.expired);
    if news
        && let Some(row) = tx.machine_mut(&name)
        && let Some(permit) = row.update.as_mut().and_then(|update| update.permit.as_mut())
    {
        permit.expired = true;
    }
    Ok(Reply::Ok)
}

pub(super) fn progress(
    tx: &mut Transaction<'_>,
    id: MachineId,
    progress: ItemActivity,
    now: Now,
) -> Result<Reply, Refusal> {
    let name = heard(tx, id, now)?;
    tx.live_mut(&name).progress = Some(progress);
    Ok(Reply::Ok)
}

pub(super) fn agent_blocked(
    tx: &mut Transaction<'_>,
    (id, session): (MachineId, u64),
    blocked: Option<(Reason, String)>,
    now: Now,
) -> Result<Reply, Refusal> {
    let name = heard(tx, id, now)?;
    let live = tx.live_mut(&name);
    if live.session != Some(session) {
        return Ok(Reply::Ok);
    }
    live.agent_blocked = blocked;
    if live.waits_for_inputs() {
        live.inputs_wanted_ms.get_or_insert(now.wall_ms);
    } else if !live.wants_permit {
        live.inputs_wanted_ms = None;
    }
    Ok(Reply::Ok)
}
