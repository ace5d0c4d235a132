//! What both daemons share of the host they run on: configuration file, log, service manager notifications. It lives
//! here because proto is the only crate that both daemons build on. It makes no decisions.

pub mod config_file;
pub mod logging;
pub mod service_manager;
pub mod signals;
pub mod state_dir;
