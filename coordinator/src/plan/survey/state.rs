//! The states of a machine, and which of them it is in.

use muster_proto::model::{AssignedItem, MachineType, Phase, Standing};

use super::Position;
use crate::plan::reboot::is_reboot;

/// How far the items of one phase are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// All done, or none there.
    Done,
    /// Some are due or running, and nothing stands in their way.
    Open,
    /// This one failed for good.
    Failed(&'a AssignedItem),
    /// Of this one nobody knows what became.
    Held(&'a AssignedItem),
}

/// The states of a machine, exactly as LCM names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No InternalIP, or of type `unassigned`.
    Uninitialized,
    /// Nothing assigned yet.
    Pending,
    /// Has its prepare items, or waits its turn with them done.
    Prepare,
    /// Has its deploy items, not all done.
    Deploy,
    /// All done but a reboot.
    Reboot,
    /// Has its reconfigure items, not all done.
    Reconfigure,
    /// All done.
    Ready,
}

impl State {
    /// The name operators know.
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

impl Position<'_> {
    /// Its state (domain.md §1, decided in that order).
    #[must_use]
    pub fn state(&self) -> State {
        if self.row.internal_ip().is_none() || self.row.spec.machine_type == MachineType::Unassigned {
            return State::Uninitialized;
        }
        let Some(reach) = self.row.reach else { return State::Pending };
        match reach {
            Phase::Prepare if self.update().is_some_and(|mine| mine.only_added) => State::Ready,
            Phase::Prepare => State::Prepare,
            Phase::Deploy | Phase::Reconfigure if self.has_its_version() => State::Ready,
            Phase::Deploy | Phase::Reconfigure if self.only_a_reboot_is_left(reach) => State::Reboot,
            // In an update its list reaches all of its phases from the first disruptive item on.
            Phase::Reconfigure if self.progress(Phase::Deploy) == Progress::Done => State::Reconfigure,
            Phase::Deploy | Phase::Reconfigure => State::Deploy,
        }
    }

    /// Has it been Ready, and is something of this phase to be done there that disturbs workloads? Only an update
    /// brings that about: so it is after `recover`, and when its host has another name since.
    #[must_use]
    pub fn is_behind(&self, phase: Phase) -> bool {
        let items = self.items.unwrap_or_default().iter().filter(|item| item.phase == phase);
        let mut open = items.filter(|item| self.standing(item) != Standing::Done);
        self.row.reach >= Some(phase) && open.any(|item| self.is_disruptive(item))
    }

    /// Is nothing done to its version: does it hold no slot, or for maintenance alone?
    fn has_its_version(&self) -> bool {
        let maintained = self.update().is_some_and(|mine| mine.maintenance.is_some());
        self.ready_once() && (self.row.slot.is_none() || maintained)
    }

    fn only_a_reboot_is_left(&self, reach: Phase) -> bool {
        let items = self.items.unwrap_or_default().iter().filter(|item| item.phase <= reach);
        let mut left = items.filter(|item| self.standing(item) != Standing::Done).peekable();
        left.peek().is_some() && left.all(is_reboot)
    }
}
