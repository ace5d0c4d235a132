//! Who may go when. PURE: functions of the facts and of the time given. The core (`core.rs`) asks, and acts on the
//! answers.
//!
//! [`survey`](survey::Survey) looks at one cluster once; [`safety`] says what may start; [`deploy`] turns that into
//! steps; [`blocked`] says why a machine does not move; [`assign`] makes the list a machine gets;
//! [`secrets`] says which secret an item means; [`removal`] takes a machine out of its cluster.

pub mod added;
pub mod assign;
pub mod blocked;
pub mod containers;
pub mod deploy;
pub mod enrolment;
pub mod items;
pub mod kept_open;
pub mod locks;
mod names;
pub mod reboot;
pub mod recovery;
pub mod removal;
pub mod safety;
pub mod secrets;
pub mod survey;
pub mod swarm;
pub mod update;
pub mod waves;

#[cfg(test)]
mod tests;

/// What an operator may set for the whole coordinator.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A machine not heard of for so long is Lost, in milliseconds.
    pub lost_after_ms: u64,
}

/// What the tests go by.
#[cfg(test)]
pub(crate) const LIMITS: Limits = Limits { lost_after_ms: 30_000 };
