//! Reboots. The machine goes down during the attempt, so an exit record is missing. The attempt is done exactly when
//! the boot id differs from the one recorded at its start. After that, the same item never reboots the machine again
//! under that generation. An unknown result never counts as done.

use std::sync::Arc;

use muster_proto::{
    model::{ItemHash, ItemName, ItemState, ItemStatus, Now, RunnerKind},
    seeded_bug::seeded_bug,
};

use crate::{
    attempt::record::{AttemptKey, Found},
    core::{Core, Slot, Step, outcome},
};

/// Timeout for the coordinator to acknowledge that the machine is about to go down. Then it reboots anyway: an
/// unreachable coordinator must not delay it.
pub const GOODBYE_MS_MAX: u64 = 10_000;

/// Wait of a reboot item that is recorded as running. A restart of the agent loses it and derives it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    key: AttemptKey,
    what: What,
    until_mono_ms: u64,
}

/// Event that a [`Waiting`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The coordinator must know of the reboot first.
    ToBeHeard,
    /// exec-item is gone and the machine is still up: it is about to go down, or the reboot failed.
    ToGoDown,
}

impl Core {
    /// Is the item of that name a reboot?
    pub(super) fn is_reboot(&self, item: &ItemName) -> bool {
        self.ledger.assigned(item).is_some_and(|item| item.runner == RunnerKind::Reboot.as_str())
    }

    /// Is this a different boot from the one in which the attempt was started?
    pub(super) fn has_rebooted_since(&self, slot: &Slot) -> bool {
        self.boot_id.as_ref().is_some_and(|boot_id| *boot_id != slot.boot_id)
    }

    /// Has the machine rebooted since an earlier attempt of this item under this generation? Then another attempt has
    /// nothing left to do.
    pub(super) fn reboot_is_done(&self, item: &ItemName, hash: ItemHash) -> bool {
        let before = self
            .ledger
            .slots
            .get(item)
            .filter(|slot| slot.status.hash == hash && slot.status.generation == self.ledger.generation());
        // Seeded bug: forget that the machine came back.
        let forgets = seeded_bug("agent-reboot-twice");
        self.is_reboot(item) && !forgets && before.is_some_and(|slot| self.has_rebooted_since(slot))
    }

    /// Delays a reboot whose start is recorded until the coordinator knows of it. False: it may start now.
    pub(super) fn says_goodbye(&mut self, status: &ItemStatus, now: Now) -> bool {
        let Some(slot) = self.ledger.slots.get(&status.name).filter(|slot| slot.seq > self.ledger.acked) else {
            return false;
        };
        if !self.is_reboot(&slot.status.name) {
            return false;
        }
        let (key, until_mono_ms) = (slot.key(), now.mono_ms.saturating_add(GOODBYE_MS_MAX));
        self.waiting = Some(Waiting { key, what: What::ToBeHeard, until_mono_ms });
        true
    }

    /// Handles the end of a reboot item's exec-item. Returns the finding if it means the same as for any other item.
    pub(super) fn reboot_ended(&mut self, key: &AttemptKey, found: Found, now: Now, step: &mut Step) -> Option<Found> {
        let slot = self.ledger.running().filter(|slot| slot.key() == *key && self.is_reboot(&key.item))?;
        // Seeded bug: treat a requested reboot as done.
        let trusting = seeded_bug("agent-trust-unchanged-boot");
        if (self.has_rebooted_since(slot) && !seeded_bug("agent-reboot-twice")) || (trusting && found == Found::Lost) {
            self.finish(key, outcome::rebooted(), now, step);
            return None;
        }
        let goes_down = match &found {
            Found::Running | Found::NotStarted => false,
            Found::Exited(exit) => exit.state == ItemState::Indeterminate,
            Found::Lost => true,
        };
        if !goes_down {
            return Some(found);
        }
        let timeout_ms = self.ledger.assigned(&key.item).map_or(0, |item| item.timeout_ms);
        let (key, until_mono_ms) = (key.clone(), now.mono_ms.saturating_add(timeout_ms));
        self.waiting = Some(Waiting { key, what: What::ToGoDown, until_mono_ms });
        None
    }

    /// Monotonic time at which the wait ends by itself. None: it lasts until another hold ends.
    pub(super) fn waits_until(&self) -> Option<u64> {
        let waiting = self.waiting.as_ref()?;
        let is_held = waiting.what == What::ToBeHeard && self.is_behind();
        (!is_held).then_some(waiting.until_mono_ms)
    }

    /// Continues a reboot item whose wait is over.
    pub(super) fn go_on(&mut self, now: Now, step: &mut Step) {
        let Some(Waiting { key, what, until_mono_ms }) = self.waiting.clone() else { return };
        let Some(slot) = self.ledger.slots.get(&key.item).filter(|slot| slot.is_running() && slot.key() == key) else {
            return;
        };
        let status = Arc::clone(&slot.status);
        let wanted = self.ledger.assigned(&status.name).is_some_and(|item| item.hash == status.hash);
        let over = now.mono_ms >= until_mono_ms;
        match what {
            What::ToBeHeard if !wanted => self.finish(&key, outcome::never_started(), now, step),
            // Hold until a new process checks: at the end of the hold, the reboot would come long after its permit.
            What::ToBeHeard if self.is_behind() => {}
            What::ToBeHeard if over || slot.seq <= self.ledger.acked => {
                self.waiting = None;
                self.launch(status, now, step);
            }
            What::ToGoDown if over => self.finish(&key, outcome::still_up(), now, step),
            What::ToBeHeard | What::ToGoDown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{AckProof, AssignedItem, AuthCode, Epoch, Seq};

    use super::*;
    use crate::core::{
        Config, Effect, Input, LedgerState, Record,
        tests::{assignment, config, empty, exit, item, key},
    };

    fn reboot() -> AssignedItem {
        let mut item = item("reboot", "1");
        item.runner = RunnerKind::Reboot.as_str().to_owned();
        item.timeout_ms = 300_000;
        item.hash = item.computed_hash();
        item
    }

    fn started(ledger: LedgerState, boot_id: &str) -> Core {
        let mut core = Core::new(Config { supports: |_| true, ..config() }, ledger);
        at(&mut core, 0, Input::Started { boot_id: boot_id.to_owned() });
        core
    }

    fn at(core: &mut Core, mono_ms: u64, input: Input) -> Vec<Effect> {
        core.step(input, Now { wall_ms: 1_000 + mono_ms, mono_ms })
    }

    fn starts(effects: &[Effect]) -> usize {
        effects.iter().filter(|effect| matches!(effect, Effect::Start(_))).count()
    }

    fn state(core: &Core) -> ItemState {
        core.ledger().slots.values().next().expect("an attempt").status.state.clone()
    }

    /// Assigned and started in boot "a"; its exec-item runs.
    fn asked() -> Core {
        let mut core = started(empty(), "a");
        at(&mut core, 1, Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
        let effects = at(&mut core, 2, Input::Received(assignment(1, 1, vec![reboot()])));
        assert_eq!((starts(&effects), state(&core)), (0, ItemState::Running), "not before it was heard");
        let effects = at(&mut core, 3, Input::Acked(Seq(1), AckProof::NONE));
        assert_eq!(starts(&effects), 1);
        core
    }

    #[test]
    fn the_coordinator_hears_of_it_first_but_is_not_waited_for_long() {
        asked();
        let mut core = started(empty(), "a");
        at(&mut core, 5, Input::Received(assignment(1, 1, vec![reboot()])));
        assert_eq!(core.wake_at(), Some(5 + GOODBYE_MS_MAX));
        assert_eq!(at(&mut core, 4 + GOODBYE_MS_MAX, Input::Tick), []);
        assert_eq!(starts(&at(&mut core, 5 + GOODBYE_MS_MAX, Input::Tick)), 1);
        assert_eq!(core.wake_at(), None);
    }

    #[test]
    fn machine_does_not_go_down_while_its_ledger_is_behind() {
        let mut core = started(empty(), "a");
        at(&mut core, 1, Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
        at(&mut core, 2, Input::Received(assignment(1, 1, vec![reboot()])));
        assert_eq!(starts(&at(&mut core, 3, Input::Acked(Seq(7), AckProof::NONE))), 0);
        assert_eq!(starts(&at(&mut core, 3 + GOODBYE_MS_MAX, Input::Tick)), 0);
        assert_eq!(state(&core), ItemState::Running);
    }

    #[test]
    fn one_that_is_withdrawn_before_it_goes_does_not_go() {
        let mut core = started(empty(), "a");
        at(&mut core, 5, Input::Received(assignment(1, 1, vec![reboot()])));
        let effects = at(&mut core, 6, Input::Received(assignment(1, 2, vec![])));
        assert_eq!((starts(&effects), core.wake_at()), (0, None));
        assert!(matches!(state(&core), ItemState::Failed { .. }));
        assert_eq!(at(&mut core, 6 + GOODBYE_MS_MAX, Input::Tick), []);
    }

    #[test]
    fn another_boot_is_the_proof_whatever_exec_item_left() {
        let cut = exit(ItemState::Indeterminate);
        for found in [Found::Lost, Found::NotStarted, Found::Exited(cut)] {
            let mut core = started(asked().ledger().clone(), "b");
            let effects = at(&mut core, 1, Input::Inspected { key: key("reboot", 1, 1), found });
            assert_eq!((starts(&effects), state(&core)), (0, ItemState::Succeeded), "{effects:?}");
            assert_eq!(at(&mut core, 900_000, Input::Tick), [], "never again");
        }
    }

    #[test]
    fn in_the_same_boot_nothing_is_taken_for_done() {
        for found in [Found::Lost, Found::Exited(exit(ItemState::Indeterminate))] {
            let mut core = asked();
            assert_eq!(at(&mut core, 10, Input::Ended { key: key("reboot", 1, 1), found }), []);
            assert_eq!((state(&core), core.wake_at()), (ItemState::Running, Some(300_010)));
            // The agent may restart in the short time that is left.
            let again = started(core.ledger().clone(), "a");
            assert_eq!(state(&again), ItemState::Running);
            at(&mut core, 300_010, Input::Tick);
            assert!(matches!(state(&core), ItemState::Failed { retryable: true, .. }));
        }
        let mut core = asked();
        let refused = Found::Exited(exit(ItemState::Failed { exit_code: -1, retryable: true }));
        at(&mut core, 10, Input::Ended { key: key("reboot", 1, 1), found: refused });
        assert!(matches!(state(&core), ItemState::Failed { .. }), "logind refused");
    }

    #[test]
    fn a_reboot_between_two_attempts_is_enough() {
        let mut core = asked();
        let refused = Found::Exited(exit(ItemState::Failed { exit_code: -1, retryable: true }));
        at(&mut core, 10, Input::Ended { key: key("reboot", 1, 1), found: refused });
        let mut core = started(core.ledger().clone(), "b");
        let effects = at(&mut core, 100_000, Input::Tick);
        assert_eq!((starts(&effects), state(&core)), (0, ItemState::Succeeded), "{effects:?}");
        // The same item, changed, under another generation is a new request.
        let mut newer = reboot();
        newer.version = "2".to_owned();
        newer.hash = newer.computed_hash();
        let effects = at(&mut core, 100_001, Input::Received(assignment(1, 2, vec![newer])));
        let recorded = |effect: &Effect| {
            matches!(effect, Effect::Record(records)
            if records.iter().any(|record| matches!(record, Record::Started { .. })))
        };
        assert!(effects.iter().any(recorded), "{effects:?}");
        assert_eq!(state(&core), ItemState::Running);
    }
}
