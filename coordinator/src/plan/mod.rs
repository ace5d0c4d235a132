//! Scheduling: which machine may proceed, and when. PURE: functions of the facts and the given time. The core
//! (`core.rs`) asks, and acts on the answers.
//!
//! [`snapshot`](snapshot::ClusterSnapshot) takes a snapshot of one cluster; [`safety`] says what may start; [`deploy`]
//! turns that into steps; [`blocked`] says why a machine waits; [`assign`] makes a machine's list; [`secrets`] resolves
//! the secrets of an item; [`removal`] removes a machine from its cluster.

pub mod added;
pub mod addons;
pub mod assign;
pub mod blocked;
pub mod containers;
pub mod deploy;
pub mod drain;
pub mod enrolment;
pub mod handshake;
pub mod items;
pub mod locks;
mod names;
pub mod reboot;
pub mod recovery;
pub mod removal;
pub mod requests;
pub mod rollout_blockers;
pub mod safety;
pub mod secrets;
pub mod snapshot;
pub mod swarm;
pub mod update;
pub mod waves;

#[cfg(test)]
mod tests;

/// Settings of the whole coordinator.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Silence after which a machine is Lost, in milliseconds.
    pub lost_after_ms: u64,
}

/// Limits in the tests.
#[cfg(test)]
pub(crate) const LIMITS: Limits = Limits { lost_after_ms: 30_000 };
