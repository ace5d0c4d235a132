//! Effects on child clusters. Each system of a cluster has a file of its own; `plan` decides, and this module executes.

pub mod kubernetes;
pub mod swarm;
