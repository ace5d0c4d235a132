//! The harness of Muster's proofs: a simulator that drives the production cores of one coordinator and many agents
//! through faults, a model that goes through every order of events, the invariants that must hold after each, a fleet
//! of real processes and one of real systemd nodes for end-to-end tests.

pub mod fleet;
pub mod invariants;
pub mod model;
pub mod nodes;
pub mod rng;
pub mod sim;
