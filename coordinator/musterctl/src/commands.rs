//! The subcommands, one file each.

pub(crate) mod actions;
pub(crate) mod annotate;
pub(crate) mod apply;
pub(crate) mod artifacts;
pub(crate) mod audit;
pub(crate) mod completion;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod deploy;
pub(crate) mod describe;
pub(crate) mod drain_force;
pub(crate) mod get;
pub(crate) mod kubernetes;
pub(crate) mod locks;
pub(crate) mod logs;
pub(crate) mod maintenance;
pub(crate) mod plan;
pub(crate) mod reboot;
pub(crate) mod remove;
pub(crate) mod secret;
pub(crate) mod token;
pub(crate) mod update;
pub(crate) mod version;
pub mod watch;
