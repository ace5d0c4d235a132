//! Muster's agent as a library: the pure core, ledger, runners, link.

pub mod attempt;
pub mod config;
pub mod control_plane;
pub mod core;
mod disk_space;
pub mod docker;
pub mod engine;
pub mod exec_item;
pub mod facts;
pub mod host;
pub mod identity;
pub mod ledger;
pub mod link;
mod mounts;
mod notifier;
pub mod output;
pub mod proxy;
pub mod runner;
pub mod status;
pub mod status_file;
pub mod swarm;
pub mod systemd;
