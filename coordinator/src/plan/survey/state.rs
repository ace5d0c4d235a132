//! The names of a machine's states.

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
