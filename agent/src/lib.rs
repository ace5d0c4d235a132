//! Muster's agent as a library: the pure core, ledger, runners, link.

pub mod attempt;
pub mod core;
pub mod exec_item;
pub mod facts;
pub mod output;
pub mod runner;
