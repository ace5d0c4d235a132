//! Seeded bugs. The simulator must find each of them by the invariant named for it: this proves that the checks work.
//! Compiled in only with the feature `seeded-bugs`; a bug is then chosen at run time, per thread.

/// Is the seeded bug `name` active in this thread? Always false in a build that lacks the feature `seeded-bugs`.
#[cfg(not(feature = "seeded-bugs"))]
#[inline(always)]
#[must_use]
pub const fn seeded_bug(_name: &str) -> bool {
    false
}

#[cfg(feature = "seeded-bugs")]
pub use chosen::{seeded_bug, set};

#[cfg(feature = "seeded-bugs")]
mod chosen {
    use std::cell::Cell;

    thread_local! {
        static PLANT: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Activate one seeded bug in this thread, or deactivate all.
    pub fn set(name: Option<&'static str>) {
        PLANT.set(name);
    }

    /// Is the seeded bug `name` active in this thread?
    #[must_use]
    pub fn seeded_bug(name: &str) -> bool {
        PLANT.get() == Some(name)
    }
}
