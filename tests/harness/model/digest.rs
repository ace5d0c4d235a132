//! Distinguishes the states of the model, in a few bytes. It omits what follows from the rest (the agents' memory
//! follows from their ledgers and streams), what is irrelevant (numbers of streams, times), and what is constant. A
//! digest that also covers the agents' memory and the coordinator's lists as text distinguishes the same states. The
//! one exception is what an agent remembers of a closed stream, and forgets when the next begins.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    mem::discriminant,
};

use muster_agent::core::{LedgerState, ToCoordinator};
use muster_coordinator::store::Table;
use muster_proto::model::{Assignment, ItemStatus};

use super::State;
use crate::sim::{
    machine::Machine,
    network::{Parcel, Said},
};

/// Tables with constant rows.
const CONSTANT: &[Table] = &[Table::Pki, Table::Specs, Table::Tokens, Table::Secrets, Table::Audit];

/// The digest of a state.
pub(super) fn of(state: &State) -> u64 {
    let mut to = DefaultHasher::new();
    (state.faults_left, state.late, state.world.at).hash(&mut to);
    state.violation.as_ref().map(|violation| violation.invariant).hash(&mut to);
    let world = &state.world;
    store(&world.disk, &mut to);
    world.old_disk.as_ref().inspect(|disk| store(disk, &mut to)).is_some().hash(&mut to);
    world.watcher.hash(&mut to);
    if let Some(facts) = world.facts() {
        (&facts.live.awaited, facts.live.started_mono_ms).hash(&mut to);
        facts.live.older_than_fleet().is_some().hash(&mut to);
    }
    for (index, machine) in world.machines.iter().enumerate() {
        let live = world.facts().and_then(|facts| facts.live.machines.get(&machine.name));
        let known = live.and_then(|live| live.session);
        (known.is_some(), known == machine.session, live.and_then(|live| live.heard_mono_ms)).hash(&mut to);
        (world.sessions.get(&machine.id) == known.as_ref()).hash(&mut to);
        state.gone.iter().any(|(id, _)| *id == machine.id).hash(&mut to);
        self::machine(machine, &mut to);
        for parcels in [&state.said[index], &state.told[index]] {
            parcels.len().hash(&mut to);
            parcels.iter().for_each(|parcel| self::parcel(parcel, machine, &mut to));
        }
    }
    if let Some((index, parcels)) = &state.again {
        (index, parcels.len()).hash(&mut to);
        parcels.iter().for_each(|parcel| self::parcel(parcel, &world.machines[*index], &mut to));
    }
    to.finish()
}

fn store(disk: &BTreeMap<(Table, String), Vec<u8>>, to: &mut DefaultHasher) {
    for ((table, key), row) in disk.iter().filter(|((table, _), _)| !CONSTANT.contains(table)) {
        (table.name(), key, row).hash(to);
    }
}

fn machine(machine: &Machine, to: &mut DefaultHasher) {
    (machine.agent.is_some(), machine.powered, machine.boot, machine.session.is_some()).hash(to);
    ledger(&machine.disk, to);
    // The age of a permit, and whether another was requested, is only in memory.
    if machine.disk.assignment.iter().flat_map(|assignment| &assignment.items).any(|item| item.permit.is_some()) {
        format!("{:?}", machine.agent).hash(to);
    }
    machine.attempts.len().hash(to);
    for (key, attempt) in &machine.attempts {
        (key, attempt.ends_at.is_some(), attempt.followed, attempt.boot).hash(to);
        attempt.exit.as_ref().map(|exit| discriminant(&exit.state)).hash(to);
    }
}

fn ledger(ledger: &LedgerState, to: &mut DefaultHasher) {
    (ledger.epoch, ledger.last_seq, ledger.acked, ledger.assignment.is_some()).hash(to);
    ledger.assignment.iter().for_each(|assignment| self::assignment(assignment, to));
    for slot in ledger.slots.values() {
        (&slot.boot_id, slot.seq).hash(to);
        status(&slot.status, to);
    }
    for (seq, event) in &ledger.outbox {
        seq.hash(to);
        status(event, to);
    }
}

fn assignment(assignment: &Assignment, to: &mut DefaultHasher) {
    (assignment.epoch, assignment.generation, &assignment.variables).hash(to);
    for item in &assignment.items {
        let permit = item.permit.map(|permit| permit.number);
        (&item.name, item.hash, item.cleared_attempts, item.redo_up_to, permit).hash(to);
    }
}

fn status(status: &ItemStatus, to: &mut DefaultHasher) {
    (&status.name, status.hash, status.attempt, status.generation, discriminant(&status.state)).hash(to);
}

fn parcel(parcel: &Parcel, machine: &Machine, to: &mut DefaultHasher) {
    (machine.session == Some(parcel.session), discriminant(&parcel.what)).hash(to);
    match &parcel.what {
        Said::Welcome(epoch, _) => epoch.hash(to),
        Said::Assignment(what) => assignment(what, to),
        Said::Ack(seq, _) => seq.hash(to),
        Said::FromAgent(ToCoordinator::Event { seq, status: event }) => {
            seq.hash(to);
            status(event, to);
        }
        Said::FromAgent(ToCoordinator::Answer { generation, refusal }) => {
            (generation, refusal.is_some()).hash(to);
        }
        Said::FromAgent(ToCoordinator::PermitWanted(number)) => number.hash(to),
        Said::FromAgent(
            what @ (ToCoordinator::Blocked(_) | ToCoordinator::Swarm(_) | ToCoordinator::ControlPlane(_)),
        ) => discriminant(what).hash(to),
        Said::Hello(_)
        | Said::HostChanged(_)
        | Said::Fetch(..)
        | Said::Fetched(..)
        | Said::SwarmCall(_)
        | Said::End => {}
    }
}
