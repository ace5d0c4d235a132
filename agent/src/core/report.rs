//! Reports of the core: to the coordinator on every session, to people in one line.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use muster_proto::{
    convert::{Hello, ITEMS_MAX},
    model::{HostFacts, ItemName, ItemStatus},
};

use crate::{
    attempt::record::AttemptKey,
    core::{Core, EVENTS_IN_FLIGHT_MAX, Slot, Step, ToCoordinator, decide, decide::Next, summary},
};

/// Maximum size of a status's message in the hello, so that 1,024 statuses fit into one message of the link.
const HELLO_MESSAGE_BYTES_MAX: usize = 512;

impl Core {
    /// First message of a session. Its statuses omit output and result, which travel with the events.
    #[must_use]
    pub fn hello(&self, facts: HostFacts) -> Hello {
        let slots = self.ledger.slots.values();
        let (assigned, others): (Vec<_>, Vec<_>) = slots.partition(|slot| self.ledger.is_assigned(&slot.status.name));
        let brief = |slot: &Slot| ItemStatus {
            message: start_of(&slot.status.message, HELLO_MESSAGE_BYTES_MAX).to_owned(),
            output_tail: String::new(),
            result_json: None,
            ..ItemStatus::clone(&slot.status)
        };
        Hello {
            name: self.config.machine.clone(),
            ledger_id: self.ledger.ledger_id,
            agent_version: muster_proto::VERSION.to_owned(),
            epoch: self.ledger.epoch,
            generation: self.ledger.generation(),
            acked_seq: self.ledger.acked,
            max_phase: self.ledger.assignment.as_ref().and_then(|assignment| assignment.max_phase()),
            statuses: assigned.into_iter().chain(others).take(ITEMS_MAX).map(brief).collect(),
            facts,
            epoch_code: self.ledger.epoch_code,
            list: self.ledger.assignment.as_ref().map(|assignment| assignment.proof()),
            acked: self.ledger.acked_proof,
            busy: decide::next(&self.ledger, &self.config.machine, self.ended_mono_ms) != Next::Nothing,
        }
    }

    /// The newest attempt of `item`, or by default the running or most recent attempt.
    #[must_use]
    pub fn newest_attempt(&self, item: Option<&ItemName>) -> Option<AttemptKey> {
        let slot = match item {
            Some(item) => self.ledger.slots.get(item),
            None => self.ledger.slots.values().max_by_key(|slot| slot.seq),
        };
        slot.map(Slot::key)
    }

    /// Summary of the machine in one line for people: its state as in `musterctl get machines`, then what it waits for
    /// or works on.
    #[must_use]
    pub fn summary(&self) -> String {
        let running = self.ledger.running().filter(|slot| self.permits.unstarted() != Some(&slot.key()));
        summary::of(&self.ledger, running, self.blocked())
    }

    /// Sends everything that is new to the coordinator of this session.
    pub(super) fn tell(&mut self, step: &mut Step) {
        if !self.link_up {
            return;
        }
        let in_flight = self.ledger.outbox.range(..=self.sent).count();
        let room = EVENTS_IN_FLIGHT_MAX.saturating_sub(in_flight);
        let events: BTreeMap<_, _> = self
            .ledger
            .outbox
            .range((Excluded(self.sent), Unbounded))
            .take(room)
            .map(|(s, e)| (*s, e.clone()))
            .collect();
        for (seq, status) in events {
            self.sent = seq;
            step.sends.push(ToCoordinator::Event { seq, status });
        }
        step.sends.extend(self.permits.question().map(ToCoordinator::PermitWanted));
        let blocked = self.blocked();
        if blocked != self.told_blocked {
            self.told_blocked.clone_from(&blocked);
            step.sends.push(ToCoordinator::Blocked(blocked));
        }
    }
}

fn start_of(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}
