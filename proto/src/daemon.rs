//! What both daemons share of the host they run on: configuration file, log lines, news for the service manager. Here,
//! because proto is the only crate that both build on, and neither may import the other. Decides nothing.

pub mod config_file;
pub mod logging;
pub mod service_manager;
pub mod signals;
pub mod state_dir;
