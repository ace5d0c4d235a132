//! What both daemons say to the host they run on: log lines and news for the service manager. Here, because proto is
//! the only crate that both build on, and neither may import the other. Decides nothing.

pub mod logging;
pub mod service_manager;
