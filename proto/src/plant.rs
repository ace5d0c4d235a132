//! Planted bugs. The simulator must find each of them by the invariant named for it: a checker that never caught a
//! bug proves nothing. Compiled in with the feature `plants` only, and then chosen at run time, per thread.

/// Is the planted bug `name` switched on in this thread? Always false in a build without the feature `plants`.
#[cfg(not(feature = "plants"))]
#[inline(always)]
#[must_use]
pub const fn planted(_name: &str) -> bool {
    false
}

#[cfg(feature = "plants")]
pub use chosen::{planted, set};

#[cfg(feature = "plants")]
mod chosen {
    use std::cell::Cell;

    thread_local! {
        static PLANT: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Switches one planted bug on for this thread, or all off.
    pub fn set(name: Option<&'static str>) {
        PLANT.set(name);
    }

    /// Is the planted bug `name` switched on in this thread?
    #[must_use]
    pub fn planted(name: &str) -> bool {
        PLANT.get() == Some(name)
    }
}
