//! Muster's coordinator as a library: the pure core, the store, the servers. `main.rs` is the daemon.

pub mod admin;
pub mod config;
pub mod core;
pub mod documents;
pub mod engine;
pub mod facts;
pub mod health;
mod journal;
pub mod listen;
pub mod manifest;
pub mod orchestrator;
pub mod pki;
pub mod plan;
pub mod proof;
pub mod server;
pub mod setup;
pub mod store;
