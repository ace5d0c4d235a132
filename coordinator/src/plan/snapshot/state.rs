//! The states of a machine, and how to determine its state.

use muster_proto::model::{AssignedItem, ItemProgress, MachineType, Phase};

use super::MachineView;
use crate::plan::reboot::is_reboot;

/// Progress of the items of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// All done; also for a phase that lacks items.
    Done,
    /// Some are due or running; the others are done.
    Open,
    /// This item failed permanently.
    Failed(&'a AssignedItem),
    /// The outcome of this item is unknown.
    Held(&'a AssignedItem),
}

/// The states of a machine, with LCM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No InternalIP, or of type `unassigned`.
    Uninitialized,
    /// Nothing assigned yet.
    Pending,
    /// Has its prepare items, or has completed them and waits for its turn.
    Prepare,
    /// Has its deploy items; some are open.
    Deploy,
    /// All done except a reboot.
    Reboot,
    /// Has its reconfigure items; some are open.
    Reconfigure,
    /// All done.
    Ready,
}

impl State {
    /// The name that operators see.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Uninitialized => "Uninitialized",
            Self::Pending => "Pending",
            Self::Prepare => "Prepare",
            Self::Deploy => "Deploy",
            Self::Reboot => "Reboot",
            Self::Reconfigure => "Reconfigure",
            Self::Ready => "Ready",
        }
    }
}

impl MachineView<'_> {
    /// Its state, decided in the order of domain.md §1.
    #[must_use]
    pub fn state(&self) -> State {
        if self.row.internal_ip().is_none() || self.row.spec.machine_type == MachineType::Unassigned {
            return State::Uninitialized;
        }
        let Some(max_phase) = self.row.max_phase else { return State::Pending };
        match max_phase {
            Phase::Prepare if self.update().is_some_and(|mine| mine.hooks_only) => State::Ready,
            Phase::Prepare => State::Prepare,
            Phase::Deploy | Phase::Reconfigure if self.has_its_version() => State::Ready,
            Phase::Deploy | Phase::Reconfigure if self.only_a_reboot_is_left(max_phase) => State::Reboot,
            // In an update, its list covers all of its phases from the first disruptive item on.
            Phase::Reconfigure if self.progress(Phase::Deploy) == Progress::Done => State::Reconfigure,
            Phase::Deploy | Phase::Reconfigure => State::Deploy,
        }
    }

    /// Has it been Ready, and is a disruptive item of this phase open? Only an update may run such an item. This
    /// happens after `recover`, and when its hostname has changed.
    #[must_use]
    pub fn is_behind(&self, phase: Phase) -> bool {
        let items = self.items.unwrap_or_default().iter().filter(|item| item.phase == phase);
        let mut open = items.filter(|item| self.standing(item) != ItemProgress::Done);
        self.row.max_phase >= Some(phase) && open.any(|item| self.is_disruptive(item))
    }

    /// Is its version left as it is: is it free of a slot, or in one for maintenance or a renewal of pods
    /// only?
    fn has_its_version(&self) -> bool {
        let maintained = self.update().is_some_and(|mine| mine.maintenance.is_some() || mine.renewal.is_some());
        self.ready_once() && (self.row.slot.is_none() || maintained)
    }

    fn only_a_reboot_is_left(&self, max_phase: Phase) -> bool {
        let items = self.items.unwrap_or_default().iter().filter(|item| item.phase <= max_phase);
        let mut left = items.filter(|item| self.standing(item) != ItemProgress::Done).peekable();
        left.peek().is_some() && left.all(is_reboot)
    }
}
