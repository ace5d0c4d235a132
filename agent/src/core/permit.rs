//! Permits: a disruptive item starts only soon after the coordinator allowed it. The time of receipt is kept in memory
//! on purpose: after a restart the age of a permit is unknown, so the coordinator is asked again.

use std::sync::Arc;

use muster_proto::{
    model::{Assignment, ItemName, Now, Permit},
    seeded_bug::seeded_bug,
};

use super::{Core, Step, outcome};
use crate::attempt::record::AttemptKey;

/// State of permits in this process.
#[derive(Clone, Debug)]
pub(super) struct Permits {
    /// The permit that this process received: its number and time (monotonic milliseconds).
    received: Option<(u64, u64)>,
    /// This permit is needed but has expired.
    wanted: Option<u64>,
    /// The permit whose expiry was reported to the coordinator of this session.
    asked: Option<u64>,
    /// Recorded as running by an earlier process that stopped before the start.
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

    /// A new assignment replaces the old one: a permit that is new counts from now. A permit that the old one had keeps
    /// its age.
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

    /// May an item start now? Always, if it needs no permit.
    pub(super) fn allow(&mut self, permit: Option<Permit>, now: Now) -> bool {
        let Some(permit) = permit else { return true };
        let valid = match self.received {
            Some((number, at_ms)) if number == permit.number => {
                now.mono_ms.saturating_sub(at_ms) < permit.start_within_ms
            }
            Some(_) | None => false,
        };
        // Seeded bug: accept a permit of any age.
        let valid = valid || seeded_bug("agent-ignore-permit-expiry");
        self.wanted = (!valid).then_some(permit.number);
        valid
    }

    /// An attempt starts under the permit. The next one needs another, after the locks are checked again.
    const fn used(&mut self) {
        self.received = None;
    }

    /// Is everything on hold until another permit comes?
    pub(super) const fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// The question for the coordinator, once per session.
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
    /// May this item start now? Otherwise the coordinator is asked.
    fn may_start(&mut self, item: &ItemName, now: Now) -> bool {
        let permit = self.ledger.assigned(item).and_then(|item| item.permit);
        self.permits.allow(permit, now)
    }

    /// May this attempt begin now, and are its inputs present? Inputs are fetched only under a valid permit, because a
    /// permit may take long to come.
    pub(super) fn may_begin(&mut self, key: &AttemptKey, now: Now, step: &mut Step) -> bool {
        if !self.may_start(&key.item, now) {
            self.fetch = None;
            return false;
        }
        self.has_inputs(key, now, step)
    }

    /// Uses up the permit of a started item, if it needs one.
    pub(super) fn use_permit(&mut self, item: &ItemName) {
        let permitted = self.ledger.assigned(item).is_some_and(|item| item.permit.is_some());
        // Seeded bug: start retries under the permit of the first attempt.
        if permitted && !seeded_bug("agent-permit-for-all-attempts") {
            self.permits.used();
        }
    }

    /// Starts the attempt that was recorded as running before the agent stopped.
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
