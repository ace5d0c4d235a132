//! What both daemons share of the host they run on: configuration file, log, service manager notifications. It lives
//! here because both daemons build on proto only and cannot import each other. It makes no decisions.

pub mod config_file;
pub mod logging;
pub mod service_manager;
pub mod signals;
pub mod state_dir;
