//! The harness of Muster's proofs. A simulator drives the production cores of one coordinator and many agents through
//! faults. A model explores every order of events, and invariants are checked after each event. The end-to-end tests
//! run on a fleet of real processes, on a fleet of real systemd nodes, and under a real Kubernetes cluster.

pub mod fleet;
pub mod invariants;
pub mod kubernetes;
pub mod model;
pub mod nodes;
pub mod rng;
pub mod sim;
