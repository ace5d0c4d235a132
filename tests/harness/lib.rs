//! The harness of Muster's proofs: a simulator that drives the production cores of one coordinator and many agents
//! through faults, and the invariants that must hold after every event.

pub mod invariants;
pub mod rng;
pub mod sim;
