//! Permits: a disruptive item is started only soon after the coordinator allowed it. The moment of receipt is kept in
//! memory on purpose: after a restart nobody knows how old a permit is, so the coordinator is asked again.

use std::sync::Arc;

use muster_proto::{
    model::{Assignment, ItemName, Now, Permit},
    plant::planted,
};

use super::{Core, Step, outcome};
use crate::attempt::record::AttemptKey;

/// What this process knows of permits.
#[derive(Clone, Debug)]
pub(super) struct Permits {
    /// The permit that came to this very process, by number, and when (monotonic milliseconds).
    received: Option<(u64, u64)>,
    /// This permit is needed, and counts no more.
    wanted: Option<u64>,
    /// The coordinator of this session was told so of this one.
    asked: Option<u64>,
    /// Recorded as running by a process before this one, and never started.
    unstarted: Option<AttemptKey>,
}

/// The permit in an assignment: at most one item has one, the last.
fn permit_of(assignment: Option<&Assignment>) -> Option<Permit> {
    assignment?.items.iter().find_map(|item| item.permit)
}

impl Permits {
    pub(super) const fn new() -> Self {
        Self { received: None, wanted: None, asked: None, unstarted: None }
    }

    /// An assignment takes the place of another: a permit that the other did not have counts from now on. One that it
    /// had grows no younger by being sent again in a new list.
    pub(super) fn received(&mut self, before: Option<&Assignment>, new: &Assignment, now: Now) {
        self.wanted = None;
        let known = permit_of(before).map(|permit| permit.number);
        if let Some(permit) = permit_of(Some(new)).filter(|permit| Some(permit.number) > known) {
            self.received = Some((permit.number, now.mono_ms));
        }
    }

    pub(super) const fn new_session(&mut self) {
        self.asked = None;
    }

    /// May an item be started now? One that needs no permit always may.
    pub(super) fn allow(&mut self, permit: Option<Permit>, now: Now) -> bool {
        let Some(permit) = permit else { return true };
        let valid = match self.received {
            Some((number, at_ms)) if number == permit.number => {
                now.mono_ms.saturating_sub(at_ms) < permit.start_within_ms
            }
            Some(_) | None => false,
        };
        // Planted: a permit is taken for good, however old it is.
        let valid = valid || planted("agent-ignore-permit-expiry");
        self.wanted = (!valid).then_some(permit.number);
        valid
    }

    /// An attempt is started under the permit: the next one needs another, after another look at the locks.
    const fn used(&mut self) {
        self.received = None;
    }

    /// Nothing is to be done until another permit comes.
    pub(super) const fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// What to ask the coordinator, once a session.
    pub(super) fn question(&mut self) -> Option<u64> {
        let question = self.wanted.filter(|wanted| self.asked != Some(*wanted))?;
        self.asked = Some(question);
        Some(question)
    }

    pub(super) fn not_started(&mut self, key: AttemptKey) {
        self.unstarted = Some(key);
    }

    pub(super) const fn unstarted(&self) -> Option<&AttemptKey> {
        self.unstarted.as_ref()
    }

    pub(super) fn forget_unstarted(&mut self) {
        self.unstarted = None;
    }
}

impl Core {
    /// Is there leave to start this item now? If not, the coordinator is asked for it.
    fn may_start(&mut self, item: &ItemName, now: Now) -> bool {
        let permit = self.ledger.assigned(item).and_then(|item| item.permit);
        self.permits.allow(permit, now)
    }

    /// Is there leave to begin this attempt now, and are its inputs at hand? They are fetched under a leave only, for
    /// the leave may take long to come.
    pub(super) fn may_begin(&mut self, key: &AttemptKey, now: Now, step: &mut Step) -> bool {
        if !self.may_start(&key.item, now) {
            self.fetch = None;
            return false;
        }
        self.has_inputs(key, now, step)
    }

    /// This item is started: its permit, if it needs one, is used up.
    pub(super) fn use_permit(&mut self, item: &ItemName) {
        let permitted = self.ledger.assigned(item).is_some_and(|item| item.permit.is_some());
        // Planted: retries start under the permit of the first attempt.
        if permitted && !planted("agent-permit-for-all-attempts") {
            self.permits.used();
        }
    }

    /// Starts the attempt that was recorded as running and that a stop of the agent kept from being started.
    pub(super) fn start_recorded(&mut self, now: Now, step: &mut Step) {
        let Some(key) = self.permits.unstarted().cloned() else { return };
        let Some(status) = self.ledger.running().filter(|slot| slot.key() == key).map(|slot| Arc::clone(&slot.status))
        else {
            return self.permits.forget_unstarted();
        };
        let still_wanted = self.ledger.assigned(&status.name).is_some_and(|item| item.hash == status.hash);
        if !still_wanted {
            self.permits.forget_unstarted();
            self.finish(&key, outcome::never_started(), now, step);
        } else if self.may_begin(&key, now, step) {
            self.permits.forget_unstarted();
            self.start(status, now, step);
        }
    }
}
