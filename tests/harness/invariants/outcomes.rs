//! Invariants of the outcomes that machines record, including those of reboots.

use muster_agent::{attempt::record::AttemptKey, core::Slot};
use muster_proto::model::{ItemName, ItemState};

use super::{Checked, Watcher};
use crate::sim::machine::{Attempt, Machine};

impl Watcher {
    /// Another content in the same slot supersedes an earlier one: the sequence A, B, A must run A twice. B counts from
    /// when it is recorded, whether it began or not: the slot is the agent's only record of an item, and no longer
    /// mentions A.
    pub(super) fn forget_overwritten(&mut self, machine: &Machine) {
        let slots = &machine.disk.slots;
        let kept = |item: &ItemName, known| slots.get(item).is_none_or(|slot| slot.status.hash == known);
        self.succeeded.retain(|(id, item, known)| *id != machine.id || kept(item, *known));
    }

    /// Rule 7: an unknown outcome never counts as success.
    pub(super) fn successes_are_true(&self, machine: &Machine) -> Checked {
        for slot in machine.disk.slots.values().filter(|slot| slot.status.state == ItemState::Succeeded) {
            let Some(attempt) = machine.attempts.get(&slot.key()) else { continue };
            // An attempt that asks the host first may find its work done, and reports that.
            let needless = attempt.request.params.get("when").is_some_and(|when| when == "required")
                && attempt.exit.as_ref().is_some_and(|exit| exit.state == ItemState::Succeeded);
            if attempt.is_reboot() && !needless {
                self.reboot_is_proved(machine, attempt, slot)?;
                continue;
            }
            let exit = attempt.exit.as_ref().map(|exit| &exit.state);
            if exit != Some(&ItemState::Succeeded) {
                let detail = format!("{}: {} is recorded as success, its exit says {exit:?}", machine.name, slot.key());
                return Err(self.violation("7", detail));
            }
        }
        Ok(())
    }

    /// Rule 7, for reboots: one reboot for an item of a generation.
    pub fn rebooted(&mut self, machine: &Machine, key: &AttemptKey) -> Checked {
        if !self.rebooted.insert((machine.id, key.generation, key.item.clone())) {
            let detail = format!("{}: item {} rebooted it twice under one generation", machine.name, key.item);
            return Err(self.violation("reboot", detail));
        }
        Ok(())
    }

    /// Rule 7, for reboots: a reboot is done only in another boot than the one its attempt started in.
    fn reboot_is_proved(&self, machine: &Machine, attempt: &Attempt, slot: &Slot) -> Checked {
        if attempt.boot == machine.boot {
            let detail = format!("{}: {} is recorded as done, and it never rebooted", machine.name, slot.key());
            return Err(self.violation("reboot", detail));
        }
        Ok(())
    }
}
