//! Inputs that only the coordinator has: secrets and the swarm join token. The agent asks for them right before it
//! starts an item that needs them, so that records stay free of values. This module only tracks whether they are
//! present. While the coordinator is unreachable, the item waits and reports it.

use muster_proto::{
    model::{AssignedItem, Generation, ItemName, MachineName, Now, Reason},
    seeded_bug::seeded_bug,
};

use super::{AgentBlocked, Core, Effect, Step, decide};
use crate::attempt::record::AttemptKey;

/// Timeout of an answer.
pub const FETCH_DEADLINE_MS: u64 = 45_000;

/// Awaited inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    key: AttemptKey,
    generation: Generation,
    /// Are they for joining the swarm?
    swarm: bool,
    state: State,
    /// Number of failed requests.
    failures: u32,
    /// Reason of the last failure.
    why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be requested once there is a session.
    Due { not_before_mono_ms: u64 },
    /// Requested; times out at that moment.
    Asked { until_mono_ms: u64 },
    /// The driver of the core holds them, for this step only.
    AtHand,
}

impl Fetch {
    const fn new(key: AttemptKey, generation: Generation, swarm: bool) -> Self {
        Self { key, generation, swarm, state: State::Due { not_before_mono_ms: 0 }, failures: 0, why: None }
    }

    fn is_for(&self, key: &AttemptKey, generation: Generation) -> bool {
        self.key == *key && self.generation == generation
    }

    /// Asks again on a new session: an earlier request may be lost, and a refused one may be granted.
    pub(super) const fn ask_at_once(&mut self) {
        self.state = State::Due { not_before_mono_ms: 0 };
    }

    fn failed(&mut self, why: String, machine: &MachineName, now: Now) {
        self.failures = self.failures.saturating_add(1);
        let wait_ms = decide::wait_ms(self.failures, machine, &self.key.item);
        self.state = State::Due { not_before_mono_ms: now.mono_ms.saturating_add(wait_ms) };
        self.why = Some(why);
    }

    pub(super) const fn wake_at(&self, link_up: bool) -> Option<u64> {
        match self.state {
            State::Due { not_before_mono_ms } if link_up => Some(not_before_mono_ms),
            State::Due { .. } | State::AtHand => None,
            State::Asked { until_mono_ms } => Some(until_mono_ms),
        }
    }

    pub(super) fn blocked(&self, link_up: bool) -> Option<AgentBlocked> {
        let why = match &self.why {
            _ if !link_up => "there is no session with the coordinator",
            Some(why) => why,
            None => return None,
        };
        let item: &ItemName = &self.key.item;
        let (reason, message) = if self.swarm {
            (Reason::WaitingForSwarm, format!("item {item} waits for the way into the swarm: {why}"))
        } else {
            (Reason::WaitingForSecret, format!("item {item} needs secrets, which only the coordinator has: {why}"))
        };
        Some(AgentBlocked { reason, message: message.into() })
    }
}

impl Core {
    /// Are the inputs of this attempt present, if it needs any? Otherwise they are requested when due.
    pub(super) fn has_inputs(&mut self, key: &AttemptKey, now: Now, step: &mut Step) -> bool {
        let item = self.ledger.assigned(&key.item).filter(|item| item.needs_inputs());
        // Seeded bug: start a program before its secrets arrive.
        let Some(swarm) = item.map(AssignedItem::joins_swarm).filter(|_| !seeded_bug("agent-start-without-secrets"))
        else {
            self.fetch = None;
            return true;
        };
        let generation = self.ledger.generation();
        let known = self.fetch.take().filter(|fetch| fetch.is_for(key, generation));
        let mut fetch = known.unwrap_or_else(|| Fetch::new(key.clone(), generation, swarm));
        if let State::Asked { until_mono_ms } = fetch.state
            && now.mono_ms >= until_mono_ms
        {
            let why = format!("it did not answer for {} s", FETCH_DEADLINE_MS / 1000);
            fetch.failed(why, &self.config.machine, now);
        }
        match fetch.state {
            State::AtHand => return true,
            State::Due { not_before_mono_ms } if self.link_up && now.mono_ms >= not_before_mono_ms => {
                fetch.state = State::Asked { until_mono_ms: now.mono_ms.saturating_add(FETCH_DEADLINE_MS) };
                step.acts.push(Effect::Fetch { key: key.clone(), generation });
            }
            State::Due { .. } | State::Asked { .. } => {}
        }
        self.fetch = Some(fetch);
        false
    }

    /// Handles an answer to [`Effect::Fetch`]. A stale answer is dropped with its values.
    pub(super) fn fetched(&mut self, key: &AttemptKey, generation: Generation, outcome: Result<(), String>, now: Now) {
        let asked = |fetch: &&mut Fetch| fetch.is_for(key, generation) && matches!(fetch.state, State::Asked { .. });
        let Some(fetch) = self.fetch.as_mut().filter(asked) else { return };
        match outcome {
            Ok(()) => fetch.state = State::AtHand,
            Err(why) => fetch.failed(why, &self.config.machine, now),
        }
    }
}
