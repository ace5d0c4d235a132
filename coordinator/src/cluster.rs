//! Effects on child clusters. Each system that a cluster is made of has a file of its own; what is to be done is
//! decided in `plan`, and this does it.

pub mod swarm;
