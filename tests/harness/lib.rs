//! The harness of Muster's proofs: a simulator that drives the production cores of one coordinator and many agents
//! through faults, the invariants that must hold after every event, a fleet of real processes and one of real systemd
//! nodes for end-to-end tests.

pub mod fleet;
pub mod invariants;
pub mod nodes;
pub mod rng;
pub mod sim;
