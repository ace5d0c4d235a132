//! The harness of Muster's proofs: a simulator that drives the production cores of one coordinator and many agents
//! through faults, the invariants that must hold after every event, and a fleet of real processes for end-to-end
//! tests.

pub mod fleet;
pub mod invariants;
pub mod rng;
pub mod sim;
